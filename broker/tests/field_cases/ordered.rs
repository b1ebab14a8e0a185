//! C04: consumers in order go on when the leader dies or one of them does: repeated suffixes, no gaps, no standstill.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::v2::MessageType;

use crate::support::{Cluster, id_of, message, system_of};

const KEYS: u32 = 12;
const EACH: u32 = 80;
const INVISIBLE: Duration = Duration::from_secs(3);

/// Key and number of each delivery, in the order in which they came.
type Deliveries = Arc<Mutex<Vec<(u32, u32)>>>;

#[tokio::test(flavor = "multi_thread")]
async fn each_key_s_messages_come_in_order_though_leaders_and_consumers_die() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(1);
    client.create_topic("steps", MessageType::Fifo, 8).await;
    client.create_group("g", true, 100).await;
    let (seen, is_over): (Deliveries, _) = (Arc::default(), Arc::new(AtomicBool::new(false)));

    let producers: Vec<_> = (0..KEYS)
        .map(|key| {
            let (client, runtime) = (cluster.client(u64::from(key % 3) + 1), cluster.runtime.clone());
            let clients = [client, cluster.client(u64::from((key + 1) % 3) + 1)];
            cluster.runtime.spawn("producer", async move {
                for number in 0..EACH {
                    let id = format!("{key}-{number}");
                    // The same message until it is stored; the log knows it by its id.
                    for attempt in 0.. {
                        let client = &clients[attempt % 2];
                        let one = message("steps", &id, |system| system.message_group = Some(format!("key-{key}")));
                        let request = flotilla_proto::v2::SendMessageRequest { messages: vec![one] };
                        let options = client.options(Duration::from_secs(3));
                        if let Ok(reply) = client.messaging.send_message(options, request).await
                            && reply.body.status.is_some_and(|status| status.code == 20000)
                        {
                            break;
                        }
                        runtime.sleep(Duration::from_millis(20)).await;
                    }
                    runtime.sleep(Duration::from_millis(80)).await;
                }
            })
        })
        .collect();

    let consumers: Vec<_> = (0..4_u64)
        .map(|consumer| {
            let clients = [cluster.client(consumer % 3 + 1), cluster.client((consumer + 1) % 3 + 1)];
            let (seen, is_over, runtime) = (seen.clone(), is_over.clone(), cluster.runtime.clone());
            cluster.runtime.spawn("consumer", async move {
                let mut at = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let client = &clients[at % 2];
                    let Some(messages) = poll(client).await else {
                        at += 1;
                        runtime.sleep(Duration::from_millis(20)).await;
                        continue;
                    };
                    let delivered = messages.iter().map(|one| {
                        let (key, number) = id_of(one).split_once('-').expect("an id of ours");
                        assert_eq!(system_of(one).message_group.as_deref(), Some(format!("key-{key}").as_str()));
                        (key.parse().expect("a number"), number.parse().expect("a number"))
                    });
                    seen.lock().expect("not poisoned").extend(delivered);
                    // Now and then one dies with what it has in its hands.
                    if runtime.random_below(40) == 0 {
                        continue;
                    }
                    let entries = messages.iter().map(|one| flotilla_proto::v2::AckMessageEntry {
                        message_id: id_of(one).to_owned(),
                        receipt_handle: crate::support::handle_of(one).to_owned(),
                        ..Default::default()
                    });
                    let request = flotilla_proto::v2::AckMessageRequest {
                        group: Some(crate::support::resource("g")),
                        topic: Some(crate::support::resource("steps")),
                        entries: entries.collect(),
                    };
                    // Without an answer they come again.
                    let _ = client.messaging.ack_message(client.options(Duration::from_secs(3)), request).await;
                }
            })
        })
        .collect();

    for _ in 0..4 {
        cluster.runtime.sleep(Duration::from_millis(2000)).await;
        let leader = cluster.leader().await;
        cluster.kill(leader);
        cluster.runtime.sleep(Duration::from_millis(500)).await;
        cluster.restart(leader).await;
    }
    for producer in producers {
        producer.await.expect("all are sent");
    }
    // All of it comes, without anybody's help.
    let began = cluster.runtime.now();
    loop {
        let highest = highest(&seen.lock().expect("not poisoned"));
        if highest.len() == KEYS as usize && highest.values().all(|number| *number == EACH - 1) {
            break;
        }
        assert!(cluster.runtime.now() - began < Duration::from_secs(30), "a queue stands still: {highest:?}");
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    is_over.store(true, Ordering::SeqCst);
    for consumer in consumers {
        consumer.await.expect("no consumer fails");
    }
    let seen = seen.lock().expect("not poisoned").clone();
    let mut next: BTreeMap<u32, u32> = BTreeMap::new();
    for (key, number) in &seen {
        let due = next.entry(*key).or_default();
        assert!(number <= due, "key {key}: {number} came before {due}");
        *due = (*due).max(number + 1);
    }
    let again = seen.len() - (KEYS * EACH) as usize;
    assert!(again > 0, "something came again, or nothing was tried");
    cluster.shutdown().await;
}

fn highest(seen: &[(u32, u32)]) -> BTreeMap<u32, u32> {
    let mut highest = BTreeMap::new();
    for (key, number) in seen {
        let known: &mut u32 = highest.entry(*key).or_default();
        *known = (*known).max(*number);
    }
    highest
}

/// One poll; `None` if the replica could not be asked.
async fn poll(client: &crate::support::Client) -> Option<Vec<flotilla_proto::v2::Message>> {
    use flotilla_proto::v2::receive_message_response::Content;
    use futures::StreamExt as _;
    let seconds = |duration: Duration| prost_types::Duration { seconds: duration.as_secs() as i64, nanos: 0 };
    let request = flotilla_proto::v2::ReceiveMessageRequest {
        group: Some(crate::support::resource("g")),
        message_queue: Some(flotilla_proto::v2::MessageQueue {
            topic: Some(crate::support::resource("steps")),
            ..Default::default()
        }),
        batch_size: 4,
        invisible_duration: Some(seconds(INVISIBLE)),
        long_polling_timeout: Some(seconds(Duration::from_secs(1))),
        ..Default::default()
    };
    let mut stream = client.messaging.receive_message(client.options(Duration::from_secs(4)), request).await.ok()?;
    let mut messages = Vec::new();
    while let Some(response) = stream.next().await {
        if let Some(Content::Message(message)) = response.ok()?.content {
            messages.push(message);
        }
    }
    Some(messages)
}
