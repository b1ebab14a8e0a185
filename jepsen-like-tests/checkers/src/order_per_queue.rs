//! Order per queue: what a consumer gets of a queue for the first time comes in the order of offsets.

use std::collections::BTreeMap;

use crate::{Delivery, QueueKey};

/// A first delivery that came after one with a higher offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutOfOrder {
    /// Who got it.
    pub consumer: String,
    /// From which queue.
    pub queue: QueueKey,
    /// Its offset.
    pub offset: u64,
    /// Which message.
    pub message_id: String,
    /// The highest offset the consumer had seen before.
    pub after: u64,
}

impl std::fmt::Display for OutOfOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let OutOfOrder { consumer, queue, offset, message_id, after } = self;
        write!(f, "{consumer} got {message_id} at {queue}@{offset} for the first time after offset {after}")
    }
}

/// Judges each consumer and queue by itself, in the order of the slice. Redeliveries are passed
/// over: those the server numbers as such, and those of an offset the consumer knows already.
pub fn find(deliveries: &[Delivery]) -> Vec<OutOfOrder> {
    let mut highest: BTreeMap<(&str, &QueueKey), u64> = BTreeMap::new();
    let mut known: std::collections::BTreeSet<(&str, &QueueKey, u64)> = std::collections::BTreeSet::new();
    let mut findings = Vec::new();
    for delivery in deliveries.iter().filter(|delivery| delivery.attempt <= 1) {
        let Delivery { consumer, queue, offset, message_id, .. } = delivery;
        if !known.insert((consumer, queue, *offset)) {
            continue;
        }
        let highest = highest.entry((consumer, queue)).or_insert(*offset);
        if *offset < *highest {
            findings.push(OutOfOrder {
                consumer: consumer.clone(),
                queue: queue.clone(),
                offset: *offset,
                message_id: message_id.clone(),
                after: *highest,
            });
        }
        *highest = (*highest).max(*offset);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::delivery;

    #[test]
    fn ascending_first_deliveries_and_any_redelivery_are_in_order() {
        let deliveries = [
            delivery("c-1", 0, "a"),
            delivery("c-1", 1, "b"),
            delivery("c-1", 0, "a"),
            delivery("c-1", 3, "d"),
            delivery("c-1", 2, "c").on_attempt(2),
            delivery("c-2", 0, "a"),
        ];
        assert_eq!(find(&deliveries), []);
    }

    #[test]
    fn a_first_delivery_below_the_highest_is_out_of_order() {
        let found = find(&[delivery("c-1", 1, "b"), delivery("c-1", 0, "a"), delivery("c-1", 2, "c")]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "c-1 got a at t/0@0 for the first time after offset 1");
    }
}
