//! Counts work that goes on behind the log's back, so that closing the log can wait for the last of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Cheap handle to the count.
#[derive(Clone, Default)]
pub(crate) struct Background {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    running: AtomicUsize,
    ended: Notify,
}

/// One piece of work; over when dropped. To be moved into the work itself.
pub(crate) struct Working(Arc<Inner>);

impl Drop for Working {
    fn drop(&mut self) {
        if self.0.running.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.ended.notify_waiters();
        }
    }
}

impl Background {
    pub(crate) fn begin(&self) -> Working {
        self.inner.running.fetch_add(1, Ordering::AcqRel);
        Working(self.inner.clone())
    }

    /// Resolves when nothing runs.
    pub(crate) async fn idle(&self) {
        loop {
            let ended = self.inner.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            if self.inner.running.load(Ordering::Acquire) == 0 {
                return;
            }
            ended.await;
        }
    }
}
