//! At the start: passes over damaged records where all else about their entries is known for sure.
//!
//! An entry's index follows from its neighbours, and so does its term if both have the same. Where they differ, or where the
//! log's end itself is damaged, nothing is guessed: a wrong term could elect a wrong leader. The start is refused then.

use super::quarantine::write_marker;
use crate::disk::Disk;
use crate::ids::EntryId;
use crate::segment::{Examination, Examined, Segment};
use crate::term_runs::TermRuns;
use crate::{LogIndex, OpenError};

/// Takes a sealed segment for what it is but for its damaged records: it holds the entries before `end`. False if that
/// cannot be known; the segment is unchanged then. Its last record must be sound: where there is none, a whole file may be
/// missing.
pub(crate) fn scan_around(
    disk: &dyn Disk,
    segment: &mut Segment,
    end: LogIndex,
    terms: &mut TermRuns,
    last: &mut Option<EntryId>,
) -> Result<bool, OpenError> {
    let examined = Examination::up_to(segment, end, segment.file.len()).run();
    let Some(found) = known_last(&examined).filter(|found| found.index.next() == end) else { return Ok(false) };
    take(disk, segment, examined, end, terms)?;
    *last = Some(found);
    Ok(true)
}

/// The last entry, if that is sound and all damaged ones lie between sound ones of the same term.
fn known_last(examined: &Examined) -> Option<EntryId> {
    let is_known =
        examined.damaged.iter().all(|range| range.first == range.end || range.terms.1 == Some(range.terms.0));
    examined.last.filter(|_| is_known)
}

/// The same for the segment that was written to, up to the position `floor`, which was durable: the record before it must
/// be sound.
pub(crate) fn scan_around_to(
    disk: &dyn Disk,
    segment: &mut Segment,
    floor: u64,
    terms: &mut TermRuns,
    last: &mut Option<EntryId>,
) -> Result<bool, OpenError> {
    let mut examination = Examination::up_to(segment, LogIndex(u64::MAX), floor);
    while examination.position() < floor && examination.step(1) > 0 {}
    let examined = examination.finish();
    let found = known_last(&examined).filter(|_| examined.position == floor);
    let Some(found) = found else { return Ok(false) };
    take(disk, segment, examined, found.index.next(), terms)?;
    *last = Some(found);
    Ok(true)
}

fn take(
    disk: &dyn Disk,
    segment: &mut Segment,
    examined: Examined,
    end: LogIndex,
    terms: &mut TermRuns,
) -> Result<(), OpenError> {
    // So that the segment is closed off as soon as the log is open.
    write_marker(disk, &segment.path, &examined.damaged)
        .map_err(|source| OpenError::Io { path: segment.path.to_path_buf(), source })?;
    let first = segment.header.first;
    terms.truncate(first);
    // A segment that begins with damage: the entries before its first sound one have that one's term.
    for (number, id) in examined.found.iter().enumerate() {
        terms.push(if number == 0 { EntryId { index: first, ..*id } } else { *id });
    }
    tracing::warn!(
        file = %segment.path.display(), ranges = examined.damaged.len(), %end,
        "damage: passed over at the start, what is damaged is known from its neighbours"
    );
    segment.adopt(examined, end);
    Ok(())
}
