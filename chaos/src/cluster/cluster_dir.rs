//! The folder of a local cluster: removed at the end, unless it should be looked at.

use std::io;
use std::path::{Path, PathBuf};

/// Removed when dropped.
pub struct ClusterDir {
    dir: tempfile::TempDir,
}

impl ClusterDir {
    /// A new folder below the system's folder for temporary files.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn create(prefix: &str) -> io::Result<ClusterDir> {
        Ok(ClusterDir { dir: tempfile::Builder::new().prefix(prefix).tempdir()? })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Leaves the folder where it is.
    pub fn keep(self) -> PathBuf {
        self.dir.keep()
    }
}
