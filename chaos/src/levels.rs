//! At which levels a run's sends are answered.

use std::fmt;

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
    /// Senders ask for these by turns as well; empty: for `flush` all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flushes: Vec<FlushLevel>,
}

/// What one sender asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Level {
    /// How many copies.
    pub ack: AckLevel,
    /// Whether they are on disk.
    pub flush: FlushLevel,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ack, self.flush)
    }
}

impl Default for Levels {
    fn default() -> Levels {
        Levels { acks: vec![AckLevel::default()], flush: FlushLevel::default(), flushes: Vec::new() }
    }
}

impl Levels {
    /// Senders ask for all of these by turns.
    pub fn by_turns(acks: Vec<AckLevel>, flushes: Vec<FlushLevel>) -> Levels {
        let flush = flushes.iter().copied().min().unwrap_or_default();
        let flushes = if flushes.len() > 1 { flushes } else { Vec::new() };
        Levels { acks, flush, flushes }
    }

    /// What the topics give.
    pub fn lowest(&self) -> AckLevel {
        self.acks.iter().copied().min().unwrap_or_default()
    }

    /// What a sender asks for, counted from 0.
    pub(crate) fn of_sender(&self, number: u64) -> Level {
        let (acks, flushes) = (self.acks.len().max(1) as u64, self.flushes.len().max(1) as u64);
        let ack = self.acks.get((number % acks) as usize).copied().unwrap_or_default();
        let flush = self.flushes.get((number / acks % flushes) as usize).copied().unwrap_or(self.flush);
        Level { ack, flush }
    }

    /// What the sender of that name asks for, by the number at the name's end.
    pub(crate) fn of_process(&self, process: &str) -> Option<Level> {
        let number: u64 = process.rsplit_once('-')?.1.parse().ok()?;
        Some(self.of_sender(number.checked_sub(1)?))
    }

    /// The options of the command line; none for the defaults.
    pub(crate) fn options(&self) -> String {
        if *self == Levels::default() {
            return String::new();
        }
        let acks: Vec<String> = self.acks.iter().map(ToString::to_string).collect();
        let mut flushes: Vec<String> = self.flushes.iter().map(ToString::to_string).collect();
        if flushes.is_empty() {
            flushes.push(self.flush.to_string());
        }
        format!(" --ack {} --flush {}", acks.join(","), flushes.join(","))
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
            | FaultKind::TailThenDisk
            | FaultKind::MajorityGone
    );
    card.needs_volumes || card.class == Class::Control || is_damage
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn senders_take_turns_and_the_topic_gives_the_least() {
        let acks = vec![AckLevel::Majority, AckLevel::Async];
        let mut levels = Levels { acks, flush: FlushLevel::Async, flushes: Vec::new() };
        assert_eq!(levels.lowest(), AckLevel::Async);
        assert_eq!(
            [0, 1, 2].map(|number| levels.of_sender(number).ack),
            [AckLevel::Majority, AckLevel::Async, AckLevel::Majority]
        );
        assert_eq!(levels.options(), " --ack majority,async --flush async");
        levels.flushes = vec![FlushLevel::Async, FlushLevel::Sync];
        let of_four = [0, 1, 2, 3].map(|number| levels.of_sender(number).to_string());
        assert_eq!(of_four, ["majority/async", "async/async", "majority/sync", "async/sync"]);
        assert_eq!(levels.of_process("fifo-producer-4"), Some(levels.of_sender(3)));
        assert_eq!((levels.of_process("producer"), levels.of_process("producer-0")), (None, None));
        assert_eq!(levels.options(), " --ack majority,async --flush async,sync");
        assert_eq!((Levels::default().options().as_str(), Levels::default().lowest()), ("", AckLevel::Majority));
    }

    #[test]
    fn a_killed_process_leaves_what_it_wrote_and_a_power_loss_does_not() {
        assert!(!takes_what_was_written(FaultKind::KillLeader) && !takes_what_was_written(FaultKind::PartitionLeader));
        assert!(takes_what_was_written(FaultKind::PowerLossLeader) && takes_what_was_written(FaultKind::WipeDisk));
    }
}
