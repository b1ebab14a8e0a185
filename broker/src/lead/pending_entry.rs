//! One entry on its way through the log, and whom to answer when: at its commit, before it, or after it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flotilla_raft_log::{AckFailure, AckWhen, Term};
use flotilla_store::Outcome;
use tokio::sync::oneshot;

use super::proposer::{Settled, SubmitError};

/// When the caller of a command is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AnswerWhen {
    /// When it is committed and applied here.
    Applied,
    /// Once the watermark has passed it, with the outcome that its application will have.
    Early {
        /// The watermark.
        when: AckWhen,
        /// Whether its application is at least as good.
        applied_suffices: bool,
    },
    /// When it is applied here and the watermark has passed it.
    Late(AckWhen),
}

impl AnswerWhen {
    /// The watermark it needs, if any.
    pub fn watch(self) -> Option<AckWhen> {
        match self {
            AnswerWhen::Applied => None,
            AnswerWhen::Early { when, .. } | AnswerWhen::Late(when) => Some(when),
        }
    }

    /// Whether the answer may come before the commit.
    pub fn is_early(self) -> bool {
        matches!(self, AnswerWhen::Early { .. })
    }
}

/// The way back to a caller.
pub type ReplyTo = oneshot::Sender<Result<Settled, SubmitError>>;

/// The commands of one entry.
#[derive(Debug)]
pub struct PendingEntry {
    term: Term,
    /// Its place in the log, once it has one; 0 before.
    index: AtomicU64,
    commands: Mutex<Vec<Pending>>,
}

#[derive(Debug)]
struct Pending {
    when: AnswerWhen,
    /// Gone once answered.
    reply: Option<ReplyTo>,
    /// As predicted, or as applied.
    outcome: Option<Outcome>,
    is_applied: bool,
    watched: Option<Result<(), AckFailure>>,
}

impl Pending {
    /// Answers the caller if all that it waits for is known.
    fn answer(&mut self, term: Term) {
        let Some(outcome) = &self.outcome else { return };
        let shortfall = match (self.when, &self.watched) {
            (AnswerWhen::Applied, _) | (AnswerWhen::Early { applied_suffices: true, .. }, _) if self.is_applied => None,
            (AnswerWhen::Early { .. }, Some(Ok(()))) => None,
            (AnswerWhen::Late(_), Some(Ok(()))) if self.is_applied => None,
            (AnswerWhen::Early { .. } | AnswerWhen::Late(_), Some(Err(failure))) if self.is_applied => {
                Some(failure.clone())
            }
            _ => return,
        };
        if let Some(reply) = self.reply.take() {
            // The caller may have given up meanwhile.
            let _ = reply.send(Ok(Settled { outcome: outcome.clone(), term, shortfall }));
        }
    }
}

impl PendingEntry {
    /// An entry to be proposed in `term`, its commands in order.
    pub fn new(term: Term, replies: Vec<(AnswerWhen, ReplyTo)>) -> PendingEntry {
        let pending =
            |(when, reply)| Pending { when, reply: Some(reply), outcome: None, is_applied: false, watched: None };
        let commands = Mutex::new(replies.into_iter().map(pending).collect());
        PendingEntry { term, index: AtomicU64::new(0), commands }
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Pending>> {
        self.commands.lock().expect("entry lock is never poisoned: no code panics while holding it")
    }

    /// It is in the log.
    pub fn appended(&self, index: u64) {
        self.index.store(index, Ordering::Release);
    }

    /// Its place in the log, once it has one.
    pub fn index(&self) -> Option<u64> {
        Some(self.index.load(Ordering::Acquire)).filter(|index| *index > 0)
    }

    /// A watermark has passed it, or will not. `predicted` is what its commands will come to, as far as that is sure.
    pub fn watched(&self, when: AckWhen, reached: &Result<(), AckFailure>, predicted: Option<Vec<Option<Outcome>>>) {
        let mut commands = self.commands();
        if let Some(predicted) = predicted {
            for (pending, predicted) in commands.iter_mut().zip(predicted) {
                if pending.outcome.is_none() {
                    pending.outcome = predicted;
                }
            }
        }
        for pending in commands.iter_mut().filter(|pending| pending.when.watch() == Some(when)) {
            pending.watched = Some(reached.clone());
            pending.answer(self.term);
        }
    }

    /// It is applied; the outcomes of its commands, in order.
    pub fn applied(&self, outcomes: Vec<Outcome>) {
        let mut commands = self.commands();
        for (pending, outcome) in commands.iter_mut().zip(outcomes) {
            if let Some(predicted) = &pending.outcome
                && *predicted != outcome
            {
                let index = self.index.load(Ordering::Acquire);
                tracing::error!(index, ?predicted, applied = ?outcome, "a send was sequenced otherwise than it was applied");
                debug_assert_eq!(*predicted, outcome, "entry {index}");
            }
            (pending.outcome, pending.is_applied) = (Some(outcome), true);
            pending.answer(self.term);
        }
    }

    /// It has no outcomes; whoever was not answered yet is told why.
    pub fn failed(&self, error: &SubmitError) {
        for pending in self.commands().iter_mut() {
            if let Some(reply) = pending.reply.take() {
                let _ = reply.send(Err(error.clone()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_store::Rejection;

    use super::*;

    const EARLY: AnswerWhen = AnswerWhen::Early { when: AckWhen::Appended, applied_suffices: true };
    const ON_DISK: AnswerWhen = AnswerWhen::Early { when: AckWhen::LeaderDurable, applied_suffices: false };
    const SYNC: AckWhen = AckWhen::InSync { durable: true };

    type Told = oneshot::Receiver<Result<Settled, SubmitError>>;

    fn entry(whens: &[AnswerWhen]) -> (PendingEntry, Vec<Told>) {
        let pairs = whens.iter().map(|when| {
            let (reply, told) = oneshot::channel();
            ((*when, reply), told)
        });
        let (replies, told): (Vec<_>, Vec<_>) = pairs.unzip();
        (PendingEntry::new(Term(3), replies), told)
    }

    fn outcome() -> Outcome {
        Outcome::Rejected(Rejection::TopicNotWritable)
    }

    fn shortfall(told: &mut Told) -> Option<Option<AckFailure>> {
        Some(told.try_recv().ok()?.expect("an outcome").shortfall)
    }

    #[test]
    fn each_command_of_an_entry_is_answered_at_its_own_time() {
        let (entry, mut told) = entry(&[EARLY, AnswerWhen::Applied, AnswerWhen::Late(SYNC)]);
        let predicted = vec![Some(outcome()); 3];
        entry.watched(AckWhen::Appended, &Ok(()), Some(predicted));
        assert_eq!(shortfall(&mut told[0]), Some(None));
        assert!(told[1].try_recv().is_err() && told[2].try_recv().is_err());
        entry.applied(vec![outcome(); 3]);
        assert_eq!(shortfall(&mut told[1]), Some(None));
        assert!(told[2].try_recv().is_err());
        entry.watched(SYNC, &Ok(()), None);
        assert_eq!(shortfall(&mut told[2]), Some(None));
    }

    #[test]
    fn what_could_not_be_predicted_is_answered_when_it_is_applied() {
        let (entry, mut told) = entry(&[EARLY, ON_DISK]);
        entry.watched(AckWhen::Appended, &Ok(()), None);
        assert!(told[0].try_recv().is_err());
        entry.applied(vec![outcome(); 2]);
        assert_eq!(shortfall(&mut told[0]), Some(None));
        assert!(told[1].try_recv().is_err(), "applied, and not on the leader's disk");
        entry.watched(AckWhen::LeaderDurable, &Ok(()), None);
        assert_eq!(shortfall(&mut told[1]), Some(None));
    }

    #[test]
    fn stored_but_not_as_widely_as_asked_is_told_as_that() {
        let (entry, mut told) = entry(&[AnswerWhen::Late(SYNC), EARLY]);
        entry.watched(SYNC, &Err(AckFailure::LeadershipLost), None);
        entry.watched(AckWhen::Appended, &Err(AckFailure::LeadershipLost), None);
        assert!(told[0].try_recv().is_err() && told[1].try_recv().is_err(), "it may yet be applied");
        entry.applied(vec![outcome(); 2]);
        assert_eq!(shortfall(&mut told[0]), Some(Some(AckFailure::LeadershipLost)));
        assert_eq!(shortfall(&mut told[1]), Some(None), "committed is more than it asked for");
    }

    #[test]
    fn without_an_outcome_whoever_waits_is_told_why() {
        let (entry, mut told) = entry(&[EARLY, AnswerWhen::Applied]);
        entry.watched(AckWhen::Appended, &Ok(()), Some(vec![Some(outcome()), None]));
        entry.failed(&SubmitError::Unknown("leader changed".to_owned()));
        assert_eq!(shortfall(&mut told[0]), Some(None), "its promise was kept before");
        assert!(matches!(told[1].try_recv(), Ok(Err(SubmitError::Unknown(_)))));
    }
}
