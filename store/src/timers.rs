//! Delayed messages, in the order in which they become due.

use std::collections::BTreeMap;

use flotilla_message::{Hash128, MessageRef};

use crate::held::Held;

/// Ordered by due time, then by place in the log. Each costs one row of some 100 bytes, and nothing
/// while it waits.
#[derive(Debug)]
pub(crate) struct Timers {
    rows: BTreeMap<(u64, MessageRef), Held>,
    /// Rows by topic, none that is 0; derived.
    by_topic: BTreeMap<u64, u64>,
    /// Sum of the hashes of all rows: the same for the same rows, however they came together.
    hash: u128,
}

impl Timers {
    pub fn new() -> Timers {
        Timers { rows: BTreeMap::new(), by_topic: BTreeMap::new(), hash: 0 }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    pub fn iter(&self) -> impl Iterator<Item = (u64, MessageRef, &Held)> {
        self.rows.iter().map(|((due_ms, message), held)| (*due_ms, *message, held))
    }

    /// How many there are, by the uid of their topic.
    pub fn by_topic(&self) -> &BTreeMap<u64, u64> {
        &self.by_topic
    }

    /// When the first one is due, wall time, milliseconds since the Unix epoch.
    pub fn next_due_ms(&self) -> Option<u64> {
        self.rows.first_key_value().map(|((due_ms, _), _)| *due_ms)
    }

    /// Takes in a message; true if it is now the first one due.
    pub fn insert(&mut self, due_ms: u64, message: MessageRef, held: Held) -> bool {
        let is_first = self.next_due_ms().is_none_or(|first_ms| due_ms < first_ms);
        self.hash = self.hash.wrapping_add(row_hash(due_ms, message, &held));
        let topic_uid = held.topic_uid;
        if self.rows.insert((due_ms, message), held).is_none() {
            *self.by_topic.entry(topic_uid).or_default() += 1;
        }
        is_first
    }

    /// Takes a message out, if it is there.
    pub fn remove(&mut self, due_ms: u64, message: MessageRef) -> Option<Held> {
        let held = self.rows.remove(&(due_ms, message))?;
        self.hash = self.hash.wrapping_sub(row_hash(due_ms, message, &held));
        if let Some(count) = self.by_topic.get_mut(&held.topic_uid) {
            *count -= 1;
            if *count == 0 {
                self.by_topic.remove(&held.topic_uid);
            }
        }
        Some(held)
    }

    /// Whether a message is there, of this topic.
    pub fn holds(&self, due_ms: u64, message: MessageRef, topic_uid: u64) -> bool {
        self.rows.get(&(due_ms, message)).is_some_and(|held| held.topic_uid == topic_uid)
    }

    /// Takes the first one out, if it is due at `until_ms`.
    pub fn pop_due(&mut self, until_ms: u64) -> Option<(MessageRef, Held)> {
        let ((due_ms, message), _) = self.rows.first_key_value()?;
        let (due_ms, message) = (*due_ms, *message);
        if due_ms > until_ms {
            return None;
        }
        self.remove(due_ms, message).map(|held| (message, held))
    }

    /// Drops all of a topic that is deleted.
    pub fn drop_topic(&mut self, topic_uid: u64) {
        let mut dropped = 0u128;
        self.rows.retain(|(due_ms, message), held| {
            let stays = held.topic_uid != topic_uid;
            if !stays {
                dropped = dropped.wrapping_add(row_hash(*due_ms, *message, held));
            }
            stays
        });
        self.hash = self.hash.wrapping_sub(dropped);
        self.by_topic.remove(&topic_uid);
    }
}

fn row_hash(due_ms: u64, message: MessageRef, held: &Held) -> u128 {
    let mut hash = Hash128::new();
    hash.write_u64(due_ms);
    hash.write_u64(message.index);
    hash.write_u64(u64::from(message.ordinal));
    held.write_digest(&mut hash);
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
        let mut timers = Timers::new();
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
        let mut timers = Timers::new();
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
        assert_eq!(timers.hash(), Timers::new().hash());
        assert!(timers.by_topic().is_empty());
    }
}
