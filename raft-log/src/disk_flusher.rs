//! The flusher of a disk: threads that do the syncs of all logs of this process that are on one device, and what monitoring is told
//! of that.
//!
//! ```text
//! log a ─┐
//! log b ─┼─▶ [rounds, oldest first] ─▶ a thread ─▶ one fdatasync and its answers
//! log c ─┘             ▲                                  │
//!                      └──── more came meanwhile ◀────────┘
//! ```
//! There are as many threads as open logs, and a log has one round here at a time. So a sync that hangs holds one thread and leaves
//! one to each of the others: no log waits for another's sync, however many hang. Fewer threads would be slower, too: a device
//! serves syncs that are under way at the same time together (ADR 0036).

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

use crate::disk::Disk;
use crate::sync_times::SyncHistogram;

/// The flushers of this process, by device; as many as it has ever opened logs on.
static FLUSHERS: Mutex<BTreeMap<u64, Arc<DiskFlusher>>> = Mutex::new(BTreeMap::new());

const POISON: &str = "disk flusher's lock is never poisoned: no code panics while holding it";

/// A log's sync and what follows from it. True: more came meanwhile, run it again. It is dropped when it is over, has panicked, or
/// never gets to run.
pub(crate) type Round = Box<dyn FnMut() -> bool + Send>;

/// What the logs of a device share.
#[derive(Default)]
pub(crate) struct DiskFlusher {
    state: Mutex<State>,
    /// A round waits, or a log has gone.
    changed: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Round, Instant)>,
    /// When the rounds under way began, by their number.
    running: BTreeMap<u64, Instant>,
    logs: usize,
    /// As many as logs, but for those that are about to begin or end.
    threads: usize,
    rounds: u64,
    waited: SyncHistogram,
}

/// A log's place at the flusher of its disk.
pub(crate) struct FlusherSeat {
    /// `None`: there is nothing to share, and threads are borrowed from the runtime.
    flusher: Option<Arc<DiskFlusher>>,
    runtime: Runtime,
}

/// A disk's flusher, as monitoring sees it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DiskFlusherStats {
    /// The device's number, as `stat` tells it.
    pub device: u64,
    /// Open logs on it, and threads that sync them.
    pub logs: usize,
    /// Logs that are being synced.
    pub syncing: usize,
    /// For how long the oldest of these syncs has been under way.
    pub longest: Duration,
    /// Syncs that have begun, each for all that waited for it in its log.
    pub syncs: u64,
    /// From the wish for a sync to its beginning.
    pub waited: SyncHistogram,
}

impl DiskFlusherStats {
    /// The device as `lsblk` names it: `major:minor`.
    pub fn device_name(&self) -> String {
        // As glibc's gnu_dev_major and gnu_dev_minor.
        let major = ((self.device >> 8) & 0xfff) | ((self.device >> 32) & 0xffff_f000);
        let minor = (self.device & 0xff) | ((self.device >> 12) & 0xffff_ff00);
        format!("{major}:{minor}")
    }
}

/// The flushers of this process, by device.
pub fn disk_flushers(runtime: &Runtime) -> Vec<DiskFlusherStats> {
    let flushers = FLUSHERS.lock().expect(POISON);
    flushers.iter().map(|(device, flusher)| flusher.stats(*device, runtime.now())).collect()
}

impl DiskFlusher {
    fn of(device: u64) -> Arc<DiskFlusher> {
        FLUSHERS.lock().expect(POISON).entry(device).or_default().clone()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect(POISON)
    }

    fn stats(&self, device: u64, now: Instant) -> DiskFlusherStats {
        let state = self.state();
        DiskFlusherStats {
            device,
            logs: state.logs,
            syncing: state.running.len(),
            longest: state.running.values().min().map_or(Duration::ZERO, |began| now.saturating_since(*began)),
            syncs: state.rounds,
            waited: state.waited.clone(),
        }
    }

    pub(crate) fn start_thread(self: &Arc<DiskFlusher>, runtime: &Runtime) -> io::Result<()> {
        self.state().threads += 1;
        let (flusher, clock) = (self.clone(), runtime.clone());
        let started = runtime.start_thread("disk-flusher", move || flusher.serve(&clock));
        if started.is_err() {
            self.state().threads -= 1;
        }
        started
    }

    /// Runs rounds until there are more threads than logs.
    fn serve(&self, clock: &Runtime) {
        let mut state = self.state();
        loop {
            if let Some((mut round, since)) = state.waiting.pop_front() {
                let (number, began) = (state.rounds, clock.now());
                state.rounds += 1;
                state.waited.note(began.saturating_since(since));
                state.running.insert(number, began);
                drop(state);
                // A panic is its log's failure, which the round has told; the others need this thread.
                let has_more = catch_unwind(AssertUnwindSafe(&mut round)).unwrap_or(false);
                // What is over goes while nothing is locked: it may be the last hold on its log, and so on a seat here.
                let again = has_more.then_some(round);
                state = self.state();
                state.running.remove(&number);
                // Behind those that waited before. This thread looks again, so somebody does.
                state.waiting.extend(again.map(|round| (round, clock.now())));
            } else if state.threads > state.logs {
                state.threads -= 1;
                return;
            } else {
                state = self.changed.wait(state).expect(POISON);
            }
        }
    }
}

impl FlusherSeat {
    /// A place for the log of `dir`, and a thread that comes with it. Where the disk is no real one, or the runtime has no threads,
    /// the log is alone.
    ///
    /// # Errors
    /// The device is not told, or the machine has no thread left.
    pub(crate) fn take(disk: &dyn Disk, dir: &Path, runtime: &Runtime) -> io::Result<FlusherSeat> {
        match disk.device(dir)? {
            Some(device) => FlusherSeat::on(device, runtime),
            None => Ok(FlusherSeat::alone(runtime)),
        }
    }

    fn on(device: u64, runtime: &Runtime) -> io::Result<FlusherSeat> {
        let flusher = DiskFlusher::of(device);
        // First the log, then its thread: another one's may end meanwhile, and there are still enough.
        let seat = FlusherSeat::at(&flusher, runtime);
        match flusher.start_thread(runtime) {
            Ok(()) => Ok(seat),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(FlusherSeat::alone(runtime)),
            Err(error) => Err(io::Error::new(error.kind(), format!("no thread for the syncs of this log: {error}"))),
        }
    }

    /// A place without a thread of its own.
    pub(crate) fn at(flusher: &Arc<DiskFlusher>, runtime: &Runtime) -> FlusherSeat {
        flusher.state().logs += 1;
        FlusherSeat { flusher: Some(flusher.clone()), runtime: runtime.clone() }
    }

    pub(crate) fn alone(runtime: &Runtime) -> FlusherSeat {
        FlusherSeat { flusher: None, runtime: runtime.clone() }
    }

    /// Has the log's round run as soon as may be. Returns at once. The log submits no other one before that one has returned false
    /// or was dropped.
    pub(crate) fn submit(&self, mut round: Round) {
        match &self.flusher {
            Some(flusher) => {
                let since = self.runtime.now();
                flusher.state().waiting.push_back((round, since));
                flusher.changed.notify_one();
            }
            None => self.runtime.start_blocking("log-flusher", move || while round() {}),
        }
    }
}

impl Drop for FlusherSeat {
    fn drop(&mut self) {
        if let Some(flusher) = &self.flusher {
            flusher.state().logs -= 1;
            // A thread that rests ends; if none does, one that comes from its round.
            flusher.changed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use flotilla_runtime::{BoxFuture, Driver};

    use super::*;
    use crate::OsDisk;
    use crate::testing::{CrashDisk, StepRuntime};

    const LONG: Duration = Duration::from_secs(60);

    fn seats(device: u64, count: usize) -> Vec<FlusherSeat> {
        (0..count).map(|_| FlusherSeat::on(device, &Runtime::tokio()).unwrap()).collect()
    }

    fn wait_for(flusher: &DiskFlusher, what: &str, is_so: impl Fn(&State) -> bool) {
        let runtime = Runtime::tokio();
        let began = runtime.now();
        while !is_so(&flusher.state()) {
            assert!(runtime.now() - began < LONG, "never {what}: {:?}", flusher.stats(0, runtime.now()));
            std::thread::yield_now();
        }
    }

    /// Tells the test that its round runs, and has it go on as the test says: with more, without, or (dropped) in a panic.
    struct Submitted {
        begun: Receiver<()>,
        go_on: Sender<bool>,
    }

    fn submit(seat: &FlusherSeat) -> Submitted {
        let ((began, begun), (go_on, told)) = (channel(), channel());
        seat.submit(Box::new(move || {
            began.send(()).unwrap();
            told.recv().expect("the test drops it to have this panic")
        }));
        Submitted { begun, go_on }
    }

    impl Submitted {
        fn await_begin(&self) {
            self.begun.recv_timeout(LONG).expect("it is run");
        }

        fn await_end(&self) {
            assert!(self.begun.recv_timeout(LONG).is_err(), "it is run again, or never dropped");
        }
    }

    #[test]
    fn however_many_syncs_hang_each_other_log_still_has_a_thread() {
        const DEVICE: u64 = 1 << 40;
        let mut logs = seats(DEVICE, 4);
        let flusher = logs[0].flusher.clone().unwrap();
        let mut hanging = Vec::new();
        for hang_count in 1..=6 {
            let round = submit(&logs[hang_count - 1]);
            round.await_begin();
            hanging.push(round);
            // From the fourth on all logs that there were hang: the bound.
            if hang_count == logs.len() {
                logs.extend(seats(DEVICE, 1));
            }
            for _ in 0..3 {
                let round = submit(logs.last().unwrap());
                round.await_begin();
                round.go_on.send(false).unwrap();
                round.await_end();
            }
            wait_for(&flusher, "one thread a log", |state| state.threads == logs.len());
        }
        wait_for(&flusher, "only those that hang", |state| state.running.len() == 6);
        for round in hanging {
            round.go_on.send(false).unwrap();
            round.await_end();
        }
        drop(logs);
        wait_for(&flusher, "no thread without a log", |state| state.threads == 0 && state.running.is_empty());
    }

    #[test]
    fn a_round_that_panics_takes_no_thread_from_the_others() {
        let logs = seats(2 << 40, 2);
        for _ in 0..3 {
            let Submitted { begun, go_on } = submit(&logs[0]);
            begun.recv_timeout(LONG).unwrap();
            drop(go_on);
            assert!(begun.recv_timeout(LONG).is_err(), "it is dropped");
        }
        let rounds = [submit(&logs[0]), submit(&logs[1])];
        for round in &rounds {
            round.await_begin();
        }
        for round in &rounds {
            round.go_on.send(false).unwrap();
            round.await_end();
        }
        assert_eq!(logs[0].flusher.as_ref().unwrap().state().threads, 2);
    }

    #[test]
    fn a_log_that_has_more_goes_behind_those_that_wait() {
        let (runtime, flusher) = (Runtime::tokio(), Arc::new(DiskFlusher::default()));
        // Two logs and one thread, so that somebody waits.
        let logs = [FlusherSeat::at(&flusher, &runtime), FlusherSeat::at(&flusher, &runtime)];
        flusher.start_thread(&runtime).unwrap();
        let greedy = submit(&logs[0]);
        greedy.await_begin();
        let other = submit(&logs[1]);
        greedy.go_on.send(true).unwrap();
        other.await_begin();
        assert!(greedy.begun.try_recv().is_err(), "its turn comes after the other's");
        other.go_on.send(false).unwrap();
        greedy.await_begin();
        greedy.go_on.send(false).unwrap();
        greedy.await_end();
        let stats = flusher.stats(7, runtime.now());
        assert_eq!((stats.device, stats.logs, stats.syncs, stats.waited.count()), (7, 2, 3, 3));
    }

    #[test]
    fn logs_of_a_device_share_a_flusher_and_a_simulated_one_is_alone() {
        let (dir, runtime, step) = (tempfile::tempdir().unwrap(), Runtime::tokio(), StepRuntime::default().handle());
        let [one, other] = [(); 2].map(|()| FlusherSeat::take(&OsDisk, dir.path(), &runtime).unwrap());
        assert!(Arc::ptr_eq(one.flusher.as_ref().unwrap(), other.flusher.as_ref().unwrap()));
        let device = OsDisk.device(dir.path()).unwrap().unwrap();
        assert!(disk_flushers(&runtime).iter().any(|stats| stats.device == device && stats.logs >= 2));
        for (disk, runtime) in [(&CrashDisk::new(1) as &dyn Disk, &runtime), (&OsDisk, &step)] {
            assert!(FlusherSeat::take(disk, dir.path(), runtime).unwrap().flusher.is_none());
        }
        let error = FlusherSeat::take(&OsDisk, &dir.path().join("gone"), &runtime).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    /// A machine that has no thread left.
    struct NoThreads;

    impl Driver for NoThreads {
        fn start_thread(&self, _: &'static str, _: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            Err(io::Error::new(io::ErrorKind::WouldBlock, "too many threads"))
        }
        fn spawn(&self, _: &'static str, _: BoxFuture<'static, ()>) {
            unreachable!("a seat needs no task")
        }
        fn spawn_blocking(&self, _: Box<dyn FnOnce() + Send>) {
            unreachable!("a seat borrows no thread")
        }
        fn now(&self) -> Instant {
            Runtime::tokio().now()
        }
        fn wall_ms(&self) -> u64 {
            0
        }
        fn sleep_until(&self, _: Instant) -> BoxFuture<'static, ()> {
            unreachable!("a seat does not sleep")
        }
        fn random_u64(&self) -> u64 {
            4
        }
    }

    #[test]
    fn a_log_without_a_thread_is_not_opened_and_the_others_go_on() {
        const DEVICE: u64 = 3 << 40;
        let logs = seats(DEVICE, 1);
        let error = FlusherSeat::on(DEVICE, &Runtime::from_driver(Arc::new(NoThreads))).err().unwrap();
        assert_eq!(error.to_string(), "no thread for the syncs of this log: too many threads");
        let state = logs[0].flusher.as_ref().unwrap().state();
        assert_eq!((state.logs, state.threads), (1, 1));
        drop(state);
        let round = submit(&logs[0]);
        round.await_begin();
        round.go_on.send(false).unwrap();
        round.await_end();
    }

    #[test]
    fn a_device_is_named_as_the_system_does() {
        let named = |device| DiskFlusherStats { device, ..DiskFlusherStats::default() }.device_name();
        assert_eq!([named(0xfe00), named(0x801), named(0x10_3502)], ["254:0", "8:1", "53:258"]);
    }
}
