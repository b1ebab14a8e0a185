//! Replicas come to a running group and leave it; senders and consumers notice nothing.

use std::time::Duration;

use flotilla_proto::admin::{self, ReplicaChange};
use flotilla_proto::v2::{self, MessageType};
use flotilla_raft_log::Standing;

use crate::field_cases::load::{Load, check, queue_of};
use crate::support::{Client, Cluster, resource};

const LONG: Duration = Duration::from_secs(10);

/// One step of a change, as an operator's command asks for it.
async fn step(client: &Client, change: ReplicaChange, node: u64, address: &str) -> admin::ChangeReplicaReply {
    let request = admin::ChangeReplicaRequest { change: change.into(), node, peer_address: address.to_owned() };
    client.admin.change_replica(client.options(LONG), request).await.expect("an answer")
}

/// Repeats it until it is done.
async fn change(cluster: &Cluster, client: &Client, change: ReplicaChange, node: u64) {
    let address = cluster.configs[usize::try_from(node).expect("small") - 1].peer_address();
    for _ in 0..200 {
        let reply = step(client, change, node, &address).await;
        let status = reply.status.expect("a status");
        // Nobody leads for a moment when a leader hands over.
        assert!(status.code == 20000 || status.code >= 50000, "{change:?} of {node}: {status:?}");
        if reply.done && status.code == 20000 {
            return;
        }
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    panic!("{change:?} of replica {node} does not come to an end");
}

async fn await_voters(cluster: &Cluster, client: &Client, expected: &[u64]) -> admin::ListReplicasReply {
    for _ in 0..400 {
        let listed = client.admin.list_replicas(client.options(LONG), admin::ListReplicasRequest {}).await;
        if let Ok(listed) = listed {
            let voters: Vec<u64> = listed.replicas.iter().filter(|row| row.voter).map(|row| row.node).collect();
            // A newcomer's life and addresses are recorded with it, those of a founder a moment after the founding.
            let is_recorded = |row: &admin::ReplicaRow| !row.incarnation.is_empty() && !row.peer_address.is_empty();
            if voters == expected && !listed.changing && listed.replicas.iter().all(is_recorded) {
                return listed;
            }
        }
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    panic!("the voters are not {expected:?}");
}

/// The addresses that a client is told.
async fn routed(client: &Client, topic: &str) -> Vec<i32> {
    let client = client.clone().in_language("JAVA");
    let request = v2::QueryRouteRequest { topic: Some(resource(topic)), endpoints: None };
    let route = client.messaging.query_route(client.options(LONG), request).await.expect("an answer").body;
    let broker = route.message_queues.into_iter().next().expect("a queue").broker.expect("a broker");
    broker.endpoints.expect("endpoints").addresses.into_iter().map(|address| address.port).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_grows_from_one_to_three_and_shrinks_back_under_load_without_a_failed_send() {
    let mut cluster = Cluster::start(1).await;
    cluster.leader().await;
    let first = cluster.client(1);
    first.create_topic("orders", MessageType::Normal, 1).await;
    first.create_topic("more", MessageType::Normal, 1).await;
    let load = Load::start(&cluster.runtime, std::slice::from_ref(&first), "orders", 4, LONG, |_| 1);
    for node in 2..=3 {
        cluster.start_joiner(node).await;
        let newcomer = cluster.brokers[usize::try_from(node).expect("small") - 1].as_ref().expect("it runs");
        assert_eq!(newcomer.node().log().standing(), Standing::Newcomer);
        change(&cluster, &first, ReplicaChange::Add, node).await;
        change(&cluster, &first, ReplicaChange::Promote, node).await;
        let voters: Vec<u64> = (1..=node).collect();
        let listed = await_voters(&cluster, &first, &voters).await;
        assert_eq!(listed.replicas.len() as u64, node);
    }
    let (grown, while_growing) = (load.end().await, queue_of(&first, "orders").await);
    // The last one serves now; who was first goes, leader or not.
    let last = cluster.client(3);
    let load = Load::start(&cluster.runtime, std::slice::from_ref(&last), "more", 4, LONG, |_| 1);
    for node in 1..=2 {
        change(&cluster, &last, ReplicaChange::Remove, node).await;
        let voters: Vec<u64> = (node + 1..=3).collect();
        await_voters(&cluster, &last, &voters).await;
        cluster.stop(node).await;
    }
    let shrunk = load.end().await;
    cluster.runtime.sleep(Duration::from_millis(500)).await;
    assert_eq!(routed(&last, "orders").await.len(), 1, "routes name who is left");
    assert_eq!(queue_of(&last, "orders").await, while_growing, "the last one has everything");
    for (sent, queue) in [(grown, while_growing), (shrunk, queue_of(&last, "more").await)] {
        let (stored, denied, unknown) = check(&sent, &queue);
        assert!(stored > 20, "{stored}");
        assert_eq!((denied, unknown), (0, 0), "no send failed");
    }
    let refused = step(&last, ReplicaChange::Remove, 3, "").await.status.expect("a status");
    assert!(refused.message.contains("last voter"), "{refused:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_disk_was_emptied_says_so_and_is_taken_in_again() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    cluster.client(leader).create_topic("orders", MessageType::Normal, 1).await;
    let victim = cluster.follower().await;
    let at = usize::try_from(victim).expect("small") - 1;
    let before = await_voters(&cluster, &cluster.client(leader), &[1, 2, 3]).await;
    cluster.stop(victim).await;
    std::fs::remove_dir_all(&cluster.configs[at].data_dir).expect("its directory is gone");
    // Nobody can take it in while the other follower is away.
    let other = (1..=3).find(|node| *node != leader && *node != victim).expect("three");
    cluster.stop(other).await;
    cluster.restart(victim).await;
    let client = cluster.client(victim);
    let mut said = String::new();
    for _ in 0..100 {
        let status = client.admin.cluster_status(client.options(LONG), admin::ClusterStatusRequest {}).await;
        said = status.expect("an answer").no_member;
        if said.contains("lost its disk") {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    assert!(said.contains("lost its disk"), "{said}");
    let broker = cluster.brokers[at].as_ref().expect("it runs");
    assert!(!broker.metrics().ready().is_ok());
    cluster.restart(other).await;
    let listed = await_voters_again(&cluster, &before, victim).await;
    assert_eq!(listed.replicas.len(), 3);
    // The leader knows it first.
    let log = cluster.brokers[at].as_ref().expect("it runs").node().log();
    for _ in 0..100 {
        if log.standing() == Standing::Member {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(log.standing(), Standing::Member);
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

/// Waits until all three vote, `victim` in another life than before.
async fn await_voters_again(
    cluster: &Cluster,
    before: &admin::ListReplicasReply,
    victim: u64,
) -> admin::ListReplicasReply {
    let life = |listed: &admin::ListReplicasReply| {
        listed.replicas.iter().find(|row| row.node == victim).map(|row| row.incarnation.clone())
    };
    loop {
        let client = cluster.client(cluster.leader().await);
        let listed = await_voters(cluster, &client, &[1, 2, 3]).await;
        if life(&listed) != life(before) {
            return listed;
        }
    }
}
