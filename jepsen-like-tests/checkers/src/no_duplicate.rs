//! No duplicate: a message stands at one place in one queue's log, however often it was sent or delivered.

use std::collections::{BTreeMap, BTreeSet};

use crate::QueueKey;

/// A message with more than one place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Duplicate {
    /// Which message.
    pub message_id: String,
    /// In order, two or more.
    pub places: Vec<(QueueKey, u64)>,
}

impl std::fmt::Display for Duplicate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} stands at {} places:", self.message_id, self.places.len())?;
        self.places.iter().try_for_each(|(queue, offset)| write!(f, " {queue}@{offset}"))
    }
}

/// Judges every place at which a message was seen. The same place seen often (a redelivery, the
/// same slot on another replica) is one place.
pub fn find<'a>(places: impl IntoIterator<Item = (&'a QueueKey, u64, &'a str)>) -> Vec<Duplicate> {
    let mut by_message: BTreeMap<&str, BTreeSet<(&QueueKey, u64)>> = BTreeMap::new();
    for (queue, offset, message_id) in places {
        by_message.entry(message_id).or_default().insert((queue, offset));
    }
    by_message
        .into_iter()
        .filter(|(_, places)| places.len() > 1)
        .map(|(message_id, places)| Duplicate {
            message_id: message_id.to_owned(),
            places: places.into_iter().map(|(queue, offset)| (queue.clone(), offset)).collect(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::queue;

    #[test]
    fn one_place_seen_often_is_no_duplicate() {
        let queue = queue();
        assert_eq!(find([(&queue, 0, "a"), (&queue, 0, "a"), (&queue, 1, "b")]), []);
    }

    #[test]
    fn two_offsets_of_one_queue_are_a_duplicate() {
        let queue = queue();
        let found = find([(&queue, 0, "a"), (&queue, 7, "a")]);
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), ["a stands at 2 places: t/0@0 t/0@7"]);
    }

    #[test]
    fn two_queues_are_a_duplicate() {
        let (queue, other) = (queue(), QueueKey::new("t", 1));
        assert_eq!(find([(&queue, 0, "a"), (&other, 0, "a")]).len(), 1);
    }
}
