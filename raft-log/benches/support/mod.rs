//! What the benches share: an engine in a temporary directory, and ratios of interleaved rounds.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_raft_log::engine::FileEngine;
use flotilla_raft_log::{FlushMode, LogConfig, NodeId, OsDisk};
use flotilla_runtime::Runtime;

/// A directory of the bench's own on the disk to be measured: `BENCH_DIR`, else the working directory.
pub fn scratch() -> tempfile::TempDir {
    let place = std::env::var_os("BENCH_DIR").map_or_else(|| PathBuf::from("."), PathBuf::from);
    tempfile::tempdir_in(place).expect("the directory can be written to")
}

pub fn config(dir: &Path, flush: FlushMode, segment_bytes: u64) -> LogConfig {
    let mut config = LogConfig::new(dir, "bench", "bench", NodeId(1), [NodeId(1)]);
    config.segment_bytes = segment_bytes;
    config.flush = flush;
    config
}

pub fn open(config: &LogConfig, runtime: &Runtime) -> FileEngine {
    FileEngine::open(config, runtime, Arc::new(OsDisk)).expect("the log opens")
}

pub fn threads() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("threads can be started")
}

pub fn batch(payload_bytes: usize, count: usize) -> Vec<Bytes> {
    (0..count).map(|number| Bytes::from(vec![number as u8; payload_bytes])).collect()
}

/// Units a second.
pub fn rate(units: u64, took: Duration) -> f64 {
    units as f64 / took.as_secs_f64()
}

pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
