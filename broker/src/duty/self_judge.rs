//! Whether a replica is well enough to lead: judged from what it sees of itself, without clocks or sockets.
//!
//! ```text
//!           syncs slow for half of the window, or applying late
//!   well ─────────────────────────────────────────────────────▶ ill (with a reason)
//!     ▲                                                           │
//!     └──── well without a break for `fit_again`, doubled by each ◀┘
//!           relapse, so that a disk that is now good, now bad does not make the lead go to and fro
//! ```

use std::collections::VecDeque;
use std::time::Duration;

use flotilla_raft_log::SlowSyncs;
use flotilla_runtime::Instant;

/// The time to be well grows by relapses up to so many times the setting.
const FIT_AGAIN_FACTOR_MAX: u32 = 16;
/// A replica that was well for so many times the setting has no past any more.
const FORGET_FACTOR: u32 = 20;
/// Slow syncs that count as a sickness where there are few others: at least so many in a window.
const SLOW_MIN: u64 = 3;
/// Looks kept of one window.
const LOOKS_MAX: usize = 256;

/// What a replica sees of itself at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Symptoms {
    /// Its log's syncs since its start.
    pub syncs: SlowSyncs,
    /// For how long its log has held entries that are not applied.
    pub apply_lag: Duration,
}

/// From when on a replica counts as ill, and how long as well again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Syncs are looked at over so long.
    pub window: Duration,
    /// Applying may be so late.
    pub apply_lag_max: Duration,
    /// After so long without a symptom an ill replica is well.
    pub fit_again: Duration,
}

/// Judges one replica, look by look.
#[derive(Debug)]
pub struct SelfJudge {
    limits: Limits,
    looks: VecDeque<(Instant, SlowSyncs)>,
    /// While it is ill: why, and since when there has been no symptom.
    illness: Option<Illness>,
    /// How long it must be well, by its past.
    fit_again: Duration,
    well_since: Option<Instant>,
}

#[derive(Debug)]
struct Illness {
    reason: String,
    last_symptom: Instant,
}

impl SelfJudge {
    /// A replica without a past.
    pub fn new(limits: Limits) -> SelfJudge {
        let (looks, fit_again) = (VecDeque::new(), limits.fit_again);
        SelfJudge { limits, looks, illness: None, fit_again, well_since: None }
    }

    /// Looks once; why it is not fit to lead, if it is not.
    pub fn look(&mut self, now: Instant, symptoms: &Symptoms) -> Option<&str> {
        let symptom = self.symptom(now, symptoms);
        match (&mut self.illness, symptom) {
            (Some(illness), Some(reason)) => *illness = Illness { reason, last_symptom: now },
            (None, Some(reason)) => {
                let has_past = self.well_since.is_some();
                let longest = self.limits.fit_again * FIT_AGAIN_FACTOR_MAX;
                self.fit_again = if has_past { (self.fit_again * 2).min(longest) } else { self.limits.fit_again };
                self.illness = Some(Illness { reason, last_symptom: now });
            }
            (Some(illness), None) if now.saturating_since(illness.last_symptom) >= self.fit_again => {
                self.illness = None;
                self.well_since = Some(now);
            }
            (Some(_), None) => {}
            (None, None) => {
                let forget = self.limits.fit_again * FORGET_FACTOR;
                if self.well_since.is_some_and(|since| now.saturating_since(since) >= forget) {
                    self.well_since = None;
                }
            }
        }
        self.illness.as_ref().map(|illness| illness.reason.as_str())
    }

    fn symptom(&mut self, now: Instant, symptoms: &Symptoms) -> Option<String> {
        self.looks.push_back((now, symptoms.syncs));
        // The oldest look is the youngest that is at least a window old.
        while self.looks.len() > 2 && now.saturating_since(self.looks[1].0) >= self.limits.window {
            self.looks.pop_front();
        }
        if self.looks.len() > LOOKS_MAX {
            self.looks.remove(1);
        }
        let (began, before) = self.looks[0];
        let seen_for = now.saturating_since(began);
        let slow_time = symptoms.syncs.slow_time.saturating_sub(before.slow_time);
        let (syncs, slow) = (symptoms.syncs.syncs - before.syncs, symptoms.syncs.slow - before.slow);
        let is_busy_with_it = slow_time * 2 >= self.limits.window;
        let is_usual = slow >= SLOW_MIN && slow * 2 >= syncs;
        if is_busy_with_it || is_usual {
            let (slow_ms, seen_ms) = (slow_time.as_millis(), seen_for.as_millis());
            return Some(format!("disk is slow: {slow} of {syncs} syncs, {slow_ms} ms of the last {seen_ms} ms"));
        }
        let (lag, lag_max) = (symptoms.apply_lag.as_millis(), self.limits.apply_lag_max.as_millis());
        (lag > lag_max).then(|| format!("entries are applied {lag} ms late, at most {lag_max} ms are allowed"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits {
        window: Duration::from_secs(5),
        apply_lag_max: Duration::from_secs(10),
        fit_again: Duration::from_secs(30),
    };
    const TICK_MS: u64 = 250;

    /// A replica whose syncs come one after the other, looked at again and again.
    struct Patient {
        judge: SelfJudge,
        now_ms: u64,
        syncs: SlowSyncs,
    }

    impl Patient {
        fn new() -> Patient {
            Patient { judge: SelfJudge::new(LIMITS), now_ms: 0, syncs: SlowSyncs::default() }
        }

        /// Lives for a while in which each second brings so many syncs, and so many slow ones of so many ms. The first time
        /// at which it is ill, in ms from the beginning of the while.
        fn live(&mut self, seconds: u64, quick: u64, slow: u64, slow_ms: u64) -> Option<u64> {
            let began = self.now_ms;
            let mut ill_after = None;
            for tick in 0..seconds * 1000 / TICK_MS {
                self.now_ms += TICK_MS;
                if tick % (1000 / TICK_MS) == 3 {
                    self.syncs.syncs += quick + slow;
                    self.syncs.slow += slow;
                    self.syncs.slow_time += Duration::from_millis(slow * slow_ms);
                }
                if self.look(Duration::ZERO) && ill_after.is_none() {
                    ill_after = Some(self.now_ms - began);
                }
            }
            ill_after
        }

        fn look(&mut self, apply_lag: Duration) -> bool {
            let now = Instant::from_nanos(self.now_ms * 1_000_000);
            self.judge.look(now, &Symptoms { syncs: self.syncs, apply_lag }).is_some()
        }
    }

    #[test]
    fn a_busy_healthy_disk_and_an_idle_one_are_well() {
        assert_eq!(Patient::new().live(60, 900, 0, 0), None);
        assert_eq!(Patient::new().live(60, 0, 0, 0), None);
    }

    #[test]
    fn one_hiccup_is_no_sickness() {
        let mut patient = Patient::new();
        patient.live(20, 200, 0, 0);
        assert_eq!(patient.live(1, 50, 1, 700), None);
        assert_eq!(patient.live(20, 200, 0, 0), None);
    }

    #[test]
    fn a_disk_that_spends_half_of_its_time_in_slow_syncs_is_sick_within_the_window() {
        let mut patient = Patient::new();
        patient.live(20, 200, 0, 0);
        let ill_after = patient.live(10, 100, 1, 800).expect("ill");
        assert!((2_000..=5_000).contains(&ill_after), "{ill_after}");
    }

    #[test]
    fn a_disk_whose_few_syncs_are_slow_is_sick() {
        let ill_after = Patient::new().live(10, 0, 1, 400).expect("ill");
        assert!(ill_after <= 5_000, "{ill_after}");
    }

    #[test]
    fn late_applying_is_a_sickness_too() {
        let mut patient = Patient::new();
        assert!(!patient.look(Duration::from_secs(10)));
        assert!(patient.look(Duration::from_secs(11)));
    }

    #[test]
    fn well_again_takes_its_time_and_a_relapse_takes_longer() {
        let mut patient = Patient::new();
        patient.live(10, 0, 1, 900).expect("ill");
        // The window itself must pass before its syncs look healthy.
        patient.live(30, 200, 0, 0).expect("still ill");
        assert!(patient.look(Duration::ZERO), "not well for 30 s yet");
        patient.live(5, 200, 0, 0);
        assert!(!patient.look(Duration::ZERO), "well for 30 s");

        // The second time it takes a minute.
        patient.live(10, 0, 1, 900).expect("ill again");
        patient.live(50, 200, 0, 0);
        assert!(patient.look(Duration::ZERO), "30 s are not enough any more");
        patient.live(20, 200, 0, 0);
        assert!(!patient.look(Duration::ZERO));

        // Long after, the past is forgotten.
        patient.live(700, 200, 0, 0);
        patient.live(10, 0, 1, 900).expect("ill");
        patient.live(38, 200, 0, 0);
        assert!(!patient.look(Duration::ZERO), "30 s again");
    }
}
