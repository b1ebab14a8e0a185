//! The seam to the disk: fixed-length files, whole-file maps for reading, explicit syncs.

mod mmap;
mod os_disk;

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
pub use os_disk::OsDisk;

/// A file system as the log needs it.
///
/// An implementation must:
/// - let a file's *length* and its zeroes survive a crash once [`Disk::create`] returned, but its *name* only once
///   [`Disk::sync_dir`] of its directory returned;
/// - make [`Disk::rename`] atomic: after a crash the target is the old file or the new one, never a mixture;
/// - keep bytes handed out by [`DiskFile::read_at`] readable after the file was removed.
pub trait Disk: Send + Sync + 'static {
    /// Makes the directory and its missing parents; an existing one is fine. All their names are durable when this
    /// returns: else a power loss could take a whole log with its directory.
    fn create_dir_all(&self, path: &Path) -> io::Result<()>;
    /// A new file of `len` zero bytes, data synced. Replaces a file of that name. The name itself is durable only after
    /// [`Disk::sync_dir`].
    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>>;
    /// An existing file, for reading and writing; [`io::ErrorKind::NotFound`] if it is not there.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// The names of the files (not directories) in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Takes a file's name away; readers that hold its bytes keep them.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock file at `path` for the life of the returned guard; [`io::ErrorKind::WouldBlock`] if it is taken.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>>;
    /// Bytes that may still be written to the file system of `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
}

/// One file of a length fixed at its creation.
///
/// A file must:
/// - show a write to every later [`DiskFile::read_at`] at once, synced or not;
/// - keep every byte written before [`DiskFile::sync_data`] was *called* once that returned `Ok`;
/// - after a failed sync fail loudly again or never lie: callers treat the first failure as final.
///
/// Callers never overwrite bytes that a reader may hold.
pub trait DiskFile: Send + Sync {
    /// Length in bytes; constant.
    fn len(&self) -> u64;
    /// True for a file of no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Writes all of `bytes`; an error if they would pass the end.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;
    /// Exactly `len` bytes from `offset`, without a copy where the implementation can;
    /// [`io::ErrorKind::UnexpectedEof`] past the end.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes>;
    /// Makes everything written so far durable.
    fn sync_data(&self) -> io::Result<()>;
}

/// A held lock; dropping it lets the next one in.
pub trait DirLock: Send + Sync {}

/// Replaces `dir/name` by `bytes` such that a crash leaves the old file or the new one, and makes that durable.
///
/// Writes `name.tmp` first; a leftover of that name is harmless and replaced next time.
pub fn write_file_atomically(disk: &dyn Disk, dir: &Path, name: &str, bytes: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp"));
    let file = disk.create(&temporary, bytes.len() as u64)?;
    file.write_at(0, bytes)?;
    file.sync_data()?;
    disk.rename(&temporary, &dir.join(name))?;
    disk.sync_dir(dir)
}

/// The whole content of `path`, without a copy where the disk can.
pub fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Bytes> {
    let file = disk.open(path)?;
    let len = usize::try_from(file.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    file.read_at(0, len)
}
