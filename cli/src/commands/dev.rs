//! `flotilla dev`: a namesrv and a few replicas in one process, to develop against.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use flotilla_broker::{Broker, BrokerConfig, DiskSource, ReplicaConfig};
use flotilla_chaos::cluster::{ClusterView, ClusterViewError};
use flotilla_metrics::{Endpoint, EndpointError, Source};
use flotilla_namesrv::{Namesrv, NamesrvConfig};
use flotilla_proto::client::{CallOptions, Connector, TonicConnector};
use flotilla_proto::namesrv::{ListBrokersRequest, ReplicaRole};
use flotilla_runtime::{Runtime, Task};
use futures::future::{join_all, select_all};
use tokio::net::TcpListener;

use super::serve::{Server, serve_until_stopped, start_unless_stopped};
use crate::failure::Failure;
use crate::output;
use crate::quantity::{format_bytes, parse_bytes};
use crate::ready_line;
use crate::stop_signal::StopSignals;

/// Where RocketMQ's users look for metrics.
const METRICS_PORT: u16 = 5557;
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
const ROUTES_TIMEOUT: Duration = Duration::from_secs(10);
const STOP_TIMEOUT_MAX: Duration = Duration::from_secs(1);
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Run a namesrv and three replicas in one process, on loopback, to develop against.
///
/// Data stays in a folder between runs; remove the folder to begin anew. Prints a line that starts with `ready` when
/// messages can be sent. Ctrl-C stops it.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla dev
  flotilla dev --data /tmp/scratch --replicas 1
  flotilla dev --namesrv-port 19876 --port 18081 --peer-port 20912      beside another one

Then, in another terminal (a topic that is not created is made by its first message, plain and with 4 queues):
  flotilla admin topic create orders
  printf 'a\\nb\\nc\\n' | flotilla send --topic orders
  flotilla receive --topic orders --group billing")]
pub struct DevArguments {
    /// Where data lives; created if absent
    #[arg(long, value_name = "DIR", default_value = "flotilla-dev")]
    data: PathBuf,
    /// Replicas of the broker group; always start the same data with the same number
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=5))]
    replicas: u16,
    /// Port of the namesrv
    #[arg(long, value_name = "PORT", default_value_t = 9876, value_parser = clap::value_parser!(u16).range(1..))]
    namesrv_port: u16,
    /// Port of the first replica for clients; the others take the next ones
    #[arg(long, value_name = "PORT", default_value_t = 8081, value_parser = clap::value_parser!(u16).range(1..=65_531))]
    port: u16,
    /// Port of the first replica for the other replicas; the others take the next ones
    #[arg(long, value_name = "PORT", default_value_t = 10912, value_parser = clap::value_parser!(u16).range(1..=65_531))]
    peer_port: u16,
    /// Port of metrics and health (HTTP: /metrics, /live, /ready), 0 for none [default: 5557, or any if that is taken]
    #[arg(long, value_name = "PORT")]
    metrics_port: Option<u16>,
    /// Size of one log segment
    #[arg(long, value_name = "SIZE", default_value = "32MiB", value_parser = parse_bytes)]
    segment_bytes: u64,
    /// Quota of each replica's log: from half of it on the oldest messages go
    #[arg(long, value_name = "SIZE", default_value = "1GiB", value_parser = parse_bytes)]
    data_quota: u64,
    /// Refuse topics and groups that do not exist, instead of making them when they are first used
    #[arg(long)]
    no_auto_create: bool,
}

/// Why the cluster did not come up.
#[derive(Debug, thiserror::Error)]
enum DevError {
    #[error("data folder {} cannot be created: {source}", path.display())]
    Folder { path: PathBuf, source: std::io::Error },
    #[error("the namesrv cannot start: {0}")]
    Namesrv(#[source] flotilla_namesrv::StartError),
    #[error("replica {node} cannot start: {source}")]
    Broker { node: u64, source: flotilla_broker::StartError },
    #[error(transparent)]
    Metrics(#[from] EndpointError),
    #[error(transparent)]
    View(#[from] ClusterViewError),
    #[error("the namesrv had not heard of a leader within {waited:?}")]
    NoRoutes { waited: Duration },
}

pub async fn run(arguments: DevArguments, runtime: Runtime) -> Result<(), Failure> {
    let configs = arguments.broker_configs();
    for config in &configs {
        config.validate().map_err(Failure::usage)?;
    }
    let mut signals = StopSignals::listen(false, &runtime)?;
    let Some(started) = start_unless_stopped(&mut signals, DevCluster::start(&arguments, configs, &runtime)).await
    else {
        return Ok(());
    };
    let cluster = started?;
    let Some(leader) = start_unless_stopped(&mut signals, cluster.await_usable(&runtime)).await else {
        return Ok(());
    };
    let leader = leader?;
    arguments.print_endpoints(&cluster);
    ready_line::print(format_args!("replica {leader} leads, messages can be sent; Ctrl-C stops"));
    serve_until_stopped(cluster, &mut signals, &runtime).await
}

impl DevArguments {
    fn namesrv_address(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.namesrv_port))
    }

    /// The port for monitoring. The usual one may be taken by another cluster on this machine; one that was asked for must
    /// be had.
    async fn metrics_listener(&self) -> Result<Option<(SocketAddr, TcpListener)>, EndpointError> {
        let address = |port: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let bound = match self.metrics_port {
            Some(0) => return Ok(None),
            Some(port) => (address(port), Endpoint::bind(address(port)).await?),
            None => match Endpoint::bind(address(METRICS_PORT)).await {
                Ok(listener) => (address(METRICS_PORT), listener),
                Err(_) => (address(0), Endpoint::bind(address(0)).await?),
            },
        };
        Ok(Some(bound))
    }

    fn broker_configs(&self) -> Vec<BrokerConfig> {
        let address = |first: u16, node: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, first + node - 1));
        let replicas: Vec<ReplicaConfig> = (1..=self.replicas)
            .map(|node| ReplicaConfig {
                node: node.into(),
                client: address(self.port, node).to_string(),
                peer: address(self.peer_port, node).to_string(),
            })
            .collect();
        (1..=self.replicas)
            .map(|node| BrokerConfig {
                cluster: "dev".to_owned(),
                node: node.into(),
                data_dir: self.data.join(format!("replica-{node}")),
                client_listen: address(self.port, node),
                peer_listen: address(self.peer_port, node),
                replicas: replicas.clone(),
                namesrv: vec![self.namesrv_address().to_string()],
                segment_bytes: self.segment_bytes,
                data_bytes_max: Some(self.data_quota),
                // What it takes is bounded by the quota; a disk that is nearly full of other things is no reason to refuse.
                disk_refuse_free_bytes: 0,
                // The oldest go well before sends would be refused.
                auto_create_topics: !self.no_auto_create,
                auto_create_groups: !self.no_auto_create,
                retention_bytes: Some((self.data_quota / 2).max(2 * self.segment_bytes)),
                ..BrokerConfig::default()
            })
            .collect()
    }

    fn print_endpoints(&self, cluster: &DevCluster) {
        let data = std::path::absolute(&self.data).unwrap_or_else(|_| self.data.clone());
        output::line(format_args!("namesrv    {}", self.namesrv_address()));
        output::line(format_args!("brokers    {}", cluster.addresses.join(" ")));
        if let Some(metrics) = &cluster.metrics {
            output::line(format_args!("metrics    http://{}/metrics (also /live, /ready)", metrics.address()));
        }
        output::line(format_args!(
            "data       {} (segments of {}, at most {} a replica)",
            data.display(),
            format_bytes(self.segment_bytes),
            format_bytes(self.data_quota)
        ));
    }
}

/// All of it in this process.
struct DevCluster {
    namesrv: Namesrv,
    namesrv_address: String,
    brokers: Vec<Broker>,
    addresses: Vec<String>,
    /// One port for all of it.
    metrics: Option<Endpoint>,
}

impl DevCluster {
    async fn start(
        arguments: &DevArguments,
        configs: Vec<BrokerConfig>,
        runtime: &Runtime,
    ) -> Result<DevCluster, DevError> {
        create_folder(&arguments.data)?;
        let metrics = arguments.metrics_listener().await?;
        let namesrv_address = arguments.namesrv_address();
        let config = NamesrvConfig { listen: namesrv_address, ..NamesrvConfig::default() };
        let namesrv = Namesrv::start(config, runtime.clone()).await.map_err(DevError::Namesrv)?;
        let addresses = configs.iter().map(BrokerConfig::client_address).collect();
        // All at once: one after the other, each would wait for its peers' sockets.
        let starting: Vec<Task<Result<Broker, DevError>>> = configs
            .into_iter()
            .map(|config| {
                let (node, start) = (config.node, Broker::start(config, runtime.clone()));
                runtime.spawn("start-replica", async move {
                    start.await.map_err(|source| DevError::Broker { node, source })
                })
            })
            .collect();
        let mut brokers = Vec::new();
        for start in starting {
            brokers.push(start.await.expect("starting a broker neither panics nor is cancelled")?);
        }
        let metrics = match metrics {
            Some((address, listener)) => {
                let disks: Arc<dyn Source> = Arc::new(DiskSource::new(runtime.clone()));
                let sources = brokers.iter().map(Broker::metrics).chain([namesrv.metrics(), disks]).collect();
                let served = Endpoint::start_on(listener, sources, runtime);
                Some(served.map_err(|source| EndpointError::Listen { address, source })?)
            }
            None => None,
        };
        Ok(DevCluster { namesrv, namesrv_address: namesrv_address.to_string(), brokers, addresses, metrics })
    }

    /// Waits until a leader takes writes and the namesrv knows it; returns its number.
    async fn await_usable(&self, runtime: &Runtime) -> Result<u64, DevError> {
        let connector = TonicConnector::new(runtime.clone());
        let view = ClusterView::new(&self.addresses, &connector, runtime);
        let leader = view.await_leader(0, LEADER_TIMEOUT).await?;
        let namesrv = connector.namesrv(&self.namesrv_address);
        let deadline = runtime.now() + ROUTES_TIMEOUT;
        loop {
            let listed = namesrv.list_brokers(CallOptions::default(), ListBrokersRequest::default()).await;
            let rows = listed.map(|reply| reply.brokers).unwrap_or_default();
            let leads = |role: i32| role == ReplicaRole::Leader as i32;
            if rows.iter().filter_map(|row| row.registration.as_ref()).any(|row| leads(row.role)) {
                return Ok(leader.node);
            }
            if runtime.now() >= deadline {
                return Err(DevError::NoRoutes { waited: ROUTES_TIMEOUT });
            }
            runtime.sleep(POLL_INTERVAL).await;
        }
    }
}

impl Server for DevCluster {
    async fn failed(&self) -> String {
        let failures: Vec<_> = self.brokers.iter().map(|broker| Box::pin(Broker::failed(broker))).collect();
        let (reason, at, _) = select_all(failures).await;
        format!("replica {}: {reason}", at + 1)
    }

    async fn shutdown(self, timeout: Duration) {
        // All replicas go at once, so nobody can take the lead over: there is little to wait for.
        let timeout = timeout.min(STOP_TIMEOUT_MAX);
        join_all(self.brokers.into_iter().map(|broker| broker.shutdown(timeout))).await;
        self.namesrv.shutdown(timeout).await;
    }
}

fn create_folder(path: &Path) -> Result<(), DevError> {
    std::fs::create_dir_all(path).map_err(|source| DevError::Folder { path: path.to_owned(), source })
}
