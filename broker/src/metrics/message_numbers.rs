//! Messages in numbers, with RocketMQ's names where it has them.
//!
//! Counters stand on the replica that did the work, which is the leader of that moment: the sum over replicas is the
//! group's. What the log decides (lag, waiting messages) would be told by every replica alike, so the leader alone tells it.

use std::collections::BTreeMap;

use flotilla_message::{MessageType, TopicName};
use flotilla_metrics::Exposition;
use flotilla_proto::v2::ClientType;
use flotilla_store::{Consumption, TopicNumbers};

use super::counters::{Made, SubscriptionCounters, TYPES, TopicCounters, read};
use crate::replica::Replica;

/// Stands for all names beyond the bound.
const OTHER: &str = "other";

/// Writes them down.
pub fn write(replica: &Replica, out: &mut Exposition) {
    write_topics(replica, out);
    write_subscriptions(replica, out);
    write_clients(replica, out);
    write_duties(replica, out);
    let help = "Sizes of stored messages, bytes as they are kept.";
    out.histogram("rocketmq_message_size", help, &[], &replica.counters.message_bytes.buckets(1.0));
    if let Some(term) = replica.leadership.local_term() {
        let now_ms = replica.clock.now_ms(term, &replica.store);
        write_waiting(replica, out);
        match replica.store.consumption(replica.labels_max()) {
            Ok(rows) => write_consumption(&summed(rows, replica.labels_max()), now_ms, out),
            // The store itself meets the damage when it reads for a consumer; monitoring is no reason to stop.
            Err(error) => tracing::warn!(%error, "lag of consumer groups is not known"),
        }
    }
}

fn write_topics(replica: &Replica, out: &mut Exposition) {
    replica.counters.topics.retain(|topic| replica.store.topic(topic).is_some());
    let (rows, other) = replica.counters.topics.all();
    for (topic, row) in &rows {
        write_topic(topic.as_str(), is_system(topic), row, out);
    }
    if TYPES.iter().enumerate().any(|(at, _)| read(&other.messages_in[at]) > 0) {
        write_topic(OTHER, false, &other, out);
    }
}

fn is_system(topic: &TopicName) -> bool {
    topic.is_dead_letter() || topic.is_retry()
}

fn text(flag: bool) -> &'static str {
    if flag { "true" } else { "false" }
}

fn type_text(message_type: MessageType) -> &'static str {
    match message_type {
        MessageType::Normal => "NORMAL",
        MessageType::Fifo => "FIFO",
        MessageType::Delay => "DELAY",
        MessageType::Transaction => "TRANSACTION",
    }
}

fn write_topic(topic: &str, is_system: bool, row: &TopicCounters, out: &mut Exposition) {
    let system = text(is_system);
    for (message_type, count) in TYPES.iter().zip(&row.messages_in) {
        let count = read(count);
        if count > 0 {
            let labels = [("topic", topic), ("message_type", type_text(*message_type)), ("is_system", system)];
            out.counter("rocketmq_messages_in_total", "Messages stored.", &labels, count);
        }
    }
    let labels = [("topic", topic), ("is_system", system)];
    out.counter("rocketmq_throughput_in_total", "Bytes of messages stored.", &labels, read(&row.bytes_in));
    let help = "Messages that were stored before and not stored again.";
    out.counter("flotilla_duplicate_messages_total", help, &labels, read(&row.duplicates));
    let ended = [
        ("rocketmq_commit_messages_total", "Half messages committed.", read(&row.committed)),
        ("rocketmq_rollback_messages_total", "Half messages rolled back.", read(&row.rolled_back)),
    ];
    for (name, help, count) in ended.into_iter().filter(|(_, _, count)| *count > 0) {
        out.counter(name, help, &[("topic", topic)], count);
    }
}

fn write_subscriptions(replica: &Replica, out: &mut Exposition) {
    replica
        .counters
        .subscriptions
        .retain(|(group, topic)| replica.store.group(group).is_some() && replica.readable_topic(topic).is_some());
    let (rows, other) = replica.counters.subscriptions.all();
    for ((group, topic), row) in &rows {
        write_subscription(group.as_str(), topic.as_str(), is_system(topic), row, out);
    }
    if read(&other.first_out) + read(&other.dead_letters) > 0 {
        write_subscription(OTHER, OTHER, false, &other, out);
    }
}

fn write_subscription(group: &str, topic: &str, is_system: bool, row: &SubscriptionCounters, out: &mut Exposition) {
    let system = text(is_system);
    let pair = [("topic", topic), ("consumer_group", group)];
    for (is_retry, count) in [("false", read(&row.first_out)), ("true", read(&row.retries_out))] {
        let labels = [pair[0], pair[1], ("is_retry", is_retry), ("is_system", system)];
        out.counter(
            "rocketmq_messages_out_total",
            "Messages delivered; a retry is a repeated delivery.",
            &labels,
            count,
        );
    }
    let labels = [pair[0], pair[1], ("is_system", system)];
    out.counter("rocketmq_throughput_out_total", "Bytes of messages delivered.", &labels, read(&row.bytes_out));
    let help = "Messages that became dead letters of their group.";
    out.counter("rocketmq_send_to_dlq_messages_total", help, &pair, read(&row.dead_letters));
}

fn write_duties(replica: &Replica, out: &mut Exposition) {
    let (stored, delivered) = replica.counters.timers();
    out.counter("rocketmq_timer_enqueue_total", "Delayed messages stored.", &[], stored);
    let help = "Delayed messages delivered because their time had come.";
    out.counter("rocketmq_timer_dequeue_total", help, &[], delivered);
    let help = "How late the oldest message of each round of deliveries stood in its queue, seconds.";
    out.histogram("flotilla_timer_lateness_seconds", help, &[], &replica.counters.timer_lateness.buckets(1_000_000.0));
    let help = "From half message to commit, milliseconds.";
    out.histogram("rocketmq_finish_message_latency", help, &[], &replica.counters.transaction_times.buckets(1_000.0));
    let [topics, groups] = replica.counters.making();
    let help = "Times of making topics, milliseconds.";
    out.histogram("rocketmq_topic_create_execution_time", help, &[], &topics.buckets(1_000.0));
    let help = "Times of making consumer groups, milliseconds.";
    out.histogram("rocketmq_consumer_group_create_execution_time", help, &[], &groups.buckets(1_000.0));
    for what in Made::ALL {
        let help = "Topics and consumer groups made by their first use, and not made because there are too many.";
        out.counter("flotilla_auto_created_total", help, &what.labels(), replica.counters.made_count(what));
    }
    let help = "Questions put to producers about their transactions.";
    out.counter("flotilla_transaction_checks_total", help, &[], replica.counters.checks());
}

fn write_clients(replica: &Replica, out: &mut Exposition) {
    for ((kind, group, language), count) in bounded(replica.clients.by_kind(), replica.labels_max()) {
        let language = if language.is_empty() { "UNKNOWN" } else { &language };
        match kind {
            ClientType::Producer => {
                let help = "Producers that beat at this replica.";
                out.gauge_whole("rocketmq_producer_connections", help, &[("language", language)], count);
            }
            ClientType::PushConsumer | ClientType::SimpleConsumer | ClientType::PullConsumer => {
                let labels = [("consumer_group", group.as_str()), ("language", language)];
                let help = "Consumers that beat at this replica.";
                out.gauge_whole("rocketmq_consumer_connections", help, &labels, count);
            }
            _ => {}
        }
    }
}

type Kind = (ClientType, String, String);

/// Producers by language, consumers by group and language, those of groups beyond the bound together.
fn bounded(clients: Vec<(Kind, u64)>, groups_max: usize) -> BTreeMap<Kind, u64> {
    let mut groups: BTreeMap<String, ()> = BTreeMap::new();
    let mut counts = BTreeMap::new();
    for ((kind, group, language), count) in clients {
        // One name for all kinds of consumers: a group's members may be of several.
        let kind = if kind == ClientType::Producer { kind } else { ClientType::PushConsumer };
        let group = match kind {
            ClientType::Producer => String::new(),
            _ if groups.contains_key(&group) || groups.len() < groups_max => {
                groups.insert(group.clone(), ());
                group
            }
            _ => OTHER.to_owned(),
        };
        *counts.entry((kind, group, language)).or_default() += count;
    }
    counts
}

fn write_waiting(replica: &Replica, out: &mut Exposition) {
    let (topics, groups) = replica.store.catalog_counts();
    out.gauge_whole("rocketmq_topic_number", "Topics.", &[], topics as u64);
    out.gauge_whole("rocketmq_consumer_group_number", "Consumer groups.", &[], groups as u64);
    write_standing(&replica.store.topic_numbers(), replica.labels_max(), out);
    write_differing(replica, out);
    if let Some(due_ms) = replica.store.next_delayed_ms() {
        let late_ms = replica.runtime.wall_ms().saturating_sub(due_ms);
        let help = "How late the oldest delayed message is that is due and not delivered, milliseconds.";
        out.gauge_whole("rocketmq_timer_dequeue_lag", help, &[], late_ms);
    }
    let dedup = replica.store.dedup_status();
    let help = "Message ids that are remembered to find repeated sends.";
    out.gauge_whole("flotilla_dedup_window_messages", help, &[], dedup.entries as u64);
    #[allow(clippy::cast_precision_loss, reason = "hours in milliseconds fit")]
    let reach = dedup.reach_ms as f64 / 1000.0;
    let help = "How far back repeated sends are found; since the first message where there are no older ones.";
    out.gauge("flotilla_dedup_window_seconds", help, &[], reach);
}

/// What stands in topics and waits before them; topics beyond the bound are one.
fn write_standing(numbers: &[TopicNumbers], rows_max: usize, out: &mut Exposition) {
    let (named, rest) = numbers.split_at(numbers.len().min(rows_max));
    for level in named {
        write_standing_of(level.topic.as_str(), level, out);
    }
    let sum = rest.iter().cloned().reduce(|sum, level| TopicNumbers {
        stored: sum.stored + level.stored,
        delayed: sum.delayed + level.delayed,
        halves: sum.halves + level.halves,
        parked: sum.parked + level.parked,
        ..sum
    });
    if let Some(sum) = sum {
        write_standing_of(OTHER, &sum, out);
    }
}

fn write_standing_of(topic: &str, numbers: &TopicNumbers, out: &mut Exposition) {
    let labels = [("topic", topic)];
    let help = "Messages that stand in the topic's queues, consumed or not.";
    out.gauge_whole("flotilla_topic_messages", help, &labels, numbers.stored);
    // Told of topics that can have any.
    if numbers.message_type == MessageType::Delay || numbers.delayed > 0 {
        let help = "Delayed messages that wait for their time.";
        out.gauge_whole("rocketmq_timing_messages", help, &labels, numbers.delayed);
    }
    if numbers.message_type == MessageType::Transaction || numbers.halves > 0 {
        let help = "Half messages whose transactions are open.";
        out.gauge_whole("rocketmq_half_messages", help, &labels, numbers.halves);
        let help = "Half messages whose producers are not asked any more.";
        out.gauge_whole("flotilla_parked_half_messages", help, &labels, numbers.parked);
    }
}

fn write_differing(replica: &Replica, out: &mut Exposition) {
    let differing = replica.lanes.differing(replica.runtime.now());
    for (group, topic) in differing.iter().take(replica.labels_max()) {
        let labels = [("topic", topic.as_str()), ("consumer_group", group.as_str())];
        let help = "1 where members of a consumer group want different messages of a topic.";
        out.gauge_whole("flotilla_subscriptions_differ", help, &labels, 1);
    }
}

/// The first rows by name, and the sum of all others as one.
fn summed(mut rows: Vec<Consumption>, rows_max: usize) -> Vec<(String, String, Consumption)> {
    let rest = rows.split_off(rows.len().min(rows_max));
    let mut named: Vec<_> = rows.into_iter().map(|row| (row.group.to_string(), row.topic.to_string(), row)).collect();
    let sum = rest.into_iter().reduce(|sum, row| Consumption {
        lag: sum.lag + row.lag,
        inflight: sum.inflight + row.inflight,
        ready: sum.ready + row.ready,
        ..sum
    });
    named.extend(sum.map(|sum| (OTHER.to_owned(), OTHER.to_owned(), sum)));
    named
}

fn write_consumption(rows: &[(String, String, Consumption)], now_ms: u64, out: &mut Exposition) {
    for (group, topic, row) in rows {
        let labels = [("topic", topic.as_str()), ("consumer_group", group.as_str())];
        let counts = [
            ("rocketmq_consumer_lag_messages", "Messages that the group has not consumed.", row.lag),
            ("rocketmq_consumer_inflight_messages", "Messages delivered and not acknowledged.", row.inflight),
            ("rocketmq_consumer_ready_messages", "Messages never delivered to the group.", row.ready),
        ];
        for (name, help, count) in counts {
            out.gauge_whole(name, help, &labels, count);
        }
        let ages = [
            (
                "rocketmq_consumer_lag_latency",
                "Age of the oldest message that the group has not consumed, milliseconds.",
                (row.oldest_lag_ms, row.lag),
            ),
            (
                "rocketmq_consumer_queueing_latency",
                "Age of the oldest message never delivered to the group, milliseconds.",
                (row.oldest_ready_ms, row.ready),
            ),
        ];
        for (name, help, age) in ages {
            match age {
                (Some(stored_ms), _) => out.gauge_whole(name, help, &labels, now_ms.saturating_sub(stored_ms)),
                (None, 0) => out.gauge_whole(name, help, &labels, 0),
                // Not looked up: unknown is not 0.
                (None, _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_message::GroupName;
    use flotilla_metrics::Scrape;

    use super::*;

    fn row(group: &str, lag: u64, oldest_lag_ms: Option<u64>) -> Consumption {
        Consumption {
            group: GroupName::try_from(group).expect("a name"),
            topic: TopicName::try_from("t").expect("a name"),
            lag,
            inflight: lag / 2,
            ready: lag - lag / 2,
            oldest_lag_ms,
            oldest_ready_ms: oldest_lag_ms,
        }
    }

    #[test]
    fn groups_beyond_the_bound_are_one_and_its_age_is_unknown_not_zero() {
        let rows = vec![row("a", 4, Some(7_000)), row("b", 0, None), row("c", 2, None), row("d", 5, None)];
        let mut out = Exposition::new();
        write_consumption(&summed(rows, 2), 10_000, &mut out);
        let scrape = Scrape::parse(&out.finish()).expect("of the format");
        let value = |name: &str, group: &str| scrape.value(name, &[("consumer_group", group)]);
        assert_eq!(value("rocketmq_consumer_lag_messages", "a"), Some(4.0));
        assert_eq!(value("rocketmq_consumer_lag_latency", "a"), Some(3_000.0));
        assert_eq!(value("rocketmq_consumer_lag_latency", "b"), Some(0.0), "nothing lags");
        assert_eq!(value("rocketmq_consumer_lag_messages", OTHER), Some(7.0));
        assert_eq!(value("rocketmq_consumer_inflight_messages", OTHER), Some(3.0));
        assert_eq!(value("rocketmq_consumer_lag_latency", OTHER), None);
    }

    #[test]
    fn topics_beyond_the_bound_are_one_and_only_topics_that_can_wait_tell_it() {
        let level = |topic: &str, message_type, stored, delayed| TopicNumbers {
            topic: TopicName::try_from(topic).expect("a name"),
            message_type,
            stored,
            delayed,
            halves: 0,
            parked: 0,
        };
        let (normal, delay) = (MessageType::Normal, MessageType::Delay);
        let levels =
            [level("a", normal, 5, 0), level("b", delay, 1, 0), level("c", normal, 2, 0), level("d", delay, 3, 7)];
        let mut out = Exposition::new();
        write_standing(&levels, 2, &mut out);
        let scrape = Scrape::parse(&out.finish()).expect("of the format");
        let value = |name: &str, topic: &str| scrape.value(name, &[("topic", topic)]);
        assert_eq!(
            ["a", "b", "c", OTHER].map(|topic| value("flotilla_topic_messages", topic)),
            [Some(5.0), Some(1.0), None, Some(5.0)]
        );
        assert_eq!(
            ["a", "b", OTHER].map(|topic| value("rocketmq_timing_messages", topic)),
            [None, Some(0.0), Some(7.0)]
        );
    }

    #[test]
    fn consumers_are_counted_by_group_and_producers_by_language() {
        let client = |kind, group: &str, language: &str| (kind, group.to_owned(), language.to_owned());
        let counted = bounded(
            vec![
                (client(ClientType::Producer, "", "JAVA"), 2),
                (client(ClientType::PushConsumer, "a", "JAVA"), 1),
                (client(ClientType::SimpleConsumer, "a", "JAVA"), 1),
                (client(ClientType::SimpleConsumer, "b", "GO"), 1),
                (client(ClientType::SimpleConsumer, "c", "GO"), 3),
            ],
            1,
        );
        let counts: Vec<_> =
            counted.into_iter().map(|((_, group, language), count)| (group, language, count)).collect();
        let has = |group: &str, language: &str, count| counts.contains(&(group.to_owned(), language.to_owned(), count));
        assert!(has("", "JAVA", 2) && has("a", "JAVA", 2) && has(OTHER, "GO", 4), "{counts:?}");
    }
}
