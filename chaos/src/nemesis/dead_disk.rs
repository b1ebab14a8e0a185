//! The disk is gone under a process that lives: every call on it answers EIO.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "one replica's disk is gone while it runs: every read, write and sync answers EIO",
    heals: "the replica is ended if it lives, its file system checked and mounted, and it is started",
};

/// No disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeadDisk {
    /// Whose disk.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for DeadDisk {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.cut_power(&nodes)?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
