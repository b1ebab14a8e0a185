//! Delayed messages, end to end: on time, recalled in time, and never lost with a leader.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::support::{Client, Cluster, id_of, message, system_of};
use flotilla_proto::v2;
use flotilla_proto::v2::MessageType;
use flotilla_raft_log::OsDisk;
use flotilla_runtime::{BoxFuture, Driver, Instant, Runtime};

const LONG: Duration = Duration::from_secs(20);

fn at(wall_ms: u64) -> prost_types::Timestamp {
    prost_types::Timestamp {
        seconds: i64::try_from(wall_ms / 1000).expect("not so far"),
        nanos: i32::try_from(wall_ms % 1000).expect("below a thousand") * 1_000_000,
    }
}

fn delayed(id: &str, wall_ms: u64) -> v2::Message {
    message("later", id, |system| system.delivery_timestamp = Some(at(wall_ms)))
}

/// Receives until so many messages came; when each came.
async fn arrivals(cluster: &Cluster, client: &Client, count: usize) -> BTreeMap<String, u64> {
    let mut arrived = BTreeMap::new();
    while arrived.len() < count {
        let received = client.receive("g", "later", Duration::from_secs(5), LONG).await;
        let now_ms = cluster.runtime.wall_ms();
        assert!(received.code == 20000, "code {}, so far {arrived:?}", received.code);
        for message in &received.messages {
            assert!(system_of(message).delivery_timestamp.is_some());
            assert_eq!(arrived.insert(id_of(message).to_owned(), now_ms), None, "delivered twice");
        }
        assert_eq!(client.ack("g", "later", &received.messages).await, 20000);
    }
    arrived
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_comes_on_time_and_a_recalled_one_never() {
    let cluster = Cluster::start(3).await;
    let leader = cluster.client(cluster.leader().await);
    let follower = cluster.client(cluster.follower().await);
    leader.create_topic("later", MessageType::Delay, 4).await;
    let now_ms = cluster.runtime.wall_ms();
    let mut due = BTreeMap::new();
    for (number, delay_ms) in [(0u32, 1500), (1, 700), (2, 0), (3, 1100)] {
        let id = format!("m-{number}");
        let client = if number % 2 == 0 { &leader } else { &follower };
        let entry = client.send_for_entry(delayed(&id, now_ms + delay_ms)).await;
        assert!(!entry.recall_handle.is_empty());
        due.insert(id, now_ms + delay_ms);
    }
    let entry = leader.send_for_entry(delayed("taken-back", now_ms + 1000)).await;
    assert_eq!(follower.recall("later", &entry.recall_handle).await, (20000, "taken-back".to_owned()));
    assert_eq!(leader.recall("later", &entry.recall_handle).await, (20000, "taken-back".to_owned()), "again");

    let arrived = arrivals(&cluster, &follower, 4).await;
    for (id, due_ms) in &due {
        let late_ms = arrived[id].checked_sub(*due_ms);
        assert!(late_ms.is_some_and(|late_ms| late_ms < 500), "{id} came at {}, due {due_ms}", arrived[id]);
    }
    let nothing = leader.receive("g", "later", Duration::from_secs(1), LONG).await;
    assert_eq!((nothing.code, nothing.ids()), (40401, Vec::new()));

    // Too late, and handles that are none.
    let entry = leader.send_for_entry(delayed("past", 5)).await;
    arrivals(&cluster, &leader, 1).await;
    assert_eq!(leader.recall("later", &entry.recall_handle).await.0, 40401);
    assert_eq!(leader.recall("other", &entry.recall_handle).await.0, 40000);
    assert_eq!(leader.recall("later", "00ff").await.0, 40000);
    let too_far = cluster.runtime.wall_ms() + 4 * 24 * 3600 * 1000;
    assert_eq!(leader.send(delayed("far", too_far)).await.code, 40012);
    let digests = cluster.digests().await;
    assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn delayed_messages_outlive_the_leader_and_then_the_whole_group() {
    let mut cluster = Cluster::start(3).await;
    let leader = cluster.leader().await;
    let survivor = cluster.client((1..=3).find(|node| *node != leader).expect("another"));
    survivor.create_topic("later", MessageType::Delay, 4).await;
    let soon_ms = cluster.runtime.wall_ms() + 1500;
    for number in 0..50 {
        survivor.send_for_entry(delayed(&format!("soon-{number}"), soon_ms)).await;
    }
    cluster.kill(leader);
    let arrived = arrivals(&cluster, &survivor, 50).await;
    assert!(arrived.values().all(|at_ms| *at_ms >= soon_ms), "{arrived:?}");

    let later_ms = cluster.runtime.wall_ms() + 2500;
    for number in 0..50 {
        survivor.send_for_entry(delayed(&format!("later-{number}"), later_ms)).await;
    }
    cluster.restart(leader).await;
    for node in 1..=3 {
        cluster.kill(node);
    }
    for node in 1..=3 {
        cluster.restart(node).await;
    }
    cluster.leader().await;
    let arrived = arrivals(&cluster, &survivor, 50).await;
    assert!(arrived.values().all(|at_ms| *at_ms >= later_ms), "{arrived:?}");
    cluster.shutdown().await;
}

/// The real thing, but for a wall clock that can be set.
struct SetClock {
    runtime: Runtime,
    ahead_ms: Arc<AtomicI64>,
}

impl Driver for SetClock {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.runtime.spawn(name, future).detach();
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        let runtime = self.runtime.clone();
        self.runtime.spawn("blocking", async move { runtime.blocking(work).await }).detach();
    }

    fn now(&self) -> Instant {
        self.runtime.now()
    }

    fn wall_ms(&self) -> u64 {
        self.runtime.wall_ms().saturating_add_signed(self.ahead_ms.load(Ordering::SeqCst))
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let runtime = self.runtime.clone();
        Box::pin(async move { runtime.sleep_until(deadline).await })
    }

    fn random_u64(&self) -> u64 {
        self.runtime.random_u64()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_message_comes_on_time_by_the_clock_as_it_is_though_it_jumps_and_the_leader_dies() {
    const HOUR_MS: u64 = 3_600_000;
    let ahead_ms = Arc::new(AtomicI64::new(0));
    let driver = SetClock { runtime: Runtime::tokio(), ahead_ms: ahead_ms.clone() };
    let runtime = Runtime::from_driver(Arc::new(driver));
    let mut cluster = Cluster::start_in(runtime, 3, |_| (), |_| Arc::new(OsDisk)).await;
    let old = cluster.leader().await;
    let client = cluster.client((1..=3).find(|node| *node != old).expect("another"));
    client.create_topic("later", MessageType::Delay, 4).await;
    let in_an_hour_ms = cluster.runtime.wall_ms() + HOUR_MS;
    client.send_for_entry(delayed("in-an-hour", in_an_hour_ms)).await;
    client.send_for_entry(delayed("in-two-hours", in_an_hour_ms + HOUR_MS)).await;
    assert_eq!(client.receive("g", "later", Duration::from_millis(700), LONG).await.code, 40401, "not due");

    // An hour forward: what is due by now comes within a second, and nothing else.
    ahead_ms.store(i64::try_from(HOUR_MS).expect("an hour"), Ordering::SeqCst);
    let jumped = cluster.runtime.now();
    let arrived = arrivals(&cluster, &client, 1).await;
    assert!(arrived["in-an-hour"] >= in_an_hour_ms);
    let took = cluster.runtime.now() - jumped;
    assert!(took < Duration::from_secs(3), "{took:?}");
    assert_eq!(client.receive("g", "later", Duration::from_millis(700), LONG).await.code, 40401, "not due");

    // Back again: what is sent now waits by the clock as it is now. Then the leader dies, and the clock jumps under the next.
    ahead_ms.store(0, Ordering::SeqCst);
    let soon_ms = cluster.runtime.wall_ms() + 1_500;
    client.send_for_entry(delayed("soon", soon_ms)).await;
    cluster.kill(old);
    let arrived = arrivals(&cluster, &client, 1).await;
    assert!((soon_ms..soon_ms + 5_000).contains(&arrived["soon"]), "{arrived:?}, due {soon_ms}");
    ahead_ms.store(2 * i64::try_from(HOUR_MS).expect("an hour"), Ordering::SeqCst);
    let jumped = cluster.runtime.now();
    let arrived = arrivals(&cluster, &client, 1).await;
    assert!(arrived["in-two-hours"] >= in_an_hour_ms + HOUR_MS);
    let took = cluster.runtime.now() - jumped;
    assert!(took < Duration::from_secs(3), "{took:?}");
    cluster.shutdown().await;
}
