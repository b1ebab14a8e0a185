//! What changes a group's position or single deliveries of it by an operator's, a client's or the leader's word.

use flotilla_message::{MessageRef, QueueId, QueueOffset};

use crate::progress::QueueProgress;
use crate::state::{Changes, Refusal, State};
use crate::{OffsetTarget, Outcome, Rejection};

/// Names of a group, a topic, and a queue of it.
pub(crate) type Place<'a> = (&'a str, &'a str, QueueId);

impl State {
    pub fn set_offset(
        &mut self,
        place: Place<'_>,
        to: OffsetTarget,
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let (group_name, topic_name, queue_id) = place;
        let (group_name, group) = self.groups.get_key_value(group_name).ok_or(Rejection::GroupNotFound)?;
        let (topic_name, topic) = self.topics.get_key_value(topic_name).ok_or(Rejection::TopicNotFound)?;
        let queue = topic.queue(queue_id)?;
        let (min, max) = (queue.min(), queue.max());
        let next = match to {
            OffsetTarget::First => min,
            OffsetTarget::Last => max,
            OffsetTarget::TimestampMs(at_ms) => queue.offset_at(at_ms)?,
            OffsetTarget::Offset(offset) if offset.0 > max => {
                let (min, max) = (QueueOffset(min), QueueOffset(max));
                return Err(Rejection::OffsetOutOfRange { offset, min, max }.into());
            }
            OffsetTarget::Offset(offset) => offset.0.max(min),
        };
        let key = (group.uid, topic.uid, queue_id.0);
        self.progress.insert(key, QueueProgress::starting_at(next));
        changes.groups_changed.insert((group_name.clone(), topic_name.clone()));
        Ok(Outcome::OffsetSet { next_offset: QueueOffset(next) })
    }

    pub fn redeliver(
        &mut self,
        place: Place<'_>,
        offset: QueueOffset,
        message: MessageRef,
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let (group_name, topic_name, queue_id) = place;
        let (group_name, group) = self.groups.get_key_value(group_name).ok_or(Rejection::GroupNotFound)?;
        let (topic_name, topic) = self.topics.get_key_value(topic_name).ok_or(Rejection::TopicNotFound)?;
        let queue = topic.queue(queue_id)?;
        let slot = queue.slot(offset.0)?.filter(|slot| slot.message == message);
        let slot = slot.ok_or(Rejection::NotConsumed { offset })?;
        let progress = self.progress.get_mut(&(group.uid, topic.uid, queue_id.0));
        let is_revived = progress.is_some_and(|progress| progress.revive(offset.0, slot, self.log_time_ms));
        if !is_revived {
            return Err(Rejection::NotConsumed { offset }.into());
        }
        changes.groups_changed.insert((group_name.clone(), topic_name.clone()));
        Ok(Outcome::Redelivered)
    }

    pub fn renew(
        &mut self,
        place: Place<'_>,
        deliveries: &[(QueueOffset, u32)],
        holder: u64,
        invisible_until_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let (group, topic, queue) = (self.group(place.0)?.uid, self.topic(place.1)?.uid, place.2);
        let mut renewed = 0;
        if let Some(progress) = self.progress.get_mut(&(group, topic, queue.0)) {
            for (offset, seq) in deliveries {
                renewed += u32::from(progress.renew(offset.0, *seq, holder, invisible_until_ms));
            }
        }
        // Nothing is due earlier than before: nobody has to be woken.
        Ok(Outcome::Renewed { renewed })
    }

    pub fn give_up(
        &mut self,
        place: Place<'_>,
        offset: QueueOffset,
        seq: u32,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        let (group_name, topic_name, queue_id) = place;
        let (group_name, group) = self.groups.get_key_value(group_name).ok_or(Rejection::GroupNotFound)?;
        let (topic_name, topic) = self.topics.get_key_value(topic_name).ok_or(Rejection::TopicNotFound)?;
        let progress = self.progress.get_mut(&(group.uid, topic.uid, queue_id.0)).ok_or(Rejection::DeliveryNotFound)?;
        let slot = progress.take_out(offset.0, seq)?;
        let (group_name, topic_name) = (group_name.clone(), topic_name.clone());
        self.dead_letter(&group_name, &topic_name, &[slot], changes);
        changes.groups_changed.insert((group_name, topic_name));
        Ok(Outcome::DeadLettered)
    }
}
