//! Those who send: half messages and their ends, delayed messages, plain and ordered ones; and one who asks for ends.

use std::time::Duration;

use flotilla_checkers::{EventKind, QueueKey, Task};
use flotilla_proto::status::{Consequence, consequence};
use flotilla_proto::v2;
use flotilla_runtime::{Either, select};

use super::caller::Caller;
use super::topics::{ACCOUNTS, ALARMS, STEPS};
use crate::broker_replica::{message, resource};
use crate::executor::ms;
use crate::replica::SendError;
use crate::workload::Closing;

/// How long one send, or one end of a transaction, is tried.
const PATIENCE: Duration = ms(6_000);

/// A while between two errands; false if sending closes meanwhile.
pub(super) async fn goes_on(caller: &mut Caller, closing: &Closing) -> bool {
    let pause_ms = caller.rng.between(20, 150);
    matches!(select(closing.announced(), caller.runtime.sleep(ms(pause_ms))).await, Either::Right(()))
}

/// Sends half messages, commits most of them, some of them twice, and leaves a few to the check.
pub(crate) async fn tell(mut caller: Caller, closing: Closing) -> bool {
    while goes_on(&mut caller, &closing).await {
        let message_id = caller.next_id();
        let prepare = Task::Prepare { message_id: message_id.clone() };
        caller.record_send(EventKind::Invoke, &message_id, None);
        caller.record_task(EventKind::Invoke, prepare.clone());
        let half = message(ACCOUNTS, &message_id, v2::MessageType::Transaction, 20);
        let sent = caller.send(ACCOUNTS, half, PATIENCE).await;
        // Where it will stand nobody knows yet.
        caller.record_send(EventKind::Unknown, &message_id, None);
        let Ok((entry, _)) = sent else {
            caller.record_task(EventKind::Unknown, prepare);
            continue;
        };
        caller.record_task(EventKind::Ok, prepare);
        let commit = match caller.rng.below(10) {
            0..7 => true,
            7..9 => false,
            _ => continue,
        };
        end(&mut caller, &message_id, &entry.transaction_id, commit).await;
        if caller.rng.chance(300) {
            // As one whose check comes while its own word is under way.
            end(&mut caller, &message_id, &entry.transaction_id, commit).await;
        }
    }
    true
}

async fn end(caller: &mut Caller, message_id: &str, transaction_id: &str, commit: bool) {
    let task = Task::EndTransaction { message_id: message_id.to_owned(), commit };
    caller.record_task(EventKind::Invoke, task.clone());
    let resolution = if commit { v2::TransactionResolution::Commit } else { v2::TransactionResolution::Rollback };
    let deadline = caller.runtime.now() + PATIENCE;
    let mut is_unknown = false;
    while caller.runtime.now() < deadline {
        let request = v2::EndTransactionRequest {
            topic: Some(resource(ACCOUNTS)),
            message_id: message_id.to_owned(),
            transaction_id: transaction_id.to_owned(),
            resolution: resolution.into(),
            ..Default::default()
        };
        let answer = caller
            .ask(move |messaging, context| Box::pin(async move { messaging.end_transaction(context, request).await }))
            .await;
        let code = answer.as_ref().ok().and_then(|reply| reply.body.status.as_ref()).map(|status| status.code);
        match (code.map(consequence), answer.err()) {
            (Some(Consequence::Done), _) => return caller.record_task(EventKind::Ok, task),
            (Some(Consequence::Rejected), _) => {
                let kind = if is_unknown { EventKind::Unknown } else { EventKind::Fail };
                return caller.record_task(kind, task);
            }
            (Some(Consequence::NotDone), _) | (_, Some(SendError::Refused { .. })) => {}
            _ => is_unknown = true,
        }
        super::pause(&caller.runtime.clone(), 5, 60, caller).await;
    }
    caller.record_task(if is_unknown { EventKind::Unknown } else { EventKind::Fail }, task);
}

/// Sends messages that are to come a little later.
pub(crate) async fn delay(mut caller: Caller, closing: Closing) -> bool {
    while goes_on(&mut caller, &closing).await {
        let message_id = caller.next_id();
        let delay_ms = caller.rng.between(0, caller.delay_ms_max);
        let (due_ns, due_ms) = (caller.now_ns() + delay_ms * 1_000_000, caller.runtime.wall_ms() + delay_ms);
        let task = Task::Delay { message_id: message_id.clone(), due_ns };
        caller.record_send(EventKind::Invoke, &message_id, None);
        caller.record_task(EventKind::Invoke, task.clone());
        let mut delayed = message(ALARMS, &message_id, v2::MessageType::Delay, 20);
        if let Some(system) = &mut delayed.system_properties {
            system.delivery_timestamp = Some(prost_types::Timestamp {
                seconds: i64::try_from(due_ms / 1000).unwrap_or(i64::MAX),
                nanos: i32::try_from(due_ms % 1000).unwrap_or_default() * 1_000_000,
            });
        }
        let sent = caller.send(ALARMS, delayed, PATIENCE).await;
        caller.record_send(EventKind::Unknown, &message_id, None);
        let kind = if sent.is_ok() { EventKind::Ok } else { EventKind::Unknown };
        caller.record_task(kind, task);
    }
    true
}

/// Sends plain messages, or the steps of one message group; the last one must get through.
pub(crate) async fn store(mut caller: Caller, topic: &'static str, closing: Closing) -> bool {
    loop {
        let is_last = !goes_on(&mut caller, &closing).await;
        let message_id = caller.next_id();
        let mut sent = message(topic, &message_id, v2::MessageType::Normal, 20);
        if topic == STEPS
            && let Some(system) = &mut sent.system_properties
        {
            system.message_type = v2::MessageType::Fifo.into();
            system.message_group = Some(caller.process.clone());
        }
        caller.record_send(EventKind::Invoke, &message_id, None);
        let patience = if is_last { closing.deadline().unwrap_or(PATIENCE) } else { PATIENCE };
        let stored = caller.send(topic, sent, patience).await;
        match &stored {
            Ok((_, Some(placed))) => caller.record_send(EventKind::Ok, &message_id, Some(placed)),
            Ok((_, None)) | Err(SendError::Unknown) => caller.record_send(EventKind::Unknown, &message_id, None),
            Err(SendError::Refused { .. }) => caller.record_send(EventKind::Fail, &message_id, None),
        }
        if is_last {
            return stored.is_ok();
        }
    }
}

/// Asks now and then how far a queue reaches.
pub(crate) async fn ask_ends(mut caller: Caller, queues: Vec<QueueKey>, closing: Closing) -> bool {
    while goes_on(&mut caller, &closing).await {
        // Of whoever it may be: one of them may believe that it leads.
        caller.turn();
        let queue = caller.rng.pick(&queues).clone();
        caller.record_task(EventKind::Invoke, Task::AskEnd { queue: queue.clone(), end: None });
        let asked = v2::MessageQueue {
            topic: Some(resource(&queue.topic)),
            id: i32::try_from(queue.queue).unwrap_or_default(),
            ..Default::default()
        };
        let request = v2::QueryOffsetRequest {
            message_queue: Some(asked),
            query_offset_policy: v2::QueryOffsetPolicy::End.into(),
            timestamp: None,
        };
        let answer = caller
            .ask(move |messaging, context| Box::pin(async move { messaging.query_offset(context, request).await }))
            .await;
        let end = answer
            .ok()
            .map(|reply| reply.body)
            .filter(|body| body.status.as_ref().is_some_and(|status| consequence(status.code) == Consequence::Done));
        let end = end.and_then(|body| u64::try_from(body.offset).ok());
        let kind = if end.is_some() { EventKind::Ok } else { EventKind::Fail };
        caller.record_task(kind, Task::AskEnd { queue, end });
    }
    true
}
