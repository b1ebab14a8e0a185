//! Takes the lead from one replica after the other while messages are sent: by kill, freeze, transfer, stop.

use std::fmt;
use std::time::Duration;

use flotilla_chaos::cluster::{ClusterView, ClusterViewError, LocalCluster, LocalClusterError};
use flotilla_client::{AdminClient, AdminError};
use flotilla_runtime::{Instant, Runtime};
use serde::Serialize;

use super::workload::Tally;

/// How long a new leader may take; far above what is promised, since then the demo fails anyway.
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a restarted replica may take to have all that is committed.
const CATCH_UP_TIMEOUT: Duration = Duration::from_secs(60);
/// A graceful stop takes at most 10 s by a broker's own deadline.
const STOP_TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// What happens to a leader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FaultKind {
    /// SIGKILL, then started again.
    Kill,
    /// SIGSTOP until another leads: nothing resets its connections, only timers see it.
    Freeze,
    /// Handed over by an operator's call; nobody ends.
    Transfer,
    /// SIGTERM, then started again.
    Stop,
    /// Each replica in turn: SIGTERM, started again, caught up; the leader last.
    RollingRestart,
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FaultKind::Kill => "killed",
            FaultKind::Freeze => "frozen",
            FaultKind::Transfer => "handed over",
            FaultKind::Stop => "stopped",
            FaultKind::RollingRestart => "all restarted in turn",
        })
    }
}

/// One leader's loss of its lead.
#[derive(Debug, Clone, Serialize)]
pub struct Fault {
    pub kind: FaultKind,
    /// The leader it happened to.
    pub node: u64,
    /// Its term.
    pub term: u64,
    /// Who led next, and in which term.
    pub next_leader: u64,
    pub next_term: u64,
    /// From the fault until a replica said that it leads and takes writes, as seen by asking every 10 ms.
    pub leader_after_ms: u64,
    /// From its return until the old leader had applied what was committed.
    pub caught_up_after_ms: u64,
    #[serde(skip)]
    pub at: Instant,
}

/// What ended the faults early.
#[derive(Debug, thiserror::Error)]
pub enum FaultError {
    #[error(transparent)]
    View(#[from] ClusterViewError),
    #[error(transparent)]
    Cluster(#[from] LocalClusterError),
    #[error("the lead was not handed over: {0}")]
    Transfer(#[from] AdminError),
    #[error("broker {node} did not end within {STOP_TIMEOUT:?} of SIGTERM")]
    StopTimeout { node: u64 },
}

/// Where faults happen, and what is told of them.
pub struct Injector<'a, Tell: FnMut(&str)> {
    pub cluster: &'a mut LocalCluster,
    pub view: &'a ClusterView,
    pub admin: AdminClient,
    pub tally: &'a Tally,
    pub runtime: &'a Runtime,
    pub tell: Tell,
}

impl<Tell: FnMut(&str)> Injector<'_, Tell> {
    /// One fault after the other, each when it is due and the replica of the one before has caught up.
    pub async fn inject(mut self, kinds: &[FaultKind]) -> Result<Vec<Fault>, FaultError> {
        let mut faults = Vec::new();
        for (number, kind) in (0..).zip(kinds) {
            while self.tally.completed() < self.tally.pacer.due_at(number) {
                self.cluster.check_alive()?;
                self.runtime.sleep(POLL_INTERVAL).await;
            }
            faults.push(self.inject_one(*kind).await?);
        }
        self.tally.pacer.set_over();
        Ok(faults)
    }

    async fn inject_one(&mut self, kind: FaultKind) -> Result<Fault, FaultError> {
        let leader = self.view.await_leader(0, LEADER_TIMEOUT).await?;
        let mut at = self.runtime.now();
        self.tally.pacer.happened();
        match kind {
            FaultKind::Kill => {
                self.cluster.kill(leader.node).await?;
                at = self.runtime.now();
            }
            FaultKind::Freeze => self.cluster.pause(leader.node)?,
            FaultKind::Transfer => {
                self.admin.transfer_leader(None, LEADER_TIMEOUT).await?;
            }
            FaultKind::Stop => self.stop(leader.node).await?,
            FaultKind::RollingRestart => {
                let others: Vec<u64> = self.cluster.nodes().into_iter().filter(|node| *node != leader.node).collect();
                for node in others {
                    self.stop(node).await?;
                    self.cluster.restart(node).await?;
                    self.view.await_caught_up(node, CATCH_UP_TIMEOUT).await?;
                }
                self.stop(leader.node).await?;
            }
        }
        let (node, term) = (leader.node, leader.term);
        (self.tell)(&format!("broker {node}, leader of term {term}: {kind}, after {} messages", self.tally.acked()));

        let next = self.view.await_leader(term, LEADER_TIMEOUT).await?;
        let leader_after = self.runtime.now() - at;
        let returned = self.runtime.now();
        if kind == FaultKind::Freeze {
            self.cluster.resume(node)?;
        }
        self.cluster.restart(node).await?;
        self.view.await_caught_up(node, CATCH_UP_TIMEOUT).await?;
        let caught_up_after = self.runtime.now() - returned;
        (self.tell)(&format!(
            "broker {} leads term {} since {} ms after that; broker {node} is back and caught up after {} ms",
            next.node,
            next.term,
            leader_after.as_millis(),
            caught_up_after.as_millis()
        ));
        Ok(Fault {
            kind,
            node,
            term,
            next_leader: next.node,
            next_term: next.term,
            leader_after_ms: whole_ms(leader_after),
            caught_up_after_ms: whole_ms(caught_up_after),
            at,
        })
    }

    async fn stop(&mut self, node: u64) -> Result<(), FaultError> {
        let ended_by_itself = self.cluster.stop(node, STOP_TIMEOUT).await?;
        if ended_by_itself { Ok(()) } else { Err(FaultError::StopTimeout { node }) }
    }
}

/// Rounded up, so that nothing looks faster than it was.
pub fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
