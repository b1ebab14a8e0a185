//! Whom a fault on processes or disks strikes.

use serde::{Deserialize, Serialize};

use super::field::{Field, FieldError};
use crate::rng::Rng;

/// Decided in the plan, resolved to replicas when the fault strikes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "victim", rename_all = "kebab-case")]
pub enum Victim {
    /// Whoever leads then.
    Leader,
    /// One of those that follow then.
    Follower {
        /// Which one: counted from 0 by number, round and round.
        pick: u64,
    },
    /// These, whatever they do.
    These {
        /// Their numbers.
        nodes: Vec<u64>,
    },
    /// Every replica at once.
    All,
}

impl Victim {
    /// So many of all, at least one.
    pub(super) fn these(rng: &mut Rng, replicas: u64, count: u64) -> Victim {
        let all: Vec<u64> = (1..=replicas).collect();
        let mut nodes = rng.shuffled(&all);
        nodes.truncate(count.max(1) as usize);
        nodes.sort_unstable();
        Victim::These { nodes }
    }

    pub(super) async fn nodes(&self, field: &Field) -> Result<Vec<u64>, FieldError> {
        Ok(match self {
            Victim::Leader => vec![field.leader().await?],
            Victim::Follower { pick } => vec![field.follower(*pick).await?],
            Victim::These { nodes } => nodes.clone(),
            Victim::All => field.cluster.nodes(),
        })
    }
}
