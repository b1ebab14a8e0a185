//! openraft's own storage suite, over segment files in temporary directories.

use bytes::Bytes;
use flotilla_runtime::Runtime;
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tempfile::TempDir;

use super::log_store::LogStore;
use super::machine::Machine;
use super::type_config::TypeConfig;
use crate::ack::{AckTracker, LagLimits};
use crate::checkpoint_store::CheckpointStore;
use crate::failure::Failure;
use crate::lost_tail::TailKeeper;
use crate::recovery::open_log;
use crate::vitals::Vitals;
use crate::{LogConfig, LogIndex, NodeId, OsDisk, RestoreError, StateMachine, Term};

struct Nothing;

impl StateMachine for Nothing {
    type Output = ();
    fn apply(&mut self, _index: LogIndex, _term: Term, _payload: Bytes) {}
    fn segment_started(&mut self, _first: LogIndex) -> io::Result<()> {
        Ok(())
    }
    fn checkpoint(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, _checkpoint: &[u8], _applied: LogIndex) -> Result<(), RestoreError> {
        Ok(())
    }
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, Machine, TempDir> for Builder {
    async fn build(&self) -> Result<(TempDir, LogStore, Machine), StorageError<TypeConfig>> {
        let dir = tempfile::tempdir().unwrap();
        let mut config = LogConfig::new(dir.path(), "cluster", "group", NodeId(0), [NodeId(0)]);
        config.segment_bytes = 64 * 1024;
        let (disk, runtime) = (Arc::new(OsDisk), Runtime::tokio());
        let files = open_log(&config, disk.clone(), &runtime, Failure::default()).unwrap();
        let view = files.view();
        let (checkpoints, newest) =
            CheckpointStore::open(disk.clone(), config.dir.clone(), runtime.clone(), view.clone()).unwrap();
        let vitals = Arc::new(Vitals::new(view.clone(), Runtime::tokio()));
        let (machine, _) = Machine::open(Box::new(Nothing), view, checkpoints, newest, vitals).unwrap();
        let limits = LagLimits { time: Duration::from_secs(1), bytes: 1 << 30 };
        let acks = AckTracker::new(runtime.clone(), config.node, config.voters.clone(), limits);
        let keeper = TailKeeper::open(config.node, disk.clone(), config.dir.clone(), |_| 0);
        Ok((dir, LogStore::new(files, acks, keeper), machine))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_passes_openrafts_own_suite() {
    Suite::test_all(Builder).await.unwrap();
}
