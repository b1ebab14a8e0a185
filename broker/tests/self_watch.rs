//! A leader that is not fit gives the lead away, and does not get it back before it is well.
#![allow(clippy::disallowed_methods, reason = "a slow disk keeps its thread waiting, as a real one does")]

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Cluster, message};
use bytes::Bytes;
use flotilla_metrics::{Exposition, Scrape};
use flotilla_proto::v2::MessageType;
use flotilla_raft_log::{Disk, DiskFile, NodeId, OsDisk, WrapDisk, WrappingDisk};
use flotilla_runtime::Task;

/// A disk whose syncs take longer, or that has no room, when told so.
#[derive(Clone, Default)]
pub struct SlowDisk {
    extra_ms: Arc<AtomicU64>,
    is_full: Arc<AtomicBool>,
}

struct SlowFile {
    file: Arc<dyn DiskFile>,
    extra_ms: Arc<AtomicU64>,
}

impl SlowDisk {
    pub fn take_longer(&self, extra_ms: u64) {
        self.extra_ms.store(extra_ms, Ordering::Relaxed);
    }

    fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }
}

impl WrapDisk for SlowDisk {
    fn wrap(&self, file: Arc<dyn DiskFile>, _: &Path) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile { file, extra_ms: self.extra_ms.clone() })
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        if self.is_full.load(Ordering::Relaxed) { Ok(40 << 20) } else { OsDisk.free_bytes(dir) }
    }
}

impl DiskFile for SlowFile {
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.file.read_at(offset, len)
    }
    fn sync_data(&self) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(self.extra_ms.load(Ordering::Relaxed)));
        self.file.sync_data()
    }
}

/// Three replicas, each over a disk that can be made slow, which judge themselves quickly.
async fn start() -> (Cluster, Vec<SlowDisk>) {
    let disks: Vec<SlowDisk> = (0..3).map(|_| SlowDisk::default()).collect();
    let quick = |config: &mut flotilla_broker::BrokerConfig| {
        config.slow_sync_ms = 150;
        config.slow_sync_window_ms = 2_000;
        config.fit_again_ms = 3_000;
        config.segment_bytes = 1 << 20;
        config.disk_free_bytes_min = 64 << 20;
        // Above twice the slowest sync of these tests, as the setting asks for.
        config.election_timeout_ms_min = 600;
        config.election_timeout_ms_max = 1_000;
    };
    let disk_of = |node: u64| -> Arc<dyn Disk> { Arc::new(WrappingDisk(disks[at(node)].clone())) };
    (Cluster::start_over(3, quick, disk_of).await, disks)
}

fn at(node: u64) -> usize {
    usize::try_from(node).expect("small") - 1
}

/// What one replica tells monitoring.
pub fn scrape(cluster: &Cluster, node: u64) -> Scrape {
    let broker = cluster.brokers[at(node)].as_ref().expect("it runs");
    let mut out = Exposition::new();
    broker.metrics().measure(&mut out);
    Scrape::parse(&out.finish()).expect("of the format")
}

fn value(cluster: &Cluster, node: u64, name: &str, labels: &[(&str, &str)]) -> f64 {
    scrape(cluster, node).value(name, labels).unwrap_or_else(|| panic!("replica {node} tells {name}"))
}

async fn until(cluster: &Cluster, what: &str, within: Duration, mut holds: impl FnMut() -> bool) -> Duration {
    let began = cluster.runtime.now();
    while !holds() {
        assert!(cluster.runtime.now() - began < within, "{what}: not within {within:?}");
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    cluster.runtime.now() - began
}

/// Sends without end through one replica.
struct Load {
    counts: Arc<Counts>,
    task: Task<()>,
}

#[derive(Default)]
struct Counts {
    sent: AtomicU64,
    failed: AtomicU64,
    must_stop: AtomicBool,
}

impl Load {
    fn start(cluster: &Cluster, node: u64) -> Load {
        let (client, runtime, counts) = (cluster.client(node), cluster.runtime.clone(), Arc::<Counts>::default());
        let counted = counts.clone();
        let task = cluster.runtime.spawn("load", async move {
            let mut number = 0;
            while !counted.must_stop.load(Ordering::Relaxed) {
                let status = client.send(message("orders", &format!("m-{number}"), |_| ())).await;
                let counter = if status.code == 20000 { &counted.sent } else { &counted.failed };
                counter.fetch_add(1, Ordering::Relaxed);
                number += 1;
                runtime.sleep(Duration::from_millis(5)).await;
            }
        });
        Load { counts, task }
    }

    /// Messages sent, and sends that failed.
    async fn end(self) -> (u64, u64) {
        self.counts.must_stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the load ends");
        (self.counts.sent.load(Ordering::Relaxed), self.counts.failed.load(Ordering::Relaxed))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_with_a_sick_disk_hands_over_and_leads_again_only_when_well() {
    let (mut cluster, disks) = start().await;
    let sick = cluster.leader().await;
    let bystander = (1..=3).find(|node| *node != sick).expect("there are three");
    cluster.client(bystander).create_topic("orders", MessageType::Normal, 2).await;
    let load = Load::start(&cluster, bystander);
    cluster.runtime.sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.leader().await, sick);

    // Its disk gets slow; its heartbeats do not.
    disks[at(sick)].take_longer(400);
    let after = until(&cluster, "another replica leads", Duration::from_secs(15), || {
        cluster.brokers.iter().flatten().any(|broker| {
            let seen = broker.node().log().status();
            seen.can_write && seen.node != NodeId(sick)
        })
    });
    let after = after.await;
    println!("handed over {after:?} after the disk got slow");
    let labels = [("cause", "unfit"), ("result", "done")];
    until(&cluster, "the hand-over is counted", Duration::from_secs(12), || {
        value(&cluster, sick, "flotilla_raft_hand_overs_total", &labels) == 1.0
    })
    .await;
    assert_eq!(value(&cluster, sick, "flotilla_fit_to_lead", &[]), 0.0);
    let healthy = cluster.leader().await;
    assert_ne!(healthy, sick);
    let (sent, failed) = load.end().await;
    assert!(sent > 50 && failed == 0, "{failed} of {} sends failed", sent + failed);

    // The new leader dies: the sick one is up to date enough to win, and leaves it to the third all the same.
    let third = (1..=3).find(|node| ![sick, healthy].contains(node)).expect("there are three");
    // It must be able to vote before the candidate loses patience.
    disks[at(sick)].take_longer(200);
    cluster.kill(healthy);
    assert_eq!(cluster.leader().await, third);
    cluster.restart(healthy).await;

    // A disk that is well again makes a replica that may lead again, after a while.
    disks[at(sick)].take_longer(0);
    let well = until(&cluster, "fit again", Duration::from_secs(30), || {
        value(&cluster, sick, "flotilla_fit_to_lead", &[]) == 1.0
    });
    assert!(well.await >= Duration::from_secs(2), "not at once");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn where_every_disk_is_sick_the_leader_stays_and_goes_on() {
    for sync_ms in [300, 400] {
        the_leader_stays_where_each_sync_takes(sync_ms).await;
    }
}

async fn the_leader_stays_where_each_sync_takes(sync_ms: u64) {
    let (cluster, disks) = start().await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.create_topic("orders", MessageType::Normal, 2).await;
    let load = Load::start(&cluster, leader);
    disks.iter().for_each(|disk| disk.take_longer(sync_ms));
    for node in 1..=3 {
        until(&cluster, "ill", Duration::from_secs(15), || value(&cluster, node, "flotilla_fit_to_lead", &[]) == 0.0)
            .await;
    }
    let changes = |node| value(&cluster, node, "flotilla_raft_leader_changes_total", &[]);
    let before: Vec<f64> = (1..=3).map(changes).collect();
    cluster.runtime.sleep(Duration::from_secs(5)).await;
    assert_eq!((1..=3).map(changes).collect::<Vec<f64>>(), before, "the lead does not go to and fro");
    assert_eq!(cluster.leader().await, leader);
    let tried = value(&cluster, leader, "flotilla_raft_hand_overs_total", &[("cause", "unfit"), ("result", "failed")]);
    assert!((1.0..=3.0).contains(&tried), "it looks for a better one, less and less often: {tried}");
    let (sent, failed) = load.end().await;
    println!("{sync_ms} ms a sync: {sent} sent, {failed} failed, {tried} hand-overs tried");
    assert!(sent > 3 && failed == 0, "slow is better than nothing: {sent} sent, {failed} failed");
    disks.iter().for_each(|disk| disk.take_longer(0));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn after_a_hand_over_to_a_dead_replica_a_healthy_one_serves_within_five_seconds() {
    let (mut cluster, _) = start().await;
    let leader = cluster.leader().await;
    cluster.client(leader).create_topic("orders", MessageType::Normal, 1).await;
    let dead = (1..=3).find(|node| *node != leader).expect("there are three");
    let third = (1..=3).find(|node| ![leader, dead].contains(node)).expect("there are three");
    cluster.kill(dead);
    let began = cluster.runtime.now();
    let log = cluster.brokers[at(leader)].as_ref().expect("it runs").node().log().clone();
    let moved = log.transfer_leader(Some(NodeId(dead)), Duration::from_secs(2)).await;
    assert!(moved.is_err(), "{moved:?}");
    let status = cluster.client(third).send(message("orders", "m-1", |_| ())).await;
    let after = cluster.runtime.now() - began;
    assert_eq!(status.code, 20000, "{}", status.message);
    assert!(after < Duration::from_secs(5), "{after:?}");
    println!("served again {after:?} after the hand-over to a dead replica began");
    drop(log);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_refuses_within_its_lease() {
    let (mut cluster, _) = start().await;
    let leader = cluster.leader().await;
    for node in (1..=3).filter(|node| *node != leader) {
        cluster.kill(node);
    }
    let log = cluster.brokers[at(leader)].as_ref().expect("it runs").node().log().clone();
    let lease = Duration::from_millis(cluster.configs[0].election_timeout_ms_max);
    let refused = until(&cluster, "it refuses", Duration::from_secs(5), || !log.status().can_write).await;
    // Its lease, and what a loaded machine takes to look.
    assert!(refused < lease * 3, "{refused:?}");
    drop(log);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_disk_is_full_hands_over_to_one_that_has_room_and_sends_go_on() {
    let (cluster, disks) = start().await;
    let full = cluster.leader().await;
    let bystander = (1..=3).find(|node| *node != full).expect("there are three");
    let client = cluster.client(bystander);
    client.create_topic("orders", MessageType::Normal, 1).await;
    disks[at(full)].fill(true);
    let leads = |node: u64| {
        let broker = cluster.brokers[at(node)].as_ref().expect("it runs");
        broker.node().log().status().can_write
    };
    let (mut stored, mut refused) = (0, 0);
    while leads(full) {
        let mut big = message("orders", &format!("m-{stored}-{refused}"), |_| ());
        big.body = vec![7; 100 << 10].into();
        match client.send(big).await.code {
            20000 => stored += 1,
            // Told so, and nothing was done: the room in the tail is left to what settles.
            _ => refused += 1,
        }
        assert!(stored + refused < 500, "it leads on: {stored} stored, {refused} refused");
        cluster.runtime.sleep(Duration::from_millis(10)).await;
    }
    assert_ne!(cluster.leader().await, full);
    for number in 0..20 {
        let mut big = message("orders", &format!("later-{number}"), |_| ());
        big.body = vec![7; 100 << 10].into();
        let status = client.send(big).await;
        assert_eq!(status.code, 20000, "two of three have room: {}", status.message);
    }
    let labels = [("cause", "unfit"), ("result", "done")];
    until(&cluster, "the hand-over is counted", Duration::from_secs(12), || {
        value(&cluster, full, "flotilla_raft_hand_overs_total", &labels) == 1.0
    })
    .await;
    disks[at(full)].fill(false);
    cluster.shutdown().await;
}
