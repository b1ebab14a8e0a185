//! Checkpoints: the whole state in parts, of which each checkpoint writes those that changed since the one before.
//!
//! ```text
//!  checkpoint 900  ─▶ state-…700.part (all parts)
//!   (head, names)  ─▶ state-…800.part (what changed since 700)
//!                  ─▶ state-…900.part (what changed since 800)      a later part takes the place of an earlier one
//! ```
//! The state is held fast in [`FrozenState`] while entries wait, and made into a part file by [`PartFiles::write`] elsewhere. A
//! chain of part files begins anew, with all of the state, when it has grown long or large, or when it is not sure that
//! all of it was written. Formats: `docs/formats/checkpoint-state.md`, `part-file.md`.

mod files;
mod frozen;
mod head;
mod image;
mod load;
mod pack;

pub(crate) use files::PartFiles;
pub(crate) use frozen::FrozenState;
pub(crate) use head::{decode as decode_head, encode_failed};
pub(crate) use load::{Restored, load};
pub(crate) use pack::{PartFile, PartFileId, is_part_file_name, parse_part_file_name};

use crate::tracked::PartKey;

/// Largest part or head, bytes: bounds what a damaged length can ask for.
pub(crate) const BODY_BYTES_MAX: usize = 1 << 30;

/// The tables that the state is kept in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Table {
    /// By topic number, some to a part; their queues' bounds too.
    Topics = 1,
    /// One part.
    Groups = 2,
    /// By group number, then by topic number, some to a part.
    Progress = 3,
    /// What was added to the slots in memory, by the log index where these begin, then in order.
    Slots = 4,
    /// By serial number, some to a part.
    Dedup = 5,
    /// By serial number, some to a part.
    Ended = 6,
    /// By chunk.
    Timers = 7,
    /// By chunk.
    Halves = 8,
    /// By chunk.
    AtHome = 9,
    /// By chunk.
    Carried = 10,
    /// One part, and none in a group of brokers that stands alone.
    Placement = 20,
}

impl Table {
    fn from_code(code: u8) -> Option<Table> {
        use Table::{AtHome, Carried, Dedup, Ended, Groups, Halves, Placement, Progress, Slots, Timers, Topics};
        let all = [Topics, Groups, Progress, Slots, Dedup, Ended, Timers, Halves, AtHome, Carried, Placement];
        all.into_iter().find(|table| *table as u8 == code)
    }
}

/// A part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PartId {
    pub table: Table,
    pub key: PartKey,
}

/// Topics whose numbers are next to each other, so many to a part.
const TOPICS_PER_PART: u64 = 8;
/// Rows of a window, so many to a part.
const SERIALS_PER_PART: u64 = 1024;

/// The part that a topic is in.
pub(crate) fn topic_part(topic_uid: u64) -> PartKey {
    (topic_uid / TOPICS_PER_PART, 0)
}

/// The part that a group's progress in a topic is in.
pub(crate) fn progress_part(group_uid: u64, topic_uid: u64) -> PartKey {
    (group_uid, topic_uid / TOPICS_PER_PART)
}
