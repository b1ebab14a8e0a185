//! The rows of the state's tables as plain data, as a checkpoint holds them.

use std::collections::{BTreeMap, VecDeque};

use bincode::{Decode, Encode};
use flotilla_message::{GroupName, MessageRef, MessageType, Permission, QueueId, TopicName};

use crate::dedup::Seen;
use crate::levels::{TopicLevel, ack_code, flush_code, level_of};
use crate::outcome::Ending;
use crate::placement::Placement;
use crate::progress::{Attempt, InFlight, QueueProgress};
use crate::queue::Queue;
use crate::state::{Group, ProgressKey, RetryPauses, Topic};
use crate::{Slot, StartPolicy, TopicShare, TopicShares};

/// In a slot's length: the slot is a reference.
const REFERENCE_BIT: u32 = 1 << 31;

#[derive(Encode, Decode)]
pub(super) struct TopicImage {
    name: String,
    uid: u64,
    message_type: u8,
    permission: u8,
    writable_queues: u32,
    /// Queue and end.
    retired: Vec<(u32, u64)>,
    ack: u8,
    flush: u8,
    /// Milliseconds; 0: as long as the log.
    retention_ms: u64,
    queues: Vec<QueueImage>,
}

#[derive(Encode, Decode)]
struct QueueImage {
    min: u64,
    max: u64,
    hash: u128,
    references: u64,
}

/// Slots of a queue that stand in memory: a dense range.
#[derive(Encode, Decode)]
pub(super) struct SlotRun {
    pub topic_uid: u64,
    pub queue: u32,
    pub first_offset: u64,
    slots: Vec<SlotImage>,
}

impl SlotRun {
    pub fn of(topic_uid: u64, queue: u32, first_offset: u64, slots: &[Slot]) -> SlotRun {
        SlotRun { topic_uid, queue, first_offset, slots: slots.iter().map(slot_image).collect() }
    }

    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.slots.iter().map(slot_of)
    }
}

#[derive(Encode, Decode)]
struct SlotImage {
    index: u64,
    ordinal: u32,
    position: u32,
    length: u32,
    tag_hash: u32,
    stored_at_ms: u64,
}

#[derive(Encode, Decode)]
pub(super) struct GroupImage {
    name: String,
    uid: u64,
    order: bool,
    max_deliveries: u32,
    start: StartImage,
    is_paused: bool,
    retry_pauses_ms: Vec<u32>,
}

#[derive(Encode, Decode)]
enum StartImage {
    First,
    Last,
    TimestampMs(u64),
}

#[derive(Encode, Decode)]
pub(super) struct ProgressImage {
    group_uid: u64,
    topic_uid: u64,
    queue: u32,
    next_offset: u64,
    in_flight: Vec<InFlightImage>,
    attempts: Vec<AttemptImage>,
}

#[derive(Encode, Decode)]
struct InFlightImage {
    offset: u64,
    attempt: u32,
    seq: u32,
    previous_seq: Option<u32>,
    invisible_until_ms: u64,
    holder: u64,
    slot: SlotImage,
}

#[derive(Encode, Decode)]
struct AttemptImage {
    id: u128,
    grants: Vec<(u64, u32)>,
}

/// Rows of a window, of which the first has that serial number.
#[derive(Encode, Decode)]
pub(super) struct WindowPart<T> {
    pub first_serial: u64,
    pub rows: Vec<T>,
}

#[derive(Encode, Decode)]
pub(super) struct EndedImage {
    index: u64,
    ordinal: u32,
    ending: u8,
}

pub(super) fn ended_image((message, ending): (MessageRef, Ending)) -> EndedImage {
    EndedImage { index: message.index, ordinal: message.ordinal, ending: ending.code() }
}

pub(super) fn ended_of(image: &EndedImage) -> Result<(MessageRef, Ending), String> {
    let ending = Ending::from_code(image.ending).ok_or("an ending is unknown")?;
    Ok((MessageRef { index: image.index, ordinal: image.ordinal }, ending))
}

#[derive(Encode, Decode)]
pub(super) struct PlacementImage {
    is_write_wiped: bool,
    topics: Vec<SharesImage>,
}

#[derive(Encode, Decode)]
struct SharesImage {
    topic: String,
    version: u64,
    is_moving: bool,
    /// Broker group and queues.
    shares: Vec<(String, u32)>,
}

pub(super) fn placement_image(placement: &Placement) -> PlacementImage {
    let shares_image = |(name, shares): (&TopicName, &TopicShares)| SharesImage {
        topic: name.to_string(),
        version: shares.version,
        is_moving: shares.is_moving,
        shares: shares.shares.iter().map(|share| (share.broker_group.clone(), share.queue_count)).collect(),
    };
    PlacementImage { is_write_wiped: placement.is_write_wiped(), topics: placement.rows().map(shares_image).collect() }
}

pub(super) fn placement_of(image: PlacementImage) -> Result<Placement, String> {
    let mut topics = BTreeMap::new();
    for SharesImage { topic, version, is_moving, shares } in image.topics {
        let name = TopicName::try_from(topic).map_err(|error| error.to_string())?;
        let share = |(broker_group, queue_count)| TopicShare { broker_group, queue_count };
        topics.insert(name, TopicShares { version, is_moving, shares: shares.into_iter().map(share).collect() });
    }
    Ok(Placement::restored(image.is_write_wiped, topics))
}

#[derive(Encode, Decode)]
pub(super) struct SeenImage {
    key: u128,
    at_ms: u64,
    mark: u64,
    index: u64,
    ordinal: u32,
    queue: u32,
}

pub(super) fn topic_image(name: &TopicName, topic: &Topic, level: TopicLevel, retention_ms: Option<u64>) -> TopicImage {
    let queue_image = |queue: &Queue| QueueImage {
        min: queue.min(),
        max: queue.max(),
        hash: queue.hash(),
        references: queue.references(),
    };
    TopicImage {
        name: name.to_string(),
        uid: topic.uid,
        message_type: topic.message_type.code(),
        permission: topic.permission.code(),
        writable_queues: topic.writable_queues,
        retired: topic.retired.iter().map(|(queue, end)| (*queue, *end)).collect(),
        ack: ack_code(level.ack),
        flush: flush_code(level.flush),
        retention_ms: retention_ms.unwrap_or(0),
        queues: topic.queues.iter().map(queue_image).collect(),
    }
}

/// A topic of a part.
pub(super) struct RestoredTopic {
    pub name: TopicName,
    pub topic: Topic,
    pub level: TopicLevel,
    pub retention_ms: Option<u64>,
}

pub(super) fn topic_of(image: TopicImage) -> Result<RestoredTopic, String> {
    let name = TopicName::try_from(image.name).map_err(|error| error.to_string())?;
    let (uid, writable_queues) = (image.uid, image.writable_queues);
    if writable_queues == 0 || writable_queues as usize > image.queues.len() {
        return Err(format!("topic number {uid} takes messages in {writable_queues} queues"));
    }
    let topic = Topic {
        uid,
        message_type: MessageType::from_code(image.message_type).ok_or("it has an unknown message type")?,
        permission: Permission::from_code(image.permission).ok_or("it has an unknown permission")?,
        writable_queues,
        queues: image.queues.into_iter().map(queue_of).collect::<Result<_, _>>()?,
        retired: image.retired.into_iter().collect(),
    };
    let level = level_of(image.ack, image.flush).ok_or("a level of a topic is unknown")?;
    Ok(RestoredTopic { name, topic, level, retention_ms: Some(image.retention_ms).filter(|ms| *ms > 0) })
}

fn queue_of(image: QueueImage) -> Result<Queue, String> {
    let slots = image.max.checked_sub(image.min).ok_or("a queue ends before it begins")?;
    if image.references > slots {
        return Err("a queue has more references than offsets".to_owned());
    }
    Ok(Queue::restored(image.min, image.max, image.hash, image.references))
}

pub(super) fn group_image(name: &GroupName, group: &Group) -> GroupImage {
    GroupImage {
        name: name.to_string(),
        uid: group.uid,
        order: group.order,
        max_deliveries: group.max_deliveries,
        start: match group.start {
            StartPolicy::First => StartImage::First,
            StartPolicy::Last => StartImage::Last,
            StartPolicy::TimestampMs(at_ms) => StartImage::TimestampMs(at_ms),
        },
        is_paused: group.is_paused,
        retry_pauses_ms: group.retry_pauses.as_slice().to_vec(),
    }
}

pub(super) fn group_of(image: GroupImage) -> Result<(GroupName, Group), String> {
    let name = GroupName::try_from(image.name).map_err(|error| error.to_string())?;
    let group = Group {
        uid: image.uid,
        order: image.order,
        max_deliveries: image.max_deliveries,
        start: match image.start {
            StartImage::First => StartPolicy::First,
            StartImage::Last => StartPolicy::Last,
            StartImage::TimestampMs(at_ms) => StartPolicy::TimestampMs(at_ms),
        },
        is_paused: image.is_paused,
        retry_pauses: RetryPauses::new(&image.retry_pauses_ms).ok_or("a retry table is out of range")?,
    };
    Ok((name, group))
}

pub(super) fn progress_image(key: &ProgressKey, progress: &QueueProgress) -> ProgressImage {
    let (group_uid, topic_uid, queue) = *key;
    let attempt_image = |attempt: &Attempt| AttemptImage { id: attempt.id, grants: attempt.grants.clone() };
    ProgressImage {
        group_uid,
        topic_uid,
        queue,
        next_offset: progress.next_offset(),
        in_flight: progress.in_flight().iter().map(in_flight_image).collect(),
        attempts: progress.attempts().iter().map(attempt_image).collect(),
    }
}

fn in_flight_image((offset, flight): (&u64, &InFlight)) -> InFlightImage {
    InFlightImage {
        offset: *offset,
        attempt: flight.attempt,
        seq: flight.seq,
        previous_seq: flight.previous_seq,
        invisible_until_ms: flight.invisible_until_ms,
        holder: flight.holder,
        slot: slot_image(&flight.slot),
    }
}

pub(super) fn progress_of(row: ProgressImage) -> (ProgressKey, QueueProgress) {
    let key = (row.group_uid, row.topic_uid, row.queue);
    let in_flight: BTreeMap<u64, InFlight> = row
        .in_flight
        .iter()
        .map(|image| {
            let flight = InFlight {
                attempt: image.attempt,
                seq: image.seq,
                previous_seq: image.previous_seq,
                invisible_until_ms: image.invisible_until_ms,
                holder: image.holder,
                slot: slot_of(&image.slot),
            };
            (image.offset, flight)
        })
        .collect();
    let attempts: VecDeque<Attempt> =
        row.attempts.into_iter().map(|image| Attempt { id: image.id, grants: image.grants }).collect();
    (key, QueueProgress::restored(row.next_offset, in_flight, attempts))
}

fn slot_image(slot: &Slot) -> SlotImage {
    SlotImage {
        index: slot.message.index,
        ordinal: slot.message.ordinal,
        position: slot.position,
        length: slot.length | if slot.is_reference { REFERENCE_BIT } else { 0 },
        tag_hash: slot.tag_hash,
        stored_at_ms: slot.stored_at_ms,
    }
}

fn slot_of(image: &SlotImage) -> Slot {
    Slot {
        message: MessageRef { index: image.index, ordinal: image.ordinal },
        entry: image.index,
        position: image.position,
        length: image.length & !REFERENCE_BIT,
        is_reference: image.length & REFERENCE_BIT != 0,
        tag_hash: image.tag_hash,
        stored_at_ms: image.stored_at_ms,
    }
}

pub(super) fn seen_image(seen: &Seen) -> SeenImage {
    SeenImage {
        key: seen.key,
        at_ms: seen.at_ms,
        mark: seen.mark,
        index: seen.message.index,
        ordinal: seen.message.ordinal,
        queue: seen.queue.0,
    }
}

pub(super) fn seen_of(image: SeenImage) -> Seen {
    Seen {
        key: image.key,
        at_ms: image.at_ms,
        mark: image.mark,
        message: MessageRef { index: image.index, ordinal: image.ordinal },
        queue: QueueId(image.queue),
    }
}
