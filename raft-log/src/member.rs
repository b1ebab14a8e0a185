//! What a group's membership records of one of its members.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Incarnation, LogIndex, NodeId};

/// Bytes of a member's contact.
pub(crate) const CONTACT_BYTES_MAX: usize = 1024;

/// What is recorded of a member. The default is all that is known of the voters that a group is founded with.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// The life of its directory. Another one is not this member.
    pub incarnation: Incarnation,
    /// It is meant to vote: whoever leads makes a voter of it, once it can be one.
    pub is_voter_wanted: bool,
    /// The group's epoch when it was taken in, see [`GroupMembers::epoch`].
    pub epoch: u16,
    /// How it is reached, as [`crate::LogConfig::contact`] said. The log does not look into it.
    pub contact: String,
}

/// The members of a group, as the newest membership in a replica's log says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GroupMembers {
    /// The entry that says so; `None` before the group is founded.
    pub index: Option<LogIndex>,
    /// That entry is committed.
    pub is_committed: bool,
    /// A change is half done: majorities of the voters before it and behind it are needed.
    pub is_joint: bool,
    /// Who votes; while a change is half done, before it or behind it.
    pub voters: BTreeSet<NodeId>,
    /// Each set of them of which a majority is needed: one, and two while a change is half done.
    pub voter_sets: Vec<BTreeSet<NodeId>>,
    /// How often the group went on without its majority, by an operator's order. Members of an earlier epoch are none any
    /// more.
    pub epoch: u16,
    /// Voters and learners, with what is recorded of them.
    pub members: BTreeMap<NodeId, Member>,
}
