//! Topics that keep messages for a shorter time than the log does.
//!
//! The log is one for all topics and goes whole files at a time; what a topic can have of its own is when its messages
//! vanish. Their bytes stay until the log lets go of their entries.

use std::collections::BTreeMap;

use flotilla_message::{Hash128, TopicName};

use crate::queue::Queue;
use crate::state::{Changes, Refusal, State};
use crate::trimming::{QueueTrim, QueueTrims};
use crate::{Outcome, Rejection, StoreError, StoreReader};

/// Milliseconds by topic number; a topic that keeps messages as long as the log does has no row.
#[derive(Debug, Default)]
pub(crate) struct TopicRetentions(BTreeMap<u64, u64>);

impl TopicRetentions {
    pub fn of(&self, topic_uid: u64) -> Option<u64> {
        self.0.get(&topic_uid).copied()
    }

    /// `None` and 0: as long as the log does.
    pub fn set(&mut self, topic_uid: u64, retention_ms: Option<u64>) {
        match retention_ms {
            None | Some(0) => drop(self.0.remove(&topic_uid)),
            Some(retention_ms) => drop(self.0.insert(topic_uid, retention_ms)),
        }
    }

    pub fn forget(&mut self, topic_uid: u64) {
        self.0.remove(&topic_uid);
    }

    pub fn write_digest(&self, hash: &mut Hash128) {
        hash.write_u64(self.0.len() as u64);
        for (uid, retention_ms) in &self.0 {
            hash.write_u64(*uid);
            hash.write_u64(*retention_ms);
        }
    }
}

impl State {
    pub fn set_topic_retention(
        &mut self,
        name: &str,
        retention_ms: Option<u64>,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        // The row is in the topic's part of a checkpoint.
        let uid = self.topics.get_mut(name).ok_or(Rejection::TopicNotFound)?.uid;
        self.topic_retentions.set(uid, retention_ms);
        changes.catalog = true;
        Ok(Outcome::TopicRetentionSet)
    }

    /// Lets go of the slots of one topic that were made before a time.
    pub fn trim_topic(
        &mut self,
        name: &TopicName,
        uid: u64,
        before_ms: u64,
        changes: &mut Changes,
    ) -> Result<Outcome, Refusal> {
        let topic = self.topic(name.as_str())?;
        if topic.uid != uid {
            return Err(Rejection::TopicReplaced { uid }.into());
        }
        // Everything is read before anything is changed.
        let mut trims = QueueTrims::new();
        for (id, queue) in (0..).zip(&topic.queues) {
            let trim = QueueTrim::of(queue, before_ms)?;
            if trim.min > queue.min() {
                trims.insert((uid, id), (name.clone(), trim));
            }
        }
        if trims.is_empty() {
            return Ok(Outcome::TopicTrimmed { slots: 0 });
        }
        let mut met = Vec::new();
        for group in self.groups.values() {
            met.extend(self.progress.range((group.uid, uid, 0)..=(group.uid, uid, u32::MAX)).map(|(key, _)| *key));
        }
        let slots = self.apply_trims(&trims, &met);
        changes.trimmed = slots > 0;
        Ok(Outcome::TopicTrimmed { slots })
    }
}

/// A topic with messages that are older than it keeps them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExpiredTopic {
    /// Its name.
    pub name: TopicName,
    /// Its number.
    pub uid: u64,
    /// The log time before which its messages are to go, milliseconds.
    pub before_ms: u64,
}

impl StoreReader {
    /// The topics that keep messages for a time of their own and whose oldest message is older than that by more than a
    /// sixteenth of it, so that nobody proposes a trim for each message. Costs one slot for each queue of such a topic;
    /// index files are read outside the store's lock.
    ///
    /// # Errors
    /// If an index file is damaged or cannot be read.
    pub fn expired_topics(&self, now_ms: u64) -> Result<Vec<ExpiredTopic>, StoreError> {
        let asked: Vec<(ExpiredTopic, u64, Vec<Queue>)> = {
            let state = self.shared().read();
            let rows = state.topic_retentions.0.iter();
            let candidates = rows.filter_map(|(uid, retention_ms)| {
                let name = state.topic_names.get(uid)?.clone();
                let before_ms = now_ms.saturating_sub(*retention_ms);
                let due_ms = before_ms.saturating_sub(retention_ms / 16);
                let queues = state.topics.get(&name)?.queues.iter().filter(|queue| queue.min() < queue.max());
                Some((ExpiredTopic { name, uid: *uid, before_ms }, due_ms, queues.map(Queue::oldest_alone).collect()))
            });
            candidates.collect()
        };
        let mut expired = Vec::new();
        for (topic, due_ms, queues) in asked {
            for queue in queues {
                if queue.slot(queue.min())?.is_some_and(|slot| slot.stored_at_ms < due_ms) {
                    expired.push(topic);
                    break;
                }
            }
        }
        Ok(expired)
    }
}
