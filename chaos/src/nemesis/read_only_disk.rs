//! The kernel has met an error and lets nobody write any more.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "one replica's file system turns read-only, as after an error of the disk: every write answers EROFS",
    heals: "the replica is ended if it lives, its file system checked and mounted, and it is started",
};

/// A disk that takes nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOnlyDisk {
    /// Whose disk.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for ReadOnlyDisk {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            field.cluster.volume(*node)?.abort().await?;
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
