//! Disks stop taking what is written, and a moment later the power is gone: what the kernel still had never gets there.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::shim::Place;

pub(super) const ABOUT: About = About {
    what: "every sync of every replica answers EIO, and half a second later the whole site loses power",
    heals: "all file systems are checked and mounted, and all are started at once; syncs pass again",
};

const WORKS_MS: u64 = 500;

/// Failing syncs of which nobody may have taken one for done.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SyncsFailThenPower {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
    /// How long they fail before.
    pub works_ms: u64,
}

impl SyncsFailThenPower {
    pub(super) fn of_all() -> SyncsFailThenPower {
        SyncsFailThenPower { victim: Victim::All, works_ms: WORKS_MS }
    }
}

impl Nemesis for SyncsFailThenPower {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.order(&nodes, |shim| {
            shim.set(Place::SyncsPass, 0)?;
            shim.set(Place::SyncsFail, 0)?;
            shim.set(Place::SyncErrno, libc::EIO as u64)
        })?;
        field.runtime.sleep(Duration::from_millis(self.works_ms)).await;
        field.cut_power(&nodes)?;
        // Those that have ended by themselves did what they should.
        for (_, error) in field.take_fallen(&nodes) {
            field.notes.push(format!("and {error}"));
        }
        field.cluster.kill_all(&nodes).await?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
