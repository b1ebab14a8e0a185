//! Looking at the applied state, from any thread.

use std::collections::BTreeMap;
use std::sync::Arc;

use flotilla_message::{GroupName, MessageRef, MessageType, Permission, QueueId, QueueOffset, TopicName};

use crate::index_file::IndexFile;
use crate::progress::{QueueProgress, attempt_key};
use crate::queue::Queue;
use crate::shared::Shared;
use crate::state::{Group, State, Topic};
use crate::{Granted, HalfMessage, Slot, StartPolicy, StoreError, TopicLevel, TopicShares};

/// A topic's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicInfo {
    /// Its name.
    pub name: TopicName,
    /// Its number; a re-created topic has another.
    pub uid: u64,
    /// What its messages are.
    pub message_type: MessageType,
    /// How many queues it has.
    pub queue_count: u32,
    /// How many of them, from the first one on, take messages; the others are to go.
    pub writable_queues: u32,
    /// What may be done with it.
    pub permission: Permission,
    /// The level of its sends, as far as it has one of its own.
    pub level: TopicLevel,
    /// How long it keeps messages, milliseconds of log time; `None`: as long as the log does.
    pub retention_ms: Option<u64>,
}

/// A consumer group's settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupInfo {
    /// Its name.
    pub name: GroupName,
    /// Its number; a re-created group has another.
    pub uid: u64,
    /// Whether it consumes each queue in order.
    pub order: bool,
    /// After so many deliveries without an ack a message becomes a dead letter.
    pub max_deliveries: u32,
    /// Where it begins in a queue.
    pub start: StartPolicy,
    /// Whether nothing is delivered to it.
    pub is_paused: bool,
    /// Pauses before a failed message is delivered again, ms; empty: the broker's own.
    pub retry_pauses_ms: Vec<u32>,
}

/// How far a group is in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// The first offset never delivered. If the group has not met the queue yet: where it would
    /// begin now.
    pub next_offset: QueueOffset,
    /// Everything below is consumed.
    pub committed_offset: QueueOffset,
    /// Delivered and not yet acknowledged.
    pub inflight: usize,
    /// Whether the log holds this position. If not, propose [`crate::Command::Touch`] before the
    /// answer of a poll.
    pub is_pinned: bool,
}

/// A message that may be delivered again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Due {
    /// Its offset.
    pub offset: QueueOffset,
    /// Its deliveries so far.
    pub attempt: u32,
}

/// A delivery in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivery {
    /// The message.
    pub slot: Slot,
    /// Deliveries so far, from 1.
    pub attempt: u32,
    /// The number its receipts must name.
    pub seq: u32,
    /// When it becomes due, log time, milliseconds since the Unix epoch.
    pub invisible_until_ms: u64,
    /// Who holds it and wants it prolonged; 0 for nobody.
    pub holder: u64,
}

/// A delivery that its holder wants prolonged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldDelivery {
    /// The group.
    pub group: GroupName,
    /// The topic.
    pub topic: TopicName,
    /// The queue.
    pub queue: QueueId,
    /// The message's offset.
    pub offset: QueueOffset,
    /// The number its receipts must name.
    pub seq: u32,
    /// Who holds it, as [`crate::Command::Renew`] said.
    pub holder: u64,
}

/// What an earlier try with the same attempt id was granted in one queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptGrants {
    /// The queue.
    pub queue: QueueId,
    /// What is still invisible and not acknowledged.
    pub granted: Vec<Granted>,
}

/// A fingerprint of the replicated state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDigest {
    /// Log index of the last entry applied; 0 before the first.
    pub applied: u64,
    /// 32 hex digits; equal on all replicas at the same `applied`.
    pub digest: String,
}

/// The window in which repeated sends are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DedupStatus {
    /// Message ids in it.
    pub entries: usize,
    /// The most that it keeps.
    pub entries_max: usize,
    /// How far back it reaches, milliseconds of log time without its jumps: less than
    /// [`crate::limits::DEDUP_WINDOW_MS`] when the count bounds it, or since there is less.
    pub reach_ms: u64,
}

/// A cheap handle to the applied state. Each call sees a state between two entries; two calls may
/// see different ones.
#[derive(Clone)]
pub struct StoreReader {
    pub(crate) shared: Arc<Shared>,
}

impl StoreReader {
    pub(crate) fn new(shared: Arc<Shared>) -> StoreReader {
        StoreReader { shared }
    }

    pub(crate) fn shared(&self) -> &Arc<Shared> {
        &self.shared
    }

    /// A topic's settings.
    pub fn topic(&self, name: &TopicName) -> Option<TopicInfo> {
        let state = self.shared.read();
        state.topics.get(name).map(|topic| topic_info(&state, name, topic))
    }

    /// All topics, by name.
    pub fn topics(&self) -> Vec<TopicInfo> {
        let state = self.shared.read();
        state.topics.iter().map(|(name, topic)| topic_info(&state, name, topic)).collect()
    }

    /// Whether this broker group has had to do with others: its write permission is wiped, or a topic's shares are laid down.
    pub fn has_placement(&self) -> bool {
        !self.shared.read().placement.is_empty()
    }

    /// Whether the write permission of this broker group is wiped.
    pub fn is_write_wiped(&self) -> bool {
        self.shared.read().placement.is_write_wiped()
    }

    /// Which broker groups have which queues of a topic, where that is laid down.
    pub fn topic_shares(&self, name: &TopicName) -> Option<TopicShares> {
        self.shared.read().placement.shares_of(name.as_str()).cloned()
    }

    /// How many topics and groups there are.
    pub fn catalog_counts(&self) -> (usize, usize) {
        let state = self.shared.read();
        (state.topics.len(), state.groups.len())
    }

    /// A group's settings.
    pub fn group(&self, name: &GroupName) -> Option<GroupInfo> {
        let state = self.shared.read();
        state.groups.get(name).map(|group| group_info(name, group))
    }

    /// All groups, by name.
    pub fn groups(&self) -> Vec<GroupInfo> {
        let state = self.shared.read();
        state.groups.iter().map(|(name, group)| group_info(name, group)).collect()
    }

    /// The oldest offset of a queue, and the one its next message will get.
    pub fn queue_bounds(&self, topic: &TopicName, queue: QueueId) -> Option<(QueueOffset, QueueOffset)> {
        let state = self.shared.read();
        let queue = state.topics.get(topic)?.queues.get(queue.0 as usize)?;
        Some((QueueOffset(queue.min()), QueueOffset(queue.max())))
    }

    /// Slots of a queue from `from` on, at most `count`, in order; empty if there are none, or no
    /// such queue. Index files are read outside the store's lock.
    ///
    /// # Errors
    /// If an index file is damaged or cannot be read.
    pub fn slots(
        &self,
        topic: &TopicName,
        queue: QueueId,
        from: QueueOffset,
        count: usize,
    ) -> Result<Vec<(QueueOffset, Slot)>, StoreError> {
        let (first, part) = {
            let state = self.shared.read();
            let Some(queue) = state.topics.get(topic).and_then(|topic| topic.queues.get(queue.0 as usize)) else {
                return Ok(Vec::new());
            };
            (from.0.max(queue.min()), queue.part(from.0, count as u64))
        };
        let offsets = (first..).map(QueueOffset);
        let mut slots: Vec<_> = offsets.zip(part.read()?).collect();
        if slots.iter().any(|(_, slot)| slot.is_reference) {
            let state = self.shared.read();
            slots.iter_mut().for_each(|(_, slot)| *slot = slot.resolved(&state.references));
        }
        Ok(slots)
    }

    /// A slot as it is to be read now: its message may have been carried since it was looked up.
    pub fn resolved(&self, slot: Slot) -> Slot {
        slot.resolved(&self.shared.read().references)
    }

    /// The first offset whose message was stored at or after `at_ms` of log time (milliseconds
    /// since the Unix epoch), else the end of the queue. `None` if there is no such queue. Index
    /// files are read outside the store's lock.
    ///
    /// # Errors
    /// If an index file is damaged or cannot be read.
    pub fn offset_at(&self, topic: &TopicName, queue: QueueId, at_ms: u64) -> Result<Option<QueueOffset>, StoreError> {
        let searched = {
            let state = self.shared.read();
            let Some(queue) = state.topics.get(topic).and_then(|topic| topic.queues.get(queue.0 as usize)) else {
                return Ok(None);
            };
            queue.search_time(at_ms)
        };
        let offset = searched.or_else(|search| search.run())?;
        Ok(Some(QueueOffset(offset)))
    }

    /// How far a group is in a queue. `None` if one of the three does not exist.
    ///
    /// # Errors
    /// If the group has not met the queue, begins at a time, and an index file is damaged or
    /// cannot be read.
    pub fn progress(
        &self,
        group: &GroupName,
        topic: &TopicName,
        queue: QueueId,
    ) -> Result<Option<Progress>, StoreError> {
        let state = self.shared.read();
        let (Some(group), Some(topic)) = (state.groups.get(group), state.topics.get(topic)) else {
            return Ok(None);
        };
        let Some(slots) = topic.queues.get(queue.0 as usize) else {
            return Ok(None);
        };
        let progress = match state.progress.get(&(group.uid, topic.uid, queue.0)) {
            Some(progress) => Progress {
                next_offset: QueueOffset(progress.next_offset()),
                committed_offset: QueueOffset(progress.committed_offset()),
                inflight: progress.in_flight().len(),
                is_pinned: true,
            },
            None => {
                let first_offset = QueueOffset(group.first_offset(slots)?);
                Progress { next_offset: first_offset, committed_offset: first_offset, inflight: 0, is_pinned: false }
            }
        };
        Ok(Some(progress))
    }

    /// What of a queue may be delivered again at `now_ms` of log time, rising by offset, at most
    /// `max`; in an ordered group only due ones with nothing undue before them. Those whose
    /// `attempt` has reached the group's maximum will become dead letters when delivered.
    pub fn due(&self, group: &GroupName, topic: &TopicName, queue: QueueId, now_ms: u64, max: usize) -> Vec<Due> {
        let state = self.shared.read();
        let Some((group, topic)) = both(&state, group, topic) else {
            return Vec::new();
        };
        let Some(progress) = state.progress.get(&(group.uid, topic.uid, queue.0)) else {
            return Vec::new();
        };
        let due = progress.due(now_ms, group.order, max).into_iter();
        due.map(|(offset, attempt)| Due { offset: QueueOffset(offset), attempt }).collect()
    }

    /// When the next message of any queue of the topic may be delivered again, log time,
    /// milliseconds since the Unix epoch; `None` if nothing is in flight.
    pub fn next_due_ms(&self, group: &GroupName, topic: &TopicName) -> Option<u64> {
        let state = self.shared.read();
        let (group, topic) = both(&state, group, topic)?;
        rows(&state, group, topic).filter_map(|(_, progress)| progress.next_due_ms(group.order)).min()
    }

    /// The delivery in flight of one message; `None` if it is consumed or was never delivered.
    pub fn delivery(
        &self,
        group: &GroupName,
        topic: &TopicName,
        queue: QueueId,
        offset: QueueOffset,
    ) -> Option<Delivery> {
        let state = self.shared.read();
        let (group, topic) = both(&state, group, topic)?;
        let progress = state.progress.get(&(group.uid, topic.uid, queue.0))?;
        progress.in_flight().get(&offset.0).map(|flight| Delivery {
            slot: flight.slot.resolved(&state.references),
            attempt: flight.attempt,
            seq: flight.seq,
            invisible_until_ms: flight.invisible_until_ms,
            holder: flight.holder,
        })
    }

    /// All deliveries that somebody holds. Goes through all that is in flight: for the beginning of a term.
    pub fn held_deliveries(&self) -> Vec<HeldDelivery> {
        let state = self.shared.read();
        let groups: BTreeMap<u64, &GroupName> = state.groups.iter().map(|(name, group)| (group.uid, name)).collect();
        let mut held = Vec::new();
        for ((group, topic, queue), progress) in state.progress.iter() {
            let (Some(group), Some(topic)) = (groups.get(group), state.topic_names.get(topic)) else { continue };
            for (offset, flight) in progress.in_flight().iter().filter(|(_, flight)| flight.holder != 0) {
                held.push(HeldDelivery {
                    group: (*group).clone(),
                    topic: topic.clone(),
                    queue: QueueId(*queue),
                    offset: QueueOffset(*offset),
                    seq: flight.seq,
                    holder: flight.holder,
                });
            }
        }
        held
    }

    /// Whether a receipt is of this life of the topic: the message at the offset is `message`.
    ///
    /// # Errors
    /// If an index file is damaged or cannot be read.
    pub fn holds(
        &self,
        topic: &TopicName,
        queue: QueueId,
        offset: QueueOffset,
        message: MessageRef,
    ) -> Result<bool, StoreError> {
        let slots = self.slots(topic, queue, offset, 1)?;
        Ok(slots.first().is_some_and(|(at, slot)| *at == offset && slot.message == message))
    }

    /// What earlier tries with this attempt id were granted and still hold at the present log
    /// time, by queue: a repeated receive must be answered from these queues.
    pub fn attempt(&self, group: &GroupName, topic: &TopicName, attempt_id: &str) -> Vec<AttemptGrants> {
        let state = self.shared.read();
        let Some((group, topic)) = both(&state, group, topic) else {
            return Vec::new();
        };
        let key = attempt_key(attempt_id);
        rows(&state, group, topic)
            .map(|(queue, progress)| AttemptGrants {
                queue,
                granted: state.references.resolve(progress.granted_before(key, state.log_time_ms)),
            })
            .filter(|grants| !grants.granted.is_empty())
            .collect()
    }

    /// When the first delayed message is due, wall time, milliseconds since the Unix epoch; `None`
    /// if none waits.
    pub fn next_delayed_ms(&self) -> Option<u64> {
        self.shared.read().timers.next_due_ms()
    }

    /// How many delayed messages wait for their time.
    pub fn delayed_count(&self) -> usize {
        self.shared.read().timers.len()
    }

    /// When the first producer of a half message is to be asked, log time, milliseconds since the
    /// Unix epoch; `None` if there is none to ask.
    pub fn next_check_ms(&self) -> Option<u64> {
        self.shared.read().halves.next_check_ms()
    }

    /// How many half messages there are, and how many of them are parked.
    pub fn half_counts(&self) -> (usize, usize) {
        let state = self.shared.read();
        (state.halves.len(), state.halves.parked_count())
    }

    /// When a half message was stored, milliseconds of log time; `None` if its transaction is not open.
    pub fn prepared_at_ms(&self, message: MessageRef) -> Option<u64> {
        self.shared.read().halves.get(message).map(|half| half.prepared_at_ms)
    }

    /// Half messages, oldest first, at most `max`.
    pub fn open_halves(&self, max: usize) -> Vec<HalfMessage> {
        let state = self.shared.read();
        state.halves.iter().filter_map(|(message, half)| state.half_message(message, &half)).take(max).collect()
    }

    /// Half messages whose producers were asked as often as allowed, oldest first, at most `max`.
    /// They can be read by their slots, and still be committed or rolled back.
    pub fn parked_halves(&self, max: usize) -> Vec<HalfMessage> {
        let state = self.shared.read();
        let parked = state.halves.iter().filter(|(_, half)| half.check_at_ms.is_none());
        parked.filter_map(|(message, half)| state.half_message(message, &half)).take(max).collect()
    }

    /// Log time of the last entry applied, milliseconds since the Unix epoch; 0 before the first.
    /// A new leader stamps its first entry with no less.
    pub fn log_time_ms(&self) -> u64 {
        self.shared.read().log_time_ms
    }

    /// Log index of the last entry applied; 0 before the first.
    pub fn applied(&self) -> u64 {
        self.shared.read().applied
    }

    /// The state's fingerprint. Goes through all of it (but the slots): not for every call.
    pub fn digest(&self) -> StateDigest {
        let state = self.shared.read();
        StateDigest { applied: state.applied, digest: format!("{:032x}", state.digest()) }
    }

    /// Topics of which some queue behind the writable ones can go: all groups that met the topic have consumed it. Each
    /// with its number, at most `max`.
    pub fn drained_topics(&self, max: usize) -> Vec<(TopicName, u64)> {
        let state = self.shared.read();
        let shrinking = state.topics.iter().filter(|(_, topic)| topic.writable_queues < topic.queues.len() as u32);
        let drained = shrinking.filter(|(name, _)| state.has_drained(name));
        drained.take(max).map(|(name, topic)| (name.clone(), topic.uid)).collect()
    }

    /// The feature level that the log has come to; see [`crate::FEATURE_LEVEL`].
    pub fn feature_level(&self) -> u8 {
        self.shared.read().feature_level
    }

    /// How far the window of repeated sends reaches.
    pub fn dedup_status(&self) -> DedupStatus {
        let state = self.shared.read();
        let dedup = &state.dedup;
        DedupStatus { entries: dedup.len(), entries_max: dedup.entries_max(), reach_ms: dedup.reach_ms() }
    }

    /// Reads every index file whole, to find damage before a consumer meets it; answers how many
    /// files there are. Takes as long as the disk needs, outside the store's lock.
    ///
    /// # Errors
    /// The first file that is damaged or cannot be read.
    pub fn verify_index_files(&self) -> Result<usize, StoreError> {
        let files: BTreeMap<u64, Arc<IndexFile>> = {
            let state = self.shared.read();
            let queues = state.topics.values().flat_map(|topic| &topic.queues);
            queues.flat_map(Queue::files).map(|file| (file.id().first_index, file.clone())).collect()
        };
        files.values().try_for_each(|file| file.verify())?;
        Ok(files.len())
    }

    /// Why this node's store failed, if it did: the node must stop.
    pub fn failure(&self) -> Option<String> {
        self.shared.failure().map(str::to_owned)
    }
}

fn both<'a>(state: &'a State, group: &GroupName, topic: &TopicName) -> Option<(&'a Group, &'a Topic)> {
    Some((state.groups.get(group)?, state.topics.get(topic)?))
}

fn rows<'a>(state: &'a State, group: &Group, topic: &Topic) -> impl Iterator<Item = (QueueId, &'a QueueProgress)> {
    let of_topic = (group.uid, topic.uid, 0)..=(group.uid, topic.uid, u32::MAX);
    state.progress.range(of_topic).map(|((_, _, queue), progress)| (QueueId(*queue), progress))
}

fn topic_info(state: &State, name: &TopicName, topic: &Topic) -> TopicInfo {
    TopicInfo {
        name: name.clone(),
        uid: topic.uid,
        message_type: topic.message_type,
        queue_count: topic.queues.len() as u32,
        writable_queues: topic.writable_queues,
        permission: topic.permission,
        level: state.levels.of(topic.uid),
        retention_ms: state.topic_retentions.of(topic.uid),
    }
}

fn group_info(name: &GroupName, group: &Group) -> GroupInfo {
    GroupInfo {
        name: name.clone(),
        uid: group.uid,
        order: group.order,
        max_deliveries: group.max_deliveries,
        start: group.start,
        is_paused: group.is_paused,
        retry_pauses_ms: group.retry_pauses.as_slice().to_vec(),
    }
}
