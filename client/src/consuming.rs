//! What both consumers do: poll a broker group, acknowledge a delivery, change how long it stays hidden.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_message::{GroupName, TopicName};
use flotilla_proto::client::CallError;
use flotilla_proto::status::Code;
use flotilla_proto::v2::{self, receive_message_response::Content};
use flotilla_runtime::Instant;
use futures::StreamExt;
use futures::future::join_all;

use crate::client::Shared;
use crate::config::{Filter, INVISIBLE_MAX};
use crate::failover::CallFailure;
use crate::failure::{Rejection, Verdict, code_text, judge_error, judge_status};
use crate::membership::Membership;
use crate::received::ReceivedMessage;
use crate::replicas::{BrokerGroupName, Replicas};
use crate::route::RouteError;
use crate::wire;

/// Longest wait of one poll: a replica that freezes during a poll costs no more than this and an attempt.
pub(crate) const POLL_MAX: Duration = Duration::from_secs(5);

/// Receipts of one call: a fourth of what our brokers take.
const RECEIPTS_MAX: usize = 1_024;

/// Why nothing was received. Messages that a broker delivered all the same come again after their
/// invisible time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceiveError {
    /// An argument is not allowed.
    #[error("{name} is {value}, allowed is {allowed}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The topic's route is not known.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The broker refuses: no such group, a bad filter and the like.
    #[error("receive from '{topic}' for group '{group}' is rejected ({}): {message}", code_text(*code))]
    Rejected {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
        /// Code of the RocketMQ protocol.
        code: i32,
        /// The broker's text.
        message: String,
    },
    /// No replica served in time.
    #[error("no broker served a receive from '{topic}' for group '{group}': {reason}")]
    Unavailable {
        /// The topic.
        topic: TopicName,
        /// The group.
        group: GroupName,
        /// What the last attempt ended with.
        reason: String,
    },
}

/// Why a delivery was not acknowledged or its invisible time not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeliveryError {
    /// An argument is not allowed.
    #[error("{name} is {value}, allowed is {allowed}")]
    Argument {
        /// The argument.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is allowed.
        allowed: String,
    },
    /// The delivery is over: its invisible time has passed, or it was acknowledged.
    #[error("this delivery is over: {message}")]
    Over {
        /// The broker's text.
        message: String,
    },
    /// The broker refuses for another reason.
    #[error("rejected ({}): {message}", code_text(*code))]
    Rejected {
        /// Code of the RocketMQ protocol.
        code: i32,
        /// The broker's text.
        message: String,
    },
    /// No replica served in time; it may or may not be done. Trying again is safe.
    #[error("no broker served it in time, it may or may not be done: {reason}")]
    Unknown {
        /// What the last attempt ended with.
        reason: String,
    },
}

/// A consumer group's calls about one topic.
pub(crate) struct Consuming {
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: GroupName,
    pub(crate) topic: TopicName,
    filter: Filter,
    membership: Membership,
}

impl Consuming {
    pub(crate) fn new(shared: Arc<Shared>, group: GroupName, topic: TopicName, filter: Filter) -> Consuming {
        let membership = Membership::begin(shared.clone(), group.clone());
        Consuming { shared, group, topic, filter, membership }
    }

    /// Says good-bye, see [`Membership::leave`].
    pub(crate) async fn leave(&self, timeout: Duration) {
        self.membership.leave(&self.topic, timeout).await;
    }

    /// Polls one broker group until there is a message or `until` has passed. Empty: there was none. Goes on
    /// through failures until `give_up`.
    ///
    /// A poll whose outcome is unknown is repeated with the same attempt id, upon which the broker answers
    /// with the messages it has delivered already.
    pub(crate) async fn poll(
        &self,
        replicas: &Arc<Replicas>,
        batch: usize,
        invisible: Duration,
        until: Instant,
        give_up: Instant,
    ) -> Result<Vec<ReceivedMessage>, ReceiveError> {
        let runtime = &self.shared.runtime;
        loop {
            let began = runtime.now();
            let wait = (until - began).min(POLL_MAX);
            let messages = self.poll_once(replicas, batch, invisible, wait, give_up).await?;
            let now = runtime.now();
            if !messages.is_empty() || now >= until {
                return Ok(messages);
            }
            // A broker that answers at once although it may wait must not be asked in a tight loop.
            if now - began < wait / 4 {
                runtime.sleep((until - now).min(Duration::from_millis(50))).await;
            }
        }
    }

    async fn poll_once(
        &self,
        replicas: &Arc<Replicas>,
        batch: usize,
        invisible: Duration,
        wait: Duration,
        give_up: Instant,
    ) -> Result<Vec<ReceivedMessage>, ReceiveError> {
        let shared = &self.shared;
        let request = v2::ReceiveMessageRequest {
            group: Some(wire::resource(self.group.as_str())),
            message_queue: Some(v2::MessageQueue {
                topic: Some(wire::resource(self.topic.as_str())),
                // Any queue of the broker group.
                id: -1,
                broker: Some(v2::Broker { name: replicas.name().group.clone(), ..v2::Broker::default() }),
                ..v2::MessageQueue::default()
            }),
            filter_expression: Some(wire::filter_expression(&self.filter)),
            batch_size: i32::try_from(batch).unwrap_or(i32::MAX),
            invisible_duration: Some(wire::duration(invisible)),
            auto_renew: false,
            long_polling_timeout: Some(wire::duration(wait)),
            attempt_id: Some(self.attempt_id()),
        };
        // What a broken stream had already brought: better than nothing if no repetition goes through.
        let partial = Mutex::new(Vec::new());
        let (request, partial_ref) = (&request, &partial);
        let want_route = || shared.want_route(&self.topic);
        let served = shared
            .failover(replicas, give_up, wait, &want_route)
            .run(async |address: String, timeout: Duration| {
                let calls = shared.connector.messaging(&address);
                let answer = collect(calls.receive_message(shared.options(timeout), request.clone()), replicas).await;
                match answer {
                    Ok((Verdict::Rejected(rejection), _)) if rejection.is(Code::MessageNotFound) => {
                        Ok(Verdict::Done(Vec::new()))
                    }
                    Ok((Verdict::Rejected(rejection), _)) => Ok(Verdict::Rejected(rejection)),
                    Ok((Verdict::Retry(_), messages)) | Ok((Verdict::Done(()), messages)) if !messages.is_empty() => {
                        Ok(Verdict::Done(messages))
                    }
                    Ok((Verdict::Done(()), _)) => Ok(Verdict::Done(Vec::new())),
                    Ok((Verdict::Retry(setback), _)) => Ok(Verdict::Retry(setback)),
                    Err((error, messages)) => {
                        let mut kept = partial_ref.lock().expect("partial lock is never poisoned");
                        if messages.len() > kept.len() {
                            *kept = messages;
                        }
                        Ok(judge_error(&error))
                    }
                }
            })
            .await;
        match served {
            Ok(served) => Ok(served.value),
            Err(failure) => {
                if let CallFailure::Rejected(rejection) | CallFailure::Unknown { rejection: Some(rejection), .. } =
                    &failure
                    && rejection.is(Code::TopicNotFound)
                {
                    shared.routes.denied(&self.topic, replicas.name());
                }
                let partial = partial.into_inner().expect("partial lock is never poisoned");
                if partial.is_empty() { Err(self.receive_error(failure)) } else { Ok(partial) }
            }
        }
    }

    fn receive_error(&self, failure: CallFailure) -> ReceiveError {
        let (topic, group) = (self.topic.clone(), self.group.clone());
        match failure {
            CallFailure::Rejected(Rejection { code, message })
            | CallFailure::Unknown { rejection: Some(Rejection { code, message }), .. } => {
                ReceiveError::Rejected { topic, group, code, message }
            }
            CallFailure::NotExecuted { reason, .. } | CallFailure::Unknown { reason, rejection: None, .. } => {
                ReceiveError::Unavailable { topic, group, reason }
            }
        }
    }

    /// Shaped like a version 4 UUID, as official clients send it.
    fn attempt_id(&self) -> String {
        let (high, low) = (self.shared.runtime.random_u64(), self.shared.runtime.random_u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            (low >> 48) & 0x3fff | 0x8000,
            low & 0xffff_ffff_ffff
        )
    }

    /// Ends a delivery. Repeated until it is known to have gone through.
    pub(crate) async fn ack(&self, message: &ReceivedMessage) -> Result<(), DeliveryError> {
        self.ack_all(std::slice::from_ref(message)).await.pop().expect("each message has a result")
    }

    /// Ends deliveries, with one call for those of a broker group; results stand in the order of the messages. Each is
    /// repeated until it is known to have gone through.
    pub(crate) async fn ack_all(&self, messages: &[ReceivedMessage]) -> Vec<Result<(), DeliveryError>> {
        let mut by_group: BTreeMap<&BrokerGroupName, Vec<usize>> = BTreeMap::new();
        for (place, message) in messages.iter().enumerate() {
            by_group.entry(message.replicas.name()).or_default().push(place);
        }
        let calls = by_group.values().flat_map(|places| places.chunks(RECEIPTS_MAX));
        let done = join_all(calls.map(async |places| {
            let of_call: Vec<&ReceivedMessage> = places.iter().map(|place| &messages[*place]).collect();
            (places, self.ack_of_group(&of_call).await)
        }));
        let mut results = vec![None; messages.len()];
        for (places, of_call) in done.await {
            places.iter().zip(of_call).for_each(|(place, result)| results[*place] = Some(result));
        }
        results.into_iter().map(|result| result.expect("each message is in one call")).collect()
    }

    /// All of them, at least one, came from one broker group.
    async fn ack_of_group(&self, messages: &[&ReceivedMessage]) -> Vec<Result<(), DeliveryError>> {
        let shared = &self.shared;
        let entries: Vec<v2::AckMessageEntry> = messages
            .iter()
            .map(|message| v2::AckMessageEntry {
                message_id: message.id.to_string(),
                receipt_handle: message.receipt_handle(),
                lite_topic: None,
            })
            .collect();
        let settled = &Mutex::new(vec![None; entries.len()]);
        let lock = || settled.lock().expect("results lock is never poisoned: no code panics while holding it");
        let want_route = || shared.want_route(&self.topic);
        let served = shared
            .failover(&messages[0].replicas, shared.deadline(), Duration::ZERO, &want_route)
            .run(async |address: String, timeout: Duration| {
                // Those that are settled are not asked about again.
                let open: Vec<usize> = {
                    let settled = lock();
                    (0..entries.len()).filter(|place| settled[*place].is_none()).collect()
                };
                let request = v2::AckMessageRequest {
                    group: Some(wire::resource(self.group.as_str())),
                    topic: Some(wire::resource(self.topic.as_str())),
                    entries: open.iter().map(|place| entries[*place].clone()).collect(),
                };
                let call = shared.connector.messaging(&address).ack_message(shared.options(timeout), request);
                let response = call.await?.body;
                Ok(settle(&response, &open, &mut lock()))
            })
            .await;
        let rest = served.map(|_| ()).map_err(delivery_error);
        let mut settled = lock();
        settled.drain(..).map(|result| result.unwrap_or_else(|| rest.clone())).collect()
    }

    /// Hides a delivery for `invisible` from now on, after which it comes again. Repeated until it is known
    /// to have gone through.
    pub(crate) async fn change_invisible(
        &self,
        message: &ReceivedMessage,
        invisible: Duration,
    ) -> Result<(), DeliveryError> {
        if invisible > INVISIBLE_MAX {
            let (value, allowed) = (format!("{invisible:?}"), format!("0s to {INVISIBLE_MAX:?}"));
            return Err(DeliveryError::Argument { name: "invisible", value, allowed });
        }
        let shared = &self.shared;
        let request = &v2::ChangeInvisibleDurationRequest {
            group: Some(wire::resource(self.group.as_str())),
            topic: Some(wire::resource(self.topic.as_str())),
            receipt_handle: message.receipt_handle(),
            invisible_duration: Some(wire::duration(invisible)),
            message_id: message.id.to_string(),
            ..v2::ChangeInvisibleDurationRequest::default()
        };
        let want_route = || shared.want_route(&self.topic);
        let served = shared
            .failover(&message.replicas, shared.deadline(), Duration::ZERO, &want_route)
            .run(async |address: String, timeout: Duration| {
                let calls = shared.connector.messaging(&address);
                let response = calls.change_invisible_duration(shared.options(timeout), request.clone()).await?.body;
                Ok(match judge_status(response.status.as_ref()) {
                    Verdict::Done(()) => Verdict::Done(response.receipt_handle),
                    Verdict::Rejected(rejection) => Verdict::Rejected(rejection),
                    Verdict::Retry(setback) => Verdict::Retry(setback),
                })
            })
            .await
            .map_err(delivery_error)?;
        if !served.value.is_empty() {
            message.set_receipt_handle(served.value);
        }
        Ok(())
    }
}

/// Takes the results of the entries that the answer speaks of, which are those `open`; done if none of them is open still.
fn settle(
    response: &v2::AckMessageResponse,
    open: &[usize],
    settled: &mut [Option<Result<(), DeliveryError>>],
) -> Verdict<()> {
    // An entry's own status says more than the sum.
    if response.entries.len() != open.len() {
        return judge_status(response.status.as_ref());
    }
    let mut setback = None;
    for (place, entry) in open.iter().zip(&response.entries) {
        match judge_status(entry.status.as_ref().or(response.status.as_ref())) {
            Verdict::Done(()) => settled[*place] = Some(Ok(())),
            Verdict::Rejected(rejection) => settled[*place] = Some(Err(rejection_error(rejection))),
            Verdict::Retry(again) => setback = Some(again),
        }
    }
    setback.map_or(Verdict::Done(()), Verdict::Retry)
}

fn rejection_error(rejection: Rejection) -> DeliveryError {
    if rejection.is(Code::InvalidReceiptHandle) {
        return DeliveryError::Over { message: rejection.message };
    }
    DeliveryError::Rejected { code: rejection.code, message: rejection.message }
}

fn delivery_error(failure: CallFailure) -> DeliveryError {
    match failure {
        CallFailure::Rejected(rejection) | CallFailure::Unknown { rejection: Some(rejection), .. } => {
            rejection_error(rejection)
        }
        CallFailure::NotExecuted { reason, .. } | CallFailure::Unknown { reason, rejection: None, .. } => {
            DeliveryError::Unknown { reason }
        }
    }
}

type Collected = Result<(Verdict<()>, Vec<ReceivedMessage>), (CallError, Vec<ReceivedMessage>)>;

/// Reads a receive's stream to its end: the verdict on its status, and its messages.
async fn collect(
    call: impl Future<Output = Result<flotilla_proto::client::ReplyStream<v2::ReceiveMessageResponse>, CallError>>,
    replicas: &Arc<Replicas>,
) -> Collected {
    let mut messages = Vec::new();
    let mut stream = call.await.map_err(|error| (error, Vec::new()))?;
    // A stream without a status ends like one that says OK: what counts are its messages.
    let mut verdict = Verdict::Done(());
    while let Some(element) = stream.next().await {
        match element {
            Ok(response) => match response.content {
                Some(Content::Status(status)) => verdict = judge_status(Some(&status)),
                Some(Content::Message(message)) => match wire::received_of(message, replicas) {
                    Some(message) => messages.push(message),
                    None => tracing::warn!(group = %replicas.name().group, "a delivered message is not well-formed"),
                },
                Some(Content::DeliveryTimestamp(_)) | None => {}
            },
            Err(error) => return Err((error, messages)),
        }
    }
    Ok((verdict, messages))
}
