//! Digests of the applied state at agreed entries, and what a difference means.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use crate::{LogIndex, NodeId};

/// A digest is taken behind each entry whose index is a multiple of this, so that all replicas take them at the same.
pub(crate) const DIGEST_EVERY: u64 = if cfg!(test) { 16 } else { 4096 };
/// The newest of them are kept: replicas apply at different times.
const DIGESTS_KEPT: usize = 64;

/// The state's digest behind an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct StateDigest {
    pub(crate) index: LogIndex,
    /// Of the way it is made.
    pub(crate) version: u32,
    pub(crate) digest: u128,
}

/// The newest digests of this replica, growing.
#[derive(Default)]
pub(crate) struct Digests {
    kept: Mutex<VecDeque<StateDigest>>,
}

impl Digests {
    fn kept(&self) -> MutexGuard<'_, VecDeque<StateDigest>> {
        self.kept.lock().expect("digest lock is never poisoned: no code panics while holding it")
    }

    /// Notes a digest.
    pub(crate) fn note(&self, digest: StateDigest) {
        let mut kept = self.kept();
        // A state that was replaced by a snapshot may have skipped some, and never goes back.
        while kept.back().is_some_and(|last| last.index >= digest.index) {
            kept.pop_back();
        }
        kept.push_back(digest);
        if kept.len() > DIGESTS_KEPT {
            kept.pop_front();
        }
    }

    pub(crate) fn newest(&self) -> Vec<StateDigest> {
        self.kept().iter().copied().collect()
    }
}

/// What the comparison says about this replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// No difference is known.
    Agrees,
    /// There is a difference, and no quorum that tells who is wrong; or another one is.
    Differs { index: LogIndex, own: u128, others: BTreeMap<NodeId, u128>, is_own_side_wrong: bool },
}

/// Compares own digests with those of the others, at the newest entry where they differ. With a quorum of `voters` on one
/// other digest, this replica is the odd one.
pub(crate) fn judge(own: &[StateDigest], others: &BTreeMap<NodeId, Vec<StateDigest>>, voters: usize) -> Verdict {
    for mine in own.iter().rev() {
        let said: BTreeMap<NodeId, u128> = others
            .iter()
            .filter_map(|(node, digests)| {
                let same =
                    digests.iter().find(|theirs| (theirs.index, theirs.version) == (mine.index, mine.version))?;
                Some((*node, same.digest))
            })
            .collect();
        if said.values().all(|digest| *digest == mine.digest) {
            continue;
        }
        let quorum = voters / 2 + 1;
        let is_own_side_wrong = said
            .values()
            .any(|digest| *digest != mine.digest && said.values().filter(|other| *other == digest).count() >= quorum);
        return Verdict::Differs { index: mine.index, own: mine.digest, others: said, is_own_side_wrong };
    }
    Verdict::Agrees
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(index: u64, digest: u128) -> StateDigest {
        StateDigest { index: LogIndex(index), version: 1, digest }
    }

    fn digests(list: &[(u64, u128)]) -> Vec<StateDigest> {
        list.iter().map(|(index, digest)| at(*index, *digest)).collect()
    }

    fn wrong(own: &[(u64, u128)], others: &[&[(u64, u128)]], voters: usize) -> Option<bool> {
        let others = others.iter().enumerate().map(|(node, list)| (NodeId(node as u64 + 2), digests(list))).collect();
        match judge(&digests(own), &others, voters) {
            Verdict::Agrees => None,
            Verdict::Differs { is_own_side_wrong, .. } => Some(is_own_side_wrong),
        }
    }

    #[test]
    fn only_a_quorum_on_one_other_digest_makes_a_replica_the_odd_one() {
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 7)], &[(1, 7)]], 3), None);
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 8)], &[(1, 8)]], 3), Some(true));
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 7)], &[(1, 8)]], 3), Some(false), "the third one is odd");
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 8)], &[(1, 9)]], 3), Some(false), "all differ: nobody is right");
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 8)]], 3), Some(false), "the third one does not answer");
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 8)]], 2), Some(false), "two replicas cannot tell");
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 8)], &[(1, 8)], &[(1, 8)], &[(1, 7)]], 5), Some(true));
        assert_eq!(wrong(&[(1, 7)], &[&[(1, 8)], &[(1, 8)]], 5), Some(false));
    }

    #[test]
    fn only_the_same_entries_are_compared() {
        assert_eq!(wrong(&[(1, 7), (2, 5)], &[&[(0, 1), (1, 7)], &[(3, 9)]], 3), None);
        assert_eq!(wrong(&[(1, 7), (2, 5)], &[&[(1, 7), (2, 6)], &[(1, 7), (2, 6)]], 3), Some(true));
    }

    #[test]
    fn digests_made_in_another_way_are_not_compared() {
        let newer = vec![StateDigest { version: 2, ..at(1, 8) }];
        let others = BTreeMap::from([(NodeId(2), newer.clone()), (NodeId(3), newer)]);
        assert_eq!(judge(&[at(1, 7)], &others, 3), Verdict::Agrees);
    }

    #[test]
    fn the_newest_are_kept_and_a_restored_state_goes_on_from_its_own() {
        let kept = Digests::default();
        (0..100).for_each(|number| kept.note(at(number, u128::from(number))));
        assert_eq!(kept.newest().len(), DIGESTS_KEPT);
        kept.note(at(50, 1));
        assert_eq!(kept.newest().last().unwrap().digest, 1);
    }
}
