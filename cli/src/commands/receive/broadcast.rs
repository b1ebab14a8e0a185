//! `flotilla receive --broadcast`: every such command gets every message.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_client::{
    BroadcastConsumer, BroadcastConsumerConfig, BroadcastError, BroadcastPositions, Client, ConsumeResult, Delivery,
    PositionFileError, PullQueue, PullStart,
};
use flotilla_message::TopicName;
use flotilla_runtime::{Either, Runtime, select};
use tokio::sync::{mpsc, oneshot};

use super::{ReceiveArguments, Start, print};
use crate::failure::Failure;
use crate::stop_signal::StopSignals;

/// How long the positions of what was printed may take to be noted.
const NOTED_MAX: Duration = Duration::from_secs(1);

/// Why broadcasting did not begin or end well.
#[derive(Debug, thiserror::Error)]
enum BroadcastCommandError {
    #[error("broadcasting of {topic} does not begin: {error}")]
    Begin { topic: TopicName, error: BroadcastError },
    #[error("{received} messages are printed, and where that ended is not kept: {error}")]
    Positions { received: u64, error: PositionFileError },
}

/// A message to print; answered when it is printed.
type Waiting = (Delivery, oneshot::Sender<()>);

pub(super) async fn run(arguments: &ReceiveArguments, client: &Client, runtime: &Runtime) -> Result<(), Failure> {
    let start = match arguments.start {
        Start::First => PullStart::First,
        Start::Last => PullStart::Last,
    };
    let config = BroadcastConsumerConfig {
        filter: arguments.wanted(),
        positions: match &arguments.positions {
            Some(path) => BroadcastPositions::File { path: path.clone(), start },
            None => BroadcastPositions::Newest,
        },
        ..BroadcastConsumerConfig::new(arguments.group.clone(), arguments.topic.clone())
    };
    let mut signals = StopSignals::listen(false, runtime)?;
    let (to_print, mut waiting) = mpsc::channel::<Waiting>(1);
    // A listener whose message is never printed never ends, so that the position stays before it.
    let listener = move |message: Delivery| {
        let to_print = to_print.clone();
        async move {
            let (printed, is_printed) = oneshot::channel();
            if to_print.send((message, printed)).await.is_ok() && is_printed.await.is_ok() {
                return ConsumeResult::Success;
            }
            std::future::pending().await
        }
    };
    let started = client.broadcast_consumer(config, listener).await;
    let topic = arguments.topic.clone();
    let consumer = started.map_err(|error| BroadcastCommandError::Begin { topic, error })?;
    let mut printed = Printed::default();
    // A signal ends it between two messages.
    let _ = select(Box::pin(print_all(arguments, &mut waiting, &mut printed, runtime)), signals.next()).await;
    printed.noted_by(&consumer, runtime).await;
    let saved = consumer.shutdown(Duration::ZERO).await;
    saved.map_err(|error| BroadcastCommandError::Positions { received: printed.count, error }.into())
}

/// What was printed, and up to where in each queue.
#[derive(Default)]
struct Printed {
    count: u64,
    positions: BTreeMap<PullQueue, u64>,
}

impl Printed {
    /// Waits until the consumer, which is to save them, knows all positions.
    async fn noted_by(&self, consumer: &BroadcastConsumer, runtime: &Runtime) {
        let until = runtime.now() + NOTED_MAX;
        let lags = |known: BTreeMap<PullQueue, u64>| {
            self.positions.iter().any(|(queue, position)| known.get(queue).is_some_and(|at| at < position))
        };
        while lags(consumer.positions()) && runtime.now() < until {
            runtime.sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Until there were enough, nothing came for so long, or nobody reads any more.
async fn print_all(
    arguments: &ReceiveArguments,
    waiting: &mut mpsc::Receiver<Waiting>,
    printed: &mut Printed,
    runtime: &Runtime,
) {
    let mut last_message = runtime.now();
    while arguments.max.is_none_or(|max| printed.count < max) {
        let next = if arguments.follow {
            waiting.recv().await
        } else {
            match select(waiting.recv(), runtime.sleep_until(last_message + arguments.timeout)).await {
                Either::Left(next) => next,
                Either::Right(()) => return,
            }
        };
        let Some((message, is_printed)) = next else { return };
        if !print(&message, arguments.json) {
            return;
        }
        printed.count += 1;
        last_message = runtime.now();
        let queue = PullQueue { broker_group: message.broker_group.clone(), queue: message.queue };
        if is_printed.send(()).is_ok() {
            printed.positions.insert(queue, message.offset + 1);
        }
    }
}
