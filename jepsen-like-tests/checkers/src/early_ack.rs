//! Acknowledged before the commit: such a message may be gone with its leader, and then it is counted; nothing else is excused.

use std::collections::BTreeSet;

use crate::{Send, SendOutcome};

/// Takes the early acknowledgements of messages that stand nowhere for what they were: unknown outcomes. Answers their
/// messages. One that stands somewhere, or that anybody got, stays a promise like any other.
pub fn set_aside<'a>(sends: &mut [Send], stands: impl IntoIterator<Item = &'a str>) -> Vec<String> {
    let stands: BTreeSet<&str> = stands.into_iter().collect();
    let mut lost = Vec::new();
    for send in sends {
        let is_early = send.ack().is_some_and(|ack| ack.early);
        if is_early && !stands.contains(send.message_id.as_str()) {
            send.outcome = SendOutcome::Unknown;
            lost.push(send.message_id.clone());
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, delivery};
    use crate::{Ack, no_lost_ack};

    fn early(id: &str, offset: u64) -> Send {
        let mut send = acked(id, offset);
        if let SendOutcome::Acked(ack) = &mut send.outcome {
            ack.early = true;
        }
        send
    }

    #[test]
    fn only_an_early_acknowledgement_excuses_a_loss() {
        let mut sends = [early("a", 0), early("b", 1), acked("c", 1)];
        assert_eq!(set_aside(&mut sends, ["a"]), ["b"]);
        let lost = no_lost_ack::among_deliveries(&sends, &[delivery("c-1", 0, "a")]);
        assert_eq!(lost.iter().map(|lost| lost.message_id.as_str()).collect::<Vec<_>>(), ["c"]);
    }

    #[test]
    fn what_stands_must_stand_where_it_was_promised_to() {
        let mut sends = [early("a", 0)];
        assert_eq!(set_aside(&mut sends, ["a"]), [""; 0]);
        assert_eq!(no_lost_ack::among_deliveries(&sends, &[delivery("c-1", 1, "a")]).len(), 1);
        assert_eq!(sends[0].ack().map(|ack| &ack.queue), Some(&Ack::at(crate::verdict::fixtures::queue(), 0).queue));
    }
}
