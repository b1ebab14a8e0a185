//! Who leads, as this replica sees it, and the wait for somebody who does.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_raft_log::{LogStatus, NodeId, Role, Term};
use flotilla_runtime::{Instant, Runtime};
use tokio::sync::Notify;

/// Where a call that changes something has to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// This replica leads, in this term, and may write.
    Local(Term),
    /// Another replica leads.
    Remote(NodeId),
    /// Nobody is known to lead.
    Nobody,
}

impl Place {
    /// The replica that leads, if it is another one.
    pub fn other_leader(self) -> Option<NodeId> {
        match self {
            Place::Remote(leader) => Some(leader),
            Place::Local(_) | Place::Nobody => None,
        }
    }

    /// Reads a replica's view of itself.
    pub fn of(status: &LogStatus) -> Place {
        match (status.role, status.leader) {
            (Role::Leader, _) if status.can_write => Place::Local(status.term),
            // It leads but has not heard from a quorum, or has not applied the first entry of its term.
            (Role::Leader, _) => Place::Nobody,
            (_, Some(leader)) if leader != status.node => Place::Remote(leader),
            _ => Place::Nobody,
        }
    }
}

/// The newest known place, and the wait for another. One task of the node feeds it.
#[derive(Debug)]
pub struct Leadership {
    runtime: Runtime,
    seen: Mutex<Seen>,
    /// Since when nobody leads.
    nobody_since: Mutex<Option<Instant>>,
    changed: Notify,
}

/// A place and how many there were before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// The place.
    pub place: Place,
    /// Grows with each change of leader, term or right to write.
    pub generation: u64,
}

impl Leadership {
    /// Nobody leads yet.
    pub fn new(runtime: Runtime) -> Arc<Leadership> {
        let seen = Seen { place: Place::Nobody, generation: 0 };
        let nobody_since = Mutex::new(Some(runtime.now()));
        Arc::new(Leadership { runtime, seen: Mutex::new(seen), nobody_since, changed: Notify::new() })
    }

    /// Takes over what the log says now; if it is news, wakes those who wait and returns true.
    pub fn update(&self, status: &LogStatus) -> bool {
        let place = Place::of(status);
        {
            let mut seen = self.seen.lock().expect(LOCK);
            if seen.place == place {
                return false;
            }
            *seen = Seen { place, generation: seen.generation + 1 };
        }
        *self.nobody_since.lock().expect(LOCK) = (place == Place::Nobody).then(|| self.runtime.now());
        self.changed.notify_waiters();
        true
    }

    /// The newest known place.
    pub fn seen(&self) -> Seen {
        *self.seen.lock().expect(LOCK)
    }

    /// For how long nobody has led; zero if somebody does.
    pub fn leaderless_for(&self, now: Instant) -> Duration {
        self.nobody_since.lock().expect(LOCK).map_or(Duration::ZERO, |since| now.saturating_since(since))
    }

    /// The term in which this replica leads and may write.
    pub fn local_term(&self) -> Option<Term> {
        match self.seen().place {
            Place::Local(term) => Some(term),
            Place::Remote(_) | Place::Nobody => None,
        }
    }

    /// Waits until the generation is another than `generation`, at most until `deadline`.
    pub async fn changed_from(&self, generation: u64, deadline: Instant) {
        let wait = async {
            loop {
                let changed = self.changed.notified();
                let mut changed = std::pin::pin!(changed);
                // Enlisted before the look, so that a change between look and wait is not missed.
                changed.as_mut().enable();
                if self.seen().generation != generation {
                    return;
                }
                changed.await;
            }
        };
        // Running out of time is as good an end as a change: the caller looks again.
        let _ = self.runtime.timeout_at(deadline, wait).await;
    }

    /// The first place that is somebody, at the latest at `deadline`; `None` if there was none.
    pub async fn wait_for_leader(&self, deadline: Instant) -> Option<Place> {
        loop {
            let seen = self.seen();
            if seen.place != Place::Nobody {
                return Some(seen.place);
            }
            if self.runtime.now() >= deadline {
                return None;
            }
            self.changed_from(seen.generation, deadline).await;
        }
    }
}

const LOCK: &str = "leadership lock is never poisoned: no code panics while holding it";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn status(role: Role, leader: Option<u64>, can_write: bool) -> LogStatus {
        LogStatus {
            node: NodeId(1),
            role,
            term: Term(4),
            leader: leader.map(NodeId),
            can_write,
            last: None,
            committed: None,
            applied: None,
            durable: None,
            members: BTreeSet::new(),
            disk: flotilla_raft_log::DiskStatus::default(),
        }
    }

    #[test]
    fn a_leader_that_may_not_write_is_nobody() {
        assert_eq!(Place::of(&status(Role::Leader, Some(1), true)), Place::Local(Term(4)));
        assert_eq!(Place::of(&status(Role::Leader, Some(1), false)), Place::Nobody);
        assert_eq!(Place::of(&status(Role::Follower, Some(2), false)), Place::Remote(NodeId(2)));
        assert_eq!(Place::of(&status(Role::Follower, Some(1), false)), Place::Nobody, "its own past");
        assert_eq!(Place::of(&status(Role::Candidate, None, false)), Place::Nobody);
    }

    #[tokio::test]
    async fn a_waiter_is_woken_by_the_first_leader() {
        let runtime = Runtime::tokio();
        let leadership = Leadership::new(runtime.clone());
        let deadline = runtime.now() + Duration::from_secs(5);
        let waiter = {
            let leadership = leadership.clone();
            runtime.spawn("waiter", async move { leadership.wait_for_leader(deadline).await })
        };
        runtime.sleep(Duration::from_millis(10)).await;
        leadership.update(&status(Role::Candidate, None, false));
        leadership.update(&status(Role::Follower, Some(3), false));
        assert_eq!(waiter.await.expect("the waiter ends"), Some(Place::Remote(NodeId(3))));
    }

    #[tokio::test]
    async fn a_waiter_gives_up_at_its_deadline() {
        let runtime = Runtime::tokio();
        let leadership = Leadership::new(runtime.clone());
        assert_eq!(leadership.wait_for_leader(runtime.now() + Duration::from_millis(20)).await, None);
    }
}
