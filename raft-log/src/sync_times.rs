//! How long the log's syncs take: the signal that a disk is slow, while heartbeats still pass.

use std::time::Duration;

use flotilla_runtime::Instant;

/// The window of [`DiskStatus::sync_max`] is made of two halves of this length.
const HALF_WINDOW: Duration = Duration::from_secs(5);
/// Bucket `n` counts syncs below `2^(n + 6)` microseconds; the last one all that took longer.
const BUCKET_COUNT: usize = 20;
const FIRST_BUCKET_US: u64 = 64;

/// What a replica tells about its disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DiskStatus {
    /// How long the newest finished sync of the log took.
    pub sync_last: Duration,
    /// The longest sync of the last five to ten seconds; one that has not ended yet counts with its time so far.
    pub sync_max: Duration,
    /// `sync_max` passes [`crate::LogConfig::slow_sync_ms`]: another replica should lead.
    pub is_slow: bool,
    /// There is no room for another segment: proposals are, or soon will be, answered [`crate::ProposeError::Full`].
    pub is_full: bool,
}

/// Syncs since the log was opened, and what of them was slow: longer than [`crate::LogConfig::slow_sync_ms`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SlowSyncs {
    /// All that have ended.
    pub syncs: u64,
    /// The slow ones among them.
    pub slow: u64,
    /// Time spent in slow ones, with the time so far of one that has not ended and is slow already. Never falls.
    pub slow_time: Duration,
}

/// Counts of syncs by duration.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SyncHistogram {
    counts: [u64; BUCKET_COUNT],
}

impl SyncHistogram {
    pub(crate) fn note(&mut self, took: Duration) {
        let us = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let bucket = (us / FIRST_BUCKET_US).checked_ilog2().map_or(0, |log| log as usize + 1);
        self.counts[bucket.min(BUCKET_COUNT - 1)] += 1;
    }

    /// (upper bound, count) of each bucket, growing; the bound of the last one is `Duration::MAX`.
    pub fn buckets(&self) -> impl Iterator<Item = (Duration, u64)> + '_ {
        self.counts.iter().enumerate().map(|(number, count)| {
            let is_last = number + 1 == BUCKET_COUNT;
            let bound = if is_last { Duration::MAX } else { Duration::from_micros(FIRST_BUCKET_US << number) };
            (bound, *count)
        })
    }

    /// All syncs so far.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

/// What the flusher notes.
#[derive(Debug, Default)]
pub(crate) struct SyncTimes {
    running_since: Option<Instant>,
    last: Duration,
    half_began: Option<Instant>,
    max_now: Duration,
    max_before: Duration,
    histogram: SyncHistogram,
    /// From when on a sync is slow; none is while this is not told.
    slow_limit: Option<Duration>,
    slow: u64,
    slow_time: Duration,
}

impl SyncTimes {
    pub(crate) fn set_slow_limit(&mut self, limit: Duration) {
        self.slow_limit = Some(limit);
    }

    fn is_slow(&self, took: Duration) -> bool {
        self.slow_limit.is_some_and(|limit| took > limit)
    }

    /// For how long a sync has been running; zero when none is.
    pub(crate) fn running(&self, now: Instant) -> Duration {
        self.running_since.map_or(Duration::ZERO, |began| now.saturating_since(began))
    }

    /// Whether the longest sync of the window was slow.
    pub(crate) fn was_slow(&mut self, now: Instant) -> bool {
        let (_, longest) = self.now(now);
        self.is_slow(longest)
    }

    pub(crate) fn slow(&self, now: Instant) -> SlowSyncs {
        let running = self.running(now);
        let slow_now = if self.is_slow(running) { running } else { Duration::ZERO };
        SlowSyncs { syncs: self.histogram.count(), slow: self.slow, slow_time: self.slow_time + slow_now }
    }

    pub(crate) fn begin(&mut self, now: Instant) {
        self.running_since = Some(now);
    }

    pub(crate) fn end(&mut self, now: Instant) {
        let Some(began) = self.running_since.take() else { return };
        self.roll(now);
        self.last = now.saturating_since(began);
        self.max_now = self.max_now.max(self.last);
        self.histogram.note(self.last);
        if self.is_slow(self.last) {
            self.slow += 1;
            self.slow_time += self.last;
        }
    }

    fn roll(&mut self, now: Instant) {
        let age = self.half_began.map_or(Duration::MAX, |began| now.saturating_since(began));
        if age >= HALF_WINDOW {
            self.max_before = if age < 2 * HALF_WINDOW { self.max_now } else { Duration::ZERO };
            self.max_now = Duration::ZERO;
            self.half_began = Some(now);
        }
    }

    /// (last, longest of the window).
    pub(crate) fn now(&mut self, now: Instant) -> (Duration, Duration) {
        self.roll(now);
        let running = self.running(now);
        (self.last, self.max_now.max(self.max_before).max(running))
    }

    pub(crate) fn histogram(&self) -> SyncHistogram {
        self.histogram.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_slow_sync_is_seen_while_it_runs_and_forgotten_after_ten_seconds() {
        let mut times = SyncTimes::default();
        times.begin(at(0));
        times.end(at(2));
        times.begin(at(100));
        assert_eq!(times.now(at(1_100)), (Duration::from_millis(2), Duration::from_millis(1_000)));
        times.end(at(3_100));
        assert_eq!(times.now(at(3_200)), (Duration::from_secs(3), Duration::from_secs(3)));
        times.begin(at(4_000));
        times.end(at(4_001));
        assert_eq!(times.now(at(7_000)), (Duration::from_millis(1), Duration::from_secs(3)));
        assert_eq!(times.now(at(13_500)).1, Duration::ZERO);
        assert_eq!(times.histogram().count(), 3);
    }

    #[test]
    fn slow_time_grows_while_a_slow_sync_runs_and_stays_when_it_ends() {
        let mut times = SyncTimes::default();
        times.set_slow_limit(Duration::from_millis(500));
        for (began, ended) in [(0, 400), (1_000, 1_600)] {
            times.begin(at(began));
            times.end(at(ended));
        }
        let slow = |syncs, slow, ms| SlowSyncs { syncs, slow, slow_time: Duration::from_millis(ms) };
        assert_eq!(times.slow(at(2_000)), slow(2, 1, 600));
        times.begin(at(3_000));
        assert_eq!(times.slow(at(3_500)), slow(2, 1, 600), "not slow yet");
        assert_eq!(times.slow(at(3_501)), slow(2, 1, 1_101));
        times.end(at(4_000));
        assert_eq!(times.slow(at(9_000)), slow(3, 2, 1_600));
    }

    #[test]
    fn every_duration_has_a_bucket_that_bounds_it() {
        for us in [0, 1, 63, 64, 127, 128, 1_000_000, 40_000_000, 1 << 60] {
            let mut histogram = SyncHistogram::default();
            histogram.note(Duration::from_micros(us));
            let (bound, _) = histogram.buckets().find(|(_, count)| *count == 1).unwrap();
            assert!(bound > Duration::from_micros(us), "{us} us is counted below {bound:?}");
        }
    }
}
