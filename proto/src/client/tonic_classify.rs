//! Tells a request that surely never left from one that may have been executed.

use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use tonic::{Code, Status, TimeoutExpired};

use super::CallError;

const UNSENT: u8 = 0;
const SENT: u8 = 1;
const ABANDONED: u8 = 2;

/// Whether the transport has taken the request message, or may no longer take it. No server
/// executes a call before it has the message, so this, and not the kind of an error, decides
/// whether a call surely was not executed.
#[derive(Debug, Default)]
struct Mark(AtomicU8);

impl Mark {
    /// The transport asks for the message: true once, unless the call was abandoned.
    fn take(&self) -> bool {
        self.0.compare_exchange(UNSENT, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Forbids to send; true if nothing was sent and now never will be.
    fn abandon(&self) -> bool {
        self.0.compare_exchange(UNSENT, ABANDONED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// The caller's hold on a request that is on its way.
#[derive(Debug, Clone, Default)]
pub(super) struct Outgoing(Arc<Mark>);

impl Outgoing {
    /// The request as the transport reads it.
    pub(super) fn request<S>(&self, messages: S) -> MarkedStream<S> {
        MarkedStream { messages, mark: self.0.clone(), open: false }
    }

    /// What it means that no answer came in time.
    pub(super) fn timed_out(&self, after: Duration) -> CallError {
        if self.0.abandon() {
            return CallError::Refused(format!("no connection within {} ms", after.as_millis()));
        }
        CallError::Timeout(after)
    }

    /// What it means that the call failed with `status`.
    pub(super) fn failed(&self, status: &Status, timeout: Duration) -> CallError {
        if status.source().is_some() && self.0.abandon() {
            return CallError::Refused(text_of(status));
        }
        error_of(status, timeout)
    }
}

/// What it means that a call, once sent, failed with `status`. A status that the other end answered
/// has no source; one that tonic made of a broken connection has.
pub(super) fn error_of(status: &Status, timeout: Duration) -> CallError {
    match status.source() {
        Some(source) if causes(source).any(|cause| cause.is::<TimeoutExpired>()) => CallError::Timeout(timeout),
        Some(_) => CallError::Broken(text_of(status)),
        None if status.code() == Code::DeadlineExceeded => CallError::Timeout(timeout),
        // How a tonic server says that the caller's time is over.
        None if status.code() == Code::Cancelled => CallError::Timeout(timeout),
        None => CallError::Status { code: status.code() as i32, message: status.message().to_owned() },
    }
}

fn causes<'e>(error: &'e (dyn Error + 'static)) -> impl Iterator<Item = &'e (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'e (dyn Error + 'static)| (*error).source())
}

/// The innermost cause says most; the layers above it only say that there was an error.
fn text_of(status: &Status) -> String {
    let innermost = status.source().and_then(|source| causes(source).last());
    innermost.map_or_else(|| status.message().to_owned(), ToString::to_string)
}

/// Messages that may be taken only while the call has not been abandoned.
pub(super) struct MarkedStream<S> {
    messages: S,
    mark: Arc<Mark>,
    open: bool,
}

impl<S: Stream + Unpin> Stream for MarkedStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        if !self.open {
            if !self.mark.take() {
                return Poll::Ready(None);
            }
            self.open = true;
        }
        Pin::new(&mut self.messages).poll_next(cx)
    }
}
