//! How long a replica leaves the field to others after a vote that its disk was slow to keep.
//!
//! ```text
//!  asked ─▶ keeps the vote (slow) ─▶ answers ┊ pause: 2 to 4 times as long, at most 10 s ┊ campaigns as usual
//! ```
//! The core's election time-outs are fixed. Where keeping a vote takes longer, a voter would campaign against the candidate
//! whom it has just voted for, and a candidate against itself, before any vote is counted, for ever. A vote that is kept
//! quickly pauses nobody.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

/// The pause is so many times what the vote took,
const FACTOR: u32 = 2;
/// and a random part of so many times more: who was paused together does not go on together.
const SPREAD: u32 = 2;
/// No pause is longer.
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// A vote that took less than this part of the shortest election time-out is no reason for a pause.
const QUICK_PART: u32 = 4;

/// Told when a pause begins.
type Hook = Arc<dyn Fn() + Send + Sync>;

/// Whether this replica leaves campaigns to others for a while.
pub(crate) struct CampaignPause {
    quick: Duration,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    is_keeping: bool,
    until: Option<Instant>,
    hook: Option<Hook>,
}

impl CampaignPause {
    /// Votes that take less than a part of `election_timeout` are quick.
    pub(crate) fn new(election_timeout: Duration) -> CampaignPause {
        CampaignPause { quick: election_timeout / QUICK_PART, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("pause lock is never poisoned: no code panics while holding it")
    }

    /// `hook` is called when a pause begins, before the vote that is the cause of it counts.
    pub(crate) fn set_hook(&self, hook: Hook) {
        self.state().hook = Some(hook);
    }

    /// A vote is about to be kept.
    pub(crate) fn keeping(&self) {
        self.state().is_keeping = true;
    }

    /// It is kept, or cannot be, and that `took` so long.
    pub(crate) fn kept(&self, took: Duration, runtime: &Runtime) {
        let hook = {
            let mut state = self.state();
            state.is_keeping = false;
            if took <= self.quick {
                return;
            }
            let spread = u64::try_from((took * SPREAD).as_millis()).unwrap_or(u64::MAX);
            let pause = took * FACTOR + Duration::from_millis(runtime.random_below(spread));
            state.until = Some(runtime.now() + pause.min(PAUSE_MAX));
            state.hook.clone()
        };
        if let Some(hook) = hook {
            hook();
        }
    }

    /// A vote is being kept right now.
    pub(crate) fn is_keeping(&self) -> bool {
        self.state().is_keeping
    }

    /// How long the pause goes on; `None` when there is none.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        let mut state = self.state();
        let left = state.until?.saturating_since(now);
        if left.is_zero() {
            state.until = None;
            return None;
        }
        Some(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quick_vote_pauses_nobody_and_a_slow_one_for_some_times_as_long() {
        let runtime = crate::testing::StepRuntime::default().handle();
        let pause = CampaignPause::new(Duration::from_millis(200));
        let told = Arc::new(Mutex::new(0));
        let counted = told.clone();
        pause.set_hook(Arc::new(move || *counted.lock().unwrap() += 1));
        pause.keeping();
        assert!(pause.is_keeping());
        pause.kept(Duration::from_millis(50), &runtime);
        assert!(!pause.is_keeping());
        assert_eq!((pause.left(runtime.now()), *told.lock().unwrap()), (None, 0));

        pause.kept(Duration::from_millis(300), &runtime);
        let left = pause.left(runtime.now()).unwrap();
        assert!((600..=1_200).contains(&left.as_millis()), "{left:?}");
        assert_eq!(*told.lock().unwrap(), 1);
        assert_eq!(pause.left(runtime.now() + Duration::from_secs(2)), None, "it is over");

        pause.kept(Duration::from_secs(60), &runtime);
        assert_eq!(pause.left(runtime.now()), Some(PAUSE_MAX), "but not for ever");
    }
}
