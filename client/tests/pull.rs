//! The pull consumer against a real group: positions are its own until committed, and then survive everybody.

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use flotilla_broker::ReadFrom;
use flotilla_client::{
    Client, GroupSpec, OutgoingMessage, ProducerConfig, PullConsumer, PullConsumerConfig, PullError, PullStart,
    TopicSpec,
};
use support::Cluster;

const NOW: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(20);

fn consumer(client: &Client, start: PullStart) -> PullConsumer {
    let config = PullConsumerConfig::new("g".try_into().unwrap(), "orders".try_into().unwrap());
    client.pull_consumer(PullConsumerConfig { start, ..config })
}

async fn send(client: &Client, bodies: std::ops::Range<u32>) {
    let producer = client.producer(ProducerConfig::default()).unwrap();
    for body in bodies {
        producer.send(OutgoingMessage::new("orders".try_into().unwrap(), body.to_string())).await.unwrap();
    }
}

/// Bodies of all that is there now.
async fn rest(consumer: &PullConsumer) -> BTreeSet<String> {
    let mut bodies = BTreeSet::new();
    loop {
        let messages = consumer.poll(3, NOW).await.unwrap();
        if messages.is_empty() {
            return bodies;
        }
        for message in messages {
            let body = String::from_utf8(message.body.to_vec()).unwrap();
            assert!(bodies.insert(body), "nothing comes twice");
        }
    }
}

fn numbers(range: std::ops::Range<u32>) -> BTreeSet<String> {
    range.map(|number| number.to_string()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_consumer_of_a_group_goes_on_at_what_was_committed_whoever_leads() {
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    client.admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 4)).await.unwrap();
    client.admin().create_group(&GroupSpec::new("g".try_into().unwrap())).await.unwrap();
    send(&client, 0..20).await;
    let first = consumer(&client, PullStart::First);
    let queues = first.queues().await.unwrap();
    assert_eq!(queues.iter().map(|queue| queue.queue).collect::<Vec<_>>(), [0, 1, 2, 3]);
    assert!(first.poll(9, NOW).await.unwrap().is_empty(), "nothing is assigned");
    first.assign(&queues).await.unwrap();
    assert_eq!(rest(&first).await, numbers(0..20));
    first.commit().await.unwrap();
    send(&client, 20..30).await;
    assert_eq!(rest(&first).await.len(), 10, "read and not committed");
    drop(first);

    cluster.kill_leader().await;
    let second = consumer(&client, PullStart::Last);
    second.assign(&queues).await.unwrap();
    assert_eq!(second.committed(&queues[0]).await.unwrap(), Some(5));
    assert_eq!(rest(&second).await, numbers(20..30), "from the group's position, not from its own start");
    second.seek(&queues[1], 0).unwrap();
    assert_eq!(rest(&second).await.len(), second.position(&queues[1]).unwrap().unwrap() as usize);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_seek_finds_a_time_and_a_position_outside_is_an_error_that_moves_nothing() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client();
    client.admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 1)).await.unwrap();
    send(&client, 0..5).await;
    let consumer = consumer(&client, PullStart::First);
    let queues = consumer.queues().await.unwrap();
    consumer.assign(&queues).await.unwrap();
    let messages = consumer.poll(5, NOW).await.unwrap();
    let third = messages[2].stored_at_ms.unwrap();
    let found = consumer.seek_to(&queues[0], PullStart::TimestampMs(third)).await.unwrap();
    assert!(found <= 2 && messages[found as usize].stored_at_ms == Some(third), "{found}");
    assert_eq!(consumer.seek_to(&queues[0], PullStart::Last).await.unwrap(), 5);
    consumer.seek(&queues[0], 9).unwrap();
    let error = consumer.poll(1, NOW).await.unwrap_err();
    assert_eq!(error, PullError::OutOfRange { queue: queues[0].clone(), offset: 9, nearest: 5 });
    assert_eq!(consumer.position(&queues[0]).unwrap(), Some(9));
    consumer.seek(&queues[0], 5).unwrap();
    let waiting = {
        let (client, runtime) = (client.clone(), cluster.runtime.clone());
        cluster.runtime.spawn("sender", async move {
            runtime.sleep(Duration::from_millis(200)).await;
            send(&client, 5..6).await;
        })
    };
    let began = cluster.runtime.now();
    assert_eq!(consumer.poll(1, LONG).await.unwrap()[0].body, "5");
    assert!(cluster.runtime.now() - began < Duration::from_secs(3), "woken by the message");
    waiting.await.unwrap();
    cluster.shutdown().await;
}

/// How many pulls each running replica answered as a follower.
fn replica_reads(cluster: &Cluster) -> Vec<u64> {
    cluster.brokers.iter().flatten().map(|broker| broker.node().replica_reads().0).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn where_any_replica_may_be_read_pulls_are_spread_and_go_on_past_whoever_is_dead() {
    let mut cluster = Cluster::start_with(3, |address| address, |config| config.read_from = ReadFrom::Any).await;
    let client = cluster.client();
    client.admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 3)).await.unwrap();
    client.admin().create_group(&GroupSpec::new("g".try_into().unwrap())).await.unwrap();
    send(&client, 0..30).await;
    let reader = consumer(&client, PullStart::First);
    let queues = reader.queues().await.unwrap();
    reader.assign(&queues).await.unwrap();
    assert_eq!(rest(&reader).await, numbers(0..30));
    let served = replica_reads(&cluster);
    assert_eq!(served.iter().filter(|count| **count > 0).count(), 2, "each of both followers: {served:?}");
    for (round, dead) in (0..3_usize).enumerate() {
        drop(cluster.brokers[dead].take());
        let first = 30 + 10 * u32::try_from(round).unwrap();
        send(&client, first..first + 10).await;
        let mut read = BTreeSet::new();
        while read.len() < 10 {
            // Nobody answers while nobody leads: that is an error, and moves nothing.
            let Ok(messages) = reader.poll(9, Duration::from_secs(1)).await else { continue };
            read.extend(messages.iter().map(|message| String::from_utf8(message.body.to_vec()).unwrap()));
        }
        assert_eq!(read, numbers(first..first + 10), "all of them, in round {round}");
        cluster.kill_and_restart(dead + 1).await;
    }
    assert!(rest(&reader).await.is_empty(), "and nothing twice");
    cluster.shutdown().await;
}
