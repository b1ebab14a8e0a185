//! What went wrong in a run and stands in no history: a process that ended by itself, a group without a leader.

use std::sync::Mutex;

/// More are counted and not kept.
const KEPT_MAX: usize = 100;

/// Collects incidents, a sentence each.
#[derive(Default)]
pub(crate) struct Incidents {
    kept: Mutex<(Vec<String>, u64)>,
}

impl Incidents {
    /// Keeps it and tells it at once.
    pub(crate) fn add(&self, text: String) {
        eprintln!("chaos: WRONG: {text}");
        let mut kept = self.lock();
        if kept.0.len() < KEPT_MAX { kept.0.push(text) } else { kept.1 += 1 }
    }

    /// All of them.
    pub(crate) fn take(&self) -> Vec<String> {
        let (mut kept, more) = std::mem::take(&mut *self.lock());
        if more > 0 {
            kept.push(format!("{more} more incidents"));
        }
        kept
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, (Vec<String>, u64)> {
        self.kept.lock().expect("the incidents' lock is never poisoned: no code panics while holding it")
    }
}
