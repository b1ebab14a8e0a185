//! Replicas agree: the same slots at the same offsets, and equal digests at the same applied index.

use std::collections::BTreeMap;

use crate::{Dump, QueueKey, SlotDump};

/// Two replicas that differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Disagreement {
    /// Both applied the same entries and hold different states.
    Digest {
        /// Which two.
        replicas: (u64, u64),
        /// The last entry both applied.
        applied_index: u64,
        /// Their digests.
        digests: (String, String),
    },
    /// A slot that both should hold, and they differ on it.
    Slot {
        /// Which two.
        replicas: (u64, u64),
        /// In which queue.
        queue: QueueKey,
        /// Where in it.
        offset: u64,
        /// What each has there.
        slots: Box<(Option<SlotDump>, Option<SlotDump>)>,
    },
    /// One replica has not reached the other's applied index though it had the time to.
    Behind {
        /// The one ahead, the one behind.
        replicas: (u64, u64),
        /// Their last applied entries.
        applied: (u64, u64),
    },
}

impl std::fmt::Display for Disagreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Disagreement::Digest { replicas: (a, b), applied_index, digests } => write!(
                f,
                "replicas {a} and {b} applied up to {applied_index} and have digests {} and {}",
                digests.0, digests.1
            ),
            Disagreement::Slot { replicas: (a, b), queue, offset, slots } => write!(
                f,
                "replicas {a} and {b} differ at {queue}@{offset}: {} and {}",
                text(slots.0.as_ref()),
                text(slots.1.as_ref())
            ),
            Disagreement::Behind { replicas: (a, b), applied } => {
                write!(f, "replica {a} applied up to {}, replica {b} only up to {}", applied.0, applied.1)
            }
        }
    }
}

fn text(slot: Option<&SlotDump>) -> String {
    slot.map_or_else(
        || "nothing".to_owned(),
        |slot| format!("{} of entry {} #{}", slot.message_id, slot.log_index, slot.ordinal),
    )
}

/// Compares every replica with the first one. With `must_have_converged` replicas that stand at
/// different applied indexes disagree too; without it only what both have is compared.
pub fn find(dumps: &[Dump], must_have_converged: bool) -> Vec<Disagreement> {
    let Some((first, others)) = dumps.split_first() else { return Vec::new() };
    let mut findings = Vec::new();
    for other in others {
        let replicas = (first.replica, other.replica);
        if first.applied_index == other.applied_index {
            if first.digest != other.digest {
                let digests = (first.digest.clone(), other.digest.clone());
                findings.push(Disagreement::Digest { replicas, applied_index: first.applied_index, digests });
            }
        } else if must_have_converged {
            let applied = (first.applied_index, other.applied_index);
            let behind = if applied.0 > applied.1 {
                (replicas, applied)
            } else {
                ((replicas.1, replicas.0), (applied.1, applied.0))
            };
            findings.push(Disagreement::Behind { replicas: behind.0, applied: behind.1 });
        }
        findings.extend(differing_slots(first, other));
    }
    findings
}

/// The first differing slot of each queue; the rest of that queue follows from it.
fn differing_slots(first: &Dump, other: &Dump) -> Vec<Disagreement> {
    let same_index = first.applied_index == other.applied_index;
    let theirs: BTreeMap<&QueueKey, _> = other.queues.iter().map(|queue| (&queue.queue, queue)).collect();
    let ours: BTreeMap<&QueueKey, _> = first.queues.iter().map(|queue| (&queue.queue, queue)).collect();
    let mut names: Vec<&QueueKey> = ours.keys().chain(theirs.keys()).copied().collect();
    names.sort();
    names.dedup();
    let mut findings = Vec::new();
    for name in names {
        let (a, b) = (ours.get(name), theirs.get(name));
        let from = a.map_or(0, |queue| queue.offset_min).max(b.map_or(0, |queue| queue.offset_min));
        let mut a = a.map_or(&[][..], |queue| queue.slots.as_slice()).iter().skip_while(|slot| slot.offset < from);
        let mut b = b.map_or(&[][..], |queue| queue.slots.as_slice()).iter().skip_while(|slot| slot.offset < from);
        loop {
            let (left, right) = (a.next(), b.next());
            if left == right && left.is_some() {
                continue;
            }
            // One has more: only wrong if both stand at the same index.
            let one_ended = left.is_none() || right.is_none();
            if (left.is_none() && right.is_none()) || (one_ended && !same_index) {
                break;
            }
            let offset = left.or(right).map_or(from, |slot| slot.offset);
            findings.push(Disagreement::Slot {
                replicas: (first.replica, other.replica),
                queue: name.clone(),
                offset,
                slots: Box::new((left.cloned(), right.cloned())),
            });
            break;
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::dump;

    #[test]
    fn equal_replicas_agree_and_a_slow_one_is_only_behind() {
        let (a, mut b) = (dump(1, &[(0, "a"), (1, "b")]), dump(2, &[(0, "a")]));
        assert_eq!(find(&[a.clone(), dump(2, &[(0, "a"), (1, "b")])], true), []);
        b.applied_index -= 1;
        b.digest = "other".into();
        assert_eq!(find(&[a.clone(), b.clone()], false), []);
        assert!(matches!(find(&[b, a], true)[..], [Disagreement::Behind { replicas: (1, 2), .. }]));
    }

    #[test]
    fn another_digest_at_the_same_index_is_found() {
        let mut b = dump(2, &[(0, "a")]);
        b.digest = "other".into();
        assert!(matches!(find(&[dump(1, &[(0, "a")]), b], false)[..], [Disagreement::Digest { .. }]));
    }

    #[test]
    fn another_message_or_another_reference_at_an_offset_is_found() {
        let a = dump(1, &[(0, "a"), (1, "b")]);
        let found = find(&[a.clone(), dump(2, &[(0, "a"), (1, "x")])], false);
        assert!(matches!(&found[..], [Disagreement::Slot { offset: 1, .. }]), "{found:?}");
        let mut b = a.clone();
        b.queues[0].slots[0].ordinal = 9;
        assert_eq!(find(&[a, b], false).len(), 1);
    }

    #[test]
    fn a_missing_slot_or_queue_at_the_same_index_is_found() {
        let (a, mut b) = (dump(1, &[(0, "a"), (1, "b")]), dump(2, &[(0, "a")]));
        assert_eq!(find(&[a.clone(), b.clone()], false).len(), 1);
        b.queues.clear();
        assert_eq!(find(&[a, b], false).len(), 1);
    }
}
