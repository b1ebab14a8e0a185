//! One leader per term: whoever was seen to lead in a term, or acknowledged in it, is the same node.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Leadership, Send};

/// A term with more than one leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SplitTerm {
    /// The term.
    pub term: u64,
    /// In order, two or more.
    pub leaders: Vec<u64>,
}

impl std::fmt::Display for SplitTerm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "term {} was led by {:?}", self.term, self.leaders)
    }
}

/// Judges sightings of leaders and the acknowledgements that name theirs.
pub fn find(leaders: &[Leadership], sends: &[Send]) -> Vec<SplitTerm> {
    let mut by_term: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for seen in leaders {
        by_term.entry(seen.term).or_default().insert(seen.leader);
    }
    for ack in sends.iter().filter_map(Send::ack) {
        if let (Some(term), Some(leader)) = (ack.term, ack.leader) {
            by_term.entry(term).or_default().insert(leader);
        }
    }
    by_term
        .into_iter()
        .filter(|(_, leaders)| leaders.len() > 1)
        .map(|(term, leaders)| SplitTerm { term, leaders: leaders.into_iter().collect() })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SendOutcome;
    use crate::verdict::fixtures::acked;

    fn acked_by(id: &str, term: u64, leader: u64) -> Send {
        let mut send = acked(id, 0);
        if let SendOutcome::Acked(ack) = &mut send.outcome {
            (ack.term, ack.leader) = (Some(term), Some(leader));
        }
        send
    }

    #[test]
    fn a_leader_may_lead_many_terms_and_be_seen_often() {
        let seen =
            [Leadership { term: 1, leader: 1 }, Leadership { term: 3, leader: 1 }, Leadership { term: 1, leader: 1 }];
        assert_eq!(find(&seen, &[acked_by("a", 1, 1), acked_by("b", 2, 2), acked("c", 1)]), []);
    }

    #[test]
    fn two_leaders_of_a_term_are_found() {
        let found = find(&[Leadership { term: 2, leader: 1 }, Leadership { term: 2, leader: 3 }], &[]);
        assert_eq!(found, [SplitTerm { term: 2, leaders: vec![1, 3] }]);
    }

    #[test]
    fn an_acknowledgement_by_another_leader_is_found() {
        assert_eq!(find(&[Leadership { term: 2, leader: 1 }], &[acked_by("a", 2, 3)]).len(), 1);
    }
}
