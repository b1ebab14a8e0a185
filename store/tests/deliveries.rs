//! Pop, told as stories: start positions, redelivery, order, attempts, dead letters, bounds.

use crate::support::{
    Node, START_MS, ack, change, create_group, create_topic, deliver, granted, granted_offsets, group, offsets,
    produce, topic,
};
use flotilla_message::{MessageType, Permission, QueueId, QueueOffset, TopicName};
use flotilla_store::{AckResult, Command, Due, Outcome, Rejection, SkipRange, StartPolicy, limits};

const FAR: u64 = u64::MAX;

fn with_messages(order: bool, max_deliveries: u32, count: u64) -> Node {
    let mut node = Node::new().with_topic("t", 1).with_group("g", order, max_deliveries, StartPolicy::First);
    for i in 0..count {
        node.send("t", 0, &[&format!("m{i}")]);
    }
    node
}

fn skipping(range: impl IntoIterator<Item = u64>, from: u64, to: u64) -> Command {
    Command::Deliver {
        group: group("g"),
        topic: topic("t"),
        queue: QueueId(0),
        attempt_id: None,
        invisible_until_ms: FAR,
        offsets: offsets(range),
        skip: Some(SkipRange { from: QueueOffset(from), to: QueueOffset(to) }),
    }
}

fn attempt(id: &str, range: impl IntoIterator<Item = u64>, invisible_until_ms: u64) -> Command {
    Command::Deliver {
        group: group("g"),
        topic: topic("t"),
        queue: QueueId(0),
        attempt_id: Some(id.to_owned()),
        invisible_until_ms,
        offsets: offsets(range),
        skip: None,
    }
}

fn position(node: &Node) -> (u64, u64, usize) {
    let progress = node.reader.progress(&group("g"), &topic("t"), QueueId(0)).unwrap().unwrap();
    (progress.committed_offset.0, progress.next_offset.0, progress.inflight)
}

fn due(node: &Node) -> Vec<u64> {
    let due = node.reader.due(&group("g"), &topic("t"), QueueId(0), node.now_ms, 100);
    due.iter().map(|due| due.offset.0).collect()
}

fn acked(outcome: Outcome) -> Vec<AckResult> {
    match outcome {
        Outcome::Acked { results } => results,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_consumer_that_polled_before_the_messages_were_sent_gets_them() {
    let mut node = Node::new().with_topic("t", 2).with_group("g", false, 3, StartPolicy::Last);
    node.send("t", 0, &["before"]);
    let touch = Command::Touch { group: group("g"), topic: topic("t") };
    assert!(!node.reader.progress(&group("g"), &topic("t"), QueueId(0)).unwrap().unwrap().is_pinned);
    assert_eq!(node.run(touch.clone()), Outcome::Touched { next_offsets: offsets([1, 0]) });
    node.send("t", 0, &["after"]);
    node.send("t", 1, &["after-too"]);
    // Touching again moves nothing.
    assert_eq!(node.run(touch), Outcome::Touched { next_offsets: offsets([1, 0]) });
    let node = &mut node.restarted();
    assert!(node.reader.progress(&group("g"), &topic("t"), QueueId(1)).unwrap().unwrap().is_pinned);
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [1], FAR))), [1]);
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 1, [0], FAR))), [0]);
}

#[test]
fn a_first_delivery_pins_its_queue_by_the_policy() {
    for (start, expected) in [
        (StartPolicy::First, 0),
        (StartPolicy::Last, 3),
        (StartPolicy::TimestampMs(START_MS + 20), 2),
        (StartPolicy::TimestampMs(START_MS + 21), 3),
        (StartPolicy::TimestampMs(0), 0),
    ] {
        let mut node = Node::new().with_topic("t", 1).with_group("g", false, 3, start);
        for i in 0..3 {
            node.now_ms = START_MS + i * 10;
            node.send("t", 0, &[&format!("m{i}")]);
        }
        assert_eq!(position(&node), (expected, expected, 0), "{start:?}");
        node.run(deliver("g", "t", 0, [], FAR));
        node.send("t", 0, &["later"]);
        assert_eq!(position(&node), (expected, expected, 0), "{start:?}");
    }
}

#[test]
fn only_what_is_next_in_line_or_due_is_granted() {
    let mut node = with_messages(false, 5, 6);
    let until = node.now_ms + 100;
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [1, 2], until))), [], "0 is first");
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [0, 1, 3], until))), [0, 1], "3 has a gap before it");
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [0, 1, 2], until + 50))), [2], "0 and 1 are invisible");
    assert_eq!(due(&node), []);
    assert_eq!(node.reader.next_due_ms(&group("g"), &topic("t")), Some(until));

    node.now_ms = until;
    assert_eq!(due(&node), [0, 1]);
    let again = node.run(deliver("g", "t", 0, [0, 1, 2, 3, 9], FAR));
    assert_eq!(granted_offsets(&again), [0, 1, 3], "2 is invisible, 9 does not exist");
    let attempts: Vec<_> = granted(&again).iter().map(|grant| grant.attempt).collect();
    assert_eq!(attempts, [2, 2, 1]);
    assert_eq!(position(&node), (0, 4, 4));
    // An unsorted or repeated offset is left out.
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [4, 4, 5, 4], FAR))), [4, 5]);
}

#[test]
fn log_time_never_goes_back() {
    let mut node = with_messages(false, 5, 1);
    let until = node.now_ms + 100;
    node.run(deliver("g", "t", 0, [0], until));
    node.now_ms = until + 7;
    node.send("t", 0, &["a"]);
    // The next leader's clock is behind: the delivery stays due, the slot keeps the later time.
    node.now_ms = until - 50;
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [0], FAR))), [0]);
    node.send("t", 0, &["b"]);
    assert_eq!(node.reader.log_time_ms(), until + 7);
    let slots = node.reader.slots(&topic("t"), QueueId(0), QueueOffset(1), 2).unwrap();
    assert_eq!(slots[0].1.stored_at_ms, slots[1].1.stored_at_ms);
}

#[test]
fn receipts_are_exact() {
    let mut node = with_messages(false, 5, 3);
    let until = node.now_ms + 10;
    let first: Vec<_> = granted(&node.run(deliver("g", "t", 0, 0..3, until))).to_vec();
    node.now_ms = until;
    let second: Vec<_> = granted(&node.run(deliver("g", "t", 0, [0], FAR))).to_vec();
    let results = acked(node.run(ack(
        "g",
        "t",
        0,
        &[(0, first[0].seq), (0, second[0].seq), (0, second[0].seq), (1, first[1].seq), (9, 1), (2, 77)],
    )));
    assert_eq!(
        results,
        [
            AckResult::Stale,
            AckResult::Acked,
            AckResult::AlreadyAcked,
            AckResult::Acked, // Late, but not delivered again since.
            AckResult::NotFound,
            AckResult::Stale,
        ]
    );
    assert_eq!(position(&node), (2, 3, 1));
    let seqs = [first[0].seq, first[1].seq, first[2].seq, second[0].seq];
    assert_eq!(seqs.iter().collect::<std::collections::BTreeSet<_>>().len(), 4);
}

#[test]
fn a_receipt_of_a_dropped_topic_acks_nothing_in_its_successor() {
    let mut node = with_messages(false, 5, 1);
    let old = granted(&node.run(deliver("g", "t", 0, [0], FAR)))[0];
    node.run(Command::DeleteTopic { name: topic("t") });
    let mut node = node.with_topic("t", 1);
    node.send("t", 0, &["m0"]);
    assert!(!node.reader.holds(&topic("t"), QueueId(0), QueueOffset(0), old.slot.message).unwrap());
    assert_eq!(acked(node.run(ack("g", "t", 0, &[(0, old.seq)]))), [AckResult::NotFound]);
    let new = granted(&node.run(deliver("g", "t", 0, [0], FAR)))[0];
    assert_eq!(new.attempt, 1);
    assert!(node.reader.holds(&topic("t"), QueueId(0), QueueOffset(0), new.slot.message).unwrap());
    assert_eq!(acked(node.run(ack("g", "t", 0, &[(0, old.seq)]))), [AckResult::Stale]);
    let changed = node.run(change("g", "t", 0, 0, old.seq, FAR));
    assert_eq!(changed, Outcome::Rejected(Rejection::ReceiptStale));
}

#[test]
fn a_repeated_change_of_the_invisible_time_answers_the_same() {
    let mut node = with_messages(false, 5, 1);
    let first = granted(&node.run(deliver("g", "t", 0, [0], FAR)))[0];
    let seq_of = |outcome: Outcome| match outcome {
        Outcome::InvisibleChanged { seq, .. } => seq,
        other => panic!("{other:?}"),
    };
    let until = node.now_ms + 500;
    let second = seq_of(node.run(change("g", "t", 0, 0, first.seq, until)));
    assert_ne!(second, first.seq);
    let repeated = node.run(change("g", "t", 0, 0, first.seq, FAR));
    assert_eq!(seq_of(repeated.clone()), second);
    assert!(matches!(repeated, Outcome::InvisibleChanged { invisible_until_ms, .. } if invisible_until_ms == until));
    let third = seq_of(node.run(change("g", "t", 0, 0, second, 0)));
    let stale = node.run(change("g", "t", 0, 0, first.seq, FAR));
    assert_eq!(stale, Outcome::Rejected(Rejection::ReceiptStale));
    assert_eq!(due(&node), [0], "a time that has passed makes it due at once");

    let again = granted(&node.run(deliver("g", "t", 0, [0], FAR)))[0];
    assert_eq!(again.attempt, 2, "changing is not delivering");
    let stale = node.run(change("g", "t", 0, 0, third, FAR));
    assert_eq!(stale, Outcome::Rejected(Rejection::ReceiptStale));
    node.run(ack("g", "t", 0, &[(0, again.seq)]));
    let gone = node.run(change("g", "t", 0, 0, again.seq, FAR));
    assert_eq!(gone, Outcome::Rejected(Rejection::DeliveryNotFound));
}

#[test]
fn filtered_messages_count_as_consumed_only_if_they_were_looked_at() {
    let mut node = with_messages(false, 5, 10);
    let outcome = node.run(skipping([2, 5], 0, 8));
    assert_eq!(granted_offsets(&outcome), [2, 5]);
    assert_eq!(position(&node), (2, 8, 2));
    // The leader looked from 9 on, but the group is at 8: nobody looked at 8.
    assert_eq!(granted_offsets(&node.run(skipping([9], 9, 10))), []);
    assert_eq!(position(&node), (2, 8, 2));
    // It looked from 5 on, which includes 8; the range ends with the queue.
    assert_eq!(granted_offsets(&node.run(skipping([9], 5, 99))), [9]);
    assert_eq!(position(&node), (2, 10, 3));
    node.send("t", 0, &["m10", "m11"]);
    assert_eq!(granted_offsets(&node.run(skipping([], 10, 12))), []);
    assert_eq!(position(&node), (2, 12, 3));
}

#[test]
fn an_ordered_group_gets_nothing_new_while_something_is_in_flight() {
    let mut node = with_messages(true, 5, 6);
    let until = node.now_ms + 10;
    let grants = granted(&node.run(deliver("g", "t", 0, 0..3, until))).to_vec();
    assert_eq!(grants.len(), 3);
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [3], FAR))), []);
    assert_eq!(granted_offsets(&node.run(skipping([4], 3, 6))), [], "nor past a filter");
    assert_eq!(position(&node), (0, 4, 3), "3 was filtered out, 4 was wanted");
    node.run(ack("g", "t", 0, &[(1, grants[1].seq)]));

    // 2 is given back early, but 0 is still being worked on: 2 waits for its turn.
    node.run(change("g", "t", 0, 2, grants[2].seq, 0));
    assert_eq!(due(&node), []);
    assert_eq!(node.reader.next_due_ms(&group("g"), &topic("t")), Some(until));
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [2], FAR))), []);
    node.now_ms = until;
    assert_eq!(due(&node), [0, 2]);
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [2], FAR))), [], "out of order");
    let again = granted(&node.run(deliver("g", "t", 0, [0, 2, 4], FAR))).to_vec();
    assert_eq!(again.iter().map(|grant| grant.offset.0).collect::<Vec<_>>(), [0, 2]);
    node.run(ack("g", "t", 0, &[(0, again[0].seq), (2, again[1].seq)]));
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [4, 5], FAR))), [4, 5]);
}

#[test]
fn a_repeated_attempt_gets_the_same_grants() {
    let mut node = with_messages(false, 5, 6);
    let until = node.now_ms + 100;
    let first = node.run(attempt("try-1", 0..2, until));
    // The leader chose anew for the repetition; the log answers what was granted.
    let mut node = node.restarted();
    let repeated = node.run(attempt("try-1", 2..4, until + 50));
    assert_eq!(granted(&first), granted(&repeated));
    assert!(matches!(repeated, Outcome::Delivered { repeated: true, next_offset: QueueOffset(2), .. }));
    let found = node.reader.attempt(&group("g"), &topic("t"), "try-1");
    assert_eq!((found.len(), found[0].queue, &found[0].granted[..]), (1, QueueId(0), granted(&first)));
    assert!(node.reader.attempt(&group("g"), &topic("t"), "try-2").is_empty());
    assert_eq!(granted_offsets(&node.run(attempt("try-2", 2..4, until))), [2, 3]);

    // What was acknowledged since is left out; what was changed since has its new number.
    let grants = granted(&first).to_vec();
    node.run(ack("g", "t", 0, &[(0, grants[0].seq)]));
    node.run(change("g", "t", 0, 1, grants[1].seq, until));
    let repeated = granted(&node.run(attempt("try-1", [4], until))).to_vec();
    assert_eq!((repeated.len(), repeated[0].offset.0), (1, 1));
    assert_ne!(repeated[0].seq, grants[1].seq);

    // Once it is due, the id is a new attempt.
    node.now_ms = until;
    let next = node.run(attempt("try-1", [1, 4], FAR));
    assert_eq!(granted_offsets(&next), [1, 4]);
    assert_eq!(granted(&next)[0].attempt, 2);
}

#[test]
fn attempts_are_forgotten_oldest_first_when_there_are_too_many() {
    let count = limits::ATTEMPTS_PER_QUEUE_MAX as u64 + 1;
    let mut node = with_messages(false, 5, count + 3);
    for i in 0..count {
        node.run(attempt(&format!("try-{i}"), [i], FAR));
    }
    assert_eq!(granted_offsets(&node.run(attempt("try-1", [count], FAR))), [1]);
    assert_eq!(granted_offsets(&node.run(attempt("try-0", [count], FAR))), [count], "forgotten");
}

#[test]
fn what_fails_too_often_becomes_a_dead_letter_by_reference() {
    let mut node = with_messages(false, 2, 2);
    let dead = TopicName::try_from("%DLQ%g").unwrap();
    let first = granted(&node.run(deliver("g", "t", 0, 0..2, node.now_ms))).to_vec();
    let second = granted(&node.run(deliver("g", "t", 0, 0..2, node.now_ms))).to_vec();
    assert_eq!((second[0].attempt, second[0].dead_lettered), (2, false));
    node.run(ack("g", "t", 0, &[(1, second[1].seq)]));
    assert!(node.reader.topic(&dead).is_none());
    node.now_ms += 60_000;
    node.listener.grown.lock().unwrap().clear();

    assert_eq!(
        node.reader.due(&group("g"), &topic("t"), QueueId(0), node.now_ms, 9),
        [Due { offset: QueueOffset(0), attempt: 2 }]
    );
    let third = granted(&node.run(deliver("g", "t", 0, [0], FAR))).to_vec();
    assert_eq!((third.len(), third[0].dead_lettered, third[0].attempt), (1, true, 2));
    assert_eq!(position(&node), (2, 2, 0), "it counts as consumed");
    assert_eq!(acked(node.run(ack("g", "t", 0, &[(0, second[0].seq)]))), [AckResult::AlreadyAcked]);

    let info = node.reader.topic(&dead).unwrap();
    assert_eq!((info.queue_count, info.message_type, info.permission), (1, MessageType::Normal, Permission::ReadWrite));
    assert!(node.listener.grown.lock().unwrap().contains(&("%DLQ%g".to_owned(), 0)));
    let slots = node.reader.slots(&dead, QueueId(0), QueueOffset(0), 9).unwrap();
    assert_eq!(slots.len(), 1);
    let (letter, original) = (slots[0].1, first[0].slot);
    assert_eq!(
        (letter.message, letter.position, letter.length),
        (original.message, original.position, original.length)
    );
    assert_eq!(letter.stored_at_ms, node.now_ms);

    // It can be consumed there, by any group, and failing there again makes no copy of it.
    node.roll();
    let mut node = node.restarted();
    for _ in 0..2 {
        let outcome = node.run(deliver("g", "%DLQ%g", 0, [0], 0));
        assert_eq!(granted(&outcome)[0].slot.message, original.message);
    }
    let outcome = node.run(deliver("g", "%DLQ%g", 0, [0], 0));
    assert!(granted(&outcome)[0].dead_lettered);
    assert_eq!(node.reader.queue_bounds(&dead, QueueId(0)), Some((QueueOffset(0), QueueOffset(1))));
}

#[test]
fn in_flight_messages_are_bounded_and_nothing_is_passed_over() {
    let max = limits::IN_FLIGHT_PER_QUEUE_MAX as u64;
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 3, StartPolicy::First);
    for i in 0..max / 100 + 1 {
        let ids: Vec<_> = (0..100).map(|j| format!("m{i}-{j}")).collect();
        node.send("t", 0, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    }
    let outcome = node.run(deliver("g", "t", 0, 0..max + 50, FAR));
    assert_eq!(granted(&outcome).len() as u64, max);
    assert_eq!(granted_offsets(&node.run(skipping([max + 20], max, max + 50))), []);
    assert_eq!(position(&node), (0, max + 20, max as usize), "the wanted one is not passed over");
    node.run(ack("g", "t", 0, &[(7, granted(&outcome)[7].seq)]));
    assert_eq!(granted_offsets(&node.run(deliver("g", "t", 0, [max + 20, max + 21], FAR))), [max + 20]);
}

#[test]
fn commands_about_what_does_not_exist_are_rejected() {
    let mut node = with_messages(false, 3, 1);
    let rejected = |outcome| match outcome {
        Outcome::Rejected(rejection) => rejection,
        other => panic!("{other:?}"),
    };
    let mut expect = |command: Command, rejection: Rejection| {
        let before = node.reader.queue_bounds(&topic("t"), QueueId(0));
        assert_eq!(rejected(node.run(command)), rejection);
        assert_eq!(node.reader.queue_bounds(&topic("t"), QueueId(0)), before);
    };
    let no_queue = Rejection::QueueNotFound { queue: QueueId(1), queue_count: 1 };
    expect(produce("u", 0, &["a"]), Rejection::TopicNotFound);
    expect(produce("t", 1, &["a"]), no_queue.clone());
    expect(deliver("h", "t", 0, [0], 1), Rejection::GroupNotFound);
    expect(deliver("g", "u", 0, [0], 1), Rejection::TopicNotFound);
    expect(deliver("g", "t", 1, [0], 1), no_queue.clone());
    expect(ack("h", "t", 0, &[]), Rejection::GroupNotFound);
    expect(ack("g", "t", 1, &[]), no_queue.clone());
    expect(change("g", "u", 0, 0, 1, 1), Rejection::TopicNotFound);
    expect(change("g", "t", 0, 0, 1, 1), Rejection::DeliveryNotFound);
    expect(Command::Touch { group: group("h"), topic: topic("t") }, Rejection::GroupNotFound);
    expect(Command::DeleteTopic { name: topic("u") }, Rejection::TopicNotFound);
    expect(Command::DeleteGroup { name: group("h") }, Rejection::GroupNotFound);
    expect(create_topic("t", 1), Rejection::TopicExists { same: true });
    expect(create_topic("t", 2), Rejection::TopicExists { same: false });
    expect(create_topic("u", 0), Rejection::QueueCountOutOfRange { queue_count: 0 });
    expect(create_topic("u", 1025), Rejection::QueueCountOutOfRange { queue_count: 1025 });
    expect(create_group("g", false, 3, StartPolicy::First), Rejection::GroupExists { same: true });
    expect(create_group("g", false, 3, StartPolicy::Last), Rejection::GroupExists { same: false });
    expect(create_group("h", false, 0, StartPolicy::First), Rejection::MaxDeliveriesOutOfRange { max_deliveries: 0 });
    assert_eq!(acked(node.run(ack("g", "t", 0, &[(0, 1)]))), [AckResult::NotFound]);
}

#[test]
fn permissions_hold_for_sending_and_consuming() {
    let mut node = Node::new().with_group("g", false, 3, StartPolicy::First);
    for (name, permission) in [("r", Permission::Read), ("w", Permission::Write)] {
        node.run(Command::CreateTopic {
            name: topic(name),
            message_type: MessageType::Normal,
            queue_count: 1,
            permission,
        });
    }
    assert_eq!(node.send("r", 0, &["a"]), Outcome::Rejected(Rejection::TopicNotWritable));
    assert!(matches!(node.send("w", 0, &["a"]), Outcome::Produced { .. }));
    assert_eq!(node.run(deliver("g", "w", 0, [0], FAR)), Outcome::Rejected(Rejection::TopicNotReadable));
    assert_eq!(granted(&node.run(deliver("g", "r", 0, [0], FAR))), []);
}

#[test]
fn a_dropped_group_is_forgotten_with_its_progress() {
    let mut node = with_messages(false, 3, 3);
    node.run(deliver("g", "t", 0, 0..3, FAR));
    node.run(Command::DeleteGroup { name: group("g") });
    assert_eq!(node.reader.progress(&group("g"), &topic("t"), QueueId(0)).unwrap(), None);
    let mut node = node.with_group("g", false, 3, StartPolicy::First);
    let outcome = node.run(deliver("g", "t", 0, [0], FAR));
    assert_eq!((granted_offsets(&outcome), granted(&outcome)[0].attempt), (vec![0], 1));
}
