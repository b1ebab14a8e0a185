//! Starts after damage, loss and failures of all kinds: what each finds, mends or refuses, and in which words.

use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::recovery::open_log;
use crate::segment::{Record, RecordKind};
use crate::testing::{CrashDisk, Op, StepRuntime, small_config};
use crate::vote_and_marks::SavedVote;
use crate::{LogIndex, NodeId, OpenError, Term};

fn open(disk: &CrashDisk, runtime: &StepRuntime) -> Result<LogFiles, OpenError> {
    open_log(&small_config(), Arc::new(disk.clone()), &runtime.handle(), Failure::default())
}

fn append(files: &mut LogFiles, runtime: &StepRuntime, records: Vec<Record>) {
    let flushed = Arc::new(Mutex::new(false));
    let told = flushed.clone();
    let done = Box::new(move |result: std::io::Result<()>| *told.lock().unwrap() = result.is_ok());
    runtime.block_on(files.append(records, done)).unwrap();
    runtime.run();
    assert!(*flushed.lock().unwrap(), "a sound disk syncs");
}

fn small(term: u64, index: u64) -> Record {
    Record { id: EntryId::new(term, index), kind: RecordKind::Normal, payload: Bytes::from(format!("entry {index}")) }
}

fn seg(sequence: u64, first: u64) -> std::path::PathBuf {
    Path::new("/log").join(format!("{sequence:020}-{first:020}.seg"))
}

#[test]
fn truncated_entries_do_not_come_back_after_a_restart() {
    let (disk, runtime) = (CrashDisk::new(1), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    append(&mut files, &runtime, (0..10).map(|index| small(1, index)).collect());
    runtime.block_on(files.truncate_after(Some(LogIndex(5)))).unwrap();
    disk.power_cycle();
    let mut files = open(&disk, &runtime).unwrap();
    assert_eq!(files.view().ends().1, Some(EntryId::new(1, 5)));
    append(&mut files, &runtime, (6..8).map(|index| small(2, index)).collect());
    disk.power_cycle();
    let files = open(&disk, &runtime).unwrap();
    let found = files.view().read_all(LogIndex(4)..LogIndex(100)).unwrap();
    assert_eq!(found, [small(1, 4), small(1, 5), small(2, 6), small(2, 7)]);
}

#[test]
fn garbage_behind_a_torn_tail_never_comes_back() {
    let (disk, runtime) = (CrashDisk::new(2), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    // Ten equal records; the third is damaged, so everything from it on is cut.
    append(&mut files, &runtime, (0..10).map(|index| small(1, index)).collect());
    drop(files);
    disk.power_cycle();
    let record = crate::segment::record_bytes("entry 0".len());
    disk.damage(&seg(1, 0), 4096 + 2 * record + 34, b"x");
    let mut files = open(&disk, &runtime).unwrap();
    assert_eq!(files.view().ends().1, Some(EntryId::new(1, 1)));
    // A new third record of the same size: the old fourth one would fit behind it.
    append(&mut files, &runtime, vec![small(1, 2)]);
    drop(files);
    disk.power_cycle();
    let files = open(&disk, &runtime).unwrap();
    assert_eq!(files.view().ends().1, Some(EntryId::new(1, 2)), "entry 3 of the first life must not follow");
}

#[test]
fn damage_to_what_is_known_to_be_durable_is_refused() {
    let (disk, runtime) = (CrashDisk::new(3), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    append(&mut files, &runtime, (0..10).map(|index| small(1, index)).collect());
    let vote = SavedVote { term: Term(2), node: NodeId(1), committed: false };
    runtime.block_on(files.save_vote(vote)).unwrap();
    drop(files);
    disk.power_cycle();
    let record = crate::segment::record_bytes("entry 0".len());
    disk.damage(&seg(1, 0), 4096 + 9 * record + 34, b"x");
    let error = open(&disk, &runtime).err().expect("the vote slot tells that the tenth entry was durable");
    assert!(matches!(&error, OpenError::Corrupt(corruption) if corruption.path == seg(1, 0)), "{error}");
}

#[test]
fn damage_in_a_sealed_segment_is_refused_at_start_or_at_the_read() {
    let (disk, runtime) = (CrashDisk::new(4), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    let big = |index| Record { payload: Bytes::from(vec![7; 20_000]), ..small(1, index) };
    for index in 0..8 {
        append(&mut files, &runtime, vec![big(index)]);
    }
    drop(files);
    disk.power_cycle();
    // A payload: noticed by whoever reads it. The node goes on, and knows.
    disk.damage(&seg(1, 0), 4096 + 100, b"x");
    let files = open(&disk, &runtime).unwrap();
    assert!(files.view().read_all(LogIndex(0)..LogIndex(1)).is_err());
    assert!(!files.view().failure().is_set());
    assert!(files.view().shared.damages.any());
    drop(files);
    // A header: noticed by whoever reads it, or by the scan when there is no summary.
    disk.damage(&seg(1, 0), 4096 + 16, b"x");
    disk.power_cycle();
    assert!(open(&disk, &runtime).unwrap().view().read_all(LogIndex(0)..LogIndex(1)).is_err());
    use crate::Disk;
    disk.remove(&seg(1, 0).with_extension("sum")).unwrap();
    disk.sync_dir(Path::new("/log")).unwrap();
    disk.power_cycle();
    assert!(matches!(open(&disk, &runtime), Err(OpenError::Corrupt(_))));
}

#[test]
fn a_missing_segment_is_refused() {
    let (disk, runtime) = (CrashDisk::new(5), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    for index in 0..9 {
        append(&mut files, &runtime, vec![Record { payload: Bytes::from(vec![7; 20_000]), ..small(1, index) }]);
    }
    drop(files);
    use crate::Disk;
    disk.remove(&seg(2, 3)).unwrap();
    disk.sync_dir(Path::new("/log")).unwrap();
    disk.power_cycle();
    let error = open(&disk, &runtime).err().unwrap().to_string();
    assert!(error.contains("stops at entry 3 of 6") && error.contains("held entries 3 and on is missing"), "{error}");
}

#[test]
fn a_log_opens_once() {
    let (disk, runtime) = (CrashDisk::new(6), StepRuntime::default());
    let files = open(&disk, &runtime).unwrap();
    assert!(matches!(open(&disk, &runtime), Err(OpenError::Locked { .. })));
    runtime.block_on(files.view().close());
    drop(files);
    open(&disk, &runtime).unwrap();
}

#[test]
fn a_failed_sync_is_final() {
    let (disk, runtime) = (CrashDisk::new(7), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    runtime.run();
    // The write goes well, the sync does not.
    disk.crash_at(disk.operations() + 2);
    let outcome = Arc::new(Mutex::new(None));
    let told = outcome.clone();
    let done = Box::new(move |result: std::io::Result<()>| *told.lock().unwrap() = Some(result.is_ok()));
    runtime.block_on(files.append(vec![small(1, 0)], done)).unwrap();
    runtime.run();
    assert_eq!(*outcome.lock().unwrap(), Some(false));
    assert!(files.view().failure().is_set());
    let vote = SavedVote { term: Term(2), node: NodeId(1), committed: false };
    assert!(runtime.block_on(files.save_vote(vote)).is_err(), "nothing is promised after a failure");
    assert!(runtime.block_on(files.append(vec![small(1, 1)], Box::new(|_| {}))).is_err());
}

/// Linux marks pages clean whose write-back failed. The process stops, is restarted without the machine going down, finds the
/// records in the page cache and counts them for a quorum: by then they must really be on the disk.
#[test]
fn records_behind_a_failed_sync_are_written_again_before_they_count() {
    let disk = CrashDisk::new(11);
    let runtime = StepRuntime::default();
    let mut files = open(&disk, &runtime).unwrap();
    append(&mut files, &runtime, (0..3).map(|index| small(1, index)).collect());
    disk.fail_next_sync();
    let outcome = Arc::new(Mutex::new(None));
    let told = outcome.clone();
    let done = Box::new(move |result: std::io::Result<()>| *told.lock().unwrap() = Some(result.is_ok()));
    runtime.block_on(files.append((3..200).map(|index| small(1, index)).collect(), done)).unwrap();
    runtime.run();
    assert_eq!(*outcome.lock().unwrap(), Some(false), "the sync failed");
    drop(files);

    let found = |runtime: &StepRuntime| open(&disk, runtime).unwrap().view().ends().1.map(|id| id.index);
    assert_eq!(found(&StepRuntime::default()), Some(LogIndex(199)), "a restart finds all that was written");
    disk.power_cycle_losing_all_unsynced();
    assert_eq!(found(&StepRuntime::default()), Some(LogIndex(199)), "what it found is on the disk");
}

/// What a life before has left behind the tail is zeroed at the start. If that fails to reach the disk, the next start reads the
/// zeroes from memory, and the disk still has what it had.
#[test]
fn zeroes_that_did_not_reach_the_disk_are_written_again_before_anything_counts() {
    let mut failed = 0;
    for syncs_before in 0.. {
        let (disk, runtime) = (CrashDisk::new(12), StepRuntime::default());
        let mut files = open(&disk, &runtime).unwrap();
        append(&mut files, &runtime, (0..10).map(|index| small(1, index)).collect());
        drop(files);
        disk.power_cycle();
        let record = crate::segment::record_bytes("entry 0".len());
        disk.damage(&seg(1, 0), 4096 + 2 * record + 34, b"x");
        disk.fail(Op::SyncFile, syncs_before, libc::EIO);
        failed += u32::from(open(&disk, &StepRuntime::default()).is_err());
        if disk.faults_left() > 0 {
            break;
        }
        let runtime = StepRuntime::default();
        let mut files = open(&disk, &runtime).unwrap();
        append(&mut files, &runtime, vec![small(1, 2)]);
        drop(files);
        disk.power_cycle_losing_all_unsynced();
        let found = open(&disk, &StepRuntime::default()).unwrap().view().ends().1;
        assert_eq!(
            found,
            Some(EntryId::new(1, 2)),
            "sync {syncs_before} failed: entry 3 of the first life must not follow"
        );
    }
    assert!(failed > 1, "{failed} starts failed");
}
