//! Nothing taken back: what anybody once saw at an offset stays there; the committed prefix only grows.

use std::collections::BTreeMap;

use crate::{Delivery, Dump, QueueKey, Send};

/// An offset at which two things were seen, or something was seen that a replica no longer has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TakenBack {
    /// Queue.
    pub queue: QueueKey,
    /// Offset in the queue.
    pub offset: u64,
    /// Who saw what.
    pub seen: (String, String),
    /// Who has what instead; no message if nothing is there.
    pub instead: (String, Option<String>),
}

impl std::fmt::Display for TakenBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TakenBack { queue, offset, seen, instead } = self;
        let other = instead.1.as_deref().unwrap_or("nothing");
        write!(f, "{} saw {} at {queue}@{offset}, {} has {other} there", seen.0, seen.1, instead.0)
    }
}

/// Everything seen (acknowledgements, deliveries, sightings) against each other and against the
/// final dumps. Each offset is reported once at most for each dump.
pub fn find(sends: &[Send], seen: &[&[Delivery]], dumps: &[Dump]) -> Vec<TakenBack> {
    let mut findings = Vec::new();
    let mut first_sight: BTreeMap<(&QueueKey, u64), (&str, &str)> = BTreeMap::new();
    let acks = sends
        .iter()
        .filter_map(|send| send.ack().map(|ack| (&ack.queue, ack.offset, "the producer", send.message_id.as_str())));
    let deliveries = seen
        .iter()
        .flat_map(|part| part.iter())
        .map(|seen| (&seen.queue, seen.offset, seen.consumer.as_str(), seen.message_id.as_str()));
    for (queue, offset, who, message_id) in acks.chain(deliveries) {
        let (before, known) = *first_sight.entry((queue, offset)).or_insert((who, message_id));
        if known != message_id {
            findings.push(TakenBack {
                queue: queue.clone(),
                offset,
                seen: (before.to_owned(), known.to_owned()),
                instead: (who.to_owned(), Some(message_id.to_owned())),
            });
        }
    }
    for dump in dumps {
        let mut slots: BTreeMap<(&QueueKey, u64), &str> = BTreeMap::new();
        let mut offset_min: BTreeMap<&QueueKey, u64> = BTreeMap::new();
        for queue in &dump.queues {
            offset_min.insert(&queue.queue, queue.offset_min);
            slots.extend(queue.slots.iter().map(|slot| ((&queue.queue, slot.offset), slot.message_id.as_str())));
        }
        for ((queue, offset), (who, message_id)) in &first_sight {
            let now = slots.get(&(*queue, *offset)).copied();
            let expired = offset_min.get(queue).is_some_and(|min| offset < min);
            if now != Some(*message_id) && !expired {
                findings.push(TakenBack {
                    queue: (*queue).clone(),
                    offset: *offset,
                    seen: ((*who).to_owned(), (*message_id).to_owned()),
                    instead: (format!("replica {}", dump.replica), now.map(str::to_owned)),
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, delivery, dump, unknown};

    #[test]
    fn what_stays_is_not_taken_back() {
        let seen = [delivery("c-1", 0, "a"), delivery("c-1", 0, "a"), delivery("c-2", 1, "b")];
        assert_eq!(find(&[acked("a", 0), unknown("b")], &[&seen], &[dump(1, &[(0, "a"), (1, "b")])]), []);
    }

    #[test]
    fn a_seen_message_that_gave_way_to_another_is_found() {
        let seen = [delivery("c-1", 0, "a"), delivery("c-2", 0, "x")];
        let found = find(&[], &[&seen], &[]);
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["c-1 saw a at t/0@0, c-2 has x there"]);
    }

    #[test]
    fn a_seen_message_that_a_replica_no_longer_has_is_found() {
        let seen = [delivery("c-1", 0, "a"), delivery("c-1", 1, "b")];
        let found = find(&[], &[&seen], &[dump(1, &[(0, "a"), (1, "b")]), dump(2, &[(0, "x")])]);
        let instead: Vec<_> = found.iter().map(|found| found.instead.clone()).collect();
        assert_eq!(instead, [("replica 2".into(), Some("x".into())), ("replica 2".into(), None)]);
    }

    #[test]
    fn an_acknowledged_place_with_another_message_is_found() {
        assert_eq!(find(&[acked("a", 0)], &[&[delivery("c-1", 0, "x")]], &[]).len(), 1);
    }
}
