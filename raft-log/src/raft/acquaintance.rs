//! "Do you know me, and in which life?": what a replica with a new directory asks before it takes part, and what follows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use futures::future::join_all;
use openraft::errors::{InitializeError, RaftError};

use super::remembrance::{Recollection, Remembrance, remembrance_of};
use super::stamp::Stamp;
use super::type_config::LogRaft;
use super::wire::{PeerMessage, decode, encode};
use crate::identity::Origin;
use crate::ids::EntryId;
use crate::log_view::LogView;
use crate::member::Member;
use crate::standing::Standings;
use crate::{Incarnation, LogIndex, NodeId, OpenError, PeerCallKind, Transport};

/// Pause between two rounds of questions; it grows to the longest one.
const ROUND_PAUSE_MIN: Duration = Duration::from_millis(20);
const ROUND_PAUSE_MAX: Duration = Duration::from_millis(500);
/// A peer may take so long to answer.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Once enough have answered, the others are waited for so long.
const OTHERS_PATIENCE: Duration = Duration::from_secs(2);
/// Who is missing is told again after so long.
const TELL_PAUSE: Duration = Duration::from_secs(10);

/// What a replica says of one that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It knows the asker in no other life, and promises to know it in no other.
    Welcome,
    /// The same, and what it remembers of it. Only said to whom it can be said ([`Stamp::reads_memory`]).
    Remembered(Remembrance),
    /// There is a group, of which the asker is no member as it is.
    Stranger {
        /// The life in which the asker's number is known.
        known: Incarnation,
    },
    /// The group went on without the asker, by an operator's order.
    GivenUp {
        /// The epoch in which it goes on.
        epoch: u16,
    },
}

/// The answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct AcquaintanceAnswer {
    pub(crate) verdict: Verdict,
    /// The one that answers came to a group that was there, or waits to be taken into one.
    pub(crate) is_newcomer: bool,
    /// Its log is on disk up to here.
    pub(crate) durable: Option<EntryId>,
    /// How it is reached.
    pub(crate) contact: String,
}

/// Asks one peer; the second is who answered.
pub(crate) async fn ask_acquaintance(
    runtime: &Runtime,
    transport: &dyn Transport,
    peer: NodeId,
) -> Option<(AcquaintanceAnswer, Stamp)> {
    let call = transport.call(peer, PeerCallKind::Acquaintance, encode(PeerMessage::Acquaintance), ASK_TIMEOUT);
    let answer = runtime.timeout(ASK_TIMEOUT, call).await.ok()?.ok()?;
    let stamp = Stamp::of(&answer).ok().filter(|stamp| stamp.node == peer)?;
    match decode(answer) {
        Ok(PeerMessage::AcquaintanceAnswer(answer)) => Some((answer, stamp)),
        _ => None,
    }
}

/// What `asker` is told. Blocks: a promise is on disk before it is given.
pub(crate) fn judge(standings: &Standings, view: &LogView, asker: &Stamp) -> std::io::Result<Verdict> {
    let verdict = judge_life(standings, view, asker)?;
    let remembered = remembrance_of(standings, view, asker).filter(|_| asker.reads_memory);
    Ok(match (verdict, remembered) {
        (Verdict::Welcome, Some(remembered)) => Verdict::Remembered(remembered),
        (verdict, _) => verdict,
    })
}

fn judge_life(standings: &Standings, view: &LogView, asker: &Stamp) -> std::io::Result<Verdict> {
    let members = standings.members();
    let recorded = members.members.get(&asker.node).map_or(Incarnation::UNKNOWN, |member| member.incarnation);
    if recorded.is_known() && recorded == asker.incarnation {
        return Ok(Verdict::Welcome);
    }
    if members.epoch > asker.epoch && asker.membership.is_some() {
        return Ok(Verdict::GivenUp { epoch: members.epoch });
    }
    // Promises were given for the members of the first epoch.
    if recorded.is_known() || members.epoch > 0 {
        return Ok(Verdict::Stranger { known: recorded });
    }
    // Something was committed, or recorded: the group is there. Who was promised before that is one of it.
    let is_there =
        members.index > Some(LogIndex(0)) || view.committed().is_some_and(|committed| committed.index > LogIndex(0));
    let before = standings.promised(asker.node);
    if is_there && before != asker.incarnation {
        return Ok(Verdict::Stranger { known: before });
    }
    let promised = standings.promise(asker.node, asker.incarnation)?;
    let is_first = promised == asker.incarnation;
    Ok(if is_first { Verdict::Welcome } else { Verdict::Stranger { known: promised } })
}

/// What the way into the group needs.
pub(crate) struct Founding {
    pub(crate) node: NodeId,
    pub(crate) voters: BTreeSet<NodeId>,
    pub(crate) standings: Standings,
    pub(crate) raft: LogRaft,
    pub(crate) view: LogView,
    pub(crate) transport: Arc<dyn Transport>,
    pub(crate) runtime: Runtime,
}

impl Founding {
    /// Founds a group of one at once; begins to ask the others in a larger one. Whoever has its place asks what the others
    /// remember of it.
    pub(crate) async fn start(self) -> Result<Option<Task<()>>, OpenError> {
        if self.standings.origin() != Origin::Undecided {
            let Founding { node, standings, view, transport, runtime, .. } = self;
            return Ok(Recollection { node, standings, view, transport, runtime }.start());
        }
        if self.voters.len() == 1 {
            self.found().await.map_err(OpenError::Core)?;
            return Ok(None);
        }
        let runtime = self.runtime.clone();
        Ok(Some(runtime.spawn("founding", async move { self.run().await })))
    }

    async fn run(self) {
        let others: Vec<NodeId> = self.voters.iter().copied().filter(|voter| *voter != self.node).collect();
        // Any two such sets of others meet: of two lives of this replica only one gets enough of them.
        let needed = others.len() / 2 + 1;
        let (mut pause, mut told, mut enough_since) = (ROUND_PAUSE_MIN, None, None);
        while !self.view.shared.damages.is_closing() {
            if self.standings.may_vote() {
                return;
            }
            let asking = others.iter().map(|peer| ask_acquaintance(&self.runtime, &*self.transport, *peer));
            let answers = join_all(asking).await;
            let stranger = answers.iter().flatten().find_map(|(answer, _)| match answer.verdict {
                Verdict::Stranger { known } => Some(known),
                Verdict::GivenUp { .. } => Some(Incarnation::UNKNOWN),
                Verdict::Welcome | Verdict::Remembered(_) => None,
            });
            if let Some(known) = stranger {
                return self.give_up(known).await;
            }
            let welcomed = answers.iter().flatten().count();
            if welcomed >= needed {
                enough_since.get_or_insert(self.runtime.now());
            }
            let is_late = enough_since.is_some_and(|since| self.runtime.now() >= since + OTHERS_PATIENCE);
            if (welcomed == others.len() || (welcomed >= needed && is_late))
                && self.know_back(answers.iter().flatten().map(|(_, sender)| *sender).collect(), needed).await
            {
                if let Err(what) = self.found().await {
                    self.view.failure().report(format!("group could not be founded: {what}"));
                }
                return;
            }
            let now = self.runtime.now();
            if told.is_none_or(|told| now >= told + TELL_PAUSE) {
                if told.is_some() {
                    let silent = others.iter().zip(&answers).filter(|(_, answer)| answer.is_none());
                    let silent: Vec<u64> = silent.map(|(peer, _)| peer.0).collect();
                    tracing::warn!(
                        needed,
                        ?silent,
                        "this directory is new, and not enough of the other replicas answer to tell a new group from a lost disk: waiting for them"
                    );
                }
                told = Some(now);
            }
            self.runtime.sleep(pause).await;
            pause = (pause * 2).min(ROUND_PAUSE_MAX);
        }
    }

    /// Promises to know those who answered in no other life, too; false if too few of them are left.
    async fn know_back(&self, senders: Vec<Stamp>, needed: usize) -> bool {
        let standings = self.standings.clone();
        let promising = move || {
            let mut known = 0;
            for sender in &senders {
                known += usize::from(standings.promise(sender.node, sender.incarnation)? == sender.incarnation);
            }
            Ok::<_, std::io::Error>(known)
        };
        self.view.note_identity(promising).await.is_some_and(|known| known >= needed)
    }

    async fn give_up(&self, known: Incarnation) {
        self.standings.note_known_as(known);
        let own = self.standings.incarnation();
        if known.is_known() {
            tracing::error!(
                %known, incarnation = %own,
                "this replica's directory is not the one the group knows: its disk was lost or emptied. It does not vote \
                 until the group has taken it in again, which a leader does by itself"
            );
        } else {
            tracing::warn!(incarnation = %own, "the group is there already: no vote until it has taken this replica in");
        }
        self.settle(Origin::Newcomer).await;
    }

    /// Writes the first membership of a new group. Every founder writes the same; whoever was reached by a leader first is
    /// refused here, rightly.
    async fn found(&self) -> Result<(), String> {
        let members: std::collections::BTreeMap<u64, Member> =
            self.voters.iter().map(|node| (node.0, Member::default())).collect();
        if !self.raft.is_initialized().await.map_err(|fatal| fatal.to_string())? {
            match self.raft.initialize(members).await {
                Ok(()) => tracing::info!(voters = ?self.voters, "group founded"),
                Err(RaftError::APIError(InitializeError::NotAllowed(_))) => {}
                Err(error) => return Err(error.to_string()),
            }
        }
        // A founder without a log is one that lost it: so the log comes first.
        self.view.flush().await.map_err(|error| error.to_string())?;
        self.settle(Origin::Founder).await;
        Ok(())
    }

    async fn settle(&self, origin: Origin) {
        let standings = self.standings.clone();
        self.view.note_identity(move || standings.set_origin(origin)).await;
        self.view.shared.damages.wake();
    }
}
