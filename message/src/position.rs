//! Where a message stands: its queue, its offset there, and its identity in the log.

use std::fmt;

/// A queue of a topic, counted from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct QueueId(pub u32);

impl fmt::Display for QueueId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A slot of a queue, counted from 0 in log order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct QueueOffset(pub u64);

impl QueueOffset {
    /// The first offset of a new queue.
    pub const ZERO: QueueOffset = QueueOffset(0);

    /// The offset after this one.
    #[must_use]
    pub fn next(self) -> QueueOffset {
        self.plus(1)
    }

    /// The offset `slots` after this one; stays at the end of the number range.
    #[must_use]
    pub fn plus(self, slots: u64) -> QueueOffset {
        QueueOffset(self.0.saturating_add(slots))
    }

    /// How many slots lie between `earlier` and this one; 0 when it is not earlier.
    pub fn slots_since(self, earlier: QueueOffset) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for QueueOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A message's one identity in replicated state: the log entry that holds it, and its place among
/// the frames of that entry. Byte positions are derived from it and local to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
pub struct MessageRef {
    /// Log index of the entry.
    pub index: u64,
    /// Place among all frames of the entry, from 0.
    pub ordinal: u32,
}

impl fmt::Display for MessageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.ordinal)
    }
}
