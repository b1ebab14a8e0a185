//! Going on with one replica of a group whose majority is gone for good, as an operator orders it: what it would cost, and the
//! order.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;

use crate::ids::EntryId;
use crate::raft::ask_acquaintance;
use crate::recovery_order::RecoveryOrder;
use crate::{Incarnation, LogIndex, NodeId, ReplicatedLog, Standing, Term};

/// Between a recovery order and the stop that it asks for.
const STOP_PAUSE: Duration = Duration::from_millis(300);

/// What becomes of a group that goes on with this replica alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// The replica that goes on.
    pub node: NodeId,
    /// The life of its directory.
    pub incarnation: Incarnation,
    /// The epoch in which the group goes on.
    pub epoch: u16,
    /// The last entry of its log, and its term: what it goes on with.
    pub last: Option<(Term, LogIndex)>,
    /// Its log is on disk up to here.
    pub durable: Option<LogIndex>,
    /// It knows entries to be committed up to here. What is behind counts from then on, although it may have been neither
    /// committed nor acknowledged; and what was committed behind its last entry is lost.
    pub committed: Option<LogIndex>,
    /// The replicas that are given up, with what they say now.
    pub given_up: BTreeMap<NodeId, GivenUpMember>,
    /// Why it is not done; `None`: it can be.
    pub refusal: Option<RecoveryRefusal>,
}

/// A replica that is given up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GivenUpMember {
    /// The life in which the group knows it.
    pub incarnation: Incarnation,
    /// It votes.
    pub is_voter: bool,
    /// It answered, in that life: the last entry that is on its disk.
    pub answered: Option<Option<(Term, LogIndex)>>,
}

/// Why a group does not go on with one replica alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecoveryRefusal {
    /// Enough are there to elect a leader.
    #[error("{alive} of {voters} voters answer, which is a majority: the group can go on by itself")]
    MajorityAnswers {
        /// Voters that answer, with this one.
        alive: usize,
        /// All voters.
        voters: usize,
    },
    /// Another one knows more.
    #[error(
        "replica {node} answers and its log is longer: it ends at entry {last}, this one at {own}; go on with that one"
    )]
    LongerLog {
        /// Who.
        node: NodeId,
        /// Its last entry.
        last: LogIndex,
        /// The last entry here.
        own: LogIndex,
    },
    /// Its directory is none that the group counts.
    #[error("this replica is no member of the group in the directory that it has")]
    NoMember,
    /// Entries here cannot be read, and nobody is left to mend them from.
    #[error("{entries} entries of this replica's log are damaged")]
    Damaged {
        /// How many.
        entries: u64,
    },
    /// It holds nothing.
    #[error("this replica's log is empty")]
    Empty,
    /// Epochs are counted in 16 bits.
    #[error("the group went on without its majority 65535 times already")]
    TooOften,
}

fn pair(id: EntryId) -> (Term, LogIndex) {
    (id.term, id.index)
}

impl<O: Send + 'static> ReplicatedLog<O> {
    /// What it would come to if the group went on with this replica alone. Asks all others. Changes nothing.
    pub async fn plan_recovery(&self) -> RecoveryPlan {
        let inner = &*self.inner;
        let members = self.members();
        let others: Vec<NodeId> = members.members.keys().copied().filter(|node| *node != inner.node).collect();
        let asking = others.iter().map(|node| ask_acquaintance(&inner.runtime, &*inner.transport, *node));
        let answers = join_all(asking).await;
        let mut given_up = BTreeMap::new();
        for (node, answer) in others.into_iter().zip(answers) {
            let incarnation = members.members[&node].incarnation;
            let answered = answer.filter(|(_, sender)| sender.incarnation == incarnation);
            let answered = answered.map(|(answer, _)| answer.durable.map(pair));
            let is_voter = members.voters.contains(&node);
            given_up.insert(node, GivenUpMember { incarnation, is_voter, answered });
        }
        let last = inner.view.ends().1.map(pair);
        let mut plan = RecoveryPlan {
            node: inner.node,
            incarnation: self.incarnation(),
            epoch: members.epoch.saturating_add(1),
            last,
            durable: inner.view.durable_index(),
            committed: inner.view.committed().map(|id| id.index).max(self.status().committed),
            given_up,
            refusal: None,
        };
        plan.refusal = self.refusal_of(&plan, members.voters.len());
        plan
    }

    fn refusal_of(&self, plan: &RecoveryPlan, voters: usize) -> Option<RecoveryRefusal> {
        let known = self.members().members.get(&plan.node).map(|member| member.incarnation);
        if self.standing() != Standing::Member || known != Some(plan.incarnation) {
            return Some(RecoveryRefusal::NoMember);
        }
        let Some((term, own)) = plan.last else { return Some(RecoveryRefusal::Empty) };
        let answering = plan.given_up.values().filter(|member| member.is_voter && member.answered.is_some()).count();
        let alive = answering + usize::from(self.members().voters.contains(&plan.node));
        if alive > voters / 2 {
            return Some(RecoveryRefusal::MajorityAnswers { alive, voters });
        }
        let longest = plan.given_up.iter().filter_map(|(node, member)| Some((member.answered??, *node))).max();
        if let Some(((their_term, last), node)) = longest
            && (their_term, last) > (term, own)
        {
            return Some(RecoveryRefusal::LongerLog { node, last, own });
        }
        let entries = self.integrity().damaged_entries;
        if entries > 0 {
            return Some(RecoveryRefusal::Damaged { entries });
        }
        (plan.epoch == u16::MAX).then_some(RecoveryRefusal::TooOften)
    }

    /// Orders that the group goes on with this replica alone, and stops it ([`ReplicatedLog::failed`] resolves): the next start
    /// carries the order out. What the plan says may be lost is lost then, and who is given up in it will not count again.
    ///
    /// # Errors
    /// What the plan says, or the disk's answer.
    pub async fn order_recovery(&self) -> Result<RecoveryPlan, RecoveryError> {
        let inner = &*self.inner;
        inner.view.flush().await.map_err(RecoveryError::Io)?;
        let plan = self.plan_recovery().await;
        if let Some(refusal) = plan.refusal.clone() {
            return Err(RecoveryError::Refused(refusal));
        }
        let (term, index) = plan.last.expect("an empty log is refused above");
        let order = RecoveryOrder {
            node: plan.node,
            incarnation: plan.incarnation,
            epoch: plan.epoch,
            last: EntryId { term, index },
            contact: inner.contact.clone(),
        };
        let (disk, dir) = (inner.disk.clone(), inner.dir.clone());
        inner.view.shared.write_blocking(move || order.write(&*disk, &dir)).await.map_err(RecoveryError::Io)?;
        self.stop_for_recovery(plan.epoch);
        Ok(plan)
    }

    /// Stops a moment later, so that whoever ordered it is answered.
    fn stop_for_recovery(&self, epoch: u16) {
        let (failure, runtime) = (self.inner.failure.clone(), self.inner.runtime.clone());
        let stopping = self.inner.runtime.spawn("recovery-stop", async move {
            runtime.sleep(STOP_PAUSE).await;
            failure.report(format!(
                "an operator has ordered that the group goes on with this replica alone, in epoch {epoch}: start it again, \
                 that carries the order out"
            ));
        });
        stopping.detach();
    }
}

/// Why an order was not given.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// It would be wrong.
    #[error(transparent)]
    Refused(RecoveryRefusal),
    /// The disk failed.
    #[error("recovery order could not be written: {0}")]
    Io(std::io::Error),
}
