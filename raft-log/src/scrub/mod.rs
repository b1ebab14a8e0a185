//! The scrub: reads all sealed segments against their checksums, slowly, again and again.
//!
//! Damage that nobody reads is found while other replicas still have what was lost. It reads at a set pace, keeps what it
//! read out of the page cache, and stands still while the log grows fast.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};

use crate::log_view::LogView;
use crate::segment::Examination;
use crate::{Corruption, LogConfig, ScrubProgress};

/// The first pass begins this long after the start (or after an interval, if that is shorter).
const FIRST_PAUSE: Duration = Duration::from_secs(600);
/// Looked at in one go, bytes.
const PIECE_BYTES: u64 = 1 << 20;
/// A log that grows by more entries a second is under load.
const LOAD_ENTRIES_PER_S: u64 = 200;
/// How often a scrub that stands still looks at the load.
const LOAD_PAUSE: Duration = Duration::from_secs(1);
/// Under lasting load the scrub goes on by one piece after so long.
const LOAD_PAUSE_MAX: Duration = Duration::from_secs(30);

/// Owns the task; dropping it ends it.
pub(crate) struct Scrub {
    progress: Arc<Mutex<ScrubProgress>>,
    _task: Option<Task<()>>,
}

struct Worker {
    view: LogView,
    runtime: Runtime,
    bytes_per_s: u64,
    interval: Duration,
    progress: Arc<Mutex<ScrubProgress>>,
}

impl Scrub {
    /// Begins, unless the settings turn it off.
    pub(crate) fn start(config: &LogConfig, view: LogView, runtime: &Runtime) -> Scrub {
        let progress = Arc::<Mutex<ScrubProgress>>::default();
        let worker = Worker {
            view,
            runtime: runtime.clone(),
            bytes_per_s: config.scrub_bytes_per_s,
            interval: Duration::from_millis(config.scrub_interval_ms),
            progress: progress.clone(),
        };
        let is_on = config.scrub_bytes_per_s > 0;
        let task = is_on.then(|| runtime.spawn("scrub", async move { worker.run().await }));
        Scrub { progress, _task: task }
    }

    pub(crate) fn progress(&self) -> ScrubProgress {
        lock(&self.progress).clone()
    }
}

fn lock(progress: &Mutex<ScrubProgress>) -> MutexGuard<'_, ScrubProgress> {
    progress.lock().expect("scrub lock is never poisoned: no code panics while holding it")
}

impl Worker {
    async fn run(&self) {
        self.runtime.sleep(FIRST_PAUSE.min(self.interval)).await;
        while !self.view.shared.damages.is_closing() {
            let began = self.runtime.now();
            self.pass().await;
            self.runtime.sleep_until(began + self.interval).await;
        }
    }

    /// Everything that is sealed when it begins.
    async fn pass(&self) {
        let sealed: Vec<u64> = {
            let state = self.view.shared.state();
            let sealed = state.segments.len().saturating_sub(1);
            state.segments[..sealed].iter().map(|segment| segment.header.sequence).collect()
        };
        {
            let mut progress = lock(&self.progress);
            progress.is_running = true;
            progress.segments = sealed.len() as u64;
            progress.segments_done = 0;
        }
        let (mut bytes, mut findings) = (0, 0);
        for sequence in sealed {
            let examination = {
                let state = self.view.shared.state();
                let found = state.segments.iter().find(|segment| segment.header.sequence == sequence);
                found.map(Examination::of)
            };
            // Purged meanwhile, if it is not there.
            if let Some(examination) = examination {
                let (seen, is_damaged) = self.look(examination).await;
                bytes += seen;
                findings += u64::from(is_damaged);
            }
            lock(&self.progress).segments_done += 1;
            if self.view.shared.damages.is_closing() {
                return;
            }
        }
        let segments = {
            let mut progress = lock(&self.progress);
            progress.is_running = false;
            progress.passes_total += 1;
            progress.last_ended_wall_ms = self.runtime.wall_ms();
            progress.segments
        };
        tracing::info!(segments, bytes, findings, "scrub: pass over all sealed segments done");
    }

    /// Looks at one segment piece by piece. How many bytes, and whether there is damage.
    async fn look(&self, mut examination: Examination) -> (u64, bool) {
        let mut seen = 0;
        loop {
            let (looked, stepped) = self
                .runtime
                .blocking(move || {
                    let stepped = examination.step(PIECE_BYTES);
                    (examination, stepped)
                })
                .await;
            examination = looked;
            if stepped == 0 {
                break;
            }
            seen += stepped;
            lock(&self.progress).bytes_total += stepped;
            let pause_ms = stepped.saturating_mul(1000) / self.bytes_per_s;
            self.runtime.sleep(Duration::from_millis(pause_ms)).await;
            self.wait_for_calm().await;
            if self.view.shared.damages.is_closing() {
                return (seen, false);
            }
        }
        let (sequence, file, path) =
            (examination.sequence(), examination.file().clone(), examination.path().to_owned());
        let examined = examination.finish();
        let Some(first) = examined.damaged.first() else { return (seen, false) };
        let what = format!("entry {}: {} (found by the scrub)", first.first, first.what);
        let corruption = Corruption { path, offset: first.position, what };
        self.view.shared.damages.suspect(sequence, &file, &corruption);
        lock(&self.progress).findings_total += 1;
        (seen, true)
    }

    async fn wait_for_calm(&self) {
        let began = self.runtime.now();
        loop {
            let end = self.view.shared.state().end();
            if self.runtime.now() >= began + LOAD_PAUSE_MAX {
                return;
            }
            self.runtime.sleep(LOAD_PAUSE / 10).await;
            let grown = self.view.shared.state().end().0.saturating_sub(end.0);
            if grown * 10 <= LOAD_ENTRIES_PER_S {
                return;
            }
            self.runtime.sleep(LOAD_PAUSE).await;
        }
    }
}
