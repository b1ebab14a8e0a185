//! How long producers got no acknowledgement around each kill.

use std::time::Duration;

use flotilla_runtime::Instant;

/// For each kill the longest interval between two neighbouring acknowledgements that contains the kill or lies between
/// it and the next one (or the last acknowledgement).
///
/// `idle_until` are the moments at which senders went on after the demo itself had held them back: such a wait says
/// nothing about the cluster.
pub fn longest_per_kill(acks: &[Instant], idle_until: &[Instant], kills: &[Instant]) -> Vec<Duration> {
    let mut marks: Vec<Instant> = acks.iter().chain(idle_until).copied().collect();
    marks.sort();
    kills
        .iter()
        .enumerate()
        .map(|(number, killed)| {
            let end = kills.get(number + 1).copied();
            marks
                .windows(2)
                .filter(|pair| {
                    let contains_kill = pair[0] <= *killed && *killed < pair[1];
                    let lies_before_next = pair[0] > *killed && end.is_none_or(|end| pair[1] <= end);
                    contains_kill || lies_before_next
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

    fn longest(acks: &[u64], idle_until: &[u64], kills: &[u64]) -> Vec<u128> {
        let gaps = longest_per_kill(&at(acks), &at(idle_until), &at(kills));
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
    fn time_in_which_the_demo_held_its_senders_back_does_not_count() {
        assert_eq!(longest(&[0, 400, 450], &[390], &[395]), [50]);
        assert_eq!(longest(&[], &[], &[395]), [0]);
    }
}
