//! Who takes what was committed, and what is due.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation};
use flotilla_client::{Client, ConfigErrors, SimpleConsumerConfig};
use futures::future::join_all;

use super::{RETRY_PAUSE, Shared, group, topic};
use crate::body;
use crate::workload::{INVISIBLE, delivery_of};

const BATCH_MAX: usize = 32;
const RECEIVE_WAIT: Duration = Duration::from_secs(1);

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
            shared.record(&process, EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
            let Ok(batch) = consumer.receive(BATCH_MAX, INVISIBLE).await else {
                shared.runtime.sleep(RETRY_PAUSE).await;
                continue;
            };
            let deliveries = batch.iter().map(|message| delivery_of(&process, message)).collect();
            shared.record(&process, EventKind::Ok, Operation::Receive { deliveries });
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
