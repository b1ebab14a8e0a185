//! Measures one replica: proposals a second and their latency, each durable and applied before it is answered.
//!
//! `cargo run --release -p flotilla-raft-log --example propose -- [IN_FLIGHT] [PAYLOAD_BYTES] [SECONDS]`

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_raft_log::{
    AppendChannel, LogConfig, LogIndex, NodeId, OsDisk, PeerCallKind, Probe, ReplicatedLog, RestoreError, StateMachine,
    Term, Transport, TransportError,
};
use flotilla_runtime::{BoxFuture, Runtime};

struct Nobody;

impl Transport for Nobody {
    fn call(
        &self,
        _target: NodeId,
        _kind: PeerCallKind,
        _body: Bytes,
        _timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        Box::pin(async { Err(TransportError::Unreachable("there are no peers".to_owned())) })
    }

    fn open_append(&self, _target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        Box::pin(async { Err(TransportError::Unreachable("there are no peers".to_owned())) })
    }

    fn probe(&self, _target: NodeId, _timeout: Duration) -> BoxFuture<'static, Probe> {
        Box::pin(async { Probe::NoAnswer })
    }
}

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

#[tokio::main]
async fn main() {
    let numbers: Vec<u64> = std::env::args().skip(1).map(|text| text.parse().expect("arguments are numbers")).collect();
    let number = |place: usize, default| numbers.get(place).copied().unwrap_or(default);
    let (in_flight, payload_bytes, seconds) = (number(0, 64), number(1, 1024), number(2, 3));
    let dir = tempfile::tempdir_in(".").expect("the working directory can be written to");
    let mut config = LogConfig::new(dir.path(), "example", "example", NodeId(1), [NodeId(1)]);
    config.segment_bytes = 256 << 20;
    let runtime = Runtime::tokio();
    let log = ReplicatedLog::open(config, runtime.clone(), Arc::new(OsDisk), Arc::new(Nobody), Nothing).await;
    let log = log.expect("a new log opens");
    while !log.status().can_write {
        log.status_changed(&log.status()).await;
    }
    let payload = Bytes::from(vec![7; payload_bytes as usize]);
    let end = runtime.now() + Duration::from_secs(seconds);
    let proposers: Vec<_> = (0..in_flight)
        .map(|_| {
            let (log, payload, clock) = (log.clone(), payload.clone(), runtime.clone());
            runtime.spawn("proposer", async move {
                let mut took = Vec::new();
                while clock.now() < end {
                    let began = clock.now();
                    log.propose(payload.clone(), None).await.expect("a single replica accepts");
                    took.push(clock.now() - began);
                }
                took
            })
        })
        .collect();
    let mut took = Vec::new();
    for proposer in proposers {
        took.extend(proposer.await.expect("no proposer panics"));
    }
    took.sort();
    println!(
        "{in_flight} in flight of {payload_bytes} bytes: {} proposals/s, p50 {:?}, p99 {:?}",
        took.len() as u64 / seconds,
        took[took.len() / 2],
        took[took.len() * 99 / 100],
    );
    log.shutdown(Duration::from_secs(5)).await;
}
