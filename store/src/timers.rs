//! Delayed messages, in the order in which they become due.

use std::collections::BTreeMap;

use flotilla_message::{Hash128, MessageRef};

use crate::held::Held;
use crate::packed::{ChunkContent, Numbers, PackedRow, PackedRows, put, put_step};

/// A delayed message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Timer {
    due_ms: u64,
    message: MessageRef,
    held: Held,
}

impl PackedRow for Timer {
    type Key = (u64, MessageRef);
    const ORIGIN: Timer = Timer { due_ms: 0, message: MessageRef { index: 0, ordinal: 0 }, held: Held::ORIGIN };

    fn key(&self) -> (u64, MessageRef) {
        (self.due_ms, self.message)
    }

    fn write(&self, before: &Timer, out: &mut Vec<u8>) {
        put(self.due_ms - before.due_ms, out);
        put_step(self.message.index, before.message.index, out);
        put(u64::from(self.message.ordinal), out);
        self.held.write(&before.held, out);
    }

    fn read(before: &Timer, numbers: &mut Numbers<'_>) -> Option<Timer> {
        let due_ms = before.due_ms.checked_add(numbers.take()?)?;
        let index = numbers.take_step(before.message.index)?;
        let message = MessageRef { index, ordinal: numbers.take_u32()? };
        Some(Timer { due_ms, message, held: Held::read(&before.held, numbers)? })
    }
}

/// Ordered by due time, then by place in the log. Each costs some 25 bytes, and nothing while it waits.
#[derive(Debug, Default)]
pub(crate) struct Timers {
    rows: PackedRows<Timer>,
    /// Rows by topic, none that is 0; derived.
    by_topic: BTreeMap<u64, u64>,
    /// Sum of the hashes of all rows: the same for the same rows, however they came together.
    hash: u128,
}

impl Timers {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// How many there are, by the uid of their topic.
    pub fn by_topic(&self) -> &BTreeMap<u64, u64> {
        &self.by_topic
    }

    /// When the first one is due, wall time, milliseconds since the Unix epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.rows.first().map(|timer| timer.due_ms)
    }

    /// Takes in a message; true if it is now the first one due.
    pub fn insert(&mut self, due_ms: u64, message: MessageRef, held: Held) -> bool {
        let is_first = self.next_due_ms().is_none_or(|first_ms| due_ms < first_ms);
        let timer = Timer { due_ms, message, held };
        self.rows.insert(timer);
        self.count_in(&timer);
        is_first
    }

    fn count_in(&mut self, timer: &Timer) {
        self.hash = self.hash.wrapping_add(row_hash(timer));
        *self.by_topic.entry(timer.held.topic_uid).or_default() += 1;
    }

    /// Takes a message out, if it is there.
    pub fn remove(&mut self, due_ms: u64, message: MessageRef) -> Option<Held> {
        let timer = self.rows.remove((due_ms, message))?;
        self.hash = self.hash.wrapping_sub(row_hash(&timer));
        if let Some(count) = self.by_topic.get_mut(&timer.held.topic_uid) {
            *count -= 1;
            if *count == 0 {
                self.by_topic.remove(&timer.held.topic_uid);
            }
        }
        Some(timer.held)
    }

    /// Whether a message is there, of this topic.
    pub fn holds(&self, due_ms: u64, message: MessageRef, topic_uid: u64) -> bool {
        self.rows.get((due_ms, message)).is_some_and(|timer| timer.held.topic_uid == topic_uid)
    }

    /// Takes the first one out, if it is due at `until_ms`.
    pub fn pop_due(&mut self, until_ms: u64) -> Option<(MessageRef, Held)> {
        let first = self.rows.first().filter(|timer| timer.due_ms <= until_ms)?;
        self.remove(first.due_ms, first.message).map(|held| (first.message, held))
    }

    /// Drops all of a topic that is deleted, and answers which they were.
    pub fn drop_topic(&mut self, topic_uid: u64) -> Vec<MessageRef> {
        let mut dropped = 0u128;
        let mut messages = Vec::new();
        if self.by_topic.remove(&topic_uid).is_none() {
            return messages;
        }
        self.rows.retain(|timer| {
            let stays = timer.held.topic_uid != topic_uid;
            if !stays {
                dropped = dropped.wrapping_add(row_hash(timer));
                messages.push(timer.message);
            }
            stays
        });
        self.hash = self.hash.wrapping_sub(dropped);
        messages
    }

    /// What a checkpoint needs: see [`PackedRows::changes`].
    pub fn changes(&mut self, all: bool) -> Vec<ChunkContent> {
        self.rows.changes(all)
    }

    /// Takes in a chunk as a checkpoint has it; `is_topic` knows the topics by number.
    pub fn restore(&mut self, id: u64, bytes: &[u8], is_topic: impl Fn(u64) -> bool) -> Result<(), String> {
        let mut rows = std::mem::take(&mut self.rows);
        let restored = rows.restore(id, bytes, |timer| {
            self.count_in(timer);
            timer.held.is_of(&is_topic)
        });
        self.rows = rows;
        restored
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        self.rows.memory_bytes()
    }
}

fn row_hash(timer: &Timer) -> u128 {
    let mut hash = Hash128::new();
    hash.write_u64(timer.due_ms);
    hash.write_u64(timer.message.index);
    hash.write_u64(u64::from(timer.message.ordinal));
    timer.held.write_digest(&mut hash);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(topic_uid: u64) -> Held {
        Held { topic_uid, queue: 1, position: 2, length: 3, tag_hash: 4, checksum: 5 }
    }

    fn message(index: u64) -> MessageRef {
        MessageRef { index, ordinal: 0 }
    }

    #[test]
    fn they_come_out_by_time_and_then_by_place_in_the_log() {
        let mut timers = Timers::default();
        assert!(timers.insert(30, message(1), held(1)));
        assert!(timers.insert(20, message(3), held(1)), "a new first one");
        assert!(!timers.insert(20, message(2), held(1)));
        assert_eq!(timers.pop_due(19), None);
        assert_eq!(timers.pop_due(25).map(|(message, _)| message.index), Some(2));
        assert_eq!(timers.pop_due(25).map(|(message, _)| message.index), Some(3));
        assert_eq!((timers.pop_due(25), timers.next_due_ms()), (None, Some(30)));
    }

    #[test]
    fn the_hash_is_that_of_the_rows_and_not_of_their_history() {
        let mut timers = Timers::default();
        timers.insert(10, message(1), held(1));
        let one = timers.hash();
        timers.insert(10, message(2), held(2));
        timers.insert(11, message(3), held(2));
        assert_ne!(timers.hash(), one);
        assert_eq!(timers.by_topic(), &BTreeMap::from([(1, 1), (2, 2)]));
        assert_eq!(timers.remove(11, message(4)), None);
        timers.drop_topic(2);
        assert_eq!((timers.hash(), timers.len()), (one, 1));
        timers.pop_due(10);
        assert_eq!(timers.hash(), Timers::default().hash());
        assert!(timers.by_topic().is_empty());
    }

    #[test]
    fn a_message_that_waits_takes_forty_bytes_at_most() {
        for scattered in [false, true] {
            let (mut timers, mut references) = (Timers::default(), crate::references::References::default());
            let count = 200_000u32;
            for number in 0..count {
                let message = MessageRef { index: 1_000_000_000 + u64::from(number) / 8, ordinal: number % 8 };
                let after = if scattered { number.wrapping_mul(2_654_435_761) % 86_400_000 } else { number / 16 };
                let held = Held {
                    topic_uid: 4711 + u64::from(number % 3),
                    queue: number % 4,
                    position: 36 + number % 8 * 1200,
                    length: 1100 + number % 64,
                    tag_hash: number.wrapping_mul(0x9E37_79B9),
                    checksum: number.wrapping_mul(0x85EB_CA6B),
                };
                timers.insert(1_900_000_000_000 + u64::from(after), message, held);
                references.add(message);
            }
            let each = (timers.memory_bytes() + references.memory_bytes()) as f64 / f64::from(count);
            println!("{each:.1} bytes each, scattered: {scattered}");
            assert!(each <= 40.0, "{each}");
        }
    }
}
