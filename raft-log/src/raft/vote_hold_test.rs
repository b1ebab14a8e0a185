//! Power failures of replicas that confirm entries before they are on disk.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::Runtime;

use crate::testing::{CrashDisk, Ledger, MemoryNet};
use crate::{FlushMode, LogConfig, NodeId, ReplicatedLog};

type Log = ReplicatedLog<usize>;

const PATIENCE: Duration = Duration::from_secs(20);

/// Replicas whose disks get nothing by themselves: what is not synced for a vote is lost with the power.
struct Group {
    net: MemoryNet,
    disks: BTreeMap<NodeId, CrashDisk>,
    running: BTreeMap<NodeId, (Log, Ledger)>,
    runtime: Runtime,
}

impl Group {
    async fn start(size: u64) -> Group {
        let disks = (1..=size).map(|node| (NodeId(node), CrashDisk::new(node))).collect();
        let mut group = Group { net: MemoryNet::default(), disks, running: BTreeMap::new(), runtime: Runtime::tokio() };
        for node in group.nodes() {
            group.start_node(node).await;
        }
        group
    }

    fn nodes(&self) -> Vec<NodeId> {
        self.disks.keys().copied().collect()
    }

    async fn start_node(&mut self, node: NodeId) {
        let mut config = LogConfig::new("log", "cluster", "group", node, self.nodes());
        config.segment_bytes = 64 * 1024;
        config.flush = FlushMode::Async { interval_ms: 60_000, bytes: 1 << 30 };
        let (disk, ledger) = (Arc::new(self.disks[&node].clone()), Ledger::default());
        let opened = Log::open(config, self.runtime.clone(), disk, self.net.transport(node), ledger.clone()).await;
        let log = opened.unwrap();
        self.net.join(node, log.clone());
        self.running.insert(node, (log, ledger));
    }

    /// The process ends, the machine goes on.
    async fn stop(&mut self, node: NodeId) {
        drop(self.net.leave(node));
        let (log, _) = self.running.remove(&node).unwrap();
        log.shutdown(PATIENCE).await;
    }

    /// The machine goes down: only what was synced is there again.
    async fn lose_power(&mut self, node: NodeId) {
        let disk = self.disks[&node].clone();
        disk.crash_at(disk.operations() + 1);
        self.stop(node).await;
        disk.power_cycle_losing_all_unsynced();
    }

    fn leader(&self) -> Option<(NodeId, Log)> {
        let mut logs = self.running.iter().map(|(node, (log, _))| (*node, log.clone()));
        logs.find(|(_, log)| log.status().can_write)
    }

    async fn within(&self, what: &str, is_so: impl Fn(&Group) -> bool) {
        let waiting = async {
            while !is_so(self) {
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.runtime.timeout(PATIENCE, waiting).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
    }

    async fn propose(&self, number: u8) {
        self.within("a leader", |group| group.leader().is_some()).await;
        let (_, log) = self.leader().unwrap();
        log.propose(Bytes::from(vec![number; 300]), None).await.unwrap();
    }

    fn has(&self, node: NodeId) -> Vec<u8> {
        self.running[&node].1.applied().iter().map(|(_, payload)| payload[0]).collect()
    }

    fn followers(&self) -> (NodeId, Vec<NodeId>) {
        let (leader, _) = self.leader().unwrap();
        (leader, self.nodes().into_iter().filter(|node| *node != leader).collect())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_that_forgot_what_it_confirmed_does_not_elect_who_never_had_it() {
    let mut group = Group::start(3).await;
    group.propose(1).await;
    group.within("all to have it", |group| group.nodes().iter().all(|node| group.has(*node) == [1])).await;
    let (leader, followers) = group.followers();
    let (forgetful, behind) = (followers[0], followers[1]);
    // Committed by the leader and one follower; the other one never gets it.
    group.net.isolate(behind, true);
    for number in 2..=5 {
        group.propose(number).await;
    }
    group.within("the follower to have it", |group| group.has(forgetful) == [1, 2, 3, 4, 5]).await;
    group.lose_power(forgetful).await;
    group.stop(leader).await;
    group.net.isolate(behind, false);
    group.start_node(forgetful).await;
    assert!(group.running[&forgetful].0.is_recovering());
    group.runtime.sleep(Duration::from_millis(2500)).await;
    assert!(group.leader().is_none(), "the two that are left may lack what was committed");
    assert!(group.running[&forgetful].0.is_recovering());

    // The one that has it comes back: its machine never went down.
    group.start_node(leader).await;
    assert!(!group.running[&leader].0.is_recovering());
    group.within("a leader", |group| group.leader().is_some()).await;
    group.within("the forgetful one to vote", |group| !group.running[&forgetful].0.is_recovering()).await;
    group.propose(6).await;
    group
        .within("all to have all", |group| group.nodes().iter().all(|node| group.has(*node) == [1, 2, 3, 4, 5, 6]))
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn when_all_went_down_all_vote_again() {
    let mut group = Group::start(3).await;
    for number in 1..=3 {
        group.propose(number).await;
    }
    for node in group.nodes() {
        group.lose_power(node).await;
    }
    let nodes = group.nodes();
    for node in &nodes[..2] {
        group.start_node(*node).await;
    }
    group.runtime.sleep(Duration::from_millis(1500)).await;
    assert!(group.leader().is_none(), "the third one may know more");
    group.start_node(nodes[2]).await;
    group.propose(4).await;
    group.within("nobody to hold its vote", |group| group.running.values().all(|(log, _)| !log.is_recovering())).await;
    group
        .within("all to have the same", |group| {
            let all: Vec<_> = group.nodes().iter().map(|node| group.has(*node)).collect();
            all.iter().all(|has| *has == all[0] && has.last() == Some(&4))
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_alone_waits_for_nobody() {
    let mut group = Group::start(1).await;
    group.propose(1).await;
    group.lose_power(NodeId(1)).await;
    group.start_node(NodeId(1)).await;
    group.propose(2).await;
    assert_eq!(group.has(NodeId(1)).last(), Some(&2));
}
