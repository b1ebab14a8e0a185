//! One payload per entry: at each log index all replicas applied the same payload of the same term, at all times.

use std::collections::BTreeMap;

use crate::EntrySeen;

/// An index at which two replicas, or one replica at two times, applied different things.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwoPayloads {
    /// What was applied first.
    pub first: EntrySeen,
    /// What was applied there too.
    pub other: EntrySeen,
}

impl std::fmt::Display for TwoPayloads {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TwoPayloads { first, other } = self;
        write!(
            f,
            "entry {}: replica {} applied payload {:016x} of term {}, replica {} payload {:016x} of term {}",
            first.index, first.replica, first.payload_hash, first.term, other.replica, other.payload_hash, other.term
        )
    }
}

/// Judges everything that was ever applied; applied means committed, so the term must agree too.
pub fn find(entries: &[EntrySeen]) -> Vec<TwoPayloads> {
    let mut by_index: BTreeMap<u64, &EntrySeen> = BTreeMap::new();
    let mut findings = Vec::new();
    for entry in entries {
        let first = by_index.entry(entry.index).or_insert(entry);
        if (first.term, first.payload_hash) != (entry.term, entry.payload_hash) {
            findings.push(TwoPayloads { first: (*first).clone(), other: entry.clone() });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(replica: u64, index: u64, term: u64, payload_hash: u64) -> EntrySeen {
        EntrySeen { replica, index, term, payload_hash }
    }

    #[test]
    fn the_same_entry_on_all_replicas_and_again_after_a_restart_is_fine() {
        assert_eq!(find(&[entry(1, 5, 2, 7), entry(2, 5, 2, 7), entry(1, 5, 2, 7), entry(1, 6, 2, 8)]), []);
    }

    #[test]
    fn another_payload_with_the_same_index_and_term_is_found() {
        assert_eq!(find(&[entry(1, 5, 2, 7), entry(2, 5, 2, 8)]).len(), 1);
    }

    #[test]
    fn the_same_payload_in_another_term_is_found() {
        assert_eq!(find(&[entry(1, 5, 2, 7), entry(2, 5, 3, 7)]).len(), 1);
    }
}
