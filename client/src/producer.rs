//! Sending: one message id for all attempts, a bounded number of sends under way, an honest outcome.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_message::{ACK_PROPERTY, FLUSH_PROPERTY, Message, MessageId};
use flotilla_proto::client::CallError;
use flotilla_proto::metadata::{ACK_PLACE, FROM_GROUP};
use flotilla_proto::status::{Code, Coded};
use flotilla_proto::{AckPlace, Reply, v2};
use flotilla_runtime::{Instant, Task};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::client::Client;
use crate::config::{ConfigErrors, ProducerConfig};
use crate::failover::{CallFailure, Served};
use crate::failure::{Rejection, Verdict, judge_error, judge_status};
use crate::outgoing::OutgoingMessage;
use crate::receipt::{SendError, SendReceipt};
use crate::replicas::{BrokerGroupName, Replicas};
use crate::route::{GroupRoute, RouteError};
use crate::wire;

/// A send leaves a broker group that does not serve after so long, if there is another one; an election is over sooner.
const ELSEWHERE_AFTER: Duration = Duration::from_secs(2);
/// Reasons that an error tells.
const REASONS_MAX: usize = 8;

/// Sends messages. Cheap to clone; all clones share the bounds on what is under way.
#[derive(Clone)]
pub struct Producer {
    inner: Arc<Inner>,
}

struct Inner {
    client: Client,
    config: ProducerConfig,
    places: Arc<Semaphore>,
    /// In kibibytes, so that a semaphore can count them.
    bytes: Arc<Semaphore>,
}

/// A place among the sends under way; given back when dropped.
struct Place {
    _count: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// A message that may be sent, as a request that can be repeated.
struct Prepared {
    message_id: MessageId,
    topic: flotilla_message::TopicName,
    message_group: Option<String>,
    body_bytes: usize,
    request: v2::SendMessageRequest,
}

impl Producer {
    pub(crate) fn new(client: Client, config: ProducerConfig) -> Result<Producer, ConfigErrors> {
        config.validate()?;
        let inner = Inner {
            places: Arc::new(Semaphore::new(config.in_flight_max)),
            bytes: Arc::new(Semaphore::new(config.in_flight_bytes_max >> 10)),
            client,
            config,
        };
        Ok(Producer { inner: Arc::new(inner) })
    }

    /// Sends a message and waits until it is stored. Goes on by itself through failures of replicas until
    /// the client's send deadline, which includes the wait for a place among the sends under way.
    ///
    /// # Errors
    /// [`SendError`], which says whether the message is surely not stored.
    pub async fn send(&self, message: OutgoingMessage) -> Result<SendReceipt, SendError> {
        let deadline = self.inner.client.shared.deadline();
        let prepared = self.inner.prepare(message)?;
        let _place = self.inner.place_until(&prepared, deadline).await?;
        self.inner.send(&prepared, deadline).await
    }

    /// Starts a send and returns as soon as there is a place for it; the handle waits for the outcome.
    /// Sends of one producer may be stored in another order than they were started in. A dropped handle does
    /// not stop its send.
    pub async fn send_async(&self, message: OutgoingMessage) -> SendHandle {
        let deadline = self.inner.client.shared.deadline();
        let placed = match self.inner.prepare(message) {
            Ok(prepared) => self.inner.place_until(&prepared, deadline).await.map(|place| (prepared, place)),
            Err(error) => Err(error),
        };
        match placed {
            Err(error) => SendHandle { state: HandleState::Ended(Some(Box::new(error))) },
            Ok((prepared, place)) => {
                let (inner, message_id) = (self.inner.clone(), prepared.message_id.clone());
                let task = self.inner.client.shared.runtime.spawn("producer send", async move {
                    let outcome = inner.send(&prepared, deadline).await;
                    drop(place);
                    outcome
                });
                SendHandle { state: HandleState::Running { task, message_id } }
            }
        }
    }

    /// Sends a message once, without waiting for the answer: it may be lost, and nobody will say so.
    /// Returns when there is a place for it.
    ///
    /// # Errors
    /// [`SendError::Rejected`] for a message that no broker would take, [`SendError::NotStored`] when
    /// there is no place before the deadline.
    pub async fn send_oneway(&self, message: OutgoingMessage) -> Result<MessageId, SendError> {
        let deadline = self.inner.client.shared.deadline();
        let prepared = self.inner.prepare(message)?;
        let place = self.inner.place_until(&prepared, deadline).await?;
        let (inner, message_id) = (self.inner.clone(), prepared.message_id.clone());
        let send = async move {
            inner.send_once(&prepared, deadline).await;
            drop(place);
        };
        // Nobody waits for it; it ends by itself within the request time-out.
        self.inner.client.shared.runtime.spawn("producer oneway send", send).detach();
        Ok(message_id)
    }

    /// Waits until no send that was begun before is under way.
    pub async fn flush(&self) {
        let all = u32::try_from(self.inner.config.in_flight_max).expect("at most 1,000,000");
        // Never closed.
        let _ = self.inner.places.acquire_many(all).await;
    }
}

impl Inner {
    /// Checks the message as the broker would, and gives it its id.
    fn prepare(&self, mut outgoing: OutgoingMessage) -> Result<Prepared, SendError> {
        let mut ask = |key: &str, level: Option<String>| {
            if let Some(level) = level {
                outgoing.properties.entry(key.to_owned()).or_insert(level);
            }
        };
        ask(ACK_PROPERTY, self.config.ack.map(|level| level.to_string()));
        ask(FLUSH_PROPERTY, self.config.flush.map(|level| level.to_string()));
        let shared = &self.client.shared;
        let message_id = outgoing.id.clone().unwrap_or_else(|| shared.ids.next(&shared.runtime));
        let message: Message = wire::message_of(outgoing, message_id.clone(), shared.runtime.wall_ms());
        if let Err(error) = message.validate() {
            // What the broker would answer.
            let code = error.code() as i32;
            return Err(SendError::Rejected { message_id, code, message: error.to_string() });
        }
        Ok(Prepared {
            message_id,
            topic: message.topic.clone(),
            message_group: message.group.clone(),
            body_bytes: message.body.len(),
            request: wire::send_request(message),
        })
    }

    async fn place_until(&self, prepared: &Prepared, deadline: Instant) -> Result<Place, SendError> {
        let kibibytes = u32::try_from(prepared.body_bytes.div_ceil(1024).max(1)).expect("a body has at most 4 MiB");
        let acquire = async {
            let count = self.places.clone().acquire_owned().await;
            let bytes = self.bytes.clone().acquire_many_owned(kibibytes).await;
            (count.expect("never closed"), bytes.expect("never closed"))
        };
        match self.client.shared.runtime.timeout_at(deadline, acquire).await {
            Ok((count, bytes)) => Ok(Place { _count: count, _bytes: bytes }),
            Err(_) => Err(SendError::NotStored {
                message_id: prepared.message_id.clone(),
                attempts: 0,
                reason: format!("{} sends were under way until the deadline", self.config.in_flight_max),
            }),
        }
    }

    async fn send(&self, prepared: &Prepared, deadline: Instant) -> Result<SendReceipt, SendError> {
        let shared = &self.client.shared;
        let mut before = Before::default();
        loop {
            let route = match shared.route_until(&prepared.topic, deadline).await {
                Ok(route) => route,
                Err(RouteError::Unreachable { reasons, .. }) => return Err(before.not_stored(prepared, 0, reasons)),
                Err(error @ RouteError::TopicNotFound { .. }) => {
                    return Err(before.rejected(prepared, Code::TopicNotFound as i32, error.to_string()));
                }
                Err(RouteError::Rejected { code, message, .. }) => return Err(before.rejected(prepared, code, message)),
            };
            let turn = route.next_turn();
            let now = shared.runtime.now();
            let message_group = prepared.message_group.as_deref();
            let pick = |left: &[BrokerGroupName]| route.writable(message_group, turn, left, now);
            let picked = pick(&before.left).or_else(|| {
                // All have been asked: around again.
                before.left.clear();
                pick(&[])
            });
            let Some(GroupRoute { replicas, .. }) = picked else {
                let text = format!("topic '{}' may not be written", prepared.topic);
                return Err(before.rejected(prepared, Code::Forbidden as i32, text));
            };
            let mut left = before.left.clone();
            left.push(replicas.name().clone());
            // A message with order has one place, which any group passes it on to. Any of them will do if this one is gone.
            let has_others = route.writable(message_group, turn, &left, now).is_some() || !before.left.is_empty();
            let until = if has_others { deadline.min(now + ELSEWHERE_AFTER) } else { deadline };
            let want_route = || shared.want_route(&prepared.topic);
            let may_be_stored = AtomicBool::new(false);
            let served = shared
                .failover(replicas, until, Duration::ZERO, &want_route)
                .run(async |address: String, timeout: Duration| {
                    // What one group may have stored no other one can recognise: it must not be passed on.
                    let was = may_be_stored.swap(true, Ordering::Relaxed);
                    let stays_in = (was && message_group.is_none()).then_some(&**replicas);
                    let answer = self.attempt(prepared, &address, timeout, stays_in).await;
                    may_be_stored.store(was || is_unknown(&answer), Ordering::Relaxed);
                    answer
                })
                .await;
            let is_over = until >= deadline;
            match served {
                Ok(mut served) => {
                    served.attempts = served.attempts.saturating_add(before.attempts);
                    let receipt = receipt(prepared, replicas, served);
                    let maybe_also_in = before.unknown_in.filter(|group| *group != receipt.broker_group);
                    return Ok(SendReceipt { maybe_also_in, ..receipt });
                }
                Err(CallFailure::Rejected(rejection)) => {
                    self.heed(prepared, replicas, &rejection);
                    return Err(before.rejected(prepared, rejection.code, rejection.message));
                }
                Err(CallFailure::NotExecuted { attempts, reason }) if is_over => {
                    return Err(before.not_stored(prepared, attempts, reason));
                }
                Err(CallFailure::NotExecuted { attempts, reason }) => {
                    // What becomes of a message with order is its owner's affair, and says nothing of who passed it on.
                    if message_group.is_none() {
                        replicas.gave_up(shared.runtime.now());
                    }
                    before.leave(replicas, attempts, reason);
                }
                Err(CallFailure::Unknown { attempts, reason, rejection: None })
                    if !is_over && self.config.repeats_elsewhere && message_group.is_none() =>
                {
                    before.unknown_in.get_or_insert_with(|| replicas.name().group.clone());
                    replicas.gave_up(shared.runtime.now());
                    before.leave(replicas, attempts, reason);
                }
                // What is unknown is found out where it was tried.
                Err(CallFailure::Unknown { rejection: None, .. }) if !is_over => {
                    return self.find_out(prepared, replicas, deadline, before).await;
                }
                Err(CallFailure::Unknown { attempts, reason, rejection }) => {
                    rejection.inspect(|rejection| self.heed(prepared, replicas, rejection));
                    return Err(before.unknown(prepared, attempts, reason));
                }
            }
        }
    }

    /// Goes on asking the group that may have stored the message.
    async fn find_out(
        &self,
        prepared: &Prepared,
        replicas: &Replicas,
        deadline: Instant,
        before: Before,
    ) -> Result<SendReceipt, SendError> {
        let shared = &self.client.shared;
        let want_route = || shared.want_route(&prepared.topic);
        let served = shared
            .failover(replicas, deadline, Duration::ZERO, &want_route)
            .run(async |address: String, timeout: Duration| {
                let stays_in = prepared.message_group.is_none().then_some(replicas);
                self.attempt(prepared, &address, timeout, stays_in).await
            })
            .await;
        match served {
            Ok(served) => Ok(receipt(prepared, replicas, served)),
            Err(
                CallFailure::Rejected(Rejection { message: reason, .. })
                | CallFailure::NotExecuted { reason, .. }
                | CallFailure::Unknown { reason, .. },
            ) => Err(before.unknown(prepared, 0, reason)),
        }
    }

    /// Brokers that do not have the topic are not asked for it again before somebody says that they do.
    fn heed(&self, prepared: &Prepared, replicas: &Replicas, rejection: &Rejection) {
        if rejection.is(Code::TopicNotFound) {
            self.client.shared.routes.denied(&prepared.topic, replicas.name());
        }
    }

    async fn attempt(
        &self,
        prepared: &Prepared,
        address: &str,
        timeout: Duration,
        stays_in: Option<&Replicas>,
    ) -> Result<Verdict<Stored>, CallError> {
        let shared = &self.client.shared;
        let calls = shared.connector.messaging(address);
        let mut options = shared.options(timeout);
        if let Some(replicas) = stays_in {
            let mut words = (*shared.metadata).clone();
            words.push((FROM_GROUP.into(), replicas.name().group.clone()));
            options = options.with_metadata(Arc::new(words));
        }
        let reply = calls.send_message(options, prepared.request.clone()).await?;
        let entry_status = reply.body.entries.first().and_then(|entry| entry.status.as_ref());
        Ok(match judge_status(entry_status.or(reply.body.status.as_ref())) {
            Verdict::Done(()) => Verdict::Done(stored(&reply)),
            Verdict::Rejected(rejection) => Verdict::Rejected(rejection),
            Verdict::Retry(setback) => Verdict::Retry(setback),
        })
    }

    async fn send_once(&self, prepared: &Prepared, deadline: Instant) {
        let shared = &self.client.shared;
        let Ok(route) = shared.route_until(&prepared.topic, deadline).await else { return };
        let turn = route.next_turn();
        let group = route.writable(prepared.message_group.as_deref(), turn, &[], shared.runtime.now());
        let Some(GroupRoute { replicas, .. }) = group else { return };
        let Some(address) = replicas.next(&[], shared.runtime.now()) else { return };
        let timeout = shared.config.request_timeout;
        match shared.runtime.timeout(timeout, self.attempt(prepared, &address, timeout, None)).await {
            Ok(Ok(Verdict::Done(_))) => {}
            Ok(Ok(Verdict::Rejected(rejection))) => {
                self.heed(prepared, replicas, &rejection);
                tracing::debug!(id = %prepared.message_id, address, reason = rejection.message, "oneway send rejected");
            }
            Ok(Ok(Verdict::Retry(_))) | Ok(Err(_)) | Err(_) => {
                replicas.failed(&address);
                shared.want_route(&prepared.topic);
                tracing::debug!(id = %prepared.message_id, address, "oneway send did not go through");
            }
        }
    }
}

/// Whether an attempt may have been executed.
fn is_unknown<T>(answer: &Result<Verdict<T>, CallError>) -> bool {
    let judged = match answer {
        Ok(Verdict::Retry(setback)) => return setback.kind.is_unknown(),
        Ok(Verdict::Done(_) | Verdict::Rejected(_)) => return false,
        Err(error) => judge_error::<T>(error),
    };
    matches!(judged, Verdict::Retry(setback) if setback.kind.is_unknown())
}

/// What a broker says of a stored message.
struct Stored {
    offset: u64,
    place: Option<AckPlace>,
}

fn stored(reply: &Reply<v2::SendMessageResponse>) -> Stored {
    let offset = reply.body.entries.first().and_then(|entry| u64::try_from(entry.offset).ok());
    let place: Option<AckPlace> = reply.value_of(ACK_PLACE).and_then(|text| text.parse().ok());
    let offset = offset.or(place.as_ref().map(|place| place.offset)).unwrap_or(0);
    Stored { offset, place }
}

fn receipt(prepared: &Prepared, replicas: &Replicas, served: Served<Stored>) -> SendReceipt {
    let place = served.value.place;
    if let Some(place) = &place {
        // From now on sends go to the leader without a detour. One that another group has stored says nothing of this one's.
        if place.group == replicas.name().group {
            replicas.learn_leader(place.term, place.leader);
        }
    }
    SendReceipt {
        message_id: prepared.message_id.clone(),
        topic: prepared.topic.clone(),
        broker_group: place.as_ref().map_or_else(|| replicas.name().group.clone(), |place| place.group.clone()),
        queue: place.as_ref().map(|place| place.queue),
        offset: served.value.offset,
        term: place.as_ref().map(|place| place.term),
        leader: place.as_ref().map(|place| place.leader),
        log_index: place.as_ref().map(|place| place.log_index),
        attempts: served.attempts,
        maybe_also_in: None,
    }
}

/// What became of a send in the broker groups that were asked before.
#[derive(Default)]
struct Before {
    left: Vec<BrokerGroupName>,
    attempts: u32,
    /// The first one that may have stored it.
    unknown_in: Option<String>,
    reasons: Vec<String>,
}

impl Before {
    /// The group does not serve.
    fn leave(&mut self, replicas: &Replicas, attempts: u32, reason: String) {
        self.left.push(replicas.name().clone());
        self.attempts = self.attempts.saturating_add(attempts);
        if self.reasons.len() < REASONS_MAX {
            self.reasons.push(format!("broker group {}: {reason}", replicas.name().group));
        }
    }

    fn told(mut self, reason: String) -> String {
        self.reasons.push(reason);
        self.reasons.join("; ")
    }

    fn not_stored(self, prepared: &Prepared, attempts: u32, reason: String) -> SendError {
        if self.unknown_in.is_some() {
            return self.unknown(prepared, attempts, reason);
        }
        let (message_id, attempts) = (prepared.message_id.clone(), attempts.saturating_add(self.attempts));
        SendError::NotStored { message_id, attempts, reason: self.told(reason) }
    }

    fn unknown(self, prepared: &Prepared, attempts: u32, reason: String) -> SendError {
        let (message_id, attempts) = (prepared.message_id.clone(), attempts.saturating_add(self.attempts));
        SendError::Unknown { message_id, attempts, reason: self.told(reason) }
    }

    fn rejected(self, prepared: &Prepared, code: i32, message: String) -> SendError {
        if self.unknown_in.is_some() {
            return self.unknown(prepared, 0, message);
        }
        rejected(prepared, code, message)
    }
}

fn rejected(prepared: &Prepared, code: i32, message: String) -> SendError {
    SendError::Rejected { message_id: prepared.message_id.clone(), code, message }
}

/// A send under way: a future of its outcome.
pub struct SendHandle {
    state: HandleState,
}

enum HandleState {
    Running { task: Task<Result<SendReceipt, SendError>>, message_id: MessageId },
    Ended(Option<Box<SendError>>),
}

impl SendHandle {
    /// The message's id.
    pub fn message_id(&self) -> Option<&MessageId> {
        match &self.state {
            HandleState::Running { message_id, .. } => Some(message_id),
            HandleState::Ended(error) => error.as_deref().map(SendError::message_id),
        }
    }
}

impl Future for SendHandle {
    type Output = Result<SendReceipt, SendError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            HandleState::Running { task, message_id } => Pin::new(task).poll(cx).map(|ended| match ended {
                Ok(outcome) => outcome,
                Err(end) => {
                    let (message_id, reason) = (message_id.clone(), end.to_string());
                    Err(SendError::Unknown { message_id, attempts: 0, reason })
                }
            }),
            HandleState::Ended(error) => Poll::Ready(Err(*error.take().expect("polled once more after it was ready"))),
        }
    }
}

impl Drop for SendHandle {
    fn drop(&mut self) {
        // Letting go of the handle is not a wish to stop the send.
        if let HandleState::Running { task, .. } = std::mem::replace(&mut self.state, HandleState::Ended(None)) {
            task.detach();
        }
    }
}
