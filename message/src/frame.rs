//! The stored frame: one message as the bytes that are replicated, kept and served.

use bytes::{BufMut, Bytes, BytesMut};

use crate::{FrameError, FrameHead, FrameView, Message, tag_hash};

/// Where each fixed field of the head stands; see `docs/formats/stored-message.md`.
pub(crate) mod layout {
    pub const MAGIC: [u8; 4] = *b"FLMF";
    pub const VERSION: u8 = 1;

    pub const VERSION_AT: usize = 4;
    pub const TYPE_AT: usize = 5;
    pub const ENCODING_AT: usize = 6;
    pub const FLAGS_AT: usize = 7;
    pub const FRAME_BYTES_AT: usize = 8;
    pub const HEAD_BYTES_AT: usize = 12;
    pub const BODY_CRC_AT: usize = 16;
    pub const HEAD_CRC_AT: usize = 20;
    pub const TAG_HASH_AT: usize = 24;
    pub const ID_BYTES_AT: usize = 28;
    pub const TOPIC_BYTES_AT: usize = 30;
    pub const BORN_AT: usize = 32;
    pub const DELIVERY_AT: usize = 40;
    pub const TAG_BYTES_AT: usize = 48;
    pub const GROUP_BYTES_AT: usize = 50;
    pub const BORN_HOST_BYTES_AT: usize = 52;
    pub const TRACE_BYTES_AT: usize = 54;
    pub const KEY_COUNT_AT: usize = 56;
    pub const PROPERTY_COUNT_AT: usize = 58;
    pub const PROPERTIES_AT: usize = 60;
    pub const FIXED_BYTES: usize = 64;

    pub const FLAG_TAG: u8 = 1;
    pub const FLAG_GROUP: u8 = 2;
    pub const FLAG_TRACE: u8 = 4;
    pub const FLAG_DELIVERY: u8 = 8;
    pub const FLAGS_KNOWN: u8 = FLAG_TAG | FLAG_GROUP | FLAG_TRACE | FLAG_DELIVERY;
}

/// An encoded message. Cheap to clone; its bytes never change.
///
/// It was encoded here, or its head and body were checked by [`StoredFrame::from_bytes`].
#[derive(Clone, PartialEq, Eq)]
pub struct StoredFrame(Bytes);

impl StoredFrame {
    /// Encodes a message that kept every rule (each length fits its field then).
    pub(crate) fn of(message: &Message) -> StoredFrame {
        let tag = message.tag();
        let mut out = BytesMut::with_capacity(estimated_bytes(message));
        out.put_bytes(0, layout::FIXED_BYTES);

        let mut flags = 0;
        let id_bytes = put_text(&mut out, message.id.as_str());
        let topic_bytes = put_text(&mut out, message.topic.as_str());
        let tag_bytes = put_optional(&mut out, tag, layout::FLAG_TAG, &mut flags);
        let group = message.group.as_deref();
        let group_bytes = put_optional(&mut out, group, layout::FLAG_GROUP, &mut flags);
        let born_host_bytes = put_text(&mut out, &message.born_host);
        let trace = message.trace_context.as_deref();
        let trace_bytes = put_optional(&mut out, trace, layout::FLAG_TRACE, &mut flags);
        for key in &message.keys {
            out.put_u16_le(narrow(key.len()));
            out.put_slice(key.as_bytes());
        }
        let properties_at = out.len();
        for (key, value) in &message.properties {
            out.put_u16_le(narrow(key.len()));
            out.put_u16_le(narrow(value.len()));
            out.put_slice(key.as_bytes());
            out.put_slice(value.as_bytes());
        }
        let head_bytes = out.len();
        out.put_slice(&message.body);
        if message.delivery_at_ms.is_some() {
            flags |= layout::FLAG_DELIVERY;
        }

        let frame_bytes = out.len();
        set(&mut out, 0, &layout::MAGIC);
        set(&mut out, layout::VERSION_AT, &[layout::VERSION]);
        set(&mut out, layout::TYPE_AT, &[message.message_type.code()]);
        set(&mut out, layout::ENCODING_AT, &[message.body_encoding.code()]);
        set(&mut out, layout::FLAGS_AT, &[flags]);
        set_u32(&mut out, layout::FRAME_BYTES_AT, frame_bytes as u32);
        set_u32(&mut out, layout::HEAD_BYTES_AT, head_bytes as u32);
        set_u32(&mut out, layout::BODY_CRC_AT, crc32c::crc32c(&message.body));
        set_u32(&mut out, layout::TAG_HASH_AT, tag.map_or(0, tag_hash));
        set_u16(&mut out, layout::ID_BYTES_AT, id_bytes);
        set_u16(&mut out, layout::TOPIC_BYTES_AT, topic_bytes);
        set(&mut out, layout::BORN_AT, &message.born_at_ms.to_le_bytes());
        let delivery_at_ms = message.delivery_at_ms.unwrap_or(0);
        set(&mut out, layout::DELIVERY_AT, &delivery_at_ms.to_le_bytes());
        set_u16(&mut out, layout::TAG_BYTES_AT, tag_bytes);
        set_u16(&mut out, layout::GROUP_BYTES_AT, group_bytes);
        set_u16(&mut out, layout::BORN_HOST_BYTES_AT, born_host_bytes);
        set_u16(&mut out, layout::TRACE_BYTES_AT, trace_bytes);
        set_u16(&mut out, layout::KEY_COUNT_AT, narrow(message.keys.len()));
        set_u16(&mut out, layout::PROPERTY_COUNT_AT, narrow(message.properties.len()));
        set_u32(&mut out, layout::PROPERTIES_AT, properties_at as u32);
        let head_crc = head_crc(&out[..head_bytes]);
        set_u32(&mut out, layout::HEAD_CRC_AT, head_crc);
        StoredFrame(out.freeze())
    }

    /// Takes bytes that came from elsewhere, after checking all of them.
    ///
    /// # Errors
    /// What is wrong with them.
    pub fn from_bytes(bytes: Bytes) -> Result<StoredFrame, FrameError> {
        Ok(FrameView::parse(bytes)?.into_frame())
    }

    pub(crate) fn trusted(bytes: Bytes) -> StoredFrame {
        StoredFrame(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &Bytes {
        &self.0
    }

    /// The bytes, without a copy.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// How many bytes there are; never 0.
    pub fn byte_len(&self) -> usize {
        self.0.len()
    }

    /// Reads the frame in place.
    pub fn view(&self) -> FrameView {
        match FrameHead::parse(&self.0) {
            Ok(head) => FrameView::trusted(self.0.clone(), head),
            Err(_) => unreachable!("a stored frame was checked when it was made"),
        }
    }
}

impl std::fmt::Debug for StoredFrame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "StoredFrame({} bytes)", self.0.len())
    }
}

/// CRC-32C of a head without its own field.
pub(crate) fn head_crc(head: &[u8]) -> u32 {
    let crc = crc32c::crc32c(&head[..layout::HEAD_CRC_AT]);
    crc32c::crc32c_append(crc, &head[layout::HEAD_CRC_AT + 4..])
}

fn estimated_bytes(message: &Message) -> usize {
    let keys: usize = message.keys.iter().map(|k| k.len() + 2).sum();
    let properties: usize = message.properties.iter().map(|(k, v)| k.len() + v.len() + 4).sum();
    layout::FIXED_BYTES
        + message.id.as_str().len()
        + message.topic.as_str().len()
        + message.tag.as_ref().map_or(0, String::len)
        + message.group.as_ref().map_or(0, String::len)
        + message.trace_context.as_ref().map_or(0, String::len)
        + message.born_host.len()
        + keys
        + properties
        + message.body.len()
}

fn narrow(value: usize) -> u16 {
    u16::try_from(value).expect("the limits of a valid message fit 16 bits")
}

fn put_text(out: &mut BytesMut, text: &str) -> u16 {
    out.put_slice(text.as_bytes());
    narrow(text.len())
}

fn put_optional(out: &mut BytesMut, text: Option<&str>, flag: u8, flags: &mut u8) -> u16 {
    match text {
        None => 0,
        Some(text) => {
            *flags |= flag;
            put_text(out, text)
        }
    }
}

fn set(out: &mut BytesMut, at: usize, bytes: &[u8]) {
    out[at..at + bytes.len()].copy_from_slice(bytes);
}

fn set_u16(out: &mut BytesMut, at: usize, value: u16) {
    set(out, at, &value.to_le_bytes());
}

fn set_u32(out: &mut BytesMut, at: usize, value: u32) {
    set(out, at, &value.to_le_bytes());
}
