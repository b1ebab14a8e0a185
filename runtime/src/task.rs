//! A running task and its owner's hold on it.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::channel::oneshot;
use futures::future::{AbortHandle, Abortable, FutureExt};

/// The owner's hold on a task: dropping it cancels the task at its next await.
#[must_use = "dropping a task cancels it; keep it, join it or detach it"]
pub struct Task<T> {
    abort: AbortHandle,
    done: oneshot::Receiver<std::thread::Result<T>>,
    cancel_on_drop: bool,
}

/// Why a task gave no result.
#[derive(Debug)]
pub enum TaskEnd {
    /// It was aborted, or the runtime went away below it.
    Cancelled,
    /// It panicked, with this text.
    Panicked(String),
}

impl std::fmt::Display for TaskEnd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            TaskEnd::Cancelled => f.write_str("task was cancelled"),
            TaskEnd::Panicked(text) => write!(f, "task panicked: {text}"),
        }
    }
}

impl std::error::Error for TaskEnd {}

impl<T: Send + 'static> Task<T> {
    /// The hold and the body to be run by a driver.
    pub(crate) fn new(future: impl Future<Output = T> + Send + 'static) -> (Task<T>, impl Future<Output = ()> + Send) {
        let (abort, registration) = AbortHandle::new_pair();
        let (send, done) = oneshot::channel();
        let body = async move {
            let caught = std::panic::AssertUnwindSafe(future).catch_unwind();
            if let Ok(result) = Abortable::new(caught, registration).await {
                // The owner may have detached; then nobody wants the result.
                let _ = send.send(result);
            }
        };
        (Task { abort, done, cancel_on_drop: true }, body)
    }

    /// Cancels the task at its next await; returns at once.
    pub fn abort(&self) {
        self.abort.abort();
    }

    /// Lets the task run on without an owner.
    pub fn detach(mut self) {
        self.cancel_on_drop = false;
    }

    /// Waits for the task's end.
    pub async fn join(self) -> Result<T, TaskEnd> {
        self.await
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T, TaskEnd>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.done.poll_unpin(cx).map(|done| match done {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(panic)) => Err(TaskEnd::Panicked(text_of(&*panic))),
            Err(oneshot::Canceled) => Err(TaskEnd::Cancelled),
        })
    }
}

impl<T> Drop for Task<T> {
    fn drop(&mut self) {
        if self.cancel_on_drop {
            self.abort.abort();
        }
    }
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        return (*text).to_owned();
    }
    panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "no message".to_owned())
}
