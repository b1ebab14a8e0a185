//! A replica comes back with an older copy of its own directory, as from a backup.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::field::short;
use super::rewind::{keep_copy, set_back};
use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "a follower's data is set back to a copy of its own that is some seconds old, and it is started with that",
    heals: "over when it has caught up, in whatever life",
};

/// An older copy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledBack {
    /// Whose directory.
    #[serde(flatten)]
    pub victim: Victim,
    /// How old the copy is.
    pub age_ms: u64,
}

impl Nemesis for RolledBack {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.cluster.kill_all(&nodes).await?;
        for node in &nodes {
            keep_copy(field, *node)?;
        }
        field.cluster.restart_all(&nodes).await?;
        field.await_caught_up(&nodes).await?;
        field.runtime.sleep(Duration::from_millis(self.age_ms)).await;
        field.cluster.kill_all(&nodes).await?;
        for node in &nodes {
            set_back(field, *node)?;
        }
        if let Err(error) = field.cluster.restart_all(&nodes).await {
            field.notes.push(short(&error.to_string()));
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await?;
        field.await_caught_up(targets).await
    }
}
