//! A copy of a replica's data that is made while it serves, and a new group that is founded from one.
//!
//! ```text
//!  mark (an applied entry) ─▶ checkpoints held fast ─▶ sealed segments: linked, else copied, each record checked
//!        ─▶ the segment of the mark: written anew up to it ─▶ checkpoints, their side files ─▶ marks and identity ─▶ all synced
//! ```
//! The copy is a data directory that ends behind the mark, and one that neither votes nor counts: its identity says that the group
//! went on without it. [`found_from_backup`] gives it a life of its own, and the order to go on alone.

mod copying;
mod founding;
mod pace;
mod plan;
mod progress;
mod taking;
mod writing;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

pub use founding::{FoundError, Founded, found_from_backup};
pub use progress::BackupProgress;

use crate::ids::EntryId;
use crate::{LogIndex, ReplicatedLog, Term};
use copying::Copying;
use pace::Pace;
use plan::Places;

/// How long a replica may take to apply what it is to copy up to.
const CATCH_UP: Duration = Duration::from_secs(30);
/// Whether it has is looked at this often.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The names of the side files that a checkpoint's state relies on.
pub type SideNames = fn(&[u8]) -> Result<Vec<String>, String>;

/// What is copied, and where to.
#[derive(Debug, Clone)]
pub struct BackupRequest {
    /// Entries up to here are to be in it.
    pub at_least: LogIndex,
    /// A directory that is not there yet; its parent is.
    pub into: PathBuf,
    /// Where the state machine keeps its side files.
    pub side_dir: PathBuf,
    /// Which of them a checkpoint relies on.
    pub side_names: SideNames,
    /// So many bytes must stay free where the copy goes.
    pub free_bytes_min: u64,
    /// So many bytes a second are read at most.
    pub bytes_per_s: u64,
    /// It is given up after so long.
    pub time_max: Duration,
}

/// A finished copy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BackupReport {
    /// The last entry in it, which is committed.
    pub last: (Term, LogIndex),
    /// The first entry in it.
    pub first: LogIndex,
    /// How often the group had gone on without its majority.
    pub epoch: u16,
    /// Its files, by their path within it.
    pub files: Vec<BackupFile>,
}

/// One file of a copy.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct BackupFile {
    /// `log/NAME` or `store/NAME`.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32C of its content.
    pub crc32c: u32,
    /// It shares its bytes on disk with the replica's own file.
    pub is_linked: bool,
}

/// Why there is no copy. What was made of it is to be removed by the caller.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// Nobody is left to mend them from in time.
    #[error("{entries} entries of this replica's log are damaged: ask another replica")]
    Damaged {
        /// How many.
        entries: u64,
    },
    /// It lags.
    #[error(
        "this replica has applied entries up to {applied}, the copy is to hold those up to {wanted}, and it did not get there \
         within {} s", CATCH_UP.as_secs()
    )]
    Behind {
        /// The last one applied.
        applied: LogIndex,
        /// The one that is wanted.
        wanted: LogIndex,
    },
    /// It would fill the disk.
    #[error("the copy needs {needed} bytes and {min} are to stay free, {} has {free}", dir.display())]
    NoRoom {
        /// What is written.
        needed: u64,
        /// The reserve.
        min: u64,
        /// What there is.
        free: u64,
        /// Where it was to go.
        dir: PathBuf,
    },
    /// A file that is to be in it is not sound.
    #[error("{}: {what}", path.display())]
    Unsound {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// It was cancelled, or the replica stops.
    #[error("it was given up: somebody cancelled it, or the replica stops")]
    GivenUp,
    /// It took too long.
    #[error(
        "the copy had {done} of {total} bytes after {} s, which is all the time that it may take", time_max.as_secs()
    )]
    OutOfTime {
        /// What it may take.
        time_max: Duration,
        /// Bytes that were taken by then.
        done: u64,
        /// All of them.
        total: u64,
    },
    /// The disk failed, or the log was purged or closed under it.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The disk's answer.
        source: io::Error,
    },
}

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> BackupError {
    let path = path.to_owned();
    move |source| BackupError::Io { path, source }
}

impl<O: Send + 'static> ReplicatedLog<O> {
    /// Copies this replica's log, with the checkpoints and side files that it needs, up to an entry that is applied here and not
    /// before `at_least`. The log goes on meanwhile. All of the copy is durable when this returns.
    ///
    /// # Errors
    /// [`BackupError`].
    pub async fn back_up(&self, request: BackupRequest, progress: BackupProgress) -> Result<BackupReport, BackupError> {
        let inner = &*self.inner;
        let pace = Pace::start(inner.runtime.clone(), progress.clone(), request.bytes_per_s, request.time_max);
        let last = self.backup_mark(request.at_least, &pace).await?;
        let entries = self.integrity().damaged_entries;
        if entries > 0 {
            return Err(BackupError::Damaged { entries });
        }
        let places =
            Places { disk: inner.disk.clone(), dir: inner.dir.clone(), view: inner.view.clone(), last, request };
        let copying = Copying {
            places: Arc::new(places),
            checkpoints: inner.checkpoints.clone(),
            epoch: self.members().epoch,
            pace,
            progress,
            runtime: inner.runtime.clone(),
        };
        copying.run().await
    }

    /// The entry behind which the copy ends: applied here, and on this disk.
    async fn backup_mark(&self, at_least: LogIndex, pace: &Pace) -> Result<EntryId, BackupError> {
        let inner = &*self.inner;
        let applied = || self.status().applied.unwrap_or(LogIndex(0));
        let deadline = inner.runtime.now() + CATCH_UP;
        while applied() < at_least {
            pace.check()?;
            if inner.runtime.now() >= deadline {
                return Err(BackupError::Behind { applied: applied(), wanted: at_least });
            }
            inner.runtime.sleep(LOOK_PAUSE).await;
        }
        let mark = applied();
        inner.view.wait_durable(mark).await.map_err(io_at(&inner.dir))?;
        let id = inner.view.id_at(mark);
        let gone = || io::Error::other(format!("entry {mark} was purged meanwhile"));
        id.ok_or_else(gone).map_err(io_at(&inner.dir))
    }
}
