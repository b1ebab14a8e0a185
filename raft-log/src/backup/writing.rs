//! A file of a copy that is being written.

use std::path::PathBuf;
use std::sync::Arc;

use super::plan::Places;
use super::{BackupError, io_at};
use crate::disk::DiskFile;

/// Synced every so many bytes, so that it never queues much in front of the log's own syncs.
const SYNC_BYTES: u64 = 16 << 20;
const ZERO_BYTES: u64 = 1 << 20;

/// Written from its beginning to its end. All of it blocks.
pub(super) struct Writing {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    at: u64,
    synced: u64,
    crc: u32,
}

impl Writing {
    /// A new file of so many bytes.
    pub(super) fn begin(places: &Places, path: PathBuf, bytes: u64) -> Result<Writing, BackupError> {
        places.check_room(bytes)?;
        let file = places.disk.reserve(&path, bytes).map_err(io_at(&path))?;
        Ok(Writing { path, file, at: 0, synced: 0, crc: 0 })
    }

    /// Where the next bytes go.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<(), BackupError> {
        self.file.write_at(self.at, bytes).map_err(io_at(&self.path))?;
        self.crc = crc32c::crc32c_append(self.crc, bytes);
        self.at += bytes.len() as u64;
        if self.at - self.synced >= SYNC_BYTES { self.sync() } else { Ok(()) }
    }

    fn sync(&mut self) -> Result<(), BackupError> {
        self.file.sync_data().map_err(io_at(&self.path))?;
        self.file.forget_cached(self.synced, self.at - self.synced);
        self.synced = self.at;
        Ok(())
    }

    /// Durable when it returns, but for its name. Its length and checksum, with the zeroes that were not written.
    pub(super) fn finish(mut self) -> Result<(u64, u32), BackupError> {
        self.sync()?;
        let (bytes, mut crc, mut at) = (self.file.len(), self.crc, self.at);
        let zeroes = vec![0; usize::try_from(ZERO_BYTES.min(bytes - at)).expect("at most 1 MiB")];
        while at < bytes {
            let piece = usize::try_from((bytes - at).min(ZERO_BYTES)).expect("at most 1 MiB");
            crc = crc32c::crc32c_append(crc, &zeroes[..piece]);
            at += piece as u64;
        }
        Ok((bytes, crc))
    }
}
