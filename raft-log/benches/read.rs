//! What reading costs: the newest entries, out of memory; an old backlog, out of the page cache and off the disk.
//!
//! `cargo bench -p flotilla-raft-log --bench read`.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod support;

use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput};
use flotilla_raft_log::engine::FileEngine;
use flotilla_raft_log::{Disk, FlushMode, LogIndex, OsDisk};
use flotilla_runtime::Runtime;
use support::{batch, config, median, open, rate, scratch, threads};

const FLUSH: FlushMode = FlushMode::Async { interval_ms: 1000, bytes: 64 << 20 };
const COUNT: u64 = 1 << 20;
const PIECE_BYTES: usize = 1 << 20;

fn walk(engine: &FileEngine, from: u64, end: u64) -> u64 {
    let mut at = from;
    while at < end {
        let payloads = engine.read(LogIndex(at)..LogIndex(end), PIECE_BYTES).expect("what was written reads back");
        at += payloads.len() as u64;
    }
    at - from
}

fn drop_page_cache(dir: &Path) {
    for name in OsDisk.list(dir).expect("the directory is there") {
        let file = OsDisk.open(&dir.join(name)).expect("the file is there");
        file.forget_cached(0, file.len());
    }
}

fn main() {
    let threads = threads();
    let _entered = threads.enter();
    let dir = scratch();
    let mut engine = open(&config(dir.path(), FLUSH, 128 << 20), &Runtime::tokio());
    let payloads = batch(1024, 1024);
    threads.block_on(async {
        for _ in 0..COUNT / 1024 {
            engine
                .append_with(payloads.clone(), |flushed| flushed.expect("the log is sound"))
                .await
                .expect("it writes");
        }
    });
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("read");
    group.measurement_time(Duration::from_secs(3)).sample_size(10);
    let hot = 16 * 1024;
    group.throughput(Throughput::Bytes(hot * 1024));
    group.bench_function("hot tail, 16 MiB in pieces of 1 MiB", |bencher| {
        bencher.iter(|| walk(&engine, COUNT - hot, COUNT));
    });
    group.throughput(Throughput::Elements(1));
    let mut at = COUNT - hot;
    group.bench_function("hot tail, one entry", |bencher| {
        bencher.iter(|| {
            at = if at + 1 < COUNT { at + 1 } else { COUNT - hot };
            engine.read(LogIndex(at)..LogIndex(at + 1), 0).expect("it is there")
        });
    });
    let mut at = 7;
    group.bench_function("backlog in the page cache, one entry anywhere", |bencher| {
        bencher.iter(|| {
            at = (at + 7919) % (COUNT / 2);
            engine.read(LogIndex(at)..LogIndex(at + 1), 0).expect("it is there")
        });
    });
    group.finish();
    criterion.final_summary();

    let backlog = COUNT / 2;
    let (mut cold, mut warm) = (Vec::new(), Vec::new());
    for _ in 0..5 {
        drop_page_cache(dir.path());
        let began = Instant::now();
        walk(&engine, 0, backlog);
        cold.push(rate(backlog * 1024, began.elapsed()) / 1e6);
        // Readers of an old backlog leave the cache as it was: have it read once by others.
        for name in OsDisk.list(dir.path()).expect("the directory is there") {
            drop(std::fs::read(dir.path().join(name)).expect("the file reads"));
        }
        let began = Instant::now();
        walk(&engine, backlog, backlog + backlog / 2);
        warm.push(rate(backlog / 2 * 1024, began.elapsed()) / 1e6);
    }
    println!(
        "backlog of 512 MiB in records of 1 KiB: off the disk {:.0} MB/s, out of the page cache {:.0} MB/s (medians of 5, checksums checked)",
        median(&mut cold),
        median(&mut warm)
    );
    threads.block_on(engine.close()).expect("the log closes");
}
