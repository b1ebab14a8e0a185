//! The HTTP port: `/metrics`, `/live` and `/ready`, bounded in every direction.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Either, Runtime, Task, select};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::health::render;
use crate::{Exposition, Source};

/// Connections at a time; further ones wait in the system's queue.
const CONNECTIONS_MAX: usize = 64;
/// A request's head must be here within this time.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
/// A whole connection, its answer included, may take so long. There is one request on each.
const CONNECTION_TIME_MAX: Duration = Duration::from_secs(30);
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// Scrapes that are rendered at a time; others wait for their turn.
const RENDERINGS_MAX: usize = 1;
/// Pause after a failed accept: most likely the process is out of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

const TEXT_FORMAT: &str = "text/plain; version=0.0.4; charset=utf-8";
const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";

/// Why the port is not served.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The address cannot be listened on, usually because another process does.
    #[error("cannot listen on {address} for metrics: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's answer.
        source: std::io::Error,
    },
}

/// A served port. Dropping it closes the port and cuts what is under way.
pub struct Endpoint {
    address: SocketAddr,
    _task: Task<()>,
}

struct Shared {
    sources: Vec<Arc<dyn Source>>,
    runtime: Runtime,
    renderings: Arc<Semaphore>,
}

impl Endpoint {
    /// Binds the port and serves these sources. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn start(
        address: SocketAddr,
        sources: Vec<Arc<dyn Source>>,
        runtime: &Runtime,
    ) -> Result<Endpoint, EndpointError> {
        let listener = Endpoint::bind(address).await?;
        Endpoint::start_on(listener, sources, runtime).map_err(|source| EndpointError::Listen { address, source })
    }

    /// Takes the port, so that a process learns that it is taken before it opens anything else.
    ///
    /// # Errors
    /// If the address cannot be listened on.
    pub async fn bind(address: SocketAddr) -> Result<TcpListener, EndpointError> {
        TcpListener::bind(address).await.map_err(|source| EndpointError::Listen { address, source })
    }

    /// As [`Endpoint::start`], on a port that is taken already.
    ///
    /// # Errors
    /// If the listener does not know its own address.
    pub fn start_on(
        listener: TcpListener,
        sources: Vec<Arc<dyn Source>>,
        runtime: &Runtime,
    ) -> std::io::Result<Endpoint> {
        let address = listener.local_addr()?;
        let renderings = Arc::new(Semaphore::new(RENDERINGS_MAX));
        let shared = Arc::new(Shared { sources, runtime: runtime.clone(), renderings });
        let task = runtime.spawn("metrics-endpoint", accept(listener, shared));
        tracing::info!(%address, "metrics served");
        Ok(Endpoint { address, _task: task })
    }

    /// Where it is really served.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = FuturesUnordered::new();
    loop {
        let has_room = connections.len() < CONNECTIONS_MAX;
        let over = async {
            if connections.is_empty() {
                std::future::pending::<()>().await;
            }
            connections.next().await
        };
        let arrival = async {
            if !has_room {
                std::future::pending::<()>().await;
            }
            listener.accept().await
        };
        match select(over, arrival).await {
            Either::Left(_) => {}
            Either::Right(Ok((stream, _))) => connections.push(serve(stream, shared.clone())),
            Either::Right(Err(error)) => {
                tracing::warn!(%error, "metrics connection not accepted");
                shared.runtime.sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, shared: Arc<Shared>) {
    let runtime = shared.runtime.clone();
    let service = service_fn(move |request| {
        let shared = shared.clone();
        async move { Ok::<_, Infallible>(answer(&shared, &request).await) }
    });
    let mut builder = http1::Builder::new();
    // One request a connection: an idle one would hold a place for nothing.
    builder.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT).keep_alive(false).max_buf_size(HEAD_BYTES_MAX);
    let serving = builder.serve_connection(TokioIo::new(stream), service);
    match runtime.timeout(CONNECTION_TIME_MAX, serving).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "metrics connection broke"),
        Err(elapsed) => tracing::debug!(%elapsed, "metrics connection cut off"),
    }
}

async fn answer(shared: &Arc<Shared>, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut refusal = response(StatusCode::METHOD_NOT_ALLOWED, PLAIN, "only GET is answered\n".to_owned());
        refusal.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refusal;
    }
    match request.uri().path() {
        "/metrics" => response(StatusCode::OK, TEXT_FORMAT, scrape(shared).await),
        "/live" => probe(shared, |source| source.live()),
        "/ready" => probe(shared, |source| source.ready()),
        "/" => response(StatusCode::OK, PLAIN, "/metrics /live /ready\n".to_owned()),
        _ => response(StatusCode::NOT_FOUND, PLAIN, "there are /metrics, /live and /ready\n".to_owned()),
    }
}

/// Renders where it blocks nobody. The place is given back when the rendering is over, not when its reader is gone.
async fn scrape(shared: &Arc<Shared>) -> String {
    let place = shared.renderings.clone().acquire_owned().await.expect("the semaphore is never closed");
    let rendered = shared.clone();
    shared
        .runtime
        .blocking(move || {
            let mut out = Exposition::new();
            crate::process::write(&mut out);
            for source in &rendered.sources {
                source.measure(&mut out);
            }
            drop(place);
            out.finish()
        })
        .await
}

fn probe(shared: &Shared, ask: impl Fn(&dyn Source) -> crate::Health) -> Response<Full<Bytes>> {
    let parts: Vec<_> = shared.sources.iter().map(|source| ask(&**source)).collect();
    let (is_ok, body) = render(&parts);
    response(if is_ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, JSON, body)
}

fn response(status: StatusCode, content_type: &'static str, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use crate::{Health, Scrape};

    struct Part {
        is_ready: bool,
    }

    impl Source for Part {
        fn measure(&self, into: &mut Exposition) {
            into.counter("scrapes_total", "Scrapes.", &[], 1);
        }

        fn live(&self) -> Health {
            Health::of("part")
        }

        fn ready(&self) -> Health {
            Health::of("part").unless(self.is_ready, || "no leader is known".to_owned())
        }
    }

    async fn started(is_ready: bool) -> Endpoint {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Endpoint::start(address, vec![Arc::new(Part { is_ready })], &Runtime::tokio()).await.expect("a free port")
    }

    async fn ask(endpoint: &Endpoint, request: &str) -> String {
        let mut stream = TcpStream::connect(endpoint.address()).await.expect("it listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers and closes");
        answer
    }

    async fn get(endpoint: &Endpoint, path: &str) -> String {
        ask(endpoint, &format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n")).await
    }

    #[tokio::test]
    async fn numbers_and_probes_are_served_and_nothing_else() {
        let endpoint = started(false).await;
        let metrics = get(&endpoint, "/metrics").await;
        let (head, body) = metrics.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.starts_with("HTTP/1.1 200") && head.contains(TEXT_FORMAT), "{head}");
        assert_eq!(Scrape::parse(body).expect("of the format").value("scrapes_total", &[]), Some(1.0));
        assert!(get(&endpoint, "/live").await.starts_with("HTTP/1.1 200"));
        let ready = get(&endpoint, "/ready").await;
        assert!(ready.starts_with("HTTP/1.1 503") && ready.contains("no leader is known"), "{ready}");
        assert!(get(&started(true).await, "/ready").await.starts_with("HTTP/1.1 200"));
        assert!(get(&endpoint, "/other").await.starts_with("HTTP/1.1 404"));
        let posted = ask(&endpoint, "POST /metrics HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n").await;
        assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
    }

    #[tokio::test]
    async fn a_head_that_never_ends_is_cut_off_and_keeps_nobody_else_waiting() {
        let endpoint = started(true).await;
        let mut slow = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            let mut stream = TcpStream::connect(endpoint.address()).await.expect("it listens");
            stream.write_all(b"GET /metrics HTTP/1.1\r\nx-slow: ").await.expect("it reads");
            slow.push(stream);
        }
        let began = Runtime::tokio().now();
        assert!(get(&endpoint, "/live").await.starts_with("HTTP/1.1 200"), "served once the slow ones are cut off");
        let waited = Runtime::tokio().now() - began;
        assert!(waited < HEAD_TIMEOUT * 2, "{waited:?}");
        for mut stream in slow {
            let mut rest = Vec::new();
            // Closed, with or without a word.
            let _ = stream.read_to_end(&mut rest).await;
            assert!(!String::from_utf8_lossy(&rest).starts_with("HTTP/1.1 200"));
        }
    }

    #[tokio::test]
    async fn a_head_without_measure_is_refused() {
        let endpoint = started(true).await;
        let mut stream = TcpStream::connect(endpoint.address()).await.expect("it listens");
        let long = format!("GET /metrics HTTP/1.1\r\nx-long: {}\r\n\r\n", "x".repeat(4 * HEAD_BYTES_MAX));
        // It may close before all is written.
        let _ = stream.write_all(long.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer).await;
        assert!(!String::from_utf8_lossy(&answer).starts_with("HTTP/1.1 200"));
    }

    #[tokio::test]
    async fn a_taken_port_is_named() {
        let endpoint = started(true).await;
        let error = Endpoint::start(endpoint.address(), Vec::new(), &Runtime::tokio()).await.err().expect("taken");
        assert!(error.to_string().contains(&endpoint.address().to_string()), "{error}");
    }
}
