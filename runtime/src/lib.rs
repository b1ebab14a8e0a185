//! The seams to the outside: time, tasks and randomness, handed in as one cheap handle.
//!
//! Core crates never call a clock, a spawner or a random source of their own: they are given a
//! [`Runtime`]. A real process gives them [`Runtime::tokio`]; the simulation gives them a handle
//! whose time is virtual, whose tasks run on one thread in a seeded order, and whose randomness
//! comes from the seed.
//!
//! Contract of a [`Driver`]:
//! - `now` must never go backwards within one process (or one life of a simulated node);
//! - `spawn` must not poll the future before it returns;
//! - `sleep_until` of a past instant must still yield once;
//! - `wall_ms` may jump in either direction: nothing may depend on it being monotonic.

mod instant;
mod task;
mod tokio_driver;

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

pub use instant::Instant;
pub use task::{Task, TaskEnd};

/// A boxed future, the shape in which futures cross the seam.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What stands behind a [`Runtime`]: one implementation for real processes, one for simulation.
pub trait Driver: Send + Sync + 'static {
    /// Starts a task. It must not be polled before this returns.
    fn spawn(&self, name: &'static str, future: BoxFuture<'static, ()>);
    /// Runs `work` where it may block (a thread pool; inline in simulation).
    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>);
    /// As [`Driver::spawn_blocking`], for work that nobody waits for. It must not run before this returns.
    fn start_blocking(&self, name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        self.spawn(name, Box::pin(async move { work() }));
    }
    /// Starts a thread of its own for work that stays, also when the scheduler of the tasks ends; returns before it runs.
    ///
    /// # Errors
    /// [`std::io::ErrorKind::Unsupported`] where one thread runs all; any other: the machine has no thread left. `work` was dropped then.
    fn start_thread(&self, name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) -> std::io::Result<()> {
        let _ = (name, work);
        Err(std::io::ErrorKind::Unsupported.into())
    }
    /// Monotonic time.
    fn now(&self) -> Instant;
    /// Wall clock, milliseconds since the Unix epoch. May jump.
    fn wall_ms(&self) -> u64;
    /// Completes once `now() >= deadline`.
    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()>;
    /// Uniformly random bits.
    fn random_u64(&self) -> u64;
}

/// Cheap handle to time, tasks and randomness.
#[derive(Clone)]
pub struct Runtime {
    driver: Arc<dyn Driver>,
}

/// The given time passed before the future was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elapsed;

impl std::fmt::Display for Elapsed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("deadline has elapsed")
    }
}

impl std::error::Error for Elapsed {}

/// Which of two futures was done first; see [`select`].
#[derive(Debug)]
pub enum Either<A, B> {
    Left(A),
    Right(B),
}

thread_local! {
    static CURRENT: RefCell<Option<Runtime>> = const { RefCell::new(None) };
}

impl Runtime {
    /// A handle over a driver of one's own (the simulation's way in).
    pub fn from_driver(driver: Arc<dyn Driver>) -> Runtime {
        Runtime { driver }
    }

    /// The real thing: tokio's scheduler and timers, the machine's clocks, the thread's generator.
    /// Tasks can only be spawned from inside a tokio runtime.
    pub fn tokio() -> Runtime {
        Runtime { driver: Arc::new(tokio_driver::TokioDriver) }
    }

    /// The runtime this thread is running for: what [`Runtime::enter`] set, else [`Runtime::tokio`].
    ///
    /// Only for adapters whose traits have no place for a handle (openraft's `AsyncRuntime`).
    pub fn current() -> Runtime {
        CURRENT.with(|current| current.borrow().clone()).unwrap_or_else(Runtime::tokio)
    }

    /// Runs `work` with this runtime as the thread's [`Runtime::current`].
    pub fn enter<T>(&self, work: impl FnOnce() -> T) -> T {
        struct Restore(Option<Runtime>);
        impl Drop for Restore {
            fn drop(&mut self) {
                CURRENT.with(|current| *current.borrow_mut() = self.0.take());
            }
        }
        let previous = CURRENT.with(|current| current.borrow_mut().replace(self.clone()));
        let _restore = Restore(previous);
        work()
    }

    /// Starts a task. Dropping the returned [`Task`] cancels it; see [`Task::detach`].
    pub fn spawn<T: Send + 'static>(
        &self,
        name: &'static str,
        future: impl Future<Output = T> + Send + 'static,
    ) -> Task<T> {
        let (task, body) = Task::new(future);
        self.driver.spawn(name, Box::pin(body));
        task
    }

    /// Runs blocking work off the async threads and waits for its result.
    ///
    /// # Panics
    /// If `work` itself panicked.
    pub async fn blocking<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, wait) = futures::channel::oneshot::channel();
        self.driver.spawn_blocking(Box::new(move || {
            // The waiter may have been cancelled; its result is then of no use to anybody.
            let _ = done.send(work());
        }));
        wait.await.expect("blocking work panicked")
    }

    /// Starts blocking work off the async threads and returns before it runs: the shortest way to such a thread. Whether it
    /// ended only the work itself can tell; it is dropped unrun if the runtime goes away first.
    pub fn start_blocking(&self, name: &'static str, work: impl FnOnce() + Send + 'static) {
        self.driver.start_blocking(name, Box::new(work));
    }

    /// See [`Driver::start_thread`].
    ///
    /// # Errors
    /// As there.
    pub fn start_thread(&self, name: &'static str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        self.driver.start_thread(name, Box::new(work))
    }

    /// Monotonic time.
    pub fn now(&self) -> Instant {
        self.driver.now()
    }

    /// Wall clock, milliseconds since the Unix epoch. May jump in either direction.
    pub fn wall_ms(&self) -> u64 {
        self.driver.wall_ms()
    }

    /// Uniformly random bits.
    pub fn random_u64(&self) -> u64 {
        self.driver.random_u64()
    }

    /// A number in `0..bound`, 0 when `bound` is 0.
    pub fn random_below(&self, bound: u64) -> u64 {
        // The modulo's bias is below 2^-32 for every bound we use (all far under 2^32).
        self.random_u64().checked_rem(bound).unwrap_or(0)
    }

    pub fn sleep(&self, duration: Duration) -> BoxFuture<'static, ()> {
        self.sleep_until(self.now() + duration)
    }

    pub fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        self.driver.sleep_until(deadline)
    }

    /// Waits for `future`, at most for `duration`.
    pub async fn timeout<T>(&self, duration: Duration, future: impl Future<Output = T>) -> Result<T, Elapsed> {
        self.timeout_at(self.now() + duration, future).await
    }

    /// Waits for `future`, at most until `deadline`.
    pub async fn timeout_at<T>(&self, deadline: Instant, future: impl Future<Output = T>) -> Result<T, Elapsed> {
        match select(future, self.sleep_until(deadline)).await {
            Either::Left(value) => Ok(value),
            Either::Right(()) => Err(Elapsed),
        }
    }
}

impl std::fmt::Debug for Runtime {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Runtime")
    }
}

/// Waits for the first of two futures, the left one preferred when both are ready. The other is
/// dropped. Unlike `tokio::select!` this never rolls dice, so a simulated run can be repeated.
pub async fn select<A, B>(left: impl Future<Output = A>, right: impl Future<Output = B>) -> Either<A, B> {
    let mut left = std::pin::pin!(left);
    let mut right = std::pin::pin!(right);
    std::future::poll_fn(move |cx| {
        if let Poll::Ready(value) = left.as_mut().poll(cx) {
            return Poll::Ready(Either::Left(value));
        }
        if let Poll::Ready(value) = right.as_mut().poll(cx) {
            return Poll::Ready(Either::Right(value));
        }
        Poll::Pending
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_dropped_task_is_cancelled_and_a_detached_one_goes_on() {
        let runtime = Runtime::tokio();
        let (send_a, receive_a) = futures::channel::oneshot::channel::<()>();
        let (send_b, receive_b) = futures::channel::oneshot::channel::<()>();
        let wait = runtime.clone();
        let cancelled = runtime.spawn("cancelled", async move {
            wait.sleep(Duration::from_millis(20)).await;
            let _ = send_a.send(());
        });
        let wait = runtime.clone();
        runtime
            .spawn("detached", async move {
                wait.sleep(Duration::from_millis(20)).await;
                let _ = send_b.send(());
            })
            .detach();
        drop(cancelled);
        assert!(receive_a.await.is_err(), "the dropped task must not get to its send");
        assert!(receive_b.await.is_ok(), "the detached task must");
    }

    #[tokio::test]
    async fn join_tells_how_a_task_ended() {
        let runtime = Runtime::tokio();
        assert_eq!(runtime.spawn("done", async { 7 }).join().await.unwrap(), 7);
        let aborted = runtime.spawn("aborted", std::future::pending::<()>());
        aborted.abort();
        assert!(matches!(aborted.join().await, Err(TaskEnd::Cancelled)));
    }

    #[tokio::test]
    async fn timeout_ends_a_wait_and_passes_a_result_through() {
        let runtime = Runtime::tokio();
        assert_eq!(runtime.timeout(Duration::from_millis(5), std::future::pending::<()>()).await, Err(Elapsed));
        assert_eq!(runtime.timeout(Duration::from_secs(5), async { 1 }).await, Ok(1));
    }
}
