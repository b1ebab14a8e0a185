//! Making, dropping and looking at topics.

use std::sync::Arc;

use flotilla_message::{MessageType, Permission, TopicName, limits};
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_raft_log::Term;
use flotilla_store::{Command, Outcome, Rejection, TopicInfo};
use futures::future::join;
use tokio::sync::oneshot;

use super::{levels, placement, retention};
use crate::consume::delivery::message_type;
use crate::edge::query::permission;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::lead::proposer::{Settled, SubmitError};
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// What an operator may name a topic: not what the broker keeps for itself.
fn operators_topic(name: &str) -> Result<TopicName, v2::Status> {
    let topic = TopicName::try_from(name).map_err(|error| error.status())?;
    if topic.is_system() || topic.is_dead_letter() || topic.is_retry() {
        return Err(status(Code::IllegalTopic, format!("topic '{topic}' is kept for the broker itself")));
    }
    Ok(topic)
}

/// The status of a command that the store refused.
pub fn rejected(rejection: &Rejection) -> v2::Status {
    let code = match rejection {
        Rejection::TopicNotFound => Code::TopicNotFound,
        Rejection::GroupNotFound => Code::ConsumerGroupNotFound,
        Rejection::TopicExists { .. }
        | Rejection::GroupExists { .. }
        | Rejection::QueueNotFound { .. }
        | Rejection::QueueCountOutOfRange { .. }
        | Rejection::RetryPausesOutOfRange { .. }
        | Rejection::DedupWindowOutOfRange { .. }
        | Rejection::MaxDeliveriesOutOfRange { .. } => Code::BadRequest,
        Rejection::TopicNotWritable | Rejection::TopicNotReadable | Rejection::GroupPaused => Code::Forbidden,
        Rejection::SharesOutOfRange { .. } => Code::BadRequest,
        Rejection::SharesOutdated { .. } | Rejection::SharesNotMoving => Code::PreconditionFailed,
        Rejection::WriteWiped | Rejection::TopicMoving { .. } => Code::HaNotAvailable,
        Rejection::OffsetOutOfRange { .. } => Code::IllegalOffset,
        Rejection::TopicNotDrained { .. } => Code::PreconditionFailed,
        Rejection::TopicReplaced { .. } => Code::TopicNotFound,
        Rejection::NotConsumed { .. } => Code::MessageNotFound,
        Rejection::TooManyTopics | Rejection::TooManyGroups => Code::PreconditionFailed,
        Rejection::MessageTypeConflict { .. } | Rejection::NotPrepared | Rejection::NoTransactions { .. } => {
            Code::MessagePropertyConflictWithType
        }
        Rejection::TransactionNotFound | Rejection::TransactionEndedOtherwise { .. } => Code::InvalidTransactionId,
        Rejection::ReceiptStale | Rejection::DeliveryNotFound => Code::InvalidReceiptHandle,
        Rejection::TooManyDelayed | Rejection::TooManyHalves => Code::TooManyRequests,
        Rejection::NotWaiting => Code::MessageNotFound,
        Rejection::TermPassed { .. } => Code::HaNotAvailable,
        Rejection::TrimPassesReference { .. } | Rejection::TrimAhead { .. } => Code::PreconditionFailed,
        Rejection::Malformed { .. } | Rejection::StoreFailed { .. } => Code::InternalServerError,
    };
    status(code, rejection.to_string())
}

fn shown(name: &TopicName, info: &TopicInfo) -> admin::Topic {
    admin::Topic {
        name: name.to_string(),
        message_type: message_type(info.message_type).into(),
        queue_count: info.queue_count,
        permission: permission(info.permission).into(),
        writable_queues: info.writable_queues,
        incarnation: info.uid,
    }
}

/// A topic as an operator asked for it, with what was left out.
struct Asked {
    name: TopicName,
    message_type: MessageType,
    queue_count: u32,
    permission: Permission,
}

fn asked(topic: Option<&admin::Topic>) -> Result<Asked, v2::Status> {
    let Some(topic) = topic else {
        return Err(status(Code::BadRequest, "request names no topic"));
    };
    let name = operators_topic(&topic.name)?;
    let message_type = match topic.message_type() {
        v2::MessageType::Normal | v2::MessageType::Unspecified => MessageType::Normal,
        v2::MessageType::Fifo => MessageType::Fifo,
        v2::MessageType::Delay => MessageType::Delay,
        v2::MessageType::Transaction => MessageType::Transaction,
        other @ (v2::MessageType::Lite | v2::MessageType::Priority) => {
            let text = format!("message type {} is not supported", other.as_str_name());
            return Err(status(Code::Unsupported, text));
        }
    };
    let permission = asked_permission(topic.permission());
    let queue_count = match topic.queue_count {
        0 => limits::QUEUES_PER_TOPIC_DEFAULT,
        count if count <= limits::QUEUES_PER_TOPIC_MAX => count,
        count => {
            let text = format!("topic has {count} queues; 1 to {} are allowed", limits::QUEUES_PER_TOPIC_MAX);
            return Err(status(Code::BadRequest, text));
        }
    };
    Ok(Asked { name, message_type, queue_count, permission })
}

fn asked_permission(permission: v2::Permission) -> Permission {
    match permission {
        v2::Permission::ReadWrite | v2::Permission::Unspecified => Permission::ReadWrite,
        v2::Permission::Read => Permission::Read,
        v2::Permission::Write => Permission::Write,
        v2::Permission::None => Permission::None,
    }
}

/// Makes a topic.
pub struct CreateTopic;

impl LeaderCall for CreateTopic {
    type Request = admin::CreateTopicRequest;
    type Answer = admin::CreateTopicReply;
    const METHOD: &'static str = "CreateTopic";

    fn is_idempotent(_: &admin::CreateTopicRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::CreateTopicRequest,
        attempt: Attempt,
    ) -> Tried<admin::CreateTopicReply> {
        let refuse = |status| admin::CreateTopicReply { status: Some(status), ..Default::default() };
        let Asked { name, message_type, queue_count, permission } = match asked(request.topic.as_ref()) {
            Ok(asked) => asked,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let level = match levels::asked(replica, request) {
            Ok(level) => level,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let retention_ms = match retention::checked(replica, request.retention_ms) {
            Ok(retention_ms) => retention_ms,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let command = Command::CreateTopic { name: name.clone(), message_type, queue_count, permission };
        let began = replica.runtime.now();
        let created = replica.settle(attempt.term, command);
        let created = match request.shares.as_ref().map(placement::shares_of) {
            None => created.await,
            // Right behind it, in the same entry as a rule: nobody has sent to it in between.
            Some(shares) => {
                let command = Command::SetTopicShares { name: name.clone(), shares };
                let (created, placed) = join(created, replica.settle(attempt.term, command)).await;
                match placed.map(|placed| placed.outcome) {
                    Ok(Outcome::Rejected(rejection)) if matches!(&created, Ok(made) if !is_other(&made.outcome)) => {
                        return Tried::answer(refuse(rejected(&rejection)));
                    }
                    Ok(_) => created,
                    Err(error) if created.is_ok() => return Tried::from_later_submit(error),
                    Err(error) => return Tried::from_submit(error, refuse),
                }
            }
        };
        let outcome = match created {
            Ok(settled) => settled.outcome,
            Err(error) => return Tried::from_submit(error, refuse),
        };
        let existed = match outcome {
            Outcome::TopicCreated { .. } => {
                replica.counters.making_took(true, replica.runtime.now() - began);
                false
            }
            Outcome::Rejected(Rejection::TopicExists { same: true }) => !attempt.is_repeated,
            Outcome::Rejected(Rejection::TopicExists { same: false }) => {
                let text = format!("topic '{name}' exists already with other settings; delete it first");
                return Tried::answer(refuse(status(Code::BadRequest, text)));
            }
            Outcome::Rejected(rejection) => return Tried::answer(refuse(rejected(&rejection))),
            other => unreachable!("making a topic is not answered by {other:?}"),
        };
        if let Some(level) = level {
            match levels::set(replica, attempt.term, &name, level).await {
                Ok(Ok(())) => {}
                Ok(Err(Outcome::Rejected(rejection))) => return Tried::answer(refuse(rejected(&rejection))),
                Ok(Err(other)) => unreachable!("setting a level is not answered by {other:?}"),
                Err(error) => return Tried::from_later_submit(error),
            }
        }
        if retention_ms > 0 {
            match retention::set(replica, attempt.term, &name, retention_ms).await {
                Ok(Ok(())) => {}
                Ok(Err(Outcome::Rejected(rejection))) => return Tried::answer(refuse(rejected(&rejection))),
                Ok(Err(other)) => unreachable!("setting a retention is not answered by {other:?}"),
                Err(error) => return Tried::from_later_submit(error),
            }
        }
        let topic = replica.store.topic(&name).map(|info| shown(&name, &info));
        Tried::answer(admin::CreateTopicReply { status: Some(ok()), topic, existed })
    }

    fn refusal(_: &admin::CreateTopicRequest, status: v2::Status) -> admin::CreateTopicReply {
        admin::CreateTopicReply { status: Some(status), ..Default::default() }
    }
}

/// Nothing was made, and what is there is not what was asked for.
fn is_other(made: &Outcome) -> bool {
    matches!(made, Outcome::Rejected(rejection) if *rejection != Rejection::TopicExists { same: true })
}

/// Drops a topic and all its messages.
pub struct DeleteTopic;

impl LeaderCall for DeleteTopic {
    type Request = admin::DeleteTopicRequest;
    type Answer = admin::DeleteTopicReply;
    const METHOD: &'static str = "DeleteTopic";

    /// Only if it says which life of the topic is meant.
    fn is_idempotent(request: &admin::DeleteTopicRequest) -> bool {
        request.incarnation != 0
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::DeleteTopicRequest,
        attempt: Attempt,
    ) -> Tried<admin::DeleteTopicReply> {
        let answer = |status| admin::DeleteTopicReply { status: Some(status) };
        // Dead letters may go too; there is no other way to be rid of them.
        let name = match TopicName::try_from(request.name.as_str()) {
            Ok(name) => name,
            Err(error) => return Tried::answer(answer(error.status())),
        };
        // The one that is there now, if it was not said which: should the outcome stay unknown and the call be repeated,
        // it does not hit another one that was made meanwhile. Only a caller that names it is safe throughout.
        let uid = match (request.incarnation, replica.store.topic(&name)) {
            (0, Some(info)) => info.uid,
            (0, None) if attempt.is_repeated => return Tried::answer(answer(ok())),
            (0, None) => return Tried::answer(answer(no_topic(&name))),
            (uid, _) => uid,
        };
        match replica.settle(attempt.term, Command::DropTopic { name: name.clone(), uid }).await {
            Ok(settled) => Tried::answer(answer(match settled.outcome {
                Outcome::TopicDeleted => ok(),
                // An earlier try of this very call did it.
                Outcome::Rejected(Rejection::TopicNotFound | Rejection::TopicReplaced { .. })
                    if attempt.is_repeated && request.incarnation != 0 =>
                {
                    ok()
                }
                Outcome::Rejected(Rejection::TopicNotFound) if attempt.is_repeated => ok(),
                Outcome::Rejected(Rejection::TopicNotFound) => no_topic(&name),
                Outcome::Rejected(rejection) => rejected(&rejection),
                other => unreachable!("dropping a topic is not answered by {other:?}"),
            })),
            Err(error) => Tried::from_submit(error, answer),
        }
    }

    fn refusal(_: &admin::DeleteTopicRequest, status: v2::Status) -> admin::DeleteTopicReply {
        admin::DeleteTopicReply { status: Some(status) }
    }
}

/// Changes a topic.
pub struct UpdateTopic;

impl LeaderCall for UpdateTopic {
    type Request = admin::UpdateTopicRequest;
    type Answer = admin::UpdateTopicReply;
    const METHOD: &'static str = "UpdateTopic";

    fn is_idempotent(_: &admin::UpdateTopicRequest) -> bool {
        false
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::UpdateTopicRequest,
        attempt: Attempt,
    ) -> Tried<admin::UpdateTopicReply> {
        let refuse = |status| admin::UpdateTopicReply { status: Some(status), topic: None };
        let name = match operators_topic(&request.name) {
            Ok(name) => name,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        if request.queue_count.is_none() && request.permission.is_none() && request.retention_ms.is_none() {
            return Tried::answer(refuse(status(Code::BadRequest, "nothing of the topic is to be changed")));
        }
        if let Some(asked_ms) = request.retention_ms {
            let retention_ms = match retention::checked(replica, asked_ms) {
                Ok(retention_ms) => retention_ms,
                Err(refusal) => return Tried::answer(refuse(refusal)),
            };
            match retention::set(replica, attempt.term, &name, retention_ms).await {
                Ok(Ok(())) => {}
                Ok(Err(Outcome::Rejected(Rejection::TopicNotFound))) => return Tried::answer(refuse(no_topic(&name))),
                Ok(Err(Outcome::Rejected(rejection))) => return Tried::answer(refuse(rejected(&rejection))),
                Ok(Err(other)) => unreachable!("setting a retention is not answered by {other:?}"),
                Err(error) => return Tried::from_submit(error, refuse),
            }
            if request.queue_count.is_none() && request.permission.is_none() {
                let topic = replica.store.topic(&name).map(|info| shown(&name, &info));
                return Tried::answer(admin::UpdateTopicReply { status: Some(ok()), topic });
            }
        }
        if let Some(shares) = replica.store.topic_shares(&name).filter(|_| request.queue_count.is_some()) {
            let text = format!(
                "topic '{name}' is ordered and spread over {} broker groups; its queues change with: flotilla admin topic spread",
                shares.shares.len()
            );
            return Tried::answer(refuse(status(Code::PreconditionFailed, text)));
        }
        let permission = request.permission.map(|_| asked_permission(request.permission()));
        let command = Command::UpdateTopic { name: name.clone(), queue_count: request.queue_count, permission };
        match change(replica, attempt.term, &name, command).await {
            Ok(settled) => Tried::answer(match settled.outcome {
                Outcome::TopicUpdated { .. } => admin::UpdateTopicReply {
                    status: Some(ok()),
                    topic: replica.store.topic(&name).map(|info| shown(&name, &info)),
                },
                Outcome::Rejected(Rejection::TopicNotFound) => refuse(no_topic(&name)),
                Outcome::Rejected(rejection) => refuse(rejected(&rejection)),
                other => unreachable!("changing a topic is not answered by {other:?}"),
            }),
            Err(error) if request.retention_ms.is_some() => Tried::from_later_submit(error),
            Err(error) => Tried::from_submit(error, refuse),
        }
    }

    fn refusal(_: &admin::UpdateTopicRequest, status: v2::Status) -> admin::UpdateTopicReply {
        admin::UpdateTopicReply { status: Some(status), topic: None }
    }
}

/// Changes a topic, with what is ordered held back until that is applied: also if the caller is gone by then.
async fn change(
    replica: &Arc<Replica>,
    term: Term,
    name: &TopicName,
    command: Command,
) -> Result<Settled, SubmitError> {
    let moving = replica.queue_moves.begin(name);
    let settled = replica.proposer.submit(term, command);
    let (answer, answered) = oneshot::channel();
    let change = async move {
        let settled = settled.await;
        drop(moving);
        // The caller may have given up.
        let _ = answer.send(settled);
    };
    replica.runtime.spawn("change-topic", change).detach();
    answered.await.unwrap_or_else(|_| Err(SubmitError::Unknown("replica is stopping".to_owned())))
}

/// One topic with the bounds of its queues.
pub struct DescribeTopic;

impl LeaderCall for DescribeTopic {
    type Request = admin::DescribeTopicRequest;
    type Answer = admin::DescribeTopicReply;
    const METHOD: &'static str = "DescribeTopic";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &admin::DescribeTopicRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::DescribeTopicRequest,
        _attempt: Attempt,
    ) -> Tried<admin::DescribeTopicReply> {
        let refuse = |status| admin::DescribeTopicReply { status: Some(status), ..Default::default() };
        let name = match TopicName::try_from(request.name.as_str()) {
            Ok(name) => name,
            Err(error) => return Tried::answer(refuse(error.status())),
        };
        Tried::answer(match replica.store.topic(&name) {
            None => refuse(no_topic(&name)),
            Some(info) => {
                let mut reply = admin::DescribeTopicReply {
                    status: Some(ok()),
                    topic: Some(shown(&name, &info)),
                    queues: queue_bounds(replica, &name, &info),
                    shares: replica.store.topic_shares(&name).as_ref().map(placement::told),
                    ..Default::default()
                };
                levels::describe(replica, &info, &mut reply);
                retention::describe(replica, &info, &mut reply);
                reply
            }
        })
    }

    fn refusal(_: &admin::DescribeTopicRequest, status: v2::Status) -> admin::DescribeTopicReply {
        admin::DescribeTopicReply { status: Some(status), ..Default::default() }
    }
}

/// The bounds of all queues of a topic.
pub fn queue_bounds(replica: &Replica, name: &TopicName, info: &TopicInfo) -> Vec<admin::QueueBounds> {
    (0..info.queue_count)
        .filter_map(|queue| {
            let (min, max) = replica.store.queue_bounds(name, flotilla_message::QueueId(queue))?;
            Some(admin::QueueBounds { queue, min_offset: min.0, max_offset: max.0, ..Default::default() })
        })
        .collect()
}

/// A topic with the bounds of its queues, as the debug call shows it.
pub fn topic_state(replica: &Replica, name: &TopicName, info: &TopicInfo) -> admin::TopicState {
    admin::TopicState { topic: Some(shown(name, info)), queues: queue_bounds(replica, name, info) }
}

/// All topics by name.
pub struct ListTopics;

impl LeaderCall for ListTopics {
    type Request = admin::ListTopicsRequest;
    type Answer = admin::ListTopicsReply;
    const METHOD: &'static str = "ListTopics";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &admin::ListTopicsRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::ListTopicsRequest,
        _attempt: Attempt,
    ) -> Tried<admin::ListTopicsReply> {
        let topics = replica.store.topics();
        let wanted = topics.iter().filter(|info| request.with_system || !info.name.is_dead_letter());
        let topics = wanted.map(|info| shown(&info.name, info)).collect();
        Tried::answer(admin::ListTopicsReply { status: Some(ok()), topics })
    }

    fn refusal(_: &admin::ListTopicsRequest, status: v2::Status) -> admin::ListTopicsReply {
        admin::ListTopicsReply { status: Some(status), ..Default::default() }
    }
}
