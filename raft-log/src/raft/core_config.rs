//! openraft's settings, chosen once, each with its reason.

use flotilla_planted_bugs::{Bug, is_planted};
use openraft::{Config, SnapshotPolicy};

use crate::{LogConfig, OpenError};

/// Entries of one replication request; bytes are bounded where the log is read.
const REQUEST_ENTRIES_MAX: u64 = 256;
/// Entries of one append to the log.
const APPEND_ENTRIES_MAX: u64 = 4096;
/// Proposals that wait for the core.
const PROPOSALS_WAITING_MAX: u64 = 1024;
/// Commands that wait for the state machine: beyond that the core waits.
const APPLY_WAITING_MAX: u64 = 1024;
/// A snapshot is small, but the machine may take its time to restore it.
const SNAPSHOT_TIMEOUT_MS: u64 = 30_000;

/// The core's settings for a log's.
pub(crate) fn core_config(config: &LogConfig) -> Result<Config, OpenError> {
    let timing = config.timing;
    let core = Config {
        cluster_name: format!("{}/{}", config.cluster, config.group),
        heartbeat_interval: timing.heartbeat_ms,
        election_timeout_min: timing.election_timeout_ms_min,
        // Also the leader's lease.
        election_timeout_max: timing.election_timeout_ms_max,
        // Acks of replication stand for heartbeats.
        heartbeat_min_interval: Some(timing.heartbeat_ms / 2),
        max_payload_entries: REQUEST_ENTRIES_MAX,
        max_append_entries: Some(APPEND_ENTRIES_MAX),
        api_channel_size: Some(PROPOSALS_WAITING_MAX),
        state_machine_channel_size: Some(APPLY_WAITING_MAX),
        // Followers get entries while the leader still syncs them.
        broadcast_submitted_on_append: Some(true),
        // Checkpoints are taken at segment boundaries, and nothing is purged behind our back.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        install_snapshot_timeout: SNAPSHOT_TIMEOUT_MS,
        // A replica that was cut off must not raise the term when it comes back.
        enable_pre_vote: Some(true),
        // A leader that sends but hears nothing falls silent now and then, so that the others may elect.
        quorum_loss_probe_interval: Some(2 * timing.election_timeout_ms_max),
        // A leader that lost its unsynced tail must not come back in the same term and give one entry two contents.
        enable_leader_restore: Some(is_planted(Bug::LeaderRestored)),
        // A follower that lost its tail is caught up instead of being silently left behind.
        allow_log_reversion: Some(true),
        // How long after its return a peer may wait to be caught up, at most.
        backoff: "20ms 50ms 100ms ...500ms".to_owned(),
        ..Config::default()
    };
    core.validate().map_err(|error| OpenError::Config(vec![error.to_string()]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{NodeId, RaftTiming};

    #[test]
    fn settings_that_pass_our_check_pass_openrafts_too() {
        let config = LogConfig::new("dir", "c", "g", NodeId(1), [NodeId(1)]);
        for (heartbeat_ms, min, max) in [(100, 200, 400), (50, 100, 101), (1, 3, 4), (7, 14, 20), (1000, 1801, 5000)] {
            let timing = RaftTiming { heartbeat_ms, election_timeout_ms_min: min, election_timeout_ms_max: max };
            let config = LogConfig { timing, ..config.clone() };
            assert_eq!(config.problems(), Vec::<String>::new());
            core_config(&config).unwrap();
        }
    }
}
