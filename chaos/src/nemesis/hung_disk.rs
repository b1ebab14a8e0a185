//! The disk answers nothing: writes wait, and nobody is told.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "one replica's file system is frozen: writes and syncs wait without end",
    heals: "it is thawed; what waited goes on",
};

/// A disk that does not answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct HungDisk {
    /// Whose disk.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for HungDisk {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            field.cluster.volume(*node)?.freeze().await?;
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
