//! Old messages go on all replicas alike; what was delayed, half or dead by then is still delivered.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Client, Cluster, Received, id_of, message, resource};
use flotilla_message::{QueueId, TopicName};
use flotilla_proto::v2::{self, MessageType, TransactionResolution};
use flotilla_store::RetentionStatus;

const LONG: Duration = Duration::from_secs(30);
const RETENTION_MS: u64 = 10_000;

async fn cluster(retention_ms: u64) -> Cluster {
    Cluster::start_with(3, |config| {
        config.segment_bytes = 64 << 10;
        config.retention_ms = retention_ms;
        config.slow_replica_hold_ms = 500;
        config.transaction_check_after_ms = 3_600_000;
    })
    .await
}

/// Sends `count` messages of 1 KiB each, four at a time.
async fn fill(client: &Client, from: u32, count: u32) {
    for batch in (from..from + count).step_by(4) {
        let messages = (batch..batch + 4).map(|number| {
            let mut filler = message("t", &format!("f-{number}"), |_| ());
            filler.body = vec![7_u8; 1024].into();
            filler
        });
        let answer = client.send_all(messages.collect()).await.body;
        assert_eq!(answer.status.expect("a status").code, 20000);
    }
}

fn retention(cluster: &Cluster) -> Vec<RetentionStatus> {
    cluster.brokers.iter().flatten().map(|broker| broker.node().store().retention()).collect()
}

/// Waits until every running replica has let go of its files before `below`, but for what its checkpoints do not part.
async fn purged_beyond(cluster: &Cluster, below: u64) {
    for _ in 0..1500 {
        let firsts = cluster.brokers.iter().flatten().map(|broker| broker.node().log().extent().first.0);
        if firsts.min() > Some(below) {
            return;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    panic!("files were not let go: {:?}", retention(cluster));
}

async fn receive_one(client: &Client, group: &str, topic: &str) -> Received {
    let received = client.receive(group, topic, Duration::from_secs(10), LONG).await;
    assert_eq!(received.code, 20000, "{group} finds nothing in {topic}");
    received
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_still_referred_to_outlives_the_segment_it_was_written_to() {
    let cluster = cluster(RETENTION_MS).await;
    let leader = cluster.client(cluster.leader().await);
    leader.create_topic("t", MessageType::Normal, 1).await;
    leader.create_topic("later", MessageType::Delay, 1).await;
    leader.create_topic("tx", MessageType::Transaction, 1).await;
    leader.create_group("mortal", false, 1).await;
    let due_ms = cluster.runtime.wall_ms() + 2 * RETENTION_MS + 3_000;
    let delayed = message("later", "delayed", |system| {
        system.delivery_timestamp =
            Some(prost_types::Timestamp { seconds: i64::try_from(due_ms / 1000).expect("not so far"), nanos: 0 });
    });
    leader.send_for_entry(delayed).await;
    let half = message("tx", "half", |system| system.message_type = MessageType::Transaction.into());
    let half = leader.send_for_entry(half).await;
    leader.send_for_entry(message("t", "doomed", |_| ())).await;
    let doomed = leader.receive("mortal", "t", Duration::from_secs(5), Duration::from_millis(RETENTION_MS * 7 / 10));
    assert_eq!(doomed.await.ids(), ["doomed"]);
    let first_segment = cluster.brokers[0].as_ref().expect("it runs").node().store().applied();

    // Its one delivery is over: the next poll makes it a dead letter, younger than the message.
    fill(&leader, 0, 200).await;
    cluster.runtime.sleep(Duration::from_millis(RETENTION_MS * 7 / 10)).await;
    let polled = leader.receive("mortal", "t", Duration::from_millis(200), LONG).await;
    assert!(!polled.ids().contains(&"doomed".to_owned()));
    fill(&leader, 200, 100).await;
    purged_beyond(&cluster, first_segment).await;
    assert!(retention(&cluster).iter().all(|status| status.carried >= 1), "{:?}", retention(&cluster));

    let dead = receive_one(&leader, "undertaker", "%DLQ%mortal").await;
    assert_eq!(dead.ids(), ["doomed"]);
    assert_eq!(dead.messages[0].body, "body of doomed");
    let request = v2::EndTransactionRequest {
        topic: Some(resource("tx")),
        message_id: "half".to_owned(),
        transaction_id: half.transaction_id,
        resolution: TransactionResolution::Commit.into(),
        ..Default::default()
    };
    let ended = leader.messaging.end_transaction(leader.options(LONG), request).await.expect("an answer");
    assert_eq!(ended.body.status.expect("a status").code, 20000, "its handle names it as before");
    assert_eq!(receive_one(&leader, "g", "tx").await.ids(), ["half"]);
    let late = leader.receive("g", "later", Duration::from_secs(15), LONG).await;
    assert_eq!(late.ids(), ["delayed"]);
    assert_eq!(late.messages[0].body, "body of delayed");

    // A group that starts now finds the oldest message that is there, and reads on without a gap.
    let topic = TopicName::try_from("t").expect("a name");
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    let bounds: BTreeSet<_> =
        cluster.brokers.iter().flatten().map(|broker| broker.node().store().queue_bounds(&topic, QueueId(0))).collect();
    assert_eq!(bounds.len(), 1, "the same minimum offset everywhere: {bounds:?}");
    assert!(bounds.first().expect("one").expect("the topic is there").0.0 > 0);
    cluster.shutdown().await;
}

/// A consumer reads while the log is trimmed behind it; one replica is away for longer than anything is kept, another loses
/// its disk.
#[tokio::test(flavor = "multi_thread")]
async fn replicas_that_missed_more_than_is_kept_end_with_every_retained_message() {
    let mut cluster = cluster(1_500).await;
    let leader_node = cluster.leader().await;
    let leader = cluster.client(leader_node);
    leader.create_topic("t", MessageType::Normal, 2).await;
    fill(&leader, 0, 100).await;
    let away = cluster.follower().await;
    cluster.kill(away);
    let mut consumed = BTreeSet::new();
    let mut sent = 100;
    let before = cluster.brokers.iter().flatten().map(|broker| broker.node().store().applied()).max().expect("some");
    for _ in 0..12 {
        fill(&leader, sent, 60).await;
        sent += 60;
        let received = leader.receive("g", "t", Duration::from_millis(200), LONG).await;
        consumed.extend(received.messages.iter().map(|message| id_of(message).to_owned()));
        leader.ack("g", "t", &received.messages).await;
        cluster.runtime.sleep(Duration::from_millis(300)).await;
    }
    purged_beyond(&cluster, before).await;
    assert!(consumed.len() > 100, "{} consumed", consumed.len());
    for is_emptied in [false, true] {
        if is_emptied {
            cluster.kill_and_empty(away).await;
        }
        cluster.restart(away).await;
        fill(&leader, sent, 60).await;
        sent += 60;
        let caught_up = async { while cluster.digests().await.iter().collect::<BTreeSet<_>>().len() > 1 {} };
        cluster.runtime.timeout(LONG, caught_up).await.expect("it catches up");
        let log = |node: u64| {
            cluster.brokers[usize::try_from(node).expect("small") - 1].as_ref().expect("it runs").node().log()
        };
        let first = log(away).extent().first.max(log(leader_node).extent().first);
        let last = log(leader_node).status().last.expect("entries").min(log(away).status().last.expect("entries"));
        for index in first.0..=last.0 {
            let index = flotilla_raft_log::LogIndex(index);
            assert_eq!(log(away).read(index).expect("sound"), log(leader_node).read(index).expect("sound"), "{index}");
        }
    }
    cluster.shutdown().await;
}
