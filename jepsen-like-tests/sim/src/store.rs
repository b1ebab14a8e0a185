//! The real state machine under simulation: topics, queues and the index files beside the log.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_checkers::{QueueDump, QueueKey, SlotDump};
use flotilla_message::{
    BodyEncoding, GroupName, Message, MessageId, MessageType, Permission, QueueId, QueueOffset, TopicName,
};
use flotilla_raft_log::{Disk, LogIndex, ReplicatedLog};
use flotilla_runtime::BoxFuture;
use flotilla_store::{
    AckResult, ApplyObserver, Command, EntryBuilder, Granted, Outcome, Rejection, Slot, StartPolicy, StoreMachine,
    StoreReader, frame_in,
};
use tokio::sync::Notify;

use crate::executor::lock;
use crate::options::Options;
use crate::replica::{Acknowledged, Batch, Model, Placement, Received};

/// The reader's half of a replica's store.
pub struct Store {
    reader: StoreReader,
    queues: Vec<QueueKey>,
    /// Whether its one group is.
    is_ordered: bool,
    failure: Arc<Failure>,
}

/// Hears of the store's failure.
#[derive(Default)]
struct Failure {
    reason: Mutex<Option<String>>,
    told: Notify,
}

impl ApplyObserver for Failure {
    fn queue_grew(&self, _topic: &TopicName, _queue: QueueId) {}

    fn group_changed(&self, _group: &GroupName, _topic: &TopicName) {}

    fn applied(&self, _index: u64) {}

    fn failed(&self, reason: &str) {
        *lock(&self.reason) = Some(reason.to_owned());
        self.told.notify_waiters();
    }
}

fn topic_name(queue: &QueueKey) -> TopicName {
    TopicName::try_from(queue.topic.as_str()).expect("the simulation's topic has a valid name")
}

fn group_name() -> GroupName {
    GroupName::try_from("workers").expect("the simulation's group has a valid name")
}

/// Messages that one receive takes at most.
const RECEIVE_MAX: usize = 16;

impl Store {
    /// Reads the store of a broker, which takes care of itself.
    pub(crate) fn over(reader: StoreReader, queues: Vec<QueueKey>) -> Store {
        Store { reader, queues, is_ordered: false, failure: Arc::default() }
    }

    fn topic(&self) -> TopicName {
        topic_name(&self.queues[0])
    }

    /// Id and ordinal of the message that a slot refers to.
    fn message_at(
        &self,
        log: &ReplicatedLog<Vec<Outcome>>,
        offset: QueueOffset,
        slot: &Slot,
    ) -> Result<(String, u32), String> {
        let index = slot.entry;
        let entry = log.read(LogIndex(index)).map_err(|error| error.to_string())?;
        let entry = entry.ok_or_else(|| format!("offset {offset} refers to entry {index}, which is not in the log"))?;
        let frame = frame_in(&entry.payload, slot).map_err(|error| format!("offset {offset}: {error}"))?;
        Ok((frame.id().to_owned(), slot.message.ordinal))
    }
}

impl Model for Store {
    type Output = Vec<Outcome>;
    type Machine = StoreMachine;

    fn open(
        disk: Arc<dyn Disk>,
        dir: &Path,
        queues: &[QueueKey],
        options: &Options,
    ) -> Result<(StoreMachine, Store), String> {
        let failure = Arc::new(Failure::default());
        let dir = dir.parent().unwrap_or(dir).join("store");
        let (machine, reader) = flotilla_store::open(disk, dir, failure.clone()).map_err(|error| error.to_string())?;
        let is_ordered = options.is_ordered;
        Ok((machine, Store { reader, queues: queues.to_vec(), is_ordered, failure }))
    }

    fn found(&self, log_time_ms: u64, term: u64) -> Bytes {
        let mut entry = EntryBuilder::new(log_time_ms, term);
        entry.push(&Command::CreateTopic {
            name: self.topic(),
            message_type: MessageType::Normal,
            queue_count: self.queues.len() as u32,
            permission: Permission::ReadWrite,
        });
        entry.push(&Command::CreateGroup {
            name: group_name(),
            order: self.is_ordered,
            max_deliveries: flotilla_message::limits::MAX_DELIVERIES_MAX,
            start: StartPolicy::First,
        });
        entry.finish()
    }

    fn encode(&self, batch: &Batch, log_time_ms: u64, term: u64) -> Bytes {
        let topic = topic_name(&batch.queue);
        let frame = |message_id: &String| {
            let message = Message {
                topic: topic.clone(),
                message_type: MessageType::Normal,
                id: MessageId::try_from(message_id.as_str()).expect("the simulation's ids are visible ASCII"),
                tag: None,
                keys: Vec::new(),
                group: None,
                properties: std::collections::BTreeMap::new(),
                body: vec![b'x'; batch.body_bytes].into(),
                body_encoding: BodyEncoding::Identity,
                born_at_ms: log_time_ms,
                born_host: "sim".to_owned(),
                trace_context: None,
                delivery_at_ms: None,
            };
            message.encode().expect("the simulation's messages are valid")
        };
        let frames = batch.message_ids.iter().map(frame).collect();
        let mut entry = EntryBuilder::new(log_time_ms, term);
        entry.push(&Command::Produce { topic: topic.clone(), queue: QueueId(batch.queue.queue), frames });
        entry.finish()
    }

    fn places(&self, batch: &Batch, output: Vec<Outcome>) -> Placement {
        match output.into_iter().next() {
            Some(Outcome::Produced { offsets, .. }) => {
                let topic = &batch.queue.topic;
                let place = |slot: flotilla_store::ProducedSlot| (QueueKey::new(topic, slot.queue.0), slot.offset.0);
                Placement::Placed(offsets.into_iter().map(place).collect())
            }
            Some(Outcome::Rejected(Rejection::StoreFailed { .. })) => Placement::Failed,
            other => Placement::Rejected(format!("{other:?}")),
        }
    }

    fn deliver(
        &self,
        queue: &QueueKey,
        attempt_id: String,
        log_time_ms: u64,
        term: u64,
        invisible: Duration,
    ) -> Option<Bytes> {
        let (group, topic, number) = (group_name(), topic_name(queue), QueueId(queue.queue));
        let due = self.reader.due(&group, &topic, number, log_time_ms, RECEIVE_MAX);
        let mut offsets: Vec<QueueOffset> = due.into_iter().map(|due| due.offset).collect();
        let next = self.reader.progress(&group, &topic, number).ok()??.next_offset;
        let (_, end) = self.reader.queue_bounds(&topic, number)?;
        let room = (RECEIVE_MAX - offsets.len()) as u64;
        offsets.extend((next.0..end.0.min(next.0 + room)).map(QueueOffset));
        if offsets.is_empty() {
            return None;
        }
        let attempt_id = Some(attempt_id);
        let invisible_until_ms = log_time_ms + invisible.as_millis() as u64;
        let mut entry = EntryBuilder::new(log_time_ms, term);
        entry.push(&Command::Deliver {
            group,
            topic,
            queue: number,
            attempt_id,
            invisible_until_ms,
            offsets,
            skip: None,
        });
        Some(entry.finish())
    }

    fn received(
        &self,
        log: &ReplicatedLog<Vec<Outcome>>,
        queue: &QueueKey,
        output: Vec<Outcome>,
    ) -> Result<Vec<Received>, String> {
        let granted = match output.into_iter().next() {
            Some(Outcome::Delivered { granted, .. }) => granted,
            Some(Outcome::Rejected(Rejection::StoreFailed { .. })) => return Ok(Vec::new()),
            other => return Err(format!("{other:?}")),
        };
        let granted = granted.into_iter().filter(|grant| !grant.dead_lettered);
        let received = granted.map(|grant| {
            let (message_id, _) = self.message_at(log, grant.offset, &grant.slot)?;
            let Granted { offset, attempt, seq, .. } = grant;
            Ok(Received { queue: queue.clone(), offset: offset.0, message_id, attempt, seq, handle: String::new() })
        });
        received.collect()
    }

    fn acknowledge(&self, received: &[Received], log_time_ms: u64, term: u64) -> Bytes {
        let mut entry = EntryBuilder::new(log_time_ms, term);
        if let Some(first) = received.first() {
            entry.push(&Command::Ack {
                group: group_name(),
                topic: topic_name(&first.queue),
                queue: QueueId(first.queue.queue),
                receipts: received.iter().map(|received| (QueueOffset(received.offset), received.seq)).collect(),
            });
        }
        entry.finish()
    }

    fn acknowledged(&self, output: Vec<Outcome>) -> Acknowledged {
        let is_settled = |result: &AckResult| matches!(result, AckResult::Acked | AckResult::AlreadyAcked);
        match output.first() {
            Some(Outcome::Acked { results }) if results.iter().all(is_settled) => Acknowledged::All,
            _ => Acknowledged::NotAll,
        }
    }

    fn log_time_ms(&self) -> u64 {
        self.reader.log_time_ms()
    }

    fn is_founded(&self) -> bool {
        self.reader.topic(&self.topic()).is_some() && self.reader.group(&group_name()).is_some()
    }

    fn read(
        &self,
        log: &ReplicatedLog<Vec<Outcome>>,
        queue: &QueueKey,
        last: Option<u64>,
    ) -> Result<QueueDump, String> {
        let (topic, number) = (topic_name(queue), QueueId(queue.queue));
        let Some((min, max)) = self.reader.queue_bounds(&topic, number) else {
            return Ok(QueueDump { queue: queue.clone(), offset_min: 0, slots: Vec::new() });
        };
        let from = last.map_or(min.0, |last| max.0.saturating_sub(last).max(min.0));
        let count = (max.0 - from) as usize;
        let slots = self.reader.slots(&topic, number, QueueOffset(from), count).map_err(|error| error.to_string())?;
        if slots.len() != count {
            return Err(format!("{count} slots from {from} on were asked for, {} were found", slots.len()));
        }
        let mut read = Vec::with_capacity(slots.len());
        for (offset, slot) in slots {
            let (message_id, ordinal) = self.message_at(log, offset, &slot)?;
            let log_index = slot.message.index;
            read.push(SlotDump { offset: offset.0, message_id, log_index, ordinal });
        }
        Ok(QueueDump { queue: queue.clone(), offset_min: min.0, slots: read })
    }

    fn queues(&self) -> &[QueueKey] {
        &self.queues
    }

    fn digest(&self) -> (u64, String) {
        let digest = self.reader.digest();
        (digest.applied, digest.digest)
    }

    fn failed(&self) -> BoxFuture<'static, String> {
        let failure = self.failure.clone();
        Box::pin(async move {
            loop {
                if let Some(reason) = lock(&failure.reason).clone() {
                    return format!("the store failed: {reason}");
                }
                failure.told.notified().await;
            }
        })
    }
}
