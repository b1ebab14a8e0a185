//! Delayed messages: in nobody's sight until they are due, then in their queues in the order of their times.

use std::collections::BTreeMap;

use crate::support::{Node, create_topic_of, deliver, entry, granted_offsets, produce_delayed, recall, topic};
use flotilla_message::{MessageType, QueueId, QueueOffset};
use flotilla_raft_log::{LogIndex, StateMachine, Term};
use flotilla_store::{Command, Entry, Holding, Outcome, Rejection, StartPolicy};
use proptest::prelude::*;

fn node() -> Node {
    let mut node = Node::new().with_group("g", false, 5, StartPolicy::First);
    node.run(create_topic_of("d", MessageType::Delay, 2));
    node
}

fn due(until_ms: u64, count: u32) -> Command {
    Command::DeliverDue { until_ms, count }
}

fn ids(node: &Node, queue: u32) -> Vec<u64> {
    let slots = node.reader.slots(&topic("d"), QueueId(queue), QueueOffset(0), 99).unwrap();
    slots.iter().map(|(_, slot)| u64::from(slot.message.ordinal) + slot.message.index * 10).collect()
}

#[test]
fn a_delayed_message_is_stored_once_and_stands_in_its_queue_when_it_is_due() {
    let mut node = node();
    let index = node.index + 1;
    let outcome = node.run(produce_delayed("d", 1, &[("late", 900), ("early", 500)]));
    let Outcome::Produced { offsets, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!(
        offsets.iter().map(|slot| slot.held).collect::<Vec<_>>(),
        [Some(Holding::Until(900)), Some(Holding::Until(500))]
    );
    assert_eq!((node.reader.next_delayed_ms(), node.reader.delayed_count()), (Some(500), 2));
    assert_eq!(granted_offsets(&node.run(deliver("g", "d", 1, 0..2, 99))), [0u64; 0], "nobody gets it");

    // A repeated send is the same message, with the first one's time.
    let outcome = node.run(produce_delayed("d", 0, &[("early", 777)]));
    let Outcome::Produced { offsets, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((offsets[0].duplicate, offsets[0].held, offsets[0].queue.0), (true, Some(Holding::Until(500)), 1));

    node.roll();
    let mut node = node.restarted();
    assert_eq!(node.run(due(499, 10)), Outcome::DueDelivered { delivered: 0 });
    assert_eq!(node.run(due(900, 1)), Outcome::DueDelivered { delivered: 1 }, "no more than asked for");
    assert_eq!(node.run(due(900, 10)), Outcome::DueDelivered { delivered: 1 });
    assert_eq!(ids(&node, 1), [index * 10 + 1, index * 10], "by time, by reference");
    assert_eq!(granted_offsets(&node.run(deliver("g", "d", 1, 0..2, u64::MAX))), [0, 1]);
    assert!(node.listener.grown.lock().unwrap().contains(&("d".to_owned(), 1)));
}

#[test]
fn a_recalled_message_is_never_delivered_and_a_delivered_one_is_not_recalled() {
    let mut node = node();
    let index = node.index + 1;
    node.run(produce_delayed("d", 0, &[("a", 500), ("b", 500)]));
    assert_eq!(node.run(recall("d", 501, index, 0)), Outcome::Rejected(Rejection::NotWaiting), "another time");
    assert_eq!(node.run(recall("d", 500, index, 0)), Outcome::Recalled { repeated: false });
    let mut node = node.restarted();
    assert_eq!(node.run(recall("d", 500, index, 0)), Outcome::Recalled { repeated: true });
    assert_eq!(node.run(due(u64::MAX, 9)), Outcome::DueDelivered { delivered: 1 });
    assert_eq!(ids(&node, 0), [index * 10 + 1]);
    assert_eq!(node.run(recall("d", 500, index, 1)), Outcome::Rejected(Rejection::NotWaiting));
    assert_eq!(node.run(recall("e", 500, index, 1)), Outcome::Rejected(Rejection::TopicNotFound));
}

#[test]
fn delayed_messages_go_with_their_topic() {
    let mut node = node();
    let index = node.index + 1;
    node.run(produce_delayed("d", 0, &[("a", 500)]));
    node.run(Command::DeleteTopic { name: topic("d") });
    assert_eq!(node.reader.delayed_count(), 0);
    node.run(create_topic_of("d", MessageType::Delay, 2));
    assert_eq!(node.run(recall("d", 500, index, 0)), Outcome::Rejected(Rejection::NotWaiting));
    assert_eq!(node.run(due(u64::MAX, 9)), Outcome::DueDelivered { delivered: 0 });
}

#[test]
fn a_duty_lapses_with_its_term() {
    let mut node = node();
    node.run(produce_delayed("d", 0, &[("a", 500)]));
    let payload = entry(node.now_ms, &[due(u64::MAX, 9)]);
    let proposed = Entry::parse(&payload).unwrap().term;
    node.index += 1;
    let outcomes = node.machine.apply(LogIndex(node.index), Term(proposed + 1), payload);
    assert_eq!(outcomes, [Outcome::Rejected(Rejection::TermPassed { proposed, term: proposed + 1 })]);
    assert_eq!(node.reader.delayed_count(), 1);
}

#[test]
fn only_an_earlier_time_than_all_others_is_told() {
    let mut node = node();
    let told = |node: &Node| *node.listener.timer_changes.lock().unwrap();
    for (id, due_ms, count) in [("a", 500, 1), ("b", 600, 1), ("c", 500, 1), ("d", 400, 2)] {
        node.run(produce_delayed("d", 0, &[(id, due_ms)]));
        assert_eq!(told(&node), count, "{id}");
    }
}

#[test]
fn two_hundred_thousand_pending_make_a_small_checkpoint_that_restores() {
    let mut node = node();
    let sizes = |node: &Node| node.disk.part_files().iter().map(|name| node.disk.len_of(name)).sum::<usize>();
    // The window of repeated sends must not be what is measured.
    for batch in 0..200u64 {
        let ids: Vec<_> =
            (0..1000).map(|i| (format!("{batch}-{i}"), 1_900_000_000_000 + (i * 7919 + batch) % 86_400_000)).collect();
        node.run(produce_delayed("d", 0, &ids.iter().map(|(id, due)| (id.as_str(), *due)).collect::<Vec<_>>()));
    }
    node.pass(3_600_000);
    node.run(produce_delayed("d", 0, &[("last", 1)]));
    assert_eq!((node.reader.dedup_status().entries, node.reader.delayed_count()), (1, 200_001));
    let head = node.machine.checkpoint();
    assert!(head.len() < 200, "{} bytes", head.len());
    let bytes = sizes(&node);
    assert!(bytes < 200_001 * 32, "{bytes} bytes");
    let mut again = node.restarted();
    assert_eq!(again.reader.digest(), node.reader.digest());
    let mut delivered = 0;
    while let Outcome::DueDelivered { delivered: some @ 1.. } = again.run(due(u64::MAX, 1000)) {
        delivered += some;
    }
    assert_eq!(delivered, 200_001);
}

#[derive(Debug, Clone)]
enum Step {
    Send(u64),
    Due(u64, u32),
    Recall(prop::sample::Index, bool),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u64..100).prop_map(Step::Send),
        3 => (0u64..120, 0u32..5).prop_map(|(until, count)| Step::Due(until, count)),
        2 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, right)| Step::Recall(which, right)),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    #[test]
    fn the_machine_does_what_a_sorted_list_does(steps in steps()) {
        let mut node = node();
        // (due, index) of what waits; the queue; what was recalled; all that was sent.
        let (mut waiting, mut queue, mut recalled, mut sent) = (BTreeMap::new(), Vec::new(), Vec::new(), Vec::new());
        for step in steps {
            let index = node.index + 1;
            match step {
                Step::Send(due_ms) => {
                    node.run(produce_delayed("d", 0, &[(&format!("m-{index}"), due_ms)]));
                    waiting.insert((due_ms, index), ());
                    sent.push((due_ms, index));
                }
                Step::Due(until_ms, count) => {
                    let outcome = node.run(due(until_ms, count));
                    let mut delivered = 0;
                    while delivered < count
                        && let Some(first) = waiting.first_entry()
                        && first.key().0 <= until_ms
                    {
                        queue.push(first.key().1 * 10);
                        first.remove();
                        delivered += 1;
                    }
                    prop_assert_eq!(outcome, Outcome::DueDelivered { delivered });
                }
                Step::Recall(which, right) if !sent.is_empty() => {
                    let (due_ms, index) = *which.get(&sent);
                    let key = (due_ms + u64::from(!right), index);
                    let expected = if recalled.contains(&index) {
                        Outcome::Recalled { repeated: true }
                    } else if waiting.remove(&key).is_some() {
                        recalled.push(index);
                        Outcome::Recalled { repeated: false }
                    } else {
                        Outcome::Rejected(Rejection::NotWaiting)
                    };
                    prop_assert_eq!(node.run(recall("d", key.0, index, 0)), expected);
                }
                Step::Recall(..) => {}
                Step::Restart => node = node.restarted(),
            }
            prop_assert_eq!(node.reader.next_delayed_ms(), waiting.first_key_value().map(|(key, ())| key.0));
            prop_assert_eq!(node.reader.delayed_count(), waiting.len());
        }
        prop_assert_eq!(ids(&node, 0), queue);
    }
}

#[test]
fn a_checkpoint_of_another_version_is_refused_so_that_the_log_is_applied_again() {
    let mut node = node();
    node.send("t", 0, &["a", "b"]);
    let checkpoint = node.machine.checkpoint();
    let version = u16::from_le_bytes([checkpoint[4], checkpoint[5]]);
    let of_version = |version: u16| {
        let mut bytes = checkpoint.clone();
        bytes[4..6].copy_from_slice(&version.to_le_bytes());
        let crc = crc32c::crc32c_append(crc32c::crc32c(&bytes[..16]), &bytes[20..]);
        bytes[16..20].copy_from_slice(&crc.to_le_bytes());
        let mut again = Node::on(node.disk.clone());
        again.machine.restore(&bytes, LogIndex(node.index)).map_err(|error| error.to_string())
    };
    assert_eq!(of_version(version), Ok(()));
    for other in [1, 2, 3, 4, version + 2] {
        assert!(of_version(other).is_err_and(|reason| reason.contains(&format!("version is {other}"))));
    }
}
