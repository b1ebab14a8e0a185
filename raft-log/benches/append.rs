//! What an append costs: both flush modes, 128 B and 1 KiB, batches of 1, 64 and 512; and its share of what the disk can do.
//!
//! `cargo bench -p flotilla-raft-log --bench append`; the ratios alone: `… --bench append -- --ratios`, or one of them behind it:
//! `async`, `sync`, `sustained`. `BENCH_DIR` says where.
#![allow(clippy::disallowed_methods, reason = "a bench measures real time")]

mod support;

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use flotilla_raft_log::FlushMode;
use flotilla_raft_log::engine::FileEngine;
use flotilla_runtime::Runtime;
use support::{batch, config, median, open, rate, scratch, threads};

const ASYNC: FlushMode = FlushMode::Async { interval_ms: 500, bytes: 16 << 20 };
const SEGMENT_BYTES: u64 = 256 << 20;
/// Batches that the core has in flight, about.
const IN_FLIGHT: usize = 4;
/// A record's header.
const HEADER_BYTES: usize = 32;

/// Appends one batch after the other, each counted (by the flush mode) before the next one. Returns the time of it all.
async fn append_rounds(engine: &mut FileEngine, payloads: &[bytes::Bytes], rounds: u64, is_sync: bool) -> Duration {
    let began = Instant::now();
    for _ in 0..rounds {
        let batch = payloads.to_vec();
        if is_sync {
            let flushed = engine.append(batch).await.expect("the disk writes");
            flushed.await.expect("the flusher tells").expect("the disk syncs");
        } else {
            engine.append_with(batch, |flushed| flushed.expect("the log is sound")).await.expect("the disk writes");
        }
    }
    began.elapsed()
}

/// As the core does it: appends go on while syncs run, up to `depth` batches in flight; all are counted at the end.
async fn append_in_flight(engine: &mut FileEngine, payloads: &[bytes::Bytes], rounds: u64, depth: usize) -> Duration {
    let began = Instant::now();
    let mut flying = std::collections::VecDeque::new();
    for _ in 0..rounds {
        flying.push_back(engine.append(payloads.to_vec()).await.expect("the disk writes"));
        while flying.len() >= depth {
            let flushed = flying.pop_front().expect("something flies");
            flushed.await.expect("the flusher tells").expect("the disk syncs");
        }
    }
    for flushed in flying {
        flushed.await.expect("the flusher tells").expect("the disk syncs");
    }
    began.elapsed()
}

fn appends(criterion: &mut Criterion) {
    let threads = threads();
    let _entered = threads.enter();
    for (mode, flush) in [("sync", FlushMode::Sync), ("async", ASYNC)] {
        let mut group = criterion.benchmark_group(format!("append/{mode}"));
        group.measurement_time(Duration::from_secs(2)).warm_up_time(Duration::from_millis(500)).sample_size(10);
        for (payload_bytes, count) in [128, 1024].into_iter().flat_map(|bytes| [1, 64, 512].map(|count| (bytes, count)))
        {
            group.throughput(Throughput::Elements(count as u64));
            let id = BenchmarkId::from_parameter(format!("{count} x {payload_bytes} B"));
            group.bench_function(id, |bencher| {
                let dir = scratch();
                let mut engine = open(&config(dir.path(), flush, SEGMENT_BYTES), &Runtime::tokio());
                let payloads = batch(payload_bytes, count);
                bencher.iter_custom(|rounds| {
                    threads.block_on(async {
                        engine.purge_all().await.expect("the log purges");
                        append_rounds(&mut engine, &payloads, rounds, flush == FlushMode::Sync).await
                    })
                });
                threads.block_on(engine.close()).expect("the log closes");
            });
        }
    }
}

/// The same bytes as a record batch, by one `pwrite` and `fdatasync`, into a file whose blocks are written.
fn bare_rounds(file: &std::fs::File, len: u64, position: &mut u64, bytes: &[u8], rounds: u64) -> Duration {
    let began = Instant::now();
    for _ in 0..rounds {
        if *position + bytes.len() as u64 > len {
            *position = 0;
        }
        file.write_all_at(bytes, *position).expect("the disk writes");
        file.sync_data().expect("the disk syncs");
        *position += bytes.len() as u64;
    }
    began.elapsed()
}

/// A file of `len` bytes whose blocks are written.
fn zeroed_file(path: &Path, len: u64) -> std::fs::File {
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(path).expect("the file is new");
    let zeroes = vec![0; 1 << 20];
    for at in (0..len).step_by(1 << 20) {
        file.write_all_at(&zeroes, at).expect("the disk has room");
    }
    file.sync_all().expect("the disk syncs");
    file
}

/// A log whose tail is a file that was made ahead, as all but the very first are, with the next one made ahead, too. What that
/// costs while it goes on shows in [`sustained`].
async fn open_in_the_middle(dir: &Path, segment_bytes: u64) -> FileEngine {
    let mut engine = open(&config(dir, FlushMode::Sync, segment_bytes), &Runtime::tokio());
    engine.append_with(batch(128, 1), |flushed| flushed.expect("the disk syncs")).await.expect("the disk writes");
    engine.settled().await;
    engine.purge_all().await.expect("the log purges");
    engine.settled().await;
    engine
}

fn share_of_bare_writes() {
    let threads = threads();
    let _entered = threads.enter();
    for count in [1, 64, 512] {
        let dir = scratch();
        let log_dir = dir.path().join("log");
        // The usual size: all rounds together stay within one file.
        let mut engine = threads.block_on(open_in_the_middle(&log_dir, 1 << 30));
        let file = zeroed_file(&dir.path().join("bare"), SEGMENT_BYTES);
        let (payloads, bytes) = (batch(1024, count), vec![7; count * (1024 + HEADER_BYTES)]);
        let rounds = (40_000 / count as u64).clamp(100, 1000);
        let mut position = 0;
        let (mut ours, mut flown, mut bare) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..9 {
            let took = threads.block_on(append_in_flight(&mut engine, &payloads, rounds, IN_FLIGHT));
            flown.push(rate(rounds * count as u64, took));
            let took = threads.block_on(append_rounds(&mut engine, &payloads, rounds, true));
            ours.push(rate(rounds * count as u64, took));
            let took = bare_rounds(&file, SEGMENT_BYTES, &mut position, &bytes, rounds);
            bare.push(rate(rounds * count as u64, took));
        }
        let ratio =
            |rates: &[f64]| median(&mut rates.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect::<Vec<_>>());
        let (alone, in_flight) = (ratio(&ours), ratio(&flown));
        println!(
            "sync {count} x 1 KiB, records/s: one batch at a time {:.0} (ratio {alone:.2}), {IN_FLIGHT} in flight {:.0} (ratio \
             {in_flight:.2}), bare pwrite + fdatasync {:.0} (medians of 9 rounds each)",
            median(&mut ours),
            median(&mut flown),
            median(&mut bare),
        );
        threads.block_on(engine.close()).expect("the log closes");
    }
}

/// 1 KiB at a time into pages that are in the page cache: no more than the runway holds, then a pause for it to be filled.
/// Rounds are short, so that most of them are not interrupted where the machine is busy.
fn warm_async_append() {
    const ROUND: u64 = 500;
    let threads = threads();
    let _entered = threads.enter();
    let dir = scratch();
    let flush = FlushMode::Async { interval_ms: 60_000, bytes: 1 << 30 };
    let mut engine = open(&config(dir.path(), flush, 1 << 30), &Runtime::tokio());
    let payloads = batch(1024, 1);
    let mut nanos = Vec::new();
    for _ in 0..15 {
        std::thread::sleep(Duration::from_millis(300));
        for _ in 0..16 {
            let took = threads.block_on(append_rounds(&mut engine, &payloads, ROUND, false));
            nanos.push(took.as_nanos() as f64 / ROUND as f64);
        }
    }
    let fastest = nanos.iter().copied().fold(f64::INFINITY, f64::min);
    println!("async 1 x 1 KiB into warm pages: median {:.0} ns, best {fastest:.0} ns an append", median(&mut nanos));
    threads.block_on(engine.close()).expect("the log closes");
}

/// So much that the page cache's grace is over, everything on disk at the end, beside a plain file written in turn.
fn sustained() {
    const TOTAL_BYTES: u64 = 1 << 30;
    let threads = threads();
    let _entered = threads.enter();
    let (mut sync_ratios, mut async_ratios) = (Vec::new(), Vec::new());
    for round in 0..3 {
        let plain = {
            let dir = scratch();
            let file =
                OpenOptions::new().write(true).create_new(true).open(dir.path().join("plain")).expect("it is new");
            let piece = vec![7; 1 << 20];
            let began = Instant::now();
            for at in (0..TOTAL_BYTES).step_by(1 << 20) {
                file.write_all_at(&piece, at).expect("the disk writes");
            }
            file.sync_all().expect("the disk syncs");
            rate(TOTAL_BYTES, began.elapsed()) / 1e6
        };
        for (flush, ratios) in [(FlushMode::Sync, &mut sync_ratios), (ASYNC, &mut async_ratios)] {
            let dir = scratch();
            let mut engine = open(&config(dir.path(), flush, SEGMENT_BYTES), &Runtime::tokio());
            let payloads = batch(1024, 512);
            let rounds = TOTAL_BYTES / (512 * 1024);
            let began = Instant::now();
            threads.block_on(async {
                append_rounds(&mut engine, &payloads, rounds, flush == FlushMode::Sync).await;
                engine.close().await.expect("the log closes");
            });
            let ours = rate(TOTAL_BYTES, began.elapsed()) / 1e6;
            ratios.push(ours / plain);
            println!("sustained, round {round}: {flush:?} {ours:.0} MB/s, plain sequential write {plain:.0} MB/s");
        }
    }
    let (sync, lazy) = (median(&mut sync_ratios), median(&mut async_ratios));
    println!("sustained: ratio to the plain write, medians: sync {sync:.2}, async {lazy:.2}");
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let ratios = arguments.iter().position(|argument| argument == "--ratios");
    if ratios.is_none() {
        let mut criterion = Criterion::default().configure_from_args();
        appends(&mut criterion);
        criterion.final_summary();
    }
    // The one that is named behind `--ratios`, else all.
    let wanted = ratios.and_then(|place| arguments.get(place + 1));
    let parts: [(&str, fn()); 3] =
        [("async", warm_async_append), ("sync", share_of_bare_writes), ("sustained", sustained)];
    for (name, part) in parts {
        if wanted.is_none_or(|wanted| wanted == name) {
            part();
        }
    }
}
