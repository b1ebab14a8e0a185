//! Group commit: one fdatasync at a time, each for everything that was written before it began.
//!
//! ```text
//! append ─▶ write ─▶ publish ─▶ push(done) ─┐          ┌─▶ done, done, … (oldest first)
//!                                            ▼          │
//!                                     [queue] ─▶ fdatasync ─▶ durable mark
//! ```
//! The syncs are done by a thread of the disk's flusher ([`crate::disk_flusher`]), one at a time. With [`FlushMode::Sync`] there is
//! no timer and no task: who pushes while nobody syncs has it begin, and while one runs the next group gathers by itself. With
//! [`FlushMode::Async`] an append is done once it is written, and a task has a sync follow after an interval or so many bytes.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::{Runtime, Task, select};
use tokio::sync::Notify;

use crate::disk::DiskFile;
use crate::disk_flusher::FlusherSeat;
use crate::failure::{Failure, ReportPanic};
use crate::ids::EntryId;
use crate::sync_times::{SlowSyncs, SyncHistogram, SyncTimes};
use crate::vote_and_marks::TailFloor;
use crate::{FlushMode, LogIndex};

/// With [`FlushMode::Async`] appends wait once so many times its `bytes` are not synced.
const UNSYNCED_FACTOR: u64 = 4;

/// Told once whether what it belongs to is durable (as the mode has it).
pub(crate) type FlushDone = Box<dyn FnOnce(io::Result<()>) + Send>;

/// What a sync makes durable: the tail file up to a position. Earlier files were synced when they were sealed.
#[derive(Clone)]
pub(crate) struct FlushTarget {
    pub(crate) path: Arc<Path>,
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
    runtime: Runtime,
    seat: FlusherSeat,
    failure: Failure,
    mode: FlushMode,
    queue: Mutex<Queue>,
    /// There is something to sync.
    wake: Notify,
    /// It should not wait for the interval.
    hurry: Notify,
    /// Nobody drains the queue any more.
    idle: Notify,
    /// Held while a file is synced and its outcome recorded. The kernel reports a failed write-back once for each open
    /// file: without this, a second sync could come back clean before the first one's failure is known.
    gate: Mutex<()>,
    durable: Mutex<Durable>,
    /// `durable` moved, or never will again.
    moved: Notify,
    times: Mutex<SyncTimes>,
}

#[derive(Default)]
struct Queue {
    waiting: Vec<FlushDone>,
    target: Option<FlushTarget>,
    /// Bytes pushed since the last sync began.
    unsynced_bytes: u64,
    /// Somebody was asked to sync, and looks again before he goes.
    is_draining: bool,
    closed: bool,
}

/// The drain that was asked for; over when it has found nothing left to do, or when it never gets to run.
struct Draining {
    inner: Arc<Inner>,
    is_over: bool,
}

impl Draining {
    /// True: there is more to do.
    fn run(&mut self) -> bool {
        let failure = self.inner.failure.clone();
        let _guard = ReportPanic { failure: &failure, what: "flusher" };
        self.is_over = !self.inner.sync_waiting();
        !self.is_over
    }
}

impl Drop for Draining {
    fn drop(&mut self) {
        if !self.is_over {
            self.inner.queue().is_draining = false;
        }
        self.inner.idle.notify_waiters();
    }
}

const POISON: &str = "flusher lock is never poisoned: no code panics while holding it";

impl Queue {
    fn has_work(&self) -> bool {
        !self.waiting.is_empty() || self.unsynced_bytes > 0
    }

    /// Within one file only the place moves on.
    fn aim(&mut self, target: &FlushTarget) {
        match &mut self.target {
            Some(known) if Arc::ptr_eq(&known.file, &target.file) => {
                (known.floor, known.last) = (target.floor, target.last);
            }
            known => *known = Some(target.clone()),
        }
    }
}

impl Inner {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().expect(POISON)
    }

    fn times(&self) -> MutexGuard<'_, SyncTimes> {
        self.times.lock().expect(POISON)
    }

    fn sync(&self, target: &FlushTarget) -> io::Result<()> {
        self.failure.check()?;
        self.times().begin(self.runtime.now());
        let synced = if is_planted(Bug::AckBeforeSync) { Ok(()) } else { target.file.sync_data() };
        let synced = if is_planted(Bug::SyncErrorIgnored) { Ok(()) } else { synced };
        self.times().end(self.runtime.now());
        synced.map_err(|error| self.failure.report_io(target.path.display(), error))?;
        {
            let mut durable = self.durable.lock().expect(POISON);
            // A target from before a truncation tells nothing about the file that came after it.
            if target.floor >= durable.floor {
                *durable = Durable { floor: target.floor, last: target.last };
            }
        }
        self.moved.notify_waiters();
        Ok(())
    }

    /// Has everybody who waits served, unless somebody is at it. Returns at once.
    fn start_drain(self: &Arc<Inner>, mut queue: MutexGuard<'_, Queue>) {
        if std::mem::replace(&mut queue.is_draining, true) {
            return;
        }
        drop(queue);
        let mut draining = Draining { inner: self.clone(), is_over: false };
        self.seat.submit(Box::new(move || draining.run()));
    }

    /// Resolves once nobody syncs.
    async fn drained(&self) {
        loop {
            let idle = self.idle.notified();
            let mut idle = std::pin::pin!(idle);
            idle.as_mut().enable();
            if !self.queue().is_draining {
                return;
            }
            idle.await;
        }
    }

    /// One sync for all that wait, and their answers. True if more wait by then.
    fn sync_waiting(&self) -> bool {
        let gate = self.gate.lock().expect(POISON);
        let (waiting, target) = {
            let mut queue = self.queue();
            queue.unsynced_bytes = 0;
            (std::mem::take(&mut queue.waiting), queue.target.clone())
        };
        // Whoever waits has set one before.
        if let Some(target) = target {
            let synced = self.sync(&target);
            drop(gate);
            for done in waiting {
                done(match &synced {
                    Ok(()) => Ok(()),
                    Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
                });
            }
        }
        let mut queue = self.queue();
        // Under the lock: whoever comes next asks for the next drain. What was pushed meanwhile with [`FlushMode::Async`] has an
        // interval of its own, as its push has woken the task again.
        queue.is_draining = !queue.waiting.is_empty();
        queue.is_draining
    }
}

impl Flusher {
    /// Starts the flusher of a log whose tail is durable as told.
    pub(crate) fn start(
        runtime: &Runtime,
        seat: FlusherSeat,
        failure: Failure,
        mode: FlushMode,
        durable: Durable,
    ) -> Flusher {
        let inner = Arc::new(Inner {
            runtime: runtime.clone(),
            seat,
            failure,
            mode,
            queue: Mutex::default(),
            wake: Notify::new(),
            hurry: Notify::new(),
            idle: Notify::new(),
            gate: Mutex::new(()),
            durable: Mutex::new(durable),
            moved: Notify::new(),
            times: Mutex::default(),
        });
        let task = (mode != FlushMode::Sync).then(|| runtime.spawn("log-flusher", run(inner.clone())));
        Flusher { inner, task: Mutex::new(task) }
    }

    pub(crate) fn mode(&self) -> FlushMode {
        self.inner.mode
    }

    /// Notes `bytes` more that were written to `target`. `done` is told once they count: when everything written before
    /// this call is durable, or at once with [`FlushMode::Async`]. True if the disk is so far behind that the caller must
    /// [`Flusher::keep_up`].
    pub(crate) fn push(&self, target: &FlushTarget, bytes: u64, done: FlushDone) -> bool {
        let FlushMode::Async { bytes: hurry_bytes, .. } = self.inner.mode else {
            let mut queue = self.inner.queue();
            queue.aim(target);
            queue.waiting.push(done);
            self.inner.start_drain(queue);
            return false;
        };
        let mut queue = self.inner.queue();
        queue.aim(target);
        let before = queue.unsynced_bytes;
        queue.unsynced_bytes += bytes;
        drop(queue);
        if before == 0 {
            self.inner.wake.notify_one();
        }
        if before < hurry_bytes && before + bytes >= hurry_bytes {
            self.inner.hurry.notify_one();
        }
        done(self.inner.failure.check());
        before + bytes >= hurry_bytes.saturating_mul(UNSYNCED_FACTOR)
    }

    /// With [`FlushMode::Async`], waits while far more is unsynced than the settings say: a disk that cannot follow.
    pub(crate) async fn keep_up(&self) {
        let FlushMode::Async { bytes, .. } = self.inner.mode else { return };
        let is_behind = || self.inner.queue().unsynced_bytes >= bytes.saturating_mul(UNSYNCED_FACTOR);
        while is_behind() {
            let moved = self.inner.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            if !is_behind() || self.inner.failure.is_set() {
                return;
            }
            self.inner.hurry.notify_one();
            select(moved, self.inner.failure.wait()).await;
        }
    }

    /// `done` is told once everything written before this call is durable, whatever the mode.
    pub(crate) fn flush(&self, done: FlushDone) {
        let mut queue = self.inner.queue();
        if queue.target.is_none() {
            // Nothing was written since the log was opened, and what was found then was synced then.
            drop(queue);
            return done(self.inner.failure.check());
        }
        queue.waiting.push(done);
        if self.inner.mode == FlushMode::Sync {
            return self.inner.start_drain(queue);
        }
        drop(queue);
        self.inner.wake.notify_one();
        self.inner.hurry.notify_one();
    }

    /// Syncs `target` here and now, unless a sync has covered all of it already; blocks. Callbacks are left to the flusher's
    /// own round.
    pub(crate) fn make_durable(&self, target: &FlushTarget) -> io::Result<()> {
        // Behind the gate: a sync that runs may be the one that fails.
        let _gate = self.inner.gate.lock().expect(POISON);
        self.inner.failure.check()?;
        if self.durable().floor == target.floor {
            return Ok(());
        }
        self.inner.sync(target)
    }

    /// How far the log is durable.
    pub(crate) fn durable(&self) -> Durable {
        *self.inner.durable.lock().expect(POISON)
    }

    /// Resolves once the log is durable up to `index`; `Err` once that cannot come any more.
    pub(crate) async fn wait_durable(&self, index: LogIndex) -> io::Result<()> {
        loop {
            let moved = self.inner.moved.notified();
            let mut moved = std::pin::pin!(moved);
            moved.as_mut().enable();
            self.inner.failure.check()?;
            if self.durable().last.is_some_and(|last| last.index >= index) {
                return Ok(());
            }
            if self.inner.queue().closed {
                return Err(io::Error::other("log is closed"));
            }
            select(moved, self.inner.failure.wait()).await;
        }
    }

    /// Notes a new tail file, all before which is durable.
    pub(crate) fn tail_moved(&self, durable: Durable) {
        *self.inner.durable.lock().expect(POISON) = durable;
        self.inner.moved.notify_waiters();
    }

    /// (last, longest of the last seconds).
    pub(crate) fn sync_times(&self) -> (Duration, Duration) {
        let now = self.inner.runtime.now();
        self.inner.times().now(now)
    }

    /// From when on a sync is slow.
    pub(crate) fn set_slow_limit(&self, limit: Duration) {
        self.inner.times().set_slow_limit(limit);
    }

    /// Whether one of the last seconds was slow, or is by now.
    pub(crate) fn was_slow(&self) -> bool {
        self.inner.times().was_slow(self.inner.runtime.now())
    }

    /// For how long a sync has been running; zero when none is.
    pub(crate) fn syncing_for(&self) -> Duration {
        self.inner.times().running(self.inner.runtime.now())
    }

    pub(crate) fn slow_syncs(&self) -> SlowSyncs {
        self.inner.times().slow(self.inner.runtime.now())
    }

    pub(crate) fn sync_histogram(&self) -> SyncHistogram {
        self.inner.times().histogram()
    }

    /// Syncs what is not, serves everybody who waits, then ends.
    pub(crate) async fn close(&self) {
        self.inner.queue().closed = true;
        self.inner.wake.notify_one();
        self.inner.hurry.notify_one();
        let task = self.task.lock().expect(POISON).take();
        if let Some(task) = task {
            // It can only have been cancelled with its runtime; then nobody waits any more.
            let _ = task.join().await;
        }
        self.inner.drained().await;
        self.inner.moved.notify_waiters();
    }
}

async fn run(inner: Arc<Inner>) {
    loop {
        inner.wake.notified().await;
        let (is_urgent, has_work) = {
            let queue = inner.queue();
            (queue.closed || !queue.waiting.is_empty(), queue.has_work())
        };
        if let FlushMode::Async { interval_ms, .. } = inner.mode
            && has_work
            && !is_urgent
        {
            // Either way it is time; a hurry left over from an earlier round only makes one sync come early.
            let _ = inner.runtime.timeout(Duration::from_millis(interval_ms), inner.hurry.notified()).await;
        }
        if has_work {
            inner.start_drain(inner.queue());
            inner.drained().await;
        }
        let queue = inner.queue();
        if queue.closed && !queue.has_work() {
            return;
        }
        if queue.closed {
            inner.wake.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::channel::oneshot;

    use super::*;
    use crate::OsDisk;
    use crate::disk::Disk;
    use crate::testing::{CrashDisk, SlowDisk, StepRuntime};

    const LONG: Duration = Duration::from_secs(60);

    fn target(disk: &CrashDisk, index: u64) -> FlushTarget {
        target_in(disk, Path::new("/tail"), index)
    }

    fn target_in(disk: &dyn Disk, path: &Path, index: u64) -> FlushTarget {
        let file = disk.open(path).or_else(|_| disk.create(path, 4096)).unwrap();
        let floor = TailFloor { sequence: 1, position: index };
        FlushTarget { path: path.into(), file, floor, last: Some(EntryId::new(1, index)) }
    }

    fn start(runtime: &StepRuntime, mode: FlushMode) -> Flusher {
        start_on(&CrashDisk::new(1), Path::new("/"), &runtime.handle(), mode)
    }

    fn start_on(disk: &dyn Disk, dir: &Path, runtime: &Runtime, mode: FlushMode) -> Flusher {
        let seat = FlusherSeat::take(disk, dir, runtime).unwrap();
        Flusher::start(runtime, seat, Failure::default(), mode, Durable::default())
    }

    /// Has a sync of all that was written; what is told of it.
    fn asked(flusher: &Flusher) -> oneshot::Receiver<bool> {
        let (done, told) = oneshot::channel();
        flusher.flush(Box::new(move |flushed| done.send(flushed.is_ok()).expect("the test waits")));
        told
    }

    #[test]
    fn async_counts_at_once_and_syncs_by_bytes_interval_or_demand() {
        let (runtime, disk) = (StepRuntime::default(), CrashDisk::new(1));
        let flusher = start(&runtime, FlushMode::Async { interval_ms: 10, bytes: 1000 });
        let told = Arc::new(Mutex::new(0));
        let done = || {
            let told = told.clone();
            Box::new(move |flushed: io::Result<()>| *told.lock().unwrap() += u32::from(flushed.is_ok())) as FlushDone
        };
        flusher.push(&target(&disk, 1), 10, done());
        assert_eq!((*told.lock().unwrap(), flusher.durable().last), (1, None), "done before it is durable");
        runtime.run();
        assert_eq!(flusher.durable().last, Some(EntryId::new(1, 1)), "the interval has passed");
        assert!(flusher.push(&target(&disk, 2), 5000, done()), "the disk is behind");
        runtime.block_on(flusher.keep_up());
        assert_eq!(flusher.durable().last, Some(EntryId::new(1, 2)), "far more than 1000 bytes had to be synced first");
        flusher.push(&target(&disk, 3), 10, done());
        flusher.flush(done());
        runtime.block_on(flusher.wait_durable(LogIndex(3))).unwrap();
        assert_eq!(*told.lock().unwrap(), 4);
        flusher.push(&target(&disk, 4), 10, done());
        runtime.block_on(flusher.close());
        assert_eq!(flusher.durable().last, Some(EntryId::new(1, 4)), "closing leaves nothing unsynced");
        assert!(runtime.block_on(flusher.wait_durable(LogIndex(9))).is_err());
        assert_eq!(flusher.sync_histogram().count(), 4);
    }

    #[test]
    fn a_failed_background_sync_fails_what_comes_after_it() {
        let (runtime, disk) = (StepRuntime::default(), CrashDisk::new(1));
        let flusher = start(&runtime, FlushMode::Async { interval_ms: 10, bytes: 1000 });
        let target = target(&disk, 1);
        disk.fail_next_sync();
        flusher.push(&target, 10, Box::new(|flushed| assert!(flushed.is_ok())));
        runtime.run();
        flusher.push(&target, 10, Box::new(|flushed| assert!(flushed.is_err(), "the failure is final")));
        assert!(runtime.block_on(flusher.wait_durable(LogIndex(1))).is_err());
        runtime.block_on(flusher.keep_up());
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_sync_that_hangs_is_told_by_nobody_and_no_other_log_of_its_disk_waits_for_it() {
        let (dir, runtime, slow) = (tempfile::tempdir().unwrap(), Runtime::tokio(), SlowDisk::default());
        let (tail, other_tail) = (dir.path().join("tail"), dir.path().join("other"));
        let never = FlushMode::Async { interval_ms: 3_600_000, bytes: u64::MAX };
        for mode in [FlushMode::Sync, never] {
            let hanging = start_on(&slow, dir.path(), &runtime, mode);
            let other = start_on(&OsDisk, dir.path(), &runtime, mode);
            slow.hang(true);
            hanging.push(&target_in(&slow, &tail, 1), 10, Box::new(|_| ()));
            let mut told = asked(&hanging);
            for index in 1..=20 {
                other.push(&target_in(&OsDisk, &other_tail, index), 10, Box::new(|_| ()));
                assert_eq!(runtime.timeout(LONG, asked(&other)).await, Ok(Ok(true)));
                assert_eq!(other.durable().last, Some(EntryId::new(1, index)));
            }
            assert!(hanging.syncing_for() > Duration::ZERO && other.syncing_for() == Duration::ZERO);
            assert_eq!((told.try_recv(), hanging.durable().last), (Ok(None), None), "nothing is durable yet");
            let mut closing = std::pin::pin!(hanging.close());
            assert!(runtime.timeout(Duration::from_millis(50), &mut closing).await.is_err(), "the sync goes on");
            slow.hang(false);
            runtime.timeout(LONG, closing).await.expect("the sync has ended");
            assert_eq!((told.try_recv(), hanging.durable().last), (Ok(Some(true)), Some(EntryId::new(1, 1))));
            other.close().await;
        }
    }

    #[test]
    fn a_sync_needs_no_thread_of_those_that_all_else_borrows() {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let tokio = builder.worker_threads(1).max_blocking_threads(1).enable_all().build().unwrap();
        let (runtime, dir) = (Runtime::tokio(), tempfile::tempdir().unwrap());
        tokio.block_on(async {
            let (go_on, told) = std::sync::mpsc::channel::<()>();
            // Reads of a disk that hangs, say.
            runtime.start_blocking("busy", move || assert!(told.recv_timeout(LONG).is_err(), "it is dropped"));
            let flusher = start_on(&OsDisk, dir.path(), &runtime, FlushMode::Sync);
            flusher.push(&target_in(&OsDisk, &dir.path().join("tail"), 1), 10, Box::new(|_| ()));
            assert_eq!(runtime.timeout(LONG / 2, asked(&flusher)).await, Ok(Ok(true)));
            drop(go_on);
            flusher.close().await;
        });
    }
}
