//! The one reason for which a replica must stop, told to whoever waits for it.

use std::sync::Mutex;

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
}
