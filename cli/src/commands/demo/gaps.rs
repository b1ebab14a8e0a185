//! How long producers got no acknowledgement around each fault.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use flotilla_runtime::Instant;

use super::faults::FaultKind;

/// The distribution of one figure over all faults of a kind, in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GapDistribution {
    pub kind: FaultKind,
    pub faults: u64,
    pub p50_ms: u64,
    pub p99_ms: u64,
    pub max_ms: u64,
}

/// One distribution for each kind that happened, in the order of the kinds. A percentile is the smallest gap that so many
/// of the hundred do not exceed (nearest rank): never a value that was not measured.
pub fn distributions(gaps: impl IntoIterator<Item = (FaultKind, u64)>) -> Vec<GapDistribution> {
    let mut by_kind: BTreeMap<FaultKind, Vec<u64>> = BTreeMap::new();
    for (kind, gap_ms) in gaps {
        by_kind.entry(kind).or_default().push(gap_ms);
    }
    by_kind
        .into_iter()
        .map(|(kind, mut gaps)| {
            gaps.sort_unstable();
            let at = |percent: usize| gaps[(gaps.len() * percent).div_ceil(100) - 1];
            GapDistribution { kind, faults: gaps.len() as u64, p50_ms: at(50), p99_ms: at(99), max_ms: at(100) }
        })
        .collect()
}

/// For each fault the longest interval between two neighbouring acknowledgements that contains the fault or lies between
/// it and the next one (or the last acknowledgement).
///
/// `idle_until` are the moments at which senders went on after the demo itself had held them back: such a wait says
/// nothing about the cluster.
pub fn longest_per_fault(acks: &[Instant], idle_until: &[Instant], faults: &[Instant]) -> Vec<Duration> {
    let mut marks: Vec<Instant> = acks.iter().chain(idle_until).copied().collect();
    marks.sort();
    faults
        .iter()
        .enumerate()
        .map(|(number, hit)| {
            let end = faults.get(number + 1).copied();
            marks
                .windows(2)
                .filter(|pair| {
                    let contains_fault = pair[0] <= *hit && *hit < pair[1];
                    let lies_before_next = pair[0] > *hit && end.is_none_or(|end| pair[1] <= end);
                    contains_fault || lies_before_next
                })
                .map(|pair| pair[1] - pair[0])
                .max()
                .unwrap_or_default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: &[u64]) -> Vec<Instant> {
        ms.iter().map(|ms| Instant::from_nanos(ms * 1_000_000)).collect()
    }

    fn longest(acks: &[u64], idle_until: &[u64], faults: &[u64]) -> Vec<u128> {
        let gaps = longest_per_fault(&at(acks), &at(idle_until), &at(faults));
        gaps.iter().map(Duration::as_millis).collect()
    }

    #[test]
    fn the_gap_that_a_kill_falls_into_counts_in_whole() {
        assert_eq!(longest(&[0, 90, 95, 300, 310], &[], &[100]), [205]);
    }

    #[test]
    fn a_later_gap_counts_for_the_kill_before_it() {
        assert_eq!(longest(&[0, 100, 110, 500, 600, 610], &[], &[105, 605]), [390, 10]);
    }

    #[test]
    fn a_gap_around_the_next_kill_counts_for_that_one_only() {
        assert_eq!(longest(&[0, 10, 50, 60, 70, 400, 410], &[], &[15, 80]), [40, 330]);
        assert_eq!(longest(&[0, 500], &[], &[100, 200]), [500, 500], "one that contains both counts for both");
    }

    #[test]
    fn a_gap_before_the_first_kill_counts_for_none() {
        assert_eq!(longest(&[0, 400, 410, 420], &[], &[405]), [10]);
    }

    #[test]
    fn each_kind_has_its_own_distribution_of_measured_values() {
        let kills = (1..=200).map(|ms| (FaultKind::Kill, ms));
        let gaps = distributions(kills.chain([(FaultKind::Freeze, 900), (FaultKind::Freeze, 700)]));
        let told: Vec<_> = gaps.iter().map(|gap| (gap.kind, gap.faults, gap.p50_ms, gap.p99_ms, gap.max_ms)).collect();
        assert_eq!(told, [(FaultKind::Kill, 200, 100, 198, 200), (FaultKind::Freeze, 2, 700, 900, 900)]);
        assert_eq!(distributions([]), []);
    }

    #[test]
    fn time_in_which_the_demo_held_its_senders_back_does_not_count() {
        assert_eq!(longest(&[0, 400, 450], &[390], &[395]), [50]);
        assert_eq!(longest(&[], &[], &[395]), [0]);
    }
}
