//! A control: all replicas are set back to an older copy of their data. Messages must be lost.

use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "CONTROL, must lose: all replicas' data is copied, and 2 s later put in the place of what they have",
    heals: "all are started at once, on the old data",
};

const LATER: Duration = Duration::from_secs(2);

/// Old data.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewind {}

impl Nemesis for Rewind {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = field.cluster.nodes();
        // Copied while nobody writes: an old state, but a sound one.
        field.cluster.kill_all(&nodes).await?;
        for node in &nodes {
            keep_copy(field, *node)?;
        }
        field.cluster.restart_all(&nodes).await?;
        field.leader().await?;
        field.runtime.sleep(LATER).await;
        field.cluster.kill_all(&nodes).await?;
        for node in &nodes {
            set_back(field, *node)?;
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        Ok(field.cluster.restart_all(targets).await?)
    }
}

/// Keeps a copy of all that a replica has, which must not run, beside it.
pub(super) fn keep_copy(field: &Field, node: u64) -> Result<(), FieldError> {
    let data = field.cluster.data(node);
    copy(&data.join("log"), &data.join("log-copy"))?;
    copy(&data.join("store"), &data.join("store-copy"))
}

/// Puts that copy in the place of what a replica has, which must not run.
pub(super) fn set_back(field: &Field, node: u64) -> Result<(), FieldError> {
    for name in ["log", "store"] {
        let data = field.cluster.data(node);
        let (path, kept) = (data.join(name), data.join(format!("{name}-copy")));
        let error = |source| FieldError::Io { path: path.clone(), source };
        std::fs::remove_dir_all(&path).and_then(|()| std::fs::rename(&kept, &path)).map_err(error)?;
    }
    Ok(())
}

/// The files of a folder that has no folders.
fn copy(from: &Path, to: &Path) -> Result<(), FieldError> {
    let error = |source| FieldError::Io { path: from.to_owned(), source };
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).map_err(error)?;
    for entry in std::fs::read_dir(from).map_err(error)? {
        let entry = entry.map_err(error)?;
        std::fs::copy(entry.path(), to.join(entry.file_name())).map_err(error)?;
    }
    Ok(())
}
