//! Settings of one replicated log: plain data, with bounds that `validate` checks all at once.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::NodeId;
use crate::limits::{SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN};

/// Settings of one replica's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogConfig {
    /// The log's own directory; created if absent.
    pub dir: PathBuf,
    /// The cluster's name; a directory of another one is refused.
    pub cluster: String,
    /// The group's name; a directory of another one is refused.
    pub group: String,
    /// This replica; a directory of another one is refused.
    pub node: NodeId,
    /// The voters a *new* group starts with, this replica among them. Of no effect once the log holds a membership.
    pub voters: BTreeSet<NodeId>,
    /// Bytes of one segment file. Default 1 GiB, at least 64 KiB, at most 4 GiB.
    pub segment_bytes: u64,
    /// Election and heartbeat times.
    pub timing: RaftTiming,
    /// Bytes of recent entries kept in memory for replication and apply. Default 64 MiB.
    pub tail_cache_bytes: usize,
    /// Quota for the segment files, bytes: a proposal that could exceed it is answered `Full`. Default none.
    pub data_bytes_max: Option<u64>,
    /// Proposals are answered `Full` once the file system has fewer free bytes than this. Default 0.
    pub disk_free_bytes_min: u64,
    /// Campaign at once, instead of waiting for the lease to run out, when the leader's process is surely gone: its
    /// connection broke, its kernel refuses a new one, and enough other voters see the same to form a quorum. Default on.
    /// Off, this replica neither looks nor confirms what others see.
    pub elect_on_peer_gone: bool,
}

/// Election and heartbeat times, milliseconds.
///
/// A follower campaigns `election_timeout_ms_max` plus a random time from `min..max` after the last sign of life;
/// `election_timeout_ms_max` is also how long a leader without a quorum goes on accepting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RaftTiming {
    /// Default 100.
    pub heartbeat_ms: u64,
    /// Default 200; must exceed 1.8 heartbeats.
    pub election_timeout_ms_min: u64,
    /// Default 400; must exceed `min`, and twice the slowest usual fdatasync plus a round trip.
    pub election_timeout_ms_max: u64,
}

impl Default for RaftTiming {
    fn default() -> RaftTiming {
        RaftTiming { heartbeat_ms: 100, election_timeout_ms_min: 200, election_timeout_ms_max: 400 }
    }
}

impl LogConfig {
    /// A config with the documented defaults.
    pub fn new(
        dir: impl Into<PathBuf>,
        cluster: impl Into<String>,
        group: impl Into<String>,
        node: NodeId,
        voters: impl IntoIterator<Item = NodeId>,
    ) -> LogConfig {
        LogConfig {
            dir: dir.into(),
            cluster: cluster.into(),
            group: group.into(),
            node,
            voters: voters.into_iter().collect(),
            segment_bytes: 1 << 30,
            timing: RaftTiming::default(),
            tail_cache_bytes: 64 << 20,
            data_bytes_max: None,
            disk_free_bytes_min: 0,
            elect_on_peer_gone: true,
        }
    }

    /// Every problem of these settings, each a whole sentence with the value and what is allowed; empty if fine.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if self.cluster.is_empty() || self.cluster.len() > 255 {
            problems.push(format!("cluster name has {} bytes, allowed are 1 to 255", self.cluster.len()));
        }
        if self.group.is_empty() || self.group.len() > 255 {
            problems.push(format!("group name has {} bytes, allowed are 1 to 255", self.group.len()));
        }
        if !self.voters.contains(&self.node) {
            problems.push(format!("node {} is not among the voters {:?}", self.node, self.voters));
        }
        if self.segment_bytes < SEGMENT_BYTES_MIN || self.segment_bytes > SEGMENT_BYTES_MAX {
            problems.push(format!(
                "segment_bytes is {}, allowed are {SEGMENT_BYTES_MIN} to {SEGMENT_BYTES_MAX}",
                self.segment_bytes
            ));
        }
        let RaftTiming { heartbeat_ms, election_timeout_ms_min, election_timeout_ms_max } = self.timing;
        if heartbeat_ms == 0 {
            problems.push("heartbeat_ms is 0, at least 1 is needed".to_owned());
        }
        // openraft wants a suppressed heartbeat (half a heartbeat of silence), a heartbeat and a tick to fit.
        if election_timeout_ms_min * 10 < heartbeat_ms.saturating_mul(18) {
            problems.push(format!(
                "election_timeout_ms_min is {election_timeout_ms_min}, at least 1.8 times heartbeat_ms ({heartbeat_ms}) is needed"
            ));
        }
        if election_timeout_ms_max <= election_timeout_ms_min {
            problems.push(format!(
                "election_timeout_ms_max is {election_timeout_ms_max}, more than election_timeout_ms_min ({election_timeout_ms_min}) is needed"
            ));
        }
        if let Some(data_bytes_max) = self.data_bytes_max
            && data_bytes_max < 3 * self.segment_bytes
        {
            problems.push(format!(
                "data_bytes_max is {data_bytes_max}, at least three segments ({}) are needed",
                3 * self.segment_bytes
            ));
        }
        problems
    }
}
