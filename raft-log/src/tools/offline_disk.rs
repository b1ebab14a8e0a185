//! A disk that is only read, without maps: a file that shrinks under a tool is an error and no fault.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use crate::{DirLock, Disk, DiskFile, OsDisk};

/// Small reads are served from a window of this many bytes.
const WINDOW_BYTES: usize = 1 << 20;

/// The machine's file system, for reading only: every change is refused.
#[derive(Debug, Clone, Copy, Default)]
pub struct OfflineDisk;

struct OfflineFile {
    file: File,
    len: u64,
    /// The bytes last read ahead, and where they begin.
    window: Mutex<(u64, Bytes)>,
}

struct SharedLock {
    /// Closing it releases the lock.
    _file: File,
}

impl DirLock for SharedLock {}

fn refused<T>() -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "tools change nothing"))
}

impl Disk for OfflineDisk {
    fn create_dir_all(&self, _path: &Path) -> io::Result<()> {
        refused()
    }
    fn create(&self, _path: &Path, _len: u64) -> io::Result<Arc<dyn DiskFile>> {
        refused()
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let file = File::open(path)?;
        let len = file.metadata()?.len();
        Ok(Arc::new(OfflineFile { file, len, window: Mutex::new((0, Bytes::new())) }))
    }
    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        OsDisk.list(dir)
    }
    fn rename(&self, _from: &Path, _to: &Path) -> io::Result<()> {
        refused()
    }
    fn remove(&self, _path: &Path) -> io::Result<()> {
        refused()
    }
    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        refused()
    }
    /// A shared lock on a file that is there: tools do not mind each other, a replica keeps them out and is kept out.
    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        let file = OpenOptions::new().read(true).open(path)?;
        match file.try_lock_shared() {
            Ok(()) => Ok(Box::new(SharedLock { _file: file })),
            Err(TryLockError::WouldBlock) => Err(io::ErrorKind::WouldBlock.into()),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        OsDisk.free_bytes(dir)
    }
}

impl OfflineFile {
    fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(Bytes::from(bytes))
    }
}

impl DiskFile for OfflineFile {
    fn len(&self) -> u64 {
        self.len
    }
    fn write_at(&self, _offset: u64, _bytes: &[u8]) -> io::Result<()> {
        refused()
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        if offset.checked_add(len as u64).is_none_or(|end| end > self.len) {
            let what = format!("{len} bytes at {offset} pass the end of a file of {} bytes", self.len);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
        }
        if len > WINDOW_BYTES / 2 {
            return self.read(offset, len);
        }
        let mut window = self.window.lock().expect("window lock is never poisoned: no code panics while holding it");
        let (from, bytes) = &*window;
        if offset < *from || offset + len as u64 > from + bytes.len() as u64 {
            let ahead = (self.len - offset).min(WINDOW_BYTES as u64);
            *window = (offset, self.read(offset, usize::try_from(ahead).expect("a window is at most 1 MiB"))?);
        }
        let (from, bytes) = &*window;
        let start = usize::try_from(offset - from).expect("the offset lies in the window");
        Ok(bytes.slice(start..start + len))
    }
    fn sync_data(&self) -> io::Result<()> {
        refused()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_it_reads_is_what_is_there_and_nothing_can_be_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let content: Vec<u8> = (0..3_000_000_u32).map(|at| (at % 251) as u8).collect();
        std::fs::write(&path, &content).unwrap();
        let file = OfflineDisk.open(&path).unwrap();
        for (offset, len) in [(0, 10), (5, 100), (1_048_570, 20), (0, 3_000_000), (2_999_999, 1), (100, 0)] {
            assert_eq!(file.read_at(offset, len).unwrap(), content[offset as usize..offset as usize + len]);
        }
        assert_eq!(file.read_at(2_999_999, 2).unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert!(file.write_at(0, b"x").is_err() && OfflineDisk.remove(&path).is_err());
        assert!(OfflineDisk.rename(&path, &dir.path().join("g")).is_err() && OfflineDisk.create(&path, 1).is_err());
        assert_eq!(std::fs::read(&path).unwrap(), content);
    }

    #[test]
    fn tools_share_a_directory_and_a_replica_excludes_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        assert_eq!(OfflineDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::NotFound);
        let replica = OsDisk.lock(&path).unwrap();
        assert_eq!(OfflineDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(replica);
        let tools = [OfflineDisk.lock(&path).unwrap(), OfflineDisk.lock(&path).unwrap()];
        assert_eq!(OsDisk.lock(&path).err().unwrap().kind(), io::ErrorKind::WouldBlock);
        drop(tools);
        assert!(OsDisk.lock(&path).is_ok());
    }
}
