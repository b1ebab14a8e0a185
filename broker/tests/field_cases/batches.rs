//! Offsets under failover: many senders of batches to one queue, and how soon the next leader serves.

use std::time::Duration;

use flotilla_proto::v2::MessageType;

use super::load::{Load, Told, check, queue_of};
use crate::support::{Cluster, message};

/// A16: batches and single messages of many senders to one queue, with leaders that die: dense, unique, whole.
#[tokio::test(flavor = "multi_thread")]
async fn no_two_messages_get_one_offset_and_no_batch_is_seen_in_parts() {
    let mut cluster = Cluster::start(3).await;
    cluster.client(1).create_topic("orders", MessageType::Normal, 1).await;
    let clients: Vec<_> = (1..=3).map(|node| cluster.client(node)).collect();
    // Every other send is a single message.
    let size = |random: u64| if random.is_multiple_of(2) { 1 } else { 1 + random / 2 % 32 };
    let load = Load::start(&cluster.runtime, &clients, "orders", 32, Duration::from_secs(5), size);
    for _ in 0..3 {
        cluster.runtime.sleep(Duration::from_millis(1500)).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.runtime.sleep(Duration::from_millis(700)).await;
        cluster.restart(leader).await;
    }
    let stored = load.stored();
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    assert!(load.stored() > stored, "sends go on");
    let sent = load.end().await;
    let leader = cluster.leader().await;
    let queue = queue_of(&cluster.client(leader), "orders").await;
    let (stored, ..) = check(&sent, &queue);
    let batches = sent.iter().filter(|one| one.ids.len() > 1 && matches!(one.told, Told::Stored(_))).count();
    assert!(stored > 300 && batches > 100, "{stored} stored, {batches} of them batches");
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

/// A12: what derives from the log is made by all as they apply it: the next leader has nothing to catch up with first.
#[tokio::test(flavor = "multi_thread")]
async fn the_next_leader_serves_as_soon_under_load_as_at_rest() {
    let mut cluster = Cluster::start(3).await;
    cluster.client(1).create_topic("orders", MessageType::Normal, 4).await;
    cluster.client(1).create_topic("probe", MessageType::Normal, 1).await;
    let mut took = Vec::new();
    for is_loaded in [false, true] {
        let leader = cluster.leader().await;
        let survivors: Vec<_> = (1..=3).filter(|node| *node != leader).map(|node| cluster.client(node)).collect();
        let load =
            is_loaded.then(|| Load::start(&cluster.runtime, &survivors, "orders", 24, Duration::from_secs(5), |_| 64));
        cluster.runtime.sleep(Duration::from_secs(if is_loaded { 5 } else { 1 })).await;
        let before = load.as_ref().map_or(0, Load::stored);
        cluster.kill(leader);
        let began = cluster.runtime.now();
        let id = format!("after-{is_loaded}");
        let status = survivors[0].send(message("probe", &id, |_| ())).await;
        assert_eq!(status.code, 20000, "{}", status.message);
        // What was stored under load can be read at once, up to the last one.
        let last = survivors[1].pull("g", "probe", i64::from(is_loaded), Duration::from_secs(5)).await;
        assert_eq!(last.ids(), [id]);
        took.push(cluster.runtime.now() - began);
        if let Some(load) = load {
            assert!(before > 100, "{before} batches of 64 before");
            let sent = load.end().await;
            let failed: Vec<_> = sent.iter().filter(|one| !matches!(one.told, Told::Stored(_))).collect();
            assert!(failed.is_empty(), "{} sends failed, such as {:?}", failed.len(), failed[0]);
        }
        cluster.restart(leader).await;
        cluster.digests().await;
    }
    assert!(took[1] < took[0] + Duration::from_secs(2), "{:?} at rest, {:?} under load", took[0], took[1]);
    cluster.shutdown().await;
}
