//! PullMessage: reads one queue from an offset on, without handing anything out; waits for messages if there are none.

use std::sync::Arc;
use std::time::Duration;

use flotilla_message::{FrameView, Permission, QueueOffset};
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, peer, v2};
use flotilla_runtime::{Instant, select};
use flotilla_store::Slot;
use v2::pull_message_response::Content;

use super::delivery::{ms_of, stored_properties};
use super::filter::Filter;
use super::frames::{FrameReadError, Frames};
use super::offsets::{NamedQueue, wire_offset};
use super::receive::{END_MARGIN, POLL_MIN, filter};
use crate::edge::answer_room::AnswerRoom;
use crate::edge::names;
use crate::edge::query::no_readable_queue;
use crate::edge::settings::RECEIVE_BATCH;
use crate::edge::unread::Full;
use crate::lead::leader_call::{ANSWER_MARGIN, Attempt, LeaderCall, Tried, patience_ends};
use crate::lead::leadership::Place;
use crate::replica::Replica;

/// Most messages of one answer.
const PULL_BATCH_MAX: usize = 1024;
/// Bytes of messages in one answer, about: it must fit one message between replicas.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Slots that a filter looks through before it answers how far it has come.
const LOOK_AHEAD_MAX: usize = 4096;
/// Bytes that a filter reads before it answers how far it has come.
const LOOK_BYTES_MAX: usize = 16 << 20;
/// Slots read at once.
const LOOK_CHUNK: usize = 256;
/// How often a pull of a paused group looks whether it goes on.
const PAUSED_LOOK: Duration = Duration::from_millis(200);

/// The call.
pub struct PullMessage;

impl LeaderCall for PullMessage {
    type Request = v2::PullMessageRequest;
    type Answer = peer::ForwardedPull;
    const METHOD: &'static str = "PullMessage";
    const IS_POLL: bool = true;

    /// It changes nothing.
    fn is_idempotent(_: &v2::PullMessageRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::PullMessageRequest,
        attempt: Attempt,
    ) -> Tried<peer::ForwardedPull> {
        let pull = match Pull::read(replica, context, request) {
            Ok(pull) => pull,
            Err(refusal) => return Tried::answer(only(refusal, None)),
        };
        let group = match names::group(context, request.group.as_ref()) {
            Ok(group) => group,
            Err(refusal) => return Tried::answer(only(refusal, None)),
        };
        match replica.group_or_made(context, &group, attempt.term).await {
            Ok(Ok(_)) => {}
            Ok(Err(refusal)) => return Tried::answer(only(refusal, None)),
            Err(error) => return Tried::from_submit(error, |status| only(status, None)),
        }
        let lane = replica.lanes.lane(&group, &pull.topic);
        let mut at = pull.from;
        loop {
            let seen = replica.leadership.seen();
            if seen.place != Place::Local(attempt.term) {
                return Tried::not_led_here(seen.place);
            }
            let mut news = std::pin::pin!(lane.news());
            // Enlisted before the look, so that what arrives between look and wait is not missed.
            news.as_mut().enable();
            let is_paused = replica.store.group(&group).is_some_and(|group| group.is_paused);
            let look = if is_paused { Look::NothingUpTo(at) } else { pull.look(replica, context, request, at).await };
            match look {
                Look::Answer(answer) => return Tried::answer(answer),
                Look::Refused(status) => return Tried::answer(only(status, None)),
                Look::NoneUpTo(next) => return Tried::answer(none_up_to(next)),
                Look::Found(messages, next, bytes) => {
                    replica.counters.pulled(&group, &pull.topic, messages.len() as u64, bytes as u64);
                    return Tried::answer(found(messages, next));
                }
                // Whoever takes over from this replica has another copy.
                Look::Damaged(text) => return Tried::Unknown(text),
                Look::NothingUpTo(next) => at = next,
            }
            if replica.runtime.now() >= pull.ends {
                return Tried::answer(none_in_time(at));
            }
            if let Some(Err(refusal)) = pull.answer.as_ref().map(AnswerRoom::wait) {
                return Tried::answer(only(refusal, None));
            }
            // A group that goes on tells those topics that it has a position in: not those it only reads.
            let wake_at = if is_paused { pull.ends.min(replica.runtime.now() + PAUSED_LOOK) } else { pull.ends };
            // Which of the two it was, and whether it was the time, shows at the next look.
            let _ = select(news, replica.leadership.changed_from(seen.generation, wake_at)).await;
        }
    }

    fn ends(replica: &Replica, _: &CallContext, request: &v2::PullMessageRequest, now: Instant) -> Instant {
        now + wait_of(replica, request).max(POLL_MIN) + ANSWER_MARGIN
    }

    /// To a poll the lack of a leader is the lack of messages: it goes on where it was.
    fn refusal(request: &v2::PullMessageRequest, refusal: v2::Status) -> peer::ForwardedPull {
        match refusal.code() {
            Code::HaNotAvailable | Code::ProxyTimeout => {
                let at = u64::try_from(request.offset).ok().map(QueueOffset);
                only(status(Code::MessageNotFound, refusal.message), at)
            }
            _ => only(refusal, None),
        }
    }
}

/// How long a pull waits for messages; one that does not say does not wait.
fn wait_of(replica: &Replica, request: &v2::PullMessageRequest) -> Duration {
    let asked = request.long_polling_timeout.as_ref().and_then(ms_of).map(Duration::from_millis);
    asked.unwrap_or(Duration::ZERO).min(Duration::from_millis(replica.config.long_polling_max_ms))
}

/// Whether a piece of an answer is a message.
pub fn is_message(response: &v2::PullMessageResponse) -> bool {
    matches!(response.content, Some(Content::Message(_)))
}

fn content(content: Content) -> v2::PullMessageResponse {
    v2::PullMessageResponse { content: Some(content) }
}

/// An answer of one status, with the offset to go on from if there is one.
pub(super) fn only(status: v2::Status, next: Option<QueueOffset>) -> peer::ForwardedPull {
    let mut responses = vec![content(Content::Status(status))];
    responses.extend(next.map(|next| content(Content::NextOffset(wire_offset(next)))));
    peer::ForwardedPull { responses }
}

/// None of those looked at is wanted.
pub(super) fn none_up_to(next: QueueOffset) -> peer::ForwardedPull {
    only(status(Code::MessageNotFound, "no message up to the next offset passes the filter"), Some(next))
}

/// None came in time; the next one will be there.
pub(super) fn none_in_time(next: QueueOffset) -> peer::ForwardedPull {
    only(status(Code::MessageNotFound, "no message arrived in time"), Some(next))
}

pub(super) fn found(messages: Vec<v2::Message>, next: QueueOffset) -> peer::ForwardedPull {
    let mut responses = Vec::with_capacity(messages.len() + 2);
    responses.push(content(Content::Status(ok())));
    responses.extend(messages.into_iter().map(|message| content(Content::Message(message))));
    responses.push(content(Content::NextOffset(wire_offset(next))));
    peer::ForwardedPull { responses }
}

/// One pull as asked for.
pub(super) struct Pull {
    pub(super) topic: flotilla_message::TopicName,
    topic_resource: v2::Resource,
    pub(super) from: QueueOffset,
    filter: Filter,
    batch: usize,
    pub(super) ends: Instant,
    /// Room for its messages, if they are counted.
    answer: Option<AnswerRoom>,
}

/// What one look came to.
pub(super) enum Look {
    Answer(peer::ForwardedPull),
    /// There is a message, and its client leaves too much unread.
    Refused(v2::Status),
    /// A filter has looked through as much as one answer may; go on there.
    NoneUpTo(QueueOffset),
    /// Messages, where to go on, and their bytes as they are kept.
    Found(Vec<v2::Message>, QueueOffset, usize),
    /// This replica's copy of a message is damaged.
    Damaged(String),
    /// The queue has nothing more; what is before this offset was not wanted.
    NothingUpTo(QueueOffset),
}

impl Pull {
    pub(super) fn read(
        replica: &Replica,
        context: &CallContext,
        request: &v2::PullMessageRequest,
    ) -> Result<Pull, v2::Status> {
        let named = NamedQueue::find(replica, context, request.message_queue.as_ref())?;
        let batch = match usize::try_from(request.batch_size) {
            Ok(0) => RECEIVE_BATCH as usize,
            Ok(batch) => batch.min(PULL_BATCH_MAX),
            Err(_) => {
                let text = format!("batch size is {}; 1 to {PULL_BATCH_MAX} are allowed", request.batch_size);
                return Err(status(Code::BadRequest, text));
            }
        };
        let from = u64::try_from(request.offset).map_err(|_| named.illegal_offset(context, request.offset))?;
        let now = replica.runtime.now();
        Ok(Pull {
            topic: named.topic,
            topic_resource: request.message_queue.clone().and_then(|queue| queue.topic).unwrap_or_default(),
            from: QueueOffset(from),
            filter: filter(request.filter_expression.as_ref(), replica.lanes.compiled())?,
            batch,
            ends: (now + wait_of(replica, request)).min(patience_ends(context, now) - END_MARGIN),
            answer: AnswerRoom::current(),
        })
    }

    pub(super) async fn look(
        &self,
        replica: &Replica,
        context: &CallContext,
        request: &v2::PullMessageRequest,
        at: QueueOffset,
    ) -> Look {
        let named = match NamedQueue::find(replica, context, request.message_queue.as_ref()) {
            Ok(named) => named,
            Err(refusal) => return Look::Answer(only(refusal, None)),
        };
        let may_read = replica.readable_topic(&self.topic).is_some_and(|info| match info.permission {
            Permission::ReadWrite | Permission::Read => true,
            Permission::Write | Permission::None => false,
        });
        if !may_read {
            return Look::Answer(only(no_readable_queue(&self.topic), None));
        }
        if at < named.min || at > named.max {
            // Where to go on is told, and never gone to unasked: a reset is the consumer's decision.
            let next = at.clamp(named.min, named.max);
            let refusal = named.illegal_offset(context, i64::try_from(at.0).unwrap_or(i64::MAX));
            return Look::Answer(only(refusal, Some(next)));
        }
        match self.search(replica, &named, at).await {
            Ok(look) => look,
            Err(FrameReadError::Damaged(text)) => Look::Damaged(text),
            Err(error @ (FrameReadError::Trimmed(_) | FrameReadError::Unreadable(_))) => {
                let text = error.to_string();
                tracing::error!(topic = %self.topic, text, "message cannot be read");
                Look::Answer(only(status(Code::InternalServerError, text), Some(at)))
            }
        }
    }

    async fn search(&self, replica: &Replica, named: &NamedQueue, from: QueueOffset) -> Result<Look, FrameReadError> {
        let mut frames = Frames::new(replica);
        let (mut messages, mut at) = (Vec::new(), from);
        if let Some(answer) = &self.answer {
            answer.clear();
        }
        let (mut looked, mut count, mut bytes) = (0, 0, 0);
        let chunk = if self.filter == Filter::All { self.batch.min(LOOK_CHUNK) } else { LOOK_CHUNK };
        loop {
            let slots = match replica.store.slots(&named.topic, named.queue, at, chunk) {
                Ok(slots) => slots,
                Err(error) => {
                    // Files that cannot be read: the replica must not go on.
                    replica.failure.set(error.to_string());
                    return Err(FrameReadError::Unreadable(error.to_string()));
                }
            };
            if slots.is_empty() {
                return Ok(if count == 0 { Look::NothingUpTo(at) } else { self.found(messages, at, bytes) });
            }
            for (offset, slot) in slots {
                let is_full = count >= self.batch || (count > 0 && bytes >= ANSWER_BYTES_MAX);
                let is_cut = looked >= LOOK_AHEAD_MAX || frames.bytes_read() >= LOOK_BYTES_MAX;
                if is_full || (is_cut && count > 0) {
                    return Ok(self.found(messages, at, bytes));
                }
                if is_cut {
                    return Ok(Look::NoneUpTo(at));
                }
                looked += 1;
                let exceeded = self.exceeded();
                // Of what is not going to be handed out only the size matters, about: it is not read.
                let frame = if exceeded.is_some() { None } else { self.wanted(&slot, &mut frames).await? };
                if frame.is_some() || (exceeded.is_some() && self.filter.may_want(slot.tag_hash)) {
                    match self.answer.as_ref().map(|answer| (answer, answer.take([slot.length]))) {
                        Some((answer, Err(full))) if count == 0 => return Ok(Look::Refused(answer.refusal(full))),
                        Some((_, Err(_))) => return Ok(self.found(messages, at, bytes)),
                        Some((_, Ok(()))) | None => {}
                    }
                    (count, bytes) = (count + 1, bytes + slot.length as usize);
                    messages.extend(frame.map(|frame| self.message(replica, named, offset, &slot, &frame)));
                }
                at = offset.next();
            }
        }
    }

    /// The message of a slot, if the filter wants it.
    async fn wanted(&self, slot: &Slot, frames: &mut Frames<'_>) -> Result<Option<FrameView>, FrameReadError> {
        if !self.filter.may_want(slot.tag_hash) {
            return Ok(None);
        }
        match frames.frame(slot).await {
            Ok(frame) => Ok(self.filter.wants(&frame).then_some(frame)),
            // The queue begins behind it by now.
            Err(FrameReadError::Trimmed(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The limit that the messages chosen pass, so that they are not handed out.
    fn exceeded(&self) -> Option<Full> {
        self.answer.as_ref().and_then(AnswerRoom::exceeded)
    }

    fn found(&self, messages: Vec<v2::Message>, next: QueueOffset, bytes: usize) -> Look {
        match self.answer.as_ref().and_then(|answer| Some((answer, answer.exceeded()?))) {
            Some((answer, full)) => Look::Refused(answer.refusal(full)),
            None => Look::Found(messages, next, bytes),
        }
    }

    fn message(
        &self,
        replica: &Replica,
        named: &NamedQueue,
        offset: QueueOffset,
        slot: &Slot,
        frame: &FrameView,
    ) -> v2::Message {
        read_message(replica, named, self.topic_resource.clone(), offset, slot, frame)
    }
}

/// A message that is only looked at: it has no receipt.
pub fn read_message(
    replica: &Replica,
    named: &NamedQueue,
    topic: v2::Resource,
    offset: QueueOffset,
    slot: &Slot,
    frame: &FrameView,
) -> v2::Message {
    let system = v2::SystemProperties {
        queue_offset: Some(wire_offset(offset)),
        delivery_attempt: Some(1),
        ..stored_properties(frame, slot, named.queue, &replica.client_address)
    };
    v2::Message {
        topic: Some(topic),
        user_properties: frame.properties().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        system_properties: Some(system),
        body: frame.body(),
    }
}
