//! Log time: the one clock that replicated state knows, stamped onto entries by the leader.

use std::time::Duration;

use flotilla_raft_log::Term;
use flotilla_runtime::Instant;

/// While log time differs from the wall clock it runs this much faster or slower, in thousandths: a second of
/// difference is gone after 20 seconds.
const SLEW_PER_MILLE: u64 = 50;

/// Stamps entries of one replica's reigns.
///
/// Within a term log time is the last stamp plus monotonic time passed since, pulled gently towards the wall clock:
/// a jump of the wall clock never shows. A new reign goes on the same way from the newest stamp that this replica saw
/// being applied while it ran: how long ago that was its monotonic clock knows, so a wrong wall clock cannot make log time
/// jump. Only a replica that saw none (the whole group was down, or this replica was) takes its wall clock if that is later
/// than the log. Log time never goes backwards.
#[derive(Debug)]
pub struct LogClock {
    reign: Option<Reign>,
    seen: Option<Seen>,
}

/// A stamp, and when it was seen.
#[derive(Debug, Clone, Copy)]
struct Seen {
    stamp_ms: u64,
    at: Instant,
}

#[derive(Debug, Clone, Copy)]
struct Reign {
    term: Term,
    /// Log time at `at`, in microseconds.
    micros: u64,
    at: Instant,
}

impl LogClock {
    /// A clock before its first reign.
    pub fn new() -> LogClock {
        LogClock { reign: None, seen: None }
    }

    /// An entry with this stamp was applied just now, and not long after it was stamped.
    pub fn saw(&mut self, stamp_ms: u64, now: Instant) {
        if self.seen.is_none_or(|seen| seen.stamp_ms < stamp_ms) {
            self.seen = Some(Seen { stamp_ms, at: now });
        }
    }

    /// Where a new reign begins, microseconds.
    fn start_micros(&self, last_stamp_ms: u64, now: Instant, wall_ms: u64) -> u64 {
        let last = last_stamp_ms.saturating_mul(1000);
        match self.seen {
            Some(seen) => {
                last.max(seen.stamp_ms.saturating_mul(1000).saturating_add(micros(now.saturating_since(seen.at))))
            }
            None => last.max(wall_ms.saturating_mul(1000)),
        }
    }

    /// Log time now, ms. `last_stamp_ms` is the stamp of the last applied entry, which on the leader of `term` that has
    /// applied the first entry of its term is the last stamp of all earlier terms.
    pub fn now_ms(&mut self, term: Term, last_stamp_ms: u64, now: Instant, wall_ms: u64) -> u64 {
        let reign = match self.reign {
            Some(reign) if reign.term == term => reign.advanced(now, wall_ms),
            _ => Reign { term, micros: self.start_micros(last_stamp_ms, now, wall_ms), at: now },
        };
        self.reign = Some(reign);
        reign.micros / 1000
    }
}

impl Reign {
    fn advanced(self, now: Instant, wall_ms: u64) -> Reign {
        let elapsed = micros(now - self.at);
        if elapsed < 1000 {
            // Small steps wait until they make a millisecond, else their fractions and their slewing would be rounded away.
            return self;
        }
        let micros = self.micros.saturating_add(elapsed);
        let wall = wall_ms.saturating_mul(1000);
        let slew_max = elapsed.saturating_mul(SLEW_PER_MILLE) / 1000;
        let micros = if micros < wall {
            micros + slew_max.min(wall - micros)
        } else {
            // Never backwards: the pull is a fraction of what has just passed.
            micros - slew_max.min(micros - wall)
        };
        Reign { term: self.term, micros, at: self.at + Duration::from_micros(elapsed) }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TERM: Term = Term(3);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    #[test]
    fn a_new_reign_goes_on_from_the_later_of_log_and_wall() {
        assert_eq!(LogClock::new().now_ms(TERM, 500, at(0), 2_000), 2_000, "the group was down");
        assert_eq!(LogClock::new().now_ms(TERM, 5_000, at(0), 2_000), 5_000, "this machine's clock is behind");
    }

    #[test]
    fn a_new_leader_with_a_wrong_wall_clock_does_not_make_log_time_jump() {
        // An hour ahead, an hour behind, or right: log time goes on from what was seen 30 s ago.
        for wall_ms in [3_600_000 + 130_000, 0, 130_000] {
            let mut clock = LogClock::new();
            clock.saw(99_000, at(4_000));
            clock.saw(100_000, at(5_000));
            clock.saw(100_000, at(9_000));
            assert_eq!(clock.now_ms(TERM, 100_000, at(35_000), wall_ms), 130_000);
            // From there it is pulled by 50 ms a second, no more.
            let a_minute_later = clock.now_ms(TERM, 100_000, at(95_000), wall_ms.saturating_add(60_000));
            assert!((187_000..=193_000).contains(&a_minute_later), "{a_minute_later}");
        }
    }

    #[test]
    fn two_leaders_with_clocks_an_hour_apart_take_turns_without_a_jump() {
        let (mut fast, mut slow) = (LogClock::new(), LogClock::new());
        let wall = |ms: u64, is_fast: bool| 10_000_000 + ms + if is_fast { 3_600_000 } else { 0 };
        // Cold start under the right one.
        let mut last = slow.now_ms(Term(1), 0, at(0), wall(0, false));
        assert_eq!(last, 10_000_000);
        let mut elapsed = 0;
        for turn in 0_u64..20 {
            let is_fast = turn % 2 == 0;
            for _ in 0..30 {
                elapsed += 1_000;
                let leader = if is_fast { &mut fast } else { &mut slow };
                leader.saw(last, at(elapsed - 1_000));
                let stamp = leader.now_ms(Term(turn + 2), last, at(elapsed), wall(elapsed, is_fast));
                assert!(stamp >= last && stamp - last <= 1_100, "turn {turn}: {stamp} after {last}");
                last = stamp;
                [&mut fast, &mut slow].into_iter().for_each(|clock| clock.saw(stamp, at(elapsed)));
            }
        }
        assert!(last - 10_000_000 - elapsed <= elapsed / 20, "the fast one pulled by at most 5 %");
    }

    #[test]
    fn many_small_steps_are_worth_one_long_one() {
        let mut clock = LogClock::new();
        clock.now_ms(TERM, 0, at(0), 10_000);
        for nanos in (0..1_000_000_000).step_by(333) {
            clock.now_ms(TERM, 0, Instant::from_nanos(nanos), 20_000);
        }
        assert_eq!(clock.now_ms(TERM, 0, at(1_000), 20_000), 11_050);
    }

    #[test]
    fn a_jump_of_the_wall_clock_is_only_approached() {
        let mut clock = LogClock::new();
        clock.now_ms(TERM, 0, at(0), 10_000);
        assert_eq!(clock.now_ms(TERM, 0, at(1_000), 3_600_000), 11_050, "an hour ahead: 5 % faster");
        assert_eq!(clock.now_ms(TERM, 0, at(2_000), 0), 12_000, "an hour back: 5 % slower");
        assert_eq!(clock.now_ms(TERM, 0, at(3_000), 13_000), 13_000, "right again: exact");
    }

    proptest! {
        #[test]
        fn log_time_never_goes_backwards(steps in proptest::collection::vec((0u64..10_000, 0u64..u64::MAX / 2000, 0u64..3), 1..60)) {
            let (mut clock, mut now, mut term, mut last) = (LogClock::new(), 0, 0, 0);
            for (elapsed, wall_ms, new_term) in steps {
                now += elapsed;
                term += u64::from(new_term == 2);
                let stamp = clock.now_ms(Term(term), last, at(now), wall_ms);
                prop_assert!(stamp >= last, "{stamp} after {last}");
                if new_term == 1 {
                    clock.saw(stamp, at(now));
                }
                last = stamp;
            }
        }
    }
}
