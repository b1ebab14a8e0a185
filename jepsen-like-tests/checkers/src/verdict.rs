//! All properties over one history, with each finding named by its property.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{
    History, QueueKey, all_or_nothing, dense_offsets, fresh_reads, linearizable_registers, no_duplicate, no_lost_ack,
    no_phantom, nothing_taken_back, one_leader_per_term, one_payload_per_entry, order_per_queue, real_time_order,
    replicas_agree,
};

/// The properties, one per module.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Property {
    /// See [`no_lost_ack`](crate::no_lost_ack).
    NoLostAck,
    /// See [`no_phantom`](crate::no_phantom).
    NoPhantom,
    /// See [`no_duplicate`](crate::no_duplicate).
    NoDuplicate,
    /// See [`dense_offsets`](crate::dense_offsets).
    DenseOffsets,
    /// See [`order_per_queue`](crate::order_per_queue).
    OrderPerQueue,
    /// See [`real_time_order`](crate::real_time_order).
    RealTimeOrder,
    /// See [`replicas_agree`](crate::replicas_agree).
    ReplicasAgree,
    /// See [`nothing_taken_back`](crate::nothing_taken_back).
    NothingTakenBack,
    /// See [`one_leader_per_term`](crate::one_leader_per_term).
    OneLeaderPerTerm,
    /// See [`one_payload_per_entry`](crate::one_payload_per_entry).
    OnePayloadPerEntry,
    /// See [`order_per_message_group`](crate::order_per_message_group). Not part of [`check`]: it must know which
    /// deliveries are those of one consumer group.
    OrderPerMessageGroup,
    /// See [`all_or_nothing`](crate::all_or_nothing).
    AllOrNothing,
    /// See [`never_early`](crate::never_early). Not part of [`check`]: it must know how wrong clocks may be.
    NeverEarly,
    /// See [`dead_letters_complete`](crate::dead_letters_complete). Not part of [`check`]: it must know the topic.
    DeadLettersComplete,
    /// See [`progress_kept`](crate::progress_kept). Not part of [`check`]: it must know which deliveries are those of one
    /// consumer group.
    ProgressKept,
    /// See [`fresh_reads`](crate::fresh_reads).
    FreshReads,
    /// See [`one_holder`](crate::one_holder). Not part of [`check`]: it must know which deliveries are those of one consumer
    /// group, and how long these are its consumers' own.
    OneHolder,
    /// See [`linearizable_registers`](crate::linearizable_registers).
    LinearizableRegisters,
}

impl std::fmt::Display for Property {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Property::NoLostAck => "no lost ack",
            Property::NoPhantom => "no phantom",
            Property::NoDuplicate => "no duplicate",
            Property::DenseOffsets => "dense offsets",
            Property::OrderPerQueue => "order per queue",
            Property::RealTimeOrder => "real-time order",
            Property::ReplicasAgree => "replicas agree",
            Property::NothingTakenBack => "nothing taken back",
            Property::OneLeaderPerTerm => "one leader per term",
            Property::OnePayloadPerEntry => "one payload per entry",
            Property::OrderPerMessageGroup => "order per message group",
            Property::AllOrNothing => "all or nothing",
            Property::NeverEarly => "never early",
            Property::DeadLettersComplete => "dead letters complete",
            Property::ProgressKept => "progress kept",
            Property::FreshReads => "fresh reads",
            Property::OneHolder => "one holder",
            Property::LinearizableRegisters => "linearizable registers",
        })
    }
}

/// One broken promise, told in a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Which promise.
    pub property: Property,
    /// What happened.
    pub detail: String,
}

impl std::fmt::Display for Finding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.property, self.detail)
    }
}

/// What all properties together say of a history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Everything found, property by property.
    pub findings: Vec<Finding>,
}

impl Verdict {
    /// Whether every promise was kept.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    fn add(&mut self, property: Property, found: impl IntoIterator<Item = impl std::fmt::Display>) {
        self.findings.extend(found.into_iter().map(|found| Finding { property, detail: found.to_string() }));
    }
}

/// Judges a whole history, taken after all faults were healed and all replicas had time to catch
/// up: replicas that still differ in their applied index are a finding too.
///
/// Lost messages are looked for in the dumps if there are any, else among the deliveries.
pub fn check(history: &History) -> Verdict {
    let History { sends, deliveries, sightings, begins: _, dumps, leaders, entries, tasks } = history;
    let seen = deliveries.iter().chain(sightings).map(|seen| (&seen.queue, seen.offset, seen.message_id.as_str()));
    let held = dumps
        .iter()
        .flat_map(|dump| &dump.queues)
        .flat_map(|queue| queue.slots.iter().map(|slot| (&queue.queue, slot.offset, slot.message_id.as_str())));
    let places: Vec<(&QueueKey, u64, &str)> = seen.chain(held).collect();

    let mut verdict = Verdict::default();
    if dumps.is_empty() && !deliveries.is_empty() {
        verdict.add(Property::NoLostAck, no_lost_ack::among_deliveries(sends, deliveries));
    } else {
        verdict.add(Property::NoLostAck, no_lost_ack::in_dumps(sends, dumps));
    }
    verdict.add(Property::NoPhantom, no_phantom::find(sends, places.iter().copied()));
    verdict.add(Property::NoDuplicate, no_duplicate::find(places.iter().copied()));
    verdict.add(Property::DenseOffsets, dense_offsets::find(dumps));
    verdict.add(Property::OrderPerQueue, order_per_queue::find(deliveries));
    verdict.add(Property::RealTimeOrder, real_time_order::find(sends));
    verdict.add(Property::ReplicasAgree, replicas_agree::find(dumps, true));
    verdict.add(Property::NothingTakenBack, nothing_taken_back::find(sends, &[deliveries, sightings], dumps));
    verdict.add(Property::OneLeaderPerTerm, one_leader_per_term::find(leaders, sends));
    verdict.add(Property::OnePayloadPerEntry, one_payload_per_entry::find(entries));
    let stored: Option<BTreeSet<&str>> =
        (!dumps.is_empty()).then(|| places.iter().map(|(_, _, message_id)| *message_id).collect());
    verdict.add(Property::AllOrNothing, all_or_nothing::find(tasks, deliveries, stored.as_ref()));
    verdict.add(Property::FreshReads, fresh_reads::find(sends, tasks));
    verdict.add(Property::LinearizableRegisters, linearizable_registers::find(tasks));
    verdict
}

/// Small histories for the properties' own tests, all in queue `t/0`.
#[cfg(test)]
pub(crate) mod fixtures {
    use crate::{Ack, Delivery, Dump, QueueDump, QueueKey, Send, SendOutcome, SlotDump};

    pub(crate) fn queue() -> QueueKey {
        QueueKey::new("t", 0)
    }

    pub(crate) fn acked(id: &str, offset: u64) -> Send {
        Send::new(id, SendOutcome::Acked(Ack::at(queue(), offset)))
    }

    pub(crate) fn unknown(id: &str) -> Send {
        Send::new(id, SendOutcome::Unknown)
    }

    pub(crate) fn refused(id: &str) -> Send {
        Send::new(id, SendOutcome::Refused)
    }

    pub(crate) fn delivery(consumer: &str, offset: u64, id: &str) -> Delivery {
        Delivery::new(consumer, queue(), offset, id)
    }

    pub(crate) fn dump(replica: u64, slots: &[(u64, &str)]) -> Dump {
        let slots = slots
            .iter()
            .map(|(offset, id)| SlotDump {
                offset: *offset,
                message_id: (*id).into(),
                log_index: 10 + offset,
                ordinal: 0,
            })
            .collect();
        let queues = vec![QueueDump { queue: queue(), offset_min: 0, slots }];
        Dump { replica, applied_index: 100, digest: "d".into(), queues }
    }
}

#[cfg(test)]
mod tests {
    use super::fixtures::{acked, delivery, dump, queue, refused};
    use super::*;
    use crate::{EntrySeen, Leadership, Task, TaskRun};

    fn good() -> History {
        History {
            sends: vec![acked("a", 0).timed(0, 10), acked("b", 1).timed(20, 30)],
            deliveries: vec![delivery("c-1", 0, "a"), delivery("c-1", 1, "b")],
            sightings: vec![delivery("r-1", 0, "a")],
            begins: Vec::new(),
            dumps: vec![dump(1, &[(0, "a"), (1, "b")]), dump(2, &[(0, "a"), (1, "b")])],
            leaders: vec![Leadership { term: 1, leader: 1 }],
            entries: vec![EntrySeen { replica: 1, index: 10, term: 1, payload_hash: 1 }],
            tasks: vec![TaskRun::done(Task::AskEnd { queue: queue(), end: Some(2) }, 40, 50)],
        }
    }

    #[test]
    fn a_good_history_is_clean_and_each_planted_wrong_is_named() {
        assert_eq!(check(&good()), Verdict::default());
        type Plant = fn(&mut History);
        let wrongs: [(Property, Plant); 13] = [
            (Property::NoLostAck, |h| h.sends.push(acked("c", 2))),
            (Property::NoPhantom, |h| h.sends[1] = refused("b")),
            (Property::NoDuplicate, |h| h.dumps.iter_mut().for_each(|d| d.queues[0].slots[1].message_id = "a".into())),
            (Property::DenseOffsets, |h| h.dumps.iter_mut().for_each(|d| d.queues[0].slots[1].offset = 2)),
            (Property::OrderPerQueue, |h| h.deliveries.reverse()),
            (Property::RealTimeOrder, |h| h.sends[0] = acked("a", 0).timed(40, 50)),
            (Property::ReplicasAgree, |h| h.dumps[1].digest = "x".into()),
            (Property::NothingTakenBack, |h| h.sightings.push(delivery("r-1", 2, "a"))),
            (Property::OneLeaderPerTerm, |h| h.leaders.push(Leadership { term: 1, leader: 2 })),
            (Property::OnePayloadPerEntry, |h| {
                h.entries.push(EntrySeen { replica: 2, index: 10, term: 1, payload_hash: 2 })
            }),
            (Property::AllOrNothing, |h| {
                h.tasks.push(TaskRun::done(Task::Prepare { message_id: "a".into() }, 1, 2));
            }),
            (Property::FreshReads, |h| h.tasks[0].task = Task::AskEnd { queue: queue(), end: Some(1) }),
            (Property::LinearizableRegisters, |h| {
                let read = Task::ReadRegister { register: "r".into(), value: Some(1) };
                h.tasks.push(TaskRun::done(read, 40, 50));
            }),
        ];
        for (property, plant) in wrongs {
            let mut history = good();
            plant(&mut history);
            let verdict = check(&history);
            assert!(verdict.findings.iter().any(|found| found.property == property), "{property}: {verdict:?}");
        }
    }

    #[test]
    fn without_dumps_the_deliveries_must_hold_what_was_acked() {
        let mut history = good();
        history.dumps.clear();
        assert!(check(&history).is_clean());
        history.deliveries.pop();
        assert_eq!(check(&history).findings[0].property, Property::NoLostAck);
    }
}
