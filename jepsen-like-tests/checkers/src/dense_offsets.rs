//! Dense offsets: a queue's offsets count 0, 1, 2 ... with no hole and no repetition, on every replica.

use crate::{Dump, QueueKey};

/// A place where the next offset was not the last one plus one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// On which replica.
    pub replica: u64,
    /// In which queue.
    pub queue: QueueKey,
    /// The offset that was due.
    pub expected: u64,
    /// The offset that came.
    pub found: u64,
}

impl std::fmt::Display for Gap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Gap { replica, queue, expected, found } = self;
        write!(f, "replica {replica}: {queue} goes on with offset {found} where {expected} is due")
    }
}

/// Judges every queue of every replica.
pub fn find(dumps: &[Dump]) -> Vec<Gap> {
    let mut gaps = Vec::new();
    for dump in dumps {
        for queue in &dump.queues {
            let mut expected = queue.offset_min;
            for slot in &queue.slots {
                if slot.offset != expected {
                    let (queue, found) = (queue.queue.clone(), slot.offset);
                    gaps.push(Gap { replica: dump.replica, queue, expected, found });
                }
                expected = slot.offset + 1;
            }
        }
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::dump;

    #[test]
    fn consecutive_offsets_are_dense() {
        assert_eq!(find(&[dump(1, &[(0, "a"), (1, "b"), (2, "c")])]), []);
    }

    #[test]
    fn a_hole_and_a_repetition_are_found() {
        let found = find(&[dump(3, &[(0, "a"), (2, "b"), (2, "c"), (3, "d")])]);
        let text: Vec<_> = found.iter().map(ToString::to_string).collect();
        assert_eq!(
            text,
            [
                "replica 3: t/0 goes on with offset 2 where 1 is due",
                "replica 3: t/0 goes on with offset 2 where 3 is due"
            ]
        );
    }

    #[test]
    fn a_queue_must_begin_at_its_minimum() {
        let mut late = dump(1, &[(5, "a")]);
        assert_eq!(find(std::slice::from_ref(&late)).len(), 1);
        late.queues[0].offset_min = 5;
        assert_eq!(find(&[late]), []);
    }
}
