//! How long producers got no acknowledgement, fault by fault.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::conductor::FaultRecord;
use crate::nemesis::FaultKind;

/// What one fault did to producers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outage {
    /// Of the fault's step.
    pub number: u64,
    /// Its name.
    pub kind: FaultKind,
    /// The longest time without an acknowledgement between the fault's start and the next fault's (or the load's end).
    pub gap_ms: u64,
    /// From the healing to the first acknowledgement after it; none if there was none before the next fault.
    pub after_heal_ms: Option<u64>,
}

/// All outages of one kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Availability {
    /// The fault's name.
    pub kind: FaultKind,
    /// How often it was done.
    pub count: u64,
    /// Longest time without an acknowledgement: the median of these faults, and the worst.
    pub gap_ms_p50: u64,
    /// See `gap_ms_p50`.
    pub gap_ms_max: u64,
    /// From the healing to the first acknowledgement: the median, and the worst.
    pub after_heal_ms_p50: u64,
    /// See `after_heal_ms_p50`.
    pub after_heal_ms_max: u64,
}

/// Judges each fault that was done by the times of all acknowledgements, which must be sorted.
pub fn outages(acked_ns: &[u64], faults: &[FaultRecord], load_ended_ns: u64) -> Vec<Outage> {
    let done: Vec<&FaultRecord> = faults.iter().filter(|fault| fault.problem.is_none()).collect();
    done.iter()
        .enumerate()
        .map(|(at, fault)| {
            let end = done.get(at + 1).map_or(load_ended_ns, |next| next.started_ns).max(fault.started_ns);
            let from = acked_ns.partition_point(|ack| *ack <= fault.started_ns);
            let to = acked_ns.partition_point(|ack| *ack <= end);
            let marks: Vec<u64> =
                std::iter::once(fault.started_ns).chain(acked_ns[from..to].iter().copied()).chain([end]).collect();
            let gap_ns = marks.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or_default();
            let after_heal = acked_ns[from..to].iter().find(|ack| **ack > fault.healed_ns);
            Outage {
                number: fault.number,
                kind: fault.kind,
                gap_ms: whole_ms(gap_ns),
                after_heal_ms: after_heal.map(|ack| whole_ms(ack - fault.healed_ns)),
            }
        })
        .collect()
}

/// The outages of each kind that occurred.
pub fn by_kind(outages: &[Outage]) -> Vec<Availability> {
    let mut kinds: BTreeMap<FaultKind, Vec<&Outage>> = BTreeMap::new();
    for outage in outages {
        kinds.entry(outage.kind).or_default().push(outage);
    }
    let summary = |(kind, outages): (FaultKind, Vec<&Outage>)| {
        let gaps = sorted(outages.iter().map(|outage| outage.gap_ms));
        let heals = sorted(outages.iter().filter_map(|outage| outage.after_heal_ms));
        Availability {
            kind,
            count: outages.len() as u64,
            gap_ms_p50: median(&gaps),
            gap_ms_max: gaps.last().copied().unwrap_or_default(),
            after_heal_ms_p50: median(&heals),
            after_heal_ms_max: heals.last().copied().unwrap_or_default(),
        }
    };
    kinds.into_iter().map(summary).collect()
}

fn sorted(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut values: Vec<u64> = values.collect();
    values.sort_unstable();
    values
}

/// The upper one of an even number: nothing looks better than it was.
fn median(sorted: &[u64]) -> u64 {
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// Rounded up, so that nothing looks faster than it was.
fn whole_ms(ns: u64) -> u64 {
    ns.div_ceil(1_000_000)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(number: u64, started_ms: u64, healed_ms: u64) -> FaultRecord {
        let (started_ns, healed_ns) = (started_ms * 1_000_000, healed_ms * 1_000_000);
        FaultRecord {
            number,
            kind: FaultKind::KillLeader,
            targets: vec![1],
            started_ns,
            struck_ns: started_ns,
            healed_ns,
            disturbed: None,
            problem: None,
            notes: Vec::new(),
            kept_up_to: None,
        }
    }

    fn outages_of(acked_ms: &[u64], faults: &[FaultRecord], end_ms: u64) -> Vec<(u64, Option<u64>)> {
        let acked: Vec<u64> = acked_ms.iter().map(|ms| ms * 1_000_000).collect();
        outages(&acked, faults, end_ms * 1_000_000).iter().map(|found| (found.gap_ms, found.after_heal_ms)).collect()
    }

    #[test]
    fn the_longest_gap_from_the_start_of_the_fault_on_counts() {
        assert_eq!(outages_of(&[10, 90, 105, 400, 500], &[fault(1, 100, 450)], 510), [(295, Some(50))]);
    }

    #[test]
    fn waiting_before_the_fault_does_not_count_and_silence_until_the_end_does() {
        assert_eq!(outages_of(&[10, 110], &[fault(1, 100, 150)], 120), [(10, None)]);
        assert_eq!(outages_of(&[10], &[fault(1, 100, 150)], 600), [(500, None)]);
    }

    #[test]
    fn a_fault_answers_only_for_the_time_until_the_next_one() {
        let faults = [fault(1, 100, 150), fault(2, 300, 310)];
        assert_eq!(outages_of(&[120, 160, 295, 900], &faults, 1_000), [(135, Some(10)), (600, Some(590))]);
    }

    #[test]
    fn a_fault_that_was_not_done_is_passed_over() {
        let refused = FaultRecord { problem: Some("refused".into()), ..fault(2, 300, 310) };
        assert_eq!(outages_of(&[100, 500], &[fault(1, 90, 95), refused], 600).len(), 1);
    }

    #[test]
    fn kinds_have_median_and_worst() {
        let outage = |gap_ms, after_heal_ms| Outage { number: 1, kind: FaultKind::OneWay, gap_ms, after_heal_ms };
        let found = by_kind(&[outage(5, Some(1)), outage(900, None), outage(7, Some(3))]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].count, found[0].gap_ms_p50, found[0].gap_ms_max), (3, 7, 900));
        assert_eq!((found[0].after_heal_ms_p50, found[0].after_heal_ms_max), (3, 3));
    }
}
