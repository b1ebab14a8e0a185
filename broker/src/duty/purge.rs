//! Letting go, on this replica, of the files of entries that are trimmed: on every replica, whoever leads.
//!
//! A leader waits for replicas that do not have those entries yet, up to a limit; then they get a snapshot instead.

use std::sync::Arc;
use std::time::Duration;

use flotilla_raft_log::{LogIndex, Purgeable};
use flotilla_runtime::{Instant, select};

use super::news::DutyNews;
use super::retention::DiskPressure;
use crate::replica::Replica;

/// What may be purged is looked at this often, trim or not.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);
/// One purge may take this long; it goes on at the next look.
const PURGE_TIMEOUT: Duration = Duration::from_secs(30);

/// Runs as long as the replica; `news` tells of trims.
pub async fn purge(replica: Arc<Replica>, news: Arc<DutyNews>) {
    let mut held_since: Option<Instant> = None;
    loop {
        select(replica.runtime.sleep(LOOK_INTERVAL), news.trims.notified()).await;
        let below = LogIndex(replica.store.retention().trimmed_below);
        let Some(purgeable) = replica.log.purgeable(below) else {
            held_since = None;
            continue;
        };
        if !purgeable.held_by.is_empty() && !may_leave_behind(&replica, &purgeable, &mut held_since) {
            continue;
        }
        match replica.log.purge(purgeable.to, PURGE_TIMEOUT).await {
            Ok(()) => held_since = None,
            Err(error) => tracing::warn!(%error, "trimmed entries not purged yet"),
        }
    }
}

/// Whether replicas that lack those entries have been waited for long enough.
fn may_leave_behind(replica: &Replica, purgeable: &Purgeable, held_since: &mut Option<Instant>) -> bool {
    let now = replica.runtime.now();
    let since = *held_since.get_or_insert_with(|| {
        tracing::info!(to = purgeable.to.0, held_by = ?purgeable.held_by, "trimmed entries wait for slow replicas");
        now
    });
    let extent = replica.log.extent();
    let held = extent.segments.iter().filter(|segment| segment.end <= purgeable.to.next());
    let held_bytes: u64 = held.map(|segment| segment.bytes).sum();
    let config = &replica.config;
    now.saturating_since(since) >= Duration::from_millis(config.slow_replica_hold_ms)
        || held_bytes > config.slow_replica_hold_bytes
        || DiskPressure::of(replica) >= DiskPressure::Delete
}
