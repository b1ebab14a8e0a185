//! Connections that others open: what a port does with the first bytes.
//!
//! ```text
//! Sniffing ──first byte 0x16──▶ Handshaking ──▶ Settled (TLS)
//!    ├──another, optional──────────────────────▶ Settled (plain)
//!    └──another, required──▶ a farewell that HTTP/2 clients can read, then the end
//! ```
//! It goes on while the connection's own task reads and writes: a slow or silent client keeps nobody else waiting, and has
//! [`SETTLE_TIMEOUT`].

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use flotilla_runtime::BoxFuture;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::{FallibleAccept, TlsAcceptor};

use crate::counters::{Cause, Link, Side};
use crate::tls::Tls;
use crate::wire::Wire;

/// Time from the acceptance of a connection to the end of its handshake.
pub(crate) const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for a client's first request, which is what will be told why.
const REQUEST_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a refused client gets to read why.
const FAREWELL_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of a refused client in which its first request is looked for.
const REQUEST_BYTES_MAX: usize = 16 << 10;
/// Client connection preface and frames of HTTP/2, RFC 9113 §3.4, §4.1, §6.2.
const PREFACE_BYTES: usize = 24;
const FRAME_HEADER_BYTES: usize = 9;
const FRAME_HEADERS: u8 = 1;
/// Refused clients that get it at the same time; others are cut off.
const FAREWELLS_MAX: usize = 64;
/// How a TLS record with a handshake begins; HTTP/2 begins with `PRI`.
const TLS_HANDSHAKE: u8 = 0x16;
/// What a client without TLS is told.
const PLAIN_REFUSED: &str = "this port takes TLS only (tls = required)";

/// Refused clients that are still being told so.
static FAREWELLS: AtomicUsize = AtomicUsize::new(0);

/// What a port does with new connections.
#[derive(Clone)]
pub struct Port {
    pub(crate) tls: Arc<Tls>,
    pub(crate) link: Link,
    pub(crate) is_required: bool,
    /// Whether who connects must show a certificate.
    pub(crate) asks: bool,
}

/// A connection to a port, on its way to being settled.
pub struct IncomingStream {
    state: State,
}

enum State {
    Sniffing(Opening, TcpStream),
    Handshaking(Opening, Box<FallibleAccept<TcpStream>>),
    Settled(Wire),
    Ended,
}

/// What is needed until it is settled.
struct Opening {
    port: Port,
    remote: Option<SocketAddr>,
    late: BoxFuture<'static, ()>,
}

impl Port {
    /// Takes a connection that was just accepted; nothing is read from it yet.
    pub fn take(&self, stream: TcpStream) -> IncomingStream {
        let opening = Opening {
            remote: stream.peer_addr().ok(),
            late: self.tls.runtime.sleep(SETTLE_TIMEOUT),
            port: self.clone(),
        };
        IncomingStream { state: State::Sniffing(opening, stream) }
    }
}

impl std::fmt::Debug for Port {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Port");
        shown.field("link", &self.link).field("is_required", &self.is_required).field("asks", &self.asks);
        shown.finish_non_exhaustive()
    }
}

impl Opening {
    fn secured(&self) {
        self.port.tls.counters.of(self.port.link, Side::In).secured.fetch_add(1, Ordering::Relaxed);
    }

    fn failed(&self, cause: Cause, reason: &str) -> io::Error {
        // Without the port, which is another one at each try.
        let who = self.remote.map_or_else(|| "somebody".to_owned(), |remote| remote.ip().to_string());
        self.port.tls.note_failure((self.port.link, Side::In), &who, cause, reason);
        io::Error::new(io::ErrorKind::ConnectionAborted, reason.to_owned())
    }

    /// It sends what is no TLS.
    fn plain(self, stream: TcpStream) -> Result<Wire, io::Error> {
        if !self.port.is_required {
            self.port.tls.counters.of(self.port.link, Side::In).plain.fetch_add(1, Ordering::Relaxed);
            return Ok(Wire::Plain(stream));
        }
        let error = self.failed(Cause::NotTls, "it came without TLS, which this port requires");
        let (timer, mut stream) = (self.port.tls.runtime.clone(), stream);
        self.part(async move {
            // The client is refused in any case, in time or not.
            let _ = timer.timeout(REQUEST_TIMEOUT, first_request(&mut stream)).await;
            let _ = timer.timeout(FAREWELL_TIMEOUT, farewell(stream, &farewell_frames())).await;
        });
        Err(error)
    }

    /// Its handshake has failed. The alert that says why is sent.
    fn insecure(self, error: &io::Error, stream: TcpStream) -> io::Error {
        let (cause, reason) = Cause::of(error);
        let timer = self.port.tls.runtime.clone();
        self.part(async move {
            let _ = timer.timeout(FAREWELL_TIMEOUT, farewell(stream, &[])).await;
        });
        self.failed(cause, &reason)
    }

    /// Lets a refused client read why, unless too many are doing so.
    fn part(&self, farewell: impl Future<Output = ()> + Send + 'static) {
        if FAREWELLS.fetch_add(1, Ordering::Relaxed) >= FAREWELLS_MAX {
            FAREWELLS.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let counted = async move {
            farewell.await;
            FAREWELLS.fetch_sub(1, Ordering::Relaxed);
        };
        self.port.tls.runtime.spawn("client refused", counted).detach();
    }
}

/// Reads until the client has sent a request: one that comes later would be told no more than that the connection is closed.
async fn first_request(stream: &mut TcpStream) -> io::Result<()> {
    let mut seen = Vec::new();
    while !has_request(&seen) && seen.len() < REQUEST_BYTES_MAX && stream.read_buf(&mut seen).await? > 0 {}
    Ok(())
}

/// Whether there is a whole header of a HEADERS frame.
fn has_request(bytes: &[u8]) -> bool {
    let mut at = PREFACE_BYTES;
    while let Some(&[a, b, c, kind, ..]) = bytes.get(at..at + FRAME_HEADER_BYTES) {
        if kind == FRAME_HEADERS {
            return true;
        }
        at += FRAME_HEADER_BYTES + u32::from_be_bytes([0, a, b, c]) as usize;
    }
    false
}

/// Says the last words, and reads what still comes: else the system would reset the connection, and all words be lost, also
/// those that were sent before.
async fn farewell(mut stream: TcpStream, words: &[u8]) -> io::Result<()> {
    stream.write_all(words).await?;
    stream.shutdown().await?;
    let mut dropped = [0; 1024];
    while stream.read(&mut dropped).await? > 0 {}
    Ok(())
}

/// An empty SETTINGS frame, and GOAWAY with INADEQUATE_SECURITY (RFC 9113 §6.5, §6.8, §7).
fn farewell_frames() -> Vec<u8> {
    let mut frames = vec![0, 0, 0, 4, 0, 0, 0, 0, 0];
    let length = u8::try_from(8 + PLAIN_REFUSED.len()).expect("a short text");
    frames.extend([0, 0, length, 7, 0, 0, 0, 0, 0]);
    frames.extend([0, 0, 0, 0, 0, 0, 0, 0xc]);
    frames.extend(PLAIN_REFUSED.as_bytes());
    frames
}

impl IncomingStream {
    /// A connection that has no TLS, whatever it sends.
    pub fn plain(stream: TcpStream) -> IncomingStream {
        IncomingStream { state: State::Settled(Wire::Plain(stream)) }
    }

    fn poll_settled(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Pin<&mut Wire>>> {
        if !matches!(self.state, State::Settled(_)) {
            ready!(self.poll_settling(cx))?;
        }
        match &mut self.state {
            State::Settled(wire) => Poll::Ready(Ok(Pin::new(wire))),
            _ => Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
        }
    }

    /// Ready once it is settled, or ended.
    fn poll_settling(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let next = match &mut self.state {
                State::Settled(_) => return Poll::Ready(Ok(())),
                State::Ended => return Poll::Ready(Err(io::ErrorKind::NotConnected.into())),
                State::Sniffing(opening, stream) => {
                    let mut first = [0];
                    let mut buffer = ReadBuf::new(&mut first);
                    match stream.poll_peek(cx, &mut buffer) {
                        // Somebody only looked whether anybody listens.
                        Poll::Ready(Ok(0)) => Err(io::ErrorKind::UnexpectedEof.into()),
                        Poll::Ready(Err(error)) => Err(error),
                        Poll::Ready(Ok(_)) => Ok(first[0]),
                        Poll::Pending => Err(ready!(poll_late(opening, cx))),
                    }
                }
                State::Handshaking(opening, accept) => match Pin::new(accept.as_mut()).poll(cx) {
                    Poll::Ready(Ok(stream)) => {
                        opening.secured();
                        self.state = State::Settled(Wire::Tls(Box::new(stream.into())));
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Ready(Err((error, stream))) => {
                        let State::Handshaking(opening, _) = std::mem::replace(&mut self.state, State::Ended) else {
                            return Poll::Ready(Err(error));
                        };
                        return Poll::Ready(Err(opening.insecure(&error, stream)));
                    }
                    Poll::Pending => Err(ready!(poll_late(opening, cx))),
                },
            };
            let state = std::mem::replace(&mut self.state, State::Ended);
            let first = next?;
            let State::Sniffing(opening, stream) = state else { return Poll::Ready(Ok(())) };
            self.state = if first == TLS_HANDSHAKE {
                let material = opening.port.tls.material();
                let config = if opening.port.asks { &material.serving_asked } else { &material.serving };
                let config = config.clone().expect("who has a port has a certificate");
                State::Handshaking(opening, Box::new(TlsAcceptor::from(config).accept(stream).into_fallible()))
            } else {
                State::Settled(opening.plain(stream)?)
            };
        }
    }
}

/// Ready, with an error, when the time is over.
fn poll_late(opening: &mut Opening, cx: &mut Context<'_>) -> Poll<io::Error> {
    ready!(opening.late.as_mut().poll(cx));
    Poll::Ready(opening.failed(Cause::Timeout, &format!("no handshake within {SETTLE_TIMEOUT:?}")))
}

impl AsyncRead for IncomingStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_settled(cx))?.poll_read(cx, buffer)
    }
}

impl AsyncWrite for IncomingStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_settled(cx))?.poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_settled(cx))?.poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.state {
            State::Settled(wire) => wire.is_write_vectored(),
            // Whatever it becomes can.
            _ => true,
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Settled(wire) => Pin::new(wire).poll_flush(cx),
            // Nothing was written yet.
            _ => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.state {
            State::Settled(wire) => Pin::new(wire).poll_shutdown(cx),
            // Not to be waited for: dropping it closes it.
            _ => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_found_behind_other_frames() {
        let mut bytes = vec![b'P'; PREFACE_BYTES];
        assert!(!has_request(&[]) && !has_request(&bytes));
        bytes.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]);
        bytes.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 1, 1, 1, 1]);
        assert!(!has_request(&bytes));
        bytes.extend([0, 0, 50, 1, 4, 0, 0, 0]);
        assert!(!has_request(&bytes), "its header is not whole yet");
        bytes.push(1);
        assert!(has_request(&bytes));
    }
}
