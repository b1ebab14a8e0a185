//! At which levels a run's sends are answered.

use flotilla_message::{AckLevel, FlushLevel};
use serde::{Deserialize, Serialize};

use crate::nemesis::{Class, FaultKind};

/// The topics give the lowest of the levels; senders ask for theirs by turns.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// How many copies, sender by sender, over and over.
    pub acks: Vec<AckLevel>,
    /// Whether the copies are on disk by then.
    pub flush: FlushLevel,
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { acks: vec![AckLevel::default()], flush: FlushLevel::default() }
    }
}

impl Levels {
    /// What the topics give.
    pub fn lowest(&self) -> AckLevel {
        self.acks.iter().copied().min().unwrap_or_default()
    }

    /// What a sender asks for, counted from 0.
    pub(crate) fn of_sender(&self, number: u64) -> AckLevel {
        match self.acks.len() as u64 {
            0 => AckLevel::default(),
            count => self.acks[(number % count) as usize],
        }
    }

    /// The options of the command line; none for the defaults.
    pub(crate) fn options(&self) -> String {
        if *self == Levels::default() {
            return String::new();
        }
        let acks: Vec<String> = self.acks.iter().map(ToString::to_string).collect();
        format!(" --ack {} --flush {}", acks.join(","), self.flush)
    }
}

/// Whether the fault may take what a replica had not synced, or had: then nobody is left to count an early answer's message.
pub(crate) fn takes_what_was_written(kind: FaultKind) -> bool {
    let card = kind.card();
    let is_damage = matches!(
        kind,
        FaultKind::FlipSealed
            | FaultKind::FlipActive
            | FaultKind::TornTail
            | FaultKind::WipeDisk
            | FaultKind::MembershipChurn
    );
    card.needs_volumes || card.class == Class::Control || is_damage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_take_turns_and_the_topic_gives_the_least() {
        let levels = Levels { acks: vec![AckLevel::Majority, AckLevel::Async], flush: FlushLevel::Async };
        assert_eq!(levels.lowest(), AckLevel::Async);
        assert_eq!(
            [0, 1, 2].map(|number| levels.of_sender(number)),
            [AckLevel::Majority, AckLevel::Async, AckLevel::Majority]
        );
        assert_eq!(levels.options(), " --ack majority,async --flush async");
        assert_eq!((Levels::default().options().as_str(), Levels::default().lowest()), ("", AckLevel::Majority));
    }

    #[test]
    fn a_killed_process_leaves_what_it_wrote_and_a_power_loss_does_not() {
        assert!(!takes_what_was_written(FaultKind::KillLeader) && !takes_what_was_written(FaultKind::PartitionLeader));
        assert!(takes_what_was_written(FaultKind::PowerLossLeader) && takes_what_was_written(FaultKind::WipeDisk));
    }
}
