//! Two broker groups of three replicas each in one cluster: a topic over both, one group in trouble, one group drained.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_client::{
    ClientConfig, ConsumeResult, GroupSpec, OutgoingMessage, Producer, ProducerConfig, PushConsumer,
    PushConsumerConfig, Spread, TopicSpec,
};
use flotilla_message::MessageType;
use flotilla_proto::client::{Connector, TonicConnector};
use flotilla_proto::{AckPlace, admin, metadata, v2};
use flotilla_runtime::{Runtime, Task};
use tempfile::TempDir;

use crate::calls::{Client, handle_of, id_of, message, resource};
use crate::cluster::{LONG, NOTHING_THERE, OK, admin_call, ports_of};
use crate::holding::{end, listen};
use crate::servers::{Server, path_text, run};

const GROUPS: [&str; 2] = ["group-a", "group-b"];
const NODES: u16 = 3;

/// A namesrv and six brokers as processes.
pub struct TwoGroups {
    pub runtime: Runtime,
    pub connector: Arc<TonicConnector>,
    pub namesrv: String,
    addresses: [Vec<String>; 2],
    configs: [Vec<PathBuf>; 2],
    brokers: [Vec<Option<Server>>; 2],
    namesrv_server: Server,
    _dir: TempDir,
}

impl TwoGroups {
    pub async fn start() -> TwoGroups {
        let runtime = Runtime::tokio();
        let dir = tempfile::tempdir().expect("a temporary directory");
        let first = ports_of(1 + 4 * NODES);
        let address = |port: u16| format!("127.0.0.1:{}", first + port);
        let namesrv = address(0);
        let (mut addresses, mut configs) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
        for (place, group) in (0_u16..).zip(GROUPS) {
            let client = |node: u16| address(2 * NODES * place + node);
            let peer = |node: u16| address(2 * NODES * place + NODES + node);
            let mut replicas = String::new();
            for node in 1..=NODES {
                let (client, peer) = (client(node), peer(node));
                write!(replicas, "\n[[replicas]]\nnode = {node}\nclient = \"{client}\"\npeer = \"{peer}\"\n")
                    .expect("a string grows");
            }
            for node in 1..=NODES {
                let path = dir.path().join(format!("{group}-{node}.toml"));
                let data = dir.path().join(format!("{group}-{node}"));
                let text = format!(
                    "group = \"{group}\"\nnode = {node}\ndata_dir = {data:?}\nclient_listen = \"{}\"\npeer_listen = \
                     \"{}\"\nnamesrv = [\"{namesrv}\"]\ndisk_free_bytes_min = 0\nsegment_bytes = 1048576\n\
                     transaction_check_after_ms = 1500\ntransaction_check_interval_ms = 500\n{replicas}",
                    client(node),
                    peer(node)
                );
                std::fs::write(&path, text).expect("the config can be written");
                configs[usize::from(place)].push(path);
                addresses[usize::from(place)].push(client(node));
            }
        }
        let started = std::thread::scope(|scope| {
            let namesrv = scope.spawn(|| Server::start(&["namesrv", "--listen", &namesrv]));
            let start = |config: &PathBuf| {
                let config = config.clone();
                scope.spawn(move || Server::start(&["broker", "--config", path_text(&config)]))
            };
            let brokers = configs.each_ref().map(|configs| configs.iter().map(start).collect::<Vec<_>>());
            let brokers = brokers.map(|brokers| {
                brokers.into_iter().map(|broker| Some(broker.join().expect("the broker starts"))).collect::<Vec<_>>()
            });
            (namesrv.join().expect("the namesrv starts"), brokers)
        });
        let connector = Arc::new(TonicConnector::new(runtime.clone()));
        let (namesrv_server, brokers) = started;
        let cluster = TwoGroups { runtime, connector, namesrv, addresses, configs, brokers, namesrv_server, _dir: dir };
        for group in 0..2 {
            cluster.leader(group).await;
        }
        // Each replica has heard of the other group.
        for group in 0..2 {
            for node in 1..=u64::from(NODES) {
                let client = cluster.client(group, node);
                let knows = async || {
                    let request = admin::ClusterStatusRequest::default();
                    let told = client.admin.cluster_status(client.options(LONG), request).await;
                    told.is_ok_and(|told| told.other_groups.iter().any(|other| other.group == GROUPS[1 - group]))
                };
                cluster.eventually("every replica knows the other group", knows).await;
            }
        }
        cluster
    }

    pub fn namesrv_pid(&self) -> u32 {
        self.namesrv_server.pid()
    }

    pub async fn eventually(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let deadline = self.runtime.now() + LONG;
        while !holds().await {
            assert!(self.runtime.now() < deadline, "{what}: not within {LONG:?}");
            self.runtime.sleep(Duration::from_millis(50)).await;
        }
    }

    pub fn client(&self, group: usize, node: u64) -> Client {
        let address = &self.addresses[group][usize::try_from(node).expect("small") - 1];
        Client {
            messaging: self.connector.messaging(address),
            admin: self.connector.admin(address),
            metadata: Arc::new(metadata::of_client(&format!("client@test-{node}"), "0")),
        }
    }

    fn sdk(&self) -> flotilla_client::Client {
        let config = ClientConfig::of_namesrv([&self.namesrv]);
        let config = ClientConfig { route_refresh: Duration::from_secs(1), ..config };
        flotilla_client::Client::tonic(config).expect("a valid config")
    }

    fn producer(&self) -> Producer {
        self.sdk().producer(ProducerConfig::default()).expect("a valid config")
    }

    async fn leader(&self, group: usize) -> u64 {
        let deadline = self.runtime.now() + LONG;
        loop {
            for (node, broker) in (1..).zip(&self.brokers[group]) {
                if broker.is_none() {
                    continue;
                }
                let client = self.client(group, node);
                let request = admin::ClusterStatusRequest::default();
                let status = client.admin.cluster_status(client.options(Duration::from_secs(1)), request).await;
                if status.is_ok_and(|status| status.can_write) {
                    return node;
                }
            }
            assert!(self.runtime.now() < deadline, "no leader of {} within {LONG:?}", GROUPS[group]);
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
    }

    /// SIGKILL to so many replicas of a group, the leader first; the numbers of those that live.
    async fn kill(&mut self, group: usize, count: usize) -> Vec<u64> {
        let leader = self.leader(group).await;
        let lives = |node: &u64| self.brokers[group][*node as usize - 1].is_some();
        let others = (1..=u64::from(NODES)).filter(|node| *node != leader && lives(node));
        let doomed: Vec<u64> = std::iter::once(leader).chain(others).take(count).collect();
        for node in &doomed {
            self.brokers[group][*node as usize - 1].take().expect("it runs").kill();
        }
        (1..=u64::from(NODES)).filter(|node| self.brokers[group][*node as usize - 1].is_some()).collect()
    }

    fn restart(&mut self, group: usize) {
        for (config, broker) in self.configs[group].iter().zip(&mut self.brokers[group]) {
            if broker.is_none() {
                *broker = Some(Server::start(&["broker", "--config", path_text(config)]));
            }
        }
    }

    /// Messages of a topic in each group, as its leader has them.
    async fn counts(&self, topic: &str) -> [u64; 2] {
        let mut counts = [0; 2];
        for (group, count) in counts.iter_mut().enumerate() {
            let client = self.client(group, self.leader(group).await);
            let told = admin_call!(client, describe_topic, admin::DescribeTopicRequest { name: topic.to_owned() });
            *count = told.queues.iter().map(|queue| queue.max_offset - queue.min_offset).sum();
        }
        counts
    }

    fn admin_command(&self, arguments: &[&str]) -> String {
        let mut all = vec!["admin", "--namesrv", self.namesrv.as_str()];
        all.extend(arguments);
        run(&all).ok()
    }

    /// A consumer that notes what it gets.
    fn consumer(&self, group: &str, topic: &str) -> Consumer {
        let seen: Arc<Mutex<Vec<String>>> = Arc::default();
        let noted = seen.clone();
        let config = PushConsumerConfig::new(group.try_into().unwrap(), topic.try_into().unwrap());
        let consumer = self.sdk().push_consumer(config, move |message| {
            noted.lock().expect("no listener panics").push(message.id.to_string());
            async { ConsumeResult::Success }
        });
        Consumer { seen, _consumer: consumer.expect("a valid config") }
    }
}

struct Consumer {
    seen: Arc<Mutex<Vec<String>>>,
    _consumer: PushConsumer,
}

impl Consumer {
    fn ids(&self) -> BTreeSet<String> {
        self.seen.lock().unwrap().iter().cloned().collect()
    }
}

async fn send(producer: &Producer, topic: &str, id: &str) -> flotilla_client::SendReceipt {
    let message = OutgoingMessage::new(topic.try_into().unwrap(), "a body");
    producer.send(message.with_id(id.try_into().unwrap())).await.unwrap_or_else(|error| panic!("{id}: {error}"))
}

/// The broker group that an answer names.
async fn sent_to(client: &Client, sent: v2::Message) -> String {
    let request = v2::SendMessageRequest { messages: vec![sent] };
    let reply = client.messaging.send_message(client.options(LONG), request).await.expect("an answer");
    let status = reply.body.status.clone().expect("a status");
    assert_eq!(status.code, OK, "{}", status.message);
    let place: AckPlace = reply.value_of(metadata::ACK_PLACE).expect("a place").parse().expect("readable");
    place.group
}

/// Broker and permission of each queue of a topic, as a client of that language is told.
async fn routed(client: &Client, topic: &str) -> BTreeSet<(String, i32)> {
    let request = v2::QueryRouteRequest { topic: Some(resource(topic)), endpoints: None };
    let reply = client.messaging.query_route(client.options(LONG), request).await.expect("an answer").body;
    assert_eq!(reply.status.expect("a status").code, OK);
    reply.message_queues.into_iter().map(|queue| (queue.broker.expect("a broker").name, queue.permission)).collect()
}

fn named(route: &[(&str, i32)]) -> BTreeSet<(String, i32)> {
    route.iter().map(|(name, permission)| ((*name).to_owned(), *permission)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_over_two_groups_is_one_topic_to_whoever_uses_it() {
    const COUNT: usize = 120;
    let cluster = TwoGroups::start().await;
    cluster.admin_command(&["topic", "create", "orders", "--queues", "2"]);
    cluster.admin_command(&["topic", "create", "later", "--type", "DELAY", "--queues", "1"]);
    cluster.admin_command(&["group", "create", "g"]);
    // Any replica of any group gives the whole route, and says what a push consumer has to poll.
    for group in 0..2 {
        for node in 1..=3 {
            let client = cluster.client(group, node);
            assert_eq!(routed(&client, "orders").await, named(&[("group-a", 4), ("group-b", 4)]), "{group} {node}");
            let request = v2::QueryAssignmentRequest {
                topic: Some(resource("orders")),
                group: Some(resource("g")),
                endpoints: None,
            };
            let told = client.messaging.query_assignment(client.options(LONG), request).await.expect("an answer").body;
            assert_eq!(told.assignments.len(), 2);
        }
    }
    let producer = cluster.producer();
    for number in 0..COUNT {
        send(&producer, "orders", &format!("m-{number}")).await;
    }
    let counts = cluster.counts("orders").await;
    assert_eq!(counts, [COUNT as u64 / 2; 2], "groups take turns");
    let consumer = cluster.consumer("g", "orders");
    cluster.eventually("all is consumed", async || consumer.ids().len() == COUNT).await;

    // What a client was given by one group it may show to the other.
    let (at_a, at_b) = (cluster.client(0, 1), cluster.client(1, 2));
    let soon = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64 + 600;
    let delayed = message("later", "recalled", |system| {
        system.message_type = v2::MessageType::Delay.into();
        system.delivery_timestamp = Some(prost_types::Timestamp { seconds: soon, nanos: 0 });
    });
    let request = v2::SendMessageRequest { messages: vec![delayed] };
    let reply = at_a.messaging.send_message(at_a.options(LONG), request).await.expect("an answer").body;
    let recall = v2::RecallMessageRequest {
        topic: Some(resource("later")),
        recall_handle: reply.entries[0].recall_handle.clone(),
    };
    let recalled = at_b.messaging.recall_message(at_b.options(LONG), recall).await.expect("an answer").body;
    assert_eq!((recalled.status.unwrap().code, recalled.message_id.as_str()), (OK, "recalled"));
    admin_call!(
        at_a,
        create_group,
        admin::CreateGroupRequest {
            group: Some(admin::Group { name: "h".to_owned(), max_deliveries: 9, ..Default::default() }),
        }
    );
    let held = at_a.receive("h", "orders", LONG, LONG).await;
    assert_eq!(held.code, OK);
    let (code, handle) = at_b.change_invisible("h", "orders", handle_of(&held.messages[0]), 60_000).await;
    assert_eq!(code, OK);
    assert_ne!(handle, handle_of(&held.messages[0]));
    assert_eq!(at_b.ack("h", "orders", &held.messages[1..2]).await, OK, "{}", id_of(&held.messages[1]));

    // The operator's view is one of all groups.
    let listed = cluster.admin_command(&["--json", "topic", "describe", "orders"]);
    assert!(listed.contains("\"queues\": 4") && listed.contains("group-b"), "{listed}");
    let status = cluster.admin_command(&["cluster", "status"]);
    assert!(status.contains("group-a") && status.contains("group-b"), "{status}");
    assert_eq!(cluster.sdk().admin().broker_groups().await.unwrap(), GROUPS);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_group_has_one_queue_of_all_whoever_is_asked_and_keeps_its_order_when_its_topic_moves() {
    const CUSTOMERS: usize = 8;
    let cluster = TwoGroups::start().await;
    cluster.admin_command(&["topic", "create", "steps", "--type", "FIFO", "--queues", "2"]);
    cluster.admin_command(&["group", "create", "g", "--order"]);
    let clients: Vec<Client> =
        (0..2).flat_map(|group| (1..=3).map(move |node| (group, node))).map(|(g, n)| cluster.client(g, n)).collect();
    let mut owners = BTreeMap::<usize, String>::new();
    let step = |customer: usize, number: usize| {
        message("steps", &format!("{customer}-{number}"), |system| {
            system.message_group = Some(format!("customer-{customer}"));
        })
    };
    for number in 0..6 {
        for customer in 0..CUSTOMERS {
            // Another replica each time, of either group.
            let client = &clients[(number * 5 + customer) % clients.len()];
            let group = sent_to(client, step(customer, number)).await;
            assert_eq!(*owners.entry(customer).or_insert_with(|| group.clone()), group, "customer {customer}");
        }
    }
    assert_eq!(owners.values().collect::<BTreeSet<_>>().len(), 2, "both groups have some: {owners:?}");
    let one_more = OutgoingMessage::new("steps".try_into().unwrap(), "x").with_message_group("customer-0");
    let receipt = cluster.producer().send(one_more.with_id("0-6".try_into().unwrap())).await;
    assert_eq!(receipt.unwrap().broker_group, owners[&0], "our library agrees");

    // It moves to one group: nothing is taken until all is consumed.
    let admin = cluster.sdk().admin();
    let (name, to) = ("steps".try_into().unwrap(), ["group-a".to_owned()]);
    let Spread::Waits { reason } = admin.spread_topic(&name, &to).await.unwrap() else { panic!("it is not consumed") };
    assert!(reason.contains("group-"), "{reason}");
    let refused = clients[4].send(step(3, 6)).await;
    assert_eq!(refused.code, v2::Code::HaNotAvailable as i32);
    let consumer = cluster.consumer("g", "steps");
    let moved = admin.spread_topic_within(&name, &to, LONG).await.unwrap();
    assert_eq!(moved, Spread::Done { groups: vec!["group-a".to_owned()] });
    for customer in 1..CUSTOMERS {
        assert_eq!(sent_to(&clients[customer % clients.len()], step(customer, 6)).await, "group-a");
    }
    cluster.eventually("all is consumed", async || consumer.ids().len() == 7 * CUSTOMERS).await;
    let mut next = BTreeMap::<String, usize>::new();
    for id in consumer.seen.lock().unwrap().iter() {
        let (customer, number) = id.split_once('-').unwrap();
        let next = next.entry(customer.to_owned()).or_default();
        assert_eq!(number.parse::<usize>().unwrap(), *next, "of customer {customer}");
        *next += 1;
    }
}

/// Sends until it is told to stop; what was sent.
fn keep_sending(
    cluster: &TwoGroups,
    topic: &'static str,
    prefix: &'static str,
    stop: Arc<Mutex<bool>>,
) -> Task<Vec<flotilla_client::SendReceipt>> {
    let (producer, runtime) = (cluster.producer(), cluster.runtime.clone());
    cluster.runtime.spawn("sends", async move {
        let mut receipts = Vec::new();
        while !*stop.lock().unwrap() {
            receipts.push(send(&producer, topic, &format!("{prefix}-{}", receipts.len())).await);
            runtime.sleep(Duration::from_millis(5)).await;
        }
        receipts
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn no_send_fails_when_one_group_loses_its_majority_and_nothing_is_lost() {
    let mut cluster = TwoGroups::start().await;
    cluster.admin_command(&["topic", "create", "orders", "--queues", "2"]);
    let admin = cluster.sdk().admin();
    admin.create_group(&GroupSpec::new("g".try_into().unwrap())).await.unwrap();
    let stop: Arc<Mutex<bool>> = Arc::default();
    let senders: Vec<_> = ["x", "y", "z"].map(|prefix| keep_sending(&cluster, "orders", prefix, stop.clone())).into();
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    let alive = cluster.kill(0, 2).await;
    // A client of the one that is left goes on as well, and is told to go elsewhere soon.
    let survivor = cluster.client(0, alive[0]);
    assert_eq!(sent_to(&survivor, message("orders", "by-survivor", |_| ())).await, "group-b");
    cluster
        .eventually("the route leaves group-a to readers", async || {
            let at_b = routed(&cluster.client(1, 1), "orders").await;
            at_b == named(&[("group-a", 2), ("group-b", 4)]) && routed(&survivor, "orders").await == at_b
        })
        .await;
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    *stop.lock().unwrap() = true;
    let mut receipts = Vec::new();
    for sender in senders {
        receipts.extend(sender.await.expect("no send failed"));
    }
    let late = receipts.iter().rev().take(20).all(|receipt| receipt.broker_group == "group-b");
    assert!(late, "all go to the group that lives");

    // Its messages are there when it is back.
    cluster.restart(0);
    cluster.leader(0).await;
    let consumer = cluster.consumer("g", "orders");
    let mut expected: BTreeSet<String> = receipts.iter().map(|receipt| receipt.message_id.to_string()).collect();
    expected.insert("by-survivor".to_owned());
    cluster.eventually("all is consumed", async || consumer.ids().is_superset(&expected)).await;
    cluster
        .eventually("both are written again", async || {
            routed(&cluster.client(1, 1), "orders").await == named(&[("group-a", 4), ("group-b", 4)])
        })
        .await;
    // Twice is only what its receipt said might be.
    let mut times = BTreeMap::<String, usize>::new();
    consumer.seen.lock().unwrap().iter().for_each(|id| *times.entry(id.clone()).or_default() += 1);
    let excused: BTreeSet<String> = receipts
        .iter()
        .filter(|receipt| receipt.maybe_also_in.is_some())
        .map(|receipt| receipt.message_id.to_string())
        .collect();
    for (id, count) in times {
        assert!(count == 1 || excused.contains(&id), "{id} came {count} times");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_drained_group_is_read_to_its_end_takes_nothing_new_and_comes_back() {
    let mut cluster = TwoGroups::start().await;
    cluster.sdk().admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 2)).await.unwrap();
    cluster.admin_command(&["topic", "create", "steps", "--type", "FIFO", "--queues", "2"]);
    let producer = cluster.producer();
    for number in 0..40 {
        send(&producer, "orders", &format!("m-{number}")).await;
    }
    let told = cluster.admin_command(&["broker-group", "wipe-write-perm", "group-b"]);
    assert!(told.contains("group-b takes no messages any more") && told.contains("steps"), "{told}");
    let drained = cluster.counts("orders").await[1];
    assert_eq!(drained, 20);
    for number in 40..80 {
        assert_eq!(send(&producer, "orders", &format!("m-{number}")).await.broker_group, "group-a");
    }
    // Clients that keep their old route are served too.
    assert_eq!(sent_to(&cluster.client(1, 3), message("orders", "m-80", |_| ())).await, "group-a");
    cluster
        .eventually("the route says so", async || {
            routed(&cluster.client(0, 2), "orders").await == named(&[("group-a", 4), ("group-b", 2)])
        })
        .await;
    // The group keeps to it through its leaders, and when all of it is started anew.
    cluster.kill(1, 1).await;
    cluster.leader(1).await;
    assert_eq!(sent_to(&cluster.client(0, 3), message("orders", "m-81", |_| ())).await, "group-a");
    for node in (1..=3).filter(|node| cluster.brokers[1][*node as usize - 1].is_some()) {
        let at_b = cluster.client(1, node);
        assert_eq!(sent_to(&at_b, message("orders", &format!("n-{node}"), |_| ())).await, "group-a");
    }
    cluster.kill(1, 2).await;
    cluster.restart(1);
    let leader = cluster.leader(1).await;
    let at_b = cluster.client(1, leader);
    cluster
        .eventually("it knows the other group again", async || {
            let told = at_b.admin.cluster_status(at_b.options(LONG), admin::ClusterStatusRequest::default()).await;
            told.is_ok_and(|told| told.write_wiped && !told.other_groups.is_empty())
        })
        .await;
    assert_eq!(sent_to(&at_b, message("orders", "n-0", |_| ())).await, "group-a");
    assert_eq!(cluster.counts("orders").await[1], drained, "nothing new");
    let listed = cluster.admin_command(&["broker-group", "list"]);
    assert!(listed.contains("wiped"), "{listed}");
    let consumer = cluster.consumer("g", "orders");
    cluster.eventually("all is consumed", async || consumer.ids().len() == 85).await;

    cluster.admin_command(&["broker-group", "add-write-perm", "group-b"]);
    cluster
        .eventually("both are written again", async || {
            let receipt = send(&producer, "orders", &format!("again-{}", consumer.ids().len())).await;
            receipt.broker_group == "group-b"
        })
        .await;
    let spec = TopicSpec { message_type: MessageType::Fifo, ..TopicSpec::new("steps".try_into().unwrap(), 2) };
    assert!(cluster.sdk().admin().create_topic(&spec).await.unwrap(), "it is there, as it was");
}

/// C03: where a consumer group starts is said of a topic, not of the broker groups that get it later.
#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_is_away_when_its_topic_comes_to_another_broker_group_misses_nothing() {
    const COUNT: usize = 40;
    let mut cluster = TwoGroups::start().await;
    for (topic, kind) in [("orders", "NORMAL"), ("steps", "FIFO")] {
        cluster.admin_command(&["topic", "create", topic, "--type", kind, "--queues", "2", "--over", "group-a"]);
    }
    cluster.admin_command(&["group", "create", "g", "--start", "last"]);
    for topic in ["orders", "steps"] {
        let at_a = cluster.client(0, 1);
        assert_eq!(at_a.receive("g", topic, Duration::ZERO, LONG).await.code, NOTHING_THERE, "it has met {topic}");
        let spread = cluster.admin_command(&["topic", "spread", topic]);
        assert!(spread.contains("group-b"), "{spread}");
    }
    cluster.kill(1, 1).await;
    cluster.leader(1).await;
    let (mut sent, deadline) = (0, cluster.runtime.now() + LONG);
    let mut counts = [[0; 2]; 2];
    let producer = cluster.producer();
    while counts.iter().any(|count| count[1] == 0) {
        assert!(cluster.runtime.now() < deadline, "nothing comes to the second broker group: {counts:?}");
        for number in sent..sent + COUNT {
            send(&producer, "orders", &format!("m-{number}")).await;
            let message = OutgoingMessage::new("steps".try_into().unwrap(), "a body");
            let message = message.with_id(format!("s-{number}").try_into().unwrap());
            producer.send(message.with_message_group(format!("g-{number}"))).await.expect("stored");
        }
        sent += COUNT;
        counts = [cluster.counts("orders").await, cluster.counts("steps").await];
    }
    for ((topic, prefix), count) in [("orders", "m"), ("steps", "s")].into_iter().zip(counts) {
        assert_eq!(count[0] + count[1], sent as u64, "{topic}: {count:?}");
        let consumer = cluster.consumer("g", topic);
        let all: BTreeSet<String> = (0..sent).map(|number| format!("{prefix}-{number}")).collect();
        cluster.eventually("nothing is skipped", async || consumer.ids() == all).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_asked_about_at_a_producer_that_only_another_group_knows() {
    let cluster = TwoGroups::start().await;
    let (here, there) = (cluster.client(0, cluster.leader(0).await), cluster.client(1, cluster.leader(1).await));
    for client in [&here, &there] {
        client.create_topic("payments", v2::MessageType::Transaction, 1).await;
    }
    // It listens at a follower of the first group; its message is in the second one.
    let listening = cluster.client(0, 1 + cluster.leader(0).await % u64::from(NODES));
    let (_stream, mut asked) = listen(&listening).await;
    let half = message("payments", "open", |system| system.message_type = v2::MessageType::Transaction.into());
    let sent = there.send_for_entry(half).await;
    let question = cluster.runtime.timeout(LONG, asked.recv()).await.expect("asked in time").expect("asked");
    assert_eq!(id_of(question.message.as_ref().expect("the message itself")), "open");
    assert_eq!(question.transaction_id, sent.transaction_id);
    // Its answer finds the way back, whomever it is told.
    let committed = end(&listening, "open", &question.transaction_id, v2::TransactionResolution::Commit).await;
    assert_eq!(committed, OK);
    cluster.eventually("it is seen", async || cluster.counts("payments").await == [0, 1]).await;
}
