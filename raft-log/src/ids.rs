//! The numbers of a replicated log: who, in which life, which term, which entry.

use std::fmt;

/// A replica of a group. One that lost its disk may come back under its id, in another [`Incarnation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub u64);

/// A life of a replica's directory, drawn at random when the directory is made. 0 stands for one that is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// One that is not known.
    pub const UNKNOWN: Incarnation = Incarnation(0);

    /// Whether it is one.
    pub const fn is_known(self) -> bool {
        self.0 != 0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

/// A reign: in each there is at most one leader. Grows with every election.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Term(pub u64);

/// The place of an entry in the log, dense from 0 (openraft writes the first membership at 0).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogIndex(pub u64);

impl LogIndex {
    /// The place after this one.
    pub const fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }

    /// The place before this one, `None` for the first.
    pub const fn previous(self) -> Option<LogIndex> {
        match self.0.checked_sub(1) {
            Some(index) => Some(LogIndex(index)),
            None => None,
        }
    }
}

impl Term {
    /// The term after this one.
    pub const fn next(self) -> Term {
        Term(self.0 + 1)
    }
}

/// One entry of the log: no two different entries of a group ever share one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct EntryId {
    pub(crate) term: Term,
    pub(crate) index: LogIndex,
}

impl EntryId {
    pub(crate) const fn new(term: u64, index: u64) -> EntryId {
        EntryId { term: Term(term), index: LogIndex(index) }
    }
}

/// The index after the last one, 0 when there is none.
pub(crate) fn next_index(last: Option<EntryId>) -> LogIndex {
    last.map_or(LogIndex(0), |id| id.index.next())
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.term, self.index)
    }
}

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for LogIndex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
