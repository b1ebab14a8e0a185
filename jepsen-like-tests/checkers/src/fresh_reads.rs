//! A read that a leader answers knows of everything that was acknowledged before it was asked, and reads never go back.

use std::collections::BTreeMap;

use crate::{QueueKey, Send, Task, TaskRun};

/// A read that knew too little.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stale {
    /// Of which queue.
    pub queue: QueueKey,
    /// What was answered as its end.
    pub end: u64,
    /// What was acknowledged, or read, before.
    pub known: u64,
}

impl std::fmt::Display for Stale {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Stale { queue, end, known } = self;
        write!(f, "{queue} was said to end at {end}, after it was known to reach {known}")
    }
}

/// Judges every [`Task::AskEnd`] that was answered.
pub fn find(sends: &[Send], tasks: &[TaskRun]) -> Vec<Stale> {
    // (time at which it was known, end that was known by then), by time.
    let mut known: BTreeMap<&QueueKey, Vec<(u64, u64)>> = BTreeMap::new();
    for send in sends.iter().filter(|send| send.completed_ns < u64::MAX) {
        if let Some(ack) = send.ack().filter(|ack| !ack.early) {
            known.entry(&ack.queue).or_default().push((send.completed_ns, ack.offset + 1));
        }
    }
    let reads = |run: &TaskRun| match &run.task {
        Task::AskEnd { end: Some(end), .. } if run.is_done() => Some(*end),
        _ => None,
    };
    for run in tasks {
        if let (Some(end), Task::AskEnd { queue, .. }) = (reads(run), &run.task) {
            known.entry(queue).or_default().push((run.completed_ns, end));
        }
    }
    for times in known.values_mut() {
        times.sort_unstable();
        let mut highest = 0;
        for (_, end) in times.iter_mut() {
            highest = highest.max(*end);
            *end = highest;
        }
    }
    let stale = tasks.iter().filter_map(|run| {
        let (Some(end), Task::AskEnd { queue, .. }) = (reads(run), &run.task) else { return None };
        let times = known.get(queue)?;
        let before = times.partition_point(|(at_ns, _)| *at_ns < run.invoked_ns);
        let (_, reached) = times.get(before.checked_sub(1)?)?;
        (*reached > end).then(|| Stale { queue: queue.clone(), end, known: *reached })
    });
    stale.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, queue};

    fn read(end: u64, invoked_ns: u64) -> TaskRun {
        TaskRun::done(Task::AskEnd { queue: queue(), end: Some(end) }, invoked_ns, invoked_ns + 5)
    }

    #[test]
    fn a_read_may_know_more_and_not_less_than_what_was_acknowledged_or_read_before() {
        let sends = [acked("a", 0).timed(1, 10), acked("b", 1).timed(2, 30)];
        assert_eq!(find(&sends, &[read(1, 11), read(2, 20), read(2, 40)]), []);
        assert_eq!(find(&sends, &[read(1, 40)]), [Stale { queue: queue(), end: 1, known: 2 }]);
        assert_eq!(find(&[], &[read(7, 11), read(6, 20)]), [Stale { queue: queue(), end: 6, known: 7 }]);
    }
}
