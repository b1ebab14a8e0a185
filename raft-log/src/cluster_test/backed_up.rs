//! A replica is copied while its group serves, all is lost, and a group of one is founded from the copy and grows.

use std::path::Path;
use std::time::Duration;

use tempfile::TempDir;

use crate::cluster_test::{Cluster, PATIENCE, numbers, payload};
use crate::identity::{IDENTITY_FILE, Identity, Origin};
use crate::recovery_order::{ORDER_FILE, RecoveryOrder};
use crate::testing::{CrashDisk, Loss, StepRuntime};
use crate::{
    BackupError, BackupProgress, BackupReport, BackupRequest, Disk, FoundError, Incarnation, LogIndex, NodeId, OsDisk,
    Standing, Term, found_from_backup, read_file,
};

/// The names in a ledger's checkpoint: its side file, if it has one.
fn side_names(checkpoint: &[u8]) -> Result<Vec<String>, String> {
    let name = checkpoint.get(1..1 + usize::from(*checkpoint.first().ok_or("it is empty")?)).ok_or("it is short")?;
    let name = String::from_utf8(name.to_vec()).map_err(|error| error.to_string())?;
    Ok(if name.is_empty() { Vec::new() } else { vec![name] })
}

fn request(cluster: &Cluster, node: NodeId, into: &Path, at_least: LogIndex) -> BackupRequest {
    BackupRequest {
        at_least,
        into: into.to_owned(),
        side_dir: cluster.dirs[&node].path().join("sides"),
        side_names,
        free_bytes_min: 0,
        bytes_per_s: u64::MAX,
        time_max: PATIENCE,
    }
}

/// A copy of the copy, as a directory that a test's replica has.
fn placed(copy: &Path) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (from, to) in [("log", dir.path().to_owned()), ("store", dir.path().join("sides"))] {
        std::fs::create_dir_all(&to).unwrap();
        for file in std::fs::read_dir(copy.join(from)).unwrap().map(|file| file.unwrap()) {
            std::fs::copy(file.path(), to.join(file.file_name())).unwrap();
        }
    }
    dir
}

/// Checks what is told of each file. How many of them are linked.
fn check_files(report: &BackupReport, copy: &Path) -> u32 {
    let mut linked = 0;
    for file in &report.files {
        let bytes = read_file(&OsDisk, &copy.join(&file.name)).unwrap();
        assert_eq!((bytes.len() as u64, crc32c::crc32c(&bytes)), (file.bytes, file.crc32c), "{}", file.name);
        linked += u32::from(file.is_linked);
    }
    let on_disk = ["log", "store"].map(|part| OsDisk.list(&copy.join(part)).unwrap().len());
    assert_eq!(on_disk.iter().sum::<usize>(), report.files.len(), "what is there is told");
    linked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_group_comes_back_from_a_copy_that_was_made_under_load_and_grows() {
    let mut cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    for number in 0..150 {
        cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    let (leader, _) = cluster.leader().await;
    let node = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let (log, _) = cluster.running[&node].clone();
    // What is purged is in the state alone.
    let to = async {
        loop {
            if let Some(purgeable) = log.purgeable(LogIndex(90)) {
                break purgeable.to;
            }
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    let to = cluster.within("a checkpoint to purge to", to).await;
    log.purge(to, PATIENCE).await.unwrap();
    let acknowledged = cluster.propose(payload(150)).await;

    let outside = tempfile::tempdir().unwrap();
    let copy = outside.path().join("copy");
    let progress = BackupProgress::default();
    let wanted = request(&cluster, node, &copy, acknowledged);
    let (copying, seen) = (log.clone(), progress.clone());
    let task = cluster.runtime.spawn("backup", async move { copying.back_up(wanted, seen).await });
    for number in 151..250 {
        cluster.propose(payload(number)).await;
    }
    let report = cluster.within("the copy", task.join()).await.unwrap().unwrap();
    assert!(report.last.1 >= acknowledged && report.first > to, "{report:?}");
    let (done, total) = progress.bytes();
    assert!(done > 0 && done + 100_000 > total && total + 100_000 > done, "{done} of {total} bytes");
    assert!(check_files(&report, &copy) >= 2, "sealed segments take no room: {:?}", report.files);
    let before = cluster.settle().await;

    // As it is it takes part in nothing.
    let mut idle = cluster.beside(node, placed(&copy));
    idle.start_node(node).await;
    assert_eq!(idle.running[&node].0.standing(), Standing::GivenUp { epoch: u16::MAX });
    idle.kill(node);

    // All are lost. Another number goes on, in another life and epoch.
    drop(log);
    for node in cluster.nodes() {
        cluster.kill(node);
    }
    let survivor = NodeId(7);
    let mut group = cluster.beside(survivor, placed(&copy));
    let dir = group.dirs[&survivor].path().to_owned();
    let runtime = cluster.runtime.clone();
    let found = || found_from_backup(&OsDisk, &dir, survivor, report.epoch + 1, report.last, &runtime);
    let founded = found().unwrap();
    assert!(matches!(found(), Err(FoundError::NoCopy { .. })), "it is a replica's by now");
    group.start_node(survivor).await;
    let (leader, log) = group.leader().await;
    let members = log.members();
    assert_eq!((leader, members.epoch, members.members.len()), (survivor, 1, 1));
    assert_eq!(log.incarnation(), founded.incarnation);
    let after = group.settle().await;
    let expected: Vec<_> = before.into_iter().filter(|(index, _)| *index <= report.last.1).collect();
    assert_eq!(after, expected, "what was applied up to the mark, nothing less, nothing more, nothing twice");
    assert!(numbers(&after).len() > 150);
    // Entries from the purge mark on are there to be read, and for those who join.
    drop(log);
    for node in [8, 9] {
        group.start_newcomer(node).await;
        group.add(node).await;
    }
    group.await_led_by(&[7, 8, 9]).await;
    group.propose(payload(1000)).await;
    group.settle().await;
    let logs = [7, 8, 9].map(|node| group.log_of(NodeId(node)));
    assert!(logs[0] == logs[1] && logs[1] == logs[2], "those who joined have all that it has");
    assert!(logs[0].first().is_some_and(|entry| entry.index > to) && logs[0].len() > 60);
    group.kill(survivor);
    group.propose(payload(1001)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_of_a_young_log_has_no_checkpoint_and_one_without_room_is_refused() {
    let cluster = Cluster::start(1).await;
    let mut last = LogIndex(0);
    for number in 0..5 {
        last = cluster.propose(payload(number)).await;
    }
    let (node, log) = cluster.leader().await;
    let outside = tempfile::tempdir().unwrap();
    let copy = outside.path().join("copy");
    let mut wanted = request(&cluster, node, &copy, last);
    wanted.free_bytes_min = u64::MAX;
    let refused = log.back_up(wanted.clone(), BackupProgress::default()).await.unwrap_err();
    assert!(matches!(refused, BackupError::NoRoom { min: u64::MAX, .. }), "{refused}");
    assert!(!copy.exists(), "nothing was begun");
    wanted.free_bytes_min = 0;
    let report = log.back_up(wanted, BackupProgress::default()).await.unwrap();
    assert_eq!(report.first, LogIndex(0));
    let mut group = cluster.beside(node, placed(&copy));
    let dir = group.dirs[&node].path().to_owned();
    found_from_backup(&OsDisk, &dir, node, 1, report.last, &group.runtime).unwrap();
    group.start_node(node).await;
    group.propose(payload(5)).await;
    assert_eq!(numbers(&group.settle().await), (0..=5).collect::<Vec<_>>());
}

/// A group of one that wrote so many entries, and the last of them.
async fn grown(entries: u32) -> (Cluster, NodeId, LogIndex) {
    let cluster = Cluster::start(1).await;
    cluster.await_recorded().await;
    let mut last = LogIndex(0);
    for number in 0..entries {
        last = cluster.propose(payload(number)).await;
    }
    let (node, _) = cluster.leader().await;
    (cluster, node, last)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_cannot_be_linked_is_copied_and_needs_its_room() {
    let (cluster, node, mut last) = grown(200).await;
    cluster.disks[&node].link_nothing();
    let (_, log) = cluster.leader().await;
    let mut sent = 200;
    while log.extent().segments.last().is_none_or(|segment| segment.first != last) {
        last = cluster.propose(payload(sent)).await;
        sent += 1;
    }
    let outside = tempfile::tempdir().unwrap();
    let copy = outside.path().join("copy");
    let mut wanted = request(&cluster, node, &copy, last);
    // Room for the newest segment, which has just begun, as if all others could be linked, and not for one of them.
    cluster.disks[&node].state_free(Some((1 << 30) + (60 << 10)));
    wanted.free_bytes_min = 1 << 30;
    let refused = log.back_up(wanted.clone(), BackupProgress::default()).await.unwrap_err();
    assert!(matches!(refused, BackupError::NoRoom { needed: 65_536, .. }), "{refused}");
    std::fs::remove_dir_all(&copy).unwrap();
    cluster.disks[&node].state_free(None);
    wanted.free_bytes_min = 0;
    let report = log.back_up(wanted, BackupProgress::default()).await.unwrap();
    assert_eq!(check_files(&report, &copy), 0);
    assert!(report.files.iter().filter(|file| file.name.ends_with(".seg")).count() > 3, "{:?}", report.files);
    let mut group = cluster.beside(node, placed(&copy));
    let dir = group.dirs[&node].path().to_owned();
    found_from_backup(&OsDisk, &dir, node, 1, report.last, &group.runtime).unwrap();
    group.start_node(node).await;
    assert_eq!(numbers(&group.settle().await), (0..sent).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_copy_keeps_its_pace_and_ends_when_its_time_is_over_or_nobody_wants_it() {
    let (cluster, node, last) = grown(200).await;
    let (_, log) = cluster.leader().await;
    let outside = tempfile::tempdir().unwrap();
    let mut wanted = request(&cluster, node, &outside.path().join("slow"), last);
    let runtime = cluster.runtime.clone();
    wanted.bytes_per_s = 1 << 20;
    let (began, progress) = (runtime.now(), BackupProgress::default());
    log.back_up(wanted.clone(), progress.clone()).await.unwrap();
    let (bytes, took) = (progress.bytes().0, runtime.now() - began);
    let expected = Duration::from_secs_f64(bytes as f64 / f64::from(1 << 20));
    assert!(bytes > 256 << 10 && took > expected.mul_f64(0.6), "{bytes} bytes in {took:?}");

    (wanted.into, wanted.bytes_per_s, wanted.time_max) =
        (outside.path().join("late"), 64 << 10, Duration::from_millis(300));
    let late = log.back_up(wanted.clone(), BackupProgress::default()).await.unwrap_err();
    assert!(matches!(late, BackupError::OutOfTime { done, total, .. } if done > 0 && done < total), "{late}");

    (wanted.into, wanted.time_max) = (outside.path().join("unwanted"), PATIENCE);
    let (copying, progress) = (log.clone(), BackupProgress::default());
    let seen = progress.clone();
    let task = runtime.spawn("backup", async move { copying.back_up(wanted, seen).await });
    let begun = async {
        while progress.bytes().0 == 0 {
            runtime.sleep(Duration::from_millis(5)).await;
        }
    };
    cluster.within("its begin", begun).await;
    progress.cancel();
    let ended = cluster.within("its end", task.join()).await.unwrap();
    assert!(matches!(ended, Err(BackupError::GivenUp)), "{ended:?}");
    // What was pinned goes its way, and the log too.
    assert!(cluster.propose(payload(200)).await > last);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_idle_log_that_was_purged_to_its_end_comes_back_from_its_state_alone() {
    let (cluster, node, last) = grown(60).await;
    let (_, log) = cluster.leader().await;
    let before = cluster.settle().await;
    log.raft().trigger().snapshot().await.unwrap();
    let made = async {
        loop {
            let (kept, applied) = (log.extent().checkpoints, log.status().applied.unwrap());
            if kept.last() == Some(&applied) {
                break applied;
            }
            cluster.runtime.sleep(Duration::from_millis(10)).await;
        }
    };
    let to = cluster.within("a checkpoint of the last entry", made).await;
    log.purge(to, PATIENCE).await.unwrap();
    assert!(to >= last && log.extent().first > to);
    let outside = tempfile::tempdir().unwrap();
    let copy = outside.path().join("copy");
    let report = log.back_up(request(&cluster, node, &copy, last), BackupProgress::default()).await.unwrap();
    assert_eq!((report.last.1, report.first), (to, to.next()), "no entry is in it");
    check_files(&report, &copy);
    let mut group = cluster.beside(node, placed(&copy));
    let dir = group.dirs[&node].path().to_owned();
    found_from_backup(&OsDisk, &dir, node, 1, report.last, &group.runtime).unwrap();
    group.start_node(node).await;
    assert_eq!(group.settle().await, before);
    group.propose(payload(60)).await;
    assert_eq!(numbers(&group.settle().await), (0..=60).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn damage_in_a_sealed_segment_is_found_by_a_copy_and_mended_before_the_next_one() {
    let cluster = Cluster::start(3).await;
    cluster.await_recorded().await;
    let mut last = LogIndex(0);
    for number in 0..200 {
        last = cluster.propose(payload(number)).await;
    }
    cluster.settle().await;
    let (leader, _) = cluster.leader().await;
    let node = cluster.nodes().into_iter().find(|node| *node != leader).unwrap();
    let (log, _) = cluster.running[&node].clone();
    let sealed = log.extent().segments[1];
    let named = |name: &String| name.ends_with(&format!("-{:020}.seg", sealed.first));
    let dir = cluster.dirs[&node].path();
    let name = OsDisk.list(dir).unwrap().into_iter().find(named).unwrap();
    let file = OsDisk.open(&dir.join(&name)).unwrap();
    let at = 30_000;
    let byte = file.read_at(at, 1).unwrap()[0];
    file.write_at(at, &[byte ^ 4]).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let copy = outside.path().join("copy");
    let refused = log.back_up(request(&cluster, node, &copy, last), BackupProgress::default()).await.unwrap_err();
    let said = refused.to_string();
    assert!(matches!(refused, BackupError::Unsound { .. }) && said.contains(&name), "{said}");
    std::fs::remove_dir_all(&copy).unwrap();
    let mended = async {
        loop {
            match log.back_up(request(&cluster, node, &copy, last), BackupProgress::default()).await {
                Ok(report) => break report,
                Err(BackupError::Unsound { .. } | BackupError::Damaged { .. }) => {
                    if copy.exists() {
                        std::fs::remove_dir_all(&copy).unwrap();
                    }
                    cluster.runtime.sleep(Duration::from_millis(20)).await;
                }
                Err(other) => panic!("{other}"),
            }
        }
    };
    let report = cluster.within("the segment to be mended from a peer", mended).await;
    check_files(&report, &copy);
}

#[test]
fn a_copy_is_founded_once_wherever_the_power_fails() {
    let (dir, runtime) = (Path::new("/log"), StepRuntime::default());
    let mut points = 0;
    for loss in Loss::EACH {
        for operation in 1.. {
            let disk = CrashDisk::new(operation);
            disk.create_dir_all(dir).unwrap();
            let copied = Identity {
                cluster: "c".to_owned(),
                group: "g".to_owned(),
                node: NodeId(2),
                incarnation: Incarnation(5),
                origin: Origin::Founder,
                promised: [(NodeId(1), Incarnation(4))].into(),
                given_up: u16::MAX,
            };
            copied.write(&disk, dir).unwrap();
            let found = || found_from_backup(&disk, dir, NodeId(7), 1, (Term(2), LogIndex(9)), &runtime.handle());
            disk.crash_at(disk.operations() + operation);
            let begun = found();
            let has_crashed = disk.has_crashed();
            disk.power_cycle_with(loss);
            let whose = || Identity::decode(read_file(&disk, &dir.join(IDENTITY_FILE)).unwrap()).unwrap();
            let left = whose();
            match left.given_up {
                // Still a copy, whatever order lies there: that is of another life, and replaced.
                u16::MAX => {
                    assert!(begun.is_err(), "what was told as done is done");
                    found().unwrap();
                }
                _ => assert!(matches!(found(), Err(FoundError::NoCopy { .. }))),
            }
            let own = whose();
            let order = RecoveryOrder::decode(read_file(&disk, &dir.join(ORDER_FILE)).unwrap()).unwrap();
            assert_eq!((own.node, own.given_up, own.promised.len()), (NodeId(7), 0, 0));
            assert_ne!(own.incarnation, copied.incarnation);
            assert_eq!((order.node, order.incarnation, order.epoch), (own.node, own.incarnation, 1));
            if !has_crashed {
                break;
            }
            points += 1;
        }
    }
    assert!(points > 15, "{points} crash points");
}
