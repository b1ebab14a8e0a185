//! How the last messages that stood outside of any queue ended, so that a repeated word about one
//! is answered as the first was.

use std::collections::{BTreeMap, VecDeque};

use flotilla_message::{Hash128, MessageRef};

use crate::limits::ENDED_MAX;
use crate::outcome::Ending;

/// First in, first out, by count.
#[derive(Debug, Default)]
pub(crate) struct EndedWindow {
    order: VecDeque<MessageRef>,
    endings: BTreeMap<MessageRef, Ending>,
}

impl EndedWindow {
    pub fn find(&self, message: MessageRef) -> Option<Ending> {
        self.endings.get(&message).copied()
    }

    /// Notes the end of a message; it has one only.
    pub fn note(&mut self, message: MessageRef, ending: Ending) {
        if self.order.len() >= ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.endings.remove(&oldest);
        }
        self.order.push_back(message);
        self.endings.insert(message, ending);
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = (MessageRef, Ending)> {
        self.order.iter().filter_map(|message| Some((*message, self.find(*message)?)))
    }

    pub fn write_digest(&self, hash: &mut Hash128) {
        hash.write_u64(self.order.len() as u64);
        for (message, ending) in self.iter() {
            hash.write_u64(message.index);
            hash.write_u64(u64::from(message.ordinal) << 8 | u64::from(ending.code()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_bounded_and_the_oldest_goes_first() {
        let mut window = EndedWindow::default();
        for index in 0..ENDED_MAX as u64 + 2 {
            window.note(MessageRef { index, ordinal: 0 }, Ending::Recalled);
        }
        assert_eq!(window.iter().count(), ENDED_MAX);
        assert_eq!(window.find(MessageRef { index: 1, ordinal: 0 }), None);
        assert_eq!(window.find(MessageRef { index: 2, ordinal: 0 }), Some(Ending::Recalled));
    }
}
