//! How long a leader may count on nobody else leading: by when it asked what a quorum has answered, each answer counted for the
//! one request that it answers.
//!
//! openraft keeps such a clock too. Its append streams count an answer that says "I have everything up to entry n" for every
//! request in flight that ends at n, also for one that was sent later and that nobody has answered: where answers are held up
//! by the network, those to old requests then renew the lease of a leader that has been replaced, or let it answer a read that
//! asks a quorum first. So both clocks must agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use flotilla_runtime::Instant;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::{NodeId, Term};

/// When each peer was last asked something that it has answered as a follower. A cheap handle.
#[derive(Debug, Clone, Default)]
pub(crate) struct LeaseClock {
    asked: Arc<Mutex<BTreeMap<NodeId, (Term, Instant)>>>,
    news: Arc<Notify>,
}

impl LeaseClock {
    fn asked(&self) -> MutexGuard<'_, BTreeMap<NodeId, (Term, Instant)>> {
        self.asked.lock().expect("lease lock is never poisoned: no code panics while holding it")
    }

    /// `node` has answered, as a follower in `term`, what it was asked at `asked_at`.
    pub(crate) fn answered(&self, node: NodeId, term: Term, asked_at: Instant) {
        let mut asked = self.asked();
        let known = asked.entry(node).or_insert((term, asked_at));
        // A later term counts whatever its time; in one term answers of two connections may pass each other.
        *known = (*known).max((term, asked_at));
        drop(asked);
        self.news.notify_waiters();
    }

    /// Ready after the next answer.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.news.notified()
    }

    /// The latest time by which a quorum of each of the voter sets had not yet been asked what it has answered since, in `term`:
    /// `None` if there is none. `own` is its leader.
    pub(crate) fn quorum_asked_at(
        &self,
        own: NodeId,
        term: Term,
        voter_sets: &[BTreeSet<NodeId>],
        now: Instant,
    ) -> Option<Instant> {
        let asked = self.asked();
        let at = |node: &NodeId| {
            if *node == own {
                return Some(now);
            }
            asked.get(node).filter(|(known, _)| *known == term).map(|(_, at)| *at)
        };
        let of_set = |voters: &BTreeSet<NodeId>| {
            let mut times: Vec<Option<Instant>> = voters.iter().map(at).collect();
            times.sort_unstable();
            times.into_iter().rev().nth(voters.len() / 2).flatten()
        };
        voter_sets.iter().map(of_set).min().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn nodes(nodes: &[u64]) -> BTreeSet<NodeId> {
        nodes.iter().copied().map(NodeId).collect()
    }

    #[test]
    fn a_quorum_counts_from_when_it_was_asked_and_only_in_the_term() {
        let clock = LeaseClock::default();
        let three = [nodes(&[1, 2, 3])];
        let quorum = |term| clock.quorum_asked_at(NodeId(1), Term(term), &three, at(1_000));
        assert_eq!(quorum(4), None, "alone it has no quorum");
        clock.answered(NodeId(3), Term(4), at(100));
        assert_eq!(quorum(4), Some(at(100)));
        clock.answered(NodeId(2), Term(4), at(300));
        clock.answered(NodeId(2), Term(4), at(200));
        assert_eq!(quorum(4), Some(at(300)), "the leader and one of two, and an older answer takes nothing back");
        assert_eq!(quorum(5), None, "what was answered in another term");
        clock.answered(NodeId(2), Term(5), at(250));
        assert_eq!((quorum(4), quorum(5)), (Some(at(100)), Some(at(250))));
    }

    #[test]
    fn both_halves_of_a_joint_membership_need_their_quorum() {
        let clock = LeaseClock::default();
        let sets = [nodes(&[1, 2, 3]), nodes(&[3, 4, 5])];
        let quorum = |sets: &[BTreeSet<NodeId>]| clock.quorum_asked_at(NodeId(1), Term(1), sets, at(1_000));
        clock.answered(NodeId(2), Term(1), at(500));
        clock.answered(NodeId(4), Term(1), at(400));
        assert_eq!((quorum(&sets[..1]), quorum(&sets)), (Some(at(500)), None));
        clock.answered(NodeId(5), Term(1), at(300));
        assert_eq!(quorum(&sets), Some(at(300)));
        assert_eq!(quorum(&[nodes(&[1])]), Some(at(1_000)), "a group of one asks nobody");
    }
}
