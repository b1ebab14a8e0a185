//! Where records are in a segment: a mark about every 4 KiB, so the memory it takes is bounded by bytes, not by entries.

/// A new mark is set once this many bytes have passed since the last one.
const MARK_BYTES: u32 = 4096;

/// In a sealed segment marks are thinned to this distance: there are many sealed segments.
const SEALED_MARK_BYTES: u32 = 32 * 1024;

/// Sparse map from an entry's number within its segment to its position in the file.
#[derive(Debug, Default)]
pub(super) struct Positions {
    /// (entries after the segment's first, position), both growing.
    marks: Vec<(u32, u32)>,
}

impl Positions {
    /// Records are told in order.
    pub(super) fn push(&mut self, relative: u64, position: u64) {
        let relative = u32::try_from(relative).expect("a segment holds fewer than 2^32 records");
        let position = u32::try_from(position).expect("a segment has fewer than 2^32 bytes");
        if self.marks.last().is_none_or(|(_, marked)| position - marked >= MARK_BYTES) {
            self.marks.push((relative, position));
        }
    }

    /// As [`Positions::push`], always with a mark.
    pub(super) fn push_marked(&mut self, relative: u64, position: u64) {
        let relative = u32::try_from(relative).expect("a segment holds fewer than 2^32 records");
        let position = u32::try_from(position).expect("a segment has fewer than 2^32 bytes");
        if self.marks.last().is_none_or(|(marked, _)| *marked < relative) {
            self.marks.push((relative, position));
        }
    }

    /// The last mark at or before that entry.
    pub(super) fn mark_before(&self, relative: u64) -> Option<(u64, u64)> {
        let after = self.marks.partition_point(|(marked, _)| u64::from(*marked) <= relative);
        let (marked, position) = self.marks.get(after.checked_sub(1)?)?;
        Some((u64::from(*marked), u64::from(*position)))
    }

    /// The first mark at or behind that entry.
    pub(super) fn mark_from(&self, relative: u64) -> Option<(u64, u64)> {
        let before = self.marks.partition_point(|(marked, _)| u64::from(*marked) < relative);
        self.marks.get(before).map(|(marked, position)| (u64::from(*marked), u64::from(*position)))
    }

    /// Keeps a mark about every 32 KiB.
    pub(super) fn thin(&mut self) {
        let mut kept: Option<u32> = None;
        self.marks.retain(|(_, position)| {
            let keep = kept.is_none_or(|kept| position - kept >= SEALED_MARK_BYTES);
            kept = if keep { Some(*position) } else { kept };
            keep
        });
        self.marks.shrink_to_fit();
    }

    pub(super) fn marks(&self) -> &[(u32, u32)] {
        &self.marks
    }

    /// From marks that were checked to grow.
    pub(super) fn from_marks(marks: Vec<(u32, u32)>) -> Positions {
        Positions { marks }
    }

    /// Forgets that entry and all after it.
    pub(super) fn truncate(&mut self, relative: u64) {
        let keep = self.marks.partition_point(|(marked, _)| u64::from(*marked) < relative);
        self.marks.truncate(keep);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_record_is_at_or_within_a_page_of_a_mark() {
        let mut positions = Positions::default();
        for relative in 0..1000 {
            positions.push(relative, 4096 + relative * 48);
        }
        assert!(positions.marks.len() < 15, "marks are sparse");
        for relative in 0..1000 {
            let (marked, position) = positions.mark_before(relative).unwrap();
            assert!(marked <= relative && position == 4096 + marked * 48);
            assert!((relative - marked) * 48 < 4096 + 48);
            assert!(positions.mark_from(relative).is_none_or(|(marked, _)| marked >= relative));
        }
        let mut thinned = Positions::from_marks(positions.marks().to_vec());
        thinned.thin();
        assert_eq!(thinned.mark_before(5), Some((0, 4096)));
        assert_eq!(thinned.marks().len(), 2, "48,000 bytes need two marks");
        positions.truncate(10);
        assert_eq!(positions.mark_before(500), Some((0, 4096)));
        positions.truncate(0);
        assert_eq!(positions.mark_before(0), None);
    }
}
