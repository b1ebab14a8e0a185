//! Real-time order: a message acknowledged before another was sent has the lower offset in their queue.

use std::collections::BTreeMap;

use crate::{Ack, QueueKey, Send};

/// Two messages of a queue whose offsets contradict their times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reversed {
    /// Their queue.
    pub queue: QueueKey,
    /// Acknowledged first: message id and offset.
    pub earlier: (String, u64),
    /// Sent afterwards.
    pub later: (String, u64),
}

impl std::fmt::Display for Reversed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Reversed { queue, earlier, later } = self;
        write!(
            f,
            "{queue}: {} was acknowledged at {} before {} was sent, which got {}",
            earlier.0, earlier.1, later.0, later.1
        )
    }
}

/// Judges acknowledged sends with known times.
pub fn find(sends: &[Send]) -> Vec<Reversed> {
    let mut by_queue: BTreeMap<&QueueKey, Vec<(&Send, &Ack)>> = BTreeMap::new();
    for send in sends.iter().filter(|send| send.completed_ns != u64::MAX) {
        if let Some(ack) = send.ack() {
            by_queue.entry(&ack.queue).or_default().push((send, ack));
        }
    }
    let mut findings = Vec::new();
    for (queue, by_invocation) in &mut by_queue {
        by_invocation.sort_by_key(|(send, _)| send.invoked_ns);
        let mut by_completion = by_invocation.clone();
        by_completion.sort_by_key(|(send, _)| send.completed_ns);
        let mut completed = by_completion.into_iter().peekable();
        let mut highest: Option<(&Send, &Ack)> = None;
        for (send, ack) in by_invocation.iter() {
            while let Some((done, place)) = completed.next_if(|(done, _)| done.completed_ns < send.invoked_ns) {
                if highest.is_none_or(|(_, top)| place.offset > top.offset) {
                    highest = Some((done, place));
                }
            }
            let Some((earlier, top)) = highest else { continue };
            if top.offset >= ack.offset {
                findings.push(Reversed {
                    queue: (*queue).clone(),
                    earlier: (earlier.message_id.clone(), top.offset),
                    later: (send.message_id.clone(), ack.offset),
                });
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::acked;

    #[test]
    fn overlapping_sends_may_take_any_order() {
        assert_eq!(find(&[acked("a", 1).timed(0, 10), acked("b", 0).timed(5, 20), acked("c", 2).timed(30, 40)]), []);
    }

    #[test]
    fn a_later_send_with_a_lower_offset_is_found() {
        let found = find(&[acked("b", 0).timed(11, 20), acked("a", 1).timed(0, 10)]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].earlier.0.as_str(), found[0].later.0.as_str()), ("a", "b"));
    }
}
