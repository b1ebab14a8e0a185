//! Processes die at once, as by a crash of the program: what they wrote is still in the page cache.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const LEADER: About =
    About { what: "SIGKILL to the leader", heals: "it is started again on its data after the hold" };
pub(super) const FOLLOWER: About =
    About { what: "SIGKILL to one follower", heals: "it is started again on its data after the hold" };
pub(super) const MINORITY: About =
    About { what: "SIGKILL to as many as the group can do without", heals: "they are started again after the hold" };
pub(super) const MAJORITY: About = About {
    what: "SIGKILL to more than the group can do without: nobody may be acknowledged",
    heals: "they are started again after the hold",
};
pub(super) const ALL: About =
    About { what: "SIGKILL to all replicas at once", heals: "all are started again at once after the hold" };

/// SIGKILL.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kill {
    /// To whom.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for Kill {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.cluster.kill_all(&nodes).await?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        Ok(field.cluster.restart_all(targets).await?)
    }
}
