//! UpdateOffset, GetOffset, QueryOffset: where a group stands in a queue, and where a queue begins, ends, or was at a time.

use std::sync::Arc;

use flotilla_message::{GroupName, QueueId, QueueOffset, TopicName};
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::{Command, OffsetTarget, Outcome, Rejection};

use crate::admin::groups::no_group;
use crate::admin::topics::rejected;
use crate::edge::names;
use crate::lead::leader_call::{Attempt, CONFIRM_MAX, LeaderCall, Tried, confirm_lead};
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// A queue that a request names, with its bounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NamedQueue {
    /// Its topic.
    pub topic: TopicName,
    /// Its number.
    pub queue: QueueId,
    /// Its oldest offset.
    pub min: QueueOffset,
    /// The offset that its next message gets.
    pub max: QueueOffset,
}

impl NamedQueue {
    /// Finds the queue that a request names; the status says why there is none.
    pub fn find(
        replica: &Replica,
        context: &CallContext,
        queue: Option<&v2::MessageQueue>,
    ) -> Result<NamedQueue, v2::Status> {
        let topic = names::topic(context, queue.and_then(|queue| queue.topic.as_ref()))?;
        let info = replica.readable_topic(&topic).ok_or_else(|| no_topic(&topic))?;
        let id = queue.map_or(0, |queue| queue.id);
        let queue = u32::try_from(id).ok().filter(|id| *id < info.queue_count).map(QueueId);
        let Some(queue) = queue else {
            let text = format!("topic '{topic}' has no queue {id}; it has {} queues, counted from 0", info.queue_count);
            return Err(status(Code::BadRequest, text));
        };
        // Dead letters that are still to come have a topic but no queue yet.
        let (min, max) = replica.store.queue_bounds(&topic, queue).unwrap_or_default();
        Ok(NamedQueue { topic, queue, min, max })
    }

    /// The status of an offset outside of the bounds, in the code that the caller knows.
    pub fn illegal_offset(&self, context: &CallContext, offset: i64) -> v2::Status {
        let text = format!(
            "offset {offset} is not in queue {} of topic '{}', which has offsets {} to {}",
            self.queue, self.topic, self.min, self.max
        );
        status(names::known_code(context, Code::IllegalOffset), text)
    }
}

/// A number as the protocol has it.
pub fn wire_offset(offset: QueueOffset) -> i64 {
    i64::try_from(offset.0).unwrap_or(i64::MAX)
}

/// Sets where a group stands in a queue.
pub struct UpdateOffset;

impl LeaderCall for UpdateOffset {
    type Request = v2::UpdateOffsetRequest;
    type Answer = v2::UpdateOffsetResponse;
    const METHOD: &'static str = "UpdateOffset";

    fn is_idempotent(_: &v2::UpdateOffsetRequest) -> bool {
        false
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::UpdateOffsetRequest,
        attempt: Attempt,
    ) -> Tried<v2::UpdateOffsetResponse> {
        let answer = |status| v2::UpdateOffsetResponse { status: Some(status) };
        let checked = names::group(context, request.group.as_ref()).and_then(|group| {
            let named = NamedQueue::find(replica, context, request.message_queue.as_ref())?;
            let offset = u64::try_from(request.offset).ok().filter(|offset| *offset <= named.max.0);
            let offset = offset.ok_or_else(|| named.illegal_offset(context, request.offset))?;
            Ok((group, named, QueueOffset(offset)))
        });
        let (group, named, offset) = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Tried::answer(answer(refusal)),
        };
        match replica.group_or_made(context, &group, attempt.term).await {
            Ok(Ok(_)) => {}
            Ok(Err(refusal)) => return Tried::answer(answer(refusal)),
            Err(error) => return Tried::from_submit(error, answer),
        }
        if let Err(error) = replica.dead_letters_or_made(&named.topic, attempt.term).await {
            return Tried::from_submit(error, answer);
        }
        if stands_at(replica, &group, &named, offset) {
            // A consumer says again what is known, unless another leader knows better.
            if let Err(tried) = confirm_lead(replica, CONFIRM_MAX).await {
                return tried;
            }
            if stands_at(replica, &group, &named, offset) {
                return Tried::answer(answer(ok()));
            }
        }
        let (topic, queue, to) = (named.topic.clone(), named.queue, OffsetTarget::Offset(offset));
        match replica.proposer.submit(attempt.term, Command::SetOffset { group, topic, queue, to }).await {
            Ok(settled) => Tried::answer(answer(match settled.outcome {
                Outcome::OffsetSet { .. } => ok(),
                Outcome::Rejected(Rejection::OffsetOutOfRange { .. }) => named.illegal_offset(context, request.offset),
                Outcome::Rejected(rejection) => rejected(&rejection),
                other => unreachable!("setting an offset is not answered by {other:?}"),
            })),
            Err(error) => Tried::from_submit(error, answer),
        }
    }

    fn refusal(_: &v2::UpdateOffsetRequest, status: v2::Status) -> v2::UpdateOffsetResponse {
        v2::UpdateOffsetResponse { status: Some(status) }
    }
}

/// Whether the log says already that the group stands there with nothing in flight.
fn stands_at(replica: &Replica, group: &GroupName, named: &NamedQueue, offset: QueueOffset) -> bool {
    let progress = replica.store.progress(group, &named.topic, named.queue);
    progress.is_ok_and(|progress| {
        progress.is_some_and(|progress| {
            progress.is_pinned && progress.inflight == 0 && progress.next_offset == offset.max(named.min)
        })
    })
}

/// Where a group stands in a queue: everything below is consumed.
pub struct GetOffset;

impl LeaderCall for GetOffset {
    type Request = v2::GetOffsetRequest;
    type Answer = v2::GetOffsetResponse;
    const METHOD: &'static str = "GetOffset";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &v2::GetOffsetRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::GetOffsetRequest,
        _attempt: Attempt,
    ) -> Tried<v2::GetOffsetResponse> {
        let refuse = |status| v2::GetOffsetResponse { status: Some(status), offset: 0 };
        let checked = names::group(context, request.group.as_ref()).and_then(|group| {
            let named = NamedQueue::find(replica, context, request.message_queue.as_ref())?;
            match replica.store.group(&group) {
                Some(_) => Ok((group, named)),
                None if replica.config.auto_create_groups => Err(no_offset(context, &group, &named)),
                None => Err(no_group(&group)),
            }
        });
        let (group, named) = match checked {
            Ok(checked) => checked,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        match replica.store.progress(&group, &named.topic, named.queue) {
            Ok(Some(progress)) if progress.is_pinned => Tried::answer(v2::GetOffsetResponse {
                status: Some(ok()),
                offset: wire_offset(progress.committed_offset),
            }),
            Ok(_) => Tried::answer(refuse(no_offset(context, &group, &named))),
            Err(error) => {
                // Files that cannot be read: the replica must not go on.
                replica.failure.set(error.to_string());
                Tried::answer(refuse(status(Code::InternalServerError, error.to_string())))
            }
        }
    }

    fn refusal(_: &v2::GetOffsetRequest, status: v2::Status) -> v2::GetOffsetResponse {
        v2::GetOffsetResponse { status: Some(status), offset: 0 }
    }
}

fn no_offset(context: &CallContext, group: &GroupName, named: &NamedQueue) -> v2::Status {
    let text = format!("group '{group}' has not met queue {} of topic '{}' yet", named.queue, named.topic);
    status(names::known_code(context, Code::OffsetNotFound), text)
}

/// Where a queue begins, ends, or was at a time.
pub struct QueryOffset;

impl LeaderCall for QueryOffset {
    type Request = v2::QueryOffsetRequest;
    type Answer = v2::QueryOffsetResponse;
    const METHOD: &'static str = "QueryOffset";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &v2::QueryOffsetRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::QueryOffsetRequest,
        _attempt: Attempt,
    ) -> Tried<v2::QueryOffsetResponse> {
        let refuse = |status| v2::QueryOffsetResponse { status: Some(status), offset: 0 };
        let named = match NamedQueue::find(replica, context, request.message_queue.as_ref()) {
            Ok(named) => named,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let offset = match request.query_offset_policy() {
            v2::QueryOffsetPolicy::Beginning => named.min,
            v2::QueryOffsetPolicy::End => named.max,
            v2::QueryOffsetPolicy::Timestamp => {
                let Some(at_ms) = request.timestamp.as_ref().map(ceil_ms) else {
                    let text = "the offset at a time is asked for, but no time is named";
                    return Tried::answer(refuse(status(Code::BadRequest, text)));
                };
                match replica.store.offset_at(&named.topic, named.queue, at_ms) {
                    Ok(offset) => offset.unwrap_or(named.max),
                    Err(error) => {
                        replica.failure.set(error.to_string());
                        return Tried::answer(refuse(status(Code::InternalServerError, error.to_string())));
                    }
                }
            }
        };
        Tried::answer(v2::QueryOffsetResponse { status: Some(ok()), offset: wire_offset(offset) })
    }

    fn refusal(_: &v2::QueryOffsetRequest, status: v2::Status) -> v2::QueryOffsetResponse {
        v2::QueryOffsetResponse { status: Some(status), offset: 0 }
    }
}

/// The first full millisecond at or after a time; 0 for what lies before 1970.
fn ceil_ms(timestamp: &prost_types::Timestamp) -> u64 {
    let Ok(seconds) = u64::try_from(timestamp.seconds) else { return 0 };
    let nanos = u64::try_from(timestamp.nanos).unwrap_or(0);
    seconds.saturating_mul(1000).saturating_add(nanos.div_ceil(1_000_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_within_a_millisecond_means_the_next_one() {
        let at = |seconds, nanos| ceil_ms(&prost_types::Timestamp { seconds, nanos });
        assert_eq!((at(1, 0), at(1, 1), at(1, 1_000_000), at(-1, 5)), (1000, 1001, 1001, 0));
        assert_eq!(at(i64::MAX, 999_999_999), u64::MAX, "no overflow");
    }
}
