//! Each register behaves as one place that is written and read at one instant within each call: linearizable.
//!
//! Every write of a register has a value of its own, which makes this cheap to decide exactly (Gibbons and Korach, *Testing
//! shared memories*, 1997). What writes and reads one value forms a block: in any order that explains the history a block
//! stands together, its write first. So one block must come before another if anything of it ended before something of the
//! other began, which depends on two times of each block only: the first end and the last beginning in it. The history is
//! linearizable if no read brings what nobody wrote, or what was only written afterwards, and no two blocks must each come
//! before the other. (A longer circle of blocks always has such a pair in it.)
//!
//! A write of unknown outcome may take effect at any time after it began, or never: it ends at no time, and counts only if
//! its value was read. Leadership is a register as well, one for each term, written once: that is
//! [`one_leader_per_term`](crate::one_leader_per_term).

use std::collections::BTreeMap;

use crate::{Task, TaskOutcome, TaskRun};

/// Where a register's history has no order that explains it. `None` is the value before the first write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unexplained {
    /// Read, but no write of it was begun that may have happened.
    NeverWritten {
        /// Which register.
        register: String,
        /// What was read.
        value: u64,
    },
    /// Read before its write began.
    ReadTooSoon {
        /// Which register.
        register: String,
        /// What was read.
        value: u64,
    },
    /// Of these two values each must have been there before the other.
    Crossed {
        /// Which register.
        register: String,
        /// One of them.
        one: Option<u64>,
        /// The other.
        other: Option<u64>,
    },
    /// Written twice: whoever made this history did not keep to the rules, and it cannot be judged.
    WrittenTwice {
        /// Which register.
        register: String,
        /// The value.
        value: u64,
    },
}

impl std::fmt::Display for Unexplained {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = |value: &Option<u64>| value.map_or("its first value".to_owned(), |value| value.to_string());
        match self {
            Unexplained::NeverWritten { register, value } => {
                write!(f, "{register} was read as {value}, which nobody had written")
            }
            Unexplained::ReadTooSoon { register, value } => {
                write!(f, "{register} was read as {value} before that was written")
            }
            Unexplained::Crossed { register, one, other } => {
                let (one, other) = (text(one), text(other));
                write!(f, "{register} must have been {one} before it was {other}, and {other} before it was {one}")
            }
            Unexplained::WrittenTwice { register, value } => {
                write!(f, "{register} was given {value} twice: such a history cannot be judged")
            }
        }
    }
}

/// All that wrote and read one value.
#[derive(Debug, Clone, Copy)]
struct Block {
    value: Option<u64>,
    /// When its write began; none was found if never.
    written_at: Option<u64>,
    /// Whether the write surely happened.
    is_done: bool,
    /// The first end of any call.
    first_end: u64,
    /// The last beginning of any call.
    last_start: u64,
    first_read_end: Option<u64>,
}

impl Block {
    fn new(value: Option<u64>) -> Block {
        Block { value, written_at: None, is_done: false, first_end: u64::MAX, last_start: 0, first_read_end: None }
    }

    fn take(&mut self, start: u64, end: u64) {
        self.first_end = self.first_end.min(end);
        self.last_start = self.last_start.max(start);
    }
}

/// Judges every [`Task::SetRegister`] and [`Task::ReadRegister`].
pub fn find(tasks: &[TaskRun]) -> Vec<Unexplained> {
    let mut registers: BTreeMap<&str, BTreeMap<Option<u64>, Block>> = BTreeMap::new();
    let mut findings = Vec::new();
    for run in tasks {
        // What is before the first write was written at time 0, before everything.
        let (start, end) = (run.invoked_ns.saturating_add(1), run.completed_ns.saturating_add(1));
        match &run.task {
            Task::SetRegister { register, value } if run.outcome != TaskOutcome::Refused => {
                let blocks = registers.entry(register).or_insert_with(first_values);
                let block = blocks.entry(Some(*value)).or_insert_with(|| Block::new(Some(*value)));
                if block.written_at.is_some() {
                    findings.push(Unexplained::WrittenTwice { register: register.clone(), value: *value });
                }
                (block.written_at, block.is_done) = (Some(start), run.is_done());
                block.take(start, if run.is_done() { end } else { u64::MAX });
            }
            Task::ReadRegister { register, value } if run.is_done() => {
                let blocks = registers.entry(register).or_insert_with(first_values);
                let block = blocks.entry(*value).or_insert_with(|| Block::new(*value));
                block.take(start, end);
                block.first_read_end = Some(block.first_read_end.map_or(end, |first| first.min(end)));
            }
            _ => {}
        }
    }
    for (register, blocks) in registers {
        let mut judged: Vec<Block> = Vec::with_capacity(blocks.len());
        for block in blocks.into_values() {
            match (block.value, block.written_at, block.first_read_end) {
                (Some(value), None, _) => {
                    findings.push(Unexplained::NeverWritten { register: register.to_owned(), value });
                }
                (Some(value), Some(written_at), Some(read)) if read < written_at => {
                    findings.push(Unexplained::ReadTooSoon { register: register.to_owned(), value });
                }
                // Nobody knows of it: it may never have happened.
                (_, _, None) if !block.is_done => {}
                _ => judged.push(block),
            }
        }
        let crossed = crossed(judged);
        findings.extend(crossed.into_iter().map(|(one, other)| Unexplained::Crossed {
            register: register.to_owned(),
            one,
            other,
        }));
    }
    findings
}

fn first_values() -> BTreeMap<Option<u64>, Block> {
    let first = Block { written_at: Some(0), is_done: true, first_end: 0, ..Block::new(None) };
    BTreeMap::from([(None, first)])
}

/// Pairs of blocks of which each must come before the other; of each circle at least one.
fn crossed(mut blocks: Vec<Block>) -> Vec<(Option<u64>, Option<u64>)> {
    blocks.sort_unstable_by_key(|block| block.first_end);
    // Up to each block: the two that begin last.
    let mut latest: Vec<(usize, Option<usize>)> = Vec::with_capacity(blocks.len());
    for (at, block) in blocks.iter().enumerate() {
        latest.push(match latest.last().copied() {
            None => (at, None),
            Some((top, _)) if blocks[top].last_start < block.last_start => (at, Some(top)),
            Some((top, Some(second))) if blocks[second].last_start >= block.last_start => (top, Some(second)),
            Some((top, _)) => (top, Some(at)),
        });
    }
    let mut pairs = Vec::new();
    for (at, block) in blocks.iter().enumerate() {
        // Each of these has an end before the last beginning in this block.
        let before = blocks.partition_point(|other| other.first_end < block.last_start);
        let Some((top, second)) = before.checked_sub(1).map(|last| latest[last]) else { continue };
        let Some(other) = (if top == at { second } else { Some(top) }) else { continue };
        // Seen from the one that ends first: a pair is told once.
        if blocks[other].last_start > block.first_end && other > at {
            pairs.push((block.value, blocks[other].value));
        }
    }
    pairs
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn write(value: u64, invoked_ns: u64, completed_ns: u64) -> TaskRun {
        TaskRun::done(Task::SetRegister { register: "r".into(), value }, invoked_ns, completed_ns)
    }

    fn read(value: impl Into<Option<u64>>, invoked_ns: u64, completed_ns: u64) -> TaskRun {
        TaskRun::done(Task::ReadRegister { register: "r".into(), value: value.into() }, invoked_ns, completed_ns)
    }

    fn unknown(run: TaskRun) -> TaskRun {
        TaskRun { outcome: TaskOutcome::Unknown, ..run }
    }

    fn refused(run: TaskRun) -> TaskRun {
        TaskRun { outcome: TaskOutcome::Refused, ..run }
    }

    #[test]
    fn calls_that_overlap_may_have_any_order() {
        let calls =
            [read(None, 0, 1), write(1, 2, 20), write(2, 3, 19), read(2, 4, 5), read(1, 6, 18), read(1, 30, 31)];
        assert_eq!(find(&calls), []);
    }

    #[test]
    fn each_thing_that_no_order_explains_is_found() {
        let register = "r".to_owned();
        let crossed = |one, other| vec![Unexplained::Crossed { register: "r".to_owned(), one, other }];
        assert_eq!(find(&[read(7, 1, 2)]), [Unexplained::NeverWritten { register: register.clone(), value: 7 }]);
        let never = [refused(write(7, 1, 2)), read(7, 3, 4)];
        assert_eq!(find(&never), [Unexplained::NeverWritten { register: register.clone(), value: 7 }]);
        assert_eq!(
            find(&[read(7, 1, 2), write(7, 3, 4)]),
            [Unexplained::ReadTooSoon { register: register.clone(), value: 7 }]
        );
        assert_eq!(find(&[write(1, 1, 2), read(None, 3, 4)]), crossed(None, Some(1)));
        assert_eq!(find(&[write(1, 1, 2), write(2, 3, 4), read(1, 5, 6)]), crossed(Some(1), Some(2)));
        let back = [write(1, 1, 2), write(2, 3, 9), read(2, 4, 5), read(1, 6, 7)];
        assert_eq!(find(&back), crossed(Some(1), Some(2)));
        assert_eq!(find(&[write(1, 1, 2), write(1, 3, 4)]), [Unexplained::WrittenTwice { register, value: 1 }]);
    }

    #[test]
    fn what_is_unknown_may_happen_late_or_never_but_once() {
        assert_eq!(find(&[unknown(write(1, 1, 2)), read(None, 3, 4), read(1, 90, 91), read(1, 99, 100)]), []);
        assert_eq!(find(&[unknown(write(1, 1, 2)), write(2, 3, 4), read(2, 5, 6)]), []);
        let twice = [unknown(write(1, 1, 2)), read(1, 3, 4), write(2, 5, 6), read(2, 7, 8), read(1, 9, 10)];
        assert_eq!(find(&twice).len(), 1);
        assert_eq!(find(&[unknown(read(9, 1, 2)), refused(read(8, 1, 2))]), []);
    }

    #[test]
    fn registers_do_not_meet() {
        let other = TaskRun::done(Task::SetRegister { register: "s".into(), value: 5 }, 1, 2);
        assert_eq!(find(&[other, read(None, 3, 4)]), []);
    }

    /// Tries every order: what Wing and Gong do, without any haste.
    fn has_order(calls: &[TaskRun], value: Option<u64>) -> bool {
        let must = |run: &TaskRun| run.outcome == TaskOutcome::Done;
        if !calls.iter().any(must) {
            return true;
        }
        (0..calls.len()).any(|at| {
            let next = &calls[at];
            if calls.iter().any(|other| must(other) && other.completed_ns < next.invoked_ns) {
                return false;
            }
            let rest: Vec<TaskRun> = [&calls[..at], &calls[at + 1..]].concat();
            match &next.task {
                Task::SetRegister { value, .. } => has_order(&rest, Some(*value)),
                Task::ReadRegister { value: read, .. } => *read == value && has_order(&rest, value),
                _ => unreachable!("only registers are tried"),
            }
        })
    }

    /// Up to six calls of which each write has its own value.
    fn any_calls() -> impl Strategy<Value = Vec<TaskRun>> {
        let outcome = prop_oneof![
            6 => Just(TaskOutcome::Done),
            2 => Just(TaskOutcome::Unknown),
            1 => Just(TaskOutcome::Refused),
        ];
        let call = (any::<bool>(), 0_u64..5, 0_u64..12, 0_u64..8, outcome);
        prop::collection::vec(call, 1..7).prop_map(|calls| {
            let mut written = 0;
            let call = |(is_write, value, start, took, outcome): (bool, u64, u64, u64, TaskOutcome)| {
                let run = if is_write {
                    written += 1;
                    write(written, start, start + took)
                } else {
                    read((value > 0).then_some(value), start, start + took)
                };
                TaskRun { outcome, ..run }
            };
            calls.into_iter().map(call).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        #[test]
        fn it_says_the_same_as_trying_every_order(calls in any_calls()) {
            let possible: Vec<TaskRun> = calls
                .iter()
                .filter(|run| match run.task {
                    Task::SetRegister { .. } => run.outcome != TaskOutcome::Refused,
                    _ => run.outcome == TaskOutcome::Done,
                })
                .cloned()
                .collect();
            prop_assert_eq!(find(&calls).is_empty(), has_order(&possible, None), "{:?}", calls);
        }
    }
}
