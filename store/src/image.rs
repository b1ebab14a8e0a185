//! The checkpoint: the whole state as bytes, with the names of the index files it relies on.

use std::collections::{BTreeMap, VecDeque};

use bincode::{Decode, Encode};
use flotilla_message::{GroupName, MessageRef, MessageType, Permission, QueueId, TopicName};
use flotilla_planted_bugs::{Bug, is_planted};

use crate::dedup::{DedupWindow, Seen};
use crate::held_image::{self, HeldPart};
use crate::index_file::IndexFileId;
use crate::levels::{self, LevelsPart};
use crate::progress::{Attempt, InFlight, QueueProgress};
use crate::queue::Queue;
use crate::retention_image::{self, RetentionPart};
use crate::settings_image::{self, SettingsPart};
use crate::state::{Group, RetryPauses, State, Topic};
use crate::{Slot, StartPolicy};

/// The numbers of the envelope; `docs/formats/checkpoint-state.md` draws it.
mod layout {
    pub const MAGIC: [u8; 4] = *b"FLSC";
    pub const VERSION: u16 = 4;
    /// The oldest version that is read: those before it count no references. Nothing was ever purged by the programs
    /// that wrote them, so the whole log is there to be applied again.
    pub const VERSION_MIN: u16 = 4;
    pub const VERSION_AT: usize = 4;
    pub const FLAGS_AT: usize = 6;
    pub const BODY_BYTES_AT: usize = 8;
    pub const CRC_AT: usize = 16;
    pub const HEADER_BYTES: usize = 20;

    /// The node's store had failed: the body is the reason, and must not be restored.
    pub const FLAG_FAILED: u16 = 1;
}

/// In a slot's length: the slot is a reference.
const REFERENCE_BIT: u32 = 1 << 31;

/// Largest state a checkpoint may hold, bytes: bounds what a damaged length can ask for.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 30;

#[derive(Encode, Decode)]
struct Image {
    applied: u64,
    log_time_ms: u64,
    last_uid: u64,
    last_seq: u32,
    /// Log index after the last index file's, where the open segment begins.
    open_index: u64,
    index_files: Vec<IndexFileId>,
    topics: Vec<TopicImage>,
    groups: Vec<GroupImage>,
    progress: Vec<ProgressImage>,
    dedup_first_serial: u64,
    dedup_hash: u128,
    dedup: Vec<SeenImage>,
}

#[derive(Encode, Decode)]
struct TopicImage {
    name: String,
    uid: u64,
    message_type: u8,
    permission: u8,
    queues: Vec<QueueImage>,
}

#[derive(Encode, Decode)]
struct QueueImage {
    min: u64,
    max: u64,
    hash: u128,
    open: Vec<SlotImage>,
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
struct GroupImage {
    name: String,
    uid: u64,
    order: bool,
    max_deliveries: u32,
    start: StartImage,
}

#[derive(Encode, Decode)]
enum StartImage {
    First,
    Last,
    TimestampMs(u64),
}

#[derive(Encode, Decode)]
struct ProgressImage {
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
    slot: SlotImage,
}

#[derive(Encode, Decode)]
struct AttemptImage {
    id: u128,
    grants: Vec<(u64, u32)>,
}

#[derive(Encode, Decode)]
struct SeenImage {
    key: u128,
    at_ms: u64,
    mark: u64,
    index: u64,
    ordinal: u32,
    queue: u32,
}

/// A checkpoint read back.
#[derive(Debug)]
pub(crate) struct Restored {
    pub state: State,
    pub open_index: u64,
    pub index_files: Vec<IndexFileId>,
}

/// The state held fast; making bytes of it takes longer, and needs the state no more.
pub(crate) struct FrozenState {
    image: Image,
    held: HeldPart,
    settings: SettingsPart,
    levels: LevelsPart,
    retention: RetentionPart,
}

impl FrozenState {
    pub fn of(state: &State, open_index: u64, index_files: Vec<IndexFileId>) -> FrozenState {
        FrozenState {
            image: image_of(state, open_index, index_files),
            held: held_image::part_of(state),
            settings: settings_image::part_of(state),
            levels: levels::part_of(state),
            retention: retention_image::part_of(state),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        put(&self.image, &mut body);
        put(&self.held, &mut body);
        put(&self.settings, &mut body);
        put(&self.levels, &mut body);
        put(&self.retention, &mut body);
        envelope(&body, 0)
    }
}

fn put(part: &impl Encode, body: &mut Vec<u8>) {
    bincode::encode_into_std_write(part, body, bincode::config::standard())
        .expect("plain data encodes into memory without an error");
}

fn image_of(state: &State, open_index: u64, index_files: Vec<IndexFileId>) -> Image {
    Image {
        applied: state.applied,
        log_time_ms: state.log_time_ms,
        last_uid: state.last_uid,
        last_seq: state.last_seq,
        open_index,
        index_files,
        topics: state.topics.iter().map(topic_image).collect(),
        groups: state.groups.iter().map(group_image).collect(),
        progress: state
            .progress
            .iter()
            .filter(|_| !is_planted(Bug::ProgressInMemory))
            .map(|((group_uid, topic_uid, queue), progress)| ProgressImage {
                group_uid: *group_uid,
                topic_uid: *topic_uid,
                queue: *queue,
                next_offset: progress.next_offset(),
                in_flight: progress.in_flight().iter().map(in_flight_image).collect(),
                attempts: progress
                    .attempts()
                    .iter()
                    .map(|attempt| AttemptImage { id: attempt.id, grants: attempt.grants.clone() })
                    .collect(),
            })
            .collect(),
        dedup_first_serial: state.dedup.first_serial(),
        dedup_hash: state.dedup.hash(),
        dedup: state.dedup.iter().filter(|_| !is_planted(Bug::DuplicatesForgotten)).map(seen_image).collect(),
    }
}

/// What a failed store answers instead of its state.
pub(crate) fn encode_failed(reason: &str) -> Vec<u8> {
    envelope(reason.as_bytes(), layout::FLAG_FAILED)
}

fn envelope(body: &[u8], flags: u16) -> Vec<u8> {
    let mut out = Vec::with_capacity(layout::HEADER_BYTES + body.len());
    out.extend_from_slice(&layout::MAGIC);
    out.extend_from_slice(&layout::VERSION.to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(&(body.len() as u64).to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out), body);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(body);
    out
}

/// Reads a checkpoint back; the runs of its queues are not there yet.
pub(crate) fn decode(bytes: &[u8]) -> Result<Restored, String> {
    let (flags, body) = open_envelope(bytes)?;
    if flags == layout::FLAG_FAILED {
        return Err(format!("it was taken after the store had failed: {}", String::from_utf8_lossy(body)));
    }
    if flags != 0 {
        return Err(format!("its flags {flags:#x} are unknown"));
    }
    let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
    let (image, used) =
        bincode::decode_from_slice::<Image, _>(body, config).map_err(|error| format!("its body: {error}"))?;
    let mut restored = state_of(image)?;
    let used = used + held_image::decode(&mut restored.state, &body[used..])?;
    let used = used + settings_image::decode(&mut restored.state, &body[used..])?;
    let used = used + levels::decode(&mut restored.state, &body[used..])?;
    let used = used + retention_image::decode(&mut restored.state, &body[used..])?;
    if used != body.len() {
        return Err(format!("its body has {} bytes, {used} of them are used", body.len()));
    }
    Ok(restored)
}

/// Flags and body.
fn open_envelope(bytes: &[u8]) -> Result<(u16, &[u8]), String> {
    let Some((header, body)) = bytes.split_first_chunk::<{ layout::HEADER_BYTES }>() else {
        return Err(format!("it has {} bytes, its header alone has {}", bytes.len(), layout::HEADER_BYTES));
    };
    if header[..4] != layout::MAGIC {
        return Err("it does not begin with its magic".to_owned());
    }
    let version = u16::from_le_bytes([header[layout::VERSION_AT], header[layout::VERSION_AT + 1]]);
    if !(layout::VERSION_MIN..=layout::VERSION).contains(&version) {
        let (min, max) = (layout::VERSION_MIN, layout::VERSION);
        return Err(format!("its version is {version}, {min} to {max} are known"));
    }
    let mut said = [0; 8];
    said.copy_from_slice(&header[layout::BODY_BYTES_AT..layout::CRC_AT]);
    if u64::from_le_bytes(said) != body.len() as u64 {
        return Err(format!("its body has {} bytes, it says {}", body.len(), u64::from_le_bytes(said)));
    }
    let mut found = [0; 4];
    found.copy_from_slice(&header[layout::CRC_AT..]);
    let computed = crc32c::crc32c_append(crc32c::crc32c(&header[..layout::CRC_AT]), body);
    if u32::from_le_bytes(found) != computed {
        return Err("it does not fit its checksum".to_owned());
    }
    let flags = u16::from_le_bytes([header[layout::FLAGS_AT], header[layout::FLAGS_AT + 1]]);
    Ok((flags, body))
}

fn state_of(image: Image) -> Result<Restored, String> {
    let mut state = State::new();
    state.applied = image.applied;
    state.log_time_ms = image.log_time_ms;
    state.last_uid = image.last_uid;
    state.last_seq = image.last_seq;
    for topic in image.topics {
        let name = TopicName::try_from(topic.name).map_err(|error| error.to_string())?;
        state.topic_names.insert(topic.uid, name.clone());
        state.topics.insert(
            name,
            Topic {
                uid: topic.uid,
                message_type: MessageType::from_code(topic.message_type).ok_or("it has an unknown message type")?,
                permission: Permission::from_code(topic.permission).ok_or("it has an unknown permission")?,
                writable_queues: topic.queues.len() as u32,
                queues: topic.queues.into_iter().map(queue_of).collect::<Result<_, _>>()?,
                retired: BTreeMap::new(),
            },
        );
    }
    for group in image.groups {
        let name = GroupName::try_from(group.name).map_err(|error| error.to_string())?;
        state.groups.insert(
            name,
            Group {
                uid: group.uid,
                order: group.order,
                max_deliveries: group.max_deliveries,
                start: match group.start {
                    StartImage::First => StartPolicy::First,
                    StartImage::Last => StartPolicy::Last,
                    StartImage::TimestampMs(at_ms) => StartPolicy::TimestampMs(at_ms),
                },
                is_paused: false,
                retry_pauses: RetryPauses::default(),
            },
        );
    }
    for row in image.progress {
        let key = (row.group_uid, row.topic_uid, row.queue);
        state.progress.insert(key, progress_of(row));
    }
    let seen = image.dedup.into_iter().map(seen_of).collect();
    state.dedup = DedupWindow::restored(image.dedup_first_serial, image.dedup_hash, seen);
    Ok(Restored { state, open_index: image.open_index, index_files: image.index_files })
}

fn topic_image((name, topic): (&TopicName, &Topic)) -> TopicImage {
    let queue_image = |queue: &Queue| QueueImage {
        min: queue.min(),
        max: queue.max(),
        hash: queue.hash(),
        open: queue.open().iter().map(slot_image).collect(),
    };
    TopicImage {
        name: name.to_string(),
        uid: topic.uid,
        message_type: topic.message_type.code(),
        permission: topic.permission.code(),
        queues: topic.queues.iter().map(queue_image).collect(),
    }
}

fn queue_of(image: QueueImage) -> Result<Queue, String> {
    let slots = image.max.checked_sub(image.min).ok_or("a queue ends before it begins")?;
    if image.open.len() as u64 > slots {
        return Err("a queue has more slots than offsets".to_owned());
    }
    let open = image.open.iter().map(slot_of).collect();
    Ok(Queue::restored(image.min, image.max, image.hash, open))
}

fn group_image((name, group): (&GroupName, &Group)) -> GroupImage {
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
    }
}

fn in_flight_image((offset, flight): (&u64, &InFlight)) -> InFlightImage {
    InFlightImage {
        offset: *offset,
        attempt: flight.attempt,
        seq: flight.seq,
        previous_seq: flight.previous_seq,
        invisible_until_ms: flight.invisible_until_ms,
        slot: slot_image(&flight.slot),
    }
}

fn progress_of(row: ProgressImage) -> QueueProgress {
    let in_flight: BTreeMap<u64, InFlight> = row
        .in_flight
        .iter()
        .map(|image| {
            let flight = InFlight {
                attempt: image.attempt,
                seq: image.seq,
                previous_seq: image.previous_seq,
                invisible_until_ms: image.invisible_until_ms,
                holder: 0,
                slot: slot_of(&image.slot),
            };
            (image.offset, flight)
        })
        .collect();
    let attempts: VecDeque<Attempt> =
        row.attempts.into_iter().map(|image| Attempt { id: image.id, grants: image.grants }).collect();
    QueueProgress::restored(row.next_offset, in_flight, attempts)
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

fn seen_image(seen: &Seen) -> SeenImage {
    SeenImage {
        key: seen.key,
        at_ms: seen.at_ms,
        mark: seen.mark,
        index: seen.message.index,
        ordinal: seen.message.ordinal,
        queue: seen.queue.0,
    }
}

fn seen_of(image: SeenImage) -> Seen {
    Seen {
        key: image.key,
        at_ms: image.at_ms,
        mark: image.mark,
        message: MessageRef { index: image.index, ordinal: image.ordinal },
        queue: QueueId(image.queue),
    }
}
