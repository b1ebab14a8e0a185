//! Counts work that goes on behind the log's back, so that closing the log can wait for the last of it, and lets none begin
//! after that: then the directory may be another process's.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::Notify;

/// Cheap handle to the count.
#[derive(Clone, Default)]
pub(crate) struct Background {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Default)]
struct State {
    running: usize,
    is_over: bool,
}

/// One piece of work; over when dropped. To be moved into the work itself.
pub(crate) struct Working(Arc<Inner>);

impl Drop for Working {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.running -= 1;
        if state.running == 0 {
            drop(state);
            self.0.ended.notify_waiters();
        }
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("count's lock is never poisoned: no code panics while holding it")
    }
}

impl Background {
    /// `None` once the last of it is over: nothing may be begun any more.
    pub(crate) fn begin(&self) -> Option<Working> {
        let mut state = self.inner.state();
        if state.is_over {
            return None;
        }
        state.running += 1;
        Some(Working(self.inner.clone()))
    }

    /// Resolves when nothing runs. Nothing can begin from then on.
    pub(crate) async fn end(&self) {
        self.wait(|state| state.is_over = true).await;
    }

    /// Resolves when nothing runs.
    pub(crate) async fn idle(&self) {
        self.wait(|_| ()).await;
    }

    /// Until nothing runs; `then` is done before anything else can begin.
    async fn wait(&self, then: impl FnOnce(&mut State)) {
        loop {
            let ended = self.inner.ended.notified();
            let mut ended = std::pin::pin!(ended);
            ended.as_mut().enable();
            {
                let mut state = self.inner.state();
                if state.running == 0 {
                    return then(&mut state);
                }
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_end_waits_for_what_runs_and_nothing_begins_behind_it() {
        let background = Background::default();
        let working = background.begin().expect("it has not ended");
        let mut end = Box::pin(background.end());
        assert!(futures::poll!(&mut end).is_pending());
        assert!(background.begin().is_some(), "what is begun meanwhile is waited for, too");
        drop(working);
        end.await;
        assert!(background.begin().is_none());
    }
}
