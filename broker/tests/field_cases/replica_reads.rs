//! Pulls at followers, where any replica answers them: what one hands out, and what it leaves to the leader.

use std::sync::Arc;
use std::time::Duration;

use flotilla_broker::ReadFrom;
use flotilla_proto::metadata;
use flotilla_proto::status::Code;
use flotilla_proto::v2::MessageType;
use flotilla_raft_log::{Disk, WrappingDisk};

use super::cut_off::readers_see_each_offset_with_one_content;
use super::links::Links;
use crate::self_watch::{SlowDisk, scrape};
use crate::support::{Client, Cluster, message};

const NOW: Duration = Duration::ZERO;
const SHORT: Duration = Duration::from_millis(300);
const LONG: Duration = Duration::from_secs(20);

fn others(node: u64) -> [u64; 2] {
    let mut others = (1..=3).filter(|other| *other != node);
    [others.next().expect("two of them"), others.next().expect("two of them")]
}

/// Calls as our own library does.
fn ours(mut client: Client) -> Client {
    client.metadata = Arc::new(metadata::of_client("flotilla@1", "0"));
    client
}

async fn send(client: &Client, ids: std::ops::Range<u32>) {
    for id in ids {
        assert_eq!(client.send(message("orders", &format!("m-{id}"), |_| ())).await.code, 20000);
    }
}

fn reads(cluster: &Cluster, node: u64, result: &str) -> u64 {
    let value = scrape(cluster, node).value("flotilla_replica_reads_total", &[("result", result)]);
    value.expect("each replica tells it") as u64
}

async fn prepared(cluster: &Cluster) -> u64 {
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_group("g", false, 16).await;
    send(&client, 0..10).await;
    cluster.digests().await;
    leader
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_hands_out_what_it_has_though_nobody_leads_and_says_so_at_the_end_of_it() {
    for (rule, is_read) in [(ReadFrom::Any, true), (ReadFrom::Leader, false)] {
        let mut cluster = Cluster::start_with(3, |config| config.read_from = rule).await;
        let leader = prepared(&cluster).await;
        let [last, other] = others(leader);
        cluster.kill(leader);
        cluster.kill(other);
        let pulled = cluster.client(last).pull("g", "orders", 3, NOW).await;
        assert_eq!(pulled.ids().len(), if is_read { 7 } else { 0 }, "{rule:?}");
        let behind = ours(cluster.client(last)).pull("g", "orders", 10, NOW).await;
        let (unknown, nothing) = (Code::HaNotAvailable as i32, Code::MessageNotFound as i32);
        assert_eq!(behind.code, if is_read { unknown } else { nothing }, "whether there is more nobody knows here");
        let stranger = cluster.client(last).pull("g", "orders", 10, NOW).await;
        assert_eq!((stranger.code, stranger.next), (nothing, Some(10)), "others know no third answer");
        cluster.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pull_that_waits_at_a_follower_is_answered_there_by_what_is_replicated() {
    let cluster = Cluster::start_with(3, |config| config.read_from = ReadFrom::Any).await;
    let leader = prepared(&cluster).await;
    let [follower, _] = others(leader);
    let waiting = {
        let client = cluster.client(follower);
        Box::pin(cluster.runtime.spawn("pull", async move { client.pull("g", "orders", 10, LONG).await }))
    };
    // Long enough for it to ask whether it keeps up, again and again.
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    send(&cluster.client(leader), 10..11).await;
    assert_eq!(waiting.await.expect("it ends").ids(), ["m-10"]);
    let nothing = cluster.client(follower).pull("g", "orders", 11, SHORT).await;
    assert_eq!((nothing.code, nothing.next), (Code::MessageNotFound as i32, Some(11)));
    let beyond = cluster.client(follower).in_language("JAVA").pull("g", "orders", 12, NOW).await;
    assert_eq!((beyond.code, beyond.next), (40019, Some(11)), "by the leader's word");
    assert_eq!((reads(&cluster, follower, "served"), reads(&cluster, follower, "passed_on")), (2, 1));
    assert_eq!(
        cluster.client(follower).pull("new", "orders", 0, NOW).await.ids().len(),
        11,
        "the leader makes the group"
    );
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_reads_at_a_follower_whose_disk_is_slow_is_not_stuck() {
    let disks: Vec<SlowDisk> = (0..3).map(|_| SlowDisk::default()).collect();
    let disk_of = |node: u64| -> Arc<dyn Disk> {
        Arc::new(WrappingDisk(disks[usize::try_from(node).expect("small") - 1].clone()))
    };
    let quick = |config: &mut flotilla_broker::BrokerConfig| {
        config.read_from = ReadFrom::Any;
        config.read_lag_ms_max = 200;
    };
    let cluster = Cluster::start_over(3, quick, disk_of).await;
    let leader = prepared(&cluster).await;
    let [follower, _] = others(leader);
    disks[usize::try_from(follower).expect("small") - 1].take_longer(3_000);
    // It is syncing from here on.
    send(&cluster.client(leader), 10..11).await;
    let began = cluster.runtime.now();
    let mut next = 10;
    while next < 30 {
        send(&cluster.client(leader), next..next + 1).await;
        let pulled = cluster.client(follower).pull("g", "orders", i64::from(next), Duration::from_secs(2)).await;
        assert!(!pulled.messages.is_empty(), "nobody is stuck: {pulled:?}");
        next += 1;
    }
    let took = cluster.runtime.now() - began;
    assert!(took < Duration::from_secs(20), "{took:?} for 20 messages, of a disk that takes 3 s for one");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_stays_behind_leaves_what_it_lacks_to_the_leader() {
    // Less than a link may be silent.
    const BEHIND: Duration = Duration::from_millis(600);
    let links = Links::new();
    let bending = links.clone();
    let change = move |config: &mut flotilla_broker::BrokerConfig| {
        config.read_from = ReadFrom::Any;
        config.read_lag_ms_max = 200;
        // Nobody is elected because the machine is busy.
        (config.election_timeout_ms_min, config.election_timeout_ms_max) = (3_000, 5_000);
        bending.bend(config);
    };
    let cluster = Cluster::start_with(3, change).await;
    let leader = prepared(&cluster).await;
    let [follower, _] = others(leader);
    // Whatever the leader tells it comes so much later; its own questions are answered at once.
    links.delay(leader, follower, BEHIND);
    let (at_leader, at_follower) = (cluster.client(leader), cluster.client(follower));
    let passed_on = || reads(&cluster, follower, "passed_on");
    let (before, deadline) = (passed_on(), cluster.runtime.now() + LONG * 3);
    let mut next = 10;
    while passed_on() < before + 10 {
        assert!(cluster.runtime.now() < deadline, "it has what the leader has");
        send(&at_leader, next..next + 1).await;
        let client = if next % 2 == 0 { at_follower.clone() } else { ours(at_follower.clone()) };
        let pulled = client.pull("g", "orders", next.into(), LONG).await;
        assert_eq!(pulled.ids(), [format!("m-{next}")], "{pulled:?}");
        next += 1;
    }
    assert_eq!(cluster.leader().await, leader, "it is behind, and disturbs nobody");

    // What it has it hands out itself however far it is behind, and once it keeps up there is nothing to leave to others.
    let served = reads(&cluster, follower, "served");
    assert_eq!(at_follower.pull("g", "orders", 0, NOW).await.ids()[..10].len(), 10);
    assert_eq!(reads(&cluster, follower, "served"), served + 1);
    links.delay(leader, follower, Duration::ZERO);
    let deadline = cluster.runtime.now() + LONG;
    loop {
        let before = passed_on();
        let nothing = at_follower.pull("g", "orders", next.into(), NOW).await;
        assert_eq!((nothing.code, nothing.next), (Code::MessageNotFound as i32, Some(next.into())));
        if passed_on() == before {
            break;
        }
        assert!(cluster.runtime.now() < deadline, "it does not keep up again");
    }
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_followers_hand_out_while_leaders_are_cut_off_is_never_taken_back() {
    let links = Links::new();
    let bending = links.clone();
    let change = move |config: &mut flotilla_broker::BrokerConfig| {
        config.read_from = ReadFrom::Any;
        bending.bend(config);
    };
    let cluster = Cluster::start_with(3, change).await;
    readers_see_each_offset_with_one_content(cluster, links).await;
}
