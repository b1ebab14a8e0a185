//! A whole replica except its sockets: wires the parts together, owns their tasks, and takes them down again.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use flotilla_message::{GroupName, QueueId, TopicName};
use flotilla_metrics::Source;
use flotilla_proto::client::Connector;
use flotilla_proto::{Admin, Messaging, Peer};
use flotilla_raft_log::{Disk, GroupMembers, NodeId, ReplicatedLog, Transport};
use flotilla_runtime::{Either, Runtime, Task, select};
use flotilla_store::key_index::KeyIndex;
use flotilla_store::{ApplyObserver, StoreReader};
use tokio::sync::Notify;

use crate::admin::backup::Backups;
use crate::admin::key_indexer::{self, GrownQueues};
use crate::admin::service::AdminService;
use crate::cluster::view::{self, ClusterView};
use crate::config::BrokerConfig;
use crate::consume::lanes::Lanes;
use crate::consume::renewal::{Renewals, renew_deliveries};
use crate::duty::alarms::Alarms;
use crate::duty::{self, DutyNews};
use crate::edge::clients::Clients;
use crate::edge::front::Front;
use crate::edge::quotas::Quotas;
use crate::edge::route::RoutePlan;
use crate::edge::unread::UnreadAnswers;
use crate::failure::Failure;
use crate::lead::budget::Budget;
use crate::lead::fitness::Fitness;
use crate::lead::forwarder::Forwarder;
use crate::lead::hand_over::hand_over;
use crate::lead::leadership::{Leadership, Place};
use crate::lead::proposer::{Log, Proposer, TermClock};
use crate::lead::read_mark::ReadMarks;
use crate::metrics::{Counters, HandOverCause, ReplicaRead, ReplicaSource};
use crate::peer::book::PeerBook;
use crate::peer::service::PeerService;
use crate::peer::transport::PeerTransport;
use crate::produce::send::QueuePicker;
use crate::registration::{self, OwnRow};
use crate::replica::Replica;
use crate::start_error::StartError;

/// How often silent clients are looked for.
const EXPIRY_SCAN: Duration = Duration::from_secs(10);
/// How often the membership is looked at.
const MEMBERS_LOOK: Duration = Duration::from_millis(100);
/// The most that handing over leadership may take at shutdown.
const HAND_OVER_MAX: Duration = Duration::from_secs(2);

/// A running replica without sockets; the simulation starts this.
///
/// Dropping it stops its own tasks at once; [`Node::shutdown`] is the friendly way.
pub struct Node {
    replica: Arc<Replica>,
    connector: Arc<dyn Connector>,
    tasks: Vec<Task<()>>,
}

/// Listens to the store: wakes polls, tells of a changed catalog and of failure.
struct Listener {
    lanes: Arc<Lanes>,
    catalog: Arc<Notify>,
    duties: Arc<DutyNews>,
    failure: Arc<Failure>,
    clock: Arc<TermClock>,
    grown: Arc<GrownQueues>,
}

impl ApplyObserver for Listener {
    fn queue_grew(&self, topic: &TopicName, queue: QueueId) {
        self.grown.note(topic, queue);
        self.lanes.topic_news(topic);
    }

    fn group_changed(&self, group: &GroupName, topic: &TopicName) {
        self.lanes.group_news(group, topic);
    }

    fn applied(&self, _index: u64) {}

    fn stamped(&self, log_time_ms: u64) {
        self.clock.saw(log_time_ms);
    }

    fn replaced(&self) {
        self.grown.note_all();
    }

    fn catalog_changed(&self) {
        self.catalog.notify_one();
    }

    fn timers_changed(&self) {
        self.duties.tell();
    }

    fn trimmed(&self, _below: u64) {
        self.duties.trims.notify_one();
    }

    fn failed(&self, reason: &str) {
        self.failure.set(reason.to_owned());
    }
}

impl Node {
    /// Opens log and store in `config.data_dir` and takes part in the group.
    ///
    /// # Errors
    /// If the settings are not usable, or log or store do not open; nothing is running then.
    pub async fn start(
        config: BrokerConfig,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        connector: Arc<dyn Connector>,
    ) -> Result<Node, StartError> {
        let peers = Arc::new(PeerBook::new(&config, connector.clone()));
        let transport = Arc::new(PeerTransport::new(&config, peers.clone()));
        Node::start_between(config, runtime, disk, (peers, transport), connector).await
    }

    /// As [`Node::start`], with another way for the log to reach the other replicas: simulations have theirs.
    ///
    /// # Errors
    /// As [`Node::start`].
    pub async fn start_over(
        config: BrokerConfig,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        connector: Arc<dyn Connector>,
    ) -> Result<Node, StartError> {
        let peers = Arc::new(PeerBook::new(&config, connector.clone()));
        Node::start_between(config, runtime, disk, (peers, transport), connector).await
    }

    async fn start_between(
        config: BrokerConfig,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        (peers, transport): (Arc<PeerBook>, Arc<dyn Transport>),
        connector: Arc<dyn Connector>,
    ) -> Result<Node, StartError> {
        config.validate()?;
        let lanes = Arc::new(Lanes::default());
        let catalog = Arc::new(Notify::new());
        let duty_news = Arc::new(DutyNews::default());
        let failure = Arc::new(Failure::default());
        let clock = Arc::new(TermClock::new(runtime.clone()));
        let grown = Arc::new(GrownQueues::default());
        let listener = Listener {
            lanes: lanes.clone(),
            catalog: catalog.clone(),
            duties: duty_news.clone(),
            failure: failure.clone(),
            clock: clock.clone(),
            grown: grown.clone(),
        };
        let store_dir = config.data_dir.join("store");
        let (machine, store) = flotilla_store::open(disk.clone(), store_dir.clone(), Arc::new(listener))
            .map_err(|error| StartError::Store { dir: store_dir.display().to_string(), reason: error.to_string() })?;
        let machine = machine.with_level_max(config.feature_level_max);
        let keys = key_indexer::open(&disk, &config.data_dir)?;
        let log = ReplicatedLog::open(config.log_config(), runtime.clone(), disk, transport, machine).await?;
        peers.update(&log.members());
        let cluster = ClusterView::new(&config, runtime.clone(), connector.clone());
        let (replica, proposer) =
            assemble(config, runtime, log, (store, keys, grown), clock, lanes, failure, (peers, cluster));
        let mut tasks = vec![proposer];
        tasks.extend(duties(&replica, catalog, &*connector));
        tasks.extend(duty::start(&replica, &duty_news));
        tracing::info!(
            cluster = replica.config.cluster,
            group = replica.config.group,
            node = replica.node.0,
            applied = replica.store.applied(),
            "replica started"
        );
        Ok(Node { replica, connector, tasks })
    }

    /// What clients call.
    pub fn messaging(&self) -> Arc<dyn Messaging> {
        Arc::new(Front::new(self.replica.clone()))
    }

    /// What operators call.
    pub fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(AdminService::new(self.replica.clone()))
    }

    /// What the other replicas call.
    pub fn peer(&self) -> Arc<dyn Peer> {
        Arc::new(PeerService::new(self.replica.clone()))
    }

    /// What monitoring asks.
    pub fn metrics(&self) -> Arc<dyn Source> {
        Arc::new(ReplicaSource::new(&self.replica))
    }

    /// The replicated log.
    pub fn log(&self) -> &Log {
        &self.replica.log
    }

    /// The applied state.
    pub fn store(&self) -> &StoreReader {
        &self.replica.store
    }

    /// The settings it runs with.
    pub fn config(&self) -> &BrokerConfig {
        &self.replica.config
    }

    /// The clients known here.
    pub fn clients(&self) -> &Clients {
        &self.replica.clients
    }

    /// Calls, polls among them, and their bytes, that wait for a leader at this moment.
    pub fn parked(&self) -> (u64, u64) {
        let ((calls, bytes), (polls, poll_bytes)) = (self.replica.parking.used(), self.replica.poll_parking.used());
        (calls + polls, bytes + poll_bytes)
    }

    /// Pulls at this replica while it followed: those that it answered, and those that it passed on.
    pub fn replica_reads(&self) -> (u64, u64) {
        let of = |what| self.replica.counters.replica_reads(what);
        (of(ReplicaRead::Served), of(ReplicaRead::PassedOn))
    }

    /// Waits until this replica knows of a leader that takes writes; `None` if there was none in time.
    pub async fn wait_for_leader(&self, timeout: Duration) -> Option<NodeId> {
        let deadline = self.replica.runtime.now() + timeout;
        match self.replica.leadership.wait_for_leader(deadline).await? {
            Place::Local(_) => Some(self.replica.node),
            Place::Remote(leader) => Some(leader),
            Place::Nobody => None,
        }
    }

    /// Resolves, with the reason, when this replica must not go on: a failed write or sync, corruption, a task that
    /// panicked. The process has to exit at once, so that its sockets close and the others elect a leader.
    pub async fn failed(&self) -> String {
        match select(self.replica.failure.wait(), self.replica.log.failed()).await {
            Either::Left(reason) | Either::Right(reason) => reason,
        }
    }

    /// Hands leadership over, takes the row away from the namesrvs, and stops, all within about `timeout`.
    pub async fn shutdown(self, timeout: Duration) {
        self.hand_over(timeout / 2).await;
        self.stop(timeout / 2).await;
    }

    /// Hands leadership to another replica, if this one leads and there is one.
    pub async fn hand_over(&self, timeout: Duration) {
        let replica = &self.replica;
        if replica.leadership.local_term().is_none() || replica.log.status().members.len() < 2 {
            return;
        }
        // Told and counted there; if it fails the others will elect.
        let _ = hand_over(replica, None, timeout.min(HAND_OVER_MAX), HandOverCause::Stop).await;
    }

    /// Takes the row away from the namesrvs and stops.
    pub async fn stop(mut self, timeout: Duration) {
        let (replica, tasks) = (self.replica.clone(), std::mem::take(&mut self.tasks));
        let started = replica.runtime.now();
        for task in &tasks {
            task.abort();
        }
        registration::unregister(&replica, &*self.connector, timeout / 2).await;
        replica.clients.close_all();
        // Half of what is left: the log needs some, too.
        let left = timeout.saturating_sub(replica.runtime.now() - started);
        replica.backups.stop(&replica.runtime, left / 2).await;
        let left = timeout.saturating_sub(replica.runtime.now() - started);
        replica.log.shutdown(left).await;
        for task in tasks {
            // Aborted above: this is its end, whatever it was.
            let _ = task.await;
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Their tasks hold the replica, which holds them: cut here.
        self.replica.clients.close_all();
        self.replica.backups.abandon();
    }
}

/// Puts the shared parts together; the second is the proposer's task.
#[allow(clippy::too_many_arguments, reason = "called once, with the parts it puts together")]
fn assemble(
    config: BrokerConfig,
    runtime: Runtime,
    log: Log,
    (store, keys, grown_queues): (StoreReader, Arc<KeyIndex>, Arc<GrownQueues>),
    clock: Arc<TermClock>,
    lanes: Arc<Lanes>,
    failure: Arc<Failure>,
    (peers, cluster): (Arc<PeerBook>, ClusterView),
) -> (Arc<Replica>, Task<()>) {
    let counters = Arc::new(Counters::new(config.metrics_labels_max));
    let suspected = log.clone();
    let suspect = Box::new(move |node| suspected.suspect(node));
    let (proposer, batcher) = Proposer::new(
        log.clone(),
        store.clone(),
        clock.clone(),
        config.queued_commands_max,
        config.proposals_in_flight_max,
        counters.clone(),
    );
    let task = failure.guard(&runtime, "proposer", batcher);
    let replica = Replica {
        grown_queues,
        node: NodeId(config.node),
        leadership: Leadership::new(runtime.clone()),
        parking: Budget::new(config.parked_calls_max, config.parked_bytes_max),
        poll_parking: Budget::new(config.parked_polls_max, config.parked_bytes_max),
        forwarder: Forwarder::new(
            runtime.clone(),
            peers.clone(),
            config.forwarded_calls_max,
            config.forwarded_polls_max,
            suspect,
        ),
        peers,
        cluster,
        is_leader_silent: AtomicBool::new(false),
        read_marks: ReadMarks::default(),
        quotas: Quotas::new(&config),
        unread: UnreadAnswers::new(config.unread_answer_bytes_max, counters.clone()),
        queue_picker: QueuePicker::new(),
        queue_moves: Arc::default(),
        routes: RwLock::new(Arc::new(RoutePlan::new(&config, &config.client_addresses()))),
        clients: Clients::new(config.clients_max, Duration::from_millis(config.client_expiry_ms)),
        client_address: config.client_address(),
        runtime,
        log,
        store,
        keys,
        clock,
        proposer,
        lanes,
        counters,
        alarms: Alarms::default(),
        fitness: Fitness::default(),
        lag: Mutex::default(),
        renewals: Renewals::default(),
        backups: Backups::default(),
        failure,
        config,
    };
    (Arc::new(replica), task)
}

/// Starts what runs beside the calls.
fn duties(replica: &Arc<Replica>, catalog: Arc<Notify>, connector: &dyn Connector) -> Vec<Task<()>> {
    let (runtime, failure) = (&replica.runtime, &replica.failure);
    let mut tasks = Vec::new();
    let watched = replica.clone();
    tasks.push(failure.guard(runtime, "leadership", async move { watch_leadership(&watched).await }));
    let scanned = replica.clone();
    let (watched, news) = (replica.clone(), catalog.clone());
    tasks.push(failure.guard(runtime, "members", async move { watch_members(&watched, &news).await }));
    tasks.push(failure.guard(runtime, "client-expiry", async move { expire_clients(&scanned).await }));
    tasks.push(failure.guard(runtime, "renewal", renew_deliveries(replica.clone())));
    tasks.push(failure.guard(runtime, "key-index", key_indexer::index_keys(replica.clone())));
    if !replica.config.namesrv.is_empty() {
        let looking = replica.clone();
        tasks.push(failure.guard(runtime, "cluster-view", view::watch(looking)));
        let row = Arc::new(OwnRow::new(replica));
        let keeping = registration::keep_row(replica.clone(), row.clone(), catalog);
        tasks.push(failure.guard(runtime, "own-row", keeping));
        for address in &replica.config.namesrv {
            let namesrv = connector.namesrv(address);
            let stream = registration::register(replica.clone(), row.clone(), address.clone(), namesrv);
            tasks.push(failure.guard(runtime, "registration", stream));
        }
    }
    tasks
}

async fn watch_leadership(replica: &Replica) {
    loop {
        let seen = replica.log.status();
        if replica.leadership.update(&seen) {
            let leader = seen.leader.map_or(0, |leader| leader.0);
            replica.counters.leader_changed(seen.can_write);
            tracing::info!(role = ?seen.role, term = seen.term.0, leader, can_write = seen.can_write, "leadership changed");
        }
        replica.log.status_changed(&seen).await;
    }
}

/// Has addresses, routes and the row follow the membership.
async fn watch_members(replica: &Replica, news: &Notify) {
    let mut known = GroupMembers::default();
    loop {
        let members = replica.log.members();
        if (members.index, members.is_joint) != (known.index, known.is_joint) {
            replica.peers.update(&members);
            let addresses = replica.client_addresses(&members);
            replica.set_routes(RoutePlan::new(&replica.config, &addresses));
            tracing::info!(
                index = ?members.index.map(|index| index.0), voters = ?members.voters, members = members.members.len(),
                "members of the group"
            );
            known = members;
            news.notify_one();
        }
        replica.runtime.sleep(MEMBERS_LOOK).await;
    }
}

async fn expire_clients(replica: &Replica) {
    loop {
        replica.runtime.sleep(EXPIRY_SCAN).await;
        let expired = replica.clients.expire(replica.runtime.now());
        if expired > 0 {
            tracing::debug!(expired, "silent clients forgotten");
        }
    }
}
