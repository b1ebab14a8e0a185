//! Writes fail, with an error of the device or for want of room that nobody had foreseen.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::shim::Place;

pub(super) const ABOUT: About = About {
    what: "every write of one replica's files answers EIO",
    heals: "writes pass again; the replica must have ended by itself if it wrote, and is started",
};
pub(super) const NO_SPACE: About = About {
    what: "every write of one replica's files answers ENOSPC, though the disk told that there was room",
    heals: "writes pass again; the replica is started if it ended",
};

/// Writes that fail.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WriteError {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
    /// ENOSPC, else EIO.
    pub is_full: bool,
}

impl Nemesis for WriteError {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        let errno = if self.is_full { libc::ENOSPC } else { libc::EIO };
        field.order(&nodes, |shim| shim.set(Place::WriteErrno, errno as u64))?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
