//! Messages that wait for a time or for the end of a transaction, and outlive the leader that took them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use flotilla_proto::v2::telemetry_command::Command;
use flotilla_proto::v2::{self, MessageType, TransactionResolution};
use flotilla_runtime::Runtime;
use futures::StreamExt as _;
use tokio::sync::mpsc;

use crate::calls::{Client, id_of, message, resource};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK, SHORT, consume};

const COUNT: usize = 60;

fn delayed(id: &str, wall_ms: u64) -> v2::Message {
    let at = prost_types::Timestamp {
        seconds: i64::try_from(wall_ms / 1000).expect("not so far"),
        nanos: i32::try_from(wall_ms % 1000).expect("below a thousand") * 1_000_000,
    };
    message("later", id, |system| system.delivery_timestamp = Some(at))
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_messages_come_once_and_never_early() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("later", MessageType::Delay, 4).await;
    client.create_group("g", false, 9).await;
    let base_ms = cluster.runtime.wall_ms() + 800;
    let mut due = BTreeMap::new();
    for number in 0..COUNT {
        let (id, at_ms) = (format!("m-{number}"), base_ms + number as u64 * 20);
        client.send_for_entry(delayed(&id, at_ms)).await;
        due.insert(id, at_ms);
    }
    // Some have come when it dies, most have not.
    let mut killed = false;
    let mut arrived = BTreeMap::new();
    while arrived.len() < COUNT {
        let received = other.receive("g", "later", LONG, LONG).await;
        let now_ms = cluster.runtime.wall_ms();
        assert_eq!(received.code, OK, "so far {arrived:?}");
        for message in &received.messages {
            assert_eq!(arrived.insert(id_of(message).to_owned(), now_ms), None, "{} comes twice", id_of(message));
        }
        assert_eq!(other.ack("g", "later", &received.messages).await, OK);
        if !killed && arrived.len() > 5 {
            cluster.kill_leader().await;
            killed = true;
        }
    }
    assert!(killed);
    assert!(due.iter().all(|(id, at_ms)| arrived[id] >= *at_ms), "{due:?} {arrived:?}");
    assert_eq!(client.receive("g", "later", SHORT, LONG).await.code, NOTHING_THERE);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recall_before_or_after_the_leader_s_death_is_kept_to() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("later", MessageType::Delay, 1).await;
    client.create_group("g", false, 9).await;
    let at_ms = cluster.runtime.wall_ms() + 3_000;
    let mut handles = BTreeMap::new();
    for id in ["before", "after", "kept"] {
        handles.insert(id, client.send_for_entry(delayed(id, at_ms)).await.recall_handle);
    }
    assert_eq!(client.recall("later", &handles["before"]).await, (OK, "before".to_owned()));
    cluster.kill_leader().await;
    assert_eq!(other.recall("later", &handles["after"]).await, (OK, "after".to_owned()));
    assert_eq!(other.recall("later", &handles["before"]).await, (OK, "before".to_owned()), "as the first time");
    assert_eq!(consume(&client, "g", "later", 1).await, ["kept"]);
    assert!(cluster.runtime.wall_ms() >= at_ms);
    assert_eq!(client.receive("g", "later", SHORT, LONG).await.code, NOTHING_THERE);
    assert_eq!(other.recall("later", &handles["kept"]).await.0, NOTHING_THERE, "too late");
    cluster.agree().await;
}

pub async fn end(client: &Client, id: &str, transaction_id: &str, resolution: TransactionResolution) -> i32 {
    let request = v2::EndTransactionRequest {
        topic: Some(resource("payments")),
        message_id: id.to_owned(),
        transaction_id: transaction_id.to_owned(),
        resolution: resolution.into(),
        ..Default::default()
    };
    let reply = client.messaging.end_transaction(client.options(LONG), request).await.expect("an answer");
    reply.body.status.expect("a status").code
}

pub type Question = v2::RecoverOrphanedTransactionCommand;

/// A producer that listens at one replica: what it is asked comes out.
pub async fn listen(client: &Client) -> (mpsc::Sender<v2::TelemetryCommand>, mpsc::UnboundedReceiver<Question>) {
    let (commands, outgoing) = mpsc::channel(4);
    let publishing = v2::Publishing { topics: vec![resource("payments")], ..Default::default() };
    let settings = v2::Settings {
        client_type: Some(v2::ClientType::Producer.into()),
        pub_sub: Some(v2::settings::PubSub::Publishing(publishing)),
        ..Default::default()
    };
    let first = v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) };
    commands.send(first).await.expect("room");
    let mut answers = client.messaging.telemetry(client.options(LONG), outgoing).await.expect("a stream");
    let (questions, asked) = mpsc::unbounded_channel();
    let pass_on = async move {
        while let Some(Ok(command)) = answers.next().await {
            if let Some(Command::RecoverOrphanedTransactionCommand(question)) = command.command
                && questions.send(question).is_err()
            {
                return;
            }
        }
    };
    Runtime::tokio().spawn("questions", pass_on).detach();
    (commands, asked)
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_end_as_their_producer_says_whichever_leader_asks() {
    let mut cluster =
        Cluster::start_with("transaction_check_after_ms = 1500\ntransaction_check_interval_ms = 500").await;
    let [client, other] = cluster.followers().await;
    client.create_topic("payments", MessageType::Transaction, 2).await;
    client.create_group("g", false, 9).await;
    let mut open = BTreeMap::new();
    for id in ["committed", "dropped", "late-commit", "late-drop", "asked-commit", "asked-drop"] {
        let half = message("payments", id, |system| system.message_type = MessageType::Transaction.into());
        open.insert(id, client.send_for_entry(half).await.transaction_id);
    }
    assert_eq!(end(&client, "committed", &open["committed"], TransactionResolution::Commit).await, OK);
    assert_eq!(end(&client, "dropped", &open["dropped"], TransactionResolution::Rollback).await, OK);
    cluster.kill_leader().await;
    assert_eq!(end(&client, "late-commit", &open["late-commit"], TransactionResolution::Commit).await, OK);
    assert_eq!(end(&client, "late-drop", &open["late-drop"], TransactionResolution::Rollback).await, OK);
    assert_eq!(end(&client, "committed", &open["committed"], TransactionResolution::Commit).await, OK, "again");
    assert_eq!(end(&client, "dropped", &open["dropped"], TransactionResolution::Commit).await, 40008);

    // The two that nobody ended are asked for, by the next leader, and those alone.
    let (_stream, mut asked) = listen(&other).await;
    let mut unanswered = BTreeSet::from(["asked-commit", "asked-drop"]);
    while !unanswered.is_empty() {
        let question = cluster.runtime.timeout(LONG, asked.recv()).await.expect("asked in time").expect("asked");
        let id = id_of(question.message.as_ref().expect("the message itself")).to_owned();
        let resolution = match id.as_str() {
            "asked-commit" => TransactionResolution::Commit,
            "asked-drop" => TransactionResolution::Rollback,
            other => panic!("{other} has ended and is asked for"),
        };
        assert_eq!(question.transaction_id, open[id.as_str()]);
        assert_eq!(end(&other, &id, &question.transaction_id, resolution).await, OK);
        unanswered.remove(id.as_str());
    }
    let mut seen = consume(&client, "g", "payments", 3).await;
    seen.sort();
    assert_eq!(seen, ["asked-commit", "committed", "late-commit"]);
    assert_eq!(client.receive("g", "payments", Duration::from_secs(1), LONG).await.code, NOTHING_THERE);
    cluster.agree().await;
}
