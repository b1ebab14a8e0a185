//! Order per message group: what one sender sends to a FIFO topic stands in one queue in the order of sending, and comes in it.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Delivery, QueueKey, Send};

/// Topics whose names end so are FIFO topics; each sending process is a message group there.
pub const FIFO_SUFFIX: &str = "-fifo";

/// Where a message group is out of order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disorder {
    /// Its messages stand in two queues.
    Scattered {
        /// The group.
        group: String,
        /// Two of its queues.
        queues: (QueueKey, QueueKey),
    },
    /// A message stands before one that was acknowledged before it was sent.
    Log {
        /// The group.
        group: String,
        /// Sent first: message and offset.
        earlier: (String, u64),
        /// Sent afterwards.
        later: (String, u64),
    },
    /// A message came for the first time after a later one had come.
    Delivery {
        /// The group.
        group: String,
        /// Who got it.
        consumer: String,
        /// The message and its offset.
        message: (String, u64),
        /// The highest offset of the group that had come before.
        after: u64,
    },
}

impl std::fmt::Display for Disorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Disorder::Scattered { group, queues } => {
                write!(f, "message group {group} stands in {} and {}", queues.0, queues.1)
            }
            Disorder::Log { group, earlier, later } => write!(
                f,
                "message group {group}: {} was acknowledged at {} before {} was sent, which got {}",
                earlier.0, earlier.1, later.0, later.1
            ),
            Disorder::Delivery { group, consumer, message, after } => write!(
                f,
                "message group {group}: {consumer} got {} at {} for the first time after {after} had come",
                message.0, message.1
            ),
        }
    }
}

/// Judges the acknowledged sends in their order, and what one consumer group got, in the order of the slice: whoever of it
/// gets a message of a message group, all before it have been settled.
pub fn find(sends: &[Send], deliveries: &[Delivery]) -> Vec<Disorder> {
    let mut findings = Vec::new();
    let mut last: BTreeMap<&str, (&Send, &QueueKey, u64)> = BTreeMap::new();
    let mut group_of: BTreeMap<&str, &str> = BTreeMap::new();
    for send in sends {
        group_of.insert(&send.message_id, &send.process);
        let Some(ack) = send.ack().filter(|ack| ack.queue.topic.ends_with(FIFO_SUFFIX)) else { continue };
        if let Some((earlier, queue, offset)) = last.insert(&send.process, (send, &ack.queue, ack.offset)) {
            let group = send.process.clone();
            if *queue != ack.queue {
                findings.push(Disorder::Scattered { group, queues: (queue.clone(), ack.queue.clone()) });
            } else if offset >= ack.offset {
                let (earlier, later) = ((earlier.message_id.clone(), offset), (send.message_id.clone(), ack.offset));
                findings.push(Disorder::Log { group, earlier, later });
            }
        }
    }
    let mut highest: BTreeMap<(&str, &QueueKey), u64> = BTreeMap::new();
    let mut known: BTreeSet<(&QueueKey, u64)> = BTreeSet::new();
    for delivery in deliveries.iter().filter(|delivery| delivery.queue.topic.ends_with(FIFO_SUFFIX)) {
        // What nobody sent is a phantom, and found as that.
        let Some(group) = group_of.get(delivery.message_id.as_str()) else { continue };
        if !known.insert((&delivery.queue, delivery.offset)) {
            continue;
        }
        let highest = highest.entry((group, &delivery.queue)).or_insert(delivery.offset);
        if delivery.offset < *highest {
            findings.push(Disorder::Delivery {
                group: (*group).to_owned(),
                consumer: delivery.consumer.clone(),
                message: (delivery.message_id.clone(), delivery.offset),
                after: *highest,
            });
        }
        *highest = (*highest).max(delivery.offset);
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Ack, SendOutcome};

    fn queue(number: u32) -> QueueKey {
        QueueKey::new("t-fifo", number)
    }

    fn sent(group: &str, id: &str, number: u32, offset: u64) -> Send {
        let mut send = Send::new(id, SendOutcome::Acked(Ack::at(queue(number), offset)));
        send.process = group.into();
        send
    }

    fn got(consumer: &str, id: &str, offset: u64) -> Delivery {
        Delivery::new(consumer, queue(0), offset, id)
    }

    #[test]
    fn groups_share_a_queue_and_each_keeps_its_order() {
        let sends = [sent("a", "a1", 0, 0), sent("b", "b1", 0, 1), sent("a", "a2", 0, 2), sent("b", "b2", 0, 3)];
        let seen =
            [got("c-1", "a1", 0), got("c-2", "b1", 1), got("c-2", "b2", 3), got("c-1", "a1", 0), got("c-1", "a2", 2)];
        assert_eq!(find(&sends, &seen), []);
    }

    #[test]
    fn another_order_in_the_log_and_another_queue_are_found() {
        let found = find(&[sent("a", "a1", 0, 5), sent("a", "a2", 0, 4)], &[]);
        assert!(matches!(&found[..], [Disorder::Log { .. }]), "{found:?}");
        let found = find(&[sent("a", "a1", 0, 5), sent("a", "a2", 1, 6)], &[]);
        assert!(matches!(&found[..], [Disorder::Scattered { .. }]), "{found:?}");
    }

    #[test]
    fn another_order_of_coming_is_found_whoever_gets_them() {
        let sends = [sent("a", "a1", 0, 0), sent("a", "a2", 0, 1)];
        let found = find(&sends, &[got("c-1", "a2", 1), got("c-2", "a1", 0)]);
        assert_eq!(found[0].to_string(), "message group a: c-2 got a1 at 0 for the first time after 1 had come");
    }

    #[test]
    fn other_topics_have_no_message_groups() {
        let mut plain = sent("a", "a1", 0, 5);
        plain.outcome = SendOutcome::Acked(Ack::at(QueueKey::new("t", 0), 5));
        let mut later = sent("a", "a2", 0, 4);
        later.outcome = SendOutcome::Acked(Ack::at(QueueKey::new("t", 0), 4));
        assert_eq!(find(&[plain, later], &[]), []);
    }
}
