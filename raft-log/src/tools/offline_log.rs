//! A log's directory in the hands of a tool.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::examine::Examiner;
use super::report::{Examination, RecordRow};
use crate::checkpoint_file::Checkpoint;
use crate::disk::read_file;
use crate::identity::IDENTITY_FILE;
use crate::recovery::LOCK_FILE;
use crate::segment::parse_segment_name;
use crate::{DirLock, Disk, LogIndex};

/// A log's directory, open for looking at it.
pub struct OfflineLog {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    _lock: Option<Box<dyn DirLock>>,
}

/// How closely to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Depth {
    /// Headers and lengths.
    Headers,
    /// Every checksum too.
    Checksums,
}

/// Why a directory cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum OfflineError {
    /// Neither an identity nor a segment is there.
    #[error("{} holds no log: neither an identity nor a segment file is in it", dir.display())]
    NotALog {
        /// The directory.
        dir: PathBuf,
    },
    /// A replica has it open.
    #[error("{} is in use by a replica: stop it, or look at a copy", dir.display())]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The disk failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The disk's answer.
        source: io::Error,
    },
}

impl OfflineLog {
    /// Opens the directory of a stopped replica, or a copy of one. With `force`, also one that is in use: what is found there
    /// may be in the middle of a change.
    pub fn open(disk: Arc<dyn Disk>, dir: impl Into<PathBuf>, force: bool) -> Result<OfflineLog, OfflineError> {
        let dir = dir.into();
        let io = |source| OfflineError::Io { path: dir.clone(), source };
        let names = disk.list(&dir).map_err(io)?;
        if !names.iter().any(|name| name == IDENTITY_FILE || parse_segment_name(name).is_some()) {
            return Err(OfflineError::NotALog { dir });
        }
        let lock = match disk.lock(&dir.join(LOCK_FILE)) {
            Ok(lock) => Some(lock),
            // A copy needs no lock file; and a file system without locks has no replica that holds one.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => None,
            Err(_) if force => None,
            Err(_) => return Err(OfflineError::InUse { dir }),
        };
        Ok(OfflineLog { disk, dir, _lock: lock })
    }

    /// Where it is.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Looks at everything. Damage is no error: it is in the answer.
    pub fn examine(&self, depth: Depth) -> Result<Examination, OfflineError> {
        Ok(Examiner::start(&*self.disk, &self.dir, depth)?.examine())
    }

    /// Tells the records of `range` that count, in order, checked; stops when `visit` answers false, or behind damage that
    /// hides what follows in the last file.
    pub fn records(
        &self,
        range: Range<LogIndex>,
        visit: &mut dyn FnMut(RecordRow) -> bool,
    ) -> Result<(), OfflineError> {
        Examiner::start(&*self.disk, &self.dir, Depth::Checksums)?.records(range, visit);
        Ok(())
    }

    /// The machine's state in the checkpoint of that entry; `Err` tells what is wrong with it.
    pub fn checkpoint_state(&self, last: LogIndex) -> Result<Bytes, String> {
        let path = self.dir.join(format!("checkpoint-{:020}.ckp", last.0));
        let bytes = read_file(&*self.disk, &path).map_err(|error| error.to_string())?;
        Checkpoint::decode(bytes).map(|checkpoint| checkpoint.state)
    }
}
