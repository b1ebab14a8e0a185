//! Leaders that are cut off, and answers that get lost: what is told in time, what is seen meanwhile, what is known after.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::admin;
use flotilla_proto::v2::MessageType;

use super::links::Links;
use super::load::{Load, Told, check, queue_of, send};
use crate::support::{Cluster, id_of, message, system_of};

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(300);

pub async fn linked() -> (Cluster, Links) {
    let links = Links::new();
    let bending = links.clone();
    let cluster = Cluster::start_with(3, move |config| bending.bend(config)).await;
    (cluster, links)
}

/// The replica that leads with a quorum behind it, other than `not`.
pub async fn next_leader(cluster: &Cluster, not: u64) -> u64 {
    for _ in 0..500 {
        let leading = cluster.brokers.iter().flatten().map(|broker| broker.node().log().status());
        if let Some(status) = leading.filter(|status| status.can_write).find(|status| status.node.0 != not) {
            return status.node.0;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    panic!("no other leader within 10 s");
}

/// Leadership goes to `target`, as soon as it may.
pub async fn hand_to(cluster: &Cluster, target: u64) {
    for _ in 0..50 {
        let leader = cluster.leader().await;
        if leader == target {
            return;
        }
        let client = cluster.client(leader);
        let request = admin::TransferLeaderRequest { target, timeout_ms: 3_000 };
        let _ = client.admin.transfer_leader(client.options(LONG), request).await;
        cluster.runtime.sleep(Duration::from_millis(100)).await;
    }
    panic!("leadership does not go to {target}");
}

/// B02: nobody reaches anybody, and every send is told so before its caller gives up, truly; with one link back sends go on.
#[tokio::test(flavor = "multi_thread")]
async fn a_send_hears_the_truth_before_its_caller_gives_up() {
    let (cluster, links) = linked().await;
    let leader = cluster.leader().await;
    cluster.client(leader).create_topic("orders", MessageType::Normal, 1).await;
    let timeout = Duration::from_secs(2);
    let clients: Vec<_> = (1..=3).map(|node| cluster.client(node)).collect();
    let load = Load::start(&cluster.runtime, &clients, "orders", 9, timeout, |_| 1);
    while load.stored() < 100 {
        cluster.runtime.sleep(Duration::from_millis(5)).await;
    }
    (1..=3).for_each(|node| links.isolate(node, true));
    let cut_at = cluster.runtime.now();
    cluster.runtime.sleep(Duration::from_secs(6)).await;
    let other = (1..=3).find(|node| *node != leader).expect("another one");
    links.freeze(leader, other, false);
    links.freeze(other, leader, false);
    let healed_at = cluster.runtime.now();
    cluster.runtime.sleep(Duration::from_secs(6)).await;
    (1..=3).for_each(|node| links.isolate(node, false));
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    let sent = load.end().await;
    for one in &sent {
        let took = one.ended - one.began;
        assert!(took < timeout + Duration::from_millis(300), "{one:?} took {took:?}");
        if let Told::Unknown(why) = &one.told {
            assert!(!why.starts_with("call failed"), "the broker answers, not the caller's own clock: {why}");
        }
    }
    let in_the_cut = |at| at > cut_at + Duration::from_secs(1) && at < healed_at;
    let told: Vec<_> = sent.iter().filter(|one| in_the_cut(one.began)).collect();
    assert!(told.len() > 9, "{} sends in the cut", told.len());
    let is_stored = |told: &Told| matches!(told, Told::Stored(_));
    assert!(told.iter().all(|one| one.ended > healed_at || !is_stored(&one.told)), "nothing is stored by a minority");
    let first = sent.iter().filter(|one| is_stored(&one.told) && one.ended > healed_at).map(|one| one.ended).min();
    let first = first.expect("sends go on") - healed_at;
    assert!(first < Duration::from_secs(5), "the first one is stored {first:?} after the link is back");
    let (stored, denied, unknown) = check(&sent, &queue_of(&cluster.client(leader), "orders").await);
    assert!(stored > 100 && denied + unknown > 0, "{stored} stored, {denied} denied, {unknown} unknown");
    cluster.shutdown().await;
}

/// B05, C09: whoever reads at whichever replica while a leader is cut off and comes back sees each offset with one content,
/// and all that it saw stays.
#[tokio::test(flavor = "multi_thread")]
async fn what_a_cut_off_leader_took_is_seen_by_nobody_and_no_offset_has_two_contents() {
    let (cluster, links) = linked().await;
    readers_see_each_offset_with_one_content(cluster, links).await;
}

pub async fn readers_see_each_offset_with_one_content(cluster: Cluster, links: Links) {
    cluster.client(1).create_topic("orders", MessageType::Normal, 1).await;
    let clients: Vec<_> = (1..=3).map(|node| cluster.client(node)).collect();
    let seen: Arc<Mutex<BTreeMap<i64, String>>> = Arc::default();
    let is_over = Arc::new(AtomicBool::new(false));
    // A reader at each replica, with a position of its own, that begins again and again.
    let readers: Vec<_> = (0..3_usize)
        .map(|reader| {
            let (client, seen, is_over) = (clients[reader].clone(), seen.clone(), is_over.clone());
            cluster.runtime.spawn("reader", async move {
                let mut next = 0;
                while !is_over.load(Ordering::SeqCst) {
                    let pulled = client.pull(&format!("reader-{reader}"), "orders", next, SHORT).await;
                    let mut seen = seen.lock().expect("not poisoned");
                    for one in &pulled.messages {
                        let (offset, id) = (system_of(one).queue_offset.expect("an offset"), id_of(one).to_owned());
                        let before = seen.entry(offset).or_insert_with(|| id.clone());
                        assert_eq!(*before, id, "offset {offset} has one content, whoever looks");
                    }
                    let is_at_end = pulled.messages.is_empty();
                    next = if is_at_end { next.saturating_sub(40) } else { pulled.next.unwrap_or(next) };
                }
            })
        })
        .collect();
    let load = Load::start(&cluster.runtime, &clients, "orders", 12, Duration::from_secs(4), |_| 1);
    for _ in 0..3 {
        let leader = cluster.leader().await;
        let stored = load.stored();
        links.isolate(leader, true);
        next_leader(&cluster, leader).await;
        cluster.runtime.sleep(Duration::from_millis(1500)).await;
        links.isolate(leader, false);
        cluster.runtime.sleep(Duration::from_millis(1500)).await;
        assert!(load.stored() > stored, "sends go on");
    }
    let sent = load.end().await;
    is_over.store(true, Ordering::SeqCst);
    for reader in readers {
        reader.await.expect("no reader saw an offset change");
    }
    let seen = seen.lock().expect("not poisoned").clone();
    for client in &clients {
        let queue = queue_of(client, "orders").await;
        check(&sent, &queue);
        let gone: Vec<_> = seen.iter().filter(|(offset, id)| queue.get(offset) != Some(id)).collect();
        assert!(gone.is_empty(), "seen once, and not there any more: {gone:?}");
    }
    assert!(seen.len() > 100, "{} seen", seen.len());
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

/// B06: the followers' answers get lost for a while, and the leader dies at the end of it: what was told stays true.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hears_no_answer_and_then_dies_has_promised_nothing_untrue() {
    let (mut cluster, links) = linked().await;
    cluster.client(1).create_topic("orders", MessageType::Normal, 1).await;
    let clients: Vec<_> = (1..=3).map(|node| cluster.client(node)).collect();
    let load = Load::start(&cluster.runtime, &clients, "orders", 9, Duration::from_secs(5), |_| 1);
    for deaf_ms in [300, 1200, 2500] {
        let leader = cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|node| *node != leader).collect();
        others.iter().for_each(|other| links.freeze(*other, leader, true));
        cluster.runtime.sleep(Duration::from_millis(deaf_ms)).await;
        cluster.kill(leader);
        others.iter().for_each(|other| links.freeze(*other, leader, false));
        cluster.runtime.sleep(Duration::from_millis(300)).await;
        cluster.restart(leader).await;
        let stored = load.stored();
        cluster.leader().await;
        cluster.runtime.sleep(Duration::from_secs(2)).await;
        assert!(load.stored() > stored, "sends go on after {deaf_ms} ms of silence");
    }
    let sent = load.end().await;
    let (stored, ..) = check(&sent, &queue_of(&clients[0], "orders").await);
    assert!(stored > 100, "{stored} stored");
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

/// A11: a leader that was away, cut off or rebooted, and leads again knows what was consumed meanwhile.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_comes_back_knows_what_was_consumed_without_it() {
    let (mut cluster, links) = linked().await;
    let client = cluster.client(1);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let mut expected = 0;
    let mut receive_some = async |cluster: &Cluster, at: u64, count: usize| {
        let client = cluster.client(at);
        let received = client.receive_with("g", "orders", LONG, LONG, |request| {
            request.batch_size = i32::try_from(count).expect("small");
        });
        let received = received.await;
        assert_eq!(received.ids(), (expected..expected + count).map(|n| format!("m-{n}")).collect::<Vec<_>>());
        assert_eq!(client.ack("g", "orders", &received.messages).await, 20000);
        expected += count;
        let position = i64::try_from(expected).expect("small");
        assert_eq!(client.update_offset("puller", "orders", position).await, 20000);
        position
    };
    for number in 0..100 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, 20000);
    }
    for is_rebooted in [false, true, false, true] {
        let old = cluster.leader().await;
        receive_some(&cluster, old, 7).await;
        if is_rebooted {
            cluster.kill(old);
        } else {
            links.isolate(old, true);
        }
        let new = next_leader(&cluster, old).await;
        let position = receive_some(&cluster, new, 9).await;
        if is_rebooted {
            cluster.restart(old).await;
        } else {
            links.isolate(old, false);
        }
        hand_to(&cluster, old).await;
        assert_eq!(cluster.client(old).get_offset("puller", "orders").await, (20000, position));
        // Exactly what comes next: nothing again, and not from the beginning.
        receive_some(&cluster, old, 5).await;
    }
    cluster.shutdown().await;
}

/// F08 for clients: a replica that leads without a quorum answers within the caller's time, and takes no more than it may.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_without_a_quorum_tells_its_clients_that_nothing_was_done() {
    let (cluster, links) = linked().await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.create_topic("orders", MessageType::Normal, 1).await;
    assert_eq!(client.send(message("orders", "m-0", |_| ())).await.code, 20000);
    links.isolate(leader, true);
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    let last = cluster.brokers[usize::try_from(leader).expect("small") - 1]
        .as_ref()
        .expect("it runs")
        .node()
        .log()
        .status()
        .last;
    let sends = (0..300).map(|number| {
        let ids = vec![format!("cut-{number}")];
        send(&cluster.runtime, &client, "orders", ids, Duration::from_secs(1))
    });
    for one in futures::future::join_all(sends).await {
        assert!(matches!(&one.told, Told::Denied(why) if why.starts_with("50002")), "{one:?}");
        assert!(one.ended - one.began < Duration::from_millis(1300), "{one:?}");
    }
    let (code, _) = client.get_offset("puller", "orders").await;
    assert_ne!(code, 20000, "a position is not told by a leader that may be one no more");
    let now = cluster.brokers[usize::try_from(leader).expect("small") - 1].as_ref().expect("it runs");
    assert_eq!(now.node().log().status().last, last, "its log does not grow");
    links.isolate(leader, false);
    assert_eq!(client.send(message("orders", "m-1", |_| ())).await.code, 20000);
    assert_eq!(queue_of(&client, "orders").await.into_values().collect::<Vec<_>>(), ["m-0", "m-1"]);
    cluster.shutdown().await;
}
