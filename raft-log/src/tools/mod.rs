//! Looking at a log that no replica has open: what is there, what each record says, and what is damaged.
//!
//! Nothing here changes a byte. [`OfflineLog::open`] refuses a directory that a replica uses, unless told otherwise.

mod examine;
mod offline_disk;
mod offline_log;
mod report;
#[cfg(test)]
mod verify_test;

pub use offline_disk::OfflineDisk;
pub use offline_log::{Depth, OfflineError, OfflineLog};
pub use report::{
    CheckpointRow, Damage, EntryRow, Examination, IdentityRow, RecordRow, SegmentRow, SegmentState, SlotRow, VoteRow,
};
