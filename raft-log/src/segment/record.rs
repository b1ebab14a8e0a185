//! One record of a segment: a header of 32 bytes, the payload, zeroes up to the next multiple of 8.

use bytes::Bytes;

use crate::fields::{u32_at, u64_at};
use crate::ids::EntryId;
use crate::{LogIndex, Term};

/// Bytes before the payload.
pub(crate) const RECORD_HEADER_BYTES: usize = 32;
pub(crate) const ALIGN_BYTES: u64 = 8;

/// What a record holds. The numbers are on disk and on the wire; 0 means "no record".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// The empty entry that opens a leader's term.
    Blank = 1,
    /// The group's members.
    Membership = 2,
    /// A proposal.
    Normal = 3,
}

impl RecordKind {
    pub(crate) const fn from_code(code: u8) -> Option<RecordKind> {
        match code {
            1 => Some(RecordKind::Blank),
            2 => Some(RecordKind::Membership),
            3 => Some(RecordKind::Normal),
            _ => None,
        }
    }
}

/// One entry as this layer sees it: opaque.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) id: EntryId,
    pub(crate) kind: RecordKind,
    pub(crate) payload: Bytes,
}

/// What a record of such a payload takes in a file.
pub(crate) const fn record_bytes(payload_bytes: usize) -> u64 {
    (RECORD_HEADER_BYTES as u64 + payload_bytes as u64).next_multiple_of(ALIGN_BYTES)
}

/// Appends a record to `buffer`. `sequence` is that of the file it goes to: a record only counts in its own file.
pub(crate) fn encode_record(buffer: &mut Vec<u8>, record: &Record, sequence: u64) {
    let start = buffer.len();
    buffer.extend_from_slice(&encode_header(record, sequence));
    buffer.extend_from_slice(&record.payload);
    buffer.resize(start + record_bytes(record.payload.len()) as usize, 0);
}

/// What stands before the payload of a record in the file with that `sequence`.
pub(crate) fn encode_header(record: &Record, sequence: u64) -> [u8; RECORD_HEADER_BYTES] {
    let payload_bytes = u32::try_from(record.payload.len()).expect("payloads are limited to 16 MiB");
    let mut header = [0; RECORD_HEADER_BYTES];
    header[4..8].copy_from_slice(&payload_bytes.to_le_bytes());
    header[8..16].copy_from_slice(&record.id.term.0.to_le_bytes());
    header[16..24].copy_from_slice(&record.id.index.0.to_le_bytes());
    header[24..28].copy_from_slice(&low_half(sequence).to_le_bytes());
    header[28] = record.kind as u8;
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[4..]), &record.payload);
    header[..4].copy_from_slice(&crc.to_le_bytes());
    header
}

const fn low_half(sequence: u64) -> u32 {
    (sequence & 0xffff_ffff) as u32
}

/// A record's header, not yet checked against its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    crc: u32,
    pub(super) payload_bytes: usize,
    pub(super) id: EntryId,
    pub(super) kind: RecordKind,
}

impl RecordHeader {
    /// `Err` tells why this is no record of the file with that `sequence`.
    pub(super) fn decode(bytes: &[u8], sequence: u64) -> Result<RecordHeader, &'static str> {
        assert_eq!(bytes.len(), RECORD_HEADER_BYTES, "callers hand in exactly one header");
        if bytes.iter().all(|byte| *byte == 0) {
            return Err("no record");
        }
        let kind = RecordKind::from_code(bytes[28]).ok_or("unknown kind of record")?;
        if bytes[29..32] != [0; 3] {
            return Err("reserved bytes are set");
        }
        if u32_at(bytes, 24) != low_half(sequence) {
            return Err("record of another file");
        }
        Ok(RecordHeader {
            crc: u32_at(bytes, 0),
            payload_bytes: u32_at(bytes, 4) as usize,
            id: EntryId { term: Term(u64_at(bytes, 8)), index: LogIndex(u64_at(bytes, 16)) },
            kind,
        })
    }

    /// Whether header and payload are as they were written.
    pub(super) fn matches(&self, header_bytes: &[u8], payload: &[u8]) -> bool {
        self.crc == crc32c::crc32c_append(crc32c::crc32c(&header_bytes[4..]), payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(payload: &[u8], sequence: u64) -> Vec<u8> {
        let payload = Bytes::copy_from_slice(payload);
        let record = Record { id: EntryId::new(3, 9), kind: RecordKind::Normal, payload };
        let mut buffer = Vec::new();
        encode_record(&mut buffer, &record, sequence);
        buffer
    }

    proptest! {
        #[test]
        fn a_record_reads_back_and_is_aligned(payload in prop::collection::vec(any::<u8>(), 0..200), sequence: u64) {
            let buffer = encoded(&payload, sequence);
            prop_assert_eq!(buffer.len() as u64, record_bytes(payload.len()));
            prop_assert_eq!(buffer.len() % 8, 0);
            let (header_bytes, rest) = buffer.split_at(RECORD_HEADER_BYTES);
            let header = RecordHeader::decode(header_bytes, sequence).unwrap();
            prop_assert_eq!(header.id, EntryId::new(3, 9));
            prop_assert_eq!(header.payload_bytes, payload.len());
            prop_assert!(header.matches(header_bytes, &rest[..payload.len()]));
        }

        #[test]
        fn a_flipped_bit_is_noticed(payload in prop::collection::vec(any::<u8>(), 0..50), place: prop::sample::Index) {
            let mut buffer = encoded(&payload, 1);
            let bit = place.index((RECORD_HEADER_BYTES + payload.len()) * 8);
            buffer[bit / 8] ^= 1 << (bit % 8);
            let (header_bytes, rest) = buffer.split_at(RECORD_HEADER_BYTES);
            let noticed = RecordHeader::decode(header_bytes, 1).map_or(true, |header| {
                header.payload_bytes != payload.len() || !header.matches(header_bytes, &rest[..payload.len()])
            });
            prop_assert!(noticed);
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: [u8; RECORD_HEADER_BYTES], sequence: u64) {
            let _ = RecordHeader::decode(&bytes, sequence);
        }
    }

    #[test]
    fn a_record_of_another_file_does_not_count() {
        let buffer = encoded(b"x", 7);
        assert_eq!(RecordHeader::decode(&buffer[..RECORD_HEADER_BYTES], 8), Err("record of another file"));
    }
}
