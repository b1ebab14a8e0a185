//! One HTTP/2 connection to an address, made when first needed and again after it broke.

use std::borrow::Cow;
use std::future::Future;
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};
use flotilla_tls::Outgoing as TlsOutgoing;
use futures::stream::{self, Stream, StreamExt};
use prost::Message;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::tonic_classify::{Outgoing, error_of};
use super::tonic_dial::Dial;
use super::{CallError, CallOptions, ReplyStream};
use crate::server::put_metadata;
use crate::{CONNECTION_WINDOW_BYTES, MESSAGE_BYTES_MAX, Metadata, Reply, STREAM_WINDOW_BYTES};

/// Time for the TCP handshake. A lost SYN is sent again after 1 s anyway.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// How a connection finds out that the other end is gone without a word.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keepalive {
    /// How often to ping.
    pub(super) interval: Duration,
    /// How long a ping may stay unanswered before the connection is given up.
    pub(super) timeout: Duration,
    /// Ping also while no call is open.
    pub(super) while_idle: bool,
}

/// The answer's half of a stream. Dropping it ends the request's half as well.
pub(super) struct Inbound<A> {
    messages: Streaming<A>,
    _hold: oneshot::Sender<()>,
}

impl<A> Inbound<A> {
    pub(super) async fn next(&mut self) -> Result<Option<A>, Status> {
        self.messages.message().await
    }
}

/// A lazy connection. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub(super) struct TonicLink {
    runtime: Runtime,
    /// The text says what is wrong with the address.
    channel: Result<Channel, String>,
}

impl TonicLink {
    /// Must be called inside a tokio runtime. An address that is no `host:port` is told by the
    /// first call.
    pub(super) fn new(address: &str, keepalive: Keepalive, tls: Option<TlsOutgoing>, runtime: Runtime) -> TonicLink {
        TonicLink { runtime, channel: channel_to(address, keepalive, tls) }
    }

    pub(super) fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// One message out, one message in.
    pub(super) fn unary<Q, A>(
        &self,
        path: &'static str,
        options: CallOptions,
        message: Q,
    ) -> impl Future<Output = Result<Reply<A>, CallError>> + Send + 'static
    where
        Q: Message + Unpin + 'static,
        A: Message + Default + 'static,
    {
        let TonicLink { runtime, channel } = self.clone();
        async move {
            within_limit(&message)?;
            let channel = channel.map_err(CallError::Refused)?;
            let outgoing = Outgoing::default();
            let once = stream::iter(std::iter::once(message));
            let request = request_of(outgoing.request(once), &options.metadata, Some(options.timeout));
            let call = async {
                let mut grpc = ready(channel).await?;
                grpc.client_streaming(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
            };
            match runtime.timeout(options.timeout, call).await {
                Ok(Ok(response)) => Ok(reply_of(response)),
                Ok(Err(status)) => Err(outgoing.failed(&status, options.timeout)),
                Err(_elapsed) => Err(outgoing.timed_out(options.timeout)),
            }
        }
    }

    /// One message out, a stream in, all within the options' time.
    pub(super) fn server_stream<Q, A>(
        &self,
        path: &'static str,
        options: CallOptions,
        message: Q,
    ) -> impl Future<Output = Result<ReplyStream<A>, CallError>> + Send + 'static
    where
        Q: Message + Unpin + 'static,
        A: Message + Default + 'static,
    {
        let link = self.clone();
        async move {
            within_limit(&message)?;
            let deadline = link.runtime.now() + options.timeout;
            let once = stream::iter(std::iter::once(message));
            let timeout = options.timeout;
            let inbound = link.open::<_, Q, A>(path, &options, Some(timeout), once).await?;
            Ok(replies_until(inbound, link.runtime, Some(deadline), timeout))
        }
    }

    /// A stream out, a stream in, open until either side ends it. The options' time is for its
    /// beginning: until the other end has accepted it.
    pub(super) fn bidi_stream<Q, A>(
        &self,
        path: &'static str,
        options: CallOptions,
        messages: mpsc::Receiver<Q>,
    ) -> impl Future<Output = Result<ReplyStream<A>, CallError>> + Send + 'static
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let link = self.clone();
        async move {
            let inbound = link.open::<_, Q, A>(path, &options, None, ReceiverStream::new(messages)).await?;
            Ok(replies_until(inbound, link.runtime, None, options.timeout))
        }
    }

    /// Begins a call with a streamed answer.
    pub(super) async fn open<S, Q, A>(
        &self,
        path: &'static str,
        options: &CallOptions,
        told_timeout: Option<Duration>,
        messages: S,
    ) -> Result<Inbound<A>, CallError>
    where
        S: Stream<Item = Q> + Unpin + Send + 'static,
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let channel = self.channel.clone().map_err(CallError::Refused)?;
        let outgoing = Outgoing::default();
        let (hold, dropped) = oneshot::channel::<()>();
        let messages = outgoing.request(messages.take_until(dropped));
        let request = request_of(messages, &options.metadata, told_timeout);
        let call = async {
            let mut grpc = ready(channel).await?;
            grpc.streaming(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
        };
        match self.runtime.timeout(options.timeout, call).await {
            Ok(Ok(response)) => Ok(Inbound { messages: response.into_inner(), _hold: hold }),
            Ok(Err(status)) => Err(outgoing.failed(&status, options.timeout)),
            Err(_elapsed) => Err(outgoing.timed_out(options.timeout)),
        }
    }
}

fn channel_to(address: &str, keepalive: Keepalive, tls: Option<TlsOutgoing>) -> Result<Channel, String> {
    let malformed = || format!("{address:?} is no address of the form host:port");
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|_| malformed())?;
    let uri = endpoint.uri();
    if uri.port_u16().is_none_or(|port| port == 0) || uri.host().is_none_or(str::is_empty) || uri.path() != "/" {
        return Err(malformed());
    }
    let endpoint = endpoint
        .user_agent(concat!("flotilla/", env!("CARGO_PKG_VERSION")))
        .map_err(|error| error.to_string())?
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(keepalive.interval)
        .keep_alive_timeout(keepalive.timeout)
        .keep_alive_while_idle(keepalive.while_idle);
    let Some(tls) = tls else {
        return Ok(endpoint.connect_timeout(CONNECT_TIMEOUT).tcp_nodelay(true).connect_lazy());
    };
    let origin = format!("https://{address}").parse().map_err(|_| malformed())?;
    Ok(endpoint.origin(origin).connect_with_connector_lazy(Dial::new(address, tls)))
}

/// Waits for a place in the connection's queue.
async fn ready(channel: Channel) -> Result<Grpc<Channel>, Status> {
    let mut grpc =
        Grpc::new(channel).max_decoding_message_size(MESSAGE_BYTES_MAX).max_encoding_message_size(MESSAGE_BYTES_MAX);
    grpc.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
    Ok(grpc)
}

/// Checked here because tonic would report it as a broken stream, whose outcome is unknown.
fn within_limit(message: &impl Message) -> Result<(), CallError> {
    let bytes = message.encoded_len();
    if bytes > MESSAGE_BYTES_MAX {
        let message = format!("request of {bytes} bytes exceeds the limit of {MESSAGE_BYTES_MAX} bytes");
        return Err(CallError::Status { code: tonic::Code::OutOfRange as i32, message });
    }
    Ok(())
}

fn request_of<S>(messages: S, metadata: &Metadata, timeout: Option<Duration>) -> Request<S> {
    let mut request = Request::new(messages);
    put_metadata(request.metadata_mut(), metadata);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    request
}

fn reply_of<A>(response: Response<A>) -> Reply<A> {
    let (metadata, body, _) = response.into_parts();
    Reply { body, metadata: kept(&metadata) }
}

/// Our own entries among the response headers.
fn kept(headers: &MetadataMap) -> Metadata {
    let entries = headers.iter().filter_map(|entry| match entry {
        KeyAndValueRef::Ascii(name, value) if name.as_str().starts_with("x-") => {
            Some((Cow::Owned(name.as_str().to_owned()), value.to_str().ok()?.to_owned()))
        }
        _ => None,
    });
    entries.collect()
}

/// The elements of an answer, ending with the first error.
fn replies_until<A: Send + 'static>(
    inbound: Inbound<A>,
    runtime: Runtime,
    deadline: Option<Instant>,
    timeout: Duration,
) -> ReplyStream<A> {
    stream::unfold(Some((inbound, runtime)), move |state| async move {
        let (mut inbound, runtime) = state?;
        let next = match deadline {
            Some(deadline) => runtime.timeout_at(deadline, inbound.next()).await,
            None => Ok(inbound.next().await),
        };
        match next {
            Ok(Ok(Some(message))) => Some((Ok(message), Some((inbound, runtime)))),
            Ok(Ok(None)) => None,
            Ok(Err(status)) => Some((Err(error_of(&status, timeout)), None)),
            Err(_elapsed) => Some((Err(CallError::Timeout(timeout)), None)),
        }
    })
    .boxed()
}
