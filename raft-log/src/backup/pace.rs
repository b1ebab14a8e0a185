//! How fast a copy may be made, how long it may take, and whether it is still wanted.

use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

use super::{BackupError, BackupProgress};

/// Somebody who waits looks so often whether the copy is still wanted.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

pub(super) struct Pace {
    runtime: Runtime,
    progress: BackupProgress,
    bytes_per_s: u64,
    time_max: Duration,
    ends: Instant,
    /// The next piece may be taken from then on.
    next_at: Instant,
}

impl Pace {
    pub(super) fn start(runtime: Runtime, progress: BackupProgress, bytes_per_s: u64, time_max: Duration) -> Pace {
        let now = runtime.now();
        Pace { runtime, progress, bytes_per_s: bytes_per_s.max(1), time_max, ends: now + time_max, next_at: now }
    }

    /// Whether to go on.
    pub(super) fn check(&self) -> Result<(), BackupError> {
        if self.progress.is_cancelled() {
            return Err(BackupError::GivenUp);
        }
        if self.runtime.now() >= self.ends {
            let (done, total) = self.progress.bytes();
            return Err(BackupError::OutOfTime { time_max: self.time_max, done, total });
        }
        Ok(())
    }

    /// So many bytes were taken: waits until the next ones may be.
    pub(super) async fn taken(&mut self, bytes: u64) -> Result<(), BackupError> {
        self.progress.add(bytes);
        let cost = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_s);
        let cost = Duration::from_nanos(u64::try_from(cost).unwrap_or(u64::MAX));
        // What was late is caught up with by one piece at most: more would be a burst.
        self.next_at = (self.next_at + cost).max(self.runtime.now() - cost);
        loop {
            self.check()?;
            let now = self.runtime.now();
            if now >= self.next_at {
                return Ok(());
            }
            self.runtime.sleep((self.next_at - now).min(LOOK_PAUSE)).await;
        }
    }
}
