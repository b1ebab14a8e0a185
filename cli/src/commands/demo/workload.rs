//! The demo's clients: numbered messages sent and received through the SDK, and a record of all that happened.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use flotilla_checkers::{Ack, Delivery, QueueKey, Send, SendOutcome};
use flotilla_client::{OutgoingMessage, Producer, ReceivedMessage, SendError, SimpleConsumer};
use flotilla_message::TopicName;
use flotilla_runtime::{Instant, Runtime};
use futures::future::join_all;

use super::pacer::Pacer;

/// A body starts with its message's number.
pub const NUMBER_BYTES: u64 = 8;
/// How long a received message is hidden from the other receivers.
pub const INVISIBLE: Duration = Duration::from_secs(10);
const BATCH_MAX: usize = 32;
/// Pause of a receiver whose call failed.
const RETRY_PAUSE: Duration = Duration::from_millis(50);

const ACKED: u8 = 1;
const RECEIVED: u8 = 2;

/// What senders and receivers share.
pub struct Tally {
    pub messages: u64,
    pub pacer: Pacer,
    next: AtomicU64,
    acked: AtomicU64,
    not_acked: AtomicU64,
    received: AtomicU64,
    /// Acknowledged and not yet received.
    outstanding: AtomicI64,
    marks: Vec<AtomicU8>,
    /// Nanoseconds of the runtime's clock.
    last_progress_ns: AtomicU64,
    sending_done: AtomicBool,
    stop_receiving: AtomicBool,
    runtime: Runtime,
}

impl Tally {
    pub fn new(messages: u64, pacer: Pacer, runtime: Runtime) -> Tally {
        let count = usize::try_from(messages).expect("the number of messages was limited when parsed");
        Tally {
            messages,
            pacer,
            next: AtomicU64::new(0),
            acked: AtomicU64::new(0),
            not_acked: AtomicU64::new(0),
            received: AtomicU64::new(0),
            outstanding: AtomicI64::new(0),
            marks: (0..count).map(|_| AtomicU8::new(0)).collect(),
            last_progress_ns: AtomicU64::new(runtime.now().as_nanos()),
            sending_done: AtomicBool::new(false),
            stop_receiving: AtomicBool::new(false),
            runtime,
        }
    }

    pub fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    /// Sends that have ended, well or not.
    pub fn completed(&self) -> u64 {
        self.acked() + self.not_acked.load(Ordering::Relaxed)
    }

    /// Different messages received.
    pub fn received(&self) -> u64 {
        self.received.load(Ordering::Relaxed)
    }

    /// How long nothing was acknowledged and nothing new received.
    pub fn quiet_for(&self) -> Duration {
        let last = Instant::from_nanos(self.last_progress_ns.load(Ordering::Relaxed));
        self.runtime.now().saturating_since(last)
    }

    /// No further message will be sent.
    pub fn set_sending_done(&self) {
        self.sending_done.store(true, Ordering::SeqCst);
    }

    pub fn is_sending_done(&self) -> bool {
        self.sending_done.load(Ordering::SeqCst)
    }

    /// What was not received until now is given up.
    pub fn set_stop_receiving(&self) {
        self.stop_receiving.store(true, Ordering::SeqCst);
    }

    fn is_drained(&self) -> bool {
        self.is_sending_done() && self.outstanding.load(Ordering::SeqCst) == 0
    }

    fn take_number(&self) -> Option<u64> {
        Some(self.next.fetch_add(1, Ordering::Relaxed)).filter(|number| *number < self.messages)
    }

    fn progressed(&self) {
        self.last_progress_ns.store(self.runtime.now().as_nanos(), Ordering::Relaxed);
    }

    fn mark_acked(&self, number: u64) {
        self.acked.fetch_add(1, Ordering::Relaxed);
        self.progressed();
        if self.marks[number as usize].fetch_or(ACKED, Ordering::SeqCst) & RECEIVED == 0 {
            self.outstanding.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn mark_received(&self, number: u64) {
        // A number that was never sent is a phantom: the checkers will say so.
        let Some(mark) = usize::try_from(number).ok().and_then(|number| self.marks.get(number)) else { return };
        let before = mark.fetch_or(RECEIVED, Ordering::SeqCst);
        if before & RECEIVED == 0 {
            self.received.fetch_add(1, Ordering::Relaxed);
            self.progressed();
            if before & ACKED != 0 {
                self.outstanding.fetch_sub(1, Ordering::SeqCst);
            }
        }
    }
}

/// What one sender did.
#[derive(Default)]
pub struct Sent {
    pub sends: Vec<Send>,
    pub acked_at: Vec<Instant>,
}

/// Sends one message after the other until all numbers are taken. A rejection ends it: the rest would fare alike.
pub async fn send_in_turn(
    name: String,
    tally: Arc<Tally>,
    producer: Arc<Producer>,
    topic: TopicName,
    size: usize,
) -> Result<Sent, SendError> {
    let mut sent = Sent::default();
    while let Some(number) = tally.take_number() {
        tally.pacer.wait(number).await;
        let invoked = tally.runtime.now();
        let result = producer.send(OutgoingMessage::new(topic.clone(), body_of(number, size))).await;
        let completed = tally.runtime.now();
        let outcome = match result {
            Ok(receipt) => {
                tally.mark_acked(number);
                sent.acked_at.push(completed);
                let queue = receipt.queue.unwrap_or_default();
                SendOutcome::Acked(Ack {
                    queue: QueueKey::new(topic.as_str(), queue),
                    offset: receipt.offset,
                    term: receipt.term,
                    leader: receipt.leader,
                    log_index: receipt.log_index,
                    early: false,
                })
            }
            Err(error @ SendError::Rejected { .. }) => return Err(error),
            Err(SendError::NotStored { .. }) => {
                tally.not_acked.fetch_add(1, Ordering::Relaxed);
                SendOutcome::Refused
            }
            Err(SendError::Unknown { .. }) => {
                tally.not_acked.fetch_add(1, Ordering::Relaxed);
                SendOutcome::Unknown
            }
        };
        let mut send = Send::new(number.to_string(), outcome).timed(invoked.as_nanos(), completed.as_nanos());
        send.process.clone_from(&name);
        sent.sends.push(send);
    }
    Ok(sent)
}

/// What one receiver got.
#[derive(Default)]
pub struct Received {
    pub deliveries: Vec<Delivery>,
    pub failed_calls: u64,
    pub failed_acks: u64,
}

/// Receives and acknowledges until every acknowledged message has come and a whole wait brought nothing more, or until
/// told to give up.
pub async fn receive_until_drained(name: String, tally: Arc<Tally>, consumer: Arc<SimpleConsumer>) -> Received {
    let mut received = Received::default();
    while !tally.stop_receiving.load(Ordering::SeqCst) {
        // Judged before the call: what was stored until here must be in this answer or a later one.
        let drained = tally.is_drained();
        match consumer.receive(BATCH_MAX, INVISIBLE).await {
            Ok(batch) if batch.is_empty() && drained => break,
            Ok(batch) => {
                for message in &batch {
                    let number = number_of(message);
                    tally.mark_received(number);
                    received.deliveries.push(delivery_of(&name, message, number));
                }
                let acks = join_all(batch.iter().map(|message| consumer.ack(message))).await;
                received.failed_acks += acks.iter().filter(|ack| ack.is_err()).count() as u64;
            }
            Err(error) => {
                tracing::debug!(receiver = name, %error, "a receive failed and is repeated");
                received.failed_calls += 1;
                tally.runtime.sleep(RETRY_PAUSE).await;
            }
        }
    }
    received
}

fn delivery_of(name: &str, message: &ReceivedMessage, number: u64) -> Delivery {
    let queue = QueueKey::new(message.topic.as_str(), message.queue);
    Delivery::new(name, queue, message.offset, number.to_string()).on_attempt(message.attempt)
}

/// The number, then filling.
pub fn body_of(number: u64, size: usize) -> Bytes {
    let mut body = vec![b'.'; size];
    body[..NUMBER_BYTES as usize].copy_from_slice(&number.to_be_bytes());
    body.into()
}

/// `u64::MAX` for a body that none of our senders made.
fn number_of(message: &ReceivedMessage) -> u64 {
    message.body.first_chunk().map_or(u64::MAX, |number| u64::from_be_bytes(*number))
}
