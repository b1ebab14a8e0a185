//! The ways over the simulated network: from brokers to their peers and namesrvs, and from the SDK to all of them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_namesrv::NamesrvService;
use flotilla_proto::client::{
    AdminCalls, AppendLink, CallError, CallOptions, Connector, MessagingCalls, NamesrvCalls, PeerCalls, ReplyStream,
};
use flotilla_proto::status::is_ok;
use flotilla_proto::{
    Admin, CallContext, MessageReplies, Messaging, Namesrv as _, PeerLink, Reply, admin, namesrv, peer, v2,
};
use flotilla_runtime::{BoxFuture, Either, Instant, Runtime, select};
use futures::stream::StreamExt as _;
use tokio::sync::mpsc;

use crate::broker_replica::id_of;
use crate::net::{Address, NetError, SimNet};
use crate::replica::Replica;
use crate::wire::{self, Ends};
use crate::witness::Witness;

/// Frames of a streamed answer that wait at its reader.
const STREAM_FRAMES: usize = 8;

type Answer<T> = BoxFuture<'static, Result<T, CallError>>;

/// What one process calls others with.
pub(crate) struct SimConnector {
    pub(crate) from: Address,
    pub(crate) brokers: SimNet<dyn Replica>,
    pub(crate) namesrvs: SimNet<NamesrvService>,
    pub(crate) witness: Witness,
}

impl Connector for SimConnector {
    fn messaging(&self, address: &str) -> Arc<dyn MessagingCalls> {
        Arc::new(self.broker(address))
    }

    fn admin(&self, address: &str) -> Arc<dyn AdminCalls> {
        Arc::new(self.broker(address))
    }

    fn namesrv(&self, address: &str) -> Arc<dyn NamesrvCalls> {
        Arc::new(NamesrvWay { from: self.from, to: id_of(address), net: self.namesrvs.clone() })
    }

    fn peer(&self, address: &str) -> Arc<dyn PeerCalls> {
        Arc::new(self.broker(address))
    }
}

impl SimConnector {
    fn broker(&self, address: &str) -> BrokerWay {
        let (net, witness) = (self.brokers.clone(), self.witness.clone());
        BrokerWay { from: self.from, to: id_of(address), net, witness }
    }
}

/// The way to one broker.
struct BrokerWay {
    from: Address,
    to: Address,
    net: SimNet<dyn Replica>,
    witness: Witness,
}

/// The way to one namesrv.
struct NamesrvWay {
    from: Address,
    to: Address,
    net: SimNet<NamesrvService>,
}

/// One question and its answer.
fn ask<S: ?Sized + Send + Sync + 'static, T: Send + 'static>(
    net: &SimNet<S>,
    (from, to): (Address, Address),
    timeout: Duration,
    question: impl FnOnce(Arc<S>) -> BoxFuture<'static, T> + Send + 'static,
) -> Answer<T> {
    let runtime = net.runtime().clone();
    let exchange = net.exchange(from, to, question);
    Box::pin(async move {
        match runtime.timeout(timeout, exchange).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(NetError::Refused)) => Err(CallError::Refused("connection refused".to_owned())),
            Ok(Err(NetError::Broken)) => Err(CallError::Broken("connection reset".to_owned())),
            Err(_) => Err(CallError::Timeout(timeout)),
        }
    })
}

fn context(runtime: &Runtime, options: CallOptions) -> CallContext {
    let metadata = options.metadata.iter().map(|(name, value)| (name.to_string(), value.clone())).collect();
    CallContext::new(runtime.now() + options.timeout, String::new(), metadata)
}

/// An element of a streamed answer; without the last one the stream was cut off.
enum Frame<T> {
    Item(T),
    End,
}

/// What a streamed call's reader holds: dropping it cancels the call.
struct Reading<T> {
    frames: mpsc::Receiver<Frame<T>>,
    _call: mpsc::Sender<()>,
    runtime: Runtime,
    deadline: Instant,
    timeout: Duration,
}

fn reply_stream<T: Send + 'static>(reading: Reading<T>) -> ReplyStream<T> {
    let elements = futures::stream::unfold(Some(reading), |reading| async move {
        let mut reading = reading?;
        match reading.runtime.timeout_at(reading.deadline, reading.frames.recv()).await {
            Ok(Some(Frame::Item(item))) => Some((Ok(item), Some(reading))),
            Ok(Some(Frame::End)) => None,
            Ok(None) => Some((Err(CallError::Broken("stream reset".to_owned())), None)),
            Err(_) => Some((Err(CallError::Timeout(reading.timeout)), None)),
        }
    });
    elements.boxed()
}

impl BrokerWay {
    fn link(&self) -> (Address, Address) {
        (self.from, self.to)
    }

    /// A call whose answer is a stream: its elements come one by one, and may break off.
    fn streamed<T: Send + 'static>(
        &self,
        options: CallOptions,
        begin: impl FnOnce(Arc<dyn Messaging>, CallContext) -> BoxFuture<'static, MessageReplies<T>> + Send + 'static,
    ) -> Answer<ReplyStream<T>> {
        let (net, (from, to)) = (self.net.clone(), self.link());
        let (call, requests) = mpsc::channel::<()>(1);
        let (responses, frames) = mpsc::channel::<Frame<T>>(STREAM_FRAMES);
        let (runtime, timeout) = (net.runtime().clone(), options.timeout);
        let context = context(&runtime, options);
        let reading = Reading { frames, _call: call, deadline: runtime.now() + timeout, runtime, timeout };
        let inner = net.inner.clone();
        let accept = move |replica: Arc<dyn Replica>| -> BoxFuture<'static, ()> {
            let (mut requests, responses) = wire::connect(inner, from, to, Ends { requests, responses });
            let messaging = messaging_of(&*replica);
            let serve = async move {
                let answer = async {
                    let mut items = begin(messaging, context).await;
                    while let Some(item) = items.recv().await {
                        if responses.send(Frame::Item(item)).await.is_err() {
                            return;
                        }
                    }
                    // Nobody may read it any more.
                    let _ = responses.send(Frame::End).await;
                };
                // A caller that goes away cancels the call.
                let (Either::Left(()) | Either::Right(_)) = select(answer, requests.recv()).await;
            };
            Runtime::current().spawn("serve-stream", serve).detach();
            Box::pin(std::future::ready(()))
        };
        let accepted = ask(&net, (from, to), timeout, accept);
        Box::pin(async move { accepted.await.map(|()| reply_stream(reading)) })
    }
}

fn messaging_of(replica: &dyn Replica) -> Arc<dyn Messaging> {
    replica.messaging().expect("the SDK is run against brokers")
}

fn admin_of(replica: &dyn Replica) -> Arc<dyn Admin> {
    replica.admin().expect("the SDK is run against brokers")
}

macro_rules! messaging {
    ($($method:ident $request:ident $response:ident;)*) => {$(
        fn $method(&self, options: CallOptions, request: v2::$request) -> Answer<Reply<v2::$response>> {
            let (timeout, context) = (options.timeout, context(self.net.runtime(), options));
            ask(&self.net, self.link(), timeout, move |replica: Arc<dyn Replica>| {
                let messaging = messaging_of(&*replica);
                Box::pin(async move { messaging.$method(context, request).await })
            })
        }
    )*};
}

impl MessagingCalls for BrokerWay {
    messaging! {
        query_route QueryRouteRequest QueryRouteResponse;
        heartbeat HeartbeatRequest HeartbeatResponse;
        query_assignment QueryAssignmentRequest QueryAssignmentResponse;
        ack_message AckMessageRequest AckMessageResponse;
        forward_message_to_dead_letter_queue ForwardMessageToDeadLetterQueueRequest
            ForwardMessageToDeadLetterQueueResponse;
        update_offset UpdateOffsetRequest UpdateOffsetResponse;
        get_offset GetOffsetRequest GetOffsetResponse;
        query_offset QueryOffsetRequest QueryOffsetResponse;
        end_transaction EndTransactionRequest EndTransactionResponse;
        notify_client_termination NotifyClientTerminationRequest NotifyClientTerminationResponse;
        change_invisible_duration ChangeInvisibleDurationRequest ChangeInvisibleDurationResponse;
        recall_message RecallMessageRequest RecallMessageResponse;
        sync_lite_subscription SyncLiteSubscriptionRequest SyncLiteSubscriptionResponse;
    }

    fn send_message(
        &self,
        options: CallOptions,
        request: v2::SendMessageRequest,
    ) -> Answer<Reply<v2::SendMessageResponse>> {
        let (timeout, context) = (options.timeout, context(self.net.runtime(), options));
        let witness = self.witness.clone();
        ask(&self.net, self.link(), timeout, move |replica: Arc<dyn Replica>| {
            let messaging = messaging_of(&*replica);
            let ids = request.messages.iter().filter_map(|message| message.system_properties.as_ref());
            let ids: Vec<String> = ids.map(|properties| properties.message_id.clone()).collect();
            let asked = witness.asked();
            Box::pin(async move {
                let reply = messaging.send_message(context, request).await;
                if is_ok(reply.body.status.as_ref()) {
                    witness.acknowledged(asked, &ids);
                }
                reply
            })
        })
    }

    fn receive_message(
        &self,
        options: CallOptions,
        request: v2::ReceiveMessageRequest,
    ) -> Answer<ReplyStream<v2::ReceiveMessageResponse>> {
        self.streamed(options, |messaging, context| {
            Box::pin(async move { messaging.receive_message(context, request).await })
        })
    }

    fn pull_message(
        &self,
        options: CallOptions,
        request: v2::PullMessageRequest,
    ) -> Answer<ReplyStream<v2::PullMessageResponse>> {
        self.streamed(options, |messaging, context| {
            Box::pin(async move { messaging.pull_message(context, request).await })
        })
    }

    fn telemetry(
        &self,
        _options: CallOptions,
        _commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> Answer<ReplyStream<v2::TelemetryCommand>> {
        Box::pin(std::future::ready(Err(CallError::Refused("the SDK opens no telemetry".to_owned()))))
    }
}

macro_rules! admin {
    ($($method:ident $name:literal $request:ident $reply:ident;)*) => {$(
        fn $method(&self, options: CallOptions, request: admin::$request) -> Answer<admin::$reply> {
            let (timeout, context) = (options.timeout, context(self.net.runtime(), options));
            ask(&self.net, self.link(), timeout, move |replica: Arc<dyn Replica>| {
                let admin = admin_of(&*replica);
                Box::pin(async move { admin.$method(context, request).await })
            })
        }
    )*};
}

impl AdminCalls for BrokerWay {
    flotilla_proto::admin_unary!(admin);
}

fn not_here() -> CallError {
    CallError::Refused("the log has a transport of its own".to_owned())
}

impl PeerCalls for BrokerWay {
    fn call(&self, _call: peer::PeerCall, _timeout: Duration) -> Answer<Bytes> {
        Box::pin(std::future::ready(Err(not_here())))
    }

    fn open_append(&self, _link: PeerLink, _timeout: Duration) -> Answer<AppendLink> {
        Box::pin(std::future::ready(Err(not_here())))
    }

    fn forward(&self, request: peer::ForwardRequest, timeout: Duration) -> Answer<peer::ForwardResponse> {
        ask(&self.net, self.link(), timeout, move |replica: Arc<dyn Replica>| replica.forward(request))
    }
}

macro_rules! namesrv {
    ($($method:ident $name:literal $request:ident $reply:ident;)*) => {$(
        fn $method(&self, options: CallOptions, request: namesrv::$request) -> Answer<namesrv::$reply> {
            let (timeout, context) = (options.timeout, context(self.net.runtime(), options));
            ask(&self.net, (self.from, self.to), timeout, move |service: Arc<NamesrvService>| {
                Box::pin(async move { service.$method(context, request).await })
            })
        }
    )*};
}

impl NamesrvCalls for NamesrvWay {
    flotilla_proto::namesrv_unary!(namesrv);

    fn register(
        &self,
        options: CallOptions,
        rows: mpsc::Receiver<namesrv::Registration>,
    ) -> Answer<ReplyStream<namesrv::RegistrationReply>> {
        let (net, from, to) = (self.net.clone(), self.from, self.to);
        let (responses, replies) = mpsc::channel(STREAM_FRAMES);
        let (timeout, context) = (options.timeout, context(net.runtime(), options));
        let inner = net.inner.clone();
        let accept = move |service: Arc<NamesrvService>| -> BoxFuture<'static, ()> {
            let (rows, responses) = wire::connect(inner, from, to, Ends { requests: rows, responses });
            let mut answers = service.register(context, rows);
            let pump = async move {
                while let Some(answer) = answers.recv().await {
                    if responses.send(answer).await.is_err() {
                        return;
                    }
                }
            };
            Runtime::current().spawn("serve-registration", pump).detach();
            Box::pin(std::future::ready(()))
        };
        let accepted = ask(&net, (from, to), timeout, accept);
        Box::pin(async move { accepted.await.map(|()| flotilla_proto::client::reply_stream(replies)) })
    }
}
