//! A sync fails: the kernel could not write what it had taken, and has forgotten it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::shim::Place;

pub(super) const ABOUT: About = About {
    what: "one sync of one replica answers EIO, after some that pass; the ones after it pass again",
    heals: "the replica must have ended by itself, and is started",
};

/// How long a process may take to end of a failed sync: a busy machine has other things to do.
const END_PATIENCE: Duration = Duration::from_secs(5);

/// A sync that fails once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncError {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
    /// Syncs that pass before.
    pub pass: u64,
}

impl Nemesis for SyncError {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.order(&nodes, |shim| {
            shim.set(Place::SyncsPass, self.pass)?;
            shim.set(Place::SyncsFail, 1)?;
            shim.set(Place::SyncErrno, libc::EIO as u64)
        })?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.await_ends(targets, END_PATIENCE).await?;
        field.mend(targets).await
    }
}
