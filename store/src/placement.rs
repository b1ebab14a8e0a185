//! What a broker group knows of its place among others: whether it takes messages at all, and which queues of a topic are
//! in which group, where the order of messages depends on it.
//!
//! A group that stands alone, or whose topics have no order, has nothing of this, and nothing of it in its checkpoints.

use std::collections::BTreeMap;

use flotilla_message::{Hash128, MessageType, TopicName, limits};

use crate::state::{Changes, State};
use crate::{Outcome, Rejection};

/// Most broker groups of one topic.
pub const SHARES_MAX: usize = 64;
/// Longest name of a broker group, bytes.
pub const BROKER_GROUP_BYTES_MAX: usize = 255;

/// How many queues of a topic one broker group has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicShare {
    /// Name of the broker group.
    pub broker_group: String,
    /// Its queues, numbered from 0 in the group.
    pub queue_count: u32,
}

/// The broker groups of a topic, in the order in which their queues are counted. The first one is the topic's home: it is
/// changed first there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TopicShares {
    /// Grows with each change; 0: never set.
    pub version: u64,
    /// The groups are about to be these: nobody takes messages until all are consumed.
    pub is_moving: bool,
    /// The groups.
    pub shares: Vec<TopicShare>,
}

impl TopicShares {
    /// Later ones take the place of earlier ones: those of a higher version, and settled ones that of the move to them.
    fn order(&self) -> (u64, bool) {
        (self.version, !self.is_moving)
    }

    fn check(&self) -> Result<(), Rejection> {
        let fits = |share: &TopicShare| {
            (1..=BROKER_GROUP_BYTES_MAX).contains(&share.broker_group.len())
                && (1..=limits::QUEUES_PER_TOPIC_MAX).contains(&share.queue_count)
        };
        let is_repeated = |(at, share): (usize, &TopicShare)| {
            self.shares[..at].iter().any(|earlier| earlier.broker_group == share.broker_group)
        };
        let is_fine = self.version > 0
            && (1..=SHARES_MAX).contains(&self.shares.len())
            && self.shares.iter().all(fits)
            && !self.shares.iter().enumerate().any(is_repeated);
        if is_fine { Ok(()) } else { Err(Rejection::SharesOutOfRange { count: self.shares.len() }) }
    }

    /// The broker group and the queue in it that a message group belongs to: by CRC-32C of its name over all queues, as a
    /// topic of one broker group has it.
    pub fn owner(&self, message_group: &str) -> Option<(&str, u32)> {
        let count: u64 = self.shares.iter().map(|share| u64::from(share.queue_count)).sum();
        let mut place = u64::from(crc32c::crc32c(message_group.as_bytes())).checked_rem(count)?;
        for share in &self.shares {
            if place < u64::from(share.queue_count) {
                return Some((&share.broker_group, place as u32));
            }
            place -= u64::from(share.queue_count);
        }
        None
    }
}

/// The part of the state.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    is_write_wiped: bool,
    shares: BTreeMap<TopicName, TopicShares>,
    is_changed: bool,
}

impl Placement {
    pub fn is_write_wiped(&self) -> bool {
        self.is_write_wiped
    }

    pub fn shares_of(&self, topic: &str) -> Option<&TopicShares> {
        self.shares.get(topic)
    }

    pub fn rows(&self) -> impl Iterator<Item = (&TopicName, &TopicShares)> {
        self.shares.iter()
    }

    /// Whether it is as in a group that stands alone.
    pub fn is_empty(&self) -> bool {
        !self.is_write_wiped && self.shares.is_empty()
    }

    /// What a checkpoint holds.
    pub fn restored(is_write_wiped: bool, shares: BTreeMap<TopicName, TopicShares>) -> Placement {
        Placement { is_write_wiped, shares, is_changed: false }
    }

    /// Whether it has changed since the last call.
    pub fn take_change(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    pub fn forget(&mut self, topic: &str) {
        self.is_changed |= self.shares.remove(topic).is_some();
    }

    /// Whether a topic takes messages now.
    pub fn admits(&self, topic: &str) -> Result<(), Rejection> {
        if self.is_write_wiped {
            return Err(Rejection::WriteWiped);
        }
        match self.shares.get(topic) {
            Some(shares) if shares.is_moving => Err(Rejection::TopicMoving { version: shares.version }),
            Some(_) | None => Ok(()),
        }
    }

    /// Nothing is added for a group that stands alone: its digest is that of versions that know no others.
    pub fn write_digest(&self, hash: &mut Hash128) {
        if self.is_empty() {
            return;
        }
        hash.write_u64(u64::from(self.is_write_wiped));
        hash.write_u64(self.shares.len() as u64);
        for (name, shares) in &self.shares {
            hash.write_bytes(name.as_str().as_bytes());
            hash.write_u64(shares.version << 1 | u64::from(shares.is_moving));
            hash.write_u64(shares.shares.len() as u64);
            for share in &shares.shares {
                hash.write_bytes(share.broker_group.as_bytes());
                hash.write_u64(u64::from(share.queue_count));
            }
        }
    }
}

impl State {
    pub fn set_write_permission(&mut self, is_writable: bool, changes: &mut Changes) -> Outcome {
        let is_write_wiped = !is_writable;
        if self.placement.is_write_wiped != is_write_wiped {
            self.placement.is_write_wiped = is_write_wiped;
            self.placement.is_changed = true;
            changes.catalog = true;
        }
        Outcome::WritePermissionSet { topics: self.topics.len() as u64 }
    }

    /// Takes over a newer word on where a topic is.
    ///
    /// A topic with order changes in two steps, and each step in all its groups before the next one in any: nobody takes
    /// messages any more ([`TopicShares::is_moving`]); then, once all that this group has is consumed, the new shares hold.
    /// So no message stands in the new place of its message group while an older one waits in the old place.
    pub fn set_topic_shares(
        &mut self,
        name: &TopicName,
        shares: &TopicShares,
        changes: &mut Changes,
    ) -> Result<Outcome, Rejection> {
        shares.check()?;
        let topic = self.topic(name.as_str())?;
        let known = self.placement.shares.get(name);
        if known == Some(shares) {
            return Ok(Outcome::TopicSharesSet { version: shares.version });
        }
        if let Some(known) = known
            && shares.order() <= known.order()
        {
            return Err(Rejection::SharesOutdated { version: known.version });
        }
        if topic.message_type == MessageType::Fifo && !shares.is_moving {
            let is_begun = known.is_some_and(|known| known.version == shares.version && known.shares == shares.shares);
            let is_new = known.is_none() && topic.queues.iter().all(|queue| queue.max() == 0);
            if !is_begun && !is_new {
                return Err(Rejection::SharesNotMoving);
            }
            if let Some((queue, group)) = self.first_unconsumed(name, 0) {
                return Err(Rejection::TopicNotDrained { queue, group });
            }
        }
        self.placement.shares.insert(name.clone(), shares.clone());
        self.placement.is_changed = true;
        changes.catalog = true;
        Ok(Outcome::TopicSharesSet { version: shares.version })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_group_belongs_to_one_queue_of_all() {
        let share = |name: &str, queue_count| TopicShare { broker_group: name.to_owned(), queue_count };
        let alone = TopicShares { version: 1, is_moving: false, shares: vec![share("a", 4)] };
        let two = TopicShares { shares: vec![share("a", 4), share("b", 2)], ..alone.clone() };
        let mut met = std::collections::BTreeSet::new();
        for number in 0..100 {
            let name = format!("customer-{number}");
            let hash = crc32c::crc32c(name.as_bytes());
            assert_eq!(alone.owner(&name), Some(("a", hash % 4)), "as in a topic of one group");
            let (group, queue) = two.owner(&name).unwrap();
            let place = if group == "a" { queue } else { 4 + queue };
            assert_eq!(place, hash % 6);
            met.insert(place);
        }
        assert_eq!(met.len(), 6, "all queues are used");
        assert_eq!(TopicShares::default().owner("x"), None);
    }
}
