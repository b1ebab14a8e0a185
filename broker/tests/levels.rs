//! Acknowledgements at every level, over three replicas with real sockets: what is promised is kept, what is lost is told.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::support::{Client, Cluster, id_of, message, system_of};
use flotilla_proto::{admin, v2};

const LONG: Duration = Duration::from_secs(20);
const OK: i32 = 20000;

async fn create(client: &Client, name: &str, ack: &str, flush: &str) -> v2::Status {
    let topic =
        admin::Topic { name: name.to_owned(), message_type: 1, queue_count: 2, permission: 4, ..Default::default() };
    let request = admin::CreateTopicRequest {
        topic: Some(topic),
        ack: ack.to_owned(),
        flush: flush.to_owned(),
        ..Default::default()
    };
    let reply = client.admin.create_topic(client.options(LONG), request).await.expect("an answer");
    reply.status.expect("a status")
}

async fn status(client: &Client) -> admin::ClusterStatusReply {
    let request = admin::ClusterStatusRequest::default();
    client.admin.cluster_status(client.options(LONG), request).await.expect("an answer")
}

fn asking(topic: &str, id: &str, level: &str) -> v2::Message {
    let mut message = message(topic, id, |_| ());
    message.user_properties.insert("FLOTILLA_ACK".to_owned(), level.to_owned());
    message
}

/// Everything in a topic: where each message id stands, each time it does.
async fn all_of(client: &Client, group: &str, topic: &str, count: usize) -> BTreeMap<String, Vec<(i32, i64)>> {
    let mut seen: BTreeMap<String, Vec<(i32, i64)>> = BTreeMap::new();
    while seen.values().map(Vec::len).sum::<usize>() < count {
        let received = client.receive(group, topic, Duration::from_secs(3), LONG).await;
        assert_eq!(received.code, OK, "{} of {count} messages of {topic} are there", seen.len());
        for one in &received.messages {
            let system = system_of(one);
            seen.entry(id_of(one).to_owned())
                .or_default()
                .push((system.queue_id, system.queue_offset.expect("stored")));
        }
        assert_eq!(client.ack(group, topic, &received.messages).await, OK);
    }
    let more = client.receive(group, topic, Duration::from_secs(1), LONG).await;
    assert_eq!(more.messages.len(), 0, "more than {count} messages of {topic}: {:?}", more.ids());
    seen
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_leaders_async_tail_is_counted_and_nothing_of_majority_or_sync_is_lost() {
    let mut cluster = Cluster::start(3).await;
    cluster.founded().await;
    let old = cluster.leader().await;
    let client = cluster.client(old);
    assert_eq!(create(&client, "fast", "async", "async").await.code, OK);
    assert_eq!(create(&client, "safe", "", "").await.code, OK);
    assert_eq!(create(&client, "twice", "sync", "").await.code, OK);
    for number in 0..20 {
        for topic in ["fast", "safe", "twice"] {
            assert_eq!(client.send(message(topic, &format!("kept-{number}"), |_| ())).await.code, OK);
        }
    }
    cluster.digests().await;

    // Without followers the leader goes on until its lease is over: nothing of that can be committed.
    let others: Vec<u64> = (1..=3).filter(|node| *node != old).collect();
    others.iter().for_each(|node| cluster.kill(*node));
    let mut blocked = Vec::new();
    for number in 0..6 {
        let client = client.clone();
        blocked.push(cluster.runtime.spawn("majority", async move {
            client.send(message("safe", &format!("unknown-{number}"), |_| ())).await.code
        }));
        cluster.runtime.sleep(Duration::from_millis(2)).await;
    }
    let mut lost = BTreeSet::new();
    let refusal = loop {
        let id = format!("lost-{}", lost.len());
        let status = client.send(message("fast", &id, |_| ())).await;
        if status.code != OK {
            break status;
        }
        lost.insert(id);
    };
    assert!(!lost.is_empty(), "async sends do not wait behind those of level majority: {refusal:?}");
    for blocked in blocked {
        assert_ne!(blocked.await.expect("an answer"), OK, "no quorum has it");
    }
    cluster.kill(old);
    for node in &others {
        cluster.restart(*node).await;
    }
    let new = cluster.leader().await;
    assert_eq!(cluster.client(new).send(message("safe", "after", |_| ())).await.code, OK);
    cluster.restart(old).await;
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");

    let told = status(&cluster.client(old)).await;
    assert_eq!(told.lost_messages, lost.len() as u64, "every lost one is counted");
    let client = cluster.client(new);
    // What a sender of unknown outcome does: the same ids again. They get one slot each.
    for id in &lost {
        for _ in 0..2 {
            assert_eq!(client.send(message("fast", id, |_| ())).await.code, OK);
        }
    }
    let fast = all_of(&client, "g", "fast", 20 + lost.len()).await;
    assert!((0..20).all(|number| fast.contains_key(&format!("kept-{number}"))));
    assert!(fast.values().all(|places| places.len() == 1), "{fast:?}");
    assert_eq!(all_of(&client, "g", "safe", 21).await.len(), 21);
    assert_eq!(all_of(&client, "g", "twice", 20).await.len(), 20);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_offset_of_an_early_answer_is_the_one_of_the_commit() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    assert_eq!(create(&client, "fast", "async", "").await.code, OK);
    let mut senders = Vec::new();
    for sender in 0..6 {
        let client = client.clone();
        senders.push(cluster.runtime.spawn("sender", async move {
            let level = if sender % 3 == 0 { "majority" } else { "async" };
            let mut told = BTreeMap::new();
            for number in 0..100 {
                // Every id comes from two senders: one slot, and both are told of it.
                let id = format!("{}-{number}", sender / 2);
                let entry = client.send_for_entry(asking("fast", &id, level)).await;
                told.insert(id, entry.offset);
            }
            told
        }));
    }
    let mut told: BTreeMap<String, BTreeSet<i64>> = BTreeMap::new();
    for sender in senders {
        for (id, offset) in sender.await.expect("the sender ends") {
            told.entry(id).or_default().insert(offset);
        }
    }
    assert_eq!(told.len(), 300);
    let stands = all_of(&client, "g", "fast", 300).await;
    for (id, offsets) in told {
        let [(_, offset)] = stands[&id][..] else { panic!("{id} stands at {:?}", stands[&id]) };
        assert_eq!(offsets, BTreeSet::from([offset]), "{id}");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn level_sync_waits_for_all_that_keep_up_and_goes_on_without_who_does_not() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    assert_eq!(create(&client, "twice", "sync", "sync").await.code, OK);
    let describe = admin::DescribeTopicRequest { name: "twice".to_owned() };
    let described = client.admin.describe_topic(client.options(LONG), describe).await.expect("an answer");
    assert_eq!((described.ack.as_str(), described.flush.as_str(), described.level_is_own), ("sync", "sync", true));
    for number in 0..20 {
        assert_eq!(client.send(message("twice", &format!("m-{number}"), |_| ())).await.code, OK);
    }
    for _ in 0..100 {
        if status(&client).await.in_sync.len() == 3 {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(status(&client).await.in_sync, [1, 2, 3]);

    let gone = (1..=3).find(|node| *node != leader).expect("another one");
    cluster.kill(gone);
    let began = cluster.runtime.now();
    assert_eq!(client.send(message("twice", "m-20", |_| ())).await.code, OK);
    let took = cluster.runtime.now() - began;
    assert!(took > Duration::from_millis(500), "it waited for the one that is gone: {took:?}");
    assert_eq!(client.send(message("twice", "m-21", |_| ())).await.code, OK);
    let seen = status(&client).await;
    assert!(!seen.in_sync.contains(&gone) && seen.in_sync.len() == 2, "{:?}", seen.in_sync);

    // Any survivor has all of it.
    cluster.kill(leader);
    cluster.restart(gone).await;
    let client = cluster.client(cluster.leader().await);
    assert_eq!(all_of(&client, "g", "twice", 22).await.len(), 22);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_may_ask_for_more_and_never_gets_less() {
    let cluster = Cluster::start_with(3, |config| config.ack_level = flotilla_message::AckLevel::Majority).await;
    let client = cluster.client(cluster.leader().await);
    assert_eq!(create(&client, "orders", "", "").await.code, OK);
    for (number, level) in ["async", "majority", "sync", "SYNC"].into_iter().enumerate() {
        assert_eq!(client.send(asking("orders", &format!("m-{number}"), level)).await.code, OK, "{level}");
    }
    let refused = client.send(asking("orders", "m-9", "all")).await;
    assert_eq!(refused.code, 40000);
    assert!(refused.message.contains("unknown ack level 'all'"), "{}", refused.message);
    assert_eq!(create(&client, "odd", "some", "").await.code, 40000);
    // Given again with a level, it changes; without, it stays.
    assert_eq!(create(&client, "orders", "async", "").await.code, OK);
    assert_eq!(create(&client, "orders", "", "async").await.code, OK);
    let describe = admin::DescribeTopicRequest { name: "orders".to_owned() };
    let described = client.admin.describe_topic(client.options(LONG), describe).await.expect("an answer");
    assert_eq!((described.ack.as_str(), described.flush.as_str()), ("async", "async"));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_replica_says_that_it_cannot_promise_two_copies() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(cluster.leader().await);
    let refused = create(&client, "twice", "sync", "").await;
    assert_eq!(refused.code, 40000);
    assert!(refused.message.contains("at least two replicas"), "{}", refused.message);
    assert_eq!(create(&client, "orders", "async", "async").await.code, OK);
    assert_eq!(client.send(asking("orders", "m-1", "sync")).await.code, 40000);
    assert_eq!(client.send(asking("orders", "m-1", "majority")).await.code, OK);
    assert_eq!(client.send(message("orders", "m-2", |_| ())).await.code, OK);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_confirms_before_its_disk_still_answers_sync_flush_from_its_disk() {
    let cluster = Cluster::start_with(3, |config| {
        config.raft_durability = flotilla_broker::RaftDurability::Os;
        config.flush_interval_ms = 200;
    })
    .await;
    let client = cluster.client(cluster.leader().await);
    assert_eq!(create(&client, "disk", "", "sync").await.code, OK);
    assert_eq!(create(&client, "cache", "", "async").await.code, OK);
    let mut took = BTreeMap::new();
    for topic in ["cache", "disk"] {
        let began = cluster.runtime.now();
        for number in 0..5 {
            assert_eq!(client.send(message(topic, &format!("m-{number}"), |_| ())).await.code, OK);
        }
        took.insert(topic, cluster.runtime.now() - began);
    }
    assert!(took["disk"] > Duration::from_millis(400), "five sends, each until the next sync: {took:?}");
    assert!(took["cache"] < took["disk"], "{took:?}");
    assert_eq!(status(&client).await.raft_durability, "os");
    cluster.shutdown().await;
}

/// Waits until all three keep up.
async fn all_keep_up(cluster: &Cluster, client: &Client) {
    for _ in 0..500 {
        if status(client).await.in_sync.len() == 3 {
            return;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    panic!("not all keep up: {:?}", status(client).await.in_sync);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_transaction_and_an_operators_change_wait_for_what_the_level_says() {
    let mut cluster = Cluster::start_with(3, |config| config.ack_level = flotilla_message::AckLevel::Sync).await;
    cluster.founded().await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    let gone = (1..=3).find(|node| *node != leader).expect("another one");
    client.create_topic("tx", v2::MessageType::Transaction, 1).await;
    let half = message("tx", "half", |system| system.message_type = v2::MessageType::Transaction.into());
    let transaction_id = client.send_for_entry(half).await.transaction_id;
    let end = || {
        let request = v2::EndTransactionRequest {
            topic: Some(crate::support::resource("tx")),
            message_id: "half".to_owned(),
            transaction_id: transaction_id.clone(),
            resolution: v2::TransactionResolution::Commit.into(),
            ..Default::default()
        };
        client.messaging.end_transaction(client.options(LONG), request)
    };
    all_keep_up(&cluster, &client).await;
    cluster.kill(gone);
    let began = cluster.runtime.now();
    let ended = end().await.expect("an answer").body.status.expect("a status");
    let took = cluster.runtime.now() - began;
    assert_eq!(ended.code, OK, "{}", ended.message);
    assert!(took > Duration::from_millis(500), "the commit waited for the one that is gone: {took:?}");

    cluster.restart(gone).await;
    all_keep_up(&cluster, &client).await;
    cluster.kill(gone);
    let began = cluster.runtime.now();
    assert_eq!(create(&client, "orders", "", "").await.code, OK);
    let took = cluster.runtime.now() - began;
    assert!(took > Duration::from_millis(500), "the change waited for the one that is gone: {took:?}");
    cluster.restart(gone).await;
    cluster.shutdown().await;
}
