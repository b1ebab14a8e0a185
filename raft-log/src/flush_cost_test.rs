//! A measurement, not a test: syncs a second of logs that share a disk's flusher, against logs that are alone and borrow threads from
//! the runtime, in turns, on the disk of the temporary directory.
//! `cargo test --workspace --profile ci --lib -- --ignored --nocapture flush_cost`

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use flotilla_runtime::Runtime;
use tokio::runtime::Handle;

use crate::disk_flusher::{DiskFlusher, FlusherSeat};
use crate::failure::Failure;
use crate::flusher::{Durable, FlushTarget, Flusher};
use crate::ids::EntryId;
use crate::vote_and_marks::TailFloor;
use crate::{Disk, DiskFile, FlushMode, OsDisk};

const FILE_BYTES: u64 = 8 << 20;
const RECORD: [u8; 1024] = [7; 1024];
const RECORDS_PER_SYNC: u64 = 64;
const ROUND: Duration = Duration::from_secs(1);
const ROUNDS: usize = 7;

/// A log that writes and waits for its sync, again and again.
struct Writer {
    flusher: Flusher,
    file: Arc<dyn DiskFile>,
    path: Arc<Path>,
    position: u64,
}

impl Writer {
    fn new(dir: &Path, name: &str, seat: FlusherSeat, runtime: &Runtime) -> Writer {
        let path = dir.join(name);
        let file = OsDisk.create(&path, FILE_BYTES).unwrap();
        let flusher = Flusher::start(runtime, seat, Failure::default(), FlushMode::Sync, Durable::default());
        Writer { flusher, file, path: path.into(), position: 0 }
    }

    fn push(&mut self) -> Receiver<()> {
        for _ in 0..RECORDS_PER_SYNC {
            self.file.write_at(self.position % FILE_BYTES, &RECORD).unwrap();
            self.position += RECORD.len() as u64;
        }
        let (told, synced) = channel();
        let target = FlushTarget {
            path: self.path.clone(),
            file: self.file.clone(),
            floor: TailFloor { sequence: 1, position: self.position },
            last: Some(EntryId::new(1, self.position)),
        };
        let done = Box::new(move |flushed: std::io::Result<()>| {
            flushed.unwrap();
            told.send(()).unwrap();
        });
        self.flusher.push(&target, RECORDS_PER_SYNC * 1024, done);
        synced
    }
}

/// Syncs a second of all logs together.
fn rate(writers: &mut [Writer], runtime: &Runtime, tokio: &Handle) -> f64 {
    let began = runtime.now();
    let total: u64 = std::thread::scope(|scope| {
        let each = |writer| {
            let writer: &mut Writer = writer;
            scope.spawn(move || {
                let _inside = tokio.enter();
                let mut syncs = 0;
                while runtime.now() - began < ROUND {
                    writer.push().recv().unwrap();
                    syncs += 1_u64;
                }
                syncs
            })
        };
        let threads: Vec<_> = writers.iter_mut().map(each).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    total as f64 / (runtime.now() - began).as_secs_f64()
}

#[test]
#[ignore = "a measurement that needs a quiet disk"]
fn flush_cost() {
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).build().unwrap();
    let (runtime, dir) = (Runtime::tokio(), tempfile::tempdir().unwrap());
    for logs in [1, 2, 8] {
        let alone = (0..logs)
            .map(|number| Writer::new(dir.path(), &format!("{logs}-{number}"), FlusherSeat::alone(&runtime), &runtime));
        let mut ways: Vec<(String, Vec<Writer>)> = vec![("alone".to_owned(), alone.collect())];
        for threads in [1, 2, 4, 8].into_iter().filter(|threads| *threads <= logs) {
            let flusher = Arc::<DiskFlusher>::default();
            let shared = (0..logs).map(|number| {
                let seat = FlusherSeat::at(&flusher, &runtime);
                Writer::new(dir.path(), &format!("{logs}-{number}-{threads}"), seat, &runtime)
            });
            ways.push((format!("shared, {threads} thread(s)"), shared.collect()));
            for _ in 0..threads {
                flusher.start_thread(&runtime).unwrap();
            }
        }
        let mut rates: Vec<Vec<f64>> = vec![Vec::new(); ways.len()];
        for _ in 0..ROUNDS {
            for ((_, writers), rates) in ways.iter_mut().zip(&mut rates) {
                rates.push(rate(writers, &runtime, tokio.handle()));
            }
        }
        let medians: Vec<f64> = rates
            .iter_mut()
            .map(|rates| {
                rates.sort_by(f64::total_cmp);
                rates[ROUNDS / 2]
            })
            .collect();
        for (((name, _), median), rates) in ways.iter().zip(&medians).zip(&rates) {
            let (least, most, ratio) = (rates[0], rates[ROUNDS - 1], median / medians[0]);
            println!("{logs} log(s), {name}: {median:.0} syncs/s ({least:.0} to {most:.0}), ratio {ratio:.3}");
        }
    }
}
