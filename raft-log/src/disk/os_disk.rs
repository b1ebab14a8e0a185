//! The disk of real processes: reserved and zero-filled files, `pwrite`, `pread` and `fdatasync`, a map for lazy writes.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;

use super::mmap::{self, WriteMap};
use super::{DirLock, Disk, DiskFile};

/// Zeroes go out in pieces of this many bytes.
const ZERO_FILL_BYTES: usize = 1 << 20;
/// A new file is synced every so many bytes, so that making one never queues much in front of the log's own syncs.
const ZERO_SYNC_BYTES: u64 = 16 << 20;

/// Where Linux tells its boots apart.
const BOOT_ID_FILE: &str = "/proc/sys/kernel/random/boot_id";

/// The machine's file system. Stateless; every handle is independent.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsDisk;

impl OsDisk {
    /// A handle to the machine's file system.
    pub fn new() -> OsDisk {
        OsDisk
    }
}

struct OsFile {
    file: File,
    len: u64,
    /// Made at the first lazy write; `None` if that cannot be had.
    map: OnceLock<Option<WriteMap>>,
}

impl OsFile {
    fn of(file: File) -> io::Result<OsFile> {
        let len = file.metadata()?.len();
        Ok(OsFile { file, len, map: OnceLock::new() })
    }

    fn check_range(&self, offset: u64, len: usize) -> io::Result<()> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{len} bytes at {offset} pass the end of a file of {} bytes", self.len),
            ));
        }
        Ok(())
    }

    fn lazy_map(&self) -> Option<&WriteMap> {
        let map = self.map.get_or_init(|| {
            WriteMap::of(&self.file)
                .inspect_err(|error| tracing::warn!(%error, "file cannot be mapped, writing it by call"))
                .ok()
        });
        map.as_ref()
    }
}

/// Opens a new file of that name. What had it before is unlinked, not cut: somebody may be reading it.
fn create_new(path: &Path) -> io::Result<File> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

fn write_zeroes(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let zeroes = vec![0_u8; ZERO_FILL_BYTES.min(usize::try_from(len).unwrap_or(usize::MAX))];
    let end = offset + len;
    let mut at = offset;
    while at < end {
        let piece = usize::try_from((end - at).min(ZERO_FILL_BYTES as u64)).expect("a piece is at most 1 MiB");
        file.write_all_at(&zeroes[..piece], at)?;
        at += piece as u64;
    }
    Ok(())
}

struct OsLock {
    /// Closing it releases the lock.
    _file: File,
}

impl DirLock for OsLock {}

impl Disk for OsDisk {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        let missing = path.ancestors().take_while(|dir| !dir.as_os_str().is_empty() && !dir.exists()).count();
        std::fs::create_dir_all(path)?;
        // The last name in any case: a process that made it may have died before this.
        for dir in path.ancestors().take(missing.max(1)) {
            match dir.parent() {
                Some(parent) if parent.as_os_str().is_empty() => self.sync_dir(Path::new("."))?,
                Some(parent) => self.sync_dir(parent)?,
                None => {}
            }
        }
        Ok(())
    }

    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = create_new(path)?;
        let mut filled: u64 = 0;
        while filled < len {
            let piece = (len - filled).min(ZERO_SYNC_BYTES);
            write_zeroes(&file, filled, piece)?;
            filled += piece;
            if filled < len {
                file.sync_data()?;
            }
        }
        file.sync_all()?;
        Ok(Arc::new(OsFile::of(file)?))
    }

    fn reserve(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let file = create_new(path)?;
        match mmap::allocate(&file, len) {
            Ok(()) => {}
            // A file system that cannot reserve gets its zeroes now.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return self.create(path, len),
            Err(error) => {
                // What was reserved of it must not keep the disk full.
                drop(file);
                std::fs::remove_file(path)?;
                return Err(error);
            }
        }
        file.sync_all()?;
        Ok(Arc::new(OsFile::of(file)?))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(OsFile::of(OpenOptions::new().read(true).write(true).open(path)?)?))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(dir)? {
            let entry = entry?;
            if entry.file_type()?.is_file()
                && let Ok(name) = entry.file_name().into_string()
            {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn link(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path)?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(OsLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        Ok(mmap::space(dir)?.free)
    }

    fn boot_id(&self) -> io::Result<Option<String>> {
        match std::fs::read_to_string(BOOT_ID_FILE) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn total_bytes(&self, dir: &Path) -> io::Result<u64> {
        Ok(mmap::space(dir)?.total)
    }

    fn device(&self, dir: &Path) -> io::Result<Option<u64>> {
        Ok(Some(std::fs::metadata(dir)?.dev()))
    }
}

impl DiskFile for OsFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.check_range(offset, bytes.len())?;
        self.file.write_all_at(bytes, offset)
    }

    fn write_lazily(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self.lazy_map() {
            Some(map) => map.copy_to(offset, bytes),
            None => self.write_at(offset, bytes),
        }
    }

    fn copies_lazily(&self) -> bool {
        self.lazy_map().is_some()
    }

    fn zero_ahead(&self, offset: u64, len: u64) -> io::Result<()> {
        self.check_range(offset, usize::try_from(len).unwrap_or(usize::MAX))?;
        // The kernel tells a failed write-back once for each open file. Through one of its own, this sync cannot take the
        // news away from the log's.
        let own = OpenOptions::new().write(true).open(format!("/proc/self/fd/{}", self.file.as_raw_fd()))?;
        write_zeroes(&own, offset, len)?;
        own.sync_data()
    }

    fn data_from(&self, offset: u64) -> u64 {
        if offset >= self.len {
            return self.len;
        }
        // A file system that cannot tell has data everywhere.
        mmap::data_from(&self.file, offset).map_or(offset, |found| found.unwrap_or(self.len))
    }

    fn forget_cached(&self, offset: u64, len: u64) {
        // Advice: without effect on what a reader gets.
        let _ = mmap::drop_cached(&self.file, offset, len);
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{len} bytes at {offset} pass the end of a file of {} bytes", self.len),
            ));
        }
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_is_zero_and_shows_writes_to_earlier_and_later_readers() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsDisk.create(&dir.path().join("f"), 3 << 20).unwrap();
        let before = file.read_at(1 << 20, 16).unwrap();
        assert_eq!(&before[..], &[0; 16]);
        file.write_at((2 << 20) - 2, b"abcd").unwrap();
        assert_eq!(&file.read_at((2 << 20) - 2, 4).unwrap()[..], b"abcd");
        let again = OsDisk.open(&dir.path().join("f")).unwrap();
        assert_eq!(again.len(), 3 << 20);
        assert_eq!(&again.read_at((2 << 20) - 2, 4).unwrap()[..], b"abcd");
    }

    #[test]
    fn nothing_passes_the_end_of_a_file() {
        let dir = tempfile::tempdir().unwrap();
        let file = OsDisk.create(&dir.path().join("f"), 100).unwrap();
        assert_eq!(file.read_at(90, 11).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(file.read_at(u64::MAX, 1).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(file.write_at(90, &[1; 11]).is_err());
        assert_eq!(file.read_at(100, 0).unwrap().len(), 0);
    }

    #[test]
    fn a_reserved_file_is_zero_has_its_blocks_and_takes_lazy_writes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = OsDisk.reserve(&path, 3 << 20).unwrap();
        assert!(std::fs::metadata(&path).unwrap().blocks() * 512 >= 3 << 20, "space is taken, not only promised");
        assert!(file.read_at(1 << 20, 4096).unwrap().iter().all(|byte| *byte == 0));
        assert!(file.data_from(8192) >= 8192);
        file.write_at(100, b"written").unwrap();
        file.write_lazily(107, b" and mapped").unwrap();
        assert_eq!(&file.read_at(100, 18).unwrap()[..], b"written and mapped");
        file.sync_data().unwrap();
        assert_eq!(&OsDisk.open(&path).unwrap().read_at(100, 18).unwrap()[..], b"written and mapped");
        assert!(file.write_lazily((3 << 20) - 1, b"ab").is_err() && file.write_lazily(u64::MAX, b"a").is_err());
        file.zero_ahead(104, 1 << 20).unwrap();
        assert_eq!(&file.read_at(100, 8).unwrap()[..], b"writ\0\0\0\0");
    }

    #[test]
    fn a_file_that_is_shortened_while_open_is_an_error_and_no_fault() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = OsDisk.create(&path, 1 << 20).unwrap();
        let before = file.read_at(512 << 10, 4096).unwrap();
        OpenOptions::new().write(true).open(&path).unwrap().set_len(4096).unwrap();
        assert_eq!(file.read_at(512 << 10, 4096).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(before.iter().all(|byte| *byte == 0), "what was read before is the reader's own");
    }

    #[test]
    fn bytes_outlive_the_file_they_came_from() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = OsDisk.create(&path, 8192).unwrap();
        file.write_at(0, b"kept").unwrap();
        let bytes = file.read_at(0, 4).unwrap();
        drop(file);
        let replaced = OsDisk.create(&path, 4).unwrap();
        replaced.write_at(0, b"new!").unwrap();
        OsDisk.remove(&path).unwrap();
        assert_eq!(&bytes[..], b"kept");
    }

    #[test]
    fn a_lock_is_exclusive_until_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let held = OsDisk.lock(&path).unwrap();
        assert_eq!(OsDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(held);
        assert!(OsDisk.lock(&path).is_ok());
    }

    #[test]
    fn listing_names_files_only_and_sorted() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["b", "a"] {
            OsDisk.create(&dir.path().join(name), 1).unwrap();
        }
        OsDisk.create_dir_all(&dir.path().join("c").join("d").join("e")).unwrap();
        OsDisk.create_dir_all(&dir.path().join("c").join("d").join("e")).unwrap();
        assert!(dir.path().join("c").join("d").join("e").is_dir());
        assert_eq!(OsDisk.list(dir.path()).unwrap(), ["a", "b"]);
        assert!(OsDisk.free_bytes(dir.path()).unwrap() > 0);
    }
}
