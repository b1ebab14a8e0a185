//! A stored message that stands in no queue yet: what is kept of it until it does.

use flotilla_message::{Hash128, MessageRef};

use crate::Slot;
use crate::entry_view::FramePlace;

/// Where its frame lies, and the queue that it will stand in. The message itself is referred to,
/// never copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Held {
    /// Its topic, by number.
    pub topic_uid: u64,
    pub queue: u32,
    /// As in [`Slot`].
    pub position: u32,
    pub length: u32,
    pub tag_hash: u32,
    /// Stands for the message in hashes.
    pub checksum: u32,
}

impl Held {
    pub fn of(place: &FramePlace, topic_uid: u64, queue: u32) -> Held {
        Held {
            topic_uid,
            queue,
            position: place.position,
            length: place.head.frame_bytes(),
            tag_hash: place.head.tag_hash(),
            checksum: place.head.checksum(),
        }
    }

    /// The slot that it becomes.
    pub fn slot(&self, message: MessageRef, stored_at_ms: u64) -> Slot {
        Slot {
            message,
            entry: message.index,
            position: self.position,
            length: self.length,
            tag_hash: self.tag_hash,
            stored_at_ms,
            is_reference: false,
        }
    }

    /// The slot that it becomes after it stood outside of its queue.
    pub fn late_slot(&self, message: MessageRef, stored_at_ms: u64) -> Slot {
        Slot { is_reference: true, ..self.slot(message, stored_at_ms) }
    }

    pub fn write_digest(&self, hash: &mut Hash128) {
        hash.write_u64(self.topic_uid);
        hash.write_u64(u64::from(self.queue) << 32 | u64::from(self.checksum));
    }
}
