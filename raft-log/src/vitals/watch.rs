//! What this replica knows about its own health, and tells to those who ask.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use flotilla_runtime::Runtime;

use super::digests::{Digests, StateDigest};
use super::silences::Silences;
use crate::log_view::LogView;

/// Whether a replica should lead, as it says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fitness {
    /// It knows no reason why it should not.
    Fit,
    /// It can, and another one would do better: its disk is slow or full, or it applies late.
    Reluctant,
    /// It must not: its copy of the log has a hole, or its clock is wrong.
    Unfit,
}

/// What a replica tells about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VitalsAnswer {
    /// Whether it should lead.
    pub(crate) fitness: Fitness,
    /// Its wall clock, ms since 1970.
    pub(crate) wall_ms: u64,
    /// Its newest digests.
    pub(crate) digests: Vec<StateDigest>,
}

/// One replica's knowledge about itself.
pub(crate) struct Vitals {
    view: LogView,
    runtime: Runtime,
    pub(crate) digests: Digests,
    pub(crate) silences: Silences,
    is_clock_off: AtomicBool,
    is_ill: AtomicBool,
    alarm: Mutex<Option<String>>,
}

impl Vitals {
    pub(crate) fn new(view: LogView, runtime: Runtime) -> Vitals {
        Vitals {
            view,
            runtime,
            digests: Digests::default(),
            silences: Silences::default(),
            is_clock_off: AtomicBool::new(false),
            is_ill: AtomicBool::new(false),
            alarm: Mutex::new(None),
        }
    }

    /// The others' clocks contradict this one's.
    pub(crate) fn is_clock_off(&self) -> bool {
        self.is_clock_off.load(Ordering::Acquire)
    }

    pub(super) fn set_clock_off(&self, is_off: bool) -> bool {
        self.is_clock_off.swap(is_off, Ordering::AcqRel) != is_off
    }

    /// Its owner finds it ill, or well again.
    pub(crate) fn set_ill(&self, is_ill: bool) {
        self.is_ill.store(is_ill, Ordering::Release);
    }

    /// Whether it should lead.
    pub(crate) fn fitness(&self) -> Fitness {
        if self.view.shared.damages.any() || self.is_clock_off() {
            Fitness::Unfit
        } else if self.is_ill.load(Ordering::Acquire) || self.view.shared.room.is_blocked() || self.is_slow() {
            Fitness::Reluctant
        } else {
            Fitness::Fit
        }
    }

    /// A sync of the last seconds was slow: too little to be ill, enough to be no better than a leader that is.
    fn is_slow(&self) -> bool {
        self.view.shared.flusher.was_slow()
    }

    /// A difference of state between replicas, in words, once there was one.
    pub(crate) fn alarm(&self) -> Option<String> {
        self.alarm.lock().expect("alarm lock is never poisoned: no code panics while holding it").clone()
    }

    /// True if this is news.
    pub(super) fn set_alarm(&self, text: Option<String>) -> bool {
        let mut alarm = self.alarm.lock().expect("alarm lock is never poisoned: no code panics while holding it");
        let is_news = text.is_some() && *alarm != text;
        *alarm = text;
        is_news
    }

    pub(crate) fn answer(&self) -> VitalsAnswer {
        VitalsAnswer { fitness: self.fitness(), wall_ms: self.runtime.wall_ms(), digests: self.digests.newest() }
    }
}
