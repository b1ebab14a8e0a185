//! Processes stand still, as in a long stop of the machine: they do not notice, the others do.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const LEADER: About = About {
    what: "SIGSTOP to the leader: it stands still with its connections open, and wakes believing that it leads",
    heals: "SIGCONT after the hold",
};
pub(super) const MAJORITY: About = About {
    what: "SIGSTOP to more than the group can do without: nobody may be acknowledged",
    heals: "SIGCONT after the hold",
};
pub(super) const FOLLOWER: About = About { what: "SIGSTOP to one follower", heals: "SIGCONT after the hold" };

/// SIGSTOP.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pause {
    /// To whom.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for Pause {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            field.cluster.pause(*node)?;
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        for node in targets {
            field.cluster.resume(*node)?;
        }
        Ok(())
    }
}
