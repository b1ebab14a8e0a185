//! What will be done to a cluster, and when: data, made from the seed before anything is started.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::nemesis::{Fault, FaultKind};
use crate::network_mode::NetworkMode;
use crate::rng::Rng;

/// The cluster is left alone before the first fault.
const QUIET_START_MS: u64 = 2_000;
/// And after the last one: something must be acknowledged there.
pub(crate) const QUIET_END_MS: u64 = 4_000;
/// How long a fault lasts: from far below to far above every election and session timeout.
const HOLD_MS_MIN: u64 = 50;
const HOLD_MS_MAX: u64 = 6_000;
/// Between the end of a fault and the next one.
const GAP_MS_MIN: u64 = 300;
const GAP_MS_MAX: u64 = 4_000;
/// Of a hundred faults that may join others.
const OVERLAPS_PERCENT: u64 = 40;
/// What an election and a restart take, roughly.
const RECOVERY_MS: u64 = 600;

/// One fault and its time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Counted from 1.
    pub number: u64,
    /// When it strikes, milliseconds after the load's start; later if the fault before is not healed yet.
    pub at_ms: u64,
    /// How long it is left to work before it is healed.
    pub hold_ms: u64,
    /// Its name.
    pub kind: FaultKind,
    /// All that is decided ahead.
    pub fault: Fault,
}

/// How densely faults follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    /// How long each is left to work.
    pub hold_ms: u64,
    /// Between its end and the next one.
    pub gap_ms: u64,
}

/// All faults of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What it was made from.
    pub seed: u64,
    /// Size of the cluster.
    pub replicas: u64,
    /// Length of the load.
    pub duration_ms: u64,
    /// A fault may strike while others hold.
    #[serde(default)]
    pub overlaps: bool,
    /// Written by hand: faults meet as their times say, whatever they hurt.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub meets_as_written: bool,
    /// How the replicas reached each other when it was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network: Option<NetworkMode>,
    /// In the order of their times.
    pub steps: Vec<Step>,
}

impl Plan {
    /// The plan of a seed. Every kind has its turn before one comes a second time. With `overlaps` about 40 of 100
    /// faults that may join those before strike while these hold.
    pub fn of_seed(seed: u64, kinds: &[FaultKind], replicas: u64, duration_ms: u64, overlaps: bool) -> Plan {
        let mut kinds = kinds.to_vec();
        // The order in which a user names them makes no other plan.
        kinds.sort_unstable();
        kinds.dedup();
        let mut rng = Rng::new(seed);
        let mut steps: Vec<Step> = Vec::new();
        let mut bag: Vec<FaultKind> = Vec::new();
        let mut free_ms = QUIET_START_MS;
        while !kinds.is_empty() {
            if bag.is_empty() {
                bag = rng.shuffled(&kinds);
            }
            let kind = bag.pop().expect("it was just filled");
            let fault = kind.draw(&mut rng, replicas);
            let hold_ms = rng.magnitude(HOLD_MS_MIN, HOLD_MS_MAX);
            let hold_ms = if fault.is_held() { hold_ms } else { 0 };
            let busy_ms = hold_ms + fault.busy_ms() + RECOVERY_MS;
            let mut at_ms = free_ms;
            if overlaps
                && let Some(last) = steps.last()
                && last.hold_ms > 0
                && rng.below(100) < OVERLAPS_PERCENT
            {
                let meets = last.at_ms + rng.between(1, last.hold_ms);
                let holds = |step: &&Step| step.at_ms + step.hold_ms >= meets;
                if steps.iter().filter(holds).all(|step| kind.may_join(step.kind)) {
                    at_ms = meets;
                }
            }
            if at_ms.max(free_ms) + busy_ms + QUIET_END_MS > duration_ms {
                break;
            }
            steps.push(Step { number: steps.len() as u64 + 1, at_ms, hold_ms, kind, fault });
            free_ms = free_ms.max(at_ms + busy_ms + rng.between(GAP_MS_MIN, GAP_MS_MAX));
        }
        Plan { seed, replicas, duration_ms, overlaps, meets_as_written: false, network: None, steps }
    }

    /// These faults, one after the other in this order and over again, each left to work for `hold_ms`, with `gap_ms` of load in
    /// between. What is left open in each, such as which follower, is drawn from the seed.
    pub fn in_turn(seed: u64, kinds: &[FaultKind], replicas: u64, duration_ms: u64, pace: Pace) -> Plan {
        let mut rng = Rng::new(seed);
        let mut steps: Vec<Step> = Vec::new();
        let mut at_ms = QUIET_START_MS;
        for kind in kinds.iter().copied().cycle() {
            let fault = kind.draw(&mut rng, replicas);
            let hold_ms = if fault.is_held() { pace.hold_ms } else { 0 };
            let busy_ms = hold_ms + fault.busy_ms() + RECOVERY_MS;
            if at_ms + busy_ms + QUIET_END_MS > duration_ms {
                break;
            }
            steps.push(Step { number: steps.len() as u64 + 1, at_ms, hold_ms, kind, fault });
            at_ms += busy_ms + pace.gap_ms;
        }
        Plan { seed, replicas, duration_ms, overlaps: false, meets_as_written: false, network: None, steps }
    }

    /// Whether a fault is among them that takes what was acknowledged, by right.
    pub fn loses_by_right(&self) -> bool {
        self.steps.iter().any(|step| step.kind.card().class.is_by_name_only())
    }

    /// Whether any step needs links between the replicas that can be hurt.
    pub fn needs_links(&self) -> bool {
        self.steps.iter().any(|step| step.kind.card().needs_links)
    }

    /// Whether any step needs replicas with file systems of their own.
    pub fn needs_volumes(&self) -> bool {
        self.steps.iter().any(|step| step.kind.card().needs_volumes)
    }

    /// Whether any step needs replicas with the shim.
    pub fn needs_shim(&self) -> bool {
        self.steps.iter().any(|step| step.kind.card().needs_shim)
    }

    /// The kinds that it has, each once.
    pub fn kinds(&self) -> Vec<FaultKind> {
        let mut kinds: Vec<FaultKind> = self.steps.iter().map(|step| step.kind).collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { number, at_ms, hold_ms, kind, fault } in &self.steps {
            let fault = serde_json::to_string(fault).expect("numbers and strings become JSON");
            writeln!(
                f,
                "{number:>3}. at {:>6.1} s for {:>4.1} s  {kind:<16} {fault}",
                *at_ms as f64 / 1e3,
                *hold_ms as f64 / 1e3
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: u64) -> Plan {
        Plan::of_seed(seed, &FaultKind::all(), 3, 900_000, false)
    }

    #[test]
    fn the_same_seed_gives_the_same_plan_and_another_one_another() {
        assert_eq!(plan(42), plan(42));
        assert_ne!(plan(42).steps, plan(43).steps);
        let reversed: Vec<FaultKind> = FaultKind::all().into_iter().rev().collect();
        assert_eq!(Plan::of_seed(42, &reversed, 3, 900_000, false), plan(42), "the order of names does not count");
    }

    #[test]
    fn a_plan_survives_the_way_through_json() {
        let json = serde_json::to_string_pretty(&plan(7)).unwrap();
        assert_eq!(serde_json::from_str::<Plan>(&json).unwrap(), plan(7));
    }

    #[test]
    fn faults_do_not_overlap_and_both_ends_of_the_load_are_quiet() {
        for seed in 0..50 {
            let plan = plan(seed);
            assert!(plan.steps[0].at_ms >= QUIET_START_MS);
            for pair in plan.steps.windows(2) {
                assert!(pair[0].at_ms + pair[0].hold_ms + GAP_MS_MIN <= pair[1].at_ms, "{pair:?}");
            }
            let last = plan.steps.last().unwrap();
            assert!(last.at_ms + last.hold_ms + QUIET_END_MS <= plan.duration_ms);
        }
    }

    #[test]
    fn where_faults_may_overlap_some_do_and_only_such_as_may_meet() {
        let mut met = 0;
        for seed in 0..50 {
            let plan = Plan::of_seed(seed, &FaultKind::all(), 3, 300_000, true);
            assert!(plan.steps.is_sorted_by_key(|step| step.at_ms));
            for (at, step) in plan.steps.iter().enumerate() {
                for earlier in &plan.steps[..at] {
                    if earlier.at_ms + earlier.hold_ms >= step.at_ms {
                        assert!(step.kind.may_join(earlier.kind), "{} and {}", step.kind, earlier.kind);
                        met += 1;
                    }
                }
                assert!(step.at_ms + step.hold_ms + QUIET_END_MS <= plan.duration_ms);
            }
        }
        assert!(met > 100, "{met}");
    }

    #[test]
    fn faults_in_turn_keep_their_order_and_fill_the_load() {
        let kinds = [FaultKind::PartitionLeader, FaultKind::LeaderLast];
        let plan = Plan::in_turn(3, &kinds, 3, 60_000, Pace { hold_ms: 700, gap_ms: 50 });
        assert!(plan.steps.len() >= 10, "{plan}");
        for (at, step) in plan.steps.iter().enumerate() {
            assert_eq!((step.number, step.kind), (at as u64 + 1, kinds[at % 2]));
            // What is over when it is done has nothing to hold.
            assert_eq!(step.hold_ms, [700, 0][at % 2]);
            assert!(step.at_ms + step.hold_ms + QUIET_END_MS <= plan.duration_ms);
        }
        assert!(plan.steps.windows(2).all(|pair| pair[0].at_ms + pair[0].hold_ms < pair[1].at_ms));
        let other = Plan::in_turn(4, &kinds, 3, 60_000, Pace { hold_ms: 700, gap_ms: 50 });
        assert_ne!(other.steps, plan.steps, "what is left open is the seed's");
        assert_eq!(Plan::in_turn(3, &[], 3, 60_000, Pace { hold_ms: 1, gap_ms: 1 }).steps, []);
    }

    #[test]
    fn every_kind_has_its_turn() {
        let plan = plan(1);
        assert_eq!(plan.kinds(), FaultKind::all(), "{plan}");
    }

    #[test]
    fn a_short_run_or_one_without_kinds_has_no_faults() {
        assert_eq!(Plan::of_seed(1, &FaultKind::all(), 3, 3_000, false).steps, []);
        assert_eq!(Plan::of_seed(1, &[], 3, 300_000, false).steps, []);
    }

    #[test]
    fn what_is_needed_is_known_from_the_kinds() {
        let plan = |kind| Plan::of_seed(1, &[kind], 3, 60_000, false);
        let needs = |plan: Plan| (plan.needs_links(), plan.needs_volumes(), plan.needs_shim());
        assert_eq!(needs(plan(FaultKind::KillLeader)), (false, false, false));
        assert_eq!(needs(plan(FaultKind::OneWay)), (true, false, false));
        assert_eq!(needs(plan(FaultKind::PowerLossAll)), (false, true, false));
        assert_eq!(needs(plan(FaultKind::ClockJump)), (false, false, true));
    }
}
