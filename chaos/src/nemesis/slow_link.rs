//! The network between the leader and some followers takes its time.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::Network;
use crate::cluster::links::Traffic;
use crate::rng::Rng;

pub(super) const ABOUT: About = About {
    what: "bytes between the leader and one or all followers arrive 5 to 400 ms later, both ways (proxies)",
    heals: "bytes arrive at once again",
};

const DELAY_MS_MIN: u64 = 5;
const DELAY_MS_MAX: u64 = 400;

/// A delay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlowLink {
    /// Each way.
    pub delay_ms: u64,
    /// This follower alone (counted from 0, round and round), else all.
    pub pick: Option<u64>,
}

impl SlowLink {
    pub(super) fn draw(rng: &mut Rng, replicas: u64) -> SlowLink {
        let delay_ms = rng.magnitude(DELAY_MS_MIN, DELAY_MS_MAX);
        let one = rng.coin();
        let pick = rng.below(replicas);
        SlowLink { delay_ms, pick: one.then_some(pick) }
    }

    fn apply(network: &Network, leader: u64, followers: &[u64], traffic: Traffic) {
        for follower in followers {
            network.set_traffic(leader, *follower, traffic);
            network.set_traffic(*follower, leader, traffic);
        }
    }
}

impl Nemesis for SlowLink {
    /// The leader first, then the followers concerned.
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let leader = field.leader().await?;
        let mut followers = field.others(leader);
        if let Some(pick) = self.pick {
            followers = vec![followers[pick as usize % followers.len()]];
        }
        let delay = Duration::from_millis(self.delay_ms);
        SlowLink::apply(field.network()?, leader, &followers, Traffic::Delayed(delay));
        Ok([vec![leader], followers].concat())
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        if let Some((leader, followers)) = targets.split_first() {
            SlowLink::apply(field.network()?, *leader, followers, Traffic::Flows);
        }
        Ok(())
    }
}
