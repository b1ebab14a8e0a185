//! Makes segment files, ahead of their need where there is room, and does away with those that hold nothing any more.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::{Instant, Task};

use crate::LogIndex;
use crate::disk::{Disk, DiskFile};
use crate::flusher::FlushTarget;
use crate::ids::{EntryId, next_index};
use crate::log_view::{Shared, closed};
use crate::room::{DiskSpace, Need, RECHECK};
use crate::room_wait::{is_full, note_full};
use crate::runway::{Filling, Runway};
use crate::segment::{SEGMENT_HEADER_BYTES, Segment, SegmentHeader, Summary};
use crate::summary_files::{remove_summary, write_summary};

/// The file made ahead of its need.
pub(crate) const PREPARED_FILE: &str = "next.prepared";

/// The files of one log's segments, apart from what is in them.
pub(crate) struct SegmentMaker {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    identity: u64,
    segment_bytes: u64,
    next_sequence: u64,
    /// Being made, or made. `None` when there was no room.
    prepared: Option<Task<io::Result<Arc<Runway>>>>,
    /// Making it failed: it is to be made again.
    has_failed: Arc<AtomicBool>,
    /// When a blocked log last looked for room for the next file.
    looked_at: Instant,
}

/// A file that became a segment, durably.
pub(crate) struct MadeSegment {
    pub(crate) header: SegmentHeader,
    pub(crate) path: Arc<Path>,
    pub(crate) runway: Arc<Runway>,
}

impl SegmentMaker {
    pub(crate) fn new(
        shared: Arc<Shared>,
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        identity: u64,
        segment_bytes: u64,
        next_sequence: u64,
    ) -> SegmentMaker {
        let looked_at = shared.runtime.now();
        SegmentMaker {
            shared,
            disk,
            dir,
            identity,
            segment_bytes,
            next_sequence,
            prepared: None,
            has_failed: Arc::default(),
            looked_at,
        }
    }

    /// Takes the file that the last process made ahead, or starts making one.
    pub(crate) fn begin(&mut self, prepared: Option<Arc<dyn DiskFile>>) {
        match prepared {
            Some(file) => self.prepared = Some(self.prepare_file(Some(file))),
            None => self.prepare(),
        }
    }

    /// A segment whose first entry will be `first`, behind `previous`, with room for a record of that many bytes. Syncs `tail`
    /// first. Both are durable when this returns; it waits while the disk is full.
    ///
    /// The order matters to recovery: the old file is synced before the new one gets its name, so a gap between two
    /// files can only be damage, never a crash.
    pub(crate) async fn make(
        &mut self,
        first: LogIndex,
        previous: Option<EntryId>,
        record: u64,
        tail: &FlushTarget,
    ) -> io::Result<MadeSegment> {
        let mut ready = match self.prepared.take() {
            // Joined rather than raced: nobody makes the file faster than the one who began.
            Some(task) => task.join().await.ok().and_then(Result::ok),
            None => None,
        };
        self.has_failed.store(false, Ordering::Relaxed);
        let len = self.segment_bytes.max(SEGMENT_HEADER_BYTES + record);
        if let Some(other) = ready.take_if(|runway| runway.file().len() != len) {
            // Replaced by the one that is made now.
            self.shared.room.file_removed(other.file().len());
        }
        let sequence = self.next_sequence;
        let header = SegmentHeader { identity: self.identity, sequence, segment_bytes: len, first, previous };
        let path: Arc<Path> = self.dir.join(header.file_name()).into();
        let runway = loop {
            self.shared.failure.check()?;
            let made;
            (ready, made) = self.try_to_make(ready, header, tail.clone()).await;
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
        self.next_sequence += 1;
        Ok(MadeSegment { header, path, runway })
    }

    /// Syncs the tail and gives a file, the prepared one if it is `ready`, its header and name. The file comes back in any
    /// case, so that a full disk costs nothing that was done.
    async fn try_to_make(
        &self,
        ready: Option<Arc<Runway>>,
        header: SegmentHeader,
        old: FlushTarget,
    ) -> (Option<Arc<Runway>>, io::Result<()>) {
        let (disk, dir, shared) = (self.disk.clone(), self.dir.clone(), self.shared.clone());
        let working = shared.background.begin();
        let making = move || {
            let mut ready = ready;
            let mut make = || {
                let _working = working.as_ref().ok_or_else(closed)?;
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

    /// Starts making the next file, if there is room for it and nobody has. Cheap where somebody has.
    pub(crate) fn prepare(&mut self) {
        if self.prepared.is_some() {
            let is_due = || self.shared.runtime.now().saturating_since(self.looked_at) >= RECHECK;
            if !self.has_failed.load(Ordering::Relaxed) || !is_due() {
                return;
            }
            self.has_failed.store(false, Ordering::Relaxed);
            self.prepared = None;
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
        let has_failed = self.has_failed.clone();
        let path: Arc<Path> = self.dir.join(PREPARED_FILE).into();
        self.shared.runtime.spawn("segment-prepare", async move {
            let (making_on, making_in) = (disk.clone(), dir.clone());
            let preparing = move || {
                let _working = working.ok_or_else(closed)?;
                let file = match made {
                    Some(file) => file,
                    None => reserve_segment_file(&*making_on, &making_in, len)?,
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
                    // Not final: it is made again with an append to come, at the latest when it is needed.
                    tracing::warn!(%error, "next segment could not be prepared");
                    shared.room.file_removed(len);
                    shared.room.spare_made(0);
                    if is_full(error) {
                        // Whatever the file system said of its free space.
                        note_full(&shared, &*disk, &dir);
                    }
                    has_failed.store(true, Ordering::Relaxed);
                }
            }
            prepared
        })
    }

    /// Writes the summary of a segment that was just sealed.
    pub(crate) fn summarize(&self, sealed: Option<Summary>) {
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

    /// Removes the files of segments that hold nothing any more.
    pub(crate) fn remove(&self, gone: Vec<Segment>) {
        if gone.is_empty() {
            return;
        }
        let Some(working) = self.shared.background.begin() else { return };
        let (disk, dir, shared) = (self.disk.clone(), self.dir.clone(), self.shared.clone());
        let removal = self.shared.runtime.spawn("segment-remove", async move {
            let blocking = shared.runtime.clone();
            let removing = move || {
                let _working = working;
                for segment in gone {
                    // Harmless: recovery removes what a later file overrides. The others go all the same.
                    match remove_segment(&*disk, &segment.path) {
                        Ok(()) => shared.room.file_removed(segment.file.len()),
                        Err(error) => {
                            tracing::warn!(file = %segment.path.display(), %error, "segment file could not be removed");
                        }
                    }
                }
                if let Err(error) = disk.sync_dir(&dir) {
                    tracing::warn!(dir = %dir.display(), %error, "removal of segment files could not be synced");
                }
            };
            blocking.blocking(removing).await;
        });
        removal.detach();
    }
}

/// Also of one that somebody else has removed already: a repair that came too late.
fn remove_segment(disk: &dyn Disk, path: &Path) -> io::Result<()> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    remove_summary(disk, path)
}

/// Has zeroes written; the space is reserved, so whatever fails there is the disk.
pub(crate) fn fill_in_background(shared: &Arc<Shared>, path: &Arc<Path>, filling: Filling) {
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
