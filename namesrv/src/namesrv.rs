//! A namesrv process's inside: the service behind a listening socket, and its end.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flotilla_metrics::{Endpoint, EndpointError, Source};
use flotilla_proto::server::{ServeError, Services, serve};
use flotilla_runtime::{Runtime, Task};
use flotilla_tls::{Link, TlsError, TlsLinks};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::{ConfigErrors, NamesrvConfig};
use crate::service::NamesrvService;

/// Why a namesrv did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Some settings are not valid.
    #[error("the configuration is not valid: {0}")]
    Config(#[from] ConfigErrors),
    /// The metrics port cannot be listened on.
    #[error(transparent)]
    Metrics(#[from] EndpointError),
    /// Certificates or keys are not usable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {}", explain(.address, .source))]
    Bind {
        /// The address of the configuration.
        address: SocketAddr,
        /// The system's reason.
        source: std::io::Error,
    },
}

fn explain(address: &SocketAddr, source: &std::io::Error) -> String {
    match source.kind() {
        std::io::ErrorKind::AddrInUse => format!("port {} is in use by another process", address.port()),
        _ => source.to_string(),
    }
}

/// A running namesrv. Dropping it stops it at once; [`Namesrv::shutdown`] lets calls end.
pub struct Namesrv {
    service: NamesrvService,
    address: SocketAddr,
    runtime: Runtime,
    stop: oneshot::Sender<()>,
    server: Task<Result<(), ServeError>>,
    metrics: Option<Endpoint>,
    /// Its files are looked at as long as this is here.
    _tls: TlsLinks,
    _scans: Task<()>,
}

impl Namesrv {
    /// Checks the settings, binds and serves. When this returns, calls are answered.
    ///
    /// # Errors
    /// [`StartError`], which names every invalid setting or the address that could not be bound.
    pub async fn start(config: NamesrvConfig, runtime: Runtime) -> Result<Namesrv, StartError> {
        config.validate()?;
        let tls = TlsLinks::start(&config.tls, &runtime)?;
        let bound = |source| StartError::Bind { address: config.listen, source };
        let listener = TcpListener::bind(config.listen).await.map_err(bound)?;
        let address = listener.local_addr().map_err(bound)?;
        let metrics = match config.metrics_listen {
            Some(address) => Some((address, Endpoint::bind(address).await?)),
            None => None,
        };
        let service = NamesrvService::new(config, runtime.clone());
        let (stop, stopped) = oneshot::channel();
        let services = Services::new(runtime.clone()).with_namesrv(Arc::new(service.clone()));
        let services = services.with_tls(tls.port(Link::Namesrv));
        let served = service.clone();
        let server = runtime.spawn("namesrv server", async move {
            let stop = async move {
                // A dropped sender means the same: stop.
                let _ = stopped.await;
            };
            let ended = serve(listener, services, stop).await;
            served.serving_ended();
            ended
        });
        let scanned = service.clone();
        let scans = runtime.spawn("namesrv scans", async move { scanned.run_scans().await });
        let metrics = match metrics {
            Some((metrics_address, listener)) => {
                let mut sources = vec![service.metrics(address.to_string())];
                sources.extend(tls.source(&[("node_type", "namesrv"), ("node_id", &address.to_string())]));
                let served = Endpoint::start_on(listener, sources, &runtime);
                Some(served.map_err(|source| EndpointError::Listen { address: metrics_address, source })?)
            }
            None => None,
        };
        tracing::info!(%address, "namesrv listens");
        Ok(Namesrv { service, address, runtime, stop, server, metrics, _tls: tls, _scans: scans })
    }

    /// The address it listens on, with the real port if port 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where monitoring is served, if the settings say that it is.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Endpoint::address)
    }

    /// What monitoring asks, for a process that serves more than this on one port.
    pub fn metrics(&self) -> Arc<dyn Source> {
        self.service.metrics(self.address.to_string())
    }

    /// The service itself, for a look at its table.
    pub fn service(&self) -> &NamesrvService {
        &self.service
    }

    /// Stops: registration streams end, calls under way get `timeout` to finish, then all is dropped.
    pub async fn shutdown(self, timeout: Duration) {
        self.service.close();
        // The server may have ended already.
        let _ = self.stop.send(());
        match self.runtime.timeout(timeout, self.server).await {
            Ok(Ok(Ok(()))) => {}
            Ok(Ok(Err(error))) => tracing::warn!(%error, "namesrv server ended with an error"),
            Ok(Err(end)) => tracing::warn!(%end, "namesrv server task ended"),
            Err(_) => tracing::warn!(?timeout, "namesrv calls did not finish in time and are cut off"),
        }
    }
}
