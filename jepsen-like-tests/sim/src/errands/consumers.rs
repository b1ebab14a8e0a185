//! Those who take what the errands stored.

use std::time::Duration;

use flotilla_checkers::{Delivery, EventKind, Operation, Task};

use super::caller::Caller;
use crate::broker_replica::{acknowledge, receive};
use crate::executor::ms;
use crate::replica::{Acknowledged, Received, SendError};
use crate::workload::{Closing, Patience};

/// How a consumer goes about it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Habit {
    pub(crate) group: &'static str,
    pub(crate) topic: &'static str,
    /// How long what it takes is its own.
    pub(crate) invisible: Duration,
    /// Of a thousand times it acknowledges so often.
    pub(crate) acked_permille: u64,
}

/// Takes, writes down, and acknowledges as it is used to, until nothing comes any more.
pub(crate) async fn consume(mut caller: Caller, habit: Habit, drained: Closing) {
    let mut patience = Patience::new(caller.drained_after);
    let mut attempts = 0;
    while patience.lasts(&drained, caller.runtime.now()) {
        attempts += 1;
        let attempt_id = format!("{} attempt {attempts}", caller.process);
        if take(&mut caller, habit, &attempt_id).await {
            patience.seen(caller.runtime.now());
        }
        super::pause(&caller.runtime.clone(), 5, 60, &mut caller).await;
    }
}

/// True unless there was nothing.
async fn take(caller: &mut Caller, habit: Habit, attempt_id: &str) -> bool {
    // Asked again under the same id, as a client does whose answer got lost.
    for _ in 0..3 {
        caller.record(EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
        let Habit { group, topic, invisible, .. } = habit;
        let attempt_id = attempt_id.to_owned();
        let taken = caller
            .ask(move |messaging, context| Box::pin(receive(messaging, context, group, topic, invisible, attempt_id)))
            .await;
        match taken {
            Ok(Ok(received)) if received.is_empty() => {
                caller.record(EventKind::Ok, Operation::Receive { deliveries: Vec::new() });
                return false;
            }
            Ok(Ok(received)) => {
                settle(caller, habit, received).await;
                return true;
            }
            Ok(Err(error)) => drop(caller.turned(error)),
            Err(SendError::Refused { .. } | SendError::Unknown) => {}
        }
        super::pause(&caller.runtime.clone(), 5, 60, caller).await;
    }
    true
}

async fn settle(caller: &mut Caller, habit: Habit, received: Vec<Received>) {
    let deliveries: Vec<Delivery> = received
        .iter()
        .map(|received| {
            Delivery::new(&*caller.process, received.queue.clone(), received.offset, &*received.message_id)
                .on_attempt(received.attempt)
        })
        .collect();
    caller.record(EventKind::Ok, Operation::Receive { deliveries: deliveries.clone() });
    let work_ms = caller.rng.below(30);
    caller.runtime.sleep(ms(work_ms)).await;
    if !caller.rng.chance(habit.acked_permille) {
        return;
    }
    let task = Task::Acknowledge { deliveries };
    caller.record_task(EventKind::Invoke, task.clone());
    let Habit { group, topic, .. } = habit;
    let answer =
        caller.ask(move |messaging, context| Box::pin(acknowledge(messaging, context, group, topic, received))).await;
    let kind = match answer {
        Ok(Ok(Acknowledged::All)) => EventKind::Ok,
        _ => EventKind::Unknown,
    };
    caller.record_task(kind, task);
}
