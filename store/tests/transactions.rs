//! Half messages: in nobody's sight until they are committed, asked for until they end, and never lost.

use std::collections::BTreeMap;

use crate::support::{Node, create_topic_of, deliver, end, granted_offsets, prepare, topic};
use flotilla_message::{MessageType, QueueId, QueueOffset};
use flotilla_store::{Command, Holding, Outcome, Rejection, StartPolicy};
use proptest::prelude::*;

fn node() -> Node {
    let mut node = Node::new().with_group("g", false, 5, StartPolicy::First);
    node.run(create_topic_of("x", MessageType::Transaction, 2));
    node
}

fn check(count: u32, next_after_ms: u64, checks_max: u32) -> Command {
    Command::CheckTransactions { count, next_after_ms, checks_max }
}

/// (index, checks, parked) of what was checked.
fn checked(outcome: Outcome) -> Vec<(u64, u32, bool)> {
    match outcome {
        Outcome::TransactionsChecked { halves } => {
            halves.iter().map(|half| (half.slot.message.index, half.checks, half.is_parked)).collect()
        }
        other => panic!("{other:?}"),
    }
}

fn queue(node: &Node) -> Vec<u64> {
    let slots = node.reader.slots(&topic("x"), QueueId(0), QueueOffset(0), 99).unwrap();
    slots.iter().map(|(_, slot)| slot.message.index).collect()
}

#[test]
fn only_a_committed_message_is_seen_and_both_ends_are_remembered() {
    let mut node = node();
    let first = node.index + 1;
    let outcome = node.run(prepare("x", 0, "a", 100));
    let Outcome::Produced { offsets, .. } = outcome else { panic!("{outcome:?}") };
    assert_eq!((offsets[0].held, offsets[0].message.index), (Some(Holding::Half), first));
    node.run(prepare("x", 0, "b", 100));
    assert_eq!(granted_offsets(&node.run(deliver("g", "x", 0, 0..2, 99))), [0u64; 0], "nobody gets it");
    assert_eq!(node.reader.half_counts(), (2, 0));

    node.roll();
    let mut node = node.restarted();
    let offset = Some(QueueOffset(0));
    assert_eq!(node.run(end("x", first, true)), Outcome::TransactionEnded { offset, repeated: false });
    assert_eq!(node.run(end("x", first + 1, false)), Outcome::TransactionEnded { offset: None, repeated: false });
    let mut node = node.restarted();
    assert_eq!(node.run(end("x", first, true)), Outcome::TransactionEnded { offset: None, repeated: true });
    assert_eq!(node.run(end("x", first + 1, false)), Outcome::TransactionEnded { offset: None, repeated: true });
    let otherwise = |committed| Outcome::Rejected(Rejection::TransactionEndedOtherwise { committed });
    assert_eq!(node.run(end("x", first, false)), otherwise(true));
    assert_eq!(node.run(end("x", first + 1, true)), otherwise(false));
    assert_eq!(node.run(end("x", 99, true)), Outcome::Rejected(Rejection::TransactionNotFound));
    assert_eq!(queue(&node), [first], "once, by reference");
    assert_eq!(granted_offsets(&node.run(deliver("g", "x", 0, 0..2, u64::MAX))), [0]);
    assert_eq!(node.reader.half_counts(), (0, 0));
}

#[test]
fn producers_are_asked_at_intervals_and_after_the_last_time_the_message_is_parked() {
    let mut node = node();
    let first = node.index + 1;
    node.run(prepare("x", 1, "a", 100));
    node.run(prepare("x", 1, "b", 50));
    assert_eq!(node.reader.next_check_ms(), Some(node.now_ms + 50));
    assert_eq!(checked(node.run(check(9, 1000, 2))), []);
    node.now_ms += 100;
    assert_eq!(checked(node.run(check(1, 1000, 2))), [(first + 1, 1, false)], "no more than asked for");
    assert_eq!(checked(node.run(check(9, 1000, 2))), [(first, 1, false)]);
    let mut node = node.restarted();
    node.now_ms += 1000;
    assert_eq!(checked(node.run(check(9, 1000, 2))), [(first, 2, false), (first + 1, 2, false)]);
    node.now_ms += 1000;
    assert_eq!(checked(node.run(check(9, 1000, 2))), [(first, 2, true), (first + 1, 2, true)]);
    assert_eq!((node.reader.half_counts(), node.reader.next_check_ms()), ((2, 2), None));

    // Parked is not gone: it is listed, and can still be ended.
    let mut node = node.restarted();
    let parked = node.reader.parked_halves(9);
    assert_eq!(parked.iter().map(|half| half.slot.message.index).collect::<Vec<_>>(), [first, first + 1]);
    assert!(matches!(node.run(end("x", first, true)), Outcome::TransactionEnded { offset: Some(_), .. }));
    assert_eq!(node.reader.half_counts(), (1, 1));
}

#[test]
fn a_half_message_goes_to_a_transaction_topic_and_nothing_else_does() {
    let mut node = node().with_topic("t", 1);
    let frames = vec![crate::support::frame_of("x", "a", None, MessageType::Transaction, None)];
    let produce = Command::Produce { topic: topic("x"), queue: QueueId(0), frames };
    assert_eq!(node.run(produce), Outcome::Rejected(Rejection::NotPrepared));
    let frames = vec![crate::support::frame("t", "a", None)];
    let prepare = Command::Prepare { topic: topic("t"), queue: QueueId(0), check_after_ms: 1, frames };
    let topic_type = MessageType::Normal;
    assert_eq!(node.run(prepare), Outcome::Rejected(Rejection::NoTransactions { topic_type }));
}

#[test]
fn half_messages_go_with_their_topic() {
    let mut node = node();
    let first = node.index + 1;
    node.run(prepare("x", 0, "a", 100));
    node.run(Command::DeleteTopic { name: topic("x") });
    assert_eq!((node.reader.half_counts(), node.reader.next_check_ms()), ((0, 0), None));
    node.run(create_topic_of("x", MessageType::Transaction, 2));
    assert_eq!(node.run(end("x", first, true)), Outcome::Rejected(Rejection::TransactionNotFound));
}

#[derive(Debug, Clone)]
enum Step {
    Prepare(u64),
    End(prop::sample::Index, bool),
    Check(u32),
    Pass(u64),
    Restart,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        5 => (0u64..100).prop_map(Step::Prepare),
        4 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(which, commit)| Step::End(which, commit)),
        3 => (0u32..4).prop_map(Step::Check),
        3 => (0u64..60).prop_map(Step::Pass),
        1 => Just(Step::Restart),
    ];
    proptest::collection::vec(step, 1..60)
}

const INTERVAL_MS: u64 = 40;
const CHECKS_MAX: u32 = 2;

/// What the model knows of a message.
#[derive(Debug, Clone, Copy)]
struct Known {
    check_at_ms: Option<u64>,
    checks: u32,
    ended: Option<bool>,
}

proptest! {
    #[test]
    fn the_machine_does_what_a_table_does(steps in steps()) {
        let mut node = node();
        let (mut table, mut committed) = (BTreeMap::<u64, Known>::new(), Vec::new());
        for step in steps {
            let index = node.index + 1;
            match step {
                Step::Prepare(after_ms) => {
                    node.run(prepare("x", 0, &format!("m-{index}"), after_ms));
                    table.insert(index, Known { check_at_ms: Some(node.now_ms + after_ms), checks: 0, ended: None });
                }
                Step::End(which, commit) if !table.is_empty() => {
                    let keys: Vec<u64> = table.keys().copied().collect();
                    let index = *which.get(&keys);
                    let known = table.get_mut(&index).unwrap();
                    let expected = match known.ended {
                        None => {
                            *known = Known { ended: Some(commit), check_at_ms: None, ..*known };
                            let offset = commit.then_some(QueueOffset(committed.len() as u64));
                            committed.extend(commit.then_some(index));
                            Outcome::TransactionEnded { offset, repeated: false }
                        }
                        Some(ended) if ended == commit => Outcome::TransactionEnded { offset: None, repeated: true },
                        Some(committed) => Outcome::Rejected(Rejection::TransactionEndedOtherwise { committed }),
                    };
                    prop_assert_eq!(node.run(end("x", index, commit)), expected);
                }
                Step::End(..) => {}
                Step::Check(count) => {
                    let mut expected = Vec::new();
                    let now_ms = node.now_ms;
                    let first = |table: &BTreeMap<u64, Known>| {
                        let due = table.iter().filter_map(|(index, known)| Some((known.check_at_ms?, *index)));
                        due.filter(|(at_ms, _)| *at_ms <= now_ms).min()
                    };
                    while expected.len() < count as usize && let Some((_, index)) = first(&table) {
                        let known = table.get_mut(&index).unwrap();
                        let parked = known.checks == CHECKS_MAX;
                        known.checks += u32::from(!parked);
                        known.check_at_ms = (!parked).then_some(now_ms + INTERVAL_MS);
                        expected.push((index, known.checks, parked));
                    }
                    prop_assert_eq!(checked(node.run(check(count, INTERVAL_MS, CHECKS_MAX))), expected);
                }
                Step::Pass(ms) => node.now_ms += ms,
                Step::Restart => node = node.restarted(),
            }
            let open = || table.values().filter(|known| known.ended.is_none());
            let parked = open().filter(|known| known.check_at_ms.is_none()).count();
            prop_assert_eq!(node.reader.half_counts(), (open().count(), parked));
            prop_assert_eq!(node.reader.next_check_ms(), table.values().filter_map(|known| known.check_at_ms).min());
        }
        prop_assert_eq!(queue(&node), committed);
    }
}
