//! Which peers are still to answer whether they vote for this replica.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};

use crate::{NodeId, Term};

/// The votes that this replica has asked for and waits for. Cheap handle.
#[derive(Clone, Default)]
pub(super) struct VotesAsked {
    open: Arc<Mutex<BTreeSet<(Term, NodeId)>>>,
}

/// One vote that is asked for; it is answered, or not waited for any more, when this is dropped.
pub(super) struct VoteAsked {
    all: VotesAsked,
    vote: (Term, NodeId),
}

impl VotesAsked {
    /// `voter` is being asked for its vote in `term`.
    pub(super) fn ask(&self, term: Term, voter: NodeId) -> VoteAsked {
        self.open().insert((term, voter));
        VoteAsked { all: self.clone(), vote: (term, voter) }
    }

    /// Whether `voter` has yet to answer, in whatever term.
    pub(super) fn is_open_at(&self, voter: NodeId) -> bool {
        self.open().iter().any(|(_, asked)| *asked == voter)
    }

    fn open(&self) -> MutexGuard<'_, BTreeSet<(Term, NodeId)>> {
        self.open.lock().expect("votes lock is never poisoned: no code panics while holding it")
    }
}

impl Drop for VoteAsked {
    fn drop(&mut self) {
        self.all.open().remove(&self.vote);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vote_is_owed_until_it_is_answered_in_whatever_term() {
        let votes = VotesAsked::default();
        let (first, voter) = (votes.ask(Term(7), NodeId(1)), NodeId(3));
        let (of_seven, of_eight) = (votes.ask(Term(7), voter), votes.ask(Term(8), voter));
        assert!(votes.is_open_at(voter) && votes.is_open_at(NodeId(1)) && !votes.is_open_at(NodeId(2)));
        drop(of_seven);
        assert!(votes.is_open_at(voter));
        drop(of_eight);
        assert!(!votes.is_open_at(voter) && votes.is_open_at(NodeId(1)));
        drop(first);
        assert!(votes.open().is_empty());
    }
}
