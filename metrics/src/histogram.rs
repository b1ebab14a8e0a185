//! A histogram of fixed buckets that many threads add to.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of values by size, in buckets whose bounds never change.
#[derive(Debug)]
pub struct Histogram {
    /// Upper bounds, inclusive, growing.
    bounds: &'static [u64],
    /// One more than bounds: the last counts what passes them all.
    counts: Vec<AtomicU64>,
    sum: AtomicU64,
}

/// A histogram as it is written down.
#[derive(Debug, Clone, PartialEq)]
pub struct Buckets {
    /// (upper bound, values within this bucket alone), growing; what passes the last bound counts in `above`.
    pub within: Vec<(f64, u64)>,
    /// Values above every bound.
    pub above: u64,
    /// Sum of all values, if it is known.
    pub sum: Option<f64>,
}

impl Histogram {
    /// An empty one; `bounds` are upper bounds, inclusive, growing.
    pub fn new(bounds: &'static [u64]) -> Histogram {
        debug_assert!(bounds.is_sorted(), "bounds grow");
        Histogram { bounds, counts: (0..=bounds.len()).map(|_| AtomicU64::new(0)).collect(), sum: AtomicU64::new(0) }
    }

    /// Notes one value.
    pub fn note(&self, value: u64) {
        self.note_many(value, 1);
    }

    /// Notes the same value so many times.
    pub fn note_many(&self, value: u64, count: u64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        self.counts[bucket].fetch_add(count, Ordering::Relaxed);
        self.sum.fetch_add(value.saturating_mul(count), Ordering::Relaxed);
    }

    /// As it is now, its unit divided by `divisor` (1,000,000 makes seconds of microseconds).
    pub fn buckets(&self, divisor: f64) -> Buckets {
        let count = |at: usize| self.counts[at].load(Ordering::Relaxed);
        let bounds = self.bounds.iter().enumerate();
        #[allow(clippy::cast_precision_loss, reason = "monitoring reads 53 bits")]
        let scaled = |value: u64| value as f64 / divisor;
        Buckets {
            within: bounds.map(|(at, bound)| (scaled(*bound), count(at))).collect(),
            above: count(self.bounds.len()),
            sum: Some(scaled(self.sum.load(Ordering::Relaxed))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_in_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(&[10, 100]);
        [0, 10, 11, 100, 101, 5_000].iter().for_each(|value| histogram.note(*value));
        let buckets = histogram.buckets(10.0);
        assert_eq!(buckets.within, [(1.0, 2), (10.0, 2)]);
        assert_eq!((buckets.above, buckets.sum), (2, Some(522.2)));
    }
}
