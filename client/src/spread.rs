//! A topic moves to other broker groups.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_message::{GroupName, MessageType, TopicName};
use flotilla_proto::admin;
use flotilla_proto::status::Code;

use crate::admin_client::{AdminClient, AdminError, TopicSpec, error_of};
use crate::admin_cluster::is_missing;

/// Pause before it is asked again whether all is consumed.
const WAIT_PAUSE: Duration = Duration::from_millis(250);

/// How a topic got to its broker groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spread {
    /// It is there.
    Done {
        /// The broker groups, by name.
        groups: Vec<String>,
    },
    /// Its messages must be consumed first; until then it takes none. To be called again.
    Waits {
        /// What is waited for.
        reason: String,
    },
}

impl AdminClient {
    async fn set_shares(
        &self,
        name: &TopicName,
        shares: &admin::TopicShares,
    ) -> Result<admin::SetTopicSharesReply, AdminError> {
        let request = admin::SetTopicSharesRequest { name: name.to_string(), shares: Some(shares.clone()) };
        self.call(|calls, options| calls.set_topic_shares(options, request.clone())).await.map_err(error_of)
    }

    /// Has a topic be in these broker groups: makes it in those that lack it, as it is in the first group that has it.
    ///
    /// An ordered topic moves in steps, of which each may be repeated: it takes no messages; when all that it has is consumed,
    /// its message groups belong to the queues of the new groups. The groups it leaves keep it, for reading.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if no broker group has the topic.
    pub async fn spread_topic(&self, name: &TopicName, groups: &[String]) -> Result<Spread, AdminError> {
        let mut groups = groups.to_vec();
        groups.sort();
        groups.dedup();
        let (mut described, mut holders) = (None, Vec::new());
        for group in self.broker_groups().await? {
            match self.each_of(&group).describe_topic_raw(name).await {
                Ok(reply) => {
                    holders.push((group, reply.clone()));
                    described.get_or_insert(reply);
                }
                Err(error) if is_missing(&error, Code::TopicNotFound) => {}
                Err(error) => return Err(error),
            }
        }
        let Some(first) = described else {
            let message = format!("topic '{name}' does not exist in any broker group");
            return Err(AdminError::Rejected { code: Code::TopicNotFound as i32, message });
        };
        let spec = spec_of(name, &first)?;
        if spec.message_type != MessageType::Fifo {
            let lacking = lacking(&groups, &holders);
            for group in &lacking {
                self.each_of(group).create_topic_here(&spec, None).await?;
            }
            self.begin_at_first(name, &names(&holders), &lacking).await?;
            self.routed(name, groups.len()).await;
            return Ok(Spread::Done { groups });
        }
        self.spread_ordered(&spec, groups, holders).await
    }

    /// As [`AdminClient::spread_topic`], again and again until it is done or so much time has passed.
    ///
    /// # Errors
    /// As there.
    pub async fn spread_topic_within(
        &self,
        name: &TopicName,
        groups: &[String],
        wait: Duration,
    ) -> Result<Spread, AdminError> {
        let until = self.shared().runtime.now() + wait;
        loop {
            let spread = self.spread_topic(name, groups).await?;
            if matches!(spread, Spread::Done { .. }) || self.shared().runtime.now() >= until {
                return Ok(spread);
            }
            self.shared().runtime.sleep(WAIT_PAUSE).await;
        }
    }

    async fn spread_ordered(
        &self,
        spec: &TopicSpec,
        groups: Vec<String>,
        holders: Vec<(String, admin::DescribeTopicReply)>,
    ) -> Result<Spread, AdminError> {
        let queues_of = |group: &String| {
            let holder = holders.iter().find(|(holder, _)| holder == group);
            holder.and_then(|(_, reply)| reply.topic.as_ref()).map_or(spec.queue_count, |topic| topic.writable_queues)
        };
        let share = |group: &String| admin::TopicShare { broker_group: group.clone(), queue_count: queues_of(group) };
        let wanted: Vec<admin::TopicShare> = groups.iter().map(share).collect();
        // A move that somebody began goes on under its own number, any other one comes behind all that is known.
        let known = holders.iter().filter_map(|(_, reply)| reply.shares.as_ref());
        let newest = known.max_by_key(|shares| (shares.version, !shares.moving));
        let settled = |reply: &admin::DescribeTopicReply, version: u64| {
            reply.shares.as_ref().is_some_and(|shares| shares.version == version && !shares.moving)
        };
        let version = match newest {
            Some(shares) if shares.shares == wanted => shares.version,
            Some(shares) => shares.version + 1,
            None => 1,
        };
        if groups.iter().all(|group| holders.iter().any(|(holder, reply)| holder == group && settled(reply, version))) {
            return Ok(Spread::Done { groups });
        }
        let moving = admin::TopicShares { version, moving: true, shares: wanted.clone() };
        let at_last = admin::TopicShares { moving: false, ..moving.clone() };
        // Nobody takes messages any more, the new ones included.
        for (group, reply) in &holders {
            if !settled(reply, version) {
                self.each_of(group).set_shares(&spec.name, &moving).await?;
            }
        }
        let lacking = lacking(&groups, &holders);
        for group in &lacking {
            self.each_of(group).create_topic_here(spec, Some(moving.clone())).await?;
        }
        self.begin_at_first(&spec.name, &names(&holders), &lacking).await?;
        // All of them have consumed everything before any takes messages again.
        for (group, reply) in holders.iter().filter(|(_, reply)| !settled(reply, version)) {
            if let Some(reason) = self.unconsumed_in(group, &spec.name, reply).await? {
                return Ok(Spread::Waits { reason });
            }
        }
        let mut all = [names(&holders), groups.clone()].concat();
        all.sort();
        all.dedup();
        for group in &all {
            match self.each_of(group).set_shares(&spec.name, &at_last).await {
                Ok(_) => {}
                Err(AdminError::Rejected { code, message }) if code == Code::PreconditionFailed as i32 => {
                    return Ok(Spread::Waits { reason: format!("broker group {group}: {message}") });
                }
                Err(error) => return Err(error),
            }
        }
        self.routed(&spec.name, groups.len()).await;
        Ok(Spread::Done { groups })
    }

    /// Has the consumer groups that have met a topic begin with its first message in broker groups that have it since a moment
    /// ago: where a consumer group starts is said of the topic, not of what it gets later. What was sent in that moment may
    /// come twice.
    pub(crate) async fn begin_at_first(
        &self,
        name: &TopicName,
        holders: &[String],
        lacking: &[String],
    ) -> Result<(), AdminError> {
        if lacking.is_empty() {
            return Ok(());
        }
        let mut met = BTreeMap::<GroupName, admin::Group>::new();
        for holder in holders {
            let admin = self.each_of(holder);
            for consumers in admin.list_groups_here().await? {
                // One that starts at the first message does so everywhere.
                let Ok(group) = GroupName::try_from(consumers.name.as_str()) else { continue };
                if consumers.start() == admin::StartPolicy::First || met.contains_key(&group) {
                    continue;
                }
                let described = admin.describe_group_here(&group).await?;
                if described.progress.iter().any(|row| row.topic == name.as_str()) {
                    met.insert(group, consumers);
                }
            }
        }
        for broker_group in lacking {
            let admin = self.each_of(broker_group);
            for (group, consumers) in &met {
                match admin.describe_group_here(group).await {
                    Ok(_) => {}
                    Err(error) if is_missing(&error, Code::ConsumerGroupNotFound) => {
                        let request = admin::CreateGroupRequest { group: Some(consumers.clone()) };
                        let made = admin.call(|calls, options| calls.create_group(options, request.clone())).await;
                        made.map_err(error_of)?;
                    }
                    Err(error) => return Err(error),
                }
                let request = admin::ResetGroupRequest {
                    group: group.to_string(),
                    topic: name.to_string(),
                    to: Some(admin::reset_group_request::To::First(true)),
                    ..Default::default()
                };
                admin.reset_group_here(request).await?;
            }
        }
        Ok(())
    }

    /// What a broker group still has of a topic that some consumer group has not consumed.
    async fn unconsumed_in(
        &self,
        group: &str,
        name: &TopicName,
        described: &admin::DescribeTopicReply,
    ) -> Result<Option<String>, AdminError> {
        let admin = self.each_of(group);
        let has_messages = described.queues.iter().any(|queue| queue.min_offset < queue.max_offset);
        let mut is_met = false;
        for consumers in admin.list_groups_here().await? {
            let Ok(consumers) = GroupName::try_from(consumers.name.as_str()) else { continue };
            let described = admin.describe_group_here(&consumers).await?;
            for row in described.progress.iter().filter(|row| row.topic == name.as_str()) {
                is_met = true;
                if row.lag_messages > 0 {
                    return Ok(Some(format!(
                        "broker group {group}: consumer group {consumers} has {} messages of queue {} to consume",
                        row.lag_messages, row.queue
                    )));
                }
            }
        }
        Ok((has_messages && !is_met).then(|| format!("broker group {group}: nobody has consumed the topic's messages")))
    }
}

type Holders = [(String, admin::DescribeTopicReply)];

fn names(holders: &Holders) -> Vec<String> {
    holders.iter().map(|(holder, _)| holder.clone()).collect()
}

/// Those of `groups` that do not have the topic.
fn lacking(groups: &[String], holders: &Holders) -> Vec<String> {
    groups.iter().filter(|group| !holders.iter().any(|(holder, _)| holder == *group)).cloned().collect()
}

fn spec_of(name: &TopicName, described: &admin::DescribeTopicReply) -> Result<TopicSpec, AdminError> {
    let topic = described.topic.clone().unwrap_or_default();
    let code = |value: i32| u8::try_from(value).ok();
    let message_type = code(topic.message_type).and_then(MessageType::from_code);
    let Some(message_type) = message_type else {
        let reason = format!("the message type {} of topic '{name}' is not known here", topic.message_type);
        return Err(AdminError::Unavailable { reason });
    };
    Ok(TopicSpec {
        message_type,
        ack: described.level_is_own.then(|| described.ack.parse().ok()).flatten(),
        flush: described.level_is_own.then(|| described.flush.parse().ok()).flatten(),
        retention_ms: described.retention_is_own.then_some(described.retention_ms),
        ..TopicSpec::new(name.clone(), topic.writable_queues.max(1))
    })
}
