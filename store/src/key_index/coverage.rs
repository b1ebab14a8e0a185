//! Which stretches of which queues are indexed.

use std::collections::BTreeMap;
use std::ops::Range;

/// Disjoint stretches for each (topic number, queue), rising, with gaps between them.
#[derive(Debug, Default)]
pub(super) struct Coverage {
    queues: BTreeMap<(u64, u32), Vec<Range<u64>>>,
}

impl Coverage {
    pub fn add(&mut self, queue: (u64, u32), range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let stretches = self.queues.entry(queue).or_default();
        let first = stretches.partition_point(|stretch| stretch.end < range.start);
        let end = stretches.partition_point(|stretch| stretch.start <= range.end);
        let merged = stretches[first..end]
            .iter()
            .fold(range, |all, stretch| all.start.min(stretch.start)..all.end.max(stretch.end));
        stretches.splice(first..end, [merged]);
    }

    /// The first stretch within `bounds` that is not covered.
    pub fn gap(&self, queue: (u64, u32), bounds: Range<u64>) -> Option<Range<u64>> {
        let mut at = bounds.start;
        for stretch in self.queues.get(&queue).into_iter().flatten() {
            if stretch.start > at {
                let end = stretch.start.min(bounds.end);
                return (at < end).then_some(at..end);
            }
            at = at.max(stretch.end);
        }
        (at < bounds.end).then_some(at..bounds.end)
    }

    /// All stretches of a topic, by queue.
    pub fn of_topic(&self, topic_uid: u64) -> BTreeMap<u32, Vec<Range<u64>>> {
        let queues = self.queues.range((topic_uid, 0)..=(topic_uid, u32::MAX));
        queues.map(|((_, queue), stretches)| (*queue, stretches.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn gaps_are_what_was_never_added(
            ranges in proptest::collection::vec((0u64..60, 0u64..9), 0..20),
            start in 0u64..60,
            length in 0u64..20,
        ) {
            let mut coverage = Coverage::default();
            let mut model = [false; 80];
            for (start, length) in ranges {
                coverage.add((1, 2), start..start + length);
                model[start as usize..(start + length) as usize].fill(true);
            }
            let bounds = start..start + length;
            let first = bounds.clone().find(|at| !model[*at as usize]);
            let expected = first.map(|first| {
                let end = (first..bounds.end).find(|at| model[*at as usize]).unwrap_or(bounds.end);
                first..end
            });
            prop_assert_eq!(coverage.gap((1, 2), bounds), expected);
            let covered: Vec<u64> = coverage.of_topic(1).into_values().flatten().flatten().collect();
            let expected: Vec<u64> = (0..80).filter(|at| model[*at as usize]).collect();
            prop_assert_eq!(covered, expected);
        }
    }
}
