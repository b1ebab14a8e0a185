//! Snapshots whose receiver dies on the way, or whose files are damaged at the sender.

use super::*;
use crate::testing::CrashDisk;

/// A replica on a disk of its own.
async fn open_on(cluster: &Cluster, node: NodeId, disk: &CrashDisk) -> (Log, Ledger) {
    let mut config = LogConfig::new("/log", "cluster", "group", node, cluster.nodes());
    config.segment_bytes = 64 * 1024;
    let ledger = Ledger::with_sides(Arc::new(disk.clone()), "/log/sides".into());
    let transport = cluster.net.transport(node);
    let log = Log::open(config, cluster.runtime.clone(), Arc::new(disk.clone()), transport, ledger.clone()).await;
    let log = log.unwrap_or_else(|error| panic!("node {node} does not start: {error}"));
    cluster.net.join(node, log.clone());
    (log, ledger)
}

/// Waits until a replica that was dropped is gone.
async fn let_go(cluster: &Cluster, disk: &CrashDisk) {
    let gone = async {
        while disk.is_locked() {
            cluster.runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    cluster.within("the replica's end", gone).await;
}

/// The receiver's power fails after some durable steps, each time a few later, while the others go on. It begins the copy again
/// or is done with it, and ends with everything that is retained.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_receiver_whose_power_fails_during_the_copy_ends_with_every_retained_entry() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let behind = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    cluster.kill(behind);
    purged_to(&cluster, 1..300).await;
    let mut number = 300_u32;
    let (mut failed_before, mut failed_after) = (0, 0);
    for step in (1..).step_by(7) {
        let disk = CrashDisk::new(step);
        let (replica, ledger) = open_on(&cluster, behind, &disk).await;
        disk.crash_at(disk.operations() + step);
        let until = cluster.runtime.now() + PATIENCE;
        let has_all = || ledger.restored().is_some() && replica.status().applied == log.status().last;
        // A few entries come meanwhile; more of them would need more steps each time, without an end.
        let mut entries_left = 3;
        while !disk.has_crashed() && !has_all() {
            assert!(cluster.runtime.now() < until, "step {step}: neither a crash nor a copy");
            if entries_left > 0 {
                cluster.propose(payload(number)).await;
                number += 1;
                entries_left -= 1;
            } else {
                cluster.runtime.sleep(Duration::from_millis(1)).await;
            }
        }
        let has_crashed = disk.has_crashed();
        drop(cluster.net.leave(behind));
        drop(replica);
        let_go(&cluster, &disk).await;
        disk.power_cycle();

        let (replica, ledger) = open_on(&cluster, behind, &disk).await;
        match ledger.restored() {
            None => failed_before += 1,
            Some(_) => failed_after += 1,
        }
        cluster.running.insert(behind, (replica.clone(), ledger));
        let mut seen = numbers(&cluster.settle().await);
        seen.dedup();
        assert_eq!(seen, (0..number).collect::<Vec<_>>(), "step {step}");
        assert_eq!(replica.extent().first, log.extent().first, "step {step}");
        assert_eq!(cluster.log_of(behind), cluster.log_of(leader), "step {step}");
        drop(replica);
        cluster.kill(behind);
        let_go(&cluster, &disk).await;
        if !has_crashed {
            break;
        }
    }
    assert!(failed_before > 1 && failed_after > 1, "{failed_before} began again, {failed_after} had the snapshot");
}

/// What is damaged is not sent on: the replica waits for a leader whose files are whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_damaged_side_file_is_never_sent_and_a_leader_with_a_sound_one_helps() {
    let mut cluster = Cluster::start(3).await;
    cluster.propose(payload(0)).await;
    let (leader, log) = cluster.leader().await;
    let behind = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let third = cluster.nodes().into_iter().find(|node| *node != leader && *node != behind).unwrap();
    cluster.kill(behind);
    purged_to(&cluster, 1..300).await;
    for file in std::fs::read_dir(cluster.dirs[&leader].path().join("sides")).unwrap() {
        let path = file.unwrap().path();
        let mut bytes = std::fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    cluster.dirs.insert(behind, tempfile::tempdir().unwrap());
    cluster.net.break_snapshots_at([]);
    cluster.start_node(behind).await;
    cluster.runtime.sleep(Duration::from_millis(500)).await;
    assert_eq!(cluster.net.snapshot_pieces().0, 0, "nothing was sent");
    assert_eq!(cluster.running[&behind].1.restored(), None);
    log.transfer_leader(Some(third), PATIENCE).await.unwrap();
    let mut seen = numbers(&cluster.settle().await);
    seen.dedup();
    assert_eq!(seen, (0..300).collect::<Vec<_>>());
    assert!(cluster.running[&behind].1.restored().is_some());
}
