//! C05: thousands of open transactions while leaders die: ends are kept, checks neither storm nor stop.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::v2::{self, MessageType, TransactionResolution};

use crate::support::{Client, Cluster, id_of, message, queue, resource};
use crate::transactions::listen;

const OK: i32 = 20000;
const COUNT: usize = 5_000;
const SENDERS: usize = 24;
const CHECKS_MAX: u32 = 3;

/// Sends until it is stored; the id makes a repetition harmless.
async fn send_half(cluster_clients: &[Client], number: usize) -> v2::SendResultEntry {
    for attempt in 0..200 {
        let client = &cluster_clients[(number + attempt) % cluster_clients.len()];
        let half = message("tx", &format!("h-{number}"), |system| {
            system.message_type = MessageType::Transaction.into();
        });
        let request = v2::SendMessageRequest { messages: vec![half] };
        if let Ok(reply) = client.messaging.send_message(client.options(Duration::from_secs(5)), request).await
            && reply.body.status.as_ref().is_some_and(|status| status.code == OK)
        {
            return reply.body.entries[0].clone();
        }
    }
    panic!("h-{number} is not taken");
}

async fn end(clients: &[Client], number: usize, sent: &v2::SendResultEntry, resolution: TransactionResolution) {
    for attempt in 0..200 {
        let client = &clients[(number + attempt) % clients.len()];
        let request = v2::EndTransactionRequest {
            topic: Some(resource("tx")),
            message_id: sent.message_id.clone(),
            transaction_id: sent.transaction_id.clone(),
            resolution: resolution.into(),
            ..Default::default()
        };
        let options = client.options(Duration::from_secs(5));
        if let Ok(reply) = client.messaging.end_transaction(options, request).await
            && reply.body.status.is_some_and(|status| status.code == OK)
        {
            return;
        }
    }
    panic!("h-{number} is not ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn five_thousand_open_transactions_outlive_two_leaders_without_a_storm_or_a_stop_of_checks() {
    let mut cluster = Cluster::start_with(3, |config| {
        // After all were sent and ended, on a busy machine too.
        config.transaction_check_after_ms = 40_000;
        config.transaction_check_interval_ms = 1_000;
        config.transaction_checks_max = CHECKS_MAX;
    })
    .await;
    let clients: Vec<Client> = (1..=3).map(|node| cluster.client(node)).collect();
    clients[0].create_topic("tx", MessageType::Transaction, 4).await;
    let asked: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    let mut streams = Vec::new();
    for client in &clients {
        let (stream, mut questions) = listen(client).await;
        let asked = asked.clone();
        streams.push(stream);
        let note = async move {
            while let Some(question) = questions.recv().await {
                let id = id_of(question.message.as_ref().expect("the message")).to_owned();
                *asked.lock().expect("not poisoned").entry(id).or_default() += 1;
            }
        };
        cluster.runtime.spawn("questions", note).detach();
    }

    // A third is committed, a third rolled back, a third left open; the leader dies in the middle.
    let work = |cluster: &Cluster, from: usize| {
        let mut senders = Vec::new();
        for sender in 0..SENDERS {
            let clients = clients.clone();
            senders.push(cluster.runtime.spawn("sender", async move {
                for number in (from + sender..from + COUNT / 2).step_by(SENDERS) {
                    let sent = send_half(&clients, number).await;
                    match number % 3 {
                        0 => end(&clients, number, &sent, TransactionResolution::Commit).await,
                        1 => end(&clients, number, &sent, TransactionResolution::Rollback).await,
                        _ => {}
                    }
                }
            }));
        }
        senders
    };
    let first = work(&cluster, 0);
    cluster.runtime.sleep(Duration::from_millis(700)).await;
    let old = cluster.leader().await;
    cluster.kill(old);
    for sender in first {
        sender.await.expect("it ends");
    }
    cluster.restart(old).await;
    for sender in work(&cluster, COUNT / 2) {
        sender.await.expect("it ends");
    }

    // Checks begin; the leader dies among them.
    for _ in 0..1_200 {
        if asked.lock().expect("not poisoned").len() > 100 {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(100)).await;
    }
    let old = cluster.leader().await;
    cluster.kill(old);
    let open = (0..COUNT).filter(|number| number % 3 == 2).count();
    let counts = |cluster: &Cluster| {
        let broker = cluster.brokers.iter().flatten().next().expect("one runs");
        broker.node().store().half_counts()
    };
    for _ in 0..1_800 {
        if counts(&cluster) == (open, open) {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(counts(&cluster), (open, open), "all that were left open are parked, and nothing else");
    let asked = asked.lock().expect("not poisoned").clone();
    let most = asked.values().max().copied().unwrap_or(0);
    // Who was asked by a leader that died before it was noted is asked once more.
    assert!(most <= CHECKS_MAX + 1, "asked {most} times");
    assert!(
        asked.keys().all(|id| id[2..].parse::<usize>().expect("a number") % 3 == 2),
        "an ended one is never asked for"
    );
    assert!(asked.len() * 10 >= open * 9, "{} of {open} were asked for", asked.len());

    let mut seen = BTreeSet::new();
    let reader = cluster.client(cluster.leader().await);
    for number in 0..4 {
        let mut at = 0;
        loop {
            let here = |request: &mut v2::PullMessageRequest| request.message_queue = Some(queue("tx", number));
            let pulled = reader.pull_with("r", "tx", at, Duration::from_millis(300), here).await;
            if pulled.messages.is_empty() {
                break;
            }
            for id in pulled.ids() {
                assert!(seen.insert(id.clone()), "{id} is seen twice");
            }
            at = pulled.next.expect("where to go on");
        }
    }
    let committed: BTreeSet<String> = (0..COUNT).filter(|number| number % 3 == 0).map(|n| format!("h-{n}")).collect();
    assert_eq!(seen.len(), committed.len());
    assert_eq!(seen, committed);
    drop(streams);
    cluster.shutdown().await;
}
