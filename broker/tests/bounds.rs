//! What is made when it is first used, how sends are spread, and what is refused while somebody takes too much.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, Cluster, message, queue, resource};
use flotilla_metrics::{Exposition, Scrape};
use flotilla_proto::admin::{self, DescribeTopicReply};
use flotilla_proto::client::{Connector as _, ReplyStream, TonicConnector};
use flotilla_proto::v2::{self, MessageType, QueryRouteRequest};
use futures::StreamExt as _;
use futures::future::join_all;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
const OK: i32 = 20000;
const NO_TOPIC: i32 = 40402;

async fn route_code(client: &Client, topic: &str) -> i32 {
    let request = QueryRouteRequest { topic: Some(resource(topic)), endpoints: None };
    let reply = client.messaging.query_route(client.options(LONG), request).await.expect("an answer");
    let status = reply.body.status.expect("a status");
    assert!(status.code != OK || reply.body.message_queues.len() >= 4, "{topic} has queues");
    status.code
}

async fn describe(client: &Client, topic: &str) -> DescribeTopicReply {
    let request = admin::DescribeTopicRequest { name: topic.to_owned() };
    client.admin.describe_topic(client.options(LONG), request).await.expect("an answer")
}

/// What the leader counted, by kind and result.
async fn auto_created(cluster: &Cluster, kind: &str, result: &str) -> Option<f64> {
    let leader = cluster.leader().await;
    let broker = cluster.brokers[usize::try_from(leader).expect("small") - 1].as_ref().expect("it runs");
    let mut out = Exposition::new();
    broker.metrics().measure(&mut out);
    let scrape = Scrape::parse(&out.finish()).expect("of the format");
    scrape.value("flotilla_auto_created_total", &[("kind", kind), ("result", result)])
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_and_a_group_are_made_when_first_used() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    // By a send, and by a route that is asked for, at a follower.
    assert_eq!(client.send(message("fresh", "m-0", |_| ())).await.code, OK);
    assert_eq!(route_code(&client, "routed").await, OK);
    for name in ["fresh", "routed"] {
        let made = describe(&client, name).await.topic.expect("a topic");
        assert_eq!((made.queue_count, made.message_type()), (4, MessageType::Normal), "{name}");
    }
    assert_eq!(client.receive("new-readers", "fresh", LONG, LONG).await.ids(), ["m-0"], "from the first message on");

    // Nothing is made that would refuse what it is made for, nor what the broker keeps for itself, nor by who only looks.
    let ordered = message("ordered", "m-1", |system| system.message_group = Some("k".to_owned()));
    let refused = client.send(ordered).await;
    assert_eq!(refused.code, NO_TOPIC);
    assert!(refused.message.contains("made by an operator only"), "{}", refused.message);
    assert_eq!(route_code(&client, "%DLQ%nobody").await, NO_TOPIC);
    assert_eq!(client.pull("new-readers", "looked-at", 0, SHORT).await.code, NO_TOPIC);
    for name in ["ordered", "%DLQ%nobody", "looked-at"] {
        assert_eq!(describe(&client, name).await.status.expect("a status").code, NO_TOPIC, "{name}");
    }
    let counted =
        [auto_created(&cluster, "topic", "made").await, auto_created(&cluster, "consumer_group", "made").await];
    assert_eq!(counted, [Some(2.0), Some(1.0)]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_by_use_has_a_bound() {
    let cluster = Cluster::start_with(1, |config| {
        config.auto_create_topics_max = 3;
        config.auto_create_groups_max = 1;
    })
    .await;
    let client = cluster.client(1);
    for number in 0..3 {
        assert_eq!(client.send(message(&format!("t-{number}"), "m", |_| ())).await.code, OK);
    }
    let refused = client.send(message("t-3", "m", |_| ())).await;
    assert_eq!(refused.code, NO_TOPIC);
    assert!(refused.message.contains("auto_create_topics_max"), "{}", refused.message);
    assert_eq!(route_code(&client, "t-4").await, NO_TOPIC);
    assert_eq!(client.receive("a", "t-0", SHORT, LONG).await.ids(), ["m"]);
    assert_eq!(client.receive("b", "t-0", SHORT, LONG).await.code, 40403, "of the groups, too");
    assert_eq!(auto_created(&cluster, "topic", "refused").await, Some(2.0));
    assert_eq!(auto_created(&cluster, "consumer_group", "refused").await, Some(1.0));
    // An operator still makes them.
    client.create_topic("t-3", MessageType::Fifo, 1).await;
    client.create_group("b", false, 5).await;
    assert_eq!(client.receive("b", "t-0", SHORT, LONG).await.ids(), ["m"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_that_wait_take_no_places_of_sends() {
    let cluster = Cluster::start_with(3, |config| {
        config.forwarded_calls_max = 1;
        config.forwarded_polls_max = 4;
    })
    .await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("quiet", MessageType::Normal, 1).await;
    client.create_topic("busy", MessageType::Normal, 1).await;
    let polls: Vec<_> = (0..4)
        .map(|_| {
            let client = client.clone();
            cluster.runtime.spawn("poll", async move { client.receive("g", "quiet", LONG, LONG).await })
        })
        .collect();
    cluster.runtime.sleep(SHORT).await;
    // No place for a fifth, which is told so as an empty poll is; each other call finds its place.
    assert_eq!(client.receive("g", "busy", LONG, LONG).await.code, 40401);
    for number in 0..50 {
        assert_eq!(client.send(message("busy", &format!("m-{number}"), |_| ())).await.code, OK, "send {number}");
    }
    // The waiting ones are served as ever.
    for number in 0..4 {
        assert_eq!(client.send(message("quiet", &format!("q-{number}"), |_| ())).await.code, OK);
    }
    let mut came = Vec::new();
    for poll in polls {
        came.extend(cluster.runtime.timeout(LONG, poll).await.expect("in time").expect("it ends").ids());
    }
    came.sort();
    assert_eq!(came, ["q-0", "q-1", "q-2", "q-3"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_are_spread_over_all_queues_alike() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 8).await;
    for number in 0..160 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, 20000);
    }
    let request = admin::DescribeTopicRequest { name: "orders".to_owned() };
    let described = client.admin.describe_topic(client.options(LONG), request).await.expect("an answer");
    let counts: Vec<u64> = described.queues.iter().map(|queue| queue.max_offset).collect();
    assert_eq!(counts, [20; 8]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_or_client_that_takes_too_much_is_told_to_wait_and_the_others_are_served() {
    let cluster = Cluster::start_with(1, |config| {
        config.group_polls_max = 2;
        config.client_calls_max = 3;
    })
    .await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let poll = |group: &'static str| {
        let client = client.clone();
        cluster.runtime.spawn("poll", async move { client.receive(group, "orders", LONG, LONG).await })
    };
    let waiting = [poll("many"), poll("many")];
    cluster.runtime.sleep(SHORT).await;
    assert_eq!(client.receive("many", "orders", SHORT, LONG).await.code, 42900, "of the group");
    assert_eq!(client.receive("few", "orders", SHORT, LONG).await.code, 40401, "another group is served");
    let third = poll("few");
    cluster.runtime.sleep(SHORT).await;
    let refused = client.send(message("orders", "m-0", |_| ())).await;
    assert_eq!(refused.code, 42900, "of the client");
    assert!(refused.message.contains("has 3 calls under way"), "{}", refused.message);
    let mut other = client.clone();
    other.metadata = std::sync::Arc::new(flotilla_proto::metadata::of_client("another", "0"));
    assert_eq!(other.send(message("orders", "m-0", |_| ())).await.code, 20000, "another client is served");

    // What was under way goes on, and then there is room again.
    assert_eq!(third.await.expect("it ends").ids(), ["m-0"]);
    assert_eq!(client.send(message("orders", "m-1", |_| ())).await.code, 20000);
    let mut came = Vec::new();
    for poll in waiting {
        came.extend(cluster.runtime.timeout(LONG, poll).await.expect("in time").expect("it ends").ids());
    }
    came.sort();
    assert_eq!(came, ["m-0", "m-1"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_or_a_connection_without_a_client_id_that_takes_too_much_is_told_to_wait() {
    let mut cluster = Cluster::start_with(3, |config| {
        config.topic_sends_max = 2;
        config.client_calls_max = 3;
    })
    .await;
    let leader = cluster.leader().await;
    let survivors: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    let named = cluster.client(survivors[0]);
    for topic in ["many", "few"] {
        named.create_topic(topic, MessageType::Normal, 1).await;
    }
    let nameless = Client { metadata: Arc::new(flotilla_proto::metadata::of_client("", "0")), ..named.clone() };
    cluster.kill(leader);
    cluster.kill(survivors[1]);
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    // Without a quorum each send waits until its time is over.
    let send = async |client: &Client, topic: &str| {
        let request = v2::SendMessageRequest { messages: vec![message(topic, "m", |_| ())] };
        let options = client.options(Duration::from_secs(4));
        client.messaging.send_message(options, request).await.expect("an answer").body.status.expect("a status")
    };
    let waits = |topic: &'static str| {
        let nameless = nameless.clone();
        let wait = async move { send(&nameless, topic).await.code };
        cluster.runtime.spawn("send", wait)
    };
    let waiting = [waits("many"), waits("many")];
    cluster.runtime.sleep(SHORT).await;
    let refused = send(&named, "many").await;
    assert_eq!(refused.code, 42900, "{}", refused.message);
    assert!(refused.message.contains("topic 'many' has 2 calls under way"), "{}", refused.message);
    let third = waits("few");
    cluster.runtime.sleep(SHORT).await;
    let refused = send(&nameless, "few").await;
    assert_eq!(refused.code, 42900, "{}", refused.message);
    assert!(refused.message.contains("client '127.0.0.1:"), "of the connection: {}", refused.message);
    assert_eq!(send(&named, "few").await.code, 50002, "another client, another topic: waits as ever");
    for waits in waiting.into_iter().chain([third]) {
        assert_eq!(waits.await.expect("it ends"), 50002);
    }
    cluster.shutdown().await;
}

const MIB: usize = 1 << 20;

async fn wait_until(cluster: &Cluster, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..1_000 {
        if is_so() {
            return;
        }
        cluster.runtime.sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within 10 s");
}

fn scraped(cluster: &Cluster, node: u64, name: &str, labels: &[(&str, &str)]) -> f64 {
    let broker = cluster.brokers[usize::try_from(node).expect("small") - 1].as_ref().expect("it runs");
    let mut out = Exposition::new();
    broker.metrics().measure(&mut out);
    Scrape::parse(&out.finish()).expect("of the format").value(name, labels).expect("it is told")
}

fn unread(cluster: &Cluster, node: u64) -> usize {
    scraped(cluster, node, "flotilla_unread_answer_bytes", &[]) as usize
}

/// A client over a connection of its own.
fn named(cluster: &Cluster, node: u64, id: &str) -> Client {
    let connector = TonicConnector::new(cluster.runtime.clone());
    Client {
        messaging: connector.messaging(cluster.address(node)),
        metadata: Arc::new(flotilla_proto::metadata::of_client(id, "0")),
        ..cluster.client(node)
    }
}

/// Asks for the first messages of a topic, and reads nothing of the answer.
async fn unread_pull(client: &Client, topic: &str) -> ReplyStream<v2::PullMessageResponse> {
    let request = v2::PullMessageRequest {
        group: Some(resource("lookers")),
        message_queue: Some(queue(topic, 0)),
        batch_size: 8,
        // For room, where it is passed on.
        long_polling_timeout: Some(prost_types::Duration { seconds: 3, nanos: 0 }),
        ..Default::default()
    };
    client.messaging.pull_message(client.options(LONG * 10), request).await.expect("a stream")
}

async fn big_topic(client: &Client) {
    client.create_topic("big", MessageType::Normal, 1).await;
    for number in 0..8 {
        let big = v2::Message { body: vec![b'x'; MIB].into(), ..message("big", &format!("m-{number}"), |_| ()) };
        assert_eq!(client.send(big).await.code, OK);
    }
    // Makes the group.
    assert_eq!(client.pull("lookers", "big", 8, SHORT).await.code, 40401);
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_a_client_does_not_read_are_bounded_by_their_bytes_and_the_others_are_served() {
    let cluster = Cluster::start_with(1, |config| config.unread_answer_bytes_max = 64 << 20).await;
    let client = cluster.client(1);
    big_topic(&client).await;
    // 72 MiB are asked for, over several connections, because each carries only so much that is not read.
    let mut greedy = Vec::new();
    for _ in 0..3 {
        let client = named(&cluster, 1, "greedy");
        for _ in 0..3 {
            let stream = unread_pull(&client, "big").await;
            assert!(unread(&cluster, 1) <= 32 * MIB, "{} bytes", unread(&cluster, 1));
            greedy.push(stream);
        }
    }
    let refused = || scraped(&cluster, 1, "flotilla_refused_total", &[("cause", "unread_client_full")]);
    wait_until(&cluster, "its part is full", || refused() >= 1.0).await;
    let held = unread(&cluster, 1);
    assert!(held > 30 * MIB && held <= 32 * MIB, "{held} bytes");
    let again = named(&cluster, 1, "greedy");
    let mut answer = unread_pull(&again, "big").await;
    let first = answer.next().await.expect("an answer").expect("no error").content;
    let Some(v2::pull_message_response::Content::Status(status)) = first else {
        panic!("a status is first: {first:?}")
    };
    assert_eq!(status.code, 42900, "{}", status.message);
    assert!(status.message.contains("client 'greedy' has answers of"), "{}", status.message);
    assert!(status.message.contains("33554432 are allowed"), "{}", status.message);
    drop(answer);
    assert_eq!(again.receive("greedy-g", "big", SHORT, LONG).await.code, 42900, "what is handed out counts as well");

    // Another client has its part.
    for group in ["readers", "more-readers"] {
        assert_eq!(client.receive(group, "big", SHORT, LONG).await.messages.len(), 8, "{group}");
    }
    // All is given back, and what was refused was not handed out.
    drop(greedy);
    wait_until(&cluster, "all is given back", || unread(&cluster, 1) == 0).await;
    let received = again.receive("greedy-g", "big", SHORT, LONG).await;
    assert_eq!((received.code, received.messages.len()), (OK, 8));
    let attempts =
        received.messages.iter().map(|message| message.system_properties.as_ref().map(|p| p.delivery_attempt()));
    assert!(attempts.into_iter().all(|attempt| attempt == Some(1)));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_answers_of_polls_that_are_passed_on_keep_to_the_limit_where_the_client_is() {
    let cluster = Cluster::start_with(3, |config| config.unread_answer_bytes_max = 64 << 20).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let client = cluster.client(leader);
    big_topic(&client).await;
    // 128 MiB are asked for at the same time: all are on their way before the first answer is there.
    let clients: Vec<Client> = (0..16).map(|_| named(&cluster, follower, "greedy")).collect();
    let mut greedy = join_all(clients.iter().map(|client| unread_pull(client, "big"))).await;
    let held = || {
        let held = unread(&cluster, follower);
        assert!(held <= 32 * MIB, "{held} bytes");
        held
    };
    let forwarded = || scraped(&cluster, follower, "flotilla_forwarded_polls", &[]) as usize;
    wait_until(&cluster, "some have answers", || held() > 24 * MIB).await;
    // The others wait for room until their time ends. One whose time ended a moment too early may have left room for a message.
    let settled = async || {
        let mut before = 0;
        while before != held() || forwarded() != 0 {
            before = held();
            cluster.runtime.sleep(SHORT).await;
        }
    };
    settled().await;
    while held() <= 31 * MIB && greedy.len() < 48 {
        greedy.push(unread_pull(&clients[0], "big").await);
        settled().await;
    }
    assert!(held() > 31 * MIB, "{} bytes: another message would fit", held());
    assert_eq!(unread(&cluster, leader), 0);
    let again = named(&cluster, follower, "greedy");
    let refused = again.receive("greedy-g", "big", SHORT, LONG).await;
    assert_eq!((refused.code, refused.messages.len()), (42900, 0));
    assert_eq!(cluster.client(follower).receive("readers", "big", SHORT, LONG).await.messages.len(), 8);

    // Who reads gets what was counted, and makes room for those who wait for some.
    let mut count = 0;
    for stream in &mut greedy {
        while let Some(piece) = stream.next().await {
            let piece = piece.expect("no error").content;
            count += usize::from(matches!(piece, Some(v2::pull_message_response::Content::Message(_))));
            held();
        }
    }
    assert!(count >= 24, "{count} messages of a MiB");
    wait_until(&cluster, "all is given back", || unread(&cluster, follower) == 0).await;
    let received = again.receive("greedy-g", "big", SHORT, LONG).await;
    assert_eq!(received.messages.len(), 8);
    let attempts =
        received.messages.iter().map(|message| message.system_properties.as_ref().map(|p| p.delivery_attempt()));
    assert!(attempts.into_iter().all(|attempt| attempt == Some(1)), "what was refused was not handed out");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn polls_that_wait_at_the_leader_for_a_follower_hold_little_and_get_what_comes_whatever_its_size() {
    const WAITING: usize = 200;
    let cluster = Cluster::start_with(3, |config| config.unread_answer_bytes_max = 64 << 20).await;
    let (leader, follower) = (cluster.leader().await, cluster.follower().await);
    let at_leader = cluster.client(leader);
    big_topic(&at_leader).await;
    at_leader.create_topic("idle", MessageType::Normal, 4).await;
    let client = named(&cluster, follower, "patient");
    let waiting: Vec<_> = (0..WAITING)
        .map(|_| {
            let client = client.clone();
            cluster.runtime.spawn("poll", async move { client.receive("idlers", "idle", LONG, LONG * 10).await })
        })
        .collect();
    let forwarded = || scraped(&cluster, follower, "flotilla_forwarded_polls", &[]) as usize;
    wait_until(&cluster, "they wait at the leader", || forwarded() == WAITING).await;
    wait_until(&cluster, "and hold a quarter of its part", || unread(&cluster, follower) == 8 * MIB).await;
    // The same client has room for what is there.
    let received = client.receive("readers", "big", SHORT, LONG).await;
    assert_eq!((received.code, received.messages.len()), (OK, 8));
    for number in 0..12 {
        let body = vec![b'x'; if number % 2 == 0 { 1 } else { MIB }];
        let sent = v2::Message { body: body.into(), ..message("idle", &format!("i-{number}"), |_| ()) };
        assert_eq!(at_leader.send(sent).await.code, OK);
    }
    let received = join_all(waiting).await;
    let mut ids: Vec<String> = received.iter().flat_map(|received| received.as_ref().expect("it ends").ids()).collect();
    ids.sort_unstable();
    let mut sent: Vec<String> = (0..12).map(|number| format!("i-{number}")).collect();
    sent.sort_unstable();
    assert_eq!(ids, sent, "each came once");
    wait_until(&cluster, "all is given back", || unread(&cluster, follower) == 0).await;
    cluster.shutdown().await;
}
