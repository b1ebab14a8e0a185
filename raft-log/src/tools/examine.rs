//! Looking at every file of a log's directory, by the rules by which a start would read it.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

use super::offline_log::{Depth, OfflineError};
use super::report::{
    CheckpointRow, Damage, EntryRow, Examination, IdentityRow, RecordRow, SegmentRow, SegmentState, SlotRow, VoteRow,
};
use crate::LogIndex;
use crate::checkpoint_file::{Checkpoint, Origin, parse_checkpoint_name};
use crate::disk::{Disk, DiskFile, read_file};
use crate::identity::{IDENTITY_FILE, Identity};
use crate::ids::{EntryId, next_index};
use crate::raft::decode_membership;
use crate::recovery::is_foreign;
use crate::recovery_order::ORDER_FILE;
use crate::segment::{
    Found, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader, Summary, identity_hash, parse_segment_name, record_behind,
    walk_segment,
};
use crate::segment_maker::PREPARED_FILE;
use crate::vote_and_marks::{
    COMMIT_MAGIC, CONTROL_MAGIC, COVERED_BYTES, FILE_BYTES, MARKS_FILE, SLOT_BYTES, SavedVote, Slot, TailFloor,
};

/// Bytes of a segment's header page that are used; the rest is zero.
const HEADER_USED_BYTES: usize = 76;

/// Endings of files that are finished, used or removed later.
const LEFTOVERS: [&str; 3] = [".tmp", ".repair", ".quarantine"];

/// A segment file before its records are looked at.
struct Candidate {
    name: String,
    sequence: u64,
    first: LogIndex,
    /// `None` if it cannot be read at all.
    file: Option<Arc<dyn DiskFile>>,
    header: Option<SegmentHeader>,
    /// Where later files take over.
    end: Option<LogIndex>,
    is_dead: bool,
}

/// The names and marks of a directory, and what was found so far.
pub(super) struct Examiner<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    depth: Depth,
    names: Vec<String>,
    candidates: Vec<Candidate>,
    control: Option<Slot>,
    commit: Option<Slot>,
    /// Its replica may have voted.
    votes: bool,
    found: Examination,
}

impl From<EntryId> for EntryRow {
    fn from(id: EntryId) -> EntryRow {
        EntryRow { term: id.term.0, index: id.index.0 }
    }
}

impl From<SavedVote> for VoteRow {
    fn from(vote: SavedVote) -> VoteRow {
        VoteRow { term: vote.term.0, node: vote.node.0, committed: vote.committed }
    }
}

fn voters_in(members: Bytes) -> Result<Vec<Vec<u64>>, String> {
    let members = decode_membership(members).map_err(|error| error.to_string())?;
    Ok(members.get_joint_config().iter().map(|set| set.iter().copied().collect()).collect())
}

impl<'a> Examiner<'a> {
    /// Reads everything but records and checkpoints.
    pub(super) fn start(disk: &'a dyn Disk, dir: &'a Path, depth: Depth) -> Result<Examiner<'a>, OfflineError> {
        let names = disk.list(dir).map_err(|source| OfflineError::Io { path: dir.to_owned(), source })?;
        let found = Examination::default();
        let mut examiner = Examiner {
            disk,
            dir,
            depth,
            names,
            candidates: Vec::new(),
            control: None,
            commit: None,
            votes: true,
            found,
        };
        examiner.sort_names();
        let identity = examiner.read_identity();
        examiner.read_marks();
        examiner.open_segments(identity);
        Ok(examiner)
    }

    fn damage(&mut self, file: &str, offset: u64, what: impl Into<String>) {
        self.found.damages.push(Damage { file: file.to_owned(), offset, what: what.into() });
    }

    fn sort_names(&mut self) {
        for name in &self.names {
            let segment = name.strip_suffix(".sum").map(|stem| format!("{stem}.seg"));
            let is_orphan = segment.is_some_and(|segment| !self.names.contains(&segment));
            if is_foreign(name) {
                self.found.foreign_files.push(name.clone());
            } else if is_orphan || name == PREPARED_FILE || LEFTOVERS.iter().any(|ending| name.ends_with(ending)) {
                self.found.leftovers.push(name.clone());
            }
        }
    }

    /// The hash that segments carry; `None` if it is not known.
    fn read_identity(&mut self) -> Option<u64> {
        let decoded = read_file(self.disk, &self.dir.join(IDENTITY_FILE))
            .map_err(|error| error.to_string())
            .and_then(Identity::decode);
        match decoded {
            Ok(Identity { cluster, group, node, given_up, .. }) => {
                // A backup, and what was made of one and never started, have no vote.
                self.votes = given_up != u16::MAX && !self.names.iter().any(|name| name == ORDER_FILE);
                let hash = identity_hash(&cluster, &group);
                self.found.identity = Some(IdentityRow { cluster, group, node: node.0 });
                Some(hash)
            }
            Err(what) => {
                self.damage(IDENTITY_FILE, 0, what);
                None
            }
        }
    }

    fn read_marks(&mut self) {
        let bytes = match read_file(self.disk, &self.dir.join(MARKS_FILE)) {
            Ok(bytes) if bytes.len() as u64 == FILE_BYTES => bytes,
            Ok(bytes) => {
                return self.damage(MARKS_FILE, 0, format!("file has {} bytes instead of {FILE_BYTES}", bytes.len()));
            }
            Err(error) => return self.damage(MARKS_FILE, 0, error.to_string()),
        };
        let names = ["control 0", "control 1", "commit 0", "commit 1"];
        for (number, name) in names.into_iter().enumerate() {
            let offset = number as u64 * SLOT_BYTES;
            let page = bytes.slice(offset as usize..(offset + SLOT_BYTES) as usize);
            let magic = if number < 2 { CONTROL_MAGIC } else { COMMIT_MAGIC };
            let mut row = SlotRow { name, sequence: 0, vote: None, entry: None, floor: (0, 0), damage: None };
            match Slot::decode(&page[..COVERED_BYTES + 4], magic) {
                Ok(Some(slot)) => {
                    row.sequence = slot.sequence;
                    row.vote = slot.vote.map(VoteRow::from);
                    row.entry = slot.entry.map(EntryRow::from);
                    row.floor = (slot.floor.sequence, slot.floor.position);
                    let newest = if number < 2 { &mut self.control } else { &mut self.commit };
                    if newest.is_none_or(|newest| newest.sequence < slot.sequence) {
                        *newest = Some(slot);
                    }
                }
                Ok(None) => {}
                Err(what) => row.damage = Some(what),
            }
            if page[COVERED_BYTES + 4..].iter().any(|byte| *byte != 0) {
                row.damage = Some("bytes behind the slot are not zero".to_owned());
            }
            if let Some(what) = &row.damage {
                self.damage(MARKS_FILE, offset, format!("{name}: {what}"));
            }
            self.found.slots.push(row);
        }
        let sequences = (self.found.slots[0].sequence, self.found.slots[1].sequence);
        let are_sound = self.found.slots[..2].iter().all(|slot| slot.damage.is_none());
        if are_sound && sequences.0.abs_diff(sequences.1) > 1 {
            let what = format!("control slots are of writes {} and {}: one is missing", sequences.0, sequences.1);
            self.damage(MARKS_FILE, 0, what);
        }
        self.found.vote = self.control.and_then(|slot| slot.vote).map(VoteRow::from);
        self.found.purged = self.purged().map(EntryRow::from);
        self.found.committed = self.commit.and_then(|slot| slot.entry).map(EntryRow::from);
    }

    fn purged(&self) -> Option<EntryId> {
        self.control.and_then(|slot| slot.entry)
    }

    fn open_segments(&mut self, identity: Option<u64>) {
        let names: Vec<_> =
            self.names.iter().filter_map(|name| Some((parse_segment_name(name)?, name.clone()))).collect();
        let start = next_index(self.purged());
        for (number, ((sequence, first), name)) in names.iter().enumerate() {
            let end = names[number + 1..].iter().map(|((_, first), _)| *first).min();
            let is_dead = end.is_some_and(|end| end <= *first || end <= start);
            let mut candidate = Candidate {
                name: name.clone(),
                sequence: *sequence,
                first: *first,
                file: None,
                header: None,
                end,
                is_dead,
            };
            match self.disk.open(&self.dir.join(name)) {
                Ok(file) => {
                    match check_header(&*file, (*sequence, *first), identity) {
                        Ok(header) => candidate.header = Some(header),
                        Err(what) => self.damage(name, 0, what),
                    }
                    candidate.file = Some(file);
                }
                Err(error) => self.damage(name, 0, error.to_string()),
            }
            self.candidates.push(candidate);
        }
    }

    /// Looks at records and checkpoints too.
    pub(super) fn examine(mut self) -> Examination {
        let candidates = std::mem::take(&mut self.candidates);
        let (mut expected, mut last) = (None, None);
        for candidate in &candidates {
            let (row, last_here) = self.examine_segment(candidate, &mut expected, last);
            if !candidate.is_dead {
                last = last_here;
                self.found.records += row.records;
                self.found.end = row.end;
            }
            self.found.segments.push(row);
        }
        let kept = candidates.iter().find(|candidate| !candidate.is_dead).map_or(LogIndex(0), |kept| kept.first);
        self.found.first = kept.max(next_index(self.purged())).0;
        self.found.end = self.found.end.max(next_index(self.purged()).0);
        self.check_summaries(&candidates);
        self.check_marks_against(&candidates, last);
        self.examine_checkpoints(last);
        self.found
    }

    fn examine_segment(
        &mut self,
        candidate: &Candidate,
        expected: &mut Option<LogIndex>,
        last: Option<EntryId>,
    ) -> (SegmentRow, Option<EntryId>) {
        let damages_before = self.found.damages.len();
        let name = &candidate.name;
        let mut row = SegmentRow {
            file: name.clone(),
            sequence: candidate.sequence,
            state: match (candidate.is_dead, candidate.end) {
                (true, _) => SegmentState::Dead,
                (false, Some(_)) => SegmentState::Sealed,
                (false, None) => SegmentState::Tail,
            },
            first: candidate.first.0,
            end: candidate.first.0,
            terms: None,
            records: 0,
            used_bytes: SEGMENT_HEADER_BYTES,
            file_bytes: candidate.file.as_ref().map_or(0, |file| file.len()),
            damages: 0,
        };
        let (Some(file), Some(header)) = (&candidate.file, &candidate.header) else {
            row.state = SegmentState::Unreadable;
            row.damages = 1;
            // What follows is judged as if this one were whole.
            row.end = candidate.end.unwrap_or(candidate.first).0;
            *expected = candidate.end.or(Some(candidate.first));
            return (row, None);
        };
        if candidate.is_dead {
            return (row, last);
        }
        let first_expected = expected.unwrap_or_else(|| candidate.first.min(next_index(self.purged())));
        if candidate.first != first_expected {
            let what = format!(
                "entries {first_expected} to {} are missing: no segment file holds them",
                candidate.first.0 - 1
            );
            self.damage(name, 0, what);
        } else if expected.is_some() && last.is_some() && header.previous != last {
            let what = format!("entry before it is {last:?}, header says {:?}", header.previous);
            self.damage(name, 0, what);
        }
        let mut last = header.previous;
        let mut wrong: Vec<(u64, String)> = Vec::new();
        let with_payloads = self.depth == Depth::Checksums;
        let walked = walk_segment(&**file, header, candidate.end, with_payloads, &mut |record| {
            let term = record.id.term.0;
            row.terms = Some(row.terms.map_or((term, term), |(low, high)| (low.min(term), high.max(term))));
            row.records += 1;
            last = Some(record.id);
            wrong.extend(record.wrong.map(|what| (record.position, format!("entry {}: {what}", record.id))));
            true
        });
        match walked {
            Ok(stop) => {
                (row.end, row.used_bytes) = (stop.end.0, stop.position);
                match candidate.end {
                    Some(end) if stop.end < end => {
                        let what = stop.wrong.unwrap_or_else(|| "no record is there".to_owned());
                        wrong.push((
                            stop.position,
                            format!("entries {} to {} are missing: {what}", stop.end, end.0 - 1),
                        ));
                    }
                    Some(_) => {}
                    None => wrong.extend(self.check_tail(&**file, header, stop.position, stop.wrong)),
                }
                *expected = candidate.end.or(Some(stop.end));
            }
            Err(error) => {
                wrong.push((row.used_bytes, error.to_string()));
                *expected = candidate.end;
            }
        }
        for (offset, what) in wrong {
            self.damage(name, offset, what);
        }
        row.damages = (self.found.damages.len() - damages_before) as u64;
        (row, last)
    }

    /// What is behind the last record of the newest file. Zeroes are its clean end.
    fn check_tail(
        &self,
        file: &dyn DiskFile,
        header: &SegmentHeader,
        position: u64,
        wrong: Option<String>,
    ) -> Option<(u64, String)> {
        let floor = self.floors().filter(|floor| floor.sequence == header.sequence).map(|floor| floor.position).max();
        if let Some(floor) = floor.filter(|floor| position < *floor) {
            let what = wrong.unwrap_or_else(|| "no record is there".to_owned());
            return Some((position, format!("bytes before {floor} were durable, but records end here: {what}")));
        }
        if let Some(what) = wrong {
            let what = format!("{what}; damage, or a write that a crash tore: a start cuts it off here");
            return Some((position, what));
        }
        if self.depth == Depth::Headers {
            return None;
        }
        match record_behind(file, header, position) {
            Ok(None) => None,
            Ok(Some((at, id))) => {
                Some((position, format!("no record is here, but entry {id} stands behind it at byte {at}")))
            }
            Err(error) => Some((position, error.to_string())),
        }
    }

    fn floors(&self) -> impl Iterator<Item = TailFloor> {
        [self.control, self.commit].into_iter().flatten().map(|slot| slot.floor)
    }

    /// Summaries are derived: a missing one costs a walk over its segment, one that does not fit is damage.
    fn check_summaries(&mut self, candidates: &[Candidate]) {
        for candidate in candidates {
            let Some(stem) = candidate.name.strip_suffix(".seg") else { continue };
            let name = format!("{stem}.sum");
            if !self.names.contains(&name) {
                continue;
            }
            let decoded = read_file(self.disk, &self.dir.join(&name))
                .map_err(|error| error.to_string())
                .and_then(|bytes| Summary::decode(&bytes).map_err(str::to_owned));
            let fits = |summary: &Summary| {
                let row = self.found.segments.iter().find(|row| row.file == candidate.name);
                (summary.sequence, summary.first) == (candidate.sequence, candidate.first)
                    && candidate.header.is_none_or(|header| header.identity == summary.identity)
                    && row.is_none_or(|row| summary.end.0 >= row.end && summary.position >= row.used_bytes)
            };
            let what = match decoded {
                Ok(summary) if fits(&summary) => continue,
                Ok(_) => "it does not fit its segment".to_owned(),
                Err(what) => what,
            };
            self.damage(&name, 0, format!("{what}; it is derived, a start walks over the segment instead"));
        }
    }

    fn check_marks_against(&mut self, candidates: &[Candidate], last: Option<EntryId>) {
        let newest = candidates.iter().map(|candidate| candidate.sequence).max().unwrap_or(0);
        let floor = self.floors().max().unwrap_or_default();
        if floor.sequence > newest {
            let what = format!(
                "segment file number {} is missing: {} bytes of it were durable, the newest one here is number {newest}",
                floor.sequence, floor.position
            );
            self.damage(MARKS_FILE, 0, what);
        }
        let vote = self.control.and_then(|slot| slot.vote).map_or(0, |vote| vote.term.0);
        if let Some(last) = last.filter(|last| self.votes && last.term.0 > vote) {
            self.damage(MARKS_FILE, 0, format!("newest vote is of term {vote}, but the log ends with entry {last}"));
        }
    }

    fn examine_checkpoints(&mut self, last: Option<EntryId>) {
        let indexes: Vec<LogIndex> = self.names.iter().filter_map(|name| parse_checkpoint_name(name)).collect();
        let mut newest_sound = None;
        for index in indexes {
            let name = format!("checkpoint-{:020}.ckp", index.0);
            let mut row = CheckpointRow {
                file: name.clone(),
                last: None,
                origin: None,
                voters: Vec::new(),
                state_bytes: 0,
                file_bytes: 0,
                damage: None,
            };
            match self.read_checkpoint(&name, index, last, &mut row) {
                Ok(()) => newest_sound = Some(index),
                Err(what) => {
                    self.damage(&name, 0, what.clone());
                    row.damage = Some(what);
                }
            }
            self.found.checkpoints.push(row);
        }
        let purged = self.purged().map(|purged| purged.index);
        if purged > newest_sound {
            let what = format!("log is purged to {purged:?}, the newest sound checkpoint is at {newest_sound:?}");
            self.damage("checkpoints", 0, what);
        }
    }

    fn read_checkpoint(
        &self,
        name: &str,
        index: LogIndex,
        last: Option<EntryId>,
        row: &mut CheckpointRow,
    ) -> Result<(), String> {
        let bytes = read_file(self.disk, &self.dir.join(name)).map_err(|error| error.to_string())?;
        row.file_bytes = bytes.len() as u64;
        let checkpoint = Checkpoint::decode(bytes)?;
        row.last = Some(checkpoint.last.into());
        row.state_bytes = checkpoint.state.len() as u64;
        row.origin = Some(match checkpoint.origin {
            Origin::Boundary => "boundary",
            Origin::Installed => "installed",
            Origin::OnDemand => "on demand",
            Origin::Periodic => "periodic",
        });
        row.voters = voters_in(checkpoint.members.clone())?;
        if checkpoint.last.index != index {
            return Err(format!("it is of entry {}, its name says {index}", checkpoint.last));
        }
        if checkpoint.origin != Origin::Installed
            && Some(index) > last.map(|last| last.index).max(self.purged().map(|purged| purged.index))
        {
            return Err(format!(
                "it is of entry {}, the log ends at {last:?}: durable entries are lost",
                checkpoint.last
            ));
        }
        Ok(())
    }

    /// Tells the records of `range` that count, in order.
    pub(super) fn records(&self, range: Range<LogIndex>, visit: &mut dyn FnMut(RecordRow) -> bool) {
        let start = range.start.max(next_index(self.purged()));
        let mut goes_on = true;
        for candidate in self.candidates.iter().filter(|candidate| !candidate.is_dead) {
            let (Some(file), Some(header)) = (&candidate.file, &candidate.header) else { continue };
            let is_outside = candidate.end.is_some_and(|end| end <= start) || candidate.first >= range.end;
            if is_outside || !goes_on {
                continue;
            }
            let walked = walk_segment(&**file, header, candidate.end, true, &mut |record| {
                if record.id.index >= range.end {
                    return false;
                }
                if record.id.index >= start {
                    goes_on = visit(record_row(record, &candidate.name));
                }
                goes_on
            });
            // A file that cannot be read any further is told by `examine`.
            goes_on &= walked.is_ok();
        }
    }
}

fn record_row(record: Found, file: &str) -> RecordRow {
    let payload = record.payload.unwrap_or_default();
    let is_membership = record.kind == RecordKind::Membership && record.wrong.is_none();
    RecordRow {
        index: record.id.index.0,
        term: record.id.term.0,
        kind: match record.kind {
            RecordKind::Blank => "blank",
            RecordKind::Membership => "membership",
            RecordKind::Normal => "proposal",
        },
        payload_bytes: record.payload_bytes as u64,
        file: file.to_owned(),
        position: record.position,
        damage: record.wrong,
        voters: if is_membership { voters_in(payload.clone()).unwrap_or_default() } else { Vec::new() },
        payload,
    }
}

fn check_header(
    file: &dyn DiskFile,
    (sequence, first): (u64, LogIndex),
    identity: Option<u64>,
) -> Result<SegmentHeader, String> {
    if file.len() < SEGMENT_HEADER_BYTES {
        return Err(format!("segment of {} bytes has no header", file.len()));
    }
    let page = file.read_at(0, SEGMENT_HEADER_BYTES as usize).map_err(|error| error.to_string())?;
    let header = SegmentHeader::decode(&page)?;
    if page[HEADER_USED_BYTES..].iter().any(|byte| *byte != 0) {
        return Err("bytes behind the header are not zero".to_owned());
    }
    if (header.sequence, header.first) != (sequence, first) {
        return Err(format!("header says {}", header.file_name()));
    }
    if header.segment_bytes != file.len() {
        return Err(format!("header says {} bytes, file has {}", header.segment_bytes, file.len()));
    }
    if identity.is_some_and(|identity| identity != header.identity) {
        return Err("segment is of another cluster or group".to_owned());
    }
    Ok(header)
}
