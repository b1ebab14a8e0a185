//! Recall handles and transaction ids: opaque texts that say all a replica needs to find a stored message that stands in
//! no queue yet, drawn in `docs/formats/held-handle.md`.

use flotilla_message::{MessageId, MessageRef, QueueId, TopicName};
use flotilla_store::HalfMessage;

use crate::consume::receipt_handle::{Reader, from_hex, to_hex};

/// First byte of every handle of this form.
const VERSION: u8 = 1;
const CRC_BYTES: usize = 4;
/// Longest handle in bytes, before it becomes hex digits.
const HANDLE_BYTES_MAX: usize = 2 + 3 * 256 + 4 + 8 + 4 + 8 + CRC_BYTES;

/// What a handle is good for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldKind {
    /// To recall a delayed message that is due at this time, ms since the Unix epoch.
    Recall(u64),
    /// To end the transaction of a half message.
    Transaction,
}

/// A stored message that stands in no queue yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldHandle {
    /// What the handle is good for.
    pub kind: HeldKind,
    /// The broker group that holds the message.
    pub broker_group: String,
    /// The message's topic.
    pub topic: TopicName,
    /// The queue it will stand in.
    pub queue: QueueId,
    /// Where the message lies in the log.
    pub message: MessageRef,
    /// The message's id, as its producer gave it.
    pub message_id: MessageId,
}

/// A text that is no such handle of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HeldHandleError {
    /// Not what any broker gave out: changed on the way, or made up.
    #[error("handle is damaged: it is not one that a broker gave")]
    Damaged,
    /// Of a newer version.
    #[error("handle has version {version}, version {VERSION} is known")]
    Version {
        /// Its version.
        version: u8,
    },
}

impl HeldHandle {
    /// The transaction id of a half message; `message_id` is the one in its frame.
    pub fn of_half(broker_group: &str, half: &HalfMessage, message_id: &MessageId) -> HeldHandle {
        HeldHandle {
            kind: HeldKind::Transaction,
            broker_group: broker_group.to_owned(),
            topic: half.topic.clone(),
            queue: half.queue,
            message: half.slot.message,
            message_id: message_id.clone(),
        }
    }

    /// The text that clients are given: lower-case hex digits.
    pub fn to_text(&self) -> String {
        let (kind, due_ms) = match self.kind {
            HeldKind::Recall(due_ms) => (1, due_ms),
            HeldKind::Transaction => (2, 0),
        };
        let mut bytes = vec![VERSION, kind];
        for name in [self.broker_group.as_str(), self.topic.as_str(), self.message_id.as_str()] {
            bytes.push(u8::try_from(name.len()).expect("names and ids have at most 255 bytes"));
            bytes.extend_from_slice(name.as_bytes());
        }
        bytes.extend_from_slice(&self.queue.0.to_be_bytes());
        bytes.extend_from_slice(&self.message.index.to_be_bytes());
        bytes.extend_from_slice(&self.message.ordinal.to_be_bytes());
        bytes.extend_from_slice(&due_ms.to_be_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        to_hex(&bytes)
    }

    /// Reads a client's text, which must be of this broker group and topic; else what is wrong with it.
    pub fn of_topic(text: &str, broker_group: &str, topic: &TopicName) -> Result<HeldHandle, String> {
        let handle = HeldHandle::of_group(text, broker_group)?;
        if handle.topic != *topic {
            return Err(format!("handle is one of topic '{}', not of '{topic}'", handle.topic));
        }
        Ok(handle)
    }

    /// Reads a text, which must be of this broker group; else what is wrong with it.
    pub fn of_group(text: &str, broker_group: &str) -> Result<HeldHandle, String> {
        let handle = HeldHandle::from_text(text).map_err(|error| error.to_string())?;
        if handle.broker_group != broker_group {
            return Err(format!("handle is one of broker group '{}', this is '{broker_group}'", handle.broker_group));
        }
        Ok(handle)
    }

    /// Reads a client's text; anything but what [`HeldHandle::to_text`] gave is refused.
    pub fn from_text(text: &str) -> Result<HeldHandle, HeldHandleError> {
        if text.len() > 2 * HANDLE_BYTES_MAX {
            return Err(HeldHandleError::Damaged);
        }
        let bytes = from_hex(text).ok_or(HeldHandleError::Damaged)?;
        let content_bytes = bytes.len().checked_sub(CRC_BYTES).ok_or(HeldHandleError::Damaged)?;
        let (content, crc) = bytes.split_at(content_bytes);
        if crc != crc32c::crc32c(content).to_be_bytes() {
            return Err(HeldHandleError::Damaged);
        }
        match content.first() {
            Some(&VERSION) => HeldHandle::read(&content[1..]).ok_or(HeldHandleError::Damaged),
            Some(&version) => Err(HeldHandleError::Version { version }),
            None => Err(HeldHandleError::Damaged),
        }
    }

    fn read(content: &[u8]) -> Option<HeldHandle> {
        let mut rest = Reader(content);
        let kind = rest.take(1)?[0];
        let broker_group = rest.name()?.to_owned();
        let topic = TopicName::try_from(rest.name()?).ok()?;
        let message_id = MessageId::try_from(rest.name()?).ok()?;
        let queue = QueueId(rest.number()?);
        let message = MessageRef { index: rest.long()?, ordinal: rest.number()? };
        let kind = match (kind, rest.long()?) {
            (1, due_ms) => HeldKind::Recall(due_ms),
            (2, 0) => HeldKind::Transaction,
            _ => return None,
        };
        rest.0.is_empty().then_some(HeldHandle { kind, broker_group, topic, queue, message, message_id })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle(topic: &str, kind: HeldKind) -> HeldHandle {
        HeldHandle {
            kind,
            broker_group: "group-a".to_owned(),
            topic: TopicName::try_from(topic).expect("a topic name"),
            queue: QueueId(3),
            message: MessageRef { index: 7, ordinal: 2 },
            message_id: MessageId::try_from("id-1").expect("an id"),
        }
    }

    fn kinds() -> impl Strategy<Value = HeldKind> {
        prop_oneof![any::<u64>().prop_map(HeldKind::Recall), Just(HeldKind::Transaction)]
    }

    proptest! {
        #[test]
        fn every_handle_reads_back(topic in "[%a-zA-Z0-9_-]{1,60}", id in "[!-~]{1,60}", kind in kinds(), queue: u32, index: u64, ordinal: u32) {
            let handle = HeldHandle {
                queue: QueueId(queue), message: MessageRef { index, ordinal },
                message_id: MessageId::try_from(id).expect("an id"), ..handle(&topic, kind)
            };
            prop_assert_eq!(HeldHandle::from_text(&handle.to_text()), Ok(handle));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,400}") {
            let _ = HeldHandle::from_text(&text);
        }

        #[test]
        fn no_bytes_behind_a_right_checksum_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1..200)) {
            bytes[0] = VERSION;
            bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
            let _ = HeldHandle::from_text(&to_hex(&bytes));
        }

        #[test]
        fn any_changed_digit_is_noticed(at in 0usize..100, digit in 0u8..16, kind in kinds()) {
            let text = handle("orders", kind).to_text();
            let mut changed = text.clone().into_bytes();
            let at = at % changed.len();
            changed[at] = b"0123456789abcdef"[usize::from(digit)];
            let changed = String::from_utf8(changed).expect("hex");
            prop_assert_eq!(HeldHandle::from_text(&changed).is_ok(), changed == text);
        }
    }

    #[test]
    fn a_later_version_is_named() {
        let mut bytes = vec![9];
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        assert_eq!(HeldHandle::from_text(&to_hex(&bytes)), Err(HeldHandleError::Version { version: 9 }));
        assert_eq!(HeldHandle::from_text(""), Err(HeldHandleError::Damaged));
    }
}
