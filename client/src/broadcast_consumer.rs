//! A consumer of which every instance gets every message: it reads all queues itself and keeps its own positions.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Runtime, Task};
use futures::FutureExt;
use tokio::sync::RwLock;

use crate::client::Client;
use crate::config::{BroadcastConsumerConfig, BroadcastPositions, ConfigErrors, PullConsumerConfig, PullStart};
use crate::consuming::POLL_MAX;
use crate::position_file::{PositionFile, PositionFileError};
use crate::pull_consumer::{PullConsumer, PullError, PullQueue};
use crate::push_consumer::ConsumeResult;
use crate::received::Delivery;

/// Messages asked for in one call.
const BATCH: usize = 32;
/// Pause after a poll that failed.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// How often it is asked whether the topic has other queues now.
const QUEUES_CHECK: Duration = Duration::from_secs(5);

/// Why a broadcasting consumer did not start.
#[derive(Debug, thiserror::Error)]
pub enum BroadcastError {
    /// Settings are not valid.
    #[error(transparent)]
    Config(#[from] ConfigErrors),
    /// Its positions cannot be read or kept.
    #[error(transparent)]
    Positions(#[from] PositionFileError),
    /// The topic's queues, or where they end, are not known.
    #[error(transparent)]
    Pull(#[from] PullError),
}

/// Calls its listener for each message of the topic, in the order of each queue, whatever other instances get.
///
/// What broadcasting does not have: a message whose listener fails is logged and passed over, there is no retry and no
/// dead letter; the brokers know no positions of it, so they tell no lag and cannot reset it. With positions in a file,
/// an instance that died gets again what it read since they were last saved.
pub struct BroadcastConsumer {
    work: Arc<Work>,
    supervisor: Option<Task<()>>,
}

struct Work {
    runtime: Runtime,
    pull: PullConsumer,
    config: BroadcastConsumerConfig,
    file: Option<PositionFile>,
    listener: Box<dyn Fn(Delivery) -> BoxFuture<'static, ConsumeResult> + Send + Sync>,
    /// Each listener has it for reading; the end takes it for writing.
    listening: RwLock<()>,
    /// Everything before it was given to the listener.
    consumed: Mutex<BTreeMap<PullQueue, u64>>,
}

impl BroadcastConsumer {
    /// Starts to consume. When it returns, the place where each queue begins is settled.
    ///
    /// # Errors
    /// [`BroadcastError`]; nothing runs then.
    pub async fn start<L, F>(
        client: Client,
        config: BroadcastConsumerConfig,
        listener: L,
    ) -> Result<BroadcastConsumer, BroadcastError>
    where
        L: Fn(Delivery) -> F + Send + Sync + 'static,
        F: Future<Output = ConsumeResult> + Send + 'static,
    {
        config.validate()?;
        let (file, stored) = match &config.positions {
            BroadcastPositions::Newest => (None, BTreeMap::new()),
            BroadcastPositions::File { path, .. } => {
                let (file, stored) = PositionFile::open(path, &config.group, &config.topic)?;
                (Some(file), stored)
            }
        };
        let runtime = client.shared.runtime.clone();
        let pull = client.pull_consumer(PullConsumerConfig {
            filter: config.filter.clone(),
            ..PullConsumerConfig::new(config.group.clone(), config.topic.clone())
        });
        let listener: Box<dyn Fn(Delivery) -> BoxFuture<'static, ConsumeResult> + Send + Sync> =
            Box::new(move |message| Box::pin(listener(message)));
        let work = Arc::new(Work {
            runtime,
            pull,
            config,
            file,
            listener,
            listening: RwLock::new(()),
            consumed: Mutex::new(BTreeMap::new()),
        });
        let first = work.first_place(&stored);
        work.meet_queues(&stored, first).await?;
        work.save().await?;
        let supervised = work.clone();
        let supervisor = work.runtime.spawn("broadcast consumer", async move { supervised.supervise().await });
        Ok(BroadcastConsumer { work, supervisor: Some(supervisor) })
    }

    /// Up to which offset the listener was given each queue.
    pub fn positions(&self) -> BTreeMap<PullQueue, u64> {
        self.work.consumed_lock().clone()
    }

    /// Calls no further listener, waits up to `timeout` for those under way, and saves the positions. Those that have not
    /// ended then, with a time of zero all that are under way, are cut off: the next start repeats their messages.
    ///
    /// # Errors
    /// If the positions cannot be saved: the next start then repeats what was read since they were saved last.
    pub async fn shutdown(mut self, timeout: Duration) -> Result<(), PositionFileError> {
        let work = self.work.clone();
        // Held until all readers are gone.
        let mut ended = None;
        if !timeout.is_zero() {
            ended = work.runtime.timeout(timeout, work.listening.write()).await.ok();
            if ended.is_none() {
                tracing::warn!(?timeout, "a broadcast listener did not finish in time");
            }
        }
        drop(self.supervisor.take());
        drop(ended);
        work.save().await
    }
}

impl Work {
    fn consumed_lock(&self) -> MutexGuard<'_, BTreeMap<PullQueue, u64>> {
        self.consumed.lock().expect("position lock is never poisoned: no code panics while holding it")
    }

    /// Where a queue begins of which nothing is stored: an instance that knows the topic already begins with the first
    /// message of queues that came later.
    fn first_place(&self, stored: &BTreeMap<PullQueue, u64>) -> PullStart {
        match &self.config.positions {
            BroadcastPositions::Newest => PullStart::Last,
            BroadcastPositions::File { start, .. } if stored.is_empty() => *start,
            BroadcastPositions::File { .. } => PullStart::First,
        }
    }

    /// Reads all queues that there are now, and no others; those that are new begin where it is stored, or at `first`.
    async fn meet_queues(&self, stored: &BTreeMap<PullQueue, u64>, first: PullStart) -> Result<(), PullError> {
        let queues = self.pull.queues().await?;
        if queues != self.pull.assignment() {
            self.pull.assign(&queues).await?;
        }
        self.consumed_lock().retain(|queue, _| queues.contains(queue));
        for queue in queues {
            if self.consumed_lock().contains_key(&queue) {
                continue;
            }
            let at = match stored.get(&queue) {
                Some(at) => {
                    self.pull.seek(&queue, *at)?;
                    *at
                }
                None => self.pull.seek_to(&queue, first).await?,
            };
            self.consumed_lock().insert(queue, at);
        }
        Ok(())
    }

    async fn supervise(self: Arc<Work>) {
        let mut readers = BTreeMap::<PullQueue, Task<()>>::new();
        let mut saved = self.consumed_lock().clone();
        let (mut save_at, mut check_at) = (self.runtime.now(), self.runtime.now() + QUEUES_CHECK);
        loop {
            let queues: Vec<PullQueue> = self.consumed_lock().keys().cloned().collect();
            readers.retain(|queue, _| queues.contains(queue));
            for queue in queues {
                let (work, of) = (self.clone(), queue.clone());
                let read = || self.runtime.spawn("broadcast reader", async move { work.read(of).await });
                readers.entry(queue).or_insert_with(read);
            }
            self.runtime.sleep_until(save_at.min(check_at)).await;
            let now = self.runtime.now();
            if now >= check_at {
                if let Err(error) = self.meet_queues(&BTreeMap::new(), PullStart::First).await {
                    tracing::warn!(topic = %self.config.topic, %error, "queues of a broadcast topic are not known");
                }
                check_at = now + QUEUES_CHECK;
            }
            if now >= save_at {
                let consumed = self.consumed_lock().clone();
                if consumed != saved {
                    match self.save().await {
                        Ok(()) => saved = consumed,
                        Err(error) => tracing::error!(%error, "positions of a broadcast consumer are not saved"),
                    }
                }
                save_at = now + self.config.save_interval;
            }
        }
    }

    /// Reads one queue for ever.
    async fn read(&self, queue: PullQueue) {
        loop {
            match self.pull.poll_queue(&queue, BATCH, POLL_MAX).await {
                Ok(messages) => {
                    for message in messages {
                        self.consume(&queue, message).await;
                    }
                    // A filter may have passed over some behind the last one.
                    if let Ok(Some(position)) = self.pull.position(&queue) {
                        self.moved(&queue, position);
                    }
                }
                Err(PullError::OutOfRange { offset, nearest, .. }) => {
                    tracing::warn!(?queue, offset, nearest, "a broadcast position is gone, it goes on at the nearest");
                    if self.pull.seek(&queue, nearest).is_err() {
                        return;
                    }
                }
                // It is no queue of the topic any more.
                Err(PullError::NotAssigned(_)) => return,
                Err(error) => {
                    tracing::warn!(?queue, %error, "broadcast poll failed");
                    self.runtime.sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    async fn consume(&self, queue: &PullQueue, message: Delivery) {
        let _listens = self.listening.read().await;
        let (id, next) = (message.id.clone(), message.offset + 1);
        let called = std::panic::catch_unwind(AssertUnwindSafe(|| (self.listener)(message)));
        let result = match called {
            Ok(listening) => AssertUnwindSafe(listening).catch_unwind().await.unwrap_or(ConsumeResult::Failure),
            Err(_) => ConsumeResult::Failure,
        };
        if result == ConsumeResult::Failure {
            tracing::warn!(topic = %self.config.topic, %id, "a broadcast message was not consumed and is passed over");
        }
        self.moved(queue, next);
    }

    fn moved(&self, queue: &PullQueue, position: u64) {
        if let Some(consumed) = self.consumed_lock().get_mut(queue) {
            *consumed = position;
        }
    }

    async fn save(self: &Arc<Work>) -> Result<(), PositionFileError> {
        if self.file.is_none() {
            return Ok(());
        }
        let work = self.clone();
        let save = move || work.file.as_ref().map_or(Ok(()), |file| file.save(|| work.consumed_lock().clone()));
        self.runtime.blocking(save).await
    }
}
