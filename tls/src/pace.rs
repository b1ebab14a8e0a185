//! One line of log for the same trouble with the same address, not one for each try.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

use crate::counters::Cause;

/// The same trouble is told again after so long.
const PAUSE: Duration = Duration::from_secs(30);
/// Troubles that are remembered; beyond them all are forgotten, and told again.
const TROUBLES_MAX: usize = 1_000;

/// When which trouble was told last.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    told: Mutex<BTreeMap<(String, Cause), Instant>>,
}

impl Pace {
    /// Whether it should be told now.
    pub(crate) fn is_due(&self, who: &str, cause: Cause, runtime: &Runtime) -> bool {
        let now = runtime.now();
        // A panic while holding it leaves the map whole.
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (who.to_owned(), cause);
        if told.get(&key).is_some_and(|last| now.saturating_since(*last) < PAUSE) {
            return false;
        }
        if told.len() >= TROUBLES_MAX {
            told.clear();
        }
        told.insert(key, now);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_told_once() {
        let (pace, runtime) = (Pace::default(), Runtime::tokio());
        assert!(pace.is_due("a", Cause::Expired, &runtime));
        assert!(!pace.is_due("a", Cause::Expired, &runtime));
        assert!(pace.is_due("a", Cause::WrongName, &runtime));
        assert!(pace.is_due("b", Cause::Expired, &runtime));
        for number in 0..2 * TROUBLES_MAX {
            pace.is_due(&number.to_string(), Cause::Other, &runtime);
        }
        assert!(pace.told.lock().unwrap().len() <= TROUBLES_MAX);
    }
}
