//! What wakes the duties.

use std::time::Duration;

use flotilla_raft_log::Term;
use flotilla_runtime::{Instant, select};
use tokio::sync::Notify;

use crate::lead::leadership::Place;
use crate::replica::Replica;

/// Tells each duty that something waits whose time comes before that of all others.
#[derive(Debug, Default)]
pub struct DutyNews {
    /// For the delivery of delayed messages.
    pub due: Notify,
    /// For the checks of half messages.
    pub checks: Notify,
    /// For the purge: the log was trimmed.
    pub trims: Notify,
}

/// A wait that only news ends.
pub const LONG: Duration = Duration::from_secs(3600);
/// Pause after the log refused.
pub const REFUSED_PAUSE: Duration = Duration::from_millis(20);

impl DutyNews {
    /// Wakes all duties; each looks for itself whether it is concerned.
    pub fn tell(&self) {
        self.due.notify_one();
        self.checks.notify_one();
    }
}

/// Waits until this replica leads; its term, and the generation of leadership in which that was seen.
pub async fn led_here(replica: &Replica) -> (Term, u64) {
    loop {
        let seen = replica.leadership.seen();
        if let Place::Local(term) = seen.place {
            return (term, seen.generation);
        }
        replica.leadership.changed_from(seen.generation, replica.runtime.now() + LONG).await;
    }
}

/// Until there is news of messages or of leadership, at most until `until`.
pub async fn wait(replica: &Replica, news: &Notify, generation: u64, until: Instant) {
    select(replica.leadership.changed_from(generation, until), news.notified()).await;
}
