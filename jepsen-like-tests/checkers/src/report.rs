//! The short account of a run: how much was sent, acknowledged and received, and what went wrong.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::{Delivery, QueueKey, Send, SendOutcome, no_duplicate, no_lost_ack, no_phantom, order_per_queue};

/// What a run's sends and deliveries amount to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// Messages sent.
    pub sent: u64,
    /// Messages acknowledged.
    pub acked: u64,
    /// Surely not stored.
    pub refused: u64,
    /// Without an answer: may or may not be stored.
    pub unknown: u64,
    /// Different messages that arrived.
    pub received: u64,
    /// Deliveries above one for each message and place: allowed by at-least-once.
    pub redelivered: u64,
    /// Messages that arrived though their send got no answer: allowed.
    pub recovered: u64,
    /// Acknowledged, and not received at the acknowledged place.
    pub lost: Vec<String>,
    /// Received at more than one place of the log.
    pub duplicates: Vec<String>,
    /// Received, though never sent or surely refused.
    pub phantoms: Vec<String>,
    /// Received for the first time after a message with a higher offset of the same queue.
    pub out_of_order: Vec<String>,
}

impl Report {
    /// Judges a run whose consumers have drained every queue.
    pub fn of(sends: &[Send], deliveries: &[Delivery]) -> Report {
        let places = || deliveries.iter().map(|seen| (&seen.queue, seen.offset, seen.message_id.as_str()));
        let received: BTreeSet<&str> = deliveries.iter().map(|seen| seen.message_id.as_str()).collect();
        let distinct: BTreeSet<(&QueueKey, u64, &str)> = places().collect();
        let mut report = Report {
            sent: sends.len() as u64,
            received: received.len() as u64,
            redelivered: (deliveries.len() - distinct.len()) as u64,
            ..Report::default()
        };
        for send in sends {
            match send.outcome {
                SendOutcome::Acked(_) => report.acked += 1,
                SendOutcome::Refused => report.refused += 1,
                SendOutcome::Unknown => {
                    report.unknown += 1;
                    report.recovered += u64::from(received.contains(send.message_id.as_str()));
                }
            }
        }
        report.lost =
            no_lost_ack::among_deliveries(sends, deliveries).into_iter().map(|lost| lost.message_id).collect();
        report.duplicates = no_duplicate::find(places()).into_iter().map(|found| found.message_id).collect();
        report.phantoms = no_phantom::find(sends, places()).into_iter().map(|found| found.message_id).collect();
        report.out_of_order = order_per_queue::find(deliveries).into_iter().map(|found| found.message_id).collect();
        report
    }

    /// Whether nothing went wrong; unknown sends and redeliveries are no wrongs.
    pub fn is_clean(&self) -> bool {
        self.lost.is_empty() && self.duplicates.is_empty() && self.phantoms.is_empty() && self.out_of_order.is_empty()
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "sent {}, acked {}, unknown {}, refused {}, received {} (again {}): lost {}, duplicates {}, phantoms {}, out of order {}",
            self.sent,
            self.acked,
            self.unknown,
            self.refused,
            self.received,
            self.redelivered,
            self.lost.len(),
            self.duplicates.len(),
            self.phantoms.len(),
            self.out_of_order.len()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verdict::fixtures::{acked, delivery, refused, unknown};

    #[test]
    fn a_clean_run_counts_and_finds_nothing() {
        let sends = [acked("a", 0), unknown("b"), unknown("c"), refused("d")];
        let report = Report::of(&sends, &[delivery("c-1", 0, "a"), delivery("c-1", 1, "b"), delivery("c-1", 0, "a")]);
        let counts = (
            report.sent,
            report.acked,
            report.unknown,
            report.refused,
            report.received,
            report.redelivered,
            report.recovered,
        );
        assert_eq!(counts, (4, 1, 2, 1, 2, 1, 1));
        assert!(report.is_clean(), "{report}");
    }

    #[test]
    fn each_wrong_makes_it_unclean() {
        let lost = Report::of(&[acked("a", 0)], &[]);
        assert!(lost.lost == ["a"] && !lost.is_clean());
        let twice = Report::of(&[acked("a", 0)], &[delivery("c-1", 0, "a"), delivery("c-1", 1, "a")]);
        assert!(twice.duplicates == ["a"] && !twice.is_clean());
        let phantom = Report::of(&[], &[delivery("c-1", 0, "a")]);
        assert!(phantom.phantoms == ["a"] && !phantom.is_clean());
        let sends = [acked("a", 0), acked("b", 1)];
        let reversed = Report::of(&sends, &[delivery("c-1", 1, "b"), delivery("c-1", 0, "a")]);
        assert!(reversed.out_of_order == ["a"] && !reversed.is_clean());
    }
}
