//! One replica alone: what clients may do with it, end to end over real sockets.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Cluster, handle_of, id_of, message, resource, system_of};
use flotilla_proto::AckPlace;
use flotilla_proto::metadata::ACK_PLACE;
use flotilla_proto::v2::MessageType;

const SHORT: Duration = Duration::from_millis(600);
const LONG: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn a_message_goes_in_comes_out_and_is_gone_after_its_ack() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 4).await;

    // Each send is answered with the client's own id and the place where it lies.
    let mut queues = BTreeSet::new();
    for number in 0..8 {
        let reply = client.send_all(vec![message("orders", &format!("m-{number}"), |_| ())]).await;
        assert_eq!(reply.body.status.as_ref().map(|status| status.code), Some(20000));
        assert_eq!(reply.body.entries[0].message_id, format!("m-{number}"));
        let place: AckPlace = reply.value_of(ACK_PLACE).expect("a place").parse().expect("a readable place");
        assert_eq!((place.leader, place.offset), (1, reply.body.entries[0].offset as u64));
        queues.insert(place.queue);
    }
    assert_eq!(queues.len(), 4, "plain messages take turns");

    // A group nobody made gets all of them, wherever they are.
    let mut ids = BTreeSet::new();
    let mut all = Vec::new();
    while ids.len() < 8 {
        let received = client.receive("readers", "orders", LONG, LONG).await;
        assert_eq!(received.code, 20000);
        ids.extend(received.ids());
        all.extend(received.messages);
    }
    assert_eq!(all.len(), 8, "nothing twice");
    for one in &all {
        assert_eq!(one.body, format!("body of {}", id_of(one)));
        assert_eq!(system_of(one).delivery_attempt, Some(1));
    }
    assert_eq!(client.ack("readers", "orders", &all).await, 20000);
    assert_eq!(client.ack("readers", "orders", &all).await, 20000, "a repeated ack is no error");
    let empty = client.receive("readers", "orders", SHORT, LONG).await;
    assert_eq!((empty.code, empty.messages.len()), (40401, 0));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_poll_wakes_when_a_message_arrives() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 4).await;
    let waiting = {
        let client = client.clone();
        cluster.runtime.spawn("poll", async move { client.receive("g", "orders", LONG, LONG).await })
    };
    cluster.runtime.sleep(Duration::from_millis(300)).await;
    let started = cluster.runtime.now();
    assert_eq!(client.send(message("orders", "m", |_| ())).await.code, 20000);
    assert_eq!(waiting.await.expect("the poll ends").ids(), ["m"]);
    assert!(cluster.runtime.now() - started < Duration::from_secs(5), "woken, not timed out");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_acked_comes_again_and_goes_to_the_dead_letters_in_the_end() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 2).await;
    client.send(message("orders", "m", |_| ())).await;

    let first = client.receive("g", "orders", LONG, Duration::from_millis(400)).await;
    assert_eq!(system_of(&first.messages[0]).delivery_attempt, Some(1));
    let second = client.receive("g", "orders", LONG, Duration::from_millis(400)).await;
    assert_eq!(second.ids(), ["m"], "woken by its due time");
    assert_eq!(system_of(&second.messages[0]).delivery_attempt, Some(2));
    assert_eq!(client.ack("g", "orders", &first.messages).await, 40013, "the first receipt is void");

    // The third time it is a dead letter; this poll finds nothing else.
    let third = client.receive("g", "orders", Duration::from_secs(2), LONG).await;
    assert_eq!((third.code, third.messages.len()), (40401, 0));
    let dead = client.receive("undertaker", "%DLQ%g", LONG, LONG).await;
    assert_eq!(dead.ids(), ["m"]);
    assert_eq!(dead.messages[0].body, "body of m");
    assert_eq!(client.ack("undertaker", "%DLQ%g", &dead.messages).await, 20000);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_invisible_time_can_be_shortened_and_prolonged() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.send(message("orders", "m", |_| ())).await;
    let first = client.receive("g", "orders", LONG, LONG).await;

    let (code, shortened) = client.change_invisible("g", "orders", handle_of(&first.messages[0]), 3).await;
    assert_eq!(code, 20000);
    assert_ne!(shortened, handle_of(&first.messages[0]));
    let again = client.change_invisible("g", "orders", handle_of(&first.messages[0]), 3).await;
    assert_eq!(again, (20000, shortened), "the same change again gets the same answer");

    let second = client.receive("g", "orders", LONG, Duration::from_millis(500)).await;
    assert_eq!(second.ids(), ["m"], "visible at once");
    let (code, prolonged) = client.change_invisible("g", "orders", handle_of(&second.messages[0]), 30_000).await;
    assert_eq!(code, 20000);
    assert_eq!(client.receive("g", "orders", Duration::from_secs(1), LONG).await.code, 40401, "hidden for longer");
    let mut acked = second.messages[0].clone();
    acked.system_properties.as_mut().expect("system properties").receipt_handle = Some(prolonged);
    assert_eq!(client.ack("g", "orders", &[acked]).await, 20000);
    let (code, _) = client.change_invisible("g", "orders", "no handle", 0).await;
    assert_eq!(code, 40013);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_filtered_and_the_others_do_not_stand_in_the_way() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    for number in 0..40 {
        let tag = ["TagA", "TagB", "TagC", ""][number % 4];
        client.send(message("orders", &format!("m-{number}"), |system| system.tag = Some(tag.to_owned()))).await;
    }
    let filter = |request: &mut flotilla_proto::v2::ReceiveMessageRequest| {
        request.filter_expression =
            Some(flotilla_proto::v2::FilterExpression { r#type: 1, expression: "TagA || TagB".to_owned() });
    };
    let received = client.receive_with("g", "orders", LONG, LONG, filter).await;
    assert_eq!(received.messages.len(), 20);
    let tags: BTreeSet<_> = received.messages.iter().filter_map(|one| system_of(one).tag.clone()).collect();
    assert_eq!(tags, BTreeSet::from(["TagA".to_owned(), "TagB".to_owned()]));
    assert_eq!(client.ack("g", "orders", &received.messages).await, 20000);
    let rest = client.receive_with("g", "orders", SHORT, LONG, filter).await;
    assert_eq!(rest.code, 40401);
    // One more that is wanted, behind those that are not.
    client.send(message("orders", "late", |system| system.tag = Some("TagB".to_owned()))).await;
    assert_eq!(client.receive_with("g", "orders", LONG, LONG, filter).await.ids(), ["late"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ordered_group_gets_a_queue_s_messages_one_batch_after_the_other() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("steps", MessageType::Fifo, 4).await;
    client.create_group("g", true, 5).await;
    let grouped = |id: &str| message("steps", id, |system| system.message_group = Some("customer".to_owned()));
    for number in 0..3 {
        assert_eq!(client.send(grouped(&format!("m-{number}"))).await.code, 20000);
    }
    let first = client.receive_with("g", "steps", LONG, LONG, |request| request.batch_size = 2).await;
    assert_eq!(first.ids(), ["m-0", "m-1"]);
    assert_eq!(client.receive("g", "steps", SHORT, LONG).await.code, 40401, "the queue waits for its acks");
    assert_eq!(client.ack("g", "steps", &first.messages).await, 20000);
    assert_eq!(client.receive("g", "steps", LONG, LONG).await.ids(), ["m-2"]);

    let plain = client.send(message("steps", "x", |_| ())).await;
    assert_eq!(plain.code, 40014, "{}", plain.message);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_with_an_attempt_id_can_be_repeated() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 4).await;
    for number in 0..8 {
        client.send(message("orders", &format!("m-{number}"), |_| ())).await;
    }
    let attempt =
        |request: &mut flotilla_proto::v2::ReceiveMessageRequest| request.attempt_id = Some("try-1".to_owned());
    let first = client.receive_with("g", "orders", LONG, LONG, attempt).await;
    assert!(!first.messages.is_empty());
    let again = client.receive_with("g", "orders", LONG, LONG, attempt).await;
    let sorted = |ids: Vec<String>| ids.into_iter().collect::<BTreeSet<_>>();
    assert_eq!(sorted(first.ids()), sorted(again.ids()), "the answer that might be lost is given again");
    assert_eq!(system_of(&again.messages[0]).delivery_attempt, Some(1), "and counts once");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusals_name_what_is_wrong_and_leave_nothing_behind() {
    let cluster = Cluster::start_with(1, |config| {
        config.auto_create_topics = false;
        config.auto_create_groups = false;
    })
    .await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let unknown = client.send(message("nowhere", "m", |_| ())).await;
    assert_eq!(unknown.code, 40402);
    assert!(unknown.message.contains("nowhere"), "{}", unknown.message);
    assert_eq!(client.send(message("or ders", "m", |_| ())).await.code, 40002);
    let mut empty = message("orders", "m", |_| ());
    empty.body = bytes::Bytes::new();
    assert_eq!(client.clone().in_language("PYTHON").send(empty.clone()).await.code, 41302);
    assert_eq!(client.send(empty).await.code, 40016, "a code that the Rust client knows");
    let no_group = client.receive("strangers", "orders", SHORT, LONG).await;
    assert_eq!(no_group.code, 40403);
    let topic = |name: &str, queue_count| flotilla_proto::admin::CreateTopicRequest {
        topic: Some(flotilla_proto::admin::Topic { name: name.to_owned(), queue_count, ..Default::default() }),
        ..Default::default()
    };
    let create = |request| async {
        let reply = client.admin.create_topic(client.options(LONG), request).await.expect("an answer");
        reply.status.expect("a status")
    };
    assert_eq!(create(topic("%DLQ%g", 1)).await.code, 40002);
    assert_eq!(create(topic("big", 1_000_000)).await.code, 40000);
    assert_eq!(create(topic("orders", 1)).await.code, 20000, "the same again");
    let other = create(topic("orders", 2)).await;
    assert_eq!(other.code, 40000);
    assert!(other.message.contains("orders"), "{}", other.message);

    // A delayed message has a topic of its own kind, and a plain one is not taken there.
    client.create_topic("later", MessageType::Delay, 1).await;
    let delayed = message("orders", "m", |system| system.delivery_timestamp = Some(prost_types::Timestamp::default()));
    assert_eq!(client.send(delayed).await.code, 40014);
    assert_eq!(client.send(message("later", "m", |_| ())).await.code, 40014);
    let routes = client
        .messaging
        .query_route(
            client.options(LONG),
            flotilla_proto::v2::QueryRouteRequest { topic: Some(resource("nowhere")), endpoints: None },
        )
        .await
        .expect("an answer");
    assert_eq!(routes.body.status.expect("a status").code, 40402);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repeated_send_is_stored_once() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 4).await;
    let first = client.send_all(vec![message("orders", "m", |_| ())]).await;
    let again = client.send_all(vec![message("orders", "m", |_| ())]).await;
    assert_eq!(first.value_of(ACK_PLACE), again.value_of(ACK_PLACE));
    let received = client.receive("g", "orders", LONG, LONG).await;
    assert_eq!(received.ids(), ["m"]);
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, 40401);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_taken_port_is_named_and_nothing_is_left_running() {
    let cluster = Cluster::start(1).await;
    let mut config = cluster.configs[0].clone();
    config.data_dir = config.data_dir.join("other");
    let error = flotilla_broker::Broker::start(config.clone(), cluster.runtime.clone()).await.map(|_| ());
    let text = error.expect_err("the port is taken").to_string();
    assert!(text.contains(cluster.address(1)), "{text}");
    assert!(!config.data_dir.exists(), "nothing half done");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn lite_and_priority_get_a_clear_no_from_every_call() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    for kind in [MessageType::Lite, MessageType::Priority] {
        let topic = flotilla_proto::admin::Topic {
            name: "odd".to_owned(),
            message_type: kind.into(),
            queue_count: 1,
            ..Default::default()
        };
        let request = flotilla_proto::admin::CreateTopicRequest { topic: Some(topic), ..Default::default() };
        let reply = client.admin.create_topic(client.options(LONG), request).await.expect("an answer");
        let status = reply.status.expect("a status");
        assert_eq!(status.code, 50500, "{}", status.message);
        assert!(status.message.contains(kind.as_str_name()), "{}", status.message);
    }
    client.create_topic("orders", MessageType::Normal, 1).await;
    let lite = message("orders", "m", |system| system.lite_topic = Some("l".to_owned()));
    let urgent = message("orders", "m", |system| system.priority = Some(3));
    for odd in [lite, urgent] {
        let status = client.send(odd).await;
        assert_eq!(status.code, 40014, "{}", status.message);
        assert!(status.message.contains("not supported"), "{}", status.message);
    }
    let request = flotilla_proto::v2::SyncLiteSubscriptionRequest::default();
    let reply = client.messaging.sync_lite_subscription(client.options(LONG), request).await.expect("an answer");
    assert_eq!(reply.body.status.expect("a status").code, 50100);
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, 40401, "nothing was stored");
    cluster.shutdown().await;
}
