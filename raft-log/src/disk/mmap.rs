//! The crate's only `unsafe`: a whole-file read-only map, and the free space of a file system.
#![allow(unsafe_code, reason = "memory maps and statvfs have no safe face in std")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use memmap2::Mmap;

/// A read-only map of a whole file whose length never changes.
#[derive(Clone)]
pub(super) struct FileMap {
    /// All of the file; slices of it share one owner, so the map lives as long as the last slice.
    whole: Bytes,
}

struct MapOwner(Arc<Mmap>);

impl AsRef<[u8]> for MapOwner {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl FileMap {
    /// Maps all of `file`.
    pub(super) fn of(file: &File) -> io::Result<FileMap> {
        if file.metadata()?.len() == 0 {
            return Ok(FileMap { whole: Bytes::new() });
        }
        // SAFETY: (1) No access can fault: files made by `OsDisk::create` have their final length from birth, nothing in
        // this crate truncates one (a replaced file is unlinked first, which leaves the old inode and this map whole), and
        // the directory lock keeps other processes of ours out. (2) Bytes change only by our own `pwrite` to places that no
        // reader holds: `DiskFile`'s contract forbids overwriting what was handed out, so no `&[u8]` sees a change.
        let map = unsafe { Mmap::map(file)? };
        Ok(FileMap { whole: Bytes::from_owner(MapOwner(Arc::new(map))) })
    }

    /// The bytes `offset..offset + len`, shared with the map.
    pub(super) fn slice(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let end = usize::try_from(offset).ok().and_then(|start| Some((start, start.checked_add(len)?)));
        match end {
            Some((start, end)) if end <= self.whole.len() => Ok(self.whole.slice(start..end)),
            _ => Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("{len} bytes at {offset} pass the end of a file of {} bytes", self.whole.len()),
            )),
        }
    }
}

/// Bytes an unprivileged process may still write to the file system that holds `path`.
pub(super) fn free_bytes(path: &Path) -> io::Result<u64> {
    let path = CString::new(path.as_os_str().as_bytes())
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, "path holds a zero byte"))?;
    let mut stat = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` is a valid C string and `stat` is writable memory of the right size; both outlive the call.
    let answer = unsafe { libc::statvfs(path.as_ptr(), stat.as_mut_ptr()) };
    if answer != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `statvfs` returned 0, so it has filled `stat`.
    let stat = unsafe { stat.assume_init() };
    Ok(stat.f_bavail.saturating_mul(stat.f_frsize))
}
