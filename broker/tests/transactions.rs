//! Transactions, end to end: half messages are seen once committed, and their producers are asked wherever they listen.

use std::time::Duration;

use crate::support::{Client, Cluster, id_of, message, resource};
use flotilla_proto::v2::telemetry_command::Command;
use flotilla_proto::v2::{self, MessageType, TransactionResolution};
use flotilla_runtime::Runtime;
use futures::StreamExt as _;
use tokio::sync::mpsc;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(1500);

pub fn half(id: &str) -> v2::Message {
    message("tx", id, |system| system.message_type = MessageType::Transaction.into())
}

pub async fn end(client: &Client, id: &str, transaction_id: &str, resolution: TransactionResolution) -> i32 {
    let request = v2::EndTransactionRequest {
        topic: Some(resource("tx")),
        message_id: id.to_owned(),
        transaction_id: transaction_id.to_owned(),
        resolution: resolution.into(),
        ..Default::default()
    };
    let options = client.options(Duration::from_secs(5));
    client.messaging.end_transaction(options, request).await.expect("an answer").body.status.expect("a status").code
}

/// The replicas of a group, with quick checks.
async fn cluster(replica_count: u64) -> Cluster {
    let cluster = Cluster::start_with(replica_count, |config| {
        config.transaction_check_after_ms = 400;
        config.transaction_check_interval_ms = 600;
        config.transaction_checks_max = 3;
    })
    .await;
    cluster.client(cluster.leader().await).create_topic("tx", MessageType::Transaction, 4).await;
    cluster
}

/// A producer's telemetry stream: its settings are sent, and what the server asks comes out.
pub async fn listen(client: &Client) -> (mpsc::Sender<v2::TelemetryCommand>, mpsc::UnboundedReceiver<Question>) {
    let (commands, outgoing) = mpsc::channel(4);
    let publishing = v2::Publishing { topics: vec![resource("tx")], ..Default::default() };
    let settings = v2::Settings {
        client_type: Some(v2::ClientType::Producer.into()),
        pub_sub: Some(v2::settings::PubSub::Publishing(publishing)),
        ..Default::default()
    };
    let first = v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) };
    commands.send(first).await.expect("room");
    let mut answers = client.messaging.telemetry(client.options(LONG), outgoing).await.expect("a stream");
    let (questions, asked) = mpsc::unbounded_channel();
    let settled = answers.next().await.expect("an answer").expect("no error");
    assert!(matches!(settled.command, Some(Command::Settings(_))));
    let questioned = async move {
        while let Some(Ok(command)) = answers.next().await {
            if let Some(Command::RecoverOrphanedTransactionCommand(recover)) = command.command
                && questions.send(recover).is_err()
            {
                return;
            }
        }
    };
    Runtime::tokio().spawn("questions", questioned).detach();
    (commands, asked)
}

pub type Question = v2::RecoverOrphanedTransactionCommand;

#[tokio::test(flavor = "multi_thread")]
async fn a_half_message_is_seen_once_it_is_committed_and_never_if_rolled_back() {
    let cluster = cluster(3).await;
    let leader = cluster.client(cluster.leader().await);
    let follower = cluster.client(cluster.follower().await);
    let kept = follower.send_for_entry(half("kept")).await;
    let dropped = leader.send_for_entry(half("dropped")).await;
    let open = leader.send_for_entry(half("open")).await;
    assert_eq!(leader.receive("g", "tx", SHORT, LONG).await.code, 40401, "half is in nobody's sight");

    assert_eq!(end(&leader, "open", &open.transaction_id, TransactionResolution::Unspecified).await, 20000);
    assert_eq!(end(&follower, "kept", &kept.transaction_id, TransactionResolution::Commit).await, 20000);
    assert_eq!(end(&leader, "kept", &kept.transaction_id, TransactionResolution::Commit).await, 20000, "again");
    assert_eq!(end(&leader, "kept", &kept.transaction_id, TransactionResolution::Rollback).await, 40008);
    assert_eq!(end(&leader, "dropped", &dropped.transaction_id, TransactionResolution::Rollback).await, 20000);
    assert_eq!(end(&follower, "dropped", &dropped.transaction_id, TransactionResolution::Commit).await, 40008);
    for none in ["", "zz", "00ff"] {
        assert_eq!(end(&leader, "x", none, TransactionResolution::Commit).await, 40008);
    }
    let received = follower.receive("g", "tx", LONG, LONG).await;
    assert_eq!(received.ids(), ["kept"]);
    assert_eq!(follower.ack("g", "tx", &received.messages).await, 20000);
    assert_eq!(leader.receive("g", "tx", SHORT, LONG).await.code, 40401);
    assert_eq!(end(&leader, "open", &open.transaction_id, TransactionResolution::Commit).await, 20000, "still open");
    assert_eq!(leader.receive("g", "tx", LONG, LONG).await.ids(), ["open"]);
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_listens_on_a_follower_is_asked_and_its_answer_counts_after_the_leader_s_death() {
    let mut cluster = cluster(3).await;
    let leader = cluster.leader().await;
    let others: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    let producer = cluster.client(others[0]);
    let (_stream, mut asked) = listen(&producer).await;
    let entry = producer.send_for_entry(half("m")).await;
    let question = cluster.runtime.timeout(LONG, asked.recv()).await.expect("asked in time").expect("asked");
    let message = question.message.expect("the message itself");
    assert_eq!((id_of(&message), &message.body[..]), ("m", &b"body of m"[..]));
    assert_eq!(question.transaction_id, entry.transaction_id);

    // Left open, it is asked for again, by the next leader too.
    cluster.kill(leader);
    while asked.try_recv().is_ok() {}
    let again = cluster.runtime.timeout(LONG, asked.recv()).await.expect("asked again in time").expect("asked");
    assert_eq!(again.transaction_id, entry.transaction_id);
    assert_eq!(end(&producer, "m", &again.transaction_id, TransactionResolution::Commit).await, 20000);
    assert_eq!(cluster.client(others[1]).receive("g", "tx", LONG, LONG).await.ids(), ["m"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_half_message_that_nobody_ends_is_parked_and_kept() {
    let mut cluster = cluster(1).await;
    let client = cluster.client(1);
    let entry = client.send_for_entry(half("m")).await;
    let counts = |cluster: &Cluster| cluster.brokers[0].as_ref().expect("it runs").node().store().half_counts();
    for _ in 0..200 {
        if counts(&cluster) == (1, 1) {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(counts(&cluster), (1, 1), "parked after three questions to nobody");
    cluster.kill(1);
    cluster.restart(1).await;
    cluster.leader().await;
    assert_eq!(counts(&cluster), (1, 1));
    assert_eq!(end(&client, "m", &entry.transaction_id, TransactionResolution::Commit).await, 20000);
    assert_eq!(client.receive("g", "tx", LONG, LONG).await.ids(), ["m"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_burst_of_checks_reaches_the_one_producer_there_is() {
    const COUNT: usize = 200;
    let cluster = Cluster::start_with(1, |config| {
        config.transaction_check_after_ms = 3_000;
        // A question that is dropped is not asked again while this test runs.
        config.transaction_check_interval_ms = 3_600_000;
    })
    .await;
    let client = cluster.client(1);
    client.create_topic("tx", MessageType::Transaction, 4).await;
    let (_stream, mut asked) = listen(&client).await;
    for number in 0..COUNT {
        client.send_for_entry(half(&format!("m-{number}"))).await;
    }
    let mut ids = std::collections::BTreeSet::new();
    while ids.len() < COUNT {
        let question = cluster.runtime.timeout(LONG, asked.recv()).await;
        let question = question.unwrap_or_else(|_| panic!("{} of {COUNT} were asked for", ids.len())).expect("asked");
        assert!(ids.insert(id_of(question.message.as_ref().expect("the message")).to_owned()), "once each");
    }
    cluster.shutdown().await;
}
