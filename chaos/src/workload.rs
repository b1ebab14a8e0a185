//! The load: numbered messages sent at a rate, several at a time, and consumers that acknowledge what they get.
//!
//! Most senders share a topic whose queues the broker picks. A few send to a FIFO topic, each a message group of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_checkers::{Ack, Delivery, EventKind, Operation, QueueKey};
use flotilla_client::{
    Client, ConfigErrors, OutgoingMessage, Producer, ProducerConfig, ReceivedMessage, SendError, SimpleConsumer,
    SimpleConsumerConfig,
};
use flotilla_message::{AckLevel, GroupName, MessageId, TopicName};
use flotilla_runtime::{Instant, Runtime, Task};
use futures::future::join_all;
use serde::{Deserialize, Serialize};

use crate::body;
use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::levels::{Level, Levels};

/// Sends under way at once grow with the rate: a fifth of a second's worth.
const SENDERS_MIN: u64 = 8;
const SENDERS_MAX: u64 = 256;
const CONSUMERS: u64 = 3;
/// Message groups, each with one sender: slower than the rest, since each message waits for the one before.
const FIFO_SENDERS: u64 = 4;
const FIFO_CONSUMERS: u64 = 2;
const BATCH_MAX: usize = 32;
/// How long a received message is hidden from the other consumers.
pub(crate) const INVISIBLE: Duration = Duration::from_secs(10);
/// How long one receive call waits for messages.
const RECEIVE_WAIT: Duration = Duration::from_secs(2);
/// What was answered before its commit and has not come so long after anything else came is taken for gone: longer than a
/// delivery is hidden.
const EARLY_PATIENCE: Duration = Duration::from_secs(12);
/// Pause of a consumer whose call failed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

/// What to send and receive.
#[derive(Debug, Clone)]
pub(crate) struct WorkloadConfig {
    pub(crate) topic: TopicName,
    pub(crate) group: GroupName,
    /// A FIFO topic, and a group that reads it in order.
    pub(crate) fifo_topic: TopicName,
    pub(crate) fifo_group: GroupName,
    /// At which levels they are answered.
    pub(crate) levels: Levels,
    /// Messages a second.
    pub(crate) rate: u64,
    /// Told apart from messages of other runs by this.
    pub(crate) seed: u64,
}

/// What the clients' calls came to, beside the history.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallCounts {
    /// Receive calls that ended with an error, and were repeated.
    pub receive_failed: u64,
    /// Acknowledgements of a delivery that were confirmed.
    pub acks_confirmed: u64,
    /// Acknowledgements of a delivery that ended with an error.
    pub acks_failed: u64,
    /// Sends that a broker refused for good.
    pub rejected: u64,
    /// One of them.
    pub rejection: Option<String>,
    /// The error of one send of unknown outcome.
    pub unknown_example: Option<String>,
}

/// A load under way. Dropping it ends it.
pub(crate) struct Workload {
    shared: Arc<Shared>,
    senders: Vec<Task<()>>,
    consumers: Vec<Task<()>>,
}

struct Shared {
    config: WorkloadConfig,
    history: Arc<HistoryFile>,
    incidents: Arc<Incidents>,
    runtime: Runtime,
    interval: Duration,
    /// When sending is over; while it is not said, it goes on.
    ends_at: Mutex<Option<Instant>>,
    next_slot: Mutex<Instant>,
    next_number: AtomicU64,
    acked: AtomicU64,
    tally: Mutex<Tally>,
    is_sending_over: AtomicBool,
    is_given_up: AtomicBool,
}

#[derive(Default)]
struct Tally {
    /// Sent, acknowledged, and not yet received.
    outstanding: BTreeSet<u64>,
    /// As these, but acknowledged before their commit: they may never come.
    outstanding_early: BTreeSet<u64>,
    received: BTreeSet<u64>,
    /// When the acknowledgement of a delivery was confirmed.
    consumed_at: BTreeMap<u64, Instant>,
    counts: CallCounts,
    last_received_at: Option<Instant>,
}

impl Workload {
    /// Starts sending, until the time that [`Workload::stop_sending`] says, and receiving, until [`Workload::end`].
    pub(crate) fn start(
        config: WorkloadConfig,
        sending: &Client,
        receiving: &Client,
        history: Arc<HistoryFile>,
        incidents: Arc<Incidents>,
        runtime: &Runtime,
    ) -> Result<Workload, ConfigErrors> {
        let senders = (config.rate / 5).clamp(SENDERS_MIN, SENDERS_MAX);
        let interval = Duration::from_secs(1) / u32::try_from(config.rate.max(1)).unwrap_or(u32::MAX);
        let shared = Arc::new(Shared {
            config,
            history,
            incidents,
            runtime: runtime.clone(),
            interval,
            ends_at: Mutex::new(None),
            next_slot: Mutex::new(runtime.now()),
            next_number: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            tally: Mutex::default(),
            is_sending_over: AtomicBool::new(false),
            is_given_up: AtomicBool::new(false),
        });
        let plain = (1..=CONSUMERS).map(|number| (format!("consumer-{number}"), false));
        let fifo = (1..=FIFO_CONSUMERS).map(|number| (format!("fifo-consumer-{number}"), true));
        let consumers = plain
            .chain(fifo)
            .map(|(name, is_fifo)| {
                let WorkloadConfig { topic, group, fifo_topic, fifo_group, .. } = &shared.config;
                let (group, topic) = if is_fifo { (fifo_group, fifo_topic) } else { (group, topic) };
                let consumer = receiving.simple_consumer(SimpleConsumerConfig {
                    await_duration: RECEIVE_WAIT,
                    ..SimpleConsumerConfig::new(group.clone(), topic.clone())
                })?;
                Ok(runtime.spawn("consumer", shared.clone().receive(name, consumer)))
            })
            .collect::<Result<Vec<_>, ConfigErrors>>()?;
        let producer = Arc::new(sending.producer(ProducerConfig::default())?);
        let plain = (1..=senders).map(|number| (number, format!("producer-{number}"), false));
        let fifo = (1..=FIFO_SENDERS).map(|number| (number, format!("fifo-producer-{number}"), true));
        let start = |(number, name, is_fifo): (u64, String, bool)| {
            let level = shared.config.levels.of_sender(number - 1);
            runtime.spawn("producer", shared.clone().send(name, producer.clone(), is_fifo, level))
        };
        let senders = plain.chain(fifo).map(start).collect();
        Ok(Workload { shared, senders, consumers })
    }

    /// How many sends were acknowledged until now.
    pub(crate) fn acked(&self) -> u64 {
        self.shared.acked.load(Ordering::Relaxed)
    }

    /// Sends until that time, and waits until no send is under way any more.
    pub(crate) async fn stop_sending(&mut self, ends_at: Instant) {
        *self.shared.ends_at.lock().expect("no code panics while holding it") = Some(ends_at);
        for sender in self.senders.drain(..) {
            sender.await.expect("a sender neither panics nor is cancelled");
        }
        self.shared.is_sending_over.store(true, Ordering::SeqCst);
    }

    /// Waits until consumers have everything that was acknowledged, or nothing new has come for `patience`; then ends
    /// them and answers what the calls came to.
    pub(crate) async fn end(self, patience: Duration) -> CallCounts {
        let runtime = &self.shared.runtime;
        let begun = runtime.now();
        loop {
            let (missing, early, last) = {
                let tally = self.shared.tally();
                let last = tally.last_received_at.unwrap_or(begun).max(begun);
                (tally.outstanding.len(), tally.outstanding_early.len(), last)
            };
            if missing == 0 && (early == 0 || runtime.now() - last > EARLY_PATIENCE) {
                break;
            }
            if missing > 0 && runtime.now() - last > patience {
                let text = format!(
                    "{missing} acknowledged messages have not come to the consumers {patience:?} after the last that came"
                );
                self.shared.incidents.add(text);
                break;
            }
            runtime.sleep(Duration::from_millis(20)).await;
        }
        self.shared.is_given_up.store(true, Ordering::SeqCst);
        for consumer in self.consumers {
            consumer.await.expect("a consumer neither panics nor is cancelled");
        }
        self.shared.tally().counts.clone()
    }
}

impl Shared {
    /// Sends one message after the other: of one process at most one is under way.
    async fn send(self: Arc<Shared>, process: String, producer: Arc<Producer>, is_fifo: bool, level: Level) {
        let topic = if is_fifo { &self.config.fifo_topic } else { &self.config.topic };
        loop {
            let slot = self.take_slot();
            let ends_at = *self.ends_at.lock().expect("no code panics while holding it");
            if ends_at.is_some_and(|ends_at| slot >= ends_at) {
                return;
            }
            self.runtime.sleep_until(slot).await;
            let number = self.next_number.fetch_add(1, Ordering::Relaxed);
            let id = self.id_of(number);
            let message_id = || id.to_string();
            self.history.record(&process, EventKind::Invoke, Operation::Send { message_id: message_id(), ack: None });
            let mut message = OutgoingMessage::new(topic.clone(), body::of_number(number)).with_id(id.clone());
            if is_fifo {
                message = message.with_message_group(process.clone());
            }
            if level.ack > self.config.levels.lowest() {
                message = message.with_ack(level.ack);
            }
            if level.flush > self.config.levels.flush {
                message = message.with_flush(level.flush);
            }
            let result = producer.send(message).await;
            let (kind, ack) = match &result {
                Ok(receipt) => (EventKind::Ok, Some(ack_of(topic, receipt, level.ack))),
                Err(SendError::Unknown { .. }) => (EventKind::Unknown, None),
                Err(SendError::NotStored { .. } | SendError::Rejected { .. }) => (EventKind::Fail, None),
            };
            self.history.record(&process, kind, Operation::Send { message_id: message_id(), ack });
            let mut tally = self.tally();
            match result {
                Ok(_) => {
                    self.acked.fetch_add(1, Ordering::Relaxed);
                    if !tally.received.contains(&number) {
                        let is_early = level.ack == AckLevel::Async;
                        let waits = if is_early { &mut tally.outstanding_early } else { &mut tally.outstanding };
                        waits.insert(number);
                    }
                }
                Err(error @ SendError::Rejected { .. }) => {
                    tally.counts.rejected += 1;
                    tally.counts.rejection.get_or_insert_with(|| error.to_string());
                }
                Err(error @ SendError::Unknown { .. }) => {
                    tally.counts.unknown_example.get_or_insert_with(|| error.to_string());
                }
                Err(SendError::NotStored { .. }) => {}
            }
        }
    }

    async fn receive(self: Arc<Shared>, process: String, consumer: SimpleConsumer) {
        while !self.is_given_up.load(Ordering::SeqCst) {
            let invoked = self.runtime.now();
            self.history.record(&process, EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
            match consumer.receive(BATCH_MAX, INVISIBLE).await {
                Ok(batch) => {
                    let deliveries = batch.iter().map(|message| delivery_of(&process, message)).collect();
                    self.history.record(&process, EventKind::Ok, Operation::Receive { deliveries });
                    self.tally_received(&process, &batch, invoked);
                    let acks = join_all(batch.iter().map(|message| consumer.ack(message))).await;
                    let now = self.runtime.now();
                    let mut tally = self.tally();
                    for (message, ack) in batch.iter().zip(acks) {
                        if ack.is_err() {
                            tally.counts.acks_failed += 1;
                        } else {
                            tally.counts.acks_confirmed += 1;
                            if let Some(number) = body::number_of(&message.body) {
                                tally.consumed_at.entry(number).or_insert(now);
                            }
                        }
                    }
                }
                Err(error) => {
                    tracing::debug!(process, %error, "a receive failed and is repeated");
                    self.tally().counts.receive_failed += 1;
                    self.runtime.sleep(RETRY_PAUSE).await;
                }
            }
        }
    }

    fn tally_received(&self, process: &str, batch: &[ReceivedMessage], invoked: Instant) {
        let mut tally = self.tally();
        for message in batch {
            // What is not ours is found as a phantom.
            let Some(number) = body::number_of(&message.body) else { continue };
            if tally.consumed_at.get(&number).is_some_and(|consumed_at| *consumed_at < invoked) {
                self.incidents.add(format!(
                    "progress went back: {process} got message {} ({}/{}@{}, attempt {}) by a call made after its acknowledgement had been confirmed",
                    message.id, message.topic, message.queue, message.offset, message.attempt
                ));
            }
            tally.outstanding.remove(&number);
            tally.outstanding_early.remove(&number);
            if tally.received.insert(number) {
                tally.last_received_at = Some(self.runtime.now());
            }
        }
    }

    fn take_slot(&self) -> Instant {
        let mut next =
            self.next_slot.lock().expect("the slot's lock is never poisoned: no code panics while holding it");
        // What could not be sent in time is not made up for.
        let slot = (*next).max(self.runtime.now());
        *next = slot + self.interval;
        slot
    }

    fn id_of(&self, number: u64) -> MessageId {
        MessageId::try_from(format!("{:x}-{number}", self.config.seed)).expect("hex digits and a number are an id")
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("the tally's lock is never poisoned: no code panics while holding it")
    }
}

pub(crate) fn ack_of(topic: &TopicName, receipt: &flotilla_client::SendReceipt, level: AckLevel) -> Ack {
    // A queue that the broker did not name is none of ours: the checkers then say that the message is not there.
    let queue = QueueKey::new(topic.as_str(), receipt.queue.unwrap_or(u32::MAX));
    let (term, leader, log_index) = (receipt.term, receipt.leader, receipt.log_index);
    let early = level == AckLevel::Async;
    Ack { queue, offset: receipt.offset, term, leader, log_index, early }
}

/// A delivery as the history has it. A body that none of our messages has makes another message of it.
pub(crate) fn delivery_of(process: &str, message: &ReceivedMessage) -> Delivery {
    let queue = QueueKey::new(message.topic.as_str(), message.queue);
    let number = body::number_of(&message.body);
    let is_whole = number.is_some_and(|number| message.id.as_str().ends_with(&format!("-{number}")));
    let id = if is_whole { message.id.to_string() } else { format!("{} with a damaged body", message.id) };
    Delivery::new(process, queue, message.offset, id).on_attempt(message.attempt)
}
