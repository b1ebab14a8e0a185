//! The last look: every queue read from its first offset to its last by a group that has read nothing before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation, QueueBegin, QueueKey};
use flotilla_client::{AdminError, Client, ConfigErrors, GroupSpec, SimpleConsumer, SimpleConsumerConfig};
use flotilla_message::{GroupName, TopicName};
use flotilla_runtime::Runtime;
use futures::future::join_all;

use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::workload::delivery_of;

/// Names of the drain's consumers start with this; the judge takes what they saw for the content of the group.
pub(crate) const DRAIN_PROCESS: &str = "drain";

const READERS: u64 = 8;
const BATCH_MAX: usize = 32;
const INVISIBLE: Duration = Duration::from_secs(60);
const RECEIVE_WAIT: Duration = Duration::from_millis(500);
/// After so long without anything new the rest is given up: longer than a delivery is hidden.
const PATIENCE: Duration = Duration::from_secs(75);
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// Why there was no last look.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    /// The cluster does not tell how long its queues are, or takes no new group.
    #[error("the last look cannot be prepared: {0}")]
    Prepare(#[from] AdminError),
    /// Our settings are not good.
    #[error(transparent)]
    Client(#[from] ConfigErrors),
}

/// Reads everything; incidents say what did not come. `lets_go`: by their settings, replicas let go of what is old; the history
/// is told where queues begin then.
pub(crate) async fn drain(
    client: &Client,
    topic: &TopicName,
    lets_go: bool,
    history: &Arc<HistoryFile>,
    incidents: &Incidents,
    runtime: &Runtime,
) -> Result<(), DrainError> {
    let group = GroupName::try_from(format!("{topic}-drain")).expect("a topic's name and a word are a legal name");
    let admin = client.admin();
    admin.create_group(&GroupSpec::new(group.clone())).await?;
    let bounds = admin.describe_topic(topic).await?.queues;
    let missing: BTreeMap<u32, BTreeSet<u64>> =
        bounds.iter().map(|queue| (queue.queue, (queue.min_offset..queue.max_offset).collect())).collect();
    let progress = Mutex::new(Progress { missing, last_new: runtime.now() });
    let readers = (1..=READERS)
        .map(|number| {
            let config = SimpleConsumerConfig {
                await_duration: RECEIVE_WAIT,
                ..SimpleConsumerConfig::new(group.clone(), topic.clone())
            };
            let (consumer, process) = (client.simple_consumer(config)?, format!("{DRAIN_PROCESS}-{topic}-{number}"));
            Ok(read(process, consumer, history, &progress, runtime))
        })
        .collect::<Result<Vec<_>, ConfigErrors>>()?;
    join_all(readers).await;
    let mut progress = progress.into_inner().expect("the progress's lock is never poisoned");
    if lets_go {
        // Some may have gone while it was read.
        let queues = admin.describe_topic(topic).await?.queues;
        for queue in &queues {
            progress.missing.entry(queue.queue).or_default().retain(|offset| *offset >= queue.min_offset);
        }
        let queues = queues
            .iter()
            .map(|queue| QueueBegin { queue: QueueKey::new(topic.as_str(), queue.queue), offset: queue.min_offset })
            .collect();
        history.record(&format!("{DRAIN_PROCESS}-{topic}"), EventKind::Ok, Operation::Begins { queues });
    }
    for (queue, offsets) in progress.missing.iter().filter(|(_, offsets)| !offsets.is_empty()) {
        let first = offsets.first().expect("it is not empty");
        let count = offsets.len();
        incidents.add(format!("{topic}/{queue}: {count} offsets cannot be read at the end, the first is {first}"));
    }
    Ok(())
}

struct Progress {
    missing: BTreeMap<u32, BTreeSet<u64>>,
    last_new: flotilla_runtime::Instant,
}

async fn read(
    process: String,
    consumer: SimpleConsumer,
    history: &HistoryFile,
    progress: &Mutex<Progress>,
    runtime: &Runtime,
) {
    let lock = || progress.lock().expect("the progress's lock is never poisoned: no code panics while holding it");
    loop {
        {
            let progress = lock();
            let is_done = progress.missing.values().all(BTreeSet::is_empty);
            if is_done || runtime.now() - progress.last_new > PATIENCE {
                return;
            }
        }
        match consumer.receive(BATCH_MAX, INVISIBLE).await {
            Ok(batch) if batch.is_empty() => {}
            Ok(batch) => {
                let deliveries = batch.iter().map(|message| delivery_of(&process, message)).collect();
                history.record(&process, EventKind::Ok, Operation::Receive { deliveries });
                {
                    let mut progress = lock();
                    for message in &batch {
                        let offsets = progress.missing.entry(message.queue).or_default();
                        if offsets.remove(&message.offset) {
                            progress.last_new = runtime.now();
                        }
                    }
                }
                // Whether it counts as consumed does not matter to a group that nobody uses again; only room does.
                let _ = consumer.ack_all(&batch).await;
            }
            Err(error) => {
                tracing::debug!(process, %error, "a receive failed and is repeated");
                runtime.sleep(RETRY_PAUSE).await;
            }
        }
    }
}
