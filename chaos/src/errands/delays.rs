//! Messages that are to come a little later.

use std::sync::Arc;

use flotilla_checkers::{EventKind, Task};
use flotilla_client::{OutgoingMessage, Producer};

use super::pace::Pace;
use super::{DELAYS, Shared, topic};
use crate::body;

/// Longest delay, milliseconds.
const DELAY_MS_MAX: u64 = 3_000;

/// Sends one after the other until the load is over.
pub(super) async fn delay(shared: Arc<Shared>, pace: Arc<Pace>, producer: Arc<Producer>, number: u64) {
    let (process, mut rng) = (format!("alarm-setter-{number}"), shared.rng(2, number));
    while let Some(number) = pace.turn(&shared).await {
        let id = shared.id_of(number);
        let delay_ms = rng.between(100, DELAY_MS_MAX);
        // In this order: the time that is asked for is not before the one that the history has.
        let due_ns = shared.history.now_ns() + delay_ms * 1_000_000;
        let due_ms = shared.runtime.wall_ms() + delay_ms;
        let task = Task::Delay { message_id: id.to_string(), due_ns };
        shared.sent(&process, EventKind::Invoke, &id);
        shared.deed(&process, EventKind::Invoke, task.clone());
        let message = OutgoingMessage::new(topic(DELAYS), body::of_number(number)).with_id(id.clone());
        let kind = match producer.send(message.with_delivery_at_ms(due_ms)).await {
            Ok(_) => EventKind::Ok,
            Err(error) if error.is_surely_not_stored() => EventKind::Fail,
            Err(_) => EventKind::Unknown,
        };
        // Where it will stand nobody knows yet.
        let sent = if kind == EventKind::Fail { EventKind::Fail } else { EventKind::Unknown };
        shared.sent(&process, sent, &id);
        if kind == EventKind::Ok {
            shared.expect(number);
        }
        shared.deed(&process, kind, task);
    }
}
