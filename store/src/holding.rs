//! What is done with messages that stand outside of any queue: those delayed become slots when
//! they are due, or are recalled; half ones are committed or rolled back, and asked for.

use flotilla_message::{MessageRef, QueueId, QueueOffset};
use flotilla_planted_bugs::{Bug, is_planted};

use crate::halves::Half;
use crate::held::Held;
use crate::outcome::Ending;
use crate::state::{Changes, State};
use crate::{HalfMessage, Outcome, Rejection};

impl State {
    /// Makes slots of at most `count` messages that are due at `until_ms`, the first ones first.
    pub fn deliver_due(&mut self, until_ms: u64, count: u32, changes: &mut Changes) -> Outcome {
        let until_ms = if is_planted(Bug::DelayTooShort) { until_ms.next_multiple_of(1000) } else { until_ms };
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
        self.references.release(message);
        self.ended.note(message, Ending::Recalled);
        Ok(Outcome::Recalled { repeated: false })
    }

    pub fn end_transaction(
        &mut self,
        topic: &str,
        message: MessageRef,
        commit: bool,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        let uid = self.topic(topic)?.uid;
        let ending = if commit { Ending::Committed } else { Ending::RolledBack };
        match self.ended.find(message) {
            Some(known) if known == ending => return Ok(Outcome::TransactionEnded { offset: None, repeated: true }),
            Some(Ending::Committed) => return Err(Rejection::TransactionEndedOtherwise { committed: true }),
            Some(Ending::RolledBack) => return Err(Rejection::TransactionEndedOtherwise { committed: false }),
            Some(Ending::Recalled) | None => {}
        }
        if self.halves.get(message).is_none_or(|half| half.held.topic_uid != uid) {
            return Err(Rejection::TransactionNotFound);
        }
        if is_planted(Bug::TransactionEndsTwice)
            && commit
            && let Some(half) = self.halves.get(message)
        {
            let offset = self.enqueue(message, &half.held, changes);
            return Ok(Outcome::TransactionEnded { offset, repeated: false });
        }
        let half = self.halves.take(message);
        self.ended.note(message, ending);
        let offset = match half {
            Some(half) if commit => self.enqueue(message, &half.held, changes),
            Some(_) => {
                self.references.release(message);
                None
            }
            None => None,
        };
        Ok(Outcome::TransactionEnded { offset, repeated: false })
    }

    pub fn check_transactions(&mut self, count: u32, next_after_ms: u64, checks_max: u32) -> Outcome {
        let mut halves = Vec::new();
        while halves.len() < count as usize
            && let Some((message, half)) = self.halves.due(self.log_time_ms)
        {
            let checked = if half.checks >= checks_max {
                Half { check_at_ms: None, ..half }
            } else {
                // In the future in any case: each is met once.
                let check_at_ms = self.log_time_ms.saturating_add(next_after_ms.max(1));
                Half { checks: half.checks + 1, check_at_ms: Some(check_at_ms), ..half }
            };
            self.halves.put(message, checked);
            halves.extend(self.half_message(message, &checked));
        }
        Outcome::TransactionsChecked { halves }
    }

    /// What is told of a half message.
    pub fn half_message(&self, message: MessageRef, half: &Half) -> Option<HalfMessage> {
        Some(HalfMessage {
            topic: self.topic_names.get(&half.held.topic_uid)?.clone(),
            queue: QueueId(half.held.queue),
            slot: half.held.slot(message, half.prepared_at_ms).resolved(&self.references),
            checks: half.checks,
            is_parked: half.check_at_ms.is_none(),
        })
    }

    /// Makes the slot of a message that stood outside until now; the slot refers to it from now on. `None` if its
    /// queue is gone.
    pub fn enqueue(&mut self, message: MessageRef, held: &Held, changes: &mut Changes) -> Option<QueueOffset> {
        let name = self.topic_names.get(&held.topic_uid);
        let topic = name.and_then(|name| self.topics.get_mut(name));
        let (Some(name), Some(topic)) = (name, topic) else {
            self.references.release(message);
            return None;
        };
        // Its queue may be gone, or be about to go.
        let queue_id = if held.queue < topic.writable_queues { held.queue } else { held.queue % topic.writable_queues };
        let Some(queue) = topic.queues.get_mut(queue_id as usize) else {
            self.references.release(message);
            return None;
        };
        let offset = queue.append(held.late_slot(message, self.log_time_ms), held.checksum);
        changes.queues_grown.insert((name.clone(), QueueId(queue_id)));
        Some(QueueOffset(offset))
    }
}
