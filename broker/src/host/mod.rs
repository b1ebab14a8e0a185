//! A process that holds replicas of several broker groups: one peer port and one connection a peer for all of them, one
//! monitoring port, and a life of its own for each.

mod desk;
mod settings;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use flotilla_metrics::{Endpoint, LateSource, Source};
use flotilla_proto::client::TonicConnector;
use flotilla_proto::server::Services;
use flotilla_raft_log::{Disk, OsDisk};
use flotilla_runtime::{Either, Runtime, Task, select};
use flotilla_tls::{Link, TlsLinks};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::broker::{Broker, Serving, bound, listen, serve, tls_source};
use crate::config::BrokerConfig;
use crate::failure::Failure;
use crate::metrics::DiskSource;
use crate::start_error::StartError;

pub use desk::{PeerDesk, Placed};
pub use settings::{HOSTED_GROUPS_MAX, check_groups, groups_from_file, groups_from_toml};

/// Pause before a replica that stopped itself is started again; it doubles with each failure in a row.
const RESTART_PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest of them.
const RESTART_PAUSE_MAX: Duration = Duration::from_secs(60);
/// Who has run for so long is no repeated failure.
const RAN_WELL: Duration = Duration::from_secs(300);

/// Replicas of several groups in one process.
///
/// A replica that must not go on (its disk failed) is dropped and started again after a pause, as a supervisor would do with its
/// process; the others do not notice. Dropping the host closes all sockets and stops all tasks at once, as a crash would.
pub struct Host {
    groups: Vec<Hosted>,
    peer_address: SocketAddr,
    peers: Serving,
    metrics: Option<Endpoint>,
    failure: Arc<Failure>,
}

/// One group's replica, as the host sees it.
struct Hosted {
    name: String,
    client_address: SocketAddr,
    stop: oneshot::Sender<Duration>,
    task: Task<()>,
}

/// What the replicas of a process share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) runtime: Runtime,
    pub(crate) connector: Arc<TonicConnector>,
    pub(crate) tls: TlsLinks,
    pub(crate) desk: Arc<PeerDesk>,
    pub(crate) peer_address: SocketAddr,
}

impl Host {
    /// Binds all ports, opens the logs one after the other, and serves. Must run inside a tokio runtime.
    ///
    /// # Errors
    /// If the settings are not usable, an address is taken, or a log or store does not open: the first one that fails, by its
    /// group's name. Nothing is running then.
    pub async fn start(configs: Vec<BrokerConfig>, runtime: Runtime) -> Result<Host, StartError> {
        Host::start_over(configs, runtime, |_| Arc::new(OsDisk)).await
    }

    /// As [`Host::start`], each group over a disk of its own.
    ///
    /// # Errors
    /// As [`Host::start`].
    pub async fn start_over(
        configs: Vec<BrokerConfig>,
        runtime: Runtime,
        disk_of: impl Fn(&str) -> Arc<dyn Disk>,
    ) -> Result<Host, StartError> {
        check_groups(&configs)?;
        let peer_listener = listen(configs[0].peer_listen, "peers").await?;
        let peer_address = bound(&peer_listener, configs[0].peer_listen, "peers")?;
        let mut listeners = Vec::new();
        for config in &configs {
            listeners.push(listen(config.client_listen, "clients").await?);
        }
        let part =
            |config: &BrokerConfig| Arc::new(LateSource::new(format!("replica {} of {}", config.node, config.group)));
        let sources: Vec<Arc<LateSource>> = configs.iter().map(part).collect();
        let tls = TlsLinks::start(&configs[0].tls, &runtime)?;
        let mut shown: Vec<Arc<dyn Source>> = vec![Arc::new(DiskSource::new(runtime.clone()))];
        shown.extend(sources.iter().map(|source| source.clone() as Arc<dyn Source>));
        shown.extend(tls_source(&tls, &configs[0]));
        let metrics = match configs[0].metrics_listen {
            Some(address) => Some(Endpoint::start(address, shown, &runtime).await?),
            None => None,
        };
        let desk = Arc::new(PeerDesk::new(runtime.clone()));
        let connector = Arc::new(TonicConnector::with_tls(runtime.clone(), tls.clone()));
        let shared = Shared { runtime: runtime.clone(), connector, tls: tls.clone(), desk: desk.clone(), peer_address };
        let failure = Arc::new(Failure::default());
        // Before the first replica: it is asked as soon as it is there.
        let services = Services::new(runtime.clone()).with_peer(desk).with_tls(tls.port(Link::Peers));
        let peers = serve(&runtime, peer_listener, services, "peers", failure.clone());
        let down = Arc::new(AtomicUsize::new(0));
        let count = configs.len();
        let mut groups = Vec::new();
        for ((mut config, listener), source) in configs.into_iter().zip(listeners).zip(sources) {
            let client_address = bound(&listener, config.client_listen, "clients")?;
            // What the system chose for port 0, also at the next start.
            config.client_listen.set_port(client_address.port());
            let (name, disk) = (format!("{}/{}", config.group, config.node), disk_of(&config.group));
            let broker = Broker::start_within(config.clone(), disk.clone(), listener, &shared).await?;
            source.arrived(broker.metrics());
            let (stop, stopped) = oneshot::channel();
            let keeper = Keeper { config, disk, source, shared: shared.clone(), down: down.clone(), count };
            let task = failure.guard(&runtime, "hosted-group", keeper.keep(broker, stopped, failure.clone()));
            groups.push(Hosted { name, client_address, stop, task });
        }
        Ok(Host { groups, peer_address, peers, metrics, failure })
    }

    /// `group/node` of each replica, and where its clients are really served.
    pub fn client_addresses(&self) -> Vec<(&str, SocketAddr)> {
        self.groups.iter().map(|group| (group.name.as_str(), group.client_address)).collect()
    }

    /// Where peers of all groups are really served.
    pub fn peer_address(&self) -> SocketAddr {
        self.peer_address
    }

    /// Where monitoring is served, if the settings say that it is.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(Endpoint::address)
    }

    /// Resolves, with the reason, when the process has to exit at once: no replica of it goes on, or the peer port is gone.
    pub async fn failed(&self) -> String {
        self.failure.wait().await
    }

    /// As [`Broker::shutdown`], of all replicas at the same time.
    pub async fn shutdown(self, timeout: Duration) {
        let Host { groups, peers, .. } = self;
        let mut tasks = Vec::new();
        for group in groups {
            // Whoever is gone has nothing to stop.
            let _ = group.stop.send(timeout);
            tasks.push(group.task);
        }
        for task in tasks {
            let _ = task.await;
        }
        let _ = peers.stop.send(());
        let _ = peers.task.await;
    }
}

/// Keeps one group's replica running.
struct Keeper {
    config: BrokerConfig,
    disk: Arc<dyn Disk>,
    source: Arc<LateSource>,
    shared: Shared,
    /// Replicas of this process that are down at the moment, and how many there are.
    down: Arc<AtomicUsize>,
    count: usize,
}

impl Keeper {
    async fn keep(self, first: Broker, mut stopped: oneshot::Receiver<Duration>, all: Arc<Failure>) {
        let runtime = self.shared.runtime.clone();
        let (mut running, mut pause) = (Some(first), RESTART_PAUSE_MIN);
        let (group, node) = (self.config.group.clone(), self.config.node);
        loop {
            let Some(broker) = running.take() else { return };
            let began = runtime.now();
            match select(broker.failed(), &mut stopped).await {
                Either::Left(reason) => {
                    tracing::error!(
                        group,
                        node,
                        reason,
                        "this replica stopped itself; the others of this process go on"
                    );
                    // Its sockets close, and its peers are told no more: the other replicas of its group elect.
                    drop(broker);
                    self.source.left(reason.clone());
                    if self.down.fetch_add(1, Ordering::SeqCst) + 1 == self.count {
                        all.set(format!("no replica of this process goes on; {group}/{node}: {reason}"));
                        return;
                    }
                }
                Either::Right(told) => {
                    // Without a word the host was dropped: at once then.
                    if let Ok(timeout) = told {
                        broker.shutdown(timeout).await;
                    }
                    return;
                }
            }
            if runtime.now() - began >= RAN_WELL {
                pause = RESTART_PAUSE_MIN;
            }
            running = loop {
                if let Either::Right(_) = select(runtime.sleep(pause), &mut stopped).await {
                    return;
                }
                pause = (pause * 2).min(RESTART_PAUSE_MAX);
                match self.start().await {
                    Ok(broker) => break Some(broker),
                    Err(error) => {
                        tracing::error!(group, node, %error, next_s = pause.as_secs(), "replica does not start again")
                    }
                }
            };
            self.down.fetch_sub(1, Ordering::SeqCst);
            tracing::warn!(group, node, "replica was started again");
        }
    }

    async fn start(&self) -> Result<Broker, StartError> {
        let listener: TcpListener = listen(self.config.client_listen, "clients").await?;
        let broker = Broker::start_within(self.config.clone(), self.disk.clone(), listener, &self.shared).await?;
        self.source.arrived(broker.metrics());
        Ok(broker)
    }
}
