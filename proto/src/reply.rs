//! What a service answers: one message with its metadata, or a bounded stream of messages.

use std::any::Any;
use std::borrow::Cow;
use std::task::{Context, Poll, ready};

use tokio::sync::mpsc;

use crate::metadata::{Metadata, value_of};

/// A stream of messages. The producing side ends it by dropping its sender, and learns from
/// `Sender::closed` that nobody reads any more.
pub type Replies<T> = mpsc::Receiver<T>;

/// The answer of one poll: a stream, and what has to be kept as long as it is not taken, such as a share of a limit.
pub struct MessageReplies<T> {
    replies: Replies<T>,
    kept: Option<Box<dyn Any + Send + Sync>>,
}

impl<T> std::fmt::Debug for MessageReplies<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageReplies").field("is_keeping", &self.kept.is_some()).finish_non_exhaustive()
    }
}

impl<T> From<Replies<T>> for MessageReplies<T> {
    fn from(replies: Replies<T>) -> MessageReplies<T> {
        MessageReplies { replies, kept: None }
    }
}

impl<T> MessageReplies<T> {
    /// Drops `kept` once the stream has ended, or with it.
    #[must_use]
    pub fn keeping(mut self, kept: impl Any + Send + Sync) -> MessageReplies<T> {
        self.kept = Some(Box::new(kept));
        self
    }

    /// The next message; `None` at the end.
    pub async fn recv(&mut self) -> Option<T> {
        std::future::poll_fn(|cx| self.poll_recv(cx)).await
    }

    /// The same as a step of a stream.
    pub fn poll_recv(&mut self, cx: &mut Context<'_>) -> Poll<Option<T>> {
        let next = ready!(self.replies.poll_recv(cx));
        if next.is_none() {
            self.kept = None;
        }
        Poll::Ready(next)
    }
}

/// Messages that may wait in a stream between a service and its adapter.
pub const STREAM_DEPTH: usize = 32;

/// One answer and the metadata that travels beside it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reply<T> {
    /// The response message.
    pub body: T,
    /// Sent as response headers. Entries that no header can carry are left out.
    pub metadata: Metadata,
}

impl<T> Reply<T> {
    /// An answer without metadata.
    pub fn new(body: T) -> Reply<T> {
        Reply { body, metadata: Metadata::new() }
    }

    /// Adds one entry; a name may be used repeatedly.
    #[must_use]
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl ToString) -> Reply<T> {
        self.metadata.push((name.into(), value.to_string()));
        self
    }

    /// The first metadata value of `name`.
    pub fn value_of(&self, name: &str) -> Option<&str> {
        value_of(&self.metadata, name)
    }

    /// The same metadata with another body.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Reply<U> {
        Reply { body: f(self.body), metadata: self.metadata }
    }
}

impl<T> From<T> for Reply<T> {
    fn from(body: T) -> Reply<T> {
        Reply::new(body)
    }
}
