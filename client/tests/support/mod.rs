//! Replicas of one broker group in this process, behind real sockets, and a client of theirs.
#![allow(dead_code, reason = "each test uses its part")]

use std::time::Duration;

use flotilla_broker::{Broker, BrokerConfig, ReplicaConfig};
use flotilla_client::{Client, ClientConfig};
use flotilla_runtime::Runtime;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// A group whose replicas can be killed.
pub struct Cluster {
    pub runtime: Runtime,
    pub brokers: Vec<Option<Broker>>,
    configs: Vec<BrokerConfig>,
    addresses: Vec<String>,
    _dir: TempDir,
}

impl Cluster {
    /// Starts so many replicas of a new group.
    pub async fn start(replica_count: u64) -> Cluster {
        Cluster::start_behind(replica_count, |address| address).await
    }

    /// As [`Cluster::start`]; clients are told the address that `shown` makes of each replica's own.
    pub async fn start_behind(replica_count: u64, shown: impl Fn(String) -> String) -> Cluster {
        Cluster::start_with(replica_count, shown, |_| ()).await
    }

    /// As [`Cluster::start_behind`], with changed settings.
    pub async fn start_with(
        replica_count: u64,
        shown: impl Fn(String) -> String,
        change: impl Fn(&mut BrokerConfig),
    ) -> Cluster {
        let runtime = Runtime::tokio();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let (mut listeners, mut replicas) = (Vec::new(), Vec::new());
        for node in 1..=replica_count {
            let client = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
            let peer = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
            let address = |listener: &TcpListener| listener.local_addr().expect("a bound address").to_string();
            replicas.push(ReplicaConfig { node, client: shown(address(&client)), peer: address(&peer) });
            listeners.push((client, peer));
        }
        let (mut brokers, mut configs) = (Vec::new(), Vec::new());
        for (own, (client, peer)) in replicas.iter().zip(listeners) {
            let mut config = BrokerConfig {
                node: own.node,
                data_dir: dir.path().join(format!("replica-{}", own.node)),
                replicas: replicas.clone(),
                client_listen: client.local_addr().expect("a bound address"),
                peer_listen: own.peer.parse().expect("an address"),
                segment_bytes: 8 << 20,
                disk_free_bytes_min: 0,
                disk_refuse_free_bytes: 0,
                ..BrokerConfig::default()
            };
            change(&mut config);
            configs.push(config.clone());
            brokers.push(Some(Broker::start_on(config, runtime.clone(), client, peer).await.expect("it starts")));
        }
        let addresses = replicas.into_iter().map(|replica| replica.client).collect();
        Cluster { runtime, brokers, configs, addresses, _dir: dir }
    }

    pub fn client(&self) -> Client {
        Client::tonic(ClientConfig::of_endpoints(self.addresses.clone())).expect("a valid config")
    }

    /// A client whose calls take so long at most.
    pub fn client_within(&self, send_deadline: Duration) -> Client {
        let config = ClientConfig { send_deadline, ..ClientConfig::of_endpoints(self.addresses.clone()) };
        Client::tonic(config).expect("a valid config")
    }

    /// Kills the replica that leads: its sockets close, nothing is said.
    pub async fn kill_leader(&mut self) {
        for _ in 0..500 {
            for broker in &mut self.brokers {
                if broker.as_ref().is_some_and(|broker| broker.node().log().status().can_write) {
                    drop(broker.take());
                    return;
                }
            }
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
        panic!("no leader within 10 s");
    }

    /// Kills one replica (from 1) and starts it again on its data, as soon as its ports are free.
    pub async fn kill_and_restart(&mut self, node: usize) {
        drop(self.brokers[node - 1].take());
        for _ in 0..200 {
            match Broker::start(self.configs[node - 1].clone(), self.runtime.clone()).await {
                Ok(broker) => {
                    self.brokers[node - 1] = Some(broker);
                    return;
                }
                Err(_) => self.runtime.sleep(Duration::from_millis(50)).await,
            }
        }
        panic!("replica {node} does not start again");
    }

    pub async fn shutdown(self) {
        for broker in self.brokers.into_iter().flatten() {
            broker.shutdown(Duration::from_secs(2)).await;
        }
    }
}
