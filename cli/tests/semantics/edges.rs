//! What users meet beside the main road, under one leader and the next: first uses, namespaces, starts, giving up, levels,
//! mixed subscriptions, limits.

use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::admin::{self, StartPolicy};
use flotilla_proto::metadata;
use flotilla_proto::v2::{self, FilterExpression, FilterType, MessageType, Permission};

use crate::calls::{Client, handle_of, message, resource, system_of};
use crate::cluster::{Cluster, LONG, NOTHING_THERE, OK, SHORT, admin_call, consume, numbered, sorted};

const TOO_MANY: i32 = 42900;

async fn send_some(client: &Client, topic: &str, prefix: &str, count: usize) {
    for number in 0..count {
        assert_eq!(client.send(message(topic, &format!("{prefix}-{number}"), |_| ())).await.code, OK);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_made_by_its_first_use_is_the_same_under_the_next_leader() {
    let mut cluster = Cluster::start_with("auto_create_topics_max = 2").await;
    let [client, other] = cluster.followers().await;
    send_some(&client, "first", "m", 3).await;
    assert_eq!(client.receive("g", "first", LONG, LONG).await.code, OK);
    cluster.kill_leader().await;
    let describe = |name: &str| admin::DescribeTopicRequest { name: name.to_owned() };
    let topic = admin_call!(other, describe_topic, describe("first")).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.message_type()), (4, MessageType::Normal));
    let groups = admin_call!(other, list_groups, admin::ListGroupsRequest::default()).groups;
    assert_eq!(groups.iter().map(|group| group.name.as_str()).collect::<Vec<_>>(), ["g"]);
    // The next one makes them as well, and knows how many there are.
    send_some(&other, "second", "m", 1).await;
    let refused = other.send(message("third", "m", |_| ())).await;
    assert_eq!(refused.code, 40402, "{}", refused.message);
    assert!(refused.message.contains("auto_create_topics_max"), "{}", refused.message);
    assert_eq!(consume(&other, "h", "second", 1).await, ["m-0"]);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn namespaces_stay_apart_under_the_next_leader() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    let of = |client: &Client, namespace: &str| {
        let mut metadata = (*client.metadata).clone();
        metadata.push((metadata::NAMESPACE.into(), namespace.to_owned()));
        Client { metadata: Arc::new(metadata), ..client.clone() }
    };
    for namespace in ["red", "blue"] {
        send_some(&of(&client, namespace), "orders", namespace, 3).await;
    }
    cluster.kill_leader().await;
    for namespace in ["red", "blue"] {
        let there = of(&other, namespace);
        send_some(&there, "orders", &format!("{namespace}-late"), 1).await;
        let came = sorted(consume(&there, "g", "orders", 4).await);
        assert!(came.iter().all(|id| id.starts_with(namespace)), "{came:?}");
        assert_eq!(there.receive("g", "orders", SHORT, LONG).await.code, NOTHING_THERE);
    }
    let topics = admin_call!(other, list_topics, admin::ListTopicsRequest::default()).topics;
    assert_eq!(topics.iter().map(|topic| topic.name.as_str()).collect::<Vec<_>>(), ["blue%orders", "red%orders"]);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_begins_where_its_start_says_whoever_leads_at_its_first_poll() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 2).await;
    send_some(&client, "orders", "old", 4).await;
    cluster.runtime.sleep(Duration::from_millis(50)).await;
    send_some(&client, "orders", "mid", 1).await;
    let reader = consume(&client, "reader", "orders", 5);
    assert_eq!(reader.await.len(), 5);
    let found = admin_call!(
        client,
        find_messages,
        admin::FindMessagesRequest { topic: "orders".to_owned(), message_id: "mid-0".to_owned(), ..Default::default() }
    );
    let at = system_of(found.messages[0].message.as_ref().expect("it")).store_timestamp.expect("a time");
    let at_ms = u64::try_from(at.seconds * 1000 + i64::from(at.nanos / 1_000_000)).expect("a time");
    let starts =
        [("from-first", StartPolicy::First), ("from-last", StartPolicy::Last), ("from-time", StartPolicy::Timestamp)];
    for (name, start) in starts {
        let group = admin::Group {
            name: name.to_owned(),
            start: start.into(),
            start_timestamp_ms: if start == StartPolicy::Timestamp { at_ms } else { 0 },
            ..Default::default()
        };
        client.create_group_of(group).await;
    }
    // One meets the topic before the leader dies, the others after it.
    assert_eq!(client.receive("from-last", "orders", SHORT, LONG).await.code, NOTHING_THERE);
    cluster.kill_leader().await;
    send_some(&other, "orders", "new", 2).await;
    assert_eq!(sorted(consume(&other, "from-last", "orders", 2).await), numbered("new", 2));
    let mut expected = ["mid-0", "new-0", "new-1"].map(str::to_owned).to_vec();
    assert_eq!(sorted(consume(&other, "from-time", "orders", 3).await), expected);
    expected.extend(numbered("old", 4));
    assert_eq!(sorted(consume(&other, "from-first", "orders", 7).await), expected);
    for (name, _) in starts {
        assert_eq!(other.receive(name, "orders", SHORT, LONG).await.code, NOTHING_THERE, "{name}");
    }
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_consumer_gave_up_is_a_dead_letter_and_its_reader_was_there_before_it() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 9).await;
    let late = admin::Group { name: "undertakers".to_owned(), start: StartPolicy::Last.into(), ..Default::default() };
    client.create_group_of(late).await;
    // Who stands at the end of dead letters that nobody has made yet gets the first one.
    assert_eq!(client.receive("undertakers", "%DLQ%g", SHORT, LONG).await.code, NOTHING_THERE);
    send_some(&client, "orders", "m", 2).await;
    let held = client.receive("g", "orders", LONG, LONG).await.messages;
    let give_up = async |client: &Client, message: &v2::Message| {
        let request = v2::ForwardMessageToDeadLetterQueueRequest {
            group: Some(resource("g")),
            topic: Some(resource("orders")),
            receipt_handle: handle_of(message).to_owned(),
            ..Default::default()
        };
        let reply = client.messaging.forward_message_to_dead_letter_queue(client.options(LONG), request).await;
        reply.expect("an answer").body.status.expect("a status").code
    };
    assert_eq!(give_up(&client, &held[0]).await, OK);
    cluster.kill_leader().await;
    // A call that meets the dead leader's last moment is of unknown outcome.
    admin_call!(other, describe_group, admin::DescribeGroupRequest { name: "g".to_owned() });
    assert_eq!(give_up(&other, &held[0]).await, 40013, "it is over");
    assert_eq!(give_up(&other, &held[1]).await, OK, "by a receipt of the dead leader");
    assert_eq!(sorted(consume(&other, "undertakers", "%DLQ%g", 2).await), numbered("m", 2));
    assert_eq!(other.receive("g", "orders", SHORT, LONG).await.code, NOTHING_THERE);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delay_level_counts_from_the_send_whoever_leads_when_it_is_due() {
    let mut cluster = Cluster::start().await;
    let [client, other] = cluster.followers().await;
    client.create_topic("later", MessageType::Delay, 1).await;
    let mut leveled = message("later", "m", |_| ());
    leveled.user_properties.insert("DELAY".to_owned(), "2".to_owned());
    let sent_ms = cluster.runtime.wall_ms();
    assert_eq!(client.send(leveled).await.code, OK);
    cluster.kill_leader().await;
    let received = other.receive("g", "later", LONG, LONG).await;
    let took_ms = cluster.runtime.wall_ms() - sent_ms;
    assert_eq!(received.ids(), ["m"]);
    assert!((5_000..15_000).contains(&took_ms), "{took_ms} ms for level 2, which is 5 s");
    assert!(!received.messages[0].user_properties.contains_key("DELAY"), "it does not travel on");
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn mixed_subscriptions_are_noticed_and_refused_by_the_next_leader_too() {
    let mut cluster = Cluster::start_with("refuse_differing_subscriptions = true").await;
    let [client, other] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, 1).await;
    let poll = async |client: &Client, member: &str, tag: &str| {
        let metadata = Arc::new(metadata::of_client(member, "0"));
        let member = Client { metadata, ..client.clone() };
        let filter = |request: &mut v2::ReceiveMessageRequest| {
            let (kind, expression) = (FilterType::Tag.into(), tag.to_owned());
            request.filter_expression = Some(FilterExpression { r#type: kind, expression });
        };
        member.receive_with("g", "orders", SHORT, LONG, filter).await.code
    };
    assert_eq!(poll(&client, "a", "red").await, NOTHING_THERE);
    assert_eq!(poll(&client, "b", "blue").await, 40000);
    cluster.kill_leader().await;
    assert_eq!(poll(&other, "a", "red").await, NOTHING_THERE);
    assert_eq!(poll(&other, "b", "blue").await, 40000);
    let told = admin_call!(other, describe_group, admin::DescribeGroupRequest { name: "g".to_owned() });
    assert_eq!(told.differing_topics, ["orders"]);
    cluster.agree().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn levels_permissions_and_limits_hold_under_the_next_leader() {
    let mut cluster = Cluster::start_with("group_polls_max = 1").await;
    let [client, other] = cluster.followers().await;
    let topic = admin::Topic { name: "careful".to_owned(), queue_count: 1, ..Default::default() };
    let request = admin::CreateTopicRequest { topic: Some(topic), ack: "sync".to_owned(), ..Default::default() };
    admin_call!(client, create_topic, request);
    client.create_topic("closed", MessageType::Normal, 1).await;
    let close = admin::UpdateTopicRequest {
        name: "closed".to_owned(),
        permission: Some(Permission::Read.into()),
        ..Default::default()
    };
    admin_call!(client, update_topic, close);
    cluster.kill_leader().await;
    // Two replicas are what `sync` needs at least.
    let deadline = cluster.runtime.now() + LONG;
    while other.send(message("careful", "m", |_| ())).await.code != OK {
        assert!(cluster.runtime.now() < deadline, "no send at level sync within {LONG:?}");
        cluster.runtime.sleep(SHORT).await;
    }
    let described = admin_call!(other, describe_topic, admin::DescribeTopicRequest { name: "careful".to_owned() });
    assert_eq!((described.ack.to_lowercase().as_str(), described.level_is_own), ("sync", true));
    assert_eq!(other.send(message("closed", "m", |_| ())).await.code, 40300);
    // One poll of the group at this replica is all that is allowed; it is told so, and the next one is not.
    let waiting = {
        let other = other.clone();
        cluster.runtime.spawn("poll", async move {
            loop {
                let received = other.receive("g", "closed", Duration::from_secs(5), LONG).await;
                // One of the polls below may have been there first.
                if received.code != TOO_MANY {
                    return received;
                }
            }
        })
    };
    let deadline = cluster.runtime.now() + LONG;
    loop {
        let received = other.receive("g", "closed", Duration::ZERO, LONG).await;
        if received.code == TOO_MANY {
            break;
        }
        assert!(cluster.runtime.now() < deadline && received.code == NOTHING_THERE, "{}", received.code);
    }
    assert_eq!(waiting.await.expect("it ends").code, NOTHING_THERE);
    assert_eq!(other.receive("g", "closed", SHORT, LONG).await.code, NOTHING_THERE, "room again");

    cluster.agree().await;
}
