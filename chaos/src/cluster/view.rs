//! What the replicas of a group say of themselves: who leads, how far each is, whether they agree.

use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{Dump, replicas_agree};
use flotilla_proto::admin::{ClusterStatusReply, ClusterStatusRequest, DebugRequest, ReplicaState, Role};
use flotilla_proto::client::{AdminCalls, CallError, CallOptions, Connector};
use flotilla_proto::status::Code;
use flotilla_proto::v2;
use flotilla_runtime::Runtime;
use futures::future::join_all;

const CALL_TIMEOUT: Duration = Duration::from_millis(1_000);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// A replica that goes on all the time may take so many times as long as one that stands still.
const PATIENCE: u32 = 10;

/// Asks every replica by itself; no answer is passed on by another one.
pub struct ClusterView {
    replicas: Vec<(String, Arc<dyn AdminCalls>)>,
    runtime: Runtime,
}

/// What did not happen in time.
#[derive(Debug, thiserror::Error)]
pub enum ClusterViewError {
    /// Nobody led.
    #[error("no replica could lead within {waited:?}: {states}")]
    NoLeader {
        /// How long was waited.
        waited: Duration,
        /// What each replica said last.
        states: String,
    },
    /// A replica is too slow.
    #[error("replica {node} had not caught up within {waited:?}: {states}")]
    Behind {
        /// Which one.
        node: u64,
        /// How long was waited.
        waited: Duration,
        /// What each replica said last.
        states: String,
    },
}

/// A replica that leads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// Which one.
    pub node: u64,
    /// In which term.
    pub term: u64,
}

impl ClusterView {
    /// Of the replicas that serve clients at these `host:port`s.
    pub fn new(addresses: &[String], connector: &dyn Connector, runtime: &Runtime) -> ClusterView {
        let replicas = addresses.iter().map(|address| (address.clone(), connector.admin(address))).collect();
        ClusterView { replicas, runtime: runtime.clone() }
    }

    /// Every replica's status, in the order of the addresses.
    pub async fn statuses(&self) -> Vec<(String, Result<ClusterStatusReply, String>)> {
        let asked = self.replicas.iter().map(|(address, replica)| async move {
            let options = CallOptions::within(CALL_TIMEOUT);
            let reply = replica.cluster_status(options, ClusterStatusRequest::default()).await;
            (address.clone(), answer_of(reply, |reply| reply.status.as_ref()))
        });
        join_all(asked).await
    }

    /// Every replica's applied state with its digest, without queues; only of those that answer.
    pub async fn states(&self) -> Vec<ReplicaState> {
        let asked = self.replicas.iter().map(|(_, replica)| async move {
            let request = DebugRequest { without_queues: true, ..DebugRequest::default() };
            let reply = replica.debug(CallOptions::within(CALL_TIMEOUT), request).await;
            answer_of(reply, |reply| reply.status.as_ref()).ok().and_then(|reply| reply.state)
        });
        join_all(asked).await.into_iter().flatten().collect()
    }

    /// Waits for a replica that leads in a term after `after_term` and can take writes.
    ///
    /// # Errors
    /// If none does within `timeout`.
    pub async fn await_leader(&self, after_term: u64, timeout: Duration) -> Result<Leader, ClusterViewError> {
        let deadline = self.runtime.now() + timeout;
        loop {
            let statuses = self.statuses().await;
            let leader = statuses
                .iter()
                .filter_map(|(_, status)| status.as_ref().ok())
                .filter(|status| status.can_write && status.term > after_term)
                .max_by_key(|status| status.term);
            if let Some(leader) = leader {
                return Ok(Leader { node: leader.node, term: leader.term });
            }
            if self.runtime.now() >= deadline {
                return Err(ClusterViewError::NoLeader { waited: timeout, states: text_of(&statuses) });
            }
            self.runtime.sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until a replica has applied what was committed a moment before it was asked. How long that takes depends on how
    /// much there is to be sent to it, so it is waited for as long as it goes on.
    ///
    /// # Errors
    /// If it applied nothing for `timeout`, or was not there after ten times as long.
    pub async fn await_caught_up(&self, node: u64, timeout: Duration) -> Result<(), ClusterViewError> {
        let began = self.runtime.now();
        let (mut moved, mut applied_before) = (began, None);
        let mut committed_before: Option<u64> = None;
        loop {
            let statuses = self.statuses().await;
            let known = || statuses.iter().filter_map(|(_, status)| status.as_ref().ok());
            let applied = known().find(|status| status.node == node).and_then(|status| status.applied_index);
            if let (Some(target), Some(applied)) = (committed_before, applied)
                && applied >= target
            {
                return Ok(());
            }
            committed_before = known().filter_map(|status| status.committed_index).max();
            let now = self.runtime.now();
            if applied > applied_before {
                (moved, applied_before) = (now, applied);
            }
            if now >= moved + timeout || now >= began + timeout * PATIENCE {
                return Err(ClusterViewError::Behind { node, waited: now - began, states: text_of(&statuses) });
            }
            self.runtime.sleep(POLL_INTERVAL).await;
        }
    }

    /// Waits until all replicas have applied the same entries, and returns their states then; after `timeout` as
    /// they are. A replica that does not answer has no dump.
    pub async fn settled(&self, timeout: Duration) -> Vec<Dump> {
        let deadline = self.runtime.now() + timeout;
        loop {
            let dumps: Vec<Dump> = self.states().await.into_iter().map(dump_of).collect();
            let all_answer = dumps.len() == self.replicas.len();
            let same_index = dumps.windows(2).all(|pair| pair[0].applied_index == pair[1].applied_index);
            if (all_answer && same_index) || self.runtime.now() >= deadline {
                return dumps;
            }
            self.runtime.sleep(POLL_INTERVAL).await;
        }
    }

    /// What is wrong with settled states: a replica that is missing or behind, a digest that differs.
    pub fn disagreements(&self, dumps: &[Dump]) -> Vec<String> {
        let mut wrong: Vec<String> =
            replicas_agree::find(dumps, true).into_iter().map(|disagreement| disagreement.to_string()).collect();
        if dumps.len() < self.replicas.len() {
            wrong.push(format!("only {} of {} replicas tell their state", dumps.len(), self.replicas.len()));
        }
        wrong
    }
}

fn dump_of(state: ReplicaState) -> Dump {
    Dump { replica: state.node, applied_index: state.digest_index, digest: state.digest, queues: Vec::new() }
}

/// The reply if its status is good, else why not.
fn answer_of<T>(reply: Result<T, CallError>, status: impl Fn(&T) -> Option<&v2::Status>) -> Result<T, String> {
    let reply = reply.map_err(|error| error.to_string())?;
    match status(&reply) {
        Some(status) if status.code == Code::Ok as i32 => Ok(reply),
        Some(status) => Err(format!("{}: {}", status.code, status.message)),
        None => Err("an answer without a status".to_owned()),
    }
}

fn text_of(statuses: &[(String, Result<ClusterStatusReply, String>)]) -> String {
    let texts: Vec<String> = statuses
        .iter()
        .map(|(address, status)| match status {
            Ok(status) => format!(
                "{} is {} in term {}, applied {}",
                status.node,
                role_text(status.role),
                status.term,
                index_text(status.applied_index)
            ),
            Err(error) => format!("{address}: {error}"),
        })
        .collect();
    texts.join("; ")
}

/// `leader`, `follower`, ...
pub fn role_text(role: i32) -> &'static str {
    match Role::try_from(role).unwrap_or_default() {
        Role::Unspecified => "unknown",
        Role::Leader => "leader",
        Role::Follower => "follower",
        Role::Candidate => "candidate",
        Role::Learner => "learner",
    }
}

/// A log index, or `-` while there is none.
pub fn index_text(index: Option<u64>) -> String {
    index.map_or_else(|| "-".to_owned(), |index| index.to_string())
}
