//! How far a group is in one queue: the pop state, pure and without the messages.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Bound;

use flotilla_message::{Hash128, QueueOffset};

use crate::limits::ATTEMPTS_PER_QUEUE_MAX;
use crate::{AckResult, Granted, Rejection, Slot};

/// A message delivered and not yet acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct InFlight {
    /// Deliveries so far, from 1.
    pub attempt: u32,
    /// The number its receipts must name.
    pub seq: u32,
    /// The number before the last change of its invisible time, if that was its last event.
    pub previous_seq: Option<u32>,
    /// When it becomes due, log time, milliseconds.
    pub invisible_until_ms: u64,
    /// Who holds it and wants it prolonged; 0 for nobody.
    pub holder: u64,
    /// The message; kept here so that redelivery and dead-lettering read no index.
    pub slot: Slot,
}

/// What one attempt id was granted: offsets, each with the number of its delivery.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub id: u128,
    pub grants: Vec<(u64, u32)>,
}

/// The position of a group in a queue. Offsets below `next_offset` that are not in flight are
/// consumed, so one message that is stuck costs one row.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct QueueProgress {
    next_offset: u64,
    in_flight: BTreeMap<u64, InFlight>,
    /// (due time, offset) of everything in flight; derived.
    timers: BTreeSet<(u64, u64)>,
    attempts: VecDeque<Attempt>,
}

/// What to do with a due message.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Redelivery {
    /// It is handed out again.
    Granted(Granted),
    /// It had its last delivery: it is out of flight now.
    Exhausted(Granted),
}

pub(crate) fn attempt_key(attempt_id: &str) -> u128 {
    Hash128::of(attempt_id.as_bytes())
}

impl QueueProgress {
    pub fn starting_at(next_offset: u64) -> QueueProgress {
        QueueProgress { next_offset, ..QueueProgress::default() }
    }

    /// The state as it was taken apart for a checkpoint.
    pub fn restored(
        next_offset: u64,
        in_flight: BTreeMap<u64, InFlight>,
        attempts: VecDeque<Attempt>,
    ) -> QueueProgress {
        let timers = in_flight.iter().map(|(offset, flight)| (flight.invisible_until_ms, *offset)).collect();
        QueueProgress { next_offset, in_flight, timers, attempts }
    }

    pub fn next_offset(&self) -> u64 {
        self.next_offset
    }

    /// Everything below is consumed.
    pub fn committed_offset(&self) -> u64 {
        let lowest = self.in_flight.keys().next();
        lowest.map_or(self.next_offset, |lowest| *lowest)
    }

    pub fn in_flight(&self) -> &BTreeMap<u64, InFlight> {
        &self.in_flight
    }

    pub fn attempts(&self) -> &VecDeque<Attempt> {
        &self.attempts
    }

    /// The lowest offset in flight above `after`.
    pub fn lowest_in_flight(&self, after: Option<u64>) -> Option<u64> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = self.in_flight.range((from, Bound::Unbounded));
        range.next().map(|(offset, _)| *offset)
    }

    pub fn is_due(&self, offset: u64, now_ms: u64) -> bool {
        let flight = self.in_flight.get(&offset);
        flight.is_some_and(|flight| flight.invisible_until_ms <= now_ms)
    }

    /// Hands out a message for the first time and moves on past it.
    pub fn grant_new(&mut self, offset: u64, slot: Slot, seq: u32, invisible_until_ms: u64) -> Granted {
        debug_assert!(offset >= self.next_offset);
        self.next_offset = offset + 1;
        let flight = InFlight { attempt: 1, seq, previous_seq: None, invisible_until_ms, holder: 0, slot };
        self.in_flight.insert(offset, flight);
        self.timers.insert((invisible_until_ms, offset));
        granted(offset, &flight, false)
    }

    /// Hands out a due message again, or takes it out of flight if that was `max_deliveries` times
    /// done. `None` if it is not in flight.
    pub fn redeliver(
        &mut self,
        offset: u64,
        max_deliveries: u32,
        seq: u32,
        invisible_until_ms: u64,
    ) -> Option<Redelivery> {
        let flight = self.in_flight.get_mut(&offset)?;
        self.timers.remove(&(flight.invisible_until_ms, offset));
        if flight.attempt >= max_deliveries {
            let last = granted(offset, flight, true);
            self.in_flight.remove(&offset);
            return Some(Redelivery::Exhausted(last));
        }
        flight.attempt += 1;
        flight.seq = seq;
        flight.previous_seq = None;
        flight.holder = 0;
        flight.invisible_until_ms = invisible_until_ms;
        self.timers.insert((invisible_until_ms, offset));
        Some(Redelivery::Granted(granted(offset, flight, false)))
    }

    /// Counts everything below `offset` that was never delivered as consumed.
    pub fn skip_to(&mut self, offset: u64) {
        self.next_offset = self.next_offset.max(offset);
    }

    /// The queue begins at `min` now. Answers how many messages the group loses: not yet delivered, or in flight.
    pub fn trim_to(&mut self, min: u64) -> u64 {
        let kept = self.in_flight.split_off(&min);
        let ended = std::mem::replace(&mut self.in_flight, kept);
        for (offset, flight) in &ended {
            self.timers.remove(&(flight.invisible_until_ms, *offset));
        }
        let undelivered = min.saturating_sub(self.next_offset);
        self.skip_to(min);
        ended.len() as u64 + undelivered
    }

    pub fn ack(&mut self, offset: u64, seq: u32) -> AckResult {
        match self.in_flight.get(&offset) {
            Some(flight) if flight.seq == seq => {
                self.timers.remove(&(flight.invisible_until_ms, offset));
                self.in_flight.remove(&offset);
                AckResult::Acked
            }
            Some(_) => AckResult::Stale,
            None if offset < self.next_offset => AckResult::AlreadyAcked,
            None => AckResult::NotFound,
        }
    }

    /// Moves the due time. The state after it is answered, and whether anything was changed.
    pub fn change_invisible(
        &mut self,
        offset: u64,
        seq: u32,
        new_seq: u32,
        invisible_until_ms: u64,
    ) -> Result<(InFlight, bool), Rejection> {
        let flight = self.in_flight.get_mut(&offset).ok_or(Rejection::DeliveryNotFound)?;
        if flight.previous_seq == Some(seq) {
            return Ok((*flight, false));
        }
        if flight.seq != seq {
            return Err(Rejection::ReceiptStale);
        }
        self.timers.remove(&(flight.invisible_until_ms, offset));
        flight.previous_seq = Some(seq);
        // Whoever says a time of its own looks after it from then on.
        flight.holder = 0;
        flight.seq = new_seq;
        flight.invisible_until_ms = invisible_until_ms;
        self.timers.insert((invisible_until_ms, offset));
        Ok((*flight, true))
    }

    /// Makes a consumed message due at `now_ms`, as if never delivered; false if it is not consumed.
    pub fn revive(&mut self, offset: u64, slot: Slot, now_ms: u64) -> bool {
        if offset >= self.next_offset || self.in_flight.contains_key(&offset) {
            return false;
        }
        // Its next delivery is the first again: no try of an earlier life may take that for its own.
        for attempt in &mut self.attempts {
            attempt.grants.retain(|(granted, _)| *granted != offset);
        }
        // Receipts name no 0: until it is delivered there is none for it.
        let flight = InFlight { attempt: 0, seq: 0, previous_seq: None, invisible_until_ms: now_ms, holder: 0, slot };
        self.in_flight.insert(offset, flight);
        self.timers.insert((now_ms, offset));
        true
    }

    /// Prolongs a delivery and notes who holds it; false if it is another one by now, or lasts longer anyway.
    pub fn renew(&mut self, offset: u64, seq: u32, holder: u64, invisible_until_ms: u64) -> bool {
        let Some(flight) = self.in_flight.get_mut(&offset).filter(|flight| flight.seq == seq) else { return false };
        flight.holder = holder;
        if flight.invisible_until_ms >= invisible_until_ms {
            return false;
        }
        self.timers.remove(&(flight.invisible_until_ms, offset));
        flight.invisible_until_ms = invisible_until_ms;
        self.timers.insert((invisible_until_ms, offset));
        true
    }

    /// Ends a delivery; the message counts as consumed.
    pub fn take_out(&mut self, offset: u64, seq: u32) -> Result<Slot, Rejection> {
        let flight = self.in_flight.get(&offset).ok_or(Rejection::DeliveryNotFound)?;
        if flight.seq != seq {
            return Err(Rejection::ReceiptStale);
        }
        let flight = *flight;
        self.timers.remove(&(flight.invisible_until_ms, offset));
        self.in_flight.remove(&offset);
        Ok(flight.slot)
    }

    /// Offsets that may be redelivered at `now_ms`, at most `max`, with their deliveries so far;
    /// in an ordered group only the due ones at the front.
    pub fn due(&self, now_ms: u64, ordered: bool, max: usize) -> Vec<(u64, u32)> {
        if ordered {
            let front = self.in_flight.iter().take_while(|(_, flight)| flight.invisible_until_ms <= now_ms);
            return front.take(max).map(|(offset, flight)| (*offset, flight.attempt)).collect();
        }
        let timers = self.timers.range(..=(now_ms, u64::MAX)).take(max);
        let mut due: Vec<_> =
            timers.filter_map(|(_, offset)| Some((*offset, self.in_flight.get(offset)?.attempt))).collect();
        due.sort_unstable();
        due
    }

    /// When the next message becomes due, log time, milliseconds.
    pub fn next_due_ms(&self, ordered: bool) -> Option<u64> {
        if ordered {
            let lowest = self.in_flight.values().next();
            return lowest.map(|flight| flight.invisible_until_ms);
        }
        self.timers.first().map(|(due_ms, _)| *due_ms)
    }

    /// What an attempt was granted and still holds: in flight by that very delivery and invisible.
    pub fn granted_before(&self, attempt: u128, now_ms: u64) -> Vec<Granted> {
        let Some(attempt) = self.attempts.iter().find(|a| a.id == attempt) else {
            return Vec::new();
        };
        attempt
            .grants
            .iter()
            .filter_map(|(offset, delivery)| {
                let flight = self.in_flight.get(offset)?;
                let holds = flight.attempt == *delivery && flight.invisible_until_ms > now_ms;
                holds.then(|| granted(*offset, flight, false))
            })
            .collect()
    }

    /// Remembers an attempt's grants; forgets those that hold nothing any more, then the oldest.
    pub fn remember(&mut self, attempt: u128, grants: &[Granted]) {
        let in_flight = &self.in_flight;
        self.attempts.retain(|known| {
            let holds = |(offset, delivery): &(u64, u32)| {
                in_flight.get(offset).is_some_and(|flight| flight.attempt == *delivery)
            };
            known.id != attempt && known.grants.iter().any(holds)
        });
        if self.attempts.len() >= ATTEMPTS_PER_QUEUE_MAX {
            self.attempts.pop_front();
        }
        let live = grants.iter().filter(|grant| !grant.dead_lettered);
        self.attempts
            .push_back(Attempt { id: attempt, grants: live.map(|grant| (grant.offset.0, grant.attempt)).collect() });
    }

    pub fn write_digest(&self, hash: &mut Hash128) {
        hash.write_u64(self.next_offset);
        hash.write_u64(self.in_flight.len() as u64);
        for (offset, flight) in &self.in_flight {
            hash.write_u64(*offset);
            hash.write_u64(u64::from(flight.attempt) << 32 | u64::from(flight.seq));
            hash.write_u64(flight.previous_seq.map_or(0, |seq| u64::from(seq) + 1));
            hash.write_u64(flight.invisible_until_ms);
            hash.write_u64(flight.holder);
            hash.write_u64(flight.slot.message.index);
            hash.write_u64(u64::from(flight.slot.message.ordinal));
        }
        hash.write_u64(self.attempts.len() as u64);
        for attempt in &self.attempts {
            hash.write_u64(attempt.id as u64);
            hash.write_u64(attempt.grants.len() as u64);
            for (offset, delivery) in &attempt.grants {
                hash.write_u64(*offset);
                hash.write_u64(u64::from(*delivery));
            }
        }
    }
}

fn granted(offset: u64, flight: &InFlight, dead_lettered: bool) -> Granted {
    Granted { offset: QueueOffset(offset), slot: flight.slot, attempt: flight.attempt, seq: flight.seq, dead_lettered }
}
