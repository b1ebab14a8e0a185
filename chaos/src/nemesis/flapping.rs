//! A border around the leader that comes and goes many times, faster than an election or about as fast.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Style};
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "the leader of the beginning and the rest hear each other and do not, by turns of 100 to 900 ms",
    heals: "the links pass again and stay so",
};

const TURN_MS_MIN: u64 = 100;
const TURN_MS_MAX: u64 = 900;

/// A border that flaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Flapping {
    /// Length of each turn, round and round, the first without hearing.
    pub turns_ms: Vec<u64>,
    /// What bytes and connections meet there.
    pub style: Style,
}

impl Flapping {
    pub(super) fn draw(rng: &mut Rng) -> Flapping {
        let turns_ms = (0..16).map(|_| rng.magnitude(TURN_MS_MIN, TURN_MS_MAX)).collect();
        Flapping { turns_ms, style: Style::draw(rng) }
    }
}

impl Nemesis for Flapping {
    /// The one inside the border.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        let network = field.cluster.network().ok_or(FieldError::NoNetwork)?.clone();
        let (others, runtime, this) = (field.others(leader), field.runtime.clone(), self.clone());
        let task = field.runtime.spawn("flapping", async move {
            let mut is_cut = false;
            for turn_ms in this.turns_ms.iter().cycle() {
                is_cut = !is_cut;
                others.iter().for_each(|other| this.style.apply(&network, leader, *other, is_cut));
                if let Err(error) = network.settle().await {
                    tracing::warn!(%error, "a turn of flapping was left out");
                }
                runtime.sleep(Duration::from_millis((*turn_ms).max(1))).await;
            }
        });
        field.background.insert("flapping", task);
        Ok(vec![leader])
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.end_background("flapping").await;
        let network = field.network()?;
        for leader in targets {
            field.others(*leader).iter().for_each(|other| self.style.apply(network, *leader, *other, false));
        }
        Ok(())
    }
}
