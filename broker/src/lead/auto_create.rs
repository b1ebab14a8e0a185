//! Topics and groups that are made when somebody first uses them, as RocketMQ's brokers do by default.
//!
//! What is made this way is bounded: a producer that spells a new name each time, or a consumer that invents a group for
//! each of its lives, fills nobody's memory. Each is told of in the log and counted.

use flotilla_message::{GroupName, MessageType, Permission, TopicName};
use flotilla_proto::CallContext;
use flotilla_proto::status::{Code, status};
use flotilla_proto::v2;
use flotilla_raft_log::Term;
use flotilla_store::{Command, GroupInfo, Outcome, StartPolicy, TopicInfo};

use super::proposer::SubmitError;
use crate::admin::groups::no_group;
use crate::metrics::Made;
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// What is there, or why it is not.
pub type Found<T> = Result<Result<T, v2::Status>, SubmitError>;

impl Replica {
    /// A topic to write to or to route; made if it is absent and the settings say so. `wanted` is the type of what is to be
    /// sent there, if that is known: no topic is made that would refuse what it is made for.
    pub async fn topic_or_made(
        &self,
        context: &CallContext,
        name: &TopicName,
        wanted: Option<MessageType>,
        term: Term,
    ) -> Found<TopicInfo> {
        if let Some(info) = self.store.topic(name) {
            return Ok(Ok(info));
        }
        if !self.config.auto_create_topics || name.is_dead_letter() || name.is_retry() {
            return Ok(Err(no_topic(name)));
        }
        if let Some(other) = wanted.filter(|wanted| *wanted != MessageType::Normal) {
            let text = format!("topic '{name}' does not exist, and one that takes {other} is made by an operator only");
            return Ok(Err(status(Code::TopicNotFound, text)));
        }
        if self.store.is_write_wiped() {
            let text = format!(
                "topic '{name}' does not exist, and none is made where it could not be written: the write permission of \
                 broker group '{}' is wiped",
                self.config.group
            );
            return Ok(Err(status(Code::TopicNotFound, text)));
        }
        let (topics, _) = self.store.catalog_counts();
        if topics as u64 >= self.config.auto_create_topics_max {
            self.counters.made(Made::TopicRefused);
            let text = format!(
                "topic '{name}' does not exist, and none is made by its first use: there are {topics}, as many as \
                 auto_create_topics_max allows"
            );
            return Ok(Err(status(Code::TopicNotFound, text)));
        }
        let command = Command::CreateTopic {
            name: name.clone(),
            message_type: MessageType::Normal,
            queue_count: self.config.auto_create_queues,
            permission: Permission::ReadWrite,
        };
        // Refused or made by another call meanwhile: what counts is what is there now.
        let began = self.runtime.now();
        if let Outcome::TopicCreated { .. } = self.proposer.submit(term, command).await?.outcome {
            self.counters.made(Made::Topic);
            self.counters.making_took(true, self.runtime.now() - began);
            let client = context.client_id.as_deref().unwrap_or_default();
            tracing::info!(topic = %name, queues = self.config.auto_create_queues, client, "topic made by its first use");
        }
        Ok(self.store.topic(name).ok_or_else(|| no_topic(name)))
    }

    /// A group to receive for; made if it is absent and the settings say so.
    pub async fn group_or_made(&self, context: &CallContext, name: &GroupName, term: Term) -> Found<GroupInfo> {
        if let Some(info) = self.store.group(name) {
            return Ok(Ok(info));
        }
        if !self.config.auto_create_groups {
            return Ok(Err(no_group(name)));
        }
        let (_, groups) = self.store.catalog_counts();
        if groups as u64 >= self.config.auto_create_groups_max {
            self.counters.made(Made::GroupRefused);
            let text = format!(
                "consumer group '{name}' does not exist, and none is made by its first use: there are {groups}, as many \
                 as auto_create_groups_max allows"
            );
            return Ok(Err(status(Code::ConsumerGroupNotFound, text)));
        }
        let command = Command::CreateGroup {
            name: name.clone(),
            order: false,
            max_deliveries: self.config.max_deliveries,
            start: StartPolicy::First,
        };
        let began = self.runtime.now();
        if let Outcome::GroupCreated { .. } = self.proposer.submit(term, command).await?.outcome {
            self.counters.made(Made::Group);
            self.counters.making_took(false, self.runtime.now() - began);
            let client = context.client_id.as_deref().unwrap_or_default();
            tracing::info!(group = %name, client, "consumer group made by its first use");
        }
        Ok(self.store.group(name).ok_or_else(|| no_group(name)))
    }
}
