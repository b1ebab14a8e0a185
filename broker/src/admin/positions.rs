//! Moving a group to another place in a topic: back to read again, forward to leave behind.

use std::sync::Arc;

use flotilla_message::{GroupName, QueueId, QueueOffset, TopicName};
use flotilla_proto::admin::reset_group_request::To;
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::{Command, OffsetTarget, Outcome, Rejection};

use super::groups::no_group;
use super::topics::rejected;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// Moves a group: in all queues by one entry, or in none.
pub struct ResetGroup;

impl LeaderCall for ResetGroup {
    type Request = admin::ResetGroupRequest;
    type Answer = admin::ResetGroupReply;
    const METHOD: &'static str = "ResetGroup";

    fn is_idempotent(_: &admin::ResetGroupRequest) -> bool {
        false
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::ResetGroupRequest,
        attempt: Attempt,
    ) -> Tried<admin::ResetGroupReply> {
        let refuse = |status| admin::ResetGroupReply { status: Some(status), queues: Vec::new() };
        let (group, topic, queues, to) = match asked(replica, request) {
            Ok(asked) => asked,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let (mut commands, mut before) = (Vec::new(), Vec::new());
        for queue in queues {
            let to = match looked_up(replica, &topic, queue, to) {
                Ok(to) => to,
                Err(refusal) => return Tried::answer(refuse(refusal)),
            };
            let progress = replica.store.progress(&group, &topic, queue).ok().flatten();
            let progress = progress.filter(|progress| progress.is_pinned);
            before.push((queue, progress.map(|progress| progress.committed_offset.0)));
            commands.push(Command::SetOffset { group: group.clone(), topic: topic.clone(), queue, to });
        }
        let settled = match replica.proposer.submit_all(attempt.term, commands).await {
            Ok(settled) => settled,
            Err(error) => return Tried::from_submit(error, refuse),
        };
        let mut rows = Vec::new();
        for ((queue, committed_before), settled) in before.into_iter().zip(settled) {
            match settled.outcome {
                Outcome::OffsetSet { next_offset } => {
                    rows.push(admin::ResetQueue { queue: queue.0, committed_before, offset: next_offset.0 });
                }
                // It was drained and is gone since: there is nothing to move.
                Outcome::Rejected(Rejection::QueueNotFound { .. }) => {}
                Outcome::Rejected(rejection) => return Tried::answer(refuse(rejected(&rejection))),
                other => unreachable!("setting an offset is not answered by {other:?}"),
            }
        }
        tracing::info!(%group, %topic, ?to, queues = rows.len(), "group moved");
        Tried::answer(admin::ResetGroupReply { status: Some(ok()), queues: rows })
    }

    fn refusal(_: &admin::ResetGroupRequest, status: v2::Status) -> admin::ResetGroupReply {
        admin::ResetGroupReply { status: Some(status), queues: Vec::new() }
    }
}

/// The place where a time is, so that no replica has to look for it while it applies. A time that no message has reached
/// stays a time: what is stored until the entry may be older than that.
fn looked_up(
    replica: &Replica,
    topic: &TopicName,
    queue: QueueId,
    to: OffsetTarget,
) -> Result<OffsetTarget, v2::Status> {
    let OffsetTarget::TimestampMs(at_ms) = to else { return Ok(to) };
    let found = replica.store.offset_at(topic, queue, at_ms).map_err(|error| {
        // Files that cannot be read: the replica must not go on.
        replica.failure.set(error.to_string());
        status(Code::InternalServerError, error.to_string())
    })?;
    let end = replica.store.queue_bounds(topic, queue).map(|(_, max)| max);
    Ok(found.filter(|found| end.is_some_and(|end| *found < end)).map_or(to, OffsetTarget::Offset))
}

type Asked = (GroupName, TopicName, std::iter::Map<std::ops::Range<u32>, fn(u32) -> QueueId>, OffsetTarget);

fn asked(replica: &Replica, request: &admin::ResetGroupRequest) -> Result<Asked, v2::Status> {
    let group = GroupName::try_from(request.group.as_str()).map_err(|error| error.status())?;
    let topic = TopicName::try_from(request.topic.as_str()).map_err(|error| error.status())?;
    replica.store.group(&group).ok_or_else(|| no_group(&group))?;
    let info = replica.store.topic(&topic).ok_or_else(|| no_topic(&topic))?;
    let to = match request.to {
        Some(To::First(_)) => OffsetTarget::First,
        Some(To::Last(_)) => OffsetTarget::Last,
        Some(To::TimestampMs(at_ms)) => OffsetTarget::TimestampMs(at_ms),
        Some(To::Offset(offset)) => OffsetTarget::Offset(QueueOffset(offset)),
        None => return Err(status(Code::BadRequest, "request does not say where to: first, last, a time, an offset")),
    };
    let queues = match request.queue {
        None => 0..info.queue_count,
        Some(queue) if queue < info.queue_count => queue..queue + 1,
        Some(queue) => {
            let text = format!("topic '{topic}' has no queue {queue}; it has {}, counted from 0", info.queue_count);
            return Err(status(Code::BadRequest, text));
        }
    };
    if let OffsetTarget::Offset(offset) = to {
        // All queues or none: checked before the first one is moved.
        for queue in queues.clone().map(QueueId) {
            let (min, max) = replica.store.queue_bounds(&topic, queue).unwrap_or_default();
            if offset > max {
                let text = format!("offset {offset} is not in queue {queue}, which has offsets {min} to {max}");
                return Err(status(Code::IllegalOffset, text));
            }
        }
    }
    Ok((group, topic, queues.map(QueueId as fn(u32) -> QueueId), to))
}
