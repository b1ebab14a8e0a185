//! Which term each entry has, as runs: terms change only when leaders do.

use crate::ids::EntryId;
use crate::{LogIndex, Term};

/// (first index, term) of each run of entries of one term, both growing.
#[derive(Debug, Default, Clone)]
pub(crate) struct TermRuns {
    runs: Vec<(LogIndex, Term)>,
}

impl TermRuns {
    /// Entries are told in order.
    pub(crate) fn push(&mut self, id: EntryId) {
        if self.runs.last().is_none_or(|(_, term)| *term != id.term) {
            self.runs.push((id.index, id.term));
        }
    }

    /// The term at `index`, which the caller knows to be in the log.
    pub(crate) fn at(&self, index: LogIndex) -> Option<Term> {
        let after = self.runs.partition_point(|(first, _)| *first <= index);
        Some(self.runs.get(after.checked_sub(1)?)?.1)
    }

    /// Forgets `end` and everything after it.
    pub(crate) fn truncate(&mut self, end: LogIndex) {
        let keep = self.runs.partition_point(|(first, _)| *first < end);
        self.runs.truncate(keep);
    }

    /// Forgets everything before `start`.
    pub(crate) fn purge(&mut self, start: LogIndex) {
        let after = self.runs.partition_point(|(first, _)| *first <= start);
        if let Some(gone) = after.checked_sub(1) {
            self.runs.drain(..gone);
            self.runs[0].0 = start;
        }
    }

    /// The runs of `first..end`, which the caller knows to be in the log, cut to it.
    pub(crate) fn runs_of(&self, first: LogIndex, end: LogIndex) -> Vec<(LogIndex, Term)> {
        let after = self.runs.partition_point(|(run_first, _)| *run_first <= first);
        let runs = self.runs[after.saturating_sub(1)..].iter().take_while(|(run_first, _)| *run_first < end);
        runs.map(|(run_first, term)| (first.max(*run_first), *term)).collect()
    }

    /// The last entry of each term within `first..=last`.
    pub(crate) fn last_of_each_term(&self, first: LogIndex, last: LogIndex) -> Vec<EntryId> {
        let mut ids = Vec::new();
        for (number, (run_first, term)) in self.runs.iter().enumerate() {
            let next_run = self.runs.get(number + 1).map(|(next, _)| *next);
            let run_last = next_run.and_then(LogIndex::previous).map_or(last, |run_last| run_last.min(last));
            if *run_first <= last && run_last >= first {
                ids.push(EntryId { term: *term, index: run_last });
            }
        }
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(terms: &[u64]) -> TermRuns {
        let mut runs = TermRuns::default();
        for (index, term) in terms.iter().enumerate() {
            runs.push(EntryId::new(*term, index as u64));
        }
        runs
    }

    #[test]
    fn terms_are_found_by_index_before_and_after_cuts() {
        let mut runs = runs(&[0, 1, 1, 2, 2, 2]);
        assert_eq!(runs.at(LogIndex(2)), Some(Term(1)));
        assert_eq!(runs.at(LogIndex(5)), Some(Term(2)));
        let ids = |list: &[(u64, u64)]| list.iter().map(|(t, i)| EntryId::new(*t, *i)).collect::<Vec<_>>();
        assert_eq!(runs.last_of_each_term(LogIndex(0), LogIndex(5)), ids(&[(0, 0), (1, 2), (2, 5)]));
        assert_eq!(runs.last_of_each_term(LogIndex(2), LogIndex(4)), ids(&[(1, 2), (2, 4)]));
        let term = |(first, term): (u64, u64)| (LogIndex(first), Term(term));
        assert_eq!(runs.runs_of(LogIndex(2), LogIndex(4)), [(2, 1), (3, 2)].map(term));
        assert_eq!(runs.runs_of(LogIndex(3), LogIndex(4)), [(3, 2)].map(term));
        runs.purge(LogIndex(2));
        assert_eq!(runs.at(LogIndex(2)), Some(Term(1)));
        assert_eq!(runs.at(LogIndex(1)), None);
        runs.truncate(LogIndex(3));
        assert_eq!(runs.last_of_each_term(LogIndex(2), LogIndex(2)), ids(&[(1, 2)]));
    }
}
