//! What a start costs: the checksummed scan of a tail segment per GB, and sealed segments with and without summaries.
//!
//! `cargo bench -p flotilla-raft-log --bench recovery`; the figures alone: `… --bench recovery -- --ratios`.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use flotilla_raft_log::{FlushMode, LogConfig};
use flotilla_runtime::Runtime;
use support::{batch, config, median, open, rate, scratch, threads};
use tokio::runtime::Runtime as Runner;

const LOG_BYTES: u64 = 960 << 20;
const FLUSH: FlushMode = FlushMode::Async { interval_ms: 1000, bytes: 64 << 20 };

fn fill(threads: &Runner, config: &LogConfig, payload_bytes: usize) -> u64 {
    let mut engine = open(config, &Runtime::tokio());
    let count = (1 << 20) / (payload_bytes + 32);
    let payloads = batch(payload_bytes, count);
    threads.block_on(async {
        for _ in 0..LOG_BYTES >> 20 {
            engine
                .append_with(payloads.clone(), |flushed| flushed.expect("the log is sound"))
                .await
                .expect("it writes");
        }
        engine.close().await.expect("the log closes");
    });
    (LOG_BYTES >> 20) * count as u64 * (payload_bytes as u64 + 32)
}

fn reopen(threads: &Runner, config: &LogConfig) -> Duration {
    let began = Instant::now();
    let engine = open(config, &Runtime::tokio());
    let took = began.elapsed();
    threads.block_on(engine.close()).expect("the log closes");
    took
}

fn remove_summaries(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("the directory is there").flatten() {
        if entry.path().extension().is_some_and(|extension| extension == "sum") {
            std::fs::remove_file(entry.path()).expect("a summary may go");
        }
    }
}

fn tail_scan(criterion: Option<&mut Criterion>) {
    let threads = threads();
    let _entered = threads.enter();
    let dir = scratch();
    let mut cases = Vec::new();
    for payload_bytes in [128, 1024, 64 << 10] {
        let config = config(&dir.path().join(payload_bytes.to_string()), FLUSH, 1 << 30);
        let bytes = fill(&threads, &config, payload_bytes);
        let mut rates: Vec<f64> = (0..5).map(|_| rate(bytes, reopen(&threads, &config)) / 1e9).collect();
        println!(
            "tail scan, records of {payload_bytes} B, log in the page cache: {:.2} GB/s (median of 5)",
            median(&mut rates)
        );
        cases.push((payload_bytes, config, bytes));
    }
    let Some(criterion) = criterion else { return };
    let mut group = criterion.benchmark_group("recovery/tail");
    group.measurement_time(Duration::from_secs(5)).sample_size(10);
    for (payload_bytes, config, bytes) in &cases {
        group.throughput(Throughput::Bytes(*bytes));
        group.bench_function(format!("{payload_bytes} B"), |bencher| {
            bencher.iter_custom(|rounds| (0..rounds).map(|_| reopen(&threads, config)).sum());
        });
    }
    group.finish();
}

fn sealed_segments() {
    let threads = threads();
    let _entered = threads.enter();
    let dir = scratch();
    let config = config(dir.path(), FLUSH, 64 << 20);
    let bytes = fill(&threads, &config, 1024);
    let per_gb = |took: Duration| took.as_secs_f64() * 1e3 / (bytes as f64 / 1e9);
    let mut with: Vec<f64> = (0..5).map(|_| per_gb(reopen(&threads, &config))).collect();
    let mut without: Vec<f64> = (0..5)
        .map(|_| {
            remove_summaries(dir.path());
            per_gb(reopen(&threads, &config))
        })
        .collect();
    println!(
        "start per GB in sealed segments of 64 MiB: {:.1} ms with summaries, {:.1} ms without (medians of 5, log in the page cache)",
        median(&mut with),
        median(&mut without)
    );
}

fn main() {
    if std::env::args().any(|argument| argument == "--ratios") {
        tail_scan(None);
    } else {
        let mut criterion = Criterion::default().configure_from_args();
        tail_scan(Some(&mut criterion));
        criterion.final_summary();
    }
    sealed_segments();
}
