//! All restart, and the one whose log is shortest comes first: it must not cut the others to its own length.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "a follower stands still until it lags, then all are killed; it starts alone, the others later",
    heals: "over when all run again",
};

const LAG_MS_MIN: u64 = 1_000;
const LAG_MS_MAX: u64 = 8_000;
const ALONE_MS_MIN: u64 = 200;
const ALONE_MS_MAX: u64 = 5_000;

/// A restart of all in the worst order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaggardFirst {
    /// Which of the followers: counted from 0 by number, round and round.
    pub pick: u64,
    /// How long it stands still while the others go on.
    pub lag_ms: u64,
    /// How long it is then alone.
    pub alone_ms: u64,
}

impl LaggardFirst {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> LaggardFirst {
        let (pick, lag_ms) = (rng.below(replicas), rng.magnitude(LAG_MS_MIN, LAG_MS_MAX));
        LaggardFirst { pick, lag_ms, alone_ms: rng.magnitude(ALONE_MS_MIN, ALONE_MS_MAX) }
    }
}

impl Nemesis for LaggardFirst {
    /// The laggard first.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let laggard = field.follower(self.pick).await?;
        field.restart_in_two(laggard, self.lag_ms, &[laggard], self.alone_ms).await?;
        Ok([vec![laggard], field.others(laggard)].concat())
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        field.run_all().await
    }
}
