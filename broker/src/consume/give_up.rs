//! ForwardMessageToDeadLetterQueue: a consumer gives up on a message it holds.

use std::sync::Arc;

use flotilla_proto::status::ok;
use flotilla_proto::{CallContext, v2};
use flotilla_store::{Command, Outcome};

use super::ack::{read_handle, rejected};
use crate::edge::names;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried, denied};
use crate::replica::Replica;

/// The call. How often it was delivered is the log's knowledge, not the caller's: what that says is not looked at.
pub struct ForwardToDeadLetters;

impl LeaderCall for ForwardToDeadLetters {
    type Request = v2::ForwardMessageToDeadLetterQueueRequest;
    type Answer = v2::ForwardMessageToDeadLetterQueueResponse;
    const METHOD: &'static str = "ForwardMessageToDeadLetterQueue";

    /// A delivery ends once.
    fn is_idempotent(_: &v2::ForwardMessageToDeadLetterQueueRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::ForwardMessageToDeadLetterQueueRequest,
        attempt: Attempt,
    ) -> Tried<v2::ForwardMessageToDeadLetterQueueResponse> {
        let handle = names::group(context, request.group.as_ref())
            .and_then(|group| read_handle(replica, &request.receipt_handle, &group));
        let handle = match handle {
            Ok(handle) => handle,
            Err(refusal) => return Tried::answer(answer(refusal)),
        };
        let command = Command::DeadLetter {
            group: handle.group.clone(),
            topic: handle.topic.clone(),
            queue: handle.queue,
            offset: handle.offset,
            seq: handle.sequence,
        };
        match replica.proposer.submit(attempt.term, command).await {
            Ok(settled) => Tried::answer(answer(match settled.outcome {
                Outcome::DeadLettered => {
                    replica.counters.given_up(&handle.group, &handle.topic);
                    ok()
                }
                Outcome::Rejected(rejection) => rejected(&rejection),
                other => unreachable!("giving up is not answered by {other:?}"),
            })),
            Err(error) => Tried::from_submit(error, answer),
        }
    }

    fn refusal(
        _: &v2::ForwardMessageToDeadLetterQueueRequest,
        status: v2::Status,
    ) -> v2::ForwardMessageToDeadLetterQueueResponse {
        answer(status)
    }

    /// An earlier try may have done it, or the receipt was over before: nobody knows.
    fn denial(answer: &v2::ForwardMessageToDeadLetterQueueResponse) -> Option<String> {
        denied(answer.status.as_ref())
    }
}

fn answer(status: v2::Status) -> v2::ForwardMessageToDeadLetterQueueResponse {
    v2::ForwardMessageToDeadLetterQueueResponse { status: Some(status) }
}
