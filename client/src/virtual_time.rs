//! For tests: one thread, tasks in the order they were woken, and time that jumps to the next timer.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Wake, Waker};

use flotilla_runtime::{BoxFuture, Driver, Instant, Runtime};

/// Time and tasks of one test. A run that begins the same goes on the same.
pub(crate) struct VirtualTime {
    state: Mutex<State>,
}

struct State {
    now: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    timer_count: u64,
    ready: VecDeque<Arc<Cell>>,
    random: u64,
}

struct Cell {
    future: Mutex<Option<BoxFuture<'static, ()>>>,
    time: Arc<VirtualTime>,
    is_queued: AtomicBool,
}

impl Wake for Cell {
    fn wake(self: Arc<Cell>) {
        if !self.is_queued.swap(true, Ordering::SeqCst) {
            let time = self.time.clone();
            time.state().ready.push_back(self);
        }
    }
}

struct Flag(AtomicBool);

impl Wake for Flag {
    fn wake(self: Arc<Flag>) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Runs a test's body in virtual time.
pub(crate) fn run<T, F: Future<Output = T>>(body: impl FnOnce(Runtime) -> F) -> T {
    let state =
        State { now: 1_000_000_000, timers: BTreeMap::new(), timer_count: 0, ready: VecDeque::new(), random: 1 };
    let time = Arc::new(VirtualTime { state: Mutex::new(state) });
    let mut body = pin!(body(Runtime::from_driver(Arc::new(SharedTime(time.clone())))));
    let flag = Arc::new(Flag(AtomicBool::new(true)));
    let waker = Waker::from(flag.clone());
    loop {
        if flag.0.swap(false, Ordering::SeqCst)
            && let Poll::Ready(value) = body.as_mut().poll(&mut Context::from_waker(&waker))
        {
            return value;
        }
        let next = time.state().ready.pop_front();
        if let Some(cell) = next {
            cell.is_queued.store(false, Ordering::SeqCst);
            let mut future = cell.future.lock().expect("no other thread");
            let waker = Waker::from(cell.clone());
            if let Some(running) = future.as_mut()
                && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *future = None;
            }
            continue;
        }
        if !flag.0.load(Ordering::SeqCst) {
            let mut state = time.state();
            let ((at, _), waker) = state.timers.pop_first().expect("the test waits for something that never comes");
            state.now = state.now.max(at);
            drop(state);
            waker.wake();
        }
    }
}

impl VirtualTime {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no other thread")
    }
}

struct Sleep {
    time: Arc<VirtualTime>,
    deadline: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let time = self.time.clone();
        let mut state = time.state();
        if let Some(timer) = self.timer {
            if !state.timers.contains_key(&timer) {
                return Poll::Ready(());
            }
            let before = state.timers.insert(timer, cx.waker().clone());
            drop(state);
            // Without the lock: it may be the last hold on a task with timers of its own.
            drop(before);
            return Poll::Pending;
        }
        state.timer_count += 1;
        let timer = (self.deadline.max(state.now), state.timer_count);
        state.timers.insert(timer, cx.waker().clone());
        drop(state);
        self.timer = Some(timer);
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer {
            let waker = self.time.state().timers.remove(&timer);
            drop(waker);
        }
    }
}

/// What a [`Runtime`] holds: tasks and timers need a share of the time they live in.
struct SharedTime(Arc<VirtualTime>);

impl Driver for SharedTime {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        let time = self.0.clone();
        let cell = Cell { future: Mutex::new(Some(future)), time, is_queued: AtomicBool::new(false) };
        Arc::new(cell).wake();
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        work();
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.0.state().now)
    }

    fn wall_ms(&self) -> u64 {
        1_700_000_000_000 + self.0.state().now / 1_000_000
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { time: self.0.clone(), deadline: deadline.as_nanos(), timer: None })
    }

    fn random_u64(&self) -> u64 {
        // SplitMix64.
        let mut state = self.0.state();
        state.random = state.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = state.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
