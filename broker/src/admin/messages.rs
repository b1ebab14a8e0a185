//! Looking for messages, and what became of one in each group.

use std::sync::Arc;

use flotilla_message::{FrameView, GroupName, QueueId, QueueOffset, TopicName};
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::key_index::{KeyText, KeyView};
use flotilla_store::{Slot, StoreError, TopicInfo};

use crate::consume::frames::{FrameReadError, Frames};
use crate::consume::offsets::NamedQueue;
use crate::consume::pull::read_message;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// Messages of one answer that does not say how many, and the most of any.
const COUNT_DEFAULT: u32 = 32;
const COUNT_MAX: u32 = 256;
/// Bytes of messages in one answer, about.
const ANSWER_BYTES_MAX: usize = 8 << 20;
/// Messages that one call looks at; the caller goes on where it ended.
const LOOK_MAX: u64 = 20_000;
/// Slots read at once.
const LOOK_CHUNK: usize = 256;
/// Dead letters of one group that are looked through for a message.
const DEAD_LETTERS_LOOK_MAX: usize = 10_000;

/// How many messages a caller gets.
pub fn count_of(asked: u32) -> usize {
    if asked == 0 { COUNT_DEFAULT as usize } else { asked.min(COUNT_MAX) as usize }
}

/// Why messages could not be read.
#[derive(Debug)]
pub enum ReadError {
    /// An index file is damaged: the replica must not go on.
    Store(StoreError),
    /// A message is damaged, or the log does not hold what a queue refers to.
    Frame(FrameReadError),
}

impl ReadError {
    /// The status; stops the replica if it must.
    pub fn told(self, replica: &Replica) -> v2::Status {
        let text = match self {
            ReadError::Store(error) => {
                replica.failure.set(error.to_string());
                error.to_string()
            }
            ReadError::Frame(error) => error.to_string(),
        };
        status(Code::InternalServerError, text)
    }
}

/// A message with its place.
pub fn found(
    replica: &Replica,
    topic: &TopicName,
    queue: QueueId,
    offset: QueueOffset,
    slot: &Slot,
    frame: &FrameView,
) -> admin::FoundMessage {
    let (min, max) = replica.store.queue_bounds(topic, queue).unwrap_or_default();
    let named = NamedQueue { topic: topic.clone(), queue, min, max };
    let resource = v2::Resource { name: topic.to_string(), ..Default::default() };
    let message = read_message(replica, &named, resource, offset, slot, frame);
    admin::FoundMessage { topic: topic.to_string(), queue: queue.0, offset: offset.0, message: Some(message) }
}

/// Looks for messages by place, time, key or id.
pub struct FindMessages;

impl LeaderCall for FindMessages {
    type Request = admin::FindMessagesRequest;
    type Answer = admin::FindMessagesReply;
    const METHOD: &'static str = "FindMessages";

    fn is_idempotent(_: &admin::FindMessagesRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::FindMessagesRequest,
        _attempt: Attempt,
    ) -> Tried<admin::FindMessagesReply> {
        let refuse = |status| admin::FindMessagesReply { status: Some(status), ..Default::default() };
        let topic = match TopicName::try_from(request.topic.as_str()) {
            Ok(topic) => topic,
            Err(error) => return Tried::answer(refuse(error.status())),
        };
        let Some(info) = replica.store.topic(&topic) else {
            return Tried::answer(refuse(no_topic(&topic)));
        };
        if let Some(queue) = request.queue.filter(|queue| *queue >= info.queue_count) {
            let text = format!("topic '{topic}' has no queue {queue}; it has {}, counted from 0", info.queue_count);
            return Tried::answer(refuse(status(Code::BadRequest, text)));
        }
        let searched = search(replica, &info, request).await;
        Tried::answer(searched.unwrap_or_else(|error| refuse(error.told(replica))))
    }

    fn refusal(_: &admin::FindMessagesRequest, status: v2::Status) -> admin::FindMessagesReply {
        admin::FindMessagesReply { status: Some(status), ..Default::default() }
    }
}

/// Goes through the queues asked for, one after the other, until it has enough or has looked at enough.
async fn search(
    replica: &Replica,
    info: &TopicInfo,
    request: &admin::FindMessagesRequest,
) -> Result<admin::FindMessagesReply, ReadError> {
    let topic = &info.name;
    let store = &replica.store;
    let mut reply = admin::FindMessagesReply { status: Some(ok()), ..Default::default() };
    let mut frames = Frames::new(replica);
    let (count, mut bytes) = (count_of(request.count), 0);
    let queues = request.queue.map_or(0..info.queue_count, |queue| queue..queue + 1);
    let view = key_view(replica, info.uid, request);
    for queue in queues.map(QueueId) {
        let first = match request.from_offset {
            Some(offset) => QueueOffset(offset),
            None => store.offset_at(topic, queue, request.from_ms).map_err(ReadError::Store)?.unwrap_or_default(),
        };
        let mut at = first;
        'queue: loop {
            // The index says what may be passed over without reading it.
            let next = view.as_ref().map_or(at, |view| QueueOffset(view.next(queue.0, at.0)));
            let slots = store.slots(topic, queue, next, LOOK_CHUNK).map_err(ReadError::Store)?;
            if slots.is_empty() {
                break;
            }
            at = next;
            for (offset, slot) in slots {
                let next = view.as_ref().map_or(offset.0, |view| view.next(queue.0, offset.0));
                if next != offset.0 {
                    at = QueueOffset(next);
                    continue 'queue;
                }
                if request.to_ms != 0 && slot.stored_at_ms >= request.to_ms {
                    break 'queue;
                }
                if reply.messages.len() >= count || bytes >= ANSWER_BYTES_MAX || reply.looked_at >= LOOK_MAX {
                    (reply.next_offset, reply.next_queue) = (Some(offset.0), queue.0);
                    return Ok(reply);
                }
                reply.looked_at += 1;
                at = offset.next();
                let frame = frames.frame(&slot).await.map_err(ReadError::Frame)?;
                if slot.stored_at_ms >= request.from_ms && is_wanted(&frame, request) {
                    bytes += slot.length as usize;
                    reply.messages.push(found(replica, topic, queue, offset, &slot, &frame));
                }
            }
        }
    }
    Ok(reply)
}

/// What the index knows of the key or id that is looked for.
fn key_view(replica: &Replica, topic_uid: u64, request: &admin::FindMessagesRequest) -> Option<KeyView> {
    let text = match (request.message_id.as_str(), request.key.as_str()) {
        ("", "") => return None,
        ("", key) => KeyText::Key(key),
        (id, _) => KeyText::Id(id),
    };
    let end = if request.to_ms == 0 { u64::MAX } else { request.to_ms };
    replica.keys.view(topic_uid, text, &(request.from_ms..end))
}

fn is_wanted(frame: &FrameView, request: &admin::FindMessagesRequest) -> bool {
    let has_id = request.message_id.is_empty() || frame.id() == request.message_id;
    has_id && (request.key.is_empty() || frame.keys().any(|key| key == request.key))
}

/// What became of a message in each group that has met its topic.
pub struct TraceMessage;

impl LeaderCall for TraceMessage {
    type Request = admin::TraceMessageRequest;
    type Answer = admin::TraceMessageReply;
    const METHOD: &'static str = "TraceMessage";

    fn is_idempotent(_: &admin::TraceMessageRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::TraceMessageRequest,
        _attempt: Attempt,
    ) -> Tried<admin::TraceMessageReply> {
        let refuse = |status| admin::TraceMessageReply { status: Some(status), ..Default::default() };
        let topic = match TopicName::try_from(request.topic.as_str()) {
            Ok(topic) => topic,
            Err(error) => return Tried::answer(refuse(error.status())),
        };
        if replica.store.topic(&topic).is_none() {
            return Tried::answer(refuse(no_topic(&topic)));
        }
        match trace(replica, &topic, QueueId(request.queue), QueueOffset(request.offset)).await {
            Ok(Some(reply)) => Tried::answer(reply),
            Ok(None) => {
                let text = format!("no message is at offset {} of queue {}", request.offset, request.queue);
                Tried::answer(refuse(status(Code::MessageNotFound, text)))
            }
            Err(error) => Tried::answer(refuse(error.told(replica))),
        }
    }

    fn refusal(_: &admin::TraceMessageRequest, status: v2::Status) -> admin::TraceMessageReply {
        admin::TraceMessageReply { status: Some(status), ..Default::default() }
    }
}

async fn trace(
    replica: &Replica,
    topic: &TopicName,
    queue: QueueId,
    offset: QueueOffset,
) -> Result<Option<admin::TraceMessageReply>, ReadError> {
    let slots = replica.store.slots(topic, queue, offset, 1).map_err(ReadError::Store)?;
    let Some((_, slot)) = slots.first().filter(|(at, _)| *at == offset) else { return Ok(None) };
    let frame = Frames::new(replica).frame(slot).await.map_err(ReadError::Frame)?;
    let mut groups = Vec::new();
    for info in replica.store.groups() {
        let progress = replica.store.progress(&info.name, topic, queue).map_err(ReadError::Store)?;
        let Some(progress) = progress.filter(|progress| progress.is_pinned) else { continue };
        let delivery = replica.store.delivery(&info.name, topic, queue, offset);
        let (state, attempts, invisible_until_ms) = match delivery {
            Some(delivery) if delivery.invisible_until_ms > replica.store.log_time_ms() => {
                (admin::message_trace::State::InFlight, delivery.attempt, delivery.invisible_until_ms)
            }
            Some(delivery) => (admin::message_trace::State::Due, delivery.attempt, delivery.invisible_until_ms),
            None if offset >= progress.next_offset => (admin::message_trace::State::Waiting, 0, 0),
            None => (admin::message_trace::State::Consumed, 0, 0),
        };
        let dead_letter_offset = match state {
            admin::message_trace::State::Consumed => dead_letter_of(replica, &info.name, slot)?,
            _ => None,
        };
        groups.push(admin::MessageTrace {
            group: info.name.to_string(),
            state: state.into(),
            attempts,
            invisible_until_ms,
            dead_letter_offset,
        });
    }
    let message = Some(found(replica, topic, queue, offset, slot, &frame));
    Ok(Some(admin::TraceMessageReply { status: Some(ok()), message, groups }))
}

/// Where a message stands among the newest dead letters of a group.
fn dead_letter_of(replica: &Replica, group: &GroupName, slot: &Slot) -> Result<Option<u64>, ReadError> {
    let topic = TopicName::dead_letter(group);
    let Some((min, max)) = replica.store.queue_bounds(&topic, QueueId(0)) else { return Ok(None) };
    let from = QueueOffset(min.0.max(max.0.saturating_sub(DEAD_LETTERS_LOOK_MAX as u64)));
    let letters = replica.store.slots(&topic, QueueId(0), from, DEAD_LETTERS_LOOK_MAX).map_err(ReadError::Store)?;
    Ok(letters.iter().rev().find(|(_, letter)| letter.message == slot.message).map(|(offset, _)| offset.0))
}
