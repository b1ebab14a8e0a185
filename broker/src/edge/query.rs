//! QueryRoute and QueryAssignment: answered from this replica's own state, or by the leader if the topic is news here.

use std::sync::Arc;

use flotilla_message::{Permission, TopicName};
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::TopicInfo;

use super::names;
use super::route::{Caller, Part, RoutePlan, assignments, queues};
use crate::consume::delivery::message_type;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

/// The call for the queues of a topic.
pub struct QueryRoute;

impl QueryRoute {
    /// The answer from what is applied here; `None` if the topic is not known here.
    pub async fn answer_here(
        replica: &Replica,
        context: &CallContext,
        request: &v2::QueryRouteRequest,
    ) -> Option<v2::QueryRouteResponse> {
        let topic = match names::topic(context, request.topic.as_ref()) {
            Ok(topic) => topic,
            Err(refusal) => return Some(refuse_route(refusal)),
        };
        let parts = parts(replica, &topic, replica.readable_topic(&topic).as_ref()).await;
        (!parts.is_empty()).then(|| route(context, request, &parts))
    }
}

fn route(context: &CallContext, request: &v2::QueryRouteRequest, parts: &[Part]) -> v2::QueryRouteResponse {
    let echoed = request.topic.clone().unwrap_or_default();
    v2::QueryRouteResponse { status: Some(ok()), message_queues: queues(caller(context), &echoed, parts) }
}

fn caller(context: &CallContext) -> Caller<'_> {
    Caller { language: &context.language, user_agent: &context.user_agent, is_ours: names::is_ours(context) }
}

/// What all broker groups have of a topic, in the order of their names; `info` is what this one has.
///
/// A group that takes no messages, because its write permission is wiped or because nobody leads it, is one to read from; if
/// nobody leads any that takes them, all are shown as they are, as some clients cannot bear a route without a writable queue.
async fn parts(replica: &Replica, topic: &TopicName, info: Option<&TopicInfo>) -> Vec<Part> {
    let own = info.map(|info| {
        let part = Part {
            plan: replica.routes(),
            queue_count: info.queue_count,
            permission: permission(replica.permission_in_force(info.permission)),
            message_type: message_type(info.message_type),
        };
        (replica.config.group.clone(), part, replica.is_leaderless())
    });
    let there = replica.cluster.topic(topic).await;
    if there.is_empty() {
        return own.into_iter().map(|(_, part, _)| part).collect();
    }
    let others = there.into_iter().filter_map(|there| {
        let group = replica.cluster.group(&there.group)?;
        let plan = RoutePlan::of_group(&group.name, group.advertise_name.as_deref(), &group.replicas);
        let part = Part {
            plan: Arc::new(plan),
            queue_count: there.queue_count,
            permission: permission(there.permission),
            message_type: message_type(there.message_type),
        };
        let is_leaderless = replica.cluster.is_leaderless(&group);
        Some((group.name, part, is_leaderless))
    });
    let mut all: Vec<(String, Part, bool)> = own.into_iter().chain(others).collect();
    all.sort_by(|(left, ..), (right, ..)| left.cmp(right));
    let writable = |part: &Part| matches!(part.permission, v2::Permission::ReadWrite | v2::Permission::Write);
    if all.iter().any(|(_, part, is_leaderless)| writable(part) && !is_leaderless) {
        for (_, part, _) in all.iter_mut().filter(|(_, _, is_leaderless)| *is_leaderless) {
            part.permission = without_write(part.permission);
        }
    }
    all.into_iter().map(|(_, part, _)| part).collect()
}

fn without_write(permission: v2::Permission) -> v2::Permission {
    match permission {
        v2::Permission::ReadWrite | v2::Permission::Read => v2::Permission::Read,
        v2::Permission::Write | v2::Permission::None | v2::Permission::Unspecified => v2::Permission::None,
    }
}

/// The number of `apache.rocketmq.v2` for a permission.
pub fn permission(permission: Permission) -> v2::Permission {
    match permission {
        Permission::ReadWrite => v2::Permission::ReadWrite,
        Permission::Read => v2::Permission::Read,
        Permission::Write => v2::Permission::Write,
        Permission::None => v2::Permission::None,
    }
}

impl LeaderCall for QueryRoute {
    type Request = v2::QueryRouteRequest;
    type Answer = v2::QueryRouteResponse;
    const METHOD: &'static str = "QueryRoute";

    fn is_idempotent(_: &v2::QueryRouteRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::QueryRouteRequest,
        attempt: Attempt,
    ) -> Tried<v2::QueryRouteResponse> {
        if let Some(answer) = QueryRoute::answer_here(replica, context, request).await {
            return Tried::answer(answer);
        }
        let topic = match names::topic(context, request.topic.as_ref()) {
            Ok(topic) => topic,
            Err(refusal) => return Tried::answer(refuse_route(refusal)),
        };
        match replica.topic_or_made(context, &topic, None, attempt.term).await {
            Ok(Ok(info)) => {
                let parts = parts(replica, &topic, Some(&info)).await;
                Tried::answer(route(context, request, &parts))
            }
            // Never OK with an empty list: some clients divide by its length.
            Ok(Err(refusal)) => Tried::answer(refuse_route(refusal)),
            Err(error) => Tried::from_submit(error, refuse_route),
        }
    }

    fn refusal(_: &v2::QueryRouteRequest, status: v2::Status) -> v2::QueryRouteResponse {
        refuse_route(status)
    }
}

fn refuse_route(status: v2::Status) -> v2::QueryRouteResponse {
    v2::QueryRouteResponse { status: Some(status), message_queues: Vec::new() }
}

/// The call for what a push consumer has to poll.
pub struct QueryAssignment;

impl QueryAssignment {
    /// The answer from what is applied here; `None` if the topic is not known here.
    pub async fn answer_here(
        replica: &Replica,
        context: &CallContext,
        request: &v2::QueryAssignmentRequest,
    ) -> Option<v2::QueryAssignmentResponse> {
        let checked =
            names::group(context, request.group.as_ref()).and_then(|_| names::topic(context, request.topic.as_ref()));
        let topic = match checked {
            Ok(topic) => topic,
            Err(refusal) => return Some(refuse_assignment(refusal)),
        };
        let parts = parts(replica, &topic, replica.readable_topic(&topic).as_ref()).await;
        (!parts.is_empty()).then(|| assignment(context, request, &topic, parts))
    }
}

fn assignment(
    context: &CallContext,
    request: &v2::QueryAssignmentRequest,
    topic: &TopicName,
    mut parts: Vec<Part>,
) -> v2::QueryAssignmentResponse {
    parts.retain(|part| matches!(part.permission, v2::Permission::ReadWrite | v2::Permission::Read));
    if parts.is_empty() {
        return refuse_assignment(no_readable_queue(topic));
    }
    let echoed = request.topic.clone().unwrap_or_default();
    v2::QueryAssignmentResponse { status: Some(ok()), assignments: assignments(caller(context), &echoed, &parts) }
}

/// The answer about a topic that may not be read.
pub fn no_readable_queue(topic: &TopicName) -> v2::Status {
    status(Code::Forbidden, format!("topic '{topic}' has no readable queue"))
}

impl LeaderCall for QueryAssignment {
    type Request = v2::QueryAssignmentRequest;
    type Answer = v2::QueryAssignmentResponse;
    const METHOD: &'static str = "QueryAssignment";

    fn is_idempotent(_: &v2::QueryAssignmentRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::QueryAssignmentRequest,
        _attempt: Attempt,
    ) -> Tried<v2::QueryAssignmentResponse> {
        Tried::answer(QueryAssignment::answer_here(replica, context, request).await.unwrap_or_else(|| {
            let name = request.topic.as_ref().map_or("", |topic| topic.name.as_str());
            refuse_assignment(status(Code::TopicNotFound, format!("topic '{name}' does not exist")))
        }))
    }

    fn refusal(_: &v2::QueryAssignmentRequest, status: v2::Status) -> v2::QueryAssignmentResponse {
        refuse_assignment(status)
    }
}

fn refuse_assignment(status: v2::Status) -> v2::QueryAssignmentResponse {
    v2::QueryAssignmentResponse { status: Some(status), assignments: Vec::new() }
}
