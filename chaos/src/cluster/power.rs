//! The power of a file system: cut at one instant, with or without chosen pages written just before.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::Path;

/// `FS_IOC_SHUTDOWN` of Linux (ext4, xfs, f2fs): `_IOR('X', 125, __u32)`.
const SHUTDOWN: libc::Ioctl = 0x8004_587D_u32 as libc::Ioctl;
/// Neither data nor the journal is written any more: what was not synced is gone.
const NO_LOG_FLUSH: u32 = 2;

/// Stops the file system that is mounted at `mount` at once, as if its machine had lost power. Every later call on it
/// answers EIO until it is mounted anew. Needs root.
///
/// # Errors
/// What the system answers: EPERM without root, ENOTTY if the file system cannot.
pub fn cut(mount: &Path) -> io::Result<()> {
    let dir = File::open(mount)?;
    // SAFETY: the call reads one u32 behind the pointer, which outlives it; the descriptor is open.
    #[allow(unsafe_code, reason = "std has no ioctl")]
    let answer = unsafe { libc::ioctl(dir.as_raw_fd(), SHUTDOWN, &NO_LOG_FLUSH) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Writes these bytes of a file out to the device, and nothing else of it: what a kernel may do by itself at any time.
///
/// # Errors
/// What the system answers.
pub fn write_out(file: &File, range: Range<u64>) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE | libc::SYNC_FILE_RANGE_WRITE | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    let to_offset = |at: u64| i64::try_from(at).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput));
    let (start, length) = (to_offset(range.start)?, to_offset(range.end.saturating_sub(range.start))?);
    // SAFETY: the call takes numbers only and touches no memory of this process; the descriptor is open.
    #[allow(unsafe_code, reason = "std has no sync_file_range")]
    let answer = unsafe { libc::sync_file_range(file.as_raw_fd(), start, length, flags) };
    if answer == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
