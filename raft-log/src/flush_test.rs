//! Async flush under power failures: what was counted durable is there, and what is there has no gap. The end of a log whose disk hangs.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::Runtime;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::recovery::{LOCK_FILE, open_log};
use crate::segment::{Record, RecordKind};
use crate::testing::{CrashDisk, SlowDisk, StepRuntime};
use crate::vote_and_marks::SavedVote;
use crate::{Disk, FlushMode, LogConfig, LogIndex, NodeId, OsDisk, Term};

fn open(disk: &CrashDisk, runtime: &StepRuntime) -> Result<LogFiles, crate::OpenError> {
    let mut config = LogConfig::new("/log", "cluster", "group", NodeId(1), [NodeId(1)]);
    config.segment_bytes = 64 * 1024;
    config.tail_cache_bytes = 2000;
    config.flush = FlushMode::Async { interval_ms: 10, bytes: 64 * 1024 };
    open_log(&config, Arc::new(disk.clone()), &runtime.handle(), Failure::default())
}

fn record(index: u64, term: u64) -> Record {
    let payload = Bytes::from(vec![index as u8; 100 + index as usize % 3000]);
    Record { id: EntryId::new(term, index), kind: RecordKind::Normal, payload }
}

/// One life after the other, each ended by a power failure at a random durable step.
fn live_through(seed: u64) {
    let mut rng = StdRng::seed_from_u64(seed);
    let disk = CrashDisk::new(seed);
    // Entries below this are durable; what was written, in order.
    let (mut durable, mut written) = (0, Vec::<Record>::new());
    let mut voted = None;
    for life in 1..=6 {
        let runtime = StepRuntime::default();
        disk.crash_at(rng.random_range(1..200));
        let Ok(mut files) = open(&disk, &runtime) else {
            assert!(disk.has_crashed(), "seed {seed}: only the crash may keep a log from opening");
            disk.power_cycle();
            continue;
        };
        let view = files.view();
        let end = view.ends().1.map_or(0, |last| last.index.0 + 1);
        assert!(end >= durable, "seed {seed}: log ends at {end}, was durable to {durable}");
        written.truncate(end as usize);
        assert_eq!(view.read_all(LogIndex(0)..LogIndex(end)).unwrap(), written, "seed {seed}");
        while !disk.has_crashed() {
            let next = written.len() as u64;
            let batch: Vec<Record> = (next..next + rng.random_range(1..6)).map(|index| record(index, life)).collect();
            written.extend(batch.clone());
            let _ = runtime.block_on(files.append(batch, Box::new(|_| {})));
            if rng.random_bool(0.1) {
                let vote = SavedVote { term: Term(life), node: NodeId(1), committed: true };
                let end = view.ends().1.map_or(0, |last| last.index.0 + 1);
                if runtime.block_on(files.save_vote(vote)).is_ok() {
                    voted = Some(vote);
                    durable = durable.max(end);
                }
            }
            if rng.random_bool(0.5) {
                runtime.run();
            }
            durable = durable.max(view.durable_index().map_or(0, |index| index.0 + 1));
        }
        drop(files);
        disk.power_cycle();
    }
    let runtime = StepRuntime::default();
    let view = open(&disk, &runtime).unwrap_or_else(|error| panic!("seed {seed}: {error}")).view();
    assert!(view.ends().1.map_or(0, |last| last.index.0 + 1) >= durable, "seed {seed}");
    assert!(
        view.vote().map(|vote| vote.term) >= voted.map(|vote: SavedVote| vote.term),
        "seed {seed}: a saved vote is there whatever the flush mode"
    );
}

#[test]
fn what_is_durable_survives_a_power_failure_at_any_step_of_an_async_log() {
    for seed in 0..200 {
        live_through(seed);
    }
}

#[test]
fn a_vote_stands_for_all_appends_before_it_in_an_async_log_too() {
    let (disk, runtime) = (CrashDisk::new(1), StepRuntime::default());
    let mut files = open(&disk, &runtime).unwrap();
    runtime.block_on(files.append((0..5).map(|index| record(index, 1)).collect(), Box::new(|_| {}))).unwrap();
    assert_eq!(files.view().durable_index(), None, "nothing is synced yet");
    let vote = SavedVote { term: Term(2), node: NodeId(1), committed: false };
    runtime.block_on(files.save_vote(vote)).unwrap();
    assert_eq!(files.view().durable_index(), Some(LogIndex(4)));
    drop(files);
    disk.power_cycle_losing_all_unsynced();
    assert_eq!(open(&disk, &StepRuntime::default()).unwrap().view().ends().1, Some(EntryId::new(1, 4)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_log_lets_its_directory_go_when_its_last_sync_has_ended() {
    let (runtime, disk) = (Runtime::tokio(), SlowDisk::default());
    for flush in [FlushMode::Sync, FlushMode::Async { interval_ms: 1, bytes: 64 * 1024 }] {
        let dir = tempfile::tempdir().unwrap();
        let mut config = LogConfig::new(dir.path(), "cluster", "group", NodeId(1), [NodeId(1)]);
        (config.segment_bytes, config.flush) = (64 * 1024, flush);
        let mut files = open_log(&config, Arc::new(disk.clone()), &runtime, Failure::default()).unwrap();
        let view = files.view();
        // So that nothing else is under way that the close waits for.
        view.shared.background.idle().await;
        disk.hang(true);
        files.append(vec![record(0, 1)], Box::new(|_| {})).await.unwrap();
        view.shared.background.idle().await;
        drop(files);
        let mut closing = std::pin::pin!(view.close());
        assert!(runtime.timeout(Duration::from_millis(100), &mut closing).await.is_err(), "{flush:?}");
        assert!(OsDisk.lock(&dir.path().join(LOCK_FILE)).is_err(), "{flush:?}: it is still written to");
        disk.hang(false);
        runtime.timeout(Duration::from_secs(60), closing).await.expect("the sync has ended");
        assert!(OsDisk.lock(&dir.path().join(LOCK_FILE)).is_ok(), "{flush:?}");
    }
}
