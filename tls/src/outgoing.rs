//! Connections that this process opens.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::counters::{Cause, Link, Side};
use crate::error::ConnectError;
use crate::tls::Tls;
use crate::wire::Wire;

/// Time for the TCP handshake. A lost SYN is sent again after 1 s anyway.
const TCP_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the TLS handshake, for which the other process has to run.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);

/// The way to the other ends of one link.
#[derive(Clone)]
pub struct Outgoing {
    pub(crate) tls: Arc<Tls>,
    pub(crate) link: Link,
    pub(crate) is_required: bool,
}

impl Outgoing {
    /// Connects to a `host:port`. The other end's certificate must be for that host.
    ///
    /// # Errors
    /// [`ConnectError`]: no TCP connection, or, if TLS is required, no TLS over it.
    pub async fn connect(&self, address: &str) -> Result<Wire, ConnectError> {
        let stream = self.tcp(address).await?;
        let counters = self.tls.counters.of(self.link, Side::Out);
        let (cause, reason) = match self.secured(address, stream).await {
            Ok(wire) => {
                counters.secured.fetch_add(1, Ordering::Relaxed);
                return Ok(wire);
            }
            Err(failure) => failure,
        };
        self.tls.note_failure((self.link, Side::Out), address, cause, &reason);
        if self.is_required {
            return Err(ConnectError::Handshake { address: address.to_owned(), cause, reason });
        }
        let stream = self.tcp(address).await?;
        counters.plain.fetch_add(1, Ordering::Relaxed);
        Ok(Wire::Plain(stream))
    }

    async fn tcp(&self, address: &str) -> io::Result<TcpStream> {
        let connecting = self.tls.runtime.timeout(TCP_TIMEOUT, TcpStream::connect(address)).await;
        let late = || io::Error::new(io::ErrorKind::TimedOut, format!("no connection within {TCP_TIMEOUT:?}"));
        let stream = connecting.map_err(|_| late())??;
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY not set");
        }
        Ok(stream)
    }

    async fn secured(&self, address: &str, stream: TcpStream) -> Result<Wire, (Cause, String)> {
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let name = ServerName::try_from(host.to_owned())
            .map_err(|_| (Cause::WrongName, format!("{host:?} is no host that a certificate could be for")))?;
        let connector = TlsConnector::from(self.tls.material().connecting.clone());
        match self.tls.runtime.timeout(HANDSHAKE_TIMEOUT, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Wire::Tls(Box::new(stream.into()))),
            Ok(Err(error)) => Err(Cause::of(&error)),
            Err(_) => Err((Cause::Timeout, format!("no handshake within {HANDSHAKE_TIMEOUT:?}"))),
        }
    }
}

impl std::fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outgoing")
            .field("link", &self.link)
            .field("is_required", &self.is_required)
            .finish_non_exhaustive()
    }
}
