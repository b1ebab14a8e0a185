//! A replica's wall clock goes too fast or too slow.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::shim::Place;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "the wall clock of one replica goes up to half too fast or too slow",
    heals: "it is right again, by a jump",
};

const DRIFT_PPM_MIN: u64 = 1_000;
const DRIFT_PPM_MAX: u64 = 500_000;

/// A drift.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockDrift {
    /// Whose clock.
    #[serde(flatten)]
    pub victim: Victim,
    /// Parts per million; below zero it is too slow.
    pub drift_ppm: i64,
}

impl ClockDrift {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> ClockDrift {
        let size = rng.magnitude(DRIFT_PPM_MIN, DRIFT_PPM_MAX).cast_signed();
        let drift_ppm = if rng.coin() { size } else { -size };
        let pick = rng.below(replicas);
        let victim = if rng.coin() { Victim::Leader } else { Victim::Follower { pick } };
        ClockDrift { victim, drift_ppm }
    }
}

impl Nemesis for ClockDrift {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.order(&nodes, |shim| {
            shim.set(Place::ClockDriftSinceNs, 0)?;
            shim.set_signed(Place::ClockDriftPpm, self.drift_ppm)
        })?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.order(targets, |shim| shim.set(Place::ClockDriftPpm, 0))
    }
}
