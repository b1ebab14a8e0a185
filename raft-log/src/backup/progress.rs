//! How far a copy has come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Cheap handle; to be looked at while the copy is made.
#[derive(Debug, Clone, Default)]
pub struct BackupProgress {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    done: AtomicU64,
    total: AtomicU64,
    is_cancelled: AtomicBool,
}

impl BackupProgress {
    /// Bytes that were copied, or read of what is linked, and how many there are; 0 of 0 before it is known.
    pub fn bytes(&self) -> (u64, u64) {
        (self.inner.done.load(Ordering::Relaxed), self.inner.total.load(Ordering::Relaxed))
    }

    /// Has the copy end with an error at its next step.
    pub fn cancel(&self) {
        self.inner.is_cancelled.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.inner.is_cancelled.load(Ordering::Relaxed)
    }

    pub(super) fn set_total(&self, bytes: u64) {
        self.inner.total.store(bytes, Ordering::Relaxed);
    }

    pub(super) fn add(&self, bytes: u64) {
        self.inner.done.fetch_add(bytes, Ordering::Relaxed);
    }
}
