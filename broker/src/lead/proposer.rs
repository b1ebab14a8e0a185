//! The one way of this replica into the log: gathers commands of many calls into entries, and hands each its outcome.
//!
//! ```text
//!  submit ─▶ bounded queue ─▶ batcher task ─▶ propose ─▶ (up to N in flight) ─▶ applied ─▶ outcome to each caller
//! ```
//!
//! It clocks itself: while fewer than N proposals are in flight a command leaves at once; else it waits, with what
//! arrives meanwhile, for the next one to come back. There is no timer, so nothing lingers at rest.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_raft_log::{NodeId, ProposalClass, ProposeError, ReplicatedLog, Term};
use flotilla_runtime::{BoxFuture, Either, Instant, Runtime, select};
use flotilla_store::{Command, EntryBuilder, Outcome, Rejection, StoreReader, command_bytes};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{mpsc, oneshot};

use super::log_clock::LogClock;
use crate::metrics::{Counters, Refused};

/// Commands in one entry, at most.
pub const ENTRY_COMMANDS_MAX: usize = 1024;
/// Bytes of one entry, about: the command that passes this is the last one in its entry.
pub const ENTRY_BYTES_SOFT_MAX: usize = 1 << 20;

/// Entries applied in a process's first moments are mostly old ones: their stamps say nothing about the time now.
const LIVE_AFTER: Duration = Duration::from_secs(10);

/// The replicated log with the store as its machine.
pub type Log = ReplicatedLog<Vec<Outcome>>;

/// What became of a command that was committed and applied.
#[derive(Debug)]
pub struct Settled {
    /// What the store answered.
    pub outcome: Outcome,
    /// The term it was committed in.
    pub term: Term,
}

/// Why a command has no outcome, told by what the caller may conclude.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SubmitError {
    /// Surely not stored: this replica does not lead (any more), or has no quorum at the moment.
    #[error("not stored: this replica does not lead or has no quorum")]
    NotStored {
        /// The leader, if one is known.
        leader: Option<NodeId>,
    },
    /// Surely not stored: the log has no room.
    #[error("not stored: {0}")]
    Full(String),
    /// Surely not stored: too many commands wait already.
    #[error("not stored: {queued_commands_max} commands, the most that are allowed, are waiting already")]
    Overloaded {
        /// The limit.
        queued_commands_max: u64,
    },
    /// Surely not stored: the command passes the limit of an entry.
    #[error("not stored: {0}")]
    TooLarge(String),
    /// May or may not be stored, now or later.
    #[error("outcome is unknown: {0}")]
    Unknown(String),
}

/// The handle of the batcher.
#[derive(Debug)]
pub struct Proposer {
    queue: mpsc::Sender<Queued>,
    queued_commands_max: u64,
    counters: Arc<Counters>,
}

struct Queued {
    term: Term,
    command: Command,
    reply: oneshot::Sender<Result<Settled, SubmitError>>,
}

impl std::fmt::Debug for Queued {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queued").field("term", &self.term).finish_non_exhaustive()
    }
}

/// What the batcher needs; it ends when the [`Proposer`] is dropped.
pub struct Batcher {
    log: Log,
    store: StoreReader,
    clock: std::sync::Arc<TermClock>,
    queue: mpsc::Receiver<Queued>,
    in_flight: FuturesUnordered<BoxFuture<'static, ()>>,
    in_flight_max: usize,
    counters: Arc<Counters>,
    /// Taken from the queue but left over from the last entry, because of its term or size.
    next: Option<Queued>,
}

/// The log clock with what it reads.
#[derive(Debug)]
pub struct TermClock {
    runtime: Runtime,
    /// What is applied before this was stamped before this process ran, as far as it can know.
    live_from: Instant,
    clock: Mutex<LogClock>,
}

impl TermClock {
    /// A clock before its first reign.
    pub fn new(runtime: Runtime) -> TermClock {
        let live_from = runtime.now() + LIVE_AFTER;
        TermClock { runtime, live_from, clock: Mutex::new(LogClock::new()) }
    }

    /// An entry with this stamp was applied just now.
    pub fn saw(&self, stamp_ms: u64) {
        let now = self.runtime.now();
        if now >= self.live_from {
            self.clock().saw(stamp_ms, now);
        }
    }

    fn clock(&self) -> MutexGuard<'_, LogClock> {
        self.clock.lock().expect("clock lock is never poisoned: no code panics while holding it")
    }

    /// Log time now, in ms, for a leader of `term`.
    pub fn now_ms(&self, term: Term, store: &StoreReader) -> u64 {
        let (last, now, wall) = (store.log_time_ms(), self.runtime.now(), self.runtime.wall_ms());
        self.clock().now_ms(term, last, now, wall)
    }
}

impl Proposer {
    /// A proposer and the work of its batcher, which ends soon after the proposer is dropped.
    pub fn new(
        log: Log,
        store: StoreReader,
        clock: std::sync::Arc<TermClock>,
        queued_commands_max: u64,
        proposals_in_flight_max: u64,
        counters: Arc<Counters>,
    ) -> (Proposer, impl Future<Output = ()> + Send + use<>) {
        let capacity = usize::try_from(queued_commands_max).expect("validated");
        let (sender, queue) = mpsc::channel(capacity);
        let batcher = Batcher {
            log,
            store,
            clock,
            queue,
            in_flight: FuturesUnordered::new(),
            in_flight_max: usize::try_from(proposals_in_flight_max).expect("validated"),
            counters: counters.clone(),
            next: None,
        };
        (Proposer { queue: sender, queued_commands_max, counters }, batcher.run())
    }

    /// Commands that wait for a place in an entry.
    pub fn queued(&self) -> u64 {
        (self.queue.max_capacity() - self.queue.capacity()) as u64
    }

    /// Hands in one command for a term in which this replica leads; resolves when it is applied here, or will not be.
    /// Commands handed in by one task enter the log in that order. Dropping the future does not take the command back
    /// once it is in an entry.
    pub fn submit(&self, term: Term, command: Command) -> impl Future<Output = Result<Settled, SubmitError>> + use<> {
        let (reply, outcome) = oneshot::channel();
        let queued = self.queue.try_send(Queued { term, command, reply });
        let queued_commands_max = self.queued_commands_max;
        if matches!(queued, Err(mpsc::error::TrySendError::Full(_))) {
            self.counters.refused(Refused::QueueFull, 1);
        }
        async move {
            match queued {
                Ok(()) => outcome.await.unwrap_or_else(|_| {
                    // The batcher is gone, with or without having proposed.
                    Err(SubmitError::Unknown("replica is stopping".to_owned()))
                }),
                Err(mpsc::error::TrySendError::Full(_)) => Err(SubmitError::Overloaded { queued_commands_max }),
                Err(mpsc::error::TrySendError::Closed(_)) => Err(SubmitError::NotStored { leader: None }),
            }
        }
    }
}

impl Batcher {
    async fn run(mut self) {
        loop {
            if let Some(first) = self.next.take() {
                self.propose_from(first);
            }
            if self.next.is_some() && self.in_flight.len() < self.in_flight_max {
                continue;
            }
            // Proposals first: polling them is what starts those just made.
            let may_take = self.next.is_none() && self.in_flight.len() < self.in_flight_max;
            let done = async {
                if self.in_flight.is_empty() {
                    std::future::pending::<()>().await;
                }
                self.in_flight.next().await;
            };
            let arrival = async {
                if !may_take {
                    std::future::pending::<()>().await;
                }
                self.queue.recv().await
            };
            match select(done, arrival).await {
                Either::Left(()) => {}
                Either::Right(Some(first)) => self.next = Some(first),
                Either::Right(None) => break,
            }
        }
        while self.in_flight.next().await.is_some() {}
    }

    /// Makes one entry of `first` and what waits behind it, unless there is no room for another proposal.
    fn propose_from(&mut self, first: Queued) {
        if self.in_flight.len() >= self.in_flight_max {
            self.next = Some(first);
            return;
        }
        let term = first.term;
        let class = class_of(&first.command);
        // While space is short, what is refused must not take along what may still be written.
        let is_apart = self.log.is_full();
        let mut entry = EntryBuilder::new(self.clock.now_ms(term, &self.store), term.0);
        let mut replies = Vec::new();
        let mut candidate = Some(first);
        while let Some(queued) = candidate.take().or_else(|| self.queue.try_recv().ok()) {
            if queued.reply.is_closed() {
                // Its caller has given up; surely not stored is the kinder end.
                continue;
            }
            // Alone it may be refused as too large; it must not take others with it.
            let is_over = entry.byte_len() + command_bytes(&queued.command) > self.log.payload_bytes_max();
            let is_other = is_apart && class_of(&queued.command) != class;
            if is_other || queued.term != term || !entry.fits(&queued.command) || (is_over && !replies.is_empty()) {
                self.next = Some(queued);
                break;
            }
            entry.push(&queued.command);
            replies.push(queued.reply);
            if replies.len() >= ENTRY_COMMANDS_MAX || entry.byte_len() >= ENTRY_BYTES_SOFT_MAX {
                break;
            }
        }
        if replies.is_empty() {
            return;
        }
        let settling = settle(self.log.clone(), class, entry.finish(), term, replies, self.counters.clone());
        self.in_flight.push(Box::pin(settling));
    }
}

/// Who may still write when space runs short: what brings new data is refused first.
fn class_of(command: &Command) -> ProposalClass {
    match command {
        Command::Produce { .. }
        | Command::Prepare { .. }
        | Command::CreateTopic { .. }
        | Command::CreateGroup { .. } => ProposalClass::Data,
        _ => ProposalClass::Settlement,
    }
}

/// Proposes one entry and gives each command its outcome.
async fn settle(
    log: Log,
    class: ProposalClass,
    payload: Bytes,
    term: Term,
    replies: Vec<oneshot::Sender<Result<Settled, SubmitError>>>,
    counters: Arc<Counters>,
) {
    match log.propose_as(class, payload, Some(term)).await {
        Ok(applied) => {
            let is_refused = matches!(
                applied.output.first(),
                Some(Outcome::Rejected(Rejection::Malformed { .. } | Rejection::StoreFailed { .. }))
            );
            if is_refused || applied.output.len() != replies.len() {
                // One outcome for the whole entry: a fault of ours, or of this node's files. Others may have applied it.
                let reason = format!("entry {} was not applied: {:?}", applied.index, applied.output.first());
                tracing::error!(index = applied.index.0, reason, "entry refused by the store");
                return answer_all(replies, &SubmitError::Unknown(reason));
            }
            for (reply, outcome) in replies.into_iter().zip(applied.output) {
                // The caller may have given up meanwhile.
                let _ = reply.send(Ok(Settled { outcome, term: applied.term }));
            }
        }
        Err(error) => {
            let error = SubmitError::from(error);
            match error {
                SubmitError::Full(_) => counters.refused(Refused::LogFull, replies.len() as u64),
                SubmitError::TooLarge(_) => counters.refused(Refused::TooLarge, replies.len() as u64),
                // Counted where the caller is told, if it is.
                SubmitError::NotStored { .. } | SubmitError::Overloaded { .. } | SubmitError::Unknown(_) => {}
            }
            answer_all(replies, &error);
        }
    }
}

fn answer_all(replies: Vec<oneshot::Sender<Result<Settled, SubmitError>>>, error: &SubmitError) {
    for reply in replies {
        // The caller may have given up meanwhile.
        let _ = reply.send(Err(error.clone()));
    }
}

impl From<ProposeError> for SubmitError {
    fn from(error: ProposeError) -> SubmitError {
        match error {
            ProposeError::NotLeader { leader } => SubmitError::NotStored { leader },
            ProposeError::NoQuorum => SubmitError::NotStored { leader: None },
            ProposeError::Full(reason) => SubmitError::Full(reason.to_string()),
            ProposeError::TooLarge { .. } => SubmitError::TooLarge(error.to_string()),
            ProposeError::Unknown(reason) => SubmitError::Unknown(reason),
            ProposeError::Stopped => SubmitError::Unknown("replica is stopping".to_owned()),
        }
    }
}
