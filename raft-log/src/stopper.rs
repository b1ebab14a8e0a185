//! Ends a replica in the right order, whether it is told to or its last handle is dropped.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use futures::channel::oneshot;

use crate::log_view::LogView;
use crate::raft::LogRaft;

/// Holds a replica's end in its hands.
pub(crate) struct Stopper {
    is_stopping: Arc<AtomicBool>,
    state: Mutex<State>,
}

struct State {
    /// Dropping it begins the end.
    begin: Option<oneshot::Sender<()>>,
    /// Does the work; must go on even when nobody waits for it.
    task: Option<Task<()>>,
}

impl Stopper {
    /// `machine_gone` resolves when the state machine was dropped.
    pub(crate) fn start(
        runtime: &Runtime,
        raft: LogRaft,
        view: LogView,
        machine_gone: oneshot::Receiver<()>,
    ) -> Stopper {
        let (begin, begun) = oneshot::channel();
        let is_stopping = Arc::new(AtomicBool::new(false));
        let stopping = is_stopping.clone();
        let task = runtime.spawn("log-stopper", async move {
            // Resolves by the sender being dropped; that is the signal.
            let _ = begun.await;
            stopping.store(true, Ordering::Release);
            view.begin_close();
            // The core's own readers may be waiting for an entry to be mended.
            view.shared.damages.close();
            if let Err(end) = raft.shutdown().await {
                tracing::warn!(%end, "replication core did not end well");
            }
            drop(raft);
            // The machine may still be applying its last batch.
            let _ = machine_gone.await;
            view.close().await;
            tracing::info!("log closed");
        });
        Stopper { is_stopping, state: Mutex::new(State { begin: Some(begin), task: Some(task) }) }
    }

    /// A flag that is set once the end has begun.
    pub(crate) fn is_stopping(&self) -> Arc<AtomicBool> {
        self.is_stopping.clone()
    }

    pub(crate) fn has_begun(&self) -> bool {
        self.is_stopping.load(Ordering::Acquire)
    }

    fn begin(&self) -> Option<Task<()>> {
        self.is_stopping.store(true, Ordering::Release);
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        drop(state.begin.take());
        state.task.take()
    }

    /// Begins the end and waits for it, at most for `timeout`. It comes in any case.
    pub(crate) async fn stop(&self, runtime: &Runtime, timeout: Duration) {
        let Some(mut task) = self.begin() else {
            return;
        };
        if runtime.timeout(timeout, &mut task).await.is_err() {
            tracing::warn!(timeout_ms = timeout.as_millis(), "log did not close in time, it goes on in the background");
            task.detach();
        }
    }
}

impl Drop for Stopper {
    fn drop(&mut self) {
        if let Some(task) = self.begin() {
            task.detach();
        }
    }
}
