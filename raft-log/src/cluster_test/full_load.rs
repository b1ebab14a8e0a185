//! Checkpoints and purges, one after the other, while proposals come as fast as they can and one follower lags.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::*;
use crate::{RestoreError, StateMachine, Term};

/// How long it goes on.
const LOAD: Duration = Duration::from_secs(8);
const PROPOSERS: u32 = 32;

/// A machine whose checkpoints cost nothing: how many proposals it applied, and a sum over them and their places.
#[derive(Clone, Default)]
struct Sum {
    state: Arc<Mutex<(u64, u32)>>,
}

impl StateMachine for Sum {
    type Output = usize;

    fn apply(&mut self, index: LogIndex, _term: Term, payload: Bytes) -> usize {
        let mut state = self.state.lock().unwrap();
        state.0 += 1;
        state.1 = crc32c::crc32c_append(crc32c::crc32c_append(state.1, &index.0.to_le_bytes()), &payload);
        state.0 as usize
    }

    fn segment_started(&mut self, _first: LogIndex) -> std::io::Result<()> {
        Ok(())
    }

    fn checkpoint(&self) -> Vec<u8> {
        let (count, sum) = *self.state.lock().unwrap();
        [&count.to_le_bytes()[..], &sum.to_le_bytes()].concat()
    }

    fn restore(&mut self, checkpoint: &[u8], _applied: LogIndex) -> Result<(), RestoreError> {
        let (count, sum) = checkpoint.split_at(8);
        *self.state.lock().unwrap() =
            (u64::from_le_bytes(count.try_into().unwrap()), u32::from_le_bytes(sum.try_into().unwrap()));
        Ok(())
    }
}

/// F03: a purge up to the newest checkpoint, on each replica, as often as there is one. Nothing fails, nothing acknowledged is
/// missing, and the states are equal.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn purges_under_full_load_disturb_nobody() {
    let (runtime, net) = (Runtime::tokio(), MemoryNet::default());
    let nodes = [1, 2, 3].map(NodeId);
    let dirs = nodes.map(|_| tempfile::tempdir().unwrap());
    let disks = nodes.map(|_| SlowDisk::default());
    let machines = nodes.map(|_| Sum::default());
    let mut logs = Vec::new();
    for (place, node) in nodes.into_iter().enumerate() {
        let mut config = LogConfig::new(dirs[place].path(), "cluster", "group", node, nodes);
        config.segment_bytes = 64 * 1024;
        // A busy machine is no reason to elect.
        config.timing.election_timeout_ms_min = 1_000;
        config.timing.election_timeout_ms_max = 2_000;
        let disk = Arc::new(disks[place].clone());
        let log = Log::open(config, runtime.clone(), disk, net.transport(node), machines[place].clone()).await.unwrap();
        net.join(node, log.clone());
        logs.push(log);
    }
    let led = async {
        while !logs.iter().any(|log| log.status().can_write) {
            runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    runtime.timeout(PATIENCE, led).await.expect("a leader");
    let lagging = logs.iter().position(|log| log.status().role != Role::Leader).unwrap();
    disks[lagging].take_longer(Duration::from_millis(60));

    let is_over = Arc::new(AtomicBool::new(false));
    let (acknowledged, purges) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let mut tasks = Vec::new();
    for number in 0..PROPOSERS {
        let (logs, is_over, acknowledged, runtime) =
            (logs.clone(), is_over.clone(), acknowledged.clone(), runtime.clone());
        tasks.push(runtime.clone().spawn("proposer", async move {
            while !is_over.load(Ordering::Relaxed) {
                match logs.iter().find(|log| log.status().can_write) {
                    Some(log) if log.propose(payload(number), None).await.is_ok() => {
                        acknowledged.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => runtime.sleep(Duration::from_millis(5)).await,
                }
            }
        }));
    }
    for log in logs.clone() {
        let (is_over, purges, runtime) = (is_over.clone(), purges.clone(), runtime.clone());
        tasks.push(runtime.clone().spawn("purger", async move {
            while !is_over.load(Ordering::Relaxed) {
                let below = log.status().applied.unwrap_or(LogIndex(0));
                match log.purgeable(below) {
                    Some(purgeable) if log.purge(purgeable.to, PATIENCE).await.is_ok() => {
                        purges.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => runtime.sleep(Duration::from_millis(5)).await,
                }
            }
        }));
    }
    runtime.sleep(LOAD).await;
    is_over.store(true, Ordering::Relaxed);
    for task in tasks {
        runtime.timeout(PATIENCE, task).await.expect("each call is answered").unwrap();
    }
    disks[lagging].take_longer(Duration::ZERO);
    let settled = async {
        let states = || machines.each_ref().map(|machine| *machine.state.lock().unwrap());
        loop {
            let marks: Vec<_> = logs.iter().map(|log| (log.status().applied, log.status().last)).collect();
            let [first, others @ ..] = states();
            if marks.iter().all(|mark| mark.0 == marks[0].1 && mark.1 == marks[0].1)
                && others.iter().all(|it| *it == first)
            {
                return first.0;
            }
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    let applied = runtime.timeout(PATIENCE, settled).await.expect("equal states");
    let (acknowledged, purges) = (acknowledged.load(Ordering::Relaxed), purges.load(Ordering::Relaxed));
    println!("{acknowledged} proposals acknowledged, {applied} applied, {purges} purges");
    for log in &logs {
        assert_eq!(log.failure(), None);
    }
    assert!(applied >= acknowledged, "{applied} applied, {acknowledged} acknowledged");
    assert!(acknowledged > 500 && purges > 15, "{acknowledged} proposals, {purges} purges");
}

/// The leader lets go of entries that a live follower has, but has not confirmed yet: its disk is slow. The follower says that it
/// needs no snapshot, and goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_follower_that_only_confirms_late_takes_no_snapshot_that_its_log_has_passed() {
    let cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    cluster.settle().await;
    let (leader, log) = cluster.leader().await;
    let slow = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let (behind, _) = cluster.running[&slow].clone();
    cluster.disks[&slow].take_longer(Duration::from_millis(400));
    let mut number = 1;
    for round in 0..6 {
        let mut last = LogIndex(0);
        for _ in 0..60 {
            last = cluster.propose(payload(number)).await;
            number += 1;
        }
        if let Some(purgeable) = log.purgeable(last) {
            log.purge(purgeable.to, PATIENCE).await.unwrap();
        }
        assert_eq!(behind.failure(), None, "round {round}");
    }
    cluster.disks[&slow].take_longer(Duration::ZERO);
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..number).collect::<Vec<_>>());
    assert_eq!(behind.failure(), None);
}
