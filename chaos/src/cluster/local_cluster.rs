//! A namesrv and broker replicas as child processes of this one, on free loopback ports, in one folder.
//!
//! The children hold the read end of a pipe that only this process holds open: when it ends, however
//! it ends, they see the end of their stdin and stop. Dropping a [`LocalCluster`] kills them.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use futures::future::{join_all, try_join_all};

use super::child_server::{ChildServer, ChildServerError};
use super::free_ports::free_ports;
use super::links::Links;
use super::namespaces::{Namespaces, NetworkError};
use super::network::Network;
use super::packet_rules::{CLIENT_PORT, PEER_PORT};
use super::process_cpu;
use super::shim::Shim;
use super::signal::Signal;
use super::volume::{Volume, VolumeError};

/// How long a child may take to print its ready line.
const READY_TIMEOUT: Duration = Duration::from_secs(15);
/// Holds the network namespaces.
const NAMESPACES_DIR: &str = "net";
/// Where the namesrv listens in its own.
const NAMESRV_PORT: u16 = 8_083;
/// Settings that no flag has.
const SETTINGS_FILE: &str = "broker.toml";
/// On a small disk that a fault fills the oldest messages would go, consumed or not: that is a setting, and no loss to find.
const NOTHING_IS_LET_GO: &str = "disk_expire_free_bytes = 0\ndisk_delete_free_bytes = 0\ndisk_refuse_free_bytes = 0\n";

/// What to start.
#[derive(Debug, Clone)]
pub struct LocalClusterConfig {
    /// The `flotilla` binary.
    pub program: PathBuf,
    /// Name of the cluster, which its data folders remember.
    pub cluster: &'static str,
    /// Holds one data folder and one log file per process.
    pub dir: PathBuf,
    /// 1 to 5.
    pub replicas: u32,
    /// Size of one log segment.
    pub segment_bytes: u64,
    /// Quota of one replica's data.
    pub data_quota_bytes: u64,
    /// Log filter of the children, see `--log-level`.
    pub log_level: String,
    /// Replicas reach each other through [`Links`], so that these can be hurt; else directly, unless the rig has namespaces.
    pub has_links: bool,
}

/// What replicas are given so that more of them can be hurt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rig {
    /// The shim's library: writes, syncs and clocks can then be hurt, see [`Shim`].
    pub shim: Option<PathBuf>,
    /// A file system of so many bytes for each, see [`Volume`]; needs root.
    pub volume_bytes: Option<u64>,
    /// Lines of each replica's settings file.
    pub settings: Vec<String>,
    /// Each process in a network namespace of its own, see [`Namespaces`]; needs root, and a network that is not the machine's.
    pub has_namespaces: bool,
}

/// Why the cluster could not be started or a replica not be hurt or healed.
#[derive(Debug, thiserror::Error)]
pub enum LocalClusterError {
    /// The machine has too few free ports.
    #[error("no free ports for the cluster: {0}")]
    NoPorts(#[source] io::Error),
    /// A process did not do what it should.
    #[error(transparent)]
    Child(#[from] ChildServerError),
    /// A replica's file system did not do what it should.
    #[error(transparent)]
    Volume(#[from] VolumeError),
    /// The network between the replicas cannot be made.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// The replicas' settings cannot be written.
    #[error("the replicas' settings: {0}")]
    Settings(#[source] io::Error),
    /// A replica's page of orders cannot be made.
    #[error("the shim's page of orders: {0}")]
    Shim(#[source] io::Error),
}

/// One replica, running or killed.
struct Replica {
    node: u64,
    arguments: Vec<String>,
    client_address: SocketAddr,
    data: PathBuf,
    log: PathBuf,
    shim: Option<Shim>,
    volume: Option<Volume>,
    process: Option<ChildServer>,
    is_paused: bool,
    /// CPU time of earlier lives of this replica, as last seen.
    cpu_before: Duration,
}

/// The running cluster.
pub struct LocalCluster {
    program: PathBuf,
    runtime: Runtime,
    namesrv: Option<ChildServer>,
    namesrv_arguments: Vec<String>,
    namesrv_log: PathBuf,
    namesrv_address: SocketAddr,
    replicas: Vec<Replica>,
    network: Option<Arc<Network>>,
}

impl LocalCluster {
    /// Starts all processes and waits until each has said that it is ready. There may be no leader yet.
    ///
    /// # Errors
    /// [`LocalClusterError`] names the process that did not start and shows the end of its log.
    pub async fn start(config: LocalClusterConfig, runtime: Runtime) -> Result<LocalCluster, LocalClusterError> {
        LocalCluster::start_rigged(config, &Rig::default(), runtime).await
    }

    /// As [`LocalCluster::start`], with replicas that can be hurt in more ways.
    ///
    /// # Errors
    /// As there, and if the system refuses the rig.
    pub async fn start_rigged(
        config: LocalClusterConfig,
        rig: &Rig,
        runtime: Runtime,
    ) -> Result<LocalCluster, LocalClusterError> {
        let count = config.replicas as usize;
        let nodes: Vec<u64> = (1..=u64::from(config.replicas)).collect();
        let namespaces = match rig.has_namespaces {
            true => Some(Namespaces::open(&config.dir.join(NAMESPACES_DIR), &nodes, &runtime).await?),
            false => None,
        };
        // The namesrv's, the replicas' for clients, and their peers'.
        let addresses: Vec<SocketAddr> = match &namespaces {
            Some(namespaces) => addresses_in(namespaces, &nodes),
            None => {
                let ports = free_ports(1 + 2 * count, &runtime).map_err(LocalClusterError::NoPorts)?;
                ports.into_iter().map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port))).collect()
            }
        };
        let address = |at: usize| addresses[at];
        let namesrv_address = address(0);
        let peer_addresses: Vec<(u64, SocketAddr)> =
            nodes.iter().enumerate().map(|(at, node)| (*node, address(1 + count + at))).collect();
        let links = match config.has_links && namespaces.is_none() {
            true => Some(Links::open(&peer_addresses, &runtime).await.map_err(LocalClusterError::NoPorts)?),
            false => None,
        };

        let mut namesrv_arguments = vec!["namesrv".to_owned(), "--listen".to_owned(), namesrv_address.to_string()];
        namesrv_arguments.extend(common_arguments(&config));
        let namesrv_log = config.dir.join("namesrv.log");
        let mut replicas = Vec::with_capacity(count);
        for (at, node) in nodes.iter().copied().enumerate() {
            let mut arguments: Vec<String> =
                ["broker", "--cluster", config.cluster, "--group", "group-a"].map(str::to_owned).to_vec();
            let data = config.dir.join(format!("broker-{node}"));
            for (flag, value) in [
                ("--node", node.to_string()),
                ("--data-dir", data.display().to_string()),
                ("--client-listen", address(1 + at).to_string()),
                ("--peer-listen", address(1 + count + at).to_string()),
                ("--namesrv", namesrv_address.to_string()),
                ("--segment-bytes", config.segment_bytes.to_string()),
                ("--data-quota", config.data_quota_bytes.to_string()),
            ] {
                arguments.extend([flag.to_owned(), value]);
            }
            for (other, (member, peer)) in peer_addresses.iter().enumerate() {
                // Each replica has its own view of where the others are: behind its own links.
                let peer = links.as_ref().and_then(|links| links.address(node, *member)).unwrap_or(*peer);
                arguments.extend(["--replica".to_owned(), format!("{member}={},{peer}", address(1 + other))]);
            }
            arguments.extend(common_arguments(&config));
            if rig.volume_bytes.is_some() || !rig.settings.is_empty() {
                let settings = config.dir.join(SETTINGS_FILE);
                let kept = if rig.volume_bytes.is_some() { NOTHING_IS_LET_GO } else { "" };
                let lines: String = rig.settings.iter().map(|line| format!("{line}\n")).collect();
                std::fs::write(&settings, format!("{kept}{lines}")).map_err(LocalClusterError::Settings)?;
                arguments.extend(["--config".to_owned(), settings.display().to_string()]);
            }
            let volume = match rig.volume_bytes {
                Some(bytes) => {
                    Some(Volume::create(config.dir.join(format!("broker-{node}.img")), data.clone(), bytes).await?)
                }
                None => None,
            };
            let page = config.dir.join(format!("broker-{node}.orders"));
            let shim = rig.shim.as_ref().map(|library| Shim::create(library, &page, &data));
            replicas.push(Replica {
                node,
                arguments,
                client_address: address(1 + at),
                data,
                log: config.dir.join(format!("broker-{node}.log")),
                shim: shim.transpose().map_err(LocalClusterError::Shim)?,
                volume,
                process: None,
                is_paused: false,
                cpu_before: Duration::ZERO,
            });
        }
        let network = links.map(Network::Proxies).or(namespaces.map(Network::Namespaces)).map(Arc::new);
        let mut cluster = LocalCluster {
            program: config.program,
            runtime,
            namesrv: None,
            namesrv_arguments,
            namesrv_log,
            namesrv_address,
            replicas,
            network,
        };
        cluster.restart_namesrv().await?;
        cluster.restart_all(&nodes).await?;
        Ok(cluster)
    }

    /// `host:port` of the namesrv.
    pub fn namesrv_address(&self) -> String {
        self.namesrv_address.to_string()
    }

    /// `host:port` of each replica, dead ones included.
    pub fn client_addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.client_address.to_string()).collect()
    }

    /// `host:port` where a replica serves its peers, without the links in between.
    pub fn peer_address(&self, node: u64) -> &str {
        let replica = self.replicas.iter().find(|replica| replica.node == node);
        let arguments = &replica.expect("only nodes of this cluster are asked for").arguments;
        let at = arguments.iter().position(|argument| argument == "--peer-listen");
        &arguments[at.expect("each replica is told where to listen") + 1]
    }

    /// The numbers of all replicas, dead ones included.
    pub fn nodes(&self) -> Vec<u64> {
        self.replicas.iter().map(|replica| replica.node).collect()
    }

    /// The replicas that run no process now.
    pub fn dead_nodes(&self) -> Vec<u64> {
        self.replicas.iter().filter(|replica| replica.process.is_none()).map(|replica| replica.node).collect()
    }

    /// The replicas that are frozen.
    pub fn paused_nodes(&self) -> Vec<u64> {
        self.replicas.iter().filter(|replica| replica.is_paused).map(|replica| replica.node).collect()
    }

    /// The network between the replicas, if the cluster was started with one to be hurt.
    pub fn network(&self) -> Option<&Arc<Network>> {
        self.network.as_ref()
    }

    /// A replica's orders to its shim, if the cluster was started with one.
    pub fn shim(&self, node: u64) -> Option<&Shim> {
        self.replicas.iter().find(|replica| replica.node == node).and_then(|replica| replica.shim.as_ref())
    }

    /// A replica's own file system, if the cluster was started with such.
    ///
    /// # Errors
    /// [`VolumeError::None`] if it was not.
    pub fn volume(&mut self, node: u64) -> Result<&mut Volume, VolumeError> {
        self.replica(node).volume.as_mut().ok_or(VolumeError::None)
    }

    /// The folder in which a replica keeps everything.
    pub fn data(&self, node: u64) -> &Path {
        let mut replicas = self.replicas.iter();
        &replicas.find(|replica| replica.node == node).expect("only nodes of this cluster are asked for").data
    }

    /// How often the shims have obeyed an order until now, over all replicas.
    pub fn shims_obeyed(&self) -> u64 {
        self.replicas.iter().filter_map(|replica| replica.shim.as_ref()).map(Shim::obeyed).sum()
    }

    /// SIGKILL to the namesrv.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn kill_namesrv(&mut self) -> Result<(), LocalClusterError> {
        if let Some(namesrv) = self.namesrv.take() {
            namesrv.kill().await?;
        }
        Ok(())
    }

    /// Starts the namesrv, which remembers nothing; one that runs goes on as it is.
    ///
    /// # Errors
    /// If it does not get ready.
    pub async fn restart_namesrv(&mut self) -> Result<(), LocalClusterError> {
        if self.namesrv.is_none() {
            let (program, arguments) = self.launch(None, &self.namesrv_arguments);
            let (log, runtime) = (&self.namesrv_log, &self.runtime);
            let start = ChildServer::start("namesrv", &program, &arguments, &[], log, READY_TIMEOUT, runtime);
            self.namesrv = Some(start.await?);
        }
        Ok(())
    }

    /// From its next start on a replica joins a group that is there, and founds none.
    pub fn set_joining(&mut self, node: u64) {
        let arguments = &mut self.replica(node).arguments;
        if !arguments.iter().any(|argument| argument == "--join") {
            arguments.push("--join".to_owned());
        }
    }

    /// Makes a replica's machine whole, dead or alive: no orders stand, its disk has room, writes, and does not wait. A
    /// replica whose file system must be mounted anew is killed, and its machine has booted since. Does not start it.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn mend(&mut self, node: u64) -> Result<(), LocalClusterError> {
        if let Some(shim) = self.shim(node) {
            shim.clear().map_err(LocalClusterError::Shim)?;
        }
        let Some(volume) = &mut self.replica(node).volume else { return Ok(()) };
        // A frozen one cannot be unmounted, and its process cannot end.
        volume.thaw().await?;
        if volume.is_whole() {
            return Ok(());
        }
        if volume.needs_renewal() {
            self.kill(node).await?;
            if let Some(shim) = self.shim(node) {
                shim.boot().map_err(LocalClusterError::Shim)?;
            }
        }
        let volume = self.volume(node)?;
        volume.renew().await?;
        Ok(volume.free()?)
    }

    /// Tells the network which replicas have no process: nobody can connect to these.
    fn tell_network(&self) {
        let Some(network) = &self.network else { return };
        for replica in &self.replicas {
            network.set_gone(replica.node, replica.process.is_none());
        }
    }

    /// SIGKILL, and waits until the process is gone.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn kill(&mut self, node: u64) -> Result<(), LocalClusterError> {
        self.kill_all(&[node]).await
    }

    /// SIGKILL to all of them at once, then waits until they are gone.
    ///
    /// # Errors
    /// If the system refuses; the others are killed nevertheless.
    pub async fn kill_all(&mut self, nodes: &[u64]) -> Result<(), LocalClusterError> {
        let mut ending = Vec::new();
        for node in nodes {
            let replica = self.replica(*node);
            replica.is_paused = false;
            if let Some(process) = replica.process.take() {
                replica.cpu_before += process_cpu::cpu_time(process.pid()).unwrap_or_default();
                ending.push(process.kill());
            }
        }
        // The first poll of each sends its signal: nobody is waited for before all have theirs.
        let ended = join_all(ending).await;
        self.tell_network();
        ended.into_iter().collect::<Result<Vec<()>, _>>()?;
        Ok(())
    }

    /// Starts a killed replica again on its data; returns once it is ready.
    ///
    /// # Errors
    /// If it does not get ready.
    pub async fn restart(&mut self, node: u64) -> Result<(), LocalClusterError> {
        self.restart_all(&[node]).await
    }

    /// Starts all of them at once: one after the other would cost a start each. Those that run go on as they are.
    ///
    /// # Errors
    /// If one does not get ready; the others are started nevertheless.
    pub async fn restart_all(&mut self, nodes: &[u64]) -> Result<(), LocalClusterError> {
        let mut starting: Vec<(u64, Task<Result<ChildServer, ChildServerError>>)> = Vec::new();
        for replica in self.replicas.iter().filter(|replica| nodes.contains(&replica.node)) {
            if replica.process.is_some() {
                continue;
            }
            let runtime = self.runtime.clone();
            let (program, arguments) = self.launch(Some(replica.node), &replica.arguments);
            let (name, log) = (replica.name(), replica.log.clone());
            let environment = replica.environment();
            if let Some(network) = &self.network {
                network.set_gone(replica.node, false);
            }
            let start = self.runtime.spawn("start-replica", async move {
                ChildServer::start(&name, &program, &arguments, &environment, &log, READY_TIMEOUT, &runtime).await
            });
            starting.push((replica.node, start));
        }
        let mut failure = None;
        for (node, start) in starting {
            match start.await.expect("starting a child neither panics nor is cancelled") {
                Ok(process) => self.replica(node).process = Some(process),
                Err(error) => failure = Some(error),
            }
        }
        self.tell_network();
        failure.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Starts a killed replica and kills it again after `life`, ready or not.
    ///
    /// # Errors
    /// If it cannot be started, or ends by itself before that.
    pub async fn restart_for(&mut self, node: u64, life: Duration) -> Result<(), LocalClusterError> {
        let runtime = self.runtime.clone();
        let arguments = self.replica(node).arguments.clone();
        let (program, arguments) = self.launch(Some(node), &arguments);
        let replica = self.replica(node);
        let (name, environment) = (replica.name(), replica.environment());
        let child = ChildServer::spawn(&name, &program, &arguments, &environment, &replica.log)?;
        replica.process = Some(child);
        self.tell_network();
        runtime.sleep(life).await;
        let lives = self.replica(node).process.as_mut().map_or(Ok(()), ChildServer::check_alive);
        self.kill(node).await?;
        Ok(lives?)
    }

    /// SIGSTOP: the replica stands still with its connections open. Does nothing to a dead one.
    ///
    /// # Errors
    /// If it has ended by itself, or the system refuses.
    pub fn pause(&mut self, node: u64) -> Result<(), LocalClusterError> {
        let replica = self.replica(node);
        if let Some(process) = &mut replica.process {
            process.signal(Signal::Stop)?;
            replica.is_paused = true;
        }
        Ok(())
    }

    /// SIGCONT: a paused replica goes on as if nothing had happened.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn resume(&mut self, node: u64) -> Result<(), LocalClusterError> {
        let replica = self.replica(node);
        replica.is_paused = false;
        if let Some(process) = &mut replica.process {
            process.signal(Signal::Continue)?;
        }
        Ok(())
    }

    /// SIGTERM, and SIGKILL after `timeout`; true if the replica ended by SIGTERM.
    ///
    /// # Errors
    /// If it has ended by itself, or the system refuses.
    pub async fn stop(&mut self, node: u64, timeout: Duration) -> Result<bool, LocalClusterError> {
        let runtime = self.runtime.clone();
        let replica = self.replica(node);
        let Some(process) = replica.process.take() else { return Ok(true) };
        replica.cpu_before += process_cpu::cpu_time(process.pid()).unwrap_or_default();
        let stopped = process.stop(timeout, &runtime).await;
        self.tell_network();
        Ok(stopped?)
    }

    /// An error if a process that should live has ended.
    ///
    /// # Errors
    /// The first such process.
    pub fn check_alive(&mut self) -> Result<(), LocalClusterError> {
        if let Some(namesrv) = &mut self.namesrv {
            namesrv.check_alive()?;
        }
        for replica in &mut self.replicas {
            if let Some(process) = &mut replica.process {
                process.check_alive()?;
            }
        }
        Ok(())
    }

    /// Replicas that have ended though nobody asked them to, each with how; they count as dead from now on.
    pub fn take_fallen(&mut self) -> Vec<(u64, ChildServerError)> {
        let mut fallen = Vec::new();
        for replica in &mut self.replicas {
            if let Some(process) = &mut replica.process
                && let Err(error) = process.check_alive()
            {
                replica.process = None;
                replica.is_paused = false;
                fallen.push((replica.node, error));
            }
        }
        if !fallen.is_empty() {
            self.tell_network();
        }
        fallen
    }

    /// CPU time that all servers have used so far; `None` where the system does not tell.
    pub fn cpu_time(&self) -> Option<Duration> {
        let mut total = match &self.namesrv {
            Some(namesrv) => process_cpu::cpu_time(namesrv.pid())?,
            None => Duration::ZERO,
        };
        for replica in &self.replicas {
            total += replica.cpu_before;
            if let Some(process) = &replica.process {
                total += process_cpu::cpu_time(process.pid())?;
            }
        }
        Some(total)
    }

    /// Kills all and waits until they are gone: nothing of their data is needed that a crash would not leave as well.
    ///
    /// # Errors
    /// If the system refuses.
    pub async fn end(mut self) -> Result<(), LocalClusterError> {
        // A process that waits for a frozen disk does not end.
        for volume in self.replicas.iter_mut().filter_map(|replica| replica.volume.as_mut()) {
            volume.thaw().await?;
        }
        let brokers = self.replicas.iter_mut().filter_map(|replica| replica.process.take());
        let processes: Vec<ChildServer> = brokers.chain(self.namesrv.take()).collect();
        try_join_all(processes.into_iter().map(ChildServer::kill)).await?;
        for volume in self.replicas.iter_mut().filter_map(|replica| replica.volume.as_mut()) {
            volume.detach().await;
        }
        if let Some(network) = &self.network {
            network.close().await;
        }
        Ok(())
    }

    /// What is started for a server with these arguments: the program itself, or one that enters its namespace first.
    fn launch(&self, node: Option<u64>, arguments: &[String]) -> (PathBuf, Vec<String>) {
        let namespaces = self.network.as_ref().and_then(|network| network.namespaces());
        let Some(namespaces) = namespaces else { return (self.program.clone(), arguments.to_vec()) };
        let (program, mut before) = namespaces.entrance(node);
        before.push(self.program.display().to_string());
        (program, [before.as_slice(), arguments].concat())
    }

    fn replica(&mut self, node: u64) -> &mut Replica {
        self.replicas.iter_mut().find(|replica| replica.node == node).expect("only nodes of this cluster are asked for")
    }
}

impl Replica {
    fn name(&self) -> String {
        format!("broker {}", self.node)
    }

    fn environment(&self) -> Vec<(String, OsString)> {
        self.shim.as_ref().map(Shim::environment).unwrap_or_default()
    }
}

/// Every namespace has all ports for itself.
fn addresses_in(namespaces: &Namespaces, nodes: &[u64]) -> Vec<SocketAddr> {
    let of = |port: u16| nodes.iter().map(move |node| SocketAddr::from((namespaces.address(*node), port)));
    let namesrv = SocketAddr::from((namespaces.namesrv_address(), NAMESRV_PORT));
    [namesrv].into_iter().chain(of(CLIENT_PORT)).chain(of(PEER_PORT)).collect()
}

fn common_arguments(config: &LocalClusterConfig) -> [String; 3] {
    ["--stop-when-stdin-closes".to_owned(), "--log-level".to_owned(), config.log_level.clone()]
}
