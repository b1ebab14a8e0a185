//! Backups of a broker group: how they say what they are, and a data directory made of one. What makes them is in
//! `admin/backup.rs`, and below it in the log.

mod manifest;
mod restoring;

pub use manifest::{BackupManifest, FORMAT, MANIFEST_FILE, ManifestError};
pub use restoring::{RestoreError, RestoreOptions, Restored, restore};

/// Takes a folder away, if it is there. Blocks.
pub(crate) fn remove(dir: &std::path::Path) -> std::io::Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
