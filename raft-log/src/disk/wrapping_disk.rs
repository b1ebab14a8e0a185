//! The machine's own disk that behaves otherwise in some points, for tests.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::{DirLock, Disk, DiskFile, OsDisk};

/// In what a disk differs from the machine's own.
pub trait WrapDisk: Send + Sync + 'static {
    /// What becomes of a file that was opened at that path.
    fn wrap(&self, file: Arc<dyn DiskFile>, path: &Path) -> Arc<dyn DiskFile> {
        let _ = path;
        file
    }
    /// Whether a file may have two names.
    fn may_link(&self) -> bool {
        true
    }
    /// As [`Disk::free_bytes`].
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        OsDisk.free_bytes(dir)
    }
    /// As [`Disk::total_bytes`].
    fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        OsDisk.total_bytes(dir)
    }
}

/// Passes everything else on to the machine's disk.
#[derive(Clone, Default)]
pub struct WrappingDisk<W>(pub W);

impl<W: WrapDisk> Disk for WrappingDisk<W> {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        OsDisk.create_dir_all(path)
    }
    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.0.wrap(OsDisk.create(path, len)?, path))
    }
    fn reserve(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.0.wrap(OsDisk.reserve(path, len)?, path))
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(self.0.wrap(OsDisk.open(path)?, path))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsDisk.list(dir)
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        OsDisk.rename(from, to)
    }
    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        if self.0.may_link() { OsDisk.link(from, to) } else { Err(io::ErrorKind::CrossesDevices.into()) }
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        OsDisk.remove(path)
    }
    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        OsDisk.sync_dir(dir)
    }
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        OsDisk.lock(path)
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.0.free_bytes(dir)
    }
    fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        self.0.total_bytes(dir)
    }
    fn device(&self, dir: &Path) -> io::Result<Option<u64>> {
        OsDisk.device(dir)
    }
    fn boot_id(&self) -> io::Result<Option<String>> {
        OsDisk.boot_id()
    }
}
