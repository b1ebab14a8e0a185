//! A broken device changes bits on the way, unnoticed by the network's checksums, and connections end there.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::links::Traffic;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "between the leader and one follower now and then a bit is changed on the way, and the connection is cut there (proxies)",
    heals: "bytes arrive as they were sent",
};

/// Changed bits.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CorruptLink {
    /// Which follower: counted from 0 by number, round and round.
    pub pick: u64,
    /// Only what the leader says, else both ways.
    pub from_leader_only: bool,
}

impl CorruptLink {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> CorruptLink {
        CorruptLink { pick: rng.below(replicas), from_leader_only: rng.coin() }
    }
}

impl Nemesis for CorruptLink {
    /// The leader and the follower.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        let followers = field.others(leader);
        let follower = followers[self.pick as usize % followers.len()];
        let network = field.network()?;
        network.set_traffic(leader, follower, Traffic::Corrupting);
        if !self.from_leader_only {
            network.set_traffic(follower, leader, Traffic::Corrupting);
        }
        Ok(vec![leader, follower])
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        if let [leader, follower] = targets {
            let network = field.network()?;
            network.set_traffic(*leader, *follower, Traffic::Flows);
            network.set_traffic(*follower, *leader, Traffic::Flows);
        }
        Ok(())
    }
}
