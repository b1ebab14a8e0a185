//! What can go wrong with the files of the store.

use std::io;
use std::path::PathBuf;

/// Why slots cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The disk refused.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the disk said.
        source: io::Error,
    },
    /// An index file is not what was written. It is derived: the node must stop, and it is made
    /// again from the log by applying that from the start (without a checkpoint).
    #[error("index file {} is damaged: {what}", path.display())]
    DamagedIndex {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}
