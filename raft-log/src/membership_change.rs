//! Changes of a group's members, as an operator asks for them: each a step that may be repeated, and gone on with by any
//! leader.

use std::time::Duration;

use flotilla_runtime::BoxFuture;
use openraft::ChangeMembers;

use crate::NodeId;
use crate::member::{GroupMembers, Member};
use crate::raft::{ask_acquaintance, change_members};
use crate::replica::Replica;

/// A follower that was not heard for so long is taken for dead.
const ALIVE_MAX: Duration = Duration::from_secs(3);

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// Only the leader changes members.
    #[error("this replica does not lead")]
    NotLeader {
        /// Who does, as far as it knows.
        leader: Option<NodeId>,
    },
    /// Another change is under way.
    #[error("another change of members is under way: repeat the command")]
    Busy,
    /// It does not answer.
    #[error("replica {0} does not answer from here: is it started, and is its address right?")]
    Silent(NodeId),
    /// It is not new.
    #[error("replica {0} has a log of its own and is no newcomer to this group: start it with an empty data directory")]
    NotNew(NodeId),
    /// It is no member.
    #[error("replica {0} is no member of the group, which has replicas {1:?}")]
    Unknown(NodeId, Vec<u64>),
    /// It would leave the group without a majority.
    #[error("without replica {node} the group needs {needed} of {left} voters, and only {alive} of them are there now")]
    NoMajority {
        /// Who was to go.
        node: NodeId,
        /// Voters that would be left.
        left: usize,
        /// Of these a majority.
        needed: usize,
        /// Of these heard of just now.
        alive: usize,
    },
    /// A group has one voter at least.
    #[error("replica {0} is the last voter of the group")]
    LastVoter(NodeId),
    /// The leader itself was to go: it has handed over first, and the new leader makes the change.
    #[error("the leader itself is to go; it hands over first: repeat the command")]
    HandedOver,
    /// It was not committed, or was refused; repeat it.
    #[error("change was not made: {0}")]
    NotMade(String),
}

impl Replica {
    fn leading_members(&self) -> Result<GroupMembers, MemberError> {
        let status = self.status.now();
        if !status.can_write {
            return Err(MemberError::NotLeader { leader: status.leader.filter(|leader| *leader != status.node) });
        }
        let members = self.view.standings().members();
        if members.is_joint || !members.is_committed { Err(MemberError::Busy) } else { Ok(members) }
    }

    async fn change(
        &self,
        seen: &GroupMembers,
        changes: ChangeMembers<u64, Member>,
        timeout: Duration,
    ) -> Result<(), MemberError> {
        let changing = change_members(&self.raft, &self.runtime, seen, changes, timeout);
        changing.await.map_err(MemberError::NotMade)
    }

    fn member(members: &GroupMembers, node: NodeId) -> Result<&Member, MemberError> {
        let ids = || members.members.keys().map(|node| node.0).collect();
        members.members.get(&node).ok_or_else(|| MemberError::Unknown(node, ids()))
    }

    /// See [`crate::ReplicatedLog::add_learner`].
    pub(crate) fn add_learner(&self, node: NodeId, timeout: Duration) -> BoxFuture<'_, Result<(), MemberError>> {
        Box::pin(async move {
            let members = self.leading_members()?;
            let known = members.members.get(&node).map(|member| member.incarnation);
            let asked = ask_acquaintance(&self.runtime, &*self.transport, node).await;
            let Some((answer, sender)) = asked else {
                // Known and away: it will be filled once it is back.
                return if known.is_some() { Ok(()) } else { Err(MemberError::Silent(node)) };
            };
            if known == Some(sender.incarnation) || (known.is_some() && members.voters.contains(&node)) {
                return Ok(());
            }
            if !answer.is_newcomer {
                return Err(MemberError::NotNew(node));
            }
            let (incarnation, epoch) = (sender.incarnation, members.epoch);
            let member = Member { incarnation, is_voter_wanted: false, epoch, contact: answer.contact };
            self.change(&members, ChangeMembers::SetNodes([(node.0, member)].into()), timeout).await
        })
    }

    /// See [`crate::ReplicatedLog::promote`].
    pub(crate) fn promote(&self, node: NodeId, timeout: Duration) -> BoxFuture<'_, Result<(), MemberError>> {
        Box::pin(async move {
            let members = self.leading_members()?;
            let member = Self::member(&members, node)?;
            if member.is_voter_wanted || members.voters.contains(&node) {
                return Ok(());
            }
            let next = Member { is_voter_wanted: true, ..member.clone() };
            self.change(&members, ChangeMembers::SetNodes([(node.0, next)].into()), timeout).await
        })
    }

    /// See [`crate::ReplicatedLog::remove_member`].
    pub(crate) fn remove_member(&self, node: NodeId, timeout: Duration) -> BoxFuture<'_, Result<bool, MemberError>> {
        Box::pin(async move {
            let members = self.leading_members()?;
            let Some(member) = members.members.get(&node) else { return Ok(true) };
            let is_voter = members.voters.contains(&node);
            if is_voter {
                self.check_majority(&members, node)?;
            }
            if node == self.node {
                return match self.transfer_leader(None, timeout).await {
                    Ok(_) => Err(MemberError::HandedOver),
                    Err(error) => Err(MemberError::NotMade(error.to_string())),
                };
            }
            if member.is_voter_wanted {
                // So that no leader makes a voter of it again.
                let next = Member { is_voter_wanted: false, ..member.clone() };
                self.change(&members, ChangeMembers::SetNodes([(node.0, next)].into()), timeout).await?;
                return Ok(false);
            }
            if is_voter {
                self.change(&members, ChangeMembers::RemoveVoters([node.0].into()), timeout).await?;
                return Ok(false);
            }
            self.change(&members, ChangeMembers::RemoveNodes([node.0].into()), timeout).await?;
            Ok(true)
        })
    }

    /// Whether those that would be left are a majority of themselves, as far as they are heard.
    fn check_majority(&self, members: &GroupMembers, node: NodeId) -> Result<(), MemberError> {
        let left: Vec<NodeId> = members.voters.iter().copied().filter(|voter| *voter != node).collect();
        if left.is_empty() {
            return Err(MemberError::LastVoter(node));
        }
        let contacts = self.status.contacts();
        let is_alive = |voter: &NodeId| {
            *voter == self.node
                || contacts
                    .peers
                    .iter()
                    .any(|peer| peer.node == *voter && peer.silent_for.is_some_and(|silence| silence <= ALIVE_MAX))
        };
        let alive = left.iter().filter(|voter| is_alive(voter)).count();
        let needed = left.len() / 2 + 1;
        if alive < needed {
            return Err(MemberError::NoMajority { node, left: left.len(), needed, alive });
        }
        Ok(())
    }
}
