//! The window in which a repeated send is found: a ring of message ids, and a table to find them.

use std::collections::VecDeque;

use flotilla_message::{Hash128, MessageRef, QueueId};

use crate::limits::{DEDUP_ENTRIES_MAX, DEDUP_STEP_MS_MAX, DEDUP_WINDOW_MS};

/// A message id seen, and where its message went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub key: u128,
    /// Time of the window.
    pub at_ms: u64,
    /// Its offset; of a delayed message the time at which it is due, milliseconds.
    pub mark: u64,
    pub message: MessageRef,
    pub queue: QueueId,
}

/// The identity of a send: the topic (by its number, so a re-created topic is another) and the id.
pub(crate) fn dedup_key(topic_uid: u64, message_id: &[u8]) -> u128 {
    let mut hash = Hash128::new();
    hash.write_u64(topic_uid);
    hash.write_bytes(message_id);
    hash.finish()
}

/// First in, first out: by time and by count. Its time is its own: log time, but for jumps.
///
/// The table is our own (open addressing, no removal marks) because the ordered maps cost several
/// cache misses for each message of a full window, and the hashed ones have a random order.
#[derive(Debug)]
pub(crate) struct DedupWindow {
    seen: VecDeque<Seen>,
    /// Serial number of the front of `seen`; serials never repeat.
    first_serial: u64,
    /// 0, or a serial plus 1. A power of two long, at most half full.
    table: Vec<u64>,
    /// Running hash over all that ever entered.
    hash: u128,
    /// Milliseconds that have passed, in steps that are bounded.
    now_ms: u64,
    entries_max: usize,
}

const TABLE_LEN_MIN: usize = 1024;

impl DedupWindow {
    pub fn new() -> DedupWindow {
        DedupWindow {
            seen: VecDeque::new(),
            first_serial: 0,
            table: vec![0; TABLE_LEN_MIN],
            hash: Hash128::new().finish(),
            now_ms: 0,
            entries_max: DEDUP_ENTRIES_MAX,
        }
    }

    pub fn restored(first_serial: u64, hash: u128, now_ms: u64, entries_max: usize, seen: Vec<Seen>) -> DedupWindow {
        let mut window = DedupWindow { first_serial, hash, now_ms, entries_max, ..DedupWindow::new() };
        for entry in seen {
            window.place(entry);
        }
        window
    }

    pub fn len(&self) -> usize {
        self.seen.len()
    }

    pub fn first_serial(&self) -> u64 {
        self.first_serial
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// Those with serial numbers from `from` on that are before `end`.
    pub fn part(&self, from: u64, end: u64) -> impl Iterator<Item = &Seen> {
        let place = |serial: u64| serial.saturating_sub(self.first_serial).min(self.seen.len() as u64) as usize;
        self.seen.range(place(from)..place(end).max(place(from)))
    }

    /// The serial number of the next one.
    pub fn end_serial(&self) -> u64 {
        self.first_serial + self.seen.len() as u64
    }

    /// How long ago the oldest one entered, milliseconds of the window's time.
    pub fn reach_ms(&self) -> u64 {
        self.seen.front().map_or(0, |seen| self.now_ms.saturating_sub(seen.at_ms))
    }

    /// The window's time, milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// Most ids that it keeps.
    pub fn entries_max(&self) -> usize {
        self.entries_max
    }

    /// Keeps so many ids at most from now on.
    pub fn set_entries_max(&mut self, entries_max: usize) {
        self.entries_max = entries_max;
        while self.seen.len() > entries_max {
            self.evict();
        }
    }

    /// Log time moved on by so much.
    pub fn pass(&mut self, step_ms: u64) {
        self.now_ms += bounded(step_ms);
    }

    /// Forgets what is too old.
    pub fn expire(&mut self) {
        while let Some(oldest) = self.seen.front() {
            if oldest.at_ms.saturating_add(DEDUP_WINDOW_MS) > self.now_ms {
                break;
            }
            self.evict();
        }
    }

    pub fn find(&self, key: u128) -> Option<&Seen> {
        self.place_of(key).map(|(_, seen)| seen)
    }

    /// As [`DedupWindow::find`], with the serial number.
    pub fn place_of(&self, key: u128) -> Option<(u64, &Seen)> {
        let mask = self.table.len() - 1;
        let mut at = key as usize & mask;
        loop {
            let serial = self.table[at].checked_sub(1)?;
            let seen = self.at_serial(serial);
            if seen.key == key {
                return Some((serial, seen));
            }
            at = (at + 1) & mask;
        }
    }

    /// Takes in a key that [`DedupWindow::find`] does not find.
    pub fn insert(&mut self, entry: Seen) {
        if self.seen.len() >= self.entries_max {
            self.evict();
        }
        let mut hash = Hash128::from_u128(self.hash);
        hash.write_u64(entry.key as u64);
        hash.write_u64(entry.message.index);
        self.hash = hash.finish();
        self.place(entry);
    }

    fn place(&mut self, entry: Seen) {
        if (self.seen.len() + 1) * 2 > self.table.len() {
            self.grow();
        }
        let serial = self.first_serial + self.seen.len() as u64;
        self.seen.push_back(entry);
        self.link(entry.key, serial);
    }

    fn link(&mut self, key: u128, serial: u64) {
        let mask = self.table.len() - 1;
        let mut at = key as usize & mask;
        while self.table[at] != 0 {
            at = (at + 1) & mask;
        }
        self.table[at] = serial + 1;
    }

    fn grow(&mut self) {
        self.table = vec![0; self.table.len() * 2];
        for i in 0..self.seen.len() {
            self.link(self.seen[i].key, self.first_serial + i as u64);
        }
    }

    fn evict(&mut self) {
        let Some(oldest) = self.seen.front() else { return };
        let mask = self.table.len() - 1;
        let mut hole = oldest.key as usize & mask;
        while self.table[hole] != self.first_serial + 1 {
            hole = (hole + 1) & mask;
        }
        // Close the gap: whatever sits further along its own probe path than the hole moves into it.
        let mut at = (hole + 1) & mask;
        while let Some(serial) = self.table[at].checked_sub(1) {
            let home = self.at_serial(serial).key as usize & mask;
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(hole) & mask {
                self.table[hole] = self.table[at];
                hole = at;
            }
            at = (at + 1) & mask;
        }
        self.table[hole] = 0;
        self.seen.pop_front();
        self.first_serial += 1;
    }

    fn at_serial(&self, serial: u64) -> &Seen {
        &self.seen[(serial - self.first_serial) as usize]
    }
}

/// By how much the window's time moves on when log time does so by `step_ms`.
pub(crate) fn bounded(step_ms: u64) -> u64 {
    step_ms.min(DEDUP_STEP_MS_MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn seen(id: u64, at_ms: u64) -> Seen {
        Seen {
            key: dedup_key(1, &id.to_le_bytes()),
            at_ms,
            mark: id,
            message: MessageRef { index: id, ordinal: 0 },
            queue: QueueId(0),
        }
    }

    #[test]
    fn the_window_behaves_like_a_map_with_a_clock() {
        let mut window = DedupWindow::new();
        let mut model: BTreeMap<u128, Seen> = BTreeMap::new();
        for i in 0..60_000u64 {
            let now_ms = i * 37;
            window.pass(if i == 0 { 0 } else { 37 });
            window.expire();
            model.retain(|_, entry| entry.at_ms + DEDUP_WINDOW_MS > now_ms);
            // Every third is a repetition from within or beyond the window.
            let id = if i % 3 == 0 { i.wrapping_mul(7919) % (i + 1) } else { 1_000_000 + i };
            let entry = seen(id, now_ms);
            let expected = model.get(&entry.key).map(|known| known.mark);
            assert_eq!(window.find(entry.key).map(|found| found.mark), expected, "step {i}");
            if expected.is_none() {
                window.insert(entry);
                model.insert(entry.key, entry);
            }
            assert_eq!(window.len(), model.len());
        }
        for entry in model.values() {
            assert!(window.find(entry.key).is_some());
        }
        assert!(window.first_serial() > 1000, "the clock evicted some");
    }

    #[test]
    fn the_count_is_bounded_and_the_oldest_goes_first() {
        let mut window = DedupWindow::new();
        for i in 0..DEDUP_ENTRIES_MAX as u64 + 10 {
            window.insert(seen(i, 0));
        }
        assert_eq!(window.len(), DEDUP_ENTRIES_MAX);
        assert!(window.find(seen(9, 0).key).is_none());
        assert!(window.find(seen(10, 0).key).is_some());
    }

    #[test]
    fn a_window_made_smaller_forgets_the_oldest_at_once() {
        let mut window = DedupWindow::new();
        (0..5000).for_each(|i| window.insert(seen(i, 0)));
        window.set_entries_max(1000);
        assert_eq!((window.len(), window.first_serial()), (1000, 4000));
        window.insert(seen(5000, 0));
        assert!(window.find(seen(4000, 0).key).is_none() && window.find(seen(4001, 0).key).is_some());
        window.set_entries_max(2000);
        (5001..6000).for_each(|i| window.insert(seen(i, 0)));
        assert_eq!(window.len(), 1999);
    }

    #[test]
    fn a_restored_window_finds_the_same() {
        let mut window = DedupWindow::new();
        (0..5000).for_each(|i| window.insert(seen(i, i)));
        (0..10).for_each(|_| window.pass(u64::MAX));
        window.pass(1000);
        window.expire();
        let rows = window.part(0, u64::MAX).copied().collect();
        let again = DedupWindow::restored(window.first_serial(), window.hash(), window.now_ms(), 5000, rows);
        for i in 0..5000 {
            assert_eq!(window.find(seen(i, 0).key), again.find(seen(i, 0).key));
        }
        assert_eq!(window.len(), 3999);
    }
}
