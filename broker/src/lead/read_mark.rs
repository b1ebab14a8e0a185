//! How a follower knows that it keeps up: it asks the leader up to where the log is committed, and looks whether it has applied
//! that.
//!
//! Its own idea of what is committed would not do: who is cut off, or far behind, hears nothing of what it lacks.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_proto::{CallContext, v2};
use flotilla_runtime::Instant;

use super::leader_call::{Attempt, LeaderCall, Tried};
use super::leadership::Place;
use crate::replica::Replica;

/// How long the leader may take to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(300);
/// A leader that did not answer is asked again after so long.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Marks that are not applied yet; the newest of them are kept.
const MARKS_MAX: usize = 16;

/// Asks the leader for the last entry that is committed at that moment, by the word of a quorum.
pub struct ReadMark;

impl LeaderCall for ReadMark {
    type Request = ();
    /// The entry's index; 0 if there is no answer, as from a program that does not know the question.
    type Answer = u64;
    const METHOD: &'static str = "ReadMark";
    const IS_FRESH_READ: bool = true;

    fn is_idempotent((): &()) -> bool {
        true
    }

    async fn execute(replica: &Arc<Replica>, _: &CallContext, (): &(), _: Attempt) -> Tried<u64> {
        // Whatever was acknowledged before the question is applied here by now.
        Tried::answer(replica.store.applied())
    }

    fn refusal((): &(), _: v2::Status) -> u64 {
        0
    }
}

/// What this replica has learnt of the leader's log.
#[derive(Debug, Default)]
pub struct ReadMarks {
    known: Mutex<Known>,
    /// One question at a time; whoever waits for it uses its answer.
    asking: tokio::sync::Mutex<()>,
}

#[derive(Debug, Default)]
struct Known {
    /// When the leader was asked, and up to where the log was committed at least by then.
    ahead: VecDeque<(Instant, u64)>,
    /// This replica had all that was committed at that time.
    fresh_at: Option<Instant>,
    /// The leader did not answer; until then it is not asked.
    pause_until: Option<Instant>,
}

impl Known {
    fn look(&mut self, applied: u64) {
        while let Some((asked_at, _)) = self.ahead.front().copied().filter(|(_, index)| *index <= applied) {
            self.fresh_at = Some(asked_at);
            self.ahead.pop_front();
        }
    }

    fn told(&mut self, asked_at: Instant, index: u64) {
        if self.ahead.len() == MARKS_MAX {
            self.ahead.pop_back();
        }
        self.ahead.push_back((asked_at, index));
    }

    fn is_fresh(&self, now: Instant, age_max: Duration) -> bool {
        self.fresh_at.is_some_and(|at| now.saturating_since(at) <= age_max)
    }
}

impl ReadMarks {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().expect("mark lock is never poisoned: no code panics while holding it")
    }

    /// Whether this replica has applied all that was committed `read_lag_ms_max` ago. Asks the leader if that is not known.
    pub async fn keeps_up(&self, replica: &Replica) -> bool {
        let age_max = Duration::from_millis(replica.config.read_lag_ms_max);
        // Asked in time, so that who keeps up never waits for it.
        if self.is_known(replica, age_max / 2) {
            return true;
        }
        let _turn = self.asking.lock().await;
        if !self.is_known(replica, age_max / 2) {
            self.ask(replica).await;
        }
        self.is_known(replica, age_max)
    }

    fn is_known(&self, replica: &Replica, age_max: Duration) -> bool {
        let (applied, now) = (replica.store.applied(), replica.runtime.now());
        let mut known = self.known();
        known.look(applied);
        known.is_fresh(now, age_max)
    }

    async fn ask(&self, replica: &Replica) {
        let now = replica.runtime.now();
        let Place::Remote(leader) = replica.leadership.seen().place else { return };
        if self.known().pause_until.is_some_and(|until| now < until) {
            return;
        }
        let ends = now + ASK_TIMEOUT;
        let context = CallContext::new(ends, String::new(), std::collections::BTreeMap::new());
        let told = replica.forwarder.forward::<ReadMark>(leader, &context, &(), false, ends).await;
        let mut known = self.known();
        match told {
            Tried::Answer(reply) if reply.body > 0 => known.told(now, reply.body),
            Tried::Answer(_) | Tried::Refused { .. } | Tried::NotExecuted { .. } | Tried::Unknown(_) => {
                known.pause_until = Some(replica.runtime.now() + ASK_AGAIN);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_replica_keeps_up_from_the_time_at_which_it_had_what_the_leader_told() {
        let (mut known, second) = (Known::default(), Duration::from_secs(1));
        known.look(100);
        assert!(!known.is_fresh(at(0), second), "nobody was asked");
        known.told(at(10), 120);
        known.told(at(500), 150);
        known.look(119);
        assert!(!known.is_fresh(at(20), second));
        known.look(140);
        assert!(known.is_fresh(at(1_010), second) && !known.is_fresh(at(1_011), second));
        known.look(150);
        assert!(known.is_fresh(at(1_500), second) && !known.is_fresh(at(1_501), second));
    }

    #[test]
    fn marks_that_are_not_reached_do_not_pile_up() {
        let mut known = Known::default();
        (1..100).for_each(|number| known.told(at(number), number));
        assert_eq!(known.ahead.len(), MARKS_MAX);
        known.look(1);
        assert_eq!(known.fresh_at, Some(at(1)), "the oldest says soonest that it keeps up");
    }
}
