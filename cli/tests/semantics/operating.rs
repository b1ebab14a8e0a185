//! What operators do, and what became of failed messages, under one leader and the next.

use std::time::Duration;

use flotilla_proto::admin::reset_group_request::To;
use flotilla_proto::admin::{self, StartPolicy};
use flotilla_proto::v2::MessageType;

use crate::calls::{Client, message, system_of};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK, SHORT, admin_call, consume, numbered, sorted};

const COUNT: usize = 6;

async fn send_some(client: &Client, topic: &str, prefix: &str, count: usize) {
    for number in 0..count {
        assert_eq!(client.send(message(topic, &format!("{prefix}-{number}"), |_| ())).await.code, OK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_fails_is_tried_as_often_as_told_then_lies_with_the_dead_letters_and_can_be_sent_again() {
    const INVISIBLE: Duration = Duration::from_millis(700);
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 2).await;
    client.create_group("g", false, 3).await;
    send_some(&client, "orders", "m", COUNT).await;
    // Three deliveries each, the leader dies after the first.
    let mut attempts = Vec::new();
    for round in 1..=3 {
        let mut seen = 0;
        while seen < COUNT {
            let received = client.receive("g", "orders", LONG, INVISIBLE).await;
            assert_eq!(received.code, OK, "round {round}: {attempts:?}");
            attempts.extend(received.messages.iter().map(|message| system_of(message).delivery_attempt));
            seen += received.messages.len();
        }
        if round == 1 {
            cluster.kill_leader().await;
        }
    }
    assert_eq!(attempts, [[Some(1); COUNT], [Some(2); COUNT], [Some(3); COUNT]].concat());
    cluster.runtime.sleep(INVISIBLE).await;
    assert_eq!(client.receive("g", "orders", Duration::from_secs(1), LONG).await.code, NOTHING_THERE);

    // They can be read as a topic, listed, and sent again to their group.
    assert_eq!(sorted(consume(&other, "undertakers", "%DLQ%g", COUNT).await), numbered("m", COUNT));
    let list = || admin::ListDeadLettersRequest { group: "g".to_owned(), ..Default::default() };
    let listed = admin_call!(other, list_dead_letters, list());
    assert_eq!((listed.min_offset, listed.max_offset, listed.unsent_offset), (0, COUNT as u64, 0));
    let resend = admin::ResendDeadLettersRequest { group: "g".to_owned(), offsets: Vec::new(), count: 100 };
    let resent = admin_call!(other, resend_dead_letters, resend);
    assert_eq!((resent.resent, resent.remaining), (COUNT as u64, 0));
    let again = client.receive("g", "orders", LONG, LONG).await;
    assert!(again.messages.iter().all(|message| system_of(message).delivery_attempt == Some(1)));
    assert_eq!(client.ack("g", "orders", &again.messages).await, OK);
    let mut ids = again.ids();
    if ids.len() < COUNT {
        ids.extend(consume(&client, "g", "orders", COUNT - ids.len()).await);
    }
    assert_eq!(sorted(ids), numbered("m", COUNT));
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, NOTHING_THERE);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_that_was_moved_reads_from_there_under_the_next_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 9).await;
    send_some(&client, "orders", "m", COUNT).await;
    let all = client.receive("g", "orders", LONG, LONG).await.messages;
    assert_eq!(client.ack("g", "orders", &all).await, OK);
    let stored = system_of(&all[3]).store_timestamp.expect("a time");
    let at_ms = u64::try_from(stored.seconds * 1000 + i64::from(stored.nanos / 1_000_000)).expect("a time");
    let reset = async |client: &Client, to: To| {
        let request =
            admin::ResetGroupRequest { group: "g".to_owned(), topic: "orders".to_owned(), queue: None, to: Some(to) };
        admin_call!(client, reset_group, request).queues[0].offset
    };
    // Back to a time while nobody consumes; the leader that did it dies.
    let from = reset(&client, To::TimestampMs(at_ms)).await;
    assert!(from <= 3, "{from}");
    cluster.kill_leader().await;
    let again = other.receive("g", "orders", LONG, LONG).await;
    let expected: Vec<String> = (from..COUNT as u64).map(|number| format!("m-{number}")).collect();
    assert_eq!(again.ids(), expected);
    assert!(again.messages.iter().all(|message| system_of(message).delivery_attempt == Some(1)));
    // Forward over what is in flight, then to the very first.
    assert_eq!(reset(&client, To::Last(true)).await, COUNT as u64);
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, NOTHING_THERE);
    assert_eq!(reset(&client, To::First(true)).await, 0);
    assert_eq!(consume(&client, "g", "orders", COUNT).await, numbered("m", COUNT));
    let told = admin_call!(other, describe_group, admin::DescribeGroupRequest { name: "g".to_owned() });
    assert_eq!((told.progress[0].lag_messages, told.progress[0].lag_ms), (0, Some(0)));
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_and_groups_are_under_the_next_leader_as_they_were_made_and_changed() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_topic("gone", MessageType::Normal, 1).await;
    for (name, start) in [("early", StartPolicy::First), ("late", StartPolicy::Last)] {
        client.create_group_of(admin::Group { name: name.to_owned(), start: start.into(), ..Default::default() }).await;
    }
    send_some(&client, "orders", "old", 2).await;
    assert_eq!(client.receive("late", "orders", SHORT, LONG).await.code, NOTHING_THERE);

    // Grown, shrunk while messages are there, deleted and made again, paused: then the leader dies.
    let queues =
        |count| admin::UpdateTopicRequest { name: "orders".to_owned(), queue_count: Some(count), ..Default::default() };
    let topic = admin_call!(client, update_topic, queues(4)).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.writable_queues), (4, 4));
    send_some(&client, "orders", "m", 8).await;
    let topic = admin_call!(client, update_topic, queues(2)).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.writable_queues), (4, 2));
    let describe = |name: &str| admin::DescribeTopicRequest { name: name.to_owned() };
    let before = admin_call!(client, describe_topic, describe("gone")).topic.expect("the topic");
    send_some(&client, "gone", "lost", 3).await;
    let delete = |incarnation| admin::DeleteTopicRequest { name: "gone".to_owned(), incarnation };
    admin_call!(client, delete_topic, delete(before.incarnation));
    client.create_topic("gone", MessageType::Fifo, 2).await;
    let pause =
        |paused| admin::UpdateGroupRequest { name: "early".to_owned(), paused: Some(paused), ..Default::default() };
    admin_call!(client, update_group, pause(true));
    cluster.kill_leader().await;

    let topic = admin_call!(other, describe_topic, describe("orders")).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.writable_queues), (4, 2));
    let again = admin_call!(other, describe_topic, describe("gone"));
    let life = again.topic.expect("the topic");
    assert!(life.incarnation > before.incarnation && life.message_type() == MessageType::Fifo, "{life:?}");
    assert!(again.queues.iter().all(|queue| queue.max_offset == 0), "nothing of its earlier life");
    let options = other.options(LONG);
    let refused = other.admin.delete_topic(options, delete(before.incarnation)).await.expect("an answer");
    assert_eq!(refused.status.expect("a status").code, 40402, "that life is over");
    assert_eq!(other.receive("early", "orders", SHORT, LONG).await.code, NOTHING_THERE, "paused");
    admin_call!(other, update_group, pause(false));

    // The late group has all of the queues that came after it, and the early one has everything; then the queues go.
    assert_eq!(sorted(consume(&other, "late", "orders", 8).await), numbered("m", 8));
    let ids = consume(&client, "early", "orders", 10).await;
    assert_eq!(sorted(ids), [numbered("m", 8), numbered("old", 2)].concat());
    let topic = admin_call!(client, update_topic, queues(2)).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.writable_queues), (2, 2));
    admin_call!(client, delete_group, admin::DeleteGroupRequest { name: "late".to_owned() });
    let groups = admin_call!(other, list_groups, admin::ListGroupsRequest::default()).groups;
    assert!(groups.iter().any(|group| group.name == "early") && !groups.iter().any(|group| group.name == "late"));
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topic_that_keeps_messages_for_a_shorter_time_than_the_log_lets_them_go_under_every_leader() {
    const OWN_MS: u64 = 3_000;
    let mut cluster = Cluster::start_with("retention_ms = 3600000").await;
    let [client, other] = cluster.followers().await;
    client.create_topic("kept", MessageType::Normal, 2).await;
    client.create_topic("short", MessageType::Normal, 2).await;
    let keep_for =
        |ms| admin::UpdateTopicRequest { name: "short".to_owned(), retention_ms: Some(ms), ..Default::default() };
    // Longer than the log, which is one for all, is refused with what to do.
    let refused = client.admin.update_topic(client.options(LONG), keep_for(3_600_001)).await.expect("an answer");
    let refused = refused.status.expect("a status");
    assert_eq!(refused.code, 40000);
    assert!(refused.message.contains("3600001 ms") && refused.message.contains("retention_ms"), "{}", refused.message);
    admin_call!(client, update_topic, keep_for(OWN_MS));
    let describe = |name: &str| admin::DescribeTopicRequest { name: name.to_owned() };
    let described = admin_call!(client, describe_topic, describe("short"));
    assert_eq!((described.retention_ms, described.retention_is_own), (OWN_MS, true));
    assert!(!admin_call!(client, describe_topic, describe("kept")).retention_is_own);

    for name in ["kept", "short"] {
        send_some(&client, name, "old", COUNT).await;
    }
    cluster.kill_leader().await;
    send_some(&other, "short", "young", 1).await;
    // The next leader lets them go, on both replicas that are left; the other topic keeps all of its own.
    let deadline = cluster.runtime.now() + LONG;
    let first_offsets = async |client: &Client| {
        let queues = admin_call!(client, describe_topic, describe("short")).queues;
        queues.iter().map(|queue| queue.min_offset).sum::<u64>()
    };
    while first_offsets(&other).await < COUNT as u64 {
        assert!(cluster.runtime.now() < deadline, "they are still there");
        cluster.runtime.sleep(SHORT).await;
    }
    assert_eq!(sorted(consume(&other, "g", "kept", COUNT).await), numbered("old", COUNT));
    send_some(&other, "short", "new", 1).await;
    let came = other.receive("g", "short", LONG, LONG).await.ids();
    assert!(!came.is_empty() && came.iter().all(|id| !id.starts_with("old")), "{came:?}");
    admin_call!(other, update_topic, keep_for(0));
    assert!(!admin_call!(other, describe_topic, describe("short")).retention_is_own, "as long as the log again");
    cluster.agree().await;
}
