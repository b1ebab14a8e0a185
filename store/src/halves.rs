//! Half messages: stored, and in nobody's sight until their producer commits or rolls back.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_message::{Hash128, MessageRef};

use crate::held::Held;
use crate::packed::{ChunkContent, Numbers, PackedRow, PackedRows, put, put_step};

/// A half message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Half {
    pub held: Held,
    /// How often its producer was to be asked.
    pub checks: u32,
    /// When its producer is to be asked, log time, milliseconds; `None` once it is parked.
    pub check_at_ms: Option<u64>,
    /// When it was stored, log time, milliseconds.
    pub prepared_at_ms: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct HalfRow {
    message: MessageRef,
    half: Half,
}

impl PackedRow for HalfRow {
    type Key = MessageRef;
    const ORIGIN: HalfRow = HalfRow {
        message: MessageRef { index: 0, ordinal: 0 },
        half: Half { held: Held::ORIGIN, checks: 0, check_at_ms: None, prepared_at_ms: 0 },
    };

    fn key(&self) -> MessageRef {
        self.message
    }

    fn write(&self, before: &HalfRow, out: &mut Vec<u8>) {
        let Half { held, checks, check_at_ms, prepared_at_ms } = &self.half;
        put(self.message.index - before.message.index, out);
        put(u64::from(self.message.ordinal), out);
        held.write(&before.half.held, out);
        put_step(*prepared_at_ms, before.half.prepared_at_ms, out);
        put(u64::from(*checks), out);
        put(u64::from(check_at_ms.is_some()), out);
        if let Some(check_at_ms) = check_at_ms {
            put_step(*check_at_ms, *prepared_at_ms, out);
        }
    }

    fn read(before: &HalfRow, numbers: &mut Numbers<'_>) -> Option<HalfRow> {
        let index = before.message.index.checked_add(numbers.take()?)?;
        let message = MessageRef { index, ordinal: numbers.take_u32()? };
        let held = Held::read(&before.half.held, numbers)?;
        let prepared_at_ms = numbers.take_step(before.half.prepared_at_ms)?;
        let checks = numbers.take_u32()?;
        let check_at_ms = match numbers.take()? {
            0 => None,
            1 => Some(numbers.take_step(prepared_at_ms)?),
            _ => return None,
        };
        Some(HalfRow { message, half: Half { held, checks, check_at_ms, prepared_at_ms } })
    }
}

/// All of them, and when to ask whose producer.
#[derive(Debug, Default)]
pub(crate) struct Halves {
    rows: PackedRows<HalfRow>,
    /// Rows by topic, and how many of them are parked, none without rows; derived.
    by_topic: BTreeMap<u64, (u64, u64)>,
    /// (time of the next check, message) of those not parked; derived.
    schedule: BTreeSet<(u64, MessageRef)>,
    /// Sum of the hashes of all rows: the same for the same rows, however they came together.
    hash: u128,
}

impl Halves {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn parked_count(&self) -> usize {
        self.rows.len() - self.schedule.len()
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    pub fn iter(&self) -> impl Iterator<Item = (MessageRef, Half)> {
        self.rows.iter().map(|row| (row.message, row.half))
    }

    pub fn get(&self, message: MessageRef) -> Option<Half> {
        self.rows.get(message).map(|row| row.half)
    }

    /// How many there are, and how many of them are parked, by the uid of their topic.
    pub fn by_topic(&self) -> &BTreeMap<u64, (u64, u64)> {
        &self.by_topic
    }

    /// When the first producer is to be asked, log time, milliseconds since the Unix epoch.
    pub fn next_check_ms(&self) -> Option<u64> {
        self.schedule.first().map(|(check_at_ms, _)| *check_at_ms)
    }

    /// The first one whose producer is to be asked at `now_ms`.
    pub fn due(&self, now_ms: u64) -> Option<(MessageRef, Half)> {
        let (_, message) = self.schedule.first().filter(|(check_at_ms, _)| *check_at_ms <= now_ms)?;
        Some((*message, self.get(*message)?))
    }

    /// Takes in a message, or what is new of it; true if its check is now the first one.
    pub fn put(&mut self, message: MessageRef, half: Half) -> bool {
        self.take(message);
        self.rows.insert(HalfRow { message, half });
        self.count_in(message, &half)
    }

    /// True if its check is now the first one.
    fn count_in(&mut self, message: MessageRef, half: &Half) -> bool {
        self.hash = self.hash.wrapping_add(row_hash(message, half));
        let counts = self.by_topic.entry(half.held.topic_uid).or_default();
        counts.0 += 1;
        counts.1 += u64::from(half.check_at_ms.is_none());
        let Some(check_at_ms) = half.check_at_ms else { return false };
        let is_first = self.next_check_ms().is_none_or(|first_ms| check_at_ms < first_ms);
        self.schedule.insert((check_at_ms, message));
        is_first
    }

    /// Takes a message out, if it is there.
    pub fn take(&mut self, message: MessageRef) -> Option<Half> {
        let half = self.rows.remove(message)?.half;
        self.hash = self.hash.wrapping_sub(row_hash(message, &half));
        if let Some(check_at_ms) = half.check_at_ms {
            self.schedule.remove(&(check_at_ms, message));
        }
        if let Some(counts) = self.by_topic.get_mut(&half.held.topic_uid) {
            counts.0 -= 1;
            counts.1 -= u64::from(half.check_at_ms.is_none());
            if counts.0 == 0 {
                self.by_topic.remove(&half.held.topic_uid);
            }
        }
        Some(half)
    }

    /// Drops all of a topic that is deleted, and answers which they were.
    pub fn drop_topic(&mut self, topic_uid: u64) -> Vec<MessageRef> {
        if !self.by_topic.contains_key(&topic_uid) {
            return Vec::new();
        }
        let of_topic = self.rows.iter().filter(|row| row.half.held.topic_uid == topic_uid);
        let messages: Vec<MessageRef> = of_topic.map(|row| row.message).collect();
        for message in &messages {
            self.take(*message);
        }
        messages
    }

    /// What a checkpoint needs: see [`PackedRows::changes`].
    pub fn changes(&mut self, all: bool) -> Vec<ChunkContent> {
        self.rows.changes(all)
    }

    /// Takes in a chunk as a checkpoint has it; `is_topic` knows the topics by number.
    pub fn restore(&mut self, id: u64, bytes: &[u8], is_topic: impl Fn(u64) -> bool) -> Result<(), String> {
        let mut rows = std::mem::take(&mut self.rows);
        let restored = rows.restore(id, bytes, |row| {
            self.count_in(row.message, &row.half);
            row.half.held.is_of(&is_topic)
        });
        self.rows = rows;
        restored
    }
}

fn row_hash(message: MessageRef, half: &Half) -> u128 {
    let mut hash = Hash128::new();
    hash.write_u64(message.index);
    hash.write_u64(u64::from(message.ordinal) << 32 | u64::from(half.checks));
    // A parked one never has the largest time there is.
    hash.write_u64(half.check_at_ms.unwrap_or(u64::MAX));
    hash.write_u64(half.prepared_at_ms);
    half.held.write_digest(&mut hash);
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn half(topic_uid: u64, check_at_ms: Option<u64>) -> Half {
        let held = Held { topic_uid, queue: 1, position: 2, length: 3, tag_hash: 4, checksum: 5 };
        Half { held, checks: 0, check_at_ms, prepared_at_ms: 1 }
    }

    fn message(index: u64) -> MessageRef {
        MessageRef { index, ordinal: 0 }
    }

    #[test]
    fn the_schedule_follows_the_rows() {
        let mut halves = Halves::default();
        assert!(halves.put(message(1), half(1, Some(30))));
        assert!(halves.put(message(2), half(1, Some(20))));
        assert!(!halves.put(message(2), half(1, Some(40))), "moved behind the other");
        assert_eq!(halves.due(29), None);
        assert_eq!(halves.due(30).map(|(message, _)| message.index), Some(1));
        halves.put(message(1), half(1, None));
        assert_eq!((halves.len(), halves.parked_count(), halves.next_check_ms()), (2, 1, Some(40)));
        assert_eq!(halves.by_topic(), &BTreeMap::from([(1, (2, 1))]));
        assert!(halves.take(message(2)).is_some() && halves.take(message(2)).is_none());
        assert_eq!(halves.next_check_ms(), None);
        halves.drop_topic(1);
        assert!(halves.by_topic().is_empty());
    }

    #[test]
    fn the_hash_is_that_of_the_rows_and_not_of_their_history() {
        let mut halves = Halves::default();
        halves.put(message(1), half(1, Some(30)));
        let one = halves.hash();
        halves.put(message(2), half(2, None));
        halves.put(message(1), half(1, None));
        assert_ne!(halves.hash(), one);
        halves.put(message(1), half(1, Some(30)));
        halves.drop_topic(2);
        assert_eq!((halves.hash(), halves.len()), (one, 1));
    }
}
