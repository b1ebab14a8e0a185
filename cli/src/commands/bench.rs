//! `flotilla bench`: how many messages a second, how late, and for how much CPU.

use std::fmt;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use clap::{ArgGroup, Args};
use flotilla_chaos::cluster::{
    ClusterDir, ClusterView, ClusterViewError, LocalCluster, LocalClusterConfig, LocalClusterError, process_cpu,
};
use flotilla_client::{
    Client, ClientConfig, ConfigErrors, OutgoingMessage, Producer, ProducerConfig, SendError, TopicSpec,
};
use flotilla_message::{AckLevel, FlushLevel, SendLevel, TopicName, limits};
use flotilla_proto::client::TonicConnector;
use flotilla_runtime::{Either, Instant, Runtime, Task, select};
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::connect_options::{TlsOptions, topic_name};
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::quantity::{QuantityError, format_count, format_duration, parse_bytes, parse_duration};
use crate::stop_signal::StopSignals;

const SEGMENT_BYTES: u64 = 256 << 20;
const DATA_QUOTA_BYTES: u64 = 256 << 30;
const QUEUES: u32 = 8;
const LEADER_TIMEOUT: Duration = Duration::from_secs(30);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(200);
/// Latencies above this count as this.
const LATENCY_MAX: Duration = Duration::from_secs(600);

/// Measure sends: a fixed number in flight, the next one begun when one is acknowledged.
///
/// With --local the servers are started for the run, as real processes in a temporary folder, each message flushed to
/// disk and acknowledged by a majority unless --ack and --flush say otherwise; client and servers then share this machine, and the figures say what such a
/// machine does, not what a cluster of three does. With --endpoint a running cluster is measured (its servers' CPU is
/// then not known); the topic is created if it does not exist, and stays.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("cluster").required(true).args(["local", "endpoint"]), after_help = "\
Examples:
  flotilla bench --local 3
  flotilla bench --local 1 --in-flight 1 --size 128
  flotilla bench --local 3 --in-flight 256 --connections 4 --duration 30s --json
  flotilla bench --endpoint 10.0.0.1:8081,10.0.0.2:8081 --topic bench")]
pub struct BenchArguments {
    /// Start so many replicas for the run: 1 or 3
    #[arg(long, value_name = "REPLICAS", value_parser = local_replicas)]
    local: Option<u32>,
    /// Measure a running cluster: brokers to ask for routes
    #[arg(long, value_name = "HOST:PORT", value_delimiter = ',')]
    endpoint: Vec<String>,
    /// Messages under way at once, over all connections
    #[arg(long, value_name = "COUNT", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    in_flight: u32,
    #[command(flatten)]
    tls: TlsOptions,
    /// Size of a message's body
    #[arg(long, value_name = "SIZE", default_value = "1024", value_parser = body_size)]
    size: u64,
    /// How long is measured
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_duration)]
    duration: Duration,
    /// How long is sent before that without measuring
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_duration)]
    warmup: Duration,
    /// Clients, each with connections of its own
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_024))]
    connections: u32,
    /// Level at which sends are answered: async, majority or sync; the topic is made with it
    #[arg(long, value_name = "LEVEL", default_value_t = AckLevel::Majority, ignore_case = true)]
    ack: AckLevel,
    /// Whether copies are on disk by then: sync or async
    #[arg(long, value_name = "LEVEL", default_value_t = FlushLevel::Sync, ignore_case = true)]
    flush: FlushLevel,
    /// The topic
    #[arg(long, value_name = "TOPIC", default_value = "bench", value_parser = topic_name)]
    topic: TopicName,
    /// Print one JSON object instead
    #[arg(long)]
    json: bool,
}

/// A number of replicas that is not offered.
#[derive(Debug, thiserror::Error)]
#[error("1 or 3 replicas are offered")]
struct LocalReplicasError;

fn local_replicas(text: &str) -> Result<u32, LocalReplicasError> {
    text.parse().ok().filter(|replicas| [1, 3].contains(replicas)).ok_or(LocalReplicasError)
}

/// A body that no broker takes.
#[derive(Debug, thiserror::Error)]
enum BodySizeError {
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error("{size} bytes are out of range: 1 to {most} are allowed", most = limits::BODY_BYTES_MAX)]
    OutOfRange { size: u64 },
}

fn body_size(text: &str) -> Result<u64, BodySizeError> {
    let size = parse_bytes(text)?;
    if (1..=limits::BODY_BYTES_MAX as u64).contains(&size) {
        return Ok(size);
    }
    Err(BodySizeError::OutOfRange { size })
}

/// Why nothing was measured.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    #[error("no folder for the servers: {0}")]
    Folder(#[source] std::io::Error),
    #[error("the path of this program is not known: {0}")]
    NoProgram(#[source] std::io::Error),
    #[error(transparent)]
    Cluster(#[from] LocalClusterError),
    #[error(transparent)]
    View(#[from] ClusterViewError),
    #[error(transparent)]
    Client(#[from] ConfigErrors),
    #[error("topic {topic} cannot be prepared: {source}")]
    Prepare { topic: TopicName, source: flotilla_client::AdminError },
    #[error("no message was acknowledged in {measured:?}; the last error: {last}")]
    NothingAcked { measured: Duration, last: String },
    #[error("a send was rejected: {0}")]
    Rejected(#[source] SendError),
    #[error("stopped by {0}")]
    Interrupted(&'static str),
}

/// What was measured, and how.
#[derive(Debug, Serialize)]
struct BenchReport {
    messages_per_second: u64,
    p50_us: u64,
    p99_us: u64,
    max_us: u64,
    /// Of all servers; not known of a cluster elsewhere.
    #[serde(skip_serializing_if = "Option::is_none")]
    server_cpu_us_per_message: Option<f64>,
    client_cpu_us_per_message: Option<f64>,
    acked: u64,
    errors: u64,
    measured_ms: u64,
    in_flight: u32,
    connections: u32,
    size: u64,
    conditions: String,
}

pub async fn run(arguments: BenchArguments, runtime: Runtime) -> Result<(), Failure> {
    let mut signals = StopSignals::listen(false, &runtime)?;
    let report = match arguments.local {
        Some(replicas) => {
            let dir = ClusterDir::create("flotilla-bench-").map_err(BenchError::Folder)?;
            run_local(&arguments, replicas, dir.path(), &mut signals, &runtime).await?
        }
        None => {
            let tls = arguments.tls.credentials().map_err(Failure::usage)?;
            let config = ClientConfig { tls, ..ClientConfig::of_endpoints(arguments.endpoint.clone()) };
            let measuring = measure(&arguments, None, config, &runtime);
            unless_interrupted(&mut signals, measuring).await?
        }
    };
    if arguments.json {
        output::line(serde_json::to_string(&report)?);
    } else {
        output::line(report.to_string().trim_end());
    }
    Ok(())
}

async fn unless_interrupted<T>(
    signals: &mut StopSignals,
    work: impl Future<Output = Result<T, BenchError>>,
) -> Result<T, BenchError> {
    match select(work, signals.next()).await {
        Either::Left(result) => result,
        Either::Right(signal) => Err(BenchError::Interrupted(signal)),
    }
}

async fn run_local(
    arguments: &BenchArguments,
    replicas: u32,
    dir: &Path,
    signals: &mut StopSignals,
    runtime: &Runtime,
) -> Result<BenchReport, BenchError> {
    let config = LocalClusterConfig {
        program: std::env::current_exe().map_err(BenchError::NoProgram)?,
        cluster: "bench",
        dir: dir.to_owned(),
        replicas,
        segment_bytes: SEGMENT_BYTES,
        data_quota_bytes: DATA_QUOTA_BYTES,
        log_level: "warn".to_owned(),
        has_links: false,
    };
    let cluster =
        unless_interrupted(signals, async { Ok(LocalCluster::start(config, runtime.clone()).await?) }).await?;
    let measuring = async {
        let connector = TonicConnector::new(runtime.clone());
        ClusterView::new(&cluster.client_addresses(), &connector, runtime).await_leader(0, LEADER_TIMEOUT).await?;
        let config = ClientConfig::of_namesrv([cluster.namesrv_address()]);
        measure(arguments, Some(&cluster), config, runtime).await
    };
    let result = unless_interrupted(signals, measuring).await;
    cluster.end().await?;
    result
}

/// What one worker saw in the measured time.
struct Seen {
    latency_us: Histogram<u64>,
    errors: u64,
    last_error: Option<SendError>,
}

impl Seen {
    fn new() -> Seen {
        let most = u64::try_from(LATENCY_MAX.as_micros()).expect("ten minutes fit");
        let latency_us = Histogram::new_with_bounds(1, most, 3).expect("the bounds are constant and valid");
        Seen { latency_us, errors: 0, last_error: None }
    }

    fn add(&mut self, other: Seen) {
        self.latency_us.add(other.latency_us).expect("all histograms have the same bounds");
        self.errors += other.errors;
        self.last_error = other.last_error.or(self.last_error.take());
    }
}

async fn measure(
    arguments: &BenchArguments,
    cluster: Option<&LocalCluster>,
    config: ClientConfig,
    runtime: &Runtime,
) -> Result<BenchReport, BenchError> {
    let mut clients = Vec::new();
    for _ in 0..arguments.connections.min(arguments.in_flight) {
        clients.push(Client::tonic(config.clone())?);
    }
    let topic = &arguments.topic;
    let spec =
        TopicSpec { ack: Some(arguments.ack), flush: Some(arguments.flush), ..TopicSpec::new(topic.clone(), QUEUES) };
    let created = clients[0].admin().create_topic(&spec).await;
    created.map_err(|source| BenchError::Prepare { topic: topic.clone(), source })?;

    let from = runtime.now() + arguments.warmup;
    let until = from + arguments.duration;
    let acked_so_far = Arc::new(AtomicU64::new(0));
    let workers = start_workers(arguments, &clients, from, until, &acked_so_far, runtime)?;
    let cpu = || (cluster.and_then(LocalCluster::cpu_time), process_cpu::cpu_time(std::process::id()));
    let mut progress = Progress::start("acked", None, runtime);
    runtime.sleep_until(from).await;
    let before = cpu();
    while runtime.now() < until {
        let left = until - runtime.now();
        progress.update(acked_so_far.load(Ordering::Relaxed), &format!("{} left", format_duration(left)));
        runtime.sleep(PROGRESS_INTERVAL.min(left)).await;
    }
    let after = cpu();
    progress.finish();

    let mut seen = Seen::new();
    for worker in workers {
        seen.add(worker.await.expect("a worker neither panics nor is cancelled").map_err(BenchError::Rejected)?);
    }
    let acked = seen.latency_us.len();
    if acked == 0 {
        let last = seen.last_error.map_or_else(|| "none".to_owned(), |error| error.to_string());
        return Err(BenchError::NothingAcked { measured: arguments.duration, last });
    }
    let per_message = |before: Option<Duration>, after: Option<Duration>| {
        let used = after?.saturating_sub(before?);
        Some((used.as_secs_f64() * 1e6 / acked as f64 * 10.0).round() / 10.0)
    };
    Ok(BenchReport {
        messages_per_second: (acked as f64 / arguments.duration.as_secs_f64()) as u64,
        p50_us: seen.latency_us.value_at_quantile(0.5),
        p99_us: seen.latency_us.value_at_quantile(0.99),
        max_us: seen.latency_us.max(),
        server_cpu_us_per_message: per_message(before.0, after.0),
        client_cpu_us_per_message: per_message(before.1, after.1),
        acked,
        errors: seen.errors,
        measured_ms: u64::try_from(arguments.duration.as_millis()).unwrap_or(u64::MAX),
        in_flight: arguments.in_flight,
        connections: arguments.connections.min(arguments.in_flight),
        size: arguments.size,
        conditions: conditions(arguments),
    })
}

fn conditions(arguments: &BenchArguments) -> String {
    let level = SendLevel { ack: arguments.ack, flush: arguments.flush };
    let cluster = match arguments.local {
        Some(1) => format!("1 replica, {level}, this machine, loopback"),
        Some(replicas) => format!("{replicas} replicas, {level}, all on this machine, loopback"),
        None => format!("running cluster at {}, {level}", arguments.endpoint.join(",")),
    };
    format!(
        "{cluster}; {} in flight on {} client(s), bodies of {} bytes",
        arguments.in_flight,
        arguments.connections.min(arguments.in_flight),
        arguments.size
    )
}

fn start_workers(
    arguments: &BenchArguments,
    clients: &[Client],
    from: Instant,
    until: Instant,
    acked_so_far: &Arc<AtomicU64>,
    runtime: &Runtime,
) -> Result<Vec<Task<Result<Seen, SendError>>>, ConfigErrors> {
    let mut producers = Vec::new();
    for client in clients {
        let config = ProducerConfig { in_flight_max: arguments.in_flight as usize, ..ProducerConfig::default() };
        producers.push(Arc::new(client.producer(config)?));
    }
    let body = Bytes::from(vec![b'.'; usize::try_from(arguments.size).expect("the size was limited when parsed")]);
    let workers = (0..arguments.in_flight as usize).map(|number| {
        let producer = producers[number % producers.len()].clone();
        let message = OutgoingMessage::new(arguments.topic.clone(), body.clone());
        runtime.spawn("bench-worker", send_until(producer, message, from, until, acked_so_far.clone(), runtime.clone()))
    });
    Ok(workers.collect())
}

/// One message after the other; what ends between `from` and `until` counts.
async fn send_until(
    producer: Arc<Producer>,
    message: OutgoingMessage,
    from: Instant,
    until: Instant,
    acked_so_far: Arc<AtomicU64>,
    runtime: Runtime,
) -> Result<Seen, SendError> {
    let mut seen = Seen::new();
    loop {
        let begun = runtime.now();
        if begun >= until {
            return Ok(seen);
        }
        let result = producer.send(message.clone()).await;
        let ended = runtime.now();
        let counts = ended >= from && ended < until;
        acked_so_far.fetch_add(u64::from(result.is_ok()), Ordering::Relaxed);
        match result {
            Ok(_) if counts => {
                let latency = (ended - begun).min(LATENCY_MAX);
                seen.latency_us.saturating_record(u64::try_from(latency.as_micros()).expect("ten minutes fit").max(1));
            }
            Ok(_) => {}
            Err(error @ SendError::Rejected { .. }) => return Err(error),
            Err(error) => {
                seen.errors += u64::from(counts);
                seen.last_error = Some(error);
            }
        }
    }
}

impl fmt::Display for BenchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut line = |label: &str, value: String| writeln!(f, "{label:<24}{value}");
        let ms = |us: u64| format!("{:.2} ms", us as f64 / 1e3);
        let cpu = |used: Option<f64>| used.map_or_else(|| "not known".to_owned(), |us| format!("{us:.1} us a message"));
        line("messages/s", format_count(self.messages_per_second))?;
        line("latency p50", ms(self.p50_us))?;
        line("latency p99", ms(self.p99_us))?;
        line("latency max", ms(self.max_us))?;
        line("CPU of servers", cpu(self.server_cpu_us_per_message))?;
        line("CPU of the client", cpu(self.client_cpu_us_per_message))?;
        line("failed sends", format_count(self.errors))?;
        line("conditions", self.conditions.clone())
    }
}
