//! Which messages are referred to by more than the slot they were sent to, and where those were carried.

use std::collections::BTreeSet;

use flotilla_message::{Hash128, MessageRef};

use crate::Granted;
use crate::packed::{ChunkContent, Numbers, PackedRow, PackedRows, put, put_step};

/// Where a message's frame lies now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Log index of the entry.
    pub index: u64,
    /// Of the frame in the entry's payload, bytes.
    pub position: u32,
    pub length: u32,
}

/// A message that is referred to where it was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AtHome {
    message: MessageRef,
    count: u32,
}

impl PackedRow for AtHome {
    type Key = MessageRef;
    const ORIGIN: AtHome = AtHome { message: MessageRef { index: 0, ordinal: 0 }, count: 0 };

    fn key(&self) -> MessageRef {
        self.message
    }

    fn write(&self, before: &AtHome, out: &mut Vec<u8>) {
        put(self.message.index - before.message.index, out);
        put(u64::from(self.message.ordinal), out);
        put(u64::from(self.count), out);
    }

    fn read(before: &AtHome, numbers: &mut Numbers<'_>) -> Option<AtHome> {
        let index = before.message.index.checked_add(numbers.take()?)?;
        let message = MessageRef { index, ordinal: numbers.take_u32()? };
        Some(AtHome { message, count: numbers.take_u32()? })
    }
}

/// A message that was written again, because its entry was to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Carried {
    message: MessageRef,
    count: u32,
    place: Place,
}

impl PackedRow for Carried {
    type Key = MessageRef;
    const ORIGIN: Carried =
        Carried { message: AtHome::ORIGIN.message, count: 0, place: Place { index: 0, position: 0, length: 0 } };

    fn key(&self) -> MessageRef {
        self.message
    }

    fn write(&self, before: &Carried, out: &mut Vec<u8>) {
        put(self.message.index - before.message.index, out);
        put(u64::from(self.message.ordinal), out);
        put(u64::from(self.count), out);
        put_step(self.place.index, before.place.index, out);
        put(u64::from(self.place.position), out);
        put(u64::from(self.place.length), out);
    }

    fn read(before: &Carried, numbers: &mut Numbers<'_>) -> Option<Carried> {
        let index = before.message.index.checked_add(numbers.take()?)?;
        let message = MessageRef { index, ordinal: numbers.take_u32()? };
        let count = numbers.take_u32()?;
        let index = numbers.take_step(before.place.index)?;
        let place = Place { index, position: numbers.take_u32()?, length: numbers.take_u32()? };
        Some(Carried { message, count, place })
    }
}

/// Counts references: a delayed or half message has one, and so has each slot that refers to a message which an earlier
/// entry wrote. A message keeps its identity for life; where it was carried is looked up here.
#[derive(Debug, Default)]
pub(crate) struct References {
    /// How many refer to each message that lies where it was written.
    home: PackedRows<AtHome>,
    carried: PackedRows<Carried>,
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

    fn put(&mut self, message: MessageRef, count: u32, place: Option<Place>) {
        self.hash = self.hash.wrapping_add(row_hash(message, count, place));
        match place {
            None => {
                self.home.insert(AtHome { message, count });
            }
            Some(place) => {
                self.carried.insert(Carried { message, count, place });
                self.by_place.insert((place.index, message));
            }
        }
    }

    /// Another one refers to `message`.
    pub fn add(&mut self, message: MessageRef) {
        let (count, place) = self.take(message).unwrap_or((0, None));
        self.put(message, count + 1, place);
    }

    /// One that referred to `message` is gone.
    pub fn release(&mut self, message: MessageRef) {
        let taken = self.take(message);
        debug_assert!(taken.is_some(), "message {message} is released more often than it was referred to");
        if let Some((count, place)) = taken
            && count > 1
        {
            self.put(message, count - 1, place);
        }
    }

    /// `message` lies at `place` from now on. False if nothing refers to it any more.
    pub fn carry(&mut self, message: MessageRef, place: Place) -> bool {
        match self.take(message) {
            Some((count, _)) => {
                self.put(message, count, Some(place));
                true
            }
            None => false,
        }
    }

    /// Where `message` was carried; `None` if it lies where it was written.
    pub fn place(&self, message: MessageRef) -> Option<Place> {
        self.carried.get(message).map(|carried| carried.place)
    }

    /// Grants as they are to be read now.
    pub fn resolve(&self, mut granted: Vec<Granted>) -> Vec<Granted> {
        granted.iter_mut().for_each(|grant| grant.slot = grant.slot.resolved(self));
        granted
    }

    /// What lies in entries before `below`: each message, how many refer to it, and where it was carried, if it was.
    pub fn below(&self, below: u64) -> impl Iterator<Item = (MessageRef, u32, Option<Place>)> {
        let bound = MessageRef { index: below, ordinal: 0 };
        let at_home = self.home.iter().take_while(move |row| row.message < bound);
        let carried = self.by_place.range(..(below, MessageRef { index: 0, ordinal: 0 }));
        at_home.map(|row| (row.message, row.count, None)).chain(carried.filter_map(|(_, message)| {
            let carried = self.carried.get(*message)?;
            Some((*message, carried.count, Some(carried.place)))
        }))
    }

    fn take(&mut self, message: MessageRef) -> Option<(u32, Option<Place>)> {
        let taken = match self.carried.remove(message) {
            Some(Carried { count, place, .. }) => {
                self.by_place.remove(&(place.index, message));
                (count, Some(place))
            }
            None => (self.home.remove(message)?.count, None),
        };
        self.hash = self.hash.wrapping_sub(row_hash(message, taken.0, taken.1));
        Some(taken)
    }

    /// What a checkpoint needs, of those at home and of the carried ones: see [`PackedRows::changes`].
    pub fn changes(&mut self, all: bool) -> (Vec<ChunkContent>, Vec<ChunkContent>) {
        (self.home.changes(all), self.carried.changes(all))
    }

    /// Takes in a chunk of those at home as a checkpoint has it.
    pub fn restore_home(&mut self, id: u64, bytes: &[u8]) -> Result<(), String> {
        let hash = &mut self.hash;
        self.home.restore(id, bytes, |row| {
            *hash = hash.wrapping_add(row_hash(row.message, row.count, None));
            Ok(())
        })
    }

    /// Takes in a chunk of carried ones as a checkpoint has it.
    pub fn restore_carried(&mut self, id: u64, bytes: &[u8]) -> Result<(), String> {
        let (hash, by_place) = (&mut self.hash, &mut self.by_place);
        self.carried.restore(id, bytes, |row| {
            *hash = hash.wrapping_add(row_hash(row.message, row.count, Some(row.place)));
            by_place.insert((row.place.index, row.message));
            Ok(())
        })
    }

    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        self.home.memory_bytes() + self.carried.memory_bytes()
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
