//! What a majority confirmed must stand at whoever of it comes back: the leader, who has it for certain, comes last.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "a follower stands still until it lags, then all are killed; the followers start, and the leader later",
    heals: "over when all run again",
};

const LAG_MS: u64 = 800;
/// The followers need some of it to elect.
const WITHOUT_MS: u64 = 2_000;

/// A restart of all in which the laggard depends on the other follower.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaderLast {
    /// Which of the followers lags: counted from 0 by number, round and round.
    pub pick: u64,
    /// How long it stands still while the others go on.
    pub lag_ms: u64,
    /// How long the leader is then away.
    pub without_ms: u64,
}

impl LeaderLast {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> LeaderLast {
        LeaderLast { pick: rng.below(replicas), lag_ms: LAG_MS, without_ms: WITHOUT_MS }
    }

    /// The same around this leader.
    pub(super) async fn hurt_around(&self, field: &mut Field, leader: u64) -> Result<Vec<u64>, FieldError> {
        let followers = field.others(leader);
        let laggard = followers[self.pick as usize % followers.len()];
        field.restart_in_two(laggard, self.lag_ms, &followers, self.without_ms).await?;
        Ok([vec![leader], followers].concat())
    }
}

impl Nemesis for LeaderLast {
    /// The leader first.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        self.hurt_around(field, leader).await
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        field.run_all().await
    }
}
