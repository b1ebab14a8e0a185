//! What replicas serve, what docs/metrics.md explains and what the alert rules ask for are the same metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use crate::support::{Client, Cluster, message, resource};
use flotilla_broker::DiskSource;
use flotilla_metrics::{Exposition, Scrape, Source};
use flotilla_proto::v2::{self, MessageType, TransactionResolution};

const EXPLAINED: &str = include_str!("../../docs/metrics.md");
const RULES: &str = include_str!("../../deploy/prometheus/flotilla-alerts.yml");
const LONG: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_millis(200);

/// Metrics of the tables under headings that say so, with their kinds.
fn explained(is_wanted: impl Fn(&str) -> bool) -> BTreeMap<&'static str, &'static str> {
    let mut metrics = BTreeMap::new();
    let mut heading = "";
    for line in EXPLAINED.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            heading = title;
        }
        if !is_wanted(heading) || !line.starts_with("| `") {
            continue;
        }
        let mut cells = line.split(" | ");
        let names = cells.next().expect("a first cell");
        let kind = cells.next().and_then(|cell| cell.split([' ', ';', ',']).next()).expect("a kind");
        for name in names.split('`').skip(1).step_by(2) {
            assert!(metrics.insert(name, kind).is_none(), "{name} has two rows");
        }
    }
    metrics
}

fn is_of_replica(heading: &str) -> bool {
    heading.ends_with("(replica)")
}

/// What all replicas serve: names with their kinds.
fn served(cluster: &Cluster) -> BTreeMap<String, String> {
    let mut kinds = BTreeMap::new();
    for broker in cluster.brokers.iter().flatten() {
        let mut out = Exposition::new();
        broker.metrics().measure(&mut out);
        kinds.extend(Scrape::parse(&out.finish()).expect("of the format").kinds);
    }
    kinds
}

fn of_type(topic: &str, id: &str, message_type: MessageType) -> v2::Message {
    message(topic, id, |system| system.message_type = message_type.into())
}

async fn end(client: &Client, sent: &v2::SendResultEntry, resolution: TransactionResolution) {
    let request = v2::EndTransactionRequest {
        topic: Some(resource("tx")),
        message_id: sent.message_id.clone(),
        transaction_id: sent.transaction_id.clone(),
        resolution: resolution.into(),
        ..Default::default()
    };
    let answer = client.messaging.end_transaction(client.options(LONG), request).await.expect("an answer");
    assert_eq!(answer.body.status.expect("a status").code, 20000);
}

/// Has everything happen that metrics tell of.
async fn live_through_everything(cluster: &Cluster) {
    let client = cluster.client(cluster.leader().await);
    client.create_topic("orders", MessageType::Normal, 1).await;
    client.create_topic("later", MessageType::Delay, 1).await;
    client.create_topic("tx", MessageType::Transaction, 1).await;
    client.send(message("orders", "m-1", |_| ())).await;
    let hour = i64::try_from(cluster.runtime.wall_ms() / 1000 + 3600).expect("now");
    let delayed = message("later", "d-1", |system| {
        system.message_type = MessageType::Delay.into();
        system.delivery_timestamp = Some(prost_types::Timestamp { seconds: hour, nanos: 0 });
    });
    assert_eq!(client.send(delayed).await.code, 20000);
    for (id, resolution) in [("t-1", TransactionResolution::Commit), ("t-2", TransactionResolution::Rollback)] {
        let sent = client.send_for_entry(of_type("tx", id, MessageType::Transaction)).await;
        end(&client, &sent, resolution).await;
    }
    client.receive("g", "orders", LONG, LONG).await;
    // Members of one group that want different messages.
    for (id, tag) in [("a", "x"), ("b", "y")] {
        let metadata = Arc::new(flotilla_proto::metadata::of_client(id, "0"));
        let member = Client { metadata, ..client.clone() };
        let filter = v2::FilterExpression { r#type: v2::FilterType::Tag.into(), expression: tag.to_owned() };
        member.receive_with("h", "orders", SHORT, LONG, |request| request.filter_expression = Some(filter)).await;
    }
    for (id, client_type, group) in
        [("p", v2::ClientType::Producer, None), ("c", v2::ClientType::SimpleConsumer, Some("g"))]
    {
        let member = Client { metadata: Arc::new(flotilla_proto::metadata::of_client(id, "0")), ..client.clone() };
        let request = v2::HeartbeatRequest { group: group.map(resource), client_type: client_type.into() };
        member.messaging.heartbeat(member.options(LONG), request).await.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_table_explains_every_metric_of_a_replica_and_no_other() {
    let cluster = Cluster::start_with(3, |config| {
        config.data_bytes_max = Some(1 << 30);
        // Nobody listens there.
        config.namesrv = vec!["127.0.0.1:9".to_owned()];
    })
    .await;
    live_through_everything(&cluster).await;
    let served = served(&cluster);
    let explained = explained(is_of_replica);
    let of_table: BTreeSet<&str> = explained.keys().copied().collect();
    let of_replicas: BTreeSet<&str> = served.keys().map(String::as_str).collect();
    let unexplained: Vec<_> = of_replicas.difference(&of_table).collect();
    assert!(unexplained.is_empty(), "docs/metrics.md does not explain {unexplained:?}");
    let unserved: Vec<_> = of_table.difference(&of_replicas).collect();
    assert!(unserved.is_empty(), "docs/metrics.md explains what no replica serves: {unserved:?}");
    for (name, kind) in &served {
        assert_eq!(explained[name.as_str()], kind, "kind of {name}");
    }
    assert!(served.len() > 70, "{}", served.len());
    let mut out = Exposition::new();
    DiskSource::new(cluster.runtime.clone()).measure(&mut out);
    let of_disks = Scrape::parse(&out.finish()).expect("of the format").kinds;
    let of_table = self::explained(|heading: &str| heading.ends_with("(disk)"));
    assert!(of_disks.iter().map(|(name, kind)| (name.as_str(), kind.as_str())).eq(of_table), "{of_disks:?}");
    cluster.shutdown().await;
}

#[test]
fn alert_rules_ask_only_for_metrics_of_the_table_and_labels_are_closed() {
    let known = explained(|_| true);
    let (mut rules, mut names) = (0, 0);
    for line in RULES.lines() {
        let line = line.trim_start();
        assert_eq!(line.matches('"').count() % 2, 0, "a quotation mark is left open: {line}");
        rules += usize::from(line.starts_with("- alert:"));
        let Some(expression) = line.strip_prefix("expr:") else { continue };
        for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
            assert_eq!(expression.matches(open).count(), expression.matches(close).count(), "{open} in: {line}");
        }
        let words = expression.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
        let prefixes = ["flotilla_", "rocketmq_", "process_"];
        for word in words.filter(|word| prefixes.iter().any(|prefix| word.starts_with(prefix))) {
            let name = word.strip_suffix("_bucket").unwrap_or(word);
            assert!(known.contains_key(name), "{name} is no metric: {line}");
            names += 1;
        }
    }
    assert!(rules > 25 && names >= rules - 1, "{rules} rules, {names} names: all but the one on `up` ask for a metric");
}
