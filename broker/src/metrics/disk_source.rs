//! The disks of a process as monitoring asks them: the flusher that its logs share.

use std::time::Duration;

use flotilla_metrics::{Exposition, Health, Source};
use flotilla_raft_log::{DiskFlusherStats, disk_flushers};
use flotilla_runtime::Runtime;

use super::log_numbers::buckets;

/// A sync that has been under way for longer is told of.
const SYNC_WARN_AFTER: Duration = Duration::from_secs(5);

/// The flushers of this process. Written once for all its replicas.
pub struct DiskSource {
    runtime: Runtime,
}

impl DiskSource {
    /// The source of a process's numbers.
    pub fn new(runtime: Runtime) -> DiskSource {
        DiskSource { runtime }
    }
}

impl Source for DiskSource {
    fn measure(&self, into: &mut Exposition) {
        into.set_base(&[]);
        for stats in disk_flushers(&self.runtime) {
            write(&stats, into);
        }
    }

    fn live(&self) -> Health {
        Health::of("disks")
    }

    /// A warning at most: what a slow or failed disk means is said by the replica that has its log there.
    fn ready(&self) -> Health {
        disk_flushers(&self.runtime).iter().fold(Health::of("disks"), |health, stats| health.warn(hang(stats)))
    }
}

fn hang(stats: &DiskFlusherStats) -> Option<String> {
    let is_long = stats.longest > SYNC_WARN_AFTER;
    is_long.then(|| {
        format!("a sync on device {} has been under way for {} s", stats.device_name(), stats.longest.as_secs())
    })
}

fn write(stats: &DiskFlusherStats, out: &mut Exposition) {
    let device = stats.device_name();
    let labels = [("device", device.as_str())];
    let help = "Logs of this process on the device, and threads that sync them.";
    out.gauge_whole("flotilla_flusher_logs", help, &labels, stats.logs as u64);
    let help = "Logs that are being synced.";
    out.gauge_whole("flotilla_flusher_syncing", help, &labels, stats.syncing as u64);
    let help = "For how long the oldest sync under way has been; 0 when none is.";
    out.gauge("flotilla_flusher_longest_seconds", help, &labels, stats.longest.as_secs_f64());
    let help = "Syncs that have begun, of all logs together.";
    out.counter("flotilla_flusher_syncs_total", help, &labels, stats.syncs);
    let help = "From a log's wish for a sync to its beginning.";
    out.histogram("flotilla_flusher_wait_seconds", help, &labels, &buckets(&stats.waited));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sync_that_hangs_is_told_of_with_its_device() {
        let at = |seconds| DiskFlusherStats {
            device: 0xfe00,
            longest: Duration::from_secs(seconds),
            ..DiskFlusherStats::default()
        };
        assert_eq!(hang(&at(5)), None);
        assert_eq!(hang(&at(7)).as_deref(), Some("a sync on device 254:0 has been under way for 7 s"));
    }
}
