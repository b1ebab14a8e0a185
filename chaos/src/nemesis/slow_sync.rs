//! A disk that takes its time: every sync is longer, nothing fails.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::shim::Place;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "every sync of one replica or of all takes 10 ms to 5 s longer",
    heals: "syncs take what they take; those under way end late",
};

const DELAY_MS_MIN: u64 = 10;
const DELAY_MS_MAX: u64 = 5_000;
/// With all disks slower than this there is no service to speak of.
const DELAY_MS_MAX_OF_ALL: u64 = 500;

/// Slow syncs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowSync {
    /// Whose.
    #[serde(flatten)]
    pub victim: Victim,
    /// So much longer.
    pub delay_ms: u64,
}

impl SlowSync {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> SlowSync {
        let (delay_ms, pick) = (rng.magnitude(DELAY_MS_MIN, DELAY_MS_MAX), rng.below(replicas));
        match rng.below(3) {
            0 => SlowSync { victim: Victim::All, delay_ms: delay_ms.min(DELAY_MS_MAX_OF_ALL) },
            1 => SlowSync { victim: Victim::Leader, delay_ms },
            _ => SlowSync { victim: Victim::Follower { pick }, delay_ms },
        }
    }
}

impl Nemesis for SlowSync {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.order(&nodes, |shim| shim.set(Place::SyncDelayUs, self.delay_ms * 1_000))?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}
