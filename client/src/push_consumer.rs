//! A consumer that calls a listener for each message, so many at once, and acknowledges what succeeded.

use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Either, Task, select};
use futures::FutureExt;
use futures::future::join;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::Client;
use crate::config::{BATCH_MAX, ConfigErrors, PushConsumerConfig};
use crate::consuming::{Consuming, POLL_MAX};
use crate::received::ReceivedMessage;
use crate::replicas::{BrokerGroupName, Replicas};

/// Pause after a poll that failed.
const ERROR_PAUSE: Duration = Duration::from_secs(1);
/// How often it is checked whether the topic has moved to further broker groups.
const ROUTE_CHECK: Duration = Duration::from_secs(5);

/// What a listener made of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumeResult {
    /// It is consumed and will be acknowledged.
    Success,
    /// It shall come again after a while. A listener that panics counts as this.
    Failure,
}

/// Polls, calls the listener and acknowledges, until it is shut down or dropped. One that is dropped says no good-bye: the
/// brokers count it as a member of its group for two more minutes.
///
/// At most `concurrency` listeners run at once, and no message is fetched for which no listener is free.
/// Messages of one message group that arrive together are handed over one after the other.
pub struct PushConsumer {
    work: Arc<Work>,
    supervisor: Task<()>,
}

struct Work {
    client: Client,
    consuming: Consuming,
    config: PushConsumerConfig,
    listener: Box<dyn Fn(ReceivedMessage) -> BoxFuture<'static, ConsumeResult> + Send + Sync>,
    places: Arc<Semaphore>,
    running: Mutex<Running>,
}

/// The listeners under way. Dropping them cancels them.
#[derive(Default)]
struct Running {
    tasks: BTreeMap<u64, Task<()>>,
    next: u64,
}

impl PushConsumer {
    /// Starts to consume.
    ///
    /// # Errors
    /// [`ConfigErrors`] with every invalid setting. That a topic or group does not exist is logged and
    /// tried again: it may be made later.
    pub fn start<L, F>(client: Client, config: PushConsumerConfig, listener: L) -> Result<PushConsumer, ConfigErrors>
    where
        L: Fn(ReceivedMessage) -> F + Send + Sync + 'static,
        F: Future<Output = ConsumeResult> + Send + 'static,
    {
        config.validate()?;
        let runtime = client.shared.runtime.clone();
        let work = Arc::new(Work {
            consuming: Consuming::new(
                client.shared.clone(),
                config.group.clone(),
                config.topic.clone(),
                config.filter.clone(),
            ),
            client,
            places: Arc::new(Semaphore::new(config.concurrency)),
            listener: Box::new(move |message| Box::pin(listener(message))),
            running: Mutex::new(Running::default()),
            config,
        });
        let supervised = work.clone();
        let supervisor = runtime.spawn("push consumer", async move { supervised.supervise().await });
        Ok(PushConsumer { work, supervisor })
    }

    /// Stops to poll, says good-bye to the brokers, waits up to `timeout` for the listeners under way and their
    /// acknowledgements, and tells how many listeners were cut off. Their messages, and what a broker delivered to the
    /// last poll, come again after their invisible time.
    pub async fn shutdown(self, timeout: Duration) -> usize {
        let PushConsumer { work, supervisor } = &self;
        supervisor.abort();
        let all = u32::try_from(work.config.concurrency).expect("at most 10,000");
        // Pollers give their places back when they are dropped, listeners when they are done.
        let done = work.client.shared.runtime.timeout(timeout, work.places.acquire_many(all));
        let (done, ()) = join(done, work.consuming.leave(timeout)).await;
        if matches!(done, Ok(Ok(_))) {
            return 0;
        }
        let cut_off = work.take_running();
        tracing::warn!(cut_off = cut_off.len(), ?timeout, "listeners did not finish in time");
        cut_off.len()
    }
}

impl Drop for PushConsumer {
    fn drop(&mut self) {
        self.supervisor.abort();
        drop(self.work.take_running());
    }
}

impl Work {
    fn take_running(&self) -> BTreeMap<u64, Task<()>> {
        std::mem::take(&mut self.running.lock().expect("listener lock is never poisoned").tasks)
    }

    /// Keeps one poller for each broker group that serves the topic.
    async fn supervise(self: Arc<Work>) {
        let runtime = &self.client.shared.runtime;
        let mut pollers = BTreeMap::<BrokerGroupName, (Arc<Replicas>, Task<()>)>::new();
        loop {
            let wait = match self.client.shared.route(&self.config.topic).await {
                Ok(route) => {
                    let mut groups: Vec<Arc<Replicas>> = route.readable().map(|group| group.replicas.clone()).collect();
                    groups.sort_by(|left, right| left.name().cmp(right.name()));
                    if !groups.iter().map(|group| group.name()).eq(pollers.keys()) {
                        // The share of each poller changes with their number: all start anew.
                        pollers.clear();
                        let share = self.config.concurrency.div_ceil(groups.len().max(1)).min(BATCH_MAX);
                        for group in groups {
                            let poller = self.clone().poll(group.clone(), share);
                            let task = runtime.spawn("push consumer poll", poller);
                            pollers.insert(group.name().clone(), (group, task));
                        }
                    }
                    ROUTE_CHECK
                }
                Err(error) => {
                    tracing::warn!(group = %self.config.group, %error, "push consumer has no route");
                    ERROR_PAUSE
                }
            };
            runtime.sleep(wait).await;
        }
    }

    /// Polls one broker group for ever, for as many messages as listeners are free, at most `share`.
    async fn poll(self: Arc<Work>, replicas: Arc<Replicas>, share: usize) {
        let runtime = &self.client.shared.runtime;
        loop {
            let Ok(first) = self.places.clone().acquire_owned().await else { return };
            let mut places = vec![first];
            while places.len() < share {
                let Ok(place) = self.places.clone().try_acquire_owned() else { break };
                places.push(place);
            }
            let until = runtime.now() + POLL_MAX;
            let (batch, give_up) = (places.len(), until + self.client.shared.config.send_deadline);
            match self.consuming.poll(&replicas, batch, self.config.invisible_duration, until, give_up).await {
                Ok(messages) => self.dispatch(messages, places),
                Err(error) => {
                    drop(places);
                    tracing::warn!(%error, "push consumer poll failed");
                    runtime.sleep(ERROR_PAUSE).await;
                }
            }
        }
    }

    /// Starts listeners; never waits, so that a cancelled poller leaves no message behind.
    fn dispatch(self: &Arc<Work>, messages: Vec<ReceivedMessage>, mut places: Vec<OwnedSemaphorePermit>) {
        let mut chains: Vec<Vec<ReceivedMessage>> = Vec::new();
        for message in messages {
            let same = |chain: &&mut Vec<ReceivedMessage>| {
                message.message_group.is_some()
                    && chain[0].message_group == message.message_group
                    && chain[0].queue == message.queue
            };
            match chains.iter_mut().find(same) {
                Some(chain) => chain.push(message),
                None => chains.push(vec![message]),
            }
        }
        for chain in chains {
            // A broker that delivers more than was asked for gets its surplus back after the invisible time.
            let Some(place) = places.pop() else {
                tracing::warn!(messages = chain.len(), "more messages than asked for, they are left to come again");
                return;
            };
            let mut running = self.running.lock().expect("listener lock is never poisoned");
            let id = running.next;
            running.next += 1;
            let work = self.clone();
            let task = self.client.shared.runtime.spawn("push consumer listener", async move {
                work.consume_chain(chain).await;
                drop(place);
                let own = work.running.lock().expect("listener lock is never poisoned").tasks.remove(&id);
                drop(own);
            });
            running.tasks.insert(id, task);
        }
    }

    /// Hands messages over in their order; after a failure the rest waits as long as the one that failed.
    async fn consume_chain(&self, chain: Vec<ReceivedMessage>) {
        let mut delay = None;
        for message in chain {
            let delay_before = delay;
            if delay.is_none() && self.consume(&message).await == ConsumeResult::Failure {
                delay = Some(self.config.retry_delay(message.attempt));
            }
            let settled = match delay {
                None => self.consuming.ack(&message).await,
                Some(delay) => self.consuming.change_invisible(&message, delay).await,
            };
            if let Err(error) = settled {
                let was_called = delay_before.is_none();
                tracing::warn!(topic = %message.topic, id = %message.id, was_called, %error, "delivery not settled");
            }
        }
    }

    /// Runs the listener, keeping the message hidden meanwhile. When it returns no renewal is under way, so that the
    /// message's handle is the newest there is, unless the last renewal found no broker until the send deadline.
    async fn consume(&self, message: &ReceivedMessage) -> ConsumeResult {
        let called = std::panic::catch_unwind(AssertUnwindSafe(|| (self.listener)(message.clone())));
        let Ok(called) = called else { return ConsumeResult::Failure };
        let mut listening = AssertUnwindSafe(called).catch_unwind();
        loop {
            let renewal_due = self.client.shared.runtime.sleep(self.config.invisible_duration / 2);
            if let Either::Left(ended) = select(&mut listening, renewal_due).await {
                return result_of(message, ended);
            }
            let mut renewal = pin!(self.consuming.change_invisible(message, self.config.invisible_duration));
            let (ended, renewed) = match select(&mut listening, renewal.as_mut()).await {
                // A broker may have done it already, which made the handle we have a stale one.
                Either::Left(ended) => (Some(ended), renewal.await),
                Either::Right(renewed) => (None, renewed),
            };
            if let Err(error) = renewed {
                tracing::warn!(topic = %message.topic, id = %message.id, %error, "invisible time not renewed");
            }
            if let Some(ended) = ended {
                return result_of(message, ended);
            }
        }
    }
}

/// What a listener that has ended made of its message.
fn result_of<E>(message: &ReceivedMessage, ended: Result<ConsumeResult, E>) -> ConsumeResult {
    ended.unwrap_or_else(|_| {
        tracing::warn!(topic = %message.topic, id = %message.id, "listener panicked");
        ConsumeResult::Failure
    })
}
