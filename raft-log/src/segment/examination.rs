//! A close look at a whole segment: every record against its checksum, and on past a damaged one to the next that is sound.

use std::path::PathBuf;
use std::sync::Arc;

use bytes::Bytes;

use super::header::SEGMENT_HEADER_BYTES;
use super::positions::Positions;
use super::record::{RECORD_HEADER_BYTES, RecordHeader, record_bytes};
use super::segment::Segment;
use crate::ids::EntryId;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::{DiskFile, LogIndex, Term};

/// Bytes that are read at once.
const WINDOW_BYTES: u64 = 1 << 20;
/// Records begin at multiples of this.
const ALIGN_BYTES: u64 = 8;
const UNREADABLE: &str = "disk does not give its bytes";

/// Entries of a segment that do not read back as they were written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DamagedRange {
    /// The first of them.
    pub(crate) first: LogIndex,
    /// The one after the last of them; `first` if only the file's header page is damaged.
    pub(crate) end: LogIndex,
    /// Where the first of them begins in the file.
    pub(crate) position: u64,
    /// Where the next sound record begins; `None` if none follows.
    pub(crate) resumes: Option<u64>,
    /// The terms of the sound neighbours; the damaged entries' terms lie between them.
    pub(crate) terms: (Term, Option<Term>),
    /// What is wrong with the first of them.
    pub(crate) what: String,
}

/// What an examination found.
pub(crate) struct Examined {
    /// Growing, disjoint; empty for a sound segment.
    pub(crate) damaged: Vec<DamagedRange>,
    /// Where records are, with a mark at and behind each damaged range.
    pub(super) positions: Positions,
    /// The first sound entry of each term.
    pub(crate) found: Vec<EntryId>,
    /// The last sound entry.
    pub(crate) last: Option<EntryId>,
    /// Where the record after the last one goes.
    pub(crate) position: u64,
}

impl Examined {
    pub(crate) fn is_sound(&self) -> bool {
        self.damaged.is_empty()
    }
}

/// An examination under way. It may take long: do it in steps.
pub(crate) struct Examination {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    sequence: u64,
    first: LogIndex,
    /// Entries before this one are expected to be there.
    end: LogIndex,
    index: LogIndex,
    position: u64,
    /// No record begins here or later.
    limit: u64,
    term: Term,
    header_page: Vec<u8>,
    is_header_checked: bool,
    window: Bytes,
    window_at: u64,
    examined: Examined,
}

impl Examination {
    /// Of all entries that the segment stands for.
    pub(crate) fn of(segment: &Segment) -> Examination {
        Examination::up_to(segment, segment.end, segment.position)
    }

    /// Of the entries before `end`, whose records lie before the position `limit`.
    pub(crate) fn up_to(segment: &Segment, end: LogIndex, limit: u64) -> Examination {
        Examination {
            path: segment.path.to_path_buf(),
            file: segment.file.clone(),
            sequence: segment.header.sequence,
            first: segment.header.first,
            end,
            index: segment.header.first,
            position: SEGMENT_HEADER_BYTES,
            limit: limit.min(segment.file.len()),
            term: segment.header.previous.map_or(Term(0), |previous| previous.term),
            header_page: segment.header.encode(),
            is_header_checked: false,
            window: Bytes::new(),
            window_at: 0,
            examined: Examined {
                damaged: Vec::new(),
                positions: Positions::default(),
                found: Vec::new(),
                last: None,
                position: SEGMENT_HEADER_BYTES,
            },
        }
    }

    /// Where it is.
    pub(crate) fn position(&self) -> u64 {
        self.position
    }

    pub(crate) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(crate) fn file(&self) -> &Arc<dyn DiskFile> {
        &self.file
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        &self.path
    }

    /// Looks at the next `bytes`, about. Returns how many it looked at; 0 when all is seen.
    pub(crate) fn step(&mut self, bytes: u64) -> u64 {
        let began = self.position;
        if !self.is_header_checked {
            self.is_header_checked = true;
            let page = self.file.read_uncached(0, SEGMENT_HEADER_BYTES as usize);
            let is_sound = page.is_ok_and(|page| page[..] == self.header_page[..]);
            if !is_sound {
                self.examined.damaged.push(DamagedRange {
                    first: self.first,
                    end: self.first,
                    position: 0,
                    resumes: Some(SEGMENT_HEADER_BYTES),
                    terms: (self.term, None),
                    what: "header page is not what it was".to_owned(),
                });
            }
        }
        while self.index < self.end && self.position - began < bytes {
            match self.record_at(self.position) {
                Ok(header) if self.is_next(&header, self.index) => self.note(&header),
                Ok(header) => {
                    let what = format!("entry {} stands where {} should", header.id, self.index);
                    self.resync(what);
                }
                Err(what) => self.resync(what.to_owned()),
            }
        }
        self.position - began
    }

    /// All at once.
    pub(crate) fn run(mut self) -> Examined {
        while self.step(u64::MAX) > 0 {}
        self.finish()
    }

    /// What was found so far.
    pub(crate) fn finish(mut self) -> Examined {
        self.examined.position = self.position;
        self.examined
    }

    fn is_next(&self, header: &RecordHeader, from: LogIndex) -> bool {
        header.id.index == from && header.id.term >= self.term
    }

    fn note(&mut self, header: &RecordHeader) {
        self.examined.positions.push(self.index.0 - self.first.0, self.position);
        if self.examined.found.last().is_none_or(|last| last.term != header.id.term) {
            self.examined.found.push(header.id);
        }
        self.examined.last = Some(header.id);
        self.term = header.id.term;
        self.position += record_bytes(header.payload_bytes);
        self.index = self.index.next();
    }

    /// The record here is damaged: goes on with the next sound one.
    fn resync(&mut self, what: String) {
        let mut candidate = self.claimed_next().filter(|next| *next < self.limit);
        let mut searched = self.position;
        let found = loop {
            let position = match candidate.take() {
                Some(claimed) => claimed,
                None => {
                    searched += ALIGN_BYTES;
                    if searched + RECORD_HEADER_BYTES as u64 > self.limit {
                        break None;
                    }
                    searched
                }
            };
            if let Ok(header) = self.header_at(position)
                && header.id.index > self.index
                && header.id.index < self.end
                && header.id.term >= self.term
                && let Ok(header) = self.record_at(position)
            {
                break Some((position, header));
            }
        };
        self.examined.positions.push_marked(self.index.0 - self.first.0, self.position);
        let end = found.as_ref().map_or(self.end, |(_, header)| header.id.index);
        self.examined.damaged.push(DamagedRange {
            first: self.index,
            end,
            position: self.position,
            resumes: found.as_ref().map(|(position, _)| *position),
            terms: (self.term, found.as_ref().map(|(_, header)| header.id.term)),
            what,
        });
        self.index = end;
        match found {
            Some((position, header)) => {
                self.position = position;
                self.examined.positions.push_marked(self.index.0 - self.first.0, self.position);
                self.note(&header);
            }
            None => self.position = self.limit.max(self.position),
        }
    }

    /// Where the next record would begin if the damaged one's length is still right.
    fn claimed_next(&mut self) -> Option<u64> {
        let claimed = self.header_at(self.position).ok();
        claimed.map(|header| self.position + record_bytes(header.payload_bytes))
    }

    /// Only the header, unchecked.
    fn header_at(&mut self, position: u64) -> Result<RecordHeader, &'static str> {
        if position + RECORD_HEADER_BYTES as u64 > self.file.len() {
            return Err("file ends");
        }
        let Some(bytes) = self.bytes_at(position, RECORD_HEADER_BYTES as u64) else { return Err(UNREADABLE) };
        RecordHeader::decode(&bytes, self.sequence).and_then(|header| {
            let is_plausible = header.payload_bytes <= PAYLOAD_BYTES_MAX
                && record_bytes(header.payload_bytes) <= self.file.len() - position;
            if is_plausible { Ok(header) } else { Err("record passes the end of the file") }
        })
    }

    fn record_at(&mut self, position: u64) -> Result<RecordHeader, &'static str> {
        let header = self.header_at(position)?;
        let Some(whole) = self.bytes_at(position, record_bytes(header.payload_bytes)) else { return Err(UNREADABLE) };
        let (header_bytes, rest) = whole.split_at(RECORD_HEADER_BYTES);
        let (payload, padding) = rest.split_at(header.payload_bytes);
        if !header.matches(header_bytes, payload) {
            return Err("record does not match its checksum");
        }
        if padding.iter().any(|byte| *byte != 0) {
            return Err("padding of the record is not zero");
        }
        Ok(header)
    }

    /// `None` if the disk does not give these bytes. A bad sector costs the records in it, not those beside it.
    fn bytes_at(&mut self, position: u64, len: u64) -> Option<Bytes> {
        let is_inside = position >= self.window_at && position + len <= self.window_at + self.window.len() as u64;
        if !is_inside {
            let wanted = len.max(WINDOW_BYTES).min(self.file.len() - position);
            let read = self.file.read_uncached(position, usize_of(wanted));
            self.window = read.or_else(|_| self.file.read_uncached(position, usize_of(len))).ok()?;
            self.window_at = position;
        }
        let from = usize_of(position - self.window_at);
        Some(self.window.slice(from..from + usize_of(len)))
    }
}

fn usize_of(bytes: u64) -> usize {
    usize::try_from(bytes).expect("pieces of a segment fit into memory")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::record::{Record, RecordKind, encode_record};
    use super::super::{SegmentHeader, segment::Segment};
    use super::*;
    use crate::{Disk, OsDisk};

    /// A segment of `count` entries of mixed lengths and terms, on disk and in memory.
    fn segment(dir: &std::path::Path, count: u64) -> (Segment, Vec<u64>) {
        let header = SegmentHeader {
            identity: 1,
            sequence: 7,
            segment_bytes: 64 * 1024,
            first: LogIndex(100),
            previous: Some(EntryId::new(3, 99)),
        };
        let path = dir.join(header.file_name());
        let file = OsDisk.create(&path, header.segment_bytes).unwrap();
        file.write_at(0, &header.encode()).unwrap();
        let mut segment = Segment::new(path, file.clone(), header);
        let mut starts = Vec::new();
        for number in 0..count {
            let payload = vec![number as u8; (number * 37 % 500) as usize];
            let record = Record {
                id: EntryId::new(3 + number / 20, 100 + number),
                kind: RecordKind::Normal,
                payload: payload.into(),
            };
            let mut buffer = Vec::new();
            encode_record(&mut buffer, &record, 7);
            file.write_at(segment.position, &buffer).unwrap();
            starts.push(segment.position);
            segment.push(record.id.index, record.payload.len());
        }
        (segment, starts)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn any_flipped_byte_is_found_and_costs_no_other_record(place: prop::sample::Index, flip in 1u8..) {
            let dir = tempfile::tempdir().unwrap();
            let (segment, starts) = segment(dir.path(), 60);
            let at = place.index(segment.position as usize) as u64;
            let byte = segment.file.read_at(at, 1).unwrap()[0];
            segment.file.write_at(at, &[byte ^ flip]).unwrap();
            let examined = Examination::of(&segment).run();
            prop_assert_eq!(examined.damaged.len(), 1);
            let damaged = &examined.damaged[0];
            if at < SEGMENT_HEADER_BYTES {
                prop_assert_eq!((damaged.first, damaged.end), (LogIndex(100), LogIndex(100)));
            } else {
                let hit = starts.partition_point(|start| *start <= at) as u64 - 1;
                prop_assert_eq!((damaged.first, damaged.end), (LogIndex(100 + hit), LogIndex(101 + hit)));
                prop_assert_eq!(damaged.resumes, starts.get(hit as usize + 1).copied());
            }
        }
    }

    #[test]
    fn a_sound_segment_is_found_sound_in_steps_of_any_size() {
        let dir = tempfile::tempdir().unwrap();
        let (segment, _) = segment(dir.path(), 60);
        for bytes in [1, 100, 5000, u64::MAX] {
            let mut examination = Examination::of(&segment);
            let mut seen = 0;
            loop {
                match examination.step(bytes) {
                    0 => break,
                    stepped => seen += stepped,
                }
            }
            let examined = examination.finish();
            assert!(examined.is_sound());
            assert_eq!((SEGMENT_HEADER_BYTES + seen, examined.position), (segment.position, segment.position));
            let terms: Vec<u64> = examined.found.iter().map(|id| id.term.0).collect();
            assert_eq!(terms, [3, 4, 5]);
        }
    }

    #[test]
    fn several_records_wiped_at_once_are_one_range() {
        let dir = tempfile::tempdir().unwrap();
        let (segment, starts) = segment(dir.path(), 60);
        let wiped = vec![0xff; (starts[13] - starts[10]) as usize];
        segment.file.write_at(starts[10], &wiped).unwrap();
        segment.file.write_at(starts[59], &[0xff; 40]).unwrap();
        let examined = Examination::of(&segment).run();
        let ranges: Vec<_> = examined.damaged.iter().map(|range| (range.first.0, range.end.0, range.resumes)).collect();
        assert_eq!(ranges, [(110, 113, Some(starts[13])), (159, 160, None)]);
    }
}
