//! Sends of each kind while the leader dies.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flotilla_client::{OutgoingMessage, ProducerConfig};
use flotilla_proto::v2::MessageType;

use crate::calls::{id_of, message, system_of};
use crate::cluster::{Cluster, OK, read_queue};

const QUEUES: i32 = 4;
const BATCH: usize = 5;

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_stands_once_batches_stand_whole_and_a_repetition_is_known() {
    let mut cluster = Cluster::start().await;
    let [client, _] = cluster.followers().await;
    client.create_topic("orders", MessageType::Normal, QUEUES as u32).await;
    let producer = cluster.sdk().producer(ProducerConfig::default()).unwrap();
    let outgoing = |id: String| {
        OutgoingMessage::new("orders".try_into().unwrap(), "a body").with_id(id.as_str().try_into().unwrap())
    };

    // Three senders, one for each kind, run across the kill.
    let stop = Arc::new(AtomicBool::new(false));
    let goes_on = {
        let stop = stop.clone();
        move || !stop.load(Ordering::Relaxed)
    };
    let singles = {
        let (producer, goes_on) = (producer.clone(), goes_on.clone());
        cluster.runtime.spawn("singles", async move {
            let mut acknowledged = BTreeMap::new();
            while goes_on() {
                let id = format!("single-{}", acknowledged.len());
                let receipt = producer.send(outgoing(id.clone())).await.expect("it goes on by itself");
                acknowledged.insert(id, (receipt.queue.expect("a queue"), receipt.offset));
            }
            acknowledged
        })
    };
    let batches = {
        let (client, goes_on) = (client.clone(), goes_on.clone());
        cluster.runtime.spawn("batches", async move {
            let mut count = 0;
            while goes_on() {
                let batch = (0..BATCH).map(|number| message("orders", &format!("batch-{count}-{number}"), |_| ()));
                let status = client.send_all(batch.collect()).await.body.status.expect("a status");
                assert_eq!(status.code, OK, "{}", status.message);
                count += 1;
            }
            count
        })
    };
    let oneways = {
        let (producer, runtime) = (producer.clone(), cluster.runtime.clone());
        cluster.runtime.spawn("oneways", async move {
            let mut sent = BTreeSet::new();
            while goes_on() {
                let id = format!("oneway-{}", sent.len());
                producer.send_oneway(outgoing(id.clone())).await.expect("there is a place for it");
                sent.insert(id);
                runtime.sleep(Duration::from_millis(5)).await;
            }
            sent
        })
    };
    cluster.runtime.sleep(Duration::from_millis(500)).await;
    cluster.kill_leader().await;
    cluster.leader().await;
    cluster.runtime.sleep(Duration::from_millis(500)).await;
    stop.store(true, Ordering::Relaxed);
    let (singles, batches, oneways) = (singles.await.unwrap(), batches.await.unwrap(), oneways.await.unwrap());
    producer.flush().await;
    assert!(singles.len() > 20 && batches > 20, "{} and {batches}", singles.len());

    // Everything stands where it was said to, once.
    let mut places = BTreeMap::new();
    for queue in 0..QUEUES {
        for message in read_queue(&client, "orders", queue).await {
            let offset = system_of(&message).queue_offset.expect("an offset") as u64;
            let place = (queue as u32, offset);
            assert_eq!(places.insert(id_of(&message).to_owned(), place), None, "{} stands twice", id_of(&message));
        }
    }
    for (id, place) in &singles {
        assert_eq!(places.remove(id), Some(*place), "{id}");
    }
    for batch in 0..batches {
        let (queue, first) = places[&format!("batch-{batch}-0")];
        for number in 0..BATCH {
            let place = places.remove(&format!("batch-{batch}-{number}"));
            assert_eq!(place, Some((queue, first + number as u64)), "batch {batch}");
        }
    }
    assert!(places.keys().all(|id| oneways.contains(id)), "nothing that nobody sent");
    assert!(places.len() * 10 > oneways.len() * 5, "{} of {} oneway sends arrived", places.len(), oneways.len());

    // One that was acknowledged by the dead leader is known to the next.
    let again = producer.send(outgoing("single-0".to_owned())).await.unwrap();
    assert_eq!((again.queue, again.offset), (Some(singles["single-0"].0), singles["single-0"].1));
    cluster.agree().await;
}
