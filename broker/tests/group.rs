//! Three replicas: any of them serves, and the death of the leader costs nothing but a moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Cluster, id_of, message, resource};
use flotilla_proto::client::CallError;
use flotilla_proto::v2::MessageType;
use flotilla_proto::{admin, v2};

const LONG: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_serves_as_the_leader_does() {
    let cluster = Cluster::start(3).await;
    let follower = cluster.client(cluster.follower().await);
    follower.create_topic("orders", MessageType::Normal, 4).await;
    for number in 0..20 {
        assert_eq!(follower.send(message("orders", &format!("m-{number}"), |_| ())).await.code, 20000);
    }
    let mut ids = BTreeSet::new();
    while ids.len() < 20 {
        let received = follower.receive("g", "orders", LONG, LONG).await;
        assert_eq!(received.code, 20000);
        assert_eq!(follower.ack("g", "orders", &received.messages).await, 20000);
        ids.extend(received.ids());
    }
    // A topic made a moment ago is routed everywhere, by membership.
    for node in 1..=3 {
        follower.create_topic(&format!("fresh-{node}"), MessageType::Normal, 2).await;
        let client = cluster.client(node).in_language("JAVA");
        let request = v2::QueryRouteRequest { topic: Some(resource(&format!("fresh-{node}"))), endpoints: None };
        let route = client.messaging.query_route(client.options(LONG), request).await.expect("an answer").body;
        assert_eq!(route.status.expect("a status").code, 20000);
        let addresses = |queue: &v2::MessageQueue| {
            queue.broker.as_ref().and_then(|broker| broker.endpoints.as_ref()).map_or(0, |all| all.addresses.len())
        };
        assert_eq!(route.message_queues.iter().map(addresses).collect::<Vec<_>>(), [3, 3]);
    }
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn acked_messages_survive_the_leader_s_death_and_calls_wait_for_the_next() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let survivors: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    cluster.client(leader).create_topic("orders", MessageType::Normal, 4).await;

    // Senders on both survivors, one message after the other, each repeated until it is acknowledged.
    let acked = Arc::new(Mutex::new(BTreeSet::new()));
    let refused = Arc::new(Mutex::new(Vec::new()));
    let mut senders = Vec::new();
    for node in &survivors {
        let (client, acked, refused, node) = (cluster.client(*node), acked.clone(), refused.clone(), *node);
        senders.push(cluster.runtime.spawn("sender", async move {
            for number in 0..600 {
                let id = format!("{node}-{number}");
                let status = client.send(message("orders", &id, |_| ())).await;
                match status.code {
                    20000 => drop(acked.lock().expect("not poisoned").insert(id)),
                    _ => refused.lock().expect("not poisoned").push(status.message),
                }
            }
        }));
    }
    // A poll that is under way when the leader dies goes on with the next one.
    let poll = {
        let client = cluster.client(survivors[0]);
        cluster.client(leader).create_topic("quiet", MessageType::Normal, 1).await;
        cluster.runtime.spawn("poll", async move { client.receive("g", "quiet", LONG, LONG).await })
    };
    while acked.lock().expect("not poisoned").len() < 200 {
        cluster.runtime.sleep(Duration::from_millis(5)).await;
    }
    cluster.kill(leader);
    for sender in senders {
        sender.await.expect("the sender ends");
    }
    assert_eq!(*refused.lock().expect("not poisoned"), Vec::<String>::new(), "calls wait instead of failing");
    let acked = acked.lock().expect("not poisoned").clone();
    assert_eq!(acked.len(), 1200);

    let client = cluster.client(survivors[1]);
    assert_eq!(client.send(message("quiet", "late", |_| ())).await.code, 20000);
    assert_eq!(poll.await.expect("the poll ends").ids(), ["late"]);

    // The dead one comes back; all have the same; everything acknowledged is there, once.
    cluster.restart(leader).await;
    let mut seen: BTreeMap<String, u32> = BTreeMap::new();
    while seen.len() < 1200 {
        let received = client.receive("g", "orders", LONG, Duration::from_secs(60)).await;
        assert_eq!(received.code, 20000, "{} of 1200", seen.len());
        for one in &received.messages {
            *seen.entry(id_of(one).to_owned()).or_default() += 1;
        }
        assert_eq!(client.ack("g", "orders", &received.messages).await, 20000);
    }
    assert_eq!(seen.keys().cloned().collect::<BTreeSet<_>>(), acked);
    assert!(seen.values().all(|times| *times == 1), "nothing twice");
    let digests = cluster.digests().await;
    assert_eq!(digests.len(), 3);
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_is_there_after_all_replicas_were_killed() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 2).await;
    for number in 0..50 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, 20000);
    }
    let first = client.receive("g", "orders", LONG, LONG).await;
    assert_eq!(client.ack("g", "orders", &first.messages).await, 20000);
    let before = cluster.digests().await;
    for node in 1..=3 {
        cluster.kill(node);
    }
    for node in 1..=3 {
        cluster.restart(node).await;
    }
    cluster.leader().await;
    let mut seen: BTreeSet<String> = first.ids().into_iter().collect();
    assert_eq!(cluster.digests().await[0], before[0], "the same state, not only the same messages");
    while seen.len() < 50 {
        let received = client.receive("g", "orders", LONG, LONG).await;
        assert_eq!(received.code, 20000);
        seen.extend(received.ids());
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_quorum_a_call_is_parked_and_then_told_so() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let survivors: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
    let client = cluster.client(survivors[0]);
    client.create_topic("orders", MessageType::Normal, 1).await;
    cluster.kill(leader);
    cluster.kill(survivors[1]);
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    let started = cluster.runtime.now();
    let options = client.options(Duration::from_secs(2));
    let request = v2::SendMessageRequest { messages: vec![message("orders", "m", |_| ())] };
    let status = client.messaging.send_message(options, request).await.expect("an answer").body.status;
    let waited = cluster.runtime.now() - started;
    assert_eq!(status.map(|status| status.code), Some(50002));
    assert!(waited > Duration::from_millis(1500) && waited < Duration::from_secs(2), "parked for {waited:?}");
    let poll = client.receive("g", "orders", Duration::from_secs(1), LONG).await;
    assert_eq!(poll.code, 40401, "to a poll it is an empty one");

    // The other comes back, and with it the quorum: the very same message is taken.
    cluster.restart(survivors[1]).await;
    assert_eq!(client.send(message("orders", "m", |_| ())).await.code, 20000);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn leadership_moves_on_request_without_a_failed_send() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 4).await;
    let sender = {
        let client = client.clone();
        cluster.runtime.spawn("sender", async move {
            for number in 0..300 {
                let status = client.send(message("orders", &format!("m-{number}"), |_| ())).await;
                assert_eq!(status.code, 20000, "{}", status.message);
            }
        })
    };
    cluster.runtime.sleep(Duration::from_millis(100)).await;
    let target = (1..=3).find(|node| *node != leader).expect("another one");
    let request = admin::TransferLeaderRequest { target, timeout_ms: 2_000 };
    let reply = client.admin.transfer_leader(client.options(LONG), request).await.expect("an answer");
    let status = reply.status.expect("a status");
    assert_eq!((status.code, reply.leader), (20000, target), "{}", status.message);
    sender.await.expect("no send failed");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_told_to_stop_hands_over_and_no_send_fails() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    cluster.client(leader).create_topic("orders", MessageType::Normal, 4).await;
    let has_stopped = Arc::new(Mutex::new(false));
    let mut senders = Vec::new();
    for (node, task) in (1..=3).flat_map(|node| [(node, 0), (node, 1)]) {
        let (client, runtime, has_stopped) = (cluster.client(node), cluster.runtime.clone(), has_stopped.clone());
        senders.push(cluster.runtime.spawn("sender", async move {
            let (mut longest, mut after) = (Duration::ZERO, 0);
            for number in 0.. {
                let options = client.options(Duration::from_secs(5));
                let messages = vec![message("orders", &format!("{node}-{task}-{number}"), |_| ())];
                let began = runtime.now();
                let sent = client.messaging.send_message(options, v2::SendMessageRequest { messages }).await;
                longest = longest.max(runtime.now() - began);
                match sent {
                    Ok(reply) => assert_eq!(reply.body.status.map(|status| status.code), Some(20000)),
                    // Its port is closed: any client goes on with another replica.
                    Err(CallError::Refused(_)) if node == leader => break,
                    Err(error) => panic!("a send by replica {node} failed: {error}"),
                }
                after += u32::from(*has_stopped.lock().expect("not poisoned"));
                if after > 20 {
                    break;
                }
            }
            longest
        }));
    }
    cluster.runtime.sleep(Duration::from_millis(300)).await;
    cluster.stop(leader).await;
    *has_stopped.lock().expect("not poisoned") = true;
    for sender in senders {
        let longest = sender.await.expect("no send fails");
        assert!(longest < Duration::from_secs(2), "a send took {longest:?}");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_stop_together_do_not_wait_for_each_other() {
    let cluster = Cluster::start(3).await;
    cluster.leader().await;
    let (runtime, began) = (cluster.runtime.clone(), cluster.runtime.now());
    let stopping = cluster.brokers.into_iter().flatten().map(|broker| broker.shutdown(Duration::from_secs(20)));
    futures::future::join_all(stopping).await;
    let took = runtime.now() - began;
    assert!(took < Duration::from_millis(1500), "stopping took {took:?}, handing over may take 2 s");
}
