//! The one way of this replica into the log: gathers commands of many calls into entries, and hands each its outcome.
//!
//! ```text
//!  submit ─▶ bounded queue ─▶ batcher task ─▶ propose ─▶ (up to N in flight) ─▶ applied ─▶ outcome to each caller
//! ```
//!
//! It clocks itself: while fewer than N proposals are in flight a command leaves at once; else it waits, with what
//! arrives meanwhile, for the next one to come back. There is no timer, so nothing lingers at rest. A command whose caller
//! is answered before the commit does not wait for others to be committed, only for the entry before it to be in the log;
//! whatever stands before it in the queue leaves with it, so that the order stays.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_message::limits;
use flotilla_raft_log::{AckFailure, AckTicket, AckWhen, NodeId, ProposalClass, ProposeError, ReplicatedLog, Term};
use flotilla_runtime::{BoxFuture, Either, Instant, Runtime, select};
use flotilla_store::{Command, EntryBuilder, Outcome, Rejection, Shadow, StoreReader, command_bytes};
use futures::stream::{FuturesUnordered, StreamExt};
use tokio::sync::{Notify, mpsc, oneshot};

use super::log_clock::LogClock;
use super::pending_entry::{AnswerWhen, PendingEntry, ReplyTo};
use crate::metrics::{Counters, Refused};

/// Commands in one entry, at most.
pub const ENTRY_COMMANDS_MAX: usize = 1024;
/// Bytes of one entry, about: the command that passes this is the last one in its entry.
pub const ENTRY_BYTES_SOFT_MAX: usize = 1 << 20;

/// Entries applied in a process's first moments are mostly old ones: their stamps say nothing about the time now.
const LIVE_AFTER: Duration = Duration::from_secs(10);
/// Entries in flight, at most, while callers wait that are answered before the commit.
const EARLY_ENTRIES_MAX: usize = 128;
/// Bytes of entries in flight, about, while such callers wait.
const EARLY_BYTES_MAX: usize = 64 << 20;
/// Room kept in an entry for the note of what is answered early.
const EARLY_NOTE_BYTES: usize = 64 + 4 * ENTRY_COMMANDS_MAX;

/// The replicated log with the store as its machine.
pub type Log = ReplicatedLog<Vec<Outcome>>;

/// What became of a command that was committed and applied.
#[derive(Debug)]
pub struct Settled {
    /// What the store answered.
    pub outcome: Outcome,
    /// The term it was committed in.
    pub term: Term,
    /// Committed and applied, but not as widely stored as its caller had asked: why.
    pub shortfall: Option<AckFailure>,
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
    counts: Arc<Counts>,
}

struct Queued {
    term: Term,
    command: Command,
    when: AnswerWhen,
    reply: ReplyTo,
    /// Stands behind it in the same entry, or is not stored either.
    rest: Vec<(Command, ReplyTo)>,
}

impl Queued {
    fn bytes(&self) -> usize {
        let rest: usize = self.rest.iter().map(|(command, _)| command_bytes(command)).sum();
        command_bytes(&self.command) + rest
    }
}

/// What decides whether callers wait that must not wait for a commit.
#[derive(Debug, Default)]
struct Counts {
    /// Commands in the queue that are answered early.
    early_queued: AtomicUsize,
    /// Entries proposed and not in the log yet.
    unappended: AtomicUsize,
    /// One of the two changed.
    changed: Notify,
}

/// One entry that is not in the log yet, until dropped.
struct Unappended(Arc<Counts>);

impl Unappended {
    fn new(counts: &Arc<Counts>) -> Unappended {
        counts.unappended.fetch_add(1, Ordering::AcqRel);
        Unappended(counts.clone())
    }
}

impl Drop for Unappended {
    fn drop(&mut self) {
        self.0.unappended.fetch_sub(1, Ordering::AcqRel);
        self.0.changed.notify_one();
    }
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
    shadow: Arc<Shadow>,
    queue: mpsc::Receiver<Queued>,
    counts: Arc<Counts>,
    /// Each gives its bytes back.
    in_flight: FuturesUnordered<BoxFuture<'static, usize>>,
    in_flight_max: usize,
    counters: Arc<Counters>,
    in_flight_bytes: usize,
    /// Those who wait for watermarks; the log bounds them.
    watching: FuturesUnordered<BoxFuture<'static, ()>>,
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
        let counts = Arc::new(Counts::default());
        let batcher = Batcher {
            log,
            shadow: Arc::new(Shadow::new(&store)),
            store,
            clock,
            queue,
            counts: counts.clone(),
            in_flight_bytes: 0,
            watching: FuturesUnordered::new(),
            in_flight: FuturesUnordered::new(),
            in_flight_max: usize::try_from(proposals_in_flight_max).expect("validated"),
            counters: counters.clone(),
            next: None,
        };
        (Proposer { queue: sender, queued_commands_max, counts, counters }, batcher.run())
    }

    /// Commands that wait for a place in an entry.
    pub fn queued(&self) -> u64 {
        (self.queue.max_capacity() - self.queue.capacity()) as u64
    }

    /// Hands in one command for a term in which this replica leads; resolves when it is applied here, or will not be.
    /// Commands handed in by one task enter the log in that order. Dropping the future does not take the command back
    /// once it is in an entry.
    pub fn submit(&self, term: Term, command: Command) -> impl Future<Output = Result<Settled, SubmitError>> + use<> {
        self.submit_at(term, command, AnswerWhen::Applied)
    }

    /// As [`Proposer::submit`], answered earlier or later. Answered early, it may still be lost to another leader.
    pub fn submit_at(
        &self,
        term: Term,
        command: Command,
        when: AnswerWhen,
    ) -> impl Future<Output = Result<Settled, SubmitError>> + use<> {
        let (reply, outcome) = oneshot::channel();
        let queued = self.enqueue(Queued { term, command, when, reply, rest: Vec::new() });
        async move {
            queued?;
            settled(outcome).await
        }
    }

    /// As [`Proposer::submit`] of several commands, in one entry: all of them or none.
    pub fn submit_all(
        &self,
        term: Term,
        commands: Vec<Command>,
    ) -> impl Future<Output = Result<Vec<Settled>, SubmitError>> + use<> {
        let mut outcomes = Vec::with_capacity(commands.len());
        let mut queued = commands.into_iter().map(|command| {
            let (reply, outcome) = oneshot::channel();
            outcomes.push(outcome);
            (command, reply)
        });
        let queued = match queued.next() {
            Some((command, reply)) => {
                let rest = queued.collect();
                self.enqueue(Queued { term, command, when: AnswerWhen::Applied, reply, rest })
            }
            None => Ok(()),
        };
        async move {
            queued?;
            let mut all = Vec::with_capacity(outcomes.len());
            for outcome in outcomes {
                all.push(settled(outcome).await?);
            }
            Ok(all)
        }
    }

    fn enqueue(&self, queued: Queued) -> Result<(), SubmitError> {
        let when = queued.when;
        if when.is_early() {
            self.counts.early_queued.fetch_add(1, Ordering::AcqRel);
        }
        let queued = self.queue.try_send(queued);
        if when.is_early() {
            if queued.is_err() {
                self.counts.early_queued.fetch_sub(1, Ordering::AcqRel);
            }
            self.counts.changed.notify_one();
        }
        queued.map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                self.counters.refused(Refused::QueueFull, 1);
                SubmitError::Overloaded { queued_commands_max: self.queued_commands_max }
            }
            mpsc::error::TrySendError::Closed(_) => SubmitError::NotStored { leader: None },
        })
    }
}

async fn settled(outcome: oneshot::Receiver<Result<Settled, SubmitError>>) -> Result<Settled, SubmitError> {
    // Without an answer the batcher is gone, with or without having proposed.
    outcome.await.unwrap_or_else(|_| Err(SubmitError::Unknown("replica is stopping".to_owned())))
}

impl Batcher {
    async fn run(mut self) {
        loop {
            if let Some(first) = self.next.take() {
                self.propose_from(first);
            }
            if self.next.is_some() && self.has_room() {
                continue;
            }
            let may_take = self.next.is_none() && self.has_room();
            let (in_flight, watching, queue) = (&mut self.in_flight, &mut self.watching, &mut self.queue);
            // Proposals first: polling them is what starts those just made.
            let progress = select(next_of(in_flight), next_of(watching));
            let arrival = async {
                if !may_take {
                    std::future::pending::<()>().await;
                }
                queue.recv().await
            };
            match select(progress, select(arrival, self.counts.changed.notified())).await {
                Either::Left(Either::Left(bytes)) => self.in_flight_bytes -= bytes,
                Either::Left(Either::Right(())) | Either::Right(Either::Right(())) => {}
                Either::Right(Either::Left(Some(first))) => self.next = Some(first),
                Either::Right(Either::Left(None)) => break,
            }
        }
        while self.in_flight.next().await.is_some() {}
        while self.watching.next().await.is_some() {}
    }

    /// Whether another entry may be proposed now.
    fn has_room(&self) -> bool {
        let counts = &self.counts;
        self.in_flight.len() < self.in_flight_max
            || (counts.early_queued.load(Ordering::Acquire) > 0
                && counts.unappended.load(Ordering::Acquire) == 0
                && self.in_flight.len() < EARLY_ENTRIES_MAX
                && self.in_flight_bytes < EARLY_BYTES_MAX)
    }

    /// Makes one entry of `first` and what waits behind it, unless there is no room for another proposal.
    fn propose_from(&mut self, first: Queued) {
        if !self.has_room() {
            self.next = Some(first);
            return;
        }
        let term = first.term;
        let class = class_of(&first.command);
        // While space is short, what is refused must not take along what may still be written.
        let is_apart = self.log.is_full();
        let mut entry = EntryBuilder::new(self.clock.now_ms(term, &self.store), term.0);
        let mut replies: Vec<(AnswerWhen, ReplyTo)> = Vec::new();
        let mut early = Vec::new();
        let mut candidate = Some(first);
        while let Some(queued) = candidate.take().or_else(|| self.queue.try_recv().ok()) {
            if queued.reply.is_closed() {
                // Its caller has given up; surely not stored is the kinder end.
                self.left_queue(queued.when);
                continue;
            }
            // Alone it may be refused as too large; it must not take others with it.
            let note = if queued.when.is_early() || !early.is_empty() { EARLY_NOTE_BYTES } else { 0 };
            let bytes = entry.byte_len() + queued.bytes() + note;
            let is_over = bytes > self.log.payload_bytes_max();
            let is_other = is_apart && class_of(&queued.command) != class;
            let is_misfit = is_over || bytes > limits::ENTRY_BYTES_MAX || !entry.fits(&queued.command);
            if is_other || queued.term != term || (is_misfit && !replies.is_empty()) {
                self.next = Some(queued);
                break;
            }
            self.left_queue(queued.when);
            if queued.when.is_early() {
                early.push(u32::try_from(replies.len()).expect("an entry has far fewer commands"));
            }
            entry.push(&queued.command);
            replies.push((queued.when, queued.reply));
            for (command, reply) in queued.rest {
                entry.push(&command);
                replies.push((AnswerWhen::Applied, reply));
            }
            if replies.len() >= ENTRY_COMMANDS_MAX || entry.byte_len() >= ENTRY_BYTES_SOFT_MAX {
                break;
            }
        }
        if replies.is_empty() {
            return;
        }
        if !early.is_empty() {
            entry.push(&Command::AnsweredEarly { commands: early });
        }
        self.propose(class, entry, term, replies);
    }

    fn left_queue(&self, when: AnswerWhen) {
        if when.is_early() {
            self.counts.early_queued.fetch_sub(1, Ordering::AcqRel);
        }
    }

    fn propose(&mut self, class: ProposalClass, entry: EntryBuilder, term: Term, replies: Vec<(AnswerWhen, ReplyTo)>) {
        let mut watches: Vec<AckWhen> = replies.iter().filter_map(|(when, _)| when.watch()).collect();
        let wants_prediction = replies.iter().any(|(when, _)| when.is_early());
        if cfg!(debug_assertions) {
            // Every prediction is held against what is applied.
            watches.push(AckWhen::Appended);
        }
        watches.sort_unstable();
        watches.dedup();
        let command_count = entry.command_count();
        let proposal = Proposal { class, term, command_count, payload: entry.finish() };
        let pending = Arc::new(PendingEntry::new(term, replies));
        let mut ticket = AckTicket::new();
        for when in watches {
            let watch = ticket.watch(when);
            let (pending, shadow) = (pending.clone(), self.shadow.clone());
            self.watching.push(Box::pin(async move {
                let reached = watch.reached().await;
                let is_wanted = wants_prediction || cfg!(debug_assertions);
                let index = pending.index().filter(|_| reached.is_ok() && is_wanted);
                let predicted = index.and_then(|index| shadow.predict(index));
                pending.watched(when, &reached, predicted);
            }));
        }
        let (appended, shadow, unappended) = (pending.clone(), self.shadow.clone(), Unappended::new(&self.counts));
        let payload = proposal.payload.clone();
        ticket.on_append(move |index, term| {
            appended.appended(index.0);
            shadow.appended(index.0, term.0, payload);
            drop(unappended);
        });
        self.in_flight_bytes += proposal.payload.len();
        let (log, shadow, counters) = (self.log.clone(), self.shadow.clone(), self.counters.clone());
        let settling = settle(log, proposal, ticket, pending, shadow, counters);
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

/// The next result of a set; never, if it is empty.
async fn next_of<T>(set: &mut FuturesUnordered<BoxFuture<'static, T>>) -> T {
    match set.next().await {
        Some(result) => result,
        None => std::future::pending().await,
    }
}

/// An entry to propose.
struct Proposal {
    class: ProposalClass,
    term: Term,
    command_count: usize,
    payload: Bytes,
}

/// Proposes one entry and gives each command its outcome; returns its bytes.
async fn settle(
    log: Log,
    proposal: Proposal,
    ticket: AckTicket,
    pending: Arc<PendingEntry>,
    shadow: Arc<Shadow>,
    counters: Arc<Counters>,
) -> usize {
    let Proposal { class, term, command_count, payload } = proposal;
    let bytes = payload.len();
    match log.propose_with(class, payload, Some(term), Some(ticket)).await {
        Ok(applied) => {
            shadow.applied(applied.index.0);
            let is_refused = matches!(
                applied.output.first(),
                Some(Outcome::Rejected(Rejection::Malformed { .. } | Rejection::StoreFailed { .. }))
            );
            if is_refused || applied.output.len() != command_count {
                // One outcome for the whole entry: a fault of ours, or of this node's files. Others may have applied it.
                let reason = format!("entry {} was not applied: {:?}", applied.index, applied.output.first());
                tracing::error!(index = applied.index.0, reason, "entry refused by the store");
                pending.failed(&SubmitError::Unknown(reason));
            } else {
                pending.applied(applied.output);
            }
        }
        Err(error) => {
            let error = SubmitError::from(error);
            match error {
                SubmitError::Full(_) => counters.refused(Refused::LogFull, command_count as u64),
                SubmitError::TooLarge(_) => counters.refused(Refused::TooLarge, command_count as u64),
                // Counted where the caller is told, if it is.
                SubmitError::NotStored { .. } | SubmitError::Overloaded { .. } | SubmitError::Unknown(_) => {}
            }
            pending.failed(&error);
        }
    }
    bytes
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
