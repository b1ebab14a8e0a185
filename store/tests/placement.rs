//! A broker group among others: its write permission, and topics that are spread over several.

use crate::support::{
    Node, START_MS, ack, create_topic_of, deliver, end, frame_of, granted, granted_offsets, group, prepare,
    produce_delayed, topic,
};
use flotilla_message::{MessageType, QueueId};
use flotilla_store::{Command, Outcome, Rejection, StartPolicy, TopicShare, TopicShares};

fn permit(is_writable: bool) -> Command {
    Command::SetWritePermission { is_writable }
}

fn shares(version: u64, is_moving: bool, groups: &[(&str, u32)]) -> TopicShares {
    let share =
        |(name, queue_count): &(&str, u32)| TopicShare { broker_group: (*name).to_owned(), queue_count: *queue_count };
    TopicShares { version, is_moving, shares: groups.iter().map(share).collect() }
}

fn place(name: &str, shares: TopicShares) -> Command {
    Command::SetTopicShares { name: topic(name), shares }
}

fn ordered(name: &str, id: &str) -> Command {
    let frame = frame_of(name, id, None, MessageType::Fifo, None);
    Command::Produce { topic: topic(name), queue: QueueId(0), frames: vec![frame] }
}

const BOTH: [(&str, u32); 2] = [("group-a", 2), ("group-b", 2)];
const OTHER: [(&str, u32); 1] = [("group-b", 2)];

#[test]
fn a_group_without_write_permission_takes_nothing_and_gives_what_it_has() {
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 3, StartPolicy::First);
    node.run(create_topic_of("d", MessageType::Delay, 1));
    node.run(create_topic_of("x", MessageType::Transaction, 1));
    node.send("t", 0, &["before"]);
    node.run(produce_delayed("d", 0, &[("later", START_MS + 50)]));
    node.run(prepare("x", 0, "half", 1_000));
    let half = node.index;
    assert_eq!(node.run(permit(false)), Outcome::WritePermissionSet { topics: 3 });
    let refused = Outcome::Rejected(Rejection::WriteWiped);
    assert_eq!(node.send("t", 0, &["new"]), refused);
    assert_eq!(node.run(produce_delayed("d", 0, &[("new", START_MS)])), refused);
    assert_eq!(node.run(prepare("x", 0, "new", 1_000)), refused);
    node.roll();
    let node = &mut node.restarted();
    assert!(node.reader.is_write_wiped(), "a checkpoint knows it");
    assert_eq!(node.send("t", 0, &["new"]), refused);

    // What was taken before goes its way.
    node.now_ms = START_MS + 100;
    node.run(Command::DeliverDue { until_ms: START_MS + 100, count: 9 });
    assert!(matches!(node.run(end("x", half, true)), Outcome::TransactionEnded { .. }));
    for name in ["t", "d", "x"] {
        assert_eq!(granted_offsets(&node.run(deliver("g", name, 0, 0..5, START_MS + 60_000))), [0], "{name}");
    }
    node.run(permit(true));
    assert!(matches!(node.send("t", 0, &["new"]), Outcome::Produced { .. }));
    assert_eq!(node.restarted().reader.digest(), node.reader.digest());
}

#[test]
fn a_group_that_stands_alone_has_the_checkpoint_and_the_digest_of_before() {
    let mut node = Node::new().with_topic("t", 1);
    let digest = node.reader.digest().digest;
    let parts = |node: &Node| {
        node.restarted();
        node.disk.part_files().len()
    };
    let before = parts(&node);
    node.run(permit(true));
    assert_ne!(node.reader.digest().digest, digest, "it is another entry");
    assert_eq!(parts(&node), before, "nothing has changed, no part is written");
}

#[test]
fn a_new_ordered_topic_is_spread_at_once_and_a_used_one_in_two_steps() {
    let mut node = Node::new().with_group("g", true, 3, StartPolicy::First);
    node.run(create_topic_of("o", MessageType::Fifo, 2));
    let first = shares(1, false, &BOTH);
    assert_eq!(node.run(place("o", first.clone())), Outcome::TopicSharesSet { version: 1 });
    assert_eq!(node.run(place("o", first.clone())), Outcome::TopicSharesSet { version: 1 }, "said again");
    assert_eq!(node.reader.topic_shares(&topic("o")), Some(first.clone()));
    assert!(matches!(node.run(ordered("o", "m-0")), Outcome::Produced { .. }));

    let next = shares(2, false, &OTHER);
    assert_eq!(node.run(place("o", next.clone())), Outcome::Rejected(Rejection::SharesNotMoving));
    assert_eq!(node.run(place("o", shares(2, true, &OTHER))), Outcome::TopicSharesSet { version: 2 });
    let moving = Outcome::Rejected(Rejection::TopicMoving { version: 2 });
    assert_eq!(node.run(ordered("o", "m-1")), moving);
    node.roll();
    let node = &mut node.restarted();
    assert_eq!(node.run(ordered("o", "m-1")), moving, "a checkpoint knows it");
    let waits = Rejection::TopicNotDrained { queue: QueueId(0), group: "(any)".to_owned() };
    assert_eq!(node.run(place("o", next.clone())), Outcome::Rejected(waits));
    let got = node.run(deliver("g", "o", 0, 0..1, START_MS + 60_000));
    let waits = Rejection::TopicNotDrained { queue: QueueId(0), group: "g".to_owned() };
    assert_eq!(node.run(place("o", next.clone())), Outcome::Rejected(waits), "in flight");
    node.run(ack("g", "o", 0, &[(0, granted(&got)[0].seq)]));
    assert_eq!(node.run(place("o", shares(2, false, &BOTH))), Outcome::Rejected(Rejection::SharesNotMoving));
    assert_eq!(node.run(place("o", next.clone())), Outcome::TopicSharesSet { version: 2 });
    assert_eq!(node.run(place("o", first)), Outcome::Rejected(Rejection::SharesOutdated { version: 2 }));
    assert_eq!(
        node.run(place("o", shares(2, true, &OTHER))),
        Outcome::Rejected(Rejection::SharesOutdated { version: 2 })
    );

    // With the topic it goes; a later one of the same name knows nothing of it.
    node.run(Command::DeleteTopic { name: topic("o") });
    assert_eq!(node.reader.topic_shares(&topic("o")), None);
    assert_eq!(node.restarted().reader.digest(), node.reader.digest());
}

#[test]
fn an_ordered_topic_of_one_group_that_has_had_messages_is_spread_in_two_steps() {
    let mut node = Node::new();
    node.run(create_topic_of("o", MessageType::Fifo, 2));
    node.run(ordered("o", "m-0"));
    assert_eq!(node.run(place("o", shares(1, false, &BOTH))), Outcome::Rejected(Rejection::SharesNotMoving));
    assert!(matches!(node.run(place("o", shares(1, true, &BOTH))), Outcome::TopicSharesSet { .. }));
}

#[test]
fn shares_that_cannot_be_are_refused() {
    let mut node = Node::new().with_topic("t", 1).with_group("g", false, 3, StartPolicy::First);
    let mut set = |version, groups: &[(&str, u32)]| node.run(place("t", shares(version, false, groups)));
    let refused = |count| Outcome::Rejected(Rejection::SharesOutOfRange { count });
    assert_eq!(set(0, &BOTH), refused(2));
    assert_eq!(set(1, &[]), refused(0));
    assert_eq!(set(1, &[("group-a", 0)]), refused(1));
    assert_eq!(set(1, &[("group-a", 1), ("group-a", 2)]), refused(2));
    assert_eq!(set(1, &[("", 1)]), refused(1));
    // Without order there is nothing to wait for.
    node.send("t", 0, &["waits"]);
    assert_eq!(node.run(place("t", shares(1, false, &OTHER))), Outcome::TopicSharesSet { version: 1 });
    let missing = node.run(place("none", shares(1, false, &OTHER)));
    assert_eq!(missing, Outcome::Rejected(Rejection::TopicNotFound));
    assert!(node.reader.progress(&group("g"), &topic("t"), QueueId(0)).is_ok());
}
