//! The network loses what goes one way, while the other way works: the case that naive failure detectors miss.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::Network;
use crate::cluster::links::Traffic;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "bytes get lost one way: from the leader to all or one, or to the leader from all or one; the other way works",
    heals: "the path passes again; held bytes then arrive",
};

/// One direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OneWay {
    /// What the leader says is lost, else what it should hear.
    pub from_leader: bool,
    /// Between the leader and this follower alone (counted from 0, round and round), else all followers.
    pub pick: Option<u64>,
}

impl OneWay {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> OneWay {
        let (from_leader, one) = (rng.coin(), rng.coin());
        let pick = rng.below(replicas);
        OneWay { from_leader, pick: one.then_some(pick) }
    }

    fn apply(&self, network: &Network, leader: u64, followers: &[u64], traffic: Traffic) {
        for follower in followers {
            let (from, to) = if self.from_leader { (leader, *follower) } else { (*follower, leader) };
            network.set_traffic(from, to, traffic);
        }
    }
}

impl Nemesis for OneWay {
    /// The leader first, then the followers concerned.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        let mut followers = field.others(leader);
        if let Some(pick) = self.pick {
            followers = vec![followers[pick as usize % followers.len()]];
        }
        self.apply(field.network()?, leader, &followers, Traffic::Held);
        Ok([vec![leader], followers].concat())
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        if let Some((leader, followers)) = targets.split_first() {
            self.apply(field.network()?, *leader, followers, Traffic::Flows);
        }
        Ok(())
    }
}
