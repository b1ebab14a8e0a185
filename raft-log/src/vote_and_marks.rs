//! The few numbers a replica must not forget: its vote and how far it purged (synced), its commit mark (a hint).
//!
//! Drawn in `docs/formats/vote-and-marks.md`: four slots of a page each, two for control (vote and purge mark), two for
//! the commit mark. A write always goes to the older slot of its pair, so a torn one never costs the newer. A control slot
//! is then copied to the other one, so that later damage to either never takes a vote back.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_planted_bugs::{Bug, is_planted};

use crate::disk::{Disk, DiskFile};
use crate::fields::{u32_at, u64_at};
use crate::ids::EntryId;
use crate::{Corruption, LogIndex, NodeId, OpenError, Term};

pub(crate) const MARKS_FILE: &str = "vote-and-marks";

pub(crate) const SLOT_BYTES: u64 = 4096;
pub(crate) const FILE_BYTES: u64 = 4 * SLOT_BYTES;
pub(crate) const CONTROL_MAGIC: [u8; 8] = *b"FLOTVOT\0";
pub(crate) const COMMIT_MAGIC: [u8; 8] = *b"FLOTCMT\0";
const VERSION: u32 = 1;
/// Bytes covered by the checksum that follows them.
pub(crate) const COVERED_BYTES: usize = 80;
const FLAG_VOTE: u32 = 1;
const FLAG_VOTE_COMMITTED: u32 = 2;
const FLAG_ENTRY: u32 = 4;

/// A vote as openraft has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SavedVote {
    pub(crate) term: Term,
    pub(crate) node: NodeId,
    /// A quorum granted it: `node` leads or led that term.
    pub(crate) committed: bool,
}

/// The tail file's bytes before `position` were durable when this was written. A tail that ends earlier was damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(crate) struct TailFloor {
    pub(crate) sequence: u64,
    pub(crate) position: u64,
}

/// One slot of either pair. In control slots `entry` is the purge mark, in commit slots the commit mark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) sequence: u64,
    pub(crate) vote: Option<SavedVote>,
    pub(crate) entry: Option<EntryId>,
    pub(crate) floor: TailFloor,
}

impl Slot {
    pub(crate) fn encode(&self, magic: [u8; 8]) -> Vec<u8> {
        let vote = self.vote.unwrap_or(SavedVote { term: Term(0), node: NodeId(0), committed: false });
        let entry = self.entry.unwrap_or(EntryId::new(0, 0));
        let mut flags = 0;
        flags |= if self.vote.is_some() { FLAG_VOTE } else { 0 };
        flags |= if vote.committed { FLAG_VOTE_COMMITTED } else { 0 };
        flags |= if self.entry.is_some() { FLAG_ENTRY } else { 0 };
        let mut bytes = Vec::with_capacity(COVERED_BYTES + 4);
        bytes.extend_from_slice(&magic);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&(COVERED_BYTES as u32).to_le_bytes());
        bytes.extend_from_slice(&self.sequence.to_le_bytes());
        bytes.extend_from_slice(&flags.to_le_bytes());
        bytes.extend_from_slice(&0_u32.to_le_bytes());
        for number in [vote.term.0, vote.node.0, entry.term.0, entry.index.0, self.floor.sequence, self.floor.position]
        {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        assert_eq!(bytes.len(), COVERED_BYTES, "the drawn layout and the code must agree");
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        bytes
    }

    /// `Ok(None)` for a slot never written, `Err` for a damaged one.
    pub(crate) fn decode(bytes: &[u8], magic: [u8; 8]) -> Result<Option<Slot>, String> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        if u32_at(bytes, COVERED_BYTES) != crc32c::crc32c(&bytes[..COVERED_BYTES]) {
            return Err("slot does not match its checksum".to_owned());
        }
        if bytes[..8] != magic {
            return Err("magic of the slot is missing".to_owned());
        }
        let version = u32_at(bytes, 8);
        if version != VERSION {
            return Err(format!("slot has version {version}, this program reads version {VERSION}"));
        }
        if u32_at(bytes, 12) as usize != COVERED_BYTES {
            return Err(format!("slot length is {}, version 1 has {COVERED_BYTES}", u32_at(bytes, 12)));
        }
        let flags = u32_at(bytes, 24);
        Ok(Some(Slot {
            sequence: u64_at(bytes, 16),
            vote: (flags & FLAG_VOTE != 0).then(|| SavedVote {
                term: Term(u64_at(bytes, 32)),
                node: NodeId(u64_at(bytes, 40)),
                committed: flags & FLAG_VOTE_COMMITTED != 0,
            }),
            entry: (flags & FLAG_ENTRY != 0)
                .then(|| EntryId { term: Term(u64_at(bytes, 48)), index: LogIndex(u64_at(bytes, 56)) }),
            floor: TailFloor { sequence: u64_at(bytes, 64), position: u64_at(bytes, 72) },
        }))
    }
}

/// The file and what its newest slots say.
pub(crate) struct VoteAndMarks {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    control: Slot,
    commit: Slot,
    healed_slots: u32,
}

impl VoteAndMarks {
    /// Opens the file, or makes it if the directory holds no log yet. What it says is durable when this returns.
    pub(crate) fn open(disk: &dyn Disk, dir: &Path, has_segments: bool) -> Result<VoteAndMarks, OpenError> {
        let path = dir.join(MARKS_FILE);
        let io = |source| OpenError::Io { path: path.clone(), source };
        let file = match disk.open(&path) {
            // A crash while the file was being made leaves a short one.
            Ok(file) if file.len() == FILE_BYTES => file,
            Ok(file) if has_segments => {
                let what = format!("file has {} bytes instead of {FILE_BYTES}: the vote is lost", file.len());
                return Err(OpenError::Corrupt(Corruption { path: path.clone(), offset: 0, what }));
            }
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(io(error)),
            _ if has_segments => {
                let what = "file is missing although there are segments: the vote is lost".to_owned();
                return Err(OpenError::Corrupt(Corruption { path: path.clone(), offset: 0, what }));
            }
            _ => disk.create(&path, FILE_BYTES).map_err(io)?,
        };
        let control = newest_slot(&path, &*file, 0, CONTROL_MAGIC)?;
        let healed_slots = heal_control(&*file, &control).map_err(io)?;
        disk.sync_dir(dir).map_err(io)?;
        // The commit mark is a hint: a damaged one is as good as none.
        let commit = newest_slot(&path, &*file, 2 * SLOT_BYTES, COMMIT_MAGIC).unwrap_or_else(|error| {
            tracing::warn!(%error, "commit mark is damaged, going on without it");
            EMPTY_SLOT
        });
        Ok(VoteAndMarks { path, file, control, commit, healed_slots })
    }

    pub(crate) fn vote(&self) -> Option<SavedVote> {
        self.control.vote
    }

    pub(crate) fn purged(&self) -> Option<EntryId> {
        self.control.entry
    }

    pub(crate) fn committed(&self) -> Option<EntryId> {
        self.commit.entry
    }

    /// How many control slots were damaged and were written again at the start.
    pub(crate) fn healed_slots(&self) -> u32 {
        self.healed_slots
    }

    /// The highest floor known for any file.
    pub(crate) fn newest_floor(&self) -> TailFloor {
        self.control.floor.max(self.commit.floor)
    }

    /// The highest floor known for the file with that sequence.
    pub(crate) fn floor_of(&self, sequence: u64) -> u64 {
        let floors = [self.control.floor, self.commit.floor];
        floors.iter().filter(|floor| floor.sequence == sequence).map(|floor| floor.position).max().unwrap_or(0)
    }

    /// Durable when it returns. The caller has synced the log before: a later vote must never be durable before an
    /// earlier append.
    pub(crate) fn save_vote(&mut self, vote: SavedVote, floor: TailFloor) -> io::Result<()> {
        self.save_control(Slot { vote: Some(vote), floor, ..self.control })
    }

    /// Durable when it returns.
    pub(crate) fn save_purged(&mut self, purged: EntryId, floor: TailFloor) -> io::Result<()> {
        self.save_control(Slot { entry: Some(purged), floor, ..self.control })
    }

    fn save_control(&mut self, next: Slot) -> io::Result<()> {
        let next = Slot { sequence: self.control.sequence + 1, ..next };
        let bytes = next.encode(CONTROL_MAGIC);
        self.file.write_at(next.sequence % 2 * SLOT_BYTES, &bytes)?;
        if !is_planted(Bug::VoteNotDurable) {
            self.file.sync_data()?;
        }
        // The copy needs no sync: until it is on the disk the slot above is, and that one is not written next.
        self.file.write_at((next.sequence + 1) % 2 * SLOT_BYTES, &bytes)?;
        self.control = next;
        Ok(())
    }

    /// Not synced: a hint for the next start.
    pub(crate) fn save_committed(&mut self, committed: Option<EntryId>, floor: TailFloor) -> io::Result<()> {
        let next = Slot { sequence: self.commit.sequence + 1, vote: None, entry: committed, floor };
        self.file.write_at((2 + next.sequence % 2) * SLOT_BYTES, &next.encode(COMMIT_MAGIC))?;
        self.commit = next;
        Ok(())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes what the newest control slot says durable, and the two slots equal again after a crash between them or damage to one.
/// Returns how many were damaged.
///
/// The newest slot is written anew even if it reads well: the last process may have died between its write and its sync, and if
/// that sync failed the slot is in the page cache alone, marked as clean, where no later sync finds anything to do. One slot at a
/// time, so that a torn write never costs both.
fn heal_control(file: &dyn DiskFile, control: &Slot) -> io::Result<u32> {
    let mut damaged = 0;
    let bytes = if control.sequence > 0 { control.encode(CONTROL_MAGIC) } else { vec![0; COVERED_BYTES + 4] };
    let newest = control.sequence % 2 * SLOT_BYTES;
    for offset in [newest, SLOT_BYTES - newest] {
        let found = Slot::decode(&file.read_at(offset, COVERED_BYTES + 4)?, CONTROL_MAGIC);
        damaged += u32::from(found.is_err());
        let is_equal = found == Ok(Some(*control));
        if offset == newest || found.is_err() || (control.sequence > 0 && !is_equal) {
            file.write_at(offset, &bytes)?;
            file.sync_data()?;
        }
    }
    Ok(damaged)
}

const EMPTY_SLOT: Slot = Slot { sequence: 0, vote: None, entry: None, floor: TailFloor { sequence: 0, position: 0 } };

/// The newer sound slot of the pair at `offset`. A damaged one is the trace of a torn write, as long as its twin is
/// sound, or was never written (then nothing was ever promised); two damaged ones are corruption.
fn newest_slot(path: &Path, file: &dyn DiskFile, offset: u64, magic: [u8; 8]) -> Result<Slot, OpenError> {
    let mut newest: Option<Slot> = None;
    let mut damaged = Vec::new();
    for offset in [offset, offset + SLOT_BYTES] {
        let bytes = file
            .read_at(offset, COVERED_BYTES + 4)
            .map_err(|source| OpenError::Io { path: path.to_owned(), source })?;
        match Slot::decode(&bytes, magic) {
            Ok(Some(slot)) if newest.is_none_or(|newest| slot.sequence > newest.sequence) => newest = Some(slot),
            Ok(_) => {}
            Err(what) => damaged.push(Corruption { path: path.to_owned(), offset, what }),
        }
    }
    if let (Some(corruption), true) = (damaged.first(), damaged.len() == 2) {
        return Err(corruption.clone().into());
    }
    if let Some(corruption) = damaged.first() {
        tracing::warn!(%corruption, "one of two slots is damaged, the other one counts");
        if newest.is_none() {
            // Slot 1 is written first. A damaged slot 0 beside an empty slot 1 cannot come from a torn write.
            if corruption.offset == offset {
                return Err(corruption.clone().into());
            }
        }
    }
    Ok(newest.unwrap_or(EMPTY_SLOT))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::OsDisk;
    use crate::testing::{CrashDisk, Op};

    fn vote(term: u64) -> SavedVote {
        SavedVote { term: Term(term), node: NodeId(7), committed: term.is_multiple_of(2) }
    }

    const FLOOR: TailFloor = TailFloor { sequence: 3, position: 8192 };

    proptest! {
        #[test]
        fn a_slot_reads_back_as_written(
            sequence: u64, vote: Option<(u64, u64, bool)>, entry: Option<(u64, u64)>, floor: (u64, u64),
        ) {
            let slot = Slot {
                sequence,
                vote: vote.map(|(term, node, committed)| SavedVote { term: Term(term), node: NodeId(node), committed }),
                entry: entry.map(|(term, index)| EntryId::new(term, index)),
                floor: TailFloor { sequence: floor.0, position: floor.1 },
            };
            prop_assert_eq!(Slot::decode(&slot.encode(CONTROL_MAGIC), CONTROL_MAGIC), Ok(Some(slot)));
            prop_assert!(Slot::decode(&slot.encode(CONTROL_MAGIC), COMMIT_MAGIC).is_err());
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes: [u8; COVERED_BYTES + 4]) {
            let _ = Slot::decode(&bytes, CONTROL_MAGIC);
        }
    }

    #[test]
    fn the_newest_vote_and_marks_are_found_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut marks = VoteAndMarks::open(&OsDisk, dir.path(), false).unwrap();
        assert_eq!((marks.vote(), marks.purged(), marks.committed()), (None, None, None));
        for term in 1..=5 {
            marks.save_vote(vote(term), FLOOR).unwrap();
            marks.save_committed(Some(EntryId::new(term, term * 10)), FLOOR).unwrap();
        }
        marks.save_purged(EntryId::new(2, 20), FLOOR).unwrap();
        let marks = VoteAndMarks::open(&OsDisk, dir.path(), true).unwrap();
        assert_eq!(marks.vote(), Some(vote(5)));
        assert_eq!(marks.purged(), Some(EntryId::new(2, 20)));
        assert_eq!(marks.committed(), Some(EntryId::new(5, 50)));
        assert_eq!((marks.floor_of(3), marks.floor_of(4)), (8192, 0));
    }

    #[test]
    fn one_damaged_slot_costs_at_most_the_write_that_tore_it() {
        let dir = tempfile::tempdir().unwrap();
        let mut marks = VoteAndMarks::open(&OsDisk, dir.path(), false).unwrap();
        marks.save_vote(vote(1), FLOOR).unwrap();
        marks.save_vote(vote(2), FLOOR).unwrap();
        // The third write goes to slot 1 and tears.
        let file = OsDisk.open(&dir.path().join(MARKS_FILE)).unwrap();
        file.write_at(SLOT_BYTES + 32, &[0xff; 8]).unwrap();
        let mut marks = VoteAndMarks::open(&OsDisk, dir.path(), true).unwrap();
        assert_eq!((marks.vote(), marks.healed_slots()), (Some(vote(2)), 1));
        marks.save_vote(vote(3), FLOOR).unwrap();
        assert_eq!(VoteAndMarks::open(&OsDisk, dir.path(), true).unwrap().vote(), Some(vote(3)));
    }

    /// A voter that forgets a vote could grant the same term twice.
    #[test]
    fn damage_to_either_slot_takes_no_vote_back() {
        for (terms, slot) in [(1, 0), (1, 1), (2, 0), (2, 1), (5, 0), (5, 1)] {
            let dir = tempfile::tempdir().unwrap();
            let mut marks = VoteAndMarks::open(&OsDisk, dir.path(), false).unwrap();
            (1..=terms).for_each(|term| marks.save_vote(vote(term), FLOOR).unwrap());
            drop(marks);
            let file = OsDisk.open(&dir.path().join(MARKS_FILE)).unwrap();
            file.write_at(slot * SLOT_BYTES + 33, &[0xff]).unwrap();
            let found = VoteAndMarks::open(&OsDisk, dir.path(), true);
            assert_eq!(found.unwrap().vote(), Some(vote(terms)), "{terms} votes, slot {slot} is damaged");
            // Healed: now the other one may be hurt.
            file.write_at((1 - slot) * SLOT_BYTES + 33, &[0xff]).unwrap();
            assert_eq!(VoteAndMarks::open(&OsDisk, dir.path(), true).unwrap().vote(), Some(vote(terms)));
        }
    }

    /// Linux marks pages clean whose write-back failed: what a start reads may be in memory alone, and a sync finds nothing to
    /// do. Twice in a row, so that neither slot is on the disk.
    #[test]
    fn a_vote_that_a_start_reads_is_on_the_disk_whatever_failed_before() {
        for syncs_before in 0..2 {
            let (disk, dir) = (CrashDisk::new(1), Path::new("/log"));
            let mut marks = VoteAndMarks::open(&disk, dir, false).unwrap();
            marks.save_vote(vote(1), FLOOR).unwrap();
            disk.fail_next_sync();
            assert!(marks.save_vote(vote(2), FLOOR).is_err());
            disk.fail(Op::SyncFile, syncs_before, libc::EIO);
            let _ = VoteAndMarks::open(&disk, dir, true);
            let found = VoteAndMarks::open(&disk, dir, true).unwrap().vote();
            disk.power_cycle_losing_all_unsynced();
            assert_eq!(VoteAndMarks::open(&disk, dir, true).unwrap().vote(), found, "{syncs_before} syncs before");
        }
    }

    #[test]
    fn a_short_vote_file_is_made_again_only_in_a_new_directory() {
        for len in [0, 1, SLOT_BYTES, FILE_BYTES - 1] {
            let dir = tempfile::tempdir().unwrap();
            OsDisk.create(&dir.path().join(MARKS_FILE), len).unwrap();
            let error =
                VoteAndMarks::open(&OsDisk, dir.path(), true).err().expect("segments without a vote").to_string();
            assert!(error.contains(&format!("{len} bytes instead of 16384")), "{error}");
            assert_eq!(VoteAndMarks::open(&OsDisk, dir.path(), false).unwrap().vote(), None);
        }
    }

    #[test]
    fn a_torn_first_write_is_no_vote_and_two_damaged_slots_are_corruption() {
        let dir = tempfile::tempdir().unwrap();
        drop(VoteAndMarks::open(&OsDisk, dir.path(), false).unwrap());
        let file = OsDisk.open(&dir.path().join(MARKS_FILE)).unwrap();
        file.write_at(SLOT_BYTES, b"FLOT").unwrap();
        assert_eq!(VoteAndMarks::open(&OsDisk, dir.path(), false).unwrap().vote(), None);
        file.write_at(0, b"FLOT").unwrap();
        assert!(matches!(VoteAndMarks::open(&OsDisk, dir.path(), false), Err(OpenError::Corrupt(_))));
    }

    #[test]
    fn a_lost_vote_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(VoteAndMarks::open(&OsDisk, dir.path(), true), Err(OpenError::Corrupt(_))));
    }
}
