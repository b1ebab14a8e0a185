//! Delayed messages, end to end: on time, recalled in time, and never lost with a leader.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::support::{Client, Cluster, id_of, message, system_of};
use flotilla_proto::v2;
use flotilla_proto::v2::MessageType;

const LONG: Duration = Duration::from_secs(20);

fn at(wall_ms: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(wall_ms / 1000).expect("not so far"),
        nanos: i32::try_from(wall_ms % 1000).expect("below a thousand") * 1_000_000,
    }
}

fn delayed(id: &str, wall_ms: u64) -> v2::Message {
    message("later", id, |system| system.delivery_timestamp = Some(at(wall_ms)))
}

/// Receives until so many messages came; when each came.
async fn arrivals(cluster: &Cluster, client: &Client, count: usize) -> BTreeMap<String, u64> {
    let mut arrived = BTreeMap::new();
    while arrived.len() < count {
        let received = client.receive("g", "later", Duration::from_secs(5), LONG).await;
        let now_ms = cluster.runtime.wall_ms();
        assert!(received.code == 20000, "code {}, so far {arrived:?}", received.code);
        for message in &received.messages {
            assert!(system_of(message).delivery_timestamp.is_some());
            assert_eq!(arrived.insert(id_of(message).to_owned(), now_ms), None, "delivered twice");
        }
        assert_eq!(client.ack("g", "later", &received.messages).await, 20000);
    }
    arrived
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_comes_on_time_and_a_recalled_one_never() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.client(cluster.leader().await);
    let follower = cluster.client(cluster.follower().await);
    leader.create_topic("later", MessageType::Delay, 4).await;
    let now_ms = cluster.runtime.wall_ms();
    let mut due = BTreeMap::new();
    for (number, delay_ms) in [(0u32, 1500), (1, 700), (2, 0), (3, 1100)] {
        let id = format!("m-{number}");
        let client = if number % 2 == 0 { &leader } else { &follower };
        let entry = client.send_for_entry(delayed(&id, now_ms + delay_ms)).await;
        assert!(!entry.recall_handle.is_empty());
        due.insert(id, now_ms + delay_ms);
    }
    let entry = leader.send_for_entry(delayed("taken-back", now_ms + 1000)).await;
    assert_eq!(follower.recall("later", &entry.recall_handle).await, (20000, "taken-back".to_owned()));
    assert_eq!(leader.recall("later", &entry.recall_handle).await, (20000, "taken-back".to_owned()), "again");

    let arrived = arrivals(&cluster, &follower, 4).await;
    for (id, due_ms) in &due {
        let late_ms = arrived[id].checked_sub(*due_ms);
        assert!(late_ms.is_some_and(|late_ms| late_ms < 500), "{id} came at {}, due {due_ms}", arrived[id]);
    }
    let nothing = leader.receive("g", "later", Duration::from_secs(1), LONG).await;
    assert_eq!((nothing.code, nothing.ids()), (40401, Vec::new()));

    // Too late, and handles that are none.
    let entry = leader.send_for_entry(delayed("past", 5)).await;
    arrivals(&cluster, &leader, 1).await;
    assert_eq!(leader.recall("later", &entry.recall_handle).await.0, 40401);
    assert_eq!(leader.recall("other", &entry.recall_handle).await.0, 40000);
    assert_eq!(leader.recall("later", "00ff").await.0, 40000);
    let too_far = cluster.runtime.wall_ms() + 4 * 24 * 3600 * 1000;
    assert_eq!(leader.send(delayed("far", too_far)).await.code, 40012);
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_messages_outlive_the_leader_and_then_the_whole_group() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let survivor = cluster.client((1..=3).find(|node| *node != leader).expect("another"));
    survivor.create_topic("later", MessageType::Delay, 4).await;
    let soon_ms = cluster.runtime.wall_ms() + 1500;
    for number in 0..50 {
        survivor.send_for_entry(delayed(&format!("soon-{number}"), soon_ms)).await;
    }
    cluster.kill(leader);
    let arrived = arrivals(&cluster, &survivor, 50).await;
    assert!(arrived.values().all(|at_ms| *at_ms >= soon_ms), "{arrived:?}");

    let later_ms = cluster.runtime.wall_ms() + 2500;
    for number in 0..50 {
        survivor.send_for_entry(delayed(&format!("later-{number}"), later_ms)).await;
    }
    cluster.restart(leader).await;
    for node in 1..=3 {
        cluster.kill(node);
    }
    for node in 1..=3 {
        cluster.restart(node).await;
    }
    cluster.leader().await;
    let arrived = arrivals(&cluster, &survivor, 50).await;
    assert!(arrived.values().all(|at_ms| *at_ms >= later_ms), "{arrived:?}");
    cluster.shutdown().await;
}
