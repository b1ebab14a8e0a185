//! Settings of one replicated log: plain data, with bounds that `validate` checks all at once.

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::NodeId;
use crate::limits::{
    FLUSH_BYTES_MAX, FLUSH_BYTES_MIN, FLUSH_INTERVAL_MS_MAX, FLUSH_INTERVAL_MS_MIN, SEGMENT_BYTES_MAX,
    SEGMENT_BYTES_MIN,
};
use crate::member::CONTACT_BYTES_MAX;

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
    /// The voters a *new* group starts with, this replica among them; none if it comes to a group that is there. Of no effect
    /// once the log holds a membership.
    pub voters: BTreeSet<NodeId>,
    /// How this replica is reached: recorded in the membership for the others, and never looked into. At most 1,024 bytes.
    pub contact: String,
    /// Bytes of one segment file. Default 1 GiB, at least 64 KiB, at most 4 GiB.
    pub segment_bytes: u64,
    /// Election and heartbeat times.
    pub timing: RaftTiming,
    /// Bytes of recent entries kept in memory for replication and apply. Default 64 MiB.
    pub tail_cache_bytes: usize,
    /// Quota for the segment files, bytes: a proposal that could exceed it is answered `Full`. Default none.
    pub data_bytes_max: Option<u64>,
    /// Reserve for vote, checkpoints and retention, bytes: no segment is made for proposals of
    /// [`crate::ProposalClass::Data`] that would leave fewer free bytes, and they are answered `Full` early. Segments for
    /// settlements may use half of it, and what a leader sends three quarters. Default 0.
    pub disk_free_bytes_min: u64,
    /// The same reserve as a share of the file system, percent, 0 to 50; the larger one of both counts. Default 0.
    pub disk_free_percent_min: u8,
    /// The share counts for so many bytes at the most: a large disk is not full with so much to spare. Default: without a limit.
    pub disk_free_percent_bytes_max: u64,
    /// When an append counts. Default [`FlushMode::Sync`]. The same for all replicas of a group.
    pub flush: FlushMode,
    /// A disk whose syncs take longer counts as slow in [`crate::LogStatus::disk`], milliseconds. Default 500.
    pub slow_sync_ms: u64,
    /// A follower that lacks an entry for so long leaves the in-sync set, milliseconds; it comes back once it has caught up.
    /// Default 1,000; 100 to 600,000.
    pub in_sync_lag_ms_max: u64,
    /// So does one that lacks more bytes. Default 256 MiB; at least 1 MiB.
    pub in_sync_lag_bytes_max: u64,
    /// Campaign at once, instead of waiting for the lease to run out, when the leader's process is surely gone: its
    /// connection broke, its kernel refuses a new one, and enough other voters see the same to form a quorum. Default on.
    /// Off, this replica neither looks nor confirms what others see.
    pub elect_on_peer_gone: bool,
    /// Bytes a second of sealed segments that the scrub reads against their checksums; 0 turns it off. Default 8 MiB.
    pub scrub_bytes_per_s: u64,
    /// From the beginning of one scrub of everything to that of the next, ms, at the least. Default 24 hours.
    pub scrub_interval_ms: u64,
    /// The feature level that this program's state machine supports; told to the others, otherwise not looked into. Default 0.
    pub feature_level: u8,
}

/// When an append counts as done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum FlushMode {
    /// When it is on disk: many appends share one `fdatasync`, none waits for a timer.
    #[default]
    Sync,
    /// When it is in the page cache: it survives the process, not the machine. A power failure may cost what the last
    /// interval appended. The vote is synced in any case, behind all appends before it.
    Async {
        /// A sync begins at most so long after an append, milliseconds: 1 to 60,000.
        interval_ms: u64,
        /// A sync begins once so many bytes wait for it: 64 KiB to 1 GiB. Appends wait once four times as many do.
        bytes: u64,
    },
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
            contact: String::new(),
            segment_bytes: 1 << 30,
            timing: RaftTiming::default(),
            tail_cache_bytes: 64 << 20,
            data_bytes_max: None,
            disk_free_bytes_min: 0,
            disk_free_percent_min: 0,
            disk_free_percent_bytes_max: u64::MAX,
            flush: FlushMode::Sync,
            slow_sync_ms: 500,
            in_sync_lag_ms_max: 1_000,
            in_sync_lag_bytes_max: 256 << 20,
            elect_on_peer_gone: true,
            scrub_bytes_per_s: 8 << 20,
            scrub_interval_ms: 24 * 3_600_000,
            feature_level: 0,
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
        if !self.voters.is_empty() && !self.voters.contains(&self.node) {
            problems.push(format!("node {} is not among the voters {:?}", self.node, self.voters));
        }
        if self.contact.len() > CONTACT_BYTES_MAX {
            problems.push(format!("contact has {} bytes, allowed are {CONTACT_BYTES_MAX}", self.contact.len()));
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
        if self.scrub_interval_ms == 0 {
            problems.push("scrub_interval_ms is 0, at least 1 is needed".to_owned());
        }
        if let Some(data_bytes_max) = self.data_bytes_max
            && data_bytes_max < 3 * self.segment_bytes
        {
            problems.push(format!(
                "data_bytes_max is {data_bytes_max}, at least three segments ({}) are needed",
                3 * self.segment_bytes
            ));
        }
        if !(100..=600_000).contains(&self.in_sync_lag_ms_max) {
            problems.push(format!("in_sync_lag_ms_max is {}, allowed are 100 to 600000", self.in_sync_lag_ms_max));
        }
        if self.in_sync_lag_bytes_max < 1 << 20 {
            problems
                .push(format!("in_sync_lag_bytes_max is {}, at least 1048576 is needed", self.in_sync_lag_bytes_max));
        }
        if self.disk_free_percent_min > 50 {
            problems.push(format!("disk_free_percent_min is {}, allowed are 0 to 50", self.disk_free_percent_min));
        }
        if self.slow_sync_ms == 0 {
            problems.push("slow_sync_ms is 0, at least 1 is needed".to_owned());
        }
        if let FlushMode::Async { interval_ms, bytes } = self.flush {
            if !(FLUSH_INTERVAL_MS_MIN..=FLUSH_INTERVAL_MS_MAX).contains(&interval_ms) {
                problems.push(format!(
                    "interval_ms of the flush is {interval_ms}, allowed are {FLUSH_INTERVAL_MS_MIN} to {FLUSH_INTERVAL_MS_MAX}"
                ));
            }
            if !(FLUSH_BYTES_MIN..=FLUSH_BYTES_MAX).contains(&bytes) {
                problems.push(format!(
                    "bytes of the flush are {bytes}, allowed are {FLUSH_BYTES_MIN} to {FLUSH_BYTES_MAX}"
                ));
            }
        }
        problems
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_out_of_its_range_is_named() {
        let mut config = LogConfig::new("/log", "cluster", "group", NodeId(1), [NodeId(1)]);
        config.flush = FlushMode::Async { interval_ms: 500, bytes: 4 << 20 };
        assert_eq!(config.problems(), Vec::<String>::new());
        config.flush = FlushMode::Async { interval_ms: 0, bytes: 1 };
        (config.disk_free_percent_min, config.slow_sync_ms) = (51, 0);
        let problems = config.problems().join("; ");
        for word in ["interval_ms", "bytes of the flush", "disk_free_percent_min", "slow_sync_ms"] {
            assert!(problems.contains(word), "{word} is missing in: {problems}");
        }
    }
}
