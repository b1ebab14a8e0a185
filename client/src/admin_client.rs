//! The operator's calls: topics, groups, and what the replicas say of themselves.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flotilla_message::{AckLevel, FlushLevel, GroupName, MessageType, Permission, TopicName};
use flotilla_proto::client::{AdminCalls, CallError, CallOptions};
use flotilla_proto::status::Code;
use flotilla_proto::{admin, namesrv, v2};
use flotilla_runtime::{BoxFuture, Either, Instant, select};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;

use crate::client::{Client, Shared};
use crate::failover::CallFailure;
use crate::failure::{Rejection, Verdict, code_text, judge_status};
use crate::replicas::{BrokerGroupName, Replicas};

/// Pause before the namesrvs or endpoints are asked again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long the other namesrvs are waited for once one has named brokers.
const OTHERS_WITHIN: Duration = Duration::from_millis(300);

/// Why an operator's call was not done.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// The broker refuses: it exists already in another shape, does not exist, is not valid.
    #[error("rejected ({}): {message}", code_text(*code))]
    Rejected {
        /// Code of the RocketMQ protocol.
        code: i32,
        /// The broker's text.
        message: String,
    },
    /// No broker could be asked: nothing was done.
    #[error("no broker could be asked: {reason}")]
    Unavailable {
        /// What the last attempt ended with.
        reason: String,
    },
    /// It may or may not be done. Trying again is safe.
    #[error("it is unknown whether it was done: {reason}")]
    Unknown {
        /// What the last attempt ended with.
        reason: String,
    },
}

/// A topic to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicSpec {
    /// Its name.
    pub name: TopicName,
    /// Which kind of message it takes.
    pub message_type: MessageType,
    /// Number of queues.
    pub queue_count: u32,
    /// What clients may do with it.
    pub permission: Permission,
    /// Level of its sends; `None`: as the group of brokers has it.
    pub ack: Option<AckLevel>,
    /// Whether copies are on disk by then; likewise.
    pub flush: Option<FlushLevel>,
    /// How long its messages are kept, milliseconds; `None`: as long as the brokers' log keeps them, which is the longest.
    pub retention_ms: Option<u64>,
}

impl TopicSpec {
    /// A readable and writable topic for normal messages.
    pub fn new(name: TopicName, queue_count: u32) -> TopicSpec {
        TopicSpec {
            name,
            message_type: MessageType::Normal,
            queue_count,
            permission: Permission::ReadWrite,
            ack: None,
            flush: None,
            retention_ms: None,
        }
    }
}

/// Where a new consumer group begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GroupStart {
    /// At the oldest message.
    #[default]
    First,
    /// After the newest message.
    Last,
    /// At the first message stored at this time or later, milliseconds since the Unix epoch.
    TimestampMs(u64),
}

/// A consumer group to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupSpec {
    /// Its name.
    pub name: GroupName,
    /// Whether the messages of a queue are delivered one after the other.
    pub order: bool,
    /// After so many deliveries a message goes to the dead letters; 0 for the broker's default.
    pub max_deliveries: u32,
    /// Where it begins.
    pub start: GroupStart,
}

impl GroupSpec {
    /// A group without order that begins at the oldest message.
    pub fn new(name: GroupName) -> GroupSpec {
        GroupSpec { name, order: false, max_deliveries: 0, start: GroupStart::First }
    }
}

/// A topic and the bounds of its queues.
#[derive(Debug, Clone, PartialEq)]
pub struct TopicDescription {
    /// The topic.
    pub topic: admin::Topic,
    /// Its queues.
    pub queues: Vec<admin::QueueBounds>,
    /// Level of its sends in force: `async`, `majority` or `sync`.
    pub ack: String,
    /// Whether copies are on disk by then: `sync` or `async`.
    pub flush: String,
    /// It is not all as the group of brokers has it.
    pub level_is_own: bool,
    /// How long its messages are kept, milliseconds.
    pub retention_ms: u64,
    /// That time is its own, not the log's.
    pub retention_is_own: bool,
}

/// A group and how far it has come.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupDescription {
    /// The group.
    pub group: admin::Group,
    /// Its progress in each queue.
    pub progress: Vec<admin::GroupProgress>,
    /// Its consumers, as the leader knows them.
    pub members: Vec<admin::GroupMember>,
    /// Topics in which they have different filters.
    pub differing_topics: Vec<String>,
}

/// What one replica was asked and answered.
#[derive(Debug, Clone, PartialEq)]
pub struct FromReplica<T> {
    /// The replica's `host:port` for clients.
    pub address: String,
    /// Its answer.
    pub answer: Result<T, AdminError>,
}

/// Operator's calls to the cluster.
#[derive(Debug, Clone)]
pub struct AdminClient {
    pub(crate) client: Client,
    /// Only this broker group is meant.
    pub(crate) target: Option<String>,
}

/// What all admin replies have.
pub(crate) trait HasStatus {
    fn status(&self) -> Option<&v2::Status>;
}

macro_rules! has_status {
    ($($module:ident :: $reply:ident),* $(,)?) => {$(
        impl HasStatus for $module::$reply {
            fn status(&self) -> Option<&v2::Status> {
                self.status.as_ref()
            }
        }
    )*};
}

has_status!(
    admin::CreateTopicReply,
    admin::DeleteTopicReply,
    admin::DescribeTopicReply,
    admin::ListTopicsReply,
    admin::CreateGroupReply,
    admin::DeleteGroupReply,
    admin::DescribeGroupReply,
    admin::ListGroupsReply,
    admin::ClusterStatusReply,
    admin::DebugReply,
    admin::TransferLeaderReply,
    admin::ChangeReplicaReply,
    admin::ListReplicasReply,
    admin::SetWritePermissionReply,
    admin::SetTopicSharesReply,
    admin::RecoverGroupReply,
    admin::BackupReply,
    admin::UpdateTopicReply,
    admin::UpdateGroupReply,
    admin::ResetGroupReply,
    admin::ListDeadLettersReply,
    admin::ResendDeadLettersReply,
    admin::ListTransactionsReply,
    admin::ResolveTransactionReply,
    admin::FindMessagesReply,
    admin::TraceMessageReply,
);

pub(crate) type Call<T> = BoxFuture<'static, Result<T, CallError>>;

impl AdminClient {
    pub(crate) fn new(client: Client) -> AdminClient {
        AdminClient { client, target: None }
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.client.shared
    }

    pub(crate) async fn create_topic_here(
        &self,
        spec: &TopicSpec,
        shares: Option<admin::TopicShares>,
    ) -> Result<bool, AdminError> {
        let topic = admin::Topic {
            name: spec.name.to_string(),
            message_type: i32::from(spec.message_type.code()),
            queue_count: spec.queue_count,
            permission: i32::from(spec.permission.code()),
            ..admin::Topic::default()
        };
        let word = |level: Option<String>| level.unwrap_or_default();
        let (ack, flush) = (spec.ack.map(|level| level.to_string()), spec.flush.map(|level| level.to_string()));
        let retention_ms = spec.retention_ms.unwrap_or(0);
        let request =
            admin::CreateTopicRequest { topic: Some(topic), ack: word(ack), flush: word(flush), retention_ms, shares };
        let reply = self.call(|calls, options| calls.create_topic(options, request.clone())).await;
        Ok(reply.map_err(error_of)?.existed)
    }

    pub(crate) async fn delete_topic_here(&self, name: &TopicName) -> Result<(), AdminError> {
        // Which life of it is meant: a repetition after a lost answer must not take one that was made since.
        let incarnation = self.describe_topic_here(name).await?.topic.incarnation;
        let request = admin::DeleteTopicRequest { name: name.to_string(), incarnation };
        let reply = self.call(|calls, options| calls.delete_topic(options, request.clone())).await;
        gone(reply.map(|_| ()), Code::TopicNotFound)
    }

    pub(crate) async fn describe_topic_here(&self, name: &TopicName) -> Result<TopicDescription, AdminError> {
        let request = admin::DescribeTopicRequest { name: name.to_string() };
        let reply =
            self.call(|calls, options| calls.describe_topic(options, request.clone())).await.map_err(error_of)?;
        Ok(TopicDescription {
            topic: reply.topic.unwrap_or_default(),
            queues: reply.queues,
            ack: reply.ack,
            flush: reply.flush,
            level_is_own: reply.level_is_own,
            retention_ms: reply.retention_ms,
            retention_is_own: reply.retention_is_own,
        })
    }

    pub(crate) async fn list_topics_here(&self, with_system: bool) -> Result<Vec<admin::Topic>, AdminError> {
        let request = admin::ListTopicsRequest { with_system };
        let reply = self.call(|calls, options| calls.list_topics(options, request)).await;
        Ok(reply.map_err(error_of)?.topics)
    }

    pub(crate) async fn create_group_here(&self, spec: &GroupSpec) -> Result<bool, AdminError> {
        let (start, start_timestamp_ms) = match spec.start {
            GroupStart::First => (admin::StartPolicy::First, 0),
            GroupStart::Last => (admin::StartPolicy::Last, 0),
            GroupStart::TimestampMs(at_ms) => (admin::StartPolicy::Timestamp, at_ms),
        };
        let group = admin::Group {
            name: spec.name.to_string(),
            order: spec.order,
            max_deliveries: spec.max_deliveries,
            start: start.into(),
            start_timestamp_ms,
            ..admin::Group::default()
        };
        let request = admin::CreateGroupRequest { group: Some(group) };
        let reply = self.call(|calls, options| calls.create_group(options, request.clone())).await;
        Ok(reply.map_err(error_of)?.existed)
    }

    pub(crate) async fn delete_group_here(&self, name: &GroupName) -> Result<(), AdminError> {
        let request = admin::DeleteGroupRequest { name: name.to_string() };
        let reply = self.call(|calls, options| calls.delete_group(options, request.clone())).await;
        gone(reply.map(|_| ()), Code::ConsumerGroupNotFound)
    }

    pub(crate) async fn describe_group_here(&self, name: &GroupName) -> Result<GroupDescription, AdminError> {
        let request = admin::DescribeGroupRequest { name: name.to_string() };
        let reply =
            self.call(|calls, options| calls.describe_group(options, request.clone())).await.map_err(error_of)?;
        Ok(GroupDescription {
            group: reply.group.unwrap_or_default(),
            progress: reply.progress,
            members: reply.members,
            differing_topics: reply.differing_topics,
        })
    }

    pub(crate) async fn list_groups_here(&self) -> Result<Vec<admin::Group>, AdminError> {
        let request = admin::ListGroupsRequest::default();
        let reply = self.call(|calls, options| calls.list_groups(options, request)).await;
        Ok(reply.map_err(error_of)?.groups)
    }

    pub(crate) async fn update_topic_here(
        &self,
        request: admin::UpdateTopicRequest,
    ) -> Result<admin::UpdateTopicReply, AdminError> {
        self.call(|calls, options| calls.update_topic(options, request.clone())).await.map_err(error_of)
    }

    pub(crate) async fn update_group_here(
        &self,
        request: admin::UpdateGroupRequest,
    ) -> Result<admin::UpdateGroupReply, AdminError> {
        self.call(|calls, options| calls.update_group(options, request.clone())).await.map_err(error_of)
    }

    pub(crate) async fn reset_group_here(
        &self,
        request: admin::ResetGroupRequest,
    ) -> Result<admin::ResetGroupReply, AdminError> {
        self.call(|calls, options| calls.reset_group(options, request.clone())).await.map_err(error_of)
    }

    /// A group's dead letters.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn list_dead_letters(
        &self,
        request: admin::ListDeadLettersRequest,
    ) -> Result<admin::ListDeadLettersReply, AdminError> {
        self.call(|calls, options| calls.list_dead_letters(options, request.clone())).await.map_err(error_of)
    }

    /// Delivers dead letters to their group again, at most 256 a call.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn resend_dead_letters(
        &self,
        request: admin::ResendDeadLettersRequest,
    ) -> Result<admin::ResendDeadLettersReply, AdminError> {
        self.call(|calls, options| calls.resend_dead_letters(options, request.clone())).await.map_err(error_of)
    }

    /// The oldest open transactions.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn list_transactions(
        &self,
        request: admin::ListTransactionsRequest,
    ) -> Result<admin::ListTransactionsReply, AdminError> {
        self.call(|calls, options| calls.list_transactions(options, request)).await.map_err(error_of)
    }

    /// Ends a transaction in its producer's place.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn resolve_transaction(
        &self,
        request: admin::ResolveTransactionRequest,
    ) -> Result<admin::ResolveTransactionReply, AdminError> {
        self.call(|calls, options| calls.resolve_transaction(options, request.clone())).await.map_err(error_of)
    }

    /// Messages by place, time, key or id; one call looks at a limited number and says where to go on.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn find_messages(
        &self,
        request: admin::FindMessagesRequest,
    ) -> Result<admin::FindMessagesReply, AdminError> {
        self.call(|calls, options| calls.find_messages(options, request.clone())).await.map_err(error_of)
    }

    /// What became of a message in each group.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn trace_message(
        &self,
        request: admin::TraceMessageRequest,
    ) -> Result<admin::TraceMessageReply, AdminError> {
        self.call(|calls, options| calls.trace_message(options, request.clone())).await.map_err(error_of)
    }

    /// The broker group as each of its replicas sees it, in the order of their addresses.
    ///
    /// # Errors
    /// [`AdminError::Unavailable`] if no broker is known at all; a replica that cannot be asked has its
    /// error in its place.
    pub async fn cluster_status(&self) -> Result<Vec<FromReplica<admin::ClusterStatusReply>>, AdminError> {
        let request = admin::ClusterStatusRequest::default();
        self.each_replica(|calls, options| calls.cluster_status(options, request)).await
    }

    /// The state of each replica, with the queues of one topic, or of all.
    ///
    /// # Errors
    /// As [`AdminClient::cluster_status`].
    pub async fn debug_all(
        &self,
        topic: Option<&TopicName>,
    ) -> Result<Vec<FromReplica<admin::ReplicaState>>, AdminError> {
        let request = debug_request(topic);
        let replies = self.each_replica(|calls, options| calls.debug(options, request.clone())).await?;
        let state = |reply: admin::DebugReply| reply.state.unwrap_or_default();
        Ok(replies
            .into_iter()
            .map(|from| FromReplica { address: from.address, answer: from.answer.map(state) })
            .collect())
    }

    /// The state of the replica at `address` (`host:port`), with the queues of one topic, or of all.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn debug(&self, address: &str, topic: Option<&TopicName>) -> Result<admin::ReplicaState, AdminError> {
        let request = debug_request(topic);
        let reply = self.ask_one(address, &|calls, options| calls.debug(options, request.clone())).await?;
        Ok(reply.state.unwrap_or_default())
    }

    /// Hands leadership to `target`, or to the replica that is furthest ahead; returns the new leader.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn transfer_leader(&self, target: Option<u64>, timeout: Duration) -> Result<u64, AdminError> {
        let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
        let request = admin::TransferLeaderRequest { target: target.unwrap_or(0), timeout_ms };
        let reply = self.call_within(timeout, |calls, options| calls.transfer_leader(options, request)).await;
        Ok(reply.map_err(error_of)?.leader)
    }

    /// Takes one step of a change of the group's members; to be repeated until it says that it is done. `address` is where
    /// a replica that is to be added serves its peers.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn change_replica(
        &self,
        change: admin::ReplicaChange,
        node: u64,
        address: &str,
    ) -> Result<admin::ChangeReplicaReply, AdminError> {
        let request = admin::ChangeReplicaRequest { change: change.into(), node, peer_address: address.to_owned() };
        self.call(|calls, options| calls.change_replica(options, request.clone())).await.map_err(error_of)
    }

    /// The group's members as the leader sees them.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn list_replicas(&self) -> Result<admin::ListReplicasReply, AdminError> {
        let request = admin::ListReplicasRequest {};
        self.call(|calls, options| calls.list_replicas(options, request)).await.map_err(error_of)
    }

    /// What would come of it if the group went on with one replica alone, as each of them says. Changes nothing.
    ///
    /// # Errors
    /// As [`AdminClient::cluster_status`].
    pub async fn plan_recoveries(&self) -> Result<Vec<FromReplica<admin::RecoverGroupReply>>, AdminError> {
        let request = admin::RecoverGroupRequest::default();
        self.each_replica(|calls, options| calls.recover_group(options, request.clone())).await
    }

    /// Has the group go on with the replica at `address` alone; it stops, and the next start carries the order out.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn recover_group(
        &self,
        address: &str,
        group: &str,
        node: u64,
    ) -> Result<admin::RecoverGroupReply, AdminError> {
        let request = admin::RecoverGroupRequest { confirmed: true, group: group.to_owned(), node };
        self.ask_one(address, &|calls, options| calls.recover_group(options, request.clone())).await
    }

    /// The newest backup of each replica, as it says itself.
    ///
    /// # Errors
    /// As [`AdminClient::cluster_status`].
    pub async fn backups(&self) -> Result<Vec<FromReplica<admin::BackupReply>>, AdminError> {
        let request = admin::BackupRequest::default();
        self.each_replica(|calls, options| calls.backup(options, request.clone())).await
    }

    /// Has the replica at `address` begin a backup, give one up, or tell of its newest one, and returns at once.
    ///
    /// # Errors
    /// [`AdminError`].
    pub async fn backup(&self, address: &str, request: admin::BackupRequest) -> Result<admin::BackupReply, AdminError> {
        self.ask_one(address, &|calls, options| calls.backup(options, request.clone())).await
    }

    /// The rows of all namesrvs, of each replica the newest; empty if the client knows no namesrv. None of them is believed
    /// to know everything: one that started a moment ago, or that brokers cannot reach, has no rows.
    ///
    /// # Errors
    /// [`AdminError::Unavailable`] if none answers.
    pub async fn brokers(&self) -> Result<Vec<namesrv::BrokerRow>, AdminError> {
        let shared = self.shared();
        let mut asked: FuturesUnordered<_> =
            shared.config.namesrv.iter().map(|address| self.brokers_at(address)).collect();
        let mut newest: BTreeMap<(String, String, u64), namesrv::BrokerRow> = BTreeMap::new();
        let (mut reasons, mut is_answered, mut wait_until) = (Vec::new(), false, None);
        loop {
            let answer = match wait_until {
                None => asked.next().await,
                Some(until) => match select(asked.next(), shared.runtime.sleep_until(until)).await {
                    Either::Left(answer) => answer,
                    Either::Right(()) => None,
                },
            };
            match answer {
                None => break,
                Some(Ok(rows)) => {
                    is_answered = true;
                    if !rows.is_empty() && wait_until.is_none() {
                        wait_until = Some(shared.runtime.now() + OTHERS_WITHIN);
                    }
                    for row in rows {
                        let Some(at) = &row.registration else { continue };
                        let key = (at.cluster.clone(), at.group.clone(), at.replica);
                        if newest.get(&key).is_none_or(|known| freshness(known) < freshness(&row)) {
                            newest.insert(key, row);
                        }
                    }
                }
                Some(Err(AdminError::Unavailable { reason })) => reasons.push(reason),
                Some(Err(error)) => return Err(error),
            }
        }
        if is_answered || reasons.is_empty() {
            return Ok(newest.into_values().collect());
        }
        Err(AdminError::Unavailable { reason: reasons.join("; ") })
    }

    async fn brokers_at(&self, address: &str) -> Result<Vec<namesrv::BrokerRow>, AdminError> {
        let shared = self.shared();
        let cluster = shared.config.cluster.clone().unwrap_or_default();
        let timeout = shared.config.attempt_timeout;
        let calls = shared.connector.namesrv(address);
        let call = calls.list_brokers(shared.options(timeout), namesrv::ListBrokersRequest { cluster });
        let answer = shared.runtime.timeout(timeout, call).await.unwrap_or(Err(CallError::Timeout(timeout)));
        let unavailable = |reason: String| AdminError::Unavailable { reason: format!("{address}: {reason}") };
        let reply = answer.map_err(|error| unavailable(error.to_string()))?;
        match judge_status(reply.status.as_ref()) {
            Verdict::Done(()) => Ok(reply.brokers),
            Verdict::Rejected(Rejection { code, message }) => Err(AdminError::Rejected { code, message }),
            Verdict::Retry(setback) => Err(unavailable(setback.reason)),
        }
    }

    /// Calls the broker group that is meant, replica after replica, until one serves.
    pub(crate) async fn call<T: HasStatus>(
        &self,
        call: impl Fn(Arc<dyn AdminCalls>, CallOptions) -> Call<T>,
    ) -> Result<T, CallFailure> {
        self.call_within(Duration::ZERO, call).await
    }

    async fn call_within<T: HasStatus>(
        &self,
        extra: Duration,
        call: impl Fn(Arc<dyn AdminCalls>, CallOptions) -> Call<T>,
    ) -> Result<T, CallFailure> {
        let shared = self.shared();
        let deadline = shared.deadline() + extra;
        let replicas = self.replicas(deadline).await?;
        let served = shared
            .failover(&replicas, deadline, extra, &|| ())
            .run(async |address: String, timeout: Duration| {
                let reply = call(shared.connector.admin(&address), shared.options(timeout)).await?;
                Ok(match judge_status(reply.status()) {
                    Verdict::Done(()) => Verdict::Done(reply),
                    Verdict::Rejected(rejection) => Verdict::Rejected(rejection),
                    Verdict::Retry(setback) => Verdict::Retry(setback),
                })
            })
            .await?;
        Ok(served.value)
    }

    /// Asks all replicas of the broker groups that are meant, one after the other.
    async fn each_replica<T: HasStatus>(
        &self,
        call: impl Fn(Arc<dyn AdminCalls>, CallOptions) -> Call<T>,
    ) -> Result<Vec<FromReplica<T>>, AdminError> {
        let mut answers = Vec::new();
        for replicas in self.all_replicas(self.shared().deadline()).await.map_err(error_of)? {
            for address in replicas.addresses() {
                let answer = self.ask_one(&address, &call).await;
                answers.push(FromReplica { address, answer });
            }
        }
        Ok(answers)
    }

    async fn ask_one<T: HasStatus>(
        &self,
        address: &str,
        call: &impl Fn(Arc<dyn AdminCalls>, CallOptions) -> Call<T>,
    ) -> Result<T, AdminError> {
        let shared = self.shared();
        let timeout = shared.config.attempt_timeout;
        let asked = call(shared.connector.admin(address), shared.options(timeout));
        let answer = shared.runtime.timeout(timeout, asked).await.unwrap_or(Err(CallError::Timeout(timeout)));
        let reply = match answer {
            Ok(reply) => reply,
            Err(error) if error.is_refused() => return Err(AdminError::Unavailable { reason: error.to_string() }),
            Err(error) => return Err(AdminError::Unknown { reason: error.to_string() }),
        };
        match judge_status(reply.status()) {
            Verdict::Done(()) => Ok(reply),
            Verdict::Rejected(Rejection { code, message }) => Err(AdminError::Rejected { code, message }),
            Verdict::Retry(setback) => Err(AdminError::Unknown { reason: setback.reason }),
        }
    }

    /// The replicas of the one broker group that is meant.
    async fn replicas(&self, deadline: Instant) -> Result<Arc<Replicas>, CallFailure> {
        let mut groups = self.all_replicas(deadline).await?;
        if groups.len() > 1 {
            let names: Vec<&str> = groups.iter().map(|replicas| replicas.name().group.as_str()).collect();
            let message = format!("there are several broker groups: {}; say which one is meant", names.join(", "));
            return Err(CallFailure::Rejected(Rejection { code: Code::BadRequest as i32, message }));
        }
        Ok(groups.remove(0))
    }

    /// The replicas of each broker group that is meant, by name; one group at least.
    pub(crate) async fn all_replicas(&self, deadline: Instant) -> Result<Vec<Arc<Replicas>>, CallFailure> {
        let shared = self.shared();
        loop {
            let reason = match self.find_replicas().await {
                Ok(groups) => return Ok(groups),
                Err(reason) => reason,
            };
            if shared.runtime.now() + ASK_AGAIN >= deadline {
                return Err(CallFailure::NotExecuted { attempts: 0, reason });
            }
            shared.runtime.sleep(ASK_AGAIN).await;
        }
    }

    async fn find_replicas(&self) -> Result<Vec<Arc<Replicas>>, String> {
        let groups = self.known_groups().await?;
        let Some(target) = &self.target else { return Ok(groups) };
        let names: Vec<String> = groups.iter().map(|replicas| replicas.name().group.clone()).collect();
        let wanted: Vec<_> = groups.into_iter().filter(|replicas| replicas.name().group == *target).collect();
        if wanted.is_empty() {
            return Err(format!("broker group '{target}' is not known, there are: {}", names.join(", ")));
        }
        Ok(wanted)
    }

    async fn known_groups(&self) -> Result<Vec<Arc<Replicas>>, String> {
        let shared = self.shared();
        if shared.config.namesrv.is_empty() {
            let mut groups = BTreeMap::new();
            for address in &shared.config.endpoints {
                for replicas in shared.ask_groups(address, shared.config.attempt_timeout).await {
                    groups.insert(replicas.name().clone(), replicas);
                }
                if !groups.is_empty() {
                    return Ok(groups.into_values().collect());
                }
            }
            // None says who its peers are: the endpoints themselves are what there is.
            let name = BrokerGroupName { cluster: String::new(), group: String::new() };
            let replicas = shared.routes.replicas(name, Vec::new());
            replicas.set_addresses(shared.config.endpoints.clone());
            return Ok(vec![replicas]);
        }
        let rows = self.brokers().await.map_err(|error| error.to_string())?;
        let groups = shared.registered_groups(rows);
        if groups.is_empty() { Err("no broker is registered with the namesrv".to_owned()) } else { Ok(groups) }
    }
}

/// How new a row is: the life of its group, the term, the version.
fn freshness(row: &namesrv::BrokerRow) -> Option<(&str, u64, u64)> {
    row.registration.as_ref().map(|at| (at.group_incarnation.as_str(), at.term, at.version))
}

fn debug_request(topic: Option<&TopicName>) -> admin::DebugRequest {
    admin::DebugRequest { topic: topic.map(TopicName::to_string).unwrap_or_default(), without_queues: false }
}

/// A removal that was repeated after an unknown attempt finds nothing left: that is what was wanted.
fn gone(removed: Result<(), CallFailure>, not_found: Code) -> Result<(), AdminError> {
    match removed {
        Err(CallFailure::Unknown { rejection: Some(rejection), .. }) if rejection.is(not_found) => Ok(()),
        other => other.map_err(error_of),
    }
}

pub(crate) fn error_of(failure: CallFailure) -> AdminError {
    match failure {
        CallFailure::Rejected(Rejection { code, message }) => AdminError::Rejected { code, message },
        CallFailure::NotExecuted { reason, .. } => AdminError::Unavailable { reason },
        CallFailure::Unknown { reason, .. } => AdminError::Unknown { reason },
    }
}
