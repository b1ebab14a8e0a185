//! A leader takes a tail that nobody else gets, and then its end.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};

pub(super) const KILL: About = About {
    what: "the leader is cut off for a moment, takes what it may within its lease, and is killed",
    heals: "it is started; over when it has caught up",
};
pub(super) const POWER: About = About {
    what: "the leader is cut off for a moment, takes what it may within its lease, and loses power",
    heals: "its file system is checked and mounted, and it is started; over when it has caught up",
};
pub(super) const DISK: About = About {
    what: "the leader is cut off for a moment, takes what it may within its lease, and its machine is gone with its disk",
    heals: "it is started with an empty disk under its old number; over when it has caught up",
};

/// Shorter than the lease, within which a leader that is cut off takes messages at level async.
pub(super) const CUT_MS: u64 = 300;

/// How the leader ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum End {
    /// Its process.
    Kill,
    /// Its machine, with what was not synced.
    Power,
    /// Its machine, with its disk.
    Disk,
}

/// A tail of the leader's own, and no leader.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TailThen {
    /// How long it is cut off before.
    pub cut_ms: u64,
    /// What happens to it then.
    pub end: End,
}

impl Nemesis for TailThen {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        field.cut_off(&[leader], true).await?;
        field.runtime.sleep(Duration::from_millis(self.cut_ms)).await;
        if self.end == End::Power {
            field.cut_power(&[leader])?;
        }
        field.cluster.kill(leader).await?;
        if self.end == End::Disk {
            field.empty_disks(&[leader])?;
        }
        field.cut_off(&[leader], false).await?;
        Ok(vec![leader])
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.cut_off(targets, false).await?;
        field.mend(targets).await?;
        field.await_caught_up(targets).await
    }
}
