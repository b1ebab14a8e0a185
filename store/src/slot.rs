//! A slot of a queue: which message stands there, and where its frame is found in its entry.

use bytes::Bytes;
use flotilla_message::{FrameError, FrameView, MessageRef};

/// One place in a queue. The message is referred to, never copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The message's identity: the entry that holds it, and its place there.
    pub message: MessageRef,
    /// Where its frame begins in that entry's payload, bytes.
    pub position: u32,
    /// Length of its frame, bytes.
    pub length: u32,
    /// Hash of its tag, 0 when it has none; see [`flotilla_message::tag_hash`].
    pub tag_hash: u32,
    /// Log time at which this slot was made, milliseconds since the Unix epoch. Never falls
    /// within a queue.
    pub stored_at_ms: u64,
}

/// Why the frame of a slot cannot be read from a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameInError {
    /// The payload is shorter than the slot says: it is not that of `slot.message.index`.
    #[error("the payload has {bytes} bytes, the slot of message {message} ends at byte {end}")]
    OutOfBounds {
        /// Length of the payload, bytes.
        bytes: usize,
        /// The message looked for.
        message: MessageRef,
        /// Where its frame would end.
        end: u64,
    },
    /// The frame is damaged.
    #[error("message {message} is damaged: {error}")]
    Damaged {
        /// The message looked for.
        message: MessageRef,
        /// What is wrong.
        error: FrameError,
    },
}

/// The frame of `slot` in `payload`, the payload of log entry `slot.message.index`; checks every
/// byte of the frame and copies none.
///
/// # Errors
/// If the payload is too short, or the frame's checksums do not fit.
pub fn frame_in(payload: &Bytes, slot: &Slot) -> Result<FrameView, FrameInError> {
    let start = slot.position as usize;
    let end = u64::from(slot.position) + u64::from(slot.length);
    if end > payload.len() as u64 {
        return Err(FrameInError::OutOfBounds { bytes: payload.len(), message: slot.message, end });
    }
    FrameView::parse(payload.slice(start..end as usize))
        .map_err(|error| FrameInError::Damaged { message: slot.message, error })
}
