//! A message on its way to the broker, as an application writes it.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_message::{ACK_PROPERTY, AckLevel, FLUSH_PROPERTY, FlushLevel, MessageId, TopicName};

/// A message to be sent. Only the topic and the body are needed.
///
/// Limits are checked when it is sent: the error then names the value and the limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutgoingMessage {
    pub(crate) topic: TopicName,
    pub(crate) body: Bytes,
    pub(crate) id: Option<MessageId>,
    pub(crate) tag: Option<String>,
    pub(crate) keys: Vec<String>,
    pub(crate) message_group: Option<String>,
    pub(crate) properties: BTreeMap<String, String>,
    pub(crate) trace_context: Option<String>,
    pub(crate) delivery_at_ms: Option<u64>,
}

impl OutgoingMessage {
    /// A message of `body` for `topic`.
    pub fn new(topic: TopicName, body: impl Into<Bytes>) -> OutgoingMessage {
        OutgoingMessage {
            topic,
            body: body.into(),
            id: None,
            tag: None,
            keys: Vec::new(),
            message_group: None,
            properties: BTreeMap::new(),
            trace_context: None,
            delivery_at_ms: None,
        }
    }

    /// Sets the message id instead of having one made. A second message with the id of an earlier one is
    /// not stored again while the broker remembers that one: how a send of unknown outcome is repeated.
    #[must_use]
    pub fn with_id(mut self, id: MessageId) -> OutgoingMessage {
        self.id = Some(id);
        self
    }

    /// Sets the tag, by which consumers may filter.
    #[must_use]
    pub fn with_tag(mut self, tag: impl Into<String>) -> OutgoingMessage {
        self.tag = Some(tag.into());
        self
    }

    /// Adds a key, by which the message may be looked for.
    #[must_use]
    pub fn with_key(mut self, key: impl Into<String>) -> OutgoingMessage {
        self.keys.push(key.into());
        self
    }

    /// Sets the message group: messages of one group keep their order. For topics of type FIFO.
    #[must_use]
    pub fn with_message_group(mut self, group: impl Into<String>) -> OutgoingMessage {
        self.message_group = Some(group.into());
        self
    }

    /// Sets a property of the application's own.
    #[must_use]
    pub fn with_property(mut self, key: impl Into<String>, value: impl Into<String>) -> OutgoingMessage {
        self.properties.insert(key.into(), value.into());
        self
    }

    /// Asks for so many copies before the send is answered. A topic that gives more gives more all the same.
    #[must_use]
    pub fn with_ack(self, level: AckLevel) -> OutgoingMessage {
        self.with_property(ACK_PROPERTY, level.to_string())
    }

    /// Asks for copies that are on disk, or not, before the send is answered; as [`OutgoingMessage::with_ack`].
    #[must_use]
    pub fn with_flush(self, level: FlushLevel) -> OutgoingMessage {
        self.with_property(FLUSH_PROPERTY, level.to_string())
    }

    /// Sets a trace context that consumers get as it is.
    #[must_use]
    pub fn with_trace_context(mut self, context: impl Into<String>) -> OutgoingMessage {
        self.trace_context = Some(context.into());
        self
    }

    /// Sets when the message is to be delivered, milliseconds of wall time since the Unix epoch. For
    /// topics of type DELAY.
    #[must_use]
    pub fn with_delivery_at_ms(mut self, at_ms: u64) -> OutgoingMessage {
        self.delivery_at_ms = Some(at_ms);
        self
    }

    /// The topic.
    pub fn topic(&self) -> &TopicName {
        &self.topic
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }
}
