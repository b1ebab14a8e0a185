//! What `Produce` and `Prepare` do: assign offsets, or keep what is delayed or half, and find repeated
//! sends. The leader runs the same code ahead of its applied state ([`crate::Shadow`]).

use std::collections::BTreeMap;

use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset, TopicName};
use flotilla_planted_bugs::{Bug, is_planted};

use crate::dedup::{DedupWindow, Seen, dedup_key};
use crate::entry_view::FramePlace;
use crate::halves::{Half, Halves};
use crate::held::Held;
use crate::limits::{DELAYED_MAX, HALVES_MAX};
use crate::queue::Queue;
use crate::references::References;
use crate::state::{Changes, Refusal, State, Topic};
use crate::timers::Timers;
use crate::{Holding, Outcome, ProducedSlot, Rejection};

/// Where the messages of a batch go.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Way {
    /// Into their queue.
    Queue,
    /// Among the delayed ones.
    Delayed,
    /// Among the half ones; their producer is asked after so much log time.
    Half { check_after_ms: u64 },
}

/// A batch of an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Batch<'a> {
    /// The entry.
    pub index: u64,
    pub payload: &'a [u8],
    pub topic: &'a str,
    pub queue: QueueId,
    pub frames: &'a [FramePlace],
    /// There for a `Prepare`.
    pub check_after_ms: Option<u64>,
}

/// What gives messages their places: the state, or what it will be.
pub(crate) trait Sequence {
    /// An earlier send of the same message, if the window holds it.
    fn known(&self, key: u128) -> Option<Seen>;
    /// Puts a message where it goes, and answers its mark ([`Seen::mark`]).
    fn place(&mut self, way: Way, message: MessageRef, place: &FramePlace) -> u64;
    /// Takes a send into the window.
    fn remember(&mut self, seen: Seen);
}

/// Whether a batch is taken, and where its messages go. `delayed` and `halves` wait already.
pub(crate) fn admit<'t>(
    topics: &'t BTreeMap<TopicName, Topic>,
    batch: &Batch<'_>,
    delayed: usize,
    halves: usize,
) -> Result<(&'t TopicName, &'t Topic, Way), Rejection> {
    let (name, topic) = topics.get_key_value(batch.topic).ok_or(Rejection::TopicNotFound)?;
    topic.queue(batch.queue)?;
    if !topic.permission.is_writable() {
        return Err(Rejection::TopicNotWritable);
    }
    let misfit = batch.frames.iter().find(|place| place.head.message_type() != topic.message_type);
    if let Some(place) = misfit {
        return Err(Rejection::MessageTypeConflict {
            topic: name.clone(),
            topic_type: topic.message_type,
            message_type: place.head.message_type(),
        });
    }
    let count = batch.frames.len();
    let way = match (topic.message_type, batch.check_after_ms) {
        (MessageType::Transaction, Some(_)) if halves + count > HALVES_MAX => return Err(Rejection::TooManyHalves),
        (MessageType::Transaction, Some(check_after_ms)) => Way::Half { check_after_ms },
        (MessageType::Transaction, None) => return Err(Rejection::NotPrepared),
        (_, Some(_)) => return Err(Rejection::NoTransactions { topic_type: topic.message_type }),
        (MessageType::Delay, None) if delayed + count > DELAYED_MAX => return Err(Rejection::TooManyDelayed),
        (MessageType::Delay, None) => Way::Delayed,
        (MessageType::Normal | MessageType::Fifo, None) => Way::Queue,
    };
    Ok((name, topic, way))
}

/// Gives each message of an admitted batch its place, or finds that it has one. `window_ms` is the dedup window's time.
pub(crate) fn sequence(
    to: &mut impl Sequence,
    batch: &Batch<'_>,
    topic_uid: u64,
    way: Way,
    window_ms: u64,
) -> Vec<ProducedSlot> {
    let mut offsets = Vec::with_capacity(batch.frames.len());
    for place in batch.frames {
        let frame = &batch.payload[place.position as usize..];
        let key = dedup_key(topic_uid, place.head.id_in(frame));
        if let Some(known) = to.known(key) {
            offsets.push(known.produced(way));
            continue;
        }
        let message = MessageRef { index: batch.index, ordinal: place.ordinal };
        let mark = to.place(way, message, place);
        let seen = Seen { key, at_ms: window_ms, mark, message, queue: batch.queue };
        offsets.push(ProducedSlot { duplicate: false, ..seen.produced(way) });
        to.remember(seen);
    }
    offsets
}

/// The parts of the state that a batch changes.
struct Applying<'s> {
    uid: u64,
    queue_id: QueueId,
    log_time_ms: u64,
    queue: &'s mut Queue,
    dedup: &'s mut DedupWindow,
    timers: &'s mut Timers,
    halves: &'s mut Halves,
    references: &'s mut References,
    changes: &'s mut Changes,
}

impl Sequence for Applying<'_> {
    fn known(&self, key: u128) -> Option<Seen> {
        self.dedup.find(key).copied()
    }

    fn place(&mut self, way: Way, message: MessageRef, place: &FramePlace) -> u64 {
        let held = Held::of(place, self.uid, self.queue_id.0);
        match way {
            Way::Queue => self.queue.append(held.slot(message, self.log_time_ms), held.checksum),
            Way::Delayed => {
                // When, not whether: what is due already waits for the leader's next word as well.
                let due_ms = place.head.delivery_at_ms().unwrap_or(0);
                self.changes.timers |= self.timers.insert(due_ms, message, held);
                self.references.add(message);
                due_ms
            }
            Way::Half { check_after_ms } => {
                if is_planted(Bug::HalfVisible) {
                    self.queue.append(held.slot(message, self.log_time_ms), held.checksum);
                }
                let prepared_at_ms = self.log_time_ms;
                let check_at_ms = Some(prepared_at_ms.saturating_add(check_after_ms));
                let half = Half { held, checks: 0, check_at_ms, prepared_at_ms };
                self.changes.timers |= self.halves.put(message, half);
                self.references.add(message);
                0
            }
        }
    }

    fn remember(&mut self, seen: Seen) {
        self.dedup.insert(seen);
    }
}

impl State {
    pub fn produce(&mut self, batch: &Batch<'_>, changes: &mut Changes) -> Result<Outcome, Refusal> {
        self.placement.admits(batch.topic)?;
        let (name, topic, way) = admit(&self.topics, batch, self.timers.len(), self.halves.len())?;
        let (name, uid) = (name.clone(), topic.uid);
        let queue_id = batch.queue;
        let Some(queue) = self.topics.get_mut(&name).and_then(|topic| topic.queues.get_mut(queue_id.0 as usize)) else {
            unreachable!("topic and queue were found above");
        };

        self.dedup.expire();
        let window_ms = self.dedup.now_ms();
        let mut applying = Applying {
            uid,
            queue_id,
            log_time_ms: self.log_time_ms,
            queue,
            dedup: &mut self.dedup,
            timers: &mut self.timers,
            halves: &mut self.halves,
            references: &mut self.references,
            changes,
        };
        let offsets = sequence(&mut applying, batch, uid, way, window_ms);
        if matches!(way, Way::Queue) && offsets.iter().any(|slot| !slot.duplicate) {
            changes.queues_grown.insert((name, queue_id));
        }
        Ok(Outcome::Produced { queue: queue_id, offsets })
    }
}

impl Seen {
    /// The answer to a send of it that is repeated.
    fn produced(&self, way: Way) -> ProducedSlot {
        let (offset, held) = match way {
            Way::Queue => (self.mark, None),
            Way::Delayed => (0, Some(Holding::Until(self.mark))),
            Way::Half { .. } => (0, Some(Holding::Half)),
        };
        ProducedSlot { queue: self.queue, offset: QueueOffset(offset), message: self.message, duplicate: true, held }
    }
}
