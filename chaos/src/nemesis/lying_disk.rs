//! A control: all disks say that they have synced what they have not, and the power goes. Messages must be lost.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::shim::Place;

pub(super) const ABOUT: About = About {
    what: "CONTROL, must lose: for 2 s no replica's sync does anything, then the power of the whole site goes",
    heals: "all file systems are checked and mounted, and all are started at once",
};

const LIES: Duration = Duration::from_secs(2);

/// Disks that lie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LyingDisk {}

impl Nemesis for LyingDisk {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = field.cluster.nodes();
        field.order(&nodes, |shim| shim.set(Place::SyncLies, 1))?;
        field.runtime.sleep(LIES).await;
        field.cut_power(&nodes)?;
        field.cluster.kill_all(&nodes).await?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
