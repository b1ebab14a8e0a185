//! What a service answers: one message with its metadata, or a bounded stream of messages.

use std::borrow::Cow;

use tokio::sync::mpsc;

use crate::metadata::{Metadata, value_of};

/// A stream of messages. The producing side ends it by dropping its sender, and learns from
/// `Sender::closed` that nobody reads any more.
pub type Replies<T> = mpsc::Receiver<T>;

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
