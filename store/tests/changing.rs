//! Positions moved and settings changed: what becomes of what was in flight, waits, or comes later.

use crate::support::{
    Node, START_MS, ack, create_topic_of, deliver, granted, granted_offsets, group, produce_delayed, topic,
};
use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset};
use flotilla_store::{AckResult, Command, GroupChange, OffsetTarget, Outcome, Rejection, StartPolicy};

fn set(to: OffsetTarget) -> Command {
    Command::SetOffset { group: group("g"), topic: topic("t"), queue: QueueId(0), to }
}

fn queues(name: &str, count: u32) -> Command {
    Command::UpdateTopic { name: topic(name), queue_count: Some(count), permission: None }
}

fn change(change: GroupChange) -> Command {
    Command::UpdateGroup { name: group("g"), change }
}

/// A topic of one queue with ten messages, a group with no order.
fn ten() -> Node {
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 3, StartPolicy::First);
    for id in 0..10 {
        node.now_ms = START_MS + 10 * id;
        node.send("t", 0, &[&format!("m-{id}")]);
    }
    node
}

#[test]
fn a_group_set_back_gets_everything_from_there_on_anew_and_old_receipts_are_void() {
    let mut node = ten();
    let first = node.run(deliver("g", "t", 0, 0..6, START_MS + 60_000));
    let receipts: Vec<_> = granted(&first).iter().map(|grant| (grant.offset.0, grant.seq)).collect();
    node.run(ack("g", "t", 0, &receipts[..2]));
    assert_eq!(node.run(set(OffsetTarget::Offset(QueueOffset(1)))), Outcome::OffsetSet { next_offset: QueueOffset(1) });
    let again = node.run(deliver("g", "t", 0, 1..10, START_MS + 60_000));
    assert_eq!(granted_offsets(&again), (1..10).collect::<Vec<_>>());
    assert!(granted(&again).iter().all(|grant| grant.attempt == 1), "as if never delivered");
    assert_eq!(
        node.run(ack("g", "t", 0, &receipts[2..4])),
        Outcome::Acked { results: vec![AckResult::Stale, AckResult::Stale] }
    );
}

#[test]
fn a_group_set_forward_has_consumed_what_it_passes_over() {
    let mut node = ten();
    node.run(deliver("g", "t", 0, 0..3, START_MS + 60_000));
    node.run(set(OffsetTarget::Last));
    let progress = node.reader.progress(&group("g"), &topic("t"), QueueId(0)).unwrap().unwrap();
    assert_eq!((progress.committed_offset.0, progress.inflight, progress.is_pinned), (10, 0, true));
    node.now_ms = START_MS + 120_000;
    let late = node.run(deliver("g", "t", 0, 0..10, START_MS + 180_000));
    assert_eq!(granted_offsets(&late), [] as [u64; 0], "nothing comes back");
}

#[test]
fn a_position_is_found_by_time_to_the_millisecond_and_none_is_behind_the_end() {
    let mut node = ten();
    let mut at = |ms| match node.run(set(OffsetTarget::TimestampMs(START_MS + ms))) {
        Outcome::OffsetSet { next_offset } => next_offset.0,
        other => panic!("{other:?}"),
    };
    assert_eq!((at(0), at(1), at(10), at(11), at(90), at(91)), (0, 1, 1, 2, 9, 10));
    let (offset, min, max) = (QueueOffset(11), QueueOffset(0), QueueOffset(10));
    assert_eq!(
        node.run(set(OffsetTarget::Offset(offset))),
        Outcome::Rejected(Rejection::OffsetOutOfRange { offset, min, max })
    );
    assert_eq!(node.run(set(OffsetTarget::First)), Outcome::OffsetSet { next_offset: QueueOffset(0) });
}

#[test]
fn a_paused_group_gets_nothing_until_it_goes_on() {
    let mut node = ten();
    node.run(change(GroupChange { is_paused: Some(true), ..GroupChange::default() }));
    let poll = || deliver("g", "t", 0, 0..3, START_MS + 60_000);
    assert_eq!(node.run(poll()), Outcome::Rejected(Rejection::GroupPaused));
    let node = &mut node.restarted();
    assert_eq!(node.run(poll()), Outcome::Rejected(Rejection::GroupPaused), "a checkpoint knows it");
    node.run(change(GroupChange { is_paused: Some(false), ..GroupChange::default() }));
    assert_eq!(granted_offsets(&node.run(poll())), [0, 1, 2]);
}

#[test]
fn a_changed_group_keeps_what_was_not_named() {
    let mut node = ten();
    let pauses = vec![100, 200, 300];
    let changed = GroupChange { max_deliveries: Some(9), retry_pauses_ms: Some(pauses.clone()), ..Default::default() };
    assert_eq!(node.run(change(changed)), Outcome::GroupUpdated);
    node.run(change(GroupChange { order: Some(true), ..GroupChange::default() }));
    let info = node.restarted().reader.group(&group("g")).unwrap();
    assert_eq!((info.order, info.max_deliveries, info.retry_pauses_ms), (true, 9, pauses));
    let many = GroupChange { retry_pauses_ms: Some(vec![1; 19]), ..GroupChange::default() };
    assert_eq!(
        node.run(change(many)),
        Outcome::Rejected(Rejection::RetryPausesOutOfRange { count: 19, longest_ms: 1 })
    );
}

#[test]
fn queues_that_come_later_are_read_from_their_first_message_whatever_the_start_policy() {
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 3, StartPolicy::Last);
    node.run(Command::Touch { group: group("g"), topic: topic("t") });
    assert_eq!(node.run(queues("t", 3)), Outcome::TopicUpdated { queue_count: 3, writable_queues: 3 });
    node.send("t", 2, &["after"]);
    let got = node.run(deliver("g", "t", 2, 0..1, START_MS + 60_000));
    assert_eq!(granted_offsets(&got), [0]);
}

#[test]
fn a_queue_goes_when_it_is_consumed_and_not_before() {
    let mut node = Node::new().with_topic("t", 3).with_group("g", false, 3, StartPolicy::First);
    node.send("t", 2, &["waits"]);
    let kept = Outcome::TopicUpdated { queue_count: 3, writable_queues: 1 };
    assert_eq!(node.run(queues("t", 1)), kept, "no group has seen it");
    let got = node.run(deliver("g", "t", 2, 0..1, START_MS + 60_000));
    assert_eq!(node.run(queues("t", 1)), kept, "it is in flight");
    let receipt = (0, granted(&got)[0].seq);
    node.run(ack("g", "t", 2, &[receipt]));
    let node = &mut node.restarted();
    node.run(Command::Touch { group: group("g"), topic: topic("t") });
    assert_eq!(node.run(queues("t", 1)), Outcome::TopicUpdated { queue_count: 1, writable_queues: 1 });
    node.roll();
    let node = &mut node.restarted();
    // Made again it goes on where it was: an offset means one message for ever.
    node.run(queues("t", 3));
    let Outcome::Produced { offsets, .. } = node.send("t", 2, &["new"]) else { panic!("stored") };
    assert_eq!(offsets[0].offset, QueueOffset(1));
    let got = node.run(deliver("g", "t", 2, 0..2, START_MS + 60_000));
    assert_eq!(granted_offsets(&got), [1]);
    node.roll();
    assert_eq!(node.restarted().reader.digest(), node.reader.digest());
}

#[test]
fn drained_queues_are_seen_and_go_by_a_duty_of_the_leader_alone() {
    let mut node = Node::new().with_topic("t", 4).with_group("g", false, 3, StartPolicy::First);
    let uid = node.reader.topic(&topic("t")).unwrap().uid;
    let drop_drained = |uid| Command::DropDrained { name: topic("t"), uid };
    let drained = |node: &Node| !node.reader.drained_topics(9).is_empty();
    node.send("t", 2, &["waits"]);
    assert!(!drained(&node), "all of them are writable");
    assert_eq!(node.run(drop_drained(uid)), Outcome::TopicUpdated { queue_count: 4, writable_queues: 4 });
    assert_eq!(node.run(queues("t", 2)), Outcome::TopicUpdated { queue_count: 3, writable_queues: 2 });
    assert!(!drained(&node), "nobody has consumed what is there");
    let got = node.run(deliver("g", "t", 2, 0..1, START_MS + 60_000));
    let receipt = (0, granted(&got)[0].seq);
    node.run(ack("g", "t", 2, &[receipt]));
    assert_eq!(node.reader.drained_topics(9), [(topic("t"), uid)]);
    assert_eq!(node.run(drop_drained(uid + 9)), Outcome::Rejected(Rejection::TopicReplaced { uid: uid + 9 }));
    let mut late = flotilla_store::EntryBuilder::new(START_MS, 0);
    late.push(&drop_drained(uid));
    let refused = node.apply(late.finish());
    assert!(matches!(refused[..], [Outcome::Rejected(Rejection::TermPassed { .. })]), "{refused:?}");
    // Grown again meanwhile: nothing is to go.
    let mut grown = node.restarted();
    grown.run(queues("t", 3));
    assert_eq!(grown.run(drop_drained(uid)), Outcome::TopicUpdated { queue_count: 3, writable_queues: 3 });
    assert_eq!(node.run(drop_drained(uid)), Outcome::TopicUpdated { queue_count: 2, writable_queues: 2 });
    assert!(!drained(&node) && node.restarted().reader.digest() == node.reader.digest());
}

#[test]
fn ordered_messages_keep_the_number_of_queues_from_changing_until_they_are_consumed() {
    let mut node = Node::new().with_group("g", true, 3, StartPolicy::First);
    node.run(create_topic_of("t", MessageType::Fifo, 2));
    let frame = crate::support::frame_of("t", "m", None, MessageType::Fifo, None);
    node.run(Command::Produce { topic: topic("t"), queue: QueueId(1), frames: vec![frame] });
    for count in [1, 3] {
        assert!(matches!(
            node.run(queues("t", count)),
            Outcome::Rejected(Rejection::TopicNotDrained { queue: QueueId(1), .. })
        ));
    }
    let got = node.run(deliver("g", "t", 1, 0..1, START_MS + 60_000));
    node.run(ack("g", "t", 1, &[(0, granted(&got)[0].seq)]));
    assert_eq!(node.run(queues("t", 3)), Outcome::TopicUpdated { queue_count: 3, writable_queues: 3 });
}

#[test]
fn a_delayed_message_whose_queue_has_gone_finds_another() {
    let mut node = Node::new();
    node.run(create_topic_of("d", MessageType::Delay, 3));
    node.run(produce_delayed("d", 2, &[("later", START_MS + 50)]));
    assert_eq!(node.run(queues("d", 2)), Outcome::TopicUpdated { queue_count: 2, writable_queues: 2 });
    node.run(Command::DeliverDue { until_ms: START_MS + 50, count: 10 });
    assert_eq!(node.reader.queue_bounds(&topic("d"), QueueId(0)), Some((QueueOffset(0), QueueOffset(1))));
}

#[test]
fn a_consumed_message_is_delivered_again_on_request_to_that_group_alone() {
    let mut node = ten().with_group("h", false, 3, StartPolicy::First);
    let got = node.run(deliver("g", "t", 0, 0..3, START_MS + 60_000));
    let message = granted(&got)[1].slot.message;
    let again = |offset, message| Command::Redeliver {
        group: group("g"),
        topic: topic("t"),
        queue: QueueId(0),
        offset: QueueOffset(offset),
        message,
    };
    let not_consumed = |offset| Outcome::Rejected(Rejection::NotConsumed { offset: QueueOffset(offset) });
    assert_eq!(node.run(again(1, message)), not_consumed(1), "it is in flight");
    let receipts: Vec<_> = granted(&got).iter().map(|grant| (grant.offset.0, grant.seq)).collect();
    node.run(ack("g", "t", 0, &receipts));
    assert_eq!(node.run(again(1, MessageRef { index: 1, ordinal: 0 })), not_consumed(1), "another message");
    assert_eq!(node.run(again(7, message)), not_consumed(7), "not reached yet");
    assert_eq!(node.run(again(1, message)), Outcome::Redelivered);
    let got = node.run(deliver("g", "t", 0, [1, 3], START_MS + 120_000));
    let attempts: Vec<_> = granted(&got).iter().map(|grant| (grant.offset.0, grant.attempt)).collect();
    assert_eq!(attempts, [(1, 1), (3, 1)]);
}

#[test]
fn a_renewed_delivery_keeps_its_receipt() {
    let mut node = ten();
    let got = {
        let until = node.now_ms + 100;
        node.run(deliver("g", "t", 0, 0..1, until))
    };
    let seq = granted(&got)[0].seq;
    let renew = |seq, until| Command::Renew {
        group: group("g"),
        topic: topic("t"),
        queue: QueueId(0),
        deliveries: vec![(QueueOffset(0), seq)],
        holder: 7,
        invisible_until_ms: until,
    };
    let until = node.now_ms + 1_000;
    assert_eq!(node.run(renew(seq, until)), Outcome::Renewed { renewed: 1 });
    assert_eq!(node.run(renew(seq, until - 1)), Outcome::Renewed { renewed: 0 }, "never shorter");
    assert_eq!(node.run(renew(seq + 1, until + 1)), Outcome::Renewed { renewed: 0 }, "another delivery");
    node.now_ms += 500;
    assert_eq!(
        granted_offsets(&{
            let until = node.now_ms + 100;
            node.run(deliver("g", "t", 0, [0], until))
        }),
        [] as [u64; 0]
    );
    assert_eq!(node.run(ack("g", "t", 0, &[(0, seq)])), Outcome::Acked { results: vec![AckResult::Acked] });
}

#[test]
fn a_message_given_up_is_a_dead_letter_at_once() {
    let mut node = ten();
    let got = {
        let until = node.now_ms + 100;
        node.run(deliver("g", "t", 0, 0..2, until))
    };
    let give_up = |seq| Command::DeadLetter {
        group: group("g"),
        topic: topic("t"),
        queue: QueueId(0),
        offset: QueueOffset(0),
        seq,
    };
    assert_eq!(node.run(give_up(999)), Outcome::Rejected(Rejection::ReceiptStale));
    assert_eq!(node.run(give_up(granted(&got)[0].seq)), Outcome::DeadLettered);
    assert_eq!(node.run(give_up(granted(&got)[0].seq)), Outcome::Rejected(Rejection::DeliveryNotFound));
    let slots = node.reader.slots(&topic("%DLQ%g"), QueueId(0), QueueOffset(0), 9).unwrap();
    assert_eq!(slots.iter().map(|(_, slot)| slot.message).collect::<Vec<_>>(), [granted(&got)[0].slot.message]);
}

#[test]
fn only_the_life_of_a_topic_that_was_meant_is_dropped() {
    let mut node = Node::new().with_topic("t", 1);
    let uid = node.reader.topic(&topic("t")).unwrap().uid;
    let drop_it = || Command::DropTopic { name: topic("t"), uid };
    assert_eq!(node.run(drop_it()), Outcome::TopicDeleted);
    let mut node = node.with_topic("t", 1);
    assert_eq!(node.run(drop_it()), Outcome::Rejected(Rejection::TopicReplaced { uid }));
}
