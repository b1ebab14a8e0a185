//! Where a topic is: the broker groups that serve it, and why that may not be known.

use std::sync::Arc;

use flotilla_message::{Permission, TopicName};

use crate::replicas::{BrokerGroupName, Replicas};

/// The broker groups that serve a topic.
#[derive(Debug)]
pub(crate) struct TopicRoute {
    pub(crate) groups: Vec<GroupRoute>,
}

/// A topic's part in one broker group.
#[derive(Debug, Clone)]
pub(crate) struct GroupRoute {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) permission: Permission,
}

impl TopicRoute {
    /// Ordered by name, so that a message group's place does not depend on who was asked.
    pub(crate) fn new(mut groups: Vec<GroupRoute>) -> TopicRoute {
        groups.sort_by(|left, right| left.replicas.name().cmp(right.replicas.name()));
        TopicRoute { groups }
    }

    /// This newer route and those groups of the `known` one that it says nothing of.
    pub(crate) fn with_missing_of(&self, known: &TopicRoute) -> TopicRoute {
        let is_named = |name: &BrokerGroupName| self.groups.iter().any(|group| group.replicas.name() == name);
        let missing = known.groups.iter().filter(|group| !is_named(group.replicas.name()));
        TopicRoute::new(self.groups.iter().chain(missing).cloned().collect())
    }

    /// The route without one group; `None` if no other is left.
    pub(crate) fn without(&self, name: &BrokerGroupName) -> Option<TopicRoute> {
        let others = self.groups.iter().filter(|group| group.replicas.name() != name);
        let groups: Vec<GroupRoute> = others.cloned().collect();
        (!groups.is_empty()).then_some(TopicRoute { groups })
    }

    /// The group for a send: by message group if there is one, else in turn. All attempts of a send go to
    /// one group, which alone can tell that it has stored the message id already.
    pub(crate) fn writable(&self, message_group: Option<&str>, turn: u64) -> Option<&GroupRoute> {
        let writable: Vec<&GroupRoute> = self.groups.iter().filter(|group| group.permission.is_writable()).collect();
        let number = message_group.map_or(turn, stable_hash);
        let place = number.checked_rem(writable.len() as u64)?;
        writable.get(usize::try_from(place).expect("the remainder is below a usize")).copied()
    }

    /// The groups to receive from.
    pub(crate) fn readable(&self) -> impl Iterator<Item = &GroupRoute> {
        self.groups.iter().filter(|group| group.permission.is_readable())
    }
}

/// FNV-1a: the same on every machine and in every version.
fn stable_hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
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
