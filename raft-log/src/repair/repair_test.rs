//! Damage met at the start, and repairs that are cut short at every durable step.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::close_off_found;
use super::mend::{Patient, mend, take_over};
use super::quarantine::remove_marker;
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::recovery::open_log;
use crate::segment::{Record, RecordKind, record_bytes};
use crate::testing::{CrashDisk, StepRuntime};
use crate::vote_and_marks::SavedVote;
use crate::{LogConfig, LogIndex, NodeId, OpenError, Term};

const DIR: &str = "/log";
const PAYLOAD_BYTES: usize = 6_000;

fn open(disk: &CrashDisk, runtime: &StepRuntime) -> Result<LogFiles, OpenError> {
    let mut config = LogConfig::new(DIR, "cluster", "group", NodeId(1), [NodeId(1), NodeId(2)]);
    config.segment_bytes = 64 * 1024;
    config.tail_cache_bytes = 2000;
    let files = open_log(&config, Arc::new(disk.clone()), &runtime.handle(), Failure::default())?;
    close_off_found(disk, Path::new(DIR), &files.view(), LogIndex(1000)).expect("the disk does not fail here");
    Ok(files)
}

fn record(index: u64) -> Record {
    let payload = Bytes::from(vec![index as u8; PAYLOAD_BYTES]);
    Record { id: EntryId::new(1 + index / 25, index), kind: RecordKind::Normal, payload }
}

/// Three sealed segments of ten entries, and a tail.
fn grown(seed: u64) -> CrashDisk {
    let (disk, runtime) = (CrashDisk::new(seed), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    for index in 0..36 {
        let flushed = Arc::new(Mutex::new(false));
        let told = flushed.clone();
        let done = Box::new(move |result: std::io::Result<()>| *told.lock().unwrap() = result.is_ok());
        runtime.block_on(files.append(vec![record(index)], done)).unwrap();
        runtime.run();
        assert!(*flushed.lock().unwrap());
    }
    // Tells how far the tail is durable.
    let vote = SavedVote { term: Term(3), node: NodeId(1), committed: false };
    runtime.block_on(files.save_vote(vote)).unwrap();
    drop(files);
    disk.power_cycle();
    disk
}

/// As if the segments had been sealed by a process that could not write their summaries.
fn without_summaries(disk: &CrashDisk) {
    use crate::Disk;
    let names = disk.list(Path::new(DIR)).unwrap();
    for name in names.iter().filter(|name| name.ends_with(".sum")) {
        disk.remove(&Path::new(DIR).join(name)).unwrap();
    }
    disk.sync_dir(Path::new(DIR)).unwrap();
}

fn segment_path(sequence: u64, first: u64) -> PathBuf {
    Path::new(DIR).join(format!("{sequence:020}-{first:020}.seg"))
}

fn position(number: u64) -> u64 {
    4096 + number * record_bytes(PAYLOAD_BYTES)
}

fn unreadable(files: &LogFiles) -> Vec<u64> {
    let view = files.view();
    let (_, last) = view.ends();
    assert_eq!(last, Some(record(35).id), "the end of the log is known");
    (0..36)
        .filter(|index| {
            assert_eq!(view.id_at(LogIndex(*index)), Some(record(*index).id), "so is each entry's id");
            match view.read(LogIndex(*index)..LogIndex(index + 1), 0) {
                Ok(found) => {
                    assert_eq!(found, [record(*index)]);
                    false
                }
                Err(_) => true,
            }
        })
        .collect()
}

#[test]
fn a_start_passes_over_damaged_headers_in_sealed_segments_and_in_the_durable_part_of_the_tail() {
    let disk = grown(1);
    without_summaries(&disk);
    disk.damage(&segment_path(2, 10), position(3) + 20, b"\xff\xff\xff");
    disk.damage(&segment_path(2, 10), position(4) + 4, &[0xff; 4]);
    disk.damage(&segment_path(4, 30), position(2), &[0; 32]);
    let runtime = StepRuntime::default();
    let mut files = open(&disk, &runtime).unwrap();
    assert_eq!(unreadable(&files), [13, 14, 32]);
    let counts = files.shared.damages.counts();
    assert_eq!((counts.entries, counts.segments, counts.first), (3, 2, Some(LogIndex(13))));
    assert!(files.shared.damages.wants_sealed(4));
    // The tail is left alone from here on.
    runtime.block_on(files.append(vec![record(36)], Box::new(|_| {}))).unwrap();
    runtime.run();
    assert_eq!(files.shared.state().segments.last().unwrap().header.first, LogIndex(36));
}

#[test]
fn a_start_is_refused_where_a_term_or_the_end_would_have_to_be_guessed() {
    // Entry 25 is the first one of its term.
    let disk = grown(2);
    disk.damage(&segment_path(3, 20), position(5) + 20, b"\xff");
    assert!(open(&disk, &StepRuntime::default()).is_ok(), "the summary tells");
    disk.power_cycle();
    without_summaries(&disk);
    assert!(matches!(open(&disk, &StepRuntime::default()), Err(OpenError::Corrupt(_))));
    let disk = grown(3);
    disk.damage(&segment_path(4, 30), position(5) + 20, b"\xff");
    assert!(matches!(open(&disk, &StepRuntime::default()), Err(OpenError::Corrupt(_))));
}

#[test]
fn a_repair_cut_short_anywhere_leaves_the_damaged_file_or_the_whole_one() {
    let (mut cut, mut whole) = (0, 0);
    for step in 1.. {
        let disk = grown(step);
        disk.damage(&segment_path(2, 10), position(3) + 100, b"x");
        disk.damage(&segment_path(2, 10), position(9) + 10, b"\xff");
        let runtime = StepRuntime::default();
        let files = open(&disk, &runtime).unwrap();
        files.view().shared.damages.close();
        assert!(files.view().read(LogIndex(13)..LogIndex(14), 0).is_err());
        let shared = files.view().shared.clone();
        let patient = {
            let state = shared.state();
            let segment = &state.segments[1];
            let damaged = crate::segment::Examination::of(segment).run().damaged;
            Patient {
                header: segment.header,
                path: segment.path.to_path_buf(),
                file: segment.file.clone(),
                end: segment.end,
                limit: segment.position,
                healed: damaged.iter().map(|range| Some(vec![record(range.first.0)])).collect(),
                damaged,
            }
        };
        assert_eq!(patient.damaged.len(), 2);
        disk.crash_at(disk.operations() + step);
        let done = mend(&disk, &patient)
            .and_then(|mended| take_over(&shared, &disk, &patient, mended))
            .and_then(|_| remove_marker(&disk, &patient.path));
        if done.is_ok() {
            assert!(unreadable(&files).is_empty());
            assert!(cut > 5 && whole > 0, "{cut} repairs were cut before the rename, {whole} after it");
            return;
        }
        drop((shared, files));
        disk.power_cycle();
        let files = open(&disk, &StepRuntime::default()).unwrap();
        match unreadable(&files)[..] {
            [13, 19] => cut += 1,
            [] => whole += 1,
            ref other => panic!("step {step}: entries {other:?}"),
        }
        use crate::Disk;
        let names = disk.list(Path::new(DIR)).unwrap();
        assert!(names.iter().all(|name| !name.ends_with(".repair")), "{names:?}");
    }
}
