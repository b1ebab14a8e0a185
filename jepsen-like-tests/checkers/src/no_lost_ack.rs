//! No lost acknowledged message: what was acknowledged is there, at the place the acknowledgement named.

use std::collections::BTreeMap;

use crate::{Ack, Delivery, Dump, QueueKey, Send};

/// An acknowledged message that is not where it was promised to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lost {
    /// Which message.
    pub message_id: String,
    /// What its sender was told.
    pub promised: Ack,
    /// The replica that lacks it; `None` where deliveries were judged.
    pub replica: Option<u64>,
    /// Where it stands instead, if anywhere.
    pub found: Option<(QueueKey, u64)>,
}

impl std::fmt::Display for Lost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Lost { message_id, promised, .. } = self;
        write!(f, "{message_id} was acknowledged at {}@{}", promised.queue, promised.offset)?;
        if let Some(index) = promised.log_index {
            write!(f, " (log index {index})")?;
        }
        match self.replica {
            Some(replica) => write!(f, ", replica {replica} ")?,
            None => f.write_str(", consumers ")?,
        }
        match &self.found {
            Some((queue, offset)) => write!(f, "have it at {queue}@{offset}"),
            None => f.write_str("do not have it"),
        }
    }
}

/// Acknowledged messages that no consumer got. Only to be asked once consumers have drained every
/// queue from its first offset on.
pub fn among_deliveries(sends: &[Send], deliveries: &[Delivery]) -> Vec<Lost> {
    let mut places: Places<'_> = BTreeMap::new();
    for delivery in deliveries {
        places.entry(&delivery.message_id).or_default().push((&delivery.queue, delivery.offset));
    }
    lost(sends, &places, None, |_, _| false)
}

/// Acknowledged messages that a replica does not hold at their offset, replica by replica. Offsets
/// below a queue's kept minimum are taken for consumed and expired.
pub fn in_dumps(sends: &[Send], dumps: &[Dump]) -> Vec<Lost> {
    let mut findings = Vec::new();
    for dump in dumps {
        let mut places: Places<'_> = BTreeMap::new();
        let mut offset_min = BTreeMap::new();
        for queue in &dump.queues {
            offset_min.insert(&queue.queue, queue.offset_min);
            for slot in &queue.slots {
                places.entry(&slot.message_id).or_default().push((&queue.queue, slot.offset));
            }
        }
        let expired = |queue: &QueueKey, offset: u64| offset_min.get(queue).is_some_and(|min| offset < *min);
        findings.extend(lost(sends, &places, Some(dump.replica), expired));
    }
    findings
}

type Places<'a> = BTreeMap<&'a str, Vec<(&'a QueueKey, u64)>>;

fn lost(
    sends: &[Send],
    places: &Places<'_>,
    replica: Option<u64>,
    expired: impl Fn(&QueueKey, u64) -> bool,
) -> Vec<Lost> {
    let mut findings = Vec::new();
    for send in sends {
        let Some(ack) = send.ack() else { continue };
        let seen = places.get(send.message_id.as_str()).map_or(&[][..], Vec::as_slice);
        let in_place = seen.iter().any(|(queue, offset)| **queue == ack.queue && *offset == ack.offset);
        if in_place || expired(&ack.queue, ack.offset) {
            continue;
        }
        let found = seen.first().map(|(queue, offset)| ((*queue).clone(), *offset));
        findings.push(Lost { message_id: send.message_id.clone(), promised: ack.clone(), replica, found });
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, delivery, dump, queue, refused, unknown};

    #[test]
    fn acked_and_delivered_is_not_lost_and_unknown_may_be() {
        let sends = [acked("a", 0), unknown("b"), refused("c")];
        assert_eq!(among_deliveries(&sends, &[delivery("c-1", 0, "a")]), []);
        assert_eq!(in_dumps(&sends, &[dump(1, &[(0, "a")])]), []);
    }

    #[test]
    fn an_acked_message_that_nobody_got_is_lost() {
        let found = among_deliveries(&[acked("a", 0), acked("b", 1)], &[delivery("c-1", 0, "a")]);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].to_string(), "b was acknowledged at t/0@1, consumers do not have it");
    }

    #[test]
    fn one_replica_without_it_is_enough() {
        let found = in_dumps(&[acked("a", 0)], &[dump(1, &[(0, "a")]), dump(2, &[])]);
        assert_eq!(found.iter().map(|l| l.replica).collect::<Vec<_>>(), [Some(2)]);
    }

    #[test]
    fn another_place_than_the_promised_one_counts_as_lost() {
        let found = in_dumps(&[acked("a", 0)], &[dump(1, &[(0, "x"), (1, "a")])]);
        assert_eq!(found[0].found, Some((queue(), 1)));
    }

    #[test]
    fn expired_offsets_are_not_missed() {
        let mut expired = dump(1, &[(1, "b")]);
        expired.queues[0].offset_min = 1;
        assert_eq!(in_dumps(&[acked("a", 0)], &[expired]), []);
    }
}
