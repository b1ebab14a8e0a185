//! A message as its producer made it, and the rules it must keep.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::{
    BODY_BYTES_MAX, BORN_HOST_BYTES_MAX, KEY_BYTES_MAX, KEYS_PER_MESSAGE_MAX, MESSAGE_GROUP_BYTES_MAX,
    PROPERTIES_BYTES_MAX, PROPERTIES_PER_MESSAGE_MAX, TAG_BYTES_MAX, TRACE_CONTEXT_BYTES_MAX,
};
use crate::{MessageId, MessageType, StoredFrame, TopicName};

/// How the producer packed the body; the broker never unpacks it. Numbers of `apache.rocketmq.v2`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum BodyEncoding {
    /// As it is.
    Identity = 1,
    /// Compressed by gzip.
    Gzip = 2,
}

impl BodyEncoding {
    /// The number of the encoding.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// The encoding of a number; `None` when there is none.
    pub fn from_code(code: u8) -> Option<BodyEncoding> {
        [BodyEncoding::Identity, BodyEncoding::Gzip].into_iter().find(|e| e.code() == code)
    }
}

/// A message before it is encoded, or after it is decoded whole.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Where it was sent to. Stays the same when the message is dead-lettered.
    pub topic: TopicName,
    /// What kind of message it is.
    pub message_type: MessageType,
    /// Its producer's id for it; a repeated send carries the same one.
    pub id: MessageId,
    /// A word to filter by. An empty one counts as none.
    pub tag: Option<String>,
    /// Words to look it up by.
    pub keys: Vec<String>,
    /// Messages of one group keep their order.
    pub group: Option<String>,
    /// The producer's own properties.
    pub properties: BTreeMap<String, String>,
    /// What it says.
    pub body: Bytes,
    /// How the body is packed.
    pub body_encoding: BodyEncoding,
    /// When it was made, by the producer's clock, milliseconds since the Unix epoch.
    pub born_at_ms: u64,
    /// Where it was made.
    pub born_host: String,
    /// The producer's trace context, passed on as it is.
    pub trace_context: Option<String>,
    /// Not to be seen before this time, wall clock, milliseconds since the Unix epoch.
    pub delivery_at_ms: Option<u64>,
}

/// Why a message is refused; each message names the value and the limit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// No body.
    #[error("body is empty; 1 to {BODY_BYTES_MAX} bytes are allowed")]
    BodyEmpty,
    /// Body over the limit.
    #[error("body has {bytes} bytes; at most {limit} are allowed")]
    BodyTooLarge {
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// More properties than allowed.
    #[error("message has {count} properties; at most {limit} are allowed")]
    TooManyProperties {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// Properties, tag and keys over the limit.
    #[error("properties, tag and keys have {bytes} bytes; at most {limit} are allowed")]
    PropertiesTooLarge {
        /// Their sum, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// A property key that is empty, reserved or has control characters.
    #[error("property key {key:?} is {reason}")]
    IllegalPropertyKey {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A property value with control characters.
    #[error("the value of property {key:?} has a control character")]
    IllegalPropertyValue {
        /// The property's key.
        key: String,
    },
    /// A tag that is blank, has `|` or control characters.
    #[error("tag {tag:?} is {reason}")]
    IllegalTag {
        /// The tag.
        tag: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A tag over the limit.
    #[error("tag has {bytes} bytes; at most {limit} are allowed")]
    TagTooLong {
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// More keys than allowed.
    #[error("message has {count} keys; at most {limit} are allowed")]
    TooManyKeys {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
    /// A key that is blank or has control characters.
    #[error("key {key:?} is {reason}")]
    IllegalKey {
        /// The key.
        key: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A key over the limit.
    #[error("a key has {bytes} bytes; at most {limit} are allowed")]
    KeyTooLong {
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// A message group that is blank or has control characters.
    #[error("message group {group:?} is {reason}")]
    IllegalMessageGroup {
        /// The group.
        group: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A message group over the limit.
    #[error("message group has {bytes} bytes; at most {limit} are allowed")]
    MessageGroupTooLong {
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// An ordered message without a group.
    #[error("a FIFO message needs a message group")]
    MessageGroupMissing,
    /// A delayed message without a time.
    #[error("a DELAY message needs a delivery time")]
    DeliveryTimeMissing,
    /// A trace context over the limit.
    #[error("trace context has {bytes} bytes; at most {limit} are allowed")]
    TraceContextTooLong {
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
    /// The name of the host of birth over the limit.
    #[error("born host has {bytes} bytes; at most {limit} are allowed")]
    BornHostTooLong {
        /// Its length, bytes.
        bytes: usize,
        /// The limit, bytes.
        limit: usize,
    },
}

/// Property keys that RocketMQ's clients and servers use themselves, sorted: users may not set them.
pub const RESERVED_PROPERTY_KEYS: [&str; 51] = [
    "1ST_POP_TIME",
    "ARRIVE_TIME",
    "BORN_TIMESTAMP",
    "BUYER_ID",
    "CLUSTER",
    "CONSUME_START_TIME",
    "CORRECTION_FLAG",
    "CORRELATION_ID",
    "DELAY",
    "DLQ_ORIGIN_MESSAGE_ID",
    "DLQ_ORIGIN_TOPIC",
    "DUP_INFO",
    "EXTEND_UNIQ_INFO",
    "INNER_MULTI_QUEUE_OFFSET",
    "INSTANCE_ID",
    "KEYS",
    "MAX_OFFSET",
    "MAX_RECONSUME_TIMES",
    "MIN_OFFSET",
    "MQ2_FLAG",
    "MSG_REGION",
    "MSG_TYPE",
    "ORIGIN_MESSAGE_ID",
    "PGROUP",
    "POP_CK",
    "POP_CK_OFFSET",
    "PUSH_REPLY_TIME",
    "REAL_QID",
    "REAL_TOPIC",
    "RECONSUME_TIME",
    "REPLY_TO_CLIENT",
    "RETRY_TOPIC",
    "TAGS",
    "TIMER_DELAY_LEVEL",
    "TIMER_DELAY_MS",
    "TIMER_DELAY_SEC",
    "TIMER_DELIVER_MS",
    "TIMER_DEL_UNIQKEY",
    "TIMER_DEQUEUE_MS",
    "TIMER_ENQUEUE_MS",
    "TIMER_OUT_MS",
    "TIMER_ROLL_TIMES",
    "TRACE_ON",
    "TRANSFER_FLAG",
    "TRAN_MSG",
    "TRAN_PREPARED_QUEUE_OFFSET",
    "TTL",
    "UNIQ_KEY",
    "WAIT",
    "__BORNHOST",
    "__CRC32#",
];

impl Message {
    /// Checks every limit and rule.
    ///
    /// # Errors
    /// The first one broken, in the order in which RocketMQ checks them.
    pub fn validate(&self) -> Result<(), MessageError> {
        self.validate_body()?;
        self.validate_properties()?;
        self.validate_tag()?;
        self.validate_keys()?;
        at_most(self.searchable_bytes(), PROPERTIES_BYTES_MAX, |bytes, limit| MessageError::PropertiesTooLarge {
            bytes,
            limit,
        })?;
        self.validate_group()?;
        if self.message_type == MessageType::Delay && self.delivery_at_ms.is_none() {
            return Err(MessageError::DeliveryTimeMissing);
        }
        at_most(self.trace_context.as_ref().map_or(0, String::len), TRACE_CONTEXT_BYTES_MAX, |bytes, limit| {
            MessageError::TraceContextTooLong { bytes, limit }
        })?;
        at_most(self.born_host.len(), BORN_HOST_BYTES_MAX, |bytes, limit| MessageError::BornHostTooLong {
            bytes,
            limit,
        })
    }

    /// The bytes that are replicated, stored and served. Call [`Message::validate`] first.
    ///
    /// # Errors
    /// As [`Message::validate`]: what breaks a rule has no frame.
    pub fn encode(&self) -> Result<StoredFrame, MessageError> {
        self.validate()?;
        Ok(StoredFrame::of(self))
    }

    /// The tag, an empty one counted as none.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref().filter(|tag| !tag.is_empty())
    }

    fn searchable_bytes(&self) -> usize {
        let properties: usize = self.properties.iter().map(|(k, v)| k.len() + v.len()).sum();
        let keys: usize = self.keys.iter().map(String::len).sum();
        properties + keys + self.tag().map_or(0, str::len)
    }

    fn validate_body(&self) -> Result<(), MessageError> {
        if self.body.is_empty() {
            return Err(MessageError::BodyEmpty);
        }
        at_most(self.body.len(), BODY_BYTES_MAX, |bytes, limit| MessageError::BodyTooLarge { bytes, limit })
    }

    fn validate_properties(&self) -> Result<(), MessageError> {
        at_most(self.properties.len(), PROPERTIES_PER_MESSAGE_MAX, |count, limit| MessageError::TooManyProperties {
            count,
            limit,
        })?;
        for (key, value) in &self.properties {
            // Before anything repeats the key in an error: it may be huge.
            at_most(key.len() + value.len(), PROPERTIES_BYTES_MAX, |bytes, limit| MessageError::PropertiesTooLarge {
                bytes,
                limit,
            })?;
            let reason = if key.trim().is_empty() {
                "blank"
            } else if RESERVED_PROPERTY_KEYS.binary_search(&key.as_str()).is_ok() {
                "reserved"
            } else if has_control(key) {
                "not allowed: it has a control character"
            } else if has_control(value) {
                return Err(MessageError::IllegalPropertyValue { key: key.clone() });
            } else {
                continue;
            };
            return Err(MessageError::IllegalPropertyKey { key: key.clone(), reason });
        }
        Ok(())
    }

    fn validate_tag(&self) -> Result<(), MessageError> {
        let Some(tag) = self.tag() else { return Ok(()) };
        at_most(tag.len(), TAG_BYTES_MAX, |bytes, limit| MessageError::TagTooLong { bytes, limit })?;
        let reason = if tag.trim().is_empty() {
            "blank"
        } else if tag.contains('|') {
            "not allowed: it has a '|'"
        } else if has_control(tag) {
            "not allowed: it has a control character"
        } else {
            return Ok(());
        };
        Err(MessageError::IllegalTag { tag: tag.to_owned(), reason })
    }

    fn validate_keys(&self) -> Result<(), MessageError> {
        at_most(self.keys.len(), KEYS_PER_MESSAGE_MAX, |count, limit| MessageError::TooManyKeys { count, limit })?;
        for key in &self.keys {
            at_most(key.len(), KEY_BYTES_MAX, |bytes, limit| MessageError::KeyTooLong { bytes, limit })?;
            if let Some(reason) = blank_or_control(key) {
                return Err(MessageError::IllegalKey { key: key.clone(), reason });
            }
        }
        Ok(())
    }

    fn validate_group(&self) -> Result<(), MessageError> {
        let Some(group) = &self.group else {
            return match self.message_type {
                MessageType::Fifo => Err(MessageError::MessageGroupMissing),
                MessageType::Normal | MessageType::Delay | MessageType::Transaction => Ok(()),
            };
        };
        at_most(group.len(), MESSAGE_GROUP_BYTES_MAX, |bytes, limit| MessageError::MessageGroupTooLong {
            bytes,
            limit,
        })?;
        match blank_or_control(group) {
            None => Ok(()),
            Some(reason) => Err(MessageError::IllegalMessageGroup { group: group.clone(), reason }),
        }
    }
}

fn has_control(text: &str) -> bool {
    text.chars().any(char::is_control)
}

fn blank_or_control(text: &str) -> Option<&'static str> {
    if text.trim().is_empty() {
        Some("blank")
    } else if has_control(text) {
        Some("not allowed: it has a control character")
    } else {
        None
    }
}

fn at_most(value: usize, limit: usize, error: impl FnOnce(usize, usize) -> MessageError) -> Result<(), MessageError> {
    if value > limit {
        return Err(error(value, limit));
    }
    Ok(())
}
