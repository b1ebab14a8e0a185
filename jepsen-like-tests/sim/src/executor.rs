//! An executor of one thread and virtual time: a seeded pick among the ready tasks, else a jump to the next timer.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Instant, Runtime};

use crate::driver::{LifeDriver, Lives};
use crate::rng::Rng;
use crate::trace::Trace;

/// A virtual process from its start to its end: the tasks that die together. A node that is
/// restarted gets a new life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Life(pub(crate) u64);

/// How one life sees the world.
#[derive(Debug, Clone)]
pub struct LifeOptions {
    /// Names its random streams; two lives of one name draw from different streams.
    pub name: String,
    /// Wall clock minus true time, milliseconds.
    pub wall_offset_ms: i64,
    /// Time that blocking work (a sync) takes, microseconds.
    pub blocking_us: (u64, u64),
    /// Of a thousand pieces of blocking work so many take [`LifeOptions::stall_us`] instead.
    pub stall_permille: u64,
    /// How long those take, microseconds.
    pub stall_us: (u64, u64),
}

impl LifeOptions {
    /// A life with true time and a fast disk.
    pub fn named(name: impl Into<String>) -> LifeOptions {
        LifeOptions {
            name: name.into(),
            wall_offset_ms: 0,
            blocking_us: (20, 200),
            stall_permille: 0,
            stall_us: (0, 0),
        }
    }
}

/// What the executor is doing; see [`Executor::step`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A task was polled.
    Polled,
    /// Nothing was ready: time went on to the next timer.
    Jumped,
    /// No task is ready and no timer is set: nothing will ever happen again.
    Dead,
    /// Nothing is ready before the given limit, which is now.
    Limit,
}

/// Where virtual time begins: an hour, so that "now minus a time-out" never meets zero.
pub const START_NS: u64 = 3_600_000_000_000;
/// Most that one poll takes, nanoseconds. Polling must take time, or a busy loop would stop the clock.
const POLL_NS_MAX: u64 = 2_000;

pub(crate) struct Shared {
    now_ns: AtomicU64,
    state: Mutex<State>,
    ready: Arc<Mutex<Ready>>,
    pub(crate) trace: Trace,
    pub(crate) seed: u64,
    pub(crate) lives: Lives,
}

struct State {
    /// By place; a place that is free again goes to a later task.
    tasks: Vec<Option<TaskSlot>>,
    free_places: Vec<usize>,
    task_count: u64,
    timers: BTreeMap<(u64, u64), Waker>,
    timer_count: u64,
}

/// Tasks that want to be polled, in no order, and the choice among them.
struct Ready {
    tasks: Vec<TaskId>,
    rng: Rng,
}

/// Numbers are never given twice, places are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct TaskId {
    number: u64,
    place: usize,
}

struct TaskSlot {
    number: u64,
    life: Life,
    name: &'static str,
    /// Absent while it is being polled.
    future: Option<BoxFuture<'static, ()>>,
    task_waker: Arc<TaskWaker>,
    waker: Waker,
    runtime: Runtime,
}

struct TaskWaker {
    id: TaskId,
    queued: AtomicBool,
    ready: Arc<Mutex<Ready>>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.queued.swap(true, Ordering::Relaxed) {
            lock(&self.ready).tasks.push(self.id);
        }
    }
}

impl State {
    fn task(&mut self, id: TaskId) -> Option<&mut TaskSlot> {
        self.tasks.get_mut(id.place)?.as_mut().filter(|task| task.number == id.number)
    }

    fn take(&mut self, place: usize) -> Option<TaskSlot> {
        let taken = self.tasks.get_mut(place)?.take();
        if taken.is_some() {
            self.free_places.push(place);
        }
        taken
    }
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("simulation locks are never poisoned: no code panics while holding one")
}

/// The world's clock and scheduler. Dropping it drops every task.
pub struct Executor {
    pub(crate) shared: Arc<Shared>,
}

impl Executor {
    /// An executor whose every choice follows from `seed`.
    pub fn new(seed: u64, print_story: bool) -> Executor {
        let state = State {
            tasks: Vec::new(),
            free_places: Vec::new(),
            task_count: 0,
            timers: BTreeMap::new(),
            timer_count: 0,
        };
        let ready = Ready { tasks: Vec::new(), rng: Rng::stream(seed, "scheduler") };
        let shared = Shared {
            now_ns: AtomicU64::new(START_NS),
            state: Mutex::new(state),
            ready: Arc::new(Mutex::new(ready)),
            trace: Trace::new(print_story),
            seed,
            lives: Lives::default(),
        };
        Executor { shared: Arc::new(shared) }
    }

    /// Begins a life; what is spawned on the returned runtime belongs to it.
    pub fn begin_life(&self, options: LifeOptions) -> (Life, Runtime) {
        let life = self.shared.lives.begin();
        let driver = LifeDriver::new(self.shared.clone(), life, options);
        (life, Runtime::from_driver(driver))
    }

    /// Ends a life: all its tasks are dropped where they stand, and it can spawn no more.
    pub fn end_life(&self, life: Life) {
        self.shared.lives.end(life);
        let mut doomed = Vec::new();
        {
            let mut state = lock(&self.shared.state);
            for place in 0..state.tasks.len() {
                if state.tasks[place].as_ref().is_some_and(|task| task.life == life) {
                    doomed.extend(state.take(place));
                }
            }
        }
        // Outside the lock: what a future drops may wake and even spawn.
        for task in doomed {
            let runtime = task.runtime.clone();
            runtime.enter(|| drop(task));
        }
    }

    /// Polls one ready task, or jumps to the next timer.
    pub fn step(&self) -> Step {
        self.step_within(u64::MAX)
    }

    /// As [`Executor::step`], but never jumps beyond `limit_ns`.
    pub fn step_within(&self, limit_ns: u64) -> Step {
        let shared = &self.shared;
        if self.now_ns() >= limit_ns {
            return Step::Limit;
        }
        let Some((id, cost_ns)) = self.pick() else {
            let deadline = lock(&shared.state).timers.keys().next().map(|(deadline, _)| *deadline);
            return match deadline {
                Some(deadline) if deadline <= limit_ns => {
                    self.advance_to(deadline);
                    Step::Jumped
                }
                None if limit_ns == u64::MAX => Step::Dead,
                Some(_) | None => {
                    self.advance_to(limit_ns);
                    Step::Limit
                }
            };
        };
        let taken = lock(&shared.state).task(id).and_then(|task| {
            task.task_waker.queued.store(false, Ordering::Relaxed);
            let future = task.future.take()?;
            Some((future, task.waker.clone(), task.runtime.clone()))
        });
        // A task that ended or was killed while it stood in the queue.
        let Some((mut future, waker, runtime)) = taken else { return Step::Polled };
        shared.trace.step(self.now_ns(), id.number);
        let done = runtime.enter(|| future.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
        // What is over, and a task whose life ended during the poll.
        let leftover = {
            let mut state = lock(&shared.state);
            match state.task(id) {
                Some(task) if !done => {
                    task.future = Some(future);
                    None
                }
                Some(_) => Some((future, state.take(id.place))),
                None => Some((future, None)),
            }
        };
        if let Some(leftover) = leftover {
            runtime.enter(|| drop(leftover));
        }
        self.advance_to(self.now_ns() + cost_ns);
        Step::Polled
    }

    /// A ready task, and the time that its poll takes.
    fn pick(&self) -> Option<(TaskId, u64)> {
        let mut ready = lock(&self.shared.ready);
        let Ready { tasks, rng } = &mut *ready;
        if tasks.is_empty() {
            return None;
        }
        let at = rng.below(tasks.len() as u64);
        Some((tasks.swap_remove(at as usize), 1 + rng.below(POLL_NS_MAX)))
    }

    fn advance_to(&self, now_ns: u64) {
        self.shared.now_ns.store(now_ns, Ordering::Relaxed);
        crate::log::set_now(now_ns);
        loop {
            let waker = {
                let mut state = lock(&self.shared.state);
                match state.timers.first_key_value() {
                    Some(((deadline, _), _)) if *deadline <= now_ns => state.timers.pop_first().map(|(_, waker)| waker),
                    _ => None,
                }
            };
            match waker {
                Some(waker) => waker.wake(),
                None => return,
            }
        }
    }

    /// Steps until it is `until`.
    pub fn run_until(&self, until: Instant) {
        while self.step_within(until.as_nanos()) != Step::Limit {}
    }

    /// Virtual nanoseconds since the world's origin.
    pub fn now_ns(&self) -> u64 {
        self.shared.now_ns.load(Ordering::Relaxed)
    }

    /// The run's fingerprint and story.
    pub fn trace(&self) -> &Trace {
        &self.shared.trace
    }

    /// Names of the tasks of a life, for a report of what hangs.
    pub fn tasks_of(&self, life: Life) -> Vec<&'static str> {
        let state = lock(&self.shared.state);
        state.tasks.iter().flatten().filter(|task| task.life == life).map(|task| task.name).collect()
    }
}

impl Drop for Executor {
    fn drop(&mut self) {
        self.shared.lives.end_all();
        let tasks = std::mem::take(&mut lock(&self.shared.state).tasks);
        for task in tasks.into_iter().flatten() {
            let runtime = task.runtime.clone();
            runtime.enter(|| drop(task));
        }
        lock(&self.shared.state).timers.clear();
    }
}

impl Shared {
    pub(crate) fn now_ns(&self) -> u64 {
        self.now_ns.load(Ordering::Relaxed)
    }

    pub(crate) fn spawn(&self, life: Life, runtime: Runtime, name: &'static str, future: BoxFuture<'static, ()>) {
        if !self.lives.is_alive(life) {
            return;
        }
        let id = {
            let mut state = lock(&self.state);
            let number = state.task_count;
            state.task_count += 1;
            let place = state.free_places.pop().unwrap_or(state.tasks.len());
            let id = TaskId { number, place };
            let task_waker = Arc::new(TaskWaker { id, queued: AtomicBool::new(true), ready: self.ready.clone() });
            let waker = Waker::from(task_waker.clone());
            let task = TaskSlot { number, life, name, future: Some(future), task_waker, waker, runtime };
            match state.tasks.get_mut(place) {
                Some(free) => *free = Some(task),
                None => state.tasks.push(Some(task)),
            }
            id
        };
        lock(&self.ready).tasks.push(id);
    }

    pub(crate) fn set_timer(&self, deadline_ns: u64, waker: Waker) -> (u64, u64) {
        let mut state = lock(&self.state);
        // At least one nanosecond ahead, so that a sleep into the past still yields.
        let key = (deadline_ns.max(self.now_ns() + 1), state.timer_count);
        state.timer_count += 1;
        state.timers.insert(key, waker);
        key
    }

    pub(crate) fn clear_timer(&self, key: (u64, u64)) {
        let waker = lock(&self.state).timers.remove(&key);
        drop(waker);
    }
}

/// Milliseconds as a duration, for the many places that count in them.
pub const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex as StdMutex;

    /// A small world whose end depends on every choice: tasks that wait, wake each other and draw numbers.
    fn fingerprint(seed: u64) -> (u64, Vec<u64>) {
        let executor = Executor::new(seed, false);
        let order = Arc::new(StdMutex::new(Vec::new()));
        let (_, runtime) = executor.begin_life(LifeOptions::named("a"));
        for number in 0..10_u64 {
            let (order, inner) = (order.clone(), runtime.clone());
            let task = async move {
                for _ in 0..5 {
                    inner.sleep(Duration::from_micros(inner.random_below(50))).await;
                    inner.blocking(|| ()).await;
                    order.lock().unwrap().push(number);
                }
            };
            runtime.spawn("worker", task).detach();
        }
        while executor.step() != Step::Dead {}
        let order = order.lock().unwrap().clone();
        (executor.trace().hash(), order)
    }

    #[test]
    fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
        let (hash, order) = fingerprint(1);
        assert_eq!(order.len(), 50);
        assert_eq!(fingerprint(1), (hash, order.clone()));
        let (other_hash, other_order) = fingerprint(2);
        assert_ne!(other_hash, hash);
        assert_ne!(other_order, order);
    }

    #[test]
    fn time_is_virtual_and_jumps() {
        let executor = Executor::new(1, false);
        let (_, runtime) = executor.begin_life(LifeOptions::named("a"));
        let inner = runtime.clone();
        let slept = runtime.spawn("sleeper", async move {
            let before = inner.now();
            inner.sleep(Duration::from_secs(1_000_000)).await;
            inner.now() - before
        });
        while executor.step() != Step::Dead {}
        let slept = futures::FutureExt::now_or_never(slept.join()).expect("the world is dead, so it is done").unwrap();
        assert!(slept >= Duration::from_secs(1_000_000) && slept < Duration::from_secs(1_000_001), "{slept:?}");
    }

    #[test]
    fn a_sleep_into_the_past_yields_and_a_busy_loop_does_not_stop_the_clock() {
        let executor = Executor::new(1, false);
        let (_, runtime) = executor.begin_life(LifeOptions::named("a"));
        let inner = runtime.clone();
        let deadline = runtime.now() + ms(1);
        runtime
            .spawn("busy", async move {
                while inner.now() < deadline {
                    inner.sleep(Duration::ZERO).await;
                }
            })
            .detach();
        executor.run_until(deadline + ms(1));
        assert_eq!(executor.step(), Step::Dead);
    }

    #[test]
    fn ending_a_life_drops_its_tasks_and_no_others() {
        struct Flag(Arc<AtomicBool>);
        impl Drop for Flag {
            fn drop(&mut self) {
                self.0.store(true, Ordering::Relaxed);
            }
        }
        let executor = Executor::new(1, false);
        let (first, first_runtime) = executor.begin_life(LifeOptions::named("a"));
        let (second, second_runtime) = executor.begin_life(LifeOptions::named("b"));
        let dropped = [Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false))];
        for (runtime, flag) in [(&first_runtime, &dropped[0]), (&second_runtime, &dropped[1])] {
            let (inner, flag) = (runtime.clone(), Flag(flag.clone()));
            runtime
                .spawn("holder", async move {
                    let _flag = flag;
                    inner.sleep(Duration::from_secs(10)).await;
                })
                .detach();
        }
        executor.run_until(first_runtime.now() + ms(5));
        executor.end_life(first);
        assert!(dropped[0].load(Ordering::Relaxed) && !dropped[1].load(Ordering::Relaxed));
        first_runtime.spawn("too late", async {}).detach();
        assert_eq!((executor.tasks_of(first), executor.tasks_of(second)), (vec![], vec!["holder"]));
    }

    #[test]
    fn wall_clocks_of_two_lives_differ_and_blocking_work_takes_time() {
        let executor = Executor::new(1, false);
        let mut options = LifeOptions::named("a");
        options.wall_offset_ms = -5_000;
        options.blocking_us = (1_000, 1_000);
        let (_, skewed) = executor.begin_life(options);
        let (_, right) = executor.begin_life(LifeOptions::named("b"));
        assert_eq!(right.wall_ms() - skewed.wall_ms(), 5_000);
        let inner = skewed.clone();
        let before = skewed.now();
        let task = skewed.spawn("sync", async move {
            inner.blocking(|| ()).await;
            inner.now()
        });
        while executor.step() != Step::Dead {}
        let after = futures::FutureExt::now_or_never(task.join()).expect("the world is dead, so it is done").unwrap();
        assert!(after - before >= ms(1));
    }
}
