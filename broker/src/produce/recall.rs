//! RecallMessage: a delayed message is taken back before it is due.

use std::sync::Arc;

use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::{Command, Outcome, Rejection};

use super::held_handle::{HeldHandle, HeldKind};
use super::send::no_topic;
use crate::edge::names;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

/// The call.
pub struct RecallMessage;

impl LeaderCall for RecallMessage {
    type Request = v2::RecallMessageRequest;
    type Answer = v2::RecallMessageResponse;
    const METHOD: &'static str = "RecallMessage";

    /// The store remembers the last recalls.
    fn is_idempotent(_: &v2::RecallMessageRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::RecallMessageRequest,
        attempt: Attempt,
    ) -> Tried<v2::RecallMessageResponse> {
        let (handle, due_ms) = match read_handle(replica, context, request) {
            Ok(read) => read,
            Err(refusal) => return Tried::answer(refuse(refusal)),
        };
        let command = Command::Recall { topic: handle.topic.clone(), due_ms, message: handle.message };
        match replica.proposer.submit(attempt.term, command).await {
            Ok(settled) => Tried::answer(match settled.outcome {
                Outcome::Recalled { .. } => {
                    v2::RecallMessageResponse { status: Some(ok()), message_id: handle.message_id.to_string() }
                }
                Outcome::Rejected(Rejection::TopicNotFound) => refuse(no_topic(&handle.topic)),
                Outcome::Rejected(rejection @ Rejection::NotWaiting) => {
                    let text = format!("message {} cannot be recalled: {rejection}", handle.message_id);
                    refuse(status(Code::MessageNotFound, text))
                }
                Outcome::Rejected(other) => refuse(status(Code::InternalServerError, other.to_string())),
                other => unreachable!("a recall is answered by an outcome of recall, not {other:?}"),
            }),
            Err(error) => Tried::from_submit(error, refuse),
        }
    }

    fn refusal(_: &v2::RecallMessageRequest, status: v2::Status) -> v2::RecallMessageResponse {
        refuse(status)
    }
}

fn refuse(status: v2::Status) -> v2::RecallMessageResponse {
    v2::RecallMessageResponse { status: Some(status), message_id: String::new() }
}

/// The handle, and the time for which it says that its message is due.
fn read_handle(
    replica: &Replica,
    context: &CallContext,
    request: &v2::RecallMessageRequest,
) -> Result<(HeldHandle, u64), v2::Status> {
    let topic = names::topic(context, request.topic.as_ref())?;
    let refuse = |text: String| status(Code::BadRequest, format!("recall {text}"));
    let handle = HeldHandle::of_topic(&request.recall_handle, &replica.config.group, &topic).map_err(refuse)?;
    match handle.kind {
        HeldKind::Recall(due_ms) => Ok((handle, due_ms)),
        HeldKind::Transaction => Err(refuse("handle is a transaction id".to_owned())),
    }
}
