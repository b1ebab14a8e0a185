//! Carries one call of each shape from tonic to a service and its answer back.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Runtime, Task};
use futures::Stream;
use prost::Message;
use tokio::sync::mpsc;
use tonic::body::Body;
use tonic::codegen::http;
use tonic::server::{Grpc, ServerStreamingService, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use super::tonic_context::{context_of, put_metadata};
use crate::{CallContext, MESSAGE_BYTES_MAX, MessageReplies, Replies, Reply, STREAM_DEPTH, UNARY_TIMEOUT};

/// For streams that stay open: as good as no deadline.
const OPEN_STREAM_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 86_400);

/// A method of a service that answers later.
pub(super) type Method<S, Q, A> = for<'a> fn(&'a S, CallContext, Q) -> BoxFuture<'a, A>;

fn grpc<Q, A>() -> Grpc<ProstCodec<A, Q>>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    Grpc::new(ProstCodec::default())
        .max_decoding_message_size(MESSAGE_BYTES_MAX)
        .max_encoding_message_size(MESSAGE_BYTES_MAX)
}

/// A closure in the shape of tonic's service traits. tonic calls it once.
struct Handler<F>(Option<F>);

impl<F> Handler<F> {
    fn take(&mut self) -> F {
        self.0.take().expect("a handler is made for one call")
    }
}

impl<F, Fut, Q, A> UnaryService<Q> for Handler<F>
where
    F: FnOnce(Request<Q>) -> Fut,
    Fut: Future<Output = Result<Response<A>, Status>>,
{
    type Response = A;
    type Future = Fut;

    fn call(&mut self, request: Request<Q>) -> Fut {
        (self.take())(request)
    }
}

impl<F, Q, A, S> ServerStreamingService<Q> for Handler<F>
where
    F: FnOnce(Request<Q>) -> S,
    S: Stream<Item = Result<A, Status>>,
{
    type Response = A;
    type ResponseStream = S;
    type Future = std::future::Ready<Result<Response<S>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        std::future::ready(Ok(Response::new((self.take())(request))))
    }
}

impl<F, Q, A, S> StreamingService<Q> for Handler<F>
where
    F: FnOnce(Request<Streaming<Q>>) -> Result<S, Status>,
    S: Stream<Item = Result<A, Status>>,
{
    type Response = A;
    type ResponseStream = S;
    type Future = std::future::Ready<Result<Response<S>, Status>>;

    fn call(&mut self, request: Request<Streaming<Q>>) -> Self::Future {
        std::future::ready((self.take())(request).map(Response::new))
    }
}

/// One message in, one message out.
pub(super) async fn unary<S, Q, A, R>(
    runtime: Runtime,
    service: Arc<S>,
    request: http::Request<Body>,
    method: Method<S, Q, R>,
) -> http::Response<Body>
where
    S: ?Sized + Send + Sync,
    Q: Message + Default + 'static,
    A: Message + 'static,
    R: Into<Reply<A>>,
{
    let (runtime, service) = (&runtime, &*service);
    let handle = move |request: Request<Q>| {
        let (metadata, extensions, message) = request.into_parts();
        let context = context_of(runtime, &metadata.into_headers(), &extensions, UNARY_TIMEOUT);
        let answer = method(service, context, message);
        async move {
            let reply: Reply<A> = answer.await.into();
            let mut response = Response::new(reply.body);
            put_metadata(response.metadata_mut(), &reply.metadata);
            Ok(response)
        }
    };
    grpc().unary(Handler(Some(handle)), request).await
}

/// One message in, one message or a gRPC status out, no context.
pub(super) async fn bare_unary<Q, A, Fut>(
    request: http::Request<Body>,
    answer: impl FnOnce(Q) -> Fut,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    Fut: Future<Output = Result<A, Status>>,
{
    let handle = |request: Request<Q>| {
        let answer = answer(request.into_inner());
        async move { answer.await.map(Response::new) }
    };
    grpc().unary(Handler(Some(handle)), request).await
}

/// One message in, a stream out. The headers of the response leave at once, whatever the service
/// still waits for, so that tonic's own timer (which runs until then) never cuts a poll short.
pub(super) async fn server_stream<S, Q, A>(
    runtime: Runtime,
    service: Arc<S>,
    request: http::Request<Body>,
    timeout: fn(&Q) -> Option<Duration>,
    method: Method<S, Q, MessageReplies<A>>,
) -> http::Response<Body>
where
    S: ?Sized + Send + Sync + 'static,
    Q: Message + Default + 'static,
    A: Message + 'static,
{
    let handle = move |request: Request<Q>| {
        let (metadata, extensions, message) = request.into_parts();
        let timeout = timeout(&message).unwrap_or(UNARY_TIMEOUT);
        let context = context_of(&runtime, &metadata.into_headers(), &extensions, timeout);
        DeferredReplies::Waiting(Box::pin(async move { method(&service, context, message).await }))
    };
    grpc().server_streaming(Handler(Some(handle)), request).await
}

/// A stream in, a stream out, both converted between messages and what the service takes; `open` returns at once.
pub(super) async fn bidi_stream<Q, A, QM, AM>(
    runtime: Runtime,
    request: http::Request<Body>,
    read: fn(QM) -> Q,
    write: fn(A) -> AM,
    open: impl FnOnce(http::HeaderMap, CallContext, mpsc::Receiver<Q>) -> Result<Replies<A>, Status> + Send,
) -> http::Response<Body>
where
    Q: Send + 'static,
    A: Send + 'static,
    QM: Message + Default + 'static,
    AM: Message + 'static,
{
    let handle = move |request: Request<Streaming<QM>>| {
        let (metadata, extensions, inbound) = request.into_parts();
        let headers = metadata.into_headers();
        let context = context_of(&runtime, &headers, &extensions, OPEN_STREAM_TIMEOUT);
        let (sender, requests) = mpsc::channel(STREAM_DEPTH);
        let replies = open(headers, context, requests)?;
        let pump = runtime.spawn("inbound stream", pump(inbound, sender, read));
        Ok(PumpedReplies { replies, write, _pump: pump })
    };
    grpc().streaming(Handler(Some(handle)), request).await
}

/// Hands on what the client sends until either side has enough.
async fn pump<M, T>(mut inbound: Streaming<M>, sender: mpsc::Sender<T>, read: fn(M) -> T) {
    // A broken stream and one that was ended look the same to the service: nothing more comes.
    while let Ok(Some(message)) = inbound.message().await {
        if sender.send(read(message)).await.is_err() {
            break;
        }
    }
}

/// A stream that waits for its service inside its first poll.
enum DeferredReplies<T> {
    Waiting(BoxFuture<'static, MessageReplies<T>>),
    Open(MessageReplies<T>),
}

impl<T> Stream for DeferredReplies<T> {
    type Item = Result<T, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            match &mut *self {
                DeferredReplies::Waiting(future) => {
                    let replies = ready!(future.as_mut().poll(cx));
                    *self = DeferredReplies::Open(replies);
                }
                DeferredReplies::Open(replies) => return replies.poll_recv(cx).map(|next| next.map(Ok)),
            }
        }
    }
}

/// The answers of a two-way stream; they own the task that reads the other direction.
struct PumpedReplies<A, AM> {
    replies: Replies<A>,
    write: fn(A) -> AM,
    _pump: Task<()>,
}

impl<A, AM> Stream for PumpedReplies<A, AM> {
    type Item = Result<AM, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = ready!(self.replies.poll_recv(cx));
        Poll::Ready(next.map(|answer| Ok((self.write)(answer))))
    }
}
