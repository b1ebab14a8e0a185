//! A disk with little room, over the one that crashes: files take space when they are made and give it back when removed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::CrashDisk;
use crate::disk::{DirLock, Disk, DiskFile};

/// The disk; clones are the same one.
#[derive(Clone)]
pub(crate) struct SmallDisk {
    inner: CrashDisk,
    space: Arc<Mutex<Space>>,
}

struct Space {
    total_bytes: u64,
    /// What others have put there.
    foreign_bytes: u64,
    files: BTreeMap<PathBuf, u64>,
}

impl Space {
    fn free_bytes(&self) -> u64 {
        self.total_bytes.saturating_sub(self.foreign_bytes + self.files.values().sum::<u64>())
    }
}

impl SmallDisk {
    pub(crate) fn new(seed: u64, total_bytes: u64) -> SmallDisk {
        let space = Space { total_bytes, foreign_bytes: 0, files: BTreeMap::new() };
        SmallDisk { inner: CrashDisk::new(seed), space: Arc::new(Mutex::new(space)) }
    }

    /// Somebody else's files take so much from now on.
    pub(crate) fn set_foreign_bytes(&self, bytes: u64) {
        self.space.lock().unwrap().foreign_bytes = bytes;
    }

    /// The process dies, and the machine lives on.
    pub(crate) fn kill_process(&self) {
        self.inner.kill_process();
    }

    /// The machine goes down, and comes up again with what was synced.
    pub(crate) fn lose_power(&self) {
        self.inner.power_cycle_losing_all_unsynced();
    }

    /// Bytes of the log's files that are no segments: marks, checkpoints, summaries.
    pub(crate) fn bytes_besides_segments(&self) -> u64 {
        let space = self.space.lock().unwrap();
        let others = space.files.iter().filter(|(path, _)| {
            !path.extension().is_some_and(|extension| extension == "seg" || extension == "prepared")
        });
        others.map(|(_, bytes)| bytes).sum()
    }
}

impl Disk for SmallDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.inner.create_dir_all(path)
    }

    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        {
            let mut space = self.space.lock().unwrap();
            space.files.remove(path);
            if len > space.free_bytes() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            space.files.insert(path.to_owned(), len);
        }
        self.inner.create(path, len)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.inner.open(path)
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.inner.list(dir)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut space = self.space.lock().unwrap();
        if let Some(bytes) = space.files.remove(from) {
            space.files.insert(to.to_owned(), bytes);
        }
        self.inner.rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.space.lock().unwrap().files.remove(path);
        self.inner.remove(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.inner.sync_dir(dir)
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.inner.lock(path)
    }

    fn boot_id(&self) -> io::Result<Option<String>> {
        self.inner.boot_id()
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.space.lock().unwrap().free_bytes())
    }

    fn total_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.space.lock().unwrap().total_bytes)
    }
}
