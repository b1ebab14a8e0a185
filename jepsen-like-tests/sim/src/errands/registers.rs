//! Those who keep registers: where a group that consumes nothing stands in the queue of the doomed, written and read at any
//! replica. Each write has a value of its own.

use flotilla_checkers::{EventKind, Task};
use flotilla_proto::status::{Code, Consequence, consequence};
use flotilla_proto::v2;

use super::caller::Caller;
use super::producers::goes_on;
use super::topics::{BOOKMARKS, DOOMED};
use crate::broker_replica::resource;
use crate::replica::SendError;
use crate::workload::Closing;

/// Those who write and read one register.
pub(crate) const CLERKS: u64 = 2;
const REGISTER: &str = "bookmark";

fn queue() -> v2::MessageQueue {
    v2::MessageQueue { topic: Some(resource(DOOMED)), id: 0, ..Default::default() }
}

/// Writes and reads until sending closes; `number` is below [`CLERKS`].
pub(crate) async fn keep(mut caller: Caller, number: u64, closing: Closing) -> bool {
    let mut value = CLERKS + number;
    while goes_on(&mut caller, &closing).await {
        caller.turn();
        // A group stands nowhere behind the last message.
        if caller.rng.chance(500) && end_of(&mut caller).await.is_some_and(|end| value <= end) {
            write(&mut caller, value).await;
            value += CLERKS;
        } else {
            read(&mut caller).await;
        }
    }
    true
}

async fn end_of(caller: &mut Caller) -> Option<u64> {
    let request = v2::QueryOffsetRequest {
        message_queue: Some(queue()),
        query_offset_policy: v2::QueryOffsetPolicy::End.into(),
        timestamp: None,
    };
    let answer = caller
        .ask(move |messaging, context| Box::pin(async move { messaging.query_offset(context, request).await }))
        .await;
    let body = answer.ok().map(|reply| reply.body).filter(|body| is(body.status.as_ref(), Code::Ok));
    body.and_then(|body| u64::try_from(body.offset).ok())
}

async fn write(caller: &mut Caller, value: u64) {
    let task = Task::SetRegister { register: REGISTER.to_owned(), value };
    caller.record_task(EventKind::Invoke, task.clone());
    let request = v2::UpdateOffsetRequest {
        group: Some(resource(BOOKMARKS)),
        message_queue: Some(queue()),
        offset: i64::try_from(value).unwrap_or(i64::MAX),
    };
    let answer = caller
        .ask(move |messaging, context| Box::pin(async move { messaging.update_offset(context, request).await }))
        .await;
    let kind = match answer {
        Ok(reply) => match reply.body.status.map(|status| consequence(status.code)) {
            Some(Consequence::Done) => EventKind::Ok,
            Some(Consequence::NotDone) => EventKind::Fail,
            _ => EventKind::Unknown,
        },
        Err(SendError::Refused { .. }) => EventKind::Fail,
        Err(SendError::Unknown) => EventKind::Unknown,
    };
    caller.record_task(kind, task);
}

async fn read(caller: &mut Caller) {
    let task = |value| Task::ReadRegister { register: REGISTER.to_owned(), value };
    caller.record_task(EventKind::Invoke, task(None));
    let request = v2::GetOffsetRequest { group: Some(resource(BOOKMARKS)), message_queue: Some(queue()) };
    let answer = caller
        .ask(move |messaging, context| Box::pin(async move { messaging.get_offset(context, request).await }))
        .await;
    let body = answer.ok().map(|reply| reply.body);
    let (kind, value) = match body {
        Some(body) if is(body.status.as_ref(), Code::Ok) => (EventKind::Ok, u64::try_from(body.offset).ok()),
        // Nobody has written it yet.
        Some(body) if is(body.status.as_ref(), Code::OffsetNotFound) => (EventKind::Ok, None),
        _ => (EventKind::Fail, None),
    };
    caller.record_task(kind, task(value));
}

fn is(status: Option<&v2::Status>, code: Code) -> bool {
    status.is_some_and(|status| status.code == code as i32)
}
