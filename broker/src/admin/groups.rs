//! Making, dropping and looking at consumer groups.

use std::sync::Arc;

use flotilla_message::{GroupName, QueueId, TopicName, limits};
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::{Command, GroupChange, GroupInfo, Outcome, Rejection, StartPolicy, StoreError};

use super::topics::rejected;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

fn shown(info: &GroupInfo) -> admin::Group {
    let (start, start_timestamp_ms) = match info.start {
        StartPolicy::First => (admin::StartPolicy::First, 0),
        StartPolicy::Last => (admin::StartPolicy::Last, 0),
        StartPolicy::TimestampMs(ms) => (admin::StartPolicy::Timestamp, ms),
    };
    admin::Group {
        name: info.name.to_string(),
        order: info.order,
        max_deliveries: info.max_deliveries,
        start: start.into(),
        start_timestamp_ms,
        paused: info.is_paused,
        retry_pauses_ms: info.retry_pauses_ms.clone(),
    }
}

/// The answer about a group that does not exist.
pub fn no_group(group: &GroupName) -> v2::Status {
    status(Code::ConsumerGroupNotFound, format!("consumer group '{group}' does not exist"))
}

fn command_for(group: Option<&admin::Group>, max_deliveries_default: u32) -> Result<(GroupName, Command), v2::Status> {
    let Some(group) = group else {
        return Err(status(Code::BadRequest, "request names no group"));
    };
    let name = GroupName::try_from(group.name.as_str()).map_err(|error| error.status())?;
    let max_deliveries = match group.max_deliveries {
        0 => max_deliveries_default,
        count if count <= limits::MAX_DELIVERIES_MAX => count,
        count => {
            let text = format!("group has {count} deliveries; 1 to {} are allowed", limits::MAX_DELIVERIES_MAX);
            return Err(status(Code::BadRequest, text));
        }
    };
    let start = match group.start() {
        admin::StartPolicy::Unspecified | admin::StartPolicy::First => StartPolicy::First,
        admin::StartPolicy::Last => StartPolicy::Last,
        admin::StartPolicy::Timestamp => StartPolicy::TimestampMs(group.start_timestamp_ms),
    };
    Ok((name.clone(), Command::CreateGroup { name, order: group.order, max_deliveries, start }))
}

/// Makes a consumer group.
pub struct CreateGroup;

impl LeaderCall for CreateGroup {
    type Request = admin::CreateGroupRequest;
    type Answer = admin::CreateGroupReply;
    const METHOD: &'static str = "CreateGroup";

    fn is_idempotent(_: &admin::CreateGroupRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::CreateGroupRequest,
        attempt: Attempt,
    ) -> Tried<admin::CreateGroupReply> {
        let refuse = |status| admin::CreateGroupReply { status: Some(status), ..Default::default() };
        let (name, command) = match command_for(request.group.as_ref(), replica.config.max_deliveries) {
            Ok(pair) => pair,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let began = replica.runtime.now();
        let outcome = match replica.settle(attempt.term, command).await {
            Ok(settled) => settled.outcome,
            Err(error) => return Tried::from_submit(error, refuse),
        };
        let existed = match outcome {
            Outcome::GroupCreated { .. } => {
                replica.counters.making_took(false, replica.runtime.now() - began);
                false
            }
            Outcome::Rejected(Rejection::GroupExists { same: true }) => !attempt.is_repeated,
            Outcome::Rejected(Rejection::GroupExists { same: false }) => {
                let text = format!("consumer group '{name}' exists already with other settings; delete it first");
                return Tried::answer(refuse(status(Code::BadRequest, text)));
            }
            Outcome::Rejected(rejection) => return Tried::answer(refuse(rejected(&rejection))),
            other => unreachable!("making a group is not answered by {other:?}"),
        };
        let group = replica.store.group(&name).map(|info| shown(&info));
        Tried::answer(admin::CreateGroupReply { status: Some(ok()), group, existed })
    }

    fn refusal(_: &admin::CreateGroupRequest, status: v2::Status) -> admin::CreateGroupReply {
        admin::CreateGroupReply { status: Some(status), ..Default::default() }
    }
}

/// Drops a consumer group and its progress.
pub struct DeleteGroup;

impl LeaderCall for DeleteGroup {
    type Request = admin::DeleteGroupRequest;
    type Answer = admin::DeleteGroupReply;
    const METHOD: &'static str = "DeleteGroup";

    fn is_idempotent(_: &admin::DeleteGroupRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::DeleteGroupRequest,
        attempt: Attempt,
    ) -> Tried<admin::DeleteGroupReply> {
        let answer = |status| admin::DeleteGroupReply { status: Some(status) };
        let name = match GroupName::try_from(request.name.as_str()) {
            Ok(name) => name,
            Err(error) => return Tried::answer(answer(error.status())),
        };
        match replica.settle(attempt.term, Command::DeleteGroup { name: name.clone() }).await {
            Ok(settled) => Tried::answer(answer(match settled.outcome {
                Outcome::GroupDeleted => ok(),
                // An earlier try of this very call did it.
                Outcome::Rejected(Rejection::GroupNotFound) if attempt.is_repeated => ok(),
                Outcome::Rejected(Rejection::GroupNotFound) => no_group(&name),
                Outcome::Rejected(rejection) => rejected(&rejection),
                other => unreachable!("dropping a group is not answered by {other:?}"),
            })),
            Err(error) => Tried::from_submit(error, answer),
        }
    }

    fn refusal(_: &admin::DeleteGroupRequest, status: v2::Status) -> admin::DeleteGroupReply {
        admin::DeleteGroupReply { status: Some(status) }
    }
}

/// One consumer group and how far it is in each queue it has met.
pub struct DescribeGroup;

impl LeaderCall for DescribeGroup {
    type Request = admin::DescribeGroupRequest;
    type Answer = admin::DescribeGroupReply;
    const METHOD: &'static str = "DescribeGroup";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &admin::DescribeGroupRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::DescribeGroupRequest,
        _attempt: Attempt,
    ) -> Tried<admin::DescribeGroupReply> {
        let refuse = |status| admin::DescribeGroupReply { status: Some(status), ..Default::default() };
        let name = match GroupName::try_from(request.name.as_str()) {
            Ok(name) => name,
            Err(error) => return Tried::answer(refuse(error.status())),
        };
        Tried::answer(match replica.store.group(&name) {
            None => refuse(no_group(&name)),
            Some(info) => admin::DescribeGroupReply {
                status: Some(ok()),
                group: Some(shown(&info)),
                progress: progress(replica, &name),
                members: replica.lanes.members(&name, replica.runtime.now()),
                differing_topics: replica.lanes.differing_topics(&name, replica.runtime.now()),
            },
        })
    }

    fn refusal(_: &admin::DescribeGroupRequest, status: v2::Status) -> admin::DescribeGroupReply {
        admin::DescribeGroupReply { status: Some(status), ..Default::default() }
    }
}

fn progress(replica: &Replica, group: &GroupName) -> Vec<admin::GroupProgress> {
    let mut rows = Vec::new();
    for topic in replica.store.topics() {
        for queue in (0..topic.queue_count).map(QueueId) {
            match progress_in(replica, group, &topic.name, queue) {
                Ok(row) => rows.extend(row),
                // Files that cannot be read: the replica must not go on.
                Err(error) => replica.failure.set(error.to_string()),
            }
        }
    }
    rows
}

/// `None` if the group has not met the queue: what it would have to consume there depends on when it will.
fn progress_in(
    replica: &Replica,
    group: &GroupName,
    topic: &TopicName,
    queue: QueueId,
) -> Result<Option<admin::GroupProgress>, StoreError> {
    let store = &replica.store;
    let Some(progress) = store.progress(group, topic, queue)?.filter(|progress| progress.is_pinned) else {
        return Ok(None);
    };
    let (min, max) = store.queue_bounds(topic, queue).unwrap_or_default();
    let inflight_count = progress.inflight as u64;
    // Read after the position, the bounds can only be further on; by retention they can have passed it.
    let lag_messages = max.0.saturating_sub(progress.next_offset.0.max(min.0)) + inflight_count;
    let lag_ms = if lag_messages == 0 {
        Some(0)
    } else {
        let oldest = store.slots(topic, queue, progress.committed_offset, 1)?;
        oldest.first().map(|(_, slot)| store.log_time_ms().saturating_sub(slot.stored_at_ms))
    };
    Ok(Some(admin::GroupProgress {
        topic: topic.to_string(),
        queue: queue.0,
        committed_offset: progress.committed_offset.0,
        next_offset: progress.next_offset.0,
        inflight_count,
        max_offset: max.0,
        min_offset: min.0,
        lag_messages,
        lag_ms,
        ..Default::default()
    }))
}

/// Changes settings of a consumer group.
pub struct UpdateGroup;

impl LeaderCall for UpdateGroup {
    type Request = admin::UpdateGroupRequest;
    type Answer = admin::UpdateGroupReply;
    const METHOD: &'static str = "UpdateGroup";

    fn is_idempotent(_: &admin::UpdateGroupRequest) -> bool {
        false
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::UpdateGroupRequest,
        attempt: Attempt,
    ) -> Tried<admin::UpdateGroupReply> {
        let refuse = |status| admin::UpdateGroupReply { status: Some(status), ..Default::default() };
        let name = match GroupName::try_from(request.name.as_str()) {
            Ok(name) => name,
            Err(error) => return Tried::answer(refuse(error.status())),
        };
        let change = GroupChange {
            order: request.order,
            max_deliveries: request.max_deliveries,
            is_paused: request.paused,
            retry_pauses_ms: request.retry_pauses.as_ref().map(|pauses| pauses.ms.clone()),
        };
        if change == GroupChange::default() {
            return Tried::answer(refuse(status(Code::BadRequest, "nothing of the group is to be changed")));
        }
        let command = Command::UpdateGroup { name: name.clone(), change };
        match replica.settle(attempt.term, command).await {
            Ok(settled) => Tried::answer(match settled.outcome {
                Outcome::GroupUpdated => admin::UpdateGroupReply {
                    status: Some(ok()),
                    group: replica.store.group(&name).map(|info| shown(&info)),
                },
                Outcome::Rejected(Rejection::GroupNotFound) => refuse(no_group(&name)),
                Outcome::Rejected(rejection) => refuse(rejected(&rejection)),
                other => unreachable!("changing a group is not answered by {other:?}"),
            }),
            Err(error) => Tried::from_submit(error, refuse),
        }
    }

    fn refusal(_: &admin::UpdateGroupRequest, status: v2::Status) -> admin::UpdateGroupReply {
        admin::UpdateGroupReply { status: Some(status), ..Default::default() }
    }
}

/// All consumer groups by name.
pub struct ListGroups;

impl LeaderCall for ListGroups {
    type Request = admin::ListGroupsRequest;
    type Answer = admin::ListGroupsReply;
    const METHOD: &'static str = "ListGroups";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &admin::ListGroupsRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        _request: &admin::ListGroupsRequest,
        _attempt: Attempt,
    ) -> Tried<admin::ListGroupsReply> {
        let groups = replica.store.groups().iter().map(shown).collect();
        Tried::answer(admin::ListGroupsReply { status: Some(ok()), groups })
    }

    fn refusal(_: &admin::ListGroupsRequest, status: v2::Status) -> admin::ListGroupsReply {
        admin::ListGroupsReply { status: Some(status), ..Default::default() }
    }
}
