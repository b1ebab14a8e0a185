//! Named scenarios: field cases as plans, with what must hold beside the promises.

use serde::{Deserialize, Serialize};

use crate::levels::Levels;
use crate::plan::Plan;

/// What must hold in a run beside the promises. Judged again with a stored run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limits {
    /// The longest time without an acknowledgement in any fault, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gap_ms_max: Option<u64>,
    /// From a healing to the next acknowledgement, milliseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after_heal_ms_max: Option<u64>,
    /// Terms after the first one, as seen under load.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elections_max: Option<u64>,
    /// Replicas that ended by themselves, though a fault of their disks excuses it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ends_max: Option<u64>,
    /// From the beginning of a fault until a replica leads that it did not strike, milliseconds; for each fault.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lead_moves_ms_max: Option<u64>,
    /// What the largest of the replicas' data folders holds at the end, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data_bytes_max: Option<u64>,
}

/// What limits are held against: the worst that was seen of each.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) gap_ms: u64,
    pub(crate) after_heal_ms: u64,
    pub(crate) elections: u64,
    pub(crate) ends: u64,
    pub(crate) lead_moves_ms: u64,
    pub(crate) data_bytes: u64,
}

impl Limits {
    /// Which of them were passed, a sentence each.
    pub(crate) fn passed(&self, seen: &Seen) -> Vec<String> {
        let mut passed = Vec::new();
        let mut hold = |limit: Option<u64>, value: u64, what: &str| {
            if let Some(limit) = limit.filter(|limit| value > *limit) {
                passed.push(format!("{what}: {value}, at most {limit} may be"));
            }
        };
        hold(self.gap_ms_max, seen.gap_ms, "milliseconds without an acknowledgement");
        hold(self.after_heal_ms_max, seen.after_heal_ms, "milliseconds from a healing to the next acknowledgement");
        hold(self.elections_max, seen.elections, "elections");
        hold(self.ends_max, seen.ends, "replicas that ended by themselves");
        let moves = "milliseconds until a replica led that the fault had not struck";
        hold(self.lead_moves_ms_max, seen.lead_moves_ms, moves);
        hold(self.data_bytes_max, seen.data_bytes, "bytes in a replica's data folder at the end");
        passed
    }
}

/// A field case on real processes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scenario {
    /// How it is called.
    pub name: String,
    /// Which case it shows.
    pub case: String,
    /// What must hold, in a sentence.
    pub must: String,
    /// Messages a second.
    pub rate: u64,
    /// At which levels sends are answered.
    #[serde(default)]
    pub levels: Levels,
    /// Beside the promises.
    #[serde(default)]
    pub limits: Limits,
    /// Lines of the brokers' settings files.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub broker: Vec<String>,
    /// What is done.
    pub plan: Plan,
}

const FILES: &[&str] = &[
    include_str!("../scenarios/a01-laggard-first.json"),
    include_str!("../scenarios/a02-cut-leader-leads-again.json"),
    include_str!("../scenarios/a03-isolated-follower-returns.json"),
    include_str!("../scenarios/a04-transfer-meets-partition.json"),
    include_str!("../scenarios/a05a-sync-fails-on-leader.json"),
    include_str!("../scenarios/a05b-sync-takes-5s-on-leader.json"),
    include_str!("../scenarios/a05c-no-space-error-on-leader.json"),
    include_str!("../scenarios/a05d-read-only-leader.json"),
    include_str!("../scenarios/a05e-bad-disk-on-follower.json"),
    include_str!("../scenarios/a05f-dead-or-hung-leader-disk.json"),
    include_str!("../scenarios/a05g-sync-takes-800ms-on-leader.json"),
    include_str!("../scenarios/a06-wiped-follower.json"),
    include_str!("../scenarios/a07-away-for-long.json"),
    include_str!("../scenarios/a14-members-come-and-go.json"),
    include_str!("../scenarios/a15-leader-loses-its-disk.json"),
    include_str!("../scenarios/a15-members-at-all-levels.json"),
    include_str!("../scenarios/b01-one-failed-sync-then-power-loss.json"),
    include_str!("../scenarios/b04-two-crashes-in-a-row.json"),
    include_str!("../scenarios/b06-answers-lost.json"),
    include_str!("../scenarios/b08-clock-step.json"),
    include_str!("../scenarios/b08-clock-step-and-failover.json"),
    include_str!("../scenarios/b10-full-disks.json"),
    include_str!("../scenarios/b11-damaged-log-at-rest.json"),
    include_str!("../scenarios/corrupt-link.json"),
    include_str!("../scenarios/d03-namesrv-gone.json"),
    include_str!("../scenarios/f07-transfer-to-one-that-stands-still.json"),
    include_str!("../scenarios/f10-follower-stands-still.json"),
    include_str!("../scenarios/g01-kills-around-start.json"),
    include_str!("../scenarios/g02-damage-while-running.json"),
    include_str!("../scenarios/g02-damaged-vote.json"),
    include_str!("../scenarios/g03-damaged-checkpoint.json"),
    include_str!("../scenarios/g04-power-loss.json"),
    include_str!("../scenarios/g05-empty-disk-votes.json"),
    include_str!("../scenarios/g06-lag-is-shown.json"),
    include_str!("../scenarios/i01-leader-changes.json"),
    include_str!("../scenarios/i02-followers-then-leader-lose-power.json"),
    include_str!("../scenarios/i03-offsets-after-power-loss.json"),
    include_str!("../scenarios/i04-consumers-come-and-go-over-restarts.json"),
    include_str!("../scenarios/i05-everything-logged-is-replayed.json"),
    include_str!("../scenarios/i06-any-sync-may-fail.json"),
    include_str!("../scenarios/i07-little-traffic.json"),
    include_str!("../scenarios/i08-stops-under-load.json"),
    include_str!("../scenarios/k01-many-leaders-few-writes.json"),
    include_str!("../scenarios/k02-last-replica.json"),
    include_str!("../scenarios/k03-retries-over-leader-kills.json"),
    include_str!("../scenarios/k04-nobody-reads-what-is-not-agreed.json"),
    include_str!("../scenarios/k05-late-append.json"),
    include_str!("../scenarios/k06-followers-come-back.json"),
    include_str!("../scenarios/k07-all-disks-slow.json"),
    include_str!("../scenarios/k08-hard-stops.json"),
    include_str!("../scenarios/k09-full-disk-of-the-leader.json"),
    include_str!("../scenarios/q01-older-copy-of-a-replica.json"),
    include_str!("../scenarios/q02-consumers-churn-and-the-log-stays-small.json"),
    include_str!("../scenarios/q03-killed-in-mid-batch.json"),
    include_str!("../scenarios/q04-quorum-lost-and-back.json"),
    include_str!("../scenarios/q05-dead-letters-over-leader-kills.json"),
    include_str!("../scenarios/q06-blips.json"),
    include_str!("../scenarios/q07-majority-gone-for-good.json"),
];

impl Scenario {
    /// All there are, in the order of their names.
    pub fn all() -> Vec<Scenario> {
        FILES.iter().map(|text| serde_json::from_str(text).expect("a test reads every file")).collect()
    }

    /// The one of that name.
    pub fn named(name: &str) -> Option<Scenario> {
        Scenario::all().into_iter().find(|scenario| scenario.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_is_a_scenario_with_room_for_its_faults() {
        let all = Scenario::all();
        assert!(all.is_sorted_by(|one, other| one.name < other.name));
        for Scenario { name, case, must, plan, .. } in &all {
            assert!(!case.is_empty() && !must.is_empty(), "{name}");
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms) && !plan.steps.is_empty(), "{name}");
            assert!(plan.steps.iter().map(|step| step.number).eq(1..=plan.steps.len() as u64), "{name}");
            let end = plan.steps.iter().map(|step| step.at_ms + step.hold_ms).max().unwrap();
            assert!(end + crate::plan::QUIET_END_MS <= plan.duration_ms, "{name}");
        }
        assert_eq!(Scenario::named("a01-laggard-first").unwrap().case, "A01");
        assert_eq!(Scenario::named("nothing"), None);
    }

    #[test]
    fn a_limit_that_is_passed_is_named() {
        let limits = Limits {
            gap_ms_max: Some(100),
            elections_max: Some(1),
            ends_max: Some(0),
            lead_moves_ms_max: Some(50),
            data_bytes_max: Some(9),
            ..Limits::default()
        };
        let kept = Seen { gap_ms: 100, after_heal_ms: 9_999, elections: 1, ends: 0, lead_moves_ms: 50, data_bytes: 9 };
        assert_eq!(limits.passed(&kept), [""; 0]);
        let broken = Seen { gap_ms: 101, after_heal_ms: 0, elections: 2, ends: 1, lead_moves_ms: 51, data_bytes: 10 };
        assert_eq!(limits.passed(&broken).len(), 5);
    }
}
