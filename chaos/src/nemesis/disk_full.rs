//! Something else has taken all room on the disk.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const LEADER: About = About {
    what: "the leader's disk is filled to the last block by another file",
    heals: "the file is removed; the replica must go on by itself, or is started if it ended",
};
pub(super) const FOLLOWER: About = About {
    what: "a follower's disk is filled to the last block by another file",
    heals: "the file is removed; the replica must go on by itself, or is started if it ended",
};
pub(super) const ALL: About = About {
    what: "all disks are filled to the last block: sends must be refused and reads go on",
    heals: "the files are removed; replicas must go on by themselves, or are started if they ended",
};

/// No room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskFull {
    /// Whose disks.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for DiskFull {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            field.cluster.volume(*node)?.fill().await?;
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
