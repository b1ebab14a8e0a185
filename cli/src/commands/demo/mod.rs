//! `flotilla demo`: leaders are killed under load, and every acknowledged message is accounted for.

mod faults;
mod gaps;
mod pacer;
mod report;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use flotilla_chaos::cluster::{
    ClusterDir, ClusterView, ClusterViewError, Leader, LocalCluster, LocalClusterConfig, LocalClusterError,
};
use flotilla_client::{
    Client, ClientConfig, ConfigErrors, GroupSpec, ProducerConfig, SendError, SimpleConsumerConfig, TopicSpec,
};
use flotilla_message::{GroupName, TopicName, limits};
use flotilla_proto::client::TonicConnector;
use flotilla_runtime::{Either, Runtime, Task, select};

use self::faults::{FaultError, FaultKind, Injector};
use self::pacer::Pacer;
use self::report::{DemoReport, Evidence};
use self::workload::{INVISIBLE, NUMBER_BYTES, Received, Sent, Tally, receive_until_drained, send_in_turn};
use crate::command_line::server_log_level;
use crate::failure::Failure;
use crate::output;
use crate::progress::Progress;
use crate::quantity::{QuantityError, format_count, parse_bytes};
use crate::stop_signal::StopSignals;

const REPLICAS: u32 = 3;
const SEGMENT_BYTES: u64 = 32 << 20;
const DATA_QUOTA_BYTES: u64 = 64 << 30;
const TOPIC: &str = "demo";
const GROUP: &str = "demo-readers";
const QUEUES: u32 = 8;
const SENDERS: u64 = 64;
const RECEIVERS: u64 = 4;
/// How long one receive call waits for messages: longer than an election takes, so that a call whose answer died with a
/// leader is still open when the next one can repeat that answer.
const RECEIVE_WAIT: Duration = Duration::from_secs(2);
const FIRST_LEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// All replicas must have applied the same after so long without traffic.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// After so long without any progress while sending, the run is given up.
const STALL_TIMEOUT: Duration = Duration::from_secs(60);
/// After so long without a new message, what has not come is lost: twice the time in which an unacknowledged delivery
/// would come again.
const LOST_TIMEOUT: Duration = INVISIBLE.saturating_mul(2);
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Kill leaders under load and count what is lost (nothing should be).
///
/// Starts a namesrv and three broker processes in a temporary folder, sends numbered messages through the SDK, 64 at a
/// time, while several receivers take them; kills the leader with SIGKILL and restarts it, again and again, spread over
/// the run; then compares what was acknowledged with what arrived, and the state of the replicas with each other.
/// Ends with 0 only if nothing acknowledged was lost and all replicas hold the same. Leaders can be frozen, asked to hand
/// over and stopped in order as well; for each kind the distribution of the longest times without an acknowledgement is
/// told.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  flotilla demo
  flotilla demo --messages 1000000 --size 1KiB --kills 10
  flotilla demo --json | tail -1 | jq .longest_gap_ms
  flotilla demo --rate 2000 --messages 60000 --kills 5     half a minute at a steady rate
  flotilla demo --rate 1000 --messages 400000 --kills 300 --freezes 30 --transfers 30
  flotilla demo --rate 1000 --messages 60000 --kills 0 --stops 10 --rolling-restarts 5
  flotilla demo --keep                                     leaves data and logs to look at")]
pub struct DemoArguments {
    /// How many messages are sent
    #[arg(long, value_name = "COUNT", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    messages: u64,
    /// Size of a message's body
    #[arg(long, value_name = "SIZE", default_value = "256", value_parser = body_size)]
    size: u64,
    /// How many leaders are killed
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    kills: u64,
    /// How many leaders are frozen with SIGSTOP until another one leads
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    freezes: u64,
    /// How many times an operator's call hands the lead over
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    transfers: u64,
    /// How many leaders are stopped with SIGTERM
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    stops: u64,
    /// How many times all replicas are restarted in turn with SIGTERM, the leader last
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000))]
    rolling_restarts: u64,
    /// Send at most so many messages a second [default: as fast as they are acknowledged]
    #[arg(long, value_name = "PER_SECOND", value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    rate: Option<u64>,
    /// Print the account as one JSON object, the last line on stdout
    #[arg(long)]
    json: bool,
    /// Leave data and logs where they are
    #[arg(long)]
    keep: bool,
}

impl DemoArguments {
    /// What happens, in this order.
    fn faults(&self) -> Vec<FaultKind> {
        let counts = [
            (FaultKind::Kill, self.kills),
            (FaultKind::Freeze, self.freezes),
            (FaultKind::Transfer, self.transfers),
            (FaultKind::Stop, self.stops),
            (FaultKind::RollingRestart, self.rolling_restarts),
        ];
        counts.into_iter().flat_map(|(kind, count)| (0..count).map(move |_| kind)).collect()
    }
}

/// A body that cannot be numbered or that no broker takes.
#[derive(Debug, thiserror::Error)]
enum BodySizeError {
    #[error(transparent)]
    Quantity(#[from] QuantityError),
    #[error("{size} bytes are out of range: {NUMBER_BYTES} (room for a number) to {most} are allowed", most = limits::BODY_BYTES_MAX)]
    OutOfRange { size: u64 },
}

fn body_size(text: &str) -> Result<u64, BodySizeError> {
    let size = parse_bytes(text)?;
    if (NUMBER_BYTES..=limits::BODY_BYTES_MAX as u64).contains(&size) {
        return Ok(size);
    }
    Err(BodySizeError::OutOfRange { size })
}

/// Why there is no account, or a bad one.
#[derive(Debug, thiserror::Error)]
enum DemoError {
    #[error("no folder for the demo: {0}")]
    Folder(#[source] std::io::Error),
    #[error("the path of this program is not known: {0}")]
    NoProgram(#[source] std::io::Error),
    #[error(transparent)]
    Cluster(#[from] LocalClusterError),
    #[error(transparent)]
    View(#[from] ClusterViewError),
    #[error(transparent)]
    Fault(#[from] FaultError),
    #[error(transparent)]
    Client(#[from] ConfigErrors),
    #[error("topic {TOPIC} cannot be prepared: {0}")]
    Prepare(#[source] flotilla_client::AdminError),
    #[error("a send was rejected: {0}")]
    Rejected(#[source] SendError),
    #[error(
        "nothing was acknowledged and nothing received for {waited:?}: {acked} of {messages} messages are acknowledged"
    )]
    Stalled { waited: Duration, acked: u64, messages: u64 },
    #[error("stopped by {0}")]
    Interrupted(&'static str),
    #[error("the cluster did not keep its promise: {} findings", .0.findings.len())]
    BrokenPromise(Box<DemoReport>),
}

pub async fn run(arguments: DemoArguments, runtime: Runtime) -> Result<(), Failure> {
    let started = runtime.now();
    let mut signals = StopSignals::listen(false, &runtime)?;
    let dir = ClusterDir::create("flotilla-demo-").map_err(DemoError::Folder)?;
    eprintln!("demo: starting a namesrv and {REPLICAS} brokers in {}", dir.path().display());
    let result = match run_in(&arguments, dir.path(), &mut signals, &runtime).await {
        Ok(mut evidence) => {
            evidence.total = runtime.now() - started;
            let report = runtime.blocking(|| evidence.into_report()).await;
            print_report(&report, arguments.json);
            if report.is_good() { Ok(()) } else { Err(DemoError::BrokenPromise(Box::new(report))) }
        }
        Err(error) => Err(error),
    };
    let keep = arguments.keep || result.as_ref().is_err_and(|error| !matches!(error, DemoError::Interrupted(_)));
    if keep {
        eprintln!("demo: data and logs are kept in {}", kept(dir).display());
    }
    Ok(result?)
}

fn kept(dir: ClusterDir) -> PathBuf {
    dir.keep()
}

fn print_report(report: &DemoReport, json: bool) {
    if json {
        eprint!("{report}");
        output::line(serde_json::to_string(report).expect("numbers and strings become JSON"));
    } else {
        output::line(report.to_string().trim_end());
    }
}

/// Runs the demo and stops its processes, also when a signal ends it early.
async fn run_in(
    arguments: &DemoArguments,
    dir: &Path,
    signals: &mut StopSignals,
    runtime: &Runtime,
) -> Result<Evidence, DemoError> {
    let config = LocalClusterConfig {
        program: std::env::current_exe().map_err(DemoError::NoProgram)?,
        cluster: "demo",
        dir: dir.to_owned(),
        replicas: REPLICAS,
        segment_bytes: SEGMENT_BYTES,
        data_quota_bytes: DATA_QUOTA_BYTES,
        log_level: server_log_level(),
        has_links: false,
    };
    let mut cluster = match select(LocalCluster::start(config, runtime.clone()), signals.next()).await {
        Either::Left(cluster) => cluster?,
        Either::Right(signal) => return Err(DemoError::Interrupted(signal)),
    };
    let result = match select(run_on(arguments, &mut cluster, runtime), signals.next()).await {
        Either::Left(result) => result,
        Either::Right(signal) => Err(DemoError::Interrupted(signal)),
    };
    cluster.end().await?;
    result
}

async fn run_on(
    arguments: &DemoArguments,
    cluster: &mut LocalCluster,
    runtime: &Runtime,
) -> Result<Evidence, DemoError> {
    let connector = TonicConnector::new(runtime.clone());
    let view = ClusterView::new(&cluster.client_addresses(), &connector, runtime);
    let first_leader = view.await_leader(0, FIRST_LEADER_TIMEOUT).await?;
    let client = Client::tonic(ClientConfig::of_namesrv([cluster.namesrv_address()]))?;
    prepare(&client).await?;
    let faults = arguments.faults();
    let pacer = Pacer::new(arguments.messages, faults.len() as u64, arguments.rate, runtime.clone());
    let tally = Arc::new(Tally::new(arguments.messages, pacer, runtime.clone()));
    eprintln!(
        "demo: broker {} leads; sending {} messages of {} bytes, {} on the way",
        first_leader.node,
        format_count(arguments.messages),
        arguments.size,
        text_of(&faults)
    );
    let run = Run { arguments, faults, view, client, tally, first_leader, runtime };
    run.watched(cluster).await
}

/// "3 leaders' faults (2 × killed, 1 × handed over)".
fn text_of(faults: &[FaultKind]) -> String {
    let of_a_kind = faults.chunk_by(|one, next| one == next).map(|same| format!("{} × {}", same.len(), same[0]));
    match faults.len() {
        0 => "no fault".to_owned(),
        count => format!("{count} leaders' faults ({})", of_a_kind.collect::<Vec<_>>().join(", ")),
    }
}

async fn prepare(client: &Client) -> Result<(), DemoError> {
    let admin = client.admin();
    admin.create_topic(&TopicSpec::new(topic(), QUEUES)).await.map_err(DemoError::Prepare)?;
    admin.create_group(&GroupSpec::new(group())).await.map_err(DemoError::Prepare)?;
    Ok(())
}

fn topic() -> TopicName {
    TopicName::try_from(TOPIC).expect("the name is a constant and legal")
}

fn group() -> GroupName {
    GroupName::try_from(GROUP).expect("the name is a constant and legal")
}

/// A run on a cluster that stands.
struct Run<'a> {
    arguments: &'a DemoArguments,
    faults: Vec<FaultKind>,
    view: ClusterView,
    client: Client,
    tally: Arc<Tally>,
    first_leader: Leader,
    runtime: &'a Runtime,
}

impl Run<'_> {
    /// The work beside its progress display and its stall guard.
    async fn watched(&self, cluster: &mut LocalCluster) -> Result<Evidence, DemoError> {
        let progress = std::cell::RefCell::new(Progress::start("acked", Some(self.arguments.messages), self.runtime));
        let work = self.work(cluster, |text| progress.borrow().event(&format!("demo: {text}")));
        let watch = async {
            loop {
                self.runtime.sleep(PROGRESS_INTERVAL).await;
                let tally = &self.tally;
                progress.borrow_mut().update(tally.acked(), &format!("received {}", format_count(tally.received())));
                if tally.is_sending_done() && tally.quiet_for() > LOST_TIMEOUT {
                    tally.set_stop_receiving();
                }
                if !tally.is_sending_done() && tally.quiet_for() > STALL_TIMEOUT {
                    let (acked, messages) = (tally.acked(), tally.messages);
                    return DemoError::Stalled { waited: STALL_TIMEOUT, acked, messages };
                }
            }
        };
        match select(work, watch).await {
            Either::Left(evidence) => evidence,
            Either::Right(error) => Err(error),
        }
    }

    async fn work(&self, cluster: &mut LocalCluster, tell: impl FnMut(&str)) -> Result<Evidence, DemoError> {
        let started = self.runtime.now();
        let receivers = self.start_receivers()?;
        let senders = self.start_senders()?;
        let sending = async {
            let mut sent = Vec::new();
            for sender in senders {
                sent.push(
                    sender.await.expect("a sender neither panics nor is cancelled").map_err(DemoError::Rejected)?,
                );
            }
            self.tally.set_sending_done();
            Ok::<_, DemoError>((sent, self.runtime.now() - started))
        };
        let (view, admin, tally, runtime) = (&self.view, self.client.admin(), &*self.tally, self.runtime);
        let injector = Injector { cluster: &mut *cluster, view, admin, tally, runtime, tell };
        let hurting = async { Ok::<_, DemoError>(injector.inject(&self.faults).await?) };
        let ((sent, sending), faults) = futures::future::try_join(sending, hurting).await?;
        let mut received = Vec::new();
        for receiver in receivers {
            received.push(receiver.await.expect("a receiver neither panics nor is cancelled"));
        }
        cluster.check_alive()?;
        let last_leader = self.view.await_leader(0, FIRST_LEADER_TIMEOUT).await?;
        let dumps = self.view.settled(SETTLE_TIMEOUT).await;
        Ok(Evidence {
            size: self.arguments.size,
            sent,
            received,
            idle_until: self.tally.pacer.idle_until(),
            faults,
            first_term: self.first_leader.term,
            last_term: last_leader.term,
            disagreements: self.view.disagreements(&dumps),
            dumps,
            sending,
            total: Duration::ZERO,
        })
    }

    fn start_senders(&self) -> Result<Vec<Task<Result<Sent, SendError>>>, DemoError> {
        let producer = Arc::new(self.client.producer(ProducerConfig::default())?);
        let size = usize::try_from(self.arguments.size).expect("the size was limited when parsed");
        let start = |number| {
            let name = format!("sender-{number}");
            self.runtime.spawn("sender", send_in_turn(name, self.tally.clone(), producer.clone(), topic(), size))
        };
        Ok((1..=SENDERS).map(start).collect())
    }

    fn start_receivers(&self) -> Result<Vec<Task<Received>>, DemoError> {
        (1..=RECEIVERS)
            .map(|number| {
                let config = SimpleConsumerConfig {
                    await_duration: RECEIVE_WAIT,
                    ..SimpleConsumerConfig::new(group(), topic())
                };
                let consumer = Arc::new(self.client.simple_consumer(config)?);
                let name = format!("receiver-{number}");
                Ok(self.runtime.spawn("receiver", receive_until_drained(name, self.tally.clone(), consumer)))
            })
            .collect()
    }
}
