//! Moving a group to another place in a topic: back to read again, forward to leave behind.

use std::sync::Arc;

use flotilla_message::{GroupName, QueueId, QueueOffset, TopicName};
use flotilla_proto::admin::reset_group_request::To;
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::{Command, OffsetTarget, Outcome};
use futures::future::join_all;

use super::groups::no_group;
use super::topics::rejected;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// Moves a group, one replicated command for each queue.
pub struct ResetGroup;

impl LeaderCall for ResetGroup {
    type Request = admin::ResetGroupRequest;
    type Answer = admin::ResetGroupReply;
    const METHOD: &'static str = "ResetGroup";

    /// Not to the end: it may have moved meanwhile, and what came since would be left behind.
    fn is_idempotent(request: &admin::ResetGroupRequest) -> bool {
        !matches!(request.to, Some(To::Last(_)))
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
        let submitted = queues.map(|queue| {
            let before = replica.store.progress(&group, &topic, queue).ok().flatten();
            let before = before.filter(|progress| progress.is_pinned).map(|progress| progress.committed_offset.0);
            let command = Command::SetOffset { group: group.clone(), topic: topic.clone(), queue, to };
            let settled = replica.settle(attempt.term, command);
            async move { (queue, before, settled.await) }
        });
        let submitted: Vec<_> = submitted.collect();
        let mut rows = Vec::new();
        for (queue, committed_before, settled) in join_all(submitted).await {
            match settled.map(|settled| settled.outcome) {
                Ok(Outcome::OffsetSet { next_offset }) => {
                    rows.push(admin::ResetQueue { queue: queue.0, committed_before, offset: next_offset.0 });
                }
                Ok(Outcome::Rejected(rejection)) => return Tried::answer(refuse(rejected(&rejection))),
                Ok(other) => unreachable!("setting an offset is not answered by {other:?}"),
                // Some queues may be moved: the caller asks again, which is no harm.
                Err(error) => return Tried::from_submit(error, refuse),
            }
        }
        tracing::info!(%group, %topic, ?to, queues = rows.len(), "group moved");
        Tried::answer(admin::ResetGroupReply { status: Some(ok()), queues: rows })
    }

    fn refusal(_: &admin::ResetGroupRequest, status: v2::Status) -> admin::ResetGroupReply {
        admin::ResetGroupReply { status: Some(status), queues: Vec::new() }
    }
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
