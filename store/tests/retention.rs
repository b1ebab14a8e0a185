//! Old entries go, on every replica alike, and what is still referred to stays.

use std::sync::Arc;

use crate::support::{
    MemoryDisk, Node, START_MS, ack, create_topic_of, deliver, frame_of, granted, granted_offsets, group, topic,
};
use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset};
use flotilla_raft_log::{LogIndex, StateMachine, Term};
use flotilla_store::{Command, EntryBuilder, Outcome, Rejection, StartPolicy, nth_frame};

fn trim(node: &mut Node, below: u64, before_ms: u64) -> Outcome {
    node.run(Command::Trim { below, before_ms })
}

fn bounds(node: &Node, name: &str) -> (u64, u64) {
    let (min, max) = node.reader.queue_bounds(&topic(name), QueueId(0)).unwrap();
    (min.0, max.0)
}

/// Ten messages, a second apart, the fifth at entry `first + 4`.
fn ten_messages(node: &mut Node, name: &str) -> u64 {
    let first = node.index + 1;
    for number in 0..10 {
        node.now_ms = START_MS + number * 1000;
        node.send(name, 0, &[&format!("m{number}")]);
    }
    first
}

#[test]
fn trimmed_slots_vanish_and_groups_move_up() {
    let mut node = Node::new().with_topic("t", 1).with_group("slow", false, 3, StartPolicy::First).with_group(
        "fast",
        false,
        3,
        StartPolicy::First,
    );
    let first = ten_messages(&mut node, "t");
    let now_ms = node.now_ms;
    // One group has read nothing but 0 and 5, which are in flight, the other all.
    let slow = node.run(deliver("slow", "t", 0, [0], now_ms + 60_000));
    let late = granted(&slow)[0];
    node.run(deliver("slow", "t", 0, 1..6, now_ms + 60_000));
    let outcome = node.run(deliver("fast", "t", 0, 0..10, now_ms + 60_000));
    let receipts: Vec<_> = granted(&outcome).iter().map(|grant| (grant.offset.0, grant.seq)).collect();
    node.run(ack("fast", "t", 0, &receipts));

    assert_eq!(trim(&mut node, first + 4, START_MS + 3001), Outcome::Trimmed { below: first + 4, slots: 4 });
    assert_eq!(bounds(&node, "t"), (4, 10));
    let slots = node.reader.slots(&topic("t"), QueueId(0), QueueOffset(0), 99).unwrap();
    assert_eq!(slots[0].0, QueueOffset(4), "reading begins at the oldest that is there");
    let progress = |name| node.reader.progress(&group(name), &topic("t"), QueueId(0)).unwrap().unwrap();
    assert_eq!((progress("slow").next_offset.0, progress("slow").inflight), (6, 2));
    assert_eq!((progress("fast").next_offset.0, progress("fast").committed_offset.0), (10, 10));
    assert_eq!(node.reader.retention().expired, 4, "the slow group lost what was in flight");
    // A receipt of a trimmed message is answered as one of a consumed message.
    let outcome = node.run(ack("slow", "t", 0, &[(0, late.seq)]));
    assert_eq!(outcome, Outcome::Acked { results: vec![flotilla_store::AckResult::AlreadyAcked] });

    // Again, and below: nothing.
    assert_eq!(trim(&mut node, first + 2, START_MS + 9000), Outcome::Trimmed { below: first + 4, slots: 0 });
    assert_eq!(bounds(&node, "t"), (4, 10));
    // Everything: the queue is empty and goes on counting.
    let (below, before_ms) = (node.index + 1, node.now_ms + 1);
    assert_eq!(trim(&mut node, below, before_ms), Outcome::Trimmed { below, slots: 6 });
    assert_eq!(bounds(&node, "t"), (10, 10));
    node.send("t", 0, &["later"]);
    assert_eq!(granted_offsets(&node.run(deliver("slow", "t", 0, [10], now_ms + 60_000))), [10]);
    let ahead = node.index + 2;
    assert_eq!(
        trim(&mut node, ahead, u64::MAX),
        Outcome::Rejected(Rejection::TrimAhead { below: ahead, index: ahead - 1 })
    );
}

#[test]
fn a_trim_of_a_leader_that_is_replaced_does_nothing() {
    let mut node = Node::new().with_topic("t", 1);
    let first = ten_messages(&mut node, "t");
    let mut builder = EntryBuilder::new(node.now_ms, 1);
    builder.push(&Command::Trim { below: first + 4, before_ms: START_MS + 3001 });
    node.index += 1;
    let outcomes = node.machine.apply(LogIndex(node.index), Term(2), builder.finish());
    assert_eq!(outcomes, [Outcome::Rejected(Rejection::TermPassed { proposed: 1, term: 2 })]);
    assert_eq!(bounds(&node, "t"), (0, 10));
}

#[test]
fn a_time_that_would_leave_a_slot_without_its_message_is_refused() {
    let mut node = Node::new().with_topic("t", 1);
    let first = ten_messages(&mut node, "t");
    let outcome = trim(&mut node, first + 4, START_MS + 2500);
    let message = MessageRef { index: first + 3, ordinal: 0 };
    assert_eq!(outcome, Outcome::Rejected(Rejection::TrimPassesReference { message, below: first + 4 }));
    assert_eq!(bounds(&node, "t"), (0, 10), "nothing was trimmed");
}

#[test]
fn delayed_half_and_dead_messages_are_carried_and_keep_their_identities() {
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 1, StartPolicy::First);
    node.run(create_topic_of("d", MessageType::Delay, 1));
    node.run(create_topic_of("x", MessageType::Transaction, 1));
    let due_ms = START_MS + 1_000_000;
    let entry_of = |name: &str, kind, due| frame_of(name, &format!("{name}-1"), None, kind, due);
    let delayed = node.run(Command::Produce {
        topic: topic("d"),
        queue: QueueId(0),
        frames: vec![entry_of("d", MessageType::Delay, Some(due_ms))],
    });
    let Outcome::Produced { offsets, .. } = delayed else { panic!("{delayed:?}") };
    let delayed = offsets[0].message;
    node.run(crate::support::prepare("x", 0, "x-1", 1000));
    let half = MessageRef { index: node.index, ordinal: 0 };
    node.send("t", 0, &["dead", "alive"]);
    let dead = MessageRef { index: node.index, ordinal: 0 };
    let payload_of_dead = crate::support::entry(node.now_ms, &[crate::support::produce("t", 0, &["dead", "alive"])]);
    node.run(deliver("g", "t", 0, [0], node.now_ms + 10));
    let below = node.index;
    // A day later the message becomes a dead letter: its slot there is young.
    node.now_ms += 86_400_000;
    let outcome = node.run(deliver("g", "t", 0, [0], node.now_ms + 10));
    assert!(granted(&outcome)[0].dead_lettered);
    let before_ms = START_MS + 60_000;

    let refused = trim(&mut node, below, before_ms);
    assert!(matches!(refused, Outcome::Rejected(Rejection::TrimPassesReference { .. })), "{refused:?}");
    let plan = node.reader.trim_plan(below, before_ms, 9).unwrap();
    let waiting: Vec<_> = plan.to_carry.iter().map(|carry| carry.message).collect();
    assert_eq!((waiting, plan.has_more), (vec![delayed, half, dead], false));
    let frames = [
        entry_of("d", MessageType::Delay, Some(due_ms)),
        frame_of("x", "x-1", None, MessageType::Transaction, None),
        nth_frame(&payload_of_dead, 0).unwrap().unwrap(),
    ];
    let gone = MessageRef { index: 1, ordinal: 7 };
    let messages = vec![delayed, half, dead, gone];
    let all: Vec<_> = frames.iter().cloned().chain([frames[0].clone()]).collect();
    let payload = crate::support::entry(node.now_ms, &[Command::Carry { messages, frames: all }]);
    assert_eq!(node.apply(payload.clone()), [Outcome::Carried { count: 3 }]);
    let carried_at = node.index;
    assert!(matches!(trim(&mut node, below, before_ms), Outcome::Trimmed { slots: 2, .. }));

    // Handles name the first identity, and each message is read where it was carried to.
    node = node.restarted();
    assert_eq!(node.reader.retention().carried, 3);
    let outcome = node.run(Command::EndTransaction { topic: topic("x"), message: half, commit: true });
    assert_eq!(outcome, Outcome::TransactionEnded { offset: Some(QueueOffset(0)), repeated: false });
    node.run(Command::DeliverDue { until_ms: due_ms, count: 9 });
    for (name, message, frame) in [("d", delayed, &frames[0]), ("x", half, &frames[1]), ("%DLQ%g", dead, &frames[2])] {
        let (_, slot) = node.reader.slots(&topic(name), QueueId(0), QueueOffset(0), 1).unwrap()[0];
        assert_eq!((slot.message, slot.entry, slot.is_reference), (message, carried_at, true), "{name}");
        assert_eq!(flotilla_store::frame_in(&payload, &slot).unwrap().into_frame(), *frame);
        let outcome = node.run(deliver("g", name, 0, [0], node.now_ms + 10));
        assert_eq!(granted(&outcome)[0].slot, slot, "what is granted is readable too");
    }
    // The dead letter lives as long as its slot; then nothing is left that anyone refers to.
    let (below, before_ms) = (node.index + 1, node.now_ms + 1);
    assert!(node.reader.trim_plan(below, before_ms, 9).unwrap().to_carry.is_empty());
    assert!(matches!(trim(&mut node, below, before_ms), Outcome::Trimmed { slots: 3, .. }));
    assert_eq!((node.reader.retention().references, node.reader.retention().carried), (0, 0));
}

#[test]
fn dropping_a_topic_lets_go_of_what_it_referred_to() {
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 1, StartPolicy::First);
    node.run(create_topic_of("d", MessageType::Delay, 1));
    node.run(crate::support::produce_delayed("d", 0, &[("a", START_MS), ("b", u64::MAX)]));
    node.run(Command::DeliverDue { until_ms: START_MS, count: 9 });
    node.send("t", 0, &["dead"]);
    node.run(deliver("g", "t", 0, [0], 0));
    node.run(deliver("g", "t", 0, [0], 0));
    assert_eq!(node.reader.retention().references, 3);
    node.roll();
    node.run(Command::DeleteTopic { name: topic("d") });
    assert_eq!(node.reader.retention().references, 1);
    node.run(Command::DeleteTopic { name: topic("%DLQ%g") });
    assert_eq!(node.reader.retention().references, 0);
}

#[test]
fn index_files_go_when_neither_the_state_nor_a_checkpoint_needs_them() {
    let mut node = Node::new().with_topic("t", 1);
    let first = ten_messages(&mut node, "t");
    node.roll();
    let old = (node.machine.checkpoint(), node.index);
    for number in 0..5 {
        node.now_ms += 1000;
        node.send("t", 0, &[&format!("n{number}")]);
    }
    node.roll();
    assert_eq!(node.disk.index_files().len(), 2);
    assert!(matches!(trim(&mut node, first + 10, START_MS + 9001), Outcome::Trimmed { slots: 10, .. }));
    node.machine.checkpoints_kept(&[LogIndex(old.1)]);
    assert_eq!(node.disk.index_files().len(), 2, "the old checkpoint relies on it");
    let mut again = Node::on(node.disk.clone());
    again.machine.restore(&old.0, LogIndex(old.1)).unwrap();
    assert_eq!(bounds(&again, "t"), (0, 10));

    let mut restarted = node.restarted();
    for one in [&mut node, &mut restarted] {
        one.machine.checkpoints_kept(&[LogIndex(one.index)]);
        assert_eq!(one.disk.index_files().len(), 1);
        assert_eq!(bounds(one, "t"), (10, 15));
        assert_eq!(one.reader.slots(&topic("t"), QueueId(0), QueueOffset(0), 99).unwrap().len(), 5);
    }
}

#[test]
fn another_node_restores_a_checkpoint_with_its_side_files() {
    let mut node = Node::new().with_topic("t", 1);
    ten_messages(&mut node, "t");
    node.roll();
    node.send("t", 0, &["open"]);
    let checkpoint = node.machine.checkpoint();
    let files = node.machine.side_files(&checkpoint).unwrap();
    assert_eq!(files.len(), 2, "an index file and a part file");

    // The other one has an index file of its own that covers the same entries.
    let mut other = Node::on(Arc::new(MemoryDisk::default())).with_topic("other", 1);
    ten_messages(&mut other, "other");
    other.roll();
    assert!(other.machine.restore(&checkpoint, LogIndex(node.index)).is_err(), "its file is not that one");
    for file in &files {
        let bytes = flotilla_raft_log::read_file(&*node.disk, &file.path).unwrap();
        let path = other.machine.side_file_path(&file.name).unwrap();
        use flotilla_raft_log::Disk;
        other.disk.create(&path, bytes.len() as u64).unwrap().write_at(0, &bytes).unwrap();
    }
    other.machine.restore(&checkpoint, LogIndex(node.index)).unwrap();
    assert_eq!(other.reader.digest(), node.reader.digest());
    assert_eq!(bounds(&other, "t"), (0, 11));
    assert_eq!(other.machine.side_file_path("../vote"), None);
}

#[test]
fn a_topic_with_a_time_of_its_own_lets_its_old_messages_go_and_no_others() {
    let mut node = Node::new()
        .with_topic("short", 1)
        .with_topic("long", 1)
        .with_group("g", false, 3, StartPolicy::First)
        .with_group("fast", false, 3, StartPolicy::First);
    for number in 0..10 {
        node.now_ms = START_MS + number * 1000;
        node.send("short", 0, &[&format!("s{number}")]);
        node.send("long", 0, &[&format!("l{number}")]);
        if number == 4 {
            // Half of them in an index file.
            node.roll();
        }
    }
    let set = |name: &str, retention_ms| Command::SetTopicRetention { name: topic(name), retention_ms };
    assert!(node.reader.expired_topics(u64::MAX).unwrap().is_empty(), "none says anything");
    assert_eq!(node.run(set("short", Some(4_000))), Outcome::TopicRetentionSet);
    assert_eq!(node.run(set("nowhere", Some(4_000))), Outcome::Rejected(Rejection::TopicNotFound));
    let info = node.reader.topic(&topic("short")).unwrap();
    assert_eq!(info.retention_ms, Some(4_000));

    // Looked at more often than a sixteenth of its time passes, it is let go of once in that time.
    assert!(node.reader.expired_topics(START_MS + 4_250).unwrap().is_empty());
    let expired = node.reader.expired_topics(START_MS + 10_500).unwrap();
    assert_eq!(expired.len(), 1);
    assert_eq!((&expired[0].name, expired[0].uid, expired[0].before_ms), (&topic("short"), info.uid, START_MS + 6_500));

    // One group has read some, which are in flight; the other has consumed all.
    let now_ms = node.now_ms;
    let late = granted(&node.run(deliver("g", "short", 0, 0..3, now_ms + 60_000)))[0];
    let outcome = node.run(deliver("fast", "short", 0, 0..10, now_ms + 60_000));
    let receipts: Vec<_> = granted(&outcome).iter().map(|grant| (grant.offset.0, grant.seq)).collect();
    node.run(ack("fast", "short", 0, &receipts));
    let trim = |uid, before_ms| Command::TrimTopic { name: topic("short"), uid, before_ms };
    assert_eq!(
        node.run(trim(info.uid + 1, u64::MAX)),
        Outcome::Rejected(Rejection::TopicReplaced { uid: info.uid + 1 })
    );
    assert_eq!(node.run(trim(info.uid, START_MS + 6_500)), Outcome::TopicTrimmed { slots: 7 });
    assert_eq!(node.run(trim(info.uid, START_MS + 6_500)), Outcome::TopicTrimmed { slots: 0 }, "once");
    assert_eq!((bounds(&node, "short"), bounds(&node, "long")), ((7, 10), (0, 10)));
    assert_eq!(node.reader.retention().expired, 7, "what one group had not consumed");
    assert_eq!(granted_offsets(&node.run(deliver("g", "short", 0, 7..10, now_ms + 60_000))), [7, 8, 9]);
    let outcome = node.run(ack("g", "short", 0, &[(0, late.seq)]));
    assert_eq!(outcome, Outcome::Acked { results: vec![flotilla_store::AckResult::AlreadyAcked] });

    // A restart and the log's own trim find all of it; a topic made again begins without a time of its own.
    let mut again = node.restarted();
    assert_eq!(again.reader.digest(), node.reader.digest());
    assert_eq!(again.reader.topic(&topic("short")).unwrap().retention_ms, Some(4_000));
    let (below, before_ms) = (again.index + 1, again.now_ms + 1);
    assert_eq!(again.run(Command::Trim { below, before_ms }), Outcome::Trimmed { below, slots: 13 });
    again.run(Command::DropTopic { name: topic("short"), uid: info.uid });
    again = again.with_topic("short", 1);
    assert_eq!(again.reader.topic(&topic("short")).unwrap().retention_ms, None);
}

#[test]
fn dead_letters_and_delayed_messages_of_a_topic_with_a_time_of_its_own_release_what_they_referred_to() {
    let mut node = Node::new();
    node.run(create_topic_of("d", MessageType::Delay, 1));
    let frames = vec![frame_of("d", "d-1", None, MessageType::Delay, Some(START_MS + 10))];
    node.run(Command::Produce { topic: topic("d"), queue: QueueId(0), frames });
    node.now_ms = START_MS + 20;
    node.run(Command::DeliverDue { until_ms: START_MS + 20, count: 9 });
    assert_eq!((bounds(&node, "d"), node.reader.retention().references), ((0, 1), 1));
    let uid = node.reader.topic(&topic("d")).unwrap().uid;
    let trim = Command::TrimTopic { name: topic("d"), uid, before_ms: START_MS + 21 };
    assert_eq!(node.run(trim), Outcome::TopicTrimmed { slots: 1 });
    assert_eq!((bounds(&node, "d"), node.reader.retention().references), ((1, 1), 0));
}
