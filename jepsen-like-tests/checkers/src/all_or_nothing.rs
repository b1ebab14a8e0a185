//! Transactions are all or nothing: seen after their commit was asked for, never after a rollback, and once committed for good.

use std::collections::{BTreeMap, BTreeSet};

use crate::{Delivery, Task, TaskRun};

/// Where a transaction came to half of an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Torn {
    /// Seen before anybody asked for its commit.
    SeenHalf {
        /// Which.
        message_id: String,
        /// By whom.
        consumer: String,
    },
    /// Committed and rolled back, both for sure.
    BothEnds {
        /// Which.
        message_id: String,
    },
    /// Rolled back for sure, and seen.
    SeenRolledBack {
        /// Which.
        message_id: String,
        /// By whom.
        consumer: String,
    },
    /// Committed for sure, and in no queue.
    Missing {
        /// Which.
        message_id: String,
    },
}

impl std::fmt::Display for Torn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Torn::SeenHalf { message_id, consumer } => {
                write!(f, "{consumer} got the half message {message_id} before its commit was asked for")
            }
            Torn::BothEnds { message_id } => write!(f, "{message_id} was committed and rolled back, both acknowledged"),
            Torn::SeenRolledBack { message_id, consumer } => {
                write!(f, "{consumer} got {message_id}, whose rollback was acknowledged")
            }
            Torn::Missing { message_id } => {
                write!(f, "the commit of {message_id} was acknowledged, and it stands in no queue")
            }
        }
    }
}

#[derive(Default)]
struct Ends {
    first_commit_ns: Option<u64>,
    committed: bool,
    rolled_back: bool,
}

/// Judges every half message of `tasks`. `deliveries` have their times; `stored` are the ids in all queues at the end, if
/// those were looked at.
pub fn find(tasks: &[TaskRun], deliveries: &[Delivery], stored: Option<&BTreeSet<&str>>) -> Vec<Torn> {
    let mut halves: BTreeMap<&str, Ends> = BTreeMap::new();
    for run in tasks {
        match &run.task {
            Task::Prepare { message_id } => {
                halves.entry(message_id).or_default();
            }
            Task::EndTransaction { message_id, commit } => {
                let ends = halves.entry(message_id).or_default();
                if *commit {
                    let first = ends.first_commit_ns.map_or(run.invoked_ns, |first| first.min(run.invoked_ns));
                    ends.first_commit_ns = Some(first);
                    ends.committed |= run.is_done();
                } else {
                    ends.rolled_back |= run.is_done();
                }
            }
            Task::Acknowledge { .. }
            | Task::Delay { .. }
            | Task::AskEnd { .. }
            | Task::SetRegister { .. }
            | Task::ReadRegister { .. } => {}
        }
    }
    let mut findings = Vec::new();
    for (message_id, ends) in &halves {
        if ends.committed && ends.rolled_back {
            findings.push(Torn::BothEnds { message_id: (*message_id).to_owned() });
        }
        if ends.committed && stored.is_some_and(|stored| !stored.contains(message_id)) {
            findings.push(Torn::Missing { message_id: (*message_id).to_owned() });
        }
    }
    for delivery in deliveries {
        let Some(ends) = halves.get(delivery.message_id.as_str()) else { continue };
        let (message_id, consumer) = (delivery.message_id.clone(), delivery.consumer.clone());
        if ends.first_commit_ns.is_none_or(|first| delivery.received_ns < first) {
            findings.push(Torn::SeenHalf { message_id, consumer });
        } else if ends.rolled_back && !ends.committed {
            findings.push(Torn::SeenRolledBack { message_id, consumer });
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::QueueKey;

    fn end(id: &str, commit: bool, invoked_ns: u64) -> TaskRun {
        TaskRun::done(Task::EndTransaction { message_id: id.into(), commit }, invoked_ns, invoked_ns + 5)
    }

    fn prepared(id: &str) -> TaskRun {
        TaskRun::done(Task::Prepare { message_id: id.into() }, 1, 2)
    }

    fn seen(id: &str, received_ns: u64) -> Delivery {
        Delivery::new("c", QueueKey::new("t", 0), 0, id).received(0, received_ns)
    }

    #[test]
    fn committed_is_seen_and_rolled_back_is_not() {
        let tasks = [prepared("a"), end("a", true, 10), end("a", true, 20), prepared("b"), end("b", false, 10)];
        assert_eq!(find(&tasks, &[seen("a", 11), seen("x", 1)], Some(&BTreeSet::from(["a"]))), []);
    }

    #[test]
    fn each_half_of_an_end_is_found() {
        let found = |tasks: &[TaskRun], deliveries: &[Delivery]| find(tasks, deliveries, Some(&BTreeSet::from(["a"])));
        assert!(matches!(found(&[prepared("a")], &[seen("a", 9)])[..], [Torn::SeenHalf { .. }]));
        assert!(matches!(found(&[prepared("a"), end("a", true, 10)], &[seen("a", 9)])[..], [Torn::SeenHalf { .. }]));
        let rolled_back = [prepared("a"), end("a", false, 10)];
        assert!(matches!(found(&rolled_back, &[seen("a", 99)])[..], [Torn::SeenHalf { .. }]));
        let unknown = TaskRun { outcome: crate::TaskOutcome::Unknown, ..end("a", true, 3) };
        let tasks = [rolled_back[0].clone(), rolled_back[1].clone(), unknown];
        assert!(matches!(found(&tasks, &[seen("a", 99)])[..], [Torn::SeenRolledBack { .. }]));
        assert!(matches!(found(&[end("a", true, 3), end("a", false, 9)], &[])[..], [Torn::BothEnds { .. }]));
        assert!(matches!(found(&[end("b", true, 3)], &[])[..], [Torn::Missing { .. }]));
    }
}
