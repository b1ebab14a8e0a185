//! What the next leader takes over: polls that are repeated, parked transactions, types, what groups are told, and what
//! monitoring reads.

use std::time::Duration;

use flotilla_metrics::Scrape;
use flotilla_proto::v2::telemetry_command::Command;
use flotilla_proto::v2::{self, MessageType};
use flotilla_proto::{admin, v2::retry_policy::Strategy};
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::calls::{Client, Received, message, resource, system_of};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK, SHORT, admin_call, consume, numbered, sorted};

const WRONG_TYPE: i32 = 40014;

async fn send_some(client: &Client, topic: &str, prefix: &str, count: usize) {
    for number in 0..count {
        assert_eq!(client.send(message(topic, &format!("{prefix}-{number}"), |_| ())).await.code, OK);
    }
}

/// A message of a type, for a topic of any.
fn of_type(topic: &str, id: &str, message_type: MessageType, wall_ms: u64) -> v2::Message {
    message(topic, id, |system| {
        system.message_type = message_type.into();
        match message_type {
            MessageType::Fifo => system.message_group = Some("one".to_owned()),
            MessageType::Delay => {
                let seconds = i64::try_from(wall_ms / 1000 + 3600).expect("now");
                system.delivery_timestamp = Some(prost_types::Timestamp { seconds, nanos: 0 });
            }
            _ => {}
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_attempt_gets_the_same_messages_from_the_next_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 2).await;
    client.create_topic("steps", MessageType::Fifo, 1).await;
    client.create_group("g", false, 9).await;
    client.create_group("ordered", true, 9).await;
    send_some(&client, "orders", "m", 6).await;
    for number in 0..4 {
        let id = format!("s-{number}");
        assert_eq!(client.send(of_type("steps", &id, MessageType::Fifo, 0)).await.code, OK);
    }
    let poll = async |client: &Client, group: &str, topic: &str, attempt: &str| -> Received {
        let change = |request: &mut v2::ReceiveMessageRequest| {
            request.attempt_id = Some(attempt.to_owned());
            request.batch_size = 2;
        };
        client.receive_with(group, topic, SHORT, LONG, change).await
    };
    let first = poll(&client, "g", "orders", "a-1").await;
    let in_order = poll(&client, "ordered", "steps", "b-1").await;
    assert_eq!((first.messages.len(), in_order.ids().join(" ").as_str()), (2, "s-0 s-1"));
    cluster.kill_leader().await;

    // The client never saw the answers. What it asks for again is no further delivery.
    for (group, topic, attempt, before) in [("g", "orders", "a-1", first), ("ordered", "steps", "b-1", in_order)] {
        let again = poll(&other, group, topic, attempt).await;
        assert_eq!(sorted(again.ids()), sorted(before.ids()), "{group}");
        assert!(again.messages.iter().all(|message| system_of(message).delivery_attempt == Some(1)), "{group}");
        if group == "ordered" {
            assert_eq!(poll(&other, group, topic, "b-2").await.code, NOTHING_THERE, "the first ones are in flight");
        }
        assert_eq!(client.ack(group, topic, &again.messages).await, OK);
    }
    assert_eq!(poll(&other, "ordered", "steps", "b-3").await.ids(), ["s-2", "s-3"]);
    assert_eq!(consume(&other, "g", "orders", 4).await.len(), 4);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn parked_transactions_are_listed_and_ended_by_an_operator_under_the_next_leader() {
    let settings = "transaction_check_after_ms = 300\ntransaction_check_interval_ms = 300\ntransaction_checks_max = 2";
    let mut cluster = Cluster::start_with(settings).await;
    let [client, other] = cluster.followers().await;
    client.create_topic("payments", MessageType::Transaction, 1).await;
    for id in ["kept", "dropped"] {
        client.send_for_entry(of_type("payments", id, MessageType::Transaction, 0)).await;
    }
    let parked = || admin::ListTransactionsRequest { parked_only: true, count: 10 };
    let deadline = cluster.runtime.now() + LONG;
    while admin_call!(client, list_transactions, parked()).parked_count < 2 {
        assert!(cluster.runtime.now() < deadline, "two are parked after their last check");
        cluster.runtime.sleep(SHORT).await;
    }
    cluster.kill_leader().await;
    let listed = admin_call!(other, list_transactions, parked());
    assert_eq!((listed.open_count, listed.parked_count, listed.transactions.len()), (2, 2, 2));
    assert_eq!(client.receive("g", "payments", SHORT, LONG).await.code, NOTHING_THERE, "nobody sees them");
    for open in listed.transactions {
        let commit = open.message_id == "kept";
        let resolve = admin::ResolveTransactionRequest { transaction_id: open.transaction_id, commit };
        admin_call!(other, resolve_transaction, resolve);
    }
    assert_eq!(consume(&client, "g", "payments", 1).await, ["kept"]);
    assert_eq!(client.receive("g", "payments", SHORT, LONG).await.code, NOTHING_THERE);
    assert_eq!(admin_call!(other, list_transactions, parked()).open_count, 0);
    cluster.agree().await;
}

/// The pauses that a consumer of the group is told when it says hello.
async fn pauses_told(client: &Client, group: &str) -> Vec<i64> {
    let subscription = v2::Subscription { group: Some(resource(group)), ..Default::default() };
    let settings = v2::Settings {
        client_type: Some(v2::ClientType::PushConsumer.into()),
        pub_sub: Some(v2::settings::PubSub::Subscription(subscription)),
        ..Default::default()
    };
    let (commands, outgoing) = mpsc::channel(1);
    let hello = v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) };
    commands.send(hello).await.expect("room");
    let mut answers = client.messaging.telemetry(client.options(LONG), outgoing).await.expect("a stream");
    let answer = answers.next().await.expect("an answer").expect("no error");
    let Some(Command::Settings(settings)) = answer.command else { panic!("settings are answered with settings") };
    let policy = settings.backoff_policy.expect("a policy").strategy.expect("a strategy");
    let Strategy::CustomizedBackoff(pauses) = policy else { panic!("a list of pauses, not {policy:?}") };
    pauses.next.iter().map(|pause| pause.seconds * 1000 + i64::from(pause.nanos / 1_000_000)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn types_are_checked_and_retry_pauses_told_by_the_next_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    let types = [MessageType::Normal, MessageType::Fifo, MessageType::Delay, MessageType::Transaction];
    for message_type in types {
        client.create_topic(message_type.as_str_name(), message_type, 1).await;
    }
    client.create_group("g", false, 9).await;
    let pauses = admin::RetryPauses { ms: vec![700, 1_900] };
    let update = admin::UpdateGroupRequest { name: "g".to_owned(), retry_pauses: Some(pauses), ..Default::default() };
    admin_call!(client, update_group, update);
    cluster.kill_leader().await;
    assert_eq!(pauses_told(&other, "g").await, [700, 1_900]);
    let wall_ms = cluster.runtime.wall_ms();
    for topic in types {
        for message_type in types {
            let (name, kind) = (topic.as_str_name(), message_type.as_str_name());
            let sent = other.send(of_type(name, &format!("{name}-{kind}"), message_type, wall_ms)).await;
            let expected = if topic == message_type { OK } else { WRONG_TYPE };
            assert_eq!(sent.code, expected, "{kind} to a topic of {name}: {}", sent.message);
        }
    }
    cluster.agree().await;
}

/// A metric, labels of it, and its value.
type Told = (&'static str, &'static [(&'static str, &'static str)], f64);

/// What is told of topics and groups, as far as it does not change by itself.
static TOLD: [Told; 9] = [
    ("rocketmq_consumer_lag_messages", &[("topic", "orders"), ("consumer_group", "g")], 9.0),
    ("rocketmq_consumer_inflight_messages", &[("topic", "orders"), ("consumer_group", "g")], 3.0),
    ("rocketmq_consumer_ready_messages", &[("topic", "orders"), ("consumer_group", "g")], 6.0),
    ("flotilla_topic_messages", &[("topic", "orders")], 10.0),
    ("flotilla_topic_messages", &[("topic", "%DLQ%failing")], 10.0),
    ("rocketmq_timing_messages", &[("topic", "later")], 2.0),
    ("rocketmq_half_messages", &[("topic", "payments")], 1.0),
    ("rocketmq_topic_number", &[], 4.0),
    ("rocketmq_consumer_group_number", &[], 2.0),
];

#[tokio::test(flavor = "multi_thread")]
async fn monitoring_reads_the_same_of_topics_and_groups_from_the_next_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    let types =
        [("orders", MessageType::Normal), ("later", MessageType::Delay), ("payments", MessageType::Transaction)];
    for (name, message_type) in types {
        client.create_topic(name, message_type, 1).await;
    }
    client.create_group("g", false, 9).await;
    client.create_group("failing", false, 1).await;
    send_some(&client, "orders", "m", 10).await;
    let wall_ms = cluster.runtime.wall_ms();
    for id in ["d-1", "d-2"] {
        assert_eq!(client.send(of_type("later", id, MessageType::Delay, wall_ms)).await.code, OK);
    }
    client.send_for_entry(of_type("payments", "half", MessageType::Transaction, wall_ms)).await;
    let four = |request: &mut v2::ReceiveMessageRequest| request.batch_size = 4;
    let held = client.receive_with("g", "orders", LONG, Duration::from_secs(600), four).await.messages;
    assert_eq!(client.ack("g", "orders", &held[..1]).await, OK);
    assert_eq!(client.receive("failing", "orders", LONG, SHORT).await.messages.len(), 10);
    cluster.runtime.sleep(SHORT).await;
    // Who asks for them once more than allowed makes dead letters of them.
    assert_eq!(client.receive("failing", "orders", Duration::from_secs(1), LONG).await.code, NOTHING_THERE);

    let differs = |scrape: &Scrape| {
        let is_other = |(name, labels, expected): &&Told| scrape.sum(name, labels) != *expected;
        TOLD.iter().filter(is_other).map(|(name, labels, _)| (*name, scrape.sum(name, labels), *labels)).next()
    };
    let mut told_before = 0.0;
    for is_next in [false, true] {
        if is_next {
            cluster.kill_leader().await;
        }
        let leader = cluster.leader().await;
        let deadline = cluster.runtime.now() + LONG;
        loop {
            let scrape = cluster.scrape(leader).await;
            let Some(difference) = differs(&scrape) else { break };
            assert!(cluster.runtime.now() < deadline, "next: {is_next}, {difference:?}");
            cluster.runtime.sleep(SHORT).await;
        }
        let scrape = cluster.scrape(leader).await;
        let age = scrape.sum("rocketmq_consumer_lag_latency", &[("topic", "orders"), ("consumer_group", "g")]);
        assert!(age > told_before, "the oldest gets older under the next leader: {age} after {told_before}");
        told_before = age;
    }
    // Each counts what it did itself.
    let leader = cluster.leader().await;
    let put = |scrape: &Scrape| scrape.sum("rocketmq_messages_in_total", &[("topic", "orders")]);
    assert_eq!(put(&cluster.scrape(leader).await), 0.0);
    send_some(&other, "orders", "n", 5).await;
    assert_eq!(put(&cluster.scrape(leader).await), 5.0);
    assert_eq!(sorted(consume(&other, "undertakers", "%DLQ%failing", 10).await), numbered("m", 10));
    let taken = [("topic", "%DLQ%failing"), ("consumer_group", "undertakers")];
    assert_eq!(cluster.scrape(leader).await.sum("rocketmq_messages_out_total", &taken), 10.0);
    cluster.agree().await;
}
