//! Makes a damaged segment's file anew: sound stretches copied byte for byte, damaged entries as a peer gave them.
//!
//! ```text
//! <segment>.repair: zeroes ─▶ header ─▶ records ─▶ sync ─▶ examined ─▶ renamed over the segment ─▶ directory synced
//! ```
//! A crash before the rename leaves the damaged file and its marker, one after it the sound file; a leftover `.repair` is
//! removed at the next start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::quarantine::repair_name;
use crate::disk::Disk;
use crate::log_view::Shared;
use crate::segment::{
    DamagedRange, Examination, Examined, Record, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, encode_record,
};
use crate::{DiskFile, LogIndex};

/// Sound stretches are copied in pieces of this many bytes.
const COPY_BYTES: u64 = 1 << 20;

/// What the new file is made of.
pub(super) struct Patient {
    pub(super) header: SegmentHeader,
    pub(super) path: std::path::PathBuf,
    pub(super) file: Arc<dyn DiskFile>,
    /// The entries `header.first..end`, the last one before the position `limit`.
    pub(super) end: LogIndex,
    pub(super) limit: u64,
    pub(super) damaged: Vec<DamagedRange>,
    /// For each damaged range its entries, or none if its bytes are to stay as they are.
    pub(super) healed: Vec<Option<Vec<Record>>>,
}

/// A new file, durable under the segment's name.
pub(super) struct Mended {
    pub(super) file: Arc<dyn DiskFile>,
    pub(super) examined: Examined,
}

/// Blocks.
pub(super) fn mend(disk: &dyn Disk, patient: &Patient) -> io::Result<Mended> {
    let dir = patient.path.parent().expect("segments are in the log's directory");
    let name = patient.path.file_name().and_then(|name| name.to_str()).expect("segments have names of digits");
    let temporary = dir.join(repair_name(name));
    let file = disk.create(&temporary, patient.file.len())?;
    let made = fill(&*file, patient).and_then(|()| {
        file.sync_data()?;
        examine(&temporary, &file, patient)
    });
    let examined = match made {
        Ok(examined) => examined,
        Err(error) => {
            // What is left over is removed here or at the next start.
            let _ = disk.remove(&temporary);
            return Err(error);
        }
    };
    disk.rename(&temporary, &patient.path)?;
    disk.sync_dir(dir)?;
    Ok(Mended { file, examined })
}

fn fill(file: &dyn DiskFile, patient: &Patient) -> io::Result<()> {
    file.write_at(0, &patient.header.encode())?;
    let mut position = SEGMENT_HEADER_BYTES;
    for (range, healed) in patient.damaged.iter().zip(&patient.healed) {
        if range.first == range.end {
            // The header page, which is written by now.
            continue;
        }
        copy(file, patient, position, range.position)?;
        position = range.resumes.unwrap_or(patient.limit);
        let Some(records) = healed else {
            copy(file, patient, range.position, position)?;
            continue;
        };
        let mut buffer = Vec::new();
        records.iter().for_each(|record| encode_record(&mut buffer, record, patient.header.sequence));
        let end = range.position + buffer.len() as u64;
        let fits = range.resumes.map_or(end <= file.len(), |resumes| end == resumes);
        if !fits {
            let what = format!(
                "entries {}..{} take {} bytes, there were {} of them at byte {}",
                range.first,
                range.end,
                buffer.len(),
                position - range.position,
                range.position
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        file.write_at(range.position, &buffer)?;
    }
    let is_open_end = patient.damaged.last().is_some_and(|range| range.first < range.end && range.resumes.is_none());
    if is_open_end { Ok(()) } else { copy(file, patient, position, patient.limit) }
}

fn copy(file: &dyn DiskFile, patient: &Patient, from: u64, end: u64) -> io::Result<()> {
    let mut position = from;
    while position < end {
        let len = usize::try_from((end - position).min(COPY_BYTES)).expect("a piece is at most 1 MiB");
        file.write_at(position, &patient.file.read_uncached(position, len)?)?;
        position += len as u64;
    }
    Ok(())
}

/// The new file read back: everything in it must be sound, but for what was left as it was.
fn examine(path: &Path, file: &Arc<dyn DiskFile>, patient: &Patient) -> io::Result<Examined> {
    let segment = Segment::new(path.to_owned(), file.clone(), patient.header);
    let examined = Examination::up_to(&segment, patient.end, file.len()).run();
    let pairs = patient.damaged.iter().zip(&patient.healed);
    let left = pairs.filter(|(range, healed)| healed.is_none() && range.first < range.end).count();
    if examined.damaged.len() > left {
        let what = format!("mended file is not sound: {:?}", examined.damaged[0]);
        return Err(io::Error::new(io::ErrorKind::InvalidData, what));
    }
    Ok(examined)
}

/// Has readers read the new file. `false` if the log let go of the segment meanwhile; then its file goes too.
pub(super) fn take_over(shared: &Shared, disk: &dyn Disk, patient: &Patient, mended: Mended) -> io::Result<bool> {
    let is_there = {
        let mut state = shared.state_mut();
        let found = state.segments.iter_mut().find(|segment| segment.header.sequence == patient.header.sequence);
        found.map(|segment| segment.replace_file(mended.file, mended.examined)).is_some()
    };
    if !is_there {
        // Truncated or purged while it was mended: the name must not come back.
        let dir = patient.path.parent().expect("segments are in the log's directory");
        disk.remove(&patient.path)?;
        disk.sync_dir(dir)?;
    }
    Ok(is_there)
}
