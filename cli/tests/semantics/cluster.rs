//! A namesrv and three brokers as processes, of which the leader can be killed with SIGKILL.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_client::ClientConfig;
use flotilla_metrics::Scrape;
use flotilla_proto::client::{Connector, TonicConnector};
use flotilla_proto::{admin, metadata, v2};
use flotilla_runtime::Runtime;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::calls::{Client, id_of, queue};
use crate::servers::{Server, free_ports, path_text};

pub const LONG: Duration = Duration::from_secs(20);
pub const SHORT: Duration = Duration::from_millis(300);
pub const OK: i32 = 20000;
pub const NOTHING_THERE: i32 = 40401;

const NODES: u16 = 3;
/// Ports of one cluster, at most.
const PORTS_MAX: u16 = 1 + 4 * NODES;
const LEADER_WITHIN: Duration = Duration::from_secs(20);

/// Calls the admin service and expects that it does it.
macro_rules! admin_call {
    ($client:expr, $method:ident, $request:expr) => {{
        let client = &$client;
        let options = client.options(std::time::Duration::from_secs(10));
        let reply = client.admin.$method(options, $request).await.expect("an answer");
        let status = reply.status.clone().expect("a status");
        assert_eq!(status.code, $crate::cluster::OK, "{}", status.message);
        reply
    }};
}
pub(crate) use admin_call;

/// First ports that clusters of this process have: those that start at the same time must not take the same.
static TAKEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

pub struct Cluster {
    pub runtime: Runtime,
    connector: Arc<TonicConnector>,
    namesrv_address: String,
    addresses: Vec<String>,
    /// Where each is scraped.
    metrics: Vec<String>,
    /// In the order of their numbers; `None` for one that was killed.
    brokers: Vec<Option<Server>>,
    _namesrv: Server,
    dir: TempDir,
}

impl Cluster {
    pub async fn start() -> Cluster {
        Cluster::start_with("").await
    }

    /// Starts with further settings, lines of the brokers' TOML; returns when there is a leader.
    pub async fn start_with(settings: &str) -> Cluster {
        Cluster::start_of(NODES, &format!("segment_bytes = 1048576\n{settings}")).await
    }

    /// As [`Cluster::start_with`], of so many replicas, at most three; `settings` say how long segments are.
    pub async fn start_of(nodes: u16, settings: &str) -> Cluster {
        let runtime = Runtime::tokio();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = ports_of(1 + 3 * NODES);
        let address = |port: u16| format!("127.0.0.1:{}", first + port);
        let mut replicas = String::new();
        for node in 1..=nodes {
            let (client, peer) = (address(node), address(node + NODES));
            write!(replicas, "\n[[replicas]]\nnode = {node}\nclient = \"{client}\"\npeer = \"{peer}\"\n")
                .expect("a string grows");
        }
        let mut configs = Vec::new();
        for node in 1..=nodes {
            let path = dir.path().join(format!("broker-{node}.toml"));
            let data = dir.path().join(format!("broker-{node}"));
            let (client, peer, metrics) = (address(node), address(node + NODES), address(node + 2 * NODES));
            let text = format!(
                "node = {node}\ndata_dir = {data:?}\nclient_listen = \"{client}\"\npeer_listen = \"{peer}\"\n\
                 metrics_listen = \"{metrics}\"\nnamesrv = [\"{}\"]\ndisk_free_bytes_min = 0\ndisk_refuse_free_bytes = 0\n{settings}\n{replicas}",
                address(0)
            );
            std::fs::write(&path, text).expect("the config can be written");
            configs.push(path);
        }
        let namesrv_address = address(0);
        let (namesrv, brokers) = std::thread::scope(|scope| {
            let namesrv = scope.spawn(|| Server::start(&["namesrv", "--listen", &namesrv_address]));
            let brokers: Vec<_> = configs
                .iter()
                .map(|config| scope.spawn(|| Server::start(&["broker", "--config", path_text(config)])))
                .collect();
            let brokers = brokers.into_iter().map(|broker| Some(broker.join().expect("the broker starts"))).collect();
            (namesrv.join().expect("the namesrv starts"), brokers)
        });
        let connector = Arc::new(TonicConnector::new(runtime.clone()));
        let addresses = (1..=nodes).map(address).collect();
        let metrics = (1..=nodes).map(|node| address(node + 2 * NODES)).collect();
        let cluster =
            Cluster { runtime, connector, namesrv_address, addresses, metrics, brokers, _namesrv: namesrv, dir };
        cluster.leader().await;
        cluster
    }

    /// Calls that one replica (from 1) answers.
    pub fn client(&self, node: u64) -> Client {
        let address = &self.addresses[usize::try_from(node).expect("small") - 1];
        Client {
            messaging: self.connector.messaging(address),
            admin: self.connector.admin(address),
            metadata: Arc::new(metadata::of_client(&format!("flotilla@test-{node}"), "0")),
        }
    }

    /// The SDK, which finds everything by the namesrv.
    pub fn sdk(&self) -> flotilla_client::Client {
        flotilla_client::Client::tonic(ClientConfig::of_namesrv([&self.namesrv_address])).expect("a valid config")
    }

    /// What a replica (from 1) tells monitoring.
    pub async fn scrape(&self, node: u64) -> Scrape {
        let address = &self.metrics[usize::try_from(node).expect("small") - 1];
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        Scrape::parse(body).unwrap_or_else(|error| panic!("{error} in:\n{body}"))
    }

    /// The replica that leads and takes writes.
    pub async fn leader(&self) -> u64 {
        let deadline = self.runtime.now() + LEADER_WITHIN;
        loop {
            for (node, broker) in (1..).zip(&self.brokers) {
                if broker.is_none() {
                    continue;
                }
                let client = self.client(node);
                let request = admin::ClusterStatusRequest::default();
                let status = client.admin.cluster_status(client.options(Duration::from_secs(1)), request).await;
                if status.is_ok_and(|status| status.can_write) {
                    return node;
                }
            }
            assert!(self.runtime.now() < deadline, "no leader within {LEADER_WITHIN:?}");
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
    }

    /// Two replicas that do not lead now.
    pub async fn followers(&self) -> [Client; 2] {
        let leader = self.leader().await;
        let others: Vec<_> = (1..=self.brokers.len() as u64).filter(|node| *node != leader).collect();
        [self.client(others[0]), self.client(others[1])]
    }

    /// The brokers' processes.
    pub fn pids(&self) -> Vec<u32> {
        self.brokers.iter().flatten().map(Server::pid).collect()
    }

    /// Bytes that the brokers' files take up on disk.
    pub fn disk_bytes(&self) -> u64 {
        use std::os::unix::fs::MetadataExt as _;
        let mut folders = vec![self.dir.path().to_owned()];
        let mut bytes = 0;
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
                match entry.metadata() {
                    Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                    Ok(metadata) => bytes += metadata.blocks() * 512,
                    // Gone since.
                    Err(_) => {}
                }
            }
        }
        bytes
    }

    /// Bytes that are free where the brokers' files are.
    pub fn disk_free_bytes(&self) -> u64 {
        let free = flotilla_raft_log::Disk::free_bytes(&flotilla_raft_log::OsDisk, self.dir.path());
        free.expect("the disk tells")
    }

    /// SIGKILL to the replica that leads.
    pub async fn kill_leader(&mut self) {
        let leader = usize::try_from(self.leader().await).expect("small");
        self.brokers[leader - 1].take().expect("it runs").kill();
    }

    /// Checks that the replicas that are left have come to the same state.
    pub async fn agree(&self) {
        let deadline = self.runtime.now() + LEADER_WITHIN;
        loop {
            let mut digests = BTreeMap::new();
            for (node, broker) in (1..).zip(&self.brokers) {
                if broker.is_some() {
                    let client = self.client(node);
                    let request = admin::DebugRequest { without_queues: true, ..Default::default() };
                    let reply = client.admin.debug(client.options(LONG), request).await.expect("an answer");
                    let state = reply.state.expect("a state");
                    digests.insert(node, (state.digest_index, state.digest));
                }
            }
            let mut told = digests.values();
            let first = told.next().expect("somebody runs");
            if told.clone().all(|(index, _)| *index == first.0) {
                assert!(told.all(|(_, digest)| *digest == first.1), "{digests:?}");
                return;
            }
            assert!(self.runtime.now() < deadline, "replicas do not come to the same entry: {digests:?}");
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
    }
}

/// The first of so many neighbouring ports that no other cluster of this process has.
pub fn ports_of(count: u16) -> u16 {
    loop {
        let first = free_ports(count);
        let mut taken = TAKEN.lock().expect("no test panics while it holds it");
        if taken.range(first.saturating_sub(PORTS_MAX)..first + count).next().is_none() {
            taken.insert(first);
            return first;
        }
    }
}

/// All messages of a queue, from its first one to what is its last one now.
pub async fn read_queue(client: &Client, topic: &str, number: i32) -> Vec<v2::Message> {
    let described = admin_call!(client, describe_topic, admin::DescribeTopicRequest { name: topic.to_owned() });
    let end = described.queues[usize::try_from(number).expect("small")].max_offset;
    let (mut messages, mut at) = (Vec::new(), 0);
    while u64::try_from(at).expect("an offset") < end {
        let here = |request: &mut v2::PullMessageRequest| request.message_queue = Some(queue(topic, number));
        let pulled = client.pull_with("readers", topic, at, LONG, here).await;
        assert_eq!(pulled.code, OK);
        at = pulled.next.expect("where to go on");
        messages.extend(pulled.messages);
    }
    messages
}

/// Receives and acknowledges until so many messages came; their ids as they came.
pub async fn consume(client: &Client, group: &str, topic: &str, count: usize) -> Vec<String> {
    let mut ids = Vec::new();
    while ids.len() < count {
        let received = client.receive(group, topic, LONG, LONG).await;
        assert_eq!(received.code, OK, "so far {ids:?}");
        assert_eq!(client.ack(group, topic, &received.messages).await, OK);
        ids.extend(received.messages.iter().map(|message| id_of(message).to_owned()));
    }
    assert_eq!(ids.len(), count);
    ids
}

pub fn sorted(mut ids: Vec<String>) -> Vec<String> {
    ids.sort();
    ids
}

/// `prefix-0`, `prefix-1` … in the order of text.
pub fn numbered(prefix: &str, count: usize) -> Vec<String> {
    sorted((0..count).map(|number| format!("{prefix}-{number}")).collect())
}
