//! One client of the brokers: asks some replica, turns to another one after a failure, and writes down what it did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation, Task};
use flotilla_proto::metadata::CLIENT_ID;
use flotilla_proto::status::{Consequence, consequence};
use flotilla_proto::{CallContext, Messaging, v2};
use flotilla_runtime::{BoxFuture, Runtime};

use crate::broker_replica::{failure, places_of};
use crate::executor::ms;
use crate::net::{Address, NetError, SimNet};
use crate::options::Options;
use crate::replica::{Placed, Replica, SendError};
use crate::rng::Rng;
use crate::workload::Journal;

/// How long a call may take.
const CALL_TIMEOUT: Duration = ms(900);
/// How long its answer is waited for.
const ANSWER_TIMEOUT: Duration = ms(1_000);

pub(crate) struct Caller {
    pub(crate) process: String,
    pub(crate) rng: Rng,
    pub(crate) runtime: Runtime,
    journal: Journal,
    address: Address,
    target: Address,
    net: SimNet<dyn Replica>,
    replica_count: u64,
    /// Longest delay of a delayed message, milliseconds.
    pub(crate) delay_ms_max: u64,
    pub(crate) drained_after: Duration,
    sent: u64,
}

impl Caller {
    pub(crate) fn new(
        process: String,
        address: Address,
        options: &Options,
        net: SimNet<dyn Replica>,
        journal: Journal,
    ) -> Caller {
        let mut rng = Rng::stream(options.seed, &format!("workload of {process} at {address}"));
        let Options { replica_count, delay_ms_max, drained_after, .. } = *options;
        let target = rng.between(1, replica_count);
        let runtime = net.runtime().clone();
        Caller {
            process,
            rng,
            runtime,
            journal,
            address,
            target,
            net,
            replica_count,
            delay_ms_max,
            drained_after,
            sent: 0,
        }
    }

    /// A new message's id.
    pub(crate) fn next_id(&mut self) -> String {
        self.sent += 1;
        let number = self.address % 100;
        let message_id = format!("MSG-{number:02}-{:06}-{:08x}", self.sent, self.rng.next_u64() as u32);
        debug_assert_eq!(message_id.len(), crate::disk::MARK_BYTES, "the disks look for such marks");
        message_id
    }

    pub(crate) fn now_ns(&self) -> u64 {
        self.runtime.now().as_nanos()
    }

    pub(crate) fn record(&self, kind: EventKind, operation: Operation) {
        self.journal.record(self.now_ns(), self.process.clone(), kind, operation);
    }

    pub(crate) fn record_task(&self, kind: EventKind, task: Task) {
        self.record(kind, Operation::Task(task));
    }

    /// Asks once.
    pub(crate) async fn ask<T: Send + 'static>(
        &mut self,
        question: impl FnOnce(Arc<dyn Messaging>, CallContext) -> BoxFuture<'static, T> + Send + 'static,
    ) -> Result<T, SendError> {
        let (client, runtime) = (self.process.replace(' ', "-"), self.runtime.clone());
        let ask = move |replica: Arc<dyn Replica>| {
            let messaging = replica.messaging().expect("errands are run against brokers");
            let metadata = BTreeMap::from([(CLIENT_ID.to_owned(), client)]);
            question(messaging, CallContext::new(runtime.now() + CALL_TIMEOUT, String::new(), metadata))
        };
        let answered = self.runtime.timeout(ANSWER_TIMEOUT, self.net.exchange(self.address, self.target, ask)).await;
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(NetError::Refused)) => Err(self.turned(SendError::Refused { leader: None })),
            Ok(Err(NetError::Broken)) | Err(_) => Err(self.turned(SendError::Unknown)),
        }
    }

    /// Turns to some replica.
    pub(crate) fn turn(&mut self) {
        self.target = self.rng.between(1, self.replica_count);
    }

    /// Turns to some replica, after that error.
    pub(crate) fn turned(&mut self, error: SendError) -> SendError {
        self.turn();
        error
    }

    /// Sends one message until it is stored, or for so long.
    pub(crate) async fn send(
        &mut self,
        topic: &'static str,
        message: v2::Message,
        patience: Duration,
    ) -> Result<(v2::SendResultEntry, Option<Placed>), SendError> {
        let deadline = self.runtime.now() + patience;
        let mut perhaps_stored = false;
        loop {
            let request = v2::SendMessageRequest { messages: vec![message.clone()] };
            let answer = self
                .ask(move |messaging, context| Box::pin(async move { messaging.send_message(context, request).await }));
            let failed = match answer.await {
                Ok(reply) => {
                    let status = reply.body.status.as_ref();
                    let is_done = status.is_some_and(|status| consequence(status.code) == Consequence::Done);
                    match reply.body.entries.first() {
                        Some(entry) if is_done => {
                            return Ok((entry.clone(), places_of(topic, &reply).into_iter().next()));
                        }
                        _ => self.turned(failure(status)),
                    }
                }
                Err(error) => error,
            };
            perhaps_stored |= failed == SendError::Unknown;
            let pause_ms = self.rng.between(5, 60);
            self.runtime.sleep(ms(pause_ms)).await;
            if self.runtime.now() >= deadline {
                return Err(if perhaps_stored { SendError::Unknown } else { SendError::Refused { leader: None } });
            }
        }
    }

    pub(crate) fn record_send(&self, kind: EventKind, message_id: &str, placed: Option<&Placed>) {
        let ack = placed.map(Placed::ack);
        self.record(kind, Operation::Send { message_id: message_id.to_owned(), ack });
    }
}
