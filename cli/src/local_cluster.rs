//! A namesrv and broker replicas as child processes of this one, on free loopback ports, in one folder.
//!
//! The children hold the read end of a pipe that only this process holds open: when it ends, however
//! it ends, they see the end of their stdin and stop. Dropping a [`LocalCluster`] kills them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};

use crate::child_server::{ChildServer, ChildServerError};
use crate::free_ports::free_ports;
use crate::process_cpu;
use crate::quantity::format_bytes;

/// How long a child may take to print its ready line.
const READY_TIMEOUT: Duration = Duration::from_secs(15);

/// What to start.
#[derive(Debug, Clone)]
pub struct LocalClusterConfig {
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
}

/// Why the cluster could not be started or a replica not be restarted.
#[derive(Debug, thiserror::Error)]
pub enum LocalClusterError {
    #[error("no free ports for the cluster: {0}")]
    NoPorts(#[source] io::Error),
    #[error("the path of this program is not known: {0}")]
    NoProgram(#[source] io::Error),
    #[error(transparent)]
    Child(#[from] ChildServerError),
}

/// One replica, running or killed.
struct Replica {
    node: u32,
    arguments: Vec<String>,
    client_address: SocketAddr,
    log: PathBuf,
    process: Option<ChildServer>,
    /// CPU time of earlier lives of this replica, as last seen.
    cpu_before: Duration,
}

/// The running cluster.
pub struct LocalCluster {
    program: PathBuf,
    runtime: Runtime,
    namesrv: ChildServer,
    namesrv_address: SocketAddr,
    replicas: Vec<Replica>,
}

impl LocalCluster {
    /// Starts all processes and waits until each has said that it is ready. There may be no leader yet.
    pub async fn start(config: LocalClusterConfig, runtime: Runtime) -> Result<LocalCluster, LocalClusterError> {
        let program = std::env::current_exe().map_err(LocalClusterError::NoProgram)?;
        let count = config.replicas as usize;
        let ports = free_ports(1 + 2 * count, &runtime).map_err(LocalClusterError::NoPorts)?;
        let address = |at: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, ports[at]));
        let namesrv_address = address(0);

        let mut namesrv_arguments = vec!["namesrv".to_owned(), "--listen".to_owned(), namesrv_address.to_string()];
        namesrv_arguments.extend(common_arguments(&config));
        let namesrv_log = config.dir.join("namesrv.log");
        let namesrv =
            ChildServer::start("namesrv", &program, &namesrv_arguments, &namesrv_log, READY_TIMEOUT, &runtime).await?;

        let members: Vec<String> =
            (0..count).map(|at| format!("{}={},{}", at + 1, address(1 + at), address(1 + count + at))).collect();
        let mut replicas = Vec::with_capacity(count);
        for (at, node) in (1..=config.replicas).enumerate() {
            let mut arguments: Vec<String> =
                ["broker", "--cluster", config.cluster, "--group", "group-a"].map(str::to_owned).to_vec();
            let data = config.dir.join(format!("broker-{node}"));
            for (flag, value) in [
                ("--node", node.to_string()),
                ("--data-dir", data.display().to_string()),
                ("--client-listen", address(1 + at).to_string()),
                ("--peer-listen", address(1 + count + at).to_string()),
                ("--namesrv", namesrv_address.to_string()),
                ("--segment-bytes", format_bytes(config.segment_bytes)),
                ("--data-quota", format_bytes(config.data_quota_bytes)),
            ] {
                arguments.extend([flag.to_owned(), value]);
            }
            for member in &members {
                arguments.extend(["--replica".to_owned(), member.clone()]);
            }
            arguments.extend(common_arguments(&config));
            replicas.push(Replica {
                node,
                arguments,
                client_address: address(1 + at),
                log: config.dir.join(format!("broker-{node}.log")),
                process: None,
                cpu_before: Duration::ZERO,
            });
        }
        let mut cluster = LocalCluster { program, runtime, namesrv, namesrv_address, replicas };
        cluster.start_replicas().await?;
        Ok(cluster)
    }

    /// All at once: one after the other would cost a start each.
    async fn start_replicas(&mut self) -> Result<(), LocalClusterError> {
        let starting: Vec<Task<Result<ChildServer, ChildServerError>>> = self
            .replicas
            .iter()
            .map(|replica| {
                let (program, runtime) = (self.program.clone(), self.runtime.clone());
                let (name, arguments, log) = (replica.name(), replica.arguments.clone(), replica.log.clone());
                self.runtime.spawn("start-replica", async move {
                    ChildServer::start(&name, &program, &arguments, &log, READY_TIMEOUT, &runtime).await
                })
            })
            .collect();
        for (replica, start) in self.replicas.iter_mut().zip(starting) {
            replica.process = Some(start.await.expect("starting a child neither panics nor is cancelled")?);
        }
        Ok(())
    }

    /// `host:port` of the namesrv.
    pub fn namesrv_address(&self) -> String {
        self.namesrv_address.to_string()
    }

    /// `host:port` of each replica, dead ones included.
    pub fn client_addresses(&self) -> Vec<String> {
        self.replicas.iter().map(|replica| replica.client_address.to_string()).collect()
    }

    /// SIGKILL, and waits until the process is gone.
    pub async fn kill(&mut self, node: u64) -> Result<(), LocalClusterError> {
        let replica = self.replica(node);
        if let Some(process) = replica.process.take() {
            replica.cpu_before += process_cpu::cpu_time(process.pid()).unwrap_or_default();
            process.kill().await?;
        }
        Ok(())
    }

    /// Starts a killed replica again on its data; returns once it is ready.
    pub async fn restart(&mut self, node: u64) -> Result<(), LocalClusterError> {
        let (program, runtime) = (self.program.clone(), self.runtime.clone());
        let replica = self.replica(node);
        let (name, log) = (replica.name(), replica.log.clone());
        let process = ChildServer::start(&name, &program, &replica.arguments, &log, READY_TIMEOUT, &runtime).await?;
        replica.process = Some(process);
        Ok(())
    }

    /// An error if a process that should live has ended.
    pub fn check_alive(&mut self) -> Result<(), LocalClusterError> {
        self.namesrv.check_alive()?;
        for replica in &mut self.replicas {
            if let Some(process) = &mut replica.process {
                process.check_alive()?;
            }
        }
        Ok(())
    }

    /// CPU time that all servers have used so far; `None` where the system does not tell.
    pub fn cpu_time(&self) -> Option<Duration> {
        let mut total = process_cpu::cpu_time(self.namesrv.pid())?;
        for replica in &self.replicas {
            total += replica.cpu_before;
            if let Some(process) = &replica.process {
                total += process_cpu::cpu_time(process.pid())?;
            }
        }
        Some(total)
    }

    /// Kills all and waits until they are gone: nothing of their data is needed that a crash would not leave as well.
    pub async fn end(self) -> Result<(), LocalClusterError> {
        let processes = self.replicas.into_iter().filter_map(|replica| replica.process).chain([self.namesrv]);
        futures::future::try_join_all(processes.map(ChildServer::kill)).await?;
        Ok(())
    }

    fn replica(&mut self, node: u64) -> &mut Replica {
        self.replicas
            .iter_mut()
            .find(|replica| u64::from(replica.node) == node)
            .expect("only nodes of this cluster are asked for")
    }
}

impl Replica {
    fn name(&self) -> String {
        format!("broker {}", self.node)
    }
}

fn common_arguments(config: &LocalClusterConfig) -> [String; 3] {
    ["--stop-when-stdin-closes".to_owned(), "--log-level".to_owned(), config.log_level.clone()]
}

/// The folder of a local cluster: removed at the end, unless it should be looked at.
pub struct ClusterDir {
    dir: tempfile::TempDir,
}

impl ClusterDir {
    /// A new folder below the system's folder for temporary files.
    pub fn create(prefix: &str) -> io::Result<ClusterDir> {
        Ok(ClusterDir { dir: tempfile::Builder::new().prefix(prefix).tempdir()? })
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Leaves the folder where it is.
    pub fn keep(self) -> PathBuf {
        self.dir.keep()
    }
}
