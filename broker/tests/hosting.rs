//! Processes that hold replicas of several groups: what they share, and what one group's trouble does to the others.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_broker::{BrokerConfig, Host, ReplicaConfig};
use flotilla_metrics::Scrape;
use flotilla_proto::client::{Connector, TonicConnector};
use flotilla_proto::v2::MessageType;
use flotilla_proto::{admin, metadata};
use flotilla_raft_log::{Disk, DiskFile, OsDisk, WrapDisk, WrappingDisk};
use flotilla_runtime::Runtime;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use crate::support::{Client, message};

const LONG: Duration = Duration::from_secs(20);
const GROUPS: [&str; 2] = ["a", "b"];

/// A disk whose syncs fail, or do not come back, when told so.
#[derive(Clone, Default)]
struct BadDisk {
    is_bad: Arc<AtomicBool>,
    hangs: Arc<(Mutex<bool>, Condvar)>,
}

impl BadDisk {
    fn hang(&self, hangs: bool) {
        *self.hangs.0.lock().expect("nobody panics with it") = hangs;
        self.hangs.1.notify_all();
    }
}

struct BadFile {
    file: Arc<dyn DiskFile>,
    disk: BadDisk,
}

impl WrapDisk for BadDisk {
    fn wrap(&self, file: Arc<dyn DiskFile>, _: &Path) -> Arc<dyn DiskFile> {
        Arc::new(BadFile { file, disk: self.clone() })
    }
}

impl DiskFile for BadFile {
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.file.read_at(offset, len)
    }
    fn sync_data(&self) -> io::Result<()> {
        let (hangs, freed) = &*self.disk.hangs;
        // Not for ever: a test that fails meanwhile has to end.
        let guard = hangs.lock().expect("nobody panics with it");
        drop(freed.wait_timeout_while(guard, 3 * LONG, |hangs| *hangs));
        if self.disk.is_bad.load(Ordering::SeqCst) {
            Err(io::Error::other("the disk is dead"))
        } else {
            self.file.sync_data()
        }
    }
}

/// Three processes with a replica of each group.
struct Hosts {
    runtime: Runtime,
    hosts: Vec<Option<Host>>,
    configs: Vec<Vec<BrokerConfig>>,
    /// By process; the first group's.
    disks: Vec<BadDisk>,
    connector: TonicConnector,
    /// Connections that were made to peer ports.
    connections: Arc<AtomicUsize>,
    _dir: tempfile::TempDir,
}

async fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").await.expect("a loopback port").local_addr().expect("bound").port()
}

impl Hosts {
    async fn start() -> Hosts {
        let (runtime, dir) = (Runtime::tokio(), tempfile::tempdir().expect("a directory"));
        let connections = Arc::new(AtomicUsize::new(0));
        let (mut peer_ports, mut shown, mut client_ports) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..3 {
            let port = free_port().await;
            peer_ports.push(port);
            shown.push(counted(&runtime, port, connections.clone()).await);
            client_ports.push([free_port().await, free_port().await]);
        }
        let replicas = |group: usize| -> Vec<ReplicaConfig> {
            let one = |at: usize| ReplicaConfig {
                node: at as u64 + 1,
                client: format!("127.0.0.1:{}", client_ports[at][group]),
                peer: shown[at].clone(),
            };
            (0..3).map(one).collect()
        };
        let (mut hosts, mut configs) = (Vec::new(), Vec::new());
        let disks: Vec<BadDisk> = (0..3).map(|_| BadDisk::default()).collect();
        for at in 0..3 {
            let config = |group: usize| BrokerConfig {
                group: GROUPS[group].to_owned(),
                node: at as u64 + 1,
                data_dir: dir.path().join(format!("{at}-{group}")),
                client_listen: format!("127.0.0.1:{}", client_ports[at][group]).parse().expect("an address"),
                peer_listen: format!("127.0.0.1:{}", peer_ports[at]).parse().expect("an address"),
                replicas: replicas(group),
                segment_bytes: 8 << 20,
                disk_free_bytes_min: 0,
                disk_refuse_free_bytes: 0,
                metrics_listen: Some("127.0.0.1:0".parse().expect("an address")),
                ..BrokerConfig::default()
            };
            let own: Vec<BrokerConfig> = (0..2).map(config).collect();
            hosts.push(Some(started(&own, &runtime, &disks[at]).await));
            configs.push(own);
        }
        let connector = TonicConnector::new(runtime.clone());
        Hosts { runtime, hosts, configs, disks, connector, connections, _dir: dir }
    }

    /// Each group has a topic `orders`, and `first` in it.
    async fn start_with_a_message_each() -> Hosts {
        let hosts = Hosts::start().await;
        for group in 0..2 {
            let leader = hosts.leader(group).await;
            hosts.client(leader, group).create_topic("orders", MessageType::Normal, 1).await;
            assert_eq!(hosts.send(leader, group, "first").await, 20000);
        }
        hosts
    }

    fn client(&self, at: usize, group: usize) -> Client {
        let address = self.configs[at][group].client_listen.to_string();
        Client {
            messaging: self.connector.messaging(&address),
            admin: self.connector.admin(&address),
            metadata: Arc::new(metadata::of_client("test@1", "0")),
        }
    }

    async fn status(&self, at: usize, group: usize) -> Option<admin::ClusterStatusReply> {
        let client = self.client(at, group);
        client.admin.cluster_status(client.options(LONG), admin::ClusterStatusRequest::default()).await.ok()
    }

    /// Which process leads a group, as soon as one may write.
    async fn leader(&self, group: usize) -> usize {
        for _ in 0..500 {
            for at in 0..3 {
                if self.status(at, group).await.is_some_and(|status| status.can_write) {
                    return at;
                }
            }
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
        panic!("nobody leads group {group} within 10 s");
    }

    /// The leader of the first group, once it leads the other one as well.
    async fn one_leads_both(&self) -> usize {
        let leader = self.leader(0).await;
        for _ in 0..50 {
            if self.leader(1).await == leader {
                return leader;
            }
            let client = self.client(leader, 1);
            let request = admin::TransferLeaderRequest { target: leader as u64 + 1, timeout_ms: 3_000 };
            let _ = client.admin.transfer_leader(client.options(LONG), request).await;
            self.runtime.sleep(Duration::from_millis(100)).await;
        }
        panic!("process {leader} does not come to lead the other group");
    }

    /// What a process tells monitoring of one number of its flusher; the logs of this test's processes are on one device.
    async fn flusher(&self, at: usize, metric: &str) -> f64 {
        let address = self.hosts[at].as_ref().and_then(Host::metrics_address).expect("it is served");
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n").await.expect("sent");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("an answer");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let scrape = Scrape::parse(body).expect("of the format");
        scrape.value(metric, &[]).unwrap_or_else(|| panic!("{metric} is not told once"))
    }

    async fn send(&self, at: usize, group: usize, id: &str) -> i32 {
        self.client(at, group).send(message("orders", id, |_| ())).await.code
    }

    async fn shutdown(self) {
        for host in self.hosts.into_iter().flatten() {
            host.shutdown(Duration::from_secs(4)).await;
        }
    }
}

async fn started(configs: &[BrokerConfig], runtime: &Runtime, disk: &BadDisk) -> Host {
    let disk_of = |group: &str| -> Arc<dyn Disk> {
        if group == GROUPS[0] { Arc::new(WrappingDisk(disk.clone())) } else { Arc::new(OsDisk) }
    };
    Host::start_over(configs.to_vec(), runtime.clone(), disk_of).await.expect("it starts")
}

/// The address of a proxy to a port that counts what is connected.
async fn counted(runtime: &Runtime, port: u16, connections: Arc<AtomicUsize>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
    let address = listener.local_addr().expect("bound").to_string();
    let spawner = runtime.clone();
    let work = async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let Ok(mut far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
            connections.fetch_add(1, Ordering::SeqCst);
            let carry = async move { drop(tokio::io::copy_bidirectional(&mut near, &mut far).await) };
            spawner.spawn("carry", carry).detach();
        }
    };
    runtime.spawn("proxy", work).detach();
    address
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_of_a_process_share_their_connections_and_each_call_finds_its_own() {
    let hosts = Hosts::start().await;
    for group in 0..2 {
        let leader = hosts.leader(group).await;
        hosts.client(leader, group).create_topic("orders", MessageType::Normal, 1).await;
        // At each of them: those that do not lead pass it on, over the port that both groups share.
        for at in 0..3 {
            for number in 0..10 {
                assert_eq!(hosts.send(at, group, &format!("m-{group}-{at}-{number}")).await, 20000);
            }
        }
        let pulled = hosts.client(leader, group).pull("g", "orders", 0, Duration::ZERO).await;
        let ids = pulled.ids();
        let prefix = format!("m-{group}-");
        assert!(ids.len() == 30 && ids.iter().all(|id| id.starts_with(&prefix)), "its own and no others: {ids:?}");
    }
    let made = hosts.connections.load(Ordering::SeqCst);
    // Probes of an election out of turn are connections too: none is made while all processes live.
    assert!(made <= 18, "{made} connections; 3 to each of 2 peers of 3 processes are enough for any number of groups");
    hosts.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_whose_disk_fails_is_led_elsewhere_and_comes_back_and_the_other_one_does_not_notice() {
    let hosts = Hosts::start_with_a_message_each().await;
    let hurt = hosts.one_leads_both().await;
    let before = hosts.status(hurt, 1).await.expect("it answers").term;
    hosts.disks[hurt].is_bad.store(true, Ordering::SeqCst);
    let other = (hurt + 1) % 3;
    // Its own clients wait for another leader; what was acknowledged by then is there.
    assert_eq!(hosts.send(other, 0, "second").await, 20000);
    for number in 0..50 {
        assert_eq!(hosts.send(hurt, 1, &format!("m-{number}")).await, 20000);
    }
    let next = hosts.leader(0).await;
    assert_ne!(next, hurt, "another process leads it");
    let beside = hosts.status(hurt, 1).await.expect("it answers");
    assert!(beside.can_write && beside.term == before, "no election in the group beside it");
    // It is started again after a pause, and again as long as its disk fails.
    hosts.disks[hurt].is_bad.store(false, Ordering::SeqCst);
    let end = hosts.status(next, 0).await.expect("it answers").last_index;
    let began = hosts.runtime.now();
    while hosts.status(hurt, 0).await.is_none_or(|status| status.applied_index < end) {
        assert!(hosts.runtime.now() - began < LONG, "it does not come back");
        hosts.runtime.sleep(Duration::from_millis(50)).await;
    }
    let pulled = hosts.client(hurt, 0).pull("g", "orders", 0, Duration::ZERO).await;
    assert_eq!(pulled.ids(), ["first", "second"]);
    hosts.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_groups_of_a_disk_share_its_flusher_and_one_whose_sync_hangs_does_not_stop_the_other() {
    let hosts = Hosts::start_with_a_message_each().await;
    let hurt = hosts.one_leads_both().await;
    assert!(hosts.flusher(hurt, "flotilla_flusher_logs").await >= 6.0, "three processes of two groups are one here");
    let before = hosts.status(hurt, 1).await.expect("it answers").term;
    hosts.disks[hurt].hang(true);
    // At a replica that is well: its group finds another leader.
    assert_eq!(hosts.send((hurt + 1) % 3, 0, "second").await, 20000);
    let began = hosts.flusher(hurt, "flotilla_flusher_syncs_total").await;
    for number in 0..50 {
        assert_eq!(hosts.send(hurt, 1, &format!("m-{number}")).await, 20000);
    }
    assert!(hosts.flusher(hurt, "flotilla_flusher_syncs_total").await >= began + 50.0, "they go through the flusher");
    assert!(hosts.flusher(hurt, "flotilla_flusher_longest_seconds").await > 0.1, "the one that hangs is seen");
    let beside = hosts.status(hurt, 1).await.expect("it answers");
    assert!(beside.can_write && beside.term == before, "no election in the group beside it");
    hosts.disks[hurt].hang(false);
    let leader = hosts.leader(0).await;
    let pulled = hosts.client(leader, 0).pull("g", "orders", 0, Duration::ZERO).await;
    assert_eq!(pulled.ids(), ["first", "second"]);
    hosts.shutdown().await;
}
