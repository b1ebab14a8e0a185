//! A message that is not acknowledged ends among the dead letters, and nowhere else: none is dropped on the way.

use std::collections::BTreeSet;

use crate::{Delivery, Send, Task, TaskRun};

/// A message that ended nowhere, or too early.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Misplaced {
    /// Neither acknowledged nor among the dead letters.
    Nowhere {
        /// Which.
        message_id: String,
    },
    /// Delivered more often than its group allows.
    TooOften {
        /// Which.
        message_id: String,
        /// The how-manieth delivery.
        attempt: u32,
    },
}

impl std::fmt::Display for Misplaced {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Misplaced::Nowhere { message_id } => {
                write!(f, "{message_id} was neither acknowledged nor is it among the dead letters")
            }
            Misplaced::TooOften { message_id, attempt } => {
                write!(f, "{message_id} was delivered a {attempt}th time, beyond what its group allows")
            }
        }
    }
}

/// Judges the acknowledged sends to `topic`, whose one group gives a message up after `deliveries_max` deliveries, once
/// nothing of it is in flight any more.
pub fn find(
    topic: &str,
    deliveries_max: u32,
    sends: &[Send],
    tasks: &[TaskRun],
    deliveries: &[Delivery],
    dead: &BTreeSet<String>,
) -> Vec<Misplaced> {
    let mut ended: BTreeSet<&str> = dead.iter().map(String::as_str).collect();
    for run in tasks {
        if let Task::Acknowledge { deliveries } = &run.task {
            // One whose outcome is unknown may have ended it.
            ended.extend(deliveries.iter().map(|delivery| delivery.message_id.as_str()));
        }
    }
    let of_topic = sends.iter().filter(|send| send.ack().is_some_and(|ack| ack.queue.topic == topic));
    let lost = of_topic.filter(|send| !ended.contains(send.message_id.as_str()));
    let mut findings: Vec<Misplaced> =
        lost.map(|send| Misplaced::Nowhere { message_id: send.message_id.clone() }).collect();
    let too_often = deliveries.iter().filter(|seen| seen.queue.topic == topic && seen.attempt > deliveries_max);
    findings.extend(
        too_often.map(|seen| Misplaced::TooOften { message_id: seen.message_id.clone(), attempt: seen.attempt }),
    );
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, delivery, unknown};

    #[test]
    fn what_is_neither_acknowledged_nor_dead_is_found() {
        let sends = [acked("a", 0), acked("b", 1), unknown("c")];
        let acknowledged = Task::Acknowledge { deliveries: vec![delivery("c", 0, "a")] };
        let tasks = [TaskRun::done(acknowledged, 1, 2)];
        let dead = BTreeSet::from(["b".to_owned()]);
        assert_eq!(find("t", 2, &sends, &tasks, &[delivery("c", 0, "a").on_attempt(2)], &dead), []);
        let found = find("t", 2, &sends, &tasks, &[delivery("c", 0, "a").on_attempt(3)], &BTreeSet::new());
        let (nowhere, too_often) =
            (Misplaced::Nowhere { message_id: "b".into() }, Misplaced::TooOften { message_id: "a".into(), attempt: 3 });
        assert_eq!(found, [nowhere, too_often]);
    }
}
