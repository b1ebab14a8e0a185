//! A leader loses what it had not synced and is back before anybody missed it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::shim::Place;

pub(super) const ABOUT: About = About {
    what: "a leader whose syncs are slow loses power, and starts again while its followers stand still: nobody was elected",
    heals: "the followers go on, and what is dead is started",
};

/// Syncs last longer than the leader goes on with them: what it sends meanwhile is on its followers' disks only.
const SYNC_MS: u64 = 450;
const GOES_ON_MS: u64 = 400;
/// Less than a leader needs to see that nobody hears it.
const ALONE_MS: u64 = 50;

/// A leader's restart that its followers do not notice.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderReturns {
    /// How long its syncs last.
    pub sync_ms: u64,
    /// How long it goes on with them.
    pub goes_on_ms: u64,
    /// How long it has run again when its followers go on.
    pub alone_ms: u64,
}

impl LeaderReturns {
    pub(super) fn usual() -> LeaderReturns {
        LeaderReturns { sync_ms: SYNC_MS, goes_on_ms: GOES_ON_MS, alone_ms: ALONE_MS }
    }

    /// The same with this leader.
    pub(super) async fn hurt_leader(&self, field: &mut Field, leader: u64) -> Result<Vec<u64>, FieldError> {
        let followers = field.others(leader);
        field.order(&[leader], |shim| shim.set(Place::SyncDelayUs, self.sync_ms * 1_000))?;
        field.runtime.sleep(Duration::from_millis(self.goes_on_ms)).await;
        for follower in &followers {
            field.cluster.pause(*follower)?;
        }
        field.cut_power(&[leader])?;
        field.cluster.kill(leader).await?;
        field.mend(&[leader]).await?;
        field.runtime.sleep(Duration::from_millis(self.alone_ms)).await;
        field.resume_all()?;
        Ok([vec![leader], followers].concat())
    }
}

impl Nemesis for LeaderReturns {
    /// The leader first.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        self.hurt_leader(field, leader).await
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.resume_all()?;
        field.mend(targets).await
    }
}
