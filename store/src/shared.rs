//! The state as machine and readers share it: one writer, many readers, no lock held for long.

use std::sync::{OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::state::State;

pub(crate) struct Shared {
    state: RwLock<State>,
    failure: OnceLock<String>,
}

impl Shared {
    pub fn new() -> Shared {
        Shared { state: RwLock::new(State::new()), failure: OnceLock::new() }
    }

    // A reader that panics leaves the state whole, and the one writer does not go on after a panic
    // of its own: poison says nothing here.
    pub fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the first reason.
    pub fn set_failure(&self, reason: String) {
        let _ = self.failure.set(reason);
    }

    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }
}
