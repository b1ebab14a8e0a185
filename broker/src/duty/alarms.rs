//! Alarms: what an operator has to know without asking. Raised and taken back in the log, and told to monitoring.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_raft_log::{LogStats, LogStatus};
use flotilla_runtime::Instant;

use crate::lead::leadership::Place;
use crate::replica::Replica;

/// From one look to the next.
const LOOK_PAUSE: Duration = Duration::from_secs(1);
/// The file system may take so long to tell its space; else that is not judged.
const STATS_TIMEOUT: Duration = Duration::from_secs(2);
/// Without a leader for so long is more than a failover.
const LEADERLESS_MAX: Duration = Duration::from_secs(5);
/// So many heartbeats without a word from a namesrv, in halves: two and a half.
const SILENT_HALF_BEATS: u32 = 5;

/// What may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alarm {
    /// There is no room for another segment.
    DiskFull,
    /// Disk or quota are used beyond the setting.
    DiskFills,
    /// The disk is slow, or entries are applied late: not fit to lead.
    Unfit,
    /// Nobody leads.
    NoLeader,
    /// Entries of this replica's log are damaged.
    Damage,
    /// The wall clock is contradicted by a quorum.
    ClockOff,
    /// Replicas differ in their state.
    StateDiffers,
    /// A namesrv has not taken this replica's row for long.
    NotRegistered,
}

impl Alarm {
    /// All of them.
    pub const ALL: [Alarm; 8] = [
        Alarm::DiskFull,
        Alarm::DiskFills,
        Alarm::Unfit,
        Alarm::NoLeader,
        Alarm::Damage,
        Alarm::ClockOff,
        Alarm::StateDiffers,
        Alarm::NotRegistered,
    ];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            Alarm::DiskFull => "disk_full",
            Alarm::DiskFills => "disk_fills",
            Alarm::Unfit => "unfit",
            Alarm::NoLeader => "no_leader",
            Alarm::Damage => "damage",
            Alarm::ClockOff => "clock_off",
            Alarm::StateDiffers => "state_differs",
            Alarm::NotRegistered => "not_registered",
        }
    }
}

/// The alarms of one replica.
#[derive(Debug, Default)]
pub struct Alarms {
    raised: Mutex<BTreeMap<Alarm, String>>,
}

impl Alarms {
    /// Those that are raised, each with what is wrong.
    pub fn raised(&self) -> BTreeMap<Alarm, String> {
        self.raised.lock().expect(LOCK).clone()
    }

    /// Raises an alarm, or takes it back; the log tells of the change alone.
    fn set(&self, alarm: Alarm, reason: Option<String>) {
        let mut raised = self.raised.lock().expect(LOCK);
        match reason {
            Some(reason) => {
                if !raised.contains_key(&alarm) {
                    tracing::warn!(alarm = alarm.text(), reason, "alarm raised");
                }
                raised.insert(alarm, reason);
            }
            None => {
                if raised.remove(&alarm).is_some() {
                    tracing::info!(alarm = alarm.text(), "alarm is over");
                }
            }
        }
    }
}

const LOCK: &str = "alarm lock is never poisoned: no code panics while holding it";

/// Runs as long as the replica.
pub async fn watch_alarms(replica: Arc<Replica>) {
    let started = replica.runtime.now();
    let mut leaderless_since = None;
    loop {
        let seen = replica.log.status();
        let now = replica.runtime.now();
        look_at_log(&replica, &seen);
        let is_led = Place::of(&seen) != Place::Nobody;
        let since = *leaderless_since.get_or_insert(now);
        if is_led {
            leaderless_since = None;
        }
        let silence = now.saturating_since(since);
        let is_leaderless = !is_led && silence >= LEADERLESS_MAX;
        let reason = || format!("no leader is known that may write, for {} s", silence.as_secs());
        replica.alarms.set(Alarm::NoLeader, is_leaderless.then(reason));
        replica.alarms.set(Alarm::NotRegistered, not_registered(&replica, started, now));
        // A hung disk may keep whoever asks: not on the threads that serve, and not without end.
        let log = replica.log.clone();
        let asking = replica.runtime.blocking(move || log.stats());
        if let Ok(stats) = replica.runtime.timeout(STATS_TIMEOUT, asking).await {
            let limit = replica.config.disk_alarm_percent;
            replica.alarms.set(Alarm::DiskFills, filling(&stats, replica.config.data_bytes_max, limit));
        }
        replica.runtime.sleep(LOOK_PAUSE).await;
    }
}

fn look_at_log(replica: &Replica, seen: &LogStatus) {
    let alarms = &replica.alarms;
    let full = "there is no room for another segment of the log: sends are, or will soon be, refused";
    alarms.set(Alarm::DiskFull, seen.disk.is_full.then(|| full.to_owned()));
    alarms.set(Alarm::Unfit, replica.fitness.illness());
    let integrity = replica.log.integrity();
    let damage = || format!("{} entries of the log cannot be read here", integrity.damaged_entries);
    alarms.set(Alarm::Damage, (integrity.damaged_segments > 0).then(damage));
    let off = "wall clock differs from those of most replicas";
    alarms.set(Alarm::ClockOff, integrity.is_clock_off.then(|| off.to_owned()));
    alarms.set(Alarm::StateDiffers, integrity.state_alarm);
}

/// The namesrvs that have not taken the row for too long, if there are any.
fn not_registered(replica: &Replica, started: Instant, now: Instant) -> Option<String> {
    let silence_max = Duration::from_millis(replica.config.namesrv_heartbeat_ms) * SILENT_HALF_BEATS / 2;
    let silence = |namesrv: &str| {
        replica.counters.unregistered_for(namesrv, now).unwrap_or_else(|| now.saturating_since(started))
    };
    let silent: Vec<String> = replica
        .config
        .namesrv
        .iter()
        .filter(|namesrv| silence(namesrv) > silence_max)
        .map(|namesrv| format!("{namesrv} (for {} s)", silence(namesrv).as_secs()))
        .collect();
    (!silent.is_empty()).then(|| format!("not registered at namesrv {}", silent.join(", ")))
}

/// What is used beyond `percent_max` of its limit: the file system, or the quota.
fn filling(stats: &LogStats, quota_bytes: Option<u64>, percent_max: u64) -> Option<String> {
    let percent = |used: u64, all: u64| used.saturating_mul(100) / all.max(1);
    if let (Some(free), Some(total)) = (stats.disk_free_bytes, stats.disk_total_bytes)
        && percent(total.saturating_sub(free), total) >= percent_max
    {
        return Some(format!(
            "{free} of {total} bytes of the disk are free; at {percent_max} % used there is an alarm"
        ));
    }
    let (used, quota) = (stats.files_bytes, quota_bytes?);
    let text = || format!("segment files use {used} bytes of a quota of {quota}; at {percent_max} % there is an alarm");
    (percent(used, quota) >= percent_max).then(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stats(files_bytes: u64, disk_free_bytes: u64) -> LogStats {
        LogStats {
            segments: 1,
            files_bytes,
            disk_free_bytes: Some(disk_free_bytes),
            disk_total_bytes: Some(1_000),
            disk_free_bytes_min: 0,
            first: None,
            purged: None,
            snapshot: None,
            cluster_committed: None,
            undurable_bytes: 0,
            unapplied_bytes: 0,
            quorum_silent_for: None,
            peers: Vec::new(),
        }
    }

    #[test]
    fn a_disk_or_a_quota_used_beyond_the_setting_is_an_alarm_with_its_numbers() {
        assert_eq!(filling(&stats(10, 151), None, 85), None);
        let text = filling(&stats(10, 150), None, 85).expect("85 % are used");
        assert!(text.contains("150 of 1000 bytes"), "{text}");
        assert_eq!(filling(&stats(84, 500), Some(100), 85), None);
        let text = filling(&stats(85, 500), Some(100), 85).expect("85 % of the quota");
        assert!(text.contains("85 bytes of a quota of 100"), "{text}");
        let unknown = LogStats { disk_free_bytes: None, disk_total_bytes: None, ..stats(10, 0) };
        assert_eq!(filling(&unknown, None, 85), None, "what is not known is no alarm");
    }

    #[test]
    fn an_alarm_stays_until_it_is_taken_back() {
        let alarms = Alarms::default();
        alarms.set(Alarm::Damage, Some("two entries".to_owned()));
        alarms.set(Alarm::Damage, Some("one entry".to_owned()));
        alarms.set(Alarm::ClockOff, None);
        assert_eq!(alarms.raised(), BTreeMap::from([(Alarm::Damage, "one entry".to_owned())]));
        alarms.set(Alarm::Damage, None);
        assert!(alarms.raised().is_empty());
    }
}
