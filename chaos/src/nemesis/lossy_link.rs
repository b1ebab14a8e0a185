//! The network between the leader and the rest loses some of what goes over it.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::links::Traffic;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "of 100 packets between the leader and the rest 1 to 20 get lost, each way (proxies: pieces come 200 ms later)",
    heals: "nothing is lost any more",
};

/// Loss, as TCP makes it felt: what is lost is sent again, later and later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LossyLink {
    /// Of a hundred packets, or of pieces on proxies.
    pub percent: u8,
}

impl LossyLink {
    pub(super) fn draw(rng: &mut Rng) -> LossyLink {
        LossyLink { percent: rng.magnitude(1, 20) as u8 }
    }
}

impl Nemesis for LossyLink {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        set(field, leader, Traffic::Lossy(self.percent))?;
        Ok(vec![leader])
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        targets.iter().try_for_each(|leader| set(field, *leader, Traffic::Flows))
    }
}

fn set(field: &Field, leader: u64, traffic: Traffic) -> Result<(), FieldError> {
    let network = field.network()?;
    for other in field.others(leader) {
        network.set_traffic(leader, other, traffic);
        network.set_traffic(other, leader, traffic);
    }
    Ok(())
}
