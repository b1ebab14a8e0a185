//! The log's one writer: appends, truncates, purges, and makes segment files ahead of their need.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use flotilla_runtime::{Runtime, Task};

use crate::LogIndex;
use crate::disk::{Disk, DiskFile};
use crate::flusher::{Durable, FlushDone, FlushTarget};
use crate::ids::{EntryId, next_index};
use crate::limits::PAYLOAD_BYTES_MAX;
use crate::log_view::{LogView, Shared};
use crate::segment::{Record, SEGMENT_HEADER_BYTES, Segment, SegmentHeader, encode_record, record_bytes};
use crate::vote_and_marks::{SavedVote, TailFloor};

/// The file made ahead of its need.
pub(crate) const PREPARED_FILE: &str = "next.prepared";
/// The batch buffer is let go above this size.
const BUFFER_BYTES_KEPT: usize = 4 << 20;

/// The writing end of a log. There is one, and it is never used by two at a time.
pub(crate) struct LogFiles {
    pub(crate) shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    runtime: Runtime,
    identity: u64,
    segment_bytes: u64,
    next_sequence: u64,
    /// The tail segment's file, and where the next record goes.
    tail: FlushTarget,
    /// Being made, or made. `None` when there was no room.
    prepared: Option<Task<io::Result<Arc<dyn DiskFile>>>>,
    buffer: Vec<u8>,
}

/// What recovery hands to the writer.
pub(crate) struct Tail {
    pub(crate) sequence: u64,
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) position: u64,
    pub(crate) prepared: Option<Arc<dyn DiskFile>>,
}

impl LogFiles {
    pub(crate) fn new(
        shared: Arc<Shared>,
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        runtime: Runtime,
        identity: u64,
        segment_bytes: u64,
        tail: Tail,
    ) -> LogFiles {
        let last = shared.state().last;
        let mut files = LogFiles {
            shared,
            disk,
            dir,
            identity,
            segment_bytes,
            next_sequence: tail.sequence + 1,
            tail: FlushTarget {
                path: tail.path,
                file: tail.file,
                floor: TailFloor { sequence: tail.sequence, position: tail.position },
                last,
            },
            prepared: tail.prepared.map(|file| runtime.spawn("segment-ready", async move { Ok(file) })),
            buffer: Vec::new(),
            runtime,
        };
        files.note_tail_left();
        files.prepare();
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
        let end = self.shared.state().end();
        if first.id.index != end {
            if !self.shared.state().is_empty() {
                let what = format!("entry {} does not follow the log's end at {end}", first.id);
                return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
            }
            let previous = self.shared.state().last;
            self.start_segment(first.id.index, previous, record_bytes(first.payload.len())).await?;
        }
        let mut pending = Vec::with_capacity(records.len());
        for record in records {
            let bytes = record_bytes(record.payload.len());
            if self.tail.floor.position + self.buffer.len() as u64 + bytes > self.tail.file.len() {
                self.write_out(&mut pending)?;
                let previous = self.shared.state().last;
                self.start_segment(record.id.index, previous, bytes).await?;
            }
            encode_record(&mut self.buffer, &record, self.tail.floor.sequence);
            pending.push(record);
        }
        self.write_out(&mut pending)?;
        self.shared.flusher.push(self.tail.clone(), done);
        if self.prepared.is_none() {
            self.prepare();
        }
        Ok(())
    }

    /// One write for everything in the buffer, then it is there for readers.
    fn write_out(&mut self, pending: &mut Vec<Record>) -> io::Result<()> {
        if pending.is_empty() {
            return Ok(());
        }
        let written = self.tail.file.write_at(self.tail.floor.position, &self.buffer);
        written.map_err(|error| self.shared.failure.report_io(self.tail.path.display(), error))?;
        self.tail.floor.position += self.buffer.len() as u64;
        self.tail.last = pending.last().map(|record| record.id);
        self.buffer.clear();
        self.buffer.shrink_to(BUFFER_BYTES_KEPT);
        let mut state = self.shared.state_mut();
        pending.drain(..).for_each(|record| state.push(record));
        drop(state);
        self.note_tail_left();
        Ok(())
    }

    /// Seals the tail and goes on in a new file whose first entry will be `first`. Everything before `first` and the new
    /// file itself are durable when this returns; earlier entries from `first` on are overridden.
    ///
    /// The order matters to recovery: the old file is synced before the new one gets its name, so a gap between two
    /// files can only be damage, never a crash.
    async fn start_segment(&mut self, first: LogIndex, previous: Option<EntryId>, record: u64) -> io::Result<()> {
        let prepared = match self.prepared.take() {
            // Joined rather than raced: nobody makes the file faster than the one who began.
            Some(task) => task.join().await.ok().and_then(Result::ok),
            None => None,
        };
        let sequence = self.next_sequence;
        let len = self.segment_bytes.max(SEGMENT_HEADER_BYTES + record);
        let header = SegmentHeader { identity: self.identity, sequence, segment_bytes: len, first, previous };
        let path = self.dir.join(header.file_name());
        let (disk, dir, shared, old) = (self.disk.clone(), self.dir.clone(), self.shared.clone(), self.tail.clone());
        let made = self.runtime.blocking(move || {
            shared.flusher.sync_now(&old)?;
            let file = match prepared {
                Some(file) if file.len() == len => file,
                other => {
                    if let Some(replaced) = other {
                        shared.room.file_removed(replaced.len());
                    }
                    let file = make_segment_file(&*disk, &dir, len)?;
                    shared.room.file_added(len);
                    file
                }
            };
            name_segment(&*disk, &dir, &*file, &header)?;
            Ok(file)
        });
        let file = made.await.map_err(|error| self.shared.failure.report_io(path.display(), error))?;
        tracing::debug!(file = %path.display(), %first, "segment started");
        let gone = self.shared.state_mut().start_segment(Segment::new(path.clone(), file.clone(), header));
        let floor = TailFloor { sequence, position: SEGMENT_HEADER_BYTES };
        self.tail = FlushTarget { path, file, floor, last: previous };
        self.shared.flusher.tail_moved(Durable { floor, last: previous });
        self.next_sequence += 1;
        self.note_tail_left();
        self.remove_files(gone);
        self.prepare();
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
        let saved = self.runtime.blocking(move || {
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
        let saved = self.runtime.blocking(move || {
            shared.flusher.sync_now(&tail)?;
            let mut marks = lock_marks(&shared);
            let saved = marks.save_vote(vote, tail.floor);
            saved.map_err(|error| shared.failure.report_io(marks.path().display(), error))
        });
        saved.await
    }

    fn note_tail_left(&self) {
        self.shared.room.set_tail_left(self.tail.file.len().saturating_sub(self.tail.floor.position));
    }

    /// Starts making the next file, if there is room for it and nobody has.
    fn prepare(&mut self) {
        if self.prepared.is_some() {
            return;
        }
        let now = self.runtime.now();
        if self.shared.room.is_blocked() && !self.shared.room.recheck_due(now) {
            return;
        }
        let len = self.segment_bytes;
        let free_bytes = self.disk.free_bytes(&self.dir).unwrap_or_else(|error| {
            tracing::warn!(dir = %self.dir.display(), %error, "free space is not known");
            u64::MAX
        });
        let admitted = self.shared.room.admits_file(len, free_bytes);
        self.shared.room.set_blocked(admitted.err(), now);
        if admitted.is_err() {
            return;
        }
        self.shared.room.file_added(len);
        let working = self.shared.background.begin();
        let (disk, dir, shared, runtime) =
            (self.disk.clone(), self.dir.clone(), self.shared.clone(), self.runtime.clone());
        self.prepared = Some(self.runtime.spawn("segment-prepare", async move {
            let made = runtime.blocking(move || {
                let _working = working;
                make_segment_file(&*disk, &dir, len)
            });
            let made = made.await;
            if let Err(error) = &made {
                // Not final: the file is asked for again, and made inline then.
                tracing::warn!(%error, "next segment could not be prepared");
                shared.room.file_removed(len);
            }
            made
        }));
    }

    fn remove_files(&self, gone: Vec<Segment>) {
        if gone.is_empty() {
            return;
        }
        let working = self.shared.background.begin();
        let (disk, dir, shared, runtime) =
            (self.disk.clone(), self.dir.clone(), self.shared.clone(), self.runtime.clone());
        let removal = self.runtime.spawn("segment-remove", async move {
            let removed = runtime.blocking(move || {
                let _working = working;
                for segment in gone {
                    disk.remove(&segment.path)?;
                    shared.room.file_removed(segment.file.len());
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

fn lock_marks(shared: &Shared) -> std::sync::MutexGuard<'_, crate::vote_and_marks::VoteAndMarks> {
    shared.marks.lock().expect("log lock is never poisoned: no code panics while holding it")
}

/// A zero-filled file under the name of the prepared one.
pub(crate) fn make_segment_file(disk: &dyn Disk, dir: &std::path::Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
    disk.create(&dir.join(PREPARED_FILE), len)
}

/// Turns the prepared file into a segment, durably: header first, then the name.
pub(crate) fn name_segment(
    disk: &dyn Disk,
    dir: &std::path::Path,
    file: &dyn DiskFile,
    header: &SegmentHeader,
) -> io::Result<()> {
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
