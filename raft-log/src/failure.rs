//! The latch that stops a node: the first failure is final, told once, and refuses everything after it.

use std::io;
use std::sync::{Arc, OnceLock};

use tokio::sync::Notify;

/// Cheap handle to the node's failure latch.
#[derive(Clone, Default)]
pub(crate) struct Failure {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    text: OnceLock<String>,
    told: Notify,
}

impl Failure {
    /// Latches the failure unless there already is one. Logged here and nowhere else.
    pub(crate) fn report(&self, text: impl Into<String>) {
        let text = text.into();
        if self.inner.text.set(text.clone()).is_ok() {
            tracing::error!(reason = text, "log failed for good, node must stop");
            self.inner.told.notify_waiters();
        }
    }

    /// Latches an I/O failure at a place and gives the error back.
    pub(crate) fn report_io(&self, place: impl std::fmt::Display, error: io::Error) -> io::Error {
        self.report(format!("{place}: {error}"));
        error
    }

    /// `Err` once anything failed.
    pub(crate) fn check(&self) -> io::Result<()> {
        match self.inner.text.get() {
            None => Ok(()),
            Some(text) => Err(io::Error::other(format!("log failed before: {text}"))),
        }
    }

    /// The reason, once there is one.
    pub(crate) fn get(&self) -> Option<String> {
        self.inner.text.get().cloned()
    }

    pub(crate) fn is_set(&self) -> bool {
        self.inner.text.get().is_some()
    }

    /// Resolves with the reason once there is one.
    pub(crate) async fn wait(&self) -> String {
        loop {
            let told = self.inner.told.notified();
            let mut told = std::pin::pin!(told);
            // Registers before the check, so that a report in between is not missed.
            told.as_mut().enable();
            if let Some(text) = self.inner.text.get() {
                return text.clone();
            }
            told.await;
        }
    }
}

/// Reports a panic that unwinds through the scope it guards: a dead worker must stop the node, not hang it.
pub(crate) struct ReportPanic<'a> {
    pub(crate) failure: &'a Failure,
    pub(crate) what: &'static str,
}

impl Drop for ReportPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failure.report(format!("{} panicked", self.what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_failure_is_the_one_told() {
        let failure = Failure::default();
        assert!(failure.check().is_ok());
        failure.report("first");
        failure.report("second");
        assert_eq!(failure.wait().await, "first");
        assert!(failure.check().unwrap_err().to_string().contains("first"));
    }
}
