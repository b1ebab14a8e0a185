//! The directory's checkpoints: written in the background, one at a time. The newest two stay for the next start, and the
//! one at the purge mark for replicas that are too far behind.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::checkpoint_file::{Checkpoint, Origin, parse_checkpoint_name};
use crate::disk::{Disk, read_file, write_file_atomically};
use crate::log_view::LogView;
use crate::recovery_report::{PhaseWatch, Seen, SkippedCheckpoint};
use crate::{Corruption, LogIndex, OpenError};
use flotilla_runtime::Runtime;

/// How many checkpoint files stay for the next start.
const KEPT: usize = 2;

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
    /// The newest one made on demand: the log may be purged to it next.
    on_demand: Option<LogIndex>,
    /// Next to be written; a newer one takes the place of an older one that still waits.
    waiting: Option<Checkpoint>,
    is_writing: bool,
}

impl State {
    fn served(&self, purged: Option<LogIndex>) -> Option<LogIndex> {
        match purged {
            Some(purged) => self.files.range(purged..).next().copied(),
            None => self.files.last().copied(),
        }
    }

    /// Takes out what is of no use any more.
    fn take_old(&mut self, purged: Option<LogIndex>) -> Vec<LogIndex> {
        let (served, on_demand) = (self.served(purged), self.on_demand);
        let newest_from = self.files.iter().rev().nth(KEPT - 1).copied().unwrap_or(LogIndex(0));
        let is_old = |index: &LogIndex| *index < newest_from && Some(*index) != served && Some(*index) != on_demand;
        let old: Vec<LogIndex> = self.files.iter().copied().filter(is_old).collect();
        self.files.retain(|index| !old.contains(index));
        old
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
        for name in names.iter().filter(|name| name.starts_with("checkpoint-") && name.ends_with(".tmp")) {
            // A crash in the middle of writing one. Harmless, so failing to remove it is too.
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
            let path = dir.join(format!("checkpoint-{index:020}.ckp", index = index.0));
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
            let path = self.inner.dir.join(format!("checkpoint-{index:020}.ckp", index = index.0));
            read_checkpoint(&*self.inner.disk, &path, index).ok()
        })
    }

    /// Where they are.
    pub(crate) fn dir(&self) -> &Path {
        &self.inner.dir
    }

    /// Writes a checkpoint in the background. Failing is no harm: the next start has more to apply again.
    pub(crate) fn write_later(&self, checkpoint: Checkpoint) {
        let mut state = self.inner.state();
        state.waiting = Some(checkpoint);
        if state.is_writing {
            return;
        }
        state.is_writing = true;
        drop(state);
        let (inner, working) = (self.inner.clone(), self.inner.log.shared.background.begin());
        let writer = self.inner.runtime.spawn("checkpoint-writer", async move {
            while let Some(checkpoint) = inner.next_waiting() {
                let last = checkpoint.last;
                let work = inner.clone();
                if let Err(error) = inner.runtime.blocking(move || work.write(&checkpoint)).await {
                    tracing::warn!(%last, %error, "checkpoint could not be written");
                }
            }
            drop(working);
        });
        writer.detach();
    }

    /// Writes a checkpoint; it is durable when this returns.
    pub(crate) async fn write_now(&self, checkpoint: Checkpoint) -> io::Result<()> {
        let inner = self.inner.clone();
        self.inner.runtime.blocking(move || inner.write(&checkpoint)).await
    }

    /// The checkpoint for replicas that are too far behind, read from disk: the one at the purge mark, so that they get
    /// every entry that is still here after it; without a purge mark the newest.
    pub(crate) async fn served(&self) -> io::Result<Option<Checkpoint>> {
        let inner = self.inner.clone();
        self.inner.runtime.blocking(move || inner.read_served()).await
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("checkpoint lock is never poisoned: no code panics while holding it")
    }

    fn next_waiting(&self) -> Option<Checkpoint> {
        let mut state = self.state();
        let next = state.waiting.take();
        state.is_writing = next.is_some();
        next
    }

    fn write(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        // A checkpoint ahead of the durable log would outlive entries it stands for.
        if checkpoint.origin != Origin::Installed && !self.log.is_durable(checkpoint.last.index) {
            return Err(io::Error::other(format!("log is not durable up to entry {}", checkpoint.last)));
        }
        write_file_atomically(&*self.disk, &self.dir, &checkpoint.file_name(), &checkpoint.encode())?;
        tracing::info!(last = %checkpoint.last, bytes = checkpoint.state.len(), "checkpoint written");
        let purged = self.log.ends().0.map(|purged| purged.index);
        let old = {
            let mut state = self.state();
            state.files.insert(checkpoint.last.index);
            if checkpoint.origin == Origin::OnDemand {
                state.on_demand = Some(checkpoint.last.index);
            }
            state.take_old(purged)
        };
        for index in old {
            let path = self.dir.join(format!("checkpoint-{index:020}.ckp", index = index.0));
            if let Err(error) = self.disk.remove(&path) {
                tracing::warn!(file = %path.display(), %error, "old checkpoint could not be removed");
            }
        }
        Ok(())
    }

    fn read_served(&self) -> io::Result<Option<Checkpoint>> {
        let purged = self.log.ends().0.map(|purged| purged.index);
        let Some(index) = self.state().served(purged) else {
            return Ok(None);
        };
        let path = self.dir.join(format!("checkpoint-{index:020}.ckp", index = index.0));
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
    fn the_newest_two_and_the_served_one_stay() {
        let indexes = |list: &[u64]| list.iter().copied().map(LogIndex).collect::<Vec<_>>();
        let mut state = State { files: indexes(&[10, 20, 30, 40, 50]).into_iter().collect(), ..State::default() };
        assert_eq!(state.served(None), Some(LogIndex(50)));
        assert_eq!(state.served(Some(LogIndex(15))), Some(LogIndex(20)));
        state.on_demand = Some(LogIndex(30));
        assert_eq!(state.take_old(Some(LogIndex(20))), indexes(&[10]));
        assert_eq!(state.take_old(Some(LogIndex(30))), indexes(&[20]));
        state.on_demand = None;
        assert_eq!(state.take_old(Some(LogIndex(30))), indexes(&[]));
        assert_eq!(state.take_old(Some(LogIndex(50))), indexes(&[30]));
    }
}
