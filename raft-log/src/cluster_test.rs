//! Three replicas in one process, over segment files in temporary directories.

mod backed_up;
mod bad_weather;
mod damage_test;
mod emptied;
mod five_voters;
mod full_load;
mod installs;
mod late_answers;
mod members;
mod recovered;
mod restarts;
mod rolled_back;
mod slow_disks;
mod superseded;
mod transfers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::Runtime;
use tempfile::TempDir;

use crate::testing::{Ledger, MemoryNet, SlowDisk};
use crate::{
    Disk, FullReason, LogConfig, LogEntry, LogIndex, NodeId, OpenError, OsDisk, ProposeError, PurgeError,
    ReplicatedLog, Role,
};

pub(crate) type Log = ReplicatedLog<usize>;

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Cluster {
    pub(crate) dirs: BTreeMap<NodeId, TempDir>,
    pub(crate) net: MemoryNet,
    pub(crate) running: BTreeMap<NodeId, (Log, Ledger)>,
    pub(crate) disks: BTreeMap<NodeId, SlowDisk>,
    pub(crate) runtime: Runtime,
}

impl Cluster {
    pub(crate) async fn start(size: u64) -> Cluster {
        let dirs = (1..=size).map(|node| (NodeId(node), tempfile::tempdir().unwrap())).collect();
        let runtime = Runtime::tokio();
        let mut cluster =
            Cluster { dirs, net: MemoryNet::default(), running: BTreeMap::new(), disks: BTreeMap::new(), runtime };
        for node in cluster.nodes() {
            cluster.start_node(node).await;
        }
        cluster
    }

    /// A group of one whose directory was made beforehand, with a net of its own.
    pub(crate) fn beside(&self, node: NodeId, dir: TempDir) -> Cluster {
        Cluster {
            dirs: [(node, dir)].into(),
            net: MemoryNet::default(),
            running: BTreeMap::new(),
            disks: BTreeMap::new(),
            runtime: self.runtime.clone(),
        }
    }

    pub(crate) fn nodes(&self) -> Vec<NodeId> {
        self.dirs.keys().copied().collect()
    }

    pub(crate) fn config(&self, node: NodeId) -> LogConfig {
        let mut config = LogConfig::new(self.dirs[&node].path(), "cluster", "group", node, self.nodes());
        config.segment_bytes = 64 * 1024;
        config.tail_cache_bytes = 32 * 1024;
        config
    }

    pub(crate) async fn start_node(&mut self, node: NodeId) {
        self.start_node_with(self.config(node)).await;
    }

    pub(crate) async fn start_node_with(&mut self, config: LogConfig) {
        let node = config.node;
        let ledger = Ledger::with_sides(Arc::new(OsDisk), self.dirs[&node].path().join("sides"));
        let disk: Arc<dyn Disk> = Arc::new(self.disks.entry(node).or_default().clone());
        let log = loop {
            let transport = self.net.transport(node);
            let opened = Log::open(config.clone(), self.runtime.clone(), disk.clone(), transport, ledger.clone()).await;
            match opened {
                Ok(log) => break log,
                // The life before is still putting its things away.
                Err(OpenError::Locked { .. }) => self.runtime.sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("node {node} does not start: {error}"),
            }
        };
        self.net.join(node, log.clone());
        self.running.insert(node, (log, ledger));
    }

    /// Drops a replica without a word.
    pub(crate) fn kill(&mut self, node: NodeId) {
        drop(self.net.leave(node));
        drop(self.running.remove(&node));
    }

    pub(crate) async fn within<T>(&self, what: &str, future: impl Future<Output = T>) -> T {
        self.runtime.timeout(PATIENCE, future).await.unwrap_or_else(|_| panic!("waited too long for {what}"))
    }

    pub(crate) async fn leader(&self) -> (NodeId, Log) {
        let find = async {
            loop {
                for (node, (log, _)) in &self.running {
                    if log.status().can_write {
                        return (*node, log.clone());
                    }
                }
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within("a leader", find).await
    }

    /// Proposes wherever the leader is until it is done.
    pub(crate) async fn propose(&self, payload: Bytes) -> LogIndex {
        let attempt = async {
            loop {
                let (_, log) = self.leader().await;
                match log.propose(payload.clone(), None).await {
                    Ok(applied) => return applied.index,
                    Err(_) => self.runtime.sleep(Duration::from_millis(10)).await,
                }
            }
        };
        self.within("a proposal", attempt).await
    }

    /// Waits until all running replicas have applied the same, and gives that back.
    pub(crate) async fn settle(&self) -> Vec<(LogIndex, Bytes)> {
        let settled = async {
            loop {
                let mut ledgers = self.running.values().map(|(_, ledger)| ledger.applied());
                let first = ledgers.next().unwrap();
                let marks: Vec<_> = self.running.values().map(|(log, _)| log.status()).collect();
                let same_end =
                    marks.iter().all(|status| status.applied == marks[0].last && status.last == marks[0].last);
                if same_end && ledgers.all(|ledger| ledger == first) {
                    return first;
                }
                self.runtime.sleep(Duration::from_millis(10)).await;
            }
        };
        self.within("equal replicas", settled).await
    }

    pub(crate) fn log_of(&self, node: NodeId) -> Vec<LogEntry> {
        let (log, _) = &self.running[&node];
        let last = log.status().last.map_or(0, |last| last.0);
        (0..=last).filter_map(|index| log.read(LogIndex(index)).unwrap()).collect()
    }
}

pub(crate) fn payload(number: u32) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(1500, number as u8);
    bytes.into()
}

pub(crate) fn numbers(applied: &[(LogIndex, Bytes)]) -> Vec<u32> {
    applied.iter().map(|(_, bytes)| u32::from_le_bytes(bytes[..4].try_into().unwrap())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn acked_proposals_survive_leader_kill_and_all_logs_end_equal() {
    let mut cluster = Cluster::start(3).await;
    for number in 0..100 {
        cluster.propose(payload(number)).await;
    }
    let (dead, _) = cluster.leader().await;
    cluster.kill(dead);
    for number in 100..200 {
        cluster.propose(payload(number)).await;
    }
    cluster.start_node(dead).await;
    cluster.propose(payload(200)).await;
    let applied = cluster.settle().await;
    let mut seen = numbers(&applied);
    // A proposal whose outcome was unknown may have been made twice.
    seen.dedup();
    assert_eq!(seen, (0..=200).collect::<Vec<_>>());
    let logs: Vec<_> = cluster.nodes().into_iter().map(|node| cluster.log_of(node)).collect();
    assert!(logs[0] == logs[1] && logs[1] == logs[2], "all logs are equal");
    for (_, ledger) in cluster.running.values() {
        assert!(ledger.segments().len() >= 2, "200 entries of 1.5 KiB cross several segments of 64 KiB");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn everything_committed_is_there_after_all_three_restart_at_once() {
    let mut cluster = Cluster::start(3).await;
    let mut last = LogIndex(0);
    for round in 0..3 {
        for number in 0..80 {
            last = cluster.propose(payload(round * 80 + number)).await;
        }
        for node in cluster.nodes() {
            cluster.kill(node);
        }
        for node in cluster.nodes() {
            cluster.start_node(node).await;
        }
    }
    cluster.leader().await;
    let applied = cluster.settle().await;
    let mut seen = numbers(&applied);
    seen.dedup();
    assert_eq!(seen, (0..240).collect::<Vec<_>>());
    assert!(applied.last().unwrap().0 >= last);
    for (_, ledger) in cluster.running.values() {
        let restored = ledger.restored().expect("a checkpoint was there to start from");
        assert!(restored > LogIndex(100), "restart began at {restored}, not at the beginning");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refusals_tell_what_surely_did_not_happen() {
    let mut cluster = Cluster::start(3).await;
    let (leader, log) = cluster.leader().await;
    let status = log.status();
    let applied = log.propose(payload(1), Some(status.term)).await.unwrap();
    assert_eq!((applied.term, applied.output), (status.term, 1));
    assert_eq!(log.read(applied.index).unwrap().unwrap().payload, payload(1));
    let wrong = log.propose(payload(2), Some(status.term.next())).await;
    assert!(matches!(wrong, Err(ProposeError::NotLeader { .. })), "{wrong:?}");
    let large = log.propose(Bytes::from(vec![0; 100_000]), None).await;
    assert!(matches!(large, Err(ProposeError::TooLarge { bytes: 100_000, .. })), "{large:?}");

    let follower = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let (follower_log, _) = cluster.running[&follower].clone();
    let hint = follower_log.propose(payload(3), None).await;
    assert_eq!(hint.unwrap_err(), ProposeError::NotLeader { leader: Some(leader) });

    // Cut off, the leader refuses once its lease has run out, and says so in its status.
    let seen = log.status();
    assert!(seen.can_write);
    cluster.net.isolate(leader, true);
    cluster.within("the lease to run out", log.status_changed(&seen)).await;
    assert!(!log.status().can_write);
    if log.status().role == Role::Leader {
        assert_eq!(log.propose(payload(4), None).await.unwrap_err(), ProposeError::NoQuorum);
        let read = log.confirm_leadership(Duration::from_millis(500)).await;
        assert_eq!(read.unwrap_err(), ProposeError::NoQuorum);
    }
    cluster.net.isolate(leader, false);
    cluster.propose(payload(5)).await;
    assert_eq!(numbers(&cluster.settle().await).first(), Some(&1));
    log.shutdown(PATIENCE).await;
    assert_eq!(log.propose(payload(6), None).await.unwrap_err(), ProposeError::Stopped);
    cluster.kill(leader);
    cluster.propose(payload(7)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leadership_moves_on_request() {
    let cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (old, log) = cluster.leader().await;
    assert!(log.confirm_leadership(PATIENCE).await.unwrap() >= LogIndex(1));
    let new = log.transfer_leader(None, PATIENCE).await.unwrap();
    assert_ne!(old, new);
    cluster.propose(payload(1)).await;
    assert_eq!(numbers(&cluster.settle().await), [0, 1]);
    let (_, current) = cluster.leader().await;
    let nobody = current.transfer_leader(Some(NodeId(9)), PATIENCE).await;
    assert!(nobody.is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_full_log_refuses_before_it_is_full() {
    let mut cluster = Cluster::start(1).await;
    cluster.kill(NodeId(1));
    let mut config = cluster.config(NodeId(1));
    config.data_bytes_max = Some(4 * 64 * 1024);
    cluster.start_node_with(config).await;
    let (_, log) = cluster.leader().await;
    let mut written = 0;
    let full = loop {
        match log.propose(payload(written), None).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(full, ProposeError::Full(FullReason::Quota { bytes_max: 262_144, .. })), "{full:?}");
    assert!((120..=170).contains(&written), "{written} entries of 1.5 KiB fill most of 256 KiB");
    assert!(log.status().can_write, "a full log still leads");
    let files = std::fs::read_dir(cluster.dirs[&NodeId(1)].path()).unwrap();
    let segments: u64 = files
        .map(|file| file.unwrap())
        .filter(|file| file.file_name().to_string_lossy().ends_with(".seg"))
        .map(|file| file.metadata().unwrap().len())
        .sum();
    assert!(segments <= 262_144, "{segments} bytes of segments");
}

/// A cluster in which waiting for the lease takes seconds.
async fn slow_to_elect(size: u64) -> Cluster {
    let mut cluster = Cluster::start(size).await;
    for node in cluster.nodes() {
        cluster.kill(node);
    }
    for node in cluster.nodes() {
        let mut config = cluster.config(node);
        config.timing.election_timeout_ms_min = 2000;
        config.timing.election_timeout_ms_max = 3000;
        cluster.start_node_with(config).await;
    }
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_killed_leader_is_replaced_at_once() {
    for size in [3, 5] {
        let mut cluster = slow_to_elect(size).await;
        cluster.propose(payload(0)).await;
        cluster.settle().await;
        // With five, the second one dies while the first is still down.
        for round in 1..=u32::try_from(size / 2).unwrap() {
            let (dead, log) = cluster.leader().await;
            let term = log.status().term;
            drop(log);
            cluster.kill(dead);
            let began = cluster.runtime.now();
            let (_, log) = cluster.leader().await;
            let took = cluster.runtime.now() - began;
            assert!(took < Duration::from_millis(1500), "election {round} of {size} took {took:?}");
            assert!(log.status().term > term);
            cluster.propose(payload(round)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_leader_that_does_not_refuse_is_not_replaced_before_its_lease_is_over() {
    // Two voters: the other one cannot confirm anything.
    let mut cluster = slow_to_elect(2).await;
    cluster.propose(payload(0)).await;
    let (dead, log) = cluster.leader().await;
    drop(log);
    cluster.kill(dead);
    let (_, survivor) = cluster.running.first_key_value().unwrap();
    let (survivor, term) = (survivor.0.clone(), survivor.0.status().term);
    cluster.runtime.sleep(Duration::from_millis(800)).await;
    assert_eq!(survivor.status().term, term, "no campaign");

    // Three voters, the leader cut off but alive: silence proves nothing.
    let cluster = slow_to_elect(3).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let term = log.status().term;
    cluster.net.isolate(leader, true);
    cluster.runtime.sleep(Duration::from_millis(800)).await;
    for (log, _) in cluster.running.values() {
        log.suspect(leader);
        assert_eq!(log.status().term, term, "no campaign");
    }

    // Three voters, streams broken, the leader well: looked at, and left alone.
    let cluster = slow_to_elect(3).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let term = log.status().term;
    for (log, _) in cluster.running.values() {
        log.suspect(leader);
    }
    cluster.runtime.sleep(Duration::from_millis(800)).await;
    assert_eq!((log.status().term, log.status().role), (term, Role::Leader));
}

/// Purges every running replica as far as its checkpoints before `below` allow.
async fn purge_all(cluster: &Cluster, below: LogIndex) {
    for (log, _) in cluster.running.values() {
        let to = log.purgeable(below).expect("there is a checkpoint to purge to").to;
        log.purge(to, PATIENCE).await.unwrap();
        assert_eq!(log.read(to).unwrap(), None);
        assert_eq!(log.purgeable(below), None);
        let extent = log.extent();
        assert_eq!(extent.first, to.next());
        assert!(extent.checkpoints.contains(&to), "the served checkpoint is kept");
    }
}

async fn purged_to(cluster: &Cluster, numbers: std::ops::Range<u32>) -> LogIndex {
    let mut last = LogIndex(0);
    for number in numbers {
        last = cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    purge_all(cluster, last).await;
    last
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn entries_are_purged_to_the_served_checkpoint_and_restarts_go_on_from_there() {
    let mut cluster = Cluster::start(3).await;
    purged_to(&cluster, 0..150).await;
    let (_, log) = cluster.leader().await;
    let first = log.extent().first;
    assert!(first > LogIndex(60), "{first}");
    drop(log);
    purged_to(&cluster, 150..300).await;
    for node in cluster.nodes() {
        cluster.kill(node);
        cluster.start_node(node).await;
    }
    for number in 300..400 {
        cluster.propose(payload(number)).await;
    }
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..400).collect::<Vec<_>>());
    for node in cluster.nodes() {
        let files = std::fs::read_dir(cluster.dirs[&node].path().join("sides")).unwrap().count();
        assert!(files <= 8, "{files} side files of node {node} are kept");
        assert!(cluster.running[&node].0.extent().first > first);
    }
}

/// A replica away for longer than anything is kept, one whose disk was emptied, and a new one: each ends with everything that
/// is retained, while the others go on, and through two breaks of the link during the copy.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_is_too_far_behind_gets_the_served_checkpoint_and_every_entry_after_it() {
    for who in ["away", "emptied", "new"] {
        let mut cluster = Cluster::start(3).await;
        cluster.propose(payload(0)).await;
        let (leader, log) = cluster.leader().await;
        let behind = match who {
            "new" => NodeId(4),
            _ => cluster.nodes().into_iter().find(|node| *node != leader).unwrap(),
        };
        cluster.kill(behind);
        // More than one piece of a snapshot.
        purged_to(&cluster, 1..500).await;
        purged_to(&cluster, 500..900).await;
        if who != "away" {
            cluster.dirs.insert(behind, tempfile::tempdir().unwrap());
        }
        cluster.net.break_snapshots_at([2, 5]);
        cluster.start_node(behind).await;
        if who == "new" {
            // It has to hear first that the group is there.
            let taken_in = async { while log.add_learner(behind, PATIENCE).await.is_err() {} };
            cluster.within("a new replica", taken_in).await;
        }
        for number in 900..1000 {
            cluster.propose(payload(number)).await;
        }
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>(), "{who}");
        let (pieces, breaks) = cluster.net.snapshot_pieces();
        assert_eq!(breaks, 0, "{who}: both breaks happened");
        // 900 entries of 1.5 KiB in pieces of 256 KiB, the two that broke and the two questions where to go on.
        assert!((6..=13).contains(&pieces), "{who}: {pieces} pieces, so nothing was sent twice");
        let (installed, ledger) = cluster.running[&behind].clone();
        let first = log.extent().first;
        assert_eq!(ledger.restored().map(LogIndex::next), Some(first), "{who}: the snapshot was installed");
        assert_eq!(installed.extent().first, first);
        assert_eq!(cluster.log_of(behind), cluster.log_of(leader), "{who}: every retained entry came after it");
        // The installed state and the entries after it survive a restart of both.
        drop((installed, log));
        for node in [behind, leader] {
            cluster.kill(node);
            cluster.start_node(node).await;
        }
        cluster.propose(payload(1000)).await;
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..=1000).collect::<Vec<_>>(), "{who}");
        let left = std::fs::read_dir(cluster.dirs[&behind].path()).unwrap();
        assert!(left.map(|file| file.unwrap().file_name()).all(|name| name != "incoming.snapshot"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_live_replica_that_lags_is_named_and_does_not_hold_a_purge_for_ever() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let slow = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.net.isolate(slow, true);
    let mut last = LogIndex(0);
    for number in 1..150 {
        last = cluster.propose(payload(number)).await;
    }
    let purgeable = log.purgeable(last).unwrap();
    assert_eq!(purgeable.held_by.into_iter().collect::<Vec<_>>(), [slow]);
    log.purge(purgeable.to, PATIENCE).await.unwrap();
    cluster.net.isolate(slow, false);
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..150).collect::<Vec<_>>());
    assert_eq!(cluster.running[&slow].1.restored(), Some(purgeable.to));
    let nothing = log.purge(LogIndex(1), PATIENCE).await;
    assert_eq!(nothing, Err(PurgeError::NoCheckpoint(LogIndex(1))));
    drop(log);
    cluster.kill(leader);
}
