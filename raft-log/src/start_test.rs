//! Starts from checkpoints that are damaged, refused or missing, and from directories where something is missing or foreign.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use crate::failure::Failure;
use crate::ids::EntryId;
use crate::recovery::open_log;
use crate::segment::{Record, RecordKind};
use crate::testing::{CrashDisk, Loss, Op, Opened, StepRuntime, checkpoint_of, open_all, open_with, small_config};
use crate::vote_and_marks::{MARKS_FILE, SavedVote};
use crate::{
    Disk, LogConfig, LogIndex, NodeId, OpenError, RestoreError, StateMachine, Term, read_file, write_file_atomically,
};

fn at(name: &str) -> PathBuf {
    Path::new("/log").join(name)
}

fn segment(sequence: u64, first: u64) -> PathBuf {
    at(&format!("{sequence:020}-{first:020}.seg"))
}

fn checkpoint(index: u64) -> PathBuf {
    at(&format!("checkpoint-{index:020}.ckp"))
}

fn record(index: u64) -> Record {
    Record { id: EntryId::new(1, index), kind: RecordKind::Normal, payload: Bytes::from(vec![index as u8; 20_000]) }
}

/// A log of `entries` entries, three a segment, all durable, with a vote; checkpoints at these entries.
fn filled(entries: u64, checkpoints: &[u64]) -> CrashDisk {
    let (disk, runtime) = (CrashDisk::new(1), StepRuntime::default());
    let mut opened = open_all(&disk, &runtime).unwrap();
    let vote = SavedVote { term: Term(1), node: NodeId(1), committed: true };
    runtime.block_on(opened.files.save_vote(vote)).unwrap();
    for index in 0..entries {
        runtime.block_on(opened.files.append(vec![record(index)], Box::new(|_| {}))).unwrap();
        runtime.run();
        if checkpoints.contains(&index) {
            let made = checkpoint_of(EntryId::new(1, index), Bytes::from(format!("state {index}")));
            runtime.block_on(opened.checkpoints.write_now(made)).unwrap();
        }
    }
    opened.files.view().save_committed(Some(EntryId::new(1, entries - 1))).unwrap();
    drop(opened);
    disk.power_cycle_with(Loss::Nothing);
    disk
}

fn open(disk: &CrashDisk) -> Result<Opened, OpenError> {
    open_all(disk, &StepRuntime::default())
}

fn restored(disk: &CrashDisk) -> Option<u64> {
    let opened = open(disk).unwrap();
    let found = opened.restored.map(|(last, _)| last.0);
    disk.kill_process();
    found
}

fn refusal(disk: &CrashDisk) -> String {
    let error = open(disk).err().expect("this must not open").to_string();
    disk.kill_process();
    error
}

fn purge(disk: &CrashDisk, index: u64) {
    let runtime = StepRuntime::default();
    let mut opened = open_all(disk, &runtime).unwrap();
    runtime.block_on(opened.files.purge(EntryId::new(1, index))).unwrap();
    runtime.run();
    drop(opened);
    disk.power_cycle_with(Loss::Nothing);
}

#[test]
fn a_damaged_checkpoint_gives_way_to_an_older_one_and_then_to_the_whole_log() {
    let disk = filled(10, &[2, 5, 8]);
    assert_eq!(restored(&disk), Some(8), "only the newest two are kept: 5 and 8");
    disk.damage(&checkpoint(8), 70, b"x");
    assert_eq!(restored(&disk), Some(5));
    disk.cut(&checkpoint(5), 30);
    let opened = open(&disk).unwrap();
    assert_eq!(opened.restored, None);
    let report = opened.report();
    let skipped: Vec<u64> = report.skipped_checkpoints.iter().map(|skipped| skipped.last.0).collect();
    assert_eq!((skipped, report.checkpoint), (vec![8, 5], None));
    drop(opened);
    // The log no longer holds everything: now there is nothing to begin from, and the words say what to do.
    let disk = filled(10, &[5, 8]);
    purge(&disk, 5);
    disk.damage(&checkpoint(8), 70, b"x");
    assert_eq!(restored(&disk), Some(5), "the one at the purge mark");
    disk.cut(&checkpoint(5), 0);
    let text = refusal(&disk);
    for part in ["begins with entry 6", "checkpoint 8", "checkpoint 5", "replace this replica"] {
        assert!(text.contains(part), "{part} in: {text}");
    }
    disk.remove(&checkpoint(8)).unwrap();
    disk.remove(&checkpoint(5)).unwrap();
    assert!(refusal(&disk).contains("no checkpoint in /log can be used"));
}

/// Refuses every state that names one of these.
struct Picky(&'static [&'static str], Option<LogIndex>);

impl StateMachine for Picky {
    type Output = ();
    fn apply(&mut self, _index: LogIndex, _term: Term, _payload: Bytes) {}
    fn segment_started(&mut self, _first: LogIndex) -> io::Result<()> {
        Ok(())
    }
    fn checkpoint(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        if self.0.iter().any(|refused| checkpoint == refused.as_bytes()) {
            return Err(RestoreError("index file is gone".to_owned()));
        }
        self.1 = Some(applied);
        Ok(())
    }
}

#[test]
fn a_checkpoint_that_the_machine_refuses_gives_way_to_an_older_one() {
    let disk = filled(10, &[5, 8]);
    let open = |refused: &'static [&'static str]| {
        let mut machine = Picky(refused, None);
        let runtime = StepRuntime::default();
        let opened = open_with(&disk, &runtime, &mut machine);
        let served = opened
            .as_ref()
            .ok()
            .map(|(_, checkpoints)| runtime.block_on(checkpoints.served()).unwrap().map(|served| served.last.index.0));
        disk.kill_process();
        (opened.map(|_| machine.1.map(|index| index.0)).map_err(|error| error.to_string()), served)
    };
    assert_eq!(open(&[]), (Ok(Some(8)), Some(None)), "nobody needs one before the first purge");
    assert_eq!(open(&["state 8"]), (Ok(Some(5)), Some(None)));
    assert_eq!(open(&["state 8", "state 5"]), (Ok(None), Some(None)));
    purge(&disk, 5);
    assert_eq!(open(&["state 8"]), (Ok(Some(5)), Some(Some(5))));
    let (error, _) = open(&["state 8", "state 5"]);
    let error = error.unwrap_err();
    assert!(error.contains("checkpoint 8: checkpoint cannot be restored: index file is gone"), "{error}");
}

#[test]
fn a_half_written_checkpoint_is_swept_away() {
    let disk = filled(6, &[2]);
    let bytes = read_file(&disk, &checkpoint(2)).unwrap();
    disk.create(&at("checkpoint-00000000000000000005.ckp.tmp"), 100).unwrap().write_at(0, &bytes[..50]).unwrap();
    assert_eq!(restored(&disk), Some(2));
    assert!(!disk.list(Path::new("/log")).unwrap().iter().any(|name| name.ends_with(".ckp.tmp")));
}

/// A checkpoint is only written when the log before it is durable: what is ahead of the log proves that durable entries are
/// gone. A voter that goes on without them could help to elect a leader that lacks them too.
#[test]
fn a_state_ahead_of_its_log_is_refused() {
    let disk = filled(10, &[2, 8]);
    disk.remove(&segment(4, 9)).unwrap();
    disk.remove(&segment(3, 6)).unwrap();
    // The marks would tell, too; here they are from before.
    let marks = filled(3, &[]);
    let bytes = read_file(&marks, &at(MARKS_FILE)).unwrap();
    write_file_atomically(&disk, Path::new("/log"), MARKS_FILE, &bytes).unwrap();
    let text = refusal(&disk);
    assert!(text.contains("checkpoint is of entry 1.8") && text.contains("durable entries are lost"), "{text}");
}

#[test]
fn a_missing_first_middle_or_last_segment_is_refused() {
    let disk = || filled(10, &[]);
    let lost = |file: PathBuf| {
        let disk = disk();
        disk.remove(&file).unwrap();
        refusal(&disk)
    };
    let text = lost(segment(1, 0));
    assert!(text.contains("entries 0 to 2 are missing"), "{text}");
    let text = lost(segment(2, 3));
    assert!(text.contains("stops at entry 3 of 6") && text.contains("held entries 3 and on is missing"), "{text}");
    let text = lost(segment(4, 9));
    assert!(
        text.contains("segment file number 4 is missing") && text.contains("newest one here is number 3"),
        "{text}"
    );
    let all = disk();
    for (sequence, first) in [(1, 0), (2, 3), (3, 6), (4, 9)] {
        all.remove(&segment(sequence, first)).unwrap();
    }
    let text = refusal(&all);
    assert!(text.contains("no segments although the replica voted"), "{text}");
}

#[test]
fn short_empty_and_swapped_files_are_refused_by_name() {
    for len in [0, 1, 4095, 4096, 60_000] {
        let disk = filled(10, &[]);
        disk.cut(&segment(2, 3), len);
        let text = refusal(&disk);
        assert!(text.contains("00000000000000000002-00000000000000000003.seg is corrupt"), "{text}");
    }
    for name in [MARKS_FILE, "identity"] {
        let disk = filled(4, &[]);
        disk.cut(&at(name), 0);
        assert!(refusal(&disk).contains(name));
        disk.remove(&at(name)).unwrap();
        assert!(refusal(&disk).contains("missing although"));
    }
    let disk = filled(10, &[]);
    disk.rename(&segment(2, 3), &segment(2, 4)).unwrap();
    assert!(refusal(&disk).contains("header says"));
}

#[test]
fn a_directory_of_another_node_group_or_cluster_is_refused_and_left_as_it_was() {
    let disk = filled(4, &[]);
    let operations = disk.operations();
    for (config, words) in [
        (LogConfig { node: NodeId(2), ..small_config() }, "belongs to node 1, this is node 2"),
        (LogConfig { group: "other".into(), ..small_config() }, "belongs to group group, this is group other"),
        (LogConfig { cluster: "other".into(), ..small_config() }, "belongs to cluster cluster, this is cluster other"),
    ] {
        let runtime = StepRuntime::default();
        let opened = open_log(&config, Arc::new(disk.clone()), &runtime.handle(), Failure::default());
        let text = opened.err().expect("it is another's").to_string();
        assert!(text.contains(words), "{text}");
    }
    assert_eq!(disk.operations(), operations, "nothing was written");
    // A single file of another group among ours.
    let other = CrashDisk::new(2);
    let config = LogConfig { group: "other".into(), ..small_config() };
    drop(open_log(&config, Arc::new(other.clone()), &StepRuntime::default().handle(), Failure::default()).unwrap());
    let foreign = read_file(&other, &segment(1, 0)).unwrap();
    write_file_atomically(&disk, Path::new("/log"), segment(1, 0).file_name().unwrap().to_str().unwrap(), &foreign)
        .unwrap();
    assert!(refusal(&disk).contains("segment is of another cluster or group"));
}

#[test]
fn files_that_are_none_of_the_logs_are_told_and_left_alone() {
    let disk = filled(4, &[2]);
    for name in ["notes.txt", "1-2.seg", "checkpoint-3.ckp", "00000000000000000001-00000000000000000000.seg.bak"] {
        disk.create(&at(name), 5).unwrap();
    }
    let opened = open(&disk).unwrap();
    let report = opened.report();
    let told = ["00000000000000000001-00000000000000000000.seg.bak", "1-2.seg", "checkpoint-3.ckp", "notes.txt"];
    assert_eq!(report.foreign_files, told);
    assert_eq!(disk.list(Path::new("/log")).unwrap().iter().filter(|name| told.contains(&name.as_str())).count(), 4);
    let phases: Vec<_> = report.phases.iter().map(|phase| (phase.name, phase.files, phase.entries)).collect();
    let files = disk.list(Path::new("/log")).unwrap().len() as u64;
    assert_eq!(
        phases,
        [("directory", files, 0), ("marks", 1, 0), ("segments", 1, 3), ("tail", 1, 1), ("checkpoint", 1, 0)]
    );
}

#[test]
fn a_file_that_may_not_be_read_is_named_and_nothing_is_made_in_its_place() {
    for (before, name) in [(0, "identity"), (1, MARKS_FILE), (2, ".seg")] {
        let disk = filled(4, &[]);
        let names = disk.list(Path::new("/log")).unwrap();
        disk.fail(Op::Open, before, libc::EACCES);
        let error = open(&disk).err().expect("permission is denied");
        assert!(matches!(&error, OpenError::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied));
        assert!(error.to_string().contains(name), "{error}");
        assert_eq!(disk.list(Path::new("/log")).unwrap(), names);
        disk.kill_process();
        assert_eq!(open(&disk).unwrap().files.view().ends().1, Some(EntryId::new(1, 3)), "all is well with permission");
    }
}

#[test]
fn a_commit_mark_beyond_the_end_is_cut_to_the_end() {
    let (disk, runtime) = (CrashDisk::new(3), StepRuntime::default());
    let mut opened = open_all(&disk, &runtime).unwrap();
    runtime.block_on(opened.files.append(vec![record(0)], Box::new(|_| {}))).unwrap();
    runtime.run();
    runtime.block_on(opened.files.append(vec![record(1)], Box::new(|_| {}))).unwrap();
    // Committed by the others; here neither is synced, and the mark happens to reach the disk alone.
    opened.files.view().save_committed(Some(EntryId::new(1, 1))).unwrap();
    let marks = read_file(&disk, &at(MARKS_FILE)).unwrap();
    disk.power_cycle_with(Loss::All);
    disk.open(&at(MARKS_FILE)).unwrap().write_at(0, &marks).unwrap();
    let opened = open(&disk).unwrap();
    assert_eq!(opened.files.view().committed(), Some(EntryId::new(1, 0)));
    assert_eq!(opened.report().commit_mark_beyond_end, Some(LogIndex(1)));
}

#[test]
fn a_torn_tail_is_told_with_its_place_and_its_cause() {
    let (disk, runtime) = (CrashDisk::new(4), StepRuntime::default());
    let mut opened = open_all(&disk, &runtime).unwrap();
    runtime.block_on(opened.files.append(vec![record(0)], Box::new(|_| {}))).unwrap();
    runtime.run();
    runtime.block_on(opened.files.append(vec![record(1)], Box::new(|_| {}))).unwrap();
    disk.power_cycle_with(Loss::TornMid);
    let opened = open(&disk).unwrap();
    let torn = opened.report().torn_tail.expect("half of the record is there");
    assert_eq!((torn.file, torn.position), (segment(1, 0), 4096 + crate::segment::record_bytes(20_000)));
    assert!(torn.what.contains("checksum") && torn.zeroed_bytes > 0, "{}", torn.what);
    drop(opened);
    disk.kill_process();
    assert_eq!(open(&disk).unwrap().report().torn_tail, None, "the next start finds a clean end");
}

/// Pages of one write reach the disk in any order: whatever subset it is, what stands there afterwards is a prefix.
#[test]
fn pages_lost_in_any_order_leave_a_prefix_and_never_a_hole() {
    for seed in 0..200 {
        let (disk, runtime) = (CrashDisk::new(seed), StepRuntime::default());
        let mut opened = open_all(&disk, &runtime).unwrap();
        let small = |index: u64| Record { payload: Bytes::from(vec![index as u8; 150]), ..record(index) };
        runtime.block_on(opened.files.append((0..5).map(small).collect(), Box::new(|_| {}))).unwrap();
        runtime.run();
        runtime.block_on(opened.files.append((5..60).map(small).collect(), Box::new(|_| {}))).unwrap();
        disk.power_cycle_with(Loss::Random);
        for life in 0..2 {
            let opened = open(&disk).unwrap();
            let found = opened.files.view().read_all(LogIndex(0)..LogIndex(100)).unwrap();
            assert!((5..=60).contains(&found.len()), "{} entries", found.len());
            assert!(found.iter().enumerate().all(|(index, record)| *record == small(index as u64)), "seed {seed}");
            drop(opened);
            disk.power_cycle_with(if life == 0 { Loss::All } else { Loss::Nothing });
        }
    }
}

/// Disk full or broken, at each operation of a start and of some life after it: an error and no lie, and the next start finds
/// everything that was promised.
#[test]
fn a_failing_operation_of_any_kind_is_an_error_and_never_a_loss() {
    for op in [Op::Create, Op::Write, Op::SyncFile, Op::SyncDir, Op::Rename, Op::Remove, Op::List, Op::Open, Op::Read] {
        for errno in [libc::EIO, libc::ENOSPC] {
            for before in 0..60 {
                let disk = filled(7, &[2, 5]);
                disk.fail(op, before, errno);
                let runtime = StepRuntime::default();
                let mut acked = 7;
                if let Ok(mut opened) = open_all(&disk, &runtime) {
                    for index in 7..12 {
                        let told = Arc::new(std::sync::Mutex::new(false));
                        let done = told.clone();
                        let done = Box::new(move |result: io::Result<()>| *done.lock().unwrap() = result.is_ok());
                        let written = runtime.block_on(opened.files.append(vec![record(index)], done));
                        runtime.run();
                        if written.is_err() || !*told.lock().unwrap() {
                            break;
                        }
                        acked = index + 1;
                    }
                    if acked == 12 {
                        let _ = runtime.block_on(opened.files.truncate_after(Some(LogIndex(11))));
                        let _ = runtime.block_on(opened.files.purge(EntryId::new(1, 4)));
                        runtime.run();
                    }
                }
                let was_hit = disk.faults_left() == 0;
                disk.power_cycle_with(Loss::All);
                let opened = open(&disk).unwrap_or_else(|error| panic!("{op:?} {before}: {error}"));
                let found = opened.files.view().read_all(LogIndex(5)..LogIndex(100)).unwrap();
                assert!(found.len() as u64 + 5 >= acked, "{op:?} {before}: {} entries of {acked}", found.len() + 5);
                assert!(found.iter().all(|found| *found == record(found.id.index.0)));
                if !was_hit {
                    break;
                }
            }
        }
    }
}

/// A start needs no space of its own: what is there is found and can be voted on, however full the disk.
#[test]
fn a_start_on_a_full_disk_finds_everything_and_can_vote() {
    let disk = filled(7, &[2, 5]);
    let names = disk.list(Path::new("/log")).unwrap();
    let used: u64 = names.iter().map(|name| disk.open(&at(name)).unwrap().len()).sum();
    disk.set_bytes_max(used);
    let runtime = StepRuntime::default();
    let mut opened = open_all(&disk, &runtime).unwrap();
    assert_eq!(disk.free_bytes(Path::new("/log")).unwrap(), 0);
    assert_eq!(opened.restored.as_ref().map(|(last, _)| last.0), Some(5));
    assert_eq!(opened.files.view().read_all(LogIndex(0)..LogIndex(100)).unwrap().len(), 7);
    let vote = SavedVote { term: Term(9), node: NodeId(2), committed: false };
    runtime.block_on(opened.files.save_vote(vote)).unwrap();
    drop(opened);
    disk.power_cycle_with(Loss::All);
    assert_eq!(open(&disk).unwrap().files.view().vote(), Some(vote));
}
