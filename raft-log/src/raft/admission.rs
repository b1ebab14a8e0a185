//! A leader keeps the membership true: it records who the founders are, finishes changes that an earlier leader left half
//! done, takes replicas in again whose directories were lost, and makes voters of those who are meant to vote.
//!
//! ```text
//!  voter 3, life A ─ answers in life B ─▶ learner 3, life A ─▶ learner 3, life B ─ filled ─▶ voter 3, life B
//!                                     ▲ committed          ▲ committed                   ▲ committed
//! ```
//! Life B counts for nothing before life A is no voter any more: what A had confirmed and voted is forgotten only when no
//! quorum needs it. Each step is one change and can be taken by another leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use openraft::{ChangeMembers, Precondition};

use super::acquaintance::ask_acquaintance;
use super::stamp::Stamp;
use super::type_config::{LogRaft, TypeConfig};
use crate::ack::AckTracker;
use crate::ids::EntryId;
use crate::log_view::LogView;
use crate::member::{GroupMembers, Member};
use crate::standing::Standings;
use crate::status_watch::StatusWatch;
use crate::{LogIndex, LogStatus, NodeId, Transport};

/// From one look to the next.
const LOOK_PAUSE: Duration = Duration::from_millis(200);
/// A change that takes longer is looked at anew.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// A learner that lacks no more entries than this is made a voter.
const LAG_ENTRIES_MAX: u64 = 200;

/// What a leader needs for it.
#[derive(Clone)]
pub(crate) struct Admission {
    pub(crate) node: NodeId,
    pub(crate) contact: String,
    pub(crate) standings: Standings,
    pub(crate) raft: LogRaft,
    pub(crate) status: StatusWatch,
    pub(crate) view: LogView,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) acks: AckTracker,
    pub(crate) runtime: Runtime,
}

type Changes = ChangeMembers<u64, Member>;

impl Admission {
    /// Begins; dropping the task ends it.
    pub(crate) fn start(self) -> Task<()> {
        let runtime = self.runtime.clone();
        runtime.spawn("admission", async move {
            let mut voters = BTreeSet::new();
            while !self.view.shared.damages.is_closing() {
                self.runtime.sleep(LOOK_PAUSE).await;
                let now = self.standings.members().voters;
                if now != voters && !now.is_empty() {
                    // A snapshot, or the end of what an earlier leader did, changes them without an append.
                    self.acks.set_voters(now.clone());
                    voters = now;
                }
                let status = self.status.now();
                if status.can_write {
                    self.look(&status).await;
                }
            }
        })
    }

    /// Takes the next step, if there is one.
    async fn look(&self, status: &LogStatus) {
        let members = self.standings.members();
        if !members.is_committed || members.members.is_empty() {
            return;
        }
        if members.is_joint {
            tracing::info!(index = ?members.index, "finishing a change of members that was left half done");
            return self.change(&members, ChangeMembers::AddVoterIds(BTreeSet::new())).await;
        }
        let strangers = self.standings.take_strangers();
        let mut records = BTreeMap::new();
        for (node, member) in &members.members {
            let is_voter = members.voters.contains(node);
            if *node == self.node {
                self.record_self(&members, member, &mut records);
                continue;
            }
            let is_unknown = !member.incarnation.is_known();
            if !(is_unknown || strangers.contains_key(node) || (member.is_voter_wanted && !is_voter)) {
                continue;
            }
            let Some((answer, sender)) = ask_acquaintance(&self.runtime, &*self.transport, *node).await else {
                continue;
            };
            if is_unknown && sender.is_founder {
                let contact = answer.contact;
                let (incarnation, epoch) = (sender.incarnation, members.epoch);
                records.insert(node.0, Member { incarnation, is_voter_wanted: true, epoch, contact });
            } else if member.incarnation == sender.incarnation {
                if member.is_voter_wanted && !is_voter && is_filled(answer.durable, members.index, status.committed) {
                    tracing::info!(%node, "learner has caught up and becomes a voter");
                    return self.change(&members, ChangeMembers::AddVoterIds([node.0].into())).await;
                }
            } else if answer.is_newcomer {
                return self.take_in_again(&members, *node, member, &sender).await;
            }
        }
        if !records.is_empty() {
            self.change(&members, ChangeMembers::SetNodes(records)).await;
        }
    }

    fn record_self(&self, members: &GroupMembers, member: &Member, records: &mut BTreeMap<u64, Member>) {
        if !member.incarnation.is_known() {
            let (incarnation, contact) = (self.standings.incarnation(), self.contact.clone());
            let member = Member { incarnation, is_voter_wanted: true, epoch: members.epoch, contact };
            records.insert(self.node.0, member);
        }
    }

    /// The next step of taking in a member whose directory is new.
    async fn take_in_again(&self, members: &GroupMembers, node: NodeId, member: &Member, sender: &Stamp) {
        let incarnation = sender.incarnation;
        if !members.voters.contains(&node) {
            // No quorum needs the life before any more.
            tracing::warn!(%node, %incarnation, "the replica is taken in again, in its new life, and filled");
            let next = Member { incarnation, ..member.clone() };
            return self.change(members, ChangeMembers::SetNodes([(node.0, next)].into())).await;
        }
        if members.voters.len() < 2 {
            return;
        }
        if !member.is_voter_wanted {
            // So that whoever leads next knows that it is to vote again.
            let next = Member { is_voter_wanted: true, ..member.clone() };
            return self.change(members, ChangeMembers::SetNodes([(node.0, next)].into())).await;
        }
        tracing::warn!(
            %node, lost = %member.incarnation, %incarnation,
            "a voter's directory was lost: it is no voter any more, until its new one is filled"
        );
        self.change(members, ChangeMembers::RemoveVoters([node.0].into())).await;
    }

    /// One change, unless the membership is not `seen` any more.
    async fn change(&self, seen: &GroupMembers, changes: Changes) {
        if let Err(error) = change_members(&self.raft, &self.runtime, seen, changes, CHANGE_TIMEOUT).await {
            tracing::info!(error, "change of members was not made, it is looked at again");
        }
    }
}

/// Makes one change to the membership `seen`; whoever is no voter any more stays as a learner. The error is in words.
pub(crate) async fn change_members(
    raft: &LogRaft,
    runtime: &Runtime,
    seen: &GroupMembers,
    changes: Changes,
    timeout: Duration,
) -> Result<(), String> {
    let index = seen.index;
    let same = raft.with_raft_state(move |state| *state.membership_state.effective().log_id()).await;
    let id = same.map_err(|fatal| fatal.to_string())?;
    if id.as_ref().map(|id| LogIndex(id.index())) != index {
        return Err("membership has changed meanwhile".to_owned());
    }
    let only_if = [Precondition::<TypeConfig>::LastMembershipLogId { last_membership_log_id: id }];
    match runtime.timeout(timeout, raft.change_membership_if(changes, true, only_if)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("it is not committed after {} ms", timeout.as_millis())),
    }
}

/// Whether what a learner has on disk reaches nearly to where the group is, and to the entry that took it in: without that one it
/// does not know that it is a member, and would answer for nothing as a voter. In a young group an empty log is "nearly" there.
fn is_filled(durable: Option<EntryId>, taken_in: Option<LogIndex>, committed: Option<LogIndex>) -> bool {
    let has = durable.map(|last| last.index);
    has >= taken_in && has.map_or(0, |has| has.0) + LAG_ENTRIES_MAX >= committed.map_or(0, |committed| committed.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_learner_is_not_filled_however_few_entries_there_are() {
        let (taken_in, committed) = (Some(LogIndex(20)), Some(LogIndex(55)));
        assert!(!is_filled(None, taken_in, committed));
        assert!(!is_filled(Some(EntryId::new(2, 19)), taken_in, committed), "it does not know that it is a member");
        assert!(is_filled(Some(EntryId::new(2, 20)), taken_in, committed));
        assert!(!is_filled(Some(EntryId::new(2, 20)), taken_in, Some(LogIndex(20 + LAG_ENTRIES_MAX + 1))));
    }
}
