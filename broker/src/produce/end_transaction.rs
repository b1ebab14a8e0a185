//! EndTransaction: the producer of a half message commits it or rolls it back.

use std::sync::Arc;

use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, v2};
use flotilla_store::{Command, Outcome, Rejection};

use super::held_handle::{HeldHandle, HeldKind};
use super::level::{answer_when, check_level, committed_level, level_of, shortfall_status};
use super::send::no_topic;
use crate::edge::names;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::lead::pending_entry::AnswerWhen;
use crate::replica::Replica;

/// The call.
pub struct EndTransaction;

impl LeaderCall for EndTransaction {
    type Request = v2::EndTransactionRequest;
    type Answer = v2::EndTransactionResponse;
    const METHOD: &'static str = "EndTransaction";

    /// The store remembers how the last ones ended.
    fn is_idempotent(_: &v2::EndTransactionRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &v2::EndTransactionRequest,
        attempt: Attempt,
    ) -> Tried<v2::EndTransactionResponse> {
        let handle = match read_handle(replica, context, request) {
            Ok(handle) => handle,
            Err(refusal) => return Tried::answer(answer(refusal)),
        };
        let commit = match request.resolution() {
            v2::TransactionResolution::Commit => true,
            v2::TransactionResolution::Rollback => false,
            // The producer does not know yet: it will be asked again.
            v2::TransactionResolution::Unspecified => return Tried::answer(answer(ok())),
        };
        end(replica, attempt, &handle, commit).await.map_answer(answer)
    }

    fn refusal(_: &v2::EndTransactionRequest, status: v2::Status) -> v2::EndTransactionResponse {
        answer(status)
    }
}

/// Ends a transaction; the status says what came of it.
pub async fn end(replica: &Replica, attempt: Attempt, handle: &HeldHandle, commit: bool) -> Tried<v2::Status> {
    let command = Command::EndTransaction { topic: handle.topic.clone(), message: handle.message, commit };
    let prepared_at_ms = replica.store.prepared_at_ms(handle.message);
    // A commit is what the send was meant for, so it is answered as one.
    let topic = replica.store.topic(&handle.topic).map(|info| info.level).unwrap_or_default();
    let level = committed_level(level_of(&replica.config, topic));
    if commit && let Err(refusal) = check_level(replica, level) {
        return Tried::answer(refusal);
    }
    let when = if commit { answer_when(replica.config.raft_durability, level) } else { AnswerWhen::Applied };
    match replica.proposer.submit_at(attempt.term, command, when).await {
        Ok(settled) => Tried::answer(match settled.outcome {
            Outcome::TransactionEnded { repeated, .. } => {
                if !repeated {
                    let now_ms = replica.clock.now_ms(attempt.term, &replica.store);
                    let open_ms = prepared_at_ms.map(|at_ms| now_ms.saturating_sub(at_ms));
                    replica.counters.transaction_ended(&handle.topic, commit, open_ms);
                }
                settled.shortfall.as_ref().map_or_else(ok, |failure| shortfall_status(level, failure))
            }
            Outcome::Rejected(Rejection::TopicNotFound) => no_topic(&handle.topic),
            Outcome::Rejected(
                rejection @ (Rejection::TransactionNotFound | Rejection::TransactionEndedOtherwise { .. }),
            ) => status(Code::InvalidTransactionId, format!("message {}: {rejection}", handle.message_id)),
            Outcome::Rejected(other) => status(Code::InternalServerError, other.to_string()),
            other => unreachable!("the end of a transaction is answered by one, not {other:?}"),
        }),
        Err(error) => Tried::from_submit(error, |status| status),
    }
}

fn answer(status: v2::Status) -> v2::EndTransactionResponse {
    v2::EndTransactionResponse { status: Some(status) }
}

fn read_handle(
    replica: &Replica,
    context: &CallContext,
    request: &v2::EndTransactionRequest,
) -> Result<HeldHandle, v2::Status> {
    let topic = names::topic(context, request.topic.as_ref())?;
    let refuse = |text: String| status(Code::InvalidTransactionId, format!("transaction id: {text}"));
    let handle = HeldHandle::of_topic(&request.transaction_id, &replica.config.group, &topic).map_err(refuse)?;
    match handle.kind {
        HeldKind::Transaction => Ok(handle),
        HeldKind::Recall(_) => Err(refuse("it is a recall handle".to_owned())),
    }
}
