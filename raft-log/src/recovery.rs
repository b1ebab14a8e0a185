//! Opening a log. Every start is a crash start; there is no other path.
//!
//! ```text
//! lock ─▶ identity ─▶ vote and marks ─▶ order the segments ─▶ scan them ─▶ cut the torn tail, zero what is behind it
//!      ─▶ drop overridden and purged files ─▶ sync what the last process may not have
//! ```

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use flotilla_runtime::Runtime;

use crate::background::Background;
use crate::boot_mark::BootMark;
use crate::campaign_pause::CampaignPause;
use crate::checkpoint_file::parse_checkpoint_name;
use crate::disk::Disk;
use crate::disk_flusher::FlusherSeat;
use crate::failure::Failure;
use crate::flusher::{Durable, Flusher};
use crate::identity::{self, Origin};
use crate::ids::{EntryId, next_index};
use crate::log_files::{LogFiles, Tail};
use crate::log_state::LogState;
use crate::log_view::Shared;
use crate::raft::VoteHold;
use crate::recovery_order::ORDER_FILE;
use crate::recovery_report::{PhaseWatch, RecoveryReport, Seen, TornTail};
use crate::repair::{Damages, scan_around, scan_around_to};
use crate::room::{Room, RoomLimits};
use crate::segment::{
    Check, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, identity_hash, parse_segment_name, scan_segment,
};
use crate::segment_maker::{PREPARED_FILE, first_header, name_segment, reserve_segment_file};
use crate::standing::Standings;
use crate::summary_files::{read_summary, remove_orphans, remove_summary, write_summary};
use crate::tail_cache::TailCache;
use crate::term_runs::TermRuns;
use crate::vote_and_marks::{FILE_BYTES, MARKS_FILE, TailFloor, VoteAndMarks};
use crate::{Corruption, LogConfig, LogIndex, OpenError};

/// Whoever writes to a log's directory has this file in it locked.
pub const LOCK_FILE: &str = "lock";
/// What a scan says where it finds zeroes instead of a record.
const NO_RECORD: &str = "no record";
/// What is behind a torn tail is looked at and zeroed in pieces of this many bytes.
const ZERO_BYTES: u64 = 1 << 20;
const POISON: &str = "log lock is never poisoned: no code panics while holding it";

/// Opens the log of `config.dir`, founding it if there is none. Blocks; to be called where that is allowed.
pub(crate) fn open_log(
    config: &LogConfig,
    disk: Arc<dyn Disk>,
    runtime: &Runtime,
    failure: Failure,
) -> Result<LogFiles, OpenError> {
    let dir = &config.dir;
    let mut report = RecoveryReport::default();
    let mut watch = PhaseWatch::start(runtime);
    disk.create_dir_all(dir).map_err(io_at(dir))?;
    let lock_path = dir.join(LOCK_FILE);
    let lock = disk.lock(&lock_path).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { dir: dir.clone() },
        _ => OpenError::Io { path: lock_path.clone(), source: error },
    })?;
    let seat = FlusherSeat::take(&*disk, dir, runtime).map_err(io_at(dir))?;
    let mut whose = identity::claim(&*disk, config, runtime)?;
    let names = disk.list(dir).map_err(io_at(dir))?;
    let named: Vec<_> = names.iter().filter_map(|name| Some((parse_segment_name(name)?, name))).collect();
    remove_orphans(&*disk, dir, &names).map_err(io_at(dir))?;
    report.foreign_files = names.iter().filter(|name| is_foreign(name)).cloned().collect();
    if !report.foreign_files.is_empty() {
        tracing::warn!(files = ?report.foreign_files, "files that are none of the log's, left alone");
    }
    watch.over("directory", Seen { files: names.len() as u64, ..Seen::default() }, &mut report);
    let marks = VoteAndMarks::open(&*disk, dir, !named.is_empty())?;
    report.healed_slots = marks.healed_slots();
    watch.over("marks", Seen { files: 1, bytes: FILE_BYTES, entries: 0 }, &mut report);
    tracing::info!(
        dir = %dir.display(), vote = ?marks.vote(), purged = ?marks.purged(), committed = ?marks.committed(),
        segments = named.len(), "log directory found"
    );
    if named.is_empty() && (marks.vote().is_some() || marks.purged().is_some() || marks.committed().is_some()) {
        let what = "there are no segments although the replica voted or purged".to_owned();
        return Err(Corruption { path: dir.clone(), offset: 0, what }.into());
    }
    check_newest_is_there(dir, &named, &marks)?;

    let room = Room::new(RoomLimits {
        segment_bytes: config.segment_bytes,
        data_bytes_max: config.data_bytes_max,
        disk_free_bytes_min: config.disk_free_bytes_min,
        disk_free_percent_min: config.disk_free_percent_min,
        disk_free_percent_bytes_max: config.disk_free_percent_bytes_max,
    });
    let identity = identity_hash(&config.cluster, &config.group);
    let mut segments = Vec::new();
    for ((sequence, first), name) in named {
        segments.push(open_segment(&*disk, dir.join(name), identity, sequence, first)?);
    }
    let mut recovery =
        Recovery { disk: &*disk, dir, room: &room, terms: TermRuns::default(), last: marks.purged(), watch, report };
    let mut live = recovery.recover(segments, &marks)?;
    let next_sequence = live.last().map_or(1, |segment| segment.header.sequence + 1);
    let mut prepared = recovery.take_prepared(&names, config.segment_bytes)?;
    let purged = marks.purged();
    let tail_fits = live.last().is_some_and(|tail| tail.end >= next_index(purged));
    if !tail_fits {
        // A new log, or a crash between the purge of everything and the file behind the mark.
        let header = first_header(identity, next_sequence, config.segment_bytes, purged);
        let path = dir.join(header.file_name());
        let file = match prepared.take() {
            Some(file) => file,
            None => reserve_segment_file(&*disk, dir, config.segment_bytes).map_err(io_at(&path))?,
        };
        name_segment(&*disk, dir, &*file, &header).map_err(io_at(&path))?;
        room.file_added(file.len());
        recovery.remove(live.drain(..))?;
        live.push(Segment::new(path, file, header));
    }
    if let Some(file) = &prepared {
        room.file_added(file.len());
    }
    let Recovery { terms, last, report, .. } = recovery;
    let tail = live.last().expect("a tail was found or made");
    let floor = TailFloor { sequence: tail.header.sequence, position: tail.position };
    let tail = Tail {
        sequence: floor.sequence,
        path: tail.path.clone(),
        file: tail.file.clone(),
        position: tail.position,
        prepared,
    };
    if whose.origin == Origin::Founder && last.is_none() && marks.vote().is_none() && purged.is_none() {
        // The log comes before the word of its founding: so there was one.
        whose.incarnation = identity::new_incarnation(runtime);
        whose.origin = Origin::Undecided;
        tracing::error!(dir = %dir.display(), "the log is gone, and its identity is not: this is a new directory");
        whose.write(&*disk, dir).map_err(io_at(dir))?;
    }
    let standings = Standings::new(disk.clone(), dir.clone(), whose, config.feature_level);
    let (boot, has_lost) = BootMark::open(disk.clone(), dir.clone(), config.flush)?;
    let state = LogState { segments: live, terms, purged, last, cache: TailCache::new(config.tail_cache_bytes) };
    tracing::info!(first = %state.start(), end = %state.end(), last = ?last, segments = state.segments.len(), "log recovered");
    let shared = Arc::new(Shared {
        state: RwLock::new(state),
        marks: Mutex::new(marks),
        flusher: Flusher::start(runtime, seat, failure.clone(), config.flush, Durable { floor, last }),
        failure,
        room,
        background: Background::default(),
        runtime: runtime.clone(),
        damages: Damages::default(),
        boot: Mutex::new(boot),
        vote_hold: VoteHold::new(has_lost, standings),
        campaign_pause: CampaignPause::new(Duration::from_millis(config.timing.election_timeout_ms_min)),
        lock: Mutex::new(Some(lock)),
        recovery: Mutex::new(report),
    });
    note_commit_mark(&shared);
    Ok(LogFiles::new(shared, disk, dir.clone(), identity, config.segment_bytes, tail))
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path.to_owned();
    move |source| OpenError::Io { path, source }
}

fn corrupt(path: &Path, offset: u64, what: String) -> OpenError {
    Corruption { path: path.to_owned(), offset, what }.into()
}

/// Opens one file and checks its header. The header was durable before the file got its name, so it must be sound.
fn open_segment(
    disk: &dyn Disk,
    path: PathBuf,
    identity: u64,
    sequence: u64,
    first: LogIndex,
) -> Result<Segment, OpenError> {
    let file = disk.open(&path).map_err(io_at(&path))?;
    if file.len() < SEGMENT_HEADER_BYTES {
        return Err(corrupt(&path, 0, format!("segment of {} bytes has no header", file.len())));
    }
    let page = file.read_at(0, SEGMENT_HEADER_BYTES as usize).map_err(io_at(&path))?;
    let header = SegmentHeader::decode(&page).map_err(|what| corrupt(&path, 0, what))?;
    if header.identity != identity {
        return Err(corrupt(&path, 0, "segment is of another cluster or group".to_owned()));
    }
    if (header.sequence, header.first) != (sequence, first) {
        return Err(corrupt(&path, 0, format!("header says {}", header.file_name())));
    }
    if header.segment_bytes != file.len() {
        return Err(corrupt(&path, 0, format!("header says {} bytes, file has {}", header.segment_bytes, file.len())));
    }
    Ok(Segment::new(path, file, header))
}

/// Whether a name is none that this crate gives.
pub(crate) fn is_foreign(name: &str) -> bool {
    let own = [LOCK_FILE, identity::IDENTITY_FILE, MARKS_FILE, PREPARED_FILE];
    let leftover = name.strip_suffix(".tmp");
    let finished = leftover.unwrap_or(name);
    // A segment, its summary, its quarantine marker, the file that is to take its place.
    let beside = [".seg", ".sum", ".seg.quarantine", ".seg.repair"];
    let is_of_segment = beside.iter().filter_map(|ending| finished.strip_suffix(ending));
    let is_own = own.contains(&name)
        || is_of_segment.map(|stem| format!("{stem}.seg")).any(|name| parse_segment_name(&name).is_some())
        || parse_checkpoint_name(leftover.unwrap_or(name)).is_some()
        || finished == ORDER_FILE
        || leftover == Some(identity::IDENTITY_FILE);
    !is_own
}

/// A floor is only ever saved after its file had its name, and the newest file is only ever replaced by a newer one.
fn check_newest_is_there(
    dir: &Path,
    named: &[((u64, LogIndex), &String)],
    marks: &VoteAndMarks,
) -> Result<(), OpenError> {
    let floor = marks.newest_floor();
    let newest = named.iter().map(|((sequence, _), _)| *sequence).max().unwrap_or(0);
    if floor.sequence <= newest {
        return Ok(());
    }
    let what = format!(
        "segment file number {} is missing: {} bytes of it were durable, the newest one here is number {newest}",
        floor.sequence, floor.position
    );
    Err(corrupt(dir, 0, what))
}

/// A commit mark is not synced for its own sake and may have outlived the entries it stands for.
fn note_commit_mark(shared: &Shared) {
    let saved = shared.marks.lock().expect(POISON).committed();
    let end = shared.state().end();
    if let Some(saved) = saved.filter(|saved| saved.index >= end) {
        tracing::warn!(%saved, %end, "commit mark is beyond the log's end, the end counts");
        shared.recovery.lock().expect(POISON).commit_mark_beyond_end = Some(saved.index);
    }
}

struct Recovery<'a> {
    disk: &'a dyn Disk,
    dir: &'a Path,
    room: &'a Room,
    terms: TermRuns,
    last: Option<EntryId>,
    watch: PhaseWatch,
    report: RecoveryReport,
}

impl Recovery<'_> {
    /// The segments that still stand for something, scanned; `segments` comes in the order of sequence.
    fn recover(&mut self, segments: Vec<Segment>, marks: &VoteAndMarks) -> Result<Vec<Segment>, OpenError> {
        let start = next_index(marks.purged());
        let total = segments.len();
        let mut waiting: VecDeque<Segment> = segments.into();
        let mut live: Vec<Segment> = Vec::new();
        let mut gone: Vec<Segment> = Vec::new();
        let mut sealed = Seen::default();
        while let Some(mut segment) = waiting.pop_front() {
            // Later files override from their first index on.
            let end = waiting.iter().map(|later| later.header.first).min();
            if end.is_some_and(|end| end <= segment.header.first || end <= start) {
                gone.push(segment);
                continue;
            }
            self.check_continuity(&live, &segment, marks)?;
            match end {
                Some(end) => {
                    let next = waiting.iter().find(|later| later.header.first == end);
                    let before_end = next.and_then(|next| next.header.previous);
                    self.scan_sealed(&mut segment, end, before_end)?;
                    sealed.files += 1;
                    sealed.bytes += segment.position;
                    sealed.entries += segment.end.0 - segment.header.first.0;
                }
                None => {
                    self.watch.over("segments", sealed, &mut self.report);
                    let floor = marks.floor_of(segment.header.sequence);
                    self.scan_tail(&mut segment, floor)?;
                    let entries = segment.end.0 - segment.header.first.0;
                    self.watch.over("tail", Seen { files: 1, bytes: segment.position, entries }, &mut self.report);
                }
            }
            self.room.file_added(segment.file.len());
            live.push(segment);
        }
        if let Some(tail) = live.last()
            && tail.end > start
        {
            self.terms.purge(start);
        } else {
            self.terms = TermRuns::default();
            self.last = marks.purged();
        }
        tracing::info!(found = total, live = live.len(), overridden_or_purged = gone.len(), "segments scanned");
        gone.iter().for_each(|segment| self.room.file_added(segment.file.len()));
        self.remove(gone)?;
        Ok(live)
    }

    /// A segment must begin right behind the log so far and know the entry before it.
    fn check_continuity(&self, live: &[Segment], segment: &Segment, marks: &VoteAndMarks) -> Result<(), OpenError> {
        let first = segment.header.first;
        let expected = match live.last() {
            Some(before) => before.end,
            // The files in front may be gone as far as the purge mark.
            None => first.min(next_index(marks.purged())),
        };
        if first != expected {
            let what = format!(
                "entries {expected} to {} are missing: no segment file holds them",
                first.previous().unwrap_or(first)
            );
            return Err(corrupt(&segment.path, 0, what));
        }
        if !live.is_empty() && segment.header.previous != self.last {
            let what = format!("entry before it is {:?}, header says {:?}", self.last, segment.header.previous);
            return Err(corrupt(&segment.path, 0, what));
        }
        Ok(())
    }

    /// Sealed segments were durable when the next one was made: whatever is wrong there is damage.
    fn scan_sealed(
        &mut self,
        segment: &mut Segment,
        end: LogIndex,
        before_end: Option<EntryId>,
    ) -> Result<(), OpenError> {
        if let Some(summary) = read_summary(self.disk, self.dir, &segment.header)
            && summary.end >= end
        {
            self.terms.truncate(segment.header.first);
            for (index, term) in summary.runs.iter().copied().take_while(|(first, _)| *first < end) {
                self.terms.push(EntryId { term, index });
                self.last = end.previous().map(|index| EntryId { term, index });
            }
            segment.restore(summary, end);
            return Ok(());
        }
        let wrong = self.scan(segment, Some(end), Check::Headers)?;
        let is_wrong = segment.end != end || before_end.is_some_and(|before_end| self.last != Some(before_end));
        if is_wrong && !scan_around(self.disk, segment, end, &mut self.terms, &mut self.last)? {
            let what = match wrong {
                None => "file ends".to_owned(),
                Some(what) if what == NO_RECORD => {
                    format!("{what}; if the file is whole, the one that held entries {} and on is missing", segment.end)
                }
                Some(what) => what,
            };
            let what = format!("sealed segment stops at entry {} of {end}: {what}", segment.end);
            return Err(corrupt(&segment.path, segment.position, what));
        }
        if let Some(summary) = segment.seal(self.terms.runs_of(segment.header.first, end)) {
            write_summary(self.disk, self.dir, &summary);
        }
        Ok(())
    }

    /// The last segment may end in the middle of a write: everything from the first unsound record on is cut and zeroed.
    fn scan_tail(&mut self, segment: &mut Segment, floor: u64) -> Result<(), OpenError> {
        let mut wrong = self.scan(segment, None, Check::Checksums)?;
        if segment.position < floor && !scan_around_to(self.disk, segment, floor, &mut self.terms, &mut self.last)? {
            let what = wrong.unwrap_or_else(|| "file ends".to_owned());
            let what = format!("bytes before {floor} were durable, but entry {} is damaged: {what}", segment.end);
            return Err(corrupt(&segment.path, segment.position, what));
        }
        if segment.position == floor {
            // Damage was passed: what follows is a tail like any other.
            let (terms, last) = (&mut self.terms, &mut self.last);
            let scanned = scan_segment(segment, None, Check::Checksums, |id| {
                terms.push(id);
                *last = Some(id);
            });
            wrong = scanned.map_err(io_at(&segment.path))?;
        }
        let io = io_at(&segment.path);
        let zeroed = rewrite_from(segment, floor).and_then(|()| zero_from(segment)).and_then(|zeroed| {
            // The last process may have been killed between a write and its sync.
            segment.file.sync_data()?;
            Ok(zeroed)
        });
        let zeroed = zeroed.map_err(io)?;
        // Zeroes where a record should stand are a clean end, unless something follows them.
        let torn = wrong.filter(|what| what != NO_RECORD || zeroed > 0);
        tracing::info!(
            file = %segment.path.display(), end = %segment.end, position = segment.position, zeroed_bytes = zeroed,
            torn, "tail segment scanned"
        );
        self.report.torn_tail = torn.map(|what| TornTail {
            file: segment.path.to_path_buf(),
            position: segment.position,
            what,
            zeroed_bytes: zeroed,
        });
        Ok(())
    }

    fn scan(
        &mut self,
        segment: &mut Segment,
        end: Option<LogIndex>,
        check: Check,
    ) -> Result<Option<String>, OpenError> {
        self.terms.truncate(segment.header.first);
        self.last = segment.header.previous;
        let (terms, last) = (&mut self.terms, &mut self.last);
        let path = segment.path.clone();
        scan_segment(segment, end, check, |id| {
            terms.push(id);
            *last = Some(id);
        })
        .map_err(io_at(&path))
    }

    fn remove(&self, segments: impl IntoIterator<Item = Segment>) -> Result<(), OpenError> {
        for segment in segments {
            self.disk.remove(&segment.path).map_err(io_at(&segment.path))?;
            remove_summary(self.disk, &segment.path).map_err(io_at(&segment.path))?;
            self.room.file_removed(segment.file.len());
        }
        // Also for the names that the last process may not have synced.
        self.disk.sync_dir(self.dir).map_err(io_at(self.dir))
    }

    /// A file prepared by the last process is used if it is whole and untouched, else removed.
    fn take_prepared(
        &self,
        names: &[String],
        segment_bytes: u64,
    ) -> Result<Option<Arc<dyn crate::DiskFile>>, OpenError> {
        if !names.iter().any(|name| name == PREPARED_FILE) {
            return Ok(None);
        }
        let path = self.dir.join(PREPARED_FILE);
        let file = self.disk.open(&path).map_err(io_at(&path))?;
        if file.len() == segment_bytes {
            let page = file.read_at(0, SEGMENT_HEADER_BYTES as usize).map_err(io_at(&path))?;
            if page.iter().all(|byte| *byte == 0) {
                return Ok(Some(file));
            }
        }
        self.disk.remove(&path).map_err(io_at(&path))?;
        Ok(None)
    }
}

/// Writes the records that are not known to be durable once more, byte for byte, so that the sync that follows has
/// something to do: after a failed sync Linux keeps the pages that did not reach the disk, marked as clean, and a later sync
/// that finds nothing dirty succeeds. Without this a restarted process would count page cache as disk.
fn rewrite_from(segment: &Segment, floor: u64) -> io::Result<()> {
    let mut position = floor;
    while position < segment.position {
        let piece = (segment.position - position).min(ZERO_BYTES);
        let bytes = segment.file.read_at(position, usize::try_from(piece).expect("a piece is at most 1 MiB"))?;
        segment.file.write_at(position, &bytes)?;
        position += piece;
    }
    Ok(())
}

/// Zeroes what is not zero behind the segment's last record, so that nothing there can ever pass for a record again.
fn zero_from(segment: &Segment) -> io::Result<u64> {
    let mut zeroed = 0;
    let mut position = segment.position;
    loop {
        position = segment.file.data_from(position);
        if position >= segment.file.len() {
            return Ok(zeroed);
        }
        let piece = (segment.file.len() - position).min(ZERO_BYTES);
        let len = usize::try_from(piece).expect("a piece is at most 1 MiB");
        let is_zero = segment.file.read_at(position, len)?.iter().all(|byte| *byte == 0);
        if !is_zero {
            segment.file.write_at(position, &vec![0; len])?;
            zeroed += piece;
        }
        position += piece;
    }
}
