//! Reading a stored frame in place, whole or only its head.

use std::collections::BTreeMap;
use std::ops::Range;

use bytes::Bytes;

use crate::frame::{head_crc, layout};
use crate::limits::{BODY_BYTES_MAX, FRAME_HEAD_BYTES_MAX};
use crate::{BodyEncoding, Message, MessageId, MessageType, StoredFrame, TopicName, tag_hash};

/// Why bytes are not a stored frame.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Fewer bytes than the frame says, or than any frame has.
    #[error("frame is cut off: {bytes} bytes are there, {needed} are needed")]
    Truncated {
        /// What is there, bytes.
        bytes: usize,
        /// What is needed, bytes.
        needed: usize,
    },
    /// More bytes than the frame says.
    #[error("frame has {bytes} bytes, but says it has {said}")]
    TrailingBytes {
        /// What is there, bytes.
        bytes: usize,
        /// What the frame says, bytes.
        said: usize,
    },
    /// Not a frame at all.
    #[error("frame does not begin with its magic")]
    BadMagic,
    /// A frame of another release.
    #[error("frame has version {version}; only version {supported} is known", supported = layout::VERSION)]
    UnknownVersion {
        /// Its version.
        version: u8,
    },
    /// The head does not fit its checksum.
    #[error("frame head has checksum {found:08x}, its bytes give {computed:08x}")]
    HeadChecksum {
        /// What the frame says.
        found: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// The body does not fit its checksum.
    #[error("frame body has checksum {found:08x}, its bytes give {computed:08x}")]
    BodyChecksum {
        /// What the frame says.
        found: u32,
        /// What the bytes give.
        computed: u32,
    },
    /// A field that no encoder writes.
    #[error("frame field {field} is illegal")]
    IllegalField {
        /// Its name.
        field: &'static str,
    },
}

/// The head of a frame: all there is to know without touching the body.
///
/// Parsing it checks magic, version, lengths and the head's checksum. It borrows nothing, so it
/// can be kept beside the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    frame_bytes: u32,
    head_bytes: u32,
    body_crc: u32,
    head_crc: u32,
    tag_hash: u32,
    message_type: MessageType,
    delivery_at_ms: Option<u64>,
    id_bytes: u16,
    topic_bytes: u16,
}

impl FrameHead {
    /// Reads the head of the frame that `bytes` begins with; more bytes may follow the frame.
    ///
    /// The body is neither read nor checked.
    ///
    /// # Errors
    /// What is wrong with the head; [`FrameError::Truncated`] if `bytes` ends before the frame does.
    pub fn parse(bytes: &[u8]) -> Result<FrameHead, FrameError> {
        let Some((fixed, _)) = bytes.split_first_chunk::<{ layout::FIXED_BYTES }>() else {
            return Err(FrameError::Truncated { bytes: bytes.len(), needed: layout::FIXED_BYTES });
        };
        if fixed[..4] != layout::MAGIC {
            return Err(FrameError::BadMagic);
        }
        if fixed[layout::VERSION_AT] != layout::VERSION {
            return Err(FrameError::UnknownVersion { version: fixed[layout::VERSION_AT] });
        }
        let head = FrameHead {
            frame_bytes: u32_at(fixed, layout::FRAME_BYTES_AT),
            head_bytes: u32_at(fixed, layout::HEAD_BYTES_AT),
            body_crc: u32_at(fixed, layout::BODY_CRC_AT),
            head_crc: u32_at(fixed, layout::HEAD_CRC_AT),
            tag_hash: u32_at(fixed, layout::TAG_HASH_AT),
            message_type: MessageType::from_code(fixed[layout::TYPE_AT])
                .ok_or(FrameError::IllegalField { field: "message type" })?,
            delivery_at_ms: (fixed[layout::FLAGS_AT] & layout::FLAG_DELIVERY != 0)
                .then(|| u64_at(fixed, layout::DELIVERY_AT)),
            id_bytes: u16_at(fixed, layout::ID_BYTES_AT),
            topic_bytes: u16_at(fixed, layout::TOPIC_BYTES_AT),
        };
        head.check(bytes)?;
        Ok(head)
    }

    fn check(&self, bytes: &[u8]) -> Result<(), FrameError> {
        let (head_bytes, frame_bytes) = (self.head_bytes as usize, self.frame_bytes as usize);
        let names_end = layout::FIXED_BYTES + self.id_bytes as usize + self.topic_bytes as usize;
        if head_bytes > FRAME_HEAD_BYTES_MAX || names_end > head_bytes {
            return Err(FrameError::IllegalField { field: "head bytes" });
        }
        if frame_bytes <= head_bytes || frame_bytes - head_bytes > BODY_BYTES_MAX {
            return Err(FrameError::IllegalField { field: "frame bytes" });
        }
        if self.id_bytes == 0 {
            return Err(FrameError::IllegalField { field: "id bytes" });
        }
        if bytes.len() < frame_bytes {
            return Err(FrameError::Truncated { bytes: bytes.len(), needed: frame_bytes });
        }
        let computed = head_crc(&bytes[..head_bytes]);
        if computed != self.head_crc {
            return Err(FrameError::HeadChecksum { found: self.head_crc, computed });
        }
        Ok(())
    }

    /// Length of the whole frame, bytes.
    pub fn frame_bytes(&self) -> u32 {
        self.frame_bytes
    }

    /// Hash of the tag, 0 when there is none; see [`tag_hash`].
    pub fn tag_hash(&self) -> u32 {
        self.tag_hash
    }

    /// Checksum over the head, which holds the body's checksum: it stands for the whole frame.
    pub fn checksum(&self) -> u32 {
        self.head_crc
    }

    /// What kind of message it is.
    pub fn message_type(&self) -> MessageType {
        self.message_type
    }

    /// Not to be seen before this time, milliseconds since the Unix epoch.
    pub fn delivery_at_ms(&self) -> Option<u64> {
        self.delivery_at_ms
    }

    /// The message id's bytes, given the frame this head was parsed from.
    pub fn id_in<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let end = layout::FIXED_BYTES + self.id_bytes as usize;
        frame.get(layout::FIXED_BYTES..end).unwrap_or_default()
    }

    /// The topic's bytes, given the frame this head was parsed from.
    pub fn topic_in<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        let start = layout::FIXED_BYTES + self.id_bytes as usize;
        frame.get(start..start + self.topic_bytes as usize).unwrap_or_default()
    }
}

/// A frame whose every byte was checked, read in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameView {
    bytes: Bytes,
    head: FrameHead,
    topic: TopicName,
    id: MessageId,
    body_encoding: BodyEncoding,
    tag: Option<Range<usize>>,
    group: Option<Range<usize>>,
    born_host: Range<usize>,
    trace: Option<Range<usize>>,
    keys: Range<usize>,
    properties: Range<usize>,
}

impl FrameView {
    /// Reads exactly one frame and checks all of it: checksums of head and body, every text, and
    /// that names are legal.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    pub fn parse(bytes: Bytes) -> Result<FrameView, FrameError> {
        let head = FrameHead::parse(&bytes)?;
        let frame_bytes = head.frame_bytes as usize;
        if bytes.len() != frame_bytes {
            return Err(FrameError::TrailingBytes { bytes: bytes.len(), said: frame_bytes });
        }
        let computed = crc32c::crc32c(&bytes[head.head_bytes as usize..]);
        if computed != head.body_crc {
            return Err(FrameError::BodyChecksum { found: head.body_crc, computed });
        }
        FrameView::laid_out(bytes, head)
    }

    /// Reads only the head of the frame that `bytes` begins with; the body is neither read nor
    /// checked. See [`FrameHead::parse`].
    ///
    /// # Errors
    /// What is wrong with the head.
    pub fn parse_header(bytes: &[u8]) -> Result<FrameHead, FrameError> {
        FrameHead::parse(bytes)
    }

    pub(crate) fn trusted(bytes: Bytes, head: FrameHead) -> FrameView {
        FrameView::laid_out(bytes, head).unwrap_or_else(|_| unreachable!("a stored frame was checked when it was made"))
    }

    fn laid_out(bytes: Bytes, head: FrameHead) -> Result<FrameView, FrameError> {
        let flags = bytes[layout::FLAGS_AT];
        if flags & !layout::FLAGS_KNOWN != 0 {
            return Err(FrameError::IllegalField { field: "flags" });
        }
        let body_encoding = BodyEncoding::from_code(bytes[layout::ENCODING_AT])
            .ok_or(FrameError::IllegalField { field: "body encoding" })?;
        if flags & layout::FLAG_DELIVERY == 0 && u64_at(&bytes, layout::DELIVERY_AT) != 0 {
            return Err(FrameError::IllegalField { field: "delivery time" });
        }
        let mut cursor = Cursor { head: &bytes[..head.head_bytes as usize], at: layout::FIXED_BYTES };
        let id = cursor.text(layout::ID_BYTES_AT, "message id")?;
        let topic = cursor.text(layout::TOPIC_BYTES_AT, "topic")?;
        let id = MessageId::try_from(&*text_of(cursor.head, &id))
            .map_err(|_| FrameError::IllegalField { field: "message id" })?;
        let topic = TopicName::try_from(&*text_of(cursor.head, &topic))
            .map_err(|_| FrameError::IllegalField { field: "topic" })?;
        let tag = cursor.optional(layout::TAG_BYTES_AT, flags & layout::FLAG_TAG, "tag")?;
        let said = tag.as_ref().map_or(0, |tag| tag_hash(&text_of(cursor.head, tag)));
        if said != head.tag_hash || tag.as_ref().is_some_and(Range::is_empty) {
            return Err(FrameError::IllegalField { field: "tag" });
        }
        let group = cursor.optional(layout::GROUP_BYTES_AT, flags & layout::FLAG_GROUP, "group")?;
        let born_host = cursor.text(layout::BORN_HOST_BYTES_AT, "born host")?;
        let trace = cursor.optional(layout::TRACE_BYTES_AT, flags & layout::FLAG_TRACE, "trace")?;
        let keys = cursor.keys(u16_at(&bytes, layout::KEY_COUNT_AT))?;
        if u32_at(&bytes, layout::PROPERTIES_AT) as usize != cursor.at {
            return Err(FrameError::IllegalField { field: "properties" });
        }
        let properties = cursor.properties(u16_at(&bytes, layout::PROPERTY_COUNT_AT))?;
        if cursor.at != cursor.head.len() {
            return Err(FrameError::IllegalField { field: "head bytes" });
        }
        Ok(FrameView { head, topic, id, body_encoding, tag, group, born_host, trace, keys, properties, bytes })
    }

    /// The topic the message was sent to.
    pub fn topic(&self) -> &str {
        self.topic.as_str()
    }

    /// The topic as a checked name.
    pub fn topic_name(&self) -> &TopicName {
        &self.topic
    }

    /// The producer's id of the message.
    pub fn id(&self) -> &str {
        self.id.as_str()
    }

    /// The id as a checked one.
    pub fn message_id(&self) -> &MessageId {
        &self.id
    }

    /// The tag, if any.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_ref().map(|range| self.text(range))
    }

    /// Hash of the tag, 0 when there is none.
    pub fn tag_hash(&self) -> u32 {
        self.head.tag_hash
    }

    /// The keys, in the producer's order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        let mut at = self.keys.start;
        std::iter::from_fn(move || {
            (at < self.keys.end).then(|| {
                let end = at + 2 + u16_at(&self.bytes, at) as usize;
                let key = self.text(&(at + 2..end));
                at = end;
                key
            })
        })
    }

    /// The message group, if any.
    pub fn group(&self) -> Option<&str> {
        self.group.as_ref().map(|range| self.text(range))
    }

    /// The producer's properties, sorted by key.
    pub fn properties(&self) -> impl Iterator<Item = (&str, &str)> {
        let mut at = self.properties.start;
        std::iter::from_fn(move || {
            (at < self.properties.end).then(|| {
                let key_end = at + 4 + u16_at(&self.bytes, at) as usize;
                let value_end = key_end + u16_at(&self.bytes, at + 2) as usize;
                let pair = (self.text(&(at + 4..key_end)), self.text(&(key_end..value_end)));
                at = value_end;
                pair
            })
        })
    }

    /// The body, sharing the frame's memory.
    pub fn body(&self) -> Bytes {
        self.bytes.slice(self.head.head_bytes as usize..)
    }

    /// How the producer packed the body.
    pub fn body_encoding(&self) -> BodyEncoding {
        self.body_encoding
    }

    /// What kind of message it is.
    pub fn message_type(&self) -> MessageType {
        self.head.message_type
    }

    /// When it was made, by the producer's clock, milliseconds since the Unix epoch.
    pub fn born_at_ms(&self) -> u64 {
        u64_at(&self.bytes, layout::BORN_AT)
    }

    /// Where it was made.
    pub fn born_host(&self) -> &str {
        self.text(&self.born_host)
    }

    /// The producer's trace context, if any.
    pub fn trace_context(&self) -> Option<&str> {
        self.trace.as_ref().map(|range| self.text(range))
    }

    /// Not to be seen before this time, milliseconds since the Unix epoch.
    pub fn delivery_at_ms(&self) -> Option<u64> {
        self.head.delivery_at_ms
    }

    /// The head alone.
    pub fn head(&self) -> &FrameHead {
        &self.head
    }

    /// The frame's bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The frame itself, without a copy.
    pub fn into_frame(self) -> StoredFrame {
        StoredFrame::trusted(self.bytes)
    }

    /// The message, its texts copied, its body shared.
    pub fn to_message(&self) -> Message {
        let owned = |(key, value): (&str, &str)| (key.to_owned(), value.to_owned());
        Message {
            topic: self.topic.clone(),
            message_type: self.message_type(),
            id: self.id.clone(),
            tag: self.tag().map(str::to_owned),
            keys: self.keys().map(str::to_owned).collect(),
            group: self.group().map(str::to_owned),
            properties: self.properties().map(owned).collect::<BTreeMap<_, _>>(),
            body: self.body(),
            body_encoding: self.body_encoding,
            born_at_ms: self.born_at_ms(),
            born_host: self.born_host().to_owned(),
            trace_context: self.trace_context().map(str::to_owned),
            delivery_at_ms: self.delivery_at_ms(),
        }
    }

    fn text(&self, range: &Range<usize>) -> &str {
        std::str::from_utf8(&self.bytes[range.clone()]).expect("texts were checked when the view was made")
    }
}

/// Walks the texts of a head and checks each before it is handed out.
struct Cursor<'a> {
    head: &'a [u8],
    at: usize,
}

impl Cursor<'_> {
    fn take(&mut self, bytes: usize, field: &'static str) -> Result<Range<usize>, FrameError> {
        let range = self.at..self.at + bytes;
        let part = self.head.get(range.clone()).ok_or(FrameError::IllegalField { field })?;
        std::str::from_utf8(part).map_err(|_| FrameError::IllegalField { field })?;
        self.at = range.end;
        Ok(range)
    }

    fn text(&mut self, length_at: usize, field: &'static str) -> Result<Range<usize>, FrameError> {
        self.take(u16_at(self.head, length_at) as usize, field)
    }

    fn optional(
        &mut self,
        length_at: usize,
        flag: u8,
        field: &'static str,
    ) -> Result<Option<Range<usize>>, FrameError> {
        let range = self.text(length_at, field)?;
        match flag {
            0 if !range.is_empty() => Err(FrameError::IllegalField { field }),
            0 => Ok(None),
            _ => Ok(Some(range)),
        }
    }

    fn length(&mut self, field: &'static str) -> Result<usize, FrameError> {
        let part = self.head.get(self.at..self.at + 2).ok_or(FrameError::IllegalField { field })?;
        self.at += 2;
        Ok(u16_at(part, 0) as usize)
    }

    fn keys(&mut self, count: u16) -> Result<Range<usize>, FrameError> {
        let start = self.at;
        for _ in 0..count {
            let bytes = self.length("keys")?;
            self.take(bytes, "keys")?;
        }
        Ok(start..self.at)
    }

    fn properties(&mut self, count: u16) -> Result<Range<usize>, FrameError> {
        const FIELD: &str = "properties";
        let start = self.at;
        let mut last: Option<Range<usize>> = None;
        for _ in 0..count {
            let key_bytes = self.length(FIELD)?;
            let value_bytes = self.length(FIELD)?;
            let key = self.take(key_bytes, FIELD)?;
            self.take(value_bytes, FIELD)?;
            // Sorted and without doubles, so that there is one encoding of a message.
            if last.is_some_and(|last| self.head[last] >= self.head[key.clone()]) {
                return Err(FrameError::IllegalField { field: FIELD });
            }
            last = Some(key);
        }
        Ok(start..self.at)
    }
}

fn text_of<'a>(head: &'a [u8], range: &Range<usize>) -> std::borrow::Cow<'a, str> {
    String::from_utf8_lossy(&head[range.clone()])
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}
