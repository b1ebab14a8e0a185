//! The marker beside a damaged segment: while it is there, the segment is looked at closely at each start.
//!
//! Drawn in `docs/formats/segment.md`. Its existence counts; its text is for people.

use std::io;
use std::path::Path;

use crate::LogIndex;
use crate::disk::{Disk, write_file_atomically};
use crate::log_view::LogView;
use crate::segment::{DamagedRange, Examination, Segment};

const MARKER_SUFFIX: &str = ".quarantine";
const REPAIR_SUFFIX: &str = ".repair";

/// The name of the marker of a segment file.
pub(super) fn marker_name(segment: &str) -> String {
    format!("{segment}{MARKER_SUFFIX}")
}

/// The name under which a segment's new file is made.
pub(crate) fn repair_name(segment: &str) -> String {
    format!("{segment}{REPAIR_SUFFIX}")
}

fn file_name(path: &Path) -> &str {
    path.file_name().and_then(|name| name.to_str()).expect("segments have names of digits")
}

/// Durable when it returns.
pub(super) fn write_marker(disk: &dyn Disk, segment: &Path, ranges: &[DamagedRange]) -> io::Result<()> {
    let mut text = String::from("flotilla quarantine 1\n");
    for range in ranges {
        let line = format!("entries {}..{} at byte {}: {}\n", range.first, range.end, range.position, range.what);
        text.push_str(&line);
    }
    let dir = segment.parent().expect("segments are in the log's directory");
    write_file_atomically(disk, dir, &marker_name(file_name(segment)), text.as_bytes())
}

/// Takes the marker away, durably, if there is one.
pub(super) fn remove_marker(disk: &dyn Disk, segment: &Path) -> io::Result<()> {
    let dir = segment.parent().expect("segments are in the log's directory");
    match disk.remove(&dir.join(marker_name(file_name(segment)))) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(()) => disk.sync_dir(dir),
    }
}

/// At the start: removes what a repair left over, and looks closely at the segments that were closed off and at those that
/// are to be applied again, which hold the entries from `from` on. Blocks.
pub(crate) fn close_off_found(disk: &dyn Disk, dir: &Path, view: &LogView, from: LogIndex) -> io::Result<()> {
    let names = disk.list(dir)?;
    for name in names.iter().filter(|name| name.ends_with(REPAIR_SUFFIX)) {
        disk.remove(&dir.join(name))?;
    }
    let marked: Vec<&str> = names.iter().filter_map(|name| name.strip_suffix(MARKER_SUFFIX)).collect();
    let examinations: Vec<Examination> = {
        let state = view.shared.state();
        let sealed = state.segments.len().saturating_sub(1);
        let is_wanted = |(number, segment): &(usize, &Segment)| {
            marked.contains(&file_name(&segment.path)) || (*number < sealed && segment.end > from)
        };
        state.segments.iter().enumerate().filter(is_wanted).map(|(_, segment)| Examination::of(segment)).collect()
    };
    let looked_at = examinations.len();
    let mut sound: Vec<String> = marked.iter().map(|name| (*name).to_owned()).collect();
    for examination in examinations {
        let (sequence, path) = (examination.sequence(), examination.path().to_owned());
        let examined = examination.run();
        if examined.is_sound() {
            continue;
        }
        sound.retain(|name| name != file_name(&path));
        let ranges = examined.damaged.clone();
        for range in &ranges {
            tracing::error!(
                file = %path.display(), first = %range.first, end = %range.end, position = range.position,
                what = range.what, "damage: entries are closed off until a peer gives them back"
            );
        }
        write_marker(disk, &path, &ranges)?;
        let is_tail = {
            let mut state = view.shared.state_mut();
            let tail = state.segments.last().map(|segment| segment.header.sequence);
            if let Some(segment) = state.segments.iter_mut().find(|segment| segment.header.sequence == sequence) {
                segment.take_positions(examined);
            }
            tail == Some(sequence)
        };
        if is_tail {
            view.shared.damages.want_sealed(sequence);
        }
        view.shared.damages.quarantine(sequence, ranges);
    }
    // Mended by a process that died before it took the marker away, or gone since.
    for name in sound {
        remove_marker(disk, &dir.join(name))?;
    }
    tracing::info!(segments = looked_at, damaged = view.shared.damages.counts().segments, "checksums checked at start");
    Ok(())
}
