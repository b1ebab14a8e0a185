//! What tens of thousands of topics and many changes cost a namesrv: a figure, and nobody waits for it unasked.
//!
//! `cargo test --profile ci -p flotilla --test semantics -- --ignored --nocapture figures_of_50000_topics`

use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_chaos::cluster::process_cpu::cpu_time;
use flotilla_proto::client::{CallOptions, Connector as _};
use flotilla_proto::namesrv;
use flotilla_proto::v2::MessageType;
use tokio::sync::Semaphore;

use crate::cluster::OK;
use crate::figures::{memory_of, spread};
use crate::two_groups::TwoGroups;

const TOPICS: usize = 50_000;
const GROUPS: u32 = 1_000;
const MINUTE: Duration = Duration::from_secs(60);
/// While groups are made: one more topic each time so many of them are there.
const GROUPS_PER_TOPIC: u32 = 10;

fn name(number: usize) -> String {
    format!("topic-{number:05}")
}

async fn create_topics(cluster: &TwoGroups) {
    let places = Arc::new(Semaphore::new(64));
    for number in 0..TOPICS {
        let place = places.clone().acquire_owned().await.expect("never closed");
        let client = cluster.client(number % 2, 1 + number as u64 % 3);
        let create = async move {
            client.create_topic(&name(number), MessageType::Normal, 4).await;
            drop(place);
        };
        cluster.runtime.spawn("create", create).detach();
    }
    let _all = places.acquire_many(64).await.expect("never closed");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn figures_of_50000_topics_and_1000_new_groups_in_a_minute() {
    let cluster = TwoGroups::start().await;
    let pid = cluster.namesrv_pid();
    let began = Instant::now();
    create_topics(&cluster).await;
    println!("{TOPICS} topics over two broker groups of three replicas:");
    println!("  made in {:.0} s, 64 at once", began.elapsed().as_secs_f64());
    let namesrv = cluster.connector.namesrv(&cluster.namesrv);
    let route = async |topic: String| {
        let request = namesrv::TopicRouteRequest { topic, ..Default::default() };
        let reply = namesrv.query_topic_route(CallOptions::within(Duration::from_secs(5)), request).await;
        reply.expect("an answer").status.expect("a status").code
    };
    cluster
        .eventually("the newest topics are routed", async || {
            route(name(TOPICS - 1)).await == OK && route(name(TOPICS - 2)).await == OK
        })
        .await;
    let cpu = || cpu_time(pid).expect("it runs");
    let (cpu_before, before_mib, began) = (cpu(), memory_of(pid), Instant::now());
    let mut asked_ms = Vec::new();
    for number in 0..GROUPS {
        let due = began + MINUTE * number / GROUPS;
        cluster.runtime.sleep(due.saturating_duration_since(Instant::now())).await;
        let client = cluster.client(number as usize % 2, 1 + u64::from(number) % 3);
        client.create_group(&format!("group-{number}"), false, 16).await;
        if number % GROUPS_PER_TOPIC == 0 {
            client.create_topic(&format!("new-{number}"), MessageType::Normal, 4).await;
        }
        let one = Instant::now();
        assert_eq!(route(name(number as usize * 37 % TOPICS)).await, OK);
        asked_ms.push(one.elapsed().as_secs_f64() * 1_000.0);
    }
    let took = began.elapsed();
    let cores = (cpu() - cpu_before).as_secs_f64() / took.as_secs_f64();
    let after_mib = memory_of(pid);
    println!("  {GROUPS} groups and {} topics more in {:.0} s:", GROUPS / GROUPS_PER_TOPIC, took.as_secs_f64());
    println!("  the namesrv: {cores:.2} of a core, {before_mib} to {after_mib} MiB");
    println!("  a route: {}", spread(asked_ms.clone()));
    asked_ms.sort_by(f64::total_cmp);
    assert!(cores < 1.0 && asked_ms[asked_ms.len() * 99 / 100] < 50.0);
    assert!(after_mib < before_mib + before_mib / 5 + 16, "it grew from {before_mib} to {after_mib} MiB");
    cluster
        .eventually("the last of the new topics is routed", async || {
            route(format!("new-{}", GROUPS - GROUPS_PER_TOPIC)).await == OK
        })
        .await;
}
