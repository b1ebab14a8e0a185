//! Half messages: most are committed, some of them twice, some are rolled back, and a few are left to the check.

use std::sync::Arc;

use flotilla_checkers::{EventKind, Task};
use flotilla_proto::status::{Consequence, consequence};
use flotilla_proto::v2;

use super::pace::Pace;
use super::ways::{message, outcome, resource};
use super::{PATIENCE, RETRY_PAUSE, Shared, TRANSACTIONS};
use crate::body;
use crate::rng::Rng;

/// Does one transaction after the other until the load is over.
pub(super) async fn tell(shared: Arc<Shared>, pace: Arc<Pace>, number: u64) {
    let (process, mut rng) = (format!("teller-{number}"), shared.rng(1, number));
    while let Some(number) = pace.turn(&shared).await {
        let id = shared.id_of(number);
        let prepare = Task::Prepare { message_id: id.to_string() };
        shared.sent(&process, EventKind::Invoke, &id);
        shared.deed(&process, EventKind::Invoke, prepare.clone());
        let transaction = send_half(&shared, &mut rng, number).await;
        // Where it will stand nobody knows yet.
        shared.sent(&process, EventKind::Unknown, &id);
        let Some(transaction) = transaction else {
            shared.deed(&process, EventKind::Unknown, prepare);
            continue;
        };
        shared.deed(&process, EventKind::Ok, prepare);
        let is_commit = match rng.below(10) {
            0..7 => true,
            7..9 => false,
            _ => continue,
        };
        // Now and then as one whose check comes while its own word is under way.
        let times = if rng.below(10) < 3 { 2 } else { 1 };
        for _ in 0..times {
            end(&shared, &mut rng, &process, (number, &transaction), is_commit).await;
        }
    }
}

/// The transaction's id; none if nobody confirmed it in time.
async fn send_half(shared: &Shared, rng: &mut Rng, number: u64) -> Option<String> {
    let id = shared.id_of(number);
    let half = message(TRANSACTIONS, id.as_str(), v2::MessageType::Transaction, body::of_number(number));
    let deadline = shared.runtime.now() + PATIENCE;
    while shared.runtime.now() < deadline {
        let request = v2::SendMessageRequest { messages: vec![half.clone()] };
        let answer = shared.ways.ask(rng, |replica, _, options| replica.send_message(options, request)).await;
        if let Ok(reply) = answer {
            let is_done = |status: &v2::Status| consequence(status.code) == Consequence::Done;
            let is_stored = reply.body.status.as_ref().is_some_and(is_done);
            if let Some(entry) = reply.body.entries.into_iter().next().filter(|_| is_stored) {
                return Some(entry.transaction_id);
            }
        }
        shared.runtime.sleep(RETRY_PAUSE).await;
    }
    None
}

async fn end(shared: &Shared, rng: &mut Rng, process: &str, half: (u64, &str), is_commit: bool) {
    let (number, transaction) = half;
    let id = shared.id_of(number);
    let task = Task::EndTransaction { message_id: id.to_string(), commit: is_commit };
    shared.deed(process, EventKind::Invoke, task.clone());
    let resolution = if is_commit { v2::TransactionResolution::Commit } else { v2::TransactionResolution::Rollback };
    let deadline = shared.runtime.now() + PATIENCE;
    let mut kind = EventKind::Fail;
    while shared.runtime.now() < deadline {
        let request = v2::EndTransactionRequest {
            topic: Some(resource(TRANSACTIONS)),
            message_id: id.to_string(),
            transaction_id: transaction.to_owned(),
            resolution: resolution.into(),
            ..Default::default()
        };
        let answer = shared.ways.ask(rng, |replica, _, options| replica.end_transaction(options, request)).await;
        match outcome(answer.as_ref().map(|reply| reply.body.status.as_ref())) {
            EventKind::Ok => {
                if is_commit {
                    shared.expect(number);
                }
                return shared.deed(process, EventKind::Ok, task);
            }
            EventKind::Fail => {}
            EventKind::Unknown | EventKind::Invoke => kind = EventKind::Unknown,
        }
        shared.runtime.sleep(RETRY_PAUSE).await;
    }
    shared.deed(process, kind, task);
}
