//! A link accepts connections and passes nothing: nobody is told, no connection breaks.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::links::Door;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "connections between the leader and one follower, in one direction of opening, stay and pass nothing",
    heals: "what was held passes",
};

/// One frozen link.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FreezeLink {
    /// The connections that the leader opened, else those of the follower.
    pub of_leader: bool,
    /// Which follower: counted from 0 by number, round and round.
    pub pick: u64,
}

impl FreezeLink {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> FreezeLink {
        FreezeLink { of_leader: rng.coin(), pick: rng.below(replicas) }
    }
}

impl Nemesis for FreezeLink {
    /// From whom to whom.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        let followers = field.others(leader);
        let follower = followers[self.pick as usize % followers.len()];
        let (from, to) = if self.of_leader { (leader, follower) } else { (follower, leader) };
        field.network()?.set_door(from, to, Door::Frozen);
        Ok(vec![from, to])
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        if let [from, to] = targets {
            field.network()?.set_door(*from, *to, Door::Open);
        }
        Ok(())
    }
}
