//! What must be written though the disk is full: it is tried again until there is room, and the node lives on meanwhile.
//!
//! Segments have a reserve and a file ahead of their need, and vote and marks a file of fixed size. Left are files that are
//! made when something happens: a snapshot that arrives, acknowledged entries that another leader overrides, the end of a
//! recovery. None of them may be skipped, and none of them is a reason to end.

use std::io;
use std::path::Path;

use crate::FullReason;
use crate::disk::Disk;
use crate::log_view::Shared;
use crate::room::{DiskSpace, RECHECK};
use crate::segment_maker::disk_space;

/// A full disk, quota of a user included: foreseen, and waited out. Anything else a disk says is final.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Runs `work`, which may block and does the same each time, until it meets anything but a full disk. New data is refused
/// meanwhile, and an alarm says why. The end of the log ends the wait, with the full disk's error.
pub(crate) async fn when_there_is_room<T: Send + 'static>(
    shared: &Shared,
    disk: &dyn Disk,
    dir: &Path,
    what: &str,
    work: impl Fn() -> io::Result<T> + Clone + Send + 'static,
) -> io::Result<T> {
    loop {
        let trying = work.clone();
        let error = match shared.write_blocking(trying).await {
            Err(error) if is_full(&error) && !shared.room.is_closing() => error,
            done => return done,
        };
        note_full(shared, disk, dir);
        tracing::warn!(%error, what, "waits for room on the disk");
        shared.runtime.sleep(RECHECK).await;
    }
}

/// The disk said that it is full, whatever was counted on.
pub(crate) fn note_full(shared: &Shared, disk: &dyn Disk, dir: &Path) {
    if !shared.room.is_blocked() {
        let DiskSpace { free_bytes, .. } = disk_space(disk, dir);
        let reason = FullReason::DiskFree { free_bytes, free_bytes_min: shared.room.segment_bytes() };
        shared.room.set_blocked(Some(reason), shared.runtime.now());
    }
}
