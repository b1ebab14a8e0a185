//! A service that says what it was asked, and a server for it on a loopback port.
#![allow(dead_code, reason = "each test file uses its own part")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{CallOptions, Connector, TonicConnector};
use flotilla_proto::server::{ServeError, Services, serve};
use flotilla_proto::status::{ok, status};
use flotilla_proto::{
    AckPlace, CallContext, MessageReplies, Messaging, Peer, PeerError, PeerLink, Replies, Reply, metadata, peer, v2,
};
use flotilla_runtime::{BoxFuture, Instant, Runtime, Task};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

/// Sends are echoed by id; an empty send is never answered.
pub struct Echo {
    pub runtime: Runtime,
    pub contexts: Mutex<Vec<CallContext>>,
    /// What ReceiveMessage waits for before it gives its stream.
    pub poll_wait: Duration,
}

impl Echo {
    pub fn new() -> Arc<Echo> {
        Echo::polling(Duration::ZERO)
    }

    pub fn polling(poll_wait: Duration) -> Arc<Echo> {
        Arc::new(Echo { runtime: Runtime::tokio(), contexts: Mutex::default(), poll_wait })
    }

    pub fn last_context(&self) -> CallContext {
        self.contexts.lock().unwrap().last().expect("a call was made").clone()
    }
}

impl Messaging for Echo {
    fn send_message(
        &self,
        context: CallContext,
        request: v2::SendMessageRequest,
    ) -> BoxFuture<'_, Reply<v2::SendMessageResponse>> {
        self.contexts.lock().unwrap().push(context);
        if request.messages.is_empty() {
            return Box::pin(std::future::pending());
        }
        let entries = request.messages.iter().map(|message| v2::SendResultEntry {
            status: Some(ok()),
            message_id: message.system_properties.as_ref().map(|p| p.message_id.clone()).unwrap_or_default(),
            offset: i64::try_from(message.body.len()).unwrap(),
            ..Default::default()
        });
        let body = v2::SendMessageResponse { status: Some(ok()), entries: entries.collect() };
        Box::pin(async move { Reply::new(body).with(metadata::ACK_PLACE, place(0)).with("x-second", 2) })
    }

    fn receive_message(
        &self,
        context: CallContext,
        request: v2::ReceiveMessageRequest,
    ) -> BoxFuture<'_, MessageReplies<v2::ReceiveMessageResponse>> {
        self.contexts.lock().unwrap().push(context);
        Box::pin(async move {
            self.runtime.sleep(self.poll_wait).await;
            let (sender, replies) = mpsc::channel(2);
            let task = self.runtime.spawn("receive", async move {
                use v2::receive_message_response::Content;
                for _ in 0..request.batch_size {
                    let message = v2::Message { body: Bytes::from_static(b"hello"), ..Default::default() };
                    let content = Some(Content::Message(message));
                    if sender.send(v2::ReceiveMessageResponse { content }).await.is_err() {
                        return;
                    }
                }
                let content = Some(Content::Status(ok()));
                let _ = sender.send(v2::ReceiveMessageResponse { content }).await;
            });
            task.detach();
            replies.into()
        })
    }

    fn telemetry(
        &self,
        context: CallContext,
        mut commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> Replies<v2::TelemetryCommand> {
        self.contexts.lock().unwrap().push(context);
        let (sender, replies) = mpsc::channel(2);
        let task = self.runtime.spawn("telemetry", async move {
            while let Some(command) = commands.recv().await {
                let answer = v2::TelemetryCommand { status: Some(ok()), ..command };
                if sender.send(answer).await.is_err() {
                    return;
                }
            }
        });
        task.detach();
        replies
    }
}

impl Peer for Echo {
    fn call(&self, call: peer::PeerCall) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        Box::pin(async move {
            if call.to == 2 { Ok(call.body) } else { Err(PeerError::Refused(format!("node {} is not here", call.to))) }
        })
    }

    fn append(&self, link: PeerLink, mut requests: mpsc::Receiver<Bytes>) -> Result<Replies<Bytes>, PeerError> {
        if link.to != 2 {
            return Err(PeerError::Refused(format!("node {} is not here", link.to)));
        }
        let (sender, replies) = mpsc::channel(2);
        let task = self.runtime.spawn("append", async move {
            while let Some(frame) = requests.recv().await {
                if sender.send(frame).await.is_err() {
                    return;
                }
            }
        });
        task.detach();
        Ok(replies)
    }

    fn forward(&self, context: CallContext, request: peer::ForwardRequest) -> BoxFuture<'_, peer::ForwardResponse> {
        let _ = (context, request);
        let status = Some(status(v2::Code::HaNotAvailable, "no leader"));
        Box::pin(async move { peer::ForwardResponse { status, not_leader: true, ..Default::default() } })
    }
}

pub fn place(offset: u64) -> AckPlace {
    AckPlace { group: "group-a".to_owned(), term: 3, leader: 1, log_index: 42, queue: 0, offset }
}

/// A serving task; dropping it cuts all connections.
pub struct Server {
    pub address: String,
    pub stop: oneshot::Sender<()>,
    pub task: Task<Result<(), ServeError>>,
}

pub async fn start_on(address: &str, services: Services) -> Server {
    let listener = TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (stop, stopped) = oneshot::channel();
    let serving = serve(listener, services, async move {
        let _ = stopped.await;
    });
    let task = Runtime::tokio().spawn("server", serving);
    Server { address, stop, task }
}

pub async fn start(echo: &Arc<Echo>) -> Server {
    start_on("127.0.0.1:0", services(echo)).await
}

pub fn services(echo: &Arc<Echo>) -> Services {
    Services::new(Runtime::tokio()).with_messaging(echo.clone()).with_peer(echo.clone())
}

pub fn connector() -> TonicConnector {
    TonicConnector::new(Runtime::tokio())
}

pub fn within_ms(ms: u64) -> CallOptions {
    CallOptions::within(Duration::from_millis(ms))
}

pub fn send_of(body: Bytes) -> v2::SendMessageRequest {
    let properties = v2::SystemProperties { message_id: "id-1".to_owned(), ..Default::default() };
    let message = v2::Message { system_properties: Some(properties), body, ..Default::default() };
    v2::SendMessageRequest { messages: vec![message] }
}

/// A send that the server never answers.
pub fn unanswered_send() -> v2::SendMessageRequest {
    v2::SendMessageRequest::default()
}

/// One send, its outcome, and how long it took.
pub async fn timed_send(
    connector: &TonicConnector,
    address: &str,
    options: CallOptions,
) -> (Result<Reply<v2::SendMessageResponse>, flotilla_proto::client::CallError>, Duration) {
    let runtime = Runtime::tokio();
    let begin: Instant = runtime.now();
    let outcome = connector.messaging(address).send_message(options, send_of(Bytes::from_static(b"x"))).await;
    (outcome, runtime.now() - begin)
}
