//! Which memberships may be in force, by the replicas' own logs: of whose disks a majority is needed.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_raft_log::GroupMembers;

/// Sets of voters; a majority of each is needed.
type VoterSets = Vec<BTreeSet<u64>>;

/// Every membership that stood in some replica's log.
#[derive(Default)]
pub(crate) struct Memberships {
    /// By the entry that says so; several where a new leader put another entry in its place.
    known: BTreeMap<u64, BTreeSet<VoterSets>>,
    /// The newest entry with a membership that somebody knows to be committed.
    committed: u64,
}

impl Memberships {
    /// A replica has this one in its log, as the newest.
    pub(crate) fn note(&mut self, members: &GroupMembers) {
        let Some(index) = members.index else { return };
        let known = self.known.entry(index.0).or_default();
        let sets: VoterSets = members.voter_sets.iter().map(|set| set.iter().map(|node| node.0).collect()).collect();
        known.insert(sets);
        if members.is_committed {
            self.committed = self.committed.max(index.0);
        }
    }

    /// The oldest one that what is proposed from now on may be committed by.
    pub(crate) fn oldest_in_force(&self) -> u64 {
        self.committed
    }

    /// Whether `holders` are enough by any of them from `oldest` on. Whoever commits has the newest committed membership in its
    /// log, or a later one; and a later one that counts already is not known to be committed yet.
    pub(crate) fn are_enough(&self, oldest: u64, holders: &BTreeSet<u64>) -> bool {
        let is_majority = |set: &BTreeSet<u64>| set.intersection(holders).count() > set.len() / 2;
        self.known.range(oldest..).flat_map(|(_, known)| known).any(|sets| sets.iter().all(is_majority))
    }
}

#[cfg(test)]
mod tests {
    use flotilla_raft_log::{LogIndex, NodeId};

    use super::*;

    fn members(index: u64, is_committed: bool, sets: &[&[u64]]) -> GroupMembers {
        let voter_sets = sets.iter().map(|set| set.iter().copied().map(NodeId).collect()).collect();
        GroupMembers { index: Some(LogIndex(index)), is_committed, voter_sets, ..GroupMembers::default() }
    }

    fn set(holders: &[u64]) -> BTreeSet<u64> {
        holders.iter().copied().collect()
    }

    #[test]
    fn a_majority_is_one_of_the_voters_there_are() {
        let mut memberships = Memberships::default();
        assert!(!memberships.are_enough(0, &set(&[1, 2, 3])), "nobody votes before the group is founded");
        memberships.note(&members(0, true, &[&[1, 2, 3, 4, 5]]));
        assert!(!memberships.are_enough(memberships.oldest_in_force(), &set(&[1, 4])));
        memberships.note(&members(7, false, &[&[1, 2, 3, 4, 5], &[1, 4, 5]]));
        assert!(!memberships.are_enough(memberships.oldest_in_force(), &set(&[1, 4])), "both majorities are needed");
        memberships.note(&members(8, false, &[&[1, 4, 5]]));
        assert!(memberships.are_enough(memberships.oldest_in_force(), &set(&[1, 4])));
        assert!(!memberships.are_enough(memberships.oldest_in_force(), &set(&[1, 2])), "2 has no vote");
    }

    #[test]
    fn a_membership_that_is_known_to_be_replaced_counts_only_for_what_was_proposed_before() {
        let mut memberships = Memberships::default();
        memberships.note(&members(3, true, &[&[1, 2, 3]]));
        let before = memberships.oldest_in_force();
        memberships.note(&members(9, true, &[&[1, 2, 3, 4, 5]]));
        assert!(memberships.are_enough(before, &set(&[1, 2])));
        assert!(!memberships.are_enough(memberships.oldest_in_force(), &set(&[1, 2])));
    }
}
