//! What stands behind the [`Runtime`] of one simulated process.

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Driver, Instant, Runtime};

use crate::executor::{Life, LifeOptions, START_NS, Shared, lock};
use crate::rng::Rng;

/// True wall time at the world's start, milliseconds since the Unix epoch.
const WALL_START_MS: u64 = 1_800_000_000_000;

/// Nobody waits this long: such a sleep means "for ever", and sets no timer.
const FOR_EVER_NS: u64 = u64::MAX / 2;

/// Which lives have not ended.
#[derive(Default)]
pub(crate) struct Lives {
    alive: Mutex<(u64, BTreeSet<u64>)>,
}

impl Lives {
    pub(crate) fn begin(&self) -> Life {
        let mut alive = lock(&self.alive);
        alive.0 += 1;
        let life = alive.0;
        alive.1.insert(life);
        Life(life)
    }

    pub(crate) fn end(&self, life: Life) {
        lock(&self.alive).1.remove(&life.0);
    }

    pub(crate) fn end_all(&self) {
        lock(&self.alive).1.clear();
    }

    pub(crate) fn is_alive(&self, life: Life) -> bool {
        lock(&self.alive).1.contains(&life.0)
    }
}

/// Time, tasks and randomness of one life.
pub(crate) struct LifeDriver {
    itself: Weak<LifeDriver>,
    shared: Arc<Shared>,
    life: Life,
    options: LifeOptions,
    /// What the code under test draws.
    rng: Mutex<Rng>,
    /// How long its disk takes.
    disk_rng: Mutex<Rng>,
}

impl LifeDriver {
    pub(crate) fn new(shared: Arc<Shared>, life: Life, options: LifeOptions) -> Arc<LifeDriver> {
        let stream = |purpose: &str| Rng::stream(shared.seed, &format!("{purpose} of {} {}", options.name, life.0));
        let (rng, disk_rng) = (Mutex::new(stream("draws")), Mutex::new(stream("disk times")));
        Arc::new_cyclic(|itself| LifeDriver { itself: itself.clone(), shared, life, options, rng, disk_rng })
    }

    /// The handle that a task of this life runs with.
    fn handle(&self) -> Runtime {
        let driver = self.itself.upgrade().expect("a driver that is being used is alive");
        Runtime::from_driver(driver)
    }

    fn blocking_time(&self) -> Duration {
        let LifeOptions { blocking_us, stall_permille, stall_us, .. } = &self.options;
        let mut rng = lock(&self.disk_rng);
        let range = if rng.chance(*stall_permille) { stall_us } else { blocking_us };
        Duration::from_micros(rng.between(range.0, range.1))
    }
}

impl Driver for LifeDriver {
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>) {
        self.shared.spawn(self.life, self.handle(), name, future);
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        let sleep = self.sleep_until(self.now() + self.blocking_time());
        let task = async move {
            sleep.await;
            work();
        };
        self.spawn("blocking", Box::pin(task));
    }

    fn start_blocking(&self, _name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        self.spawn_blocking(work);
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.shared.now_ns())
    }

    fn wall_ms(&self) -> u64 {
        let elapsed_ms = (self.shared.now_ns() - START_NS) / 1_000_000;
        (WALL_START_MS + elapsed_ms).saturating_add_signed(self.options.wall_offset_ms)
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(Sleep { shared: self.shared.clone(), deadline_ns: deadline.as_nanos(), timer: None })
    }

    fn random_u64(&self) -> u64 {
        lock(&self.rng).next_u64()
    }
}

struct Sleep {
    shared: Arc<Shared>,
    deadline_ns: u64,
    timer: Option<(u64, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        if let Some(timer) = self.timer.take() {
            if self.shared.now_ns() >= timer.0 {
                return Poll::Ready(());
            }
            // Polled early, perhaps by another task: the new waker replaces the old.
            self.shared.clear_timer(timer);
        }
        if self.deadline_ns >= FOR_EVER_NS {
            return Poll::Pending;
        }
        self.timer = Some(self.shared.set_timer(self.deadline_ns, cx.waker().clone()));
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.shared.clear_timer(timer);
        }
    }
}
