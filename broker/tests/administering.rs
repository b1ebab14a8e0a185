//! What operators do to groups, topics, dead letters and transactions, with the leader dying in between.

use std::time::Duration;

use crate::support::{Client, Cluster, handle_of, id_of, message, resource, system_of};
use flotilla_proto::admin::reset_group_request::To;
use flotilla_proto::v2::{self, MessageType};
use flotilla_proto::{
    admin,
    status::{self, Code},
};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

/// Calls the admin service and expects a code.
macro_rules! admin_call {
    ($client:expr, $method:ident, $request:expr) => {{
        let client = &$client;
        client.admin.$method(client.options(Duration::from_secs(10)), $request).await.expect("an answer")
    }};
}

fn code(status: Option<&v2::Status>) -> i32 {
    status.expect("a status").code
}

async fn send_some(client: &Client, topic: &str, count: u32) {
    for number in 0..count {
        assert_eq!(client.send(message(topic, &format!("m-{number}"), |_| ())).await.code, 20000);
    }
}

async fn reset(client: &Client, to: To) -> admin::ResetGroupReply {
    let request =
        admin::ResetGroupRequest { group: "g".to_owned(), topic: "orders".to_owned(), queue: None, to: Some(to) };
    admin_call!(client, reset_group, request)
}

async fn progress(client: &Client, group: &str, topic: &str) -> Vec<admin::GroupProgress> {
    let reply = admin_call!(client, describe_group, admin::DescribeGroupRequest { name: group.to_owned() });
    assert_eq!(code(reply.status.as_ref()), 20000);
    reply.progress.into_iter().filter(|row| row.topic == topic).collect()
}

/// Another replica than the leader, which is killed.
async fn without_leader(cluster: &mut Cluster) -> Client {
    let leader = cluster.leader().await;
    cluster.kill(leader);
    cluster.client(if leader == 1 { 2 } else { 1 })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_moved_back_and_forward_while_it_consumes_and_the_next_leader_knows() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 5).await;
    send_some(&client, "orders", 6).await;
    let first = client.receive("g", "orders", LONG, LONG).await;
    assert_eq!(first.ids().len(), 6);
    assert_eq!(client.ack("g", "orders", &first.messages[..2]).await, 20000);
    let rows = progress(&client, "g", "orders").await;
    assert_eq!((rows[0].committed_offset, rows[0].inflight_count, rows[0].lag_messages), (2, 4, 4));
    assert!(rows[0].lag_ms.is_some_and(|ms| ms < 60_000));

    let stored = system_of(&first.messages[3]).store_timestamp.expect("a time");
    let at_ms = u64::try_from(stored.seconds * 1000 + i64::from(stored.nanos / 1_000_000)).expect("a time");
    let reply = reset(&client, To::TimestampMs(at_ms)).await;
    assert_eq!(code(reply.status.as_ref()), 20000);
    assert_eq!(reply.queues[0].committed_before, Some(2));
    let from = reply.queues[0].offset;
    assert!(from <= 3, "{from}");
    let client = without_leader(&mut cluster).await;
    let again = client.receive("g", "orders", LONG, LONG).await;
    assert_eq!(again.messages.len() as u64, 6 - from, "while it was online, with messages in flight");
    assert!(again.messages.iter().all(|message| system_of(message).delivery_attempt == Some(1)));
    assert_eq!(client.ack("g", "orders", &first.messages[5..]).await, 40013, "the old receipt is void");

    assert_eq!(reset(&client, To::Last(true)).await.queues[0].offset, 6);
    let rows = progress(&client, "g", "orders").await;
    assert_eq!((rows[0].inflight_count, rows[0].lag_messages, rows[0].lag_ms), (0, 0, Some(0)));
    assert_eq!(code(reset(&client, To::Offset(7)).await.status.as_ref()), 40019);
    assert_eq!(reset(&client, To::First(true)).await.queues[0].offset, 0);
    assert_eq!(client.receive("g", "orders", LONG, LONG).await.ids().len(), 6);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_group_waits_and_goes_on_at_once_when_it_may() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 5).await;
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, 40401);
    let pause = |paused| admin::UpdateGroupRequest {
        name: "g".to_owned(),
        paused: Some(paused),
        retry_pauses: Some(admin::RetryPauses { ms: vec![10, 20] }),
        ..Default::default()
    };
    let reply = admin_call!(client, update_group, pause(true));
    let group = reply.group.expect("the group");
    assert_eq!((group.paused, group.max_deliveries, group.retry_pauses_ms), (true, 5, vec![10, 20]));
    send_some(&client, "orders", 2).await;
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, 40401);
    let waiting = {
        let client = client.clone();
        cluster.runtime.spawn("poll", async move { client.receive("g", "orders", LONG, LONG).await })
    };
    cluster.runtime.sleep(SHORT).await;
    admin_call!(client, transfer_leader, admin::TransferLeaderRequest::default());
    assert!(admin_call!(client, update_group, pause(false)).group.is_some_and(|group| !group.paused));
    let received = cluster.runtime.timeout(Duration::from_secs(3), waiting).await.expect("woken").expect("it ends");
    assert_eq!(received.ids(), ["m-0", "m-1"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_listed_and_delivered_again_to_their_group_alone() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 2).await;
    client.create_group("g", false, 2).await;
    client.create_group("other", false, 2).await;
    send_some(&client, "orders", 4).await;
    let mut others = Vec::new();
    while others.len() < 4 {
        let received = client.receive("other", "orders", LONG, LONG).await;
        assert_eq!(client.ack("other", "orders", &received.messages).await, 20000);
        others.extend(received.ids());
    }
    // The attempts are exact across a change of leaders: one before it, one after.
    let mut attempts = Vec::new();
    let mut client = client;
    for round in 1..=2 {
        let mut seen = 0;
        while seen < 4 {
            let received = client.receive("g", "orders", LONG, Duration::from_millis(500)).await;
            attempts.extend(received.messages.iter().map(|message| system_of(message).delivery_attempt));
            seen += received.messages.len();
        }
        if round == 1 {
            client = without_leader(&mut cluster).await;
        }
    }
    assert_eq!(attempts, [[Some(1); 4], [Some(2); 4]].concat());
    cluster.runtime.sleep(Duration::from_millis(600)).await;
    assert_eq!(client.receive("g", "orders", Duration::from_secs(1), LONG).await.code, 40401, "that was all");

    let list = || admin::ListDeadLettersRequest { group: "g".to_owned(), ..Default::default() };
    let listed = admin_call!(client, list_dead_letters, list());
    assert_eq!((listed.min_offset, listed.max_offset, listed.unsent_offset), (0, 4, 0));
    let letter = listed.letters[0].message.as_ref().expect("a message");
    let told = system_of(letter).dead_letter_queue.as_ref().expect("where it came from");
    assert_eq!((told.topic.as_str(), told.message_id.as_str()), ("orders", id_of(letter)));
    let trace = admin_call!(
        client,
        trace_message,
        admin::TraceMessageRequest { topic: "orders".to_owned(), queue: 0, offset: 0 }
    );
    let states: Vec<_> =
        trace.groups.iter().map(|group| (group.group.as_str(), group.state(), group.dead_letter_offset)).collect();
    let consumed = admin::message_trace::State::Consumed;
    assert_eq!(states.len(), 2);
    assert!(states[0].0 == "g" && states[0].1 == consumed && states[0].2.is_some(), "{states:?}");
    assert_eq!(states[1], ("other", consumed, None));

    let resend = |offsets: Vec<u64>, count| admin::ResendDeadLettersRequest { group: "g".to_owned(), offsets, count };
    let one = admin_call!(client, resend_dead_letters, resend(vec![2, 9], 0));
    assert_eq!((one.resent, one.failed.len(), one.failed[0].offset), (1, 1, 9));
    let back = client.receive("g", "orders", LONG, LONG).await;
    assert_eq!((back.messages.len(), system_of(&back.messages[0]).delivery_attempt), (1, Some(1)));
    assert_eq!(client.ack("g", "orders", &back.messages).await, 20000);
    let all = admin_call!(client, resend_dead_letters, resend(Vec::new(), 3));
    assert_eq!((all.resent, all.remaining), (3, 1));
    let all = admin_call!(client, resend_dead_letters, resend(Vec::new(), 3));
    assert_eq!((all.resent, all.remaining), (1, 0));
    let mut back = Vec::new();
    while back.len() < 4 {
        let received = client.receive("g", "orders", LONG, LONG).await;
        assert_eq!(client.ack("g", "orders", &received.messages).await, 20000);
        back.extend(received.ids());
    }
    back.sort();
    assert_eq!(back, ["m-0", "m-1", "m-2", "m-3"]);
    assert_eq!(admin_call!(client, list_dead_letters, list()).unsent_offset, 4);
    assert_eq!(client.receive("other", "orders", SHORT, LONG).await.code, 40401, "nobody else sees any of it");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_that_gives_up_makes_a_dead_letter_at_once() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 9).await;
    send_some(&client, "orders", 1).await;
    let received = client.receive("g", "orders", LONG, LONG).await;
    let give_up = || v2::ForwardMessageToDeadLetterQueueRequest {
        group: Some(resource("g")),
        topic: Some(resource("orders")),
        receipt_handle: handle_of(&received.messages[0]).to_owned(),
        message_id: "m-0".to_owned(),
        ..Default::default()
    };
    let call = |request| client.messaging.forward_message_to_dead_letter_queue(client.options(LONG), request);
    assert_eq!(code(call(give_up()).await.expect("an answer").body.status.as_ref()), 20000);
    assert_eq!(code(call(give_up()).await.expect("an answer").body.status.as_ref()), 40013, "it is over");
    assert_eq!(client.receive("g2", "%DLQ%g", LONG, LONG).await.ids(), ["m-0"]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn queues_are_added_and_drained_while_messages_flow() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let start = admin::StartPolicy::Last.into();
    client.create_group_of(admin::Group { name: "g".to_owned(), start, ..Default::default() }).await;
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.code, 40401);
    let queues =
        |count| admin::UpdateTopicRequest { name: "orders".to_owned(), queue_count: Some(count), ..Default::default() };
    let topic = admin_call!(client, update_topic, queues(4)).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.writable_queues), (4, 4));
    // The group begins at the first message of queues that come later, whatever its start.
    send_some(&client, "orders", 8).await;
    let client = without_leader(&mut cluster).await;
    let topic = admin_call!(client, update_topic, queues(2)).topic.expect("the topic");
    assert_eq!((topic.queue_count, topic.writable_queues), (4, 2), "what is there is consumed first");
    let mut ids = Vec::new();
    while ids.len() < 8 {
        let received = client.receive("g", "orders", LONG, LONG).await;
        assert_eq!(client.ack("g", "orders", &received.messages).await, 20000);
        ids.extend(received.ids());
    }
    ids.sort();
    assert_eq!(ids, (0..8).map(|number| format!("m-{number}")).collect::<Vec<_>>());
    // Nobody asks again: the leader sees that they are drained.
    let describe = || admin::DescribeTopicRequest { name: "orders".to_owned() };
    let mut topic = admin_call!(client, describe_topic, describe()).topic.expect("the topic");
    for _ in 0..200 {
        if topic.queue_count == 2 {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(100)).await;
        topic = admin_call!(client, describe_topic, describe()).topic.expect("the topic");
    }
    assert_eq!((topic.queue_count, topic.writable_queues), (2, 2));

    let read_only = admin::UpdateTopicRequest {
        retention_ms: None,
        name: "orders".to_owned(),
        queue_count: None,
        permission: Some(v2::Permission::Read.into()),
    };
    assert_eq!(code(admin_call!(client, update_topic, read_only).status.as_ref()), 20000);
    assert_eq!(client.send(message("orders", "late", |_| ())).await.code, 40300);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deletion_that_means_one_life_of_a_topic_spares_the_next() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let described = admin_call!(client, describe_topic, admin::DescribeTopicRequest { name: "orders".to_owned() });
    let incarnation = described.topic.expect("a topic").incarnation;
    let delete = || admin::DeleteTopicRequest { name: "orders".to_owned(), incarnation };
    assert_eq!(code(admin_call!(client, delete_topic, delete()).status.as_ref()), 20000);
    client.create_topic("orders", MessageType::Normal, 1).await;
    assert_eq!(code(admin_call!(client, delete_topic, delete()).status.as_ref()), 40402);
    assert_eq!(client.send(message("orders", "m-0", |_| ())).await.code, 20000, "it is there");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_are_found_by_key_id_time_and_place() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 3).await;
    for number in 0..30 {
        let sent =
            message("orders", &format!("m-{number}"), |system| system.keys = vec![format!("key-{}", number % 10)]);
        assert_eq!(client.send(sent).await.code, 20000);
    }
    let find = |change: fn(&mut admin::FindMessagesRequest)| {
        let mut request = admin::FindMessagesRequest { topic: "orders".to_owned(), ..Default::default() };
        change(&mut request);
        request
    };
    let by_key = admin_call!(client, find_messages, find(|request| request.key = "key-7".to_owned()));
    let ids = |reply: &admin::FindMessagesReply| -> Vec<String> {
        let mut ids: Vec<_> =
            reply.messages.iter().map(|found| id_of(found.message.as_ref().expect("it")).to_owned()).collect();
        ids.sort();
        ids
    };
    assert_eq!(ids(&by_key), ["m-17", "m-27", "m-7"]);
    let by_id = admin_call!(client, find_messages, find(|request| request.message_id = "m-12".to_owned()));
    assert_eq!(ids(&by_id), ["m-12"]);
    let found = &by_id.messages[0];
    let at = admin::FindMessagesRequest {
        topic: "orders".to_owned(),
        queue: Some(found.queue),
        from_offset: Some(found.offset),
        count: 1,
        ..Default::default()
    };
    let by_place = admin_call!(client, find_messages, at);
    assert_eq!(ids(&by_place), ["m-12"]);
    assert!(by_place.next_offset.is_some(), "there are more behind it");
    let stored = system_of(found.message.as_ref().expect("it")).store_timestamp.expect("a time");
    let from_ms = u64::try_from(stored.seconds * 1000 + i64::from(stored.nanos / 1_000_000)).expect("a time");
    let within =
        admin::FindMessagesRequest { topic: "orders".to_owned(), from_ms, to_ms: from_ms + 1, ..Default::default() };
    assert!(ids(&admin_call!(client, find_messages, within)).contains(&"m-12".to_owned()));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_ends_a_transaction_that_nobody_ends() {
    let mut cluster = Cluster::start_with(3, |config| {
        config.transaction_check_after_ms = 100;
        config.transaction_check_interval_ms = 100;
        config.transaction_checks_max = 1;
    })
    .await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("payments", MessageType::Transaction, 1).await;
    for id in ["a", "b"] {
        let half = message("payments", id, |system| system.message_type = v2::MessageType::Transaction.into());
        assert_eq!(client.send(half).await.code, 20000);
    }
    let client = without_leader(&mut cluster).await;
    let list = || admin::ListTransactionsRequest { parked_only: true, count: 0 };
    let mut listed = admin::ListTransactionsReply::default();
    for _ in 0..100 {
        listed = admin_call!(client, list_transactions, list());
        if listed.parked_count == 2 {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(100)).await;
    }
    let ids: Vec<_> = listed.transactions.iter().map(|open| open.message_id.as_str()).collect();
    assert_eq!((ids, listed.open_count), (vec!["a", "b"], 2));
    for (open, commit) in listed.transactions.iter().zip([true, false]) {
        let request = || admin::ResolveTransactionRequest { transaction_id: open.transaction_id.clone(), commit };
        assert!(status::is_ok(admin_call!(client, resolve_transaction, request()).status.as_ref()));
        assert!(status::is_ok(admin_call!(client, resolve_transaction, request()).status.as_ref()), "again");
    }
    assert_eq!(client.receive("g", "payments", LONG, LONG).await.ids(), ["a"]);
    assert_eq!(admin_call!(client, list_transactions, list()).open_count, 0);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_with_other_filters_are_reported_and_refused_if_the_settings_say_so() {
    for refuse in [false, true] {
        let cluster = Cluster::start_with(1, |config| config.refuse_differing_subscriptions = refuse).await;
        let client = cluster.client(1);
        client.create_topic("orders", MessageType::Normal, 1).await;
        client.create_group("g", false, 5).await;
        let member = |id: &str| {
            let metadata = std::sync::Arc::new(flotilla_proto::metadata::of_client(id, "0"));
            Client { metadata, ..client.clone() }
        };
        let tag = |tag: &'static str| {
            move |request: &mut v2::ReceiveMessageRequest| {
                let expression = tag.to_owned();
                request.filter_expression =
                    Some(v2::FilterExpression { r#type: v2::FilterType::Tag.into(), expression });
            }
        };
        let (a, b) = (member("a"), member("b"));
        assert_eq!(a.receive_with("g", "orders", SHORT, LONG, tag("x || y")).await.code, 40401);
        assert_eq!(b.receive_with("g", "orders", SHORT, LONG, tag("y||x")).await.code, 40401, "the same");
        let expected = if refuse { 40000 } else { 40401 };
        assert_eq!(b.receive_with("g", "orders", SHORT, LONG, tag("z")).await.code, expected);
        let described = admin_call!(client, describe_group, admin::DescribeGroupRequest { name: "g".to_owned() });
        assert_eq!(described.differing_topics, ["orders"]);
        let members: Vec<_> =
            described.members.iter().map(|member| (member.client_id.as_str(), member.filter.as_str())).collect();
        assert_eq!(members, [("a", "x || y"), ("b", "z")]);
        cluster.shutdown().await;
    }
}

/// Who has said good-bye, to whichever replica, binds nobody: the next member may want other messages at once.
#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_has_left_is_compared_with_nobody() {
    let cluster = Cluster::start_with(3, |config| config.refuse_differing_subscriptions = true).await;
    let leader = cluster.leader().await;
    let others: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    cluster.client(leader).create_topic("orders", MessageType::Normal, 1).await;
    let member = |node: u64, id: &str| {
        let metadata = std::sync::Arc::new(flotilla_proto::metadata::of_client(id, "0"));
        Client { metadata, ..cluster.client(node) }
    };
    let poll = async |member: &Client, tag: &str| {
        let filter = |request: &mut v2::ReceiveMessageRequest| {
            let (kind, expression) = (v2::FilterType::Tag.into(), tag.to_owned());
            request.filter_expression = Some(v2::FilterExpression { r#type: kind, expression });
        };
        member.receive_with("g", "orders", SHORT, LONG, filter).await.code
    };
    let (old, new) = (member(others[0], "old"), member(others[1], "new"));
    assert_eq!(poll(&old, "red").await, 40401);
    assert_eq!(poll(&new, "blue").await, 40000);
    let good_bye = v2::NotifyClientTerminationRequest { group: Some(resource("g")) };
    let told = old.messaging.notify_client_termination(old.options(LONG), good_bye).await.expect("an answer");
    assert_eq!(code(told.body.status.as_ref()), 20000);
    assert_eq!(poll(&new, "blue").await, 40401);
    assert_eq!(poll(&old, "red").await, 40000, "if it comes back, it is the later one");
    cluster.shutdown().await;
}

/// Kinds of entries that an older program may not know are proposed once all replicas' programs do.
#[tokio::test(flavor = "multi_thread")]
async fn a_write_permission_is_set_only_when_all_replicas_know_such_entries() {
    for (level_max, code) in [(0, Code::HaNotAvailable), (1, Code::Ok)] {
        let cluster = Cluster::start_with(3, |config| config.feature_level_max = level_max).await;
        // The other two follow an older program, if any does.
        let client = cluster.client(cluster.leader().await);
        let request = admin::SetWritePermissionRequest { writable: false };
        let reply = client.admin.set_write_permission(client.options(LONG), request).await.expect("an answer");
        let status = reply.status.expect("a status");
        assert_eq!(status.code, code as i32, "{}", status.message);
        let leader = cluster.leader().await as usize - 1;
        let wiped = cluster.brokers[leader].as_ref().expect("it runs").node().store().is_write_wiped();
        assert_eq!(wiped, code == Code::Ok);
        cluster.shutdown().await;
    }
}
