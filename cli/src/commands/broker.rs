//! `flotilla broker`: one replica of a broker group.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::Args;
use flotilla_broker::{
    Broker, BrokerConfig, ConfigError, ConfigErrors, Host, ReplicaConfig, check_groups, groups_from_file,
};
use flotilla_runtime::Runtime;

use super::serve::{Server, serve_until_stopped, start_unless_stopped};
use crate::failure::Failure;
use crate::quantity::parse_bytes;
use crate::ready_line;
use crate::stop_signal::StopSignals;

/// Run one replica of a broker group.
///
/// A group is one to five replicas that keep the same log; every one must be told of all (the same list of
/// replicas everywhere, another --node each). SIGTERM stops it gracefully, a second signal at once. It ends by
/// itself, with code 70, when its disk fails: restart it, the others have gone on.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla broker --data-dir /var/lib/flotilla --namesrv 10.0.0.5:9876      a group of one
  flotilla broker --example-config > broker.toml                            every setting, explained
  flotilla broker --config broker.toml --node 2                             flags win over the file
  flotilla broker --config broker.toml --print-config                       what would be used

  # the second of three replicas
  flotilla broker --node 2 --data-dir /var/lib/flotilla --namesrv 10.0.0.5:9876 \\
    --replica 1=10.0.0.1:8081,10.0.0.1:10912 \\
    --replica 2=10.0.0.2:8081,10.0.0.2:10912 \\
    --replica 3=10.0.0.3:8081,10.0.0.3:10912

  # replicas of several groups: one [[groups]] table each, what is above them holds for all
  flotilla broker --config host.toml --node 2

  # a fourth one, for a group that runs (then: flotilla admin replica add 4 --address 10.0.0.4:10912)
  flotilla broker --join --node 4 --replica 4=10.0.0.4:8081,10.0.0.4:10912 \\
    --data-dir /var/lib/flotilla --namesrv 10.0.0.5:9876")]
pub struct BrokerArguments {
    /// Settings, as TOML; flags win over it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Name of the cluster [default: flotilla]
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,
    /// Name of the broker group [default: group-a]
    #[arg(long, value_name = "NAME")]
    group: Option<String>,
    /// This replica's number within its group [default: 1]
    #[arg(long, value_name = "NUMBER")]
    node: Option<u64>,
    /// Where log and checkpoints live; created if absent [default: flotilla-data]
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// The folder that `flotilla admin backup create` makes backups in [default: none, backups are refused]
    #[arg(long, value_name = "DIR")]
    backup_dir: Option<PathBuf>,
    /// Where clients are served [default: 0.0.0.0:8081]
    #[arg(long, value_name = "IP:PORT")]
    client_listen: Option<SocketAddr>,
    /// What clients are told as this replica's address [default: as in the list of replicas]
    #[arg(long, value_name = "HOST:PORT")]
    client_advertise: Option<String>,
    /// Where the other replicas are served [default: 0.0.0.0:10912]
    #[arg(long, value_name = "IP:PORT")]
    peer_listen: Option<SocketAddr>,
    /// One replica of the group; give all, this one included [default: this one alone]
    #[arg(long, value_name = "NODE=CLIENT_HOST:PORT,PEER_HOST:PORT")]
    replica: Vec<ReplicaFlag>,
    /// Come to a group that is there: wait until `flotilla admin replica add` takes this one in. --replica then names this one
    #[arg(long)]
    join: bool,
    /// All namesrvs
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    namesrv: Vec<String>,
    /// Where metrics and health are served (HTTP: /metrics, /live, /ready) [default: nowhere; the usual port is 5557]
    #[arg(long, value_name = "IP:PORT")]
    metrics_listen: Option<SocketAddr>,
    /// Size of one log segment, such as 64MiB [default: 1GiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    segment_bytes: Option<u64>,
    /// Quota of the log, such as 100GiB: sends are refused before it is passed [default: none]
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    data_quota: Option<u64>,
    /// Print the effective settings as TOML and end
    #[arg(long)]
    print_config: bool,
    /// Print a settings file with every default explained and end
    #[arg(long, conflicts_with = "print_config")]
    example_config: bool,
    /// Stop when stdin ends, so that this process does not outlive the one that started it
    #[arg(long, hide = true)]
    stop_when_stdin_closes: bool,
    /// Go along with no higher feature level than this, as an older program would; for tests of mixed versions
    #[arg(long, value_name = "LEVEL", hide = true)]
    feature_level_max: Option<u8>,
}

const EXAMPLE_CONFIG: &str = include_str!("broker.example.toml");

/// One `--replica`.
#[derive(Debug, Clone)]
struct ReplicaFlag(ReplicaConfig);

/// Why a `--replica` is not understood.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not of the form NODE=CLIENT_HOST:PORT,PEER_HOST:PORT, such as 1=10.0.0.1:8081,10.0.0.1:10912")]
struct ReplicaFlagError(String);

impl FromStr for ReplicaFlag {
    type Err = ReplicaFlagError;

    fn from_str(text: &str) -> Result<ReplicaFlag, ReplicaFlagError> {
        let error = || ReplicaFlagError(text.to_owned());
        let (node, addresses) = text.split_once('=').ok_or_else(error)?;
        let (client, peer) = addresses.split_once(',').ok_or_else(error)?;
        let node = node.parse().map_err(|_| error())?;
        // Whether the addresses are good is judged with all other settings.
        Ok(ReplicaFlag(ReplicaConfig { node, client: client.to_owned(), peer: peer.to_owned() }))
    }
}

pub async fn run(arguments: BrokerArguments, runtime: Runtime) -> Result<(), Failure> {
    if arguments.example_config {
        print!("{EXAMPLE_CONFIG}");
        return Ok(());
    }
    let (print_config, stdin_closes) = (arguments.print_config, arguments.stop_when_stdin_closes);
    let mut configs = arguments.into_configs().map_err(Failure::usage)?;
    if configs.len() > 1 {
        return run_host(configs, print_config, stdin_closes, runtime).await;
    }
    let config = configs.remove(0);
    if print_config {
        print!("{}", toml::to_string(&config)?);
        return Ok(());
    }
    let name = format!("broker {}/{}", config.group, config.node);
    let mut signals = StopSignals::listen(stdin_closes, &runtime)?;
    let Some(broker) = start_unless_stopped(&mut signals, Broker::start(config, runtime.clone())).await else {
        return Ok(());
    };
    let broker = broker?;
    ready_line::print(format_args!(
        "{name} serves clients on {}, peers on {}",
        broker.client_address(),
        broker.peer_address()
    ));
    serve_until_stopped(broker, &mut signals, &runtime).await
}

/// Several groups in this process.
async fn run_host(
    configs: Vec<BrokerConfig>,
    print_config: bool,
    stdin_closes: bool,
    runtime: Runtime,
) -> Result<(), Failure> {
    if print_config {
        print!("{}", toml::to_string(&BTreeMap::from([("groups", configs)]))?);
        return Ok(());
    }
    let mut signals = StopSignals::listen(stdin_closes, &runtime)?;
    let Some(host) = start_unless_stopped(&mut signals, Host::start(configs, runtime.clone())).await else {
        return Ok(());
    };
    let host = host?;
    let clients: Vec<String> =
        host.client_addresses().into_iter().map(|(name, address)| format!("{name} on {address}")).collect();
    ready_line::print(format_args!(
        "brokers serve clients of {}, peers on {}",
        clients.join(", "),
        host.peer_address()
    ));
    serve_until_stopped(host, &mut signals, &runtime).await
}

impl Server for Host {
    async fn failed(&self) -> String {
        Host::failed(self).await
    }

    async fn shutdown(self, timeout: Duration) {
        Host::shutdown(self, timeout).await;
    }
}

impl Server for Broker {
    async fn failed(&self) -> String {
        Broker::failed(self).await
    }

    async fn shutdown(self, timeout: Duration) {
        Broker::shutdown(self, timeout).await;
    }
}

impl BrokerArguments {
    fn into_configs(self) -> Result<Vec<BrokerConfig>, ConfigError> {
        let mut configs = match &self.config {
            Some(path) => groups_from_file(path)?,
            None => vec![BrokerConfig::default()],
        };
        if configs.len() == 1 {
            return Ok(vec![self.over(configs.remove(0))?]);
        }
        if let Some(flag) = self.of_one_group() {
            let text =
                format!("{flag} cannot say which of the file's {} groups it means: write it there", configs.len());
            return Err(ConfigErrors(vec![text]).into());
        }
        for config in &mut configs {
            set(&mut config.cluster, self.cluster.clone());
            set(&mut config.node, self.node);
            set(&mut config.feature_level_max, self.feature_level_max);
            config.metrics_listen = self.metrics_listen.or(config.metrics_listen);
            if !self.namesrv.is_empty() {
                config.namesrv.clone_from(&self.namesrv);
            }
        }
        check_groups(&configs)?;
        Ok(configs)
    }

    /// A flag that means one group's replica, if one is given.
    fn of_one_group(&self) -> Option<&'static str> {
        let given = [
            ("--group", self.group.is_some()),
            ("--data-dir", self.data_dir.is_some()),
            ("--backup-dir", self.backup_dir.is_some()),
            ("--client-listen", self.client_listen.is_some()),
            ("--client-advertise", self.client_advertise.is_some()),
            ("--peer-listen", self.peer_listen.is_some()),
            ("--replica", !self.replica.is_empty()),
            ("--join", self.join),
            ("--segment-bytes", self.segment_bytes.is_some()),
            ("--data-quota", self.data_quota.is_some()),
        ];
        given.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag)
    }

    fn over(self, mut config: BrokerConfig) -> Result<BrokerConfig, ConfigError> {
        set(&mut config.cluster, self.cluster);
        set(&mut config.group, self.group);
        set(&mut config.node, self.node);
        set(&mut config.data_dir, self.data_dir);
        if self.backup_dir.is_some() {
            config.backup_dir = self.backup_dir;
        }
        set(&mut config.client_listen, self.client_listen);
        set(&mut config.peer_listen, self.peer_listen);
        set(&mut config.segment_bytes, self.segment_bytes);
        set(&mut config.feature_level_max, self.feature_level_max);
        if self.client_advertise.is_some() {
            config.client_advertise = self.client_advertise;
        }
        if self.metrics_listen.is_some() {
            config.metrics_listen = self.metrics_listen;
        }
        if self.data_quota.is_some() {
            config.data_bytes_max = self.data_quota;
        }
        if !self.replica.is_empty() {
            config.replicas = self.replica.into_iter().map(|flag| flag.0).collect();
        }
        config.join |= self.join;
        if !self.namesrv.is_empty() {
            config.namesrv = self.namesrv;
        }
        config.validate()?;
        Ok(config)
    }
}

fn set<T>(setting: &mut T, flag: Option<T>) {
    if let Some(value) = flag {
        *setting = value;
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use flotilla_tls::TlsConfig;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        arguments: BrokerArguments,
    }

    fn config(arguments: &[&str]) -> Result<BrokerConfig, ConfigError> {
        let line = Line::try_parse_from(["broker"].iter().chain(arguments)).expect("the flags themselves are fine");
        line.arguments.into_configs().map(|mut configs| configs.remove(0))
    }

    #[test]
    fn the_example_config_says_the_defaults_and_explains_every_setting() {
        assert_eq!(BrokerConfig::from_toml(EXAMPLE_CONFIG).unwrap(), BrokerConfig::default());
        let full = BrokerConfig {
            client_advertise: Some("a:1".to_owned()),
            backup_dir: Some("backups".into()),
            advertise_name: Some("a:1".to_owned()),
            data_bytes_max: Some(4 << 30),
            retention_bytes: Some(4 << 30),
            retention_hour_utc: Some(4),
            tls: TlsConfig {
                cert_file: Some("c".into()),
                key_file: Some("k".into()),
                ca_file: Some("a".into()),
                ..TlsConfig::default()
            },
            ..BrokerConfig::default()
        };
        let text = toml::to_string(&full).unwrap();
        for line in text.lines().filter(|line| !line.is_empty() && *line != "[tls]") {
            let key = line.split_once(" = ").map_or(line, |(key, _)| key);
            let explained =
                [format!("\n{key} = "), format!("\n# {key} = ")].iter().any(|text| EXAMPLE_CONFIG.contains(text));
            assert!(explained, "{key} is not explained");
        }
    }

    #[test]
    fn flags_win_over_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("broker.toml");
        std::fs::write(&path, "cluster = \"a\"\ngroup = \"g\"\nsegment_bytes = 1048576\n").unwrap();
        let config =
            config(&["--config", path.to_str().unwrap(), "--cluster", "b", "--segment-bytes", "64MiB"]).unwrap();
        assert_eq!((config.cluster.as_str(), config.group.as_str(), config.segment_bytes), ("b", "g", 64 << 20));
    }

    #[test]
    fn replicas_are_read_from_flags() {
        let config =
            config(&["--node", "2", "--replica", "1=a:1,a:2", "--replica", "2=b:1,b:2", "--namesrv", "n:1,m:1"])
                .unwrap();
        assert_eq!(config.replicas.len(), 2);
        assert_eq!(config.replicas[1], ReplicaConfig { node: 2, client: "b:1".to_owned(), peer: "b:2".to_owned() });
        assert_eq!(config.namesrv, ["n:1", "m:1"]);
    }

    #[test]
    fn a_replica_that_is_not_understood_is_named() {
        for bad in ["", "1", "1=a:1", "x=a:1,b:1", "a:1,b:1"] {
            let text = bad.parse::<ReplicaFlag>().unwrap_err().to_string();
            assert!(text.contains(bad) && text.contains("NODE=CLIENT"), "{text}");
        }
    }

    #[test]
    fn every_problem_is_told_at_once() {
        let text = config(&["--node", "0", "--cluster", "a b", "--replica", "1=a,b:1", "--segment-bytes", "1"])
            .unwrap_err()
            .to_string();
        for part in ["node is 0", "\"a b\"", "client of replica 1", "segment"] {
            assert!(text.contains(part), "{part} is missing in: {text}");
        }
    }

    #[test]
    fn the_sample_config_is_usable_on_each_machine() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/three-machines/broker.toml");
        for node in ["1", "2", "3"] {
            let config = config(&["--config", path, "--node", node]).unwrap();
            assert_eq!((config.replicas.len(), config.namesrv.len()), (3, 2));
            assert_eq!(config.metrics_listen.map(|address| address.port()), Some(5557));
            assert_eq!(config.client_address(), format!("10.0.0.{node}:8081"));
        }
    }

    #[test]
    fn the_sample_of_several_groups_is_usable_and_flags_of_one_group_are_refused() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/two-groups/host.toml");
        let configs = |arguments: &[&str]| {
            let line =
                Line::try_parse_from(["broker", "--config", path].iter().chain(arguments)).expect("flags are fine");
            line.arguments.into_configs()
        };
        let two = configs(&["--node", "2"]).unwrap();
        let shown: Vec<_> =
            two.iter().map(|config| (config.group.as_str(), config.node, config.client_address())).collect();
        assert_eq!(shown, [("group-a", 2, "10.0.0.2:8081".to_owned()), ("group-b", 2, "10.0.0.2:8082".to_owned())]);
        assert_eq!(two[0].peer_address(), two[1].peer_address());
        let text = configs(&["--data-dir", "/x"]).unwrap_err().to_string();
        assert!(text.contains("--data-dir cannot say"), "{text}");
    }

    #[test]
    fn an_unreadable_file_is_named() {
        let text = config(&["--config", "/nowhere/broker.toml"]).unwrap_err().to_string();
        assert!(text.contains("/nowhere/broker.toml"), "{text}");
    }
}
