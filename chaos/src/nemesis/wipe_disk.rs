//! A replica's disk was replaced by an empty one, and somebody starts it as if nothing had happened.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "a follower is killed, all its data is removed, and it is started under its old number",
    heals: "over when it has caught up, or refused to start and its data is put back",
};

/// An empty disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WipeDisk {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for WipeDisk {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.cluster.kill_all(&nodes).await?;
        for node in &nodes {
            for name in ["log", "store"] {
                let (path, kept) = (field.cluster.data(*node).join(name), aside(field, *node, name));
                let error = |source| FieldError::Io { path: path.clone(), source };
                let _ = std::fs::remove_dir_all(&kept);
                std::fs::rename(&path, &kept).map_err(error)?;
            }
            match field.cluster.restart(*node).await {
                Ok(()) => field.notes.push(format!("broker {node} started with nothing, under its old number")),
                Err(error) => field.notes.push(super::field::short(&error.to_string())),
            }
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend_wiped(targets).await?;
        field.await_caught_up(targets).await
    }
}

impl Field {
    /// Starts those that are dead, on what they had where they refuse to start with nothing.
    async fn mend_wiped(&mut self, nodes: &[u64]) -> Result<(), FieldError> {
        for node in nodes {
            let refuses = self.mend(&[*node]).await.is_err();
            for name in ["log", "store"] {
                let (path, kept) = (self.cluster.data(*node).join(name), aside(self, *node, name));
                if !kept.exists() {
                    continue;
                }
                let error = |source| FieldError::Io { path: kept.clone(), source };
                if refuses {
                    let _ = std::fs::remove_dir_all(&path);
                    std::fs::rename(&kept, &path).map_err(error)?;
                } else {
                    std::fs::remove_dir_all(&kept).map_err(error)?;
                }
            }
            if refuses {
                self.mend(&[*node]).await?;
            }
        }
        Ok(())
    }
}

/// On the same file system, where a replica does not look.
fn aside(field: &Field, node: u64, name: &str) -> std::path::PathBuf {
    field.cluster.data(node).join(format!("{name}-before-wipe"))
}
