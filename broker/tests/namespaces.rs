//! Namespaces: who says one meets nothing of another, in any call, however it is said.

use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, Cluster, handle_of, message, queue, resource, system_of};
use flotilla_proto::v2::{self, MessageType, QueryOffsetPolicy, TransactionResolution};
use flotilla_proto::{admin, metadata};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
const OK: i32 = 20000;
const NOTHING: i32 = 40401;

/// The same client as one that names its namespace in the metadata of each call.
fn within(client: &Client, namespace: &str) -> Client {
    let mut client = client.clone();
    let mut metadata = metadata::of_client(&format!("test@{namespace}"), "0");
    metadata.push((metadata::NAMESPACE.into(), namespace.to_owned()));
    client.metadata = Arc::new(metadata);
    client
}

fn of_namespace(namespace: &str, name: &str) -> v2::Resource {
    v2::Resource { resource_namespace: namespace.to_owned(), name: name.to_owned() }
}

fn delayed(id: &str, wall_ms: u64) -> v2::Message {
    message("later", id, |system| {
        let seconds = i64::try_from(wall_ms / 1000).expect("not so far");
        system.delivery_timestamp = Some(prost_types::Timestamp { seconds, nanos: 0 });
    })
}

async fn end(client: &Client, sent: &v2::SendResultEntry) -> i32 {
    let request = v2::EndTransactionRequest {
        topic: Some(resource("tx")),
        message_id: sent.message_id.clone(),
        transaction_id: sent.transaction_id.clone(),
        resolution: TransactionResolution::Commit.into(),
        ..Default::default()
    };
    let reply = client.messaging.end_transaction(client.options(LONG), request).await.expect("an answer");
    reply.body.status.expect("a status").code
}

async fn give_up(client: &Client, held: &v2::Message) -> i32 {
    let request = v2::ForwardMessageToDeadLetterQueueRequest {
        group: Some(resource("g")),
        topic: Some(resource("orders")),
        receipt_handle: handle_of(held).to_owned(),
        message_id: system_of(held).message_id.clone(),
        delivery_attempt: 1,
        max_delivery_attempts: 1,
        ..Default::default()
    };
    let reply = client.messaging.forward_message_to_dead_letter_queue(client.options(LONG), request).await;
    reply.expect("an answer").body.status.expect("a status").code
}

#[tokio::test(flavor = "multi_thread")]
async fn two_namespaces_meet_nothing_of_each_other_in_any_call() {
    let cluster = Cluster::start_with(3, |config| config.auto_create_topics = false).await;
    let plain = cluster.client(cluster.follower().await);
    let (a, b) = (within(&plain, "a"), within(&plain, "b"));
    for (name, kind) in
        [("orders", MessageType::Normal), ("later", MessageType::Delay), ("tx", MessageType::Transaction)]
    {
        for namespace in ["a", "b"] {
            plain.create_topic(&format!("{namespace}%{name}"), kind, 1).await;
        }
    }

    // Routes: each sees its own, and the plain name is nobody's.
    for (client, code) in [(&a, OK), (&b, OK), (&plain, 40402)] {
        let request = v2::QueryRouteRequest { topic: Some(resource("orders")), endpoints: None };
        let route = client.messaging.query_route(client.options(LONG), request).await.expect("an answer").body;
        assert_eq!(route.status.expect("a status").code, code);
        let request = v2::QueryAssignmentRequest {
            topic: Some(resource("orders")),
            group: Some(resource("g")),
            ..Default::default()
        };
        let tasks = client.messaging.query_assignment(client.options(LONG), request).await.expect("an answer").body;
        assert_eq!(tasks.status.expect("a status").code, code);
    }

    // Send, receive, acknowledge, prolong, give up, read dead letters.
    for (client, id) in [(&a, "of-a"), (&b, "of-b")] {
        assert_eq!(client.send(message("orders", id, |_| ())).await.code, OK);
    }
    assert_eq!(plain.send(message("orders", "of-nobody", |_| ())).await.code, 40402);
    let held_a = a.receive("g", "orders", LONG, LONG).await;
    assert_eq!(held_a.ids(), ["of-a"]);
    let named = held_a.messages[0].topic.clone().expect("a topic");
    assert_eq!((named.name.as_str(), named.resource_namespace.as_str()), ("orders", ""), "as its consumer calls it");
    let held_b = b.receive("g", "orders", LONG, LONG).await;
    assert_eq!(held_b.ids(), ["of-b"]);
    assert_ne!(b.ack("g", "orders", &held_a.messages).await, OK, "another one's delivery");
    assert_ne!(b.change_invisible("g", "orders", handle_of(&held_a.messages[0]), 60_000).await.0, OK);
    assert_ne!(give_up(&b, &held_a.messages[0]).await, OK);
    assert_eq!(b.ack("g", "orders", &held_b.messages).await, OK);
    assert_eq!(give_up(&a, &held_a.messages[0]).await, OK);
    assert_eq!(a.receive("undertakers", "%DLQ%g", LONG, LONG).await.ids(), ["of-a"]);
    assert_eq!(b.receive("undertakers", "%DLQ%g", SHORT, LONG).await.code, NOTHING, "it has none");
    assert_eq!(plain.receive("undertakers", "%DLQ%a%g", LONG, LONG).await.ids(), ["of-a"], "an operator sees all");

    // Pull and positions.
    for (client, id) in [(&a, "of-a"), (&b, "of-b")] {
        assert_eq!(client.pull("pullers", "orders", 0, LONG).await.ids(), [id]);
        assert_eq!(client.query_offset("orders", QueryOffsetPolicy::End, None).await, (OK, 1));
    }
    assert_eq!(a.update_offset("pullers", "orders", 1).await, OK);
    assert_eq!(a.get_offset("pullers", "orders").await, (OK, 1));
    assert_ne!(b.get_offset("pullers", "orders").await.0, OK, "it has committed none");

    // What waits: recall and transactions, by a handle of another namespace.
    let due_ms = cluster.runtime.wall_ms() + 3_600_000;
    let later = a.send_for_entry(delayed("d", due_ms)).await;
    assert_eq!(b.recall("later", &later.recall_handle).await.0, 40000);
    assert_eq!(a.recall("later", &later.recall_handle).await, (OK, "d".to_owned()));
    let half = message("tx", "half", |system| system.message_type = MessageType::Transaction.into());
    let half = a.send_for_entry(half).await;
    assert_eq!(end(&b, &half).await, 40008);
    assert_eq!(end(&a, &half).await, OK);
    assert_eq!(b.receive("g", "tx", SHORT, LONG).await.code, NOTHING);
    assert_eq!(a.receive("g", "tx", LONG, LONG).await.ids(), ["half"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_in_the_resource_is_the_same_as_one_in_the_metadata_and_a_bad_one_is_refused() {
    let cluster = Cluster::start(1).await;
    let plain = cluster.client(1);
    let a = within(&plain, "a");
    // Made by its first use, within the namespace.
    let sent = v2::Message { topic: Some(of_namespace("a", "orders")), ..message("orders", "m", |_| ()) };
    assert_eq!(plain.send(sent).await.code, OK);
    let listed = plain.admin.list_topics(plain.options(LONG), admin::ListTopicsRequest::default()).await;
    let names: Vec<String> = listed.expect("an answer").topics.into_iter().map(|topic| topic.name).collect();
    assert_eq!(names, ["a%orders"]);
    let received = plain
        .receive_with("g", "orders", LONG, LONG, |request| {
            request.group = Some(of_namespace("a", "g"));
            request.message_queue =
                Some(v2::MessageQueue { topic: Some(of_namespace("a", "orders")), ..Default::default() });
        })
        .await;
    assert_eq!(received.ids(), ["m"]);
    assert_eq!(received.messages[0].topic, Some(of_namespace("a", "orders")));
    assert_eq!(a.ack("g", "orders", &received.messages).await, OK, "the same group");
    let pulled = plain
        .pull_with("p", "orders", 0, LONG, |request| {
            let topic = Some(of_namespace("a", "orders"));
            request.message_queue = Some(v2::MessageQueue { topic, ..queue("orders", 0) });
        })
        .await;
    assert_eq!(pulled.ids(), ["m"]);

    // One that would reach into another is no namespace.
    for bad in ["a%b", "a b", "%"] {
        let refused = within(&plain, bad).send(message("orders", "x", |_| ())).await;
        assert_eq!(refused.code, 40002, "{bad}");
        assert!(refused.message.contains("namespace"), "{}", refused.message);
        let sent = v2::Message { topic: Some(of_namespace(bad, "orders")), ..message("orders", "x", |_| ()) };
        assert_eq!(plain.send(sent).await.code, 40002, "{bad}");
    }
    cluster.shutdown().await;
}
