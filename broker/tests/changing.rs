//! What is changed while messages flow: the number of queues, positions, dead letters sent again, a pause.

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_proto::admin::{self, reset_group_request::To};
use flotilla_proto::v2::{self, MessageType};

use crate::support::{Client, Cluster, handle_of, message, queue, resource, system_of};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);
const OK: i32 = 20000;

async fn set_queues(client: &Client, topic: &str, count: u32) -> i32 {
    let request = admin::UpdateTopicRequest { name: topic.to_owned(), queue_count: Some(count), ..Default::default() };
    let reply = client.admin.update_topic(client.options(LONG), request).await.expect("an answer");
    reply.status.expect("a status").code
}

/// The messages of all queues, each with its queue.
async fn stored(client: &Client, topic: &str, queue_count: i32) -> Vec<(i32, v2::Message)> {
    let mut all = Vec::new();
    for number in 0..queue_count {
        let mut at = 0;
        loop {
            let here = |request: &mut v2::PullMessageRequest| {
                request.message_queue = Some(queue(topic, number));
                request.batch_size = 1024;
            };
            let pulled = client.pull_with("readers", topic, at, Duration::ZERO, here).await;
            if pulled.messages.is_empty() {
                break;
            }
            at = pulled.next.expect("where to go on");
            all.extend(pulled.messages.into_iter().map(|message| (number, message)));
        }
    }
    all
}

/// The last entry that the leader has applied.
async fn applied(cluster: &Cluster) -> u64 {
    let leader = usize::try_from(cluster.leader().await).expect("small");
    cluster.brokers[leader - 1].as_ref().expect("it runs").node().store().applied()
}

/// Waits until nothing is written by itself any more.
async fn at_rest(cluster: &Cluster) {
    let mut last = applied(cluster).await;
    for _ in 0..50 {
        cluster.runtime.sleep(Duration::from_millis(500)).await;
        let now = applied(cluster).await;
        if now == last {
            return;
        }
        last = now;
    }
    panic!("something goes on writing");
}

/// A message group has one queue at a time: what is sent while the number of queues changes stands before the change, which
/// is refused then, or where the new number puts it.
#[tokio::test(flavor = "multi_thread")]
async fn no_ordered_message_stands_where_a_number_of_queues_put_it_that_is_over() {
    const ROUNDS: u32 = 30;
    const GROUPS: u32 = 24;
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.leader().await);
    let mut accepted = 0;
    for round in 0..ROUNDS {
        let topic = format!("steps-{round}");
        client.create_topic(&topic, MessageType::Fifo, 1).await;
        let (changing, name) = (client.clone(), topic.clone());
        let change = cluster.runtime.spawn("change", async move { set_queues(&changing, &name, 8).await });
        // Around the change's own way into the log.
        cluster.runtime.sleep(Duration::from_micros(u64::from(round) * 100)).await;
        let send = |number: u32, turn: u32| {
            let (client, topic) = (client.clone(), topic.clone());
            let key = format!("key-{number}");
            async move {
                let id = format!("{key}-{turn}");
                client.send(message(&topic, &id, |system| system.message_group = Some(key))).await.code
            }
        };
        let first = futures::future::join_all((0..GROUPS).map(|number| send(number, 0))).await;
        assert!(first.iter().all(|code| *code == OK), "{first:?}");
        let change = change.await.expect("it ends");
        for number in 0..GROUPS {
            assert_eq!(send(number, 1).await, OK);
        }
        if change != OK {
            // They were there before it.
            continue;
        }
        accepted += 1;
        let mut places: BTreeMap<String, i32> = BTreeMap::new();
        for (number, message) in stored(&client, &topic, 8).await {
            let group = system_of(&message).message_group.clone().expect("its group");
            let known = *places.entry(group.clone()).or_insert(number);
            assert_eq!(known, number, "{group} stands in two queues, and its second message can pass the first");
        }
        assert_eq!(places.len() as u32, GROUPS);
    }
    assert!(accepted > 0, "no change came before the messages: nothing was tried");
    cluster.shutdown().await;
}

/// What was to go to a queue that is gone goes to another one: nobody hears of it.
#[tokio::test(flavor = "multi_thread")]
async fn no_send_fails_while_queues_come_and_go() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 8).await;
    let senders: Vec<_> = (0..8_u32)
        .map(|sender| {
            let client = client.clone();
            cluster.runtime.spawn("sender", async move {
                let mut codes = BTreeMap::new();
                for number in 0..150 {
                    let status = client.send(message("orders", &format!("{sender}-{number}"), |_| ())).await;
                    *codes.entry((status.code, status.message)).or_insert(0) += 1;
                }
                codes
            })
        })
        .collect();
    let is_over = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let consumer = {
        let (client, is_over) = (client.clone(), is_over.clone());
        cluster.runtime.spawn("consumer", async move {
            let mut count = 0;
            while count < 1_200 && !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                let received = client.receive("g", "orders", SHORT, LONG).await;
                if !received.messages.is_empty() {
                    assert_eq!(client.ack("g", "orders", &received.messages).await, OK);
                    count += received.messages.len();
                }
            }
            count
        })
    };
    for turn in 0..40 {
        assert_eq!(set_queues(&client, "orders", if turn % 2 == 0 { 1 } else { 8 }).await, OK);
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    for sender in senders {
        let codes = sender.await.expect("it ends");
        assert!(codes.keys().all(|(code, _)| *code == OK), "{codes:?}");
    }
    let consumed = cluster.runtime.timeout(LONG, consumer).await;
    is_over.store(true, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(consumed.expect("all of it comes").expect("it ends"), 1_200);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_group_is_moved_in_all_queues_by_one_entry() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 16).await;
    client.create_group("g", false, 5).await;
    for number in 0..64 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, OK);
    }
    let first = stored(&client, "orders", 1).await;
    let at = system_of(&first[2].1).store_timestamp.expect("a time");
    let at_ms = u64::try_from(at.seconds * 1000 + i64::from(at.nanos / 1_000_000)).expect("a time");
    at_rest(&cluster).await;
    for to in [To::TimestampMs(at_ms), To::TimestampMs(u64::MAX), To::First(true), To::Last(true), To::Offset(1)] {
        let mut entries = Vec::new();
        // The broker may write something of its own meanwhile, but not each time.
        while entries.len() < 3 && !entries.contains(&1) {
            let started = applied(&cluster).await;
            let (group, topic) = ("g".to_owned(), "orders".to_owned());
            let request = admin::ResetGroupRequest { group, topic, queue: None, to: Some(to) };
            let reply = client.admin.reset_group(client.options(LONG), request).await.expect("an answer");
            assert_eq!(reply.status.expect("a status").code, OK);
            assert_eq!(reply.queues.len(), 16);
            let expected = |offset: u64| match to {
                To::TimestampMs(u64::MAX) | To::Last(_) => offset == 4,
                To::TimestampMs(_) => (1..=3).contains(&offset),
                To::First(_) => offset == 0,
                To::Offset(to) => offset == to,
            };
            assert!(reply.queues.iter().all(|queue| expected(queue.offset)), "{to:?}: {:?}", reply.queues);
            entries.push(applied(&cluster).await - started);
        }
        assert!(entries.contains(&1), "{to:?}: {entries:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_are_sent_again_by_one_entry() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 2).await;
    client.create_group("g", false, 1).await;
    for number in 0..20 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, OK);
    }
    let mut seen = 0;
    while seen < 20 {
        seen += client.receive("g", "orders", LONG, Duration::from_millis(100)).await.messages.len();
    }
    let list = || admin::ListDeadLettersRequest { group: "g".to_owned(), ..Default::default() };
    for _ in 0..100 {
        client.receive("g", "orders", SHORT, LONG).await;
        let listed = client.admin.list_dead_letters(client.options(LONG), list()).await.expect("an answer");
        if listed.max_offset == 20 {
            break;
        }
    }
    at_rest(&cluster).await;
    let before = applied(&cluster).await;
    let request = admin::ResendDeadLettersRequest { group: "g".to_owned(), offsets: Vec::new(), count: 0 };
    let resent = client.admin.resend_dead_letters(client.options(LONG), request).await.expect("an answer");
    assert_eq!((resent.resent, resent.remaining, resent.failed.len()), (20, 0, 0));
    let entries = applied(&cluster).await - before;
    assert!(entries <= 2, "{entries}: one, and perhaps one of the broker's own");
    cluster.shutdown().await;
}

/// Who reads the dead letters of others and fails at them gets them again from there.
#[tokio::test(flavor = "multi_thread")]
async fn dead_letters_of_dead_letters_go_back_where_their_group_had_them() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let give_up_on_all = async |group: &str, topic: &str| {
        let received = client.receive(group, topic, LONG, LONG).await;
        for message in &received.messages {
            let request = v2::ForwardMessageToDeadLetterQueueRequest {
                group: Some(resource(group)),
                topic: Some(resource(topic)),
                receipt_handle: handle_of(message).to_owned(),
                ..Default::default()
            };
            let options = client.options(LONG);
            let reply = client.messaging.forward_message_to_dead_letter_queue(options, request).await;
            assert_eq!(reply.expect("an answer").body.status.expect("a status").code, OK);
        }
        received.messages.len()
    };
    for number in 0..3 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, OK);
    }
    assert_eq!(give_up_on_all("g", "orders").await, 3);
    assert_eq!(give_up_on_all("undertakers", "%DLQ%g").await, 3);
    let resend = |group: &str| admin::ResendDeadLettersRequest { group: group.to_owned(), ..Default::default() };
    let resent = client.admin.resend_dead_letters(client.options(LONG), resend("undertakers")).await;
    let resent = resent.expect("an answer");
    assert_eq!((resent.resent, resent.failed.len()), (3, 0), "{:?}", resent.failed);
    assert_eq!(client.receive("undertakers", "%DLQ%g", LONG, LONG).await.ids(), ["m-0", "m-1", "m-2"]);
    assert_eq!(client.receive("g", "orders", SHORT, LONG).await.ids().len(), 0, "not its affair");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_group_pulls_nothing_until_it_goes_on() {
    let cluster = Cluster::start(3).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 5).await;
    assert_eq!(client.send(message("orders", "m", |_| ())).await.code, OK);
    let pause = |paused| admin::UpdateGroupRequest { name: "g".to_owned(), paused: Some(paused), ..Default::default() };
    client.admin.update_group(client.options(LONG), pause(true)).await.expect("an answer");
    let pulled = client.pull("g", "orders", 0, SHORT).await;
    assert_eq!((pulled.code, pulled.ids().len(), pulled.next), (40401, 0, Some(0)));
    let waiting = {
        let client = client.clone();
        cluster.runtime.spawn("pull", async move { client.pull("g", "orders", 0, LONG).await })
    };
    cluster.runtime.sleep(SHORT).await;
    client.admin.update_group(client.options(LONG), pause(false)).await.expect("an answer");
    let pulled = cluster.runtime.timeout(Duration::from_secs(3), waiting).await.expect("in time").expect("it ends");
    assert_eq!(pulled.ids(), ["m"]);
    cluster.shutdown().await;
}
