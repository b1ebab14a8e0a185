//! The operator's calls over all broker groups of a cluster: topics and consumer groups are made, changed and dropped in each.
//!
//! Each group is asked in the order of their names. What was done in some of them before another one failed stays done: the
//! calls may be repeated.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_message::{GroupName, MessageType, TopicName};
use flotilla_proto::admin;
use flotilla_proto::status::Code;
use flotilla_runtime::Instant;

use crate::admin_client::{
    AdminClient, AdminError, GroupDescription, GroupSpec, TopicDescription, TopicSpec, error_of,
};

/// Pause before it is looked again whether a topic can be moved, or is routed.
const LOOK_AGAIN: Duration = Duration::from_millis(50);
/// How long a new topic may take to be told of by all namesrvs before its maker goes on.
const ROUTED_WITHIN: Duration = Duration::from_secs(2);

impl AdminClient {
    /// The names of all broker groups that are known, in order.
    ///
    /// # Errors
    /// [`AdminError::Unavailable`] if none is.
    pub async fn broker_groups(&self) -> Result<Vec<String>, AdminError> {
        let groups = self.all_replicas(self.shared().deadline()).await.map_err(error_of)?;
        Ok(groups.iter().map(|replicas| replicas.name().group.clone()).collect())
    }

    /// The same calls, about one broker group.
    #[must_use]
    pub fn in_group(&self, name: &str) -> AdminClient {
        AdminClient { client: self.client.clone(), target: Some(name.to_owned()) }
    }

    /// What a broker group knows of where a topic is; `None` if nothing is laid down.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if the group does not have it, or several are meant.
    pub async fn topic_shares(&self, name: &TopicName) -> Result<Option<admin::TopicShares>, AdminError> {
        Ok(self.describe_topic_raw(name).await?.shares)
    }

    async fn each(&self) -> Result<Vec<AdminClient>, AdminError> {
        Ok(self.broker_groups().await?.iter().map(|name| self.each_of(name)).collect())
    }

    pub(crate) fn each_of(&self, name: &str) -> AdminClient {
        // A group whose brokers do not tell its name is the only one there is.
        if name.is_empty() { self.clone() } else { self.in_group(name) }
    }

    /// Makes a topic in every broker group; `true` if the very same one was there already in all of them.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if a topic of that name but another shape exists.
    pub async fn create_topic(&self, spec: &TopicSpec) -> Result<bool, AdminError> {
        let groups = self.broker_groups().await?;
        self.create_topic_in(spec, &groups).await
    }

    /// Makes a topic in these broker groups; each has as many queues as the topic is to have.
    ///
    /// # Errors
    /// As [`AdminClient::create_topic`].
    pub async fn create_topic_in(&self, spec: &TopicSpec, groups: &[String]) -> Result<bool, AdminError> {
        let mut groups = groups.to_vec();
        groups.sort();
        groups.dedup();
        let share = |name: &String| admin::TopicShare { broker_group: name.clone(), queue_count: spec.queue_count };
        // Which queue a message group belongs to is laid down from the first message on.
        let is_spread = spec.message_type == MessageType::Fifo && groups.len() > 1;
        let shares = admin::TopicShares { version: 1, moving: false, shares: groups.iter().map(share).collect() };
        let (mut holders, mut lacked) = (Vec::new(), Vec::new());
        for name in &groups {
            let shares = is_spread.then(|| shares.clone());
            let existed = self.each_of(name).create_topic_here(spec, shares).await?;
            (if existed { &mut holders } else { &mut lacked }).push(name.clone());
        }
        self.begin_at_first(&spec.name, &holders, &lacked).await?;
        if groups.len() > 1 {
            self.routed(&spec.name, groups.len()).await;
        }
        Ok(lacked.is_empty())
    }

    /// Waits until the namesrvs name so many broker groups of a topic, or for a short while: who asks for its route then learns
    /// of all.
    pub(crate) async fn routed(&self, topic: &TopicName, groups: usize) {
        let shared = self.shared();
        let until = shared.runtime.now() + ROUTED_WITHIN;
        for address in &shared.config.namesrv {
            while shared.runtime.now() < until {
                let named = self.named_at(address, topic, until).await;
                if named.is_none_or(|named| named >= groups) {
                    break;
                }
                shared.runtime.sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// How many broker groups of a topic a namesrv names; `None` if it does not tell.
    async fn named_at(&self, address: &str, topic: &TopicName, until: Instant) -> Option<usize> {
        let shared = self.shared();
        let timeout = shared.config.attempt_timeout.min(until - shared.runtime.now());
        let request = flotilla_proto::namesrv::TopicRouteRequest {
            cluster: shared.config.cluster.clone().unwrap_or_default(),
            topic: topic.to_string(),
        };
        let call = shared.connector.namesrv(address).query_topic_route(shared.options(timeout), request);
        Some(shared.runtime.timeout(timeout, call).await.ok()?.ok()?.groups.len())
    }

    /// Removes a topic with its queues from every broker group that has it.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if none has it.
    pub async fn delete_topic(&self, name: &TopicName) -> Result<(), AdminError> {
        let mut results = Vec::new();
        for group in self.each().await? {
            results.push(group.delete_topic_here(name).await);
        }
        any_of(results, Code::TopicNotFound).map(|_| ())
    }

    /// A topic and the bounds of its queues in every broker group that has it.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if none has it.
    pub async fn describe_topic(&self, name: &TopicName) -> Result<TopicDescription, AdminError> {
        let mut results = Vec::new();
        let groups = self.each().await?;
        for group in &groups {
            let described = group.describe_topic_here(name).await.map(|mut described| {
                let broker_group = group.target.clone().filter(|_| groups.len() > 1).unwrap_or_default();
                described.queues.iter_mut().for_each(|queue| queue.broker_group.clone_from(&broker_group));
                described
            });
            results.push(described);
        }
        let mut found = any_of(results, Code::TopicNotFound)?.into_iter();
        let mut all = found.next().expect("one at least");
        for more in found {
            all.topic.queue_count += more.topic.queue_count;
            all.topic.writable_queues += more.topic.writable_queues;
            all.queues.extend(more.queues);
        }
        Ok(all)
    }

    /// All topics, also those the broker made itself if asked for. One that is in several broker groups is there once, with
    /// the queues of all.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn list_topics(&self, with_system: bool) -> Result<Vec<admin::Topic>, AdminError> {
        let mut all = BTreeMap::<String, admin::Topic>::new();
        for group in self.each().await? {
            for topic in group.list_topics_here(with_system).await? {
                match all.get_mut(&topic.name) {
                    Some(known) => {
                        known.queue_count += topic.queue_count;
                        known.writable_queues += topic.writable_queues;
                    }
                    None => drop(all.insert(topic.name.clone(), topic)),
                }
            }
        }
        Ok(all.into_values().collect())
    }

    /// Changes a topic in every broker group that has it; answers it as it is now, with queues that are still to be consumed.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn update_topic(
        &self,
        request: admin::UpdateTopicRequest,
    ) -> Result<admin::UpdateTopicReply, AdminError> {
        let mut results = Vec::new();
        for group in self.each().await? {
            results.push(group.update_topic_here(request.clone()).await);
        }
        let mut found = any_of(results, Code::TopicNotFound)?.into_iter();
        let mut all = found.next().expect("one at least");
        for more in found {
            if let (Some(topic), Some(more)) = (&mut all.topic, more.topic) {
                topic.queue_count += more.queue_count;
                topic.writable_queues += more.writable_queues;
            }
        }
        Ok(all)
    }

    /// Makes a consumer group in every broker group; `true` if the very same one was there already in all of them.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if a group of that name but another shape exists.
    pub async fn create_group(&self, spec: &GroupSpec) -> Result<bool, AdminError> {
        let mut existed = true;
        for group in self.each().await? {
            existed &= group.create_group_here(spec).await?;
        }
        Ok(existed)
    }

    /// Removes a consumer group and its progress from every broker group that has it.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if none has it.
    pub async fn delete_group(&self, name: &GroupName) -> Result<(), AdminError> {
        let mut results = Vec::new();
        for group in self.each().await? {
            results.push(group.delete_group_here(name).await);
        }
        any_of(results, Code::ConsumerGroupNotFound).map(|_| ())
    }

    /// A consumer group and how far it has come, in all broker groups.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if none has it.
    pub async fn describe_group(&self, name: &GroupName) -> Result<GroupDescription, AdminError> {
        let mut results = Vec::new();
        let groups = self.each().await?;
        for group in &groups {
            let described = group.describe_group_here(name).await.map(|mut described| {
                let broker_group = group.target.clone().filter(|_| groups.len() > 1).unwrap_or_default();
                described.progress.iter_mut().for_each(|row| row.broker_group.clone_from(&broker_group));
                described
            });
            results.push(described);
        }
        let mut found = any_of(results, Code::ConsumerGroupNotFound)?.into_iter();
        let mut all = found.next().expect("one at least");
        for more in found {
            all.progress.extend(more.progress);
            for member in more.members {
                let is_same = |known: &admin::GroupMember| {
                    known.client_id == member.client_id && known.topic == member.topic && known.filter == member.filter
                };
                match all.members.iter_mut().find(|known| is_same(known)) {
                    Some(known) => known.idle_ms = known.idle_ms.min(member.idle_ms),
                    None => all.members.push(member),
                }
            }
            all.differing_topics.extend(more.differing_topics);
        }
        all.differing_topics.sort();
        all.differing_topics.dedup();
        Ok(all)
    }

    /// All consumer groups.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn list_groups(&self) -> Result<Vec<admin::Group>, AdminError> {
        let mut all = BTreeMap::<String, admin::Group>::new();
        for group in self.each().await? {
            for consumers in group.list_groups_here().await? {
                all.entry(consumers.name.clone()).or_insert(consumers);
            }
        }
        Ok(all.into_values().collect())
    }

    /// Changes what is named of a consumer group, in every broker group that has it.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn update_group(
        &self,
        request: admin::UpdateGroupRequest,
    ) -> Result<admin::UpdateGroupReply, AdminError> {
        let mut results = Vec::new();
        for group in self.each().await? {
            results.push(group.update_group_here(request.clone()).await);
        }
        any_of(results, Code::ConsumerGroupNotFound).map(|mut replies| replies.remove(0))
    }

    /// Takes the write permission of the one broker group that is meant away, or gives it back; answers how many topics it
    /// has. What is stored there is delivered all the same.
    ///
    /// # Errors
    /// [`AdminError`]; rejected if there are several broker groups and none is named ([`AdminClient::in_group`]).
    pub async fn set_write_permission(&self, is_writable: bool) -> Result<u64, AdminError> {
        let request = admin::SetWritePermissionRequest { writable: is_writable };
        let reply = self.call(|calls, options| calls.set_write_permission(options, request)).await;
        Ok(reply.map_err(error_of)?.topics)
    }

    pub(crate) async fn describe_topic_raw(&self, name: &TopicName) -> Result<admin::DescribeTopicReply, AdminError> {
        let request = admin::DescribeTopicRequest { name: name.to_string() };
        self.call(|calls, options| calls.describe_topic(options, request.clone())).await.map_err(error_of)
    }

    /// Moves a consumer group to another place in a topic, in every broker group that has both. Repeating it after
    /// [`AdminError::Unknown`] moves it again.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn reset_group(&self, request: admin::ResetGroupRequest) -> Result<admin::ResetGroupReply, AdminError> {
        let groups = self.each().await?;
        if groups.len() == 1 {
            return groups[0].reset_group_here(request).await;
        }
        let mut results = Vec::new();
        for group in groups {
            results.push(group.reset_group_here(request.clone()).await);
        }
        let mut found = any_of(results, Code::TopicNotFound)?.into_iter();
        let mut all = found.next().expect("one at least");
        found.for_each(|more| all.queues.extend(more.queues));
        Ok(all)
    }
}

pub(crate) fn is_missing(error: &AdminError, not_found: Code) -> bool {
    matches!(error, AdminError::Rejected { code, .. } if *code == not_found as i32)
}

/// What those groups answered that have it; the first error of another kind, or that none has it.
fn any_of<T>(results: Vec<Result<T, AdminError>>, not_found: Code) -> Result<Vec<T>, AdminError> {
    let (mut found, mut missing) = (Vec::new(), None);
    for result in results {
        match result {
            Ok(value) => found.push(value),
            Err(error) if is_missing(&error, not_found) => missing = Some(error),
            Err(error) => return Err(error),
        }
    }
    match missing {
        Some(error) if found.is_empty() => Err(error),
        _ => Ok(found),
    }
}
