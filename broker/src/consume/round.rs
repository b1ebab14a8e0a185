//! One look of a poll through the queues of its topic: what is due again, then what is new, through the filter, into one
//! proposal per queue.

use std::sync::Arc;

use flotilla_message::{GroupName, Permission, QueueId, QueueOffset, TopicName};
use flotilla_proto::status::{Code, status};
use flotilla_proto::{peer, v2};
use flotilla_raft_log::Term;
use flotilla_store::limits::IN_FLIGHT_PER_QUEUE_MAX;
use flotilla_store::{AttemptGrants, Command, Granted, Outcome, Rejection, SkipRange, Slot, StoreError};
use futures::future::join_all;

use super::delivery::Delivery;
use super::filter::Filter;
use super::frames::{FrameReadError, Frames};
use super::lanes::{Hold, Lane};
use crate::edge::answer_room::AnswerRoom;
use crate::edge::query::no_readable_queue;
use crate::edge::unread::Full;
use crate::lead::leader_call::{LeaderCall, Tried};
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// Bytes of messages in one answer, about: it must fit one message between replicas.
const ANSWER_BYTES_MAX: usize = 16 << 20;
/// Slots that a filter looks through in one queue before it lets others have their turn.
const LOOK_AHEAD_MAX: usize = 2048;
/// A filter that has passed over so many messages says so in the log; fewer are only remembered until the poll ends.
const SKIP_WRITTEN_MIN: u64 = 1024;
const _: () = assert!(SKIP_WRITTEN_MIN <= LOOK_AHEAD_MAX as u64);
/// Bytes that filters read in one look, over all queues: they are read at a stretch, while others wait for the thread.
const LOOK_BYTES_MAX: usize = 16 << 20;
/// Slots read at once while looking through a queue.
const LOOK_CHUNK: usize = 256;

/// What a poll wants.
#[derive(Debug)]
pub struct Take {
    /// For this group.
    pub group: GroupName,
    /// From this topic.
    pub topic: TopicName,
    /// The topic as the client wrote it.
    pub topic_resource: v2::Resource,
    /// Only these.
    pub filter: Filter,
    /// So many at most.
    pub batch: usize,
    /// Hidden from others for so long, ms.
    pub invisible_ms: u64,
    /// Who wants them prolonged as long as it lives, as the log names it.
    pub holder: Option<u64>,
    /// The id under which this poll is repeated.
    pub attempt_id: Option<String>,
    /// Something may have been handed out under that id before.
    pub is_repeated: bool,
    /// Room for its messages, if they are counted.
    pub answer: Option<AnswerRoom>,
}

/// What a look came to.
#[derive(Debug)]
pub enum Round {
    /// Messages; at least one.
    Got(Vec<v2::Message>),
    /// Something was there, but another had it first or it became a dead letter: look again.
    Again,
    /// The filter has passed over many and there are more to look at.
    MoreToLookAt,
    /// Nothing for this poll at the moment.
    Nothing,
    /// The poll is over.
    End(Tried<peer::ForwardedReceive>),
}

/// What is to be proposed for one queue.
struct Plan {
    offsets: Vec<QueueOffset>,
    skip: Option<SkipRange>,
}

/// What is left of a poll's limits while it plans.
struct Room {
    messages: usize,
    bytes: usize,
    /// Bytes that the filter may still read.
    look_bytes: usize,
    /// Room for the messages, if they are counted.
    answer: Option<AnswerRoom>,
    /// The limit of unread answers that a message did not fit into.
    full: Option<Full>,
}

/// What a filter found among new messages.
struct Found {
    wanted: Vec<QueueOffset>,
    /// The first offset not looked at.
    looked_to: QueueOffset,
    /// A limit ended the look, not the end of the queue.
    is_cut: bool,
}

impl Room {
    fn new(messages: usize, answer: Option<AnswerRoom>) -> Room {
        Room { messages, bytes: ANSWER_BYTES_MAX, look_bytes: LOOK_BYTES_MAX, answer, full: None }
    }

    /// Takes room for a message; the first one fits whatever its size, unless the client leaves too much unread.
    fn take(&mut self, length: u32) -> bool {
        if self.messages == 0 || (length as usize > self.bytes && self.bytes < ANSWER_BYTES_MAX) {
            return false;
        }
        if let Some(Err(full)) = self.answer.as_ref().map(|answer| answer.take([length])) {
            (self.messages, self.full) = (0, Some(full));
            return false;
        }
        let length = length as usize;
        self.messages -= 1;
        self.bytes = self.bytes.saturating_sub(length);
        true
    }
}

/// Why a look could not be finished.
enum LookError {
    Store(StoreError),
    Frame(String),
    /// This replica's copy is damaged; another one's may be whole.
    Damaged(String),
}

impl From<FrameReadError> for LookError {
    fn from(error: FrameReadError) -> LookError {
        match error {
            FrameReadError::Damaged(text) => LookError::Damaged(text),
            error @ FrameReadError::Trimmed(_) => LookError::Frame(error.to_string()),
            FrameReadError::Unreadable(text) => LookError::Frame(text),
        }
    }
}

impl From<StoreError> for LookError {
    fn from(error: StoreError) -> LookError {
        LookError::Store(error)
    }
}

fn refuse(status: v2::Status) -> peer::ForwardedReceive {
    super::receive::ReceiveMessage::refusal(&v2::ReceiveMessageRequest::default(), status)
}

fn end(status: v2::Status) -> Round {
    Round::End(Tried::answer(refuse(status)))
}

impl Take {
    /// Looks once, and delivers what it finds. What the last look of a poll passes over is written however little it is: a
    /// group must not lag for ever behind messages that it does not want.
    pub async fn round(&self, replica: &Arc<Replica>, term: Term, lane: &Arc<Lane>, is_last: bool) -> Round {
        let Some(info) = replica.readable_topic(&self.topic) else {
            return end(no_topic(&self.topic));
        };
        match info.permission {
            Permission::ReadWrite | Permission::Read => {}
            Permission::Write | Permission::None => return end(no_readable_queue(&self.topic)),
        }
        let looked = self.look(replica, term, lane, (info.queue_count, is_last)).await;
        if let (false, Some(answer)) = (matches!(looked, Ok(Round::Got(_))), &self.answer) {
            // It may look again, or wait.
            answer.clear();
        }
        match looked {
            Ok(round) => round,
            Err(LookError::Store(error)) => {
                // Files that cannot be read: the replica must not go on.
                replica.failure.set(error.to_string());
                end(status(Code::InternalServerError, error.to_string()))
            }
            // Whoever takes over from this replica gives the same messages for the same attempt.
            Err(LookError::Damaged(text)) => Round::End(Tried::Unknown(text)),
            Err(LookError::Frame(text)) => {
                tracing::error!(group = %self.group, topic = %self.topic, text, "message cannot be read");
                end(status(Code::InternalServerError, text))
            }
        }
    }

    async fn look(
        &self,
        replica: &Arc<Replica>,
        term: Term,
        lane: &Arc<Lane>,
        (queue_count, is_last): (u32, bool),
    ) -> Result<Round, LookError> {
        if let Some(attempt_id) = self.attempt_id.as_ref().filter(|_| self.is_repeated) {
            let grants = replica.store.attempt(&self.group, &self.topic, attempt_id);
            if !grants.is_empty() {
                // An answer was lost: what that try was given is given again, and nothing else.
                if let Some(answer) = &self.answer {
                    let messages = grants.iter().flat_map(|grants| &grants.granted).map(|granted| granted.slot.length);
                    if let Some(full) = answer.take(messages).err().or(answer.exceeded()) {
                        return Ok(end(answer.refusal(full)));
                    }
                }
                let again = |grants: AttemptGrants| (None, grants.queue, Plan { offsets: Vec::new(), skip: None });
                return self.deliver(replica, term, grants.into_iter().map(again).collect()).await;
            }
        }
        let mut plans = Vec::new();
        let mut room = Room::new(self.batch, self.answer.clone());
        let log_now_ms = replica.clock.now_ms(term, &replica.store);
        for queue in lane.next_turn(queue_count) {
            if room.messages == 0 {
                break;
            }
            let Some(progress) = replica.store.progress(&self.group, &self.topic, queue)? else { continue };
            if !progress.is_pinned {
                drop(plans);
                return Ok(self.touch(replica, term).await);
            }
            let Some(hold) = lane.take(term, queue) else { continue };
            if let Some(plan) = self.plan(replica, &hold, log_now_ms, &mut room, is_last).await? {
                plans.push((Some(hold), queue, plan));
            }
        }
        if let Some(answer) = &self.answer {
            let full = if plans.is_empty() { room.full } else { answer.exceeded() };
            if let Some(full) = full {
                return Ok(end(answer.refusal(full)));
            }
        }
        if plans.is_empty() {
            return Ok(Round::Nothing);
        }
        self.deliver(replica, term, plans).await
    }

    /// Fixes where the group begins in each queue: even a poll that finds nothing must count as its beginning.
    async fn touch(&self, replica: &Arc<Replica>, term: Term) -> Round {
        let command = Command::Touch { group: self.group.clone(), topic: self.topic.clone() };
        match replica.proposer.submit(term, command).await {
            Ok(settled) => match settled.outcome {
                // A group or topic that is gone again shows at the next look.
                Outcome::Touched { .. } | Outcome::Rejected(Rejection::GroupNotFound | Rejection::TopicNotFound) => {
                    Round::Again
                }
                Outcome::Rejected(rejection) => end(status(Code::InternalServerError, rejection.to_string())),
                other => unreachable!("a touch is answered by an outcome of touch, not {other:?}"),
            },
            Err(error) => Round::End(Tried::from_submit(error, refuse)),
        }
    }

    /// What to take from one queue; `None` if there is nothing.
    async fn plan(
        &self,
        replica: &Replica,
        hold: &Hold,
        log_now_ms: u64,
        room: &mut Room,
        is_last: bool,
    ) -> Result<Option<Plan>, LookError> {
        let (store, queue) = (&replica.store, hold.queue());
        // Read under the hold: nobody else moves it.
        let Some(progress) = store.progress(&self.group, &self.topic, queue)? else { return Ok(None) };
        let Some(group) = store.group(&self.group).filter(|group| !group.is_paused) else { return Ok(None) };
        let mut offsets = Vec::new();
        if progress.inflight > 0 {
            let is_undecided = replica.renewals.is_undecided(hold.term());
            for due in store.due(&self.group, &self.topic, queue, log_now_ms, room.messages) {
                let Some(delivery) = store.delivery(&self.group, &self.topic, queue, due.offset) else { continue };
                if delivery.holder != 0 && is_undecided {
                    if group.order {
                        break;
                    }
                    continue;
                }
                // Whatever the filter: it was wanted when it was handed out first. Left to a consumer whose filter does
                // not want it now, it would stay in flight for ever.
                if room.take(delivery.slot.length) {
                    offsets.push(due.offset);
                } else if group.order {
                    // What comes after it must wait for it.
                    break;
                }
            }
        }
        let in_flight_room = IN_FLIGHT_PER_QUEUE_MAX.saturating_sub(progress.inflight);
        if in_flight_room == 0 || room.messages == 0 || (group.order && progress.inflight > 0) {
            return Ok((!offsets.is_empty()).then_some(Plan { offsets, skip: None }));
        }
        let next = progress.next_offset;
        if self.filter == Filter::All {
            for (offset, slot) in store.slots(&self.topic, queue, next, room.messages.min(in_flight_room))? {
                if !room.take(slot.length) {
                    break;
                }
                offsets.push(offset);
            }
            return Ok((!offsets.is_empty()).then_some(Plan { offsets, skip: None }));
        }
        let found = self.look_ahead(hold, next, in_flight_room, room, replica).await?;
        let passed_over = found.looked_to.0 - next.0;
        let written_min = if is_last || found.is_cut { 1 } else { SKIP_WRITTEN_MIN };
        if found.wanted.is_empty() && passed_over < written_min {
            if passed_over > 0 {
                hold.found_nothing(self.topic_uid(replica), &self.filter, next, found.looked_to);
            }
            return Ok((!offsets.is_empty()).then_some(Plan { offsets, skip: None }));
        }
        offsets.extend(found.wanted);
        Ok(Some(Plan { offsets, skip: Some(SkipRange { from: next, to: found.looked_to }) }))
    }

    /// Which incarnation of the topic this is; 0 for one that is not made yet.
    fn topic_uid(&self, replica: &Replica) -> u64 {
        replica.store.topic(&self.topic).map_or(0, |info| info.uid)
    }

    /// New messages that the filter wants.
    async fn look_ahead(
        &self,
        hold: &Hold,
        next: QueueOffset,
        in_flight_room: usize,
        room: &mut Room,
        replica: &Replica,
    ) -> Result<Found, LookError> {
        let mut frames = Frames::new(replica);
        let mut wanted = Vec::new();
        let mut at = hold.look_from(self.topic_uid(replica), &self.filter, next);
        let mut looked = 0;
        while looked < LOOK_AHEAD_MAX {
            let slots = replica.store.slots(&self.topic, hold.queue(), at, LOOK_CHUNK)?;
            if slots.is_empty() {
                return Ok(Found { wanted, looked_to: at, is_cut: false });
            }
            for (offset, slot) in slots {
                if room.look_bytes == 0 {
                    return Ok(Found { wanted, looked_to: at, is_cut: true });
                }
                if self.wants(&slot, &mut frames, room).await? {
                    if wanted.len() >= in_flight_room || !room.take(slot.length) {
                        return Ok(Found { wanted, looked_to: at, is_cut: true });
                    }
                    wanted.push(offset);
                }
                at = offset.next();
                looked += 1;
            }
        }
        Ok(Found { wanted, looked_to: at, is_cut: true })
    }

    /// Whether the filter wants a message: by the hash of its tag, then by the message itself.
    async fn wants(&self, slot: &Slot, frames: &mut Frames<'_>, room: &mut Room) -> Result<bool, LookError> {
        if !self.filter.may_want(slot.tag_hash) {
            return Ok(false);
        }
        let message = match frames.frame(slot).await {
            // Nobody knows what it says: not to be passed over for good.
            Err(FrameReadError::Damaged(_)) if replica_is_alone(frames.replica()) => return Ok(true),
            Err(FrameReadError::Trimmed(_)) => return Ok(false),
            read => read?,
        };
        let head_bytes = slot.length as usize - message.body().len();
        let read_bytes = frames.take_bytes_read() + head_bytes * self.filter.weight();
        room.look_bytes = room.look_bytes.saturating_sub(read_bytes);
        Ok(self.filter.wants(&message))
    }

    /// Proposes the plans and makes messages of what was granted.
    async fn deliver(
        &self,
        replica: &Arc<Replica>,
        term: Term,
        plans: Vec<(Option<Hold>, QueueId, Plan)>,
    ) -> Result<Round, LookError> {
        let invisible_until_ms = replica.clock.now_ms(term, &replica.store).saturating_add(self.invisible_ms);
        let mut is_more_to_look_at = false;
        let submitted = plans.into_iter().map(|(hold, queue, plan)| {
            is_more_to_look_at |= plan.offsets.is_empty() && plan.skip.is_some();
            let command = Command::Deliver {
                group: self.group.clone(),
                topic: self.topic.clone(),
                queue,
                attempt_id: self.attempt_id.clone(),
                invisible_until_ms,
                offsets: plan.offsets,
                skip: plan.skip,
            };
            // Handed in right here, one after the other; the holds stay until the outcomes are applied.
            let settled = replica.proposer.submit(term, command);
            async move { (hold, queue, settled.await) }
        });
        let submitted: Vec<_> = submitted.collect();
        let mut messages = Vec::new();
        let mut frames = Frames::new(replica);
        let mut failed = None;
        for (hold, queue, settled) in join_all(submitted).await {
            match settled.map(|settled| settled.outcome) {
                Ok(Outcome::Delivered { granted, repeated, .. }) => {
                    if !repeated {
                        replica.counters.delivered(&self.group, &self.topic, &granted);
                    }
                    if let Some(holder) = self.holder {
                        let place = (&self.group, &self.topic, queue);
                        replica.renewals.granted(place, &granted, holder, term, replica.runtime.now());
                    }
                    self.add_messages(replica, queue, &granted, &mut frames, &mut messages).await?;
                    if let Some(hold) = hold.filter(|_| !granted.is_empty()) {
                        // Polls that wait have to know when these will be due.
                        hold.release_with_news();
                    }
                }
                // A group or topic that is gone shows at the next look.
                Ok(Outcome::Rejected(_)) => {}
                Ok(other) => unreachable!("a delivery is answered by an outcome of delivery, not {other:?}"),
                Err(error) => failed = Some(error),
            }
        }
        Ok(match failed {
            _ if !messages.is_empty() => Round::Got(messages),
            Some(error) => Round::End(Tried::from_submit(error, refuse)),
            None if is_more_to_look_at => Round::MoreToLookAt,
            None => Round::Again,
        })
    }

    async fn add_messages(
        &self,
        replica: &Replica,
        queue: QueueId,
        granted: &[Granted],
        frames: &mut Frames<'_>,
        messages: &mut Vec<v2::Message>,
    ) -> Result<(), LookError> {
        let delivery = Delivery {
            group: &self.group,
            broker_group: replica.cluster.has_others().then_some(replica.config.group.as_str()),
            topic: &self.topic,
            topic_resource: &self.topic_resource,
            queue,
            invisible_ms: self.invisible_ms,
            store_host: &replica.client_address,
        };
        for grant in granted.iter().filter(|grant| !grant.dead_lettered) {
            match frames.frame(&grant.slot).await {
                Ok(frame) => messages.push(delivery.message(grant, &frame)),
                // It is not in flight any more either.
                Err(FrameReadError::Trimmed(_)) => {}
                Err(FrameReadError::Damaged(text)) if replica_is_alone(replica) => {
                    // It stays in flight like one whose consumer died; the others are not held up by it.
                    tracing::error!(group = %self.group, topic = %self.topic, offset = %grant.offset, text, "damaged message left out");
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// There is no other copy of anything.
fn replica_is_alone(replica: &Replica) -> bool {
    replica.voter_count() == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_message_fits_whatever_its_size_and_the_rest_by_bytes() {
        let mut room = Room::new(3, None);
        assert!(room.take(u32::MAX));
        assert!(!room.take(1), "nothing beside a huge one");
        let mut room = Room::new(2, None);
        assert!(room.take(10) && room.take(10));
        assert!(!room.take(10), "the batch is full");
    }
}
