//! An ordered group goes on to a message only once everything before it in its queue is settled.

use std::collections::{BTreeMap, BTreeSet};

use crate::order_per_message_group::FIFO_SUFFIX;
use crate::{Delivery, QueueKey, Task, TaskRun};

/// A message that was handed out too soon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TooSoon {
    /// Its queue.
    pub queue: QueueKey,
    /// Its offset.
    pub offset: u64,
    /// Who got it.
    pub consumer: String,
    /// What nobody had acknowledged by then.
    pub before: u64,
}

impl std::fmt::Display for TooSoon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooSoon { queue, offset, consumer, before } = self;
        write!(f, "{consumer} got {offset} of {queue} while {before} before it was not settled")
    }
}

/// Judges what one ordered group got from each FIFO topic. What comes in one answer may hold several.
pub fn find(tasks: &[TaskRun], deliveries: &[Delivery]) -> Vec<TooSoon> {
    // When the acknowledgement of each offset was first under way.
    let mut settled: BTreeMap<(&QueueKey, u64), u64> = BTreeMap::new();
    for run in tasks {
        let Task::Acknowledge { deliveries } = &run.task else { continue };
        for delivery in deliveries {
            let known = settled.entry((&delivery.queue, delivery.offset)).or_insert(run.invoked_ns);
            *known = run.invoked_ns.min(*known);
        }
    }
    let ordered = deliveries.iter().filter(|seen| seen.queue.topic.ends_with(FIFO_SUFFIX) && seen.attempt == 1);
    // The first offset of each answer: what came with it needs not be settled.
    let mut answers: BTreeMap<(&QueueKey, u64, u64, &str), &Delivery> = BTreeMap::new();
    let mut offsets: BTreeSet<(&QueueKey, u64)> = BTreeSet::new();
    for seen in ordered {
        offsets.insert((&seen.queue, seen.offset));
        let answer = (&seen.queue, seen.received_ns, seen.asked_ns, seen.consumer.as_str());
        let first = answers.entry(answer).or_insert(seen);
        if seen.offset < first.offset {
            *first = seen;
        }
    }
    // For each offset the last of those before it that was settled, and when.
    let mut latest: BTreeMap<(&QueueKey, u64), (u64, u64)> = BTreeMap::new();
    let mut running: Option<(&QueueKey, u64, u64)> = None;
    for (queue, offset) in offsets {
        if let Some((_, at_ns, before)) = running.filter(|(of, ..)| *of == queue) {
            latest.insert((queue, offset), (at_ns, before));
        }
        let at_ns = settled.get(&(queue, offset)).copied().unwrap_or(u64::MAX);
        running = match running.filter(|(of, ..)| *of == queue) {
            Some((_, known_ns, before)) if known_ns >= at_ns => Some((queue, known_ns, before)),
            _ => Some((queue, at_ns, offset)),
        };
    }
    let early = answers.into_values().filter_map(|first| {
        let (at_ns, before) = *latest.get(&(&first.queue, first.offset))?;
        (at_ns > first.received_ns).then(|| TooSoon {
            queue: first.queue.clone(),
            offset: first.offset,
            consumer: first.consumer.clone(),
            before,
        })
    });
    early.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(offset: u64, received_ns: u64) -> Delivery {
        Delivery::new("c", QueueKey::new("t-fifo", 0), offset, format!("m-{offset}")).received(1, received_ns)
    }

    fn acknowledged(offset: u64, invoked_ns: u64) -> TaskRun {
        TaskRun::done(Task::Acknowledge { deliveries: vec![seen(offset, 0)] }, invoked_ns, invoked_ns + 5)
    }

    #[test]
    fn what_comes_together_or_after_an_acknowledgement_is_in_time() {
        let tasks = [acknowledged(0, 20), acknowledged(1, 21)];
        assert_eq!(find(&tasks, &[seen(0, 10), seen(1, 10), seen(2, 30)]), []);
        let again = seen(1, 12).on_attempt(2);
        assert_eq!(find(&tasks, &[seen(0, 10), again]), []);
    }

    #[test]
    fn what_comes_while_an_earlier_one_is_open_is_too_soon() {
        let found = find(&[acknowledged(0, 20), acknowledged(1, 40)], &[seen(0, 10), seen(1, 25), seen(2, 30)]);
        assert!(matches!(&found[..], [TooSoon { offset: 2, before: 1, .. }]), "{found:?}");
        let found = find(&[], &[seen(0, 10), seen(1, 25)]);
        assert!(matches!(&found[..], [TooSoon { offset: 1, before: 0, .. }]), "{found:?}");
    }
}
