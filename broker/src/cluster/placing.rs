//! Which broker group a send belongs to.
//!
//! A message group belongs to one queue of all that its topic has in the cluster, as the topic's shares say. Whatever else is
//! sent stays in the group that was asked, as long as that takes messages.

use std::sync::atomic::Ordering;

use flotilla_message::{MessageType, QueueId, TopicName};
use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::TopicInfo;

use super::pass_on::is_from_abroad;
use crate::replica::Replica;

/// Where a send goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Into this group: into that queue, or whichever is picked.
    Here(Option<QueueId>),
    /// To another group.
    There(String),
    /// Nowhere.
    Nowhere(v2::Status),
}

/// What is sent, as far as its place depends on it.
#[derive(Debug, Clone, Copy)]
pub struct Sent<'a> {
    /// Its topic.
    pub topic: &'a TopicName,
    /// What it is.
    pub message_type: MessageType,
    /// Its message group, if it has one.
    pub message_group: Option<&'a str>,
    /// The id of its first message: a repetition goes where the first try went, and is recognised there.
    pub message_id: &'a str,
}

impl Replica {
    /// Where a send goes, by this replica's applied state.
    pub async fn destination(&self, context: &CallContext, sent: Sent<'_>) -> Destination {
        if !self.cluster.has_others() && !self.store.has_placement() {
            return Destination::Here(None);
        }
        if let Some(message_group) = sent.message_group
            && let Some(destination) = self.place_of_message_group(sent.topic, message_group)
        {
            return destination;
        }
        let (is_wiped, info) = (self.store.is_write_wiped(), self.store.topic(sent.topic));
        let info = info.as_ref();
        let takes = info.is_some_and(|info| info.permission.is_writable()) && !is_wiped;
        if takes || is_from_abroad(context) || !self.cluster.has_others() {
            return self.here(sent, info);
        }
        // Messages with order go where they always go, or nowhere.
        if (info.is_none() || sent.message_group.is_none())
            && let Some(group) = self.writable_elsewhere(sent).await
        {
            return Destination::There(group);
        }
        self.here(sent, info)
    }

    /// This group, unless its write permission is wiped. What else there is to say of the topic is said where it is read.
    fn here(&self, sent: Sent<'_>, info: Option<&TopicInfo>) -> Destination {
        if self.store.is_write_wiped() && (info.is_some() || self.config.auto_create_topics) {
            let text = format!(
                "topic '{}' has no writable queue here: the write permission of broker group '{}' is wiped",
                sent.topic, self.config.group
            );
            return Destination::Nowhere(status(Code::Forbidden, text));
        }
        Destination::Here(None)
    }

    /// Where a message group belongs, if that is laid down for its topic.
    pub fn place_of_message_group(&self, topic: &TopicName, message_group: &str) -> Option<Destination> {
        let shares = self.store.topic_shares(topic)?;
        if shares.is_moving {
            let text = format!(
                "not stored: topic '{topic}' moves to other broker groups (version {}), and takes messages again when all \
                 that it has is consumed",
                shares.version
            );
            return Some(Destination::Nowhere(status(Code::HaNotAvailable, text)));
        }
        let (owner, queue) = shares.owner(message_group)?;
        if owner != self.config.group {
            return Some(Destination::There(owner.to_owned()));
        }
        if self.store.is_write_wiped() {
            let text = format!(
                "not stored: message group '{message_group}' of topic '{topic}' belongs to broker group '{owner}', whose \
                 write permission is wiped; move the topic with: flotilla admin topic spread {topic}"
            );
            return Some(Destination::Nowhere(status(Code::HaNotAvailable, text)));
        }
        Some(Destination::Here(Some(QueueId(queue))))
    }

    /// Another group that takes messages of this type to this topic, and has a leader as far as is known; another one for
    /// each message, if there are several.
    pub async fn writable_elsewhere(&self, sent: Sent<'_>) -> Option<String> {
        let there = self.cluster.topic(sent.topic).await;
        let takes = there.iter().filter(|there| {
            let is_led = self.cluster.group(&there.group).is_some_and(|group| !self.cluster.is_leaderless(&group));
            is_led && there.permission.is_writable() && there.message_type == sent.message_type
        });
        let takes: Vec<&str> = takes.map(|there| there.group.as_str()).collect();
        let place = (crc32c::crc32c(sent.message_id.as_bytes()) as usize).checked_rem(takes.len())?;
        takes.get(place).map(|group| (*group).to_owned())
    }

    /// Whether nobody has led this group for so long that others should be asked instead, as far as this replica can see.
    pub fn is_leaderless(&self) -> bool {
        self.is_leader_silent.load(Ordering::Relaxed)
            || self.leadership.leaderless_for(self.runtime.now()) >= super::view::LEADERLESS_AFTER
    }
}
