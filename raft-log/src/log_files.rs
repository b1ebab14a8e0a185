//! The log's one writer: appends, truncates, purges.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk::{Disk, DiskFile};
use crate::flusher::{Durable, FlushDone, FlushTarget};
use crate::ids::EntryId;
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::log_view::{LogView, Shared};
use crate::runway::Runway;
use crate::segment::{
    ALIGN_BYTES, RECORD_HEADER_BYTES, Record, SEGMENT_HEADER_BYTES, Segment, encode_header, encode_record, record_bytes,
};
pub(crate) use crate::segment_maker::disk_space;
use crate::segment_maker::{MadeSegment, SegmentMaker, fill_in_background};
use crate::vote_and_marks::{SavedVote, TailFloor};
use crate::{FlushMode, LogIndex};

/// The batch buffer is let go above this size.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The writing end of a log. There is one, and it is never used by two at a time.
pub(crate) struct LogFiles {
    pub(crate) shared: Arc<Shared>,
    maker: SegmentMaker,
    /// The tail segment's file, and where the next record goes.
    tail: FlushTarget,
    /// Of the tail segment's file.
    runway: Arc<Runway>,
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
        let is_straight = is_straight(&shared, &*tail.file);
        let mut files = LogFiles {
            maker: SegmentMaker::new(shared.clone(), disk, dir, identity, segment_bytes, tail.sequence + 1),
            shared,
            runway: Runway::new(tail.file.clone(), tail.position),
            tail: FlushTarget {
                path: tail.path,
                file: tail.file,
                floor: TailFloor { sequence: tail.sequence, position: tail.position },
                last,
            },
            buffer: Vec::new(),
            pending: Vec::new(),
            is_straight,
        };
        files.note_tail_left();
        files.extend_runway();
        files.maker.begin(tail.prepared);
        files
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
        self.seal_if_wanted(record_bytes(first.payload.len())).await?;
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
        self.maker.prepare();
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
    async fn start_segment(&mut self, first: LogIndex, previous: Option<EntryId>, record: u64) -> io::Result<()> {
        let MadeSegment { header, path, runway } = self.maker.make(first, previous, record, &self.tail).await?;
        let file = runway.file().clone();
        let (gone, sealed) = {
            let mut state = self.shared.state_mut();
            let gone = state.start_segment(Segment::new(path.clone(), file.clone(), header));
            (gone, state.seal_before_tail())
        };
        let floor = TailFloor { sequence: header.sequence, position: SEGMENT_HEADER_BYTES };
        self.is_straight = is_straight(&self.shared, &*file);
        self.tail = FlushTarget { path, file, floor, last: previous };
        self.runway = runway;
        self.shared.flusher.tail_moved(Durable { floor, last: previous });
        self.note_tail_left();
        self.maker.remove(gone);
        self.maker.summarize(sealed);
        self.extend_runway();
        self.maker.prepare();
        Ok(())
    }

    /// Goes on in a new file, with room for a record of that many bytes, if damage in the tail's is to be mended.
    pub(crate) async fn seal_if_wanted(&mut self, record: u64) -> io::Result<()> {
        if !self.shared.damages.wants_sealed(self.tail.floor.sequence) {
            return Ok(());
        }
        self.shared.failure.check()?;
        let (first, previous) = {
            let state = self.shared.state();
            (state.end(), state.last)
        };
        self.start_segment(first, previous, record).await
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
        let saved = self.shared.write_blocking(move || {
            let mut marks = lock_marks(&shared);
            let saved = marks.save_purged(purged, floor);
            saved.map_err(|error| shared.failure.report_io(marks.path().display(), error))
        });
        saved.await?;
        let gone = self.shared.state_mut().purge(purged);
        self.maker.remove(gone);
        if self.shared.state().is_empty() {
            // Nothing is left: the tail file goes too, once another one stands behind the mark.
            self.start_segment(purged.index.next(), Some(purged), 0).await?;
            let gone = self.shared.state_mut().purge(purged);
            self.maker.remove(gone);
        }
        self.maker.prepare();
        Ok(())
    }

    /// Saves the vote, durably, and behind everything appended before: openraft takes a saved vote for the proof that
    /// all earlier appends are durable too.
    pub(crate) async fn save_vote(&mut self, vote: SavedVote) -> io::Result<()> {
        self.shared.failure.check()?;
        let (shared, tail) = (self.shared.clone(), self.tail.clone());
        let (began, pause) = (self.shared.runtime.now(), &self.shared.campaign_pause);
        pause.keeping();
        let saved = self.shared.write_blocking(move || {
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
}

fn is_straight(shared: &Shared, file: &dyn DiskFile) -> bool {
    shared.flusher.mode() != FlushMode::Sync && file.copies_lazily()
}

fn lock_marks(shared: &Shared) -> std::sync::MutexGuard<'_, crate::vote_and_marks::VoteAndMarks> {
    shared.marks.lock().expect("log lock is never poisoned: no code panics while holding it")
}
