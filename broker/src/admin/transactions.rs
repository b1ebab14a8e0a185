//! Open transactions: which there are, and their end by an operator's word.

use std::sync::Arc;

use flotilla_message::TopicName;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::HalfMessage;

use super::messages::count_of;
use crate::consume::frames::{FrameReadError, Frames};
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::produce::end_transaction::end;
use crate::produce::held_handle::{HeldHandle, HeldKind};
use crate::replica::Replica;

/// Shows the oldest open transactions.
pub struct ListTransactions;

impl LeaderCall for ListTransactions {
    type Request = admin::ListTransactionsRequest;
    type Answer = admin::ListTransactionsReply;
    const METHOD: &'static str = "ListTransactions";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent(_: &admin::ListTransactionsRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::ListTransactionsRequest,
        _attempt: Attempt,
    ) -> Tried<admin::ListTransactionsReply> {
        let halves = match request.parked_only {
            true => replica.store.parked_halves(count_of(request.count)),
            false => replica.store.open_halves(count_of(request.count)),
        };
        let mut transactions = Vec::with_capacity(halves.len());
        for half in &halves {
            match shown(replica, half).await {
                Ok(open) => transactions.push(open),
                Err(error) => {
                    let refusal = status(Code::InternalServerError, error.to_string());
                    return Tried::answer(Self::refusal(request, refusal));
                }
            }
        }
        let (open_count, parked_count) = replica.store.half_counts();
        Tried::answer(admin::ListTransactionsReply {
            status: Some(ok()),
            transactions,
            open_count: open_count as u64,
            parked_count: parked_count as u64,
        })
    }

    fn refusal(_: &admin::ListTransactionsRequest, status: v2::Status) -> admin::ListTransactionsReply {
        admin::ListTransactionsReply { status: Some(status), ..Default::default() }
    }
}

async fn shown(replica: &Replica, half: &HalfMessage) -> Result<admin::OpenTransaction, FrameReadError> {
    let frame = Frames::new(replica).frame(&half.slot).await?;
    let handle = HeldHandle::of_half(&replica.config.group, half, frame.message_id());
    Ok(admin::OpenTransaction {
        topic: half.topic.to_string(),
        queue: half.queue.0,
        message_id: frame.id().to_owned(),
        transaction_id: handle.to_text(),
        checks: half.checks,
        parked: half.is_parked,
        prepared_at_ms: half.slot.stored_at_ms,
    })
}

/// Commits or rolls back in the producer's place.
pub struct ResolveTransaction;

impl LeaderCall for ResolveTransaction {
    type Request = admin::ResolveTransactionRequest;
    type Answer = admin::ResolveTransactionReply;
    const METHOD: &'static str = "ResolveTransaction";

    /// The store remembers how the last ones ended.
    fn is_idempotent(_: &admin::ResolveTransactionRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::ResolveTransactionRequest,
        attempt: Attempt,
    ) -> Tried<admin::ResolveTransactionReply> {
        let answer = |status| admin::ResolveTransactionReply { status: Some(status) };
        let handle = HeldHandle::of_group(&request.transaction_id, &replica.config.group);
        let handle = match handle {
            Ok(handle) if handle.kind == HeldKind::Transaction => handle,
            Ok(_) => {
                let text = "transaction id: it is a recall handle";
                return Tried::answer(answer(status(Code::InvalidTransactionId, text)));
            }
            Err(text) => {
                return Tried::answer(answer(status(Code::InvalidTransactionId, format!("transaction id: {text}"))));
            }
        };
        let topic: &TopicName = &handle.topic;
        tracing::info!(%topic, id = %handle.message_id, commit = request.commit, "transaction ended by an operator");
        end(replica, attempt, &handle, request.commit).await.map_answer(answer)
    }

    fn refusal(_: &admin::ResolveTransactionRequest, status: v2::Status) -> admin::ResolveTransactionReply {
        admin::ResolveTransactionReply { status: Some(status) }
    }
}
