//! The replicas fall into two parts that do not hear each other. Clients still reach both.

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis};
use crate::cluster::Network;
use crate::cluster::links::{Door, Traffic};
use crate::rng::Rng;

pub(super) const LEADER: About = About {
    what: "the leader and the rest do not hear each other; clients still reach the leader, which must not acknowledge",
    heals: "the links pass again; held bytes then arrive, closed connections are opened anew",
};
pub(super) const LEADER_SIDE: About = About {
    what: "the leader and some followers, fewer than half, and the rest do not hear each other: they must agree on nothing",
    heals: "the links pass again; held bytes then arrive, closed connections are opened anew",
};
pub(super) const FOLLOWER: About = About {
    what: "one follower and the rest do not hear each other: it must not disturb them when it comes back",
    heals: "the links pass again; held bytes then arrive, closed connections are opened anew",
};
pub(super) const HALVES: About = About {
    what: "a random minority and the rest do not hear each other",
    heals: "the links pass again; held bytes then arrive, closed connections are opened anew",
};

/// How the network fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Style {
    /// Bytes do not arrive and nobody is told.
    Silent,
    /// Connections are closed, and new ones at once again.
    Reset,
}

impl Style {
    pub(super) fn draw(rng: &mut Rng) -> Style {
        if rng.coin() { Style::Silent } else { Style::Reset }
    }

    /// Cuts the two of each pair from each other, or lets them hear each other again.
    pub(super) fn apply_to(self, network: &Network, pairs: impl IntoIterator<Item = (u64, u64)>, is_hurt: bool) {
        pairs.into_iter().for_each(|(one, other)| self.apply(network, one, other, is_hurt));
    }

    /// The same for one pair.
    pub(super) fn apply(self, network: &Network, one: u64, other: u64, is_hurt: bool) {
        let (traffic, door) = match (is_hurt, self) {
            (false, _) => (Traffic::Flows, Door::Open),
            (true, Style::Silent) => (Traffic::Held, Door::Open),
            (true, Style::Reset) => (Traffic::Flows, Door::Closed),
        };
        for (from, to) in [(one, other), (other, one)] {
            network.set_traffic(from, to, traffic);
            network.set_door(from, to, door);
        }
    }
}

/// Where the border runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "border", rename_all = "kebab-case")]
pub enum Border {
    /// Between whoever leads then and the rest.
    Leader,
    /// Between one of those that follow then and the rest.
    Follower {
        /// Which one: counted from 0 by number, round and round.
        pick: u64,
    },
    /// Around whoever leads then and as many followers as leave a majority outside.
    LeaderSide {
        /// The first of them: counted from 0 by number, round and round.
        pick: u64,
    },
    /// Around these.
    Halves {
        /// Fewer than half of the replicas.
        minority: Vec<u64>,
    },
}

/// Two parts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partition {
    /// Who is on which side.
    #[serde(flatten)]
    pub border: Border,
    /// What bytes and connections meet there.
    pub style: Style,
}

impl Partition {
    pub(super) fn around_leader(rng: &mut Rng) -> Partition {
        Partition { border: Border::Leader, style: Style::draw(rng) }
    }

    pub(super) fn around_leader_side(rng: &mut Rng, replicas: u64) -> Partition {
        Partition { border: Border::LeaderSide { pick: rng.below(replicas) }, style: Style::draw(rng) }
    }

    pub(super) fn around_follower(rng: &mut Rng, replicas: u64) -> Partition {
        Partition { border: Border::Follower { pick: rng.below(replicas) }, style: Style::draw(rng) }
    }

    pub(super) fn halves(rng: &mut Rng, replicas: u64) -> Partition {
        let all: Vec<u64> = (1..=replicas).collect();
        let mut minority = rng.shuffled(&all);
        minority.truncate(((replicas - 1) / 2).max(1) as usize);
        minority.sort_unstable();
        Partition { border: Border::Halves { minority }, style: Style::draw(rng) }
    }

    fn apply(&self, network: &Network, part: &[u64], rest: &[u64], is_hurt: bool) {
        let pairs = part.iter().flat_map(|one| rest.iter().map(move |other| (*one, *other)));
        self.style.apply_to(network, pairs, is_hurt);
    }
}

impl Nemesis for Partition {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let part = match &self.border {
            Border::Leader => vec![field.leader().await?],
            Border::Follower { pick } => vec![field.follower(*pick).await?],
            Border::LeaderSide { pick } => {
                let leader = field.leader().await?;
                leader_side(leader, &field.others(leader), *pick)
            }
            Border::Halves { minority } => minority.clone(),
        };
        self.apply(field.network()?, &part, &rest_of(field, &part), true);
        Ok(part)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        self.apply(field.network()?, targets, &rest_of(field, targets), false);
        Ok(())
    }
}

/// The leader and the most followers with whom it is still no majority.
fn leader_side(leader: u64, followers: &[u64], pick: u64) -> Vec<u64> {
    let count = followers.len() / 2;
    let beside = followers.iter().cycle().skip(pick as usize % followers.len().max(1)).take(count.saturating_sub(1));
    std::iter::once(leader).chain(beside.copied()).collect()
}

fn rest_of(field: &Field, part: &[u64]) -> Vec<u64> {
    field.cluster.nodes().into_iter().filter(|node| !part.contains(node)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_side_of_a_leader_is_as_large_as_a_minority_can_be() {
        assert_eq!(leader_side(3, &[1, 2, 4, 5], 3), [3, 5]);
        assert_eq!(leader_side(3, &[1, 2, 4, 5], 4), [3, 1]);
        assert_eq!(leader_side(4, &[1, 2, 3, 5, 6, 7], 5), [4, 7, 1]);
        assert_eq!(leader_side(2, &[1, 3], 1), [2]);
    }

    #[test]
    fn a_drawn_part_is_a_minority() {
        let mut rng = Rng::new(1);
        for replicas in [2, 3, 5] {
            for _ in 0..50 {
                let Border::Halves { minority } = Partition::halves(&mut rng, replicas).border else {
                    panic!("halves have halves")
                };
                assert!(!minority.is_empty() && minority.len() as u64 * 2 <= replicas, "{minority:?}");
                assert!(minority.iter().all(|node| (1..=replicas).contains(node)));
            }
        }
    }
}
