//! When a part does its next thing, and under which number.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

use super::Shared;

/// Numbers of a part's messages begin at its own number times this: no other message of the run has them.
const NUMBERS: u64 = 1 << 40;

/// Turns at a rate, shared by those who do one part.
pub(super) struct Pace {
    interval: Duration,
    next: Mutex<Instant>,
    next_number: AtomicU64,
}

impl Pace {
    pub(super) fn new(part: u64, interval: Duration, runtime: &Runtime) -> Pace {
        Pace { interval, next: Mutex::new(runtime.now()), next_number: AtomicU64::new(part * NUMBERS) }
    }

    /// Waits for the next turn and answers its number; none once the load is over.
    pub(super) async fn turn(&self, shared: &Shared) -> Option<u64> {
        let slot = {
            let mut next = self.next.lock().expect("no code panics while holding it");
            // What could not be done in time is not made up for.
            let slot = (*next).max(shared.runtime.now());
            *next = slot + self.interval;
            slot
        };
        if shared.is_over(slot) {
            return None;
        }
        shared.runtime.sleep_until(slot).await;
        // Said meanwhile, perhaps.
        if shared.is_over(shared.runtime.now()) {
            return None;
        }
        Some(self.next_number.fetch_add(1, Ordering::Relaxed))
    }
}
