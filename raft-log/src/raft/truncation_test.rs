//! Truncations by the core whose entries cannot all be read.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use openraft::storage::RaftLogStorage;

use super::log_store::LogStore;
use super::type_config::LogId;
use crate::ack::{AckTracker, LagLimits};
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::lost_tail::{LostTail, LostTailStatus, TailKeeper};
use crate::recovery::open_log;
use crate::segment::{Record, RecordKind, record_bytes};
use crate::testing::{ACKNOWLEDGED, CrashDisk, Ledger, StepRuntime, small_config};
use crate::{LogIndex, NodeId, StateMachine};

const PAYLOAD_BYTES: usize = 700;

fn acknowledged(term: u64, index: u64) -> Record {
    let payload = Bytes::from(vec![ACKNOWLEDGED; PAYLOAD_BYTES]);
    Record { id: EntryId::new(term, index), kind: RecordKind::Normal, payload }
}

/// Nobody can give an entry back that was never committed: whoever waited for that, or stopped, would do so at each start again.
#[test]
fn entries_that_another_leader_overrides_go_although_one_of_them_is_damaged() {
    let (disk, runtime) = (CrashDisk::new(1), StepRuntime::default());
    let mut files = open_log(&small_config(), Arc::new(disk.clone()), &runtime.handle(), Failure::default()).unwrap();
    let view = files.view();
    runtime.block_on(files.append((0..8).map(|index| acknowledged(1, index)).collect(), Box::new(|_| {}))).unwrap();
    runtime.run();
    let path = std::path::Path::new("/log").join(format!("{:020}-{:020}.seg", 1, 0));
    disk.damage(&path, 4096 + 3 * record_bytes(PAYLOAD_BYTES) + 100, b"x");
    assert!(view.read_all(LogIndex(3)..LogIndex(4)).is_err());

    let keeper = TailKeeper::open(
        NodeId(1),
        Arc::new(disk.clone()),
        "/log".into(),
        <Ledger as StateMachine>::acknowledged_early,
    );
    let limits = LagLimits { time: Duration::from_secs(1), bytes: 1 << 30 };
    let acks = AckTracker::new(runtime.handle(), NodeId(1), [NodeId(1)].into(), limits);
    let mut store = LogStore::new(files, acks, keeper.clone());
    runtime.block_on(store.truncate_after(Some(LogId::new_term_index(1, 1)))).unwrap();
    assert_eq!((view.ends().1, view.failure().get()), (Some(EntryId::new(1, 1)), None));
    assert_eq!(keeper.status(), LostTailStatus { files: 1, messages: 5 }, "all but the damaged one are kept aside");
    let files = LostTail::files(&disk, std::path::Path::new("/log")).unwrap();
    let kept: Vec<u64> = LostTail::read(&disk, &files[0]).unwrap().entries.iter().map(|entry| entry.index.0).collect();
    assert_eq!(kept, [2, 4, 5, 6, 7]);
}
