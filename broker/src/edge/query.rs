//! QueryRoute and QueryAssignment: answered from this replica's own state, or by the leader if the topic is news here.

use std::sync::Arc;

use flotilla_message::{Permission, TopicName};
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::TopicInfo;

use super::names;
use super::route::Caller;
use crate::consume::delivery::message_type;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

/// The call for the queues of a topic.
pub struct QueryRoute;

impl QueryRoute {
    /// The answer from what is applied here; `None` if the topic is not known here.
    pub fn answer_here(
        replica: &Replica,
        context: &CallContext,
        request: &v2::QueryRouteRequest,
    ) -> Option<v2::QueryRouteResponse> {
        let topic = match names::topic(context, request.topic.as_ref()) {
            Ok(topic) => topic,
            Err(refusal) => return Some(refuse_route(refusal)),
        };
        let info = replica.readable_topic(&topic)?;
        Some(route(replica, context, request, &info))
    }
}

fn route(
    replica: &Replica,
    context: &CallContext,
    request: &v2::QueryRouteRequest,
    info: &TopicInfo,
) -> v2::QueryRouteResponse {
    let echoed = request.topic.clone().unwrap_or_default();
    let message_queues = replica.routes().queues(
        caller(context),
        &echoed,
        message_type(info.message_type),
        info.queue_count,
        permission(info.permission),
    );
    v2::QueryRouteResponse { status: Some(ok()), message_queues }
}

fn caller(context: &CallContext) -> Caller<'_> {
    Caller { language: &context.language, user_agent: &context.user_agent }
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
        if let Some(answer) = QueryRoute::answer_here(replica, context, request) {
            return Tried::answer(answer);
        }
        let topic = match names::topic(context, request.topic.as_ref()) {
            Ok(topic) => topic,
            Err(refusal) => return Tried::answer(refuse_route(refusal)),
        };
        match replica.topic_or_made(context, &topic, None, attempt.term).await {
            Ok(Ok(info)) => Tried::answer(route(replica, context, request, &info)),
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
    pub fn answer_here(
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
        let info = replica.readable_topic(&topic)?;
        Some(assignment(replica, context, request, &topic, &info))
    }
}

fn assignment(
    replica: &Replica,
    context: &CallContext,
    request: &v2::QueryAssignmentRequest,
    topic: &TopicName,
    info: &TopicInfo,
) -> v2::QueryAssignmentResponse {
    match info.permission {
        Permission::ReadWrite | Permission::Read => {}
        Permission::Write | Permission::None => return refuse_assignment(no_readable_queue(topic)),
    }
    let echoed = request.topic.clone().unwrap_or_default();
    let assignments = replica.routes().assignments(
        caller(context),
        &echoed,
        message_type(info.message_type),
        permission(info.permission),
    );
    v2::QueryAssignmentResponse { status: Some(ok()), assignments }
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
        Tried::answer(QueryAssignment::answer_here(replica, context, request).unwrap_or_else(|| {
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
