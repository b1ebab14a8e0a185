//! A voter without its memory: a control as long as a replica with an empty disk is taken for the one it was.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "replica 3 is down for 3 s of load; then all stop, replica 2 loses its disk, and only 2 and 3 start",
    heals: "replica 1 is started too",
};

const AWAY: Duration = Duration::from_secs(3);
/// How long the two may try to agree without the one that knows.
const ALONE: Duration = Duration::from_secs(8);

/// Two of three that do not remember.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Amnesia {}

impl Nemesis for Amnesia {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        field.cluster.kill(3).await?;
        field.runtime.sleep(AWAY).await;
        let nodes = field.cluster.nodes();
        field.cluster.kill_all(&nodes).await?;
        field.empty_disks(&[2])?;
        if let Err(error) = field.cluster.restart_all(&[2, 3]).await {
            field.notes.push(super::field::short(&error.to_string()));
        }
        match field.view.await_leader(0, ALONE).await {
            Ok(leader) => field.notes.push(format!(
                "replica {} leads with the vote of a replica that has lost its disk, without the one that has what was acknowledged",
                leader.node
            )),
            Err(error) => field.notes.push(format!("as it should: {error}")),
        }
        Ok(vec![2, 3])
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        let nodes = field.cluster.nodes();
        field.mend(&nodes).await
    }
}
