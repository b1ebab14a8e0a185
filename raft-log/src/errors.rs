//! What can go wrong, one enum per operation; each error tells its consequence for the caller.

use std::path::PathBuf;

use crate::{LogIndex, NodeId};

/// Why a log did not open. Nothing was changed unless the text says so.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The settings contradict themselves; every problem is named.
    #[error("log settings are not usable: {}", .0.join("; "))]
    Config(Vec<String>),
    /// The directory belongs to someone else.
    #[error("{} belongs to {what} {found}, this is {what} {expected}", dir.display())]
    WrongIdentity {
        /// The log's directory.
        dir: PathBuf,
        /// `cluster`, `group` or `node`.
        what: &'static str,
        /// What the directory says.
        found: String,
        /// What the settings say.
        expected: String,
    },
    /// Another process (or another log of this one) has it open.
    #[error("{} is in use by another process", dir.display())]
    Locked {
        /// The log's directory.
        dir: PathBuf,
    },
    /// Bytes that were durable once do not read back as they were written: never repaired silently.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The disk failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The disk's answer.
        source: std::io::Error,
    },
    /// No checkpoint can be used, and the log no longer holds what came before its first entry.
    #[error(
        "no checkpoint in {} can be used, and the log begins with entry {first}, so the state cannot be made again here{}; \
         replace this replica: an empty directory and another node id, and its peers give it everything",
        dir.display(), tried_text(tried)
    )]
    NoCheckpoint {
        /// The log's directory.
        dir: PathBuf,
        /// The log's first entry.
        first: LogIndex,
        /// What is wrong with each checkpoint that is there.
        tried: Vec<String>,
    },
    /// The replication core did not start.
    #[error("replication core did not start: {0}")]
    Core(String),
}

fn tried_text(tried: &[String]) -> String {
    if tried.is_empty() { String::new() } else { format!(" ({})", tried.join("; ")) }
}

/// A damaged place in a file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} is corrupt at byte {offset}: {what}", path.display())]
pub struct Corruption {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub offset: u64,
    /// What is wrong there.
    pub what: String,
}

/// Why a proposal has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Surely not appended: ask the leader, if one is known.
    #[error("node is not the leader{}", .leader.map(|node| format!(", node {node} is")).unwrap_or_default())]
    NotLeader {
        /// The leader as far as this node knows.
        leader: Option<NodeId>,
    },
    /// Surely not appended: this leader has not heard from a quorum lately. Retry here or elsewhere a little later.
    #[error("leader has no live quorum")]
    NoQuorum,
    /// Surely not appended: the log has no room.
    #[error("log is full: {0}")]
    Full(FullReason),
    /// Surely not appended, and never will be: the payload passes the limit.
    #[error("entry of {bytes} bytes is too large, at most {bytes_max} are allowed")]
    TooLarge {
        /// Its size.
        bytes: u64,
        /// The limit.
        bytes_max: u64,
    },
    /// May or may not be committed, now or later.
    #[error("outcome is unknown: {0}")]
    Unknown(String),
    /// The log is stopping or failed. If the proposal was in flight its outcome is unknown.
    #[error("log is stopped")]
    Stopped,
}

/// Which limit leaves no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FullReason {
    /// `data_bytes_max` of the settings.
    #[error("segments take {bytes} bytes, at most {bytes_max} are allowed")]
    Quota {
        /// Bytes of the segment files, with the one needed next.
        bytes: u64,
        /// The quota.
        bytes_max: u64,
    },
    /// `disk_free_bytes_min` of the settings.
    #[error("file system has {free_bytes} bytes free, {free_bytes_min} must stay free")]
    DiskFree {
        /// Free bytes, less the segment needed next.
        free_bytes: u64,
        /// The reserve.
        free_bytes_min: u64,
    },
}

/// Why an entry could not be read.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The entry's bytes are damaged. It is there for as long as the log says so, here or on another replica: read it
    /// there, or again when this copy is mended.
    #[error(transparent)]
    Corrupt(#[from] Corruption),
    /// The disk failed; the node reports itself as failed.
    #[error("entry {index} cannot be read: {source}")]
    Io {
        /// Which entry.
        index: LogIndex,
        /// The disk's answer.
        source: std::io::Error,
    },
}

/// Why leadership did not move.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// Only the leader can hand over.
    #[error("node is not the leader{}", .leader.map(|node| format!(", node {node} is")).unwrap_or_default())]
    NotLeader {
        /// The leader as far as this node knows.
        leader: Option<NodeId>,
    },
    /// The named node is no other voter.
    #[error("node {0} is not another voter of this group")]
    NoSuchVoter(NodeId),
    /// The named node knows a reason why it should not lead: damage, or a clock that the others contradict.
    #[error("node {0} is not fit to lead now")]
    NotFit(NodeId),
    /// No follower has all of the log.
    #[error("no follower has the whole log")]
    NoneCaughtUp,
    /// The process that was to take over is gone, and nobody else has taken over yet.
    #[error("node {0}, which was to take the lead, refuses connections")]
    TargetGone(NodeId),
    /// Nobody took over in time; the old leader may go on or a third one may win.
    #[error("no other node took the lead in time")]
    Timeout,
    /// The log is stopping or failed.
    #[error("log is stopped")]
    Stopped,
}

/// Why a peer's call got no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The body is not what this version speaks.
    #[error("peer body is not understood: {0}")]
    Malformed(String),
    /// The log is stopping or failed.
    #[error("log is stopped")]
    Stopped,
    /// The log refused.
    #[error("peer call failed: {0}")]
    Failed(String),
}

/// Why the log was not purged, or not yet.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PurgeError {
    /// There is no such checkpoint (any more).
    #[error("no checkpoint of entry {0} is kept")]
    NoCheckpoint(LogIndex),
    /// It goes on in the background as soon as nothing needs the entries.
    #[error("purge to entry {0} is not done in time")]
    Timeout(LogIndex),
    /// The log is stopped.
    #[error("log is stopped")]
    Stopped,
}
