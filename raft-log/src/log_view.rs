//! Reading the log: shared by replication, apply, and the crate's face, beside the one writer.

use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use flotilla_runtime::Runtime;

use crate::background::Background;
use crate::boot_mark::BootMark;
use crate::campaign_pause::CampaignPause;
use crate::failure::Failure;
use crate::flusher::Flusher;
use crate::ids::EntryId;
use crate::log_state::{Found, LogState};
use crate::raft::VoteHold;
use crate::recovery_report::RecoveryReport;
use crate::repair::Damages;
use crate::room::Room;
use crate::room_wait::when_there_is_room;
use crate::segment::{PartError, Record, SegmentPart};
use crate::standing::Standings;
use crate::vote_and_marks::{SavedVote, TailFloor, VoteAndMarks};
use crate::{DirLock, DiskFile, FlushMode, LogIndex, ReadError};

/// Cheap handle to an open log for readers.
#[derive(Clone)]
pub(crate) struct LogView {
    pub(crate) shared: Arc<Shared>,
}

/// What the writer and the readers of a log share.
pub(crate) struct Shared {
    pub(crate) state: RwLock<LogState>,
    pub(crate) marks: Mutex<VoteAndMarks>,
    pub(crate) flusher: Flusher,
    pub(crate) failure: Failure,
    pub(crate) room: Room,
    pub(crate) background: Background,
    pub(crate) runtime: Runtime,
    pub(crate) damages: Damages,
    pub(crate) boot: Mutex<BootMark>,
    pub(crate) vote_hold: VoteHold,
    pub(crate) campaign_pause: CampaignPause,
    pub(crate) lock: Mutex<Option<Box<dyn DirLock>>>,
    pub(crate) recovery: Mutex<RecoveryReport>,
}

const POISON: &str = "log lock is never poisoned: no code panics while holding it";

impl Shared {
    pub(crate) fn state(&self) -> RwLockReadGuard<'_, LogState> {
        self.state.read().expect(POISON)
    }

    pub(crate) fn state_mut(&self) -> RwLockWriteGuard<'_, LogState> {
        self.state.write().expect(POISON)
    }

    /// Runs `work`, which writes to the log's directory, where it may block. The directory is not let go before it is done,
    /// whether anyone still waits for it or not; once it is let go, nothing is done any more.
    pub(crate) async fn write_blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let working = self.background.begin().ok_or_else(closed)?;
        let counted = move || {
            let _working = working;
            work()
        };
        self.runtime.blocking(counted).await
    }
}

/// Why nothing is written any more.
pub(crate) fn closed() -> io::Error {
    io::Error::other("the log is closed")
}

impl LogView {
    /// The entries of `range` that are there, in order and without gaps. Stops early once `bytes_max` of payload are
    /// together, but never before the first entry.
    pub(crate) fn read(&self, range: Range<LogIndex>, bytes_max: usize) -> Result<Vec<Record>, ReadError> {
        // The lock is let go before anything is read from disk.
        let found = self.shared.state().find(range.clone(), bytes_max);
        match found {
            Found::Cached(records) => Ok(records),
            Found::Parts(parts) => self.read_parts(parts, range.start, bytes_max),
        }
    }

    /// As [`LogView::read`], for callers that must not block: what is not in memory is read elsewhere.
    pub(crate) async fn read_soon(&self, range: Range<LogIndex>, bytes_max: usize) -> Result<Vec<Record>, ReadError> {
        let found = self.shared.state().find(range.clone(), bytes_max);
        match found {
            Found::Cached(records) => Ok(records),
            Found::Parts(parts) => {
                let view = self.clone();
                self.shared.runtime.blocking(move || view.read_parts(parts, range.start, bytes_max)).await
            }
        }
    }

    fn read_parts(&self, parts: Vec<SegmentPart>, start: LogIndex, bytes_max: usize) -> Result<Vec<Record>, ReadError> {
        let (records, failed) = read_parts(parts, bytes_max);
        match failed {
            // Damage behind sound entries is for the read that begins there.
            Some(Unread { error: PartError::Corrupt(corruption), sequence, file }) => {
                self.shared.damages.suspect(sequence, &file, &corruption);
                if records.is_empty() { Err(ReadError::Corrupt(corruption)) } else { Ok(records) }
            }
            Some(Unread { error: PartError::Io(source), .. }) => {
                let index = records.last().map_or(start, |last| last.id.index.next());
                self.shared.failure.report(format!("entry {index} cannot be read: {source}"));
                Err(ReadError::Io { index, source })
            }
            None => Ok(records),
        }
    }

    /// All of the range that is there and sound, read on past what is damaged; the second are the entries that cannot be read.
    /// Blocks.
    pub(crate) fn read_around(&self, range: Range<LogIndex>) -> io::Result<(Vec<Record>, Vec<LogIndex>)> {
        let (start, end) = {
            let state = self.shared.state();
            (range.start.max(state.start()), range.end.min(state.end()))
        };
        let (mut sound, mut damaged, mut next) = (Vec::new(), Vec::new(), start);
        while next < end {
            match self.read(next..end, usize::MAX) {
                Ok(records) => {
                    let Some(last) = records.last() else { break };
                    next = last.id.index.next();
                    sound.extend(records);
                }
                Err(ReadError::Corrupt(_)) => {
                    damaged.push(next);
                    next = next.next();
                }
                Err(error) => return Err(read_error_to_io(error)),
            }
        }
        Ok((sound, damaged))
    }

    /// As [`LogView::read`], but waits while the first entry of the range is damaged, for as long as somebody may give it
    /// back.
    pub(crate) async fn read_when_whole(&self, range: Range<LogIndex>, bytes_max: usize) -> io::Result<Vec<Record>> {
        loop {
            let mut news = std::pin::pin!(self.shared.damages.news());
            news.as_mut().enable();
            match self.read_soon(range.clone(), bytes_max).await {
                Err(ReadError::Corrupt(corruption)) => {
                    self.shared.damages.check_waiting(&corruption)?;
                    news.await;
                }
                other => return other.map_err(read_error_to_io),
            }
        }
    }

    /// All of the range that is there and sound; stops before the first damaged entry, fails at it.
    #[cfg(test)]
    pub(crate) fn read_all(&self, range: Range<LogIndex>) -> io::Result<Vec<Record>> {
        self.read(range, usize::MAX).map_err(read_error_to_io)
    }

    /// All of the range that is there, each entry of it once it is whole.
    pub(crate) async fn read_whole(&self, range: Range<LogIndex>) -> io::Result<Vec<Record>> {
        let mut records = self.read_when_whole(range.clone(), usize::MAX).await?;
        while let Some(last) = records.last()
            && last.id.index.next() < range.end
        {
            let more = self.read_when_whole(last.id.index.next()..range.end, usize::MAX).await?;
            if more.is_empty() {
                break;
            }
            records.extend(more);
        }
        Ok(records)
    }

    /// Last purged and last present entry (the purge mark if none is present).
    pub(crate) fn ends(&self) -> (Option<EntryId>, Option<EntryId>) {
        let state = self.shared.state();
        (state.purged, state.last)
    }

    pub(crate) fn id_at(&self, index: LogIndex) -> Option<EntryId> {
        self.shared.state().id_at(index)
    }

    /// The last entry of each term within the range.
    pub(crate) fn last_of_each_term(&self, first: LogIndex, last: LogIndex) -> Vec<EntryId> {
        self.shared.state().terms.last_of_each_term(first, last)
    }

    pub(crate) fn opens_segment(&self, index: LogIndex) -> bool {
        self.shared.state().opens_segment(index)
    }

    pub(crate) fn vote(&self) -> Option<SavedVote> {
        self.shared.marks.lock().expect(POISON).vote()
    }

    /// The saved commit mark, cut to what the log holds: the mark is not synced, and may be ahead of a lost tail. What is
    /// left of such a log was written before what the mark stands for, so it is committed.
    pub(crate) fn committed(&self) -> Option<EntryId> {
        let saved = self.shared.marks.lock().expect(POISON).committed()?;
        let (purged, last) = self.ends();
        if last.is_none_or(|last| saved.index > last.index) {
            return last;
        }
        match self.id_at(saved.index) {
            Some(id) if id == saved => Some(saved),
            // Purged, so committed; or a hint that fits nothing, which is none.
            _ => purged,
        }
    }

    /// What the start found.
    pub(crate) fn recovery(&self) -> RecoveryReport {
        self.shared.recovery.lock().expect(POISON).clone()
    }

    /// Adds to what the start found.
    pub(crate) fn note_recovery(&self, note: impl FnOnce(&mut RecoveryReport)) {
        note(&mut self.shared.recovery.lock().expect(POISON));
    }

    /// The first index that can be read, or would be if it were there.
    pub(crate) fn first(&self) -> LogIndex {
        self.shared.state().start()
    }

    /// Writes the commit mark, unsynced.
    pub(crate) fn save_committed(&self, committed: Option<EntryId>) -> io::Result<()> {
        self.shared.failure.check()?;
        let floor: TailFloor = self.shared.flusher.durable().floor;
        let mut marks = self.shared.marks.lock().expect(POISON);
        marks
            .save_committed(committed, floor)
            .map_err(|error| self.shared.failure.report_io(marks.path().display(), error))
    }

    /// Whether all the log holds up to `index` is durable.
    pub(crate) fn is_durable(&self, index: LogIndex) -> bool {
        let (_, last) = self.ends();
        let needed = last.map(|last| last.index.min(index));
        self.shared.flusher.durable().last.map(|durable| durable.index) >= needed
    }

    /// Resolves once everything appended so far is durable.
    pub(crate) async fn flush(&self) -> io::Result<()> {
        let (done, wait) = futures::channel::oneshot::channel();
        self.shared.flusher.flush(Box::new(move |flushed| {
            // The waiter may be gone; then nobody wants to know.
            let _ = done.send(flushed);
        }));
        wait.await.unwrap_or_else(|_| Err(io::Error::other("log is closed")))
    }

    /// The last entry up to which the log is durable.
    pub(crate) fn durable_index(&self) -> Option<LogIndex> {
        self.shared.flusher.durable().last.map(|last| last.index)
    }

    /// When an append counts.
    pub(crate) fn flush_mode(&self) -> FlushMode {
        self.shared.flusher.mode()
    }

    /// Resolves once the log is durable up to `index`.
    pub(crate) async fn wait_durable(&self, index: LogIndex) -> io::Result<()> {
        self.shared.flusher.wait_durable(index).await
    }

    /// Whether the log holds `last`, and so everything before it, such that it counts by the flush mode; waits for the disk, and
    /// not for entries.
    pub(crate) async fn has_up_to(&self, last: EntryId) -> bool {
        let holds = || self.id_at(last.index) == Some(last);
        if !holds() || self.flush_mode() != FlushMode::Sync {
            return holds();
        }
        // Looked at again: it may be truncated meanwhile.
        self.wait_durable(last.index).await.is_ok() && holds()
    }

    /// Whether this replica votes.
    pub(crate) fn vote_hold(&self) -> &VoteHold {
        &self.shared.vote_hold
    }

    /// What this replica is to its group.
    pub(crate) fn standings(&self) -> &Standings {
        self.shared.vote_hold.standings()
    }

    /// What was lost with the machine is here again. Waits while the disk is full.
    pub(crate) async fn recovered(&self) -> io::Result<()> {
        let shared = self.shared.clone();
        let (disk, dir) = shared.boot.lock().expect(POISON).place();
        let marking = {
            let shared = shared.clone();
            move || shared.boot.lock().expect(POISON).recovered()
        };
        when_there_is_room(&shared, &*disk, &dir, "boot mark", marking).await
    }

    pub(crate) fn failure(&self) -> &Failure {
        &self.shared.failure
    }

    /// Has something noted in this directory's identity, durably. `None` if that failed, which is final, or the log closes
    /// meanwhile, which is not.
    pub(crate) async fn note_identity<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Option<T> {
        match self.shared.write_blocking(work).await {
            Ok(done) => Some(done),
            Err(_) if self.shared.room.is_closing() => None,
            Err(error) => {
                self.failure().report_io("identity", error);
                None
            }
        }
    }

    /// Whoever waits for room gives up, and what is made ahead is left as it is.
    pub(crate) fn begin_close(&self) {
        self.shared.room.close();
    }

    /// Waits for what still runs, ends the flusher, and lets the directory go. Nothing may be appended after this.
    pub(crate) async fn close(&self) {
        self.begin_close();
        self.shared.flusher.close().await;
        self.shared.background.end().await;
        if !self.vote_hold().recovers() && self.shared.failure.check().is_ok() {
            let shared = self.shared.clone();
            let marked = self.shared.runtime.blocking(move || shared.boot.lock().expect(POISON).close()).await;
            if let Err(error) = marked {
                // Harmless: the next start takes this end for that of the machine.
                tracing::warn!(%error, "log could not be marked as closed");
            }
        }
        drop(self.shared.lock.lock().expect(POISON).take());
    }
}

/// Why a read stopped, and in which file.
struct Unread {
    sequence: u64,
    file: Arc<dyn DiskFile>,
    error: PartError,
}

/// Reads until `bytes_max` is reached (never before the first record) or a record cannot be read.
fn read_parts(parts: Vec<SegmentPart>, bytes_max: usize) -> (Vec<Record>, Option<Unread>) {
    let (mut records, mut bytes) = (Vec::new(), 0_usize);
    for mut part in parts {
        while let Some(next) = part.next() {
            match next {
                Ok(record) => {
                    bytes = bytes.saturating_add(record.payload.len());
                    if bytes > bytes_max && !records.is_empty() {
                        return (records, None);
                    }
                    records.push(record);
                }
                Err(error) => {
                    let (sequence, file) = part.source();
                    return (records, Some(Unread { sequence, file: file.clone(), error }));
                }
            }
        }
    }
    (records, None)
}

/// The same error for interfaces that only know `io::Error`.
pub(crate) fn read_error_to_io(error: ReadError) -> io::Error {
    let kind = match &error {
        ReadError::Corrupt(_) => io::ErrorKind::InvalidData,
        ReadError::Io { source, .. } => source.kind(),
    };
    io::Error::new(kind, error)
}
