//! Who takes what was committed, and what is due.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{Delivery, EventKind, Operation};
use flotilla_client::{Client, ConfigErrors, ReceivedMessage, SimpleConsumer, SimpleConsumerConfig};
use futures::future::join_all;

use super::{RETRY_PAUSE, Shared, group, topic};
use crate::body;
use crate::workload::{INVISIBLE, delivery_of};

const BATCH_MAX: usize = 32;
const RECEIVE_WAIT: Duration = Duration::from_secs(1);

/// Receives so many messages, hidden for so long, and records it; none, after a pause, if the call failed.
pub(super) async fn batch(
    shared: &Shared,
    process: &str,
    consumer: &SimpleConsumer,
    (max, invisible): (usize, Duration),
) -> Option<(Vec<ReceivedMessage>, Vec<Delivery>)> {
    shared.record(process, EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
    let Ok(batch) = consumer.receive(max, invisible).await else {
        shared.runtime.sleep(RETRY_PAUSE).await;
        return None;
    };
    let deliveries: Vec<Delivery> = batch.iter().map(|message| delivery_of(process, message)).collect();
    shared.record(process, EventKind::Ok, Operation::Receive { deliveries: deliveries.clone() });
    Some((batch, deliveries))
}

/// Receives and acknowledges until the errands are given up; topic and group have that name.
pub(super) fn receive(
    shared: Arc<Shared>,
    name: &'static str,
    client: &Client,
) -> Result<impl Future<Output = ()> + Send + use<>, ConfigErrors> {
    let config =
        SimpleConsumerConfig { await_duration: RECEIVE_WAIT, ..SimpleConsumerConfig::new(group(name), topic(name)) };
    let consumer = client.simple_consumer(config)?;
    let process = format!("consumer of {name}");
    Ok(async move {
        while !shared.is_given_up() {
            let Some((batch, _)) = batch(&shared, &process, &consumer, (BATCH_MAX, INVISIBLE)).await else { continue };
            {
                let mut tally = shared.tally();
                for number in batch.iter().filter_map(|message| body::number_of(&message.body)) {
                    tally.outstanding.remove(&number);
                    if tally.received.insert(number) {
                        tally.last_received_at = Some(shared.runtime.now());
                    }
                }
            }
            // What is not acknowledged comes again.
            let _ = join_all(batch.iter().map(|message| consumer.ack(message))).await;
        }
    })
}
