//! What monitoring reads of three replicas is what was done with them.

use std::time::Duration;

use crate::support::{Cluster, message};
use flotilla_broker::Broker;
use flotilla_metrics::Scrape;
use flotilla_proto::v2::MessageType;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

async fn start(change: impl Fn(&mut flotilla_broker::BrokerConfig)) -> Cluster {
    let any_port = "127.0.0.1:0".parse().expect("an address");
    Cluster::start_with(3, |config| {
        config.metrics_listen = Some(any_port);
        change(config);
    })
    .await
}

/// Asks over HTTP, as monitoring does: the status code and the body.
async fn get(broker: &Broker, path: &str) -> (u16, String) {
    let address = broker.metrics_address().expect("it serves metrics");
    let mut stream = TcpStream::connect(address).await.expect("it listens");
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, body.to_owned())
}

/// One scrape of every running replica.
async fn scrape(cluster: &Cluster) -> Vec<Scrape> {
    let mut scrapes = Vec::new();
    for broker in cluster.brokers.iter().flatten() {
        let (code, body) = get(broker, "/metrics").await;
        assert_eq!(code, 200);
        scrapes.push(Scrape::parse(&body).unwrap_or_else(|error| panic!("{error} in:\n{body}")));
    }
    scrapes
}

fn sum(scrapes: &[Scrape], name: &str, labels: &[(&str, &str)]) -> f64 {
    scrapes.iter().map(|scrape| scrape.sum(name, labels)).sum()
}

/// How many replicas tell such a number.
fn told_by(scrapes: &[Scrape], name: &str) -> usize {
    scrapes.iter().filter(|scrape| scrape.find(name, &[]).next().is_some()).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_scrape_tells_what_was_sent_received_and_left() {
    let cluster = start(|_| ()).await;
    let client = cluster.client(cluster.follower().await);
    client.create_topic("orders", MessageType::Normal, 4).await;
    client.create_topic("later", MessageType::Delay, 1).await;
    client.create_group("strict", false, 1).await;

    // Twenty go in, one of them twice; one waits for its time.
    for number in 0..20 {
        assert_eq!(client.send(message("orders", &format!("m-{number}"), |_| ())).await.code, 20000);
    }
    assert_eq!(client.send(message("orders", "m-7", |_| ())).await.code, 20000);
    let hour = cluster.runtime.wall_ms() / 1000 + 3600;
    let delayed = message("later", "d-1", |system| {
        system.message_type = MessageType::Delay.into();
        system.delivery_timestamp =
            Some(prost_types::Timestamp { seconds: i64::try_from(hour).expect("now"), nanos: 0 });
    });
    assert_eq!(client.send(delayed).await.code, 20000);

    // Six are taken, four of them acknowledged.
    let mut taken = Vec::new();
    while taken.len() < 6 {
        let wanted = i32::try_from(6 - taken.len()).expect("few");
        let received = client.receive_with("g", "orders", LONG, LONG, |request| request.batch_size = wanted).await;
        taken.extend(received.messages);
    }
    assert_eq!(client.ack("g", "orders", &taken[..4]).await, 20000);

    // A group that gives a message one delivery only: what comes back is a dead letter.
    let first = client.receive_with("strict", "orders", LONG, SHORT, |request| request.batch_size = 1).await;
    assert_eq!(first.messages.len(), 1);
    cluster.runtime.sleep(SHORT * 2).await;
    client.receive_with("strict", "orders", SHORT, LONG, |request| request.batch_size = 32).await;

    let scrapes = scrape(&cluster).await;
    let orders = [("topic", "orders")];
    assert_eq!(sum(&scrapes, "rocketmq_messages_in_total", &[("topic", "orders"), ("message_type", "NORMAL")]), 20.0);
    assert_eq!(sum(&scrapes, "flotilla_duplicate_messages_total", &orders), 1.0);
    let bytes = sum(&scrapes, "rocketmq_throughput_in_total", &orders);
    assert!((20.0 * 11.0..20.0 * 400.0).contains(&bytes), "{bytes}");
    assert_eq!(sum(&scrapes, "rocketmq_message_size_count", &[]), 21.0);
    let ours = [("topic", "orders"), ("consumer_group", "g")];
    assert_eq!(sum(&scrapes, "rocketmq_messages_out_total", &ours), 6.0);
    assert_eq!(sum(&scrapes, "rocketmq_messages_out_total", &[ours[1], ("is_retry", "true")]), 0.0);
    assert_eq!(sum(&scrapes, "rocketmq_send_to_dlq_messages_total", &[("consumer_group", "strict")]), 1.0);

    // What every replica knows alike is told by the leader alone.
    assert_eq!(told_by(&scrapes, "rocketmq_consumer_lag_messages"), 1);
    assert_eq!(sum(&scrapes, "rocketmq_consumer_lag_messages", &ours), 16.0);
    assert_eq!(sum(&scrapes, "rocketmq_consumer_inflight_messages", &ours), 2.0);
    assert_eq!(sum(&scrapes, "rocketmq_consumer_ready_messages", &ours), 14.0);
    let lag_ms = sum(&scrapes, "rocketmq_consumer_lag_latency", &ours);
    assert!((SHORT.as_secs_f64() * 1000.0..60_000.0).contains(&lag_ms), "{lag_ms}");
    assert_eq!(sum(&scrapes, "rocketmq_timing_messages", &[]), 1.0);
    assert_eq!(sum(&scrapes, "flotilla_dedup_window_messages", &[]), 21.0);

    // The group of replicas: one leads, all are ready and know the same term.
    assert_eq!(sum(&scrapes, "flotilla_raft_role", &[("role", "leader")]), 1.0);
    assert_eq!(sum(&scrapes, "flotilla_raft_role", &[("role", "follower")]), 2.0);
    assert_eq!(sum(&scrapes, "flotilla_raft_can_write", &[]), 1.0);
    assert_eq!(sum(&scrapes, "flotilla_ready", &[]), 3.0);
    let leader = cluster.leader().await;
    for (node, scrape) in (1..).zip(&scrapes) {
        assert_eq!(scrape.value("flotilla_raft_leader", &[]), Some(leader as f64));
        assert_eq!(scrape.value("flotilla_raft_voters", &[("replica", &node.to_string())]), Some(3.0));
        let index = |name: &str| scrape.value(name, &[]).unwrap_or_else(|| panic!("replica {node} tells {name}"));
        let marks =
            ["flotilla_log_last_index", "flotilla_log_committed_index", "flotilla_log_applied_index"].map(index);
        assert!(marks[0] >= marks[1] && marks[1] >= marks[2] && marks[2] > 20.0, "{marks:?}");
        assert!(index("flotilla_log_durable_index") <= marks[0]);
        assert!(index("flotilla_log_sync_seconds_count") > 0.0, "its log was synced");
        assert!(index("flotilla_disk_free_bytes") > 0.0 && index("flotilla_disk_full") == 0.0);
        assert!(index("rocketmq_storage_size") >= 8.0 * 1024.0 * 1024.0, "one segment at least");
        assert_eq!(index("flotilla_unknown_outcomes_total"), 0.0);
    }
    assert_eq!(sum(&scrapes, "flotilla_raft_peer_lag_entries", &[]), 0.0, "two peers, both up to date");
    assert_eq!(told_by(&scrapes, "flotilla_raft_peer_lag_entries"), 1);
    // Every call is timed where it came to.
    let at_follower: Vec<f64> = scrapes
        .iter()
        .map(|scrape| scrape.sum("rocketmq_rpc_latency_count", &[("request_code", "SendMessage")]))
        .filter(|count| *count > 0.0)
        .collect();
    assert_eq!(at_follower, [22.0]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_a_leader_lives_and_is_not_ready_until_there_is_one() {
    let mut cluster = start(|_| ()).await;
    let leader = cluster.leader().await;
    let client = cluster.client(leader);
    client.create_topic("orders", MessageType::Normal, 1).await;
    for node in (1..=3).filter(|node| *node != leader) {
        cluster.kill(node);
    }
    let own = usize::try_from(leader).expect("small") - 1;
    let broker = |cluster: &Cluster| cluster.brokers[own].as_ref().map(|broker| broker.node().log().status().can_write);
    while broker(&cluster) != Some(false) {
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    let alone = cluster.brokers[own].as_ref().expect("it runs");
    let (code, body) = get(alone, "/ready").await;
    assert_eq!(code, 503);
    assert!(body.contains("no leader is known"), "{body}");
    assert_eq!(get(alone, "/live").await.0, 200, "starting it again would help nobody");

    // A send is refused, and counted.
    let status = client.send(message("orders", "m-1", |_| ())).await;
    assert_ne!(status.code, 20000);
    let scrapes = scrape(&cluster).await;
    assert_eq!(sum(&scrapes, "flotilla_refused_total", &[("cause", "no_leader")]), 1.0);
    assert_eq!(sum(&scrapes, "flotilla_ready", &[]), 0.0);
    assert_eq!(told_by(&scrapes, "rocketmq_consumer_lag_messages"), 0, "nobody leads, so nobody knows");

    let another = (1..=3).find(|node| *node != leader).expect("there are three");
    cluster.restart(another).await;
    cluster.leader().await;
    let alone = cluster.brokers[own].as_ref().expect("it runs");
    for _ in 0..250 {
        if get(alone, "/ready").await.0 == 200 {
            return cluster.shutdown().await;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    panic!("not ready within 5 s: {:?}", get(alone, "/ready").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn topics_beyond_the_bound_are_counted_together() {
    let cluster = start(|config| config.metrics_labels_max = 2).await;
    // At the leader itself, so that all of it is counted in one place.
    let client = cluster.client(cluster.leader().await);
    for topic in ["a", "b", "c", "d"] {
        client.create_topic(topic, MessageType::Normal, 1).await;
        for number in 0..3 {
            assert_eq!(client.send(message(topic, &format!("{topic}-{number}"), |_| ())).await.code, 20000);
        }
        client.receive("g", topic, LONG, LONG).await;
    }
    let scrapes = scrape(&cluster).await;
    let sent = |topic: &str| sum(&scrapes, "rocketmq_messages_in_total", &[("topic", topic)]);
    assert_eq!(["a", "b", "c", "d", "other"].map(sent), [3.0, 3.0, 0.0, 0.0, 6.0]);
    let lag = |topic: &str| sum(&scrapes, "rocketmq_consumer_lag_messages", &[("topic", topic)]);
    assert_eq!(["a", "b", "c", "d", "other"].map(lag), [3.0, 3.0, 0.0, 0.0, 6.0]);
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_hands_over_tells_so() {
    let cluster = start(|_| ()).await;
    let leader = cluster.leader().await;
    let own = usize::try_from(leader).expect("small") - 1;
    let broker = cluster.brokers[own].as_ref().expect("it runs");
    broker.node().hand_over(Duration::from_secs(2)).await;
    let now = cluster.leader().await;
    assert_ne!(now, leader);
    let scrapes = scrape(&cluster).await;
    let labels = [("replica", leader.to_string())];
    let labels = [(labels[0].0, labels[0].1.as_str()), ("cause", "stop"), ("result", "done")];
    assert_eq!(sum(&scrapes, "flotilla_raft_hand_overs_total", &labels), 1.0);
    let won = sum(&scrapes, "flotilla_raft_elections_won_total", &[("replica", &now.to_string())]);
    assert!(won >= 1.0, "{won}");
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_fills_and_is_full_is_an_alarm_before_and_when_sends_are_refused_and_no_reason_to_go_elsewhere() {
    let cluster = Cluster::start_with(1, |config| {
        config.metrics_listen = Some("127.0.0.1:0".parse().expect("an address"));
        config.segment_bytes = 1 << 20;
        config.data_bytes_max = Some(6 << 20);
        config.disk_alarm_percent = 50;
    })
    .await;
    let client = cluster.client(cluster.leader().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    let broker = cluster.brokers[0].as_ref().expect("it runs");
    let alarm = |scrape: &Scrape, name: &str| scrape.value("flotilla_alarm", &[("alarm", name)]);
    let (mut sent, mut was_told_before) = (0, false);
    loop {
        let mut big = message("orders", &format!("m-{sent}"), |_| ());
        big.body = vec![7; 100 << 10].into();
        let status = client.send(big).await;
        if status.code != 20000 {
            assert!(status.message.contains("at most 6291456 are allowed"), "{}", status.message);
            break;
        }
        sent += 1;
        assert!(sent < 100, "a quota of 6 MiB takes no 100 messages of 100 KiB");
        if !was_told_before {
            // Alarms are looked at once a second.
            cluster.runtime.sleep(Duration::from_millis(50)).await;
            was_told_before = alarm(&scrape(&cluster).await[0], "disk_fills") == Some(1.0);
        }
    }
    assert!(was_told_before, "the alarm came before the refusal");
    let full = Duration::from_secs(5);
    let began = cluster.runtime.now();
    while alarm(&scrape(&cluster).await[0], "disk_full") != Some(1.0) {
        assert!(cluster.runtime.now() - began < full, "no alarm within {full:?}");
        cluster.runtime.sleep(Duration::from_millis(50)).await;
    }
    let scrapes = scrape(&cluster).await;
    assert!(sum(&scrapes, "flotilla_refused_total", &[("cause", "log_full")]) >= 1.0);
    assert_eq!(sum(&scrapes, "flotilla_fit_to_lead", &[]), 0.0, "another one would do better");
    // What is there can still be consumed: work may come.
    let (code, body) = get(broker, "/ready").await;
    assert_eq!(code, 200, "{body}");
    assert!(body.contains("disk_full: there is no room"), "{body}");
    assert!(!client.receive("g", "orders", LONG, LONG).await.messages.is_empty());
    cluster.shutdown().await;
}
