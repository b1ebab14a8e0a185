//! The receipt handle: an opaque text that says all a replica needs to find a delivery again, drawn in
//! `docs/formats/receipt-handle.md`.

use flotilla_message::{GroupName, MessageRef, QueueId, QueueOffset, TopicName};

/// First byte of a handle that does not say which broker group it is of.
const VERSION: u8 = 1;
/// First byte of one that does.
const VERSION_OF_GROUP: u8 = 2;
/// queue, offset, log index, ordinal, sequence.
const FIXED_BYTES: usize = 4 + 8 + 8 + 4 + 4;
const CRC_BYTES: usize = 4;
/// Longest handle in bytes, before it becomes hex digits.
const HANDLE_BYTES_MAX: usize = 1 + 3 * 256 + FIXED_BYTES + CRC_BYTES;

/// One delivery of one message to one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiptHandle {
    /// The broker group that delivered; `None` if its cluster had no other one then.
    pub broker_group: Option<String>,
    /// The group it was delivered to.
    pub group: GroupName,
    /// The topic it was taken from (the dead letter topic for a dead letter).
    pub topic: TopicName,
    /// The queue within the topic.
    pub queue: QueueId,
    /// The slot within the queue.
    pub offset: QueueOffset,
    /// Where the message lies in the log.
    pub message: MessageRef,
    /// Which delivery of the slot: an older one is void.
    pub sequence: u32,
}

/// A text that is no receipt handle of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum HandleError {
    /// Not pairs of hex digits.
    #[error("receipt handle is not made of pairs of hex digits")]
    NotHex,
    /// Longer or shorter than any handle.
    #[error("receipt handle has {bytes} bytes, which no handle has")]
    Length {
        /// Its bytes.
        bytes: usize,
    },
    /// Of a newer version.
    #[error("receipt handle has version {version}, versions {VERSION} and {VERSION_OF_GROUP} are known")]
    Version {
        /// Its version.
        version: u8,
    },
    /// Its checksum is wrong: changed on the way, or made up.
    #[error("receipt handle has a wrong checksum")]
    Checksum,
    /// The checksum is right but the content is none of ours.
    #[error("receipt handle names no valid group or topic")]
    Content,
}

impl ReceiptHandle {
    /// The text that clients are given: lower-case hex digits.
    pub fn to_text(&self) -> String {
        let (group, topic) = (self.group.as_str().as_bytes(), self.topic.as_str().as_bytes());
        let broker_group = self.broker_group.as_deref().map(str::as_bytes);
        let broker_group_bytes = broker_group.map_or(0, |name| 1 + name.len());
        let mut bytes =
            Vec::with_capacity(3 + broker_group_bytes + group.len() + topic.len() + FIXED_BYTES + CRC_BYTES);
        bytes.push(if broker_group.is_some() { VERSION_OF_GROUP } else { VERSION });
        for name in broker_group.into_iter().chain([group, topic]) {
            bytes.push(u8::try_from(name.len()).expect("names have at most 255 bytes"));
            bytes.extend_from_slice(name);
        }
        bytes.extend_from_slice(&self.queue.0.to_be_bytes());
        bytes.extend_from_slice(&self.offset.0.to_be_bytes());
        bytes.extend_from_slice(&self.message.index.to_be_bytes());
        bytes.extend_from_slice(&self.message.ordinal.to_be_bytes());
        bytes.extend_from_slice(&self.sequence.to_be_bytes());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
        to_hex(&bytes)
    }

    /// Reads a client's text; anything but what [`ReceiptHandle::to_text`] gave is refused.
    pub fn from_text(text: &str) -> Result<ReceiptHandle, HandleError> {
        if text.len() > 2 * HANDLE_BYTES_MAX {
            return Err(HandleError::Length { bytes: text.len() / 2 });
        }
        let bytes = from_hex(text).ok_or(HandleError::NotHex)?;
        let length = HandleError::Length { bytes: bytes.len() };
        if bytes.len() < 3 + FIXED_BYTES + CRC_BYTES {
            return Err(length);
        }
        if !matches!(bytes[0], VERSION | VERSION_OF_GROUP) {
            return Err(HandleError::Version { version: bytes[0] });
        }
        let (content, crc) = bytes.split_at(bytes.len() - CRC_BYTES);
        if crc != crc32c::crc32c(content).to_be_bytes() {
            return Err(HandleError::Checksum);
        }
        let mut rest = Reader(&content[1..]);
        let broker_group = match bytes[0] {
            VERSION_OF_GROUP => Some(rest.name().ok_or(length)?.to_owned()),
            _ => None,
        };
        let group = rest.name().ok_or(length)?;
        let topic = rest.name().ok_or(length)?;
        let handle = ReceiptHandle {
            broker_group,
            group: GroupName::try_from(group).map_err(|_| HandleError::Content)?,
            topic: TopicName::try_from(topic).map_err(|_| HandleError::Content)?,
            queue: QueueId(rest.number().ok_or(length)?),
            offset: QueueOffset(rest.long().ok_or(length)?),
            message: MessageRef { index: rest.long().ok_or(length)?, ordinal: rest.number().ok_or(length)? },
            sequence: rest.number().ok_or(length)?,
        };
        if rest.0.is_empty() { Ok(handle) } else { Err(length) }
    }
}

/// What is left of the bytes.
pub(crate) struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(taken)
    }

    pub fn name(&mut self) -> Option<&'a str> {
        let length = self.take(1)?[0];
        std::str::from_utf8(self.take(usize::from(length))?).ok()
    }

    pub fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_be_bytes)
    }

    pub fn long(&mut self) -> Option<u64> {
        self.take(8)?.try_into().ok().map(u64::from_be_bytes)
    }
}

pub(crate) fn to_hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
    text
}

pub(crate) fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    if !text.len().is_multiple_of(2) {
        return None;
    }
    text.as_bytes().chunks_exact(2).map(|pair| Some(digit(pair[0])? << 4 | digit(pair[1])?)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn handle(group: &str, topic: &str, offset: u64) -> ReceiptHandle {
        ReceiptHandle {
            broker_group: None,
            group: GroupName::try_from(group).expect("a group name"),
            topic: TopicName::try_from(topic).expect("a topic name"),
            queue: QueueId(3),
            offset: QueueOffset(offset),
            message: MessageRef { index: offset + 7, ordinal: 2 },
            sequence: 9,
        }
    }

    proptest! {
        #[test]
        fn every_handle_reads_back(group in "[a-zA-Z0-9_-]{1,60}", topic in "[%a-zA-Z0-9_-]{1,60}",
            broker_group in proptest::option::of("[a-z-]{1,60}"), queue: u32, offset: u64, index: u64, ordinal: u32, sequence: u32) {
            let handle = ReceiptHandle {
                broker_group,
                queue: QueueId(queue), offset: QueueOffset(offset), message: MessageRef { index, ordinal }, sequence,
                ..handle(&group, &topic, 0)
            };
            prop_assert_eq!(ReceiptHandle::from_text(&handle.to_text()), Ok(handle));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,400}") {
            let _ = ReceiptHandle::from_text(&text);
        }

        #[test]
        fn no_bytes_behind_a_right_checksum_make_it_panic(mut bytes in proptest::collection::vec(any::<u8>(), 1..200), version in 1u8..=2) {
            bytes[0] = version;
            bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_be_bytes());
            let _ = ReceiptHandle::from_text(&to_hex(&bytes));
        }

        #[test]
        fn any_changed_digit_is_noticed(at in 0usize..100, digit in 0u8..16) {
            let text = handle("g", "orders", 5).to_text();
            let mut changed = text.clone().into_bytes();
            let at = at % changed.len();
            changed[at] = b"0123456789abcdef"[usize::from(digit)];
            let changed = String::from_utf8(changed).expect("hex");
            prop_assert_eq!(ReceiptHandle::from_text(&changed).is_ok(), changed == text);
        }
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        assert_eq!(ReceiptHandle::from_text("zz"), Err(HandleError::NotHex));
        assert_eq!(ReceiptHandle::from_text(""), Err(HandleError::Length { bytes: 0 }));
        let text = handle("g", "t", 1).to_text();
        assert_eq!(ReceiptHandle::from_text(&text.replacen("01", "03", 1)), Err(HandleError::Version { version: 3 }));
    }
}
