//! Sending: offsets in log order, repeated sends found, topics that come and go.

use crate::support::{Node, frame, produce, topic};
use flotilla_message::{MessageRef, MessageType, Permission, QueueId, QueueOffset};
use flotilla_store::{Command, Outcome, ProducedSlot, Rejection, limits};

fn produced(outcome: Outcome) -> Vec<(u32, u64, bool)> {
    match outcome {
        Outcome::Produced { offsets, .. } => {
            offsets.iter().map(|slot| (slot.queue.0, slot.offset.0, slot.duplicate)).collect()
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn offsets_follow_the_log() {
    let mut node = Node::new().with_topic("t", 2);
    let outcomes = node.apply_all(&[produce("t", 0, &["a", "b"]), produce("t", 1, &["c"]), produce("t", 0, &["d"])]);
    assert_eq!(
        outcomes[2],
        Outcome::Produced {
            queue: QueueId(0),
            offsets: vec![ProducedSlot {
                queue: QueueId(0),
                offset: QueueOffset(2),
                message: MessageRef { index: 2, ordinal: 3 },
                duplicate: false,
                held: None,
            }],
        }
    );
    assert_eq!(node.reader.queue_bounds(&topic("t"), QueueId(0)), Some((QueueOffset(0), QueueOffset(3))));
    assert_eq!(node.reader.queue_bounds(&topic("t"), QueueId(1)), Some((QueueOffset(0), QueueOffset(1))));
    assert_eq!(node.listener.grown.lock().unwrap().len(), 2);
}

#[test]
fn a_repeated_send_is_answered_with_the_first_place() {
    let mut node = Node::new().with_topic("t", 2).with_topic("u", 1);
    assert_eq!(produced(node.send("t", 0, &["a", "b"])), [(0, 0, false), (0, 1, false)]);
    node.listener.grown.lock().unwrap().clear();
    let hash = |node: &Node| node.reader.queue_bounds(&topic("t"), QueueId(0));
    let before = hash(&node);
    // The retry went to another queue; nothing is written, and nobody is woken.
    assert_eq!(produced(node.send("t", 1, &["b", "a"])), [(0, 1, true), (0, 0, true)]);
    assert_eq!(hash(&node), before);
    assert!(node.listener.grown.lock().unwrap().is_empty());
    // New ones of a mixed batch are stored, once each; another topic has ids of its own.
    assert_eq!(produced(node.send("t", 1, &["b", "c", "c"])), [(0, 1, true), (1, 0, false), (1, 0, true)]);
    assert_eq!(produced(node.send("u", 0, &["a"])), [(0, 0, false)]);
    let mut node = node.restarted();
    assert_eq!(produced(node.send("t", 0, &["c"])), [(1, 0, true)]);
    assert_eq!(node.reader.dedup_status().entries, 4);
}

#[test]
fn the_window_ends_by_log_time() {
    let mut node = Node::new().with_topic("t", 1);
    node.send("t", 0, &["a"]);
    node.pass(limits::DEDUP_WINDOW_MS - 1);
    assert_eq!(produced(node.send("t", 0, &["a", "b"])), [(0, 0, true), (0, 1, false)]);
    assert_eq!(node.reader.dedup_status().reach_ms, limits::DEDUP_WINDOW_MS - 1);
    node.now_ms += 1;
    assert_eq!(produced(node.send("t", 0, &["a", "b"])), [(0, 2, false), (0, 1, true)]);
}

#[test]
fn a_jump_of_log_time_makes_nobody_forget_what_was_sent_a_moment_ago() {
    let mut node = Node::new().with_topic("t", 1);
    node.send("t", 0, &["a"]);
    for _ in 0..5 {
        node.now_ms += 3_600_000;
        assert_eq!(produced(node.send("t", 0, &["a"])), [(0, 0, true)], "the send is repeated after a leader change");
        node = node.restarted();
    }
    // Time that really passes is seen by the entries in it.
    node.pass(limits::DEDUP_WINDOW_MS);
    assert_eq!(produced(node.send("t", 0, &["a"])), [(0, 1, false)]);
}

#[test]
fn the_window_keeps_as_many_as_it_is_told_and_every_life_knows_how_many() {
    let mut node = Node::new().with_topic("t", 1);
    let set = |entries_max| Command::SetDedupWindow { entries_max };
    for out_of_range in [0, 999, 5_000_001] {
        let refused = Outcome::Rejected(Rejection::DedupWindowOutOfRange { entries_max: out_of_range });
        assert_eq!(node.run(set(out_of_range)), refused);
    }
    assert_eq!(node.run(set(1000)), Outcome::Noted);
    let ids: Vec<String> = (0..1001).map(|number| format!("m{number}")).collect();
    node.send("t", 0, &ids.iter().map(String::as_str).collect::<Vec<_>>());
    let mut again = node.restarted();
    for one in [&mut node, &mut again] {
        let status = one.reader.dedup_status();
        assert_eq!((status.entries, status.entries_max), (1000, 1000));
        assert_eq!(produced(one.send("t", 0, &["m1"])), [(0, 1, true)]);
        assert_eq!(produced(one.send("t", 0, &["m0"])), [(0, 1001, false)], "the oldest had to go");
    }
    assert_eq!(node.reader.digest(), again.reader.digest());
}

#[test]
fn a_re_created_topic_is_another_one() {
    let mut node = Node::new().with_topic("t", 3);
    let uid = node.reader.topic(&topic("t")).unwrap().uid;
    node.send("t", 2, &["a"]);
    assert_eq!(node.run(Command::DeleteTopic { name: topic("t") }), Outcome::TopicDeleted);
    assert_eq!(node.send("t", 0, &["a"]), Outcome::Rejected(Rejection::TopicNotFound));
    let mut node = node.with_topic("t", 1);
    assert_ne!(node.reader.topic(&topic("t")).unwrap().uid, uid);
    assert_eq!(produced(node.send("t", 0, &["a"])), [(0, 0, false)]);
    assert_eq!(*node.listener.catalog_changes.lock().unwrap(), 3);
}

#[test]
fn a_batch_is_stored_whole_or_not_at_all() {
    let mut node = Node::new();
    node.run(Command::CreateTopic {
        name: topic("t"),
        message_type: MessageType::Fifo,
        queue_count: 1,
        permission: Permission::ReadWrite,
    });
    let mut ordered = frame("t", "a", None).view().to_message();
    ordered.message_type = MessageType::Fifo;
    ordered.group = Some("g".to_owned());
    let outcome = node.run(Command::Produce {
        topic: topic("t"),
        queue: QueueId(0),
        frames: vec![ordered.encode().unwrap(), frame("t", "b", None)],
    });
    assert_eq!(
        outcome,
        Outcome::Rejected(Rejection::MessageTypeConflict {
            topic: topic("t"),
            topic_type: MessageType::Fifo,
            message_type: MessageType::Normal,
        })
    );
    assert_eq!(node.reader.queue_bounds(&topic("t"), QueueId(0)), Some((QueueOffset(0), QueueOffset(0))));
}
