//! What changes the settings of topics and groups.

use flotilla_message::{MessageType, Permission, QueueId, TopicName, limits};

use crate::limits::DEDUP_ENTRIES_RANGE;
use crate::progress::QueueProgress;
use crate::queue::Queue;
use crate::state::{Changes, Refusal, RetryPauses, State};
use crate::{GroupChange, Outcome, Rejection, StoreError};

impl State {
    pub fn update_group(
        &mut self,
        name: &str,
        change: &GroupChange,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        let mut group = *self.group(name)?;
        if let Some(max_deliveries) = change.max_deliveries {
            if !(1..=limits::MAX_DELIVERIES_MAX).contains(&max_deliveries) {
                return Err(Rejection::MaxDeliveriesOutOfRange { max_deliveries });
            }
            group.max_deliveries = max_deliveries;
        }
        if let Some(pauses) = &change.retry_pauses_ms {
            let longest_ms = pauses.iter().copied().max().unwrap_or(0);
            let out_of_range = Rejection::RetryPausesOutOfRange { count: pauses.len(), longest_ms };
            group.retry_pauses = RetryPauses::new(pauses).ok_or(out_of_range)?;
        }
        group.order = change.order.unwrap_or(group.order);
        group.is_paused = change.is_paused.unwrap_or(group.is_paused);
        if let Some(settings) = self.groups.get_mut(name) {
            *settings = group;
        }
        if let Some((known, _)) = self.groups.get_key_value(name) {
            // Polls of a group that goes on again wait for this.
            let met: Vec<TopicName> = topics_met(&self.progress, &self.topic_names, group.uid);
            changes.groups_changed.extend(met.into_iter().map(|topic| (known.clone(), topic)));
        }
        changes.catalog = true;
        Ok(Outcome::GroupUpdated)
    }

    pub fn update_topic(
        &mut self,
        name: &TopicName,
        queue_count: Option<u32>,
        permission: Option<Permission>,
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let topic = self.topic(name.as_str())?;
        let there = topic.queues.len() as u32;
        if let Some(count) = queue_count {
            if !(1..=limits::QUEUES_PER_TOPIC_MAX).contains(&count) {
                return Err(Rejection::QueueCountOutOfRange { queue_count: count }.into());
            }
            let is_moved = topic.writable_queues != count;
            if topic.message_type == MessageType::Fifo && is_moved {
                // Message groups will find other queues: nothing of them may wait in the old ones.
                if let Some((queue, group)) = self.first_unconsumed(name, 0) {
                    return Err(Rejection::TopicNotDrained { queue, group }.into());
                }
            }
            self.grow(name, there, count);
            let drained = self.drained_after(name, count);
            self.shrink(name, count, drained)?;
        }
        let Some(topic) = self.topics.get_mut(name) else { return Err(Rejection::TopicNotFound.into()) };
        topic.permission = permission.unwrap_or(topic.permission);
        let (queue_count, writable_queues) = (topic.queues.len() as u32, topic.writable_queues);
        changes.catalog = true;
        // Whoever polls it looks at the new queues, or sees that it may not.
        changes.queues_grown.insert((name.clone(), QueueId(0)));
        Ok(Outcome::TopicUpdated { queue_count, writable_queues })
    }

    /// Adds queues. The groups that have met the topic begin at their first message: whatever a group's
    /// start policy says, it holds for its first meeting with the topic, not for queues that come later.
    fn grow(&mut self, name: &TopicName, from: u32, to: u32) {
        let Some(topic) = self.topics.get_mut(name) else { return };
        let uid = topic.uid;
        for queue_id in from..to {
            let end = topic.retired.remove(&queue_id).unwrap_or(0);
            topic.queues.push(Queue::beginning_at(end));
            for group in self.groups.values() {
                let of_topic = (group.uid, uid, 0)..=(group.uid, uid, u32::MAX);
                if self.progress.range(of_topic).next().is_some() {
                    self.progress.insert((group.uid, uid, queue_id), QueueProgress::starting_at(end));
                }
            }
        }
    }

    /// Keeps `count` queues writable, and drops those behind the first `kept`.
    fn shrink(&mut self, name: &TopicName, count: u32, kept: u32) -> Result<(), StoreError> {
        let Some(topic) = self.topics.get_mut(name) else { return Ok(()) };
        for queue in topic.queues.iter().skip(kept.max(count) as usize) {
            for message in queue.referred_to()? {
                self.references.release(message);
            }
        }
        topic.writable_queues = count;
        while topic.queues.len() as u32 > kept.max(count) {
            let Some(queue) = topic.queues.pop() else { break };
            let queue_id = topic.queues.len() as u32;
            topic.retired.insert(queue_id, queue.max());
            for group in self.groups.values() {
                self.progress.remove(&(group.uid, topic.uid, queue_id));
            }
        }
        Ok(())
    }

    /// How many queues have to stay: those before the last one that some group has not consumed.
    fn drained_after(&self, name: &TopicName, count: u32) -> u32 {
        let Some(topic) = self.topics.get(name) else { return count };
        let mut kept = topic.queues.len() as u32;
        while kept > count && self.unconsumed(name, kept - 1).is_none() {
            kept -= 1;
        }
        kept
    }

    pub(crate) fn first_unconsumed(&self, name: &TopicName, from: u32) -> Option<(QueueId, String)> {
        let count = self.topics.get(name)?.queues.len() as u32;
        (from..count).find_map(|queue| Some((QueueId(queue), self.unconsumed(name, queue)?)))
    }

    /// A group that has met the topic and has not consumed all of a queue; one to come if none has met it.
    fn unconsumed(&self, name: &TopicName, queue_id: u32) -> Option<String> {
        let topic = self.topics.get(name)?;
        let queue = topic.queues.get(queue_id as usize)?;
        let of_topic = |uid: u64| (uid, topic.uid, 0)..=(uid, topic.uid, u32::MAX);
        let has_met = |uid: u64| self.progress.range(of_topic(uid)).next().is_some();
        if queue.min() < queue.max() && !self.groups.values().any(|group| has_met(group.uid)) {
            return Some("(any)".to_owned());
        }
        let is_behind = |uid: u64| match self.progress.get(&(uid, topic.uid, queue_id)) {
            Some(progress) => progress.committed_offset() < queue.max(),
            None => queue.min() < queue.max() && has_met(uid),
        };
        let behind = self.groups.iter().find(|(_, group)| is_behind(group.uid));
        behind.map(|(group, _)| group.to_string())
    }

    /// Whether some queue behind the writable ones can go.
    pub fn has_drained(&self, name: &TopicName) -> bool {
        let Some(topic) = self.topics.get(name) else { return false };
        self.drained_after(name, topic.writable_queues) < topic.queues.len() as u32
    }

    pub fn drop_drained(&mut self, name: &TopicName, uid: u64, changes: &mut Changes) -> Result<Outcome, Refusal> {
        let topic = self.topic(name.as_str())?;
        if topic.uid != uid {
            return Err(Rejection::TopicReplaced { uid }.into());
        }
        let (queue_count, writable_queues) = (topic.queues.len() as u32, topic.writable_queues);
        let kept = self.drained_after(name, writable_queues);
        if kept < queue_count {
            self.shrink(name, writable_queues, kept)?;
            changes.catalog = true;
        }
        Ok(Outcome::TopicUpdated { queue_count: kept, writable_queues })
    }

    /// Goes on at `level`, which this program must support.
    pub fn raise_level(&mut self, level: u8, level_max: u8, index: u64) -> Result<Outcome, Refusal> {
        if level > level_max {
            return Err(StoreError::LevelTooHigh { level, level_max, index }.into());
        }
        self.feature_level = self.feature_level.max(level);
        Ok(Outcome::Noted)
    }

    pub fn set_dedup_window(&mut self, entries_max: u32) -> Result<Outcome, Rejection> {
        let ids = entries_max as usize;
        if !DEDUP_ENTRIES_RANGE.contains(&ids) {
            return Err(Rejection::DedupWindowOutOfRange { entries_max });
        }
        self.dedup.set_entries_max(ids);
        Ok(Outcome::Noted)
    }

    pub fn drop_topic(&mut self, name: &str, uid: u64, changes: &mut Changes) -> Result<Outcome, Refusal> {
        if self.topic(name)?.uid != uid {
            return Err(Rejection::TopicReplaced { uid }.into());
        }
        self.delete_topic(name, changes)
    }
}

fn topics_met(
    progress: &std::collections::BTreeMap<crate::state::ProgressKey, QueueProgress>,
    names: &std::collections::BTreeMap<u64, TopicName>,
    group_uid: u64,
) -> Vec<TopicName> {
    let mut met = Vec::new();
    for ((_, topic_uid, _), _) in progress.range((group_uid, 0, 0)..=(group_uid, u64::MAX, u32::MAX)) {
        let name = names.get(topic_uid);
        if met.last() != name {
            met.extend(name.cloned());
        }
    }
    met
}
