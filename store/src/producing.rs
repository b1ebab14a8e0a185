//! What `Produce` and `Prepare` do: assign offsets, or keep what is delayed or half, and find repeated
//! sends.

use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset};

use crate::dedup::{Seen, dedup_key};
use crate::entry_view::FramePlace;
use crate::halves::Half;
use crate::held::Held;
use crate::limits::{DELAYED_MAX, HALVES_MAX};
use crate::state::{Changes, Refusal, State, Topic};
use crate::{Holding, Outcome, ProducedSlot, Rejection};

/// Where the messages of a batch go.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// Into their queue.
    Queue,
    /// Among the delayed ones.
    Delayed,
    /// Among the half ones; their producer is asked after so much log time.
    Half { check_after_ms: u64 },
}

impl State {
    /// `place` is the entry's log index and its payload; `check_after_ms` is there for a `Prepare`.
    pub fn produce(
        &mut self,
        place: (u64, &[u8]),
        topic_name: &str,
        queue_id: QueueId,
        frames: &[FramePlace],
        check_after_ms: Option<u64>,
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let (index, payload) = place;
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
        let way = self.way(topic, frames.len(), check_after_ms)?;
        let (name, uid) = (name.clone(), topic.uid);
        let Some(queue) = self.topics.get_mut(&name).and_then(|topic| topic.queues.get_mut(queue_id.0 as usize)) else {
            unreachable!("topic and queue were found above");
        };

        self.dedup.expire(self.log_time_ms);
        let mut offsets = Vec::with_capacity(frames.len());
        for place in frames {
            let frame = &payload[place.position as usize..];
            let key = dedup_key(uid, place.head.id_in(frame));
            if let Some(known) = self.dedup.find(key) {
                offsets.push(known.produced(way));
                continue;
            }
            let message = MessageRef { index, ordinal: place.ordinal };
            let held = Held::of(place, uid, queue_id.0);
            let mark = match way {
                Way::Queue => queue.append(held.slot(message, self.log_time_ms), held.checksum),
                Way::Delayed => {
                    // When, not whether: what is due already waits for the leader's next word as well.
                    let due_ms = place.head.delivery_at_ms().unwrap_or(0);
                    changes.timers |= self.timers.insert(due_ms, message, held);
                    self.references.add(message);
                    due_ms
                }
                Way::Half { check_after_ms } => {
                    let prepared_at_ms = self.log_time_ms;
                    let check_at_ms = Some(prepared_at_ms.saturating_add(check_after_ms));
                    let half = Half { held, checks: 0, check_at_ms, prepared_at_ms };
                    changes.timers |= self.halves.put(message, half);
                    self.references.add(message);
                    0
                }
            };
            let seen = Seen { key, at_ms: self.log_time_ms, mark, message, queue: queue_id };
            offsets.push(ProducedSlot { duplicate: false, ..seen.produced(way) });
            self.dedup.insert(seen);
        }
        if matches!(way, Way::Queue) && offsets.iter().any(|slot| !slot.duplicate) {
            changes.queues_grown.insert((name, queue_id));
        }
        Ok(Outcome::Produced { queue: queue_id, offsets })
    }

    fn way(&self, topic: &Topic, count: usize, check_after_ms: Option<u64>) -> Result<Way, Rejection> {
        match (topic.message_type, check_after_ms) {
            (MessageType::Transaction, Some(_)) if self.halves.len() + count > HALVES_MAX => {
                Err(Rejection::TooManyHalves)
            }
            (MessageType::Transaction, Some(check_after_ms)) => Ok(Way::Half { check_after_ms }),
            (MessageType::Transaction, None) => Err(Rejection::NotPrepared),
            (_, Some(_)) => Err(Rejection::NoTransactions { topic_type: topic.message_type }),
            (MessageType::Delay, None) if self.timers.len() + count > DELAYED_MAX => Err(Rejection::TooManyDelayed),
            (MessageType::Delay, None) => Ok(Way::Delayed),
            (MessageType::Normal | MessageType::Fifo, None) => Ok(Way::Queue),
        }
    }
}

impl Seen {
    /// The answer to a send of it that is repeated.
    fn produced(&self, way: Way) -> ProducedSlot {
        let (offset, held) = match way {
            Way::Queue => (self.mark, None),
            Way::Delayed => (0, Some(Holding::Until(self.mark))),
            Way::Half { .. } => (0, Some(Holding::Half)),
        };
        ProducedSlot { queue: self.queue, offset: QueueOffset(offset), message: self.message, duplicate: true, held }
    }
}
