//! How far each replica has come in one reign, and which of them keep up; plain data, time is handed in.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use flotilla_runtime::Instant;

use super::ticket::{AckFailure, AckWhen};
use crate::ids::EntryId;
use crate::{LogIndex, NodeId, Term};

/// Steps in which the age of entries is remembered, per lag limit.
const STEPS_PER_LIMIT: u32 = 32;
/// Steps remembered: what is older counts as being as old as the oldest.
const STEPS_MAX: usize = 3 * STEPS_PER_LIMIT as usize;

/// When a follower does not keep up any more.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LagLimits {
    /// It lacks an entry that the leader has had for so long.
    pub(crate) time: Duration,
    /// It lacks more bytes.
    pub(crate) bytes: u64,
}

/// A follower as its leader sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FollowerMarks {
    /// Last entry it is known to have.
    pub matched: Option<LogIndex>,
    /// Last entry it is known to have on disk.
    pub durable: Option<LogIndex>,
    /// It keeps up: sends at level sync wait for it.
    pub is_in_sync: bool,
    /// Entries it lacks.
    pub lag_entries: u64,
    /// Payload bytes it lacks, about.
    pub lag_bytes: u64,
    /// For how long the leader has had what it lacks, milliseconds, about.
    pub lag_ms: u64,
}

/// The watermarks of a leader. On another replica, and before any follower has answered, there are no followers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplicationStatus {
    /// The reign they belong to.
    pub term: Term,
    /// The other voters that have answered in it.
    pub followers: BTreeMap<NodeId, FollowerMarks>,
    /// Replicas that keep up, the leader included.
    pub in_sync: BTreeSet<NodeId>,
    /// So many of them are needed at level sync: a quorum, and two at least.
    pub in_sync_min: usize,
}

#[derive(Debug, Default)]
struct Follower {
    matched: Option<LogIndex>,
    durable: Option<LogIndex>,
    is_in_sync: bool,
}

/// Entries appended within one step of time.
#[derive(Debug)]
struct Step {
    began: Instant,
    last: LogIndex,
    /// Bytes appended in this reign up to `last`.
    bytes: u64,
}

/// A follower that began or ceased to keep up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LeftBehind {
    pub(crate) node: NodeId,
    pub(crate) lag: Duration,
    pub(crate) lag_bytes: u64,
}

#[derive(Debug)]
pub(crate) struct Marks {
    node: NodeId,
    voters: BTreeSet<NodeId>,
    limits: LagLimits,
    term: Term,
    /// The first entry of the reign that was appended here.
    first: Option<LogIndex>,
    appended: Option<LogIndex>,
    durable: Option<LogIndex>,
    committed: Option<LogIndex>,
    followers: BTreeMap<NodeId, Follower>,
    steps: VecDeque<Step>,
    bytes: u64,
}

impl Marks {
    pub(crate) fn new(node: NodeId, voters: BTreeSet<NodeId>, limits: LagLimits) -> Marks {
        Marks {
            node,
            voters,
            limits,
            term: Term(0),
            first: None,
            appended: None,
            durable: None,
            committed: None,
            followers: BTreeMap::new(),
            steps: VecDeque::new(),
            bytes: 0,
        }
    }

    /// Begins a later reign, in which nothing is known of anybody. False if it is none.
    pub(crate) fn enter(&mut self, term: Term) -> bool {
        if term <= self.term {
            return false;
        }
        self.term = term;
        self.first = None;
        self.followers.clear();
        self.steps.clear();
        self.bytes = 0;
        true
    }

    pub(crate) fn set_voters(&mut self, voters: BTreeSet<NodeId>) {
        self.followers.retain(|node, _| voters.contains(node));
        self.voters = voters;
    }

    /// This replica's log goes up to `last` now, `bytes` more than before.
    pub(crate) fn append(&mut self, last: EntryId, bytes: u64, now: Instant) {
        self.appended = Some(last.index);
        if last.term != self.term {
            return;
        }
        self.first.get_or_insert(last.index);
        self.bytes += bytes;
        let bytes = self.bytes;
        match self.steps.back_mut() {
            Some(step) if step.began + self.limits.time / STEPS_PER_LIMIT > now => {
                (step.last, step.bytes) = (last.index, bytes);
            }
            _ => self.steps.push_back(Step { began: now, last: last.index, bytes }),
        }
        self.forget_steps();
    }

    /// Steps that every voter has behind it, and the oldest of too many.
    fn forget_steps(&mut self) {
        let others = self.voters.iter().filter(|node| **node != self.node);
        let lowest = others.map(|node| self.followers.get(node).and_then(|follower| follower.matched)).min().flatten();
        // One is kept to count bytes from.
        while self.steps.get(1).is_some_and(|step| Some(step.last) <= lowest) || self.steps.len() > STEPS_MAX {
            self.steps.pop_front();
        }
    }

    /// This replica's log ends with `last` now.
    pub(crate) fn truncate(&mut self, last: Option<LogIndex>) {
        self.appended = self.appended.min(last);
        self.durable = self.durable.min(last);
    }

    /// This replica's log is on disk up to `index`.
    pub(crate) fn sync_self(&mut self, index: Option<LogIndex>) {
        self.durable = self.durable.max(index.min(self.appended));
    }

    pub(crate) fn commit(&mut self, index: LogIndex) {
        self.committed = self.committed.max(Some(index));
    }

    /// A follower has, in this reign, everything up to `index`. True if it keeps up from now on.
    pub(crate) fn matched(&mut self, node: NodeId, term: Term, index: LogIndex, now: Instant) -> bool {
        if term != self.term || node == self.node || !self.voters.contains(&node) {
            return false;
        }
        let follower = self.followers.entry(node).or_default();
        // A follower that lost its tail begins again lower: what it had is not counted.
        follower.matched = Some(index);
        follower.durable = follower.durable.min(Some(index));
        if follower.is_in_sync || self.first.is_none() || Some(index) < self.committed.max(self.first) {
            return false;
        }
        let (lag, lag_bytes) = self.lag(Some(index), now);
        // Half the limits: one that was left behind must not come and go with each entry.
        let keeps_up = lag <= self.limits.time / 2 && lag_bytes <= self.limits.bytes / 2;
        if keeps_up && let Some(follower) = self.followers.get_mut(&node) {
            follower.is_in_sync = true;
        }
        keeps_up
    }

    /// A follower has, in this reign, everything up to `index` on disk.
    pub(crate) fn synced(&mut self, node: NodeId, term: Term, index: LogIndex) {
        if term != self.term {
            return;
        }
        if let Some(follower) = self.followers.get_mut(&node) {
            follower.durable = follower.durable.max(Some(index).min(follower.matched));
        }
    }

    /// How old the oldest entry behind `matched` is, and how many bytes come behind it.
    fn lag(&self, matched: Option<LogIndex>, now: Instant) -> (Duration, u64) {
        if matched >= self.appended {
            return (Duration::ZERO, 0);
        }
        let at = self.steps.partition_point(|step| Some(step.last) <= matched);
        let Some(step) = self.steps.get(at) else { return (Duration::ZERO, 0) };
        let before = at.checked_sub(1).and_then(|at| self.steps.get(at)).map_or(0, |step| step.bytes);
        (now - step.began, self.bytes.saturating_sub(before))
    }

    /// Takes those out of the in-sync set that lag too far behind.
    pub(crate) fn leave_behind(&mut self, now: Instant) -> Vec<LeftBehind> {
        let mut left = Vec::new();
        for (node, follower) in self.followers.iter().filter(|(_, follower)| follower.is_in_sync) {
            let (lag, lag_bytes) = self.lag(follower.matched, now);
            if lag >= self.limits.time || lag_bytes > self.limits.bytes {
                left.push(LeftBehind { node: *node, lag, lag_bytes });
            }
        }
        for gone in &left {
            if let Some(follower) = self.followers.get_mut(&gone.node) {
                follower.is_in_sync = false;
            }
        }
        left
    }

    /// When somebody will lag too far behind, if nothing more is heard of him.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let behind = self.followers.values().filter(|follower| follower.is_in_sync && follower.matched < self.appended);
        let began = behind.filter_map(|follower| {
            let at = self.steps.partition_point(|step| Some(step.last) <= follower.matched);
            self.steps.get(at).map(|step| step.began)
        });
        began.min().map(|began| began + self.limits.time)
    }

    pub(crate) fn in_sync(&self) -> BTreeSet<NodeId> {
        let followers = self.followers.iter().filter(|(_, follower)| follower.is_in_sync).map(|(node, _)| *node);
        followers.chain([self.node]).collect()
    }

    fn in_sync_count(&self) -> usize {
        1 + self.followers.values().filter(|follower| follower.is_in_sync).count()
    }

    fn quorum(&self) -> usize {
        self.voters.len() / 2 + 1
    }

    pub(crate) fn in_sync_min(&self) -> usize {
        self.quorum().max(2)
    }

    /// Whether there are enough that keep up for level sync.
    pub(crate) fn is_enough(&self) -> bool {
        self.in_sync_count() >= self.in_sync_min()
    }

    /// Up to where the condition holds.
    pub(crate) fn reached(&self, when: AckWhen) -> Option<LogIndex> {
        match when {
            AckWhen::Appended => self.appended,
            AckWhen::LeaderDurable => self.durable,
            AckWhen::QuorumDurable => {
                let others = self.followers.values().map(|follower| follower.durable);
                let mut durable: Vec<_> = others.chain([self.durable]).collect();
                durable.sort_unstable_by(|one, other| other.cmp(one));
                durable.get(self.quorum() - 1).copied().flatten()
            }
            AckWhen::InSync { .. } if !self.is_enough() => None,
            AckWhen::InSync { durable } => {
                let own = if durable { self.durable } else { self.appended };
                let members = self.followers.values().filter(|follower| follower.is_in_sync);
                let theirs = members.map(|follower| if durable { follower.durable } else { follower.matched });
                theirs.chain([own, self.committed]).min().flatten()
            }
        }
    }

    /// Why an entry that is committed will not reach the condition as things are.
    pub(crate) fn obstacle(&self, when: AckWhen, index: LogIndex, was_enough: bool) -> Option<AckFailure> {
        let is_short = matches!(when, AckWhen::InSync { .. }) && !self.is_enough() && Some(index) <= self.committed;
        is_short.then(|| AckFailure::TooFewInSync {
            in_sync: self.in_sync_count(),
            needed: self.in_sync_min(),
            was_enough,
        })
    }

    pub(crate) fn status(&self, now: Instant) -> ReplicationStatus {
        let marks = |follower: &Follower| {
            let (lag, lag_bytes) = self.lag(follower.matched, now);
            let behind = |index: Option<LogIndex>| index.map_or(0, |index| index.0 + 1);
            FollowerMarks {
                matched: follower.matched,
                durable: follower.durable,
                is_in_sync: follower.is_in_sync,
                lag_entries: behind(self.appended).saturating_sub(behind(follower.matched)),
                lag_bytes,
                lag_ms: u64::try_from(lag.as_millis()).unwrap_or(u64::MAX),
            }
        };
        ReplicationStatus {
            term: self.term,
            followers: self.followers.iter().map(|(node, follower)| (*node, marks(follower))).collect(),
            in_sync: self.in_sync(),
            in_sync_min: self.in_sync_min(),
        }
    }
}
