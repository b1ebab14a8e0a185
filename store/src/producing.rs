//! What `Produce` does: assign offsets, or keep what is delayed, and find repeated sends.

use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset};

use crate::dedup::{Seen, dedup_key};
use crate::entry_view::FramePlace;
use crate::held::Held;
use crate::limits::DELAYED_MAX;
use crate::state::{Changes, Refusal, State};
use crate::{Holding, Outcome, ProducedSlot, Rejection, Slot};

impl State {
    pub fn produce(
        &mut self,
        index: u64,
        payload: &[u8],
        topic_name: &str,
        queue_id: QueueId,
        frames: &[FramePlace],
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let Some((name, topic)) = self.topics.get_key_value(topic_name) else {
            return Err(Rejection::TopicNotFound.into());
        };
        topic.queue(queue_id)?;
        if !topic.permission.is_writable() {
            return Err(Rejection::TopicNotWritable.into());
        }
        let misfit = frames.iter().find(|place| place.head.message_type() != topic.message_type);
        if let Some(place) = misfit {
            return Err(Refusal::Rejected(Rejection::MessageTypeConflict {
                topic: name.clone(),
                topic_type: topic.message_type,
                message_type: place.head.message_type(),
            }));
        }
        let is_delayed = topic.message_type == MessageType::Delay;
        if is_delayed && self.timers.len() + frames.len() > DELAYED_MAX {
            return Err(Rejection::TooManyDelayed.into());
        }
        let grown = (name.clone(), queue_id);
        let Some(topic) = self.topics.get_mut(topic_name) else {
            unreachable!("the topic was found above");
        };
        let queue = &mut topic.queues[queue_id.0 as usize];

        self.dedup.expire(self.log_time_ms);
        let max_before = queue.max();
        let mut offsets = Vec::with_capacity(frames.len());
        for place in frames {
            let frame = &payload[place.position as usize..];
            let key = dedup_key(topic.uid, place.head.id_in(frame));
            if let Some(known) = self.dedup.find(key) {
                offsets.push(known.produced(is_delayed));
                continue;
            }
            let message = MessageRef { index, ordinal: place.ordinal };
            if is_delayed {
                // When, not whether: what is due already waits for the leader's next word as well.
                let due_ms = place.head.delivery_at_ms().unwrap_or(0);
                let held = Held::of(place, topic.uid, queue_id.0);
                changes.timers |= self.timers.insert(due_ms, message, held);
                let seen = Seen { key, at_ms: self.log_time_ms, mark: due_ms, message, queue: queue_id };
                offsets.push(ProducedSlot { duplicate: false, ..seen.produced(true) });
                self.dedup.insert(seen);
                continue;
            }
            let slot = Slot {
                message,
                position: place.position,
                length: place.head.frame_bytes(),
                tag_hash: place.head.tag_hash(),
                stored_at_ms: self.log_time_ms,
            };
            let offset = queue.append(slot, place.head.checksum());
            let seen = Seen { key, at_ms: self.log_time_ms, mark: offset, message, queue: queue_id };
            offsets.push(ProducedSlot { duplicate: false, ..seen.produced(false) });
            self.dedup.insert(seen);
        }
        if queue.max() > max_before {
            changes.queues_grown.insert(grown);
        }
        Ok(Outcome::Produced { queue: queue_id, offsets })
    }
}

impl Seen {
    /// The answer to a send of it that is repeated.
    fn produced(&self, is_delayed: bool) -> ProducedSlot {
        let (offset, held) = match is_delayed {
            true => (0, Some(Holding::Until(self.mark))),
            false => (self.mark, None),
        };
        ProducedSlot { queue: self.queue, offset: QueueOffset(offset), message: self.message, duplicate: true, held }
    }
}
