//! What a group has acknowledged stays acknowledged: it is not handed out again to whoever asks afterwards.

use std::collections::BTreeMap;

use crate::{Delivery, QueueKey, Task, TaskRun};

/// A message that came again.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rewound {
    /// Where it stands.
    pub queue: QueueKey,
    /// Its offset.
    pub offset: u64,
    /// Who got it.
    pub consumer: String,
    /// How long after the acknowledgement it was asked for, milliseconds.
    pub after_ms: u64,
}

impl std::fmt::Display for Rewound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Rewound { queue, offset, consumer, after_ms } = self;
        write!(f, "{consumer} asked {queue} {after_ms} ms after {offset} was acknowledged, and got it again")
    }
}

/// Judges deliveries and acknowledgements of one consumer group, without resets of its position.
pub fn find(tasks: &[TaskRun], deliveries: &[Delivery]) -> Vec<Rewound> {
    let mut settled: BTreeMap<(&QueueKey, u64), u64> = BTreeMap::new();
    for run in tasks.iter().filter(|run| run.is_done()) {
        let Task::Acknowledge { deliveries } = &run.task else { continue };
        for delivery in deliveries {
            let known = settled.entry((&delivery.queue, delivery.offset)).or_insert(run.completed_ns);
            *known = run.completed_ns.min(*known);
        }
    }
    let again = deliveries.iter().filter_map(|delivery| {
        let settled_ns = *settled.get(&(&delivery.queue, delivery.offset))?;
        (delivery.asked_ns > settled_ns).then(|| Rewound {
            queue: delivery.queue.clone(),
            offset: delivery.offset,
            consumer: delivery.consumer.clone(),
            after_ms: (delivery.asked_ns - settled_ns) / 1_000_000,
        })
    });
    again.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::delivery;

    #[test]
    fn only_what_is_asked_for_after_the_acknowledgement_has_come_again() {
        let acknowledged = Task::Acknowledge { deliveries: vec![delivery("c", 4, "a")] };
        let tasks = [TaskRun::done(acknowledged, 10, 20)];
        let slow = delivery("d", 4, "a").received(15, 90);
        assert_eq!(find(&tasks, &[slow.clone(), delivery("d", 5, "b").received(30, 40)]), []);
        let again = delivery("d", 4, "a").received(5_000_030, 5_000_040);
        let found = find(&tasks, &[slow, again]);
        assert!(matches!(&found[..], [Rewound { offset: 4, after_ms: 5, .. }]), "{found:?}");
    }
}
