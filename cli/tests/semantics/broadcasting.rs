//! Broadcasting: every instance gets every message, from its own position on, whoever leads.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_client::{
    BroadcastConsumer, BroadcastConsumerConfig, BroadcastPositions, ConsumeResult, OutgoingMessage, ProducerConfig,
    PullStart,
};
use flotilla_proto::admin;
use flotilla_proto::v2::MessageType;

use crate::cluster::{Cluster, LONG, admin_call};

const STEP: usize = 60;
const FAILING: &str = "7";

type Seen = Arc<Mutex<BTreeMap<String, usize>>>;

/// An instance, which remembers how often it was given what.
async fn instance(cluster: &Cluster, positions: BroadcastPositions) -> (BroadcastConsumer, Seen) {
    let seen = Seen::default();
    let config = BroadcastConsumerConfig {
        positions,
        ..BroadcastConsumerConfig::new("caches".try_into().unwrap(), "news".try_into().unwrap())
    };
    let noted = seen.clone();
    let client = cluster.sdk();
    let consumer = client.broadcast_consumer(config, move |message| {
        let body = String::from_utf8(message.body.to_vec()).unwrap();
        let result = if body == FAILING { ConsumeResult::Failure } else { ConsumeResult::Success };
        *noted.lock().unwrap().entry(body).or_default() += 1;
        async move { result }
    });
    (consumer.await.expect("it starts"), seen)
}

fn in_file(path: &Path) -> BroadcastPositions {
    BroadcastPositions::File { path: path.to_owned(), start: PullStart::First }
}

async fn has_exactly(cluster: &Cluster, seen: &Seen, numbers: std::ops::Range<usize>) {
    let expected: BTreeMap<String, usize> = numbers.map(|number| (number.to_string(), 1)).collect();
    let deadline = cluster.runtime.now() + LONG;
    loop {
        let now = seen.lock().unwrap().clone();
        if now == expected {
            return;
        }
        assert!(cluster.runtime.now() < deadline, "{} of {}: {now:?}", now.len(), expected.len());
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_instance_gets_everything_once_and_goes_on_where_its_file_says() {
    let mut cluster = Cluster::start().await;
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let [client, _] = cluster.followers().await;
    client.create_topic("news", MessageType::Normal, 3).await;
    let producer = cluster.sdk().producer(ProducerConfig::default()).unwrap();
    let send = async |numbers: std::ops::Range<usize>| {
        for number in numbers {
            let message = OutgoingMessage::new("news".try_into().unwrap(), number.to_string());
            producer.send(message).await.unwrap();
        }
    };
    let (first, first_seen) = instance(&cluster, in_file(&one)).await;
    send(0..STEP).await;
    let (second, second_seen) = instance(&cluster, in_file(&two)).await;
    let (third, third_seen) = instance(&cluster, BroadcastPositions::Newest).await;

    // The leader dies between two halves of what follows.
    send(STEP..STEP * 3 / 2).await;
    cluster.kill_leader().await;
    send(STEP * 3 / 2..STEP * 2).await;
    has_exactly(&cluster, &first_seen, 0..STEP * 2).await;
    has_exactly(&cluster, &second_seen, 0..STEP * 2).await;
    has_exactly(&cluster, &third_seen, STEP..STEP * 2).await;

    // One stops, another goes on; a file that is in use is refused.
    first.shutdown(LONG).await.unwrap();
    third.shutdown(LONG).await.unwrap();
    let config = BroadcastConsumerConfig {
        positions: in_file(&two),
        ..BroadcastConsumerConfig::new("caches".try_into().unwrap(), "news".try_into().unwrap())
    };
    let refused = cluster.sdk().broadcast_consumer(config, |_| async { ConsumeResult::Success }).await;
    assert!(refused.err().expect("refused").to_string().contains("in use by another instance"));
    send(STEP * 2..STEP * 3).await;
    has_exactly(&cluster, &second_seen, 0..STEP * 3).await;
    let (first, first_seen) = instance(&cluster, in_file(&one)).await;
    has_exactly(&cluster, &first_seen, STEP * 2..STEP * 3).await;
    let (third, third_seen) = instance(&cluster, BroadcastPositions::Newest).await;
    let read = |consumer: &BroadcastConsumer| consumer.positions().values().sum::<u64>();
    while read(&first) < STEP as u64 * 3 {
        // The last listener has been called, and is about to return.
        cluster.runtime.sleep(Duration::from_millis(5)).await;
    }
    assert_eq!((read(&first), read(&third)), (STEP as u64 * 3, STEP as u64 * 3));
    assert!(third_seen.lock().unwrap().is_empty(), "nothing is new to it");

    // The brokers keep nothing of the group.
    let groups = admin_call!(client, list_groups, admin::ListGroupsRequest::default()).groups;
    for group in groups {
        let told = admin_call!(client, describe_group, admin::DescribeGroupRequest { name: group.name });
        assert!(told.progress.is_empty(), "{told:?}");
    }
    for consumer in [first, second, third] {
        consumer.shutdown(LONG).await.unwrap();
    }
    cluster.agree().await;
}
