//! openraft's runtime: time, tasks and randomness of [`flotilla_runtime::Runtime::current`].
//!
//! openraft's trait has no place for a handle, hence `current`. In simulation the driver enters its runtime around each
//! poll; in a real process nothing is entered and `current` is tokio.

use std::cell::Cell;
use std::convert::Infallible;
use std::io;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use flotilla_runtime::{BoxFuture, Elapsed, Runtime, Task, TaskEnd};
use openraft_rt::{AsyncRuntime, OptionalSend};
use openraft_rt_tokio::{TokioMpsc, TokioMutex, TokioOneshot};

use super::watch::FifoWatch;

/// The runtime as openraft names it. A value of it exists only in openraft's own tests of runtimes.
#[derive(Debug)]
pub(crate) struct FlotillaRuntime {
    tokio: tokio::runtime::Runtime,
}

/// Monotonic time in openraft's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct CoreInstant(pub(crate) flotilla_runtime::Instant);

impl Add<Duration> for CoreInstant {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        CoreInstant(self.0 + duration)
    }
}

impl AddAssign<Duration> for CoreInstant {
    fn add_assign(&mut self, duration: Duration) {
        self.0 += duration;
    }
}

impl Sub<Duration> for CoreInstant {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        CoreInstant(self.0 - duration)
    }
}

impl SubAssign<Duration> for CoreInstant {
    fn sub_assign(&mut self, duration: Duration) {
        self.0 -= duration;
    }
}

impl Sub for CoreInstant {
    type Output = Duration;
    fn sub(self, earlier: Self) -> Duration {
        self.0 - earlier.0
    }
}

impl openraft_rt::Instant for CoreInstant {
    fn now() -> Self {
        CoreInstant(Runtime::current().now())
    }
}

/// A task that goes on when its handle is dropped: openraft drops handles of tasks it wants to keep.
pub(crate) struct JoinHandle<T: Send + 'static>(Option<Task<T>>);

impl<T: Send + 'static> Future for JoinHandle<T> {
    type Output = Result<T, TaskEnd>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let task = self.0.as_mut().expect("a task is there until the handle is dropped");
        Pin::new(task).poll(context)
    }
}

impl<T: Send + 'static> Drop for JoinHandle<T> {
    fn drop(&mut self) {
        if let Some(task) = self.0.take() {
            task.detach();
        }
    }
}

thread_local! {
    /// What the future in the innermost time-out that is being polled has asked for.
    static ASKED: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Lets the time-out of the core around the running poll last so long from now, if it would end earlier. The core waits for
/// a vote as long as for the shortest election time-out; the voter's disk may need longer.
pub(super) fn ask_for_time(at_least: Duration) {
    ASKED.set(Some(at_least));
}

/// A future and its deadline.
pub(crate) struct Timeout<F> {
    future: Pin<Box<F>>,
    deadline: flotilla_runtime::Instant,
    sleep: BoxFuture<'static, ()>,
}

impl<F> Timeout<F> {
    fn until(deadline: flotilla_runtime::Instant, future: F) -> Timeout<F> {
        Timeout { future: Box::pin(future), deadline, sleep: Runtime::current().sleep_until(deadline) }
    }
}

impl<F: Future> Future for Timeout<F> {
    type Output = Result<F::Output, Elapsed>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // What was asked for around this time-out is not meant for it.
        let around = ASKED.take();
        let polled = self.future.as_mut().poll(context);
        let asked = ASKED.replace(around);
        if let Poll::Ready(value) = polled {
            return Poll::Ready(Ok(value));
        }
        if let Some(at_least) = asked {
            let runtime = Runtime::current();
            self.deadline = self.deadline.max(runtime.now() + at_least);
            self.sleep = runtime.sleep_until(self.deadline);
        }
        self.sleep.as_mut().poll(context).map(|()| Err(Elapsed))
    }
}

/// Randomness of the current runtime.
pub(crate) struct CoreRng;

impl rand::TryRng for CoreRng {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((Runtime::current().random_u64() >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(Runtime::current().random_u64())
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let random = Runtime::current().random_u64().to_le_bytes();
            chunk.copy_from_slice(&random[..chunk.len()]);
        }
        Ok(())
    }
}

impl AsyncRuntime for FlotillaRuntime {
    type JoinError = TaskEnd;
    type JoinHandle<T: OptionalSend + 'static> = JoinHandle<T>;
    type Sleep = BoxFuture<'static, ()>;
    type Instant = CoreInstant;
    type TimeoutError = Elapsed;
    type Timeout<R, F: Future<Output = R> + OptionalSend> = Timeout<F>;
    type ThreadLocalRng = CoreRng;
    type Mpsc = TokioMpsc;
    type Watch = FifoWatch;
    type Oneshot = TokioOneshot;
    type Mutex<T: OptionalSend + 'static> = TokioMutex<T>;

    fn spawn<F>(future: F) -> JoinHandle<F::Output>
    where
        F: Future + OptionalSend + 'static,
        F::Output: OptionalSend + 'static,
    {
        JoinHandle(Some(Runtime::current().spawn("raft-core", future)))
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        Runtime::current().sleep(duration)
    }

    fn sleep_until(deadline: CoreInstant) -> Self::Sleep {
        Runtime::current().sleep_until(deadline.0)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(duration: Duration, future: F) -> Timeout<F> {
        Timeout::until(Runtime::current().now() + duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(deadline: CoreInstant, future: F) -> Timeout<F> {
        Timeout::until(deadline.0, future)
    }

    fn is_panic(end: &TaskEnd) -> bool {
        matches!(end, TaskEnd::Panicked(_))
    }

    fn thread_rng() -> CoreRng {
        CoreRng
    }

    fn new(threads: usize) -> Self {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
        FlotillaRuntime { tokio: tokio.expect("a runtime for tests can be made") }
    }

    fn block_on<F: Future<Output = T>, T>(&mut self, future: F) -> T {
        self.tokio.block_on(future)
    }

    fn spawn_blocking<F, T>(work: F) -> impl Future<Output = Result<T, io::Error>> + Send
    where
        F: FnOnce() -> T + Send + 'static,
        T: Send + 'static,
    {
        let runtime = Runtime::current();
        async move { Ok(runtime.blocking(work).await) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_future_may_ask_the_time_out_around_it_for_more_time_and_no_other() {
        let answer = |after_ms, asks: bool| async move {
            if asks {
                ask_for_time(Duration::from_secs(5));
            }
            Runtime::current().sleep(Duration::from_millis(after_ms)).await;
        };
        let short = Duration::from_millis(10);
        assert!(FlotillaRuntime::timeout(short, answer(50, false)).await.is_err());
        assert!(FlotillaRuntime::timeout(short, answer(50, true)).await.is_ok());
        let around = FlotillaRuntime::timeout(short, FlotillaRuntime::timeout(short, answer(50, true)));
        assert!(around.await.is_err(), "only the inner one was asked");
        let long = FlotillaRuntime::timeout(Duration::from_secs(20), answer(50, true));
        assert!(long.await.is_ok(), "a longer one is not shortened");
    }

    #[test]
    fn the_runtime_passes_openrafts_own_suite() {
        openraft_rt::testing::Suite::<FlotillaRuntime>::test_all();
    }
}
