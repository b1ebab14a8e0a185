//! The one reason for which a replica must stop, told to whoever waits for it.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};

use flotilla_runtime::{Runtime, Task};
use futures::FutureExt as _;
use tokio::sync::Notify;

/// Set at most once; the first reason stays.
#[derive(Debug, Default)]
pub struct Failure {
    reason: Mutex<Option<String>>,
    set: Notify,
}

impl Failure {
    /// Notes a reason.
    pub fn set(&self, reason: String) {
        {
            let mut known = self.reason.lock().expect(LOCK);
            if known.is_some() {
                return;
            }
            *known = Some(reason);
        }
        self.set.notify_waiters();
    }

    /// Starts a task that the replica cannot do without: if it panics, that is a reason.
    pub fn guard(
        self: &Arc<Self>,
        runtime: &Runtime,
        name: &'static str,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Task<()> {
        let failure = self.clone();
        runtime.spawn(name, async move {
            if let Err(panic) = AssertUnwindSafe(work).catch_unwind().await {
                let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
                let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
                failure.set(format!("task {name} panicked: {text}"));
            }
        })
    }

    /// The reason, if there is one.
    pub fn get(&self) -> Option<String> {
        self.reason.lock().expect(LOCK).clone()
    }

    /// Waits for a reason.
    pub async fn wait(&self) -> String {
        loop {
            let mut set = std::pin::pin!(self.set.notified());
            set.as_mut().enable();
            if let Some(reason) = self.get() {
                return reason;
            }
            set.await;
        }
    }
}

const LOCK: &str = "failure lock is never poisoned: no code panics while holding it";

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_first_reason_stays() {
        let failure = Failure::default();
        failure.set("disk".to_owned());
        failure.set("later".to_owned());
        assert_eq!(failure.wait().await, "disk");
    }

    #[tokio::test]
    async fn a_panic_in_a_guarded_task_is_a_reason() {
        let failure = Arc::new(Failure::default());
        let runtime = Runtime::tokio();
        let fine = failure.guard(&runtime, "fine", async {});
        fine.await.expect("it ends");
        assert_eq!(failure.get(), None);
        let _task = failure.guard(&runtime, "proposer", async { panic!("slot {} is missing", 3) });
        assert_eq!(failure.wait().await, "task proposer panicked: slot 3 is missing");
    }
}
