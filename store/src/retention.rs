//! What the leader looks at before it lets go of old entries.

use std::collections::BTreeMap;

use flotilla_message::MessageRef;

use crate::queue::Queue;
use crate::references::Place;
use crate::trimming::QueueTrim;
use crate::{StoreError, StoreReader};

/// A message that must be carried before its entry may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToCarry {
    /// The message.
    pub message: MessageRef,
    /// Log index of the entry in which its frame lies now.
    pub entry: u64,
    /// Where in that entry's payload, and how long, bytes. `None` if it lies where it was sent: then it is the frame of
    /// the message's ordinal, see [`crate::nth_frame`].
    pub bytes: Option<(u32, u32)>,
}

/// What stands between the log and a trim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrimPlan {
    /// What must be carried, as many as were asked for.
    pub to_carry: Vec<ToCarry>,
    /// Whether there is more of that.
    pub has_more: bool,
}

/// How far the log is trimmed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionStatus {
    /// The first log index that is kept.
    pub trimmed_below: u64,
    /// Slots made before this log time are gone, milliseconds since the Unix epoch.
    pub trimmed_before_ms: u64,
    /// Messages that went before a group had consumed them, counted once for each group.
    pub expired: u64,
    /// Messages outside of queues, and those in slots that refer to an earlier entry.
    pub references: usize,
    /// How many of these were carried.
    pub carried: usize,
}

impl StoreReader {
    /// How far the log is trimmed.
    pub fn retention(&self) -> RetentionStatus {
        let state = self.shared().read();
        RetentionStatus {
            trimmed_below: state.trimmed_below,
            trimmed_before_ms: state.trimmed_before_ms,
            expired: state.expired,
            references: state.references.len(),
            carried: state.references.carried_count(),
        }
    }

    /// What must be carried before [`crate::Command::Trim`] with these operands is not refused, at most `max` messages.
    /// Index files are read outside the store's lock.
    ///
    /// # Errors
    /// If an index file is damaged or cannot be read.
    pub fn trim_plan(&self, below: u64, before_ms: u64, max: usize) -> Result<TrimPlan, StoreError> {
        let queues: Vec<Queue> = {
            let state = self.shared().read();
            if state.references.below(below).next().is_none() {
                return Ok(TrimPlan { to_carry: Vec::new(), has_more: false });
            }
            let queues = state.topics.values().flat_map(|topic| &topic.queues);
            queues.filter(|queue| queue.references() > 0).cloned().collect()
        };
        let mut released: BTreeMap<MessageRef, u32> = BTreeMap::new();
        for queue in queues {
            for message in QueueTrim::of(&queue, before_ms)?.released {
                *released.entry(message).or_default() += 1;
            }
        }
        let state = self.shared().read();
        let staying = state.references.below(below).filter(|(message, count, _)| released.get(message) != Some(count));
        let mut to_carry: Vec<ToCarry> = staying
            .take(max.saturating_add(1))
            .map(|(message, _, place)| match place {
                None => ToCarry { message, entry: message.index, bytes: None },
                Some(Place { index, position, length }) => {
                    ToCarry { message, entry: index, bytes: Some((position, length)) }
                }
            })
            .collect();
        let has_more = to_carry.len() > max;
        to_carry.truncate(max);
        Ok(TrimPlan { to_carry, has_more })
    }
}
