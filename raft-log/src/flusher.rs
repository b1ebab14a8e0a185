//! Group commit: one fdatasync at a time, each for everything that was written before it began.
//!
//! ```text
//! append ─▶ pwrite ─▶ publish ─▶ push(done) ─┐          ┌─▶ done, done, … (oldest first)
//!                                             ▼          │
//!                                      [queue] ─▶ fdatasync ─▶ durable mark
//! ```
//! There is no timer: while a sync runs the next group gathers by itself.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard};

use flotilla_runtime::{Runtime, Task};
use tokio::sync::Notify;

use crate::disk::DiskFile;
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::vote_and_marks::TailFloor;

/// Told once whether what it belongs to is durable.
pub(crate) type FlushDone = Box<dyn FnOnce(io::Result<()>) + Send>;

/// What a sync makes durable: the tail file up to a position. Earlier files were synced when they were sealed.
#[derive(Clone)]
pub(crate) struct FlushTarget {
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<dyn DiskFile>,
    pub(crate) floor: TailFloor,
    pub(crate) last: Option<EntryId>,
}

/// How far the log is durable.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Durable {
    pub(crate) floor: TailFloor,
    pub(crate) last: Option<EntryId>,
}

/// The owner of the log's syncs.
pub(crate) struct Flusher {
    inner: Arc<Inner>,
    task: Mutex<Option<Task<()>>>,
}

struct Inner {
    failure: Failure,
    queue: Mutex<Queue>,
    wake: Notify,
    /// Held while a file is synced and its outcome recorded. The kernel reports a failed write-back once for each open
    /// file: without this, a second sync could come back clean before the first one's failure is known.
    gate: Mutex<()>,
    durable: Mutex<Durable>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<FlushDone>,
    target: Option<FlushTarget>,
    closed: bool,
}

const POISON: &str = "flusher lock is never poisoned: no code panics while holding it";

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect(POISON)
    }

    fn sync(&self, target: &FlushTarget) -> io::Result<()> {
        self.failure.check()?;
        target.file.sync_data().map_err(|error| self.failure.report_io(target.path.display(), error))?;
        let mut durable = self.durable.lock().expect(POISON);
        // A target from before a truncation tells nothing about the file that came after it.
        if target.floor >= durable.floor {
            *durable = Durable { floor: target.floor, last: target.last };
        }
        Ok(())
    }

    /// Syncs and tells until nobody waits.
    fn drain(&self) {
        loop {
            let gate = self.gate.lock().expect(POISON);
            let (waiting, target) = {
                let mut queue = self.queue();
                (std::mem::take(&mut queue.waiting), queue.target.clone())
            };
            let Some(target) = target.filter(|_| !waiting.is_empty()) else {
                return;
            };
            let synced = self.sync(&target);
            drop(gate);
            for done in waiting {
                done(match &synced {
                    Ok(()) => Ok(()),
                    Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                });
            }
        }
    }
}

impl Flusher {
    /// Starts the flusher of a log whose tail is durable as told.
    pub(crate) fn start(runtime: &Runtime, failure: Failure, durable: Durable) -> Flusher {
        let inner = Arc::new(Inner {
            failure,
            queue: Mutex::default(),
            wake: Notify::new(),
            gate: Mutex::new(()),
            durable: Mutex::new(durable),
        });
        let task = runtime.spawn("log-flusher", run(runtime.clone(), inner.clone()));
        Flusher { inner, task: Mutex::new(Some(task)) }
    }

    /// `done` is told once everything written to `target` before this call is durable.
    pub(crate) fn push(&self, target: FlushTarget, done: FlushDone) {
        let mut queue = self.inner.queue();
        queue.target = Some(target);
        queue.waiting.push(done);
        drop(queue);
        self.inner.wake.notify_one();
    }

    /// `done` is told once everything written before this call is durable.
    pub(crate) fn flush(&self, done: FlushDone) {
        let mut queue = self.inner.queue();
        if queue.target.is_none() {
            // Nothing was written since the log was opened, and what was found then was synced then.
            drop(queue);
            return done(self.inner.failure.check());
        }
        queue.waiting.push(done);
        drop(queue);
        self.inner.wake.notify_one();
    }

    /// Syncs `target` here and now; blocks. Callbacks are left to the flusher's own round.
    pub(crate) fn sync_now(&self, target: &FlushTarget) -> io::Result<()> {
        let _gate = self.inner.gate.lock().expect(POISON);
        self.inner.sync(target)
    }

    /// How far the log is durable.
    pub(crate) fn durable(&self) -> Durable {
        *self.inner.durable.lock().expect(POISON)
    }

    /// Notes a new tail file, all before which is durable.
    pub(crate) fn tail_moved(&self, durable: Durable) {
        *self.inner.durable.lock().expect(POISON) = durable;
    }

    /// Serves everybody who waits, then ends.
    pub(crate) async fn close(&self) {
        self.inner.queue().closed = true;
        self.inner.wake.notify_one();
        let task = self.task.lock().expect(POISON).take();
        if let Some(task) = task {
            // It can only have been cancelled with its runtime; then nobody waits any more.
            let _ = task.join().await;
        }
    }
}

async fn run(runtime: Runtime, inner: Arc<Inner>) {
    loop {
        inner.wake.notified().await;
        let idle = inner.queue().waiting.is_empty();
        if !idle {
            let inner = inner.clone();
            runtime.blocking(move || inner.drain()).await;
        }
        let queue = inner.queue();
        if queue.closed && queue.waiting.is_empty() {
            return;
        }
    }
}
