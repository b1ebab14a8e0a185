//! What a sealed segment holds, in a small file beside it: with it a start reads no records of sealed segments.
//!
//! Derived from the segment and checked by a checksum. A missing or damaged one costs a walk over the segment's records.

use bytes::{BufMut, Bytes};

use super::header::SEGMENT_HEADER_BYTES;
use crate::fields::{u32_at, u64_at};
use crate::{LogIndex, Term};

const MAGIC: [u8; 8] = *b"FLOTSUM\0";
const VERSION: u32 = 1;
const FIXED_BYTES: usize = 64;
const RUN_BYTES: usize = 16;
const MARK_BYTES: usize = 8;

/// Where the records `first..end` of a sealed segment are, and their terms.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Summary {
    pub(crate) identity: u64,
    pub(crate) sequence: u64,
    pub(crate) first: LogIndex,
    /// The index after the last record.
    pub(crate) end: LogIndex,
    /// Bytes of the file in use.
    pub(crate) position: u64,
    /// (first index, term) of each run of one term, both growing; the first one begins at `first`.
    pub(crate) runs: Vec<(LogIndex, Term)>,
    /// (records after the first, position), both growing; the first one is that of the first record.
    pub(crate) marks: Vec<(u32, u32)>,
}

impl Summary {
    /// `<sequence>-<first index>.sum`, as the segment's own name.
    pub(crate) fn file_name(&self) -> String {
        format!("{:020}-{:020}.sum", self.sequence, self.first)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let covered = FIXED_BYTES + self.runs.len() * RUN_BYTES + self.marks.len() * MARK_BYTES;
        let count = |count: usize| u32::try_from(count).expect("a segment has fewer than 2^32 bytes");
        let mut bytes = Vec::with_capacity(covered + 4);
        bytes.put_slice(&MAGIC);
        bytes.put_u32_le(VERSION);
        bytes.put_u32_le(count(covered));
        for number in [self.identity, self.sequence, self.first.0, self.end.0, self.position] {
            bytes.put_u64_le(number);
        }
        bytes.put_u32_le(count(self.runs.len()));
        bytes.put_u32_le(count(self.marks.len()));
        for (first, term) in &self.runs {
            bytes.put_u64_le(first.0);
            bytes.put_u64_le(term.0);
        }
        for (relative, position) in &self.marks {
            bytes.put_u32_le(*relative);
            bytes.put_u32_le(*position);
        }
        assert_eq!(bytes.len(), covered, "the drawn layout and the code must agree");
        let crc = crc32c::crc32c(&bytes);
        bytes.put_u32_le(crc);
        bytes
    }

    /// `Err` tells why this is no summary that could be true.
    pub(crate) fn decode(bytes: &Bytes) -> Result<Summary, &'static str> {
        let covered =
            bytes.len().checked_sub(4).filter(|covered| *covered >= FIXED_BYTES).ok_or("file is too short")?;
        if u32_at(bytes, covered) != crc32c::crc32c(&bytes[..covered]) {
            return Err("file does not match its checksum");
        }
        if bytes[..8] != MAGIC || u32_at(bytes, 8) != VERSION || u32_at(bytes, 12) as usize != covered {
            return Err("magic, version or length is another one");
        }
        let (run_count, mark_count) = (u32_at(bytes, 56) as usize, u32_at(bytes, 60) as usize);
        let marks_at = run_count.checked_mul(RUN_BYTES).and_then(|runs| runs.checked_add(FIXED_BYTES));
        let end = marks_at.and_then(|at| at.checked_add(mark_count.checked_mul(MARK_BYTES)?));
        let (Some(marks_at), true) = (marks_at, end == Some(covered)) else {
            return Err("counts do not match the length");
        };
        let runs = (FIXED_BYTES..marks_at).step_by(RUN_BYTES);
        let marks = (marks_at..covered).step_by(MARK_BYTES);
        let summary = Summary {
            identity: u64_at(bytes, 16),
            sequence: u64_at(bytes, 24),
            first: LogIndex(u64_at(bytes, 32)),
            end: LogIndex(u64_at(bytes, 40)),
            position: u64_at(bytes, 48),
            runs: runs.map(|at| (LogIndex(u64_at(bytes, at)), Term(u64_at(bytes, at + 8)))).collect(),
            marks: marks.map(|at| (u32_at(bytes, at), u32_at(bytes, at + 4))).collect(),
        };
        summary.check()?;
        Ok(summary)
    }

    fn check(&self) -> Result<(), &'static str> {
        let runs_grow = self.runs.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1);
        let runs_begin = self.runs.first().map(|run| run.0) == Some(self.first);
        if !runs_grow || !runs_begin || self.runs.last().is_none_or(|run| run.0 >= self.end) {
            return Err("terms are not in order");
        }
        let entries = self.end.0 - self.first.0;
        let marks_grow = self.marks.is_sorted_by(|one, next| one.0 < next.0 && one.1 < next.1);
        let marks_begin = self.marks.first() == Some(&(0, SEGMENT_HEADER_BYTES as u32));
        let is_within = |mark: &(u32, u32)| u64::from(mark.0) < entries && u64::from(mark.1) < self.position;
        if !marks_grow || !marks_begin || !self.marks.last().is_some_and(is_within) {
            return Err("positions are not in order");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn summary(lens: &[(u8, bool)]) -> Summary {
        let (mut term, mut position) = (1, 4096_u32);
        let (mut runs, mut marks) = (vec![(LogIndex(100), Term(1))], Vec::new());
        for (number, (len, is_new_term)) in lens.iter().enumerate() {
            let number = number as u32;
            if *is_new_term && number > 0 {
                term += 1;
                runs.push((LogIndex(100 + u64::from(number)), Term(term)));
            }
            marks.push((number, position));
            position += u32::from(*len) * 8 + 32;
        }
        let end = LogIndex(100 + lens.len() as u64);
        Summary { identity: 7, sequence: 3, first: LogIndex(100), end, position: u64::from(position), runs, marks }
    }

    proptest! {
        #[test]
        fn a_summary_reads_back_as_written(lens in prop::collection::vec((0..50_u8, any::<bool>()), 1..60)) {
            let summary = summary(&lens);
            prop_assert_eq!(Summary::decode(&summary.encode().into()), Ok(summary));
        }

        #[test]
        fn a_flipped_bit_is_noticed(place: prop::sample::Index) {
            let mut bytes = summary(&[(1, false), (2, true)]).encode();
            let bit = place.index(bytes.len() * 8);
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Summary::decode(&bytes.into()).is_err());
        }

        #[test]
        fn arbitrary_bytes_with_a_right_checksum_never_panic(mut bytes in prop::collection::vec(any::<u8>(), 64..200)) {
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
            let covered = bytes.len() as u32;
            bytes[12..16].copy_from_slice(&covered.to_le_bytes());
            let crc = crc32c::crc32c(&bytes);
            bytes.extend_from_slice(&crc.to_le_bytes());
            let _ = Summary::decode(&bytes.into());
        }
    }

    #[test]
    fn what_cannot_be_true_is_refused() {
        let good = summary(&[(1, false), (2, true), (3, false)]);
        let worse: [fn(&mut Summary); 5] = [
            |summary| summary.end = summary.first,
            |summary| summary.runs.clear(),
            |summary| summary.runs[1].1 = Term(0),
            |summary| summary.marks[0].1 = 0,
            |summary| summary.position = 4096,
        ];
        for change in worse {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(Summary::decode(&bad.encode().into()).is_err(), "{bad:?}");
        }
    }
}
