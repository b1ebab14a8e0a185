//! The only replica's disk is gone: a control, for nothing that it had can come back.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const ABOUT: About = About {
    what: "CONTROL, must lose all: every replica is killed and its data removed",
    heals: "all are started with nothing; an operator makes topics and groups anew",
};

/// Nothing is left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnlyDiskGone {}

impl Nemesis for OnlyDiskGone {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = field.cluster.nodes();
        field.cluster.kill_all(&nodes).await?;
        field.empty_disks(&nodes)?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await?;
        field.view.await_leader(0, field.leader_timeout).await?;
        Ok(field.needed.make(&field.admin).await?)
    }
}
