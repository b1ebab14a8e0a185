//! Opening a log: recovery, the core, and everything that works beside it.

use std::sync::Arc;
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Runtime};
use openraft::Raft;

use super::Replica;
use crate::ack::{AckTracker, LagLimits};
use crate::checkpoint_store::CheckpointStore;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::ids::next_index;
use crate::lease_clock::LeaseClock;
use crate::log_files::LogFiles;
use crate::log_view::LogView;
use crate::lost_tail::{AcknowledgedEarly, TailKeeper};
use crate::raft::{
    Admission, ErasedMachine, Fence, Founding, GoneWatch, LeftBehind, LogRaft, LogStore, Machine, NetworkFactory,
    Recovery, SnapshotInbox, StreamResets, core_config,
};
use crate::recovery::open_log;
use crate::recovery_order::carry_out;
use crate::recovery_report::{PhaseWatch, Seen};
use crate::repair::{LeadGuard, Steward, close_off_found};
use crate::scrub::Scrub;
use crate::status_watch::StatusWatch;
use crate::stopper::Stopper;
use crate::vitals::{Rounds, Vitals};
use crate::{FlushMode, LogConfig, LogIndex, OpenError, Term, Transport};

impl Replica {
    /// See [`crate::ReplicatedLog::open`].
    pub(crate) fn open(
        config: LogConfig,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        machine: Box<dyn ErasedMachine>,
        acknowledged_early: AcknowledgedEarly,
    ) -> BoxFuture<'static, Result<Replica, OpenError>> {
        Box::pin(async move {
            let problems = config.problems();
            if !problems.is_empty() {
                return Err(OpenError::Config(problems));
            }
            let mut core_config = core_config(&config)?;
            let failure = Failure::default();
            let (mut files, checkpoints, machine, machine_gone, keeper, vitals, steward) = {
                let (config, disk, runtime, failure) = (config.clone(), disk.clone(), runtime.clone(), failure.clone());
                let (work, transport) = (runtime.clone(), transport.clone());
                work.blocking(move || {
                    let files = open_log(&config, disk.clone(), &runtime, failure)?;
                    let view = files.view();
                    let keeper = TailKeeper::open(config.node, disk.clone(), config.dir.clone(), acknowledged_early);
                    let (checkpoints, newest) =
                        CheckpointStore::open(disk.clone(), config.dir.clone(), runtime.clone(), view.clone())?;
                    let from = newest.as_ref().map_or(LogIndex(0), |checkpoint| checkpoint.last.index.next());
                    let begun = close_off_found(&*disk, &config.dir, &view, from);
                    begun.map_err(|source| OpenError::Io { path: config.dir.clone(), source })?;
                    let standings = view.standings().clone();
                    let transport: Arc<dyn Transport> = Arc::new(Fence::new(transport, standings));
                    // Before the core: what that applies again may have to be mended first.
                    let steward = Steward::start(config.node, config.voters, view.clone(), disk, transport, &runtime);
                    let vitals = Arc::new(Vitals::new(view.clone(), runtime));
                    let opened = Machine::open(machine, view, checkpoints.clone(), newest, vitals.clone())?;
                    let (machine, machine_gone) = opened;
                    Ok::<_, OpenError>((files, checkpoints, machine, machine_gone, keeper, vitals, steward))
                })
                .await?
            };
            carry_out(&mut files, &*disk, &config.dir, &config.contact).await?;
            let view = files.view();
            let standings = view.standings().clone();
            let transport: Arc<dyn Transport> = Arc::new(Fence::new(transport, standings.clone()));
            let resets = StreamResets::default();
            core_config.enable_elect = !view.vote_hold().recovers() && !standings.is_settling();
            let limits = LagLimits {
                time: Duration::from_millis(config.in_sync_lag_ms_max),
                bytes: config.in_sync_lag_bytes_max,
            };
            let acks = AckTracker::new(runtime.clone(), config.node, config.voters.clone(), limits);
            acks.enter(view.vote().map_or(Term(0), |vote| vote.term));
            let matched_is_durable = config.flush == FlushMode::Sync;
            let clock = LeaseClock::default();
            let network = NetworkFactory::new(
                transport.clone(),
                runtime.clone(),
                acks.clone(),
                matched_is_durable,
                resets.clone(),
                standings.clone(),
                clock.clone(),
            );
            let store = LogStore::new(files, acks.clone(), keeper.clone());
            let inbox = SnapshotInbox::new(disk.clone(), config.dir.clone(), view.clone());
            let mut watch = PhaseWatch::start(&runtime);
            let raft = Raft::new(config.node.0, Arc::new(core_config), network, store, machine).await;
            let raft: LogRaft = match raft {
                Ok(raft) => raft,
                Err(fatal) => {
                    view.shared.damages.close();
                    view.close().await;
                    return Err(OpenError::Core(fatal.to_string()));
                }
            };
            // Answered by the running core: what it tells of itself is there from then on.
            raft.is_initialized().await.map_err(|fatal| OpenError::Core(fatal.to_string()))?;
            standings.set_metrics(raft.metrics());
            let voters = standings.members().voters;
            if !voters.is_empty() {
                acks.set_voters(voters);
            }
            let stopper = Stopper::start(&runtime, raft.clone(), view.clone(), acks.clone(), machine_gone);
            let mut ack_tasks = vec![runtime.spawn("lag-watch", acks.clone().watch_lag())];
            if !matched_is_durable {
                ack_tasks.push(runtime.spawn("durable-watch", watch_durable(acks.clone(), view.clone())));
            }
            view.note_recovery(|report| {
                // The core has applied again what is known to be committed.
                let end = next_index(view.committed()).0;
                let from = report.checkpoint.map_or(0, |checkpoint| checkpoint.0 + 1);
                watch.over("reapply", Seen { entries: end.saturating_sub(from), ..Seen::default() }, report);
            });
            let status = StatusWatch::start(&runtime, &raft, &config, view.clone(), clock, stopper.is_stopping());
            steward.set_status(status.clone());
            let left_behind = LeftBehind {
                node: config.node,
                view: view.clone(),
                status: status.clone(),
                transport: transport.clone(),
                runtime: runtime.clone(),
            };
            ack_tasks.push(left_behind.start());
            raft.runtime_config().elect(!view.vote_hold().holds());
            let recovery = Recovery {
                node: config.node,
                runtime: runtime.clone(),
                view: view.clone(),
                status: status.clone(),
                transport: transport.clone(),
            };
            ack_tasks.extend(view.vote_hold().recover(recovery));
            let guard = LeadGuard::start(
                view.clone(),
                vitals.clone(),
                raft.clone(),
                status.clone(),
                transport.clone(),
                &runtime,
            );
            let rounds = Rounds {
                node: config.node,
                view: view.clone(),
                vitals: vitals.clone(),
                status: status.clone(),
                transport: transport.clone(),
                runtime: runtime.clone(),
            };
            let scrub = Scrub::start(&config, view.clone(), &runtime);
            let stopping = stopper.is_stopping();
            let (gone, gone_task) = GoneWatch::start(
                &config,
                &runtime,
                raft.clone(),
                status.clone(),
                transport.clone(),
                stopping,
                guard.clone(),
            );
            let founding = Founding {
                node: config.node,
                voters: config.voters.clone(),
                standings: standings.clone(),
                raft: raft.clone(),
                view: view.clone(),
                transport: transport.clone(),
                runtime: runtime.clone(),
            };
            let admission = Admission {
                node: config.node,
                contact: config.contact.clone(),
                standings: standings.clone(),
                raft: raft.clone(),
                status: status.clone(),
                view: view.clone(),
                transport: transport.clone(),
                acks: acks.clone(),
                runtime: runtime.clone(),
            };
            ack_tasks.push(admission.start());
            Ok(Replica {
                node: config.node,
                contact: config.contact.clone(),
                payload_bytes_max: LogFiles::payload_bytes_max(config.segment_bytes),
                segment_bytes: config.segment_bytes,
                dir: config.dir.clone(),
                disk,
                transport,
                runtime,
                raft,
                view,
                failure,
                status,
                stopper,
                gone,
                inbox,
                checkpoints,
                resets,
                vitals,
                guard,
                scrub,
                _steward: steward,
                _rounds: rounds.start(),
                acks,
                keeper,
                _gone_task: gone_task,
                _ack_tasks: ack_tasks,
                _founding: founding.start().await?,
            })
        })
    }
}

/// Where appends count before they are on disk: tells the tracker when they are.
async fn watch_durable(acks: AckTracker, view: LogView) {
    while acks.appended_more().await {
        let (_, last) = view.ends();
        let Some(last) = last else { continue };
        // Step by step: under load the end moves on faster than any sync.
        while view.durable_index() < Some(last.index) {
            let next = view.durable_index().map_or(LogIndex(0), LogIndex::next);
            if view.wait_durable(next).await.is_err() {
                return;
            }
            acks.synced_self(view.durable_index());
            if view.ends().1 < Some(last) {
                break;
            }
        }
        acks.synced_self(view.durable_index());
    }
}
