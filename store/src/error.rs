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
    /// The group has gone on to a feature level that this program does not know. Nothing of it was applied here.
    #[error(
        "the group is at feature level {level} from entry {index} on, this program supports {level_max} at most: start this \
         replica with the program that the others run"
    )]
    LevelTooHigh {
        /// The group's.
        level: u8,
        /// This program's.
        level_max: u8,
        /// The entry that raised it.
        index: u64,
    },
}
