//! What is made when it is first used, how sends are spread, and what is refused while somebody takes too much.

use std::time::Duration;

use crate::support::{Cluster, message};
use flotilla_proto::admin;
use flotilla_proto::v2::MessageType;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_and_a_group_are_made_when_first_used_if_the_settings_say_so() {
    let cluster = Cluster::start_with(1, |config| config.auto_create_topics = true).await;
    let client = cluster.client(1);
    assert_eq!(client.send(message("fresh", "m-0", |_| ())).await.code, 20000);
    let request = admin::DescribeTopicRequest { name: "fresh".to_owned() };
    let described = client.admin.describe_topic(client.options(LONG), request).await.expect("an answer");
    assert_eq!(described.topic.expect("a topic").queue_count, 4);
    assert_eq!(client.receive("new-readers", "fresh", LONG, LONG).await.ids(), ["m-0"], "from the first message on");
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
