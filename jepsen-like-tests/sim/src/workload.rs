//! Clients: each sends batch after batch, retries with the same ids until its deadline, and writes down what it was told.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_checkers::{Delivery, Event, EventKind, Operation, QueueKey, Recorder, Task};
use flotilla_runtime::{BoxFuture, Either, Instant, Runtime, select};
use tokio::sync::Notify;

use crate::executor::{lock, ms};
use crate::net::{Address, SimNet};
use crate::options::Options;
use crate::replica::{Acknowledged, Batch, Placed, Received, Replica, SendError};
use crate::rng::Rng;

/// How long a client waits for one answer.
const ATTEMPT_TIMEOUT: Duration = ms(1_000);
/// How long it goes on trying one batch while faults go on.
const SEND_DEADLINE: Duration = ms(6_000);
/// Addresses of clients begin here.
pub(crate) const CLIENT_ADDRESS_MIN: Address = 100;

const CONSUMER_ADDRESS_MIN: Address = 200;

/// The history as it grows.
#[derive(Clone, Default)]
pub struct Journal {
    recorder: Arc<Mutex<Recorder>>,
}

impl Journal {
    pub fn record(&self, now_ns: u64, process: impl Into<String>, kind: EventKind, operation: Operation) {
        lock(&self.recorder).record(now_ns, process, kind, operation);
    }

    /// All that was recorded, which is then gone from here.
    pub fn take_events(&self) -> Vec<Event> {
        std::mem::take(&mut *lock(&self.recorder)).into_events()
    }
}

/// Told to clients when the faults are over: finish with one more batch for each queue.
#[derive(Clone, Default)]
pub(crate) struct Closing {
    inner: Arc<(Mutex<Option<Duration>>, Notify)>,
}

impl Closing {
    /// Last batches have this long.
    pub(crate) fn announce(&self, deadline: Duration) {
        *lock(&self.inner.0) = Some(deadline);
        self.inner.1.notify_waiters();
    }

    pub(crate) fn deadline(&self) -> Option<Duration> {
        *lock(&self.inner.0)
    }

    pub(crate) async fn announced(&self) {
        while self.deadline().is_none() {
            self.inner.1.notified().await;
        }
    }
}

/// One client.
pub(crate) struct Client {
    number: u64,
    runtime: Runtime,
    net: SimNet<dyn Replica>,
    journal: Journal,
    queues: Vec<QueueKey>,
    options: Options,
    rng: Rng,
    sent: u64,
    /// Who it believes leads.
    target: Address,
}

impl Client {
    pub(crate) fn new(
        number: u64,
        options: &Options,
        queues: Vec<QueueKey>,
        runtime: Runtime,
        net: SimNet<dyn Replica>,
        journal: Journal,
    ) -> Client {
        let mut rng = Rng::stream(options.seed, &format!("workload of client {number}"));
        let target = rng.between(1, options.replica_count);
        Client { number, runtime, net, journal, queues, options: options.clone(), rng, sent: 0, target }
    }

    /// Sends until closing is announced, then one last batch to each queue. True if all of those
    /// were acknowledged.
    pub(crate) async fn run(mut self, closing: Closing) -> bool {
        while closing.deadline().is_none() {
            let queue = self.rng.pick(&self.queues).clone();
            // Do not let go of a batch that is under way: its outcome would be unknown for nothing.
            self.send(queue, SEND_DEADLINE).await;
            let think_ms = self.rng.between(self.options.think_ms.0, self.options.think_ms.1);
            if let Either::Left(()) = select(closing.announced(), self.runtime.sleep(ms(think_ms))).await {
                break;
            }
        }
        let deadline = closing.deadline().unwrap_or(SEND_DEADLINE);
        let mut all_acked = true;
        for queue in self.queues.clone() {
            all_acked &= self.send(queue, deadline).await;
        }
        all_acked
    }

    async fn send(&mut self, queue: QueueKey, patience: Duration) -> bool {
        let message_count = self.rng.between(1, self.options.batch_max);
        let message_ids: Vec<String> = (0..message_count)
            .map(|_| {
                self.sent += 1;
                let message_id = format!("MSG-{:02}-{:06}-{:08x}", self.number, self.sent, self.rng.next_u64() as u32);
                debug_assert_eq!(message_id.len(), crate::disk::MARK_BYTES, "the disks look for such marks");
                message_id
            })
            .collect();
        let body_bytes = self.rng.below(self.options.body_bytes_max) as usize + 1;
        let batch = Batch { queue, message_ids, body_bytes };
        self.write_down(&batch, EventKind::Invoke, None);
        let outcome = self.try_until(&batch, patience).await;
        match &outcome {
            Ok(placed) => self.write_down(&batch, EventKind::Ok, Some(placed)),
            Err(SendError::Refused { .. }) => self.write_down(&batch, EventKind::Fail, None),
            Err(SendError::Unknown) => self.write_down(&batch, EventKind::Unknown, None),
        }
        outcome.is_ok()
    }

    async fn try_until(&mut self, batch: &Batch, patience: Duration) -> Result<Vec<Placed>, SendError> {
        let deadline = self.runtime.now() + patience;
        let mut perhaps_stored = false;
        loop {
            let question = batch.clone();
            let from = CLIENT_ADDRESS_MIN + self.number;
            let exchange =
                self.net.exchange(from, self.target, move |replica: Arc<dyn Replica>| replica.send(question));
            match self.runtime.timeout(ATTEMPT_TIMEOUT, exchange).await {
                Ok(Ok(Ok(placed))) => return Ok(placed),
                Ok(Ok(Err(SendError::Refused { leader }))) => self.turn_to(leader),
                Ok(Err(crate::net::NetError::Refused)) => self.turn_to(None),
                Ok(Ok(Err(SendError::Unknown)) | Err(crate::net::NetError::Broken)) | Err(_) => {
                    perhaps_stored = true;
                    self.turn_to(None);
                }
            }
            let pause = self.rng.between(5, 60);
            self.runtime.sleep(ms(pause)).await;
            if self.runtime.now() >= deadline {
                return Err(if perhaps_stored { SendError::Unknown } else { SendError::Refused { leader: None } });
            }
        }
    }

    fn turn_to(&mut self, leader: Option<u64>) {
        self.target = leader
            .filter(|leader| *leader != self.target)
            .unwrap_or_else(|| self.rng.between(1, self.options.replica_count));
    }

    /// Each message of a batch is a process of its own: within one, sends never overlap.
    fn write_down(&self, batch: &Batch, kind: EventKind, placed: Option<&[Placed]>) {
        let now_ns = self.runtime.now().as_nanos();
        for (place, message_id) in batch.message_ids.iter().enumerate() {
            let ack = placed.and_then(|placed| placed.get(place)).map(Placed::ack);
            let process = format!("client {}.{place}", self.number);
            self.journal.record(now_ns, process, kind, Operation::Send { message_id: message_id.clone(), ack });
        }
    }
}

/// How long a consumer goes on: until closing was announced, and then until nothing has come for so long.
pub(crate) struct Patience {
    drained_after: Duration,
    /// Since closing: what did not come before may have been kept back by faults.
    last_seen: Option<Instant>,
}

impl Patience {
    pub(crate) fn new(drained_after: Duration) -> Patience {
        Patience { drained_after, last_seen: None }
    }

    /// To be asked before each look for messages.
    pub(crate) fn lasts(&mut self, closing: &Closing, now: Instant) -> bool {
        if closing.deadline().is_none() {
            return true;
        }
        now - *self.last_seen.get_or_insert(now) < self.drained_after
    }

    /// Something came.
    pub(crate) fn seen(&mut self, now: Instant) {
        if let Some(last_seen) = &mut self.last_seen {
            *last_seen = now;
        }
    }
}

/// One consumer of the one group: takes, writes down, and mostly acknowledges.
pub(crate) struct Consumer {
    number: u64,
    runtime: Runtime,
    net: SimNet<dyn Replica>,
    journal: Journal,
    queues: Vec<QueueKey>,
    replica_count: u64,
    drained_after: Duration,
    rng: Rng,
    attempts: u64,
    target: Address,
}

impl Consumer {
    pub(crate) fn new(
        number: u64,
        options: &Options,
        queues: Vec<QueueKey>,
        runtime: Runtime,
        net: SimNet<dyn Replica>,
        journal: Journal,
    ) -> Consumer {
        let rng = Rng::stream(options.seed, &format!("workload of consumer {number}"));
        let Options { replica_count, drained_after, .. } = *options;
        Consumer { number, runtime, net, journal, queues, replica_count, drained_after, rng, attempts: 0, target: 1 }
    }

    /// Consumes until closing is announced and nothing has come for longer than anything can be
    /// invisible.
    pub(crate) async fn run(mut self, closing: Closing) {
        let mut patience = Patience::new(self.drained_after);
        while patience.lasts(&closing, self.runtime.now()) {
            let queue = self.rng.pick(&self.queues).clone();
            self.attempts += 1;
            let attempt_id = format!("consumer {} attempt {}", self.number, self.attempts);
            let some = self.receive(queue, attempt_id).await;
            if some {
                patience.seen(self.runtime.now());
            }
            // The backlog of a slow consumer is worked off once nothing new comes.
            let hurry = some && closing.deadline().is_some();
            let pause = if hurry { self.rng.between(0, 3) } else { self.rng.between(5, 100) };
            self.runtime.sleep(ms(pause)).await;
        }
    }

    /// False if the queue was empty.
    async fn receive(&mut self, queue: QueueKey, attempt_id: String) -> bool {
        // Asked again under the same id, as a client does whose answer got lost.
        for _ in 0..3 {
            let (queue, attempt_id) = (queue.clone(), attempt_id.clone());
            let asked = Operation::Receive { deliveries: Vec::new() };
            self.write_down(EventKind::Invoke, asked);
            match self.ask(move |replica| replica.receive(queue, attempt_id)).await {
                Some(Ok(received)) if received.is_empty() => {
                    self.write_down(EventKind::Ok, Operation::Receive { deliveries: Vec::new() });
                    return false;
                }
                Some(Ok(received)) => {
                    self.take(received).await;
                    return true;
                }
                Some(Err(SendError::Refused { leader })) => {
                    self.target = leader.unwrap_or_else(|| self.rng.between(1, self.replica_count));
                }
                Some(Err(SendError::Unknown)) | None => self.target = self.rng.between(1, self.replica_count),
            }
            let pause = self.rng.between(5, 60);
            self.runtime.sleep(ms(pause)).await;
        }
        true
    }

    fn write_down(&self, kind: EventKind, operation: Operation) {
        let consumer = format!("consumer {}", self.number);
        self.journal.record(self.runtime.now().as_nanos(), consumer, kind, operation);
    }

    async fn take(&mut self, received: Vec<Received>) {
        let consumer = format!("consumer {}", self.number);
        let deliveries = received.iter().map(|received| {
            Delivery::new(consumer.clone(), received.queue.clone(), received.offset, received.message_id.clone())
                .on_attempt(received.attempt)
        });
        let deliveries: Vec<Delivery> = deliveries.collect();
        self.write_down(EventKind::Ok, Operation::Receive { deliveries: deliveries.clone() });
        // Now and then it dies over its work.
        if self.rng.chance(900) {
            let task = Operation::Task(Task::Acknowledge { deliveries });
            self.write_down(EventKind::Invoke, task.clone());
            let kind = match self.ask(move |replica| replica.acknowledge(received)).await {
                Some(Ok(Acknowledged::All)) => EventKind::Ok,
                _ => EventKind::Unknown,
            };
            self.write_down(kind, task);
        }
    }

    async fn ask<T: Send + 'static>(
        &self,
        question: impl FnOnce(Arc<dyn Replica>) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Option<T> {
        let exchange = self.net.exchange(CONSUMER_ADDRESS_MIN + self.number, self.target, question);
        self.runtime.timeout(ATTEMPT_TIMEOUT, exchange).await.ok()?.ok()
    }
}
