//! One run from the first process to the verdict.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation};
use flotilla_client::{AdminError, Client, ClientConfig, ConfigErrors, GroupSpec, TopicSpec};
use flotilla_message::{GroupName, MessageType, TopicName};
use flotilla_proto::client::TonicConnector;
use flotilla_runtime::Runtime;
use futures::future::{join, join_all};

use crate::abilities::Abilities;
use crate::cluster::{ClusterView, ClusterViewError, LocalCluster, LocalClusterConfig, LocalClusterError, Rig};
use crate::conductor::{conduct, revive_fallen};
use crate::drain::{DrainError, drain};
use crate::errands::{self, Errands, ErrandsConfig};
use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::judge::judge;
use crate::nemesis::{Field, LEADER_TIMEOUT, Needed};
use crate::network_mode::NetworkMode;
use crate::observer::Observers;
use crate::plan::{Plan, QUIET_END_MS};
use crate::report::Report;
use crate::run_dir::{RunDir, RunDirError};
use crate::run_record::{RunRecord, Settings, Skipped};
use crate::workload::{CallCounts, Workload, WorkloadConfig};

pub(crate) const TOPIC: &str = "chaos";
const GROUP: &str = "chaos-readers";
/// The checkers know FIFO topics by the end of their names.
const FIFO_TOPIC: &str = "chaos-fifo";
const FIFO_GROUP: &str = "chaos-fifo-readers";
const QUEUES: u32 = 6;
/// Small, so that a minute's load fills several segments.
const SEGMENT_BYTES: u64 = 4 << 20;
/// What a replica's own file system holds at the least, and for each message sent: the log is kept whole.
const VOLUME_BYTES_MIN: u64 = 256 << 20;
const VOLUME_BYTES_PER_MESSAGE: u64 = 2_048;
const DATA_QUOTA_BYTES: u64 = 64 << 30;
/// All replicas must have applied the same after so long without traffic.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(60);
/// Consumers are given up after so long without a new message: longer than an unacknowledged delivery is hidden.
const CONSUME_PATIENCE: Duration = Duration::from_secs(30);

/// Why a run has no verdict.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// Its files cannot be used.
    #[error(transparent)]
    Dir(#[from] RunDirError),
    /// The history cannot be written.
    #[error("the history cannot be written: {0}")]
    History(#[source] std::io::Error),
    /// The cluster did not start or did not end.
    #[error(transparent)]
    Cluster(#[from] LocalClusterError),
    /// The cluster never had a leader.
    #[error(transparent)]
    View(#[from] ClusterViewError),
    /// Our settings are not good.
    #[error(transparent)]
    Client(#[from] ConfigErrors),
    /// The cluster takes no topic.
    #[error("topic {TOPIC} cannot be prepared: {0}")]
    Prepare(#[source] AdminError),
}

/// Starts a cluster, loads and hurts it by the plan, heals it, and judges what was seen. Tells on stderr what it does.
///
/// # Errors
/// [`RunError`] if there is nothing to judge; a broken promise is no error but a report.
pub async fn run(
    settings: &Settings,
    plan: &Plan,
    skipped: &[Skipped],
    abilities: &Abilities,
    program: PathBuf,
    dir: &RunDir,
    runtime: &Runtime,
) -> Result<Report, RunError> {
    let begun = runtime.now();
    dir.write_plan(plan)?;
    let history = HistoryFile::create(&dir.history_path(), runtime).map_err(RunError::History)?;
    let config = LocalClusterConfig {
        program,
        cluster: "chaos",
        dir: dir.cluster_path(),
        replicas: u32::try_from(settings.replicas).expect("the number of replicas was limited when parsed"),
        segment_bytes: SEGMENT_BYTES,
        data_quota_bytes: DATA_QUOTA_BYTES,
        log_level: "info,openraft=warn".to_owned(),
        has_links: plan.needs_links() && settings.network == NetworkMode::Proxies,
    };
    // The load, and its parts with what these write beside messages.
    let messages = settings.rate * 2 * plan.duration_ms / 1_000;
    // Where power losses meet a page cache that counts, a machine must be known to have booted since.
    let needs_boots = plan.needs_volumes() && !settings.broker.is_empty();
    let rig = Rig {
        shim: abilities.shim.clone().ok().filter(|_| plan.needs_shim() || needs_boots),
        settings: settings.broker.clone(),
        volume_bytes: plan.needs_volumes().then_some(VOLUME_BYTES_MIN + messages * VOLUME_BYTES_PER_MESSAGE),
        has_namespaces: settings.network == NetworkMode::Namespaces,
    };
    let cluster = LocalCluster::start_rigged(config, &rig, runtime.clone()).await?;
    let mut record = hurt(settings, plan, cluster, Arc::new(history), runtime).await?;
    record.skipped = skipped.to_vec();
    record.total_ms = u64::try_from((runtime.now() - begun).as_millis()).unwrap_or(u64::MAX);
    dir.write_record(&record)?;
    let stored = dir.clone();
    runtime.blocking(move || rejudge(&stored)).await.map_err(RunError::Dir)
}

async fn hurt(
    settings: &Settings,
    plan: &Plan,
    cluster: LocalCluster,
    history: Arc<HistoryFile>,
    runtime: &Runtime,
) -> Result<RunRecord, RunError> {
    let incidents = Arc::new(Incidents::default());
    let connector = TonicConnector::new(runtime.clone());
    let addresses = cluster.client_addresses();
    let view = ClusterView::new(&addresses, &connector, runtime);
    view.await_leader(0, LEADER_TIMEOUT).await?;
    let client = || Client::tonic(ClientConfig::of_namesrv([cluster.namesrv_address()]));
    let (sending, receiving, looking) = (client()?, client()?, client()?);
    let topic = TopicName::try_from(TOPIC).expect("the name is a constant and legal");
    let group = GroupName::try_from(GROUP).expect("the name is a constant and legal");
    let admin = looking.admin();
    let levels = settings.levels.clone();
    let spec = |topic: &TopicName| TopicSpec {
        ack: Some(levels.lowest()),
        flush: Some(levels.flush),
        ..TopicSpec::new(topic.clone(), QUEUES)
    };
    let fifo_topic = TopicName::try_from(FIFO_TOPIC).expect("the name is a constant and legal");
    let fifo_group = GroupName::try_from(FIFO_GROUP).expect("the name is a constant and legal");
    let needed = Needed {
        topics: vec![spec(&topic), TopicSpec { message_type: MessageType::Fifo, ..spec(&fifo_topic) }],
        groups: vec![GroupSpec::new(group.clone()), GroupSpec { order: true, ..GroupSpec::new(fifo_group.clone()) }],
    };
    needed.make(&admin).await.map_err(RunError::Prepare)?;
    // What they come to is judged as if nothing that was acknowledged could be lost.
    let has_errands = settings.broker.is_empty() && !plan.loses_by_right();
    if has_errands {
        errands::prepare(&admin, &levels).await.map_err(RunError::Prepare)?;
    }

    let observers = Observers::start(&addresses, &connector, &history, runtime);
    let mut field = Field::new(cluster, view, looking.clone(), runtime.clone());
    field.needed = needed;
    let started = runtime.now();
    let (rate, seed) = (settings.rate, settings.seed);
    let (topic_of_load, fifo_topic_of_load) = (topic.clone(), fifo_topic.clone());
    let errands = ErrandsConfig { rate, seed, topic: topic.clone() };
    let start = || Errands::start(errands, &addresses, &connector, &sending, history.clone(), runtime);
    let mut errands = has_errands.then(start).transpose()?;
    let config =
        WorkloadConfig { topic: topic_of_load, group, fifo_topic: fifo_topic_of_load, fifo_group, levels, rate, seed };
    let mut workload = Workload::start(config, &sending, &receiving, history.clone(), incidents.clone(), runtime)?;
    eprintln!("chaos: {} replicas are up; load for {} ms", settings.replicas, plan.duration_ms);
    let faults = conduct(plan, started, &mut field, &history, &incidents).await;
    // Healing may have taken longer than planned: what the last fault left behind shows in what is sent after it.
    let quiet = runtime.now() + Duration::from_millis(QUIET_END_MS);
    let until = quiet.max(started + Duration::from_millis(plan.duration_ms));
    let stop_errands = async {
        if let Some(errands) = &mut errands {
            errands.stop(until).await;
        }
    };
    join(workload.stop_sending(until), stop_errands).await;

    eprintln!("chaos: {} messages acknowledged; healing, and reading everything", workload.acked());
    if let Err(error) = field.heal_all().await {
        incidents.add(format!("the cluster cannot be healed at the end: {error}"));
    }
    if let Err(error) = field.view.await_leader(0, LEADER_TIMEOUT).await {
        incidents.add(format!("after everything was healed: {error}"));
    }
    let calls: CallCounts = workload.end(CONSUME_PATIENCE).await;
    let mut topics = vec![topic, fifo_topic];
    if let Some(errands) = errands {
        errands.end(CONSUME_PATIENCE, &admin, &incidents).await;
        topics.extend(errands::topics());
    }
    let lets_go = settings.broker.iter().any(|setting| setting.trim_start().starts_with("retention_"));
    let looks = topics.iter().map(|topic| drain(&looking, topic, lets_go, &history, &incidents, runtime));
    for look in join_all(looks).await {
        if let Err(DrainError::Client(error)) = tell(look, &incidents) {
            return Err(error.into());
        }
    }
    for dump in field.view.settled(SETTLE_TIMEOUT).await {
        history.record("harness", EventKind::Ok, Operation::Dump(dump));
    }
    let statuses = field.view.statuses().await;
    let kept_aside: Option<u64> =
        statuses.iter().map(|(_, status)| status.as_ref().ok().map(|status| status.lost_messages)).sum();
    revive_fallen(&mut field, &[], &incidents).await;
    drop(observers);
    let folders: Vec<PathBuf> = field.cluster.nodes().iter().map(|node| field.cluster.data(*node).to_owned()).collect();
    let data_bytes = folders.iter().map(|folder| bytes_below(folder)).max().unwrap_or_default();
    history.check().map_err(RunError::History)?;
    field.cluster.end().await?;
    Ok(RunRecord {
        settings: settings.clone(),
        faults,
        skipped: Vec::new(),
        incidents: incidents.take(),
        calls,
        kept_aside,
        data_bytes,
        load_started_ns: history.ns_of(started),
        load_ended_ns: history.ns_of(until),
        total_ms: 0,
    })
}

/// What the files below a folder take of the disk; those that cannot be looked at, nothing.
fn bytes_below(folder: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(folder) else { return 0 };
    let bytes_of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(bytes_of).sum()
}

/// A cluster that cannot be read at the end is a finding.
fn tell(result: Result<(), DrainError>, incidents: &Incidents) -> Result<(), DrainError> {
    if let Err(DrainError::Prepare(error)) = &result {
        incidents.add(format!("the last look was refused: {error}"));
    }
    result
}

/// Judges a stored run and stores the account beside it.
///
/// # Errors
/// If its files cannot be used.
pub fn rejudge(dir: &RunDir) -> Result<Report, RunDirError> {
    let events = dir.read_history()?;
    let record = dir.read_record()?;
    let report = judge(&events, &record).map_err(|source| dir.history_error(source))?;
    dir.write_report(&report)?;
    dir.write_page(&crate::html::page(&events, &report).map_err(|source| dir.history_error(source))?)?;
    Ok(report)
}

/// Where a run's files go unless told otherwise.
pub fn default_dir(seed: u64) -> PathBuf {
    Path::new("target/chaos").join(seed.to_string())
}
