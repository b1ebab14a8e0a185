//! A delayed message never comes before its time, and what was taken for delivery does come.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Delivery, Task, TaskRun};

/// A delayed message at the wrong time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Untimely {
    /// Before it was due.
    Early {
        /// Which.
        message_id: String,
        /// By so much, milliseconds.
        early_ms: u64,
    },
    /// Never.
    Missing {
        /// Which.
        message_id: String,
    },
}

impl std::fmt::Display for Untimely {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Untimely::Early { message_id, early_ms } => write!(f, "{message_id} came {early_ms} ms before it was due"),
            Untimely::Missing { message_id } => {
                write!(f, "{message_id} was taken to come later, and stands in no queue")
            }
        }
    }
}

/// Judges every delayed message. `wrong_ns` is by how much a clock of the servers may be ahead; `stored` are the ids in all
/// queues long after the last was due, if those were looked at.
pub fn find(
    tasks: &[TaskRun],
    deliveries: &[Delivery],
    wrong_ns: u64,
    stored: Option<&BTreeSet<&str>>,
) -> Vec<Untimely> {
    let delays = tasks.iter().filter_map(|run| match &run.task {
        Task::Delay { message_id, due_ns } => Some((message_id.as_str(), (*due_ns, run.is_done()))),
        _ => None,
    });
    let delays: BTreeMap<&str, (u64, bool)> = delays.collect();
    let mut findings = Vec::new();
    for (message_id, (_, is_done)) in &delays {
        if *is_done && stored.is_some_and(|stored| !stored.contains(message_id)) {
            findings.push(Untimely::Missing { message_id: (*message_id).to_owned() });
        }
    }
    for delivery in deliveries {
        let Some((due_ns, _)) = delays.get(delivery.message_id.as_str()) else { continue };
        let early_ns = due_ns.saturating_sub(delivery.received_ns.saturating_add(wrong_ns));
        // Clients name a time in whole milliseconds.
        if early_ns >= 1_000_000 {
            let message_id = delivery.message_id.clone();
            findings.push(Untimely::Early { message_id, early_ms: early_ns / 1_000_000 });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueKey;

    #[test]
    fn early_and_missing_ones_are_found_and_late_ones_are_not() {
        let delay = |id: &str| TaskRun::done(Task::Delay { message_id: id.into(), due_ns: 50_000_000 }, 1, 2);
        let seen = |received_ns| Delivery::new("c", QueueKey::new("t", 0), 0, "a").received(0, received_ns);
        let stored = BTreeSet::from(["a"]);
        assert_eq!(find(&[delay("a")], &[seen(50_000_000), seen(90_000_000)], 0, Some(&stored)), []);
        assert_eq!(find(&[delay("a")], &[seen(20_000_000)], 30_000_000, Some(&stored)), []);
        let early = Untimely::Early { message_id: "a".into(), early_ms: 20 };
        assert_eq!(find(&[delay("a")], &[seen(20_000_000)], 10_000_000, Some(&stored)), [early]);
        assert_eq!(find(&[delay("b")], &[], 0, Some(&stored)), [Untimely::Missing { message_id: "b".into() }]);
    }
}
