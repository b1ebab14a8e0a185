//! C02, C10, C11: lagging replicas, polls that are held while the lead moves, and tails that are lost move nobody's position.

use std::collections::BTreeSet;
use std::time::Duration;

use flotilla_proto::admin;
use flotilla_proto::v2::MessageType;

use super::cut_off::{hand_to, linked, next_leader};
use super::links::Links;
use crate::support::{Client, Cluster, id_of, message};

const LONG: Duration = Duration::from_secs(30);
const NOW: Duration = Duration::ZERO;
const SHORT: Duration = Duration::from_millis(500);
const OK: i32 = 20000;
const ILLEGAL: i32 = 40019;

async fn send_some(client: &Client, topic: &str, prefix: &str, count: u32) {
    for number in 0..count {
        assert_eq!(client.send(message(topic, &format!("{prefix}-{number}"), |_| ())).await.code, OK);
    }
}

/// C02: "not here yet" is not "illegal": who asks a replica that lags waits or hears the leader, and stays where it was.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_lags_calls_no_offset_illegal_and_resets_nobody() {
    let (cluster, links) = linked().await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.create_topic("orders", MessageType::Normal, 1).await;
    send_some(&client, "orders", "early", 80).await;
    cluster.digests().await;
    let lagging = (1..).find(|node| *node != leader).expect("a number");
    links.isolate(lagging, true);
    send_some(&client, "orders", "late", 40).await;
    assert_eq!(client.update_offset("g", "orders", 100).await, OK);

    // It has 80, is cut off for several leases, and is asked for the 101st again and again.
    let cut = cluster.client(lagging).in_language("JAVA");
    for _ in 0..2 {
        let pulled = cut.pull("g", "orders", 100, SHORT).await;
        assert!(pulled.code != ILLEGAL && pulled.messages.is_empty(), "{}", pulled.code);
        assert!(pulled.next.is_none_or(|next| next == 100), "sent elsewhere: {:?}", pulled.next);
        assert_ne!(cut.get_offset("g", "orders").await, (OK, 0));
    }
    links.isolate(lagging, false);
    cluster.leader().await;
    let pulled = cut.pull("g", "orders", 100, LONG).await;
    assert_eq!(pulled.ids(), (20..40).map(|number| format!("late-{number}")).collect::<Vec<_>>());
    assert_eq!(cut.get_offset("g", "orders").await, (OK, 100), "where it was");
    cluster.shutdown().await;
}

/// C10: polls that are held at all replicas go on at the next leader, and each gets its message within moments.
#[tokio::test(flavor = "multi_thread")]
async fn five_hundred_held_polls_go_on_when_the_lead_moves() {
    const POLLS: u64 = 500;
    let cluster = Cluster::start_with(3, |config| config.long_polling_max_ms = 120_000).await;
    let old = cluster.leader().await;
    let client = cluster.client(old);
    client.create_topic("quiet", MessageType::Normal, 4).await;
    let polls: Vec<_> = (0..POLLS)
        .map(|number| {
            let client = cluster.client(number % 3 + 1);
            let one = async move {
                client.receive_with("g", "quiet", 4 * LONG, LONG, |request| request.batch_size = 1).await
            };
            cluster.runtime.spawn("poll", one)
        })
        .collect();
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    let next = (1..).find(|node| *node != old).expect("a number");
    hand_to(&cluster, next).await;
    let began = cluster.runtime.now();
    let sender = cluster.client(next);
    let batches = POLLS / 20;
    for batch in 0..batches {
        let messages = (0..20).map(|place| message("quiet", &format!("m-{batch}-{place}"), |_| ())).collect();
        assert_eq!(sender.send_all(messages).await.body.status.expect("a status").code, OK);
    }
    let mut came = BTreeSet::new();
    for poll in polls {
        let received = poll.await.expect("it ends");
        assert_eq!((received.code, received.messages.len()), (OK, 1));
        assert!(came.insert(id_of(&received.messages[0]).to_owned()), "nothing goes to two");
    }
    let took = cluster.runtime.now() - began;
    assert_eq!(came.len() as u64, POLLS);
    assert!(took < Duration::from_secs(20), "{took:?}");
    cluster.shutdown().await;
}

/// C11: a tail that was acknowledged early and is lost was seen by nobody: who stands at the end of the log stays there,
/// skips nothing of what follows, and is thrown back by nothing.
#[tokio::test(flavor = "multi_thread")]
async fn who_reads_at_the_tail_skips_nothing_when_an_early_acknowledged_tail_is_lost() {
    let links = Links::new();
    let bending = links.clone();
    // A long lease, so that a busy machine leaves time to acknowledge something within it.
    let cluster = Cluster::start_with(3, move |config| {
        bending.bend(config);
        (config.election_timeout_ms_min, config.election_timeout_ms_max) = (1_500, 3_000);
    })
    .await;
    cluster.founded().await;
    let old = cluster.leader().await;
    let client = cluster.client(old).in_language("JAVA");
    let topic = admin::Topic { name: "fast".to_owned(), queue_count: 1, ..Default::default() };
    let request = admin::CreateTopicRequest { topic: Some(topic), ack: "async".to_owned(), ..Default::default() };
    let made = client.admin.create_topic(client.options(LONG), request).await.expect("an answer");
    assert_eq!(made.status.expect("a status").code, OK);
    send_some(&client, "fast", "kept", 20).await;
    // They were answered before their commit, which is there in a moment.
    for _ in 0..500 {
        if client.update_offset("g", "fast", 20).await == OK {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.get_offset("g", "fast").await, (OK, 20));

    // Cut off, the leader goes on answering within its lease; its reader, at the very tail, sees nothing of it.
    links.isolate(old, true);
    let mut lost = 0;
    while client.send(message("fast", &format!("lost-{lost}"), |_| ())).await.code == OK {
        lost += 1;
        let pulled = client.pull("g", "fast", 20, NOW).await;
        assert!(pulled.messages.is_empty(), "seen before it is committed: {:?}", pulled.ids());
        assert_ne!(client.update_offset("g", "fast", 21).await, OK, "nobody can stand there");
    }
    assert!(lost > 0, "it acknowledged some");
    let new = next_leader(&cluster, old).await;
    links.isolate(old, false);
    let sender = cluster.client(new);
    send_some(&sender, "fast", "new", 100).await;
    let (mut at, mut came) = (20, Vec::new());
    while came.len() < 100 {
        let pulled = client.pull("g", "fast", at, LONG).await;
        assert_eq!(pulled.code, OK, "at {at}");
        came.extend(pulled.ids());
        at = pulled.next.expect("where to go on");
    }
    assert_eq!(came, (0..100).map(|number| format!("new-{number}")).collect::<Vec<_>>(), "from where it stood");
    assert_eq!(client.get_offset("g", "fast").await, (OK, 20), "moved by nobody");
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}
