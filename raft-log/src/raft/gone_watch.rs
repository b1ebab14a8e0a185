//! Notices on a follower that the leader's process is gone, and has a new one elected without waiting for the lease.
//!
//! ```text
//! a connection broke ─▶ probe the leader ─ refused ─▶ ask the other voters ─ quorum ─▶ campaign, longest log first
//!                        ▲      │ anything else          │ not enough
//!                        └──────┴──── look again ◀───────┘       until the leader is heard, or the election timeout
//! ```
//!
//! "Refused" is the word of the leader's kernel that nobody listens there; silence never counts. A wrong answer could
//! depose a healthy leader, no more: the campaign is the one of a handed over leadership, in which voters pass over the
//! lease, but compare terms and logs as ever. What the lease no longer vouches for is never used: reads ask a quorum.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{Instant, Runtime, Task};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use tokio::sync::Notify;

use super::type_config::LogRaft;
use super::wire::{PeerMessage, decode, encode};
use crate::ids::EntryId;
use crate::log_view::LogView;
use crate::repair::LeadGuard;
use crate::status_watch::StatusWatch;
use crate::{LogConfig, LogStatus, NodeId, PeerCallKind, Probe, Role, Term, Transport};

/// Pause between two looks at a leader. A killed process may go on listening for some ms.
const LOOK_PAUSE: Duration = Duration::from_millis(10);
/// A probe that takes longer proves nothing.
const PROBE_TIMEOUT: Duration = Duration::from_millis(100);
/// The other voters may take so long to answer, their own probes included.
const ASK_TIMEOUT: Duration = Duration::from_millis(150);
/// Once a quorum has agreed, so long for the others: the more logs are known, the better the order of candidates.
const ASK_GRACE: Duration = Duration::from_millis(5);
/// A leader heard so long after its connection broke lives; what is heard earlier may have been under way.
const ALIVE_AFTER: Duration = Duration::from_millis(20);
/// Those whose log is not the longest campaign so much later, one after the other: two at once would split the vote. It
/// must cover a round of votes with its syncs; the first does not wait at all.
const RANK_STEP_MS: u64 = 50;
/// So often one replica looks whether it is its turn: another one's campaign is given its time. After a split vote the usual
/// timers go on.
const ROUNDS_MAX: u64 = 3;

/// Does another voter see that the leader of this term is gone?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GoneQuestion {
    pub(crate) leader: NodeId,
    pub(crate) term: Term,
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GoneAnswer {
    /// It follows the same leader in the same term, and was refused by it just now.
    pub(crate) is_gone: bool,
    /// The last entry of its log.
    pub(crate) last: Option<EntryId>,
}

/// Cheap handle; the task behind it ends when its [`Task`] is dropped.
#[derive(Clone)]
pub(crate) struct GoneWatch {
    inner: Arc<Inner>,
}

struct Inner {
    node: NodeId,
    is_enabled: bool,
    started: Instant,
    /// How long one suspicion is followed.
    patience: Duration,
    runtime: Runtime,
    raft: LogRaft,
    status: StatusWatch,
    view: LogView,
    transport: Arc<dyn Transport>,
    is_stopping: Arc<AtomicBool>,
    guard: LeadGuard,
    heard: Mutex<Heard>,
    news: Notify,
}

#[derive(Default)]
struct Heard {
    /// Whose connection broke, not looked at yet.
    suspect: Option<NodeId>,
    /// The last sign of life of a leader.
    leader: Option<(NodeId, Instant)>,
}

/// A leader that is gone by the word of a quorum.
struct Gone {
    leader: NodeId,
    term: Term,
    /// How many of those who agreed should campaign before this replica.
    rank: u64,
}

impl GoneWatch {
    /// Begins to watch, if the settings say so.
    pub(crate) fn start(
        config: &LogConfig,
        runtime: &Runtime,
        raft: LogRaft,
        status: StatusWatch,
        transport: Arc<dyn Transport>,
        is_stopping: Arc<AtomicBool>,
        guard: LeadGuard,
    ) -> (GoneWatch, Option<Task<()>>) {
        let inner = Arc::new(Inner {
            node: config.node,
            is_enabled: config.elect_on_peer_gone,
            started: runtime.now(),
            patience: Duration::from_millis(config.timing.election_timeout_ms_max),
            runtime: runtime.clone(),
            raft,
            status,
            view: guard.view(),
            transport,
            is_stopping,
            guard,
            heard: Mutex::default(),
            news: Notify::new(),
        });
        let task = inner.is_enabled.then(|| {
            let watching = inner.clone();
            runtime.spawn("gone-watch", async move { watching.run().await })
        });
        (GoneWatch { inner }, task)
    }

    /// A connection from or to `node` broke: if it leads, look whether its process is gone.
    pub(crate) fn broke(&self, node: NodeId) {
        if self.inner.is_enabled && self.inner.status.now().leader == Some(node) {
            self.inner.heard().suspect = Some(node);
            self.inner.news.notify_one();
        }
    }

    /// A leader was heard.
    pub(crate) fn heard_from(&self, leader: NodeId) {
        self.inner.heard().leader = Some((leader, self.inner.runtime.now()));
    }

    /// How long no leader was heard; since the start, if none ever was.
    pub(crate) fn silence(&self) -> Duration {
        let heard = self.inner.heard().leader.map_or(self.inner.started, |(_, at)| at);
        self.inner.runtime.now().saturating_since(heard)
    }

    /// Answers another voter's question.
    pub(crate) async fn answer(&self, question: GoneQuestion) -> GoneAnswer {
        let inner = &*self.inner;
        let is_gone = inner.is_enabled
            && inner.follows(question.leader, question.term)
            && inner.probe(question.leader).await == Probe::Refused
            && inner.follows(question.leader, question.term);
        GoneAnswer { is_gone, last: inner.view.ends().1 }
    }
}

impl Inner {
    fn heard(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().expect("watch lock is never poisoned: no code panics while holding it")
    }

    fn follows(&self, leader: NodeId, term: Term) -> bool {
        let now = self.status.now();
        now.role == Role::Follower && now.leader == Some(leader) && now.term == term && leader != self.node
    }

    async fn run(&self) {
        // Where no quorum is left, it stays gone, and every look says so.
        let mut told = None;
        loop {
            self.news.notified().await;
            let suspect = self.heard().suspect.take();
            let Some(suspect) = suspect else { continue };
            let began = self.runtime.now();
            if let Some(gone) = self.look(suspect).await {
                if told.replace((gone.leader, gone.term)) != Some((gone.leader, gone.term)) {
                    let after_ms = (self.runtime.now() - began).as_millis();
                    let Gone { leader, term, rank } = gone;
                    tracing::info!(leader = leader.0, term = term.0, rank, after_ms, "leader's process is gone");
                }
                self.campaign(gone).await;
            }
        }
    }

    async fn probe(&self, target: NodeId) -> Probe {
        let probe = self.transport.probe(target, PROBE_TIMEOUT);
        self.runtime.timeout(PROBE_TIMEOUT, probe).await.unwrap_or(Probe::NoAnswer)
    }

    /// Follows a suspicion until it is certain, the leader is another one or alive, or the time is over.
    async fn look(&self, suspect: NodeId) -> Option<Gone> {
        let (seen, began) = (self.status.now(), self.runtime.now());
        while !self.is_stopping.load(Ordering::Acquire) && self.follows(suspect, seen.term) {
            let probe = self.probe(suspect).await;
            if probe == Probe::Refused
                && let Some(rank) = self.ask_others(suspect, &seen).await
            {
                return Some(Gone { leader: suspect, term: seen.term, rank });
            }
            let is_heard = self
                .heard()
                .leader
                .is_some_and(|(leader, heard_at)| leader == suspect && heard_at >= began + ALIVE_AFTER);
            if (probe == Probe::Listening && is_heard) || self.runtime.now() >= began + self.patience {
                break;
            }
            self.runtime.sleep(LOOK_PAUSE).await;
        }
        None
    }

    /// Asks all other voters. This replica's place among the candidates if, with it, a quorum agrees.
    async fn ask_others(&self, leader: NodeId, seen: &LogStatus) -> Option<u64> {
        let others: Vec<NodeId> =
            seen.members.iter().copied().filter(|member| *member != leader && *member != self.node).collect();
        // A quorum of all voters, of which this one has agreed.
        let needed = seen.members.len() / 2;
        if needed == 0 || others.len() < needed {
            return None;
        }
        let question = GoneQuestion { leader, term: seen.term };
        let own = self.view.ends().1;
        let mut asked: FuturesUnordered<_> = others.into_iter().map(|voter| self.ask(voter, question)).collect();
        let (mut agreed, mut rank) = (0, 0);
        let mut deadline = self.runtime.now() + ASK_TIMEOUT;
        while let Ok(Some((voter, answer))) = self.runtime.timeout_at(deadline, asked.next()).await {
            let Some(GoneAnswer { is_gone: true, last }) = answer else { continue };
            agreed += 1;
            rank += u64::from(last > own || (last == own && voter < self.node));
            if agreed == needed {
                deadline = deadline.min(self.runtime.now() + ASK_GRACE);
            }
        }
        (agreed >= needed).then_some(rank)
    }

    async fn ask(&self, voter: NodeId, question: GoneQuestion) -> (NodeId, Option<GoneAnswer>) {
        let body: Bytes = encode(PeerMessage::GoneQuestion(question));
        let call = self.transport.call(voter, PeerCallKind::LeaderGone, body, ASK_TIMEOUT);
        let answer = match self.runtime.timeout(ASK_TIMEOUT, call).await {
            Ok(Ok(body)) => match decode(body) {
                Ok(PeerMessage::GoneAnswer(answer)) => Some(answer),
                _ => None,
            },
            _ => None,
        };
        (voter, answer)
    }

    /// Campaigns in its turn unless somebody else leads by then, and again, a few times, if the votes were split.
    async fn campaign(&self, gone: Gone) {
        let mut term = gone.term;
        for round in 0..ROUNDS_MAX {
            let turn = gone.rank * RANK_STEP_MS;
            let again = if round == 0 { 0 } else { RANK_STEP_MS + self.runtime.random_below(RANK_STEP_MS) };
            self.runtime.sleep(Duration::from_millis(turn + again)).await;
            let now = self.status.now();
            let is_led = now.role == Role::Leader || now.leader.is_some_and(|leader| leader != gone.leader);
            if is_led || !self.guard.may_campaign() || self.is_stopping.load(Ordering::Acquire) {
                return;
            }
            if self.view.shared.campaign_pause.is_keeping()
                || self.view.shared.campaign_pause.left(self.runtime.now()).is_some()
            {
                // It votes for another one, or has, and its disk is slow.
                continue;
            }
            if now.term != term && now.role != Role::Candidate {
                // Another one campaigns: give it a round.
                term = now.term;
                continue;
            }
            tracing::info!(leader = gone.leader.0, term = now.term.0, round, "campaigning in place of the gone leader");
            let request = self.status.transfer_request_to(self.node);
            if let Ok(Err(error)) = self.raft.handle_transfer_leader(request).await {
                tracing::info!(%error, "campaign was not begun");
            }
        }
    }
}
