//! A replica's view of itself and its group at one moment.

use std::collections::BTreeSet;

use crate::{DiskStatus, LogIndex, NodeId, Term};

/// What a replica is to its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Takes proposals.
    Leader,
    /// Follows, and may vote.
    Follower,
    /// Asks to be elected.
    Candidate,
    /// Follows without a vote.
    Learner,
}

/// A replica's view of itself and its group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStatus {
    /// This replica.
    pub node: NodeId,
    /// What it is.
    pub role: Role,
    /// The highest term it knows.
    pub term: Term,
    /// The leader it knows of in that term.
    pub leader: Option<NodeId>,
    /// It leads, has heard from a quorum within the lease, and has applied the first entry of its term.
    pub can_write: bool,
    /// Last entry in its log.
    pub last: Option<LogIndex>,
    /// Last entry up to which its log is on disk; with [`crate::FlushMode::Async`] it may lag behind `last`.
    pub durable: Option<LogIndex>,
    /// Last entry known to be committed.
    pub committed: Option<LogIndex>,
    /// Last applied entry.
    pub applied: Option<LogIndex>,
    /// The voters of the newest membership in its log.
    pub members: BTreeSet<NodeId>,
    /// How its disk does.
    pub disk: DiskStatus,
}
