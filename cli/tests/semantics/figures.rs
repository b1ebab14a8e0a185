//! Figures, for `docs/benchmarks.md`: they take minutes, so nobody runs them unasked.
//!
//! `cargo test --profile ci -p flotilla --test semantics -- --ignored --nocapture --test-threads 1 figures`
//!
//! | variable | what it says |
//! |---|---|
//! | `FLOTILLA_BACKLOG` | how many messages the backlogs get, instead of 100 million in one replica and 20 million in three |
//! | `FLOTILLA_IN_FLIGHT` | how many batches are on their way at once, instead of 16 |
//!
//! A backlog needs about 320 bytes of disk for each message and replica, in the folder for temporary files (`TMPDIR`); it is
//! looked at beforehand whether that is free. Its fill says how far it is every ten seconds. What it keeps in memory does not
//! grow with the backlog: so many batches are on their way, and one answer of a thousand messages is read at a time.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use flotilla_chaos::cluster::process_cpu::cpu_time;
use flotilla_proto::admin::reset_group_request::To;
use flotilla_proto::v2::{self, MessageType, QueryOffsetPolicy};
use flotilla_proto::{admin, status};
use tokio::sync::Semaphore;

use crate::calls::{Client, message, queue, system_of};
use crate::cluster::{Cluster, LONG, OK, admin_call};

const BODY_BYTES: usize = 128;
const BATCH: usize = 1_000;
/// Bytes of disk for a message of a backlog in one replica: its frame in the log, its slot, its id in the index of keys.
const DISK_BYTES: u64 = 320;
/// A batch that is refused is sent again for so long.
const TRY_FOR: Duration = Duration::from_secs(120);

fn number_of(variable: &str, default: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

fn sends_in_flight() -> usize {
    usize::try_from(number_of("FLOTILLA_IN_FLIGHT", 16)).expect("small")
}

fn ms(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1_000.0
}

fn at_share(sorted: &[f64], share: f64) -> f64 {
    let last = sorted.len() - 1;
    sorted[((last as f64) * share).round() as usize]
}

/// Median, 99th of a hundred and greatest.
pub fn spread(mut values: Vec<f64>) -> String {
    values.sort_by(f64::total_cmp);
    let count = values.len();
    format!(
        "p50 {:.1}, p99 {:.1}, max {:.1} ms of {count}",
        at_share(&values, 0.5),
        at_share(&values, 0.99),
        values[count - 1]
    )
}

fn small(topic: &str, id: String, change: impl FnOnce(&mut v2::SystemProperties)) -> v2::Message {
    v2::Message { body: Bytes::from_static(&[b'x'; BODY_BYTES]), ..message(topic, &id, change) }
}

/// Sends a batch; the broker may say that it is busy, or not answer: the same ids again.
async fn send_until_taken(client: &Client, messages: impl Fn() -> Vec<v2::Message>) {
    let began = Instant::now();
    loop {
        let request = v2::SendMessageRequest { messages: messages() };
        let why = match client.messaging.send_message(client.options(LONG), request).await {
            Ok(reply) if status::is_ok(reply.body.status.as_ref()) => return,
            Ok(reply) => format!("{:?}", reply.body.status),
            Err(error) => error.to_string(),
        };
        assert!(began.elapsed() < TRY_FOR, "a batch is not taken: {why}");
    }
}

/// Sends so many messages in batches, several at once, and says every ten seconds how far it is.
async fn fill(cluster: &Cluster, client: &Client, topic: &'static str, count: u64) -> Duration {
    let began = Instant::now();
    let in_flight = sends_in_flight();
    let places = Arc::new(Semaphore::new(in_flight));
    let (mut told, mut told_at) = (0, Instant::now());
    for batch in 0..count / BATCH as u64 {
        let place = places.clone().acquire_owned().await.expect("never closed");
        let client = client.clone();
        let send = async move {
            let first = batch * BATCH as u64;
            send_until_taken(&client, || {
                (0..BATCH as u64).map(|at| small(topic, format!("m-{}", first + at), |_| ())).collect()
            })
            .await;
            drop(place);
        };
        cluster.runtime.spawn("sender", send).detach();
        if told_at.elapsed() > Duration::from_secs(10) {
            let (sent, seconds) = (batch * BATCH as u64, told_at.elapsed().as_secs_f64());
            let (rate, memory, gib) = ((sent - told) as f64 / seconds, memory(cluster), cluster.disk_bytes() as f64);
            let gib = gib / f64::from(1 << 30);
            println!("  {sent} of {count} sent, {rate:.0}/s at the moment; {memory:?} MiB, {gib:.1} GiB of disk");
            (told, told_at) = (sent, Instant::now());
        }
    }
    let _all = places.acquire_many(in_flight as u32).await.expect("never closed");
    began.elapsed()
}

/// Anonymous memory of each broker, MiB.
fn memory(cluster: &Cluster) -> Vec<u64> {
    cluster.pids().into_iter().map(memory_of).collect()
}

/// Anonymous memory of a process, MiB.
pub fn memory_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).map(str::to_owned).unwrap_or_default();
    line.split_ascii_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) >> 10
}

/// CPU of all brokers over some seconds, in shares of one core.
async fn cpu_at_rest(cluster: &Cluster, seconds: u64) -> f64 {
    let used = || cluster.pids().into_iter().filter_map(cpu_time).sum::<Duration>();
    let before = used();
    cluster.runtime.sleep(Duration::from_secs(seconds)).await;
    (used() - before).as_secs_f64() / seconds as f64
}

/// How long it takes to find a time, and to move a group there and get its first messages, all over the backlog.
async fn time_lookups(client: &Client, topic: &'static str) {
    let (_, end) = client.query_offset(topic, QueryOffsetPolicy::End, None).await;
    let mut stamps = Vec::new();
    for step in 0..=20 {
        let at = (end - 1) * step / 20;
        let pulled = client.pull_with("stamps", topic, at, LONG, |request| request.batch_size = 1).await;
        let stored = system_of(&pulled.messages[0]).store_timestamp.expect("a time");
        stamps.push(u64::try_from(stored.seconds * 1_000 + i64::from(stored.nanos / 1_000_000)).expect("a time"));
    }
    let (mut found, mut moved, mut rewound) = (Vec::new(), Vec::new(), Vec::new());
    for at_ms in stamps.iter().chain(stamps.iter().rev()) {
        let began = Instant::now();
        let (code, offset) = client.query_offset(topic, QueryOffsetPolicy::Timestamp, Some(*at_ms)).await;
        found.push(ms(began.elapsed()));
        assert!(code == OK && offset <= end, "{code} {offset}");
        let began = Instant::now();
        let to = Some(To::TimestampMs(*at_ms));
        let reset = admin::ResetGroupRequest { group: "rewinder".to_owned(), topic: topic.to_owned(), queue: None, to };
        admin_call!(client, reset_group, reset);
        moved.push(ms(began.elapsed()));
        let received = client.receive("rewinder", topic, LONG, LONG).await;
        rewound.push(ms(began.elapsed()));
        assert!(!received.messages.is_empty());
    }
    println!("  a time found by query: {}", spread(found));
    println!("  a group rewound to a time in all queues, one commit: {}", spread(moved));
    println!("  the same until its first messages are here, two commits: {}", spread(rewound));
}

async fn backlog(replicas: u16, default: u64) {
    let count = number_of("FLOTILLA_BACKLOG", default);
    let needed = count * DISK_BYTES * u64::from(replicas);
    // Expired messages would go by themselves when the disk fills up, and the oldest ones after them.
    let cluster = Cluster::start_of(replicas, "segment_bytes = 1073741824\ndisk_delete_percent = 99").await;
    let free = cluster.disk_free_bytes();
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    assert!(free > needed, "{:.1} GiB of disk are needed, {:.1} are free; TMPDIR says where", gib(needed), gib(free));
    let client = cluster.client(cluster.leader().await);
    client.create_topic("deep", MessageType::Normal, 4).await;
    client.create_group("rewinder", false, 99).await;
    println!("backlog of {count} messages of {BODY_BYTES} bytes, {replicas} replicas, batches of {BATCH}:");
    let took = fill(&cluster, &client, "deep", count).await;
    println!("  filled in {:.0} s, {:.0} messages/s", took.as_secs_f64(), count as f64 / took.as_secs_f64());
    let disk = cluster.disk_bytes();
    println!("  {:.1} GiB of disk, {} bytes a message and replica", gib(disk), disk / count / u64::from(replicas));
    println!("  anonymous memory of each broker, MiB: {:?}", memory(&cluster));
    time_lookups(&client, "deep").await;

    // Old data are read from the beginning while new ones flow.
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let reader = {
        let (client, stop) = (client.clone(), stop.clone());
        cluster.runtime.spawn("reader", async move {
            let mut read = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let many = |request: &mut v2::PullMessageRequest| request.batch_size = 1_000;
                let pulled = client.pull_with("historians", "deep", read, LONG, many).await;
                if pulled.messages.is_empty() {
                    break;
                }
                read = pulled.next.expect("where to go on");
            }
            read
        })
    };
    let mut sends = Vec::new();
    let began = Instant::now();
    let mut number = count;
    while began.elapsed() < Duration::from_secs(10) {
        let one = Instant::now();
        assert_eq!(client.send(small("deep", format!("m-{number}"), |_| ())).await.code, OK);
        sends.push(ms(one.elapsed()));
        number += 1;
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    let read = reader.await.expect("it reads");
    println!("  old messages read meanwhile: {:.0} a second; sends one by one: {}", read as f64 / 10.0, spread(sends));
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn figures_backlog_in_three_replicas() {
    backlog(3, 20_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes minutes"]
async fn figures_backlog_in_one_replica() {
    backlog(1, 100_000_000).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn figures_of_5000_topics() {
    const TOPICS: usize = 5_000;
    let cluster = Cluster::start().await;
    let client = cluster.client(cluster.leader().await);
    println!("{TOPICS} topics of 4 queues, three replicas:");
    println!("  before: {:.2} % of one core, MiB: {:?}", cpu_at_rest(&cluster, 10).await * 100.0, memory(&cluster));
    let began = Instant::now();
    let places = Arc::new(Semaphore::new(32));
    for number in 0..TOPICS {
        let place = places.clone().acquire_owned().await.expect("never closed");
        let client = client.clone();
        let create = async move {
            client.create_topic(&format!("topic-{number}"), MessageType::Normal, 4).await;
            drop(place);
        };
        cluster.runtime.spawn("create", create).detach();
    }
    let _all = places.acquire_many(32).await.expect("never closed");
    let took = began.elapsed();
    println!("  made in {:.1} s, 32 at once", took.as_secs_f64());
    assert!(took < Duration::from_secs(60), "{took:?}");
    let began = Instant::now();
    for number in 0..TOPICS {
        let topic = format!("topic-{number}");
        assert_eq!(client.send(small(&topic, format!("m-{number}"), |_| ())).await.code, OK);
    }
    println!("  a message to each: {:.1} s, one by one", began.elapsed().as_secs_f64());
    cluster.runtime.sleep(Duration::from_secs(5)).await;
    println!("  at rest: {:.2} % of one core, MiB: {:?}", cpu_at_rest(&cluster, 10).await * 100.0, memory(&cluster));
}

fn delayed(id: String, wall_ms: u64) -> v2::Message {
    let at = prost_types::Timestamp {
        seconds: i64::try_from(wall_ms / 1_000).expect("not so far"),
        nanos: i32::try_from(wall_ms % 1_000).expect("below a thousand") * 1_000_000,
    };
    small("later", id, |system| system.delivery_timestamp = Some(at))
}

async fn send_delayed(cluster: &Cluster, client: &Client, count: u64, due_ms: impl Fn(u64) -> u64) -> Duration {
    let began = Instant::now();
    let in_flight = sends_in_flight();
    let places = Arc::new(Semaphore::new(in_flight));
    for batch in 0..count / BATCH as u64 {
        let place = places.clone().acquire_owned().await.expect("never closed");
        let (client, first) = (client.clone(), batch * BATCH as u64);
        let due: Vec<u64> = (first..first + BATCH as u64).map(&due_ms).collect();
        let prefix = cluster.runtime.random_u64();
        let send = async move {
            send_until_taken(&client, || {
                due.iter().enumerate().map(|(at, due_ms)| delayed(format!("{prefix:x}-{at}"), *due_ms)).collect()
            })
            .await;
            drop(place);
        };
        cluster.runtime.spawn("sender", send).detach();
    }
    let _all = places.acquire_many(in_flight as u32).await.expect("never closed");
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes a minute"]
async fn figures_of_delays() {
    const PER_S: u64 = 10_000;
    const SECONDS: u64 = 5;
    const PENDING: u64 = 1_000_000;
    let cluster = Cluster::start_of(3, "segment_bytes = 268435456").await;
    let client = cluster.client(cluster.leader().await);
    client.create_topic("later", MessageType::Delay, 4).await;
    println!("delays, three replicas:");
    let base_ms = cluster.runtime.wall_ms() + 12_000;
    let took = send_delayed(&cluster, &client, PER_S * SECONDS, |number| base_ms + number * 1_000 / PER_S).await;
    println!("  {} messages sent in {:.1} s, {PER_S} due each second", PER_S * SECONDS, took.as_secs_f64());
    assert!(cluster.runtime.wall_ms() < base_ms, "they are not due yet");
    let mut late = Vec::new();
    let mut arrived = Vec::new();
    let readers: Vec<_> = (0..4)
        .map(|number| {
            let (client, runtime) = (client.clone(), cluster.runtime.clone());
            cluster.runtime.spawn("reader", async move {
                let (mut at, mut late) = (0, Vec::new());
                let until_ms = base_ms + SECONDS * 1_000 + 3_000;
                while runtime.wall_ms() < until_ms {
                    let here = |request: &mut v2::PullMessageRequest| {
                        request.message_queue = Some(queue("later", number));
                        request.batch_size = 1_000;
                    };
                    let pulled = client.pull_with("readers", "later", at, Duration::from_secs(1), here).await;
                    let now_ms = runtime.wall_ms();
                    at = pulled.next.unwrap_or(at);
                    late.extend(pulled.messages.iter().map(|message| {
                        let of = |at: &prost_types::Timestamp| at.seconds * 1_000 + i64::from(at.nanos / 1_000_000);
                        let system = system_of(message);
                        let due_ms = of(system.delivery_timestamp.as_ref().expect("a time"));
                        let stored_ms = of(system.store_timestamp.as_ref().expect("a time"));
                        (stored_ms - due_ms, now_ms as i64 - due_ms)
                    }));
                }
                late
            })
        })
        .collect();
    for reader in readers {
        for (stored, here) in reader.await.expect("it reads") {
            late.push(stored as f64);
            arrived.push(here as f64);
        }
    }
    assert_eq!(late.len() as u64, PER_S * SECONDS);
    println!("  stand in their queue late by {}", spread(late));
    println!("  are at a reader late by {}", spread(arrived));

    // A million that wait, and what they cost the others.
    client.create_topic("now", MessageType::Normal, 4).await;
    let sends = async |count: u64| {
        let mut sends = Vec::new();
        for number in 0..count {
            let one = Instant::now();
            assert_eq!(client.send(small("now", format!("{count}-{number}"), |_| ())).await.code, OK);
            sends.push(ms(one.elapsed()));
        }
        spread(sends)
    };
    println!("  before: sends one by one {}; MiB: {:?}", sends(1_000).await, memory(&cluster));
    println!("  at rest before: {:.2} % of one core", cpu_at_rest(&cluster, 10).await * 100.0);
    let far_ms = cluster.runtime.wall_ms() + 24 * 3_600_000;
    let took = send_delayed(&cluster, &client, PENDING, |number| far_ms + number).await;
    println!("  {PENDING} more that wait a day, sent in {:.0} s", took.as_secs_f64());
    // Checkpoints of what they brought are not of the rest.
    cluster.runtime.sleep(Duration::from_secs(15)).await;
    println!("  with them: sends one by one {}; MiB: {:?}", sends(1_001).await, memory(&cluster));
    println!("  at rest with them: {:.2} % of one core", cpu_at_rest(&cluster, 10).await * 100.0);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes half a minute"]
async fn figures_of_delays_at_rest() {
    const COUNT: u64 = 1_000;
    let cluster = Cluster::start_of(3, "segment_bytes = 67108864").await;
    let client = cluster.client(cluster.leader().await);
    client.create_topic("later", MessageType::Delay, 4).await;
    println!("delays at rest, three replicas, one due every 20 ms:");
    let base_ms = cluster.runtime.wall_ms() + 5_000;
    send_delayed(&cluster, &client, COUNT, |number| base_ms + number * 20).await;
    assert!(cluster.runtime.wall_ms() < base_ms, "they are not due yet");
    let (mut stood, mut arrived) = (Vec::new(), Vec::new());
    while stood.len() < COUNT as usize {
        let received = client.receive("readers", "later", LONG, LONG).await;
        let now_ms = cluster.runtime.wall_ms() as i64;
        assert_eq!(received.code, OK);
        for message in &received.messages {
            let of = |at: &prost_types::Timestamp| at.seconds * 1_000 + i64::from(at.nanos / 1_000_000);
            let system = system_of(message);
            let due_ms = of(system.delivery_timestamp.as_ref().expect("a time"));
            stood.push((of(system.store_timestamp.as_ref().expect("a time")) - due_ms) as f64);
            arrived.push((now_ms - due_ms) as f64);
        }
        assert_eq!(client.ack("readers", "later", &received.messages).await, OK);
    }
    assert!(arrived.iter().all(|late_ms| *late_ms >= 0.0), "none comes early");
    println!("  stand in their queue late by {}", spread(stood));
    println!("  are at a consumer late by {}", spread(arrived));
}
