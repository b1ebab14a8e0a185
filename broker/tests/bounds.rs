//! What is made when it is first used, how sends are spread, and what is refused while somebody takes too much.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, Cluster, message, resource};
use flotilla_metrics::{Exposition, Scrape};
use flotilla_proto::admin::{self, DescribeTopicReply};
use flotilla_proto::v2::{self, MessageType, QueryRouteRequest};

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
