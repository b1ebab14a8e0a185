//! Field cases about peers that are slow, hung, gone or unreadable: what the others feel of them.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use super::*;
use crate::disk::{Disk, DiskFile, WrapDisk, WrappingDisk};
use crate::testing::{Link, Weather};
use crate::{RestoreError, StateMachine, Term};

pub(super) const FROZEN: Link = Link { delay: Duration::ZERO, is_frozen: true, breaks: false };
const BREAKING: Link = Link { delay: Duration::ZERO, is_frozen: false, breaks: true };

impl Cluster {
    /// A cluster whose links have a weather, and whose leases last `patience_ms` at least.
    pub(super) async fn start_in(size: u64, weather: &Weather, patience_ms: u64) -> Cluster {
        let dirs = (1..=size).map(|node| (NodeId(node), tempfile::tempdir().unwrap())).collect();
        let runtime = Runtime::tokio();
        let mut cluster =
            Cluster { dirs, net: MemoryNet::default(), running: BTreeMap::new(), disks: BTreeMap::new(), runtime };
        for node in cluster.nodes() {
            cluster.start_node_in(node, weather, patience_ms, Arc::new(OsDisk)).await;
        }
        cluster
    }

    pub(super) async fn start_node_in(
        &mut self,
        node: NodeId,
        weather: &Weather,
        patience_ms: u64,
        disk: Arc<dyn Disk>,
    ) {
        let mut config = self.config(node);
        config.timing.election_timeout_ms_min = patience_ms;
        config.timing.election_timeout_ms_max = patience_ms * 3 / 2;
        let ledger = Ledger::default();
        let log = loop {
            let transport = weather.over(self.net.transport(node), node, &self.runtime);
            match Log::open(config.clone(), self.runtime.clone(), disk.clone(), transport, ledger.clone()).await {
                Ok(log) => break log,
                Err(OpenError::Locked { .. }) => self.runtime.sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("node {node} does not start: {error}"),
            }
        };
        self.net.join(node, log.clone());
        self.running.insert(node, (log, ledger));
    }

    /// How long one proposal to the leader takes.
    async fn one_took(&self, log: &Log, number: u32) -> Duration {
        let began = self.runtime.now();
        self.within("a proposal", log.propose(payload(number), None)).await.unwrap();
        self.runtime.now() - began
    }

    fn others(&self, node: NodeId) -> Vec<NodeId> {
        self.nodes().into_iter().filter(|other| *other != node).collect()
    }
}

/// F10: a follower that stands still, with its connections open, costs the others nothing: no wait for it is anybody's wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_that_stands_still_delays_no_proposal() {
    let weather = Weather::default();
    let cluster = Cluster::start_in(3, &weather, 1000).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let term = log.status().term;
    let hung = cluster.others(leader)[0];
    weather.set_around(hung, &cluster.nodes(), FROZEN);
    // Longer than a stream may stall and an election takes.
    let (began, mut number, mut longest) = (cluster.runtime.now(), 1, Duration::ZERO);
    while cluster.runtime.now() < began + Duration::from_secs(7) {
        longest = longest.max(cluster.one_took(&log, number).await);
        number += 1;
        cluster.runtime.sleep(Duration::from_millis(5)).await;
    }
    assert!(longest < Duration::from_millis(1500), "one of {number} proposals took {longest:?}");
    assert_eq!((log.status().term, log.status().role), (term, Role::Leader));
    weather.set_around(hung, &cluster.nodes(), Link::default());
    assert_eq!(numbers(&cluster.settle().await), (0..number).collect::<Vec<_>>());
    assert_eq!(log.status().term, term, "its return costs no election");
}

/// F09: a pause that was meant for a failing peer ends with its first success.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_that_is_well_again_is_close_behind_at_once() {
    for trouble in [BREAKING, FROZEN] {
        let weather = Weather::default();
        let cluster = Cluster::start_in(3, &weather, 1000).await;
        cluster.propose(payload(0)).await;
        let (leader, log) = cluster.leader().await;
        let shaky = cluster.others(leader)[0];
        for round in 0..3 {
            weather.set(leader, shaky, trouble);
            for number in 0..20 {
                cluster.one_took(&log, round * 1000 + number).await;
                cluster.runtime.sleep(Duration::from_millis(50)).await;
            }
            weather.set(leader, shaky, Link::default());
            cluster.settle().await;
        }
        let mut lags = Vec::new();
        let follower = &cluster.running[&shaky].0;
        for number in 0..41 {
            let applied = log.propose(payload(10_000 + number), None).await.unwrap();
            let began = cluster.runtime.now();
            cluster.within("the entry to arrive", follower.wait_durable(applied.index)).await.unwrap();
            lags.push(cluster.runtime.now() - began);
        }
        lags.sort();
        assert!(
            lags[20] < Duration::from_millis(50),
            "{trouble:?}: half of the entries come later than {:?}",
            lags[20]
        );
        // The measure sees what it is for.
        weather.set(leader, shaky, Link { delay: Duration::from_millis(100), ..Link::default() });
        let applied = log.propose(payload(20_000), None).await.unwrap();
        let began = cluster.runtime.now();
        cluster.within("the entry to arrive", follower.wait_durable(applied.index)).await.unwrap();
        assert!(cluster.runtime.now() - began > Duration::from_millis(50));
    }
}

/// A13: a peer that is gone, or breaks whatever it is told, is tried now and then, not without a pause.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_peer_that_is_of_no_use_is_not_tried_without_a_pause() {
    let weather = Weather::default();
    let mut cluster = Cluster::start_in(3, &weather, 1000).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let others = cluster.others(leader);
    let (broken, gone) = (others[0], others[1]);
    for (useless, is_gone) in [(broken, false), (gone, true)] {
        if is_gone {
            weather.set(leader, broken, Link::default());
            cluster.settle().await;
            cluster.kill(gone);
        } else {
            weather.set(leader, broken, BREAKING);
        }
        let before = weather.tries(leader, useless);
        let began = cluster.runtime.now();
        let mut number = 1;
        while cluster.runtime.now() < began + Duration::from_secs(3) {
            cluster.one_took(&log, number).await;
            number += 1;
        }
        let took = cluster.runtime.now() - began;
        let tries = weather.tries(leader, useless) - before;
        // Heartbeats are tries, too: ten a second and more after an entry.
        let tries_max = 100 * (took.as_secs() + 1);
        assert!(tries < tries_max, "gone {is_gone}: {tries} tries in {took:?}, with {number} proposals");
        assert!(tries > 3, "{tries}: it is not forgotten either");
    }
}

/// B03: whom a replica cannot reach, and why, it can be asked for, though all else seems well.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_peer_that_cannot_be_reached_is_named() {
    let weather = Weather::default();
    let mut cluster = Cluster::start_in(3, &weather, 1000).await;
    cluster.propose(payload(0)).await;
    let (leader, _) = cluster.leader().await;
    let [lost, other] = cluster.others(leader)[..] else { panic!("three replicas") };
    // One way only: the leader reaches it, it seems to follow well, and could never lead.
    weather.set(lost, leader, BREAKING);
    weather.set(lost, other, BREAKING);
    let unreached = |cluster: &Cluster, node: NodeId| cluster.running[&node].0.integrity().unreached;
    let named = async {
        while unreached(&cluster, lost).len() < 2 {
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    cluster.within("both to be named", named).await;
    for (peer, reason) in unreached(&cluster, lost) {
        assert!(peer != lost && reason.contains("reset by the test"), "{peer}: {reason}");
    }
    cluster.propose(payload(1)).await;
    weather.set(lost, leader, Link::default());
    weather.set(lost, other, Link::default());
    cluster.kill(other);
    let only_the_dead = async {
        loop {
            let named = [leader, lost].map(|node| unreached(&cluster, node).into_keys().collect::<Vec<_>>());
            if named == [vec![other], vec![other]] {
                return;
            }
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    cluster.within("nobody but the dead one to be named", only_the_dead).await;
}

/// Segments of which one read fails, once.
struct OneBadRead {
    is_armed: Arc<AtomicBool>,
}

struct OneBadReadFile {
    inner: Arc<dyn DiskFile>,
    is_armed: Arc<AtomicBool>,
}

impl WrapDisk for OneBadRead {
    fn wrap(&self, inner: Arc<dyn DiskFile>, path: &Path) -> Arc<dyn DiskFile> {
        if path.extension().is_none_or(|extension| extension != "seg" && extension != "prepared") {
            return inner;
        }
        Arc::new(OneBadReadFile { inner, is_armed: self.is_armed.clone() })
    }
}

impl DiskFile for OneBadReadFile {
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if self.is_armed.swap(false, Ordering::SeqCst) {
            return Err(io::Error::other("injected"));
        }
        self.inner.read_at(offset, len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.inner.sync_data()
    }
}

/// F11: what a leader cannot read is not left out of what it sends: it stops, and the next one sends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_entry_that_the_leader_cannot_read_is_missing_nowhere() {
    for skipped in [0, 1, 5] {
        let weather = Weather::default();
        let mut cluster = Cluster::start_in(3, &weather, 300).await;
        let mut armed = BTreeMap::new();
        for node in cluster.nodes() {
            cluster.kill(node);
            let is_armed = Arc::new(AtomicBool::new(false));
            armed.insert(node, is_armed.clone());
            cluster.start_node_in(node, &weather, 300, Arc::new(WrappingDisk(OneBadRead { is_armed }))).await;
        }
        cluster.propose(payload(0)).await;
        let (leader, log) = cluster.leader().await;
        let behind = cluster.others(leader)[0];
        cluster.settle().await;
        cluster.kill(behind);
        // Far more than is kept in memory, and than is read for the request that waits for the replica to come back.
        for number in 1..600 {
            cluster.one_took(&log, number).await;
        }
        // Another entry of the backlog each time.
        for _ in 0..skipped {
            log.read(LogIndex(100)).unwrap();
        }
        armed[&leader].store(true, Ordering::SeqCst);
        let is_armed = Arc::new(AtomicBool::new(false));
        cluster.start_node_in(behind, &weather, 300, Arc::new(WrappingDisk(OneBadRead { is_armed }))).await;
        let why = cluster.within("the leader to stop", log.failed()).await;
        assert!(why.contains("cannot be read: injected"), "{why}");
        drop(log);
        cluster.kill(leader);
        cluster.propose(payload(600)).await;
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..=600).collect::<Vec<_>>());
        let logs: Vec<_> = cluster.running.keys().map(|node| cluster.log_of(*node)).collect();
        assert!(logs[0] == logs[1]);
    }
}

/// A machine that panics on one payload.
#[derive(Clone)]
struct Panicking(Ledger);

impl StateMachine for Panicking {
    type Output = usize;

    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> usize {
        assert!(payload != "panic", "the machine breaks, as the test wants");
        StateMachine::apply(&mut self.0, index, term, payload)
    }

    fn segment_started(&mut self, first: LogIndex) -> io::Result<()> {
        self.0.segment_started(first)
    }

    fn checkpoint(&self) -> Vec<u8> {
        StateMachine::checkpoint(&self.0)
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        self.0.restore(checkpoint, applied)
    }
}

/// F10: a dead machine is a dead replica: it says so at once, nobody waits for it for ever, and it does not go on leading.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_machine_that_panics_ends_its_replica_and_leaves_no_call_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let config = LogConfig::new(dir.path(), "cluster", "group", NodeId(1), [NodeId(1)]);
    let (runtime, net) = (Runtime::tokio(), MemoryNet::default());
    let machine = Panicking(Ledger::default());
    let log = Log::open(config, runtime.clone(), Arc::new(OsDisk), net.transport(NodeId(1)), machine).await.unwrap();
    while !log.status().can_write {
        runtime.sleep(Duration::from_millis(5)).await;
    }
    log.propose(payload(0), None).await.unwrap();
    let breaking = log.propose(Bytes::from_static(b"panic"), None);
    let outcome = runtime.timeout(Duration::from_secs(5), breaking).await.expect("an answer");
    assert!(matches!(outcome, Err(ProposeError::Unknown(_) | ProposeError::Stopped)), "{outcome:?}");
    let why = runtime.timeout(Duration::from_secs(5), log.failed()).await.expect("it stops");
    assert!(why.contains("state machine panicked"), "{why}");
    let after = runtime.timeout(Duration::from_secs(5), log.propose(payload(1), None)).await.expect("an answer");
    assert_eq!(after.unwrap_err(), ProposeError::Stopped);
}
