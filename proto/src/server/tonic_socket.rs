//! Accepts connections that can all be closed at once, and that any official client can open.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Runtime};
use flotilla_tls::{IncomingStream, Port};
use futures::future::{FutureExt, Shared};
use futures::stream::{self, Stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpListener;
use tonic::transport::server::{Connected, TcpConnectInfo};

use super::authority::AuthorityFilter;

/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// Resolves when all connections must close.
pub(super) type Closed = Shared<BoxFuture<'static, ()>>;

/// A connection that breaks as soon as [`Closed`] resolves.
pub(super) struct Socket {
    stream: IncomingStream,
    info: TcpConnectInfo,
    authority: AuthorityFilter,
    closed: Closed,
}

/// The connections that arrive on `listener`, without end.
pub(super) fn accept(
    listener: TcpListener,
    runtime: Runtime,
    tls: Option<Port>,
    closed: Closed,
) -> impl Stream<Item = io::Result<Socket>> {
    stream::unfold((listener, runtime, tls, closed), |(listener, runtime, tls, closed)| async move {
        let stream = loop {
            match listener.accept().await {
                Ok((stream, _)) => break stream,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    runtime.sleep(ACCEPT_RETRY_DELAY).await;
                }
            }
        };
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
        let info = stream.connect_info();
        let stream = match &tls {
            Some(port) => port.take(stream),
            None => IncomingStream::plain(stream),
        };
        let socket = Socket { stream, info, authority: AuthorityFilter::new(), closed: closed.clone() };
        Some((Ok(socket), (listener, runtime, tls, closed)))
    })
}

fn closed_error() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "server closed the connection")
}

impl AsyncRead for Socket {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.closed.peek().is_some() {
            return Poll::Ready(Err(closed_error()));
        }
        let filled = buffer.filled().len();
        if let ready @ Poll::Ready(_) = Pin::new(&mut self.stream).poll_read(cx, buffer) {
            self.authority.pass(&mut buffer.filled_mut()[filled..]);
            return ready;
        }
        // A connection always waits for a read, so this is where it learns of its end.
        self.closed.poll_unpin(cx).map(|()| Err(closed_error()))
    }
}

impl AsyncWrite for Socket {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl Connected for Socket {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        self.info.clone()
    }
}
