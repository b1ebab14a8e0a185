//! openraft's state machine over ours: apply, checkpoints at segment boundaries, snapshots.

use std::any::Any;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::Instant;
use futures::channel::oneshot;
use futures::{Stream, StreamExt};
use openraft::alias::{SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend, RaftSnapshotBuilder};

use super::membership::{decode_membership, encode_membership};
use super::parcel::Parcel;
use super::type_config::{LogId, Reply, TypeConfig, to_entry_id, to_log_id};
use crate::checkpoint_file::{Checkpoint, Origin, PendingCheckpoint};
use crate::checkpoint_store::CheckpointStore;
use crate::failure::ReportPanic;
use crate::ids::EntryId;
use crate::log_view::LogView;
use crate::restore::restore_newest;
use crate::vitals::{DIGEST_EVERY, StateDigest, Vitals};
use crate::{LaterCheckpoint, LogIndex, OpenError, RestoreError, SideFile, SideFileCheck, StateMachine, Term};

type Members = StoredMembershipOf<TypeConfig>;

/// A [`StateMachine`] with its output's type put away, so that openraft's types need not carry it.
pub(crate) trait ErasedMachine: Send {
    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> Box<dyn Any + Send>;
    fn segment_started(&mut self, first: LogIndex) -> io::Result<()>;
    fn checkpoint_later(&self) -> LaterCheckpoint;
    fn digest(&self) -> Option<(u32, u128)>;
    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError>;
    fn side_files(&self, checkpoint: &[u8]) -> Result<Vec<SideFile>, RestoreError>;
    fn side_file_path(&self, name: &str) -> Option<PathBuf>;
    fn side_file_check(&self) -> SideFileCheck;
    fn checkpoints_kept(&mut self, kept: &[LogIndex]);
}

impl<M: StateMachine> ErasedMachine for M {
    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> Box<dyn Any + Send> {
        Box::new(StateMachine::apply(self, index, term, payload))
    }
    fn segment_started(&mut self, first: LogIndex) -> io::Result<()> {
        StateMachine::segment_started(self, first)
    }
    fn checkpoint_later(&self) -> LaterCheckpoint {
        StateMachine::checkpoint_later(self)
    }
    fn digest(&self) -> Option<(u32, u128)> {
        StateMachine::digest(self)
    }
    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        StateMachine::restore(self, checkpoint, applied)
    }
    fn side_files(&self, checkpoint: &[u8]) -> Result<Vec<SideFile>, RestoreError> {
        StateMachine::side_files(self, checkpoint)
    }
    fn side_file_path(&self, name: &str) -> Option<PathBuf> {
        StateMachine::side_file_path(self, name)
    }
    fn side_file_check(&self) -> SideFileCheck {
        StateMachine::side_file_check(self)
    }
    fn checkpoints_kept(&mut self, kept: &[LogIndex]) {
        StateMachine::checkpoints_kept(self, kept);
    }
}

/// When the next checkpoint between boundaries is due.
struct Pace {
    /// Payload bytes applied since the last one.
    bytes: u64,
    last: Instant,
    /// How long apply waited for it.
    pause: Duration,
}

/// A restart applies about so many payload bytes again, at most,
const CHECKPOINT_BYTES: u64 = 64 << 20;
/// or so many times the bytes that are written for a checkpoint, so that the disk has little to do for checkpoints beside the log,
const CHECKPOINT_SHARE: u64 = 8;
/// or what was applied in so much time;
const CHECKPOINT_INTERVAL: Duration = Duration::from_secs(60);
/// but apply never stands still for more than one part in so many.
const PAUSE_SHARE: u32 = 50;

impl Pace {
    fn new(now: Instant) -> Pace {
        Pace { bytes: 0, last: now, pause: Duration::ZERO }
    }

    /// `last_bytes` is what was written for the last one.
    fn is_due(&self, now: Instant, last_bytes: u64) -> bool {
        if self.bytes == 0 {
            return false;
        }
        let since = now.saturating_since(self.last);
        if is_planted(Bug::CheckpointAheadOfLog) {
            // Often, so that it does not take a minute.
            return true;
        }
        let enough = CHECKPOINT_BYTES.max(last_bytes.saturating_mul(CHECKPOINT_SHARE));
        (self.bytes >= enough || since >= CHECKPOINT_INTERVAL) && since >= self.pause * PAUSE_SHARE
    }

    fn taken(&mut self, began: Instant, ended: Instant) {
        *self = Pace { bytes: 0, last: ended, pause: ended.saturating_since(began) };
    }
}

/// The machine, where it stands, and its checkpoints.
pub(crate) struct Machine {
    /// Only ever reached through `&mut`; the lock makes it `Sync`, which openraft asks for.
    machine: Mutex<Box<dyn ErasedMachine>>,
    log: LogView,
    checkpoints: CheckpointStore,
    vitals: Arc<Vitals>,
    applied: Option<EntryId>,
    members: Members,
    /// The last entry of the checkpoint that the state was restored from, if that was taken behind a boundary and nothing
    /// was applied since.
    restored: Option<EntryId>,
    pace: Pace,
    /// Dropped with the machine: whoever closes the log waits for that.
    _alive: oneshot::Sender<()>,
}

impl Machine {
    /// Restores `machine` from the newest checkpoint that it takes, if there is one. What comes after it is applied again by openraft.
    /// The receiver resolves when the machine is dropped.
    pub(crate) fn open(
        mut machine: Box<dyn ErasedMachine>,
        log: LogView,
        checkpoints: CheckpointStore,
        newest: Option<Checkpoint>,
        vitals: Arc<Vitals>,
    ) -> Result<(Machine, oneshot::Receiver<()>), OpenError> {
        let mut members = Members::default();
        let check = |checkpoint: &Checkpoint| members_of(checkpoint).map(drop).map_err(|error| error.to_string());
        let mut restore = |state: &[u8], applied: LogIndex| machine.restore(state, applied);
        let newest = restore_newest(&mut restore, &log, &checkpoints, newest, check)?;
        if let Some(checkpoint) = &newest {
            members = members_of(checkpoint).map_err(|error| OpenError::Core(error.to_string()))?;
        }
        let applied = newest.as_ref().map(|checkpoint| checkpoint.last);
        let restored = newest
            .filter(|checkpoint| matches!(checkpoint.origin, Origin::Boundary | Origin::Installed))
            .map(|checkpoint| checkpoint.last);
        let machine = Mutex::new(machine);
        let (_alive, gone) = oneshot::channel();
        let pace = Pace::new(checkpoints.now());
        Ok((Machine { machine, log, checkpoints, vitals, applied, members, restored, pace, _alive }, gone))
    }

    fn machine(&mut self) -> &mut dyn ErasedMachine {
        &mut **self.machine.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Everything before `first`, the first entry of a segment, is applied: the moment for derived files and a checkpoint.
    fn cross_boundary(&mut self, first: LogIndex) -> io::Result<()> {
        self.machine().segment_started(first)?;
        if let Some(checkpoint) = self.take_checkpoint(Origin::Boundary) {
            self.checkpoints.write_later(checkpoint);
        }
        Ok(())
    }

    /// In the middle of a segment, so that a restart has little to apply again.
    fn checkpoint_if_due(&mut self) {
        if !self.pace.is_due(self.checkpoints.now(), self.checkpoints.last_bytes()) {
            return;
        }
        if let Some(checkpoint) = self.take_checkpoint(Origin::Periodic) {
            self.checkpoints.write_later(checkpoint);
        }
    }

    /// Only holding the state fast keeps entries waiting.
    fn take_checkpoint(&mut self, origin: Origin) -> Option<PendingCheckpoint> {
        let last = self.applied?;
        let kept = self.checkpoints.kept();
        if !kept.is_empty() {
            self.machine().checkpoints_kept(&kept);
        }
        let began = self.checkpoints.now();
        let state = self.machine().checkpoint_later();
        let ended = self.checkpoints.now();
        self.pace.taken(began, ended);
        self.checkpoints.note_pause(self.pace.pause);
        let pause_us = u64::try_from(self.pace.pause.as_micros()).unwrap_or(u64::MAX);
        tracing::info!(%last, ?origin, pause_us, "checkpoint taken");
        let head = Checkpoint {
            last,
            origin,
            members_at: self.members.log_id().as_ref().map(to_entry_id),
            members: encode_membership(self.members.membership()),
            state: Bytes::new(),
        };
        Some(PendingCheckpoint::new(head, state))
    }
}

fn members_of(checkpoint: &Checkpoint) -> io::Result<Members> {
    let members = decode_membership(checkpoint.members.clone())
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
    Ok(Members::new(checkpoint.members_at.map(to_log_id), members))
}

fn meta_of(checkpoint: &Checkpoint) -> io::Result<SnapshotMetaOf<TypeConfig>> {
    let last_membership = members_of(checkpoint)?;
    Ok(SnapshotMetaOf::<TypeConfig> { last_log_id: Some(to_log_id(checkpoint.last)), last_membership })
}

impl RaftStateMachine<TypeConfig> for Machine {
    type SnapshotData = Parcel;
    type SnapshotBuilder = SnapshotBuilder;

    async fn applied_state(&mut self) -> Result<(Option<LogId>, Members), io::Error> {
        Ok((self.applied.map(to_log_id), self.members.clone()))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        let failure = self.log.failure().clone();
        let _guard = ReportPanic { failure: &failure, what: "state machine" };
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let id = to_entry_id(&entry.log_id);
            // A state that was restored from a boundary's checkpoint has that boundary behind it.
            if self.restored != self.applied && self.log.opens_segment(id.index) {
                if is_planted(Bug::CheckpointLacksEntry) {
                    self.applied = Some(id);
                }
                self.cross_boundary(id.index).map_err(|error| failure.report_io("state machine", error))?;
            }
            let reply = match entry.payload {
                EntryPayload::Blank => Reply::none(),
                EntryPayload::Normal(_)
                    if is_planted(Bug::ApplySkipsEntries) && responder.is_none() && id.index.0 % 100 == 7 =>
                {
                    Reply::none()
                }
                EntryPayload::Normal(proposal) => {
                    self.pace.bytes += proposal.payload.len() as u64;
                    Reply::some(self.machine().apply(id.index, id.term, proposal.payload))
                }
                EntryPayload::Membership(members) => {
                    self.members = Members::new(Some(entry.log_id), members);
                    Reply::none()
                }
            };
            self.applied = Some(id);
            self.restored = None;
            if id.index.0.is_multiple_of(DIGEST_EVERY)
                && let Some((version, digest)) = self.machine().digest()
            {
                self.vitals.digests.note(StateDigest { index: id.index, version, digest });
            }
            if let Some(responder) = responder {
                responder.send(reply);
            }
            self.checkpoint_if_due();
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotBuilder {
        let chosen = self.checkpoints.chosen();
        SnapshotBuilder {
            // The one that was chosen is there already.
            checkpoint: Mutex::new(match chosen {
                Some(_) => None,
                None => self.take_checkpoint(Origin::OnDemand),
            }),
            chosen,
            log: self.log.clone(),
            checkpoints: self.checkpoints.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, parcel: Parcel) -> Result<(), io::Error> {
        let failure = self.log.failure().clone();
        let _guard = ReportPanic { failure: &failure, what: "state machine" };
        let Some(last) = meta.last_log_id.as_ref().map(to_entry_id) else {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "snapshot of nothing"));
        };
        let checkpoint = Checkpoint {
            last,
            origin: Origin::Installed,
            members_at: meta.last_membership.log_id().as_ref().map(to_entry_id),
            members: encode_membership(meta.last_membership.membership()),
            state: parcel.state.clone(),
        };
        // The files first: from the checkpoint on, the state relies on them.
        let names = parcel.sides.iter().map(|side| side.name.clone());
        let paths: BTreeMap<String, PathBuf> =
            names.filter_map(|name| Some((name.clone(), self.machine().side_file_path(&name)?))).collect();
        let check = self.machine().side_file_check();
        self.checkpoints.put_sides(parcel.clone(), paths, check).await?;
        self.checkpoints.write_now(checkpoint).await?;
        let state = parcel.state;
        let restored = self.machine().restore(&state, last.index);
        restored
            .map_err(|error| failure.report_io("state machine", io::Error::new(io::ErrorKind::InvalidData, error)))?;
        tracing::info!(%last, bytes = state.len(), "snapshot installed");
        self.applied = Some(last);
        self.restored = Some(last);
        self.members = meta.last_membership.clone();
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<TypeConfig, Parcel>>, io::Error> {
        let Some(checkpoint) = self.checkpoints.served().await? else {
            return Ok(None);
        };
        let meta = meta_of(&checkpoint)?;
        let (index, purged) = (checkpoint.last.index, self.log.ends().0.map(|purged| purged.index));
        let is_floor = purged.is_none_or(|purged| purged == index) || self.checkpoints.chosen() == Some(index);
        let snapshot = if is_floor {
            let files = self.machine().side_files(&checkpoint.state);
            let files = files.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
            let check = self.machine().side_file_check();
            self.checkpoints.parcel(checkpoint.state, files, check)
        } else {
            // Its receiver would lack the entries between the two, which the state refers to.
            let why =
                format!("the checkpoint at the purge mark {purged:?} is no good, the next one is of entry {index}");
            Parcel::refused(checkpoint.state, why)
        };
        Ok(Some(SnapshotOf::<TypeConfig, Parcel> { meta, snapshot }))
    }
}

/// The checkpoint that was chosen to be served, or one of the state as it was when the builder was made.
pub(crate) struct SnapshotBuilder {
    chosen: Option<LogIndex>,
    /// Only ever reached through `&mut`; the lock makes it `Sync`, which openraft asks for.
    checkpoint: Mutex<Option<PendingCheckpoint>>,
    log: LogView,
    checkpoints: CheckpointStore,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = Parcel;

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, Parcel>, io::Error> {
        if let Some(index) = self.chosen
            && let Some(checkpoint) = self.checkpoints.read(index).await?
        {
            return to_built(checkpoint);
        }
        let pending = self.checkpoint.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let Some(checkpoint) = pending else {
            // The empty state needs no file.
            let snapshot = Parcel::of_state(Bytes::new());
            return Ok(SnapshotOf::<TypeConfig, Parcel> { meta: Default::default(), snapshot });
        };
        self.log.flush().await?;
        to_built(self.checkpoints.finish_now(checkpoint).await?)
    }
}

/// openraft asks only what a built snapshot is of; what is sent is read anew.
fn to_built(checkpoint: Checkpoint) -> io::Result<SnapshotOf<TypeConfig, Parcel>> {
    let meta = meta_of(&checkpoint)?;
    Ok(SnapshotOf::<TypeConfig, Parcel> { meta, snapshot: Parcel::of_state(checkpoint.state) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_come_by_bytes_and_by_time_and_never_too_often() {
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let mut pace = Pace::new(at(0));
        assert!(!pace.is_due(at(1_000_000), 0), "nothing was applied");
        pace.bytes = 1;
        assert!(!pace.is_due(at(59_999), 0) && pace.is_due(at(60_000), 0));
        pace.bytes = CHECKPOINT_BYTES;
        assert!(pace.is_due(at(1), CHECKPOINT_BYTES / 8));
        assert!(!pace.is_due(at(1), CHECKPOINT_BYTES / 4), "a large state is not written all the time");
        pace.taken(at(1_000), at(1_100));
        pace.bytes = CHECKPOINT_BYTES;
        assert!(!pace.is_due(at(6_099), 0) && pace.is_due(at(6_100), 0), "apply stood still for 100 ms");
    }
}
