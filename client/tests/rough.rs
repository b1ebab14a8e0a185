//! Clients on rough ground: brokers that come and go, peers that garble, many that leave at once.

mod support;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_client::{
    Client, ConsumeResult, GroupSpec, OutgoingMessage, ProducerConfig, PushConsumer, PushConsumerConfig, TopicSpec,
};
use flotilla_metrics::Exposition;
use flotilla_runtime::Runtime;
use support::Cluster;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

const LONG: Duration = Duration::from_secs(30);

type Bodies = Arc<Mutex<BTreeSet<String>>>;

fn push(client: &Client, group: &str, topic: &str, seen: &Bodies) -> PushConsumer {
    let config = PushConsumerConfig::new(group.try_into().unwrap(), topic.try_into().unwrap());
    let seen = seen.clone();
    let listener = move |message: flotilla_client::ReceivedMessage| {
        seen.lock().unwrap().insert(String::from_utf8_lossy(&message.body).into_owned());
        async { ConsumeResult::Success }
    };
    client.push_consumer(PushConsumerConfig { concurrency: 4, ..config }, listener).unwrap()
}

async fn until(runtime: &Runtime, what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..600 {
        if is_so() {
            return;
        }
        runtime.sleep(Duration::from_millis(50)).await;
    }
    panic!("not within 30 s: {what}");
}

async fn send(client: &Client, topic: &str, bodies: impl Iterator<Item = String>) {
    let producer = client.producer(ProducerConfig::default()).unwrap();
    for body in bodies {
        producer.send(OutgoingMessage::new(topic.try_into().unwrap(), body)).await.unwrap();
    }
}

fn file_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

/// E05, E09: idle consumers hear of what is sent after every broker was restarted behind them, and each restart gives back
/// the tasks and connections that it cost.
#[tokio::test(flavor = "multi_thread")]
async fn idle_consumers_outlive_restarts_of_all_brokers_and_nothing_is_left_of_them() {
    const CONSUMERS: usize = 100;
    const ROUNDS: usize = 4;
    let mut cluster = Cluster::start(3).await;
    let client = cluster.client();
    client.admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 8)).await.unwrap();
    let seen = Bodies::default();
    let consumers: Vec<PushConsumer> =
        (0..CONSUMERS).map(|number| push(&client, &format!("g-{number}"), "orders", &seen)).collect();
    send(&client, "orders", (0..8).map(|number| format!("warm-{number}"))).await;
    until(&cluster.runtime, "all are warm", || seen.lock().unwrap().len() == 8).await;

    let mut levels = Vec::new();
    for round in 0..ROUNDS {
        for node in 1..=3 {
            cluster.kill_and_restart(node).await;
            cluster.runtime.sleep(Duration::from_millis(300)).await;
        }
        // One message a queue.
        send(&client, "orders", (0..8).map(|number| format!("r{round}-{number}"))).await;
        let wanted = 8 * (round + 2);
        until(&cluster.runtime, "all is delivered", || seen.lock().unwrap().len() == wanted).await;
        cluster.runtime.sleep(Duration::from_secs(1)).await;
        levels.push((tokio::runtime::Handle::current().metrics().num_alive_tasks(), file_descriptors()));
    }
    // From the second round on they do not grow; what still closes is some.
    let (first, last) = (levels[1], levels[ROUNDS - 1]);
    assert!(last.0 <= first.0 + first.0 / 10 + 20, "tasks: {levels:?}");
    assert!(last.1 <= first.1 + first.1 / 10 + 20, "file descriptors: {levels:?}");
    for consumer in consumers {
        consumer.shutdown(Duration::from_secs(5)).await;
    }
    cluster.shutdown().await;
}

/// Calls that all brokers were asked, of all kinds.
fn calls(cluster: &Cluster) -> f64 {
    let mut sum = 0.0;
    for broker in cluster.brokers.iter().flatten() {
        let mut out = Exposition::new();
        broker.metrics().measure(&mut out);
        let text = out.finish();
        let counts = text.lines().filter(|line| line.starts_with("rocketmq_rpc_latency_count{"));
        sum += counts.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok()).sum::<f64>();
    }
    sum
}

/// E13: many consumers that leave at once ask for no more than it takes to leave, in bounded time, and all that they
/// handled is acknowledged.
#[tokio::test(flavor = "multi_thread")]
async fn two_hundred_consumers_that_leave_at_once_make_no_storm() {
    const CONSUMERS: usize = 200;
    const MESSAGES: usize = 2_000;
    let cluster = Cluster::start(3).await;
    let clients: Vec<Client> = (0..20).map(|_| cluster.client()).collect();
    clients[0].admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 8)).await.unwrap();
    clients[0].admin().create_group(&GroupSpec::new("g".try_into().unwrap())).await.unwrap();
    let seen = Bodies::default();
    let consumers: Vec<PushConsumer> =
        (0..CONSUMERS).map(|number| push(&clients[number % clients.len()], "g", "orders", &seen)).collect();
    send(&clients[0], "orders", (0..MESSAGES).map(|number| format!("m-{number}"))).await;
    until(&cluster.runtime, "all is handled", || seen.lock().unwrap().len() == MESSAGES).await;
    cluster.runtime.sleep(Duration::from_secs(1)).await;

    let (before, began) = (calls(&cluster), cluster.runtime.now());
    let leaving: Vec<_> = consumers
        .into_iter()
        .map(|consumer| cluster.runtime.spawn("leave", async move { consumer.shutdown(Duration::from_secs(10)).await }))
        .collect();
    for one in leaving {
        assert_eq!(one.await.expect("it ends"), 0, "no listener is left behind");
    }
    let took = cluster.runtime.now() - began;
    assert!(took < Duration::from_secs(15), "{took:?}");
    cluster.runtime.sleep(Duration::from_secs(1)).await;
    // The poll that each had open ends; some more for whatever was under way.
    let asked = calls(&cluster) - before;
    assert!(asked <= 3.0 * CONSUMERS as f64, "{asked} calls of {CONSUMERS} that leave");
    let progress = clients[0].admin().describe_group(&"g".try_into().unwrap()).await.unwrap().progress;
    assert_eq!(progress.iter().map(|queue| queue.lag_messages).sum::<u64>(), 0, "all is acknowledged");
    cluster.shutdown().await;
}

/// Carries bytes, and while `is_rough` drops connections, cuts pieces short and changes bits.
async fn carry(runtime: Runtime, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, is_rough: Arc<AtomicBool>) {
    let mut buffer = vec![0; 16 << 10];
    loop {
        let Ok(count @ 1..) = from.read(&mut buffer).await else { return };
        let mut piece = &mut buffer[..count];
        if is_rough.load(Ordering::SeqCst) {
            match runtime.random_u64() % 24 {
                0 => return,
                1 => {
                    piece = &mut piece[..count / 2];
                    let _ = to.write_all(piece).await;
                    return;
                }
                2 => {
                    let at = runtime.random_u64() as usize % piece.len();
                    piece[at] ^= 1 << (runtime.random_u64() % 8);
                }
                3 => runtime.sleep(Duration::from_millis(runtime.random_u64() % 200)).await,
                _ => {}
            }
        }
        if to.write_all(piece).await.is_err() {
            return;
        }
    }
}

/// A proxy before `target`.
fn proxy(target: String, is_rough: Arc<AtomicBool>) -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let listener = TcpListener::from_std(listener).unwrap();
    let runtime = Runtime::tokio();
    let spawning = runtime.clone();
    let work = async move {
        while let Ok((near, _)) = listener.accept().await {
            let Ok(far) = TcpStream::connect(&target).await else { continue };
            let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
            spawning.spawn("there", carry(spawning.clone(), near_in, far_out, is_rough.clone())).detach();
            spawning.spawn("back", carry(spawning.clone(), far_in, near_out, is_rough.clone())).detach();
        }
    };
    runtime.spawn("proxy", work).detach();
    address
}

/// E06: whatever comes over a connection, no call hangs, nothing panics, and all goes on when the connection is sound again.
#[tokio::test(flavor = "multi_thread")]
async fn connections_that_garble_hang_no_call_and_break_no_client() {
    const ROUGH: Duration = Duration::from_secs(15);
    let is_rough = Arc::new(AtomicBool::new(false));
    let between = is_rough.clone();
    let cluster = Cluster::start_behind(3, move |address| proxy(address, between.clone())).await;
    let timeout = Duration::from_secs(3);
    let client = cluster.client_within(timeout);
    client.admin().create_topic(&TopicSpec::new("orders".try_into().unwrap(), 4)).await.unwrap();
    let seen = Bodies::default();
    let consumers: Vec<PushConsumer> = (0..4).map(|_| push(&client, "g", "orders", &seen)).collect();

    is_rough.store(true, Ordering::SeqCst);
    let ends = cluster.runtime.now() + ROUGH;
    let senders: Vec<_> = (0..8)
        .map(|sender| {
            let (client, runtime) = (client.clone(), cluster.runtime.clone());
            cluster.runtime.spawn("sender", async move {
                let producer = client.producer(ProducerConfig::default()).unwrap();
                let (mut stored, mut failed) = (0, 0);
                while runtime.now() < ends {
                    let body = format!("{sender}-{}", stored + failed);
                    let began = runtime.now();
                    let sent = producer.send(OutgoingMessage::new("orders".try_into().unwrap(), body)).await;
                    let took = runtime.now() - began;
                    assert!(took < timeout + Duration::from_millis(1_500), "a send took {took:?}");
                    *(if sent.is_ok() { &mut stored } else { &mut failed }) += 1;
                }
                (stored, failed)
            })
        })
        .collect();
    let (mut stored, mut failed) = (0, 0);
    for sender in senders {
        let told = cluster.runtime.timeout(ROUGH + LONG, sender).await.expect("no call hangs").expect("nothing panics");
        (stored, failed) = (stored + told.0, failed + told.1);
    }
    is_rough.store(false, Ordering::SeqCst);
    assert!(stored > 0, "{failed} failed and none was stored");
    // What the rough part may have spoilt stays as it is; from now on all is well, without a new client.
    cluster.runtime.sleep(Duration::from_secs(2)).await;
    send(&client, "orders", (0..50).map(|number| format!("sound-{number}"))).await;
    let sound = || seen.lock().unwrap().iter().filter(|body| body.starts_with("sound-")).count();
    until(&cluster.runtime, "the consumers go on", || sound() == 50).await;
    for consumer in consumers {
        consumer.shutdown(Duration::from_secs(5)).await;
    }
    println!("{stored} stored, {failed} failed meanwhile");
    cluster.shutdown().await;
}
