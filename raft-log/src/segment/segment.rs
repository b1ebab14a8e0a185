//! A segment in memory: its file, the range of the log it still stands for, and how to read from it.

use std::io;
use std::path::Path;
use std::sync::Arc;

use flotilla_planted_bugs::{Bug, is_planted};

use super::examination::Examined;
use super::header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use super::positions::Positions;
use super::read_ahead::ReadAhead;
use super::record::{RECORD_HEADER_BYTES, Record, RecordHeader, record_bytes};
use super::summary::Summary;
use crate::ids::EntryId;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::{Corruption, DiskFile, LogIndex, Term};

/// A segment and the entries `header.first..end` that it stands for.
pub(crate) struct Segment {
    pub(crate) path: Arc<Path>,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) header: SegmentHeader,
    /// The index after its last entry; `header.first` if it has none.
    pub(crate) end: LogIndex,
    /// Where the record after the last one goes.
    pub(crate) position: u64,
    positions: Positions,
}

/// A stretch of one segment, readable without any lock: files are never overwritten where a record stands.
pub(crate) struct SegmentPart {
    path: Arc<Path>,
    file: Arc<dyn DiskFile>,
    file_bytes: u64,
    reader: ReadAhead,
    sequence: u64,
    /// The record at `position` has the index `at`.
    at: LogIndex,
    position: u64,
    from: LogIndex,
    end: LogIndex,
}

/// How closely a scan looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Check {
    /// Headers, lengths, continuity.
    Headers,
    /// The checksum of every record too.
    Checksums,
}

impl Segment {
    /// A segment without entries.
    pub(crate) fn new(path: impl Into<Arc<Path>>, file: Arc<dyn DiskFile>, header: SegmentHeader) -> Segment {
        let end = header.first;
        Segment {
            path: path.into(),
            file,
            header,
            end,
            position: SEGMENT_HEADER_BYTES,
            positions: Positions::default(),
        }
    }

    /// Notes the record that was written at `position`.
    pub(crate) fn push(&mut self, index: LogIndex, payload_bytes: usize) {
        assert_eq!(index, self.end, "records of a segment are dense");
        self.positions.push(index.0 - self.header.first.0, self.position);
        self.position += record_bytes(payload_bytes);
        self.end = index.next();
    }

    /// Takes over where an examination of this very file found its records.
    pub(crate) fn take_positions(&mut self, examined: Examined) {
        self.positions = examined.positions;
        self.positions.truncate(self.end.0 - self.header.first.0);
    }

    /// Stands for the entries before `end`, as an examination of its file found them.
    pub(crate) fn adopt(&mut self, examined: Examined, end: LogIndex) {
        self.end = end;
        self.position = examined.position;
        self.take_positions(examined);
    }

    /// Reads from `file`, which holds the same entries, from now on.
    pub(crate) fn replace_file(&mut self, file: Arc<dyn DiskFile>, examined: Examined) {
        self.file = file;
        self.take_positions(examined);
        self.positions.thin();
    }

    /// Lets go of `end` and everything after it. The bytes stay in the file: a later file overrides them.
    pub(crate) fn truncate(&mut self, end: LogIndex) {
        assert!(end >= self.header.first && end <= self.end, "truncation stays within the segment");
        self.positions.truncate(end.0 - self.header.first.0);
        self.end = end;
    }

    /// Nothing more will be written to it. `runs` are the terms of its entries. `None` if it has no entries.
    pub(crate) fn seal(&mut self, runs: Vec<(LogIndex, Term)>) -> Option<Summary> {
        if self.end == self.header.first {
            return None;
        }
        self.positions.thin();
        Some(Summary {
            identity: self.header.identity,
            sequence: self.header.sequence,
            first: self.header.first,
            end: self.end,
            position: self.position,
            runs,
            marks: self.positions.marks().to_vec(),
        })
    }

    /// Takes what its summary says, up to `end`, instead of a scan.
    pub(crate) fn restore(&mut self, summary: Summary, end: LogIndex) {
        assert!(end > self.header.first && end <= summary.end, "the summary covers what is wanted");
        self.positions = Positions::from_marks(summary.marks);
        self.position = summary.position;
        self.end = summary.end;
        self.truncate(end);
    }

    /// Bytes of its records from `from` on, which it holds, or from a mark a little before.
    pub(crate) fn bytes_from(&self, from: LogIndex) -> u64 {
        let mark = self.positions.mark_before(from.0 - self.header.first.0);
        mark.map_or(0, |(_, position)| self.position.saturating_sub(position))
    }

    /// Where its records before `end`, which it stands for, are over, or a little behind that.
    pub(crate) fn position_behind(&self, end: LogIndex) -> u64 {
        let mark = self.positions.mark_from(end.0.saturating_sub(self.header.first.0));
        mark.map_or(self.position, |(_, position)| position)
    }

    /// The stretch `from..end` of this segment, both within it. A cold one is far behind the log's tail.
    pub(crate) fn part(&self, from: LogIndex, end: LogIndex, is_cold: bool) -> SegmentPart {
        assert!(from >= self.header.first && end <= self.end && from < end, "the stretch lies within the segment");
        let first = self.header.first.0;
        let (marked, position) = self.positions.mark_before(from.0 - first).expect("the first record has a mark");
        let read_to = self.positions.mark_from(end.0 - first).map_or(self.position, |(_, position)| position);
        SegmentPart {
            path: self.path.clone(),
            file: self.file.clone(),
            file_bytes: self.file.len(),
            reader: ReadAhead::new(self.file.clone(), read_to, is_cold),
            sequence: self.header.sequence,
            at: LogIndex(first + marked),
            position,
            from,
            end,
        }
    }
}

impl SegmentPart {
    /// The sequence of the file, and the file.
    pub(crate) fn source(&self) -> (u64, &Arc<dyn DiskFile>) {
        (self.sequence, &self.file)
    }

    /// The next record of the stretch, checked; `None` behind its end.
    pub(crate) fn next(&mut self) -> Option<Result<Record, PartError>> {
        while self.at < self.from {
            if let Err(error) = self.header_here().map(|(header, _)| self.step(&header)) {
                self.from = self.end;
                return Some(Err(error));
            }
        }
        if self.at >= self.end {
            return None;
        }
        let record = self.header_here().and_then(|(header, header_bytes)| {
            let payload = self.bytes(self.position + RECORD_HEADER_BYTES as u64, header.payload_bytes)?;
            if !header.matches(&header_bytes, &payload) {
                return Err(self.corrupt("record does not match its checksum"));
            }
            self.step(&header);
            Ok(Record { id: header.id, kind: header.kind, payload })
        });
        if record.is_err() {
            self.at = self.end;
        }
        Some(record)
    }

    fn header_here(&mut self) -> Result<(RecordHeader, bytes::Bytes), PartError> {
        let bytes = self.bytes(self.position, RECORD_HEADER_BYTES)?;
        let header = RecordHeader::decode(&bytes, self.sequence).map_err(|what| self.corrupt(what))?;
        // Lengths are believed only as far as the file goes.
        let room = self.file_bytes.saturating_sub(self.position);
        if header.payload_bytes > PAYLOAD_BYTES_MAX || record_bytes(header.payload_bytes) > room {
            return Err(self.corrupt(&format!("payload of {} bytes is too long", header.payload_bytes)));
        }
        if header.id.index != self.at {
            return Err(self.corrupt(&format!("entry {} stands where {} should", header.id, self.at)));
        }
        Ok((header, bytes))
    }

    /// A sector that the disk cannot give, or a file that was shortened, is damage like any other.
    fn bytes(&mut self, position: u64, len: usize) -> Result<bytes::Bytes, PartError> {
        self.reader.get(position, len).map_err(|error| {
            let is_damage = error.raw_os_error() == Some(libc::EIO) || error.kind() == io::ErrorKind::UnexpectedEof;
            if is_damage { self.corrupt(&format!("disk does not give its bytes: {error}")) } else { error.into() }
        })
    }

    fn step(&mut self, header: &RecordHeader) {
        self.position += record_bytes(header.payload_bytes);
        self.at = self.at.next();
    }

    fn corrupt(&self, what: &str) -> PartError {
        PartError::Corrupt(Corruption { path: self.path.to_path_buf(), offset: self.position, what: what.to_owned() })
    }
}

/// Why a stretch cannot be read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PartError {
    #[error(transparent)]
    Corrupt(Corruption),
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// Walks the records of `segment` (which must be empty in memory) up to `end` or as far as they are sound, and notes
/// them. Returns what is wrong at the place where it stopped, `None` if it reached `end` or the end of the file.
pub(crate) fn scan_segment(
    segment: &mut Segment,
    end: Option<LogIndex>,
    check: Check,
    mut found: impl FnMut(EntryId),
) -> io::Result<Option<String>> {
    let mut last = segment.header.previous;
    let mut reader = ReadAhead::new(segment.file.clone(), segment.file.len(), false);
    loop {
        if end.is_some_and(|end| segment.end >= end) {
            return Ok(None);
        }
        let room = segment.file.len().saturating_sub(segment.position);
        if room < RECORD_HEADER_BYTES as u64 {
            return Ok(None);
        }
        let header_bytes = reader.get(segment.position, RECORD_HEADER_BYTES)?;
        let header = match RecordHeader::decode(&header_bytes, segment.header.sequence) {
            Ok(header) => header,
            Err(what) => return Ok(Some(what.to_owned())),
        };
        if header.id.index != segment.end {
            return Ok(Some(format!("entry {} stands where {} should", header.id, segment.end)));
        }
        if let Some(last) = last
            && header.id.term < last.term
        {
            return Ok(Some(format!("entry {} follows {last}: terms never fall", header.id)));
        }
        if header.payload_bytes > PAYLOAD_BYTES_MAX {
            return Ok(Some(format!("payload of {} bytes is too long", header.payload_bytes)));
        }
        if record_bytes(header.payload_bytes) > room {
            return Ok(Some(format!("record of {} bytes passes the end of the file", header.payload_bytes)));
        }
        if check == Check::Checksums && !is_planted(Bug::TailNotChecked) {
            let payload = reader.get(segment.position + RECORD_HEADER_BYTES as u64, header.payload_bytes)?;
            if !header.matches(&header_bytes, &payload) {
                return Ok(Some("record does not match its checksum".to_owned()));
            }
        }
        segment.push(header.id.index, header.payload_bytes);
        last = Some(header.id);
        found(header.id);
    }
}
