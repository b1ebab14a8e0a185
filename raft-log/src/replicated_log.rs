//! The face of the crate: one handle to propose to, read from and watch a replicated log.

use std::io;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Runtime, Task};
use tokio::sync::mpsc;

use crate::ack::{AckTicket, ReplicationStatus};
use crate::disk::Disk;
use crate::lost_tail::LostTailStatus;
#[cfg(test)]
use crate::raft::LogRaft;
use crate::replica::Replica;
use crate::segment::{Record, RecordKind};
use crate::stats::stats;
use crate::{
    Fitness, GroupMembers, Incarnation, Integrity, LogConfig, LogIndex, LogStats, LogStatus, MemberError, NodeId,
    OpenError, PeerCallKind, ProposalClass, ProposeError, ReadError, RecoveryReport, ServeError, SlowSyncs, Standing,
    StateMachine, SyncHistogram, Term, TransferError, Transport,
};

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
    pub(crate) inner: Arc<Replica>,
    output: PhantomData<fn() -> O>,
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
        let machine = Box::new(machine);
        let inner = Replica::open(config, runtime, disk, transport, machine, M::acknowledged_early).await?;
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
        let (index, term, reply) = self.inner.propose(class, payload, term, ticket).await?;
        let output = reply.into_output::<O>().expect("a proposal is answered with the machine's output");
        Ok(Applied { index, term, output })
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
        self.inner.confirm_leadership(timeout).await
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

    /// How long this replica, as a follower, has not heard from a leader: since its start, if it never has. Whom its status names
    /// as leader is who led last as far as it knows, and may be gone.
    pub fn leader_silence(&self) -> Duration {
        self.inner.gone.silence()
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
        self.inner.transfer_leader(target, timeout).await
    }

    /// Answers a peer's call.
    pub async fn serve_call(&self, kind: PeerCallKind, body: Bytes) -> Result<Bytes, ServeError> {
        self.inner.serve_call(kind, body).await
    }

    /// Serves a peer's append stream until either side closes it. Dropping the task closes it too.
    pub fn serve_append(&self, requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> Task<()> {
        self.inner.serve_append(requests, responses)
    }

    /// Takes a replica in that came with an empty directory and no voters in its settings: as a learner, which gets the log
    /// and has no vote. Nothing to do if it is a member already.
    pub async fn add_learner(&self, node: NodeId, timeout: Duration) -> Result<(), MemberError> {
        self.inner.add_learner(node, timeout).await
    }

    /// Makes a learner one that is meant to vote: it becomes a voter by itself once it has caught up. Nothing to do if it
    /// is or votes already.
    pub async fn promote(&self, node: NodeId, timeout: Duration) -> Result<(), MemberError> {
        self.inner.promote(node, timeout).await
    }

    /// Takes one step of removing a member; true once it is none. The leader itself hands over first.
    pub async fn remove_member(&self, node: NodeId, timeout: Duration) -> Result<bool, MemberError> {
        self.inner.remove_member(node, timeout).await
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

    /// The disk that the log is on.
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.inner.disk.clone()
    }

    /// Runs `work`, which writes to the replica's data directory, where it may block. The directory is not let go before it is
    /// done.
    ///
    /// # Errors
    /// Those of `work`; another one, and nothing was done, if the log is closed.
    pub async fn write_beside<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.inner.view.shared.write_blocking(work).await
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
