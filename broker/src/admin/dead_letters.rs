//! Dead letters: what a group could not consume, and another try with it for that group alone.
//!
//! A dead letter refers to the message where it was written. Sent again it is delivered to its group from its own place in
//! its own topic, with its deliveries counted anew; other groups of the topic see nothing of it. How far a group has been
//! sent its letters again is its own position in its dead-letter topic.

use std::sync::Arc;

use flotilla_message::{GroupName, QueueId, QueueOffset, TopicName};
use flotilla_proto::status::{Coded, ok};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::{Command, OffsetTarget, Outcome, Rejection, Slot};

use super::groups::no_group;
use super::messages::{ReadError, count_of, found};
use crate::consume::frames::Frames;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

/// The one queue of a dead-letter topic.
const QUEUE: QueueId = QueueId(0);
/// Letters that one call sends again.
const RESEND_MAX: u32 = 256;
/// Slots of a topic that are looked through for the place of one message whose queue is not in the order of the log.
const PLACE_LOOK_MAX: usize = 100_000;
/// Slots read at once.
const LOOK_CHUNK: usize = 512;

/// A group's dead letters.
struct Letters {
    group: GroupName,
    topic: TopicName,
    min: QueueOffset,
    max: QueueOffset,
    /// The first one that was not sent again.
    unsent: QueueOffset,
}

impl Letters {
    fn of(replica: &Replica, group: &str) -> Result<Letters, v2::Status> {
        let group = GroupName::try_from(group).map_err(|error| error.status())?;
        replica.store.group(&group).ok_or_else(|| no_group(&group))?;
        let topic = TopicName::dead_letter(&group);
        let (min, max) = replica.store.queue_bounds(&topic, QUEUE).unwrap_or_default();
        let progress = replica.store.progress(&group, &topic, QUEUE).ok().flatten();
        let unsent = progress.filter(|progress| progress.is_pinned).map_or(min, |progress| progress.committed_offset);
        Ok(Letters { group, topic, min, max, unsent: unsent.max(min) })
    }
}

/// Shows dead letters.
pub struct ListDeadLetters;

impl LeaderCall for ListDeadLetters {
    type Request = admin::ListDeadLettersRequest;
    type Answer = admin::ListDeadLettersReply;
    const METHOD: &'static str = "ListDeadLetters";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &admin::ListDeadLettersRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::ListDeadLettersRequest,
        _attempt: Attempt,
    ) -> Tried<admin::ListDeadLettersReply> {
        let refuse = |status| admin::ListDeadLettersReply { status: Some(status), ..Default::default() };
        let letters = match Letters::of(replica, &request.group) {
            Ok(letters) => letters,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let from = request.from_offset.map_or(letters.unsent, QueueOffset);
        match read(replica, &letters, from, count_of(request.count)).await {
            Ok(found) => Tried::answer(admin::ListDeadLettersReply {
                status: Some(ok()),
                letters: found,
                min_offset: letters.min.0,
                max_offset: letters.max.0,
                unsent_offset: letters.unsent.0,
            }),
            Err(error) => Tried::answer(refuse(error.told(replica))),
        }
    }

    fn refusal(_: &admin::ListDeadLettersRequest, status: v2::Status) -> admin::ListDeadLettersReply {
        admin::ListDeadLettersReply { status: Some(status), ..Default::default() }
    }
}

async fn read(
    replica: &Replica,
    letters: &Letters,
    from: QueueOffset,
    count: usize,
) -> Result<Vec<admin::FoundMessage>, ReadError> {
    let slots = replica.store.slots(&letters.topic, QUEUE, from, count).map_err(ReadError::Store)?;
    let mut frames = Frames::new(replica);
    let mut found_ones = Vec::with_capacity(slots.len());
    for (offset, slot) in &slots {
        let frame = frames.frame(slot).await.map_err(ReadError::Frame)?;
        let mut shown = found(replica, &letters.topic, QUEUE, *offset, slot, &frame);
        // Where it was sent to, as consumers of the dead letters are told too.
        if let Some(system) = shown.message.as_mut().and_then(|message| message.system_properties.as_mut()) {
            let (topic, message_id) = (frame.topic().to_owned(), frame.id().to_owned());
            system.dead_letter_queue = Some(v2::DeadLetterQueue { topic, message_id });
        }
        found_ones.push(shown);
    }
    Ok(found_ones)
}

/// Sends dead letters to their group again.
pub struct ResendDeadLetters;

impl LeaderCall for ResendDeadLetters {
    type Request = admin::ResendDeadLettersRequest;
    type Answer = admin::ResendDeadLettersReply;
    const METHOD: &'static str = "ResendDeadLetters";

    /// A letter that is in flight again is not sent a second time, and one consumed since would be: the caller decides.
    fn is_idempotent(_: &admin::ResendDeadLettersRequest) -> bool {
        false
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::ResendDeadLettersRequest,
        attempt: Attempt,
    ) -> Tried<admin::ResendDeadLettersReply> {
        let refuse = |status| admin::ResendDeadLettersReply { status: Some(status), ..Default::default() };
        let letters = match Letters::of(replica, &request.group) {
            Ok(letters) => letters,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let count = if request.count == 0 { RESEND_MAX } else { request.count.min(RESEND_MAX) };
        let end = letters.max.0.min(letters.unsent.0 + u64::from(count));
        let is_all = request.offsets.is_empty();
        let offsets: Vec<u64> = match is_all {
            true => (letters.unsent.0..end).collect(),
            false => request.offsets.iter().copied().take(count as usize).collect(),
        };
        let mut reply = admin::ResendDeadLettersReply { status: Some(ok()), ..Default::default() };
        let (mut commands, mut asked) = (Vec::new(), Vec::new());
        for offset in offsets {
            match redelivery(replica, &letters, QueueOffset(offset)).await {
                Ok(command) => {
                    commands.push(command);
                    asked.push(offset);
                }
                Err(reason) => reply.failed.push(admin::NotResent { offset, reason }),
            }
        }
        if is_all && end > letters.unsent.0 {
            // One that could not be sent stays listed, and does not keep the others from being got through.
            let to = OffsetTarget::Offset(QueueOffset(end));
            let (group, topic) = (letters.group.clone(), letters.topic.clone());
            commands.push(Command::SetOffset { group, topic, queue: QUEUE, to });
            reply.remaining = letters.max.0 - end;
        }
        // In one entry: whoever dies meanwhile, none of them is on its way and listed as not sent.
        let settled = match replica.proposer.submit_all(attempt.term, commands).await {
            Ok(settled) => settled,
            Err(error) => return Tried::from_submit(error, refuse),
        };
        for (offset, settled) in asked.into_iter().zip(settled) {
            match settled.outcome {
                Outcome::Redelivered => reply.resent += 1,
                Outcome::Rejected(rejection) => {
                    let reason = match rejection {
                        Rejection::NotConsumed { .. } => {
                            "it is in flight again already, or the group was moved back and will get it".to_owned()
                        }
                        other => other.to_string(),
                    };
                    reply.failed.push(admin::NotResent { offset, reason });
                }
                other => unreachable!("a redelivery is not answered by {other:?}"),
            }
        }
        reply.failed.sort_unstable_by_key(|failed| failed.offset);
        tracing::info!(group = %letters.group, resent = reply.resent, failed = reply.failed.len(), "dead letters resent");
        Tried::answer(reply)
    }

    fn refusal(_: &admin::ResendDeadLettersRequest, status: v2::Status) -> admin::ResendDeadLettersReply {
        admin::ResendDeadLettersReply { status: Some(status), ..Default::default() }
    }
}

/// What makes one letter due again in its own queue; the error says why that cannot be.
async fn redelivery(replica: &Replica, letters: &Letters, offset: QueueOffset) -> Result<Command, String> {
    let (topic, queue, offset, slot) = place_of(replica, letters, offset).await?;
    Ok(Command::Redeliver { group: letters.group.clone(), topic, queue, offset, message: slot.message })
}

type FoundPlace = (TopicName, QueueId, QueueOffset, Slot);

/// Where a dead letter stands in the topic that it was sent to.
async fn place_of(replica: &Replica, letters: &Letters, offset: QueueOffset) -> Result<FoundPlace, String> {
    let store = &replica.store;
    let slots = store.slots(&letters.topic, QUEUE, offset, 1).map_err(|error| error.to_string())?;
    let (_, letter) = slots.first().filter(|(at, _)| *at == offset).ok_or("there is no such dead letter")?;
    let frame = Frames::new(replica).frame(letter).await.map_err(|error| error.to_string())?;
    let sent_to = frame.topic_name().clone();
    for topic in places(replica, &letters.group, &sent_to)? {
        let queue_count = store.topic(&topic).map_or(0, |info| info.queue_count);
        for queue in (0..queue_count).map(QueueId) {
            if let Some((offset, slot)) = find_in(replica, &topic, queue, letter)? {
                return Ok((topic, queue, offset, slot));
            }
        }
    }
    Err(format!("message is not in topic '{sent_to}' any more"))
}

/// The topics in which a group can have had a message: the one that it was sent to, or, if the group never read that, dead
/// letters of other groups that it reads.
fn places(replica: &Replica, group: &GroupName, sent_to: &TopicName) -> Result<Vec<TopicName>, String> {
    let store = &replica.store;
    let has_met = |topic: &TopicName| {
        let progress = store.progress(group, topic, QUEUE).ok().flatten();
        progress.is_some_and(|progress| progress.is_pinned)
    };
    if has_met(sent_to) {
        return Ok(vec![sent_to.clone()]);
    }
    let own = TopicName::dead_letter(group);
    let topics = store.topics().into_iter().map(|info| info.name);
    let letters: Vec<TopicName> =
        topics.filter(|topic| topic.is_dead_letter() && *topic != own && has_met(topic)).collect();
    if letters.is_empty() {
        return Err(match store.topic(sent_to) {
            Some(_) => format!("group '{group}' does not read topic '{sent_to}'"),
            None => format!("topic '{sent_to}' is gone"),
        });
    }
    Ok(letters)
}

/// Finds a message in a queue. Its slot was made at the earliest when the message was written, at the latest when it
/// became a dead letter, and slots are in the order of their times.
fn find_in(
    replica: &Replica,
    topic: &TopicName,
    queue: QueueId,
    letter: &Slot,
) -> Result<Option<(QueueOffset, Slot)>, String> {
    let store = &replica.store;
    let Some((min, max)) = store.queue_bounds(topic, queue) else { return Ok(None) };
    let slot_at = |offset: u64| -> Result<Option<Slot>, String> {
        let slots = store.slots(topic, queue, QueueOffset(offset), 1).map_err(|error| error.to_string())?;
        Ok(slots.first().map(|(_, slot)| *slot))
    };
    // In topics whose messages stand in their queue at once, slots are in the order of the log.
    let (mut low, mut high) = (min.0, max.0);
    while low < high {
        let middle = low + (high - low) / 2;
        match slot_at(middle)? {
            Some(slot) if slot.message < letter.message => low = middle + 1,
            _ => high = middle,
        }
    }
    if let Some(slot) = slot_at(low)?.filter(|slot| low < max.0 && slot.message == letter.message) {
        return Ok(Some((QueueOffset(low), slot)));
    }
    // Delayed ones and those of transactions stand there later than they were written: newest first, down to a limit.
    let (mut end, mut looked) = (max.0, 0);
    while end > min.0 && looked < PLACE_LOOK_MAX {
        let from = end.saturating_sub(LOOK_CHUNK as u64).max(min.0);
        let count = (end - from) as usize;
        let slots = store.slots(topic, queue, QueueOffset(from), count).map_err(|error| error.to_string())?;
        if let Some(found) = slots.iter().rev().find(|(_, slot)| slot.message == letter.message) {
            return Ok(Some(*found));
        }
        looked += count;
        end = from;
    }
    Ok(None)
}
