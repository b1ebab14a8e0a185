//! B16: two consumers of a group that have the same client id.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::v2::{self, MessageType};
use flotilla_proto::{admin, metadata};

use crate::support::{Client, Cluster, id_of, message, system_of};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
const DELIVERIES: u32 = 3;
const COUNT: usize = 20;

fn twin(client: Client) -> Client {
    Client { metadata: Arc::new(metadata::of_client("twin", "0")), ..client }
}

/// Whatever both fail to consume is delivered as often as it would be to one of them, and is one dead letter.
#[tokio::test(flavor = "multi_thread")]
async fn two_consumers_under_one_client_id_that_always_fail_make_no_copies() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 4).await;
    client.create_group("g", false, DELIVERIES).await;
    for number in 0..COUNT {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, 20000);
    }
    let consumers: Vec<_> = [1, 2]
        .map(|node| {
            let twin = twin(cluster.client(node));
            let consume = async move {
                let (mut deliveries, mut empty) = (Vec::new(), 0);
                while empty < 5 {
                    let received = twin.receive("g", "orders", SHORT, SHORT).await;
                    empty = if received.messages.is_empty() { empty + 1 } else { 0 };
                    let attempt =
                        |message: &v2::Message| (id_of(message).to_owned(), system_of(message).delivery_attempt);
                    deliveries.extend(received.messages.iter().map(attempt));
                }
                deliveries
            };
            cluster.runtime.spawn("twin", consume)
        })
        .into();
    let mut attempts = BTreeMap::<String, Vec<i32>>::new();
    for consumer in consumers {
        for (id, attempt) in consumer.await.expect("it ends") {
            attempts.entry(id).or_default().push(attempt.expect("counted"));
        }
    }
    assert_eq!(attempts.len(), COUNT);
    for (id, mut attempts) in attempts {
        attempts.sort_unstable();
        assert_eq!(attempts, [1, 2, 3], "{id}");
    }
    let list = admin::ListDeadLettersRequest { group: "g".to_owned(), ..Default::default() };
    let listed = client.admin.list_dead_letters(client.options(LONG), list).await.expect("an answer");
    assert_eq!((listed.min_offset, listed.max_offset), (0, COUNT as u64), "each is one dead letter");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn different_subscriptions_under_one_client_id_are_noticed_too() {
    let cluster = Cluster::start_with(1, |config| config.refuse_differing_subscriptions = true).await;
    let client = twin(cluster.client(1));
    client.create_topic("orders", MessageType::Normal, 1).await;
    let poll = async |tag: &str| {
        let filter = |request: &mut v2::ReceiveMessageRequest| {
            let (kind, expression) = (v2::FilterType::Tag.into(), tag.to_owned());
            request.filter_expression = Some(v2::FilterExpression { r#type: kind, expression });
        };
        client.receive_with("g", "orders", Duration::ZERO, LONG, filter).await.code
    };
    assert_eq!(poll("red").await, 40401);
    assert_eq!(poll("blue").await, 40401, "a client may change its filter");
    assert_eq!(poll("red").await, 40401, "the one that was there first");
    assert_eq!(poll("blue").await, 40000);
    let request = admin::DescribeGroupRequest { name: "g".to_owned() };
    let described = client.admin.describe_group(client.options(LONG), request).await.expect("an answer");
    assert_eq!(described.differing_topics, ["orders"]);
    let members = described.members.iter().map(|member| (member.client_id.as_str(), member.filter.as_str()));
    assert_eq!(members.collect::<Vec<_>>(), [("twin", "blue"), ("twin", "red")]);
    cluster.shutdown().await;
}
