//! One replicated log: segment files of our own, group fdatasync, crash recovery, and openraft behind a small face.
//!
//! What this crate promises:
//! - [`ReplicatedLog::propose`] answers only when the entry is on disk on a quorum and applied here;
//! - an entry once applied anywhere is never lost while a quorum's disks survive, and every replica applies the same
//!   entries in the same order;
//! - every start is a crash start: there is one recovery path, and it runs each time;
//! - a failed write or sync, or corruption, is final: [`ReplicatedLog::failed`] resolves and nothing is acknowledged after it.
//!
//! What is handed in: a [`Disk`] ([`OsDisk`] in real processes), a [`Transport`] to the peers, a
//! [`flotilla_runtime::Runtime`], and the [`StateMachine`] that gives the log its meaning. Formats are drawn in
//! `docs/formats/`: `segment.md`, `vote-and-marks.md`, `raft-checkpoint.md`, `peer-wire.md`, `recovery-order.md`, `backup.md`.

mod ack;
#[cfg(test)]
mod ack_cluster_test;
mod background;
mod backup;
mod boot_mark;
mod campaign_pause;
mod checkpoint_file;
mod checkpoint_store;
#[cfg(test)]
mod cluster_test;
mod config;
#[cfg(test)]
mod crash_test;
mod disk;
mod disk_flusher;
#[doc(hidden)]
pub mod engine;
mod errors;
mod failure;
mod feature_levels;
mod fields;
#[cfg(test)]
mod flush_cost_test;
#[cfg(test)]
mod flush_test;
mod flusher;
#[cfg(test)]
mod full_disk_test;
#[cfg(test)]
mod fuzz_test;
#[cfg(test)]
mod history_test;
mod identity;
mod ids;
mod integrity;
mod lease_clock;
pub mod limits;
mod log_files;
mod log_state;
mod log_view;
mod lost_tail;
mod member;
mod membership_change;
mod purge;
mod raft;
mod recovery;
mod recovery_order;
#[cfg(test)]
mod recovery_order_test;
mod recovery_report;
mod repair;
mod replica;
mod replicated_log;
mod restore;
mod room;
mod room_wait;
mod runway;
mod scrub;
mod segment;
mod segment_maker;
mod standing;
#[cfg(test)]
mod start_test;
mod state_machine;
mod stats;
mod status;
mod status_watch;
mod stopper;
mod summary_files;
mod sync_times;
mod tail_cache;
mod term_runs;
#[cfg(test)]
mod testing;
pub mod tools;
mod transport;
mod unsafe_recovery;
mod vitals;
mod vote_and_marks;

pub use ack::{AckFailure, AckTicket, AckWatch, AckWhen, FollowerMarks, ReplicationStatus};
pub use backup::{
    BackupError, BackupFile, BackupProgress, BackupReport, BackupRequest, FoundError, Founded, SideNames,
    found_from_backup,
};
pub use config::{FlushMode, LogConfig, RaftTiming};
pub use disk::{DirLock, Disk, DiskFile, OsDisk, read_file, write_file_atomically};
#[doc(hidden)]
pub use disk::{WrapDisk, WrappingDisk};
pub use disk_flusher::{DiskFlusherStats, disk_flushers};
pub use errors::{Corruption, FullReason, OpenError, ProposeError, PurgeError, ReadError, ServeError, TransferError};
pub use ids::{Incarnation, LogIndex, NodeId, Term};
pub use integrity::{Integrity, ScrubProgress};
pub use lost_tail::{LostEntry, LostTail, LostTailError, LostTailStatus};
pub use member::{GroupMembers, Member};
pub use membership_change::MemberError;
pub use purge::{DiskUse, LogExtent, Purgeable, SegmentExtent};
pub use recovery::LOCK_FILE;
pub use recovery_report::{RecoveryPhase, RecoveryReport, SkippedCheckpoint, TornTail};
pub use replicated_log::{Applied, LogEntry, ReplicatedLog};
pub use room::ProposalClass;
pub use standing::Standing;
pub use state_machine::{CheckpointBytes, LaterCheckpoint, RestoreError, SideFile, SideFileCheck, StateMachine};
pub use stats::{LogStats, PeerStats};
pub use status::{LogStatus, Role};
pub use sync_times::{DiskStatus, SlowSyncs, SyncHistogram};
pub use transport::{AppendChannel, PeerCallKind, Probe, Transport, TransportError};
pub use unsafe_recovery::{GivenUpMember, RecoveryError, RecoveryPlan, RecoveryRefusal};
pub use vitals::Fitness;

/// Directives for what the log's core says of itself: of it, what an operator can act on. That a peer cannot be reached the
/// log tells itself, once a minute; the core would say it with every heartbeat and every try.
pub const CORE_LOG_LEVELS: &str = "openraft=warn,openraft::core::heartbeat=error,openraft::replication=error,\
                                   openraft::engine::handler::replication_handler=error";
