//! A disk that fills up: data is refused early, settlements go on for a while, nothing fails, and all goes on by itself.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::Runtime;
use openraft::storage::RaftLogStorage;

use crate::ack::{AckTracker, LagLimits};
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::lost_tail::{LostTail, LostTailStatus, TailKeeper};
use crate::raft::{LogId, LogStore};
use crate::recovery::open_log;
use crate::room_wait::when_there_is_room;
use crate::segment::{Record, RecordKind};
use crate::segment_maker::PREPARED_FILE;
use crate::testing::{ACKNOWLEDGED, CrashDisk, Ledger, MemoryNet, Op, SmallDisk, StepRuntime};
use crate::vote_and_marks::SavedVote;
use crate::{FlushMode, FullReason, LogConfig, NodeId, ProposalClass, ProposeError, ReplicatedLog, StateMachine, Term};

const SEGMENT: u64 = 64 * 1024;
const RESERVE: u64 = 32 * SEGMENT;
const DISK: u64 = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(20);

fn config() -> LogConfig {
    let mut config = LogConfig::new("/log", "cluster", "group", NodeId(1), [NodeId(1)]);
    config.segment_bytes = SEGMENT;
    config.disk_free_bytes_min = RESERVE;
    config
}

async fn open(disk: &SmallDisk, runtime: &Runtime) -> ReplicatedLog<usize> {
    let transport = MemoryNet::default().transport(NodeId(1));
    let log = ReplicatedLog::open(config(), runtime.clone(), Arc::new(disk.clone()), transport, Ledger::default());
    let log = log.await.unwrap();
    let led = async {
        while !log.status().can_write {
            log.status_changed(&log.status()).await;
        }
    };
    runtime.timeout(PATIENCE, led).await.expect("a group of one elects itself");
    log
}

async fn fill(log: &ReplicatedLog<usize>, class: ProposalClass) -> FullReason {
    for _ in 0..10_000 {
        match log.propose_as(class, Bytes::from(vec![7; 500]), None).await {
            Ok(_) => {}
            Err(ProposeError::Full(reason)) => return reason,
            Err(error) => panic!("a full disk is told as such, not as: {error}"),
        }
    }
    panic!("the disk has room for ever");
}

#[tokio::test(flavor = "multi_thread")]
async fn data_is_refused_first_settlements_later_and_all_goes_on_when_space_returns() {
    let (disk, runtime) = (SmallDisk::new(1, DISK), Runtime::tokio());
    let log = open(&disk, &runtime).await;
    tracing::info!("others take the disk down to the reserve and half a segment");
    let free = |disk: &SmallDisk| crate::Disk::free_bytes(disk, std::path::Path::new("/log")).unwrap();
    disk.set_foreign_bytes(free(&disk) - RESERVE - SEGMENT / 2);
    let reason = fill(&log, ProposalClass::Data).await;
    assert!(matches!(reason, FullReason::DiskFree { free_bytes_min: RESERVE, .. }), "{reason}");
    assert!(log.status().disk.is_full);
    // Checkpoints may use the reserve, and one file is ready for settlements: what is left is counted without them.
    let left = free(&disk) + disk.bytes_besides_segments() + SEGMENT;
    assert!(left >= RESERVE, "data never touches the reserve");

    tracing::info!("settlements may use half of the reserve");
    let before = log.status().last.unwrap();
    fill(&log, ProposalClass::Settlement).await;
    let settled = log.status().last.unwrap().0 - before.0;
    assert!(settled > 2 * SEGMENT / 600, "only {settled} settlements went through");
    assert!(
        free(&disk) + disk.bytes_besides_segments() >= RESERVE / 2,
        "the other half is for retention, checkpoints and what a leader sends"
    );
    log.propose_as(ProposalClass::Retention, Bytes::from(vec![7; 500]), None).await.expect("retention still may");
    assert!(matches!(log.propose(Bytes::from_static(b"data"), None).await, Err(ProposeError::Full(_))));

    tracing::info!("space returns");
    disk.set_foreign_bytes(0);
    let retried = async {
        while log.propose(Bytes::from(vec![7; 500]), None).await.is_err() {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    runtime.timeout(Duration::from_secs(5), retried).await.expect("no restart is needed");
    assert!(!log.status().disk.is_full);
    let applied = log.status().applied;
    log.shutdown(PATIENCE).await;
    let log = open(&disk, &runtime).await;
    assert!(log.status().applied >= applied, "nothing is lost by it");
}

fn record(index: u64) -> Record {
    Record { id: EntryId::new(1, index), kind: RecordKind::Normal, payload: Bytes::from(vec![7; 4000]) }
}

fn open_files(disk: &SmallDisk, runtime: &Runtime) -> LogFiles {
    open_log(&config(), Arc::new(disk.clone()), runtime, Failure::default()).unwrap()
}

/// Appends until the disk leaves no room; gives back the first index that waits.
async fn append_until_it_waits(files: &mut LogFiles, runtime: &Runtime) -> u64 {
    for index in 0.. {
        let append = files.append(vec![record(index)], Box::new(|_| {}));
        if runtime.timeout(Duration::from_millis(500), append).await.is_err() {
            return index;
        }
        if index > 1000 {
            panic!("the disk has room for ever");
        }
    }
    unreachable!("the loop has no end of its own")
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_leader_sends_waits_for_room_instead_of_failing_the_node() {
    let (disk, runtime) = (SmallDisk::new(2, DISK), Runtime::tokio());
    let mut files = open_files(&disk, &runtime);
    let view = files.view();
    let writing = runtime.spawn("writer", {
        let view = view.clone();
        async move {
            for index in 0..40 {
                files.append(vec![record(index)], Box::new(|flushed| flushed.unwrap())).await.unwrap();
            }
            view.flush().await.unwrap();
            files
        }
    });
    tracing::info!("others fill the disk for three seconds");
    disk.set_foreign_bytes(DISK);
    runtime.sleep(Duration::from_secs(3)).await;
    let waits_at = view.ends().1.unwrap().index.0;
    assert!(waits_at < 39, "there is no room for 40 records");
    assert!(!view.failure().is_set(), "a full disk fails nobody");
    disk.set_foreign_bytes(0);
    let mut files = runtime.timeout(Duration::from_secs(5), writing).await.expect("it goes on by itself").unwrap();
    assert_eq!(view.ends().1.unwrap().index.0, 39);
    let vote = SavedVote { term: Term(2), node: NodeId(1), committed: false };
    disk.set_foreign_bytes(DISK);
    files.save_vote(vote).await.expect("a vote needs no space");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_waits_for_room_can_be_closed() {
    let (disk, runtime) = (SmallDisk::new(3, DISK), Runtime::tokio());
    let mut files = open_files(&disk, &runtime);
    let view = files.view();
    disk.set_foreign_bytes(DISK);
    let index = append_until_it_waits(&mut files, &runtime).await;
    view.begin_close();
    let append = files.append(vec![record(index)], Box::new(|_| {}));
    let ended = runtime.timeout(PATIENCE, append).await.expect("closing is not held up");
    assert!(ended.is_err() && !view.failure().is_set());
    drop(files);
    view.close().await;
    disk.set_foreign_bytes(0);
    assert_eq!(open_files(&disk, &runtime).view().ends().1.unwrap().index.0, index - 1);
}

/// Whatever a file system says of its free space: one that gives no room for the next file is full, and is asked again.
#[tokio::test(flavor = "multi_thread")]
async fn a_next_file_that_could_not_be_made_is_told_early_and_made_again() {
    let (disk, runtime) = (CrashDisk::new(8), Runtime::tokio());
    let mut files = open_log(&config(), Arc::new(disk.clone()), &runtime, Failure::default()).unwrap();
    let shared = files.view().shared.clone();
    shared.background.idle().await;
    // Once more than it takes to see it.
    for _ in 0..2 {
        disk.fail(Op::Create, 0, libc::EDQUOT);
    }
    let mut index = 0;
    while !shared.room.is_blocked() {
        files.append(vec![record(index)], Box::new(|_| {})).await.unwrap();
        index += 1;
        assert!(index < 40, "one segment holds 15 such records, the next one cannot be made");
        shared.background.idle().await;
    }
    // What a failure leaves is shorter.
    let made = || crate::Disk::open(&disk, &Path::new("/log").join(PREPARED_FILE));
    let prepared = || made().is_ok_and(|file| file.len() == SEGMENT);
    assert!(!prepared() && shared.failure.get().is_none());
    let made = async {
        while shared.room.is_blocked() || !prepared() {
            runtime.sleep(Duration::from_millis(300)).await;
            files.append(vec![record(index)], Box::new(|_| {})).await.unwrap();
            index += 1;
        }
    };
    runtime.timeout(PATIENCE, made).await.expect("it is made again with an append, and without a new segment");
    assert_eq!(disk.faults_left(), 0);
}

/// A snapshot's checkpoint is no derived file that could be left out: it waits, and so does nobody's vote.
#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_that_meets_a_full_disk_is_kept_when_there_is_room_and_ends_nobody() {
    let (disk, runtime) = (SmallDisk::new(4, DISK), Runtime::tokio());
    let log = open(&disk, &runtime).await;
    log.propose(Bytes::from(vec![7; 500]), None).await.unwrap();
    assert_eq!(log.inner.checkpoints.kept(), []);
    tracing::info!("others fill the disk, and a snapshot is asked for");
    disk.set_foreign_bytes(DISK);
    log.raft().trigger().snapshot().await.unwrap();
    let told = async {
        while !log.status().disk.is_full {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    runtime.timeout(PATIENCE, told).await.expect("whoever asks learns that the disk is full");
    runtime.sleep(Duration::from_millis(1_500)).await;
    assert_eq!((log.failure(), log.inner.checkpoints.kept()), (None, Vec::new()));
    tracing::info!("space returns");
    disk.set_foreign_bytes(0);
    let kept = async {
        while log.inner.checkpoints.kept().is_empty() {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    runtime.timeout(PATIENCE, kept).await.expect("it is written by itself");
    log.propose(Bytes::from(vec![7; 500]), None).await.expect("no restart is needed");
    assert_eq!(log.failure(), None);
    log.shutdown(PATIENCE).await;
}

/// Whoever is deposed keeps what it had acknowledged before it lets go of it: on a full disk it waits with both.
#[tokio::test(flavor = "multi_thread")]
async fn acknowledged_entries_that_another_leader_overrides_stay_until_there_is_room_to_keep_them() {
    let (disk, runtime) = (SmallDisk::new(6, DISK), Runtime::tokio());
    let mut files = open_files(&disk, &runtime);
    let view = files.view();
    let acknowledged = |index| {
        let payload = Bytes::from(vec![index as u8, ACKNOWLEDGED]);
        Record { id: EntryId::new(1, index), kind: RecordKind::Normal, payload }
    };
    files.append((0..5).map(acknowledged).collect(), Box::new(|_| {})).await.unwrap();
    let keeper = TailKeeper::open(NodeId(1), Arc::new(disk.clone()), "/log".into(), Ledger::acknowledged_early);
    let limits = LagLimits { time: PATIENCE, bytes: 1 << 30 };
    let acks = AckTracker::new(runtime.clone(), NodeId(1), [NodeId(1)].into(), limits);
    let mut store = LogStore::new(files, acks, keeper.clone());
    tracing::info!("others fill the disk, and another leader overrides all but two entries");
    disk.set_foreign_bytes(DISK);
    let last = LogId::new_term_index(1, 1);
    let truncating = runtime.spawn("truncation", async move { store.truncate_after(Some(last)).await });
    let told = async {
        while !view.shared.room.is_blocked() {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    runtime.timeout(PATIENCE, told).await.expect("the full disk is told of");
    assert_eq!(view.ends().1, Some(EntryId::new(1, 4)), "nothing goes before it is kept");
    assert_eq!((keeper.status(), view.failure().get()), (LostTailStatus::default(), None));
    tracing::info!("space returns");
    disk.set_foreign_bytes(0);
    runtime.timeout(PATIENCE, truncating).await.expect("it goes on by itself").unwrap().unwrap();
    assert_eq!(view.ends().1, Some(EntryId::new(1, 1)));
    assert_eq!(keeper.status(), LostTailStatus { files: 1, messages: 3 });
    let kept = LostTail::files(&disk, Path::new("/log")).unwrap();
    let kept = LostTail::read(&disk, &kept[0]).unwrap();
    let indexes: Vec<u64> = kept.entries.iter().map(|entry| entry.index.0).collect();
    assert_eq!(indexes, [2, 3, 4]);
}

/// The end of a recovery is a file, too. Until it is written the replica goes on as one that recovers, also after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_ends_when_there_is_room_for_its_mark() {
    let (disk, runtime) = (SmallDisk::new(7, DISK), Runtime::tokio());
    let mut lazy = config();
    lazy.flush = FlushMode::Async { interval_ms: 60_000, bytes: 1 << 30 };
    let open = || open_log(&lazy, Arc::new(disk.clone()), &runtime, Failure::default()).unwrap().view();
    // What a life does in the background must be over before the next one begins.
    open().shared.background.idle().await;
    disk.lose_power();
    let view = open();
    assert!(view.vote_hold().recovers(), "it was open when the machine went down");
    view.shared.background.idle().await;
    disk.set_foreign_bytes(DISK);
    let marking = runtime.spawn("mark", {
        let view = view.clone();
        async move { view.recovered().await }
    });
    let told = async {
        while !view.shared.room.is_blocked() {
            runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    runtime.timeout(PATIENCE, told).await.expect("the full disk is told of");
    assert_eq!(view.failure().get(), None);
    disk.set_foreign_bytes(0);
    runtime.timeout(PATIENCE, marking).await.expect("it goes on by itself").unwrap().unwrap();
    disk.kill_process();
    let view = open();
    assert!(!view.vote_hold().recovers(), "the mark says so");
    view.shared.background.idle().await;

    tracing::info!("closing ends the wait, and the mark stays as it was");
    disk.lose_power();
    let view = open();
    view.shared.background.idle().await;
    disk.set_foreign_bytes(DISK);
    view.begin_close();
    assert!(view.recovered().await.is_err_and(|error| error.kind() == io::ErrorKind::StorageFull));
    disk.set_foreign_bytes(0);
    disk.kill_process();
    assert!(open().vote_hold().recovers());
}

#[test]
fn what_must_be_written_waits_for_a_full_disk_and_for_nothing_else() {
    let (disk, runtime) = (SmallDisk::new(5, DISK), StepRuntime::default());
    let files = open_files(&disk, &runtime.handle());
    let (shared, dir) = (files.view().shared.clone(), std::path::Path::new("/log"));
    let tries = Arc::new(AtomicU32::new(0));
    let meets = |kind: io::ErrorKind, times: u32| {
        let tries = tries.clone();
        tries.store(0, Ordering::Relaxed);
        move || if tries.fetch_add(1, Ordering::Relaxed) < times { Err(io::Error::from(kind)) } else { Ok(()) }
    };
    let waits = |work| runtime.block_on(when_there_is_room(&shared, &disk, dir, "a file", work));
    assert!(waits(meets(io::ErrorKind::StorageFull, 3)).is_ok() && shared.room.is_blocked());
    assert_eq!(tries.load(Ordering::Relaxed), 4);
    let failed = waits(meets(io::ErrorKind::Other, 3)).unwrap_err();
    assert_eq!((failed.kind(), tries.load(Ordering::Relaxed)), (io::ErrorKind::Other, 1), "that is final");
    files.view().begin_close();
    let ended = waits(meets(io::ErrorKind::QuotaExceeded, u32::MAX)).unwrap_err();
    assert_eq!(ended.kind(), io::ErrorKind::QuotaExceeded, "closing ends the wait");
}
