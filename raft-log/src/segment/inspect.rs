//! Walking the records of a segment to look at all of it, damage included: for tools, never for a replica.

use std::io;

use bytes::Bytes;

use super::header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use super::record::{RECORD_HEADER_BYTES, RecordHeader, RecordKind, record_bytes};
use crate::ids::EntryId;
use crate::{DiskFile, LogIndex};

/// What is behind the last record is searched in pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// One record as it stands in the file.
pub(crate) struct Found {
    pub(crate) id: EntryId,
    pub(crate) kind: RecordKind,
    /// Of its header, bytes from the start of the file.
    pub(crate) position: u64,
    pub(crate) payload_bytes: usize,
    /// `None` unless payloads were asked for.
    pub(crate) payload: Option<Bytes>,
    /// What is wrong with it.
    pub(crate) wrong: Option<String>,
}

/// Where a walk ended.
pub(crate) struct Stop {
    /// The index of the record that would come next.
    pub(crate) end: LogIndex,
    pub(crate) position: u64,
    /// What stands there instead; `None` at the asked end, at zeroes, and at the end of the file.
    pub(crate) wrong: Option<String>,
}

/// Walks the records of `file` from its first one to `end`, or as far as headers make sense. With payloads, checksums and
/// padding are checked too; a record that fails is told with what is wrong, and the walk goes on behind it.
pub(crate) fn walk_segment(
    file: &dyn DiskFile,
    header: &SegmentHeader,
    end: Option<LogIndex>,
    with_payloads: bool,
    visit: &mut dyn FnMut(Found) -> bool,
) -> io::Result<Stop> {
    let mut stop = Stop { end: header.first, position: SEGMENT_HEADER_BYTES, wrong: None };
    let mut last = header.previous;
    loop {
        let room = file.len().saturating_sub(stop.position);
        if end.is_some_and(|end| stop.end >= end) || room < RECORD_HEADER_BYTES as u64 {
            return Ok(stop);
        }
        let header_bytes = file.read_at(stop.position, RECORD_HEADER_BYTES)?;
        let found = match RecordHeader::decode(&header_bytes, header.sequence) {
            Ok(found) => found,
            Err("no record") => return Ok(stop),
            Err(what) => {
                stop.wrong = Some(what.to_owned());
                return Ok(stop);
            }
        };
        let bytes = record_bytes(found.payload_bytes);
        if found.id.index != stop.end || bytes > room {
            stop.wrong = Some(if bytes > room {
                format!("record of {} bytes passes the end of the file", found.payload_bytes)
            } else {
                format!("entry {} stands where {} should", found.id, stop.end)
            });
            return Ok(stop);
        }
        let falls = last.filter(|last| found.id.term < last.term);
        let mut wrong = falls.map(|last| format!("entry {} follows {last}: terms never fall", found.id));
        let mut payload = None;
        if with_payloads {
            let all = file.read_at(stop.position + RECORD_HEADER_BYTES as u64, bytes as usize - RECORD_HEADER_BYTES)?;
            let body = all.slice(..found.payload_bytes);
            if !found.matches(&header_bytes, &body) {
                wrong = Some("record does not match its checksum".to_owned());
            } else if all[found.payload_bytes..].iter().any(|byte| *byte != 0) {
                wrong = Some("bytes between this record and the next are not zero".to_owned());
            }
            payload = Some(body);
        }
        let (id, kind, payload_bytes) = (found.id, found.kind, found.payload_bytes);
        let goes_on = visit(Found { id, kind, position: stop.position, payload_bytes, payload, wrong });
        last = Some(found.id);
        stop.position += bytes;
        stop.end = stop.end.next();
        if !goes_on {
            return Ok(stop);
        }
    }
}

/// The first sound record of this file that stands behind `position` where nothing should: what a start would cut off.
pub(crate) fn record_behind(
    file: &dyn DiskFile,
    header: &SegmentHeader,
    position: u64,
) -> io::Result<Option<(u64, EntryId)>> {
    let mut at = position;
    while at < file.len() {
        let piece = (file.len() - at).min(PIECE_BYTES);
        let bytes = file.read_at(at, piece as usize)?;
        for offset in (0..bytes.len()).step_by(8) {
            let word = &bytes[offset..(offset + 8).min(bytes.len())];
            let place = at + offset as u64;
            if word.iter().all(|byte| *byte == 0) || file.len() - place < RECORD_HEADER_BYTES as u64 {
                continue;
            }
            let header_bytes = file.read_at(place, RECORD_HEADER_BYTES)?;
            let Ok(found) = RecordHeader::decode(&header_bytes, header.sequence) else { continue };
            if record_bytes(found.payload_bytes) > file.len() - place {
                continue;
            }
            let payload = file.read_at(place + RECORD_HEADER_BYTES as u64, found.payload_bytes)?;
            if found.matches(&header_bytes, &payload) {
                return Ok(Some((place, found.id)));
            }
        }
        at += piece;
    }
    Ok(None)
}
