//! One log, many lives: restarts, spills and different segment bounds change nothing anyone sees.

use std::collections::{BTreeMap, BTreeSet};

use crate::support::{
    Node, START_MS, ack, change, create_group, create_topic, create_topic_of, end, entry, group, offsets, prepare,
    produce, produce_delayed, recall, topic,
};
use bytes::Bytes;
use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset, StoredFrame};
use flotilla_raft_log::{LogIndex, StateMachine};
use flotilla_store::{
    Command, GroupChange, OffsetTarget, Outcome, Rejection, SkipRange, Slot, StartPolicy, ToCarry, TopicShare,
    TopicShares, entry_log_time_ms, frame_in, nth_frame,
};
use proptest::prelude::*;

const TOPICS: [&str; 5] = ["a", "b", "c", "d", "x"];
const GROUPS: [&str; 2] = ["g", "h"];

fn commands() -> impl Strategy<Value = Command> {
    let topic_name = || proptest::sample::select(TOPICS.to_vec());
    let group_name = || proptest::sample::select(GROUPS.to_vec());
    let policies = prop_oneof![
        Just(StartPolicy::First),
        Just(StartPolicy::Last),
        (0u64..3000).prop_map(|ms| StartPolicy::TimestampMs(START_MS + ms))
    ];
    prop_oneof![
        2 => (topic_name(), 1u32..3).prop_map(|(name, queues)| create_topic(name, queues)),
        1 => topic_name().prop_map(|name| Command::DeleteTopic { name: topic(name) }),
        2 => (group_name(), any::<bool>(), 1u32..3, policies)
            .prop_map(|(name, order, max, start)| create_group(name, order, max, start)),
        1 => group_name().prop_map(|name| Command::DeleteGroup { name: group(name) }),
        10 => (topic_name(), 0u32..3, proptest::collection::vec(0u32..300, 1..5)).prop_map(|(name, queue, ids)| {
            let ids: Vec<_> = ids.iter().map(|id| format!("id-{id}")).collect();
            produce(name, queue, &ids.iter().map(String::as_str).collect::<Vec<_>>())
        }),
        1 => (group_name(), topic_name())
            .prop_map(|(g, t)| Command::Touch { group: group(g), topic: topic(t) }),
        8 => (
            (group_name(), topic_name(), 0u32..2, 0u64..400),
            proptest::option::of(0u8..3),
            (0u64..12, 0u64..6),
            proptest::option::of((0u64..12, 0u64..20)),
        )
            .prop_map(|((g, t, queue, until), attempt, (from, count), skip)| Command::Deliver {
                group: group(g),
                topic: topic(t),
                queue: QueueId(queue),
                attempt_id: attempt.map(|id| format!("try-{id}")),
                invisible_until_ms: START_MS + until,
                offsets: offsets(from..from + count),
                skip: skip.map(|(from, to)| SkipRange { from: QueueOffset(from), to: QueueOffset(to) }),
            }),
        6 => (0u32..3, proptest::collection::vec((0u32..300, 0u64..400), 1..4)).prop_map(|(queue, messages)| {
            let ids: Vec<_> = messages.iter().map(|(id, due)| (format!("id-{id}"), START_MS + due)).collect();
            produce_delayed("d", queue, &ids.iter().map(|(id, due)| (id.as_str(), *due)).collect::<Vec<_>>())
        }),
        3 => (0u64..400, 0u32..4).prop_map(|(ms, count)| Command::DeliverDue { until_ms: START_MS + ms, count }),
        2 => (0u64..400, 0u64..60, 0u32..4).prop_map(|(ms, index, ordinal)| recall("d", START_MS + ms, index, ordinal)),
        5 => (0u32..3, 0u32..300, 0u64..200)
            .prop_map(|(queue, id, after_ms)| prepare("x", queue, &format!("id-{id}"), after_ms)),
        3 => (0u64..60, any::<bool>()).prop_map(|(index, commit)| end("x", index, commit)),
        3 => (0u32..4, 0u64..100, 0u32..3).prop_map(|(count, next_after_ms, checks_max)| {
            Command::CheckTransactions { count, next_after_ms, checks_max }
        }),
        4 => (group_name(), topic_name(), 0u32..2, proptest::collection::vec((0u64..12, 1u32..60), 1..8))
            .prop_map(|(g, t, queue, receipts)| ack(g, t, queue, &receipts)),
        5 => rare(),
        3 => (group_name(), topic_name(), 0u32..2, 0u64..12, 1u32..60, 0u64..400)
            .prop_map(|(g, t, queue, offset, seq, until)| change(g, t, queue, offset, seq, START_MS + until)),
    ]
}

fn rare() -> impl Strategy<Value = Command> {
    let topic_name = || proptest::sample::select(TOPICS.to_vec()).prop_map(topic);
    let group_name = || proptest::sample::select(GROUPS.to_vec()).prop_map(group);
    let queue = || (0u32..3).prop_map(QueueId);
    let offset = || (0u64..12).prop_map(QueueOffset);
    let targets = prop_oneof![
        Just(OffsetTarget::First),
        Just(OffsetTarget::Last),
        (0u64..300).prop_map(|ms| OffsetTarget::TimestampMs(START_MS + ms)),
        offset().prop_map(OffsetTarget::Offset),
    ];
    prop_oneof![
        3 => (group_name(), topic_name(), queue(), targets)
            .prop_map(|(group, topic, queue, to)| Command::SetOffset { group, topic, queue, to }),
        1 => (group_name(), any::<Option<bool>>(), proptest::option::of(0u32..4), proptest::option::weighted(0.2, any::<bool>()))
            .prop_map(|(name, order, max_deliveries, is_paused)| Command::UpdateGroup {
                name,
                change: GroupChange {
                    order,
                    max_deliveries,
                    is_paused,
                    retry_pauses_ms: max_deliveries.map(|count| vec![count; 3]),
                },
            }),
        3 => (topic_name(), proptest::option::of(1u32..5))
            .prop_map(|(name, queue_count)| Command::UpdateTopic { name, queue_count, permission: None }),
        2 => (group_name(), topic_name(), queue(), offset(), 0u64..60).prop_map(|(group, topic, queue, offset, index)| {
            let message = MessageRef { index, ordinal: 0 };
            Command::Redeliver { group, topic, queue, offset, message }
        }),
        2 => (group_name(), topic_name(), queue(), offset(), 1u32..60, 0u64..600).prop_map(
            |(group, topic, queue, offset, seq, until)| Command::Renew {
                group,
                topic,
                queue,
                deliveries: vec![(offset, seq)],
                holder: until % 3,
                invisible_until_ms: START_MS + until,
            }
        ),
        1 => (topic_name(), 0u64..12).prop_map(|(name, uid)| Command::DropTopic { name, uid }),
        2 => (topic_name(), 0u64..7).prop_map(|(name, uid)| Command::DropDrained { name, uid }),
        1 => (999u32..1003).prop_map(|entries_max| Command::SetDedupWindow { entries_max }),
        1 => (0u8..=1).prop_map(|level| Command::RaiseLevel { level }),
        1 => (topic_name(), proptest::option::of(0u64..500))
            .prop_map(|(name, retention_ms)| Command::SetTopicRetention { name, retention_ms }),
        1 => proptest::bool::weighted(0.8).prop_map(|is_writable| Command::SetWritePermission { is_writable }),
        1 => (topic_name(), 0u64..4, proptest::bool::ANY, 0usize..3).prop_map(|(name, version, is_moving, groups)| {
            let share = |number: usize| TopicShare { broker_group: format!("group-{number}"), queue_count: 2 };
            let shares = TopicShares { version, is_moving, shares: (0..groups).map(share).collect() };
            Command::SetTopicShares { name, shares }
        }),
        2 => (topic_name(), 0u64..8, 0u64..300)
            .prop_map(|(name, uid, ms)| Command::TrimTopic { name, uid, before_ms: START_MS + ms }),
        2 => (group_name(), topic_name(), queue(), offset(), 1u32..60).prop_map(
            |(group, topic, queue, offset, seq)| Command::DeadLetter { group, topic, queue, offset, seq }
        ),
    ]
}

/// Every log begins with topics and groups, so that most commands find what they speak of.
fn logs() -> impl Strategy<Value = Vec<Bytes>> {
    let entries = (proptest::collection::vec(commands(), 1..5), 0u64..300);
    let entries = entries.prop_map(|(commands, ms)| entry(START_MS + ms, &commands));
    proptest::collection::vec(entries, 1..59).prop_map(|entries| {
        let catalog = [
            create_topic("a", 2),
            create_topic("b", 1),
            create_topic_of("d", MessageType::Delay, 2),
            create_topic_of("x", MessageType::Transaction, 2),
            create_group("g", false, 2, StartPolicy::First),
            create_group("h", true, 2, StartPolicy::Last),
        ];
        std::iter::once(entry(START_MS, &catalog)).chain(entries).collect()
    })
}

#[derive(Debug, Clone, Copy)]
enum Event {
    None,
    Roll,
    Restart,
    /// The process dies: back to the last checkpoint, and the entries since are applied again.
    Crash,
}

fn lives() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        6 => Just(Event::None),
        2 => Just(Event::Roll),
        1 => Just(Event::Restart),
        1 => Just(Event::Crash)
    ];
    proptest::collection::vec(event, 60)
}

/// Applies a log in a life of rolls and restarts; the answers, and the machine at the end.
fn live(log: &[Bytes], events: &[Event]) -> (Vec<Vec<Outcome>>, Node) {
    let mut node = Node::new();
    let mut rolls = Vec::new();
    let mut saved = (node.machine.checkpoint(), 0);
    let mut answers: Vec<Vec<Outcome>> = Vec::new();
    for (payload, event) in log.iter().zip(events.iter().cycle()) {
        match event {
            Event::None => {}
            Event::Roll => {
                node.roll();
                rolls.push(node.index);
                saved = (node.machine.checkpoint(), node.index);
                node.machine.checkpoints_kept(&[LogIndex(node.index)]);
            }
            Event::Restart => node = node.restarted(),
            Event::Crash => {
                let reached = node.index;
                node = Node::on(node.disk.clone());
                node.machine.restore(&saved.0, LogIndex(saved.1)).unwrap();
                node.index = saved.1;
                while node.index < reached {
                    if rolls.contains(&node.index) && node.index > saved.1 {
                        node.roll();
                    }
                    let at = node.index as usize;
                    assert_eq!(node.apply(log[at].clone()), answers[at], "applied again");
                }
            }
        }
        answers.push(node.apply(payload.clone()));
    }
    (answers, node)
}

fn everything(node: &Node) -> String {
    let reader = &node.reader;
    let mut text = format!("{:?} {:?} {:?}", reader.topics(), reader.groups(), reader.dedup_status());
    text += &format!("{:?} {}", reader.next_delayed_ms(), reader.delayed_count());
    text += &format!("{:?} {:?} {:?}", reader.next_check_ms(), reader.half_counts(), reader.parked_halves(99));
    for info in reader.topics() {
        for queue in (0..info.queue_count).map(QueueId) {
            text += &format!("{:?}", reader.queue_bounds(&info.name, queue));
            text += &format!("{:?}", reader.slots(&info.name, queue, QueueOffset(0), usize::MAX).unwrap());
            for name in GROUPS {
                text += &format!("{:?}", reader.progress(&group(name), &info.name, queue).unwrap());
                text += &format!("{:?}", reader.due(&group(name), &info.name, queue, u64::MAX, 99));
            }
        }
    }
    text
}

/// Every slot of every queue, by topic number, queue and offset.
fn all_slots(node: &Node) -> BTreeMap<(u64, u32, u64), Slot> {
    let mut all = BTreeMap::new();
    for info in node.reader.topics() {
        for queue in 0..info.queue_count {
            let slots = node.reader.slots(&info.name, QueueId(queue), QueueOffset(0), usize::MAX).unwrap();
            let (min, max) = node.reader.queue_bounds(&info.name, QueueId(queue)).unwrap();
            assert_eq!(slots.len() as u64, max.0 - min.0, "dense");
            all.extend(slots.into_iter().map(|(offset, slot)| ((info.uid, queue, offset.0), slot)));
        }
    }
    all
}

/// What a leader's retention does: carries what is referred to, `at_a_time`, then trims half of the log.
fn retain(node: &mut Node, log: &mut Vec<Bytes>, at_a_time: usize) {
    let below = node.reader.retention().trimmed_below.max(1).midpoint(node.index + 1);
    let stamps = log[..below as usize - 1].iter().filter_map(|payload| entry_log_time_ms(payload));
    let Some(before_ms) = stamps.max().map(|ms| ms + 1) else { return };
    let mut duty = |node: &mut Node, command: Command| {
        let payload = entry(0, &[command]);
        log.push(payload.clone());
        (node.apply(payload).remove(0), log.clone())
    };
    loop {
        let plan = node.reader.trim_plan(below, before_ms, at_a_time).unwrap();
        if plan.to_carry.is_empty() {
            break;
        }
        let (refused, entries) = duty(node, Command::Trim { below, before_ms });
        assert!(matches!(refused, Outcome::Rejected(Rejection::TrimPassesReference { .. })), "{refused:?}");
        let frame_of = |carry: &ToCarry| match carry.bytes {
            None => nth_frame(&entries[carry.entry as usize - 1], carry.message.ordinal).unwrap().unwrap(),
            Some((position, length)) => {
                let payload = &entries[carry.entry as usize - 1];
                StoredFrame::from_bytes(payload.slice(position as usize..(position + length) as usize)).unwrap()
            }
        };
        let frames = plan.to_carry.iter().map(frame_of).collect();
        let messages: Vec<_> = plan.to_carry.iter().map(|carry| carry.message).collect();
        let count = messages.len() as u32;
        let (carried, _) = duty(node, Command::Carry { messages, frames });
        assert_eq!(carried, Outcome::Carried { count });
    }
    let before = all_slots(node);
    let held = (node.reader.delayed_count(), node.reader.half_counts());
    let old = node.reader.retention().trimmed_below;
    let (trimmed, _) = duty(node, Command::Trim { below, before_ms });
    let after = all_slots(node);
    assert_eq!(trimmed, Outcome::Trimmed { below: below.max(old), slots: (before.len() - after.len()) as u64 });
    if below > old {
        let staying = before.into_iter().filter(|(_, slot)| slot.stored_at_ms >= before_ms).collect();
        assert_eq!(after, staying);
    }
    assert_eq!(held, (node.reader.delayed_count(), node.reader.half_counts()));
}

/// Every message that stands in a queue, or will, is where it is said to be, in an entry that is kept.
fn assert_all_is_readable(node: &Node, log: &[Bytes]) {
    let kept_from = node.reader.retention().trimmed_below;
    let slots = all_slots(node);
    let parked = node.reader.parked_halves(usize::MAX);
    for slot in slots.values().chain(parked.iter().map(|half| &half.slot)) {
        assert!(slot.entry >= kept_from, "{slot:?} is trimmed");
        let found = frame_in(&log[slot.entry as usize - 1], slot).unwrap().into_frame();
        let sent = nth_frame(&log[slot.message.index as usize - 1], slot.message.ordinal).unwrap().unwrap();
        assert_eq!(found, sent);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn a_trimmed_log_loses_nothing_that_stays_and_all_its_lives_end_alike(
        sent in logs(),
        points in proptest::collection::vec((proptest::bool::weighted(0.15), 1usize..4), 60),
        one in lives(),
    ) {
        let mut leader = Node::new();
        let mut log: Vec<Bytes> = Vec::new();
        for (payload, (is_due, at_a_time)) in sent.into_iter().zip(points) {
            log.push(payload.clone());
            leader.apply(payload);
            if is_due {
                retain(&mut leader, &mut log, at_a_time);
                assert_all_is_readable(&leader, &log);
            }
        }
        // Everything that waits comes out in the end.
        let halves = (1..=log.len() as u64).map(|index| end("x", index, true));
        let last: Vec<_> = halves.chain([Command::DeliverDue { until_ms: u64::MAX, count: u32::MAX }]).collect();
        log.push(entry(0, &last));
        leader.apply(log.last().unwrap().clone());
        assert_all_is_readable(&leader, &log);
        retain(&mut leader, &mut log, 2);

        let (straight_answers, straight) = live(&log, &[Event::None; 60]);
        let (answers, node) = live(&log, &one);
        prop_assert_eq!(&answers, &straight_answers);
        prop_assert_eq!(node.reader.digest(), straight.reader.digest());
        prop_assert_eq!(node.reader.retention(), straight.reader.retention());
        prop_assert_eq!(everything(&node), everything(&straight));
        assert_all_is_readable(&node, &log);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_life_of_a_log_ends_alike(log in logs(), one in lives(), other in lives()) {
        let (straight_answers, straight) = live(&log, &[Event::None; 60]);
        for events in [one, other] {
            let (answers, node) = live(&log, &events);
            prop_assert_eq!(&answers, &straight_answers);
            prop_assert_eq!(node.reader.digest(), straight.reader.digest());
            prop_assert_eq!(everything(&node), everything(&straight));
        }
    }

    #[test]
    fn an_entry_that_changes_something_changes_the_digest(log in logs(), which in any::<prop::sample::Index>()) {
        let changes_something = |answers: &[Outcome]| {
            answers.iter().any(|outcome| match outcome {
                Outcome::Produced { offsets, .. } => offsets.iter().any(|slot| !slot.duplicate),
                Outcome::Delivered { granted, repeated: false, .. } => !granted.is_empty(),
                Outcome::DueDelivered { delivered } => *delivered > 0,
                Outcome::Recalled { repeated } | Outcome::TransactionEnded { repeated, .. } => !repeated,
                Outcome::TransactionsChecked { halves } => !halves.is_empty(),
                Outcome::TopicCreated { .. } | Outcome::GroupCreated { .. } => true,
                _ => false,
            })
        };
        let (answers, _) = live(&log, &[Event::None; 60]);
        let choices: Vec<_> = (0..log.len()).filter(|at| changes_something(&answers[*at])).collect();
        let which = *which.get(&choices);
        let (_, with) = live(&log[..=which], &[Event::None; 60]);
        let mut other = log[..=which].to_vec();
        other[which] = entry(0, &[]);
        let (_, without) = live(&other, &[Event::None; 60]);
        prop_assert_eq!(with.reader.applied(), without.reader.applied());
        prop_assert_ne!(with.reader.digest(), without.reader.digest());
    }

    #[test]
    fn every_kept_checkpoint_restores_and_nothing_else_is_kept(
        log in logs(),
        points in proptest::collection::vec((proptest::bool::weighted(0.4), 0u8..10), 60),
    ) {
        let mut node = Node::new();
        let mut kept: BTreeMap<u64, (Vec<u8>, String)> = BTreeMap::new();
        for (payload, (is_due, event)) in log.into_iter().zip(points) {
            node.apply(payload);
            if is_due {
                kept.insert(node.index, (node.machine.checkpoint(), node.reader.digest().digest));
            }
            match event {
                0 => node.roll(),
                1 => drop(kept.pop_first()),
                2 => node = node.restarted(),
                // Held fast, and never written.
                3 => drop(node.machine.checkpoint_later()),
                4 => drop(kept.remove(&(node.index - 1))),
                _ => {}
            }
            node.machine.checkpoints_kept(&kept.keys().copied().map(LogIndex).collect::<Vec<_>>());
            for (index, (checkpoint, digest)) in &kept {
                let mut again = Node::on(node.disk.clone());
                again.machine.restore(checkpoint, LogIndex(*index)).unwrap();
                prop_assert_eq!(again.reader.digest().digest, digest.clone());
            }
        }
        // Once it is the only one, whatever is not named by it is gone.
        node.apply(entry(0, &[]));
        let last = node.machine.checkpoint();
        node.machine.checkpoints_kept(&[LogIndex(node.index)]);
        let named: BTreeSet<String> =
            node.machine.side_files(&last).unwrap().into_iter().map(|file| file.name).collect();
        let part_files = node.disk.part_files();
        prop_assert!(part_files.iter().all(|name| named.contains(name)), "{:?} are not in {:?}", part_files, named);
    }
}
