//! A replica that may have lost entries it had confirmed does not vote until it has them again.
//!
//! ```text
//! unclean boot ─▶ no vote, no campaign ─▶ ask the others ─┬─ a confirmed leader's log ends at L ─▶ own disk has L ─┐
//!                      ▲                                   ├─ all of them recover too, twice ────────────────────────┼─▶ votes
//!                      └───────────── look again ◀─────────┴─ anything else                                          │
//!                                                                                                          mark ◀────┘
//! ```
//! While it holds its vote every new leader's quorum is found without it, so each such quorum meets those of old commits
//! outside of it; and once it has all that the leader had when it asked, it has everything it ever confirmed to anybody.
//! If all have lost something nobody knows more than their logs say: the longest one wins, and what none of them had on
//! disk is gone. With some unreachable, waiting is all there is; an operator may start the group with what is left.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use futures::future::join_all;

use super::wire::{PeerMessage, decode, encode};
use crate::ids::EntryId;
use crate::log_view::LogView;
use crate::room_wait::is_full;
use crate::standing::Standings;
use crate::status_watch::StatusWatch;
use crate::{NodeId, PeerCallKind, Transport};

/// Pause between two rounds of questions.
const ROUND_PAUSE: Duration = Duration::from_millis(200);
/// A peer may take so long to answer.
const ASK_TIMEOUT: Duration = Duration::from_secs(1);
/// All must say in so many rounds in a row that they recover too.
const ALL_ROUNDS: u32 = 2;
/// A leader's mark that is not reached in so many rounds is asked for anew: another leader may have overridden it.
const MARK_ROUNDS_MAX: u32 = 50;

const VOTES: u8 = 0;
const HOLDS: u8 = 1;
/// It votes again because all had lost something.
const RELEASED: u8 = 2;

/// What a replica says to one that recovers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HoldAnswer {
    /// It recovers, too, or began to vote again because all did.
    pub(crate) recovers: bool,
    /// It leads, by the word of a quorum just now: the last entry of its log.
    pub(crate) last: Option<EntryId>,
}

/// Whether this replica votes.
#[derive(Clone)]
pub(crate) struct VoteHold {
    state: Arc<AtomicU8>,
    /// The others are being asked what they remember of this replica.
    is_recollecting: Arc<AtomicBool>,
    standings: Standings,
}

/// What the way back needs.
pub(crate) struct Recovery {
    pub(crate) node: NodeId,
    pub(crate) runtime: Runtime,
    pub(crate) view: LogView,
    pub(crate) status: StatusWatch,
    pub(crate) transport: Arc<dyn Transport>,
}

impl VoteHold {
    pub(crate) fn new(has_lost: bool, standings: Standings) -> VoteHold {
        let state = Arc::new(AtomicU8::new(if has_lost { HOLDS } else { VOTES }));
        VoteHold { state, is_recollecting: Arc::default(), standings }
    }

    /// It neither votes nor campaigns: entries are missing, its directory is not the one the group knows, or whether it is as it
    /// was is just being asked.
    pub(crate) fn holds(&self) -> bool {
        self.recovers()
            || self.is_recollecting.load(Ordering::Acquire)
            || self.standings.is_settling()
            || !self.standings.may_vote()
    }

    pub(crate) fn set_recollecting(&self, is_recollecting: bool) {
        self.is_recollecting.store(is_recollecting, Ordering::Release);
    }

    /// Entries are missing that were confirmed.
    pub(crate) fn recovers(&self) -> bool {
        self.state.load(Ordering::Acquire) == HOLDS
    }

    /// What this replica is to its group.
    pub(crate) fn standings(&self) -> &Standings {
        &self.standings
    }

    /// Answers another replica that recovers. `leads` makes sure that this replica leads.
    pub(crate) async fn answer(&self, view: &LogView, leads: impl AsyncFnOnce(Duration) -> bool) -> HoldAnswer {
        let state = self.state.load(Ordering::Acquire);
        if state == HOLDS {
            return HoldAnswer { recovers: true, last: None };
        }
        let leads = leads(ASK_TIMEOUT).await;
        // Read after the question came: whatever the asker had confirmed to this leader is in it.
        HoldAnswer { recovers: state == RELEASED, last: if leads { view.ends().1 } else { None } }
    }

    /// Begins the way back, if there is one to go.
    pub(crate) fn recover(&self, recovery: Recovery) -> Option<Task<()>> {
        if !self.recovers() {
            return None;
        }
        let (hold, runtime) = (self.clone(), recovery.runtime.clone());
        Some(runtime.spawn("vote-hold", async move { hold.run(recovery).await }))
    }

    async fn run(self, recovery: Recovery) {
        tracing::warn!(
            last = ?recovery.view.ends().1,
            "machine went down with entries that were not on disk: no vote until they are here again"
        );
        let (mut target, mut waited, mut all_rounds) = (None::<EntryId>, 0, 0);
        loop {
            if let Some(last) = target
                && recovery.view.id_at(last.index) == Some(last)
                && recovery.view.flush().await.is_ok()
                && recovery.view.durable_index() >= Some(last.index)
            {
                tracing::info!(%last, "everything the leader had is on this disk: votes again");
                return self.end(&recovery, VOTES).await;
            }
            let answers = recovery.ask_all().await;
            waited += 1;
            if target.is_none() || waited >= MARK_ROUNDS_MAX {
                target = answers.iter().flatten().find_map(|answer| answer.last);
                waited = 0;
            }
            let all_recover = answers.iter().all(|answer| answer.is_some_and(|answer| answer.recovers));
            all_rounds = if all_recover { all_rounds + 1 } else { 0 };
            if all_rounds >= ALL_ROUNDS {
                tracing::warn!(
                    "every replica of the group went down with entries that were not on disk: all vote again"
                );
                return self.end(&recovery, RELEASED).await;
            }
            recovery.runtime.sleep(ROUND_PAUSE).await;
        }
    }

    async fn end(&self, recovery: &Recovery, state: u8) {
        match recovery.view.recovered().await {
            Ok(()) => {}
            // The log was closed while it waited for room.
            Err(error) if is_full(&error) => return,
            Err(error) => {
                recovery.view.failure().report_io("boot mark", error);
                return;
            }
        }
        self.state.store(state, Ordering::Release);
        // Whether it campaigns is not settled by this alone.
        recovery.view.shared.damages.wake();
    }
}

impl Recovery {
    /// One answer for each other voter, `None` from those that did not answer.
    async fn ask_all(&self) -> Vec<Option<HoldAnswer>> {
        let others = self.status.now().members.into_iter().filter(|node| *node != self.node);
        join_all(others.map(|node| self.ask(node))).await
    }

    async fn ask(&self, node: NodeId) -> Option<HoldAnswer> {
        ask_hold(&self.runtime, &*self.transport, node).await
    }
}

/// Asks a peer whether it leads, which it makes sure of, or recovers.
pub(super) async fn ask_hold(runtime: &Runtime, transport: &dyn Transport, node: NodeId) -> Option<HoldAnswer> {
    let body = encode(PeerMessage::HoldQuestion);
    let call = transport.call(node, PeerCallKind::VoteHold, body, ASK_TIMEOUT);
    let answer = runtime.timeout(ASK_TIMEOUT, call).await.ok()?.ok()?;
    match decode(answer) {
        Ok(PeerMessage::HoldAnswer(answer)) => Some(answer),
        _ => None,
    }
}
