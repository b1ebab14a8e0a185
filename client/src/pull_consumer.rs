//! A consumer that reads queues by offset: its application decides which queues, from where on, and what is consumed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_message::TopicName;
use flotilla_proto::client::{CallError, CallOptions};
use flotilla_proto::status::Code;
use flotilla_proto::v2::{self, pull_message_response::Content};
use flotilla_runtime::{BoxFuture, Instant};
use futures::StreamExt;
use futures::stream::FuturesUnordered;

use crate::broker_word::is_broker_of;
use crate::client::{Client, Shared};
use crate::config::{PullConsumerConfig, PullStart};
use crate::consuming::POLL_MAX;
use crate::failover::{CallFailure, Failover};
use crate::failure::{Rejection, Verdict, code_text, judge_status};
use crate::received::Delivery;
use crate::replicas::Replicas;
use crate::route::RouteError;
use crate::wire;

/// A queue of a topic in a broker group.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PullQueue {
    /// The broker group.
    pub broker_group: String,
    /// The queue's number there.
    pub queue: u32,
}

/// Why a pull consumer's call was not done. None of them moves a position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PullError {
    /// The topic's route is not known.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The queue is not one of those assigned, or of no broker group that serves the topic.
    #[error("queue {} of broker group '{}' is not assigned", .0.queue, .0.broker_group)]
    NotAssigned(PullQueue),
    /// The position is outside of the queue: messages have expired, or were cut off. Seek to go on.
    #[error("offset {offset} is outside of queue {} of broker group '{}'; the nearest one inside is {nearest}", .queue.queue, .queue.broker_group)]
    OutOfRange {
        /// The queue.
        queue: PullQueue,
        /// The position.
        offset: u64,
        /// The offset nearest to it that exists.
        nearest: u64,
    },
    /// The broker refuses.
    #[error("rejected ({}): {message}", code_text(*code))]
    Rejected {
        /// Code of the RocketMQ protocol.
        code: i32,
        /// The broker's text.
        message: String,
    },
    /// No replica served in time. Trying again is safe.
    #[error("no broker served it in time: {reason}")]
    Unavailable {
        /// What the last attempt ended with.
        reason: String,
    },
}

/// Reads the assigned queues of one topic. Calls may run at the same time, though two polls at once may bring the same
/// messages.
///
/// A position moves with [`PullConsumer::poll`] and is this consumer's own until [`PullConsumer::commit`] tells the
/// brokers, where it is the group's: it survives their leaders, and the next consumer of the group begins there.
pub struct PullConsumer {
    client: Client,
    config: PullConsumerConfig,
    assigned: Mutex<BTreeMap<PullQueue, Assigned>>,
    /// Which queue is asked first; turns with every poll.
    turn: Mutex<usize>,
}

/// What is known of an assigned queue.
#[derive(Debug, Clone)]
struct Assigned {
    replicas: Arc<Replicas>,
    /// `None` until it is asked for.
    position: Option<u64>,
    committed: Option<u64>,
}

/// One replica is asked: its status, and what it is worth if that says OK.
type Calling<T> = BoxFuture<'static, Result<(Option<v2::Status>, T), CallError>>;

/// What one pull brought.
struct Pulled {
    messages: Vec<Delivery>,
    next: u64,
}

impl PullConsumer {
    pub(crate) fn new(client: Client, config: PullConsumerConfig) -> PullConsumer {
        PullConsumer { client, config, assigned: Mutex::default(), turn: Mutex::default() }
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.client.shared
    }

    fn assigned_lock(&self) -> MutexGuard<'_, BTreeMap<PullQueue, Assigned>> {
        self.assigned.lock().expect("assignment lock is never poisoned: no code panics while holding it")
    }

    /// All queues of the topic that may be read, in order.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn queues(&self) -> Result<Vec<PullQueue>, PullError> {
        let mut queues = Vec::new();
        for (broker_group, replicas) in self.groups().await? {
            let topic = &self.config.topic;
            let request = v2::QueryRouteRequest { topic: Some(wire::resource(topic.as_str())), endpoints: None };
            let route = self
                .call(&replicas, Duration::ZERO, |address, options| {
                    let reply = self.shared().connector.messaging(&address).query_route(options, request.clone());
                    Box::pin(async move {
                        let reply = reply.await?.body;
                        Ok((reply.status.clone(), reply))
                    })
                })
                .await?;
            // It names the queues of other groups as well.
            let is_own = |queue: &&v2::MessageQueue| {
                queue.broker.as_ref().is_some_and(|broker| is_broker_of(&broker_group, &broker.name))
            };
            let ids = route.message_queues.iter().filter(is_own).filter_map(|queue| u32::try_from(queue.id).ok());
            queues.extend(ids.map(|queue| PullQueue { broker_group: broker_group.clone(), queue }));
        }
        queues.sort();
        // A route may name a queue once for each replica.
        queues.dedup();
        Ok(queues)
    }

    async fn groups(&self) -> Result<BTreeMap<String, Arc<Replicas>>, PullError> {
        let shared = self.shared();
        let route = shared.route_until(&self.config.topic, shared.deadline()).await?;
        let named = |replicas: &Arc<Replicas>| (replicas.name().group.clone(), replicas.clone());
        Ok(route.readable().map(|group| named(&group.replicas)).collect())
    }

    /// Reads these queues from now on, and no others. Positions of those that were assigned before stay.
    ///
    /// # Errors
    /// [`PullError`]; the assignment is as it was then.
    pub async fn assign(&self, queues: &[PullQueue]) -> Result<(), PullError> {
        let groups = self.groups().await?;
        let mut before = self.assigned_lock().clone();
        let mut assigned = BTreeMap::new();
        for queue in queues {
            let replicas = groups.get(&queue.broker_group).ok_or_else(|| PullError::NotAssigned(queue.clone()))?;
            let fresh = || Assigned { replicas: replicas.clone(), position: None, committed: None };
            assigned.insert(queue.clone(), before.remove(queue).unwrap_or_else(fresh));
        }
        *self.assigned_lock() = assigned;
        Ok(())
    }

    /// The assigned queues.
    pub fn assignment(&self) -> Vec<PullQueue> {
        self.assigned_lock().keys().cloned().collect()
    }

    /// Up to `max` (at least 1) messages of one of the assigned queues, and moves past them. Waits up to `wait` for the
    /// first; empty means that there was none.
    ///
    /// # Errors
    /// [`PullError`]; positions of queues that failed are as they were.
    pub async fn poll(&self, max: usize, wait: Duration) -> Result<Vec<Delivery>, PullError> {
        let until = self.shared().runtime.now() + wait;
        let mut slice = Duration::ZERO;
        loop {
            let queues = self.next_turn();
            if queues.is_empty() {
                return Ok(Vec::new());
            }
            let mut failed = None;
            let mut pulls: FuturesUnordered<_> =
                queues.into_iter().map(|(queue, known)| self.pull_queue(queue, known, max, slice)).collect();
            while let Some((queue, pulled)) = pulls.next().await {
                match pulled {
                    Ok(pulled) => {
                        self.moved(&queue, pulled.next);
                        if !pulled.messages.is_empty() {
                            // The other pulls end here: they have changed nothing.
                            return Ok(pulled.messages);
                        }
                    }
                    Err(error) => failed = Some(error),
                }
            }
            let now = self.shared().runtime.now();
            match failed {
                Some(error) => return Err(error),
                None if now >= until => return Ok(Vec::new()),
                // Only the first look does not wait.
                None => slice = (until - now).min(POLL_MAX),
            }
        }
    }

    /// As [`PullConsumer::poll`], of one assigned queue.
    pub(crate) async fn poll_queue(
        &self,
        queue: &PullQueue,
        max: usize,
        wait: Duration,
    ) -> Result<Vec<Delivery>, PullError> {
        let known = self.known(queue)?;
        let pulled = self.pull_queue(queue.clone(), known, max, wait).await.1?;
        self.moved(queue, pulled.next);
        Ok(pulled.messages)
    }

    /// The assigned queues, beginning with another one each time.
    fn next_turn(&self) -> Vec<(PullQueue, Assigned)> {
        let mut queues: Vec<_> =
            self.assigned_lock().iter().map(|(queue, known)| (queue.clone(), known.clone())).collect();
        let mut turn = self.turn.lock().expect("turn lock is never poisoned: no code panics while holding it");
        if !queues.is_empty() {
            *turn = (*turn + 1) % queues.len();
            queues.rotate_left(*turn);
        }
        queues
    }

    async fn pull_queue(
        &self,
        queue: PullQueue,
        known: Assigned,
        max: usize,
        wait: Duration,
    ) -> (PullQueue, Result<Pulled, PullError>) {
        let pulled = async {
            let at = match known.position {
                Some(at) => at,
                None => self.first_position(&queue, &known).await?,
            };
            self.pull(&queue, &known.replicas, at, max, wait).await
        };
        let pulled = pulled.await;
        (queue, pulled)
    }

    /// The group's position, else where the settings say.
    async fn first_position(&self, queue: &PullQueue, known: &Assigned) -> Result<u64, PullError> {
        let at = match self.committed_at(queue, &known.replicas).await? {
            Some(committed) => committed,
            None => self.offset_of(queue, &known.replicas, self.config.start).await?,
        };
        self.moved(queue, at);
        Ok(at)
    }

    fn moved(&self, queue: &PullQueue, position: u64) {
        if let Some(known) = self.assigned_lock().get_mut(queue) {
            known.position = Some(position);
        }
    }

    async fn pull(
        &self,
        queue: &PullQueue,
        replicas: &Arc<Replicas>,
        at: u64,
        max: usize,
        wait: Duration,
    ) -> Result<Pulled, PullError> {
        let request = v2::PullMessageRequest {
            group: Some(wire::resource(self.config.group.as_str())),
            message_queue: Some(self.wire_queue(queue)),
            offset: i64::try_from(at).unwrap_or(i64::MAX),
            batch_size: i32::try_from(max.max(1)).unwrap_or(i32::MAX),
            filter_expression: Some(wire::filter_expression(&self.config.filter)),
            long_polling_timeout: Some(wire::duration(wait)),
        };
        // Consumers, and a consumer's queues, are spread over the replicas.
        let turn = || u64::from(crc32c::crc32c(self.shared().client_id.as_bytes())) + u64::from(queue.queue);
        let reads = replicas.reads_anywhere().then(turn);
        let pulled = self
            .call_at(replicas, reads, wait, |address, options| {
                let stream = self.shared().connector.messaging(&address).pull_message(options, request.clone());
                let replicas = replicas.clone();
                Box::pin(async move {
                    let mut stream = stream.await?;
                    let (mut status, mut messages, mut next) = (None, Vec::new(), None);
                    while let Some(element) = stream.next().await {
                        match element?.content {
                            Some(Content::Status(told)) => status = Some(told),
                            Some(Content::Message(message)) => messages.extend(wire::delivery_of(message, &replicas)),
                            Some(Content::NextOffset(offset)) => next = u64::try_from(offset).ok(),
                            None => {}
                        }
                    }
                    let told = status.as_ref().map(v2::Status::code);
                    // Nothing there is an answer too, and so is a position that is not.
                    let is_answer = matches!(told, Some(Code::MessageNotFound | Code::IllegalOffset));
                    let judged = if is_answer { Some(flotilla_proto::status::ok()) } else { status };
                    Ok((judged, (told, messages, next)))
                })
            })
            .await?;
        match pulled {
            (Some(Code::IllegalOffset), _, nearest) => {
                let nearest = nearest.unwrap_or(at);
                Err(PullError::OutOfRange { queue: queue.clone(), offset: at, nearest })
            }
            (_, messages, next) => {
                let behind = messages.last().map_or(at, |message: &Delivery| message.offset + 1);
                Ok(Pulled { next: next.unwrap_or(behind), messages })
            }
        }
    }

    /// The next offset to be polled of an assigned queue; `None` before the first poll.
    ///
    /// # Errors
    /// [`PullError::NotAssigned`].
    pub fn position(&self, queue: &PullQueue) -> Result<Option<u64>, PullError> {
        Ok(self.known(queue)?.position)
    }

    fn known(&self, queue: &PullQueue) -> Result<Assigned, PullError> {
        self.assigned_lock().get(queue).cloned().ok_or_else(|| PullError::NotAssigned(queue.clone()))
    }

    /// Goes on at `offset` in an assigned queue. Whether there is such an offset shows at the next poll.
    ///
    /// # Errors
    /// [`PullError::NotAssigned`].
    pub fn seek(&self, queue: &PullQueue, offset: u64) -> Result<(), PullError> {
        self.known(queue)?;
        self.moved(queue, offset);
        Ok(())
    }

    /// Goes on at the oldest message, behind the newest, or at a time; answers the offset.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn seek_to(&self, queue: &PullQueue, place: PullStart) -> Result<u64, PullError> {
        let known = self.known(queue)?;
        let offset = self.offset_of(queue, &known.replicas, place).await?;
        self.moved(queue, offset);
        Ok(offset)
    }

    async fn offset_of(&self, queue: &PullQueue, replicas: &Arc<Replicas>, place: PullStart) -> Result<u64, PullError> {
        let (policy, timestamp) = match place {
            PullStart::First => (v2::QueryOffsetPolicy::Beginning, None),
            PullStart::Last => (v2::QueryOffsetPolicy::End, None),
            PullStart::TimestampMs(at_ms) => (v2::QueryOffsetPolicy::Timestamp, Some(wire::timestamp_of(at_ms))),
        };
        let request = v2::QueryOffsetRequest {
            message_queue: Some(self.wire_queue(queue)),
            query_offset_policy: policy.into(),
            timestamp,
        };
        let offset = self
            .call(replicas, Duration::ZERO, |address, options| {
                let reply = self.shared().connector.messaging(&address).query_offset(options, request.clone());
                Box::pin(async move {
                    let reply = reply.await?.body;
                    Ok((reply.status, reply.offset))
                })
            })
            .await?;
        Ok(u64::try_from(offset).unwrap_or(0))
    }

    /// The group's position in an assigned queue as the brokers have it; `None` if it has none yet.
    ///
    /// # Errors
    /// [`PullError`].
    pub async fn committed(&self, queue: &PullQueue) -> Result<Option<u64>, PullError> {
        let known = self.known(queue)?;
        self.committed_at(queue, &known.replicas).await
    }

    async fn committed_at(&self, queue: &PullQueue, replicas: &Arc<Replicas>) -> Result<Option<u64>, PullError> {
        let request = v2::GetOffsetRequest {
            group: Some(wire::resource(self.config.group.as_str())),
            message_queue: Some(self.wire_queue(queue)),
        };
        let answer = self
            .call(replicas, Duration::ZERO, |address, options| {
                let reply = self.shared().connector.messaging(&address).get_offset(options, request.clone());
                Box::pin(async move {
                    let reply = reply.await?.body;
                    Ok((reply.status, reply.offset))
                })
            })
            .await;
        match answer {
            Ok(offset) => Ok(u64::try_from(offset).ok()),
            Err(PullError::Rejected { code, .. }) if code == Code::OffsetNotFound as i32 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Tells the brokers the positions that have moved since the last time: everything before them is consumed.
    ///
    /// # Errors
    /// The first [`PullError`]; the other queues are told all the same.
    pub async fn commit(&self) -> Result<(), PullError> {
        let moved: Vec<_> = self
            .assigned_lock()
            .iter()
            .filter_map(|(queue, known)| {
                let position = known.position.filter(|position| known.committed != Some(*position))?;
                Some((queue.clone(), known.replicas.clone(), position))
            })
            .collect();
        let mut failed = None;
        for (queue, replicas, position) in moved {
            let request = v2::UpdateOffsetRequest {
                group: Some(wire::resource(self.config.group.as_str())),
                message_queue: Some(self.wire_queue(&queue)),
                offset: i64::try_from(position).unwrap_or(i64::MAX),
            };
            let told = self
                .call(&replicas, Duration::ZERO, |address, options| {
                    let reply = self.shared().connector.messaging(&address).update_offset(options, request.clone());
                    Box::pin(async move { Ok((reply.await?.body.status, ())) })
                })
                .await;
            match told {
                Ok(()) => {
                    if let Some(known) = self.assigned_lock().get_mut(&queue) {
                        known.committed = Some(position);
                    }
                }
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        failed.map_or(Ok(()), Err)
    }

    fn wire_queue(&self, queue: &PullQueue) -> v2::MessageQueue {
        v2::MessageQueue {
            topic: Some(wire::resource(self.config.topic.as_str())),
            id: i32::try_from(queue.queue).unwrap_or(i32::MAX),
            broker: Some(v2::Broker { name: queue.broker_group.clone(), ..v2::Broker::default() }),
            ..v2::MessageQueue::default()
        }
    }

    /// Asks a group's replicas in turn; `call` answers a status and what it is worth if that says OK.
    async fn call<T>(
        &self,
        replicas: &Arc<Replicas>,
        wait: Duration,
        call: impl Fn(String, CallOptions) -> Calling<T> + Sync,
    ) -> Result<T, PullError> {
        self.call_at(replicas, None, wait, call).await
    }

    /// As [`PullConsumer::call`]; with `reads` at any replica, and that says which is asked first.
    async fn call_at<T>(
        &self,
        replicas: &Arc<Replicas>,
        reads: Option<u64>,
        wait: Duration,
        call: impl Fn(String, CallOptions) -> Calling<T> + Sync,
    ) -> Result<T, PullError> {
        let shared = self.shared();
        let deadline: Instant = shared.deadline() + wait;
        let topic: &TopicName = &self.config.topic;
        let want_route = || shared.want_route(topic);
        let failover = Failover { reads, ..shared.failover(replicas, deadline, wait, &want_route) };
        let served = failover
            .run(async |address: String, timeout: Duration| {
                let (status, value) = call(address, shared.options(timeout)).await?;
                Ok(match judge_status(status.as_ref()) {
                    Verdict::Done(()) => Verdict::Done(value),
                    Verdict::Rejected(rejection) => Verdict::Rejected(rejection),
                    Verdict::Retry(setback) => Verdict::Retry(setback),
                })
            })
            .await;
        match served {
            Ok(served) => Ok(served.value),
            Err(
                CallFailure::Rejected(Rejection { code, message })
                | CallFailure::Unknown { rejection: Some(Rejection { code, message }), .. },
            ) => Err(PullError::Rejected { code, message }),
            Err(CallFailure::NotExecuted { reason, .. } | CallFailure::Unknown { reason, rejection: None, .. }) => {
                Err(PullError::Unavailable { reason })
            }
        }
    }
}
