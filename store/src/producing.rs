//! What `Produce` does: assign offsets, and find repeated sends.

use flotilla_message::{MessageRef, QueueId, QueueOffset};

use crate::dedup::{Seen, dedup_key};
use crate::entry_view::FramePlace;
use crate::state::{Changes, Refusal, State};
use crate::{Outcome, ProducedSlot, Rejection, Slot};

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
                offsets.push(known);
                continue;
            }
            let message = MessageRef { index, ordinal: place.ordinal };
            let slot = Slot {
                message,
                position: place.position,
                length: place.head.frame_bytes(),
                tag_hash: place.head.tag_hash(),
                stored_at_ms: self.log_time_ms,
            };
            let offset = QueueOffset(queue.append(slot, place.head.checksum()));
            self.dedup.insert(Seen { key, at_ms: self.log_time_ms, offset, message, queue: queue_id });
            offsets.push(ProducedSlot { queue: queue_id, offset, message, duplicate: false });
        }
        if queue.max() > max_before {
            changes.queues_grown.insert(grown);
        }
        Ok(Outcome::Produced { queue: queue_id, offsets })
    }
}
