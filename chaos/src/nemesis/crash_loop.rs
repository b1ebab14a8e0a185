//! A process that a supervisor starts again and again and that dies each time, often before it is ready.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "one replica is killed and started again several times, each life only milliseconds to a second long",
    heals: "it is started a last time and lives",
};

const LIVES_MIN: u64 = 3;
const LIVES_MAX: u64 = 6;
const LIFE_MS_MIN: u64 = 5;
const LIFE_MS_MAX: u64 = 1_200;

/// Short lives of one replica.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CrashLoop {
    /// The replica.
    pub node: u64,
    /// How long each life is, from the start of the process on.
    pub lives_ms: Vec<u64>,
}

impl CrashLoop {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> CrashLoop {
        let lives = rng.between(LIVES_MIN, LIVES_MAX);
        let node = rng.between(1, replicas);
        CrashLoop { node, lives_ms: (0..lives).map(|_| rng.magnitude(LIFE_MS_MIN, LIFE_MS_MAX)).collect() }
    }
}

impl Nemesis for CrashLoop {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        field.cluster.kill(self.node).await?;
        for life_ms in &self.lives_ms {
            field.cluster.restart_for(self.node, Duration::from_millis(*life_ms)).await?;
        }
        Ok(vec![self.node])
    }

    async fn heal(&self, field: &mut Field, _: &[u64]) -> Result<(), FieldError> {
        Ok(field.cluster.restart(self.node).await?)
    }
}
