//! Reading a queue by offset, at any replica, and positions that survive the leader.

use std::time::Duration;

use crate::support::{Cluster, id_of, message, system_of};
use flotilla_proto::admin;
use flotilla_proto::v2::{self, MessageType, QueryOffsetPolicy};

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_is_read_by_offset_at_any_replica_and_a_position_survives_the_leader() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await).in_language("JAVA");
    client.create_topic("orders", MessageType::Normal, 1).await;
    for number in 0..10 {
        let tag = if number % 2 == 0 { "even" } else { "odd" };
        let sent = message("orders", &format!("m-{number}"), |system| system.tag = Some(tag.to_owned()));
        assert_eq!(client.send(sent).await.code, 20000);
    }
    for node in 1..=3 {
        let client = cluster.client(node).in_language("JAVA");
        let pulled = client.pull_with("g", "orders", 3, NOW, |request| request.batch_size = 4).await;
        assert_eq!((pulled.code, pulled.next), (20000, Some(7)));
        assert_eq!(pulled.ids(), ["m-3", "m-4", "m-5", "m-6"]);
        assert_eq!(system_of(&pulled.messages[0]).receipt_handle, None, "nothing is handed out");
        assert_eq!(client.pull("g", "orders", 3, NOW).await.ids().len(), 7, "and nothing is hidden");
    }
    let even = |request: &mut v2::PullMessageRequest| {
        request.filter_expression =
            Some(v2::FilterExpression { r#type: v2::FilterType::Tag.into(), expression: "even".to_owned() });
    };
    let pulled = client.pull_with("g", "orders", 5, NOW, even).await;
    assert_eq!((pulled.ids(), pulled.next), (vec!["m-6".to_owned(), "m-8".to_owned()], Some(10)));

    assert_eq!(client.get_offset("g", "orders").await.0, 40404, "unknown is not 0");
    assert_eq!(client.update_offset("g", "orders", 6).await, 20000);
    assert_eq!(client.update_offset("g", "orders", 11).await, 40019, "behind the end");
    assert_eq!(client.update_offset("g", "orders", -1).await, 40019);
    let leader = cluster.leader().await;
    cluster.kill(leader);
    let client = cluster.client(if leader == 1 { 2 } else { 1 }).in_language("JAVA");
    assert_eq!(client.get_offset("g", "orders").await, (20000, 6));
    assert_eq!(
        client.receive("g", "orders", LONG, LONG).await.ids(),
        ["m-6", "m-7", "m-8", "m-9"],
        "pop goes on there"
    );
    assert_eq!(client.update_offset("g", "orders", 2).await, 20000, "back");
    assert_eq!(client.get_offset("g", "orders").await, (20000, 2));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_outside_of_the_queue_is_told_its_bounds_and_moved_nowhere() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1).in_language("JAVA");
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.send(message("orders", "m-0", |_| ())).await;
    let pulled = client.pull("g", "orders", 7, LONG).await;
    assert_eq!((pulled.code, pulled.next), (40019, Some(1)), "at once");
    assert_eq!(client.pull("g", "orders", -1, NOW).await.code, 40019);
    assert_eq!(client.pull("g", "nowhere", 0, NOW).await.code, 40402);
    let of_queue = |id| {
        move |request: &mut v2::PullMessageRequest| {
            request.message_queue = Some(crate::support::queue("orders", id));
        }
    };
    assert_eq!(client.pull_with("g", "orders", 0, NOW, of_queue(1)).await.code, 40000);
    let rust = client.clone().in_language("RUST");
    assert_eq!(rust.pull("g", "orders", 7, NOW).await.code, 40000, "it panics on codes it does not know");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_pull_wakes_on_arrival_and_goes_on_at_the_next_leader() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let runtime = &cluster.runtime;
    let mut waiting = {
        let (client, runtime) = (client.clone(), runtime.clone());
        let pull = async move { (client.pull("g", "orders", 0, LONG).await, runtime.now()) };
        Box::pin(cluster.runtime.spawn("pull", pull))
    };
    runtime.sleep(Duration::from_millis(300)).await;
    let request = admin::TransferLeaderRequest::default();
    let reply = client.admin.transfer_leader(client.options(LONG), request).await.expect("an answer");
    assert_eq!(reply.status.expect("a status").code, 20000);
    let early = runtime.timeout(Duration::from_millis(300), &mut waiting).await;
    assert!(early.is_err(), "a change of leaders is no end of a poll");
    let sent = runtime.now();
    assert_eq!(client.send(message("orders", "m-0", |_| ())).await.code, 20000);
    let (pulled, at) = waiting.await.expect("it ends");
    assert_eq!(pulled.ids(), ["m-0"]);
    assert!(at - sent < Duration::from_secs(2), "woken by the message, not by its own end");
    let began = runtime.now();
    let nothing = client.pull("g", "orders", 1, Duration::from_millis(500)).await;
    assert_eq!((nothing.code, nothing.next), (40401, Some(1)));
    assert!(runtime.now() - began >= Duration::from_millis(400));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_offset_is_found_by_time_in_a_long_queue_within_50_ms() {
    let cluster = Cluster::start_with(1, |config| config.segment_bytes = 1 << 20).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let batch = |round: usize| {
        (0..500).map(|number| message("orders", &format!("m-{round}-{number}"), |_| ())).collect::<Vec<_>>()
    };
    for round in 0..40 {
        assert_eq!(client.send_all(batch(round)).await.body.status.expect("a status").code, 20000);
        cluster.runtime.sleep(Duration::from_millis(2)).await;
    }
    let end = client.query_offset("orders", QueryOffsetPolicy::End, None).await;
    assert_eq!(end, (20000, 20_000));
    assert_eq!(client.query_offset("orders", QueryOffsetPolicy::Beginning, None).await, (20000, 0));
    for offset in [0, 499, 500, 7_777, 19_999] {
        let pulled = client.pull_with("g", "orders", offset, NOW, |request| request.batch_size = 1).await;
        let stored = system_of(&pulled.messages[0]).store_timestamp.expect("a time");
        let at_ms = u64::try_from(stored.seconds * 1000 + i64::from(stored.nanos / 1_000_000)).expect("a time");
        let began = cluster.runtime.now();
        let (code, found) = client.query_offset("orders", QueryOffsetPolicy::Timestamp, Some(at_ms)).await;
        let took = cluster.runtime.now() - began;
        assert_eq!(code, 20000);
        assert!(
            found <= offset && found % 500 == 0,
            "the first of its batch, or of an earlier one of that ms: {found}"
        );
        assert!(took < Duration::from_millis(50), "{took:?}");
        let (_, behind) = client.query_offset("orders", QueryOffsetPolicy::Timestamp, Some(at_ms + 1)).await;
        assert!(behind > offset, "nothing of a later millisecond is before {behind}");
    }
    assert_eq!(client.query_offset("orders", QueryOffsetPolicy::Timestamp, Some(u64::MAX / 1_000_000)).await, end);
    assert_eq!(client.query_offset("orders", QueryOffsetPolicy::Timestamp, None).await.0, 40000, "no time is named");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_starts_at_the_end_gets_the_first_dead_letter_after_its_first_poll() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("work", false, 1).await;
    let start = admin::StartPolicy::Last.into();
    client.create_group_of(admin::Group { name: "watch".to_owned(), start, ..Default::default() }).await;
    let short = Duration::from_millis(300);
    assert_eq!(client.receive("watch", "%DLQ%work", short, LONG).await.code, 40401);
    client.send(message("orders", "m-0", |_| ())).await;
    assert_eq!(client.receive("work", "orders", LONG, short).await.ids(), ["m-0"]);
    assert_eq!(client.receive("work", "orders", Duration::from_secs(1), LONG).await.code, 40401, "it was the last one");
    let dead = client.receive("watch", "%DLQ%work", LONG, LONG).await;
    assert_eq!(dead.messages.iter().map(id_of).collect::<Vec<_>>(), ["m-0"]);
    cluster.shutdown().await;
}
