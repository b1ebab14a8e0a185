//! A data directory from a backup: checked, copied, and given a life of its own, in which it founds a group of one.

use std::io;
use std::path::{Path, PathBuf};

use flotilla_raft_log::{Disk, FoundError, Founded, LOCK_FILE, LogIndex, NodeId, Term, found_from_backup};
use flotilla_runtime::Runtime;

use super::manifest::{BackupManifest, ManifestError};
use super::remove;

/// What is not finished is in a folder with this ending.
const UNFINISHED: &str = ".unfinished";
/// The folders that a backup has.
const PARTS: [&str; 2] = ["log", "store"];

/// What a backup becomes.
#[derive(Debug, Clone)]
pub struct RestoreOptions {
    /// The replica's data directory; it is not there yet, or empty.
    pub data_dir: PathBuf,
    /// The replica's number.
    pub node: u64,
    /// The epoch in which the group goes on; `None`: the one after the backup's.
    pub epoch: Option<u16>,
}

/// What was made.
#[derive(Debug, Clone)]
pub struct Restored {
    /// The backup's own words.
    pub manifest: BackupManifest,
    /// The replica's life.
    pub founded: Founded,
}

/// Why nothing was made.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The backup is not sound.
    #[error(transparent)]
    Backup(#[from] ManifestError),
    /// Something is there already.
    #[error("{} is there and not empty: a backup is restored into a new directory", dir.display())]
    Taken {
        /// The directory.
        dir: PathBuf,
    },
    /// The directory is made under this name, and what is there is something else.
    #[error("{} is in the way: a restore makes its directory under that name first, and what is there is none's", dir.display())]
    InTheWay {
        /// What is there.
        dir: PathBuf,
    },
    /// Somebody restores into the same directory at this moment.
    #[error("{} is being filled by another restore", dir.display())]
    Busy {
        /// Where that one makes it.
        dir: PathBuf,
    },
    /// Replicas of that epoch may be about.
    #[error("epoch is {epoch}, the backup is of epoch {own}: a later one is needed, at most 65534")]
    Epoch {
        /// What was asked for.
        epoch: u16,
        /// The backup's.
        own: u16,
    },
    /// It has no life of its own yet.
    #[error(transparent)]
    Found(#[from] FoundError),
    /// It would not fit.
    #[error("the backup has {needed} bytes, {} has {free} free", dir.display())]
    NoRoom {
        /// Bytes of the backup.
        needed: u64,
        /// Bytes that are free.
        free: u64,
        /// Where it was to go.
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

fn io_at(path: &Path) -> impl FnOnce(io::Error) -> RestoreError {
    let path = path.to_owned();
    move |source| RestoreError::Io { path, source }
}

/// Makes a data directory of the backup in `from`, which is only read, from `source`. Durable when it returns; after an error nothing is
/// there. Blocks.
///
/// # Errors
/// [`RestoreError`].
pub fn restore(
    source: &dyn Disk,
    disk: &dyn Disk,
    from: &Path,
    options: &RestoreOptions,
    runtime: &Runtime,
    mut progress: impl FnMut(u64),
) -> Result<Restored, RestoreError> {
    let manifest = BackupManifest::read(source, from)?;
    let epoch = options.epoch.unwrap_or(manifest.epoch.saturating_add(1));
    if epoch <= manifest.epoch || epoch == u16::MAX {
        return Err(RestoreError::Epoch { epoch, own: manifest.epoch });
    }
    let target = std::path::absolute(&options.data_dir).map_err(io_at(&options.data_dir))?;
    // Without a slash at the end, which would have the folder beside it be one within it.
    let target: PathBuf = target.components().collect();
    check_free(&target)?;
    let parent = target.parent().unwrap_or(Path::new("/")).to_owned();
    disk.create_dir_all(&parent).map_err(io_at(&parent))?;
    let mut unfinished = target.as_os_str().to_owned();
    unfinished.push(UNFINISHED);
    let unfinished = PathBuf::from(unfinished);
    check_leftover(&unfinished)?;
    // That of the new log: no replica starts there before all of it is done. What a restore left that was broken off goes.
    let log_dir = unfinished.join("log");
    let lock = log_dir.join(LOCK_FILE);
    let take_lock = || {
        disk.create_dir_all(&log_dir).map_err(io_at(&log_dir))?;
        disk.lock(&lock).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock => RestoreError::Busy { dir: unfinished.clone() },
            _ => io_at(&lock)(error),
        })
    };
    let leftover = take_lock()?;
    remove(&unfinished).map_err(io_at(&unfinished))?;
    let _lock = take_lock()?;
    drop(leftover);
    let made = check_room(disk, &parent, &manifest).and_then(|()| {
        // Another one may have been quicker.
        check_free(&target)?;
        fill((source, disk), from, &unfinished, &manifest, &mut progress)?;
        let last = (Term(manifest.last_term), LogIndex(manifest.last_index));
        Ok(found_from_backup(disk, &log_dir, NodeId(options.node), epoch, last, runtime)?)
    });
    let made = made.and_then(|founded| {
        disk.sync_dir(&unfinished).map_err(io_at(&unfinished))?;
        // Takes the place of an empty directory.
        disk.rename(&unfinished, &target).map_err(io_at(&target))?;
        disk.sync_dir(&parent).map_err(io_at(&parent))?;
        Ok(founded)
    });
    match made {
        Ok(founded) => Ok(Restored { manifest, founded }),
        Err(error) => {
            // Why it failed matters more; it is removed at the next try, too.
            let _ = remove(&unfinished);
            Err(error)
        }
    }
}

fn check_free(dir: &Path) -> Result<(), RestoreError> {
    let count = match std::fs::read_dir(dir) {
        Ok(entries) => entries.count(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(io_at(dir)(error)),
    };
    if count == 0 { Ok(()) } else { Err(RestoreError::Taken { dir: dir.to_owned() }) }
}

/// Whether what is there was left by a restore that was broken off, or nothing is.
fn check_leftover(dir: &Path) -> Result<(), RestoreError> {
    let names = match std::fs::read_dir(dir) {
        Ok(entries) => entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => Err(error),
    };
    let is_own = names.map_err(io_at(dir))?.iter().all(|name| PARTS.iter().any(|part| name == part));
    if is_own { Ok(()) } else { Err(RestoreError::InTheWay { dir: dir.to_owned() }) }
}

fn check_room(disk: &dyn Disk, dir: &Path, manifest: &BackupManifest) -> Result<(), RestoreError> {
    let (needed, free) = (manifest.bytes(), disk.free_bytes(dir).map_err(io_at(dir))?);
    if free < needed { Err(RestoreError::NoRoom { needed, free, dir: dir.to_owned() }) } else { Ok(()) }
}

/// Copies every file, each against its checksum.
fn fill(
    (source, disk): (&dyn Disk, &dyn Disk),
    from: &Path,
    to: &Path,
    manifest: &BackupManifest,
    progress: &mut impl FnMut(u64),
) -> Result<(), RestoreError> {
    let dirs = PARTS.map(|part| to.join(part));
    for dir in &dirs {
        disk.create_dir_all(dir).map_err(io_at(dir))?;
    }
    for file in &manifest.files {
        let path = to.join(&file.name);
        let copy = disk.reserve(&path, file.bytes).map_err(io_at(&path))?;
        BackupManifest::read_through(source, from, file, |at, bytes| {
            progress(bytes.len() as u64);
            copy.write_at(at, bytes)
        })?;
        copy.sync_data().map_err(io_at(&path))?;
    }
    for dir in &dirs {
        disk.sync_dir(dir).map_err(io_at(dir))?;
    }
    Ok(())
}
