//! Which messages are referred to by more than the slot they were sent to, and where those were carried.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_message::{Hash128, MessageRef};

use crate::Granted;

/// Where a message's frame lies now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Log index of the entry.
    pub index: u64,
    /// Of the frame in the entry's payload, bytes.
    pub position: u32,
    pub length: u32,
}

/// A message that was written again, because its entry was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Carried {
    pub count: u32,
    pub place: Place,
}

/// Counts references: a delayed or half message has one, and so has each slot that refers to a message which an earlier
/// entry wrote. A message keeps its identity for life; where it was carried is looked up here.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// How many refer to each message that lies where it was written.
    home: BTreeMap<MessageRef, u32>,
    carried: BTreeMap<MessageRef, Carried>,
    /// (index of the entry it lies in, message) of the carried ones; derived.
    by_place: BTreeSet<(u64, MessageRef)>,
    /// Sum of the hashes of all rows: the same for the same rows, however they came together.
    hash: u128,
}

impl References {
    pub fn len(&self) -> usize {
        self.home.len() + self.carried.len()
    }

    pub fn carried_count(&self) -> usize {
        self.carried.len()
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    pub fn home(&self) -> impl Iterator<Item = (MessageRef, u32)> {
        self.home.iter().map(|(message, count)| (*message, *count))
    }

    pub fn carried(&self) -> impl Iterator<Item = (MessageRef, Carried)> {
        self.carried.iter().map(|(message, carried)| (*message, *carried))
    }

    /// Takes in a message as a checkpoint has it.
    pub fn restore(&mut self, message: MessageRef, count: u32, place: Option<Place>) {
        self.hash = self.hash.wrapping_add(row_hash(message, count, place));
        match place {
            None => {
                self.home.insert(message, count);
            }
            Some(place) => {
                self.carried.insert(message, Carried { count, place });
                self.by_place.insert((place.index, message));
            }
        }
    }

    /// Another one refers to `message`.
    pub fn add(&mut self, message: MessageRef) {
        let (count, place) = self.take(message).unwrap_or((0, None));
        self.restore(message, count + 1, place);
    }

    /// One that referred to `message` is gone.
    pub fn release(&mut self, message: MessageRef) {
        let taken = self.take(message);
        debug_assert!(taken.is_some(), "message {message} is released more often than it was referred to");
        if let Some((count, place)) = taken
            && count > 1
        {
            self.restore(message, count - 1, place);
        }
    }

    /// `message` lies at `place` from now on. False if nothing refers to it any more.
    pub fn carry(&mut self, message: MessageRef, place: Place) -> bool {
        match self.take(message) {
            Some((count, _)) => {
                self.restore(message, count, Some(place));
                true
            }
            None => false,
        }
    }

    /// Where `message` was carried; `None` if it lies where it was written.
    pub fn place(&self, message: MessageRef) -> Option<Place> {
        self.carried.get(&message).map(|carried| carried.place)
    }

    /// Grants as they are to be read now.
    pub fn resolve(&self, mut granted: Vec<Granted>) -> Vec<Granted> {
        granted.iter_mut().for_each(|grant| grant.slot = grant.slot.resolved(self));
        granted
    }

    /// What lies in entries before `below`: each message, how many refer to it, and where it was carried, if it was.
    pub fn below(&self, below: u64) -> impl Iterator<Item = (MessageRef, u32, Option<Place>)> {
        let at_home = self.home.range(..MessageRef { index: below, ordinal: 0 });
        let carried = self.by_place.range(..(below, MessageRef { index: 0, ordinal: 0 }));
        at_home.map(|(message, count)| (*message, *count, None)).chain(carried.filter_map(|(_, message)| {
            let carried = self.carried.get(message)?;
            Some((*message, carried.count, Some(carried.place)))
        }))
    }

    fn take(&mut self, message: MessageRef) -> Option<(u32, Option<Place>)> {
        let taken = match self.carried.remove(&message) {
            Some(Carried { count, place }) => {
                self.by_place.remove(&(place.index, message));
                (count, Some(place))
            }
            None => (self.home.remove(&message)?, None),
        };
        self.hash = self.hash.wrapping_sub(row_hash(message, taken.0, taken.1));
        Some(taken)
    }
}

fn row_hash(message: MessageRef, count: u32, place: Option<Place>) -> u128 {
    let mut hash = Hash128::new();
    hash.write_u64(message.index);
    hash.write_u64(u64::from(message.ordinal) << 32 | u64::from(count));
    if let Some(place) = place {
        hash.write_u64(place.index);
        hash.write_u64(u64::from(place.position) << 32 | u64::from(place.length));
    }
    hash.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(index: u64) -> MessageRef {
        MessageRef { index, ordinal: 1 }
    }

    fn place(index: u64) -> Place {
        Place { index, position: 36, length: 100 }
    }

    #[test]
    fn a_message_is_held_until_the_last_one_lets_go() {
        let mut references = References::default();
        references.add(message(1));
        references.add(message(1));
        references.release(message(1));
        assert_eq!(references.below(2).count(), 1);
        references.release(message(1));
        assert_eq!((references.below(2).count(), references.len(), references.hash()), (0, 0, 0));
    }

    #[test]
    fn a_carried_message_holds_the_entry_it_was_carried_to() {
        let mut references = References::default();
        references.add(message(1));
        references.add(message(5));
        assert!(references.carry(message(1), place(7)));
        assert!(!references.carry(message(2), place(7)), "nobody refers to it");
        assert_eq!(references.below(5).count(), 0);
        assert_eq!(references.below(8).map(|(m, _, _)| m).collect::<Vec<_>>(), [message(5), message(1)]);
        assert!(references.carry(message(1), place(9)));
        assert_eq!(references.below(8).count(), 1);
        references.add(message(1));
        references.release(message(1));
        assert_eq!(references.place(message(1)), Some(place(9)));
        references.release(message(1));
        assert_eq!((references.place(message(1)), references.carried_count()), (None, 0));
    }
}
