//! What consumers hold, read and have read, when the leader dies.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_client::{ConsumeResult, OutgoingMessage, ProducerConfig, PushConsumerConfig};
use flotilla_proto::admin;
use flotilla_proto::v2::{self, MessageType, QueryOffsetPolicy};

use crate::calls::{Client, handle_of, id_of, message, resource, system_of};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK, SHORT, admin_call, numbered, sorted};

const STALE_RECEIPT: i32 = 40013;

async fn send_some(client: &Client, topic: &str, count: usize) {
    for number in 0..count {
        assert_eq!(client.send(message(topic, &format!("m-{number}"), |_| ())).await.code, OK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn receipts_acks_and_changed_times_outlive_the_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 9).await;
    send_some(&client, "orders", 10).await;
    let held = client.receive("g", "orders", LONG, LONG).await.messages;
    assert_eq!(held.len(), 10);

    // Before the kill four are done with, and three are to come soon.
    assert_eq!(client.ack("g", "orders", &held[..4]).await, OK);
    for message in &held[4..7] {
        let (code, handle) = client.change_invisible("g", "orders", handle_of(message), 1_500).await;
        assert_eq!(code, OK);
        assert_ne!(handle, handle_of(message));
    }
    cluster.kill_leader().await;

    // After it two more are done with by receipts of the dead leader, and the last one stays with its consumer.
    assert_eq!(other.ack("g", "orders", &held[7..9]).await, OK);
    assert_eq!(other.ack("g", "orders", &held[4..5]).await, STALE_RECEIPT, "its time was changed");
    let mut again = Vec::new();
    while again.len() < 3 {
        let received = client.receive("g", "orders", LONG, LONG).await;
        assert_eq!(received.code, OK);
        again.extend(received.messages);
    }
    assert_eq!(again.iter().map(id_of).collect::<Vec<_>>(), ["m-4", "m-5", "m-6"]);
    assert!(again.iter().all(|message| system_of(message).delivery_attempt == Some(2)));
    assert_eq!(other.ack("g", "orders", &again).await, OK);
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, NOTHING_THERE);
    let told = admin_call!(client, describe_group, admin::DescribeGroupRequest { name: "g".to_owned() });
    let row = &told.progress[0];
    assert_eq!((row.committed_offset, row.inflight_count, row.lag_messages), (9, 1, 1));
    assert_eq!(other.ack("g", "orders", &held[9..]).await, OK);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_prolongs_what_a_living_consumer_holds() {
    let mut cluster = Cluster::start_with("invisible_default_ms = 2000").await;
    let [client, _] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 9).await;
    let renewed = async |wait: Duration| {
        let auto = |request: &mut v2::ReceiveMessageRequest| {
            request.auto_renew = true;
            request.invisible_duration = None;
        };
        client.receive_with("g", "orders", wait, LONG, auto).await
    };
    let beat = v2::HeartbeatRequest { group: Some(resource("g")), client_type: v2::ClientType::PushConsumer.into() };
    client.messaging.heartbeat(client.options(LONG), beat).await.expect("an answer");
    send_some(&client, "orders", 1).await;
    let held = renewed(LONG).await;
    assert_eq!(held.ids(), ["m-0"]);
    // Who holds it is in the log soon.
    cluster.runtime.sleep(Duration::from_millis(700)).await;
    cluster.kill_leader().await;
    assert_eq!(renewed(Duration::from_secs(5)).await.code, NOTHING_THERE, "not due for twice its time");
    assert_eq!(client.ack("g", "orders", &held.messages).await, OK);
    assert_eq!(renewed(SHORT).await.code, NOTHING_THERE);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn positions_and_offsets_are_the_same_at_the_next_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 9).await;
    send_some(&client, "orders", 20).await;
    let first = client.pull_with("g", "orders", 0, SHORT, |request| request.batch_size = 8).await;
    assert_eq!((first.messages.len(), first.next), (8, Some(8)));
    assert_eq!(client.update_offset("g", "orders", 8).await, OK);
    let stored = system_of(&first.messages[5]).store_timestamp.expect("a time");
    let at_ms = u64::try_from(stored.seconds * 1000 + i64::from(stored.nanos / 1_000_000)).expect("a time");
    let by_time = client.query_offset("orders", QueryOffsetPolicy::Timestamp, Some(at_ms)).await;
    assert!(by_time.0 == OK && by_time.1 <= 5, "{by_time:?}");

    cluster.kill_leader().await;
    assert_eq!(other.get_offset("g", "orders").await, (OK, 8));
    assert_eq!(other.query_offset("orders", QueryOffsetPolicy::Timestamp, Some(at_ms)).await, by_time);
    assert_eq!(other.query_offset("orders", QueryOffsetPolicy::Beginning, None).await, (OK, 0));
    assert_eq!(other.query_offset("orders", QueryOffsetPolicy::End, None).await, (OK, 20));
    let rest = other.pull("g", "orders", 8, SHORT).await;
    assert_eq!(rest.ids(), (8..20).map(|number| format!("m-{number}")).collect::<Vec<_>>());
    let outside = other.pull("g", "orders", 21, SHORT).await;
    assert_eq!((outside.code, outside.next), (40019, Some(20)), "told, and nobody is moved");
    assert_eq!(other.update_offset("g", "orders", 21).await, 40019);
    assert_eq!(other.update_offset("g", "orders", 20).await, OK);
    // A poll that waits is woken by the message.
    let waiting = {
        let client = client.clone();
        cluster.runtime.spawn("poll", async move { client.pull("g", "orders", 20, LONG).await })
    };
    cluster.runtime.sleep(SHORT).await;
    assert_eq!(other.send(message("orders", "m-20", |_| ())).await.code, OK);
    let woken = cluster.runtime.timeout(Duration::from_secs(3), waiting).await.expect("woken").unwrap();
    assert_eq!(woken.ids(), ["m-20"]);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_of_a_group_share_its_messages_and_each_group_gets_all() {
    const COUNT: usize = 300;
    let mut cluster = Cluster::start().await;
    let [client, _] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 4).await;
    let seen: Arc<Mutex<BTreeMap<(String, String), usize>>> = Arc::default();
    let mut members = Vec::new();
    for group in ["billing", "shipping"] {
        client.create_group(group, false, 9).await;
        for _ in 0..2 {
            let config = PushConsumerConfig::new(group.try_into().unwrap(), "orders".try_into().unwrap());
            let seen = seen.clone();
            let member = cluster.sdk().push_consumer(config, move |message| {
                let mut seen = seen.lock().expect("no listener panics");
                *seen.entry((group.to_owned(), message.id.to_string())).or_default() += 1;
                async { ConsumeResult::Success }
            });
            members.push(member.unwrap());
        }
    }
    let producer = cluster.sdk().producer(ProducerConfig::default()).unwrap();
    for number in 0..COUNT {
        if number == COUNT / 2 {
            cluster.kill_leader().await;
        }
        let id = format!("m-{number}");
        let message = OutgoingMessage::new("orders".try_into().unwrap(), "a body");
        producer.send(message.with_id(id.as_str().try_into().unwrap())).await.unwrap();
    }
    let deadline = cluster.runtime.now() + LONG;
    while seen.lock().unwrap().len() < 2 * COUNT {
        assert!(cluster.runtime.now() < deadline, "{} of {}", seen.lock().unwrap().len(), 2 * COUNT);
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    for member in members {
        assert_eq!(member.shutdown(LONG).await, 0);
    }
    let seen = seen.lock().unwrap().clone();
    assert!(seen.values().all(|times| *times == 1), "nothing comes twice: {seen:?}");
    for group in ["billing", "shipping"] {
        let ids: Vec<String> = seen.keys().filter(|(of, _)| of == group).map(|(_, id)| id.clone()).collect();
        assert_eq!(sorted(ids), numbered("m", COUNT));
    }
    cluster.agree().await;
}
