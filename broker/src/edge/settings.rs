//! The server's answer to a client's settings: what each official client needs to find in it.
//!
//! The answer is the client's own settings with the broker's values in place. A field left out makes one client or
//! another hang or refuse every send, so all are always there.

use std::time::Duration;

use flotilla_proto::v2;

use crate::consume::delivery::wire_duration;

/// What the broker decides about a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terms {
    /// Largest body, bytes.
    pub body_bytes_max: u64,
    /// The group's order flag (consumers).
    pub order: bool,
    /// The group's deliveries before the dead letters (consumers).
    pub max_deliveries: u32,
    /// The group's pauses before a failed message is delivered again, ms; empty: RocketMQ's (consumers).
    pub retry_pauses_ms: Vec<u32>,
}

/// Tries of one send that a client makes by itself.
const SEND_ATTEMPTS: i32 = 3;
/// Messages of one receive call.
pub const RECEIVE_BATCH: u32 = 32;
/// How long a receive call waits; whole seconds, as one client reads no others.
pub const LONG_POLLING: Duration = Duration::from_secs(20);
/// Pauses before a failed message is delivered again, seconds: RocketMQ's list.
const RETRY_PAUSES_S: [u64; 18] =
    [1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200];

/// The settings that a client is to use, from those it asked for.
pub fn merged(asked: v2::Settings, terms: Terms) -> v2::Settings {
    let is_producer = match (&asked.pub_sub, asked.client_type()) {
        (Some(v2::settings::PubSub::Publishing(_)), _) => true,
        (Some(v2::settings::PubSub::Subscription(_)), _) => false,
        (None, client_type) => client_type == v2::ClientType::Producer,
    };
    let backoff = if is_producer { send_backoff() } else { delivery_backoff(&asked, &terms) };
    let pub_sub = match asked.pub_sub {
        Some(v2::settings::PubSub::Publishing(publishing)) => publishing_terms(publishing.topics, &terms),
        Some(v2::settings::PubSub::Subscription(subscription)) => subscription_terms(subscription, &terms),
        None if is_producer => publishing_terms(Vec::new(), &terms),
        None => subscription_terms(v2::Subscription::default(), &terms),
    };
    v2::Settings {
        backoff_policy: Some(backoff),
        pub_sub: Some(pub_sub),
        metric: Some(v2::Metric { on: false, endpoints: None }),
        ..asked
    }
}

fn publishing_terms(topics: Vec<v2::Resource>, terms: &Terms) -> v2::settings::PubSub {
    v2::settings::PubSub::Publishing(v2::Publishing {
        topics,
        // Never the client's own value: some ask for 128 MiB, some for nothing.
        max_body_size: i32::try_from(terms.body_bytes_max).unwrap_or(i32::MAX),
        validate_message_type: true,
    })
}

fn subscription_terms(subscription: v2::Subscription, terms: &Terms) -> v2::settings::PubSub {
    v2::settings::PubSub::Subscription(v2::Subscription {
        // The way of consuming is the group's, not the client's.
        fifo: Some(terms.order),
        receive_batch_size: Some(RECEIVE_BATCH as i32),
        long_polling_timeout: Some(wire_duration(LONG_POLLING)),
        ..subscription
    })
}

fn send_backoff() -> v2::RetryPolicy {
    v2::RetryPolicy {
        max_attempts: SEND_ATTEMPTS,
        strategy: Some(v2::retry_policy::Strategy::ExponentialBackoff(v2::ExponentialBackoff {
            initial: Some(wire_duration(Duration::from_millis(10))),
            max: Some(wire_duration(Duration::from_secs(1))),
            multiplier: 2.0,
        })),
    }
}

fn delivery_backoff(asked: &v2::Settings, terms: &Terms) -> v2::RetryPolicy {
    let strategy = if reads_seconds_as_ms(asked) {
        // This client knows no list of pauses, and takes the seconds of an exponential one for milliseconds.
        v2::retry_policy::Strategy::ExponentialBackoff(v2::ExponentialBackoff {
            initial: Some(wire_duration(Duration::from_secs(1000))),
            max: Some(wire_duration(Duration::from_secs(7_200_000))),
            multiplier: 2.0,
        })
    } else {
        let own = terms.retry_pauses_ms.iter().map(|ms| wire_duration(Duration::from_millis(u64::from(*ms))));
        let next = match terms.retry_pauses_ms.is_empty() {
            true => RETRY_PAUSES_S.iter().map(|seconds| wire_duration(Duration::from_secs(*seconds))).collect(),
            false => own.collect(),
        };
        v2::retry_policy::Strategy::CustomizedBackoff(v2::CustomizedBackoff { next })
    };
    v2::RetryPolicy { max_attempts: i32::try_from(terms.max_deliveries).unwrap_or(i32::MAX), strategy: Some(strategy) }
}

/// The Node client up to 1.0.8, the newest there is.
fn reads_seconds_as_ms(asked: &v2::Settings) -> bool {
    asked.user_agent.as_ref().is_some_and(|agent| {
        agent.language() == v2::Language::NodeJs && matches!(agent.version.as_str(), "1.0.6" | "1.0.7" | "1.0.8")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMS: Terms =
        Terms { body_bytes_max: 4_194_304, order: true, max_deliveries: 5, retry_pauses_ms: Vec::new() };

    fn topic() -> v2::Resource {
        v2::Resource { name: "orders".to_owned(), resource_namespace: String::new() }
    }

    #[test]
    fn a_producer_is_told_the_broker_s_body_limit_whatever_it_asked_for() {
        let publishing = v2::Publishing { topics: vec![topic()], max_body_size: 134_217_728, ..Default::default() };
        let asked = v2::Settings {
            client_type: Some(v2::ClientType::Producer.into()),
            pub_sub: Some(v2::settings::PubSub::Publishing(publishing)),
            user_agent: Some(v2::Ua { hostname: "h".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let answer = merged(asked.clone(), TERMS);
        let Some(v2::settings::PubSub::Publishing(publishing)) = answer.pub_sub else { panic!("{answer:?}") };
        assert_eq!((publishing.max_body_size, publishing.validate_message_type), (4_194_304, true));
        assert_eq!(publishing.topics, [topic()]);
        let backoff = answer.backoff_policy.expect("a backoff");
        assert_eq!(backoff.max_attempts, 3);
        assert!(matches!(backoff.strategy, Some(v2::retry_policy::Strategy::ExponentialBackoff(_))));
        assert_eq!((answer.user_agent, answer.client_type), (asked.user_agent, asked.client_type), "echoed");
        assert_eq!(answer.metric.map(|metric| metric.on), Some(false));
    }

    #[test]
    fn a_consumer_is_told_its_group_s_way_of_consuming() {
        let subscription = v2::Subscription { group: Some(topic()), fifo: Some(false), ..Default::default() };
        let asked = v2::Settings {
            client_type: Some(v2::ClientType::PushConsumer.into()),
            pub_sub: Some(v2::settings::PubSub::Subscription(subscription)),
            ..Default::default()
        };
        let answer = merged(asked, TERMS);
        let Some(v2::settings::PubSub::Subscription(subscription)) = answer.pub_sub else { panic!("{answer:?}") };
        assert_eq!((subscription.fifo, subscription.receive_batch_size), (Some(true), Some(32)));
        assert_eq!(subscription.long_polling_timeout.map(|timeout| (timeout.seconds, timeout.nanos)), Some((20, 0)));
        let backoff = answer.backoff_policy.expect("a backoff");
        assert_eq!(backoff.max_attempts, 5);
        let Some(v2::retry_policy::Strategy::CustomizedBackoff(list)) = backoff.strategy else { panic!("{backoff:?}") };
        assert_eq!((list.next.len(), list.next[0].seconds), (18, 1));
    }

    #[test]
    fn settings_without_a_side_get_one_from_the_client_type() {
        let of = |client_type: v2::ClientType| {
            merged(v2::Settings { client_type: Some(client_type.into()), ..Default::default() }, TERMS).pub_sub
        };
        assert!(matches!(of(v2::ClientType::Producer), Some(v2::settings::PubSub::Publishing(_))));
        assert!(matches!(of(v2::ClientType::SimpleConsumer), Some(v2::settings::PubSub::Subscription(_))));
    }

    #[test]
    fn a_group_s_own_pauses_are_told() {
        let asked = v2::Settings { client_type: Some(v2::ClientType::PushConsumer.into()), ..Default::default() };
        let answer = merged(asked, Terms { retry_pauses_ms: vec![250, 3_000], ..TERMS });
        let strategy = answer.backoff_policy.and_then(|policy| policy.strategy);
        let Some(v2::retry_policy::Strategy::CustomizedBackoff(list)) = strategy else { panic!("{strategy:?}") };
        let pauses: Vec<_> = list.next.iter().map(|pause| (pause.seconds, pause.nanos)).collect();
        assert_eq!(pauses, [(0, 250_000_000), (3, 0)]);
    }

    #[test]
    fn node_is_given_pauses_that_it_reads_right() {
        let agent = v2::Ua { language: v2::Language::NodeJs.into(), version: "1.0.8".to_owned(), ..Default::default() };
        let asked = v2::Settings {
            client_type: Some(v2::ClientType::PushConsumer.into()),
            user_agent: Some(agent),
            ..Default::default()
        };
        let strategy = merged(asked, TERMS).backoff_policy.and_then(|policy| policy.strategy);
        let Some(v2::retry_policy::Strategy::ExponentialBackoff(backoff)) = strategy else { panic!("{strategy:?}") };
        assert_eq!(backoff.initial.map(|initial| initial.seconds), Some(1000), "read as 1000 ms");
    }
}
