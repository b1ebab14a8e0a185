//! What the log means: topics, queues, groups and deliveries, changed by `apply` and nowhere else.
//!
//! Promises of this crate:
//! - queue offsets, sequence numbers and delivery attempts are assigned in log order, so every
//!   replica assigns the same ones ([`StoreReader::digest`] is equal at the same applied index);
//! - applying reads no clock, no randomness and no message body, and no payload makes it panic:
//!   a malformed one is answered by [`Rejection::Malformed`], on every replica alike;
//! - everything a client was promised is in the checkpoint or in a file beside it that it names; one
//!   that does not fit its checksums is reported, never served;
//! - all memory is bounded ([`limits`]) but for slots of the open segment, which the segment bounds.
//!
//! An entry is built by [`EntryBuilder`], applied by [`StoreMachine`], and its effects are read
//! through [`StoreReader`]. Formats: `docs/formats/log-entry.md`, `index-file.md`, `checkpoint-state.md`, `part-file.md`. The [`key_index`] is
//! none of this state: hints, beside it, that whoever reads messages fills in.

mod changing;
mod checkpoint;
mod command;
mod consumption;
mod dedup;
mod deliveries;
mod ended;
mod entry;
mod entry_levels;
mod entry_rare;
mod entry_view;
mod entry_walk;
mod error;
mod halves;
mod held;
mod holding;
mod index_file;
pub mod key_index;
mod levels;
pub mod limits;
mod machine;
mod observer;
pub mod offline;
mod outcome;
mod packed;
mod placement;
mod positions;
mod producing;
mod progress;
mod queue;
mod reader;
mod references;
mod retention;
mod shadow;
mod shared;
mod slot;
mod state;
mod timers;
mod topic_numbers;
mod topic_retention;
mod tracked;
mod trimming;

pub use command::{Command, GroupChange, OffsetTarget, SkipRange, StartPolicy};
pub use consumption::Consumption;
pub use entry::{EntryBuilder, command_bytes};
pub use entry_levels::messages_answered_early;
pub use entry_view::{Entry, MalformedEntry, entry_log_time_ms, nth_frame};
pub use error::StoreError;
pub use levels::TopicLevel;
pub use machine::{FEATURE_LEVEL, StoreMachine, open};
pub use observer::{ApplyObserver, NoObserver};
pub use outcome::{AckResult, Ending, Granted, HalfMessage, Holding, Outcome, ProducedSlot, Rejection};
pub use placement::{SHARES_MAX, TopicShare, TopicShares};
pub use reader::{
    AttemptGrants, DedupStatus, Delivery, Due, GroupInfo, HeldDelivery, Progress, StateDigest, StoreReader, TopicInfo,
};
pub use retention::{RetentionStatus, ToCarry, TrimPlan};
pub use shadow::Shadow;
pub use slot::{FrameInError, Slot, frame_in};
pub use topic_numbers::TopicNumbers;
pub use topic_retention::ExpiredTopic;
