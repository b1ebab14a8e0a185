//! Two namesrvs that never talk to each other, and what clients see when one is empty, stale, deaf or gone.

use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_client::{
    Client, ClientConfig, OutgoingMessage, Producer, ProducerConfig, SendReceipt, SimpleConsumerConfig,
};
use flotilla_message::{GroupName, TopicName};
use flotilla_proto::client::{CallOptions, Connector, TonicConnector};
use flotilla_proto::namesrv::{GroupRoute, ListBrokersRequest, TopicRouteRequest};
use flotilla_runtime::Runtime;

use crate::support::{Server, eventually, free_ports, path_text, run, signal};

const LEADER_WITHIN: Duration = Duration::from_secs(20);
const TOPIC: &str = "orders";

/// What brokers reach a namesrv through: can be shut, which breaks what is open and refuses what is new.
struct Gate {
    listen: SocketAddr,
    is_open: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
}

impl Gate {
    fn to(target: SocketAddr) -> Gate {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let gate = Gate {
            listen: listener.local_addr().unwrap(),
            is_open: Arc::new(AtomicBool::new(true)),
            streams: Arc::default(),
        };
        let (is_open, streams) = (gate.is_open.clone(), gate.streams.clone());
        std::thread::spawn(move || {
            for incoming in listener.incoming().map_while(Result::ok) {
                if !is_open.load(Ordering::SeqCst) {
                    continue;
                }
                let Ok(outgoing) = TcpStream::connect(target) else { continue };
                for (mut from, mut to) in [(&incoming, &outgoing), (&outgoing, &incoming)]
                    .map(|(from, to)| (from.try_clone().unwrap(), to.try_clone().unwrap()))
                {
                    std::thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
                streams.lock().unwrap().extend([incoming, outgoing]);
            }
        });
        gate
    }

    fn shut(&self) {
        self.is_open.store(false, Ordering::SeqCst);
        for stream in self.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

/// Two namesrvs, three brokers behind a gate to each namesrv, and clients that reach the namesrvs themselves.
struct Field {
    runtime: Runtime,
    connector: TonicConnector,
    namesrvs: [String; 2],
    gates: [Gate; 2],
    servers: [Option<Server>; 2],
    brokers: Vec<Option<Server>>,
    configs: Vec<String>,
    dir: tempfile::TempDir,
}

impl Field {
    /// Starts all; with `deaf` the first namesrv hears of nobody. Returns when the topic is made and routed.
    async fn start(deaf: bool) -> Field {
        let runtime = Runtime::tokio();
        let dir = tempfile::tempdir().unwrap();
        let first = free_ports(8);
        let address = |at: u16| format!("127.0.0.1:{}", first + at);
        let namesrvs = [address(0), address(1)];
        let gates = [0, 1].map(|at: usize| Gate::to(namesrvs[at].parse().unwrap()));
        if deaf {
            gates[0].shut();
        }
        let servers = [0, 1].map(|at: usize| Some(start_namesrv(&namesrvs[at])));
        let replicas: String = (1..=3)
            .map(|node| {
                let (client, peer) = (address(1 + node), address(4 + node));
                format!("\n[[replicas]]\nnode = {node}\nclient = \"{client}\"\npeer = \"{peer}\"\n")
            })
            .collect();
        let configs: Vec<String> = (1..=3)
            .map(|node| {
                let (path, data) = (dir.path().join(format!("{node}.toml")), dir.path().join(format!("data-{node}")));
                let (client, peer) = (address(1 + node), address(4 + node));
                let text = format!(
                    "node = {node}\ndata_dir = {data:?}\nclient_listen = \"{client}\"\npeer_listen = \"{peer}\"\n\
                     namesrv = [\"{}\", \"{}\"]\nsegment_bytes = 1048576\nauto_create_topics = false\n{replicas}",
                    gates[0].listen, gates[1].listen
                );
                std::fs::write(&path, text).unwrap();
                path_text(Path::new(&path)).to_owned()
            })
            .collect();
        let brokers = configs.iter().map(|config| Some(start_broker(config))).collect();
        let connector = TonicConnector::new(runtime.clone());
        let field = Field { runtime, connector, namesrvs, gates, servers, brokers, configs, dir };
        field.create_topic(4);
        field.await_route(1, "the second namesrv knows the topic", |route| route.leader > 0).await;
        field
    }

    fn create_topic(&self, queues: u32) {
        let queues = queues.to_string();
        eventually("a leader takes writes", LEADER_WITHIN, || {
            run(&["admin", "topic", "create", TOPIC, "--queues", &queues, "--namesrv", &self.namesrvs[1]]).code == 0
        });
    }

    /// The route that a namesrv gives: `None` if it knows none.
    async fn route(&self, namesrv: usize) -> Option<GroupRoute> {
        let request = TopicRouteRequest { topic: TOPIC.to_owned(), ..TopicRouteRequest::default() };
        let calls = self.connector.namesrv(&self.namesrvs[namesrv]);
        let reply = calls.query_topic_route(CallOptions::within(Duration::from_secs(3)), request).await.ok()?;
        reply.groups.into_iter().next()
    }

    async fn await_route(&self, namesrv: usize, what: &str, holds: impl Fn(&GroupRoute) -> bool) -> Duration {
        let began = Instant::now();
        while !self.route(namesrv).await.as_ref().is_some_and(&holds) {
            assert!(
                began.elapsed() < Duration::from_secs(15),
                "{what} did not become true: {:?}",
                self.route(namesrv).await
            );
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
        began.elapsed()
    }

    fn client<const N: usize>(&self, namesrvs: [usize; N]) -> Client {
        Client::tonic(ClientConfig::of_namesrv(namesrvs.map(|at| self.namesrvs[at].clone()))).unwrap()
    }

    fn producer<const N: usize>(&self, namesrvs: [usize; N]) -> Producer {
        self.client(namesrvs).producer(ProducerConfig::default()).unwrap()
    }

    fn kill_namesrv(&mut self, at: usize) {
        self.servers[at].take().unwrap().kill();
    }

    fn restart_namesrv(&mut self, at: usize) {
        self.servers[at] = Some(start_namesrv(&self.namesrvs[at]));
    }

    fn end(self) {
        for broker in self.brokers.into_iter().flatten() {
            assert_eq!(broker.terminate(), 0);
        }
        drop(self.dir);
    }
}

fn start_namesrv(listen: &str) -> Server {
    Server::start(&["namesrv", "--listen", listen])
}

fn start_broker(config: &str) -> Server {
    Server::start(&["broker", "--config", config])
}

fn topic() -> TopicName {
    TopicName::try_from(TOPIC).unwrap()
}

fn message() -> OutgoingMessage {
    OutgoingMessage::new(topic(), Bytes::from_static(b"x"))
}

async fn sent(producer: &Producer) -> SendReceipt {
    producer.send(message()).await.expect("it is stored")
}

/// Sends one message after the other until told to stop; counts what is stored, and panics at the first that is not.
struct Load {
    stop: Arc<AtomicBool>,
    stored: Arc<AtomicU64>,
    task: flotilla_runtime::Task<()>,
}

impl Load {
    fn start(field: &Field) -> Load {
        let (stop, stored) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let producer = field.producer([0, 1]);
        let (until, count, runtime) = (stop.clone(), stored.clone(), field.runtime.clone());
        let task = field.runtime.spawn("load", async move {
            while !until.load(Ordering::SeqCst) {
                sent(&producer).await;
                count.fetch_add(1, Ordering::SeqCst);
                runtime.sleep(Duration::from_millis(2)).await;
            }
        });
        Load { stop, stored, task }
    }

    fn stored(&self) -> u64 {
        self.stored.load(Ordering::SeqCst)
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::SeqCst);
        self.task.await.expect("every send was stored");
        self.stored.load(Ordering::SeqCst)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_empty_namesrv_is_not_believed_where_another_one_knows() {
    let field = Field::start(true).await;
    assert!(field.route(0).await.is_none(), "the first one hears of nobody");
    let client = field.client([0, 1]);
    client.admin().create_group(&flotilla_client::GroupSpec::new(group())).await.expect("a group");
    let producer = client.producer(ProducerConfig::default()).unwrap();
    for _ in 0..50 {
        sent(&producer).await;
    }
    let wait = Duration::from_secs(2);
    let consumer = client
        .simple_consumer(SimpleConsumerConfig { await_duration: wait, ..SimpleConsumerConfig::new(group(), topic()) });
    let (consumer, mut received) = (consumer.unwrap(), 0);
    for _ in 0..50 {
        received += consumer.receive(16, Duration::from_secs(30)).await.expect("it receives").len();
        if received == 50 {
            break;
        }
    }
    assert_eq!(received, 50);
    // Many who ask at once for the first time fare alike, whichever they ask first.
    for order in [[0, 1], [1, 0]] {
        sent(&field.producer(order)).await;
    }
    // Who asks only the empty one is told so, in time.
    let began = Instant::now();
    let error = field.producer([0]).send(message()).await.unwrap_err();
    assert!(error.is_surely_not_stored() && error.to_string().contains(TOPIC), "{error}");
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
    field.end();
}

fn group() -> GroupName {
    GroupName::try_from("readers").unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_a_stale_namesrv_is_led_on_and_nobody_goes_back_to_an_older_term() {
    let field = Field::start(false).await;
    field.await_route(0, "the first namesrv knows the topic", |route| route.leader > 0).await;
    let (of_stale, of_both) = (field.producer([0]), field.producer([0, 1]));
    let mut term = sent(&of_stale).await.term.max(sent(&of_both).await.term);
    let stale = field.route(0).await.expect("a route");
    field.gates[0].shut();
    for round in 0..5 {
        let moved = run(&["admin", "leader", "transfer", "--namesrv", &field.namesrvs[1]]);
        assert_eq!(moved.code, 0, "round {round}: {}{}", moved.stdout, moved.stderr);
        for producer in [&of_both, &of_stale, &field.producer([0]), &field.producer([0, 1])] {
            let receipt = sent(producer).await;
            assert!(receipt.term >= term, "round {round}: {receipt:?} after term {term:?}");
            term = receipt.term;
        }
    }
    assert_eq!(field.route(0).await.map(|route| route.term), Some(stale.term), "nobody told the first one anything");
    let fresh = field.await_route(1, "the second one is told", |route| Some(route.term) == term).await;
    println!("the other namesrv knew the last leader {fresh:?} after the sends to it");
    field.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_frozen_leader_is_soon_no_leader_any_more_at_any_namesrv() {
    let field = Field::start(false).await;
    let old = field.await_route(0, "the first namesrv knows the leader", |route| route.leader > 0).await;
    println!("known after {old:?}");
    let producer = field.producer([0, 1]);
    sent(&producer).await;
    let leader = field.route(1).await.expect("a route").leader;
    let pid = field.brokers[usize::try_from(leader).unwrap() - 1].as_ref().unwrap().pid();
    signal(pid, "STOP");
    let began = Instant::now();
    let receipt = sent(&producer).await;
    println!("stored by broker {:?} {:?} after the freeze", receipt.leader, began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(10) && receipt.leader != Some(leader), "{receipt:?}");
    for namesrv in 0..2 {
        field.await_route(namesrv, "another one is called leader", |route| ![0, leader].contains(&route.leader)).await;
    }
    println!("both namesrvs call another one leader {:?} after the freeze", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(15));
    signal(pid, "CONT");
    field.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_was_deleted_while_a_namesrv_was_down_is_gone_everywhere_and_comes_back_new() {
    let mut field = Field::start(false).await;
    let producer = field.producer([0, 1]);
    for _ in 0..8 {
        sent(&producer).await;
    }
    field.kill_namesrv(0);
    let deleted = run(&["admin", "topic", "delete", TOPIC, "--namesrv", &field.namesrvs[1]]);
    assert_eq!(deleted.code, 0, "{}{}", deleted.stdout, deleted.stderr);
    field.restart_namesrv(0);
    // A namesrv without any broker says nothing; it must have heard of them before its silence about the topic counts.
    let began = Instant::now();
    loop {
        let calls = field.connector.namesrv(&field.namesrvs[0]);
        let options = CallOptions::within(Duration::from_secs(3));
        let rows =
            calls.list_brokers(options, ListBrokersRequest::default()).await.map_or(0, |reply| reply.brokers.len());
        if rows == 3 {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{rows} rows");
        field.runtime.sleep(Duration::from_millis(50)).await;
    }
    for namesrv in 0..2 {
        assert_eq!(field.route(namesrv).await, None, "namesrv {namesrv}");
    }
    let began = Instant::now();
    let error = producer.send(message()).await.unwrap_err();
    assert!(error.is_surely_not_stored() && error.to_string().contains(TOPIC), "{error}");
    assert!(began.elapsed() < Duration::from_secs(4), "{:?}", began.elapsed());

    field.create_topic(2);
    for namesrv in 0..2 {
        let has_two = |route: &GroupRoute| route.topic.as_ref().is_some_and(|topic| topic.queue_count == 2);
        field.await_route(namesrv, "it has two queues", has_two).await;
    }
    for number in 0..8 {
        let receipt = sent(&producer).await;
        assert!(receipt.queue < Some(2) && receipt.offset <= number, "no queue of the old one: {receipt:?}");
    }
    field.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn producers_go_on_without_any_namesrv_and_through_the_restart_of_all() {
    let mut field = Field::start(false).await;
    let load = Load::start(&field);
    field.runtime.sleep(Duration::from_secs(1)).await;
    for at in 0..2 {
        field.kill_namesrv(at);
    }
    let before = load.stored();
    field.runtime.sleep(Duration::from_secs(4)).await;
    assert!(load.stored() > before + 100, "{} stored in 4 s without a namesrv", load.stored() - before);
    let began = Instant::now();
    let error = field.producer([0, 1]).send(message()).await.unwrap_err();
    let text = error.to_string();
    assert!(error.is_surely_not_stored() && field.namesrvs.iter().all(|address| text.contains(address)), "{text}");
    println!("a new client hears after {:?}: {text}", began.elapsed());

    let began = Instant::now();
    for at in 0..2 {
        field.restart_namesrv(at);
    }
    for at in 0..2 {
        field
            .await_route(at, "the empty one knows the leader", |route| route.leader > 0 && route.replicas.len() == 3)
            .await;
    }
    println!("both empty namesrvs had the whole route {:?} after their start", began.elapsed());
    // The brokers are restarted too, one after the other, and each is back in both tables at once.
    for node in [1_usize, 2, 3, 1, 2, 3] {
        let leader = field.route(1).await.map_or(0, |route| route.leader);
        if leader as usize == node {
            continue;
        }
        field.brokers[node - 1].take().unwrap().kill();
        let began = Instant::now();
        field.brokers[node - 1] = Some(start_broker(&field.configs[node - 1]));
        let ready = Instant::now();
        for at in 0..2 {
            loop {
                let calls = field.connector.namesrv(&field.namesrvs[at]);
                let reply =
                    calls.list_brokers(CallOptions::within(Duration::from_secs(3)), ListBrokersRequest::default());
                let rows = reply.await.expect("an answer").brokers;
                let is_new = |row: &flotilla_proto::namesrv::BrokerRow| {
                    let registration = row.registration.as_ref().expect("a row");
                    registration.replica == node as u64 && Duration::from_millis(row.age_ms) <= began.elapsed()
                };
                if rows.iter().any(is_new) {
                    break;
                }
                assert!(ready.elapsed() < Duration::from_secs(2), "broker {node} at namesrv {at}: {rows:?}");
                field.runtime.sleep(Duration::from_millis(10)).await;
            }
        }
    }
    let stored = load.end().await;
    println!("{stored} sends, none failed");
    field.end();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_can_know_without_a_leader_is_said_to_be_unknown() {
    let mut field = Field::start(false).await;
    let namesrvs = field.namesrvs.join(",");
    run(&["admin", "group", "create", "readers", "--namesrv", &namesrvs]).ok();
    for _ in 0..3 {
        sent(&field.producer([1])).await;
    }
    let survivor = field.route(1).await.expect("a route").leader;
    for node in (1..=3).filter(|node| *node != survivor) {
        field.brokers[usize::try_from(node).unwrap() - 1].take().unwrap().kill();
    }
    // Its lease ends soon after the last answer of a peer.
    eventually("nobody leads", Duration::from_secs(10), || {
        run(&["admin", "cluster", "status", "--namesrv", &namesrvs]).code != 0
    });
    let began = Instant::now();
    let progress = run(&["admin", "group", "progress", "readers", "--namesrv", &namesrvs, "--json"]);
    let within = began.elapsed();
    assert!(progress.code != 0 && !progress.stdout.contains("\"lag\":0"), "{}{}", progress.stdout, progress.stderr);
    assert!(progress.stderr.contains("leader"), "{}", progress.stderr);
    println!("progress without a leader after {within:?}: {}", progress.stderr.trim());
    let status = run(&["admin", "cluster", "status", "--namesrv", &namesrvs, "--json"]);
    let told: serde_json::Value = serde_json::from_str(&status.stdout).expect("a partial answer");
    let silent = told.as_array().unwrap().iter().filter(|replica| replica["error"].is_string()).count();
    assert_eq!(silent, 2, "those that did not answer are named: {told}");
    let led = told.as_array().unwrap().iter().filter(|replica| replica["can_write"] == true).count();
    assert_eq!(led, 0, "{told}");
}
