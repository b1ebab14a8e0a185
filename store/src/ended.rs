//! How the last messages that stood outside of any queue ended, so that a repeated word about one
//! is answered as the first was.

use std::collections::{BTreeMap, VecDeque};

use flotilla_message::{Hash128, MessageRef};

use crate::limits::ENDED_MAX;
use crate::outcome::Ending;

/// First in, first out, by count.
#[derive(Debug)]
pub(crate) struct EndedWindow {
    order: VecDeque<MessageRef>,
    endings: BTreeMap<MessageRef, Ending>,
    /// Serial number of the front of `order`, this node's own.
    first_serial: u64,
    /// Running hash over all that ever entered.
    hash: u128,
}

impl EndedWindow {
    pub fn new() -> EndedWindow {
        EndedWindow { order: VecDeque::new(), endings: BTreeMap::new(), first_serial: 0, hash: Hash128::new().finish() }
    }

    pub fn restored(first_serial: u64, hash: u128, ended: Vec<(MessageRef, Ending)>) -> EndedWindow {
        let mut window = EndedWindow::new();
        ended.into_iter().for_each(|(message, ending)| window.note(message, ending));
        (window.first_serial, window.hash) = (first_serial, hash);
        window
    }

    pub fn len(&self) -> usize {
        self.order.len()
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    pub fn find(&self, message: MessageRef) -> Option<Ending> {
        self.endings.get(&message).copied()
    }

    /// Notes the end of a message; it has one only.
    pub fn note(&mut self, message: MessageRef, ending: Ending) {
        if self.order.len() >= ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.endings.remove(&oldest);
            self.first_serial += 1;
        }
        let mut hash = Hash128::from_u128(self.hash);
        hash.write_u64(message.index);
        hash.write_u64(u64::from(message.ordinal) << 8 | u64::from(ending.code()));
        self.hash = hash.finish();
        self.order.push_back(message);
        self.endings.insert(message, ending);
    }

    pub fn first_serial(&self) -> u64 {
        self.first_serial
    }

    /// The serial number of the next one.
    pub fn end_serial(&self) -> u64 {
        self.first_serial + self.order.len() as u64
    }

    /// Those with serial numbers from `from` on that are before `end`, oldest first.
    pub fn part(&self, from: u64, end: u64) -> impl Iterator<Item = (MessageRef, Ending)> {
        let place = |serial: u64| serial.saturating_sub(self.first_serial).min(self.order.len() as u64) as usize;
        let part = self.order.range(place(from)..place(end).max(place(from)));
        part.filter_map(|message| Some((*message, self.find(*message)?)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_bounded_and_the_oldest_goes_first() {
        let mut window = EndedWindow::new();
        for index in 0..ENDED_MAX as u64 + 2 {
            window.note(MessageRef { index, ordinal: 0 }, Ending::Recalled);
        }
        assert_eq!((window.len(), window.part(0, u64::MAX).count()), (ENDED_MAX, ENDED_MAX));
        assert_eq!(window.find(MessageRef { index: 1, ordinal: 0 }), None);
        assert_eq!(window.find(MessageRef { index: 2, ordinal: 0 }), Some(Ending::Recalled));
    }
}
