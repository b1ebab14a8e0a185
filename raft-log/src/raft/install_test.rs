//! Power fails at every durable step of a snapshot's arrival: the replica has the old state or the new one, and goes on.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::alias::SnapshotMetaOf;
use openraft::storage::{RaftLogStorage, RaftStateMachine};

use super::log_store::LogStore;
use super::machine::Machine;
use super::parcel::{Outgoing, Parcel};
use super::snapshot_inbox::{Received, SnapshotInbox};
use super::type_config::{TypeConfig, to_log_id};
use crate::ack::{AckTracker, LagLimits};
use crate::checkpoint_store::CheckpointStore;
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::lost_tail::TailKeeper;
use crate::recovery::open_log;
use crate::segment::{Record, RecordKind};
use crate::testing::{CrashDisk, Ledger, StepRuntime};
use crate::vitals::Vitals;
use crate::{Disk, LogConfig, LogIndex, NodeId, StateMachine, Term};

const LAST: EntryId = EntryId { term: Term(3), index: LogIndex(90) };
/// Of the snapshot, in pieces of this size.
const PIECE_BYTES: usize = 1000;

fn entry(index: u64) -> Bytes {
    Bytes::from(format!("entry {index} {}", "x".repeat(30)))
}

/// A machine elsewhere that has applied 80 entries, the first 60 of them in a side file.
fn parcel() -> (Outgoing, Vec<(LogIndex, Bytes)>) {
    let disk = Arc::new(CrashDisk::new(0));
    let mut ledger = Ledger::with_sides(disk.clone(), PathBuf::from("/there"));
    for index in 11..=90 {
        if index == 71 {
            ledger.segment_started(LogIndex(index)).unwrap();
        }
        ledger.apply(LogIndex(index), Term(3), entry(index));
    }
    let state = ledger.checkpoint();
    let files = ledger.side_files(&state).unwrap();
    assert_eq!(files.len(), 1);
    let parcel = Parcel::of_files(disk, state.into(), files, ledger.side_file_check());
    (parcel.into_outgoing().unwrap(), ledger.applied())
}

struct Replica {
    runtime: StepRuntime,
    log: LogStore,
    machine: Machine,
    ledger: Ledger,
    inbox: SnapshotInbox,
}

impl Replica {
    fn open(disk: &CrashDisk) -> Result<Replica, crate::OpenError> {
        let runtime = StepRuntime::default();
        let mut config = LogConfig::new("/log", "cluster", "group", NodeId(1), [NodeId(1)]);
        config.segment_bytes = 64 * 1024;
        let (shared, handle): (Arc<dyn Disk>, _) = (Arc::new(disk.clone()), runtime.handle());
        let files = open_log(&config, shared.clone(), &handle, Failure::default())?;
        let view = files.view();
        let (checkpoints, newest) =
            CheckpointStore::open(shared.clone(), config.dir.clone(), handle.clone(), view.clone())?;
        let ledger = Ledger::with_sides(shared.clone(), PathBuf::from("/log/sides"));
        let vitals = Arc::new(Vitals::new(view.clone(), handle.clone()));
        let (machine, _) = Machine::open(Box::new(ledger.clone()), view.clone(), checkpoints, newest, vitals)?;
        let limits = LagLimits { time: Duration::from_secs(1), bytes: 1 << 30 };
        let acks = AckTracker::new(handle.clone(), config.node, config.voters.clone(), limits);
        let keeper = TailKeeper::open(config.node, shared.clone(), config.dir.clone(), |_| 0);
        let inbox = SnapshotInbox::new(shared, config.dir, view);
        Ok(Replica { runtime, log: LogStore::new(files, acks, keeper), machine, ledger, inbox })
    }

    /// What a leader's snapshot makes the core do.
    fn install(&mut self, outgoing: &Outgoing) -> std::io::Result<()> {
        let mut offset = 0;
        let arrived = loop {
            let bytes = outgoing.read(offset, PIECE_BYTES)?;
            match self.runtime.block_on(self.inbox.receive(LAST, outgoing.id, offset, bytes))? {
                Received::Next(next) => offset = next,
                Received::Whole(parcel) => break parcel,
            }
        };
        let meta = SnapshotMetaOf::<TypeConfig> { last_log_id: Some(to_log_id(LAST)), ..Default::default() };
        self.runtime.block_on(self.machine.install_snapshot(&meta, arrived))?;
        self.runtime.block_on(self.log.purge(to_log_id(LAST)))?;
        self.runtime.block_on(self.inbox.clear());
        Ok(())
    }
}

/// A replica with a log of its own, far behind.
fn behind(seed: u64) -> CrashDisk {
    let disk = CrashDisk::new(seed);
    // Made as a part of setting up, not in front of an operation that fails.
    disk.create_dir_all(&PathBuf::from("/log/sides")).unwrap();
    let runtime = StepRuntime::default();
    let mut config = LogConfig::new("/log", "cluster", "group", NodeId(1), [NodeId(1)]);
    config.segment_bytes = 64 * 1024;
    let mut files = open_log(&config, Arc::new(disk.clone()), &runtime.handle(), Failure::default()).unwrap();
    let records =
        (0..5).map(|index| Record { id: EntryId::new(1, index), kind: RecordKind::Normal, payload: entry(index) });
    runtime.block_on(files.append(records.collect(), Box::new(|_| {}))).unwrap();
    runtime.run();
    drop(files);
    disk.power_cycle();
    disk
}

#[test]
fn a_power_failure_during_an_install_leaves_the_old_state_or_the_new_one() {
    let (outgoing, expected) = parcel();
    let mut seen = std::collections::BTreeSet::new();
    for step in 1..2000 {
        let disk = behind(step);
        let Ok(mut replica) = Replica::open(&disk) else { panic!("a sound disk opens") };
        disk.crash_at(disk.operations() + step);
        let installed = replica.install(&outgoing);
        replica.runtime.run();
        if !disk.has_crashed() {
            installed.unwrap();
            assert!(seen.len() == 2, "both outcomes were met: {seen:?}");
            return;
        }
        drop(replica);
        disk.power_cycle();

        let mut replica = Replica::open(&disk).unwrap_or_else(|error| panic!("step {step}: {error}"));
        let restored = replica.ledger.restored();
        seen.insert(restored);
        match restored {
            None => assert_eq!(replica.ledger.applied(), [], "step {step}: the log is applied by the core"),
            Some(last) => {
                assert_eq!(last, LAST.index);
                assert_eq!(replica.ledger.applied(), expected, "step {step}");
            }
        }
        // The leader tries again.
        replica.install(&outgoing).unwrap_or_else(|error| panic!("step {step}: {error}"));
        assert_eq!(replica.ledger.applied(), expected, "step {step}");
        let state = replica.runtime.block_on(replica.log.get_log_state()).unwrap();
        assert_eq!(state.last_purged_log_id.map(|id| id.index()), Some(90), "step {step}");
        drop(replica);
        disk.power_cycle();
        let replica = Replica::open(&disk).unwrap_or_else(|error| panic!("step {step}: {error}"));
        assert_eq!(replica.ledger.applied(), expected, "step {step}, started once more");
    }
    panic!("an install takes fewer than 2000 durable steps");
}
