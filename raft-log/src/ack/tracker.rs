//! Answers those who wait for watermarks, in the order of the log; nobody polls.
//!
//! ```text
//!  append, sync, commit ──┐                        ┌─▶ waiting for "appended"
//!  a follower's answer ───┼─▶ watermarks ─ passed ─┼─▶ waiting for "on the leader's disk"
//!  lag limit passed ──────┘                        └─▶ … one queue a condition, each in log order
//! ```

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

use flotilla_runtime::{Runtime, select};
use tokio::sync::{Notify, oneshot};

use super::marks::{LagLimits, LeftBehind, Marks, ReplicationStatus};
use super::ticket::{AckFailure, AckTicket, AckWhen};
use crate::ids::EntryId;
use crate::{LogIndex, NodeId, Term};

/// Watches of all conditions together that may wait.
pub(crate) const PENDING_ACKS_MAX: usize = 65_536;

/// The watermarks of one replica's log and who waits for them; a cheap handle.
#[derive(Clone)]
pub(crate) struct AckTracker {
    shared: Arc<Shared>,
}

struct Shared {
    runtime: Runtime,
    inner: Mutex<Inner>,
    /// Somebody may begin to lag, or the end has come.
    news: Notify,
    /// There are entries that are not on disk.
    unsynced: Notify,
}

struct Inner {
    marks: Marks,
    /// By [`AckWhen::number`], each in log order.
    waiting: [VecDeque<Waiter>; AckWhen::COUNT],
    waiting_count: usize,
    /// The lag watch sleeps until a deadline of its own.
    is_armed: bool,
    is_closed: bool,
}

struct Waiter {
    index: LogIndex,
    term: Term,
    was_enough: bool,
    reply: oneshot::Sender<Result<(), AckFailure>>,
}

impl Inner {
    /// Answers everybody whose watermark has passed, or cannot as things are.
    fn answer(&mut self) {
        if self.waiting_count == 0 {
            return;
        }
        for when in AckWhen::ALL {
            let queue = &mut self.waiting[when.number()];
            if queue.is_empty() {
                continue;
            }
            let reached = self.marks.reached(when);
            while let Some(first) = queue.front() {
                let outcome = if Some(first.index) <= reached {
                    Ok(())
                } else if let Some(obstacle) = self.marks.obstacle(when, first.index, first.was_enough) {
                    Err(obstacle)
                } else {
                    break;
                };
                if let Some(waiter) = queue.pop_front() {
                    self.waiting_count -= 1;
                    // Whoever waited may have gone.
                    let _ = waiter.reply.send(outcome);
                }
            }
        }
    }

    /// Fails everybody of an earlier reign.
    fn fail_before(&mut self, term: Term, failure: &AckFailure) {
        for queue in &mut self.waiting {
            while queue.front().is_some_and(|waiter| waiter.term < term) {
                if let Some(waiter) = queue.pop_front() {
                    self.waiting_count -= 1;
                    let _ = waiter.reply.send(Err(failure.clone()));
                }
            }
        }
    }

    fn enter(&mut self, term: Term) {
        if self.marks.enter(term) {
            self.fail_before(term, &AckFailure::LeadershipLost);
        }
    }
}

impl AckTracker {
    pub(crate) fn new(runtime: Runtime, node: NodeId, voters: BTreeSet<NodeId>, limits: LagLimits) -> AckTracker {
        let inner = Inner {
            marks: Marks::new(node, voters, limits),
            waiting: Default::default(),
            waiting_count: 0,
            is_armed: false,
            is_closed: false,
        };
        let shared = Shared { runtime, inner: Mutex::new(inner), news: Notify::new(), unsynced: Notify::new() };
        AckTracker { shared: Arc::new(shared) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().expect("tracker lock is never poisoned: no code panics while holding it")
    }

    /// The vote or an entry shows that this term has begun; whatever waits for an earlier one is over.
    pub(crate) fn enter(&self, term: Term) {
        self.inner().enter(term);
    }

    pub(crate) fn set_voters(&self, voters: BTreeSet<NodeId>) {
        let mut inner = self.inner();
        inner.marks.set_voters(voters);
        inner.answer();
    }

    /// Entries up to `last` are in this replica's log; some came with tickets, given in log order.
    pub(crate) fn appended(&self, last: EntryId, bytes: u64, tickets: Vec<(EntryId, AckTicket)>) {
        let now = self.shared.runtime.now();
        let mut watches = Vec::with_capacity(tickets.len());
        for (id, ticket) in tickets {
            let (on_append, wishes) = ticket.take();
            // Before any of its watches is answered.
            if let Some(on_append) = on_append {
                on_append(id.index, id.term);
            }
            watches.push((id, wishes));
        }
        {
            let mut inner = self.inner();
            inner.enter(last.term);
            inner.marks.append(last, bytes, now);
            let was_enough = inner.marks.is_enough();
            for (id, wishes) in watches {
                for (when, reply) in wishes {
                    inner.wait(id, when, was_enough, reply);
                }
            }
            inner.answer();
            if !inner.is_armed && inner.marks.next_deadline().is_some() {
                self.shared.news.notify_one();
            }
        }
        self.shared.unsynced.notify_one();
    }

    pub(crate) fn truncated(&self, last: Option<LogIndex>) {
        self.inner().marks.truncate(last);
    }

    /// This replica's log is on disk up to `index`.
    pub(crate) fn synced_self(&self, index: Option<LogIndex>) {
        let mut inner = self.inner();
        inner.marks.sync_self(index);
        inner.answer();
    }

    pub(crate) fn committed(&self, index: LogIndex) {
        let mut inner = self.inner();
        inner.marks.commit(index);
        inner.answer();
    }

    pub(crate) fn status(&self) -> ReplicationStatus {
        self.inner().marks.status(self.shared.runtime.now())
    }

    /// Nobody will be answered any more.
    pub(crate) fn close(&self) {
        let mut inner = self.inner();
        inner.is_closed = true;
        inner.fail_before(Term(u64::MAX), &AckFailure::Stopped);
        drop(inner);
        self.shared.news.notify_one();
        self.shared.unsynced.notify_one();
    }

    /// Resolves when entries were appended since the last call; false once closed.
    pub(crate) async fn appended_more(&self) -> bool {
        self.shared.unsynced.notified().await;
        !self.inner().is_closed
    }

    /// Takes followers out of the in-sync set when they lag too far behind. Ends when the tracker is closed.
    pub(crate) async fn watch_lag(self) {
        loop {
            let deadline = {
                let mut inner = self.inner();
                if inner.is_closed {
                    return;
                }
                let left = inner.marks.leave_behind(self.shared.runtime.now());
                if !left.is_empty() {
                    let in_sync = inner.marks.in_sync();
                    left.iter().for_each(|gone| tell_left(gone, &in_sync));
                    inner.answer();
                }
                let deadline = inner.marks.next_deadline();
                inner.is_armed = deadline.is_some();
                deadline
            };
            match deadline {
                None => self.shared.news.notified().await,
                Some(deadline) => {
                    let _ = select(self.shared.runtime.sleep_until(deadline), self.shared.news.notified()).await;
                }
            }
        }
    }
}

impl Inner {
    fn wait(&mut self, id: EntryId, when: AckWhen, was_enough: bool, reply: oneshot::Sender<Result<(), AckFailure>>) {
        let failure = if self.is_closed {
            Some(AckFailure::Stopped)
        } else if self.waiting_count >= PENDING_ACKS_MAX {
            Some(AckFailure::Overloaded { pending_max: PENDING_ACKS_MAX })
        } else {
            None
        };
        if let Some(failure) = failure {
            let _ = reply.send(Err(failure));
            return;
        }
        self.waiting_count += 1;
        self.waiting[when.number()].push_back(Waiter { index: id.index, term: id.term, was_enough, reply });
    }
}

fn tell_left(gone: &LeftBehind, in_sync: &BTreeSet<NodeId>) {
    tracing::warn!(
        node = gone.node.0,
        lag_ms = gone.lag.as_millis(),
        lag_bytes = gone.lag_bytes,
        ?in_sync,
        "replica does not keep up and leaves the in-sync set"
    );
}

/// What one follower's answers tell.
#[derive(Clone)]
pub(crate) struct ReplicaMarks {
    tracker: AckTracker,
    node: NodeId,
    /// Followers answer only for what they have on disk.
    matched_is_durable: bool,
}

impl ReplicaMarks {
    pub(crate) fn new(tracker: AckTracker, node: NodeId, matched_is_durable: bool) -> ReplicaMarks {
        ReplicaMarks { tracker, node, matched_is_durable }
    }

    /// Whether followers answer only for what they have on disk.
    pub(crate) fn matched_is_durable(&self) -> bool {
        self.matched_is_durable
    }

    /// The follower has everything up to `index` in the reign `term`.
    pub(crate) fn matched(&self, term: Term, index: LogIndex) {
        let mut inner = self.tracker.inner();
        inner.enter(term);
        let keeps_up = inner.marks.matched(self.node, term, index, self.tracker.shared.runtime.now());
        if self.matched_is_durable {
            inner.marks.synced(self.node, term, index);
        }
        if keeps_up {
            tracing::info!(node = self.node.0, in_sync = ?inner.marks.in_sync(), "replica keeps up and joins the in-sync set");
        }
        inner.answer();
    }

    /// The follower has everything up to `index` on disk, in the reign `term`.
    pub(crate) fn durable(&self, term: Term, index: LogIndex) {
        let mut inner = self.tracker.inner();
        inner.marks.synced(self.node, term, index);
        inner.answer();
    }
}
