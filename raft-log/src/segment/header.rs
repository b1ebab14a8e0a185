//! The first page of a segment file: whose it is, where it stands in the log, and what came before it.

use bytes::Bytes;

use crate::fields::{u32_at, u64_at};
use crate::ids::EntryId;
use crate::{LogIndex, Term};

/// The header has a page of its own, so that no later write touches it.
pub(crate) const SEGMENT_HEADER_BYTES: u64 = 4096;

const MAGIC: [u8; 8] = *b"FLOTSEG\0";
const VERSION: u32 = 1;
/// Bytes that are used and covered by the checksum that follows them.
const COVERED_BYTES: usize = 72;
const FLAG_PREVIOUS: u32 = 1;

/// What a segment's first page says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// Hash of cluster and group, see [`identity_hash`].
    pub(crate) identity: u64,
    /// Counts files in the order of their making; a later file's first index overrides earlier files from there on.
    pub(crate) sequence: u64,
    /// Length of the file.
    pub(crate) segment_bytes: u64,
    /// The index of its first record.
    pub(crate) first: LogIndex,
    /// The entry before `first`.
    pub(crate) previous: Option<EntryId>,
}

/// FNV-1a (64 bits) over cluster, a zero byte, group. Names the log a segment belongs to; the node is left out on
/// purpose, segments of one group may be copied between its replicas.
pub(crate) fn identity_hash(cluster: &str, group: &str) -> u64 {
    let bytes = cluster.bytes().chain([0]).chain(group.bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3))
}

impl SegmentHeader {
    /// `<sequence>-<first index>.seg`, both of 20 digits, so that names sort by sequence.
    pub(crate) fn file_name(&self) -> String {
        format!("{:020}-{:020}.seg", self.sequence, self.first)
    }

    /// The whole first page.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut page = Vec::with_capacity(SEGMENT_HEADER_BYTES as usize);
        page.extend_from_slice(&MAGIC);
        page.extend_from_slice(&VERSION.to_le_bytes());
        page.extend_from_slice(&(SEGMENT_HEADER_BYTES as u32).to_le_bytes());
        page.extend_from_slice(&self.identity.to_le_bytes());
        page.extend_from_slice(&self.sequence.to_le_bytes());
        page.extend_from_slice(&self.segment_bytes.to_le_bytes());
        page.extend_from_slice(&self.first.0.to_le_bytes());
        let flags = if self.previous.is_some() { FLAG_PREVIOUS } else { 0 };
        page.extend_from_slice(&flags.to_le_bytes());
        page.extend_from_slice(&0_u32.to_le_bytes());
        let previous = self.previous.unwrap_or(EntryId::new(0, 0));
        page.extend_from_slice(&previous.term.0.to_le_bytes());
        page.extend_from_slice(&previous.index.0.to_le_bytes());
        assert_eq!(page.len(), COVERED_BYTES, "the drawn layout and the code must agree");
        page.extend_from_slice(&crc32c::crc32c(&page).to_le_bytes());
        page.resize(SEGMENT_HEADER_BYTES as usize, 0);
        page
    }

    /// `Err` tells what is wrong.
    pub(crate) fn decode(page: &Bytes) -> Result<SegmentHeader, String> {
        if page.len() < COVERED_BYTES + 4 {
            return Err(format!("header of {} bytes is too short", page.len()));
        }
        if page[..8] != MAGIC {
            return Err("magic of a segment is missing".to_owned());
        }
        if u32_at(page, COVERED_BYTES) != crc32c::crc32c(&page[..COVERED_BYTES]) {
            return Err("header does not match its checksum".to_owned());
        }
        let version = u32_at(page, 8);
        if version != VERSION {
            return Err(format!("segment has version {version}, this program reads version {VERSION}"));
        }
        if u64::from(u32_at(page, 12)) != SEGMENT_HEADER_BYTES {
            return Err(format!("header length is {}, version 1 has {SEGMENT_HEADER_BYTES}", u32_at(page, 12)));
        }
        let previous = (u32_at(page, 48) & FLAG_PREVIOUS != 0)
            .then(|| EntryId { term: Term(u64_at(page, 56)), index: LogIndex(u64_at(page, 64)) });
        Ok(SegmentHeader {
            identity: u64_at(page, 16),
            sequence: u64_at(page, 24),
            segment_bytes: u64_at(page, 32),
            first: LogIndex(u64_at(page, 40)),
            previous,
        })
    }
}

/// The sequence and first index in a segment's file name; `None` for any other name.
pub(crate) fn parse_segment_name(name: &str) -> Option<(u64, LogIndex)> {
    let (sequence, first) = name.strip_suffix(".seg")?.split_once('-')?;
    if sequence.len() != 20 || first.len() != 20 {
        return None;
    }
    Some((sequence.parse().ok()?, LogIndex(first.parse().ok()?)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_header_reads_back_as_written(
            identity: u64, sequence: u64, segment_bytes: u64, first: u64, previous: Option<(u64, u64)>,
        ) {
            let previous = previous.map(|(term, index)| EntryId::new(term, index));
            let header = SegmentHeader { identity, sequence, segment_bytes, first: LogIndex(first), previous };
            prop_assert_eq!(SegmentHeader::decode(&header.encode().into()), Ok(header));
            prop_assert_eq!(parse_segment_name(&header.file_name()), Some((sequence, LogIndex(first))));
        }

        #[test]
        fn one_flipped_bit_is_noticed(bit in 0..(COVERED_BYTES + 4) * 8) {
            let header = SegmentHeader {
                identity: 1, sequence: 2, segment_bytes: 3, first: LogIndex(4), previous: Some(EntryId::new(5, 3)),
            };
            let mut page = header.encode();
            page[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(SegmentHeader::decode(&page.into()).is_err());
        }
    }

    #[test]
    fn groups_of_different_clusters_have_different_hashes() {
        assert_ne!(identity_hash("a", "bc"), identity_hash("ab", "c"));
        assert_eq!(identity_hash("", ""), identity_hash("", ""));
    }
}
