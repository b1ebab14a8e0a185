//! How far consumer groups are behind, for monitoring: one look over all positions, bounded by the asker.

use std::collections::BTreeMap;

use flotilla_message::{GroupName, TopicName};

use crate::queue::QueuePart;
use crate::state::State;
use crate::{StoreError, StoreReader};

/// How far one group is in one topic, over all queues in which it has a position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Consumption {
    /// The group.
    pub group: GroupName,
    /// The topic.
    pub topic: TopicName,
    /// Stored and not consumed: in flight or ready.
    pub lag: u64,
    /// Delivered and not acknowledged.
    pub inflight: u64,
    /// Never delivered to the group.
    pub ready: u64,
    /// When the oldest message that is not consumed was stored, log time, milliseconds since the Unix epoch; `None` if all
    /// are, or if it is not looked up for so many.
    pub oldest_lag_ms: Option<u64>,
    /// When the oldest message that was never delivered was stored, as `oldest_lag_ms`.
    pub oldest_ready_ms: Option<u64>,
}

/// What the oldest messages of one queue are read from.
struct Oldest {
    row: usize,
    /// When the oldest message in flight was stored.
    inflight_ms: Option<u64>,
    /// The oldest message never delivered.
    ready: Option<QueuePart>,
}

impl StoreReader {
    /// Every group and topic that have met, by name. The ages of the first `ages_max` of them are looked up, in index files
    /// where they are not in memory, outside of the store's lock.
    ///
    /// # Errors
    /// If an index file is damaged or cannot be read.
    pub fn consumption(&self, ages_max: usize) -> Result<Vec<Consumption>, StoreError> {
        let (mut rows, oldest) = collect(&self.shared.read(), ages_max);
        for Oldest { row, inflight_ms, ready } in oldest {
            let row = &mut rows[row];
            let ready_ms = match ready {
                Some(part) => part.read()?.first().map(|slot| slot.stored_at_ms),
                None => None,
            };
            let earlier = |known: Option<u64>, other: Option<u64>| known.into_iter().chain(other).min();
            row.oldest_ready_ms = earlier(row.oldest_ready_ms, ready_ms);
            row.oldest_lag_ms = earlier(row.oldest_lag_ms, earlier(inflight_ms, ready_ms));
        }
        Ok(rows)
    }
}

fn collect(state: &State, ages_max: usize) -> (Vec<Consumption>, Vec<Oldest>) {
    let group_names: BTreeMap<u64, &GroupName> = state.groups.iter().map(|(name, group)| (group.uid, name)).collect();
    let mut found: BTreeMap<(&GroupName, &TopicName), Vec<(u64, u32)>> = BTreeMap::new();
    for (group, topic, queue) in state.progress.keys() {
        // A position may outlive its group or topic for a moment.
        let (Some(name), Some(topic_name)) = (group_names.get(group), state.topic_names.get(topic)) else { continue };
        found.entry((name, topic_name)).or_default().push((*group, *queue));
    }
    let (mut rows, mut oldest) = (Vec::with_capacity(found.len()), Vec::new());
    for ((group, name), queues) in found {
        let Some(topic) = state.topics.get(name) else { continue };
        let mut row = Consumption {
            group: group.clone(),
            topic: name.clone(),
            lag: 0,
            inflight: 0,
            ready: 0,
            oldest_lag_ms: None,
            oldest_ready_ms: None,
        };
        for (group_uid, number) in queues {
            let progress = state.progress.get(&(group_uid, topic.uid, number));
            let (Some(progress), Some(queue)) = (progress, topic.queues.get(number as usize)) else { continue };
            // What was trimmed away before it was delivered lags no more.
            let next = progress.next_offset().max(queue.min());
            let (inflight, ready) = (progress.in_flight().len() as u64, queue.max().saturating_sub(next));
            row.inflight += inflight;
            row.ready += ready;
            row.lag += inflight + ready;
            if inflight + ready > 0 && rows.len() < ages_max {
                oldest.push(Oldest {
                    row: rows.len(),
                    // Log time never falls, so the lowest offset is the oldest.
                    inflight_ms: progress.in_flight().values().next().map(|flight| flight.slot.stored_at_ms),
                    ready: (ready > 0).then(|| queue.part(next, 1)),
                });
            }
        }
        rows.push(row);
    }
    (rows, oldest)
}
