//! How many seconds an index is behind: when did the log first reach beyond it?

use std::collections::VecDeque;
use std::time::Duration;

use flotilla_raft_log::LogIndex;
use flotilla_runtime::Instant;

/// Looks kept of each kind.
const LOOKS_MAX: usize = 512;
/// Older looks are kept so far apart: a long lag is told more coarsely.
const OLD_LOOKS_APART: Duration = Duration::from_secs(10);

/// The log's end at the moments when somebody looked.
#[derive(Debug, Default)]
pub struct LagTrack {
    looks: VecDeque<(Instant, LogIndex)>,
    /// What no longer fits into `looks`; all before them.
    old_looks: VecDeque<(Instant, LogIndex)>,
}

impl LagTrack {
    /// Notes where the log ends now. A log that was cut back forgets what it had.
    pub fn look(&mut self, now: Instant, last: LogIndex) {
        for looks in [&mut self.looks, &mut self.old_looks] {
            while looks.back().is_some_and(|(_, seen)| *seen > last) {
                looks.pop_back();
            }
        }
        if self.looks.back().is_some_and(|(_, seen)| *seen == last) {
            return;
        }
        self.looks.push_back((now, last));
        if self.looks.len() <= LOOKS_MAX {
            return;
        }
        let Some(old) = self.looks.pop_front() else { return };
        if self.old_looks.back().is_none_or(|(at, _)| old.0.saturating_since(*at) >= OLD_LOOKS_APART) {
            self.old_looks.push_back(old);
        }
        if self.old_looks.len() > LOOKS_MAX {
            self.old_looks.pop_front();
        }
    }

    /// For how long at least the log has held more than `index`; zero if nobody has seen it so.
    pub fn behind(&self, index: Option<LogIndex>, now: Instant) -> Duration {
        let first_beyond = |looks: &VecDeque<(Instant, LogIndex)>| {
            looks.get(looks.partition_point(|(_, last)| Some(*last) <= index)).map(|(at, _)| *at)
        };
        let since = first_beyond(&self.old_looks).or_else(|| first_beyond(&self.looks));
        since.map_or(Duration::ZERO, |since| now.saturating_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_lag_lasts_since_the_log_first_passed_the_index() {
        let mut track = LagTrack::default();
        for (ms, last) in [(0, 5), (1000, 10), (2000, 10), (3000, 20)] {
            track.look(at(ms), LogIndex(last));
        }
        let behind = |index| track.behind(Some(LogIndex(index)), at(5000)).as_millis();
        assert_eq!((behind(20), behind(19), behind(10), behind(9), behind(2)), (0, 2000, 2000, 4000, 5000));
        assert_eq!(track.behind(None, at(5000)), Duration::from_secs(5));
    }

    #[test]
    fn a_log_that_was_cut_back_lags_no_more_than_it_holds() {
        let mut track = LagTrack::default();
        track.look(at(0), LogIndex(5));
        track.look(at(1000), LogIndex(9));
        track.look(at(2000), LogIndex(6));
        assert_eq!(track.behind(Some(LogIndex(6)), at(9000)), Duration::ZERO);
        assert_eq!(track.behind(Some(LogIndex(5)), at(9000)), Duration::from_secs(7));
    }

    #[test]
    fn a_very_long_lag_is_still_told() {
        let mut track = LagTrack::default();
        // Four looks a second for an hour.
        for look in 0..4 * 3600 {
            track.look(at(look * 250), LogIndex(look));
        }
        assert!(track.looks.len() <= LOOKS_MAX && track.old_looks.len() <= LOOKS_MAX);
        let behind = |index: u64| track.behind(Some(LogIndex(index)), at(3_600_000)).as_secs();
        assert!((3_565..=3_575).contains(&behind(100)), "{}", behind(100));
        assert!((99..=101).contains(&behind(4 * 3500)), "{}", behind(4 * 3500));
    }
}
