//! The driver of real processes: tokio, the machine's clocks, the thread's random generator.
#![allow(clippy::disallowed_methods, reason = "this is the one place that reads the real clocks and spawns")]

use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::{BoxFuture, Driver, Instant};

/// Stateless: all instants count from the first use in this process.
pub(crate) struct TokioDriver;

fn origin() -> tokio::time::Instant {
    static ORIGIN: OnceLock<tokio::time::Instant> = OnceLock::new();
    // An hour back, so that "now minus a time-out" never has to saturate.
    *ORIGIN.get_or_init(|| tokio::time::Instant::now() - std::time::Duration::from_secs(3600))
}

impl Driver for TokioDriver {
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        // The owner's hold is our own Task; tokio's handle is not needed.
        drop(tokio::spawn(future));
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        drop(tokio::task::spawn_blocking(work));
    }

    fn start_blocking(&self, _name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) {
        self.spawn_blocking(work);
    }

    fn start_thread(&self, name: &'static str, work: Box<dyn FnOnce() + Send + 'static>) -> std::io::Result<()> {
        std::thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
    }

    fn now(&self) -> Instant {
        let since = tokio::time::Instant::now().duration_since(origin());
        Instant::from_nanos(u64::try_from(since.as_nanos()).expect("a process does not live 584 years"))
    }

    fn wall_ms(&self) -> u64 {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        u64::try_from(since.as_millis()).expect("the year is below 500 million")
    }

    fn sleep_until(&self, deadline: Instant) -> BoxFuture<'static, ()> {
        let deadline = origin().checked_add(std::time::Duration::from_nanos(deadline.as_nanos()));
        match deadline {
            Some(deadline) => Box::pin(tokio::time::sleep_until(deadline)),
            None => Box::pin(std::future::pending()),
        }
    }

    fn random_u64(&self) -> u64 {
        rand::random()
    }
}
