//! A replica's wall clock jumps, as when somebody sets it, or a time server that was wrong.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::shim::Place;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "the wall clock of one replica or all jumps by 100 ms to an hour, forward or back; other timers go on",
    heals: "it jumps back",
};

const JUMP_MS_MIN: u64 = 100;
const JUMP_MS_MAX: u64 = 3_600_000;

/// A jump.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClockJump {
    /// Whose clocks.
    #[serde(flatten)]
    pub victim: Victim,
    /// By so much.
    pub offset_ms: i64,
}

impl ClockJump {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> ClockJump {
        let size = rng.magnitude(JUMP_MS_MIN, JUMP_MS_MAX).cast_signed();
        let offset_ms = if rng.coin() { size } else { -size };
        let pick = rng.below(replicas);
        let victim = match rng.below(4) {
            0 => Victim::All,
            1 => Victim::Follower { pick },
            _ => Victim::Leader,
        };
        ClockJump { victim, offset_ms }
    }
}

impl Nemesis for ClockJump {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        field.order(&nodes, |shim| shim.set_signed(Place::ClockOffsetNs, self.offset_ms * 1_000_000))?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.order(targets, |shim| shim.set(Place::ClockOffsetNs, 0))
    }
}
