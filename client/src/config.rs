//! Settings of a client and of what is made from it, with defaults and one check that names every problem.

use std::path::PathBuf;
use std::time::Duration;

use flotilla_message::{AckLevel, FlushLevel, GroupName, TopicName};
use flotilla_tls::Credentials;

/// Where the cluster is, and how patient calls are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientConfig {
    /// Addresses (`host:port`) of namesrvs; any that answers will do. May be empty if `endpoints` is not.
    pub namesrv: Vec<String>,
    /// Addresses (`host:port`) of brokers, asked for routes when `namesrv` is empty.
    pub endpoints: Vec<String>,
    /// Only brokers of this cluster are used. Default: any that the namesrv knows.
    pub cluster: Option<String>,
    /// Longest wait for one answer. Default 3 s; 10 ms to 10 min.
    pub request_timeout: Duration,
    /// Longest wait for one answer while another replica could be asked instead, so that one frozen
    /// replica does not use up a whole deadline. Default 1.5 s; 10 ms up to `request_timeout`.
    pub attempt_timeout: Duration,
    /// Longest time a send, an ack or an admin call goes on trying. Default 10 s; 10 ms to 1 h.
    pub send_deadline: Duration,
    /// How often known routes are asked for again. Default 30 s; 100 ms to 1 h.
    pub route_refresh: Duration,
    /// TLS with everybody: whom to believe, and what to show to who asks for a certificate. The other end's certificate must
    /// be for the host under which it is called. Files are read again when they change. Default: no TLS.
    pub tls: Option<Credentials>,
}

impl Default for ClientConfig {
    fn default() -> ClientConfig {
        ClientConfig {
            namesrv: Vec::new(),
            endpoints: Vec::new(),
            cluster: None,
            request_timeout: Duration::from_secs(3),
            attempt_timeout: Duration::from_millis(1_500),
            send_deadline: Duration::from_secs(10),
            route_refresh: Duration::from_secs(30),
            tls: None,
        }
    }
}

/// Everything that is wrong with a configuration, one sentence each.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .problems.join("; "))]
pub struct ConfigErrors {
    /// Each problem with its key, value and what is allowed.
    pub problems: Vec<String>,
}

impl ConfigErrors {
    pub(crate) fn unless_empty(problems: Vec<String>) -> Result<(), ConfigErrors> {
        if problems.is_empty() { Ok(()) } else { Err(ConfigErrors { problems }) }
    }
}

impl ClientConfig {
    /// A client that asks these namesrvs (`host:port` each) for routes.
    pub fn of_namesrv<S: Into<String>>(addresses: impl IntoIterator<Item = S>) -> ClientConfig {
        ClientConfig { namesrv: addresses.into_iter().map(Into::into).collect(), ..ClientConfig::default() }
    }

    /// A client that asks these brokers (`host:port` each) for routes.
    pub fn of_endpoints<S: Into<String>>(addresses: impl IntoIterator<Item = S>) -> ClientConfig {
        ClientConfig { endpoints: addresses.into_iter().map(Into::into).collect(), ..ClientConfig::default() }
    }

    /// Checks every value and how they fit each other.
    ///
    /// # Errors
    /// [`ConfigErrors`] with all the problems at once.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        if self.namesrv.is_empty() && self.endpoints.is_empty() {
            problems.push("namesrv and endpoints are both empty, at least one address is needed".to_owned());
        }
        for (key, addresses) in [("namesrv", &self.namesrv), ("endpoints", &self.endpoints)] {
            for address in addresses {
                if let Err(problem) = check_address(address) {
                    problems.push(format!("{key} has {address:?}: {problem}"));
                }
            }
        }
        check_range(&mut problems, "request_timeout", self.request_timeout, Duration::from_secs(600));
        check_range(&mut problems, "attempt_timeout", self.attempt_timeout, self.request_timeout);
        check_range(&mut problems, "send_deadline", self.send_deadline, Duration::from_secs(3_600));
        if !(Duration::from_millis(100)..=Duration::from_secs(3_600)).contains(&self.route_refresh) {
            problems.push(format!("route_refresh is {:?}, allowed is 100ms to 3600s", self.route_refresh));
        }
        ConfigErrors::unless_empty(problems)
    }
}

fn check_range(problems: &mut Vec<String>, key: &str, value: Duration, most: Duration) {
    let least = Duration::from_millis(10);
    if !(least..=most.max(least)).contains(&value) {
        problems.push(format!("{key} is {value:?}, allowed is {least:?} to {most:?}"));
    }
}

/// Whether `address` has the form `host:port` with a port of 1 to 65535.
fn check_address(address: &str) -> Result<(), String> {
    let (host, port) = address.rsplit_once(':').ok_or("an address is written host:port")?;
    if host.is_empty() || !host.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | ';' | ',')) {
        return Err(format!("{host:?} is not a host name or address"));
    }
    match port.parse::<u16>() {
        Ok(1..) => Ok(()),
        _ => Err(format!("{port:?} is not a port, allowed is 1 to 65535")),
    }
}

/// Settings of a [`crate::Producer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProducerConfig {
    /// Most sends under way at once; further ones wait. Default 1,024; 1 to 1,000,000.
    pub in_flight_max: usize,
    /// Most bytes of bodies under way at once; further sends wait. Default 64 MiB; at least 4 MiB, at most 1 GiB.
    pub in_flight_bytes_max: usize,
    /// Level that its messages ask for where they do not say; a topic that gives more gives more. Default: the topic's.
    pub ack: Option<AckLevel>,
    /// As `ack`, for copies on disk. Default: the topic's.
    pub flush: Option<FlushLevel>,
    /// Whether a message without a message group is sent to another broker group when the one that was asked has stopped
    /// answering and may or may not have stored it, as RocketMQ's producers do. Only one group recognises a message that it
    /// has stored already, so it may then be there twice, which the receipt says. Else such a send ends as unknown.
    /// Default true. A message that is surely not stored goes to another group in any case.
    pub repeats_elsewhere: bool,
}

impl Default for ProducerConfig {
    fn default() -> ProducerConfig {
        ProducerConfig {
            in_flight_max: 1_024,
            in_flight_bytes_max: 64 << 20,
            ack: None,
            flush: None,
            repeats_elsewhere: true,
        }
    }
}

impl ProducerConfig {
    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigErrors`] with all the problems at once.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        let mut within = |key: &str, value: usize, least: usize, most: usize| {
            if !(least..=most).contains(&value) {
                problems.push(format!("{key} is {value}, allowed is {least} to {most}"));
            }
        };
        within("in_flight_max", self.in_flight_max, 1, 1_000_000);
        within("in_flight_bytes_max", self.in_flight_bytes_max, 4 << 20, 1 << 30);
        ConfigErrors::unless_empty(problems)
    }
}

/// Which messages of a topic a consumer wants.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum Filter {
    /// Every message.
    #[default]
    All,
    /// By tag: `a`, `a || b`, or `*` for all.
    Tag(String),
    /// By an SQL-92 condition over the properties.
    Sql(String),
}

/// Longest invisible time a broker grants.
pub(crate) const INVISIBLE_MAX: Duration = Duration::from_secs(12 * 3_600);
/// Most messages asked for in one call.
pub(crate) const BATCH_MAX: usize = 32;

/// Settings of a [`crate::SimpleConsumer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SimpleConsumerConfig {
    /// The consumer group, which must exist.
    pub group: GroupName,
    /// The topic, which must exist.
    pub topic: TopicName,
    /// Which of its messages. Default all.
    pub filter: Filter,
    /// How long a receive waits for the first message. Default 20 s; at most 1 h; zero does not wait.
    pub await_duration: Duration,
}

impl SimpleConsumerConfig {
    /// Defaults for a group and a topic.
    pub fn new(group: GroupName, topic: TopicName) -> SimpleConsumerConfig {
        SimpleConsumerConfig { group, topic, filter: Filter::All, await_duration: Duration::from_secs(20) }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigErrors`] with all the problems at once.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        if self.await_duration > Duration::from_secs(3_600) {
            problems.push(format!("await_duration is {:?}, allowed is 0s to 3600s", self.await_duration));
        }
        ConfigErrors::unless_empty(problems)
    }
}

/// Where a [`crate::PullConsumer`] begins in a queue in which its group has no position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PullStart {
    /// At the oldest message.
    #[default]
    First,
    /// Behind the newest message.
    Last,
    /// At the first message stored at this time or later, milliseconds since the Unix epoch.
    TimestampMs(u64),
}

/// Settings of a [`crate::PullConsumer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PullConsumerConfig {
    /// The consumer group whose positions are used.
    pub group: GroupName,
    /// The topic, which must exist.
    pub topic: TopicName,
    /// Which of its messages. Default all.
    pub filter: Filter,
    /// Where to begin without a position. Default at the oldest message.
    pub start: PullStart,
}

impl PullConsumerConfig {
    /// Defaults for a group and a topic.
    pub fn new(group: GroupName, topic: TopicName) -> PullConsumerConfig {
        PullConsumerConfig { group, topic, filter: Filter::All, start: PullStart::First }
    }
}

/// Where the positions of a [`crate::BroadcastConsumer`] are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BroadcastPositions {
    /// Nowhere: each start begins behind the newest message.
    Newest,
    /// In a file of this instance, so that it goes on where it was.
    File {
        /// The file; each instance needs one of its own, which outlives it.
        path: PathBuf,
        /// Where to begin as long as the file is not there.
        start: PullStart,
    },
}

/// Settings of a [`crate::BroadcastConsumer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BroadcastConsumerConfig {
    /// The consumer group. The brokers keep its name and no more.
    pub group: GroupName,
    /// The topic, which must exist.
    pub topic: TopicName,
    /// Which of its messages. Default all.
    pub filter: Filter,
    /// Where the positions are. Default nowhere.
    pub positions: BroadcastPositions,
    /// How often positions that have moved are saved. Default 5 s; 10 ms to 1 h.
    pub save_interval: Duration,
}

impl BroadcastConsumerConfig {
    /// Defaults for a group and a topic: every start begins behind the newest message.
    pub fn new(group: GroupName, topic: TopicName) -> BroadcastConsumerConfig {
        let positions = BroadcastPositions::Newest;
        BroadcastConsumerConfig { group, topic, filter: Filter::All, positions, save_interval: Duration::from_secs(5) }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigErrors`] with all the problems at once.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        check_range(&mut problems, "save_interval", self.save_interval, Duration::from_secs(3_600));
        if matches!(&self.positions, BroadcastPositions::File { path, .. } if path.file_name().is_none()) {
            problems.push("positions are to be in a file without a name".to_owned());
        }
        ConfigErrors::unless_empty(problems)
    }
}

/// Settings of a [`crate::PushConsumer`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PushConsumerConfig {
    /// The consumer group, which must exist.
    pub group: GroupName,
    /// The topic, which must exist.
    pub topic: TopicName,
    /// Which of its messages. Default all.
    pub filter: Filter,
    /// Most listeners running at once, over all queues. Default 20; 1 to 10,000.
    pub concurrency: usize,
    /// How long a message is hidden from other consumers; renewed at half of it while its listener
    /// runs. Default 60 s; 1 s to 12 h.
    pub invisible_duration: Duration,
    /// How long a message stays hidden after its first failure; doubled with every further one. Default 1 s; 0 to 12 h.
    pub retry_delay_min: Duration,
    /// The most it is doubled to. Default 10 min; `retry_delay_min` to 12 h.
    pub retry_delay_max: Duration,
}

impl PushConsumerConfig {
    /// Defaults for a group and a topic.
    pub fn new(group: GroupName, topic: TopicName) -> PushConsumerConfig {
        PushConsumerConfig {
            group,
            topic,
            filter: Filter::All,
            concurrency: 20,
            invisible_duration: Duration::from_secs(60),
            retry_delay_min: Duration::from_secs(1),
            retry_delay_max: Duration::from_secs(600),
        }
    }

    /// Checks every value.
    ///
    /// # Errors
    /// [`ConfigErrors`] with all the problems at once.
    pub fn validate(&self) -> Result<(), ConfigErrors> {
        let mut problems = Vec::new();
        if !(1..=10_000).contains(&self.concurrency) {
            problems.push(format!("concurrency is {}, allowed is 1 to 10000", self.concurrency));
        }
        if !(Duration::from_secs(1)..=INVISIBLE_MAX).contains(&self.invisible_duration) {
            problems.push(format!(
                "invisible_duration is {:?}, allowed is 1s to {INVISIBLE_MAX:?}",
                self.invisible_duration
            ));
        }
        if self.retry_delay_max > INVISIBLE_MAX || self.retry_delay_min > self.retry_delay_max {
            problems.push(format!(
                "retry_delay_min is {:?} and retry_delay_max {:?}, allowed is 0s <= min <= max <= {INVISIBLE_MAX:?}",
                self.retry_delay_min, self.retry_delay_max
            ));
        }
        ConfigErrors::unless_empty(problems)
    }

    /// How long a message stays hidden after its `attempt`-th delivery (from 1) failed.
    pub(crate) fn retry_delay(&self, attempt: u32) -> Duration {
        let doubled = 1u32.checked_shl(attempt.saturating_sub(1)).unwrap_or(u32::MAX);
        self.retry_delay_min.saturating_mul(doubled).min(self.retry_delay_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_of_a_client_is_named_at_once() {
        let config = ClientConfig {
            namesrv: vec!["nohost".to_owned(), "a:0".to_owned()],
            endpoints: vec!["http://x:1".to_owned(), "[::1]:8081".to_owned(), "ok.example:8081".to_owned()],
            request_timeout: Duration::from_secs(1),
            attempt_timeout: Duration::from_secs(2),
            ..ClientConfig::default()
        };
        let problems = config.validate().unwrap_err().problems;
        assert_eq!(problems.len(), 4, "{problems:?}");
        assert!(problems[0].contains("\"nohost\""), "{problems:?}");
        assert!(problems[1].contains("\"0\" is not a port, allowed is 1 to 65535"), "{problems:?}");
        assert!(problems[2].contains("\"http://x:1\""), "{problems:?}");
        assert!(problems[3].contains("attempt_timeout is 2s, allowed is 10ms to 1s"), "{problems:?}");
    }

    #[test]
    fn a_client_needs_an_address() {
        let text = ClientConfig::default().validate().unwrap_err().to_string();
        assert!(text.contains("at least one address is needed"), "{text}");
        ClientConfig::of_endpoints(["127.0.0.1:8081"]).validate().unwrap();
    }

    #[test]
    fn the_retry_delay_doubles_up_to_its_limit() {
        let config = PushConsumerConfig::new("g".try_into().unwrap(), "t".try_into().unwrap());
        let seconds = |attempt| config.retry_delay(attempt).as_secs();
        assert_eq!(
            [seconds(1), seconds(2), seconds(3), seconds(10), seconds(11), seconds(64)],
            [1, 2, 4, 512, 600, 600]
        );
    }
}
