//! An operator takes a replica out of the group and in again, with an empty disk, while messages flow.

use std::time::Duration;

use flotilla_proto::admin::ReplicaChange;
use serde::{Deserialize, Serialize};

use super::field::CATCH_UP_TIMEOUT;
use super::{About, Field, FieldError, Nemesis, Victim};

pub(super) const ABOUT: About = About {
    what: "a replica, also the one that leads, is taken out of the group by an operator's calls, and its data is removed",
    heals: "it is started with nothing, taken in, filled, and votes again",
};

/// How long one change of members may take, repeated as an operator would.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// A replica that goes and comes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MembershipChurn {
    /// Which.
    #[serde(flatten)]
    pub victim: Victim,
}

impl Nemesis for MembershipChurn {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        for node in &nodes {
            field.change_member(ReplicaChange::Remove, *node).await?;
            field.cluster.kill(*node).await?;
            field.empty_disks(&[*node])?;
            field.cluster.restart(*node).await?;
        }
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await?;
        // A change that was given up in the middle may have been made all the same.
        for node in field.cluster.nodes() {
            field.change_member(ReplicaChange::Add, node).await?;
            field.change_member(ReplicaChange::Promote, node).await?;
            field.await_voter(node).await?;
        }
        field.await_caught_up(targets).await
    }
}

impl Field {
    /// Repeats a change until it is done: a leader that hands over, or that is not found, is no end of it.
    pub(super) async fn change_member(&self, change: ReplicaChange, node: u64) -> Result<(), FieldError> {
        let deadline = self.runtime.now() + CHANGE_TIMEOUT;
        loop {
            let refusal = match self.admin.change_replica(change, node, self.cluster.peer_address(node)).await {
                Ok(reply) if reply.done => return Ok(()),
                Ok(_) => None,
                Err(error) => Some(error),
            };
            if self.runtime.now() >= deadline {
                let what = format!("replica {node}: {} is not done", change.as_str_name());
                return Err(refusal.map_or(FieldError::Nothing(what), FieldError::Admin));
            }
            self.runtime.sleep(PAUSE).await;
        }
    }

    /// Waits until a replica votes again.
    pub(super) async fn await_voter(&self, node: u64) -> Result<(), FieldError> {
        let deadline = self.runtime.now() + CATCH_UP_TIMEOUT;
        while !self.is_voter(node).await {
            if self.runtime.now() >= deadline {
                return Err(FieldError::Wrong(format!("replica {node} had no vote again within {CATCH_UP_TIMEOUT:?}")));
            }
            self.runtime.sleep(PAUSE).await;
        }
        Ok(())
    }

    /// Whether a replica votes by the word of the leader, and no change of members is under way.
    pub(crate) async fn is_voter(&self, node: u64) -> bool {
        self.admin
            .list_replicas()
            .await
            .is_ok_and(|group| !group.changing && group.replicas.iter().any(|row| row.node == node && row.voter))
    }
}
