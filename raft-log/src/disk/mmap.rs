//! The crate's only `unsafe`: a writable map of a reserved file, and system calls that std has no face for.
//!
//! Nothing is ever *read* through a map. A mapped read of a page that the disk cannot deliver, or that somebody cut off
//! the file, is a fault that kills the process; a positional read is an error that names the file and is handled. So
//! readers copy by `pread`, and a file that was shortened while it is open answers `UnexpectedEof`.
#![allow(unsafe_code, reason = "maps, fallocate, fadvise and statvfs have no safe face in std")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use memmap2::MmapRaw;

/// A map for writing, of a whole file whose length never changes and whose space is reserved.
pub(super) struct WriteMap {
    map: MmapRaw,
}

impl WriteMap {
    /// Maps all of `file`, which must have been made by `OsDisk::reserve` or `OsDisk::create`.
    pub(super) fn of(file: &File) -> io::Result<WriteMap> {
        Ok(WriteMap { map: MmapRaw::map_raw(file)? })
    }

    /// Copies `bytes` to `offset`; an error if they would pass the end.
    pub(super) fn copy_to(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let start = start.filter(|start| start.checked_add(bytes.len()).is_some_and(|end| end <= self.map.len()));
        let Some(start) = start else {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("{} bytes at {offset} pass the end of a map of {} bytes", bytes.len(), self.map.len()),
            ));
        };
        // SAFETY: (1) Source and target are valid for `bytes.len()` bytes: the range was just checked against the map, which
        // lives as long as `self`. (2) They do not overlap, and no reference into the map exists anywhere: it is private to
        // this type, which only ever writes. Two writers never overlap: a file has one writer, and the zeroes ahead of it are
        // written by `pwrite` to places that it has not reached (`Runway`). (3) The store cannot fault for want of space or
        // length: the file had its full length and its blocks before it was mapped, nothing in this crate shortens one, and
        // the directory lock keeps other processes of ours out. Somebody who shortens the *tail* file of a running log by
        // hand ends the process here; nothing but an unsynced tail is lost by that, as by any kill.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.map.as_mut_ptr().add(start), bytes.len()) };
        Ok(())
    }
}

/// Gives `file` its length and its blocks, which read as zeroes.
pub(super) fn allocate(file: &File, len: u64) -> io::Result<()> {
    let len = libc::off_t::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
    // SAFETY: the descriptor is open as long as `file` is borrowed; no memory is handed over.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The first offset from `offset` on that holds data, `None` if only space never written to follows.
pub(super) fn data_from(file: &File, offset: u64) -> io::Result<Option<u64>> {
    let offset = libc::off_t::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    // SAFETY: the descriptor is open as long as `file` is borrowed. It moves the file's cursor, which nobody uses: all reads
    // and writes of this crate are positional.
    match unsafe { libc::lseek(file.as_raw_fd(), offset, libc::SEEK_DATA) } {
        found if found >= 0 => Ok(Some(found.unsigned_abs())),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ENXIO) => Ok(None),
            error => Err(error),
        },
    }
}

/// Lets the kernel drop its cached copy of a range that is on disk.
pub(super) fn drop_cached(file: &File, offset: u64, len: u64) -> io::Result<()> {
    let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    // SAFETY: the descriptor is open as long as `file` is borrowed; no memory is handed over.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), offset, len, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        code => Err(io::Error::from_raw_os_error(code)),
    }
}

/// What `statvfs` tells, bytes.
pub(super) struct Space {
    /// An unprivileged process may still write so much.
    pub(super) free: u64,
    /// Size of the file system.
    pub(super) total: u64,
}

/// Free and total bytes of the file system that holds `path`.
pub(super) fn space(path: &Path) -> io::Result<Space> {
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
    Ok(Space { free: stat.f_bavail.saturating_mul(stat.f_frsize), total: stat.f_blocks.saturating_mul(stat.f_frsize) })
}
