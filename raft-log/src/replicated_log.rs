//! The face of the crate: one handle to propose to, read from and watch a replicated log.

use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Either, Elapsed, Runtime, Task, select};
use openraft::errors::{ClientWriteError, ForwardReason, ForwardToLeader, LinearizableReadError, RaftError};
use openraft::{Raft, ReadPolicy};
use openraft_rt::watch::WatchReceiver;
use tokio::sync::mpsc;

use crate::ack::{AckTicket, AckTracker, LagLimits, ReplicationStatus, TicketSlot};
use crate::checkpoint_store::CheckpointStore;
use crate::disk::Disk;
use crate::failure::Failure;
use crate::identity::Origin;
use crate::ids::next_index;
use crate::log_files::{LogFiles, disk_space};
use crate::log_view::LogView;
use crate::lost_tail::{LostTailStatus, TailKeeper};
use crate::raft::{
    AcquaintanceAnswer, Admission, Fence, Founding, GoneWatch, LeftBehind, LogRaft, LogStore, Machine, NetworkFactory,
    Parcel, PeerMessage, Proposal, Received, Recovery, ReplyTo, SnapshotAnswer, SnapshotInbox, SnapshotPiece, Stamp,
    StreamResets, TypeConfig, core_config, counts, decode, encode, judge, refusal, serve_append, serve_heartbeat,
    to_entry_id,
};
use crate::recovery::open_log;
use crate::recovery_order::carry_out;
use crate::recovery_report::{PhaseWatch, Seen};
use crate::repair::{LeadGuard, Steward, close_off_found, serve_fetch};
use crate::room::Need;
use crate::scrub::Scrub;
use crate::segment::{Record, RecordKind};
use crate::stats::stats;
use crate::status_watch::StatusWatch;
use crate::stopper::Stopper;
use crate::vitals::{Rounds, Vitals, ask_vitals};
use crate::{
    Fitness, FlushMode, GroupMembers, Incarnation, Integrity, LogConfig, LogIndex, LogStats, LogStatus, NodeId,
    OpenError, PeerCallKind, Probe, ProposalClass, ProposeError, ReadError, RecoveryReport, Role, ServeError,
    SlowSyncs, Standing, StateMachine, SyncHistogram, Term, TransferError, Transport,
};

/// While leadership is handed over, the target is looked at this often: whether it is still there.
const TARGET_LOOK_PAUSE: Duration = Duration::from_millis(50);

/// A committed and applied proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied<O> {
    /// Its place in the log.
    pub index: LogIndex,
    /// The term it was proposed in.
    pub term: Term,
    /// What the state machine answered.
    pub output: O,
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogEntry {
    /// Its place.
    pub index: LogIndex,
    /// The term it was proposed in.
    pub term: Term,
    /// The proposal's bytes, shared with the file they are in.
    pub payload: Bytes,
}

/// A handle to a replica's log; cheap to clone. `O` is the state machine's output.
///
/// When the last handle is dropped the replica stops taking part and lets its directory go, in the background.
pub struct ReplicatedLog<O: Send + 'static> {
    pub(crate) inner: Arc<Inner>,
    output: PhantomData<fn() -> O>,
}

pub(crate) struct Inner {
    pub(crate) node: NodeId,
    pub(crate) contact: String,
    payload_bytes_max: usize,
    segment_bytes: u64,
    pub(crate) dir: std::path::PathBuf,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) runtime: Runtime,
    pub(crate) raft: LogRaft,
    pub(crate) view: LogView,
    pub(crate) failure: Failure,
    pub(crate) status: StatusWatch,
    stopper: Stopper,
    gone: GoneWatch,
    inbox: SnapshotInbox,
    pub(crate) checkpoints: CheckpointStore,
    pub(crate) resets: StreamResets,
    vitals: Arc<Vitals>,
    guard: LeadGuard,
    scrub: Scrub,
    _steward: Steward,
    _rounds: Task<()>,
    acks: AckTracker,
    keeper: TailKeeper,
    _gone_task: Option<Task<()>>,
    _ack_tasks: Vec<Task<()>>,
    _founding: Option<Task<()>>,
}

impl<O: Send + 'static> Clone for ReplicatedLog<O> {
    fn clone(&self) -> Self {
        ReplicatedLog { inner: self.inner.clone(), output: PhantomData }
    }
}

impl<O: Send + 'static> std::fmt::Debug for ReplicatedLog<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplicatedLog(node {})", self.inner.node)
    }
}

impl<O: Send + 'static> ReplicatedLog<O> {
    /// Opens (or founds) the log in `config.dir`, recovers it, restores `machine`, applies again what is known to be
    /// committed, and takes part in the group.
    ///
    /// In a new directory the group is founded with `config.voters`; all voters of a new group must be given the same.
    pub async fn open<M: StateMachine<Output = O>>(
        config: LogConfig,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn Transport>,
        machine: M,
    ) -> Result<ReplicatedLog<O>, OpenError> {
        let problems = config.problems();
        if !problems.is_empty() {
            return Err(OpenError::Config(problems));
        }
        let mut core_config = core_config(&config)?;
        let failure = Failure::default();
        let (files, checkpoints, machine, machine_gone, keeper, vitals, steward) = {
            let (config, disk, runtime, failure) = (config.clone(), disk.clone(), runtime.clone(), failure.clone());
            let (work, transport) = (runtime.clone(), transport.clone());
            work.blocking(move || {
                let files = open_log(&config, disk.clone(), &runtime, failure)?;
                let view = files.view();
                let keeper = TailKeeper::open(config.node, disk.clone(), config.dir.clone(), M::acknowledged_early);
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
        let mut files = files;
        carry_out(&mut files, &*disk, &config.dir).await?;
        let view = files.view();
        let standings = view.standings().clone();
        let transport: Arc<dyn Transport> = Arc::new(Fence::new(transport, standings.clone()));
        let resets = StreamResets::default();
        core_config.enable_elect = !view.vote_hold().recovers() && !standings.is_settling();
        let limits =
            LagLimits { time: Duration::from_millis(config.in_sync_lag_ms_max), bytes: config.in_sync_lag_bytes_max };
        let acks = AckTracker::new(runtime.clone(), config.node, config.voters.clone(), limits);
        acks.enter(view.vote().map_or(Term(0), |vote| vote.term));
        let matched_is_durable = config.flush == FlushMode::Sync;
        let network = NetworkFactory::new(
            transport.clone(),
            runtime.clone(),
            acks.clone(),
            matched_is_durable,
            resets.clone(),
            standings.clone(),
        );
        let store = LogStore::new(files, acks.clone(), keeper.clone());
        let inbox = SnapshotInbox::new(disk.clone(), config.dir.clone(), runtime.clone());
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
        let status = StatusWatch::start(&runtime, &raft, &config, view.clone(), stopper.is_stopping());
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
        let guard =
            LeadGuard::start(view.clone(), vitals.clone(), raft.clone(), status.clone(), transport.clone(), &runtime);
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
        let inner = Inner {
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
        };
        Ok(ReplicatedLog { inner: Arc::new(inner), output: PhantomData })
    }

    /// What the start found and took.
    pub fn recovery(&self) -> RecoveryReport {
        self.inner.view.recovery()
    }

    /// The longest payload that a proposal may have, bytes: what fits into a segment.
    pub fn payload_bytes_max(&self) -> usize {
        self.inner.payload_bytes_max
    }

    /// Appends `payload`, replicates it, and resolves once it is applied here. With `term`, refuses unless this node
    /// leads in exactly that term. Giving up waiting does not take the proposal back. When space runs short the log refuses
    /// it like any new data, see [`ReplicatedLog::propose_as`].
    pub async fn propose(&self, payload: Bytes, term: Option<Term>) -> Result<Applied<O>, ProposeError> {
        self.propose_as(ProposalClass::Data, payload, term).await
    }

    /// As [`ReplicatedLog::propose`], for a proposal that may take more, or less, of the last space than new data.
    pub async fn propose_as(
        &self,
        class: ProposalClass,
        payload: Bytes,
        term: Option<Term>,
    ) -> Result<Applied<O>, ProposeError> {
        self.propose_with(class, payload, term, None).await
    }

    /// As [`ReplicatedLog::propose_as`]; `ticket` says who wants to be told earlier than at the commit, or later, of how far
    /// the entry has come. What it was told stays true whatever this call comes to.
    pub async fn propose_with(
        &self,
        class: ProposalClass,
        payload: Bytes,
        term: Option<Term>,
        ticket: Option<AckTicket>,
    ) -> Result<Applied<O>, ProposeError> {
        let inner = &*self.inner;
        if inner.failure.is_set() || inner.stopper.has_begun() {
            return Err(ProposeError::Stopped);
        }
        if payload.len() > inner.payload_bytes_max {
            return Err(ProposeError::TooLarge {
                bytes: payload.len() as u64,
                bytes_max: inner.payload_bytes_max as u64,
            });
        }
        let _claim = inner.claim_room(payload.len(), class)?;
        let (reply_to, reply) = ReplyTo::pair();
        let slot = ticket.map_or_else(TicketSlot::default, TicketSlot::of);
        let mut write = inner.raft.write(Proposal::new(payload, slot)).responder(reply_to);
        if let Some(term) = term {
            write = write.with_leader(openraft::vote::leader_id_std::CommittedLeaderId::new(term.0));
        }
        if write.await.is_err() {
            return Err(ProposeError::Stopped);
        }
        match reply.await {
            Ok(Ok(response)) => {
                let (index, term) = (response.log_id.index(), response.log_id.committed_leader_id().term);
                let output =
                    response.data.into_output::<O>().expect("a proposal is answered with the machine's output");
                Ok(Applied { index: LogIndex(index), term: Term(term), output })
            }
            Ok(Err(ClientWriteError::ForwardToLeader(forward))) => Err(refused(&forward)),
            Ok(Err(other)) => Err(ProposeError::Unknown(other.to_string())),
            // The core went away with the proposal in its hands.
            Err(_) => Err(ProposeError::Unknown("log stopped before the outcome was known".to_owned())),
        }
    }

    /// The replica's view of itself now.
    pub fn status(&self) -> LogStatus {
        self.inner.status.now()
    }

    /// How sound this replica's copy of the log is, and whether the others contradict it.
    pub fn integrity(&self) -> Integrity {
        let counts = self.inner.view.shared.damages.counts();
        Integrity {
            damaged_entries: counts.entries,
            damaged_first: counts.first,
            damaged_segments: counts.segments,
            damages_found_total: counts.found,
            damages_mended_total: counts.mended,
            is_fit_to_lead: self.inner.guard.is_fit(),
            hand_overs_done_total: self.inner.guard.hand_overs().0,
            hand_overs_failed_total: self.inner.guard.hand_overs().1,
            is_clock_off: self.inner.vitals.is_clock_off(),
            state_alarm: self.inner.vitals.alarm(),
            unreached: self.inner.vitals.silences.reasons(),
            scrub: self.inner.scrub.progress(),
        }
    }

    /// Returns once role, term, leader or `can_write` differ from `seen`; at once if they already do.
    pub async fn status_changed(&self, seen: &LogStatus) {
        self.inner.status.changed(seen).await;
    }

    /// Makes sure that this node still leads, by asking a quorum. When it returns, everything that anyone was told to be
    /// done before the call is applied here; the returned index says up to where.
    pub async fn confirm_leadership(&self, timeout: Duration) -> Result<LogIndex, ProposeError> {
        let inner = &*self.inner;
        let asking = async {
            let linearizer = match inner.raft.get_read_linearizer(ReadPolicy::ReadIndex).await {
                Ok(linearizer) => linearizer,
                Err(RaftError::APIError(LinearizableReadError::ForwardToLeader(forward))) => {
                    return Err(refused(&forward));
                }
                Err(RaftError::APIError(LinearizableReadError::QuorumNotEnough(_))) => {
                    return Err(ProposeError::NoQuorum);
                }
                Err(RaftError::Fatal(_)) => return Err(ProposeError::Stopped),
            };
            let ready = linearizer.await_ready(&inner.raft).await.map_err(|_| ProposeError::Stopped)?;
            Ok(LogIndex(ready.read_log_id().index()))
        };
        inner.runtime.timeout(timeout, asking).await.unwrap_or(Err(ProposeError::NoQuorum))
    }

    /// As [`ReplicatedLog::read`], for callers that must not block: what is not in memory is read elsewhere.
    pub async fn read_soon(&self, index: LogIndex) -> Result<Option<LogEntry>, ReadError> {
        Ok(proposal_of(self.inner.view.read_soon(index..index.next(), 0).await?))
    }

    /// The proposal at `index`, committed or not. `None` if there is none: not appended (yet), truncated, purged, or an
    /// entry of the log's own. Blocks on the disk if the entry is not in memory.
    pub fn read(&self, index: LogIndex) -> Result<Option<LogEntry>, ReadError> {
        Ok(proposal_of(self.inner.view.read(index..index.next(), 0)?))
    }

    /// Space is short: proposals of some classes are, or soon will be, answered [`ProposeError::Full`].
    pub fn is_full(&self) -> bool {
        self.inner.view.shared.room.is_blocked()
    }

    /// The last entry up to which this replica's log is on disk. Falls back when entries are truncated.
    pub fn durable_index(&self) -> Option<LogIndex> {
        self.inner.view.durable_index()
    }

    /// Resolves once this replica's log is on disk up to `index`; [`ProposeError::Stopped`] if that cannot come any more.
    pub async fn wait_durable(&self, index: LogIndex) -> Result<(), ProposeError> {
        self.inner.view.wait_durable(index).await.map_err(|_| ProposeError::Stopped)
    }

    /// Numbers for whoever watches this replica. Asks the file system for its space.
    pub fn stats(&self) -> LogStats {
        let inner = &*self.inner;
        stats(&inner.view, &inner.status, &*inner.disk, &inner.dir)
    }

    /// What of this replica's syncs was slow since it was opened.
    pub fn slow_syncs(&self) -> SlowSyncs {
        self.inner.view.shared.flusher.slow_syncs()
    }

    /// Whether this replica may campaign by itself. One that may not still votes, follows, and takes over when leadership is
    /// handed to it.
    pub fn let_campaign(&self, may: bool) {
        self.inner.guard.hold_back(!may);
    }

    /// Whether this replica should lead, as it tells the others.
    pub fn fitness(&self) -> Fitness {
        self.inner.vitals.fitness()
    }

    /// Notes that its owner finds this replica ill, or well again: asked by the others, it says that another one would do
    /// better ([`Fitness::Reluctant`]).
    pub fn set_ill(&self, is_ill: bool) {
        self.inner.vitals.set_ill(is_ill);
    }

    /// A follower that leads better than this replica: heard just now, lacking at most `lag_entries_max`, and fit by its own
    /// word; of several the one with the longest log. `None` if there is none, or this replica does not lead.
    pub async fn fit_follower(&self, lag_entries_max: u64, silence_max: Duration) -> Option<NodeId> {
        self.inner.fit_follower(lag_entries_max, silence_max).await
    }

    /// How far each replica has come, as this leader sees it, and which of them keep up.
    pub fn replication(&self) -> ReplicationStatus {
        self.inner.acks.status()
    }

    /// Messages that this replica had acknowledged before they were committed, and that another leader overrode.
    pub fn lost_tail(&self) -> LostTailStatus {
        self.inner.keeper.status()
    }

    /// It may have lost entries that it had confirmed, when the machine went down, and does not vote until it has them again.
    pub fn is_recovering(&self) -> bool {
        self.inner.view.vote_hold().recovers()
    }

    /// What this replica is to its group, as far as it knows.
    pub fn standing(&self) -> Standing {
        self.inner.view.standings().standing()
    }

    /// The life of this replica's directory.
    pub fn incarnation(&self) -> Incarnation {
        self.inner.view.standings().incarnation()
    }

    /// The members of the group, as the newest membership in this replica's log says.
    pub fn members(&self) -> GroupMembers {
        self.inner.view.standings().members()
    }

    /// How long this replica's syncs took since it was opened.
    pub fn sync_histogram(&self) -> SyncHistogram {
        self.inner.view.shared.flusher.sync_histogram()
    }

    /// Hands leadership to `target` (default: the follower with the longest log) and waits until another node leads.
    /// Returns the new leader.
    ///
    /// From the call on this node refuses proposals as [`ProposeError::NotLeader`], and it does not take that back when
    /// the target fails: then the others elect after their usual time-out. It stops waiting once the target refuses
    /// connections.
    pub async fn transfer_leader(&self, target: Option<NodeId>, timeout: Duration) -> Result<NodeId, TransferError> {
        let inner = &*self.inner;
        let status = inner.status.now();
        if status.role != Role::Leader {
            return Err(TransferError::NotLeader { leader: status.leader });
        }
        let target = match target {
            Some(target) if target != inner.node && status.members.contains(&target) => {
                // Asked first: a hand-over that the target refuses costs the group an election time-out.
                match ask_vitals(&inner.runtime, &*inner.transport, target).await {
                    Some(answer) if answer.fitness == Fitness::Unfit => return Err(TransferError::NotFit(target)),
                    _ => target,
                }
            }
            Some(target) => return Err(TransferError::NoSuchVoter(target)),
            None => inner.fittest_follower().await.ok_or(TransferError::NoneCaughtUp)?,
        };
        tracing::info!(%target, "handing over leadership");
        inner.raft.trigger().transfer_leader(target.0).await.map_err(|_| TransferError::Stopped)?;
        let taken = async {
            let mut seen = status;
            loop {
                inner.status.changed(&seen).await;
                seen = inner.status.now();
                if let Some(leader) = seen.leader
                    && leader != inner.node
                {
                    return leader;
                }
            }
        };
        let refused = async {
            loop {
                inner.runtime.sleep(TARGET_LOOK_PAUSE).await;
                if inner.transport.probe(target, TARGET_LOOK_PAUSE).await == Probe::Refused {
                    return;
                }
            }
        };
        match inner.runtime.timeout(timeout, select(taken, refused)).await {
            Ok(Either::Left(leader)) => Ok(leader),
            // Whoever is left elects once this process is gone, too.
            Ok(Either::Right(())) => Err(TransferError::TargetGone(target)),
            Err(Elapsed) => Err(TransferError::Timeout),
        }
    }

    /// Answers a peer's call.
    pub async fn serve_call(&self, kind: PeerCallKind, body: Bytes) -> Result<Bytes, ServeError> {
        let malformed = |error: crate::raft::WireError| ServeError::Malformed(error.to_string());
        let sender = Stamp::of(&body).map_err(malformed)?;
        let message = decode(body).map_err(malformed)?;
        let raft = &self.inner.raft;
        let standings = self.inner.view.standings();
        if counts(kind) && !standings.admits_request(&sender) {
            if standings.given_up() == 0 && standings.has_left_behind(&sender) {
                return Ok(standings.stamp().put_on(refusal(standings.members().epoch)));
            }
            let Stamp { node, incarnation, .. } = sender;
            return Err(ServeError::Failed(format!("the group has given up directory {incarnation} of node {node}")));
        }
        let needs_vote = matches!(kind, PeerCallKind::Vote | PeerCallKind::PreVote | PeerCallKind::TransferLeader);
        if needs_vote && self.inner.view.vote_hold().holds() {
            // No answer is no vote.
            return Err(ServeError::Failed(
                "this replica does not vote now: entries or its directory were lost".to_owned(),
            ));
        }
        let answer = match (kind, message) {
            (PeerCallKind::VoteHold, PeerMessage::HoldQuestion) => {
                let view = &self.inner.view;
                PeerMessage::HoldAnswer(view.vote_hold().answer(raft, view, &self.inner.runtime).await)
            }
            (PeerCallKind::Heartbeat, PeerMessage::AppendRequest(request)) => {
                self.inner.gone.heard_from(NodeId(request.vote.leader_id().voted_for));
                let answer = serve_heartbeat(raft, &self.inner.view, request).await;
                PeerMessage::AppendResponse(answer.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::Vote, PeerMessage::VoteRequest(request)) => {
                PeerMessage::VoteResponse(raft.vote(request).await.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::PreVote, PeerMessage::VoteRequest(request)) => {
                PeerMessage::VoteResponse(raft.pre_vote(request).await.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::TransferLeader, PeerMessage::TransferRequest(_)) if !self.inner.guard.may_take_over() => {
                return Err(ServeError::Failed("this replica is not fit to lead".to_owned()));
            }
            (PeerCallKind::TransferLeader, PeerMessage::TransferRequest(request)) => {
                let answer = raft.handle_transfer_leader(request).await;
                PeerMessage::TransferResponse(answer.map_err(|error| self.call_failed(error))?)
            }
            (PeerCallKind::Snapshot, PeerMessage::SnapshotPiece(piece)) => {
                PeerMessage::SnapshotAnswer(self.receive_piece(piece).await?)
            }
            (PeerCallKind::LeaderGone, PeerMessage::GoneQuestion(question)) => {
                PeerMessage::GoneAnswer(self.inner.gone.answer(question).await)
            }
            (PeerCallKind::Fetch, PeerMessage::FetchRequest(request)) => {
                let (view, committed) = (self.inner.view.clone(), self.inner.status.now().committed);
                let answer = self.inner.runtime.blocking(move || serve_fetch(&view, committed, request));
                PeerMessage::FetchAnswer(answer.await)
            }
            (PeerCallKind::Acquaintance, PeerMessage::Acquaintance) => {
                PeerMessage::AcquaintanceAnswer(self.make_acquaintance(sender).await?)
            }
            (PeerCallKind::Vitals, PeerMessage::VitalsRequest) => PeerMessage::VitalsAnswer(self.inner.vitals.answer()),
            (kind, _) => return Err(ServeError::Malformed(format!("body does not belong to a call of kind {kind:?}"))),
        };
        Ok(standings.stamp().put_on(encode(answer)))
    }

    /// Tells one that asks in which life it is known here.
    async fn make_acquaintance(&self, asker: Stamp) -> Result<AcquaintanceAnswer, ServeError> {
        let inner = &*self.inner;
        let view = inner.view.clone();
        let judging = inner.runtime.blocking(move || judge(view.standings(), &view, &asker)).await;
        let verdict = judging.map_err(|error| self.call_failed(inner.failure.report_io("identity", error)))?;
        let durable = inner.view.durable_index().and_then(|index| inner.view.id_at(index));
        let is_newcomer = inner.view.standings().origin() == Origin::Newcomer;
        Ok(AcquaintanceAnswer { verdict, is_newcomer, durable, contact: inner.contact.clone() })
    }

    /// Takes in a piece of a snapshot; the last one installs it.
    async fn receive_piece(&self, piece: SnapshotPiece) -> Result<SnapshotAnswer, ServeError> {
        let inner = &*self.inner;
        let SnapshotPiece { vote, meta, id, offset, bytes } = piece;
        let Some(last) = meta.last_log_id.as_ref().map(to_entry_id) else {
            return Err(ServeError::Malformed("snapshot of nothing".to_owned()));
        };
        let held = inner.raft.metrics().borrow_watched().vote;
        if held > vote {
            return Ok(SnapshotAnswer { vote: held, is_done: false, next: 0 });
        }
        let received = inner.inbox.receive(last, id, offset, bytes).await.map_err(|error| self.call_failed(error))?;
        let parcel = match received {
            Received::Next(next) => return Ok(SnapshotAnswer { vote, is_done: false, next }),
            Received::Whole(parcel) => parcel,
        };
        let snapshot = openraft::alias::SnapshotOf::<TypeConfig, Parcel> { meta, snapshot: parcel };
        let response = inner.raft.install_full_snapshot(vote, snapshot).await;
        let vote = response.map_err(|error| self.call_failed(error))?.vote;
        inner.inbox.clear().await;
        Ok(SnapshotAnswer { vote, is_done: true, next: id.bytes })
    }

    fn call_failed(&self, error: impl std::fmt::Display) -> ServeError {
        if self.inner.failure.is_set() || self.inner.stopper.has_begun() {
            return ServeError::Stopped;
        }
        ServeError::Failed(error.to_string())
    }

    /// Serves a peer's append stream until either side closes it. Dropping the task closes it too.
    pub fn serve_append(&self, requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> Task<()> {
        let inner = &*self.inner;
        serve_append(&inner.runtime, inner.raft.clone(), inner.view.clone(), inner.gone.clone(), requests, responses)
    }

    /// Resolves when the node must stop, with the reason: a failed write or sync, corruption, or a dead core.
    pub async fn failed(&self) -> String {
        self.inner.failure.wait().await
    }

    /// The reason for which the node must stop, once there is one.
    pub fn failure(&self) -> Option<String> {
        self.inner.failure.get()
    }

    /// Tells that a connection to `node` was refused or broke. If it leads, this replica looks whether its process is
    /// gone, and then has a new leader elected at once. Cheap, and harmless if it is not so. Without effect unless
    /// [`LogConfig::elect_on_peer_gone`] is set.
    ///
    /// The log notices by itself when the leader's append stream breaks.
    pub fn suspect(&self, node: NodeId) {
        self.inner.gone.broke(node);
    }

    /// The core itself, for tests of what the face does not offer yet.
    #[cfg(test)]
    pub(crate) fn raft(&self) -> &LogRaft {
        &self.inner.raft
    }

    /// Stops taking part, waits (at most `timeout`) for tasks to end and the last bytes to be durable, and lets the
    /// directory go.
    pub async fn shutdown(&self, timeout: Duration) {
        self.inner.stopper.stop(&self.inner.runtime, timeout).await;
    }
}

fn proposal_of(records: Vec<Record>) -> Option<LogEntry> {
    let proposal = records.into_iter().find(|record| record.kind == RecordKind::Normal)?;
    Some(LogEntry { index: proposal.id.index, term: proposal.id.term, payload: proposal.payload })
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

/// A refusal that is sure: nothing was appended.
fn refused(forward: &ForwardToLeader<TypeConfig>) -> ProposeError {
    match forward.reason {
        ForwardReason::LeaseExpired => ProposeError::NoQuorum,
        ForwardReason::NotLeader | ForwardReason::LeadershipTransfer => {
            ProposeError::NotLeader { leader: forward.leader_id.map(NodeId) }
        }
    }
}

impl Inner {
    /// The follower with the longest log of those that say they are fit to lead. Else one that can lead all the same, else
    /// one that does not answer that question (an older version, perhaps).
    async fn fittest_follower(&self) -> Option<NodeId> {
        let (mut reluctant, mut silent) = (None, None);
        for follower in self.status.followers_by_log() {
            match ask_vitals(&self.runtime, &*self.transport, follower).await.map(|answer| answer.fitness) {
                Some(Fitness::Fit) => return Some(follower),
                Some(Fitness::Reluctant) => reluctant = reluctant.or(Some(follower)),
                Some(Fitness::Unfit) => {}
                None => silent = silent.or(Some(follower)),
            }
        }
        reluctant.or(silent)
    }

    async fn fit_follower(&self, lag_entries_max: u64, silence_max: Duration) -> Option<NodeId> {
        let (last, contacts) = (self.status.now().last, self.status.contacts());
        let enough = last.map_or(0, |last| last.0).saturating_sub(lag_entries_max);
        let is_near = |follower: &NodeId| {
            contacts.peers.iter().any(|peer| {
                peer.node == *follower
                    && peer.silent_for.is_some_and(|silence| silence <= silence_max)
                    && peer.matched.is_some_and(|matched| matched.0 >= enough)
            })
        };
        for follower in self.status.followers_by_log().into_iter().filter(is_near) {
            let answer = ask_vitals(&self.runtime, &*self.transport, follower).await;
            if answer.is_some_and(|answer| answer.fitness == Fitness::Fit) {
                return Some(follower);
            }
        }
        None
    }

    /// Room for a proposal. A blocked log looks at the disk again now and then.
    fn claim_room(&self, payload_bytes: usize, class: ProposalClass) -> Result<crate::room::Claim<'_>, ProposeError> {
        let room = &self.view.shared.room;
        let now = self.runtime.now();
        if room.recheck_due(now)
            && room.admits_file(self.segment_bytes, disk_space(&*self.disk, &self.dir), Need::Data).is_ok()
        {
            room.set_blocked(None, now);
        }
        room.claim(payload_bytes, class).map_err(ProposeError::Full)
    }
}
