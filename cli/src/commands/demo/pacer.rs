//! Spreads the faults over the run: senders slow down before one that is due and cannot happen yet.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

/// Time between two messages while a due fault waits for the replica of the one before to catch up.
const SLOW_INTERVAL: Duration = Duration::from_millis(5);
const HOLD_POLL: Duration = Duration::from_millis(2);

/// The run is cut into (faults + 1) equal stages with a fault between each two. Messages of the next stage go out slowly
/// until it has happened, those of its second half not at all: so each falls into traffic. The second half of the last
/// stage goes out slowly until the last fault is over.
pub struct Pacer {
    runtime: Runtime,
    messages: u64,
    faults: u64,
    faults_done: AtomicU64,
    /// The last fault is over, with the return of its replica.
    is_over: AtomicBool,
    /// Shortest time between two messages, if the user asked for a rate.
    interval: Option<Duration>,
    next_slot: Mutex<Option<Instant>>,
    idle_until: Mutex<Vec<Instant>>,
}

impl Pacer {
    pub fn new(messages: u64, faults: u64, rate: Option<u64>, runtime: Runtime) -> Pacer {
        Pacer {
            runtime,
            messages,
            faults,
            faults_done: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            interval: rate.map(|rate| Duration::from_secs(1) / u32::try_from(rate).unwrap_or(u32::MAX).max(1)),
            next_slot: Mutex::new(None),
            idle_until: Mutex::new(Vec::new()),
        }
    }

    /// So many messages must be done before fault `number` (from 0) is due.
    pub fn due_at(&self, number: u64) -> u64 {
        self.messages * (number + 1) / (self.faults + 1)
    }

    /// One more fault has happened: senders go on at full speed.
    pub fn happened(&self) {
        self.faults_done.fetch_add(1, Ordering::Relaxed);
    }

    /// Nothing more will happen: what is left goes out at full speed.
    pub fn set_over(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits until message `number` may go out.
    pub async fn wait(&self, number: u64) {
        let mut held = false;
        while number >= self.held_from() {
            held = true;
            self.runtime.sleep(HOLD_POLL).await;
        }
        if held {
            self.lock(&self.idle_until).push(self.runtime.now());
        }
        let slow = number >= self.slow_from();
        let interval = self.interval.max(slow.then_some(SLOW_INTERVAL));
        if let Some(interval) = interval {
            let slot = self.take_slot(interval);
            self.runtime.sleep_until(slot).await;
        }
    }

    /// When senders went on after they had been held.
    pub fn idle_until(&self) -> Vec<Instant> {
        self.lock(&self.idle_until).clone()
    }

    fn slow_from(&self) -> u64 {
        match self.faults_done.load(Ordering::Relaxed) {
            done if done < self.faults => self.due_at(done),
            _ if self.is_over.load(Ordering::Relaxed) => u64::MAX,
            done => self.middle_of_stage(done),
        }
    }

    fn held_from(&self) -> u64 {
        match self.faults_done.load(Ordering::Relaxed) {
            // At least one message waits for each fault.
            done if done < self.faults => self.middle_of_stage(done + 1).min(self.messages - 1),
            _ if self.is_over.load(Ordering::Relaxed) => u64::MAX,
            _ => self.messages - 1,
        }
    }

    /// Of the stage after `faults` faults.
    fn middle_of_stage(&self, faults: u64) -> u64 {
        let (begin, end) =
            (self.messages * faults / (self.faults + 1), self.messages * (faults + 1) / (self.faults + 1));
        begin + (end - begin) / 2
    }

    fn take_slot(&self, interval: Duration) -> Instant {
        let mut next = self.lock(&self.next_slot);
        let now = self.runtime.now();
        let slot = next.unwrap_or(now).max(now);
        *next = Some(slot + interval);
        slot
    }

    fn lock<'a, T>(&self, mutex: &'a Mutex<T>) -> std::sync::MutexGuard<'a, T> {
        mutex.lock().expect("the pacer's locks are never poisoned: no code panics while holding one")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pacer(messages: u64, faults: u64) -> Pacer {
        Pacer::new(messages, faults, None, Runtime::tokio())
    }

    #[test]
    fn faults_are_spread_evenly() {
        let pacer = pacer(100_000, 3);
        assert_eq!([0, 1, 2].map(|number| pacer.due_at(number)), [25_000, 50_000, 75_000]);
        assert_eq!((pacer.slow_from(), pacer.held_from()), (25_000, 37_500));
        pacer.happened();
        assert_eq!((pacer.slow_from(), pacer.held_from()), (50_000, 62_500));
    }

    #[test]
    fn traffic_lasts_until_the_last_fault_is_over() {
        let pacer = pacer(10, 1);
        pacer.happened();
        assert_eq!((pacer.slow_from(), pacer.held_from()), (7, 9), "slowly, and one message comes after it");
        pacer.set_over();
        assert_eq!((pacer.slow_from(), pacer.held_from()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn a_tiny_run_still_keeps_a_message_for_each_fault() {
        assert_eq!(pacer(1, 3).held_from(), 0);
        assert_eq!(pacer(2, 1).held_from(), 1);
    }

    #[tokio::test]
    async fn a_held_message_goes_on_after_the_fault_and_is_remembered() {
        let pacer = std::sync::Arc::new(pacer(8, 1));
        let waiting = pacer.clone();
        let task = Runtime::tokio().spawn("wait", async move { waiting.wait(6).await });
        pacer.runtime.sleep(Duration::from_millis(20)).await;
        assert!(pacer.idle_until().is_empty());
        pacer.happened();
        task.await.unwrap();
        assert_eq!(pacer.idle_until().len(), 1);
    }

    #[tokio::test]
    async fn a_rate_spaces_messages() {
        let pacer = Pacer::new(10, 0, Some(100), Runtime::tokio());
        pacer.set_over();
        let started = pacer.runtime.now();
        for number in 0..4 {
            pacer.wait(number).await;
        }
        assert!(pacer.runtime.now() - started >= Duration::from_millis(30));
    }
}
