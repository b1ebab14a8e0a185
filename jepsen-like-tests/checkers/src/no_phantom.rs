//! No phantom: whatever is seen was sent, and was not refused.

use std::collections::BTreeMap;

use crate::{QueueKey, Send, SendOutcome};

/// A message that should not exist.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Phantom {
    /// Which message.
    pub message_id: String,
    /// Where it was seen: queue.
    pub queue: QueueKey,
    /// Where it was seen: offset.
    pub offset: u64,
    /// It was sent, but the sender was told that it is surely not stored.
    pub was_refused: bool,
}

impl std::fmt::Display for Phantom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Phantom { message_id, queue, offset, was_refused } = self;
        let why = if *was_refused { "was refused" } else { "was never sent" };
        write!(f, "{message_id} {why}, yet it stands at {queue}@{offset}")
    }
}

/// Judges every place at which a message was seen; each message is named once.
pub fn find<'a>(sends: &[Send], places: impl IntoIterator<Item = (&'a QueueKey, u64, &'a str)>) -> Vec<Phantom> {
    // A message sent twice (a new attempt after a refusal) counts as refused only if both were.
    let mut refused: BTreeMap<&str, bool> = BTreeMap::new();
    for send in sends {
        let this = matches!(send.outcome, SendOutcome::Refused);
        refused.entry(&send.message_id).and_modify(|all| *all &= this).or_insert(this);
    }
    let mut phantoms: BTreeMap<&str, Phantom> = BTreeMap::new();
    for (queue, offset, message_id) in places {
        let was_refused = match refused.get(message_id) {
            Some(false) => continue,
            Some(true) => true,
            None => false,
        };
        phantoms.entry(message_id).or_insert_with(|| Phantom {
            message_id: message_id.to_owned(),
            queue: queue.clone(),
            offset,
            was_refused,
        });
    }
    phantoms.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, queue, refused, unknown};

    #[test]
    fn acked_and_unknown_messages_may_be_seen() {
        let queue = queue();
        assert_eq!(find(&[acked("a", 0), unknown("b")], [(&queue, 0, "a"), (&queue, 1, "b")]), []);
    }

    #[test]
    fn a_message_nobody_sent_is_a_phantom_and_named_once() {
        let queue = queue();
        let found = find(&[acked("a", 0)], [(&queue, 0, "ghost"), (&queue, 0, "ghost")]);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["ghost was never sent, yet it stands at t/0@0"]
        );
    }

    #[test]
    fn a_refused_message_must_not_appear_unless_it_was_sent_again() {
        let queue = queue();
        assert!(find(&[refused("a")], [(&queue, 0, "a")])[0].was_refused);
        assert_eq!(find(&[refused("a"), unknown("a")], [(&queue, 0, "a")]), []);
    }
}
