//! SendMessage: checks, picks the queue, stores, and answers where each message lies.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use flotilla_message::{MessageId, MessageType, Permission, QueueId, SendLevel, StoredFrame, TopicName};
use flotilla_proto::metadata::ACK_PLACE;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{AckPlace, CallContext, Reply, v2};
use flotilla_raft_log::Term;
use flotilla_store::{Command, Holding, Outcome, ProducedSlot, Rejection, TopicInfo};

use super::held_handle::{HeldHandle, HeldKind};
use super::level::{answer_when, asked_level, check_level, level_of, shortfall_status};
use super::outgoing::Outgoing;
use crate::admin::topics::rejected;
use crate::cluster::pass_on::{is_from_abroad, pass_on};
use crate::cluster::placing::{Destination, Sent};
use crate::edge::names::{self, known_code};
use crate::lead::leader_call::{Attempt, LeaderCall, Tried, denied};
use crate::lead::pending_entry::AnswerWhen;
use crate::lead::proposer::{Settled, SubmitError};
use crate::metrics::Refused;
use crate::replica::Replica;

/// How many messages of one send have their places in the response's metadata: a header block of a thousand breaks gRPC
/// clients, and a batch fills one queue, so the first ones tell the rest.
const ACK_PLACES_MAX: usize = 32;

/// The call.
pub struct SendMessage;

impl LeaderCall for SendMessage {
    type Request = v2::SendMessageRequest;
    type Answer = v2::SendMessageResponse;
    const METHOD: &'static str = "SendMessage";

    /// Message ids make it so: the store knows those of the last minutes.
    fn is_idempotent(_: &v2::SendMessageRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::SendMessageRequest,
        attempt: Attempt,
    ) -> Tried<v2::SendMessageResponse> {
        let wall_ms = replica.runtime.wall_ms();
        let outgoing = match Outgoing::read(context, request, &replica.config, wall_ms) {
            Ok(outgoing) => outgoing,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let sent = sent_of(request, &outgoing);
        let own_queue = match replica.destination(context, sent).await {
            Destination::Here(queue) => queue,
            Destination::There(group) => {
                return Tried::Answer(pass_on::<SendMessage>(replica, &group, context, request).await);
            }
            Destination::Nowhere(refusal) => return Tried::answer(refuse(refusal)),
        };
        let wanted = Some(outgoing.message_type);
        let topic = match replica.topic_or_made(context, &outgoing.topic, wanted, attempt.term).await {
            Ok(Ok(topic)) => topic,
            Ok(Err(refusal)) => return Tried::answer(refuse(refusal)),
            Err(error) => return Tried::from_submit(error, refuse),
        };
        if let Err(refusal) = check_topic(&topic, &outgoing) {
            return Tried::answer(refuse(refusal));
        }
        let level = match asked_level(&request.messages) {
            Ok(asked) => level_of(&replica.config, topic.level).at_least(asked),
            Err(text) => return Tried::answer(refuse(status(known_code(context, Code::BadRequest), text))),
        };
        if let Err(refusal) = check_level(replica, level) {
            return Tried::answer(refuse(refusal));
        }
        let when = answer_when(replica.config.raft_durability, level);
        let sizes: Vec<usize> = outgoing.frames.iter().map(StoredFrame::byte_len).collect();
        let (topic, message_type) = (outgoing.topic.clone(), outgoing.message_type);
        match hand_in(replica, outgoing, own_queue, attempt.term, when).await {
            Ok(settled) => {
                match &settled.outcome {
                    Outcome::Produced { offsets, .. } => {
                        replica.counters.stored(&topic, message_type, offsets, &sizes);
                    }
                    Outcome::Rejected(Rejection::TooManyDelayed | Rejection::TooManyHalves) => {
                        replica.counters.refused(Refused::HeldFull, 1);
                    }
                    _ => {}
                }
                answer(replica, request, &topic, level, settled)
            }
            Err(error) => Tried::from_submit(error, refuse),
        }
    }

    /// Only messages without order: those with one have a group of their own.
    fn gives_way(replica: &Replica, context: &CallContext, request: &v2::SendMessageRequest) -> bool {
        replica.cluster.has_others() && !is_from_abroad(context) && !is_ordered(request)
    }

    fn refusal(_: &v2::SendMessageRequest, status: v2::Status) -> v2::SendMessageResponse {
        refuse(status)
    }

    fn denial(answer: &v2::SendMessageResponse) -> Option<String> {
        denied(answer.status.as_ref())
    }
}

fn is_ordered(request: &v2::SendMessageRequest) -> bool {
    let group = |message: &v2::Message| message.system_properties.as_ref()?.message_group.clone();
    request.messages.iter().filter_map(group).any(|group| !group.is_empty())
}

fn sent_of<'a>(request: &'a v2::SendMessageRequest, outgoing: &'a Outgoing) -> Sent<'a> {
    Sent {
        topic: &outgoing.topic,
        message_type: outgoing.message_type,
        message_group: outgoing.message_group.as_deref(),
        message_id: first_id(request),
    }
}

fn first_id(request: &v2::SendMessageRequest) -> &str {
    let system = request.messages.first().and_then(|message| message.system_properties.as_ref());
    system.map_or("", |system| system.message_id.as_str())
}

/// Has another broker group store what this one, which has no leader, has surely not stored; `None` if there is no such.
pub async fn send_elsewhere(
    replica: &Arc<Replica>,
    context: &CallContext,
    request: &v2::SendMessageRequest,
) -> Option<Reply<v2::SendMessageResponse>> {
    if !SendMessage::gives_way(replica, context, request) {
        return None;
    }
    let first = request.messages.first()?;
    let topic = names::topic(context, first.topic.as_ref()).ok()?;
    let message_type = asked_type(first)?;
    let sent = Sent { topic: &topic, message_type, message_group: None, message_id: first_id(request) };
    let group = replica.writable_elsewhere(sent).await?;
    tracing::debug!(%topic, group, "no leader here: a send goes to another broker group");
    Some(pass_on::<SendMessage>(replica, &group, context, request).await)
}

/// The other broker group that a send's message group belongs to, by what is applied here.
pub fn owner_elsewhere(replica: &Replica, context: &CallContext, request: &v2::SendMessageRequest) -> Option<String> {
    if !replica.cluster.has_others() || is_from_abroad(context) {
        return None;
    }
    let first = request.messages.first()?;
    let message_group = first.system_properties.as_ref()?.message_group.as_deref().filter(|group| !group.is_empty())?;
    let topic = names::topic(context, first.topic.as_ref()).ok()?;
    match replica.place_of_message_group(&topic, message_group)? {
        Destination::There(owner) => Some(owner),
        // The leader says so, should it still be true.
        Destination::Here(_) | Destination::Nowhere(_) => None,
    }
}

fn asked_type(message: &v2::Message) -> Option<MessageType> {
    match u8::try_from(message.system_properties.as_ref()?.message_type).ok()? {
        0 => Some(MessageType::Normal),
        code => MessageType::from_code(code),
    }
}

/// Chooses the queue, if it is not `own_queue`, and hands the messages to the log: ordered ones only while the number of queues stands.
async fn hand_in(
    replica: &Replica,
    outgoing: Outgoing,
    own_queue: Option<QueueId>,
    term: Term,
    when: AnswerWhen,
) -> Result<Settled, SubmitError> {
    let Outgoing { topic, message_group, check_after_ms, frames, .. } = outgoing;
    let is_ordered = message_group.is_some();
    let mut frames = Some(frames);
    let mut submit = || {
        // Gone: the log says so.
        let queue_count = replica.store.topic(&topic).map_or(1, |info| info.writable_queues);
        let pick = || replica.queue_picker.pick(&topic, message_group.as_deref(), queue_count);
        let queue = own_queue.unwrap_or_else(pick);
        let (topic, frames) = (topic.clone(), frames.take().unwrap_or_default());
        let command = match check_after_ms {
            Some(check_after_ms) => Command::Prepare { topic, queue, check_after_ms, frames },
            None => Command::Produce { topic, queue, frames },
        };
        replica.proposer.submit_at(term, command, when)
    };
    if !is_ordered {
        return submit().await;
    }
    let submitted = loop {
        let mut over = std::pin::pin!(replica.queue_moves.over());
        over.as_mut().enable();
        match replica.queue_moves.unless_moving(&topic, &mut submit) {
            Some(submitted) => break submitted,
            None => over.await,
        }
    };
    submitted.await
}

fn refuse(status: v2::Status) -> v2::SendMessageResponse {
    v2::SendMessageResponse { status: Some(status), entries: Vec::new() }
}

/// The answer about a topic that does not exist.
pub fn no_topic(topic: &TopicName) -> v2::Status {
    status(Code::TopicNotFound, format!("topic '{topic}' does not exist"))
}

fn check_topic(topic: &TopicInfo, outgoing: &Outgoing) -> Result<(), v2::Status> {
    let name = &outgoing.topic;
    match topic.permission {
        Permission::ReadWrite | Permission::Write => {}
        Permission::Read | Permission::None => {
            return Err(status(Code::Forbidden, format!("topic '{name}' has no writable queue")));
        }
    }
    if outgoing.message_type != topic.message_type {
        let (message, topic) = (outgoing.message_type, topic.message_type);
        let text = format!("message is of type {message}, topic '{name}' takes {topic}");
        return Err(status(Code::MessagePropertyConflictWithType, text));
    }
    Ok(())
}

fn answer(
    replica: &Replica,
    request: &v2::SendMessageRequest,
    topic: &TopicName,
    level: SendLevel,
    settled: Settled,
) -> Tried<v2::SendMessageResponse> {
    let slots = match settled.outcome {
        Outcome::Produced { offsets, .. } => offsets,
        // The topic was deleted between the check and the entry.
        Outcome::Rejected(Rejection::TopicNotFound) => return Tried::answer(refuse(no_topic(topic))),
        // Another try finds the right place.
        Outcome::Rejected(rejection @ (Rejection::WriteWiped | Rejection::TopicMoving { .. })) => {
            return Tried::answer(refuse(status(Code::HaNotAvailable, format!("not stored: {rejection}"))));
        }
        Outcome::Rejected(rejection @ (Rejection::TooManyDelayed | Rejection::TooManyHalves)) => {
            return Tried::answer(refuse(status(Code::TooManyRequests, format!("not stored: {rejection}"))));
        }
        // The topic has fewer queues since one was chosen: another one.
        Outcome::Rejected(Rejection::QueueNotFound { .. }) => return Tried::NotExecuted { leader: None },
        // It was changed, or made anew, between the check and the entry.
        Outcome::Rejected(rejection) => {
            let refusal = rejected(&rejection);
            return Tried::answer(refuse(v2::Status { message: format!("not stored: {rejection}"), ..refusal }));
        }
        other => unreachable!("a produce is answered by an outcome of produce, not {other:?}"),
    };
    assert_eq!(slots.len(), request.messages.len(), "each message has its slot");
    let status = settled.shortfall.as_ref().map_or_else(ok, |failure| shortfall_status(level, failure));
    let sent = request.messages.iter().zip(&slots);
    let entries = sent.map(|(message, slot)| entry(replica, topic, message, slot, &status)).collect();
    let mut reply = Reply::new(v2::SendMessageResponse { status: Some(status), entries });
    // Those that stand in no queue yet have no place there.
    for slot in slots.iter().filter(|slot| slot.held.is_none()).take(ACK_PLACES_MAX) {
        let place = AckPlace {
            group: replica.config.group.clone(),
            // Of whoever answers, also if the message was stored in an earlier term and this send repeats another.
            term: settled.term.0,
            leader: replica.node.0,
            log_index: slot.message.index,
            queue: slot.queue.0,
            offset: slot.offset.0,
        };
        reply = reply.with(ACK_PLACE, place);
    }
    Tried::Answer(reply)
}

fn entry(
    replica: &Replica,
    topic: &TopicName,
    message: &v2::Message,
    slot: &ProducedSlot,
    status: &v2::Status,
) -> v2::SendResultEntry {
    let message_id = message.system_properties.as_ref().map(|system| system.message_id.clone()).unwrap_or_default();
    let handle = |kind| {
        let handle = HeldHandle {
            kind,
            broker_group: replica.config.group.clone(),
            topic: topic.clone(),
            queue: slot.queue,
            message: slot.message,
            message_id: MessageId::try_from(message_id.as_str()).expect("checked when the request was read"),
        };
        handle.to_text()
    };
    let (transaction_id, recall_handle) = match slot.held {
        Some(Holding::Until(due_ms)) => (String::new(), handle(HeldKind::Recall(due_ms))),
        Some(Holding::Half) => (handle(HeldKind::Transaction), String::new()),
        None => (String::new(), String::new()),
    };
    v2::SendResultEntry {
        status: Some(status.clone()),
        message_id,
        transaction_id,
        offset: i64::try_from(slot.offset.0).unwrap_or(i64::MAX),
        recall_handle,
    }
}

/// Which queue a message goes to: by turns, or by its message group.
#[derive(Debug)]
pub struct QueuePicker {
    /// Topics share turns by hash: a fixed number of counters serves any number of topics without a lock.
    turns: Vec<AtomicU32>,
}

const TURNS: usize = 1024;

impl QueuePicker {
    /// All turns at their beginning.
    pub fn new() -> QueuePicker {
        QueuePicker { turns: (0..TURNS).map(|_| AtomicU32::new(0)).collect() }
    }

    /// The queue for the next message of this topic and message group. One message group always goes to the same queue,
    /// whoever leads: by CRC-32C of its name, never by a client's choice, as each client hashes in its own way.
    pub fn pick(&self, topic: &TopicName, message_group: Option<&str>, queue_count: u32) -> QueueId {
        let number = match message_group {
            Some(group) => crc32c::crc32c(group.as_bytes()),
            None => {
                let turn = crc32c::crc32c(topic.as_str().as_bytes()) as usize % TURNS;
                self.turns[turn].fetch_add(1, Ordering::Relaxed)
            }
        };
        QueueId(number % queue_count.max(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_messages_take_turns_and_groups_stay() {
        let picker = QueuePicker::new();
        let topic = TopicName::try_from("orders").expect("a name");
        let picked: Vec<u32> = (0..8).map(|_| picker.pick(&topic, None, 4).0).collect();
        assert_eq!(picked, [0, 1, 2, 3, 0, 1, 2, 3]);
        for group in ["a", "b", "customer-7"] {
            let first = picker.pick(&topic, Some(group), 4);
            assert_eq!(QueuePicker::new().pick(&topic, Some(group), 4), first, "on any replica");
        }
        let spread: std::collections::BTreeSet<u32> =
            (0..64).map(|group| picker.pick(&topic, Some(&group.to_string()), 4).0).collect();
        assert_eq!(spread.len(), 4);
    }
}
