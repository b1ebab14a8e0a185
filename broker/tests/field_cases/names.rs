//! B14: names at the limits and odd ones: refused by every call with the same word, or good for everything a name is for.

use std::time::Duration;

use flotilla_message::limits;
use flotilla_proto::admin;
use flotilla_proto::v2::{MessageType, QueryRouteRequest};

use crate::support::{Client, Cluster, message, resource};

const LONG: Duration = Duration::from_secs(20);
const OK: i32 = 20000;
const ILLEGAL_TOPIC: i32 = 40002;
const ILLEGAL_GROUP: i32 = 40003;

async fn create(client: &Client, name: &str) -> i32 {
    let topic = admin::Topic { name: name.to_owned(), queue_count: 1, ..Default::default() };
    let request = admin::CreateTopicRequest { topic: Some(topic), ..Default::default() };
    let reply = client.admin.create_topic(client.options(LONG), request).await.expect("an answer");
    reply.status.expect("a status").code
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_is_refused_by_every_call_or_good_for_all_that_follows_from_it() {
    let mut cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    let text = |bytes: usize| "n".repeat(bytes);
    let odd = ["a/b", "..", "a b", "nul\0", "smile-\u{1f600}", "\u{5e9}\u{5dc}\u{5d5}\u{5dd}", "tab\t", "a.b", "a:b"];
    let illegal = [String::new(), text(128), text(255), text(256)].into_iter().chain(odd.map(str::to_owned));
    for name in illegal {
        assert_eq!(create(&client, &name).await, ILLEGAL_TOPIC, "{name:?}");
        assert_eq!(client.send(message(&name, "m", |_| ())).await.code, ILLEGAL_TOPIC, "{name:?}");
        let request = QueryRouteRequest { topic: Some(resource(&name)), endpoints: None };
        let route = client.messaging.query_route(client.options(LONG), request).await.expect("an answer").body;
        assert_eq!(route.status.expect("a status").code, ILLEGAL_TOPIC, "{name:?}");
        let group = admin::Group { name: name.clone(), ..Default::default() };
        let request = admin::CreateGroupRequest { group: Some(group) };
        let made = client.admin.create_group(client.options(LONG), request).await.expect("an answer");
        assert_eq!(made.status.expect("a status").code, ILLEGAL_GROUP, "{name:?}");
    }
    // Twins by case are two; a group may be as long as leaves room for the names of its dead letters.
    let longest_group = limits::GROUP_NAME_BYTES_MAX;
    let legal = [text(1), text(120), text(127), "Orders".to_owned(), "orders".to_owned(), "a%b|c_-d".to_owned()];
    for (number, name) in legal.iter().enumerate() {
        let group = format!("g{number}{}", "x".repeat(longest_group - 2));
        assert_eq!(create(&client, name).await, OK, "{name}");
        client.create_group(&group, false, 1).await;
        assert_eq!(client.send(message(name, &format!("m-{number}"), |_| ())).await.code, OK);
        let held = client.receive(&group, name, LONG, Duration::from_millis(200)).await;
        assert_eq!(held.ids(), [format!("m-{number}")]);
        cluster.runtime.sleep(Duration::from_millis(250)).await;
        // Its one delivery is over: the next poll makes it a dead letter.
        assert_eq!(client.receive(&group, name, Duration::from_millis(300), LONG).await.code, 40401);
        let letters = client.receive("undertakers", &format!("%DLQ%{group}"), LONG, LONG).await;
        assert_eq!(letters.ids(), [format!("m-{number}")], "{name}, {group}");
    }
    cluster.kill(1);
    cluster.restart(1).await;
    cluster.leader().await;
    for name in &legal {
        let request = admin::DescribeTopicRequest { name: name.clone() };
        let described = client.admin.describe_topic(client.options(LONG), request).await.expect("an answer");
        assert_eq!(described.queues.iter().map(|queue| queue.max_offset).sum::<u64>(), 1, "{name} after the restart");
        let request = admin::DeleteTopicRequest { name: name.clone(), incarnation: 0 };
        let deleted = client.admin.delete_topic(client.options(LONG), request).await.expect("an answer");
        assert_eq!(deleted.status.expect("a status").code, OK);
    }
    client.create_topic("orders", MessageType::Fifo, 2).await;
    cluster.shutdown().await;
}
