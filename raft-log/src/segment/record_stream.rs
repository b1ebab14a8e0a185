//! Checks the records of a segment while its file's bytes go by, from the first one on.

use super::header::{SEGMENT_HEADER_BYTES, SegmentHeader};
use super::record::{RECORD_HEADER_BYTES, RecordHeader, record_bytes};
use super::segment::Segment;
use crate::LogIndex;
use crate::ids::EntryId;
use crate::limits::PAYLOAD_BYTES_MAX;

/// What of a file has gone by, and what is expected next.
pub(crate) struct RecordStream {
    header: SegmentHeader,
    /// The entry behind the last one that the segment stands for.
    end: LogIndex,
    next: LogIndex,
    last: Option<EntryId>,
    is_header_seen: bool,
    /// What came and is not checked yet begins there in the file.
    position: u64,
    pending: Vec<u8>,
}

/// Where a file is not what it was.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unsound {
    pub(crate) offset: u64,
    pub(crate) what: String,
}

impl RecordStream {
    /// For all entries that the segment stands for.
    pub(crate) fn of(segment: &Segment) -> RecordStream {
        let header = segment.header;
        RecordStream {
            header,
            end: segment.end,
            next: header.first,
            last: header.previous,
            is_header_seen: false,
            position: 0,
            pending: Vec::new(),
        }
    }

    /// The file's next bytes.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<(), Unsound> {
        if self.is_header_seen && self.next >= self.end {
            return Ok(());
        }
        self.pending.extend_from_slice(bytes);
        let mut seen = 0;
        if !self.is_header_seen {
            let page = SEGMENT_HEADER_BYTES as usize;
            if self.pending.len() < page {
                return Ok(());
            }
            if self.pending[..page] != self.header.encode()[..] {
                return Err(self.unsound(0, "header page is not what it was"));
            }
            (self.is_header_seen, seen) = (true, page);
        }
        while self.next < self.end {
            let Some(record) = self.check(seen)? else { break };
            seen += record;
        }
        self.pending.drain(..seen);
        self.position += seen as u64;
        Ok(())
    }

    /// All bytes have gone by: so must have all entries.
    pub(crate) fn finish(self) -> Result<(), Unsound> {
        if self.is_header_seen && self.next >= self.end { Ok(()) } else { Err(self.unsound(0, "file ends")) }
    }

    /// Checks the record that begins so far behind what is pending. Its length; `None` if it is not all there yet.
    fn check(&mut self, at: usize) -> Result<Option<usize>, Unsound> {
        let pending = &self.pending[at..];
        let Some((header_bytes, rest)) = pending.split_at_checked(RECORD_HEADER_BYTES) else { return Ok(None) };
        let header = RecordHeader::decode(header_bytes, self.header.sequence).map_err(|what| self.unsound(at, what))?;
        if header.payload_bytes > PAYLOAD_BYTES_MAX {
            return Err(self.unsound(at, &format!("payload of {} bytes is too long", header.payload_bytes)));
        }
        let whole = usize::try_from(record_bytes(header.payload_bytes)).expect("a record is at most 16 MiB and some");
        let Some(rest) = rest.get(..whole - RECORD_HEADER_BYTES) else { return Ok(None) };
        let (payload, padding) = rest.split_at(header.payload_bytes);
        if !header.matches(header_bytes, payload) || padding.iter().any(|byte| *byte != 0) {
            return Err(self.unsound(at, "record does not match its checksum"));
        }
        if header.id.index != self.next || self.last.is_some_and(|last| header.id.term < last.term) {
            return Err(self.unsound(at, &format!("entry {} stands there", header.id)));
        }
        (self.next, self.last) = (self.next.next(), Some(header.id));
        Ok(Some(whole))
    }

    fn unsound(&self, at: usize, what: &str) -> Unsound {
        let entry = if self.is_header_seen { format!("entry {}: ", self.next) } else { String::new() };
        Unsound { offset: self.position + at as u64, what: format!("{entry}{what}") }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::segment::{Record, RecordKind, encode_record};
    use crate::{Disk, OsDisk};

    /// A sealed segment of so many entries, its bytes, and where its records end.
    fn sealed(entries: u64) -> (Segment, Vec<u8>, usize) {
        let dir = tempfile::tempdir().unwrap();
        let header = SegmentHeader {
            identity: 1,
            sequence: 2,
            segment_bytes: 64 * 1024,
            first: LogIndex(10),
            previous: Some(EntryId::new(3, 9)),
        };
        let file: Arc<_> = OsDisk.create(&dir.path().join("f"), header.segment_bytes).unwrap();
        let mut segment = Segment::new(dir.path().join("f"), file, header);
        let mut bytes = header.encode();
        for number in 0..entries {
            let payload = Bytes::from(vec![number as u8; 100 + 7 * number as usize]);
            let record = Record { id: EntryId::new(3 + number / 4, 10 + number), kind: RecordKind::Normal, payload };
            segment.push(record.id.index, record.payload.len());
            encode_record(&mut bytes, &record, header.sequence);
        }
        let end = bytes.len();
        bytes.resize(64 * 1024, 0);
        (segment, bytes, end)
    }

    fn look(segment: &Segment, bytes: &[u8], piece: usize) -> Result<(), Unsound> {
        let mut stream = RecordStream::of(segment);
        for bytes in bytes.chunks(piece) {
            stream.push(bytes)?;
        }
        stream.finish()
    }

    #[test]
    fn a_sound_segment_passes_in_pieces_of_any_size() {
        let (segment, bytes, end) = sealed(10);
        for piece in [1, 31, 4096, 5000, bytes.len()] {
            assert_eq!(look(&segment, &bytes, piece), Ok(()), "pieces of {piece}");
        }
        let short = look(&segment, &bytes[..end - 8], 4096).unwrap_err();
        assert_eq!(short.what, "entry 19: file ends");
        assert!(look(&segment, &bytes[..4095], 4096).is_err());
    }

    #[test]
    fn what_was_overridden_by_a_later_file_is_not_looked_at() {
        let (mut segment, mut bytes, end) = sealed(10);
        segment.truncate(LogIndex(15));
        bytes[end - 9] ^= 1;
        assert_eq!(look(&segment, &bytes, 1000), Ok(()));
    }

    proptest! {
        #[test]
        fn one_flipped_bit_is_noticed_and_its_place_named(place: prop::sample::Index, bit in 0..8_u8, piece in 1..9000_usize) {
            let (segment, mut bytes, end) = sealed(6);
            // The rest of the header's page is not covered by anything but this comparison.
            let at = place.index(end);
            bytes[at] ^= 1_u8 << bit;
            let found = look(&segment, &bytes, piece).unwrap_err();
            prop_assert!(found.offset <= at as u64, "{found:?}");
            prop_assert!(at < 4096 || found.what.starts_with("entry 1"), "{found:?}");
        }
    }
}
