//! Every place of every kind of file, damaged one at a time: `examine` must find it, but where bytes are dead.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;

use super::{Depth, Examination, OfflineDisk, OfflineError, OfflineLog, SegmentState};
use crate::testing::{CrashDisk, Loss, Model, Step, StepRuntime, open_all};
use crate::{Disk, LogIndex, OsDisk, read_file, write_file_atomically};

const DIR: &str = "/log";

fn at(name: &str) -> PathBuf {
    Path::new(DIR).join(name)
}

/// A stopped replica's directory: five segments and more, one cut short by a truncation, checkpoints, a purge mark.
fn stopped(script: &[Step]) -> CrashDisk {
    let disk = CrashDisk::new(1);
    let runtime = StepRuntime::default();
    let mut opened = open_all(&disk, &runtime).unwrap();
    let mut model = Model::default();
    for step in script {
        model.step(*step, &mut opened, &runtime);
    }
    runtime.block_on(opened.files.view().close());
    drop(opened);
    disk.power_cycle_with(Loss::Nothing);
    disk
}

fn append(count: u64, payload_bytes: usize) -> Step {
    Step::Append { count, payload_bytes }
}

fn usual() -> CrashDisk {
    use Step::{Checkpoint, Commit, Settle, Vote};
    stopped(&[
        Vote,
        append(5, 300),
        Settle,
        Checkpoint,
        append(3, 20_000),
        Settle,
        Commit,
        append(4, 100),
        Step::Truncate { permille: 500 },
        Vote,
        append(3, 25_001),
        Settle,
        Checkpoint,
        Commit,
        append(2, 30_000),
        Settle,
        Checkpoint,
        Step::Purge { permille: 200 },
        Settle,
        Vote,
        append(6, 77),
        Settle,
        Commit,
    ])
}

fn look(disk: &CrashDisk) -> Examination {
    OfflineLog::open(Arc::new(disk.clone()), DIR, false).unwrap().examine(Depth::Checksums).unwrap()
}

/// Whether a file's bytes at `offset` count for nothing, so that no tool can tell whether they are as they were.
fn is_dead(sound: &Examination, name: &str, offset: u64) -> bool {
    // The next file, made ahead: a start makes another unless its first page is zero, and what follows is written over.
    if name == "next.prepared" {
        return true;
    }
    let Some(segment) = sound.segments.iter().find(|segment| segment.file == name) else { return false };
    match segment.state {
        // Zeroes not yet written to, or, in a truncated file, records that a later file overrides.
        SegmentState::Tail | SegmentState::Sealed => offset >= segment.used_bytes,
        // The next start removes it; only its header is looked at before.
        SegmentState::Dead => offset >= 4096,
        SegmentState::Unreadable => false,
    }
}

#[test]
fn a_sound_directory_has_no_damage_and_all_its_parts() {
    let disk = usual();
    let sound = look(&disk);
    assert_eq!(sound.damages, [], "{sound:#?}");
    assert_eq!(sound.identity.as_ref().map(|identity| identity.node), Some(1));
    let states: Vec<_> = sound.segments.iter().map(|segment| segment.state).collect();
    assert!(states.ends_with(&[SegmentState::Sealed, SegmentState::Tail]) && states.len() >= 4, "{states:?}");
    assert!(sound.checkpoints.len() >= 2 && sound.purged.is_some() && sound.committed.is_some(), "{sound:#?}");
    let opened = open_all(&disk, &StepRuntime::default()).unwrap();
    let (purged, last) = opened.files.view().ends();
    assert_eq!((sound.first, sound.end), (purged.unwrap().index.0 + 1, last.unwrap().index.0 + 1));
    drop(opened);
    disk.kill_process();
    let log = OfflineLog::open(Arc::new(disk.clone()), DIR, false).unwrap();
    let mut rows = Vec::new();
    log.records(LogIndex(0)..LogIndex(u64::MAX), &mut |row| {
        rows.push((row.index, row.payload_bytes, row.damage.is_none()));
        true
    })
    .unwrap();
    assert_eq!(rows.len() as u64, sound.end - sound.first);
    assert!(rows.iter().zip(sound.first..).all(|(row, index)| row.0 == index && row.2));
    let mut some = Vec::new();
    log.records(LogIndex(sound.first + 2)..LogIndex(sound.first + 5), &mut |row| {
        some.push(row.index);
        some.len() < 2
    })
    .unwrap();
    assert_eq!(some, [sound.first + 2, sound.first + 3], "a range, until the visitor has enough");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn a_flipped_bit_anywhere_is_found(file: prop::sample::Index, place: prop::sample::Index, bit in 0..8_u32, head: bool) {
        thread_local! {
            static DISK: (CrashDisk, Examination) = { let disk = usual(); let sound = look(&disk); (disk, sound) };
        }
        DISK.with(|(disk, sound)| {
            let names = disk.list(Path::new(DIR)).unwrap();
            let name = file.get(&names);
            let len = disk.open(&at(name)).unwrap().len();
            // Half of the places in the first two pages, where the small fields are.
            let offset = if len == 0 { return } else { place.index(if head { len.min(8192) } else { len } as usize) as u64 };
            let was = disk.open(&at(name)).unwrap().read_at(offset, 1).unwrap()[0];
            disk.damage(&at(name), offset, &[was ^ (1 << bit)]);
            let found = look(disk).damages;
            disk.damage(&at(name), offset, &[was]);
            let named = found.iter().any(|damage| damage.file == *name || name.starts_with("identity"));
            assert!(named || is_dead(sound, name, offset), "{name} at {offset}, bit {bit}: {found:?}");
        });
    }

    #[test]
    fn a_cut_or_missing_file_is_found(file: prop::sample::Index, place: prop::sample::Index, is_removed: bool) {
        let disk = usual();
        let sound = look(&disk);
        let names = disk.list(Path::new(DIR)).unwrap();
        let name = file.get(&names);
        let len = disk.open(&at(name)).unwrap().len();
        if len == 0 {
            return Ok(());
        }
        if is_removed {
            disk.remove(&at(name)).unwrap();
        } else {
            disk.cut(&at(name), place.index(len as usize) as u64);
        }
        let found = look(&disk).damages;
        let segment = sound.segments.iter().find(|segment| segment.file == *name);
        // Not missed: what the next start makes or removes anyhow, and a checkpoint that others (or the whole log) stand in for.
        let is_spare = segment.is_some_and(|segment| segment.state == SegmentState::Dead)
            || name == "next.prepared"
            || name.ends_with(".sum")
            || name.starts_with("checkpoint-");
        prop_assert!(!found.is_empty() || is_removed && is_spare || name == "next.prepared", "{name}: {sound:?}");
    }
}

#[test]
fn the_last_checkpoint_that_a_purged_log_needs_is_missed() {
    let disk = usual();
    for name in disk.list(Path::new(DIR)).unwrap().iter().filter(|name| name.starts_with("checkpoint-")) {
        disk.remove(&at(name)).unwrap();
    }
    let found = look(&disk).damages;
    assert!(found.iter().any(|damage| damage.what.contains("newest sound checkpoint is at None")), "{found:?}");
}

#[test]
fn entries_behind_a_hole_are_found() {
    let disk = usual();
    let sound = look(&disk);
    let tail = sound.segments.last().unwrap();
    // A page of the tail that was lost: zeroes where records stood.
    let record = crate::segment::record_bytes(77);
    let start = tail.used_bytes - 3 * record;
    disk.damage(&at(&tail.file), start, &vec![0; record as usize]);
    let found = look(&disk).damages;
    assert!(found.iter().any(|damage| damage.file == tail.file && damage.offset == start), "{found:?}");
}

#[test]
fn a_missing_last_segment_and_a_lost_vote_are_found() {
    let disk = usual();
    let tail = look(&disk).segments.last().unwrap().file.clone();
    disk.remove(&at(&tail)).unwrap();
    let found = look(&disk).damages;
    assert!(found.iter().any(|damage| damage.what.contains("is missing")), "{found:?}");

    let disk = usual();
    let older = stopped(&[Step::Vote, append(1, 10), Step::Settle, Step::Vote, Step::Commit]);
    let bytes = read_file(&older, &at("vote-and-marks")).unwrap();
    write_file_atomically(&disk, Path::new(DIR), "vote-and-marks", &bytes).unwrap();
    let found = look(&disk).damages;
    assert!(found.iter().any(|damage| damage.what.contains("newest vote is of term")), "{found:?}");
}

#[test]
fn a_directory_in_use_is_refused_unless_forced_and_one_without_a_log_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let open =
        |force| OfflineLog::open(Arc::new(OfflineDisk), dir.path(), force).map(|log| log.examine(Depth::Checksums));
    assert!(matches!(open(false), Err(OfflineError::NotALog { .. })));
    let disk = usual();
    for name in disk.list(Path::new(DIR)).unwrap() {
        std::fs::write(dir.path().join(&name), read_file(&disk, &at(&name)).unwrap()).unwrap();
    }
    let from_files = open(false).unwrap().unwrap();
    assert_eq!(from_files.damages, []);
    assert_eq!(from_files.segments, look(&disk).segments, "the same from real files as from memory");
    let held = OsDisk.lock(&dir.path().join("lock")).unwrap();
    assert!(matches!(open(false), Err(OfflineError::InUse { .. })));
    assert_eq!(open(true).unwrap().unwrap().damages, []);
    drop(held);
}
