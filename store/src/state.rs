//! The replicated state, and what each command does to it.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_message::{GroupName, Hash128, MessageType, Permission, QueueId, QueueOffset, TopicName, limits};

use crate::checkpoint::{progress_part, topic_part};
use crate::dedup::DedupWindow;
use crate::ended::EndedWindow;
use crate::halves::Halves;
use crate::levels::Levels;
use crate::limits::{GROUPS_MAX, RETRY_PAUSE_MS_MAX, RETRY_PAUSES_MAX, TOPICS_MAX};
use crate::placement::Placement;
use crate::progress::QueueProgress;
use crate::queue::Queue;
use crate::references::References;
use crate::timers::Timers;
use crate::topic_retention::TopicRetentions;
use crate::tracked::Tracked;
use crate::{Outcome, Rejection, StartPolicy, StoreError};

/// A topic and its queues.
#[derive(Debug)]
pub(crate) struct Topic {
    pub uid: u64,
    pub message_type: MessageType,
    pub permission: Permission,
    pub queues: Vec<Queue>,
    /// So many of the queues, from the first one on, take messages; the others are to go.
    pub writable_queues: u32,
    /// Where a queue ended that is gone: made again, it goes on from there.
    pub retired: BTreeMap<u32, u64>,
}

/// A consumer group's settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Group {
    pub uid: u64,
    pub order: bool,
    pub max_deliveries: u32,
    pub start: StartPolicy,
    pub is_paused: bool,
    pub retry_pauses: RetryPauses,
}

/// The pauses before a failed message is delivered again, if a group has some of its own.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RetryPauses {
    ms: [u32; RETRY_PAUSES_MAX],
    count: usize,
}

impl RetryPauses {
    /// `None` if there are too many, or one is too long.
    pub fn new(pauses_ms: &[u32]) -> Option<RetryPauses> {
        let mut pauses = RetryPauses { count: pauses_ms.len(), ..RetryPauses::default() };
        pauses.ms.get_mut(..pauses_ms.len())?.copy_from_slice(pauses_ms);
        pauses_ms.iter().all(|ms| *ms <= RETRY_PAUSE_MS_MAX).then_some(pauses)
    }

    pub fn as_slice(&self) -> &[u32] {
        &self.ms[..self.count]
    }
}

/// (group, topic, queue), the first two by their numbers.
pub(crate) type ProgressKey = (u64, u64, u32);

/// Everything that the log decides; the same on every replica at the same applied index, but for
/// where slots are kept (`Queue::runs`), which is this node's own.
#[derive(Debug)]
pub(crate) struct State {
    /// Log index of the last entry applied; 0 before the first.
    pub applied: u64,
    /// Log time, milliseconds since the Unix epoch.
    pub log_time_ms: u64,
    /// The last number given to a topic or group.
    pub last_uid: u64,
    /// The last number given to a delivery.
    pub last_seq: u32,
    pub topics: Tracked<TopicName, Topic>,
    /// By number; derived.
    pub topic_names: BTreeMap<u64, TopicName>,
    pub groups: Tracked<GroupName, Group>,
    pub progress: Tracked<ProgressKey, QueueProgress>,
    pub dedup: DedupWindow,
    /// Delayed messages.
    pub timers: Timers,
    pub halves: Halves,
    pub ended: EndedWindow,
    pub levels: Levels,
    pub topic_retentions: TopicRetentions,
    /// Its place among other broker groups.
    pub placement: Placement,
    pub references: References,
    /// The first log index that is kept.
    pub trimmed_below: u64,
    /// Slots made before this log time are gone.
    pub trimmed_before_ms: u64,
    /// Messages that went before a group had consumed them, counted once for each group.
    pub expired: u64,
    /// What entries mean: see [`crate::FEATURE_LEVEL`].
    pub feature_level: u8,
    /// What the last checkpoint holds of the windows, this node's own.
    pub saved: SavedMarks,
}

/// Serial numbers before which the windows' rows are in the last checkpoint.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct SavedMarks {
    pub dedup: u64,
    pub ended: u64,
}

/// What an entry changed, for the observer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub queues_grown: BTreeSet<(TopicName, QueueId)>,
    pub groups_changed: BTreeSet<(GroupName, TopicName)>,
    pub catalog: bool,
    /// Something waits whose time comes before that of all others.
    pub timers: bool,
    /// Slots vanished.
    pub trimmed: bool,
}

/// Why a command has no outcome of its own.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// Every replica says so.
    Rejected(Rejection),
    /// This node cannot read its files.
    Failed(StoreError),
}

impl From<Rejection> for Refusal {
    fn from(rejection: Rejection) -> Refusal {
        Refusal::Rejected(rejection)
    }
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Refusal {
        Refusal::Failed(error)
    }
}

impl Topic {
    pub fn new(uid: u64, message_type: MessageType, queue_count: u32, permission: Permission) -> Topic {
        Topic {
            uid,
            message_type,
            permission,
            queues: (0..queue_count).map(|_| Queue::new()).collect(),
            writable_queues: queue_count,
            retired: BTreeMap::new(),
        }
    }

    pub fn queue(&self, queue: QueueId) -> Result<&Queue, Rejection> {
        self.queues.get(queue.0 as usize).ok_or(self.no_queue(queue))
    }

    pub fn no_queue(&self, queue: QueueId) -> Rejection {
        Rejection::QueueNotFound { queue, queue_count: self.queues.len() as u32 }
    }
}

impl Group {
    /// Where the group begins in a queue that it meets now.
    pub fn first_offset(&self, queue: &Queue) -> Result<u64, StoreError> {
        match self.start {
            StartPolicy::First => Ok(queue.min()),
            StartPolicy::Last => Ok(queue.max()),
            StartPolicy::TimestampMs(at_ms) => queue.offset_at(at_ms),
        }
    }
}

impl State {
    pub fn new() -> State {
        State {
            applied: 0,
            log_time_ms: 0,
            last_uid: 0,
            last_seq: 0,
            topics: Tracked::new(|_, topic| topic_part(topic.uid)),
            topic_names: BTreeMap::new(),
            groups: Tracked::new(|_, _| (0, 0)),
            progress: Tracked::new(|(group_uid, topic_uid, _), _| progress_part(*group_uid, *topic_uid)),
            dedup: DedupWindow::new(),
            timers: Timers::default(),
            halves: Halves::default(),
            ended: EndedWindow::new(),
            levels: Levels::default(),
            topic_retentions: TopicRetentions::default(),
            placement: Placement::default(),
            references: References::default(),
            trimmed_below: 0,
            trimmed_before_ms: 0,
            expired: 0,
            feature_level: 0,
            saved: SavedMarks::default(),
        }
    }

    pub fn topic(&self, name: &str) -> Result<&Topic, Rejection> {
        self.topics.get(name).ok_or(Rejection::TopicNotFound)
    }

    pub fn group(&self, name: &str) -> Result<&Group, Rejection> {
        self.groups.get(name).ok_or(Rejection::GroupNotFound)
    }

    fn next_uid(&mut self) -> u64 {
        self.last_uid += 1;
        self.last_uid
    }

    /// A number that no delivery had before. 0 is left out, so that it can mean none.
    pub fn next_seq(last_seq: &mut u32) -> u32 {
        *last_seq = last_seq.wrapping_add(1).max(1);
        *last_seq
    }

    pub fn create_topic(
        &mut self,
        name: &TopicName,
        message_type: MessageType,
        queue_count: u32,
        permission: Permission,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        if !(1..=limits::QUEUES_PER_TOPIC_MAX).contains(&queue_count) {
            return Err(Rejection::QueueCountOutOfRange { queue_count });
        }
        if let Some(topic) = self.topics.get(name) {
            let same = topic.message_type == message_type
                && topic.permission == permission
                && topic.queues.len() == queue_count as usize;
            return Err(Rejection::TopicExists { same });
        }
        if self.topics.len() >= TOPICS_MAX {
            return Err(Rejection::TooManyTopics);
        }
        let uid = self.add_topic(name, message_type, queue_count, permission);
        changes.catalog = true;
        Ok(Outcome::TopicCreated { uid })
    }

    pub fn add_topic(
        &mut self,
        name: &TopicName,
        message_type: MessageType,
        queue_count: u32,
        permission: Permission,
    ) -> u64 {
        let uid = self.next_uid();
        let topic = Topic::new(uid, message_type, queue_count, permission);
        self.topics.insert(name.clone(), topic);
        self.topic_names.insert(uid, name.clone());
        uid
    }

    pub fn delete_topic(&mut self, name: &str, changes: &mut Changes) -> Result<Outcome, Refusal> {
        let mut released = Vec::new();
        for queue in &self.topic(name)?.queues {
            released.extend(queue.referred_to()?);
        }
        let (name, topic) = self.topics.remove_entry(name).ok_or(Rejection::TopicNotFound)?;
        for group in self.groups.values() {
            for queue in 0..topic.queues.len() as u32 {
                self.progress.remove(&(group.uid, topic.uid, queue));
            }
        }
        self.topic_names.remove(&topic.uid);
        released.extend(self.timers.drop_topic(topic.uid));
        released.extend(self.halves.drop_topic(topic.uid));
        released.into_iter().for_each(|message| self.references.release(message));
        self.levels.forget(topic.uid);
        self.topic_retentions.forget(topic.uid);
        self.placement.forget(name.as_str());
        changes.catalog = true;
        // Whoever waits for its messages waits for nothing.
        changes.queues_grown.insert((name, QueueId(0)));
        Ok(Outcome::TopicDeleted)
    }

    pub fn create_group(
        &mut self,
        name: &GroupName,
        order: bool,
        max_deliveries: u32,
        start: StartPolicy,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        if !(1..=limits::MAX_DELIVERIES_MAX).contains(&max_deliveries) {
            return Err(Rejection::MaxDeliveriesOutOfRange { max_deliveries });
        }
        if let Some(group) = self.groups.get(name) {
            let same = group.order == order && group.max_deliveries == max_deliveries && group.start == start;
            return Err(Rejection::GroupExists { same });
        }
        if self.groups.len() >= GROUPS_MAX {
            return Err(Rejection::TooManyGroups);
        }
        let uid = self.next_uid();
        let retry_pauses = RetryPauses::default();
        let group = Group { uid, order, max_deliveries, start, is_paused: false, retry_pauses };
        self.groups.insert(name.clone(), group);
        changes.catalog = true;
        Ok(Outcome::GroupCreated { uid })
    }

    pub fn delete_group(&mut self, name: &str, changes: &mut Changes) -> Result<Outcome, Rejection> {
        let group = self.groups.remove(name).ok_or(Rejection::GroupNotFound)?;
        let of_group = (group.uid, 0, 0)..=(group.uid, u64::MAX, u32::MAX);
        let keys: Vec<ProgressKey> = self.progress.range(of_group).map(|(key, _)| *key).collect();
        keys.iter().for_each(|key| drop(self.progress.remove(key)));
        changes.catalog = true;
        Ok(Outcome::GroupDeleted)
    }

    pub fn touch(&mut self, group: &str, topic: &str) -> Result<Outcome, Refusal> {
        let group = self.group(group)?;
        let topic = self.topic(topic)?;
        let mut fresh = Vec::new();
        let mut next_offsets = Vec::with_capacity(topic.queues.len());
        for (queue_id, queue) in topic.queues.iter().enumerate() {
            let key = (group.uid, topic.uid, queue_id as u32);
            let next_offset = match self.progress.get(&key) {
                Some(progress) => progress.next_offset(),
                None => {
                    let first_offset = group.first_offset(queue)?;
                    fresh.push((key, first_offset));
                    first_offset
                }
            };
            next_offsets.push(QueueOffset(next_offset));
        }
        for (key, first_offset) in fresh {
            self.progress.insert(key, QueueProgress::starting_at(first_offset));
        }
        Ok(Outcome::Touched { next_offsets })
    }

    /// A hash over everything that must be equal on all replicas.
    pub fn digest(&self) -> u128 {
        let mut hash = Hash128::new();
        hash.write_u64(self.applied);
        hash.write_u64(self.log_time_ms);
        hash.write_u64(self.last_uid);
        hash.write_u64(u64::from(self.last_seq));
        hash.write_u64(self.topics.len() as u64);
        for (name, topic) in self.topics.iter() {
            hash.write_bytes(name.as_str().as_bytes());
            hash.write_u64(topic.uid);
            hash.write_u64(u64::from(topic.message_type.code()) << 8 | u64::from(topic.permission.code()));
            hash.write_u64(u64::from(topic.writable_queues) << 32 | topic.queues.len() as u64);
            hash.write_u64(topic.retired.len() as u64);
            for (queue, end) in &topic.retired {
                hash.write_u64(u64::from(*queue));
                hash.write_u64(*end);
            }
            for queue in &topic.queues {
                hash.write_u64(queue.min());
                hash.write_u64(queue.max());
                hash.write_u64(queue.hash() as u64);
                hash.write_u64((queue.hash() >> 64) as u64);
            }
        }
        hash.write_u64(self.groups.len() as u64);
        for (name, group) in self.groups.iter() {
            hash.write_bytes(name.as_str().as_bytes());
            hash.write_u64(group.uid);
            hash.write_u64(u64::from(group.max_deliveries) << 1 | u64::from(group.order));
            let (policy, at_ms) = match group.start {
                StartPolicy::First => (0, 0),
                StartPolicy::Last => (1, 0),
                StartPolicy::TimestampMs(at_ms) => (2, at_ms),
            };
            hash.write_u64(policy << 1 | u64::from(group.is_paused));
            hash.write_u64(at_ms);
            hash.write_u64(group.retry_pauses.as_slice().len() as u64);
            group.retry_pauses.as_slice().iter().for_each(|ms| hash.write_u64(u64::from(*ms)));
        }
        hash.write_u64(self.progress.len() as u64);
        for ((group, topic, queue), progress) in self.progress.iter() {
            hash.write_u64(*group);
            hash.write_u64(*topic);
            hash.write_u64(u64::from(*queue));
            progress.write_digest(&mut hash);
        }
        self.levels.write_digest(&mut hash);
        self.topic_retentions.write_digest(&mut hash);
        self.placement.write_digest(&mut hash);
        hash.write_u64(self.trimmed_below);
        hash.write_u64(self.trimmed_before_ms);
        hash.write_u64(self.expired);
        if self.feature_level > 0 {
            // Programs before there were levels do not know it.
            hash.write_u64(u64::from(self.feature_level));
        }
        hash.write_u64(self.dedup.first_serial());
        hash.write_u64(self.dedup.now_ms());
        hash.write_u64(self.dedup.entries_max() as u64);
        let parts = [
            (self.dedup.len(), self.dedup.hash()),
            (self.timers.len(), self.timers.hash()),
            (self.halves.len(), self.halves.hash()),
            (self.ended.len(), self.ended.hash()),
            (self.references.len(), self.references.hash()),
        ];
        for (len, part) in parts {
            hash.write_u64(len as u64);
            hash.write_u64(part as u64);
            hash.write_u64((part >> 64) as u64);
        }
        hash.finish()
    }
}
