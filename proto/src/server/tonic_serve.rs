//! Serves on a listening socket until told to stop.

use std::future::Future;
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Either, select};
use futures::future::FutureExt;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tonic::transport::Server;

use super::tonic_dispatch::Dispatcher;
use super::tonic_socket::accept;
use super::{SHUTDOWN_GRACE, ServeError, Services};
use crate::{CONNECTION_WINDOW_BYTES, PEER_CONNECTION_WINDOW_BYTES, STREAM_WINDOW_BYTES};

/// How often the server pings a connection.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
/// How long a ping may stay unanswered.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Calls in flight on one connection, parked ones included; a client's further calls wait on its side.
const CONCURRENT_CALLS_MAX: u32 = 8192;
/// Calls that a client may cancel before we got to them (it does so in one go when the server was
/// paused for longer than their deadline) without being taken for an attacker.
const CANCELLED_CALLS_MAX: usize = CONCURRENT_CALLS_MAX as usize;

/// Serves until `shutdown` is done. From then on no connection is accepted, clients are told to go
/// away, and calls in flight get [`SHUTDOWN_GRACE`]; then what is left is cut off. Dropping the
/// returned future cuts everything off at once.
///
/// Must run inside a tokio runtime.
///
/// # Errors
/// [`ServeError`] if the transport gives up. A connection that fails is none.
pub async fn serve(
    listener: TcpListener,
    services: Services,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    let runtime = services.runtime.clone();
    // Never sent: dropping the sender closes all connections, also when this future is dropped.
    let (close, closed) = oneshot::channel::<()>();
    let closed: BoxFuture<'static, ()> = Box::pin(closed.map(|_| ()));
    let incoming = accept(listener, runtime.clone(), services.tls.clone(), closed.shared());

    let (stopping, stopped) = oneshot::channel::<()>();
    let graceful = async move {
        shutdown.await;
        // The receiver is gone only if serving is over anyway.
        let _ = stopping.send(());
    };
    let window = if services.peer.is_some() { PEER_CONNECTION_WINDOW_BYTES } else { CONNECTION_WINDOW_BYTES };
    let serving = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(window)
        .max_concurrent_streams(CONCURRENT_CALLS_MAX)
        .http2_max_pending_accept_reset_streams(Some(CANCELLED_CALLS_MAX))
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .serve_with_incoming_shutdown(Dispatcher::new(services), incoming, graceful);
    let cut_off = async move {
        let stopped = stopped.await;
        if stopped.is_ok() {
            runtime.sleep(SHUTDOWN_GRACE).await;
        }
        drop(close);
        // The connections' tasks see it and end; `serving` waits for them.
        std::future::pending::<()>().await
    };
    match select(serving, cut_off).await {
        Either::Left(result) => result.map_err(|error| ServeError::Transport(text_of(&error))),
        Either::Right(()) => Ok(()),
    }
}

/// An error with its causes.
fn text_of(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}
