//! What the leader tells before the commit is what the commit brings.

use std::collections::VecDeque;

use crate::support::{
    Node, START_MS, create_group, create_topic, create_topic_of, deliver, end, entry, prepare, produce,
    produce_delayed, topic,
};
use bytes::Bytes;
use flotilla_message::{AckLevel, MessageType};
use flotilla_store::{Command, Outcome, Shadow, StartPolicy, TopicLevel, limits, messages_answered_early};
use proptest::prelude::*;

const TOPICS: [&str; 4] = ["a", "b", "d", "x"];

fn commands() -> impl Strategy<Value = Command> {
    let topic_name = || proptest::sample::select(TOPICS.to_vec());
    prop_oneof![
        1 => (topic_name(), 1u32..3).prop_map(|(name, queues)| create_topic(name, queues)),
        1 => topic_name().prop_map(|name| Command::DeleteTopic { name: topic(name) }),
        20 => (topic_name(), 0u32..3, proptest::collection::vec(0u32..60, 1..5)).prop_map(|(name, queue, ids)| {
            let ids: Vec<_> = ids.iter().map(|id| format!("id-{id}")).collect();
            produce(name, queue, &ids.iter().map(String::as_str).collect::<Vec<_>>())
        }),
        4 => (0u32..2, 0u32..60, 0u64..400).prop_map(|(queue, id, due)| {
            produce_delayed("d", queue, &[(&format!("id-{id}"), START_MS + due)])
        }),
        4 => (0u32..2, 0u32..60).prop_map(|(queue, id)| prepare("x", queue, &format!("id-{id}"), 10)),
        2 => (0u64..60, any::<bool>()).prop_map(|(index, commit)| end("x", index, commit)),
        2 => (0u64..400, 0u32..4).prop_map(|(ms, count)| Command::DeliverDue { until_ms: START_MS + ms, count }),
        3 => (0u32..2, 0u64..9).prop_map(|(queue, from)| deliver("g", "a", queue, from..from + 3, START_MS)),
    ]
}

/// An entry's commands, the log time that passes before it, how many entries wait for their application after it, and
/// whether anybody asks.
type Step = (Vec<Command>, u64, usize, bool);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (
        proptest::collection::vec(commands(), 1..5),
        prop_oneof![20 => 0u64..100, 4 => Just(limits::DEDUP_STEP_MS_MAX - 50), 4 => Just(limits::DEDUP_STEP_MS_MAX), 1 => Just(limits::DEDUP_WINDOW_MS)],
        0usize..6,
        any::<bool>(),
    );
    proptest::collection::vec(step, 1..60)
}

fn sent(outcomes: &[Outcome]) -> Vec<Option<Outcome>> {
    let is_send = |outcome: &Outcome| matches!(outcome, Outcome::Produced { .. });
    outcomes.iter().map(|outcome| is_send(outcome).then(|| outcome.clone())).collect()
}

fn leader() -> Node {
    let mut node = Node::new();
    node.apply_all(&[
        create_topic("a", 2),
        create_topic("b", 1),
        create_topic_of("d", MessageType::Delay, 2),
        create_topic_of("x", MessageType::Transaction, 2),
        create_group("g", false, 1, StartPolicy::First),
    ]);
    node
}

/// One outcome for each command, where there is one.
type Predicted = Vec<Option<Outcome>>;

proptest! {
    #[test]
    fn what_is_predicted_is_what_is_applied(steps in steps()) {
        let mut node = leader();
        let shadow = Shadow::new(&node.reader);
        let mut appended = node.index;
        let mut waiting: VecDeque<(u64, Bytes, Option<Predicted>)> = VecDeque::new();
        let mut predicted_count = 0;
        for (commands, pass_ms, lag, is_asked) in steps {
            node.now_ms += pass_ms;
            appended += 1;
            let payload = entry(node.now_ms, &commands);
            shadow.appended(appended, 1, payload.clone());
            let predicted = is_asked.then(|| shadow.predict(appended)).flatten();
            predicted_count += usize::from(predicted.is_some());
            waiting.push_back((appended, payload, predicted));
            while waiting.len() > lag {
                let Some((index, payload, predicted)) = waiting.pop_front() else { break };
                // Asked as late as can be, it says the same, if it says anything.
                let late = shadow.predict(index);
                let applied = node.apply(payload);
                for predicted in [predicted, late].into_iter().flatten() {
                    let told: Vec<_> = predicted.iter().zip(&applied).collect();
                    prop_assert_eq!(told.len(), applied.len());
                    for (predicted, applied) in told {
                        if let Some(predicted) = predicted {
                            prop_assert_eq!(predicted, applied, "entry {}", index);
                        } else {
                            let is_send = matches!(applied, Outcome::Produced { .. });
                            prop_assert!(!is_send);
                        }
                    }
                }
                shadow.applied(index);
            }
        }
        prop_assert!(predicted_count <= appended as usize);
    }
}

#[test]
fn offsets_and_duplicates_are_told_before_the_commit() {
    let mut node = leader();
    node.send("a", 0, &["one", "two"]);
    let shadow = Shadow::new(&node.reader);
    let first = entry(node.now_ms, &[produce("a", 0, &["three"]), produce("a", 1, &["four"])]);
    let second = entry(node.now_ms, &[produce("a", 0, &["five", "three", "one"])]);
    shadow.appended(node.index + 1, 1, first.clone());
    shadow.appended(node.index + 2, 1, second.clone());
    let second_told = shadow.predict(node.index + 2).expect("sure");
    let first_told = shadow.predict(node.index + 1).expect("sure");
    assert_eq!(first_told, sent(&node.apply(first)));
    assert_eq!(second_told, sent(&node.apply(second)));
    assert_eq!(shadow.predict(node.index), None, "applied: its answer is known");
}

#[test]
fn behind_a_change_of_topics_nothing_is_sure_until_it_is_applied() {
    let mut node = leader();
    let shadow = Shadow::new(&node.reader);
    let made = entry(node.now_ms, &[create_topic("new", 1)]);
    let (one, two) = (entry(node.now_ms, &[produce("new", 0, &["1"])]), entry(node.now_ms, &[produce("a", 0, &["2"])]));
    let at = node.index;
    for (step, payload) in [&made, &one, &two].into_iter().enumerate() {
        shadow.appended(at + 1 + step as u64, 1, payload.clone());
    }
    assert_eq!(shadow.predict(at + 3), None);
    node.apply(made);
    let told = shadow.predict(at + 3).expect("sure now");
    node.apply(one);
    assert_eq!(told, sent(&node.apply(two)));
}

#[test]
fn another_reign_forgets_what_this_one_appended() {
    let mut node = leader();
    let shadow = Shadow::new(&node.reader);
    let (lost, kept) =
        (entry(node.now_ms, &[produce("a", 0, &["lost"])]), entry(node.now_ms, &[produce("a", 0, &["kept"])]));
    shadow.appended(node.index + 1, 1, lost);
    assert!(shadow.predict(node.index + 1).is_some());
    shadow.appended(node.index + 1, 2, kept.clone());
    let told = shadow.predict(node.index + 1).expect("sure");
    assert_eq!(told, sent(&node.apply(kept)));
}

#[test]
fn an_entry_that_was_not_seen_makes_all_behind_it_unsure() {
    let node = leader();
    let shadow = Shadow::new(&node.reader);
    shadow.appended(node.index + 2, 1, entry(node.now_ms, &[produce("a", 0, &["1"])]));
    assert_eq!(shadow.predict(node.index + 2), None);
}

#[test]
fn what_was_answered_early_is_counted_in_messages() {
    let commands = [
        produce("a", 0, &["1", "2"]),
        produce("a", 1, &["3"]),
        prepare("x", 0, "4", 10),
        Command::AnsweredEarly { commands: vec![0, 2, 9] },
    ];
    assert_eq!(messages_answered_early(&entry(START_MS, &commands)), 3);
    assert_eq!(messages_answered_early(&entry(START_MS, &commands[..3])), 0);
    assert_eq!(messages_answered_early(b"no entry"), 0);
}

#[test]
fn a_topics_level_is_replicated_kept_and_goes_with_the_topic() {
    let mut node = leader();
    let before = node.reader.digest();
    let level = TopicLevel { ack: Some(AckLevel::Async), flush: None };
    let set = |name: &str, level| Command::SetTopicLevel { name: topic(name), level };
    assert_eq!(node.run(set("a", level)), Outcome::TopicLevelSet);
    assert_eq!(node.reader.topic(&topic("a")).map(|info| info.level), Some(level));
    assert_ne!(node.reader.digest().digest, before.digest);
    let mut node = node.restarted();
    assert_eq!(node.reader.topic(&topic("a")).map(|info| info.level), Some(level));
    node.run(Command::DeleteTopic { name: topic("a") });
    node.run(create_topic("a", 1));
    assert_eq!(node.reader.topic(&topic("a")).map(|info| info.level), Some(TopicLevel::default()));
    assert!(matches!(node.run(set("none", level)), Outcome::Rejected(_)));
}
