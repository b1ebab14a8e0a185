//! A replica with its sockets: what a process runs.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use flotilla_metrics::{Endpoint, LateSource, Source};
use flotilla_proto::client::TonicConnector;
use flotilla_proto::server::{self, Services};
use flotilla_raft_log::{Disk, OsDisk};
use flotilla_runtime::{Either, Runtime, Task, select};
use flotilla_tls::{Link, TlsLinks};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::config::BrokerConfig;
use crate::failure::Failure;
use crate::host::{Placed, Shared};
use crate::metrics::DiskSource;
use crate::node::Node;
use crate::start_error::StartError;

/// A running replica. Dropping it closes its sockets and stops its tasks at once, as a crash would.
pub struct Broker {
    node: Node,
    client_address: SocketAddr,
    peer_address: SocketAddr,
    clients: Serving,
    peers: PeerSide,
    metrics: Option<Endpoint>,
    failure: Arc<Failure>,
}

/// Where its peers reach it.
enum PeerSide {
    /// On a port of its own.
    Own(Serving),
    /// On the port of a process with several groups.
    Shared(Placed),
}

/// One served socket.
pub(crate) struct Serving {
    pub(crate) stop: oneshot::Sender<()>,
    pub(crate) task: Task<()>,
}

impl Broker {
    /// Binds both ports, opens log and store, and serves. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// If the settings are not usable, an address is taken (it is named), or log or store do not open. Nothing is
    /// running then.
    pub async fn start(config: BrokerConfig, runtime: Runtime) -> Result<Broker, StartError> {
        config.validate()?;
        // Both before anything is opened: a taken port must leave no trace.
        let client_listener = listen(config.client_listen, "clients").await?;
        let peer_listener = listen(config.peer_listen, "peers").await?;
        Broker::start_on(config, runtime, client_listener, peer_listener).await
    }

    /// As [`Broker::start`], on listeners that are bound already; the settings' listen addresses only say what is told
    /// to clients where nothing else does.
    pub async fn start_on(
        config: BrokerConfig,
        runtime: Runtime,
        client_listener: TcpListener,
        peer_listener: TcpListener,
    ) -> Result<Broker, StartError> {
        Broker::start_over(config, runtime, Arc::new(OsDisk), client_listener, peer_listener).await
    }

    /// As [`Broker::start_on`], over a disk of the caller's.
    pub async fn start_over(
        mut config: BrokerConfig,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        client_listener: TcpListener,
        peer_listener: TcpListener,
    ) -> Result<Broker, StartError> {
        let client_address = bound(&client_listener, config.client_listen, "clients")?;
        let peer_address = bound(&peer_listener, config.peer_listen, "peers")?;
        // What the system chose for port 0.
        config.client_listen.set_port(client_address.port());
        config.peer_listen.set_port(peer_address.port());
        let tls = TlsLinks::start(&config.tls, &runtime)?;
        // From here on the probes are answered: a recovery may take its time.
        let late = Arc::new(LateSource::new(format!("replica {} of {}", config.node, config.group)));
        let metrics = match config.metrics_listen {
            Some(address) => {
                let disks = Arc::new(DiskSource::new(runtime.clone()));
                let mut sources: Vec<Arc<dyn Source>> = vec![late.clone(), disks];
                sources.extend(tls_source(&tls, &config));
                Some(Endpoint::start(address, sources, &runtime).await?)
            }
            None => None,
        };
        let connector = Arc::new(TonicConnector::with_tls(runtime.clone(), tls.clone()));
        let node = Node::start(config, runtime.clone(), disk, connector).await?;
        let failure = Arc::new(Failure::default());
        let clients = serve_clients(&runtime, &node, client_listener, &tls, &failure);
        let for_peers = Services::new(runtime.clone()).with_peer(node.peer()).with_tls(tls.port(Link::Peers));
        let peers = PeerSide::Own(serve(&runtime, peer_listener, for_peers, "peers", failure.clone()));
        late.arrived(node.metrics());
        tracing::info!(%client_address, %peer_address, "serving");
        Ok(Broker { node, client_address, peer_address, clients, peers, metrics, failure })
    }

    /// As [`Broker::start_over`], in a process that holds replicas of other groups as well.
    pub(crate) async fn start_within(
        mut config: BrokerConfig,
        disk: Arc<dyn Disk>,
        client_listener: TcpListener,
        shared: &Shared,
    ) -> Result<Broker, StartError> {
        let client_address = bound(&client_listener, config.client_listen, "clients")?;
        config.client_listen.set_port(client_address.port());
        config.peer_listen.set_port(shared.peer_address.port());
        let Shared { runtime, connector, tls, desk, peer_address } = shared.clone();
        let (cluster, group) = (config.cluster.clone(), config.group.clone());
        let node = Node::start(config, runtime.clone(), disk, connector).await?;
        let failure = Arc::new(Failure::default());
        let clients = serve_clients(&runtime, &node, client_listener, &tls, &failure);
        let peers = PeerSide::Shared(desk.place(&cluster, &group, node.peer()));
        tracing::info!(group, %client_address, %peer_address, "serving");
        Ok(Broker { node, client_address, peer_address, clients, peers, metrics: None, failure })
    }

    /// The replica itself.
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// Where clients are really served.
    pub fn client_address(&self) -> SocketAddr {
        self.client_address
    }

    /// Where peers are really served.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Where monitoring is served, if the settings say that it is.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Endpoint::address)
    }

    /// What monitoring asks, for a process that serves several replicas on one port.
    pub fn metrics(&self) -> Arc<dyn Source> {
        self.node.metrics()
    }

    /// Resolves, with the reason, when the process has to exit at once.
    pub async fn failed(&self) -> String {
        match select(self.node.failed(), self.failure.wait()).await {
            Either::Left(reason) | Either::Right(reason) => reason,
        }
    }

    /// Takes no new connections, hands leadership over, takes the row away from the namesrvs, and stops, all within
    /// about `timeout`.
    pub async fn shutdown(self, timeout: Duration) {
        let Broker { node, clients, peers, .. } = self;
        // Calls in flight get their answers: those that need a leader find the new one.
        let _ = clients.stop.send(());
        node.hand_over(timeout / 4).await;
        let _ = clients.task.await;
        node.stop(timeout / 2).await;
        match peers {
            PeerSide::Own(peers) => {
                let _ = peers.stop.send(());
                let _ = peers.task.await;
            }
            PeerSide::Shared(placed) => drop(placed),
        }
    }
}

/// What monitoring is told of the process' TLS, under the names of one of its replicas.
pub(crate) fn tls_source(tls: &TlsLinks, config: &BrokerConfig) -> Option<Arc<dyn Source>> {
    let node = config.node.to_string();
    let (cluster, group) = (config.cluster.as_str(), config.group.as_str());
    tls.source(&[("cluster", cluster), ("node_type", "broker"), ("node_id", group), ("replica", &node)])
}

fn serve_clients(
    runtime: &Runtime,
    node: &Node,
    listener: TcpListener,
    tls: &TlsLinks,
    failure: &Arc<Failure>,
) -> Serving {
    let services = Services::new(runtime.clone()).with_messaging(node.messaging()).with_admin(node.admin());
    let services = services.with_tls(tls.port(Link::Client));
    serve(runtime, listener, services, "clients", failure.clone())
}

pub(crate) async fn listen(address: SocketAddr, purpose: &'static str) -> Result<TcpListener, StartError> {
    TcpListener::bind(address).await.map_err(|source| StartError::Listen { address, purpose, source })
}

pub(crate) fn bound(
    listener: &TcpListener,
    address: SocketAddr,
    purpose: &'static str,
) -> Result<SocketAddr, StartError> {
    listener.local_addr().map_err(|source| StartError::Listen { address, purpose, source })
}

pub(crate) fn serve(
    runtime: &Runtime,
    listener: TcpListener,
    services: Services,
    purpose: &'static str,
    failure: Arc<Failure>,
) -> Serving {
    let (stop, stopped) = oneshot::channel::<()>();
    let shutdown = async move {
        if stopped.await.is_err() {
            // Dropped without a word: the task is cancelled as well, there is nothing to wait for.
            std::future::pending::<()>().await;
        }
    };
    let task = runtime.spawn("serve", async move {
        if let Err(error) = server::serve(listener, services, shutdown).await {
            failure.set(format!("serving {purpose} ended: {error}"));
        }
    });
    Serving { stop, task }
}
