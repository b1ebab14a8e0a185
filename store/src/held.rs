//! A stored message that stands in no queue yet: what is kept of it until it does.

use flotilla_message::{Hash128, MessageRef};

use crate::Slot;
use crate::entry_view::FramePlace;
use crate::packed::{Numbers, put, put_step, put_word};

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
    /// What the first one of a chunk is told against.
    pub const ORIGIN: Held = Held { topic_uid: 0, queue: 0, position: 0, length: 0, tag_hash: 0, checksum: 0 };

    /// Appends it as the difference to another one; see [`crate::packed::PackedRow`].
    pub fn write(&self, before: &Held, out: &mut Vec<u8>) {
        put_step(self.topic_uid, before.topic_uid, out);
        put(u64::from(self.queue), out);
        put_step(u64::from(self.position), u64::from(before.position), out);
        put_step(u64::from(self.length), u64::from(before.length), out);
        put_word(self.tag_hash, out);
        put_word(self.checksum, out);
    }

    pub fn read(before: &Held, numbers: &mut Numbers<'_>) -> Option<Held> {
        Some(Held {
            topic_uid: numbers.take_step(before.topic_uid)?,
            queue: numbers.take_u32()?,
            position: numbers.take_step(u64::from(before.position))?.try_into().ok()?,
            length: numbers.take_step(u64::from(before.length))?.try_into().ok()?,
            tag_hash: numbers.take_word()?,
            checksum: numbers.take_word()?,
        })
    }

    /// An error if its topic is not there.
    pub fn is_of(&self, is_topic: impl Fn(u64) -> bool) -> Result<(), String> {
        match is_topic(self.topic_uid) {
            true => Ok(()),
            false => {
                Err(format!("a message outside of queues is of topic number {}, which is not there", self.topic_uid))
            }
        }
    }

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
