//! Whom a fault on processes strikes.

use serde::{Deserialize, Serialize};

use super::field::{Field, FieldError};

/// Decided in the plan, resolved to replicas when the fault strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "victim", rename_all = "kebab-case")]
pub enum Victim {
    /// Whoever leads then.
    Leader,
    /// One of those that follow then.
    Follower {
        /// Which one: counted from 0 by number, round and round.
        pick: u64,
    },
    /// Every replica at once.
    All,
}

impl Victim {
    pub(super) async fn nodes(self, field: &Field) -> Result<Vec<u64>, FieldError> {
        Ok(match self {
            Victim::Leader => vec![field.leader().await?],
            Victim::Follower { pick } => vec![field.follower(pick).await?],
            Victim::All => field.cluster.nodes(),
        })
    }
}
