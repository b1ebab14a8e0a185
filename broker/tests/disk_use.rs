//! What becomes of messages and sends as the disk fills: by shares of it and by free bytes, at a set hour, and for slow replicas.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::support::{Client, Cluster, message};
use flotilla_proto::v2::MessageType;
use flotilla_raft_log::{LogIndex, WrapDisk, WrappingDisk};

const GIB: u64 = 1 << 30;
const MS_PER_HOUR: u64 = 3_600_000;
const PATIENCE: Duration = Duration::from_secs(20);
/// What may go is looked at every second.
const TWO_LOOKS: Duration = Duration::from_millis(2_500);

/// The machine's disk, which says of its space what it is told to.
#[derive(Clone)]
struct StatedDisk {
    free_bytes: Arc<AtomicU64>,
    total_bytes: u64,
}

impl StatedDisk {
    fn set_free(&self, bytes: u64) {
        self.free_bytes.store(bytes, Ordering::Relaxed);
    }
}

impl WrapDisk for StatedDisk {
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.free_bytes.load(Ordering::Relaxed))
    }
    fn total_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(self.total_bytes)
    }
}

/// Sends `count` messages of 1 KiB each, four at a time.
async fn fill(client: &Client, from: u32, count: u32) {
    for batch in (from..from + count).step_by(4) {
        assert_eq!(send(client, batch).await, 20000);
    }
}

/// The code with which four messages are answered.
async fn send(client: &Client, from: u32) -> i32 {
    let messages = (from..from + 4).map(|number| {
        let mut filler = message("t", &format!("f-{number}"), |_| ());
        filler.body = vec![7_u8; 1024].into();
        filler
    });
    client.send_all(messages.collect()).await.body.status.expect("a status").code
}

fn first(cluster: &Cluster, node: u64) -> LogIndex {
    let at = usize::try_from(node).expect("small") - 1;
    cluster.brokers[at].as_ref().expect("it runs").node().log().extent().first
}

async fn until(cluster: &Cluster, what: &str, mut is_so: impl FnMut() -> bool) {
    let reached = async {
        while !is_so() {
            cluster.runtime.sleep(Duration::from_millis(20)).await;
        }
    };
    cluster.runtime.timeout(PATIENCE, reached).await.unwrap_or_else(|_| panic!("waited too long for {what}"));
}

/// One replica over a disk of 400 GiB, the default thresholds, and these settings of retention; some segments are full.
async fn filled(retention_ms: u64, hour_utc: Option<u8>) -> (Cluster, StatedDisk, Client) {
    let disk = StatedDisk { free_bytes: Arc::new(AtomicU64::new(350 * GIB)), total_bytes: 400 * GIB };
    let settings = |config: &mut flotilla_broker::BrokerConfig| {
        config.segment_bytes = 64 << 10;
        config.retention_ms = retention_ms;
        config.retention_hour_utc = hour_utc;
        config.disk_refuse_free_bytes = flotilla_broker::BrokerConfig::default().disk_refuse_free_bytes;
    };
    let cluster = Cluster::start_over(1, settings, |_| Arc::new(WrappingDisk(disk.clone()))).await;
    let client = cluster.client(cluster.leader().await);
    client.create_topic("t", MessageType::Normal, 1).await;
    fill(&client, 0, 240).await;
    (cluster, disk, client)
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_messages_wait_for_their_hour_until_three_quarters_of_the_disk_and_all_but_40_gib_are_used() {
    let probe = flotilla_runtime::Runtime::tokio();
    // Half a day from now, so that it does not come during the test.
    let hour = (probe.wall_ms() / MS_PER_HOUR + 12) % 24;
    let (cluster, disk, client) = filled(1_000, Some(u8::try_from(hour).expect("an hour"))).await;
    cluster.runtime.sleep(TWO_LOOKS).await;
    fill(&client, 240, 40).await;
    let before = first(&cluster, 1);
    cluster.runtime.sleep(TWO_LOOKS).await;
    assert_eq!(first(&cluster, 1), before, "it is not their hour");
    disk.set_free(41 * GIB);
    cluster.runtime.sleep(TWO_LOOKS).await;
    assert_eq!(first(&cluster, 1), before, "nine tenths are used, and there is enough to spare");
    disk.set_free(39 * GIB);
    until(&cluster, "expired messages to go", || first(&cluster, 1) > before).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_oldest_go_whatever_their_age_when_less_than_20_gib_are_free() {
    let (cluster, disk, _) = filled(72 * MS_PER_HOUR, None).await;
    let before = first(&cluster, 1);
    disk.set_free(21 * GIB);
    cluster.runtime.sleep(TWO_LOOKS).await;
    assert_eq!(first(&cluster, 1), before, "nothing has expired");
    disk.set_free(19 * GIB);
    until(&cluster, "the oldest to go", || first(&cluster, 1) > before).await;
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sends_are_refused_from_nine_tenths_and_less_than_10_gib_on_and_taken_again_by_themselves() {
    let (cluster, disk, client) = filled(72 * MS_PER_HOUR, None).await;
    let log = cluster.brokers[0].as_ref().expect("it runs").node().log();
    disk.set_free(11 * GIB);
    fill(&client, 240, 120).await;
    assert!(!log.is_full(), "97 % are used, and there is enough to spare");
    disk.set_free(9 * GIB);
    let mut number = 360;
    let refused = loop {
        match send(&client, number).await {
            20000 => number += 4,
            code => break code,
        }
        assert!(number < 1_000, "what was made ahead is used up by then");
    };
    assert_eq!(refused, 50002, "HA_NOT_AVAILABLE: clients try again");
    assert!(log.is_full() && log.stats().disk_free_bytes_min == 10 * GIB);
    disk.set_free(50 * GIB);
    let mut code = refused;
    for _ in 0..100 {
        code = send(&client, number).await;
        if code == 20000 {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(code, 20000, "no restart is needed");
    cluster.shutdown().await;
}

/// A leader keeps what is let go for a replica that lacks it, so long and no longer.
#[tokio::test(flavor = "multi_thread")]
async fn a_slow_replica_holds_files_for_as_long_as_the_setting_says() {
    const HOLD: Duration = Duration::from_secs(4);
    let mut cluster = Cluster::start_with(3, |config| {
        config.segment_bytes = 64 << 10;
        config.retention_ms = 1_000;
        config.slow_replica_hold_ms = u64::try_from(HOLD.as_millis()).expect("short");
    })
    .await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.create_topic("t", MessageType::Normal, 1).await;
    fill(&client, 0, 20).await;
    let away = cluster.follower().await;
    cluster.kill(away);
    let at = usize::try_from(leader).expect("small") - 1;
    let node = cluster.brokers[at].as_ref().expect("it runs").node();
    let before = first(&cluster, leader);
    let (store, runtime) = (node.store().clone(), cluster.runtime.clone());
    let trimmed = cluster.runtime.spawn("trim", async move {
        while store.retention().trimmed_below <= before.0 + 1 {
            runtime.sleep(Duration::from_millis(10)).await;
        }
        runtime.now()
    });
    fill(&client, 20, 240).await;
    cluster.runtime.sleep(Duration::from_millis(1_500)).await;
    fill(&client, 260, 40).await;
    let began = cluster.runtime.timeout(PATIENCE, trimmed).await.expect("the trim").expect("it goes on");
    until(&cluster, "the files to go", || first(&cluster, leader) > before).await;
    let held = cluster.runtime.now() - began;
    assert!(held > HOLD - Duration::from_millis(500), "the files went {held:?} after the trim");
    assert!(held < HOLD + PATIENCE / 2, "the files were held for {held:?}");
    cluster.shutdown().await;
}
