//! What travels with a proposal through the core and is never written: who wants to be told of which watermark.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::oneshot;

use crate::{LogIndex, Term};

/// What must have happened to an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum AckWhen {
    /// It is in this leader's log, as far as the page cache.
    Appended,
    /// It is on this leader's disk.
    LeaderDurable,
    /// It is on the disks of a quorum. With [`crate::FlushMode::Sync`] that is what a commit means anyway.
    QuorumDurable,
    /// It is committed, and every replica in the in-sync set has it, never fewer than a quorum nor fewer than two.
    InSync {
        /// They have it on disk.
        durable: bool,
    },
}

impl AckWhen {
    pub(crate) const COUNT: usize = 5;

    pub(crate) const ALL: [AckWhen; AckWhen::COUNT] = [
        AckWhen::Appended,
        AckWhen::LeaderDurable,
        AckWhen::QuorumDurable,
        AckWhen::InSync { durable: false },
        AckWhen::InSync { durable: true },
    ];

    pub(crate) fn number(self) -> usize {
        match self {
            AckWhen::Appended => 0,
            AckWhen::LeaderDurable => 1,
            AckWhen::QuorumDurable => 2,
            AckWhen::InSync { durable: false } => 3,
            AckWhen::InSync { durable: true } => 4,
        }
    }
}

/// Why a watermark was not reached. The entry may be stored all the same.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AckFailure {
    /// The proposal did not get into the log.
    #[error("entry did not enter the log")]
    NotAppended,
    /// This replica leads no more: its watermarks mean nothing now.
    #[error("leadership was lost before enough replicas had confirmed the entry")]
    LeadershipLost,
    /// Committed, but too few replicas keep up.
    #[error("{in_sync} replicas keep up, {needed} are needed")]
    TooFewInSync {
        /// Replicas in the in-sync set, this one included.
        in_sync: usize,
        /// A quorum, and two at least.
        needed: usize,
        /// There were enough of them when the entry was appended.
        was_enough: bool,
    },
    /// Too many wait already.
    #[error("{pending_max} entries wait to be confirmed, the most that are allowed")]
    Overloaded {
        /// The limit.
        pending_max: usize,
    },
    /// The log is stopping or failed.
    #[error("log is stopped")]
    Stopped,
}

type Outcome = Result<(), AckFailure>;
type OnAppend = Box<dyn FnOnce(LogIndex, Term) + Send>;

/// The wishes of a proposal; hand it to [`crate::ReplicatedLog::propose_with`].
#[derive(Default)]
pub struct AckTicket {
    on_append: Option<OnAppend>,
    watches: Vec<(AckWhen, oneshot::Sender<Outcome>)>,
}

impl fmt::Debug for AckTicket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.watches.iter().map(|(when, _)| when)).finish()
    }
}

/// Resolves when a watermark has passed the entry, or will not.
#[derive(Debug)]
pub struct AckWatch(oneshot::Receiver<Outcome>);

impl AckWatch {
    /// Waits for it.
    ///
    /// # Errors
    /// Why it was not reached.
    pub async fn reached(self) -> Result<(), AckFailure> {
        // Dropped unanswered: with the proposal, which was refused.
        self.0.await.unwrap_or(Err(AckFailure::NotAppended))
    }

    #[cfg(test)]
    pub(crate) fn into_receiver(self) -> oneshot::Receiver<Result<(), AckFailure>> {
        self.0
    }
}

impl AckTicket {
    /// A ticket without a wish.
    pub fn new() -> AckTicket {
        AckTicket::default()
    }

    /// `told` is called, in the order of the log and on the core's own task, once the entry is in this leader's log, and
    /// before any watch of it is answered. It must be short. It is dropped uncalled if the proposal is refused.
    pub fn on_append(&mut self, told: impl FnOnce(LogIndex, Term) + Send + 'static) {
        self.on_append = Some(Box::new(told));
    }

    /// Asks to be told of a watermark.
    pub fn watch(&mut self, when: AckWhen) -> AckWatch {
        let (reply, told) = oneshot::channel();
        self.watches.push((when, reply));
        AckWatch(told)
    }

    pub(crate) fn take(self) -> (Option<OnAppend>, Vec<(AckWhen, oneshot::Sender<Outcome>)>) {
        (self.on_append, self.watches)
    }
}

/// A ticket on its way: the core may copy an entry, the first one appended takes it.
#[derive(Clone, Default)]
pub(crate) struct TicketSlot(Option<Arc<Mutex<Option<AckTicket>>>>);

impl TicketSlot {
    pub(crate) fn of(ticket: AckTicket) -> TicketSlot {
        TicketSlot(Some(Arc::new(Mutex::new(Some(ticket)))))
    }

    pub(crate) fn take(&self) -> Option<AckTicket> {
        self.0.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

/// Entries are compared by what they hold, never by who waits for them.
impl PartialEq for TicketSlot {
    fn eq(&self, _: &TicketSlot) -> bool {
        true
    }
}

impl Eq for TicketSlot {}
