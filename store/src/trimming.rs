//! What `Trim` and `Carry` do: let go of the log's oldest entries, and keep what is still referred to.

use std::collections::BTreeMap;

use flotilla_message::{MessageRef, TopicName};

use crate::entry_view::FramePlace;
use crate::queue::Queue;
use crate::references::Place;
use crate::state::{Changes, Refusal, State};
use crate::{Outcome, Rejection, Slot, StoreError};

/// Where a queue would begin, and which references would go with what is before.
pub(crate) struct QueueTrim {
    pub min: u64,
    /// The slot there; `None` if nothing is left.
    pub first: Option<Slot>,
    pub released: Vec<MessageRef>,
}

/// By topic number and queue, with the topic's name; only queues that lose something.
pub(crate) type QueueTrims = BTreeMap<(u64, u32), (TopicName, QueueTrim)>;

impl QueueTrim {
    pub fn of(queue: &Queue, before_ms: u64) -> Result<QueueTrim, StoreError> {
        let (min, first) = queue.first_from(before_ms)?;
        Ok(QueueTrim { min, first, released: queue.referred_to_before(min)? })
    }
}

impl State {
    /// Nothing is changed unless everything may go.
    pub fn trim(&mut self, index: u64, below: u64, before_ms: u64, changes: &mut Changes) -> Result<Outcome, Refusal> {
        if below > index {
            return Err(Rejection::TrimAhead { below, index }.into());
        }
        if below <= self.trimmed_below {
            return Ok(Outcome::Trimmed { below: self.trimmed_below, slots: 0 });
        }
        let mut trims = QueueTrims::new();
        let mut released: BTreeMap<MessageRef, u32> = BTreeMap::new();
        for (name, topic) in self.topics.iter() {
            for (id, queue) in topic.queues.iter().enumerate().filter(|(_, queue)| queue.min() < queue.max()) {
                let trim = QueueTrim::of(queue, before_ms)?;
                if let Some(first) = trim.first
                    && !first.is_reference
                    && first.message.index < below
                {
                    return Err(Rejection::TrimPassesReference { message: first.message, below }.into());
                }
                trim.released.iter().for_each(|message| *released.entry(*message).or_default() += 1);
                if trim.min > queue.min() {
                    trims.insert((topic.uid, id as u32), (name.clone(), trim));
                }
            }
        }
        let stays = |(message, count, _): &(MessageRef, u32, Option<Place>)| released.get(message) != Some(count);
        if let Some((message, _, _)) = self.references.below(below).find(stays) {
            return Err(Rejection::TrimPassesReference { message, below }.into());
        }

        let met = self.progress.keys().filter(|(_, topic_uid, queue)| trims.contains_key(&(*topic_uid, *queue)));
        let met: Vec<_> = met.copied().collect();
        let slots = self.apply_trims(&trims, &met);
        self.trimmed_below = below;
        self.trimmed_before_ms = self.trimmed_before_ms.max(before_ms);
        changes.trimmed = true;
        Ok(Outcome::Trimmed { below, slots })
    }

    /// Moves these queues, and what the groups of `met` have there, up to what stays; answers how many slots went.
    pub(crate) fn apply_trims(&mut self, trims: &QueueTrims, met: &[(u64, u64, u32)]) -> u64 {
        let mut slots = 0;
        for ((_, id), (name, trim)) in trims {
            let Some(queue) = self.topics.get_mut(name).and_then(|topic| topic.queues.get_mut(*id as usize)) else {
                unreachable!("the queue was found when its trim was made");
            };
            slots += trim.min - queue.min();
            queue.trim_to(trim.min, trim.released.len() as u64);
            trim.released.iter().for_each(|message| self.references.release(*message));
        }
        for key in met {
            if let (Some(progress), Some((_, trim))) = (self.progress.get_mut(key), trims.get(&(key.1, key.2))) {
                self.expired += progress.trim_to(trim.min);
            }
        }
        slots
    }

    pub fn carry(&mut self, index: u64, messages: &[MessageRef], frames: &[FramePlace]) -> Outcome {
        let mut count = 0;
        for (message, frame) in messages.iter().zip(frames) {
            let place = Place { index, position: frame.position, length: frame.head.frame_bytes() };
            count += u32::from(self.references.carry(*message, place));
        }
        Outcome::Carried { count }
    }
}
