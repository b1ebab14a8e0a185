//! A replica's view of itself: computed on demand, and watched for the few changes that matter.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::{Either, Instant, Runtime, Task, select};
use openraft::ServerState;
use openraft::errors::Fatal;
use openraft::metrics::RaftMetrics;
use openraft::raft::TransferLeaderRequest;
use openraft_rt::watch::{Watch, WatchReceiver, WatchSender};

use crate::failure::Failure;
use crate::lease_clock::LeaseClock;
use crate::log_view::LogView;
use crate::raft::{FifoWatch, FifoWatchReceiver, FifoWatchSender, LogRaft, TypeConfig};
use crate::{DiskStatus, LogConfig, LogIndex, LogStatus, NodeId, Role, Term};

/// A waiter looks again after this time, whatever it was told: a change and its reversal may both have gone by.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

type Metrics = RaftMetrics<TypeConfig>;

/// Cheap handle.
#[derive(Clone)]
pub(crate) struct StatusWatch {
    source: Source,
    changes: FifoWatchReceiver<Key>,
    runtime: Runtime,
    _task: Arc<Task<()>>,
}

/// What [`crate::ReplicatedLog::status_changed`] waits for.
type Key = (Role, Term, Option<NodeId>, bool);

fn key(status: &LogStatus) -> Key {
    (status.role, status.term, status.leader, status.can_write)
}

/// openraft's metrics and what is needed to read them.
#[derive(Clone)]
struct Source {
    metrics: FifoWatchReceiver<Metrics>,
    runtime: Runtime,
    node: NodeId,
    lease: Duration,
    clock: LeaseClock,
    view: LogView,
    slow_sync: Duration,
}

impl Source {
    fn now(&self) -> LogStatus {
        let metrics = self.metrics.borrow_watched();
        let members: BTreeSet<NodeId> = metrics.membership_config.voter_ids().map(NodeId).collect();
        let role = match metrics.state {
            ServerState::Leader => Role::Leader,
            ServerState::Candidate => Role::Candidate,
            ServerState::Follower => Role::Follower,
            ServerState::Learner | ServerState::Shutdown => Role::Learner,
        };
        let has_lease = is_planted(Bug::ReadsWithoutLease)
            || members.iter().eq([&self.node])
            || self.runtime.now() < self.lease_end(&metrics);
        // An applied entry of this term implies that the first one is.
        let has_own = metrics.last_applied.is_some_and(|id| id.committed_leader_id().term == metrics.current_term);
        LogStatus {
            node: self.node,
            role,
            term: Term(metrics.current_term),
            leader: metrics.current_leader.map(NodeId),
            can_write: role == Role::Leader && has_lease && has_own,
            last: metrics.last_log_index.map(LogIndex),
            committed: metrics.local_committed.map(|id| LogIndex(id.index())),
            applied: metrics.last_applied.map(|id| LogIndex(id.index())),
            members,
            durable: self.view.durable_index(),
            disk: self.disk(),
        }
    }

    fn disk(&self) -> DiskStatus {
        let (sync_last, sync_max) = self.view.shared.flusher.sync_times();
        let is_full = self.view.shared.room.is_blocked();
        DiskStatus { sync_last, sync_max, is_slow: sync_max > self.slow_sync, is_full }
    }

    /// See [`LeaseClock::quorum_asked_at`].
    fn quorum_asked_at(&self, metrics: &Metrics) -> Option<Instant> {
        let voter_sets = metrics.membership_config.membership().get_joint_config();
        let voter_sets: Vec<BTreeSet<NodeId>> =
            voter_sets.iter().map(|voters| voters.iter().copied().map(NodeId).collect()).collect();
        self.clock.quorum_asked_at(self.node, Term(metrics.current_term), &voter_sets, self.runtime.now())
    }

    fn lease_end(&self, metrics: &Metrics) -> Instant {
        let asked_at = self.quorum_asked_at(metrics);
        // The core's own clock counts a late answer for more than it answers; see `LeaseClock`.
        let asked_at = asked_at.min(metrics.last_quorum_acked.map(|acked| acked.into_inner().0));
        asked_at.map_or(Instant::from_nanos(0), |asked_at| asked_at + self.lease)
    }
}

impl StatusWatch {
    /// Begins to watch. The end of the core is reported as a failure unless `is_stopping`.
    pub(crate) fn start(
        runtime: &Runtime,
        raft: &LogRaft,
        config: &LogConfig,
        view: LogView,
        clock: LeaseClock,
        is_stopping: Arc<AtomicBool>,
    ) -> StatusWatch {
        let failure = view.failure().clone();
        let source = Source {
            metrics: raft.metrics(),
            runtime: runtime.clone(),
            node: config.node,
            lease: Duration::from_millis(config.timing.election_timeout_ms_max),
            clock,
            view,
            slow_sync: Duration::from_millis(config.slow_sync_ms),
        };
        source.view.shared.flusher.set_slow_limit(source.slow_sync);
        let (sender, changes) = FifoWatch::channel(key(&source.now()));
        let watcher =
            Watcher { source: source.clone(), server: raft.server_metrics(), changes: sender, failure, is_stopping };
        let task = Arc::new(runtime.spawn("status-watch", watcher.run()));
        StatusWatch { source, changes, runtime: runtime.clone(), _task: task }
    }

    pub(crate) fn now(&self) -> LogStatus {
        self.source.now()
    }

    pub(crate) async fn changed(&self, seen: &LogStatus) {
        let mut changes = self.changes.clone();
        while key(&self.source.now()) == key(seen) {
            if let Ok(Err(_)) = self.runtime.timeout(LOOK_AGAIN, changes.changed()).await {
                // The core has ended and tells of nothing any more, without a pause.
                self.runtime.sleep(LOOK_AGAIN).await;
            }
        }
    }

    /// Waits until a quorum has answered, as followers of this leader in `term`, what it was asked at `since` or later. False
    /// once it is in a later term.
    pub(crate) async fn heard_since(&self, term: Term, since: Instant) -> bool {
        let mut changes = self.changes.clone();
        loop {
            let mut answered = std::pin::pin!(self.source.clock.news());
            answered.as_mut().enable();
            {
                let metrics = self.source.metrics.borrow_watched();
                if metrics.current_term > term.0 {
                    return false;
                }
                // Before the metrics know the term there is nothing to compare.
                if metrics.current_term == term.0 && self.source.quorum_asked_at(&metrics) >= Some(since) {
                    return true;
                }
            }
            if let Either::Right(Err(_)) = select(answered, changes.changed()).await {
                // The core has ended.
                return false;
            }
        }
    }

    /// The voters that follow, as far as this leader knows, the longest log first; of equal ones the lowest.
    pub(crate) fn followers_by_log(&self) -> Vec<NodeId> {
        let metrics = self.source.metrics.borrow_watched();
        let Some(replication) = metrics.replication.as_ref() else { return Vec::new() };
        let voters: BTreeSet<u64> = metrics.membership_config.voter_ids().collect();
        let followers =
            replication.iter().filter(|(node, _)| NodeId(**node) != self.source.node && voters.contains(node));
        let mut by_log: Vec<_> = followers
            .filter_map(|(node, matched)| matched.map(|matched| (std::cmp::Reverse(matched), *node)))
            .collect();
        by_log.sort();
        by_log.into_iter().map(|(_, node)| NodeId(node)).collect()
    }

    /// What this replica, if it leads, knows of the others.
    pub(crate) fn contacts(&self) -> Contacts {
        let now = self.runtime.now();
        let metrics = self.source.metrics.borrow_watched();
        let since = |at: Instant| now.saturating_since(at);
        let heard = metrics.heartbeat.as_ref();
        let silent_for = |node: &u64| heard?.get(node).copied().flatten().map(|at| since(at.into_inner().0));
        let peers = metrics.replication.iter().flatten().filter(|(node, _)| NodeId(**node) != self.source.node);
        let peers = peers.map(|(node, matched)| Contact {
            node: NodeId(*node),
            matched: matched.map(|id| LogIndex(id.index())),
            silent_for: silent_for(node),
        });
        Contacts {
            applied: metrics.last_applied.map(|id| LogIndex(id.index())),
            cluster_committed: metrics.cluster_committed.map(|id| LogIndex(id.index())),
            snapshot: metrics.snapshot.map(|id| LogIndex(id.index())),
            quorum_silent_for: metrics.last_quorum_acked.map(|at| since(at.into_inner().0)),
            peers: peers.collect(),
        }
    }

    /// A request as the leader would send it to make `target` campaign at once.
    pub(crate) fn transfer_request_to(&self, target: NodeId) -> TransferLeaderRequest<TypeConfig> {
        let metrics = self.source.metrics.borrow_watched();
        TransferLeaderRequest::new(metrics.vote, target.0, metrics.last_applied)
    }
}

/// What a leader knows of the others, with what the core tells beside it.
pub(crate) struct Contacts {
    pub(crate) applied: Option<LogIndex>,
    pub(crate) cluster_committed: Option<LogIndex>,
    pub(crate) snapshot: Option<LogIndex>,
    pub(crate) quorum_silent_for: Option<Duration>,
    pub(crate) peers: Vec<Contact>,
}

/// What a leader knows of one other replica.
pub(crate) struct Contact {
    pub(crate) node: NodeId,
    pub(crate) matched: Option<LogIndex>,
    pub(crate) silent_for: Option<Duration>,
}

/// The task behind the handle.
struct Watcher {
    source: Source,
    server: FifoWatchReceiver<openraft::metrics::RaftServerMetrics<TypeConfig>>,
    changes: FifoWatchSender<Key>,
    failure: Failure,
    is_stopping: Arc<AtomicBool>,
}

impl Watcher {
    async fn run(mut self) {
        let mut all = self.source.metrics.clone();
        loop {
            let status = self.source.now();
            self.changes.send_if_different(key(&status));
            let is_running = if status.role != Role::Leader {
                self.server.changed().await.is_ok()
            } else if !status.can_write {
                // Waiting for the first entry of the term, or for a quorum: any progress may be it.
                all.changed().await.is_ok()
            } else if status.members.len() == 1 {
                self.server.changed().await.is_ok()
            } else {
                // The lease moves on with every ack; it is enough to look when it would have ended.
                let lease_end = self.source.lease_end(&self.source.metrics.borrow_watched());
                let server = self.server.changed();
                match select(server, self.source.runtime.sleep_until(lease_end)).await {
                    flotilla_runtime::Either::Left(changed) => changed.is_ok(),
                    flotilla_runtime::Either::Right(()) => true,
                }
            };
            let is_running = is_running && self.catch_up(&mut all).await;
            let end = all.borrow_watched().running_state.clone().err();
            if !is_running || end.is_some() {
                return self.core_ended(end);
            }
        }
    }

    /// openraft tells its server metrics first and all metrics, which statuses are made of, a moment later. Waits for that
    /// moment; false if the core ended before.
    async fn catch_up(&self, all: &mut FifoWatchReceiver<Metrics>) -> bool {
        loop {
            {
                let (all, server) = (all.borrow_and_update(), self.server.borrow_watched());
                let same =
                    (all.state, all.vote, all.current_leader) == (server.state, server.vote, server.current_leader);
                if same || all.running_state.is_err() {
                    return true;
                }
            }
            if all.changed().await.is_err() {
                return false;
            }
        }
    }

    fn core_ended(&self, end: Option<Fatal<TypeConfig>>) {
        match end {
            Some(Fatal::Stopped) if self.is_stopping.load(Ordering::Acquire) => {}
            Some(fatal) => self.failure.report(format!("replication core stopped: {fatal}")),
            None => self.failure.report("replication core panicked"),
        }
        self.changes.send_if_different(key(&self.source.now()));
    }
}
