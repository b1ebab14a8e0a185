//! What hurts: one nemesis a file, each of which knows what it does and how that is healed.

mod crash_loop;
mod field;
mod freeze_link;
mod kill;
mod one_way;
mod partition;
mod pause;
mod rolling_restart;
mod slow_link;
mod transfer_leader;
mod victim;

#[cfg(test)]
mod heal_test;

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

pub use self::crash_loop::CrashLoop;
pub(crate) use self::field::LEADER_TIMEOUT;
pub use self::field::{Field, FieldError};
pub use self::freeze_link::FreezeLink;
pub use self::kill::Kill;
pub use self::one_way::OneWay;
pub use self::partition::{Border, Partition, Style};
pub use self::pause::Pause;
pub use self::rolling_restart::RollingRestart;
pub use self::slow_link::SlowLink;
pub use self::transfer_leader::TransferLeader;
pub use self::victim::Victim;
use crate::rng::Rng;

/// What every nemesis can do.
///
/// - `hurt` must either do its damage and answer to which replicas, or do nothing and say why;
/// - `heal` must undo what `hurt` did to these targets, also if `hurt` failed half-way, and do no harm when there is
///   nothing to undo.
trait Nemesis {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError>;
    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError>;
}

/// What people need to know of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct About {
    /// What it does.
    pub what: &'static str,
    /// How it heals.
    pub heals: &'static str,
}

/// The faults by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`about` says what each does, once")]
pub enum FaultKind {
    KillLeader,
    KillFollower,
    KillAll,
    PauseLeader,
    PauseFollower,
    CrashLoop,
    RollingRestart,
    TransferLeader,
    PartitionLeader,
    PartitionHalves,
    OneWay,
    FreezeLink,
    SlowLink,
}

/// One fault with all that was decided when the plan was made. Who leads is only known when it strikes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "nemesis", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each variant is documented at its own type")]
pub enum Fault {
    Kill(Kill),
    Pause(Pause),
    CrashLoop(CrashLoop),
    RollingRestart(RollingRestart),
    TransferLeader(TransferLeader),
    Partition(Partition),
    OneWay(OneWay),
    FreezeLink(FreezeLink),
    SlowLink(SlowLink),
}

impl FaultKind {
    /// Every fault there is.
    pub fn all() -> &'static [FaultKind] {
        FaultKind::value_variants()
    }

    /// What it does and how it heals.
    pub fn about(self) -> About {
        match self {
            FaultKind::KillLeader => kill::LEADER,
            FaultKind::KillFollower => kill::FOLLOWER,
            FaultKind::KillAll => kill::ALL,
            FaultKind::PauseLeader => pause::LEADER,
            FaultKind::PauseFollower => pause::FOLLOWER,
            FaultKind::CrashLoop => crash_loop::ABOUT,
            FaultKind::RollingRestart => rolling_restart::ABOUT,
            FaultKind::TransferLeader => transfer_leader::ABOUT,
            FaultKind::PartitionLeader => partition::LEADER,
            FaultKind::PartitionHalves => partition::HALVES,
            FaultKind::OneWay => one_way::ABOUT,
            FaultKind::FreezeLink => freeze_link::ABOUT,
            FaultKind::SlowLink => slow_link::ABOUT,
        }
    }

    /// Whether replicas must reach each other through links that can be hurt.
    pub fn needs_links(self) -> bool {
        match self {
            FaultKind::KillLeader
            | FaultKind::KillFollower
            | FaultKind::KillAll
            | FaultKind::PauseLeader
            | FaultKind::PauseFollower
            | FaultKind::CrashLoop
            | FaultKind::RollingRestart
            | FaultKind::TransferLeader => false,
            FaultKind::PartitionLeader
            | FaultKind::PartitionHalves
            | FaultKind::OneWay
            | FaultKind::FreezeLink
            | FaultKind::SlowLink => true,
        }
    }

    /// Decides all that can be decided ahead, for a cluster of replicas 1 to `replicas`.
    pub(crate) fn draw(self, rng: &mut Rng, replicas: u64) -> Fault {
        match self {
            FaultKind::KillLeader => Fault::Kill(Kill { victim: Victim::Leader }),
            FaultKind::KillFollower => Fault::Kill(Kill { victim: Victim::Follower { pick: rng.below(replicas) } }),
            FaultKind::KillAll => Fault::Kill(Kill { victim: Victim::All }),
            FaultKind::PauseLeader => Fault::Pause(Pause { victim: Victim::Leader }),
            FaultKind::PauseFollower => Fault::Pause(Pause { victim: Victim::Follower { pick: rng.below(replicas) } }),
            FaultKind::CrashLoop => Fault::CrashLoop(CrashLoop::draw(rng, replicas)),
            FaultKind::RollingRestart => {
                Fault::RollingRestart(RollingRestart { first: rng.between(1, replicas), replicas })
            }
            FaultKind::TransferLeader => Fault::TransferLeader(TransferLeader { pick: rng.below(replicas) }),
            FaultKind::PartitionLeader => Fault::Partition(Partition::around_leader(rng)),
            FaultKind::PartitionHalves => Fault::Partition(Partition::halves(rng, replicas)),
            FaultKind::OneWay => Fault::OneWay(OneWay::draw(rng, replicas)),
            FaultKind::FreezeLink => Fault::FreezeLink(FreezeLink::draw(rng, replicas)),
            FaultKind::SlowLink => Fault::SlowLink(SlowLink::draw(rng, replicas)),
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no fault is hidden");
        f.pad(value.get_name())
    }
}

impl Fault {
    /// Does the damage; answers to which replicas.
    ///
    /// # Errors
    /// [`FieldError`] if it could not be done; it may be done in part, so it must be healed all the same.
    pub async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        match self {
            Fault::Kill(nemesis) => nemesis.hurt(field).await,
            Fault::Pause(nemesis) => nemesis.hurt(field).await,
            Fault::CrashLoop(nemesis) => nemesis.hurt(field).await,
            Fault::RollingRestart(nemesis) => nemesis.hurt(field).await,
            Fault::TransferLeader(nemesis) => nemesis.hurt(field).await,
            Fault::Partition(nemesis) => nemesis.hurt(field).await,
            Fault::OneWay(nemesis) => nemesis.hurt(field).await,
            Fault::FreezeLink(nemesis) => nemesis.hurt(field).await,
            Fault::SlowLink(nemesis) => nemesis.hurt(field).await,
        }
    }

    /// Undoes the damage.
    ///
    /// # Errors
    /// [`FieldError`] if it cannot be undone.
    pub async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        match self {
            Fault::Kill(nemesis) => nemesis.heal(field, targets).await,
            Fault::Pause(nemesis) => nemesis.heal(field, targets).await,
            Fault::CrashLoop(nemesis) => nemesis.heal(field, targets).await,
            Fault::RollingRestart(nemesis) => nemesis.heal(field, targets).await,
            Fault::TransferLeader(nemesis) => nemesis.heal(field, targets).await,
            Fault::Partition(nemesis) => nemesis.heal(field, targets).await,
            Fault::OneWay(nemesis) => nemesis.heal(field, targets).await,
            Fault::FreezeLink(nemesis) => nemesis.heal(field, targets).await,
            Fault::SlowLink(nemesis) => nemesis.heal(field, targets).await,
        }
    }

    /// How long the fault takes by itself, beside its hold: a guess, to leave it the room in a plan.
    pub(crate) fn busy_ms(&self) -> u64 {
        match self {
            Fault::CrashLoop(nemesis) => nemesis.lives_ms.iter().sum::<u64>() + 500,
            Fault::RollingRestart(nemesis) => 1_000 * nemesis.replicas,
            Fault::Kill(_) | Fault::TransferLeader(_) => 500,
            Fault::Pause(_) | Fault::Partition(_) | Fault::OneWay(_) | Fault::FreezeLink(_) | Fault::SlowLink(_) => 100,
        }
    }

    /// Whether there is anything to hold: a rolling restart or a transfer is over when it is done.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(self, Fault::RollingRestart(_) | Fault::TransferLeader(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_name_that_serde_and_clap_agree_on_and_says_what_it_does() {
        for kind in FaultKind::all() {
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
            let About { what, heals } = kind.about();
            assert!(!what.is_empty() && !heals.is_empty());
        }
    }

    #[test]
    fn a_drawn_fault_survives_the_way_through_json() {
        let mut rng = Rng::new(3);
        for kind in FaultKind::all() {
            for replicas in [3, 5] {
                let fault = kind.draw(&mut rng, replicas);
                let json = serde_json::to_string(&fault).unwrap();
                assert_eq!(serde_json::from_str::<Fault>(&json).unwrap(), fault, "{json}");
            }
        }
    }
}
