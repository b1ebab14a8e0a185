//! Where a topic is: the broker groups that serve it, and why that may not be known.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_message::{Permission, TopicName};
use flotilla_runtime::Instant;

use crate::replicas::{BrokerGroupName, Replicas};

/// The broker groups that serve a topic.
#[derive(Debug)]
pub(crate) struct TopicRoute {
    pub(crate) groups: Vec<GroupRoute>,
    /// Of the topic: newer routes go on counting.
    turn: Arc<AtomicU64>,
}

/// A topic's part in one broker group.
#[derive(Debug, Clone)]
pub(crate) struct GroupRoute {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) permission: Permission,
    /// 0: not known.
    pub(crate) queue_count: u32,
}

impl TopicRoute {
    /// Ordered by name, so that a message group's place does not depend on who was asked. Clients that start together must
    /// not all begin with the same broker group: the first turn is to be random.
    pub(crate) fn new(mut groups: Vec<GroupRoute>, first_turn: u64) -> TopicRoute {
        groups.sort_by(|left, right| left.replicas.name().cmp(right.replicas.name()));
        TopicRoute { groups, turn: Arc::new(AtomicU64::new(first_turn)) }
    }

    /// Whose turn it is, which it is once.
    pub(crate) fn next_turn(&self) -> u64 {
        self.turn.fetch_add(1, Ordering::Relaxed)
    }

    /// This newer route instead of the `known` one of the same topic.
    pub(crate) fn after(self, known: &TopicRoute) -> TopicRoute {
        TopicRoute { turn: known.turn.clone(), ..self }
    }

    /// This newer route and those groups of the `known` one that it says nothing of.
    pub(crate) fn with_missing_of(&self, known: &TopicRoute) -> TopicRoute {
        let is_named = |name: &BrokerGroupName| self.groups.iter().any(|group| group.replicas.name() == name);
        let missing = known.groups.iter().filter(|group| !is_named(group.replicas.name()));
        TopicRoute::new(self.groups.iter().chain(missing).cloned().collect(), 0).after(known)
    }

    /// The route without one group; `None` if no other is left.
    pub(crate) fn without(&self, name: &BrokerGroupName) -> Option<TopicRoute> {
        let others = self.groups.iter().filter(|group| group.replicas.name() != name);
        let groups: Vec<GroupRoute> = others.cloned().collect();
        (!groups.is_empty()).then(|| TopicRoute { groups, turn: self.turn.clone() })
    }

    /// The group for a send, of those that take messages and are not among `left`: by message group if there is one, else in
    /// turn, past those that did not serve lately. A message group belongs to one queue of all that the topic has, which the
    /// brokers know for sure; this finds the same group unless the topic is on the move.
    pub(crate) fn writable(
        &self,
        message_group: Option<&str>,
        turn: u64,
        left: &[BrokerGroupName],
        now: Instant,
    ) -> Option<&GroupRoute> {
        let takes = |group: &&GroupRoute| group.permission.is_writable() && !left.contains(group.replicas.name());
        let writable: Vec<&GroupRoute> = self.groups.iter().filter(takes).collect();
        if let Some(message_group) = message_group {
            return owner(&writable, message_group);
        }
        let count = writable.len() as u64;
        let nth = |number: u64| writable.get(usize::try_from(number.checked_rem(count)?).ok()?).copied();
        if count < 2 {
            return nth(0);
        }
        let mut in_turn = (0..count).filter_map(|step| nth(turn.wrapping_add(step)));
        in_turn.find(|group| group.replicas.may_try(now)).or_else(|| nth(turn))
    }

    /// The groups to receive from.
    pub(crate) fn readable(&self) -> impl Iterator<Item = &GroupRoute> {
        self.groups.iter().filter(|group| group.permission.is_readable())
    }
}

/// The group whose queue a message group belongs to: by CRC-32C of its name over the queues of all, as the brokers count them.
fn owner<'r>(groups: &[&'r GroupRoute], message_group: &str) -> Option<&'r GroupRoute> {
    let weight = |group: &GroupRoute| u64::from(group.queue_count.max(1));
    let total: u64 = groups.iter().map(|group| weight(group)).sum();
    let mut place = u64::from(crc32c::crc32c(message_group.as_bytes())).checked_rem(total)?;
    for group in groups {
        if place < weight(group) {
            return Some(group);
        }
        place -= weight(group);
    }
    None
}

/// Why a topic's route is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Somebody who should know says that there is no such topic.
    #[error("topic '{topic}' does not exist: {message}")]
    TopicNotFound {
        /// The topic.
        topic: TopicName,
        /// The answer's text.
        message: String,
    },
    /// The question was refused.
    #[error("the route of topic '{topic}' was refused ({}): {message}", crate::failure::code_text(*code))]
    Rejected {
        /// The topic.
        topic: TopicName,
        /// Code of the RocketMQ protocol.
        code: i32,
        /// The answer's text.
        message: String,
    },
    /// Nobody answered.
    #[error("nobody could be asked for the route of topic '{topic}': {reasons}")]
    Unreachable {
        /// The topic.
        topic: TopicName,
        /// What each address ended with.
        reasons: String,
    },
}
