//! What a run did beside plain sends: transactions, delayed messages, dead letters, registers.

use std::collections::BTreeSet;

use flotilla_checkers::{History, Task, TaskRun};
use serde::{Deserialize, Serialize};

use crate::errands::DOOMED;

/// How much of each part surely happened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parts {
    /// Half messages that were begun.
    pub halves: u64,
    /// Transactions whose commit was confirmed.
    pub committed: u64,
    /// Transactions whose rollback was confirmed.
    pub rolled_back: u64,
    /// Delayed messages that were taken.
    pub delayed: u64,
    /// Messages that were acknowledged, to a group that gives most of them up.
    pub doomed: u64,
    /// Dead letters at the end.
    pub dead: u64,
    /// Writes of registers.
    pub written: u64,
    /// Reads of registers.
    pub read: u64,
}

/// Ids of messages whose sends are answered before anybody knows their place.
pub(crate) fn placed_later(tasks: &[TaskRun]) -> BTreeSet<&str> {
    let ids = tasks.iter().filter_map(|run| match &run.task {
        Task::Prepare { message_id } | Task::Delay { message_id, .. } => Some(message_id.as_str()),
        _ => None,
    });
    ids.collect()
}

impl Parts {
    /// Counts; `dead` letters were read at the end.
    pub(crate) fn of(history: &History, dead: u64) -> Parts {
        let mut parts = Parts { dead, ..Parts::default() };
        let (mut committed, mut rolled_back) = (BTreeSet::new(), BTreeSet::new());
        for run in &history.tasks {
            match &run.task {
                Task::Prepare { .. } => parts.halves += 1,
                Task::EndTransaction { message_id, commit } if run.is_done() => {
                    (if *commit { &mut committed } else { &mut rolled_back }).insert(message_id);
                }
                Task::Delay { .. } => parts.delayed += u64::from(run.is_done()),
                Task::SetRegister { .. } => parts.written += u64::from(run.is_done()),
                Task::ReadRegister { .. } => parts.read += u64::from(run.is_done()),
                Task::EndTransaction { .. } | Task::Acknowledge { .. } | Task::AskEnd { .. } => {}
            }
        }
        (parts.committed, parts.rolled_back) = (committed.len() as u64, rolled_back.len() as u64);
        let doomed = history.sends.iter().filter_map(|send| send.ack()).filter(|ack| ack.queue.topic == DOOMED);
        parts.doomed = doomed.count() as u64;
        parts
    }
}

/// Parts that were begun this often, and never once done, prove nothing.
const BEGUN_MIN: u64 = 10;

/// Why a part of the load proves nothing.
pub(crate) fn void_reasons(tasks: &[TaskRun]) -> Vec<String> {
    let count = |is_it: fn(&Task) -> bool| {
        let all = tasks.iter().filter(|run| is_it(&run.task));
        (all.clone().count() as u64, all.filter(|run| run.is_done()).count() as u64)
    };
    let parts: [(&str, (u64, u64)); 4] = [
        ("no transaction was committed", count(|task| matches!(task, Task::EndTransaction { commit: true, .. }))),
        ("no delayed message was taken", count(|task| matches!(task, Task::Delay { .. }))),
        ("no register was written", count(|task| matches!(task, Task::SetRegister { .. }))),
        ("no register was read", count(|task| matches!(task, Task::ReadRegister { .. }))),
    ];
    let idle = parts.into_iter().filter(|(_, (begun, done))| *begun >= BEGUN_MIN && *done == 0);
    idle.map(|(reason, (begun, _))| format!("{reason}, of {begun} that were tried")).collect()
}

#[cfg(test)]
mod tests {
    use flotilla_checkers::TaskOutcome;

    use super::*;

    #[test]
    fn a_part_that_was_tried_often_and_never_done_proves_nothing() {
        let write = |outcome| {
            let task = Task::SetRegister { register: "r".into(), value: 1 };
            TaskRun { outcome, ..TaskRun::done(task, 1, 2) }
        };
        let mut tasks = vec![write(TaskOutcome::Unknown); 9];
        assert_eq!(void_reasons(&tasks), [""; 0]);
        tasks.push(write(TaskOutcome::Refused));
        assert_eq!(void_reasons(&tasks), ["no register was written, of 10 that were tried"]);
        tasks.push(write(TaskOutcome::Done));
        assert_eq!(void_reasons(&tasks), [""; 0]);
    }
}
