//! Cases about what replicas tell of themselves: a follower that starts never looks like a leader, and a replica that nobody
//! reaches is named.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::server::{Services, serve};
use flotilla_proto::status::ok;
use flotilla_proto::v2::MessageType;
use flotilla_proto::{CallContext, Namesrv, Replies, namesrv};
use flotilla_runtime::{BoxFuture, Runtime};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::load::{Load, Told, check, queue_of};
use crate::support::Cluster;

/// A namesrv that remembers what it is told.
struct Recorder {
    runtime: Runtime,
    rows: Arc<Mutex<Vec<namesrv::Registration>>>,
}

impl Namesrv for Recorder {
    fn register(
        &self,
        _context: CallContext,
        mut rows: mpsc::Receiver<namesrv::Registration>,
    ) -> Replies<namesrv::RegistrationReply> {
        let (sender, replies) = mpsc::channel(8);
        let known = self.rows.clone();
        let serve = async move {
            while let Some(row) = rows.recv().await {
                let reply = namesrv::RegistrationReply {
                    status: Some(ok()),
                    version: row.version,
                    expiry_ms: 120_000,
                    ..Default::default()
                };
                known.lock().expect("not poisoned").push(row);
                if sender.send(reply).await.is_err() {
                    return;
                }
            }
        };
        self.runtime.spawn("register", serve).detach();
        replies
    }

    fn unregister(
        &self,
        _context: CallContext,
        _request: namesrv::UnregisterRequest,
    ) -> BoxFuture<'_, namesrv::UnregisterReply> {
        Box::pin(std::future::ready(namesrv::UnregisterReply { status: Some(ok()) }))
    }
}

/// A10: a follower is started again and again, and no row ever calls another one leader than the one that leads in that term.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_starts_never_registers_as_the_leader_it_is_not() {
    let runtime = Runtime::tokio();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
    let address = listener.local_addr().expect("bound").to_string();
    let rows: Arc<Mutex<Vec<namesrv::Registration>>> = Arc::default();
    let recorder = Recorder { runtime: runtime.clone(), rows: rows.clone() };
    let services = Services::new(runtime.clone()).with_namesrv(Arc::new(recorder));
    let serving = runtime.spawn("namesrv", async move {
        serve(listener, services, std::future::pending()).await.expect("it serves");
    });
    let mut cluster = Cluster::start_with(3, |config| {
        config.namesrv = vec![address.clone()];
        config.namesrv_heartbeat_ms = 100;
    })
    .await;
    let leader = cluster.leader().await;
    let follower = cluster.follower().await;
    cluster.client(leader).create_topic("orders", MessageType::Normal, 1).await;
    let clients: Vec<_> = (1..=3).map(|node| cluster.client(node)).collect();
    let load = Load::start(&cluster.runtime, &clients, "orders", 6, Duration::from_secs(5), |_| 1);
    let mut leaders: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..20 {
        cluster.kill(follower);
        cluster.restart(follower).await;
        cluster.runtime.sleep(Duration::from_millis(150)).await;
        for broker in cluster.brokers.iter().flatten() {
            let status = broker.node().log().status();
            if status.can_write {
                leaders.insert(status.term.0, status.node.0);
            }
        }
    }
    let sent = load.end().await;
    let rows = rows.lock().expect("not poisoned").clone();
    let is_leader = |row: &&namesrv::Registration| row.role == namesrv::ReplicaRole::Leader as i32;
    let mut claimed: BTreeMap<u64, u64> = BTreeMap::new();
    for row in rows.iter().filter(is_leader) {
        let first = *claimed.entry(row.term).or_insert(row.replica);
        assert_eq!(first, row.replica, "term {} has one leader", row.term);
        let known = leaders.get(&row.term);
        assert!(known.is_none_or(|known| *known == row.replica), "{} claims term {}", row.replica, row.term);
    }
    let of_the_follower = rows.iter().filter(|row| row.replica == follower);
    let (count, claims) = (of_the_follower.clone().count(), of_the_follower.filter(is_leader).count());
    assert!(count >= 20, "{count} rows of the one that started again");
    if leaders.len() == 1 {
        assert_eq!(claims, 0, "it never led");
    }
    // Each replica's rows only grow fresher.
    for node in 1..=3 {
        let terms: Vec<u64> = rows.iter().filter(|row| row.replica == node).map(|row| row.term).collect();
        assert!(terms.is_sorted(), "replica {node}: {terms:?}");
    }
    // What the starting one took was stored by the leader, or not at all.
    let (stored, ..) = check(&sent, &queue_of(&clients[0], "orders").await);
    assert!(stored > 100 && sent.iter().any(|one| !matches!(one.told, Told::Stored(_))) || stored > 500, "{stored}");
    cluster.shutdown().await;
    drop(serving);
}
