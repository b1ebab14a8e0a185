//! A message that a consumer holds is nobody else's until its invisible time is over.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::{Delivery, QueueKey, Send};

/// A message in two hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TwoHolders {
    /// Its queue.
    pub queue: QueueKey,
    /// Its offset.
    pub offset: u64,
    /// Who held it, by which delivery.
    pub first: (String, u32),
    /// Who got it too, by which delivery.
    pub second: (String, u32),
    /// At most so long after the first, nanoseconds.
    pub after_ns: u64,
}

impl std::fmt::Display for TwoHolders {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TwoHolders { queue, offset, first, second, after_ns } = self;
        let after_ms = after_ns / 1_000_000;
        write!(
            f,
            "{} got {offset} of {queue} by delivery {} at most {after_ms} ms after {} had got it by delivery {}",
            second.0, second.1, first.0, first.1
        )
    }
}

/// How long a message is surely its consumer's, nanoseconds: leaders count in whole milliseconds, and their clocks may run so
/// many thousandths faster while they are pulled towards the wall clock.
pub fn held_ns(invisible: Duration, faster_permille: u64) -> u64 {
    let invisible_ms = u64::try_from(invisible.as_millis()).unwrap_or(u64::MAX / 2_000_000_000);
    (invisible_ms * 1_000 / (1_000 + faster_permille)).saturating_sub(1) * 1_000_000
}

/// Judges what one group got, whose consumers hold what they take for `held_ns` and do not change that.
///
/// One delivery is one consumer's, whatever happens. How soon the next one may come is judged only where one leader, whose
/// monotonic clock counts the time, led from the first to the second, as the acknowledgements around them show: clocks of two
/// leaders may differ by as long as nobody led.
pub fn find(sends: &[Send], deliveries: &[Delivery], held_ns: u64) -> Vec<TwoHolders> {
    let terms = Terms::of(sends);
    let mut by_place: BTreeMap<(&QueueKey, u64), Vec<&Delivery>> = BTreeMap::new();
    for delivery in deliveries {
        by_place.entry((&delivery.queue, delivery.offset)).or_default().push(delivery);
    }
    let mut found = Vec::new();
    for ((queue, offset), mut holders) in by_place {
        holders.sort_by_key(|holder| (holder.attempt, holder.received_ns));
        for pair in holders.windows(2) {
            let [first, second] = [pair[0], pair[1]];
            let after_ns = second.received_ns.saturating_sub(first.begun_ns);
            let is_shared = first.attempt == second.attempt && first.consumer != second.consumer;
            let is_early = first.attempt < second.attempt
                && first.begun_ns > 0
                && after_ns < held_ns
                && terms.is_one(first.begun_ns, second.received_ns);
            if is_shared || is_early {
                let [first, second] = [first, second].map(|one| (one.consumer.clone(), one.attempt));
                found.push(TwoHolders { queue: queue.clone(), offset, first, second, after_ns });
            }
        }
    }
    found
}

/// In which terms messages were acknowledged, and when.
struct Terms {
    /// (when it was known, the highest term by then), by time.
    known: Vec<(u64, u64)>,
    /// (from when on it was asked for, the lowest term of what was asked for from then on), by time.
    coming: Vec<(u64, u64)>,
}

impl Terms {
    fn of(sends: &[Send]) -> Terms {
        let acks = sends.iter().filter_map(|send| Some((send.invoked_ns, send.completed_ns, send.ack()?.term?)));
        let (mut known, mut coming): (Vec<_>, Vec<_>) =
            acks.map(|(invoked_ns, completed_ns, term)| ((completed_ns, term), (invoked_ns, term))).unzip();
        known.sort_unstable();
        coming.sort_unstable();
        let mut highest = 0;
        for (_, term) in &mut known {
            highest = highest.max(*term);
            *term = highest;
        }
        let mut lowest = u64::MAX;
        for (_, term) in coming.iter_mut().rev() {
            lowest = lowest.min(*term);
            *term = lowest;
        }
        Terms { known, coming }
    }

    /// Whether one leader led all the time between.
    fn is_one(&self, from_ns: u64, until_ns: u64) -> bool {
        let before = self.known.partition_point(|(at_ns, _)| *at_ns <= from_ns);
        let after = self.coming.partition_point(|(at_ns, _)| *at_ns < until_ns);
        match (before.checked_sub(1), self.coming.get(after)) {
            (Some(at), Some((_, term))) => self.known[at].1 == *term,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SendOutcome;
    use crate::verdict::fixtures::{acked, queue};

    const MS: u64 = 1_000_000;
    const HELD_NS: u64 = 99 * MS;

    fn got(consumer: &str, attempt: u32, begun_ms: u64, received_ms: u64) -> Delivery {
        let (begun_ns, received_ns) = (begun_ms * MS, received_ms * MS);
        let delivery = Delivery::new(consumer, queue(), 7, "m").on_attempt(attempt).received(begun_ns, received_ns);
        Delivery { begun_ns, ..delivery }
    }

    fn in_term(term: u64, invoked_ms: u64) -> Send {
        let mut send = acked("a", 0).timed(invoked_ms * MS, (invoked_ms + 5) * MS);
        if let SendOutcome::Acked(ack) = &mut send.outcome {
            ack.term = Some(term);
        }
        send
    }

    #[test]
    fn what_is_surely_held_is_less_than_what_was_asked_for() {
        assert_eq!(held_ns(Duration::from_millis(100), 0), HELD_NS);
        assert_eq!(held_ns(Duration::from_secs(10), 50), 9_522 * MS);
    }

    #[test]
    fn a_message_comes_again_once_its_time_is_over() {
        let sends = [in_term(1, 1), in_term(1, 900)];
        assert_eq!(find(&sends, &[got("a", 1, 10, 20), got("b", 2, 15, 109)], HELD_NS), []);
        let found = find(&sends, &[got("a", 1, 10, 20), got("b", 2, 15, 108)], HELD_NS);
        assert!(matches!(&found[..], [TwoHolders { offset: 7, after_ns: 98_000_000, .. }]), "{found:?}");
    }

    #[test]
    fn two_leaders_clocks_excuse_what_comes_early_and_not_what_two_hold() {
        let sends = [in_term(1, 1), in_term(2, 900)];
        assert_eq!(find(&sends, &[got("a", 1, 10, 20), got("b", 2, 15, 60)], HELD_NS), []);
        assert_eq!(find(&[], &[got("a", 1, 10, 20), got("b", 2, 15, 60)], HELD_NS), [], "nobody knows who led");
        assert_eq!(find(&sends, &[got("a", 1, 10, 20), got("b", 1, 15, 300)], HELD_NS).len(), 1);
        assert_eq!(find(&sends, &[got("a", 1, 10, 20), got("a", 1, 15, 60)], HELD_NS), [], "asked again");
    }
}
