//! The log's one writer: appends, truncates, purges, and makes segment files ahead of their need.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::{Instant, Task};

use crate::disk::{Disk, DiskFile};
use crate::flusher::{Durable, FlushDone, FlushTarget};
use crate::ids::{EntryId, next_index};
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::log_view::{LogView, Shared, closed};
use crate::room::{DiskSpace, Need, RECHECK};
use crate::room_wait::{is_full, note_full};
use crate::runway::{Filling, Runway};
use crate::segment::{
    ALIGN_BYTES, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, Summary, encode_header,
    encode_record, record_bytes,
};
use crate::summary_files::{remove_summary, write_summary};
use crate::vote_and_marks::{SavedVote, TailFloor};
use crate::{FlushMode, LogIndex};

/// The file made ahead of its need.
pub(crate) const PREPARED_FILE: &str = "next.prepared";
/// The batch buffer is let go above this size.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The writing end of a log. There is one, and it is never used by two at a time.
pub(crate) struct LogFiles {
    pub(crate) shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    identity: u64,
    segment_bytes: u64,
    next_sequence: u64,
    /// The tail segment's file, and where the next record goes.
    tail: FlushTarget,
    /// Of the tail segment's file.
    runway: Arc<Runway>,
    /// Being made, or made. `None` when there was no room.
    prepared: Option<Task<io::Result<Arc<Runway>>>>,
    /// When a blocked log last looked for room for the next file.
    looked_at: Instant,
    buffer: Vec<u8>,
    /// The records that are to be written together; empty between appends, kept for its memory.
    pending: Vec<Record>,
    /// Records go straight into the tail's file: no batch is put together before.
    is_straight: bool,
}

/// What recovery hands to the writer.
pub(crate) struct Tail {
    pub(crate) sequence: u64,
    pub(crate) path: Arc<Path>,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) position: u64,
    pub(crate) prepared: Option<Arc<dyn DiskFile>>,
}

impl LogFiles {
    pub(crate) fn new(
        shared: Arc<Shared>,
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        identity: u64,
        segment_bytes: u64,
        tail: Tail,
    ) -> LogFiles {
        let last = shared.state().last;
        let looked_at = shared.runtime.now();
        let is_straight = is_straight(&shared, &*tail.file);
        let mut files = LogFiles {
            shared,
            disk,
            dir,
            identity,
            segment_bytes,
            next_sequence: tail.sequence + 1,
            runway: Runway::new(tail.file.clone(), tail.position),
            tail: FlushTarget {
                path: tail.path,
                file: tail.file,
                floor: TailFloor { sequence: tail.sequence, position: tail.position },
                last,
            },
            prepared: None,
            looked_at,
            buffer: Vec::new(),
            pending: Vec::new(),
            is_straight,
        };
        files.note_tail_left();
        files.extend_runway();
        match tail.prepared {
            Some(file) => files.prepared = Some(files.prepare_file(Some(file))),
            None => files.prepare(),
        }
        files
    }

    /// When an append counts.
    pub(crate) fn flush_mode(&self) -> FlushMode {
        self.shared.flusher.mode()
    }

    /// A handle for readers.
    pub(crate) fn view(&self) -> LogView {
        LogView { shared: self.shared.clone() }
    }

    /// Largest payload that fits a segment of these settings.
    pub(crate) fn payload_bytes_max(segment_bytes: u64) -> usize {
        let fits = segment_bytes - SEGMENT_HEADER_BYTES - record_bytes(0);
        usize::try_from(fits).unwrap_or(usize::MAX).min(PAYLOAD_BYTES_MAX)
    }

    /// Writes entries behind the last one. They can be read when this returns; `done` is told when they are durable.
    pub(crate) async fn append(&mut self, records: Vec<Record>, done: FlushDone) -> io::Result<()> {
        self.shared.failure.check()?;
        let Some(first) = records.first() else {
            done(Ok(()));
            return Ok(());
        };
        let is_next = self.tail.last.is_some_and(|last| last.index.next() == first.id.index);
        let end = if is_next { first.id.index } else { self.shared.state().end() };
        if first.id.index != end {
            if !self.shared.state().is_empty() {
                let what = format!("entry {} does not follow the log's end at {end}", first.id);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            let previous = self.shared.state().last;
            self.start_segment(first.id.index, previous, record_bytes(first.payload.len())).await?;
        }
        if self.shared.damages.wants_sealed(self.tail.floor.sequence) {
            let (first, bytes) = (first.id.index, record_bytes(first.payload.len()));
            let previous = self.shared.state().last;
            self.start_segment(first, previous, bytes).await?;
        }
        let mut bytes_written = 0;
        let mut pending = std::mem::take(&mut self.pending);
        // An append that was given up may have left its batch behind.
        pending.clear();
        self.buffer.clear();
        for record in records {
            let bytes = record_bytes(record.payload.len());
            if self.tail.floor.position + bytes_written + bytes > self.tail.file.len() {
                self.write_out(&mut pending, bytes_written).await?;
                let previous = self.shared.state().last;
                self.start_segment(record.id.index, previous, bytes).await?;
                bytes_written = 0;
            }
            if !self.is_straight {
                encode_record(&mut self.buffer, &record, self.tail.floor.sequence);
            }
            bytes_written += bytes;
            pending.push(record);
        }
        self.write_out(&mut pending, bytes_written).await?;
        self.pending = pending;
        let is_behind = self.shared.flusher.push(&self.tail, bytes_written, done);
        self.extend_runway();
        if self.prepared.is_none() {
            self.prepare();
        }
        if is_behind {
            self.shared.flusher.keep_up().await;
        }
        Ok(())
    }

    /// Writes the `bytes` that `pending` takes, then they are there for readers.
    async fn write_out(&mut self, pending: &mut Vec<Record>, bytes: u64) -> io::Result<()> {
        if pending.is_empty() {
            return Ok(());
        }
        let position = self.tail.floor.position;
        let end = position + bytes;
        // The runway is there already, unless appends outrun the disk.
        self.runway.claim(end).await;
        // Measured (docs/benchmarks.md): a call for a whole batch and fdatasync is the quickest way to the disk, a copy
        // into the map the quickest way to the page cache.
        let written = match self.shared.flusher.mode() {
            _ if self.is_straight => self.write_straight(position, pending),
            FlushMode::Sync => self.tail.file.write_at(position, &self.buffer),
            FlushMode::Async { .. } => self.tail.file.write_lazily(position, &self.buffer),
        };
        written.map_err(|error| self.shared.failure.report_io(self.tail.path.display(), error))?;
        self.tail.floor.position = end;
        self.tail.last = pending.last().map(|record| record.id);
        if !self.is_straight {
            self.buffer.clear();
            self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        }
        let mut state = self.shared.state_mut();
        pending.drain(..).for_each(|record| state.push(record));
        drop(state);
        self.note_tail_left();
        Ok(())
    }

    /// Copies records to where they go, each part once.
    fn write_straight(&self, mut position: u64, records: &[Record]) -> io::Result<()> {
        let file = &*self.tail.file;
        for record in records {
            let end = position + record_bytes(record.payload.len());
            file.write_lazily(position, &encode_header(record, self.tail.floor.sequence))?;
            file.write_lazily(position + RECORD_HEADER_BYTES as u64, &record.payload)?;
            let padding = end - position - RECORD_HEADER_BYTES as u64 - record.payload.len() as u64;
            if padding > 0 {
                file.write_lazily(end - padding, &[0; ALIGN_BYTES as usize][..padding as usize])?;
            }
            position = end;
        }
        Ok(())
    }

    /// Has zeroes written ahead of the tail, if few are left.
    fn extend_runway(&self) {
        let Some(filling) = self.runway.begin(self.tail.floor.position) else {
            return;
        };
        fill_in_background(&self.shared, &self.tail.path, filling);
    }

    /// Seals the tail and goes on in a new file whose first entry will be `first`. Everything before `first` and the new
    /// file itself are durable when this returns; earlier entries from `first` on are overridden.
    ///
    /// The order matters to recovery: the old file is synced before the new one gets its name, so a gap between two
    /// files can only be damage, never a crash.
    async fn start_segment(&mut self, first: LogIndex, previous: Option<EntryId>, record: u64) -> io::Result<()> {
        let mut ready = match self.prepared.take() {
            // Joined rather than raced: nobody makes the file faster than the one who began.
            Some(task) => task.join().await.ok().and_then(Result::ok),
            None => None,
        };
        let sequence = self.next_sequence;
        let len = self.segment_bytes.max(SEGMENT_HEADER_BYTES + record);
        if let Some(other) = ready.take_if(|runway| runway.file().len() != len) {
            // Replaced by the one that is made now.
            self.shared.room.file_removed(other.file().len());
        }
        let header = SegmentHeader { identity: self.identity, sequence, segment_bytes: len, first, previous };
        let path: Arc<Path> = self.dir.join(header.file_name()).into();
        let runway = loop {
            self.shared.failure.check()?;
            let made;
            (ready, made) = self.make_segment(ready, header).await;
            match (made, ready.take()) {
                (Ok(()), Some(runway)) => break runway,
                (Ok(()), None) => unreachable!("a segment was made of a file"),
                (Err(error), kept) if is_full(&error) => {
                    ready = kept;
                    self.wait_for_room(&error).await?;
                }
                (Err(error), _) => return Err(self.shared.failure.report_io(path.display(), error)),
            }
        };
        tracing::debug!(file = %path.display(), %first, "segment started");
        self.shared.room.spare_used();
        let file = runway.file().clone();
        let (gone, sealed) = {
            let mut state = self.shared.state_mut();
            let gone = state.start_segment(Segment::new(path.clone(), file.clone(), header));
            (gone, state.seal_before_tail())
        };
        let floor = TailFloor { sequence, position: SEGMENT_HEADER_BYTES };
        self.is_straight = is_straight(&self.shared, &*file);
        self.tail = FlushTarget { path, file, floor, last: previous };
        self.runway = runway;
        self.shared.flusher.tail_moved(Durable { floor, last: previous });
        self.next_sequence += 1;
        self.note_tail_left();
        self.remove_files(gone);
        self.summarize(sealed);
        self.extend_runway();
        self.prepare();
        Ok(())
    }

    /// Syncs the tail and gives a file, the prepared one if it is `ready`, its header and name. The file comes back in any
    /// case, so that a full disk costs nothing that was done.
    async fn make_segment(
        &self,
        ready: Option<Arc<Runway>>,
        header: SegmentHeader,
    ) -> (Option<Arc<Runway>>, io::Result<()>) {
        let (disk, dir, shared, old) = (self.disk.clone(), self.dir.clone(), self.shared.clone(), self.tail.clone());
        let making = move || {
            let mut ready = ready;
            let mut make = || {
                shared.flusher.make_durable(&old)?;
                let runway = match &ready {
                    Some(runway) => runway,
                    None => {
                        let len = header.segment_bytes;
                        let admitted = shared.room.admits_file(len, disk_space(&*disk, &dir), Need::Append);
                        admitted.map_err(|reason| io::Error::new(io::ErrorKind::StorageFull, reason))?;
                        let file = reserve_segment_file(&*disk, &dir, len)?;
                        shared.room.file_added(len);
                        ready.insert(Runway::new(file, SEGMENT_HEADER_BYTES))
                    }
                };
                let is_override = old.last.is_some_and(|last| header.first <= last.index);
                if is_planted(Bug::SuffixNotTruncated) && is_override {
                    return Ok(());
                }
                name_segment(&*disk, &dir, &**runway.file(), &header)
            };
            let made = make();
            (ready, made)
        };
        self.shared.runtime.blocking(making).await
    }

    /// The disk is full and an append needs space: nothing can be answered until there is some. Others take the lead
    /// meanwhile, and the node goes on by itself.
    async fn wait_for_room(&self, error: &io::Error) -> io::Result<()> {
        note_full(&self.shared, &*self.disk, &self.dir);
        tracing::warn!(%error, "an append waits for room on the disk");
        self.shared.runtime.sleep(RECHECK).await;
        if self.shared.room.is_closing() {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "log is closing, its disk is full"));
        }
        Ok(())
    }

    /// Lets go of everything behind `last`, durably. A new file overrides it; nothing is overwritten.
    pub(crate) async fn truncate_after(&mut self, last: Option<LogIndex>) -> io::Result<()> {
        self.shared.failure.check()?;
        let first = last.map_or(LogIndex(0), LogIndex::next);
        let (end, previous) = {
            let state = self.shared.state();
            if first >= state.end() {
                return Ok(());
            }
            if first < state.start() && state.purged.is_some() {
                let what = format!("entries from {first} cannot be truncated, the log starts at {}", state.start());
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            (state.end(), first.previous().and_then(|index| state.id_at(index)))
        };
        tracing::info!(%first, %end, "truncating entries that another leader overrides");
        self.start_segment(first, previous, 0).await
    }

    /// Lets go of `purged` and everything before it. The mark is durable when this returns, files go in the background.
    pub(crate) async fn purge(&mut self, purged: EntryId) -> io::Result<()> {
        self.shared.failure.check()?;
        if Some(purged.index) <= self.shared.state().purged.map(|purged| purged.index) {
            return Ok(());
        }
        let (shared, floor) = (self.shared.clone(), self.shared.flusher.durable().floor);
        let saved = self.shared.runtime.blocking(move || {
            let mut marks = lock_marks(&shared);
            let saved = marks.save_purged(purged, floor);
            saved.map_err(|error| shared.failure.report_io(marks.path().display(), error))
        });
        saved.await?;
        let gone = self.shared.state_mut().purge(purged);
        self.remove_files(gone);
        if self.shared.state().is_empty() {
            // Nothing is left: the tail file goes too, once another one stands behind the mark.
            self.start_segment(purged.index.next(), Some(purged), 0).await?;
            let gone = self.shared.state_mut().purge(purged);
            self.remove_files(gone);
        }
        if self.prepared.is_none() {
            self.prepare();
        }
        Ok(())
    }

    /// Saves the vote, durably, and behind everything appended before: openraft takes a saved vote for the proof that
    /// all earlier appends are durable too.
    pub(crate) async fn save_vote(&mut self, vote: SavedVote) -> io::Result<()> {
        self.shared.failure.check()?;
        let (shared, tail) = (self.shared.clone(), self.tail.clone());
        let (began, pause) = (self.shared.runtime.now(), &self.shared.campaign_pause);
        pause.keeping();
        let saved = self.shared.runtime.blocking(move || {
            shared.flusher.make_durable(&tail)?;
            let mut marks = lock_marks(&shared);
            let saved = marks.save_vote(vote, tail.floor);
            saved.map_err(|error| shared.failure.report_io(marks.path().display(), error))
        });
        let saved = saved.await;
        pause.kept(self.shared.runtime.now().saturating_since(began), &self.shared.runtime);
        saved
    }

    fn note_tail_left(&self) {
        self.shared.room.set_tail_left(self.tail.file.len().saturating_sub(self.tail.floor.position));
    }

    /// Starts making the next file, if there is room for it and nobody has.
    fn prepare(&mut self) {
        if self.prepared.is_some() {
            return;
        }
        let room = &self.shared.room;
        let now = self.shared.runtime.now();
        if room.is_blocked() && !room.is_tail_short() && now.saturating_since(self.looked_at) < RECHECK {
            return;
        }
        self.looked_at = now;
        let (len, space) = (self.segment_bytes, disk_space(&*self.disk, &self.dir));
        let admitted = room.admits_file(len, space, Need::Data);
        room.set_blocked(admitted.err(), now);
        if admitted.is_err() {
            if !room.is_tail_short() || room.admits_file(len, space, Need::Settlement).is_err() {
                return;
            }
            tracing::info!(bytes = len, "next segment is made out of the reserve, for settlements");
            room.spare_made(len);
        }
        room.file_added(len);
        self.prepared = Some(self.prepare_file(None));
    }

    /// Makes the next file, or takes the one that the last process made, and fills the beginning of its runway.
    fn prepare_file(&self, made: Option<Arc<dyn DiskFile>>) -> Task<io::Result<Arc<Runway>>> {
        let len = self.segment_bytes;
        let working = self.shared.background.begin();
        let (disk, dir, shared) = (self.disk.clone(), self.dir.clone(), self.shared.clone());
        let path: Arc<Path> = self.dir.join(PREPARED_FILE).into();
        self.shared.runtime.spawn("segment-prepare", async move {
            let preparing = move || {
                let _working = working.ok_or_else(closed)?;
                let file = match made {
                    Some(file) => file,
                    None => reserve_segment_file(&*disk, &dir, len)?,
                };
                let runway = Runway::new(file, SEGMENT_HEADER_BYTES);
                if let Some(filling) = runway.begin(SEGMENT_HEADER_BYTES) {
                    filling.fill()?;
                }
                Ok::<_, io::Error>(runway)
            };
            let prepared = shared.runtime.blocking(preparing).await;
            match &prepared {
                Ok(runway) => {
                    if let Some(filling) = runway.begin_all() {
                        fill_in_background(&shared, &path, filling);
                    }
                }
                Err(error) => {
                    // Not final: the file is asked for again, and made inline then.
                    tracing::warn!(%error, "next segment could not be prepared");
                    shared.room.file_removed(len);
                    shared.room.spare_made(0);
                }
            }
            prepared
        })
    }

    /// Writes the summary of a segment that was just sealed.
    fn summarize(&self, sealed: Option<Summary>) {
        let Some(summary) = sealed else { return };
        let Some(working) = self.shared.background.begin() else { return };
        let (disk, dir, runtime) = (self.disk.clone(), self.dir.clone(), self.shared.runtime.clone());
        let writing = self.shared.runtime.spawn("segment-summary", async move {
            runtime
                .blocking(move || {
                    let _working = working;
                    write_summary(&*disk, &dir, &summary);
                })
                .await;
        });
        writing.detach();
    }

    fn remove_files(&self, gone: Vec<Segment>) {
        if gone.is_empty() {
            return;
        }
        let Some(working) = self.shared.background.begin() else { return };
        let (disk, dir, shared) = (self.disk.clone(), self.dir.clone(), self.shared.clone());
        let removal = self.shared.runtime.spawn("segment-remove", async move {
            let (work, blocking) = (shared.clone(), shared.runtime.clone());
            let removed = blocking.blocking(move || {
                let _working = working;
                for segment in gone {
                    disk.remove(&segment.path)?;
                    remove_summary(&*disk, &segment.path)?;
                    work.room.file_removed(segment.file.len());
                }
                disk.sync_dir(&dir)
            });
            if let Err(error) = removed.await {
                // Harmless: recovery removes what a later file overrides.
                tracing::warn!(%error, "segment file could not be removed");
            }
        });
        removal.detach();
    }
}

fn is_straight(shared: &Shared, file: &dyn DiskFile) -> bool {
    shared.flusher.mode() != FlushMode::Sync && file.copies_lazily()
}

fn lock_marks(shared: &Shared) -> std::sync::MutexGuard<'_, crate::vote_and_marks::VoteAndMarks> {
    shared.marks.lock().expect("log lock is never poisoned: no code panics while holding it")
}

/// Has zeroes written; the space is reserved, so whatever fails there is the disk.
fn fill_in_background(shared: &Arc<Shared>, path: &Arc<Path>, filling: Filling) {
    let Some(working) = shared.background.begin() else { return };
    let (shared, path) = (shared.clone(), path.clone());
    let task = shared.runtime.clone().spawn("segment-zero", async move {
        let _working = working;
        if let Err(error) = filling.fill_gently(&shared.runtime, || shared.room.is_closing()).await {
            shared.failure.report_io(path.display(), error);
        }
    });
    task.detach();
}

/// Free and total bytes where the log is; all the space there is when the file system does not tell.
pub(crate) fn disk_space(disk: &dyn Disk, dir: &Path) -> DiskSpace {
    let known = disk.free_bytes(dir).and_then(|free_bytes| Ok((free_bytes, disk.total_bytes(dir)?)));
    let (free_bytes, total_bytes) = known.unwrap_or_else(|error| {
        tracing::warn!(dir = %dir.display(), %error, "free space is not known");
        (u64::MAX, 0)
    });
    DiskSpace { free_bytes, total_bytes }
}

/// A file of zeroes, its space reserved, under the name of the prepared one.
pub(crate) fn reserve_segment_file(disk: &dyn Disk, dir: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
    disk.reserve(&dir.join(PREPARED_FILE), len)
}

/// Turns the prepared file into a segment, durably: header first, then the name.
pub(crate) fn name_segment(disk: &dyn Disk, dir: &Path, file: &dyn DiskFile, header: &SegmentHeader) -> io::Result<()> {
    assert_eq!(file.len(), header.segment_bytes, "the header tells the file's length");
    file.write_at(0, &header.encode())?;
    file.sync_data()?;
    disk.rename(&dir.join(PREPARED_FILE), &dir.join(header.file_name()))?;
    disk.sync_dir(dir)
}

/// The header of a log's first segment, or of the one behind a purge of everything.
pub(crate) fn first_header(identity: u64, sequence: u64, segment_bytes: u64, purged: Option<EntryId>) -> SegmentHeader {
    SegmentHeader { identity, sequence, segment_bytes, first: next_index(purged), previous: purged }
}
