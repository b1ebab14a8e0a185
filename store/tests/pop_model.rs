//! Pop against a simple model: whatever is done in whatever order, both say the same.
//!
//! The model keeps a status for each message and decides by plain rules, message by message. The
//! machine it is compared with is spilled, restored from its own checkpoint and continued on the
//! way, and a second machine that sees the same log without any of that must agree too.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{Node, ack, change, entry, group, offsets, produce, topic};
use flotilla_message::{MessageRef, QueueId, QueueOffset, TopicName};
use flotilla_store::{AckResult, Command, GroupChange, OffsetTarget, Outcome, Rejection, SkipRange, StartPolicy};
use proptest::prelude::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    Waiting,
    InFlight { delivery: u32, seq: u32, replaced: Option<u32>, until_ms: u64 },
    Consumed,
}

/// A queue and one group's view of it.
#[derive(Debug)]
struct Model {
    order: bool,
    max_deliveries: u32,
    is_paused: bool,
    status: Vec<Status>,
    dead: Vec<u64>,
    attempts: BTreeMap<String, Vec<(u64, u32)>>,
    seqs: BTreeSet<u32>,
}

#[derive(Debug, Clone)]
enum Step {
    Send(u8),
    Wait(u16),
    /// What a leader would choose: what is due, and new ones; some of the latter filtered out.
    Poll {
        count: u8,
        filter: u8,
        invisible_ms: u8,
        attempt: Option<u8>,
    },
    /// What no leader should choose.
    Odd {
        offsets: Vec<u8>,
        skip: Option<(u8, u8)>,
        invisible_ms: u8,
    },
    /// Acknowledges grants of the past by their place in history: old ones too.
    Ack(Vec<prop::sample::Index>),
    Change {
        which: prop::sample::Index,
        invisible_ms: u8,
        twice: bool,
    },
    /// An operator or a client moves the group.
    Move(Target),
    /// An operator wants a message delivered again: one of the right identity, or of another.
    Redeliver {
        offset: u8,
        is_right: bool,
    },
    /// The leader prolongs what somebody holds.
    Renew {
        which: Vec<prop::sample::Index>,
        invisible_ms: u8,
    },
    /// The consumer gives up.
    GiveUp(prop::sample::Index),
    /// An operator changes the group.
    Settings {
        order: Option<bool>,
        max_deliveries: Option<u32>,
        is_paused: bool,
    },
    Roll,
    Restart,
}

#[derive(Debug, Clone, Copy)]
enum Target {
    First,
    Last,
    Offset(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let index = any::<prop::sample::Index>;
    let step = prop_oneof![
        3 => (1u8..6).prop_map(Step::Send),
        4 => (0u16..80).prop_map(Step::Wait),
        8 => (1u8..8, any::<u8>(), 0u8..100, proptest::option::of(0u8..4))
            .prop_map(|(count, filter, invisible_ms, attempt)| Step::Poll { count, filter, invisible_ms, attempt }),
        3 => (proptest::collection::vec(0u8..40, 0..6), proptest::option::of((0u8..40, 0u8..40)), 0u8..100)
            .prop_map(|(offsets, skip, invisible_ms)| Step::Odd { offsets, skip, invisible_ms }),
        6 => proptest::collection::vec(index(), 1..5).prop_map(Step::Ack),
        4 => (index(), 0u8..100, any::<bool>())
            .prop_map(|(which, invisible_ms, twice)| Step::Change { which, invisible_ms, twice }),
        2 => prop_oneof![Just(Target::First), Just(Target::Last), (0u8..40).prop_map(Target::Offset)]
            .prop_map(Step::Move),
        3 => (0u8..40, proptest::bool::weighted(0.8))
            .prop_map(|(offset, is_right)| Step::Redeliver { offset, is_right }),
        3 => (proptest::collection::vec(index(), 1..5), 0u8..100)
            .prop_map(|(which, invisible_ms)| Step::Renew { which, invisible_ms }),
        2 => index().prop_map(Step::GiveUp),
        1 => (any::<Option<bool>>(), proptest::option::of(1u32..4), proptest::bool::weighted(0.2))
            .prop_map(|(order, max_deliveries, is_paused)| Step::Settings { order, max_deliveries, is_paused }),
        1 => Just(Step::Roll),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..80)
}

impl Model {
    fn new(order: bool, max_deliveries: u32) -> Model {
        Model {
            order,
            max_deliveries,
            is_paused: false,
            status: Vec::new(),
            dead: Vec::new(),
            attempts: BTreeMap::new(),
            seqs: BTreeSet::new(),
        }
    }

    /// The first message from which on none was delivered or skipped.
    fn next(&self) -> usize {
        self.status.iter().rposition(|status| *status != Status::Waiting).map_or(0, |last| last + 1)
    }

    fn in_flight(&self) -> Vec<usize> {
        let flying = |status: &Status| matches!(status, Status::InFlight { .. });
        (0..self.status.len()).filter(|at| flying(&self.status[*at])).collect()
    }

    fn is_due(&self, at: usize, now_ms: u64) -> bool {
        matches!(self.status.get(at), Some(Status::InFlight { until_ms, .. }) if *until_ms <= now_ms)
    }

    fn new_seq(&mut self, seq: u32) -> u32 {
        assert!(self.seqs.insert(seq), "sequence number {seq} was given twice");
        seq
    }

    /// Checks a delivery's answer and takes it over.
    fn deliver(&mut self, wanted: &[u64], skip: Option<(u64, u64)>, now_ms: u64, until_ms: u64, outcome: &Outcome) {
        let next = self.next() as u64;
        let end = self.status.len() as u64;
        let looked = match skip {
            Some((from, to)) if from <= next => to.min(end).max(next),
            _ => next,
        };
        let flying_before = self.in_flight();
        let mut expected = Vec::new();
        let mut undone = flying_before.clone();
        let mut rising = wanted.to_vec();
        let mut highest = None;
        rising.retain(|offset| {
            let keeps = highest.is_none_or(|highest| *offset > highest);
            if keeps {
                highest = Some(*offset);
            }
            keeps
        });
        let mut reached = looked;
        let mut moved_to = next;
        for offset in rising {
            let at = offset as usize;
            if offset < next {
                let front = undone.first() == Some(&at);
                if self.is_due(at, now_ms) && (!self.order || front) {
                    undone.retain(|other| *other != at);
                    expected.push(offset);
                }
            } else if offset <= moved_to.max(looked) {
                if offset >= end || (self.order && !flying_before.is_empty()) {
                    reached = looked.min(offset);
                    break;
                }
                moved_to = offset + 1;
                expected.push(offset);
            }
        }

        let Outcome::Delivered { granted, next_offset, repeated: false } = outcome else {
            panic!("not a delivery: {outcome:?}");
        };
        assert_eq!(granted.iter().map(|grant| grant.offset.0).collect::<Vec<_>>(), expected);
        for grant in granted {
            let at = grant.offset.0 as usize;
            let before = match self.status[at] {
                Status::InFlight { delivery, .. } => delivery,
                Status::Waiting => 0,
                Status::Consumed => panic!("{at} is consumed"),
            };
            assert_eq!(grant.dead_lettered, before >= self.max_deliveries);
            if grant.dead_lettered {
                assert_eq!(grant.attempt, before);
                self.status[at] = Status::Consumed;
                self.dead.push(grant.offset.0);
                continue;
            }
            assert_eq!(grant.attempt, before + 1);
            self.status[at] =
                Status::InFlight { delivery: grant.attempt, seq: self.new_seq(grant.seq), replaced: None, until_ms };
        }
        for at in next..moved_to.max(reached) {
            let status = &mut self.status[at as usize];
            if *status == Status::Waiting {
                *status = Status::Consumed;
            }
        }
        assert_eq!(next_offset.0, self.next() as u64);
    }

    fn held(&self, attempt: &str, now_ms: u64) -> Vec<(u64, u32)> {
        let grants = self.attempts.get(attempt).cloned().unwrap_or_default();
        let held = grants.into_iter().filter_map(|(offset, granted)| match self.status[offset as usize] {
            Status::InFlight { delivery, seq, until_ms, .. } if delivery == granted && until_ms > now_ms => {
                Some((offset, seq))
            }
            _ => None,
        });
        held.collect()
    }

    fn ack(&mut self, offset: u64, seq: u32) -> AckResult {
        match self.status[offset as usize] {
            Status::InFlight { seq: current, .. } if current == seq => {
                self.status[offset as usize] = Status::Consumed;
                AckResult::Acked
            }
            Status::InFlight { .. } => AckResult::Stale,
            Status::Consumed => AckResult::AlreadyAcked,
            Status::Waiting => AckResult::NotFound,
        }
    }

    /// Where the group stands after it was moved; `None` if there is no such place.
    fn set_position(&mut self, to: Target) -> Option<u64> {
        let end = self.status.len();
        let next = match to {
            Target::First => 0,
            Target::Last => end,
            Target::Offset(offset) => usize::from(offset),
        };
        if next > end {
            return None;
        }
        self.status[..next].fill(Status::Consumed);
        self.status[next..].fill(Status::Waiting);
        self.attempts.clear();
        Some(next as u64)
    }

    /// Whether the message is due again.
    fn redeliver(&mut self, at: usize, now_ms: u64) -> bool {
        // A message behind the group's position waits for its first delivery.
        if at >= self.next() || self.status[at] != Status::Consumed {
            return false;
        }
        self.status[at] = Status::InFlight { delivery: 0, seq: 0, replaced: None, until_ms: now_ms };
        for grants in self.attempts.values_mut() {
            grants.retain(|(offset, _)| *offset != at as u64);
        }
        true
    }

    fn renew(&mut self, at: u64, asked: u32, to_ms: u64) -> bool {
        match &mut self.status[at as usize] {
            Status::InFlight { seq, until_ms, .. } if *seq == asked && *until_ms < to_ms => {
                *until_ms = to_ms;
                true
            }
            _ => false,
        }
    }

    fn give_up(&mut self, at: u64, asked: u32) -> Outcome {
        match self.status[at as usize] {
            Status::InFlight { seq, .. } if seq == asked => {
                self.status[at as usize] = Status::Consumed;
                self.dead.push(at);
                Outcome::DeadLettered
            }
            Status::InFlight { .. } => Outcome::Rejected(Rejection::ReceiptStale),
            _ => Outcome::Rejected(Rejection::DeliveryNotFound),
        }
    }

    fn change(&mut self, at: u64, asked: u32, to_ms: u64, outcome: &Outcome) {
        match self.status[at as usize] {
            Status::InFlight { seq, replaced, until_ms, .. } if replaced == Some(asked) => {
                let same = matches!(outcome, Outcome::InvisibleChanged { seq: answered, invisible_until_ms, .. }
                    if *answered == seq && *invisible_until_ms == until_ms);
                assert!(same, "{outcome:?}");
            }
            Status::InFlight { delivery, seq, .. } if seq == asked => {
                let Outcome::InvisibleChanged { seq: answered, invisible_until_ms, .. } = outcome else {
                    panic!("{outcome:?}");
                };
                assert_eq!(*invisible_until_ms, to_ms);
                self.status[at as usize] =
                    Status::InFlight { delivery, seq: self.new_seq(*answered), replaced: Some(asked), until_ms: to_ms };
            }
            Status::InFlight { .. } => assert_eq!(*outcome, Outcome::Rejected(Rejection::ReceiptStale)),
            _ => assert_eq!(*outcome, Outcome::Rejected(Rejection::DeliveryNotFound)),
        }
    }
}

/// The machine under test, its undisturbed twin, and the model.
struct Trial {
    node: Node,
    twin: Node,
    model: Model,
    /// Every (offset, sequence number) ever handed out.
    history: Vec<(u64, u32)>,
}

impl Trial {
    fn new(order: bool, max_deliveries: u32) -> Trial {
        let new = || Node::new().with_topic("t", 1).with_group("g", order, max_deliveries, StartPolicy::First);
        Trial { node: new(), twin: new(), model: Model::new(order, max_deliveries), history: Vec::new() }
    }

    fn run(&mut self, command: Command) -> Outcome {
        let payload = entry(self.node.now_ms, &[command]);
        let mut outcomes = self.node.apply(payload.clone());
        assert_eq!(self.twin.apply(payload), outcomes);
        outcomes.remove(0)
    }

    fn deliver(&mut self, wanted: Vec<u64>, skip: Option<(u64, u64)>, invisible_ms: u8, attempt: Option<String>) {
        let now_ms = self.node.now_ms;
        let until_ms = now_ms + u64::from(invisible_ms);
        let outcome = self.run(Command::Deliver {
            group: group("g"),
            topic: topic("t"),
            queue: QueueId(0),
            attempt_id: attempt.clone(),
            invisible_until_ms: until_ms,
            offsets: offsets(wanted.iter().copied()),
            skip: skip.map(|(from, to)| SkipRange { from: QueueOffset(from), to: QueueOffset(to) }),
        });
        if self.model.is_paused {
            assert_eq!(outcome, Outcome::Rejected(Rejection::GroupPaused));
            return;
        }
        let Outcome::Delivered { granted, .. } = &outcome else { panic!("{outcome:?}") };
        let held = attempt.as_ref().map(|id| self.model.held(id, now_ms)).unwrap_or_default();
        if held.is_empty() {
            self.model.deliver(&wanted, skip, now_ms, until_ms, &outcome);
            let live = granted.iter().filter(|grant| !grant.dead_lettered);
            let grants: Vec<_> = live.map(|grant| (grant.offset.0, grant.attempt)).collect();
            if let (Some(id), false) = (attempt, grants.is_empty()) {
                self.model.attempts.insert(id, grants);
            }
        } else {
            assert!(matches!(outcome, Outcome::Delivered { repeated: true, .. }));
            assert_eq!(granted.iter().map(|grant| (grant.offset.0, grant.seq)).collect::<Vec<_>>(), held);
        }
        self.history.extend(granted.iter().map(|grant| (grant.offset.0, grant.seq)));
    }

    fn step(&mut self, step: &Step, number: usize) {
        match step {
            Step::Send(count) => {
                let ids: Vec<_> = (0..*count).map(|i| format!("{number}-{i}")).collect();
                self.run(produce("t", 0, &ids.iter().map(String::as_str).collect::<Vec<_>>()));
                self.model.status.extend((0..*count).map(|_| Status::Waiting));
            }
            Step::Wait(ms) => self.node.now_ms += u64::from(*ms),
            Step::Poll { count, filter, invisible_ms, attempt } => {
                let now_ms = self.node.now_ms;
                let due = self.node.reader.due(&group("g"), &topic("t"), QueueId(0), now_ms, *count as usize);
                let mut wanted: Vec<u64> = due.iter().map(|due| due.offset.0).collect();
                let next = self.model.next() as u64;
                let end = (next + u64::from(*count)).min(self.model.status.len() as u64);
                let passes = |offset: &u64| filter & 1 == 0 || filter >> (offset % 8) & 1 == 0;
                wanted.extend((next..end).filter(passes));
                let skip = (filter & 1 == 1).then_some((next, end));
                self.deliver(wanted, skip, *invisible_ms, attempt.map(|id| format!("try-{id}")));
            }
            Step::Odd { offsets, skip, invisible_ms } => {
                let wanted = offsets.iter().map(|offset| u64::from(*offset)).collect();
                let skip = skip.map(|(from, to)| (u64::from(from), u64::from(to)));
                self.deliver(wanted, skip, *invisible_ms, None);
            }
            Step::Ack(which) if !self.history.is_empty() => {
                let receipts: Vec<_> = which.iter().map(|which| *which.get(&self.history)).collect();
                let results: Vec<_> = receipts.iter().map(|(offset, seq)| self.model.ack(*offset, *seq)).collect();
                assert_eq!(self.run(ack("g", "t", 0, &receipts)), Outcome::Acked { results });
            }
            Step::Change { which, invisible_ms, twice } if !self.history.is_empty() => {
                let (offset, seq) = *which.get(&self.history);
                let to_ms = self.node.now_ms + u64::from(*invisible_ms);
                for _ in 0..1 + usize::from(*twice) {
                    let outcome = self.run(change("g", "t", 0, offset, seq, to_ms));
                    self.model.change(offset, seq, to_ms, &outcome);
                    if let Outcome::InvisibleChanged { seq, .. } = outcome {
                        self.history.push((offset, seq));
                    }
                }
            }
            Step::Renew { which, invisible_ms } if !self.history.is_empty() => {
                let deliveries: Vec<_> = which.iter().map(|which| *which.get(&self.history)).collect();
                let to_ms = self.node.now_ms + u64::from(*invisible_ms);
                let renewed = deliveries.iter().map(|(at, seq)| u32::from(self.model.renew(*at, *seq, to_ms))).sum();
                let command = Command::Renew {
                    group: group("g"),
                    topic: topic("t"),
                    queue: QueueId(0),
                    deliveries: deliveries.iter().map(|(offset, seq)| (QueueOffset(*offset), *seq)).collect(),
                    holder: 7,
                    invisible_until_ms: to_ms,
                };
                assert_eq!(self.run(command), Outcome::Renewed { renewed });
            }
            Step::GiveUp(which) if !self.history.is_empty() => {
                let (at, seq) = *which.get(&self.history);
                let expected = self.model.give_up(at, seq);
                let (group, topic, offset) = (group("g"), topic("t"), QueueOffset(at));
                assert_eq!(self.run(Command::DeadLetter { group, topic, queue: QueueId(0), offset, seq }), expected);
            }
            Step::Ack(_) | Step::Change { .. } | Step::Renew { .. } | Step::GiveUp(_) => {}
            Step::Move(to) => {
                let target = match to {
                    Target::First => OffsetTarget::First,
                    Target::Last => OffsetTarget::Last,
                    Target::Offset(offset) => OffsetTarget::Offset(QueueOffset(u64::from(*offset))),
                };
                let expected = self.model.set_position(*to);
                let (group, topic, queue) = (group("g"), topic("t"), QueueId(0));
                match (self.run(Command::SetOffset { group, topic, queue, to: target }), expected) {
                    (Outcome::OffsetSet { next_offset }, Some(next)) => assert_eq!(next_offset.0, next),
                    (Outcome::Rejected(Rejection::OffsetOutOfRange { .. }), None) => {}
                    (outcome, expected) => panic!("{outcome:?} instead of {expected:?}"),
                }
            }
            Step::Redeliver { offset, is_right } => {
                let at = u64::from(*offset);
                let there = self.node.reader.slots(&topic("t"), QueueId(0), QueueOffset(at), 1).unwrap();
                let stands = there.first().map(|(_, slot)| slot.message);
                let other = MessageRef { index: u64::MAX, ordinal: 0 };
                let message = stands.filter(|_| *is_right).unwrap_or(other);
                let is_due = message != other && self.model.redeliver(at as usize, self.node.now_ms);
                let offset = QueueOffset(at);
                let (group, topic, queue) = (group("g"), topic("t"), QueueId(0));
                let outcome = self.run(Command::Redeliver { group, topic, queue, offset, message });
                let refused = Outcome::Rejected(Rejection::NotConsumed { offset });
                assert_eq!(outcome, if is_due { Outcome::Redelivered } else { refused });
            }
            Step::Settings { order, max_deliveries, is_paused } => {
                let (order, max_deliveries) = (*order, *max_deliveries);
                let change = GroupChange { order, max_deliveries, is_paused: Some(*is_paused), ..Default::default() };
                assert_eq!(self.run(Command::UpdateGroup { name: group("g"), change }), Outcome::GroupUpdated);
                self.model.order = order.unwrap_or(self.model.order);
                self.model.max_deliveries = max_deliveries.unwrap_or(self.model.max_deliveries);
                self.model.is_paused = *is_paused;
            }
            Step::Roll => self.node.roll(),
            Step::Restart => self.node = self.node.restarted(),
        }
    }

    fn check(&self) {
        assert_eq!(self.node.reader.digest(), self.twin.reader.digest());
        let (reader, now_ms) = (&self.node.reader, self.node.now_ms);
        let (g, t, q) = (group("g"), topic("t"), QueueId(0));
        let flying = self.model.in_flight();
        let progress = reader.progress(&g, &t, q).unwrap().unwrap();
        assert_eq!(progress.next_offset.0, self.model.next() as u64);
        assert_eq!(progress.inflight, flying.len());
        assert_eq!(progress.committed_offset.0, flying.first().copied().unwrap_or(self.model.next()) as u64);

        let until = |at: &usize| match self.model.status[*at] {
            Status::InFlight { until_ms, .. } => until_ms,
            other => panic!("{other:?}"),
        };
        let due: Vec<_> = if self.model.order {
            flying.iter().copied().take_while(|at| until(at) <= now_ms).collect()
        } else {
            flying.iter().copied().filter(|at| until(at) <= now_ms).collect()
        };
        let found = reader.due(&g, &t, q, now_ms, usize::MAX);
        assert_eq!(found.iter().map(|due| due.offset.0 as usize).collect::<Vec<_>>(), due);
        let next_due = if self.model.order { flying.first().map(until) } else { flying.iter().map(until).min() };
        assert_eq!(reader.next_due_ms(&g, &t), next_due);

        let source = reader.slots(&t, q, QueueOffset(0), usize::MAX).unwrap();
        let letters = reader.slots(&TopicName::dead_letter(&g), q, QueueOffset(0), usize::MAX).unwrap();
        let letters: Vec<_> = letters.iter().map(|(_, slot)| slot.message).collect();
        let expected: Vec<_> = self.model.dead.iter().map(|at| source[*at as usize].1.message).collect();
        assert_eq!(letters, expected);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn pop_does_what_the_model_says(order in any::<bool>(), max_deliveries in 1u32..4, steps in steps()) {
        let mut trial = Trial::new(order, max_deliveries);
        for (number, step) in steps.iter().enumerate() {
            trial.step(step, number);
            trial.check();
        }
    }
}
