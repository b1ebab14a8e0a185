//! What replicas remember of each other, so that one that comes back with less than it had is told before it votes.
//!
//! ```text
//! start ─▶ no vote yet ─▶ "what do you remember of me?" ─┬─ no more than is here, or nobody answers in time ─▶ votes
//!                                                        ├─ more than is here, and one leads ─▶ another life, no vote ─▶ taken in again
//!                                                        └─ more than is here, and nobody leads for 10 s ─▶ votes, and says so
//! ```
//! An older copy of a whole directory looks like any other directory to its replica, and so does a log whose end was damaged
//! where a torn write could have been. Both have forgotten what was confirmed, the copy also votes. Who has gives up its life
//! (ADR 0022): it counts again once the group has taken it in.
//!
//! Remembered is in memory what a follower confirmed to be on its disk to the leader that asks no more of it, and on disk whom
//! a replica has voted for. So a copy is found out while the leader of its last term, or of a later one, lives; not where all
//! who could know have gone down since.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use futures::future::join_all;

use super::acquaintance::{Verdict, ask_acquaintance};
use super::stamp::Stamp;
use super::vote_hold::ask_hold;
use crate::identity::new_incarnation;
use crate::log_view::LogView;
use crate::standing::Standings;
use crate::vote_and_marks::SavedVote;
use crate::{LogIndex, NodeId, Term, Transport};

/// No vote for so long at the most: with the usual settings a follower waits longer before it campaigns.
const HOLD_MAX: Duration = Duration::from_millis(300);
/// Who does not answer is asked again after this pause,
const ROUND_PAUSE: Duration = Duration::from_millis(50);
/// for so long; and so long somebody may come to lead who takes this replica in again.
const ASK_MAX: Duration = Duration::from_secs(10);

/// A group of two.
const VOTERS_OF_A_PAIR: usize = 2;

/// What is known of a replica in one life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Remembrance {
    /// It took part in this term.
    pub(crate) term: Term,
    /// In that term it had everything up to this entry on its disk.
    pub(crate) index: LogIndex,
}

/// Whether a replica that has voted in `vote` and whose log ends at `last` was once further. An end may move back in a later
/// term, where another leader has truncated it; in one and the same term it cannot.
fn has_forgotten(remembered: Remembrance, last: Option<LogIndex>, vote: Option<SavedVote>) -> bool {
    let term = vote.map_or(Term(0), |vote| vote.term);
    // Of who is known to have voted only, entry 0 is remembered: that says nothing of its log, which may be empty.
    let lacks = |last: Option<LogIndex>| last.unwrap_or(LogIndex(0)) < remembered.index;
    remembered.term > term || (remembered.term == term && lacks(last))
}

/// What `asker` is to be told of itself.
pub(super) fn remembrance_of(standings: &Standings, view: &LogView, asker: &Stamp) -> Option<Remembrance> {
    let confirmed = standings.remembered(asker.node, asker.incarnation);
    // A candidate's vote for itself is on its disk before it asks for others'.
    let voted = view.vote().filter(|vote| vote.node == asker.node);
    let voted = voted.map(|vote| Remembrance { term: vote.term, index: LogIndex(0) });
    confirmed.max(voted)
}

/// What a replica needs to ask the others.
pub(super) struct Recollection {
    pub(super) node: NodeId,
    pub(super) standings: Standings,
    pub(super) view: LogView,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) runtime: Runtime,
}

impl Recollection {
    /// Begins to ask all other members; there is no vote from now on. Nothing to ask for whoever is alone.
    pub(super) fn start(self) -> Option<Task<()>> {
        let members = self.standings.members().members;
        let others: BTreeSet<NodeId> = members.into_keys().filter(|member| *member != self.node).collect();
        if others.is_empty() {
            return None;
        }
        let hold = self.view.vote_hold().clone();
        hold.set_recollecting(true);
        let runtime = self.runtime.clone();
        Some(runtime.spawn("recollection", async move {
            let end_hold = || {
                hold.set_recollecting(false);
                // Whether it campaigns is not settled by this alone.
                self.view.shared.damages.wake();
            };
            let is_suspect = AtomicBool::new(false);
            let mut asking = std::pin::pin!(self.ask_all(others, &is_suspect));
            if self.runtime.timeout(HOLD_MAX, asking.as_mut()).await.is_err() {
                if !is_suspect.load(Ordering::Acquire) {
                    end_hold();
                }
                asking.await;
            }
            end_hold();
        }))
    }

    /// Asks until all have answered, and none knows more than is here, or somebody leads who can take this replica in again.
    async fn ask_all(&self, others: BTreeSet<NodeId>, is_suspect: &AtomicBool) {
        let until = self.runtime.now() + ASK_MAX;
        let mut silent = others.clone();
        while !self.view.shared.damages.is_closing() && self.runtime.now() < until {
            let asking = silent.iter().map(|peer| ask_acquaintance(&self.runtime, &*self.transport, *peer));
            for (answer, sender) in join_all(asking).await.into_iter().flatten() {
                match answer.verdict {
                    // Asked again: it may come to know less, of a later term.
                    Verdict::Remembered(remembered) if self.is_more_than_here(remembered) => {
                        is_suspect.store(true, Ordering::Release);
                        // Looked at again: the leader may be one that this replica has just voted for.
                        if self.is_led(&others).await && self.is_more_than_here(remembered) {
                            return self.renounce(sender.node, remembered).await;
                        }
                        continue;
                    }
                    Verdict::Stranger { known } => self.standings.note_known_as(known),
                    Verdict::Remembered(_) | Verdict::GivenUp { .. } | Verdict::Welcome => {}
                }
                silent.remove(&sender.node);
            }
            if silent.is_empty() {
                return;
            }
            self.runtime.sleep(ROUND_PAUSE).await;
        }
        if is_suspect.load(Ordering::Acquire) {
            // All who are left may be such copies: a group that is brought back from them.
            tracing::error!(
                last = ?self.view.ends().1, vote = ?self.view.vote(),
                "another replica remembers more of this one than is in its directory, and nobody leads who could take it in \
                 again: it counts as it is. What was acknowledged since the copy was made may be lost"
            );
        }
    }

    /// Whether one of them leads, by a quorum without this replica.
    async fn is_led(&self, others: &BTreeSet<NodeId>) -> bool {
        let asking = others.iter().map(|peer| ask_hold(&self.runtime, &*self.transport, *peer));
        join_all(asking).await.into_iter().flatten().any(|answer| answer.last.is_some())
    }

    fn is_more_than_here(&self, remembered: Remembrance) -> bool {
        // In this order: a truncation that comes between is that of a later term, which the vote tells.
        let last = self.view.ends().1.map(|last| last.index);
        has_forgotten(remembered, last, self.view.vote()) && self.standings.may_vote()
    }

    async fn renounce(&self, peer: NodeId, remembered: Remembrance) {
        let Remembrance { term, index } = remembered;
        if self.standings.members().voters.len() <= VOTERS_OF_A_PAIR {
            // Each election and each commit needs the other one, which remembers; without this one it could not take it in again.
            return tracing::error!(
                %peer, %term, %index, last = ?self.view.ends().1,
                "the other replica remembers more of this one than is in its directory: that is an older copy, or has lost its \
                 end. It is filled again"
            );
        }
        tracing::error!(
            %peer, %term, %index, last = ?self.view.ends().1, vote = ?self.view.vote(),
            "another replica remembers more of this one than is in its directory: that is an older copy, or has lost its end. \
             It does not vote until the group has taken it in again, which a leader does by itself"
        );
        let (standings, incarnation) = (self.standings.clone(), new_incarnation(&self.runtime));
        self.view.note_identity(move || standings.renounce(incarnation)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_in_the_same_term_is_forgotten_and_less_in_a_later_one_was_truncated() {
        let remembered = Remembrance { term: Term(5), index: LogIndex(100) };
        let vote = |term| Some(SavedVote { term: Term(term), node: NodeId(1), committed: true });
        let forgot = |last: Option<u64>, vote| has_forgotten(remembered, last.map(LogIndex), vote);
        assert!(!forgot(Some(100), vote(5)) && !forgot(Some(120), vote(5)));
        assert!(forgot(Some(99), vote(5)) && forgot(None, vote(5)));
        assert!(forgot(Some(120), vote(4)) && forgot(Some(120), None), "it took part in term 5");
        assert!(!forgot(Some(3), vote(6)) && !forgot(None, vote(6)));
        let voted = Remembrance { term: Term(5), index: LogIndex(0) };
        assert!(!has_forgotten(voted, None, vote(5)) && has_forgotten(voted, None, vote(4)));
    }
}
