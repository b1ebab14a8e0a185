//! A slot of a queue: which message stands there, and where its frame is found in its entry.

use bytes::Bytes;
use flotilla_message::{FrameError, FrameView, MessageRef};

use crate::references::References;

/// One place in a queue. The message is referred to, never copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The message's identity: the entry that holds it, and its place there.
    pub message: MessageRef,
    /// Log index of the entry whose payload holds its frame: `message.index`, until the message is
    /// carried because that entry is to go. To be asked for anew, not kept: see
    /// [`crate::Command::Carry`].
    pub entry: u64,
    /// Where its frame begins in that entry's payload, bytes.
    pub position: u32,
    /// Length of its frame, bytes.
    pub length: u32,
    /// Hash of its tag, 0 when it has none; see [`flotilla_message::tag_hash`].
    pub tag_hash: u32,
    /// Log time at which this slot was made, milliseconds since the Unix epoch. Never falls
    /// within a queue.
    pub stored_at_ms: u64,
    /// Whether an earlier entry than the one that made the slot wrote the message: it was delayed,
    /// half, or is a dead letter.
    pub is_reference: bool,
}

impl Slot {
    /// As it is to be read now.
    pub(crate) fn resolved(self, references: &References) -> Slot {
        match references.place(self.message) {
            Some(place) => Slot { entry: place.index, position: place.position, length: place.length, ..self },
            None => self,
        }
    }
}

/// Why the frame of a slot cannot be read from a payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FrameInError {
    /// The payload is shorter than the slot says: it is not that of `slot.entry`.
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

/// The frame of `slot` in `payload`, the payload of log entry `slot.entry`; checks every
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
