//! Bytes of one replica's files change behind its back: found, closed off, mended from a peer, and no lead meanwhile.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::*;
use crate::recovery::LOCK_FILE;
use crate::{Disk, ReadError, RestoreError, StateMachine, Term, TransferError};

/// The segment files of a replica, oldest first; the last one is still written to.
fn segments(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "seg"));
    files.sort();
    files
}

fn flip(path: &Path, at: u64) {
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Three replicas with some sealed segments.
async fn grown(size: u64, scrub_interval_ms: Option<u64>) -> Cluster {
    let mut cluster = Cluster::start(size).await;
    if let Some(scrub_interval_ms) = scrub_interval_ms {
        for node in cluster.nodes() {
            cluster.kill(node);
        }
        for node in cluster.nodes() {
            let mut config = cluster.config(node);
            config.scrub_interval_ms = scrub_interval_ms;
            config.scrub_bytes_per_s = 64 << 20;
            cluster.start_node_with(config).await;
        }
    }
    for number in 0..200 {
        cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    cluster
}

impl Cluster {
    fn follower(&self, leader: NodeId) -> NodeId {
        self.nodes().into_iter().find(|node| *node != leader).unwrap()
    }

    async fn until(&self, what: &str, mut is_so: impl FnMut() -> bool) {
        let wait = async {
            while !is_so() {
                self.runtime.sleep(Duration::from_millis(5)).await;
            }
        };
        self.within(what, wait).await;
    }
}

fn markers(dir: &Path) -> usize {
    let names = std::fs::read_dir(dir).unwrap().map(|file| file.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().contains(".seg.")).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_record_is_never_served_and_comes_back_byte_for_byte_from_a_peer() {
    let cluster = grown(3, None).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.follower(leader);
    let dir = cluster.dirs[&victim].path();
    let path = segments(dir)[1].clone();
    let before = std::fs::read(&path).unwrap();
    // In the header page, in a record's header, in two payloads.
    for at in [100, 4096 + 8, 4096 + 5 * 1536 + 700, 4096 + 9 * 1536 + 40] {
        flip(&path, at);
    }
    let (log, _) = &cluster.running[&victim];
    let mut refused = 0;
    for index in 0..=log.status().last.unwrap().0 {
        match log.read(LogIndex(index)) {
            Ok(entry) => {
                let right = cluster.running[&leader].0.read(LogIndex(index)).unwrap();
                assert_eq!(entry, right, "entry {index} is as the leader has it");
            }
            Err(ReadError::Corrupt(_)) => refused += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(refused > 0, "damage was met");
    cluster.until("the repair", || log.integrity().damages_mended_total == 1).await;
    assert_eq!(std::fs::read(&path).unwrap(), before);
    assert_eq!(markers(dir), 0, "nothing is left over");
    let integrity = log.integrity();
    assert!(integrity.is_fit_to_lead && integrity.damaged_segments == 0, "{integrity:?}");
    assert_eq!(cluster.log_of(victim), cluster.log_of(leader));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_scrub_finds_what_nobody_reads() {
    let cluster = grown(3, Some(200)).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.follower(leader);
    let files = segments(cluster.dirs[&victim].path());
    let before: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    flip(&files[0], 4096 + 20_000);
    flip(&files[2], 4096 + 3_000);
    let (log, _) = &cluster.running[&victim];
    cluster.until("both repairs", || log.integrity().damages_mended_total == 2).await;
    let after: Vec<_> = files.iter().map(|path| std::fs::read(path).unwrap()).collect();
    assert!(before[0] == after[0] && before[2] == after[2]);
    let scrub = log.integrity().scrub;
    assert!(scrub.findings_total >= 2 && scrub.bytes_total > 0, "{scrub:?}");
    assert!(cluster.leader().await.1.integrity().is_fit_to_lead);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_leader_hands_over_and_does_not_lead_until_it_is_mended() {
    let cluster = grown(3, None).await;
    let (old, log) = cluster.leader().await;
    // The peers cannot help at first: their copies of that entry are damaged too.
    for node in cluster.nodes() {
        flip(&segments(cluster.dirs[&node].path())[0], 4096 + 2 * 1536 + 300);
    }
    let damaged = (0..40).find(|index| log.read(LogIndex(*index)).is_err()).expect("an early entry is damaged");
    assert!(!log.integrity().is_fit_to_lead);
    cluster.until("another leader", || log.status().leader.is_some_and(|leader| leader != old)).await;
    let (new, _) = cluster.leader().await;
    assert_ne!(new, old);
    // It refuses to take the lead back, and whoever hands over on its own does not ask it.
    let taken = cluster.leader().await.1.transfer_leader(Some(old), Duration::from_millis(600)).await;
    assert_eq!(taken, Err(TransferError::NotFit(old)));
    // The fetch made the peers aware of their own damage. One of them gets its copy back by hand.
    cluster.until("the peers' damage", || cluster.running[&new].0.integrity().damaged_segments == 1).await;
    let other = cluster.nodes().into_iter().find(|node| *node != old && *node != new).unwrap();
    flip(&segments(cluster.dirs[&other].path())[0], 4096 + 2 * 1536 + 300);
    for (log, _) in cluster.running.values() {
        cluster.until("a repair", || log.integrity().damaged_segments == 0).await;
        assert!(log.read(LogIndex(damaged)).unwrap().is_some());
    }
    assert!(log.integrity().is_fit_to_lead);
    cluster.propose(payload(200)).await;
    cluster.settle().await;
    let (leader, current) = cluster.leader().await;
    if leader != old {
        assert_eq!(current.transfer_leader(Some(old), PATIENCE).await.unwrap(), old, "mended, it may lead again");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damage_in_the_segment_that_is_written_to_is_mended_though_nothing_is_written() {
    let cluster = grown(3, None).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.follower(leader);
    let (log, _) = &cluster.running[&victim];
    // More than the cache of newest entries holds, so that the first of them are read from the file.
    let count = segments(cluster.dirs[&victim].path()).len();
    let (mut number, mut in_tail) = (200, 0);
    while in_tail < 30 {
        cluster.propose(payload(number)).await;
        number += 1;
        in_tail += u32::from(segments(cluster.dirs[&victim].path()).len() > count);
    }
    cluster.settle().await;
    let tail = segments(cluster.dirs[&victim].path()).pop().unwrap();
    flip(&tail, 4096 + 300);
    let last = log.status().last.unwrap().0;
    let Some(damaged) = (0..=last).find(|index| log.read(LogIndex(*index)).is_err()) else {
        panic!("nothing was read from the tail file");
    };
    cluster.until("the repair", || log.integrity().damages_mended_total == 1).await;
    assert_eq!(log.status().last, Some(LogIndex(last)), "no entry was needed for it");
    assert_ne!(segments(cluster.dirs[&victim].path()).pop().unwrap(), tail, "what comes next goes to a new file");
    let right = cluster.running[&leader].0.read(LogIndex(damaged)).unwrap();
    assert_eq!(log.read(LogIndex(damaged)).unwrap(), right);
    assert_eq!((log.integrity().damaged_segments, markers(cluster.dirs[&victim].path())), (0, 0));
    cluster.propose(payload(number)).await;
    cluster.settle().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_only_replica_serves_what_is_intact_and_refuses_the_rest() {
    let mut cluster = grown(1, None).await;
    let node = NodeId(1);
    flip(&segments(cluster.dirs[&node].path())[0], 4096 + 5 * 1536 + 300);
    for _ in 0..2 {
        let (log, _) = cluster.running[&node].clone();
        let read: Vec<bool> =
            (0..=log.status().last.unwrap().0).map(|index| log.read(LogIndex(index)).is_ok()).collect();
        assert_eq!(read.iter().filter(|is_ok| !**is_ok).count(), 1, "one entry is lost");
        cluster.until("the damage to be known", || log.integrity().damaged_entries == 1).await;
        cluster.propose(payload(300)).await;
        assert!(log.status().can_write);
        // So it is after a restart, and without anybody reading.
        drop(log);
        cluster.kill(node);
        cluster.start_node(node).await;
    }
    assert_eq!(cluster.running[&node].0.integrity().damaged_entries, 1, "the marker tells");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damage_that_is_to_be_applied_again_is_mended_before_it_is_applied() {
    let mut cluster = grown(3, None).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.follower(leader);
    cluster.kill(victim);
    let dir = cluster.dirs[&victim].path().to_owned();
    // A checkpoint that it was writing is written before it lets go of its directory.
    let gone = async {
        while OsDisk.lock(&dir.join(LOCK_FILE)).is_err() {
            cluster.runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    cluster.within("the replica's end", gone).await;
    // Without checkpoints everything is applied again.
    for file in std::fs::read_dir(&dir).unwrap().map(|file| file.unwrap().path()) {
        if file.extension().is_some_and(|extension| extension == "ckp") {
            std::fs::remove_file(file).unwrap();
        }
    }
    flip(&segments(&dir)[1], 4096 + 7 * 1536 + 300);
    cluster.start_node(victim).await;
    cluster.propose(payload(200)).await;
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..=200).collect::<Vec<_>>());
    assert_eq!(cluster.running[&victim].0.integrity().damages_mended_total, 1);
}

/// Entries that are to be applied again at the start, one of them damaged, in the very file that is written to: the start
/// waits for a peer, and nothing has to be written for that.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_start_that_needs_a_damaged_entry_of_the_last_segment_gets_it_from_a_peer() {
    let mut cluster = grown(3, None).await;
    let (leader, _) = cluster.leader().await;
    let victim = cluster.follower(leader);
    let count = segments(cluster.dirs[&victim].path()).len();
    let (mut number, mut in_tail) = (200, 0);
    while in_tail < 10 {
        cluster.propose(payload(number)).await;
        number += 1;
        in_tail += u32::from(segments(cluster.dirs[&victim].path()).len() > count);
    }
    cluster.settle().await;
    cluster.running[&victim].0.shutdown(PATIENCE).await;
    cluster.kill(victim);
    let dir = cluster.dirs[&victim].path().to_owned();
    flip(&segments(&dir).pop().unwrap(), 4096 + 2 * 1536 + 300);
    let (runtime, patience) = (cluster.runtime.clone(), PATIENCE);
    runtime.timeout(patience, cluster.start_node(victim)).await.expect("the start comes to an end");
    let applied = cluster.settle().await;
    assert!(numbers(&applied).ends_with(&[number - 2, number - 1]), "{:?}", numbers(&applied));
    assert_eq!(cluster.running[&victim].0.integrity().damages_mended_total, 1);
}

/// A ledger that digests what it applied; one that lies has a state of its own from some entry on.
#[derive(Clone)]
struct Digesting {
    ledger: Ledger,
    lies: bool,
}

impl StateMachine for Digesting {
    type Output = usize;

    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> usize {
        StateMachine::apply(&mut self.ledger, index, term, payload)
    }

    fn segment_started(&mut self, first: LogIndex) -> std::io::Result<()> {
        self.ledger.segment_started(first)
    }

    fn checkpoint(&self) -> Vec<u8> {
        StateMachine::checkpoint(&self.ledger)
    }

    fn digest(&self) -> Option<(u32, u128)> {
        let applied = self.ledger.applied();
        let is_wrong = self.lies && applied.len() > 50;
        Some((1, applied.len() as u128 + u128::from(is_wrong) * 1000))
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        self.ledger.restore(checkpoint, applied)
    }
}

/// A group of which one replica, or the leader, has a machine that lies.
async fn with_a_liar(size: u64, liar: NodeId) -> Cluster {
    let mut cluster = Cluster::start(size).await;
    for node in cluster.nodes() {
        cluster.kill(node);
    }
    for node in cluster.nodes() {
        let ledger = Ledger::default();
        let machine = Digesting { ledger: ledger.clone(), lies: node == liar };
        let log = loop {
            let (config, transport) = (cluster.config(node), cluster.net.transport(node));
            match Log::open(config, cluster.runtime.clone(), Arc::new(OsDisk), transport, machine.clone()).await {
                Ok(log) => break log,
                Err(OpenError::Locked { .. }) => cluster.runtime.sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("node {node} does not start: {error}"),
            }
        };
        cluster.net.join(node, log.clone());
        cluster.running.insert(node, (log, ledger));
    }
    for number in 0..100 {
        cluster.propose(payload(number)).await;
    }
    cluster
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_replica_whose_state_most_others_contradict_stops_and_says_why() {
    let liar = NodeId(2);
    let mut cluster = with_a_liar(3, liar).await;
    let why = cluster.within("the odd one to stop", cluster.running[&liar].0.failed()).await;
    assert!(why.contains("behind entry") && why.contains("node 1 0000") && why.contains("new node id"), "{why}");
    cluster.kill(liar);
    cluster.propose(payload(100)).await;
    for (log, _) in cluster.running.values() {
        assert!(cluster.runtime.timeout(Duration::from_millis(600), log.failed()).await.is_err(), "the others go on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_replicas_that_differ_raise_an_alarm_and_go_on() {
    let cluster = with_a_liar(2, NodeId(2)).await;
    for (log, _) in cluster.running.values() {
        cluster.until("the alarm", || log.integrity().state_alarm.is_some()).await;
    }
    cluster.propose(payload(100)).await;
    for (log, _) in cluster.running.values() {
        assert!(cluster.runtime.timeout(Duration::from_millis(600), log.failed()).await.is_err());
    }
}
