//! A bounded number of calls and bytes that may wait or be under way at the same time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts what is under way against two limits.
#[derive(Debug)]
pub struct Budget {
    calls: AtomicU64,
    bytes: AtomicU64,
    calls_max: u64,
    bytes_max: u64,
    refusals: AtomicU64,
}

/// One call's share, given back when dropped.
#[derive(Debug)]
pub struct Share {
    budget: Arc<Budget>,
    bytes: u64,
}

/// There is no room for another call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OverBudget {
    /// As many calls as are allowed.
    #[error("{calls_max} calls, the most that are allowed, are waiting already")]
    Calls {
        /// The limit.
        calls_max: u64,
    },
    /// As many bytes as are allowed.
    #[error("calls of {bytes_max} bytes, the most that are allowed, are waiting already")]
    Bytes {
        /// The limit.
        bytes_max: u64,
    },
}

impl Budget {
    /// Nothing is under way yet.
    pub fn new(calls_max: u64, bytes_max: u64) -> Arc<Budget> {
        let zero = || AtomicU64::new(0);
        Arc::new(Budget { calls: zero(), bytes: zero(), calls_max, bytes_max, refusals: zero() })
    }

    /// Takes a share for one call of so many bytes.
    pub fn take(self: &Arc<Budget>, bytes: u64) -> Result<Share, OverBudget> {
        // The share exists before it is judged: dropping it is the one way of giving back.
        let calls = self.calls.fetch_add(1, Ordering::Relaxed) + 1;
        let total = self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let share = Share { budget: self.clone(), bytes };
        if calls > self.calls_max {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(OverBudget::Calls { calls_max: self.calls_max });
        }
        if total > self.bytes_max {
            self.refusals.fetch_add(1, Ordering::Relaxed);
            return Err(OverBudget::Bytes { bytes_max: self.bytes_max });
        }
        Ok(share)
    }

    /// How often there was no room.
    pub fn refusals(&self) -> u64 {
        self.refusals.load(Ordering::Relaxed)
    }

    /// Calls and bytes under way.
    pub fn used(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.budget.calls.fetch_sub(1, Ordering::Relaxed);
        self.budget.bytes.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_limits_hold_and_everything_comes_back() {
        let budget = Budget::new(2, 100);
        let first = budget.take(60).expect("room");
        assert_eq!(budget.take(41).expect_err("too many bytes"), OverBudget::Bytes { bytes_max: 100 });
        let second = budget.take(40).expect("exactly full");
        assert_eq!(budget.take(0).expect_err("too many calls"), OverBudget::Calls { calls_max: 2 });
        assert_eq!(budget.used(), (2, 100));
        drop((first, second));
        assert_eq!((budget.used(), budget.refusals()), ((0, 0), 2));
    }
}
