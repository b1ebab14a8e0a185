//! The directory's checkpoints: written in the background, one at a time. The newest two stay for the next start, one for
//! replicas that are too far behind, and some between, so that the log can be purged to them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_planted_bugs::{Bug, is_planted};

use crate::checkpoint_file::{Checkpoint, Origin, PendingCheckpoint, checkpoint_name, parse_checkpoint_name};
use crate::disk::{Disk, read_file, write_file_atomically};
use crate::log_view::LogView;
use crate::raft::{INCOMING_FILE, Parcel, put_sides};
use crate::recovery_report::{PhaseWatch, Seen, SkippedCheckpoint};
use crate::room_wait::when_there_is_room;
use crate::{Corruption, LogIndex, OpenError, SideFile, SideFileCheck};
use bytes::Bytes;
use flotilla_runtime::{Instant, Runtime};

/// How many checkpoint files stay for the next start.
const KEPT: usize = 2;
/// How many stay between the served one and those. The log is purged to one of them, so what is kept of it exceeds what
/// was asked for by about one part in so many.
const BETWEEN_MAX: usize = 16;

/// Cheap handle to the checkpoints of one log.
#[derive(Clone)]
pub(crate) struct CheckpointStore {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    runtime: Runtime,
    log: LogView,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Indexes of the files that are there and, as far as known, sound.
    files: BTreeSet<LogIndex>,
    /// The one that the log is to be purged to next, or was made on demand, or came from the leader.
    chosen: Option<LogIndex>,
    /// The one that the log is to be purged to next.
    purging_to: Option<LogIndex>,
    /// Those that stay because somebody copies them, and how many do.
    pinned: BTreeMap<LogIndex, usize>,
    /// Next to be written; a newer one takes the place of an older one that still waits.
    waiting: Option<PendingCheckpoint>,
    is_writing: bool,
    /// The longest that entries waited for one.
    pause_max: Duration,
    /// What was written for the last one, bytes.
    last_bytes: u64,
}

impl State {
    /// `None` before the first purge, unless one is chosen.
    fn served(&self, purged: Option<LogIndex>) -> Option<LogIndex> {
        match self.chosen {
            Some(chosen) if Some(chosen) >= purged && self.files.contains(&chosen) => Some(chosen),
            _ => self.files.range(purged?..).next().copied(),
        }
    }

    /// Takes out what is of no use any more, and what stands closest between its neighbours if there are too many.
    fn take_old(&mut self, purged: Option<LogIndex>) -> Vec<LogIndex> {
        let newest_from = self.files.iter().rev().nth(KEPT - 1).copied().unwrap_or(LogIndex(0));
        let served = self.served(purged);
        let is_free = |index: &LogIndex| *index < newest_from && !self.pinned.contains_key(index);
        let is_old = |index: &LogIndex| is_free(index) && served.is_some_and(|served| *index < served);
        let mut old: Vec<LogIndex> = self.files.iter().copied().filter(is_old).collect();
        self.files.retain(|index| !old.contains(index));
        let pinned: BTreeSet<LogIndex> = self.pinned.keys().copied().collect();
        let is_between = |index: &LogIndex| *index < newest_from && Some(*index) != served && !pinned.contains(index);
        while self.files.iter().filter(|index| is_between(index)).count() > BETWEEN_MAX {
            let all: Vec<LogIndex> = std::iter::once(LogIndex(0)).chain(self.files.iter().copied()).collect();
            let inner = all.windows(3).filter(|three| is_between(&three[1]));
            let Some(closest) = inner.min_by_key(|three| three[2].0 - three[0].0) else { break };
            self.files.remove(&closest[1]);
            old.push(closest[1]);
        }
        old
    }
}

/// Checkpoints that stay while this is held, with the side files that they rely on.
pub(crate) struct Pinned {
    inner: Arc<Inner>,
    indexes: Vec<LogIndex>,
}

impl Pinned {
    /// Their last entries, rising.
    pub(crate) fn indexes(&self) -> &[LogIndex] {
        &self.indexes
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut state = self.inner.state();
        for index in &self.indexes {
            let left = state.pinned.get(index).map_or(0, |count| count - 1);
            match left {
                0 => drop(state.pinned.remove(index)),
                left => drop(state.pinned.insert(*index, left)),
            }
        }
    }
}

impl CheckpointStore {
    /// Finds the newest sound checkpoint that the log still supports. Blocks.
    pub(crate) fn open(
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        runtime: Runtime,
        log: LogView,
    ) -> Result<(CheckpointStore, Option<Checkpoint>), OpenError> {
        let names = disk.list(&dir).map_err(|source| OpenError::Io { path: dir.clone(), source })?;
        let is_leftover =
            |name: &&String| (name.starts_with("checkpoint-") && name.ends_with(".tmp")) || *name == INCOMING_FILE;
        for name in names.iter().filter(is_leftover) {
            // A crash in the middle of writing one, or before one had arrived. Harmless, so failing to remove it is too.
            if let Err(error) = disk.remove(&dir.join(name)) {
                tracing::warn!(name, %error, "leftover could not be removed");
            }
        }
        let mut watch = PhaseWatch::start(&runtime);
        let mut seen = Seen::default();
        let indexes: Vec<LogIndex> = names.iter().filter_map(|name| parse_checkpoint_name(name)).collect();
        let mut newest = None;
        let mut files = BTreeSet::new();
        for index in indexes.into_iter().rev() {
            let path = dir.join(checkpoint_name(index));
            seen.files += 1;
            match read_checkpoint(&*disk, &path, index) {
                Ok(checkpoint) => {
                    seen.bytes += checkpoint.state.len() as u64;
                    if newest.is_none() {
                        check_against_log(&log, &checkpoint, &path)?;
                        tracing::info!(last = %checkpoint.last, bytes = checkpoint.state.len(), "checkpoint found");
                        newest = Some(checkpoint);
                    }
                    files.insert(index);
                }
                Err(why) => {
                    tracing::warn!(file = %path.display(), why, "checkpoint is damaged, an older one counts");
                    log.note_recovery(|report| {
                        report.skipped_checkpoints.push(SkippedCheckpoint { last: index, why });
                    });
                }
            }
        }
        log.note_recovery(|report| watch.over("checkpoint", seen, report));
        let state = Mutex::new(State { files, ..State::default() });
        let inner = Inner { disk, dir, runtime, log, state };
        Ok((CheckpointStore { inner: Arc::new(inner) }, newest))
    }

    /// Forgets the checkpoint at `index`, which the machine cannot take: it is no longer served nor counted as kept. The
    /// file stays until a checkpoint of the same entry is written. Returns the next older one that is sound.
    pub(crate) fn pass_over(&self, index: LogIndex) -> Option<Checkpoint> {
        let older: Vec<LogIndex> = {
            let mut state = self.inner.state();
            state.files.remove(&index);
            state.files.range(..index).rev().copied().collect()
        };
        older.into_iter().find_map(|index| {
            let path = self.inner.dir.join(checkpoint_name(index));
            read_checkpoint(&*self.inner.disk, &path, index).ok()
        })
    }

    /// Where they are.
    pub(crate) fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Writes a checkpoint in the background. Failing is no harm: the next start has more to apply again.
    pub(crate) fn write_later(&self, checkpoint: PendingCheckpoint) {
        let Some(working) = self.inner.log.shared.background.begin() else { return };
        let mut state = self.inner.state();
        state.waiting = Some(checkpoint);
        if state.is_writing {
            return;
        }
        state.is_writing = true;
        drop(state);
        let inner = self.inner.clone();
        let writer = self.inner.runtime.spawn("checkpoint-writer", async move {
            while let Some(checkpoint) = inner.next_waiting() {
                let last = checkpoint.last();
                let work = inner.clone();
                // In the middle of a segment its last entries may only be on a quorum's other disks yet.
                if !is_planted(Bug::CheckpointAheadOfLog)
                    && !inner.log.is_durable(last.index)
                    && let Err(error) = inner.log.flush().await
                {
                    tracing::warn!(%last, %error, "log could not be flushed for a checkpoint");
                    continue;
                }
                let written = inner.log.shared.write_blocking(move || work.finish(&checkpoint).map(drop)).await;
                if let Err(error) = written {
                    tracing::warn!(%last, %error, "checkpoint could not be written");
                }
            }
            drop(working);
        });
        writer.detach();
    }

    /// Writes a checkpoint; it is durable when this returns.
    pub(crate) async fn write_now(&self, checkpoint: Checkpoint) -> io::Result<()> {
        let (inner, checkpoint) = (self.inner.clone(), Arc::new(checkpoint));
        self.inner.when_there_is_room("checkpoint", move || inner.write(&checkpoint, 0)).await
    }

    /// Makes bytes of a checkpoint and writes it; it is durable when this returns.
    pub(crate) async fn finish_now(&self, checkpoint: PendingCheckpoint) -> io::Result<Checkpoint> {
        let (inner, checkpoint) = (self.inner.clone(), Arc::new(checkpoint));
        self.inner.when_there_is_room("checkpoint", move || inner.finish(&checkpoint)).await
    }

    /// The time, for the pace of checkpoints.
    pub(crate) fn now(&self) -> Instant {
        self.inner.runtime.now()
    }

    /// Entries waited so long for one.
    pub(crate) fn note_pause(&self, pause: Duration) {
        let mut state = self.inner.state();
        state.pause_max = state.pause_max.max(pause);
    }

    /// What was written for the last one, bytes; 0 before the first.
    pub(crate) fn last_bytes(&self) -> u64 {
        self.inner.state().last_bytes
    }

    pub(crate) fn pause_max(&self) -> Duration {
        self.inner.state().pause_max
    }

    /// Has all that are kept now stay for as long as the answer is held.
    pub(crate) fn pin(&self) -> Pinned {
        let mut state = self.inner.state();
        let indexes: Vec<LogIndex> = state.files.iter().copied().collect();
        for index in &indexes {
            *state.pinned.entry(*index).or_default() += 1;
        }
        drop(state);
        Pinned { inner: self.inner.clone(), indexes }
    }

    /// All that are kept, rising.
    pub(crate) fn kept(&self) -> Vec<LogIndex> {
        self.inner.state().files.iter().copied().collect()
    }

    /// Serves the checkpoint of that entry from now on: the log is to be purged to it. False if it is not kept.
    pub(crate) fn choose(&self, index: LogIndex) -> bool {
        let mut state = self.inner.state();
        let is_kept = state.files.contains(&index);
        if is_kept {
            (state.chosen, state.purging_to) = (Some(index), Some(index));
        }
        is_kept
    }

    /// The one that was chosen to be purged to, if the log is not purged to it yet.
    pub(crate) fn chosen(&self) -> Option<LogIndex> {
        let purged = self.inner.log.ends().0.map(|purged| purged.index);
        self.inner.state().purging_to.filter(|chosen| Some(*chosen) > purged)
    }

    /// The checkpoint of that entry, read from disk; `None` if it is not kept.
    pub(crate) async fn read(&self, index: LogIndex) -> io::Result<Option<Checkpoint>> {
        let inner = self.inner.clone();
        self.inner.runtime.blocking(move || inner.read(index)).await
    }

    /// A checkpoint with the files it relies on, as it is sent.
    pub(crate) fn parcel(&self, state: Bytes, files: Vec<SideFile>, check: SideFileCheck) -> Parcel {
        Parcel::of_files(self.inner.disk.clone(), state, files, check)
    }

    /// Removes what is of no use any more after a purge.
    pub(crate) async fn drop_old(&self) {
        let inner = self.inner.clone();
        let dropping = move || {
            inner.drop_old();
            Ok(())
        };
        // Else it is closed, and the next start removes them.
        let _ = self.inner.log.shared.write_blocking(dropping).await;
    }

    /// Puts the files that came with a checkpoint to their places; durable when this returns.
    pub(crate) async fn put_sides(
        &self,
        parcel: Parcel,
        paths: BTreeMap<String, PathBuf>,
        check: SideFileCheck,
    ) -> io::Result<()> {
        let (inner, paths) = (self.inner.clone(), Arc::new(paths));
        let put = move || put_sides(&*inner.disk, &parcel, |name| paths.get(name).cloned(), check);
        self.inner.when_there_is_room("files of a snapshot", put).await
    }

    /// The checkpoint for replicas that are too far behind, read from disk: the one at the purge mark, or that the log is
    /// about to be purged to, so that they get every entry that stays here after it. `None` before the first purge.
    pub(crate) async fn served(&self) -> io::Result<Option<Checkpoint>> {
        let inner = self.inner.clone();
        self.inner.runtime.blocking(move || inner.read_served()).await
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("checkpoint lock is never poisoned: no code panics while holding it")
    }

    async fn when_there_is_room<T: Send + 'static>(
        &self,
        what: &str,
        work: impl Fn() -> io::Result<T> + Clone + Send + 'static,
    ) -> io::Result<T> {
        when_there_is_room(&self.log.shared, &*self.disk, &self.dir, what, work).await
    }

    fn next_waiting(&self) -> Option<PendingCheckpoint> {
        let mut state = self.state();
        let next = state.waiting.take();
        state.is_writing = next.is_some();
        next
    }

    fn finish(&self, checkpoint: &PendingCheckpoint) -> io::Result<Checkpoint> {
        let (checkpoint, beside_bytes) = checkpoint.finish()?;
        self.write(&checkpoint, beside_bytes)?;
        Ok(checkpoint)
    }

    /// `beside_bytes` were written to side files for it.
    fn write(&self, checkpoint: &Checkpoint, beside_bytes: u64) -> io::Result<()> {
        // A checkpoint ahead of the durable log would outlive entries it stands for.
        if checkpoint.origin != Origin::Installed && !self.log.is_durable(checkpoint.last.index) {
            return Err(io::Error::other(format!("log is not durable up to entry {}", checkpoint.last)));
        }
        write_file_atomically(&*self.disk, &self.dir, &checkpoint.file_name(), &checkpoint.encode())?;
        tracing::info!(last = %checkpoint.last, bytes = checkpoint.state.len(), beside_bytes, "checkpoint written");
        let purged = self.log.ends().0.map(|purged| purged.index);
        let old = {
            let mut state = self.state();
            state.files.insert(checkpoint.last.index);
            state.last_bytes = checkpoint.state.len() as u64 + beside_bytes;
            if matches!(checkpoint.origin, Origin::OnDemand | Origin::Installed) {
                state.chosen = Some(checkpoint.last.index);
            }
            state.take_old(purged)
        };
        self.remove(old);
        Ok(())
    }

    fn remove(&self, old: Vec<LogIndex>) {
        for index in old {
            let path = self.dir.join(checkpoint_name(index));
            if let Err(error) = self.disk.remove(&path) {
                tracing::warn!(file = %path.display(), %error, "old checkpoint could not be removed");
            }
        }
    }

    fn drop_old(&self) {
        let purged = self.log.ends().0.map(|purged| purged.index);
        let old = self.state().take_old(purged);
        self.remove(old);
    }

    fn read_served(&self) -> io::Result<Option<Checkpoint>> {
        let purged = self.log.ends().0.map(|purged| purged.index);
        let served = self.state().served(purged);
        match served {
            Some(index) => self.read(index),
            None => Ok(None),
        }
    }

    fn read(&self, index: LogIndex) -> io::Result<Option<Checkpoint>> {
        if !self.state().files.contains(&index) {
            return Ok(None);
        }
        let path = self.dir.join(checkpoint_name(index));
        let decoded = Checkpoint::decode(read_file(&*self.disk, &path)?);
        decoded
            .map(Some)
            .map_err(|what| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display())))
    }
}

/// The checkpoint in a file, or what is wrong with it.
fn read_checkpoint(disk: &dyn Disk, path: &Path, index: LogIndex) -> Result<Checkpoint, String> {
    let bytes = read_file(disk, path).map_err(|error| error.to_string())?;
    let found = Checkpoint::decode(bytes)?;
    if found.last.index == index { Ok(found) } else { Err("name is another's".into()) }
}

/// A local checkpoint was written after its entries were durable. A log without them has lost what it promised.
fn check_against_log(log: &LogView, checkpoint: &Checkpoint, path: &Path) -> Result<(), OpenError> {
    let (purged, last) = log.ends();
    let behind = |what: String| Err(Corruption { path: path.to_owned(), offset: 0, what }.into());
    if purged.is_some_and(|purged| checkpoint.last.index < purged.index) {
        // Reported by the caller, which knows all checkpoints.
        return Ok(());
    }
    match log.id_at(checkpoint.last.index) {
        Some(id) if id == checkpoint.last => Ok(()),
        Some(id) => behind(format!("checkpoint is of entry {}, log holds {id} there", checkpoint.last)),
        None if checkpoint.origin == Origin::Installed => Ok(()),
        None => behind(format!(
            "checkpoint is of entry {}, log ends at {last:?}: durable entries are lost",
            checkpoint.last
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_two_the_served_one_and_some_between_stay() {
        let indexes = |list: &[u64]| list.iter().copied().map(LogIndex).collect::<Vec<_>>();
        let mut state = State { files: indexes(&[10, 20, 30, 40, 50]).into_iter().collect(), ..State::default() };
        assert_eq!(state.served(None), None, "before the first purge nobody can be too far behind");
        assert_eq!(state.served(Some(LogIndex(15))), Some(LogIndex(20)));
        assert_eq!(state.take_old(None), indexes(&[]));
        assert_eq!(state.take_old(Some(LogIndex(20))), indexes(&[10]));
        state.chosen = Some(LogIndex(30));
        assert_eq!(state.served(Some(LogIndex(20))), Some(LogIndex(30)));
        assert_eq!(state.take_old(Some(LogIndex(20))), indexes(&[20]));
        assert_eq!(state.served(Some(LogIndex(40))), Some(LogIndex(40)), "a choice of the past is none");
        assert_eq!(state.take_old(Some(LogIndex(50))), indexes(&[30]));
        assert_eq!(state.files.iter().copied().collect::<Vec<_>>(), indexes(&[40, 50]));
    }

    #[test]
    fn what_is_pinned_stays_until_it_is_not() {
        let mut state = State::default();
        state.pinned.insert(LogIndex(10), 1);
        for index in 1..=100 {
            state.files.insert(LogIndex(index * 10));
            state.take_old(Some(LogIndex(index * 10)));
        }
        assert_eq!(state.files.iter().map(|index| index.0).collect::<Vec<_>>(), [10, 990, 1000]);
        state.pinned.clear();
        assert_eq!(state.take_old(Some(LogIndex(1000))), [LogIndex(10)]);
    }

    #[test]
    fn many_checkpoints_are_thinned_out_evenly() {
        let mut state = State::default();
        for index in 1..=1000 {
            state.files.insert(LogIndex(index * 10));
            state.take_old(None);
        }
        let kept: Vec<u64> = state.files.iter().map(|index| index.0).collect();
        assert_eq!(kept.len(), BETWEEN_MAX + KEPT);
        assert_eq!(kept[BETWEEN_MAX..], [9990, 10_000]);
        let widest = kept.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(widest <= 4 * 10_000 / BETWEEN_MAX as u64, "{kept:?}");
    }
}
