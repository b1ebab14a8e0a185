//! A runtime of one thread that runs tasks in the order of their waking and blocking work in place: same in, same out.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};

use flotilla_runtime::{BoxFuture, Driver, Instant, Runtime};

/// The driver and its tasks. Time stands still; sleeping only yields.
#[derive(Clone, Default)]
pub(crate) struct StepRuntime {
    inner: Arc<Inner>,
}

#[derive(Default)]
struct Inner {
    tasks: Mutex<BTreeMap<u64, BoxFuture<'static, ()>>>,
    ready: Mutex<VecDeque<u64>>,
    next: Mutex<u64>,
}

struct TaskWaker(Arc<Inner>, u64);

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        self.0.ready.lock().unwrap().push_back(self.1);
    }
}

/// Whether a future that is blocked on was woken.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl StepRuntime {
    pub(crate) fn handle(&self) -> Runtime {
        Runtime::from_driver(Arc::new(self.clone()))
    }

    /// Runs tasks until all of them wait.
    pub(crate) fn run(&self) {
        loop {
            let Some(id) = self.inner.ready.lock().unwrap().pop_front() else { return };
            let Some(mut task) = self.inner.tasks.lock().unwrap().remove(&id) else { continue };
            let waker = Waker::from(Arc::new(TaskWaker(self.inner.clone(), id)));
            if task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
                self.inner.tasks.lock().unwrap().insert(id, task);
            }
        }
    }

    /// Runs `future`, and other tasks only as far as it waits for them.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = std::pin::pin!(future);
        let woken = Arc::new(Woken(AtomicBool::new(false)));
        let waker = Waker::from(woken.clone());
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return value;
            }
            let is_woken = woken.0.swap(false, Ordering::Relaxed);
            assert!(is_woken || !self.inner.ready.lock().unwrap().is_empty(), "everything waits for ever");
            self.run();
        }
    }
}

impl Driver for StepRuntime {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        let mut next = self.inner.next.lock().unwrap();
        *next += 1;
        self.inner.tasks.lock().unwrap().insert(*next, future);
        self.inner.ready.lock().unwrap().push_back(*next);
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        work();
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(1)
    }

    fn wall_ms(&self) -> u64 {
        0
    }

    fn sleep_until(&self, _deadline: Instant) -> BoxFuture<'static, ()> {
        let mut yielded = false;
        Box::pin(std::future::poll_fn(move |context| {
            if std::mem::replace(&mut yielded, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        }))
    }

    fn random_u64(&self) -> u64 {
        4
    }
}
