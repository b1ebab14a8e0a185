//! What is done with messages that stand outside of any queue: those delayed become slots when
//! they are due, or are recalled.

use flotilla_message::{MessageRef, QueueId, QueueOffset};

use crate::held::Held;
use crate::outcome::Ending;
use crate::state::{Changes, State};
use crate::{Outcome, Rejection};

impl State {
    /// Makes slots of at most `count` messages that are due at `until_ms`, the first ones first.
    pub fn deliver_due(&mut self, until_ms: u64, count: u32, changes: &mut Changes) -> Outcome {
        let mut delivered = 0;
        while delivered < count
            && let Some((message, held)) = self.timers.pop_due(until_ms)
        {
            self.enqueue(message, &held, changes);
            delivered += 1;
        }
        Outcome::DueDelivered { delivered }
    }

    pub fn recall(&mut self, topic: &str, due_ms: u64, message: MessageRef) -> Result<Outcome, Rejection> {
        let uid = self.topic(topic)?.uid;
        if self.ended.find(message) == Some(Ending::Recalled) {
            return Ok(Outcome::Recalled { repeated: true });
        }
        if !self.timers.holds(due_ms, message, uid) {
            return Err(Rejection::NotWaiting);
        }
        self.timers.remove(due_ms, message);
        self.ended.note(message, Ending::Recalled);
        Ok(Outcome::Recalled { repeated: false })
    }

    /// Makes the slot of a message that stood outside until now. `None` if its queue is gone.
    pub fn enqueue(&mut self, message: MessageRef, held: &Held, changes: &mut Changes) -> Option<QueueOffset> {
        let name = self.topic_names.get(&held.topic_uid)?;
        let queue = self.topics.get_mut(name)?.queues.get_mut(held.queue as usize)?;
        let offset = queue.append(held.slot(message, self.log_time_ms), held.checksum);
        changes.queues_grown.insert((name.clone(), QueueId(held.queue)));
        Some(QueueOffset(offset))
    }
}
