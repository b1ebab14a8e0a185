//! Messages that are seldom acknowledged: their group gives them up, and they must stand among its dead letters.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{Delivery, EventKind, Operation, QueueKey, Task};
use flotilla_client::{AdminClient, AdminError, Client, ConfigErrors, OutgoingMessage, Producer, SimpleConsumerConfig};
use flotilla_message::AckLevel;
use flotilla_proto::admin;
use flotilla_proto::status::Code;
use futures::future::join_all;

use super::pace::Pace;
use super::{DOOMED, Shared, group, receiving, topic};
use crate::body;
use crate::drain::DRAIN_PROCESS;
use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::workload::ack_of;

const BATCH_MAX: usize = 16;
const RECEIVE_WAIT: Duration = Duration::from_millis(500);
/// How long a delivery is hidden: what is not acknowledged fails then.
const INVISIBLE: Duration = Duration::from_secs(1);
/// Of so many batches one is acknowledged.
const ACKED_ONE_IN: u64 = 3;
/// Dead letters asked for in one call.
const LETTERS: u32 = 256;
/// Reading them is given up after so many failures in a row.
const FAILURES_MAX: u32 = 20;

/// Sends one after the other until the load is over.
pub(super) async fn send(shared: Arc<Shared>, pace: Arc<Pace>, producer: Arc<Producer>, number: u64) {
    let process = format!("doomer-{number}");
    while let Some(number) = pace.turn(&shared).await {
        let id = shared.id_of(number);
        shared.sent(&process, EventKind::Invoke, &id);
        let message = OutgoingMessage::new(topic(DOOMED), body::of_number(number)).with_id(id.clone());
        let (kind, ack) = match producer.send(message).await {
            Ok(receipt) => (EventKind::Ok, Some(ack_of(&topic(DOOMED), &receipt, AckLevel::Majority))),
            Err(error) if error.is_surely_not_stored() => (EventKind::Fail, None),
            Err(_) => (EventKind::Unknown, None),
        };
        shared.record(&process, kind, Operation::Send { message_id: id.to_string(), ack });
    }
}

/// Receives until the errands are given up, and acknowledges little.
pub(super) fn receive(
    shared: Arc<Shared>,
    number: u64,
    client: &Client,
) -> Result<impl Future<Output = ()> + Send + use<>, ConfigErrors> {
    let config = SimpleConsumerConfig {
        await_duration: RECEIVE_WAIT,
        ..SimpleConsumerConfig::new(group(DOOMED), topic(DOOMED))
    };
    let consumer = client.simple_consumer(config)?;
    let (process, mut rng) = (format!("doomed-consumer-{number}"), shared.rng(3, number));
    Ok(async move {
        while !shared.is_given_up() {
            let received = receiving::batch(&shared, &process, &consumer, (BATCH_MAX, INVISIBLE)).await;
            let Some((batch, deliveries)) = received else { continue };
            if batch.is_empty() {
                continue;
            }
            shared.tally().last_received_at = Some(shared.runtime.now());
            if rng.below(ACKED_ONE_IN) > 0 {
                continue;
            }
            let task = Task::Acknowledge { deliveries };
            shared.deed(&process, EventKind::Invoke, task.clone());
            let acked = join_all(batch.iter().map(|message| consumer.ack(message))).await;
            let kind = if acked.iter().all(Result::is_ok) { EventKind::Ok } else { EventKind::Unknown };
            shared.deed(&process, kind, task);
        }
    })
}

/// Whether the group still has messages to get or to give up, or nobody tells.
pub(super) async fn are_under_way(admin: &AdminClient) -> bool {
    let Ok(described) = admin.describe_group(&group(DOOMED)).await else { return true };
    described.progress.iter().any(|row| row.topic == DOOMED && (row.lag_messages > 0 || row.inflight_count > 0))
}

/// Reads all dead letters of the group: the history has them as what the last look saw in their topic.
pub(super) async fn read_dead_letters(admin: &AdminClient, history: &HistoryFile, incidents: &Incidents) {
    let process = format!("{DRAIN_PROCESS}-dead-letters");
    let (mut from, mut failures) = (0, 0);
    loop {
        let request =
            admin::ListDeadLettersRequest { group: DOOMED.to_owned(), from_offset: Some(from), count: LETTERS };
        let letters = match admin.list_dead_letters(request).await {
            Ok(reply) => reply.letters,
            // None was ever given up.
            Err(AdminError::Rejected { code, .. }) if code == Code::TopicNotFound as i32 => return,
            Err(error) => {
                failures += 1;
                if failures >= FAILURES_MAX {
                    return incidents.add(format!("the dead letters cannot be read: {error}"));
                }
                continue;
            }
        };
        failures = 0;
        let Some(last) = letters.last() else { return };
        from = last.offset + 1;
        let deliveries = letters.iter().map(|letter| {
            let system = letter.message.as_ref().and_then(|message| message.system_properties.as_ref());
            let id = system.map_or("", |system| &system.message_id);
            Delivery::new(&*process, QueueKey::new(&*letter.topic, letter.queue), letter.offset, id)
        });
        let deliveries = deliveries.collect();
        history.record(&process, EventKind::Ok, Operation::Receive { deliveries });
    }
}
