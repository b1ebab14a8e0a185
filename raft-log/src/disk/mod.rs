//! The seam to the disk: fixed-length files, space reserved ahead, positional reads, explicit syncs.

mod mmap;
mod os_disk;
mod wrapping_disk;

use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
pub use os_disk::OsDisk;
pub use wrapping_disk::{WrapDisk, WrappingDisk};

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
    /// As [`Disk::create`], but need not write the zeroes out: the space is reserved, so that no later write to the file
    /// meets a full disk. [`DiskFile::zero_ahead`] makes a stretch of it ready for quick writes.
    fn reserve(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.create(path, len)
    }
    /// An existing file, for reading and writing; [`io::ErrorKind::NotFound`] if it is not there.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>>;
    /// The names of the files (not directories) in `dir`, sorted.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;
    /// Gives a file another name, replacing what had it.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Gives a file that nobody changes any more a second name. Only on the same file system; a disk may not be able to.
    fn link(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Takes a file's name away; readers that hold its bytes keep them.
    fn remove(&self, path: &Path) -> io::Result<()>;
    /// Makes creations, renames and removals in `dir` durable.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
    /// Takes the lock file at `path` for the life of the returned guard; [`io::ErrorKind::WouldBlock`] if it is taken.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>>;
    /// Bytes that may still be written to the file system of `dir`.
    fn free_bytes(&self, dir: &Path) -> io::Result<u64>;
    /// What tells one boot of the machine from another; `None` if it cannot be told. What was written and not synced is
    /// lost only between two boots.
    fn boot_id(&self) -> io::Result<Option<String>> {
        Ok(None)
    }
    /// The number of the device that holds `dir`: logs of the same one share a flusher, and a file there may have a second name. `None`: no real
    /// one.
    fn device(&self, _dir: &Path) -> io::Result<Option<u64>> {
        Ok(None)
    }
    /// Size of the file system of `dir`, bytes; 0 if it has no such thing.
    fn total_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(0)
    }
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
    /// As [`DiskFile::write_at`], by whatever is quickest for a writer that waits for no sync.
    fn write_lazily(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_at(offset, bytes)
    }
    /// Whether [`DiskFile::write_lazily`] is a mere copy, so that what is to be written need not be put together before.
    fn copies_lazily(&self) -> bool {
        false
    }
    /// Writes zeroes over a stretch that holds nothing of worth and makes them durable, so that later writes there change
    /// content only. A failure of earlier writes still shows at the next [`DiskFile::sync_data`].
    fn zero_ahead(&self, offset: u64, len: u64) -> io::Result<()> {
        let len = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
        self.write_at(offset, &vec![0; len])?;
        self.sync_data()
    }
    /// The first offset at or behind `offset` where the file may hold anything but zeroes never written; its length if there
    /// is none.
    fn data_from(&self, offset: u64) -> u64 {
        offset.min(self.len())
    }
    /// Tells that this stretch will hardly be read again soon; what it holds must stay.
    fn forget_cached(&self, _offset: u64, _len: u64) {}
    /// Exactly `len` bytes from `offset`; [`io::ErrorKind::UnexpectedEof`] past the end, or where the file was shortened.
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes>;
    /// As [`DiskFile::read_at`], for one who looks once and goes on: what was not in memory before should not stay there.
    fn read_uncached(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let bytes = self.read_at(offset, len)?;
        self.forget_cached(offset, len as u64);
        Ok(bytes)
    }
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
    let write = || {
        let file = disk.create(&temporary, bytes.len() as u64)?;
        file.write_at(0, bytes)?;
        file.sync_data()
    };
    write().inspect_err(|_| {
        // What was made of it must not keep a full disk full. It is harmless otherwise, so failing to remove it is too.
        let _ = disk.remove(&temporary);
    })?;
    disk.rename(&temporary, &dir.join(name))?;
    disk.sync_dir(dir)
}

/// The whole content of `path`.
pub fn read_file(disk: &dyn Disk, path: &Path) -> io::Result<Bytes> {
    let file = disk.open(path)?;
    let len = usize::try_from(file.len()).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    file.read_at(0, len)
}
