//! TLS on every link of a cluster of processes: with all of it required, switched on under load, with new certificates, and
//! with one replica's expired.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flotilla_client::{
    ClientConfig, Credentials, Identity, OutgoingMessage, Pem, ProducerConfig, SimpleConsumerConfig, TopicSpec,
};
use flotilla_metrics::Scrape;
use flotilla_runtime::{Runtime, Task};
use flotilla_tls::{TlsConfig, TlsMode};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::authority::{Authority, Issued, replace};
use crate::cluster::ports_of;
use crate::servers::{Ended, Server, path_text, run};

const NODES: u16 = 3;
const HOSTS: [&str; 1] = ["127.0.0.1"];
/// The machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(50);

/// A namesrv (0) and three brokers (1 to 3), each with files of its own.
struct Secured {
    runtime: Runtime,
    ca: Authority,
    first: u16,
    servers: [Option<Server>; NODES as usize + 1],
    dir: TempDir,
}

impl Secured {
    fn new() -> Secured {
        let (runtime, ca) = (Runtime::tokio(), Authority::new("cluster"));
        let dir = tempfile::tempdir().expect("a temporary directory");
        Secured { runtime, ca, first: ports_of(4 * (NODES + 1)), servers: [const { None }; 4], dir }
    }

    /// With these settings everywhere; returns when it takes a topic.
    async fn start(tls: impl Fn(&Issued) -> TlsConfig) -> Secured {
        let mut cluster = Secured::new();
        for node in 0..=NODES {
            let issued = cluster.issue(node);
            cluster.start_server(node, &tls(&issued));
        }
        cluster
    }

    fn issue(&self, node: u16) -> Issued {
        self.ca.issue(&format!("node-{node}"), &HOSTS)
    }

    fn address(&self, node: u16, kind: u16) -> String {
        format!("127.0.0.1:{}", self.first + kind * (NODES + 1) + node)
    }

    /// Where a broker serves clients, and the namesrv everybody.
    fn client(&self, node: u16) -> String {
        self.address(node, 0)
    }

    fn config(&self, node: u16, tls: &TlsConfig) -> PathBuf {
        let (listen, peer, metrics) = (self.client(node), self.address(node, 1), self.address(node, 2));
        let mut text = format!("metrics_listen = \"{metrics}\"\n");
        if node == 0 {
            writeln!(text, "listen = \"{listen}\"").expect("a string grows");
        } else {
            let data = self.dir.path().join(format!("broker-{node}"));
            write!(
                text,
                "node = {node}\ndata_dir = {data:?}\nclient_listen = \"{listen}\"\npeer_listen = \"{peer}\"\nnamesrv = \
                 [\"{}\"]\ndisk_free_bytes_min = 0\ndisk_refuse_free_bytes = 0\nsegment_bytes = 1048576\n\
                 namesrv_heartbeat_ms = 500\n",
                self.client(0)
            )
            .expect("a string grows");
            for node in 1..=NODES {
                let (client, peer) = (self.client(node), self.address(node, 1));
                write!(text, "\n[[replicas]]\nnode = {node}\nclient = \"{client}\"\npeer = \"{peer}\"\n")
                    .expect("a string grows");
            }
        }
        write!(text, "\n[tls]\n{}", toml::to_string(tls).expect("plain settings")).expect("a string grows");
        let path = self.dir.path().join(format!("node-{node}.toml"));
        std::fs::write(&path, text).expect("the config can be written");
        path
    }

    fn start_server(&mut self, node: u16, tls: &TlsConfig) {
        let config = self.config(node, tls);
        let kind = if node == 0 { "namesrv" } else { "broker" };
        self.servers[usize::from(node)] = Some(Server::start(&[kind, "--config", path_text(&config)]));
    }

    fn take(&mut self, node: u16) -> Server {
        self.servers[usize::from(node)].take().expect("it runs")
    }

    /// SIGTERM, and a start with these settings.
    fn restart(&mut self, node: u16, tls: &TlsConfig) {
        assert_eq!(self.take(node).terminate(), 0, "node {node} stops as told");
        self.start_server(node, tls);
    }

    /// What a client shows and believes.
    fn credentials(&self) -> Credentials {
        let issued = self.ca.issue("client", &["client"]);
        let identity = Identity { cert: Pem::File(issued.cert), key: Pem::File(issued.key) };
        Credentials { ca: Pem::File(issued.ca), identity: Some(identity) }
    }

    fn sdk(&self, tls: Option<Credentials>) -> flotilla_client::Client {
        let config = ClientConfig {
            tls,
            route_refresh: Duration::from_secs(1),
            send_deadline: PATIENCE,
            ..ClientConfig::of_namesrv([self.client(0)])
        };
        flotilla_client::Client::tonic(config).expect("a valid config")
    }

    /// `flotilla admin` with the client's certificate.
    fn admin(&self, arguments: &[&str]) -> Ended {
        let issued = self.ca.issue("operator", &["operator"]);
        let namesrv = self.client(0);
        let tls = ["--tls-ca", path_text(&issued.ca), "--tls-cert", path_text(&issued.cert)];
        run(&[&["admin"], arguments, &["--namesrv", &namesrv], &tls, &["--tls-key", path_text(&issued.key)]].concat())
    }

    async fn scrape(&self, node: u16) -> Scrape {
        let mut stream = TcpStream::connect(self.address(node, 2)).await.expect("it listens");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: test\r\n\r\n").await.expect("it reads");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("it answers");
        let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        Scrape::parse(body).unwrap_or_else(|error| panic!("{error} in:\n{body}"))
    }

    async fn connections(&self, node: u16, link: &str, kind: &str) -> f64 {
        self.scrape(node).await.sum("flotilla_tls_connections_total", &[("link", link), ("kind", kind)])
    }

    async fn failures(&self, node: u16, labels: &[(&str, &str)]) -> f64 {
        self.scrape(node).await.sum("flotilla_tls_handshake_failures_total", labels)
    }

    /// The replica that leads, of those that run.
    async fn leader(&self) -> Option<u16> {
        for node in 1..=NODES {
            if self.servers[usize::from(node)].is_some()
                && self.scrape(node).await.value("flotilla_raft_can_write", &[]) == Some(1.0)
            {
                return Some(node);
            }
        }
        None
    }

    async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = self.runtime.now() + PATIENCE;
        while !holds().await {
            assert!(self.runtime.now() < deadline, "{what}: not within {PATIENCE:?}");
            self.runtime.sleep(PAUSE).await;
        }
    }

    async fn await_leader(&self) -> u16 {
        let deadline = self.runtime.now() + PATIENCE;
        loop {
            if let Some(leader) = self.leader().await {
                return leader;
            }
            assert!(self.runtime.now() < deadline, "no leader within {PATIENCE:?}");
            self.runtime.sleep(PAUSE).await;
        }
    }
}

/// Sends one message after the other until it is told to stop; panics when one is not stored.
struct Load {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    task: Task<()>,
}

impl Load {
    fn start(client: &flotilla_client::Client, topic: &str, runtime: &Runtime) -> Load {
        let producer = client.producer(ProducerConfig::default()).expect("a valid config");
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (stopped, counted, pause, topic) = (stop.clone(), sent.clone(), runtime.clone(), topic.to_owned());
        let task = runtime.spawn("load", async move {
            while !stopped.load(Ordering::Relaxed) {
                let topic = topic.as_str().try_into().expect("a name");
                producer.send(OutgoingMessage::new(topic, "x")).await.expect("every message is stored");
                counted.fetch_add(1, Ordering::Relaxed);
                pause.sleep(Duration::from_millis(5)).await;
            }
        });
        Load { stop, sent, task }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    async fn stop(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.join().await.expect("no send failed");
        self.sent.load(Ordering::Relaxed)
    }
}

async fn create_topic(client: &flotilla_client::Client, topic: &str) {
    client.admin().create_topic(&TopicSpec::new(topic.try_into().expect("a name"), 2)).await.expect("it is created");
}

/// Receives and acknowledges so many.
async fn receive(client: &flotilla_client::Client, topic: &str, count: u64) {
    let group = "readers".try_into().expect("a name");
    let config = SimpleConsumerConfig::new(group, topic.try_into().expect("a name"));
    let consumer = client.simple_consumer(config).expect("a valid config");
    let mut seen = BTreeSet::new();
    while (seen.len() as u64) < count {
        let messages = consumer.receive(32, Duration::from_secs(60)).await.expect("an answer");
        assert!(!messages.is_empty(), "{} of {count} messages came", seen.len());
        for message in messages {
            consumer.ack(&message).await.expect("it is acknowledged");
            seen.insert(message.id.to_string());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn with_tls_required_everywhere_all_goes_on_when_the_leader_is_killed_and_nobody_gets_in_without() {
    let mut cluster = Secured::start(Issued::asking_config).await;
    let runtime = cluster.runtime.clone();
    let leader = cluster.await_leader().await;
    cluster.admin(&["topic", "create", "orders"]).ok();
    let status = cluster.admin(&["cluster", "status"]).ok();
    for node in 1..=NODES {
        assert!(status.contains(&cluster.client(node)), "{status}");
    }
    let client = cluster.sdk(Some(cluster.credentials()));
    let load = Load::start(&client, "orders", &runtime);
    cluster.eventually("messages are stored", async || load.sent() >= 20).await;
    cluster.take(leader).kill();
    let before = load.sent();
    cluster.eventually("more are stored", async || load.sent() >= before + 20).await;
    let sent = load.stop().await;
    receive(&client, "orders", sent).await;

    // Neither without TLS, nor with another CA, nor without a certificate.
    let (namesrv, broker) = (cluster.client(0), cluster.client(if leader == 1 { 2 } else { 1 }));
    run(&["admin", "topic", "list", "--namesrv", &namesrv]).failed(1, &["this port takes TLS only"]);
    run(&["admin", "topic", "list", "--endpoint", &broker]).failed(1, &["this port takes TLS only"]);
    let other = Authority::new("other");
    run(&["admin", "topic", "list", "--endpoint", &broker, "--tls-ca", path_text(&other.ca())])
        .failed(1, &["no TLS with", "ca_file"]);
    let ca = cluster.ca.ca();
    // Its request may meet the end of the connection before the alert that says why; in one of so many tries it is told.
    let is_told = (0..30).any(|_| {
        let ended = run(&["admin", "topic", "list", "--endpoint", &broker, "--tls-ca", path_text(&ca)]);
        assert_eq!(ended.code, 1, "nobody gets in without a certificate: {}", ended.stdout);
        ended.stderr.contains("ertificate")
    });
    assert!(is_told, "it is never told that a certificate is missing");

    for node in (0..=NODES).filter(|node| *node != leader) {
        for link in ["client", "peers", "namesrv"] {
            assert_eq!(cluster.connections(node, link, "plain").await, 0.0, "node {node}, {link}");
        }
        let used = if node == 0 { "namesrv" } else { "peers" };
        assert!(cluster.connections(node, used, "tls").await >= 1.0, "node {node}");
        for cause in ["expired", "unknown_ca", "no_certificate", "bad_certificate", "wrong_name", "not_tls"] {
            assert_eq!(
                cluster.failures(node, &[("link", "peers"), ("cause", cause)]).await,
                0.0,
                "node {node}, {cause}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn tls_is_switched_on_under_load_without_a_failed_send() {
    let mut cluster = Secured::start(|issued| issued.config(TlsMode::Off)).await;
    let runtime = cluster.runtime.clone();
    cluster.await_leader().await;
    let plain = cluster.sdk(None);
    create_topic(&plain, "orders").await;
    let load = Load::start(&plain, "orders", &runtime);
    // Both kinds of replicas live together, and so do both kinds of clients once all take both.
    for node in 0..=NODES {
        let issued = cluster.issue(node);
        cluster.restart(node, &issued.config(TlsMode::Optional));
        let before = load.sent();
        cluster.eventually("messages are stored", async || load.sent() >= before + 5).await;
    }
    let secured = cluster.sdk(Some(cluster.credentials()));
    let secured_load = Load::start(&secured, "orders", &runtime);
    cluster.eventually("messages are stored", async || secured_load.sent() >= 5).await;
    let mut sent = load.stop().await;
    for node in 0..=NODES {
        let issued = cluster.issue(node);
        cluster.restart(node, &issued.config(TlsMode::Required));
        let before = secured_load.sent();
        cluster.eventually("messages are stored", async || secured_load.sent() >= before + 5).await;
    }
    sent += secured_load.stop().await;
    receive(&secured, "orders", sent).await;
    for node in 0..=NODES {
        for link in ["client", "peers", "namesrv"] {
            assert_eq!(cluster.connections(node, link, "plain").await, 0.0, "node {node}, {link}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_and_their_ca_are_replaced_without_a_restart() {
    let mut cluster = Secured::start(Issued::asking_config).await;
    let runtime = cluster.runtime.clone();
    let leader = cluster.await_leader().await;
    let client = cluster.sdk(Some(cluster.credentials()));
    create_topic(&client, "orders").await;
    let load = Load::start(&client, "orders", &runtime);
    let reloaded = async |cluster: &Secured, times: f64| {
        for node in 0..=NODES {
            let holds = async || cluster.scrape(node).await.sum("flotilla_tls_reloads_total", &[]) >= times;
            cluster.eventually("new files are in use", holds).await;
        }
    };
    // Both CAs are believed, then what they sign is changed, then the old one is forgotten.
    let new = Authority::new("new");
    let believed = cluster.ca.ca();
    replace(&believed, &format!("{}{}", cluster.ca.ca_pem(), new.ca_pem()));
    reloaded(&cluster, 1.0).await;
    let text = |path: &Path| std::fs::read_to_string(path).expect("it was issued");
    for name in ["node-0", "node-1", "node-2", "node-3", "client"] {
        let issued = new.issue(name, &HOSTS);
        let beside = |kind: &str| believed.with_file_name(format!("{name}.{kind}"));
        replace(&beside("key"), &text(&issued.key));
        replace(&beside("crt"), &text(&issued.cert));
    }
    reloaded(&cluster, 2.0).await;
    // The client looks every ten seconds; what it has shown so far is of the old CA.
    replace(&believed, &new.ca_pem());
    reloaded(&cluster, 3.0).await;
    let latecomer = new.issue("latecomer", &HOSTS);
    let identity = Some(Identity { cert: Pem::File(latecomer.cert), key: Pem::File(latecomer.key) });
    let late = cluster.sdk(Some(Credentials { ca: Pem::File(latecomer.ca), identity }));
    // All connections with the leader have to be made anew, with the new files.
    cluster.take(leader).kill();
    let late_load = Load::start(&late, "orders", &runtime);
    cluster.eventually("messages are stored", async || late_load.sent() >= 20).await;
    let before = load.sent();
    cluster.eventually("the old client goes on", async || load.sent() >= before + 20).await;
    let sent = load.stop().await + late_load.stop().await;
    receive(&late, "orders", sent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_whose_certificate_has_expired_is_out_alone_and_in_again_with_a_new_one() {
    let mut cluster = Secured::new();
    let runtime = cluster.runtime.clone();
    const OUT: u16 = 3;
    // It starts first, so that it is up long before that.
    let short = cluster.ca.issue_for("node-3", &HOSTS, Duration::from_secs(40));
    cluster.start_server(OUT, &short.asking_config());
    for node in 0..OUT {
        let issued = cluster.issue(node);
        cluster.start_server(node, &issued.asking_config());
    }
    cluster.await_leader().await;
    let client = cluster.sdk(Some(cluster.credentials()));
    create_topic(&client, "orders").await;
    let load = Load::start(&client, "orders", &runtime);
    let expires = |scrape: Scrape| scrape.value("flotilla_tls_certificate_expires_seconds", &[]).expect("it is told");
    let end_s = expires(cluster.scrape(OUT).await);
    let is_over = async || runtime.wall_ms() as f64 / 1_000.0 > end_s + 1.0;
    cluster.eventually("it has expired", is_over).await;
    let leads = async || cluster.leader().await.is_some_and(|leader| leader != OUT);
    cluster.eventually("another one leads", leads).await;
    // Its connections stand until they break: the others come back and do not let it in, nor find it.
    for node in 1..OUT {
        let issued = cluster.issue(node);
        cluster.restart(node, &issued.asking_config());
        let before = load.sent();
        cluster.eventually("messages are stored", async || load.sent() >= before + 10).await;
    }
    for node in 1..OUT {
        let refused = [("link", "peers"), ("cause", "expired")];
        cluster.eventually("they say why", async || cluster.failures(node, &refused).await >= 1.0).await;
    }
    let mut out = cluster.scrape(OUT).await;
    assert_eq!(out.value("flotilla_fit_to_lead", &[]), Some(0.0), "it would not lead");
    // Started with it, it says why it does not.
    assert_eq!(cluster.take(OUT).terminate(), 0);
    let config = cluster.config(OUT, &short.asking_config());
    run(&["broker", "--config", path_text(&config)]).failed(1, &["node-3.crt expired at", "now it is"]);
    let renewed = cluster.issue(OUT);
    cluster.start_server(OUT, &renewed.asking_config());
    let sent = load.stop().await;
    let applied = |scrape: &Scrape| scrape.value("flotilla_log_applied_index", &[]).expect("it is told");
    let end = applied(&cluster.scrape(1).await);
    let caught_up = async || {
        out = cluster.scrape(OUT).await;
        applied(&out) >= end
    };
    cluster.eventually("it has all messages", caught_up).await;
    receive(&client, "orders", sent).await;
}
