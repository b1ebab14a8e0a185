//! What hurts: one nemesis a file, each of which knows what it does and how that is healed.

mod amnesia;
mod bridge;
mod clock_drift;
mod clock_jump;
mod consumer_churn;
mod corrupt_link;
mod crash_loop;
mod cut_clients;
mod dead_disk;
mod dead_letters;
mod disk_full;
mod fault;
mod field;
mod flapping;
mod flip_bits;
mod freeze_link;
mod hard_stop;
mod hung_disk;
mod kill;
mod kind;
mod lag_shown;
mod laggard_first;
mod leader_last;
mod leader_returns;
mod lossy_link;
mod lying_disk;
mod majority_gone;
mod membership_churn;
mod namesrv_loss;
mod one_way;
mod only_disk_gone;
mod partition;
mod pause;
mod power_loss;
mod read_only_disk;
mod rewind;
mod ring;
mod rolled_back;
mod rolling_restart;
mod slow_link;
mod slow_sync;
mod sync_error;
mod syncs_fail_then_power;
mod tail_then;
mod topic_churn;
mod torn_tail;
mod transfer_leader;
mod unplug;
mod victim;
mod wipe_disk;
mod write_error;

#[cfg(test)]
pub(crate) mod heal_test;

pub use self::amnesia::Amnesia;
pub use self::bridge::Bridge;
pub use self::clock_drift::ClockDrift;
pub use self::clock_jump::ClockJump;
pub use self::consumer_churn::ConsumerChurn;
pub use self::corrupt_link::CorruptLink;
pub use self::crash_loop::CrashLoop;
pub use self::cut_clients::CutClients;
pub use self::dead_disk::DeadDisk;
pub use self::dead_letters::DeadLetters;
pub use self::disk_full::DiskFull;
pub use self::fault::Fault;
pub(crate) use self::field::LEADER_TIMEOUT;
pub use self::field::{Background, Field, FieldError, Needed};
pub use self::flapping::Flapping;
pub use self::flip_bits::{FilePart, FlipBits};
pub use self::freeze_link::FreezeLink;
pub use self::hard_stop::HardStop;
pub use self::hung_disk::HungDisk;
pub use self::kill::Kill;
pub use self::kind::{Card, Class, FaultKind};
pub use self::lag_shown::LagShown;
pub use self::laggard_first::LaggardFirst;
pub use self::leader_last::LeaderLast;
pub use self::leader_returns::LeaderReturns;
pub use self::lossy_link::LossyLink;
pub use self::lying_disk::LyingDisk;
pub use self::majority_gone::MajorityGone;
pub use self::membership_churn::MembershipChurn;
pub use self::namesrv_loss::NamesrvLoss;
pub use self::one_way::OneWay;
pub use self::only_disk_gone::OnlyDiskGone;
pub use self::partition::{Border, Partition, Style};
pub use self::pause::Pause;
pub use self::power_loss::PowerLoss;
pub use self::read_only_disk::ReadOnlyDisk;
pub use self::rewind::Rewind;
pub use self::ring::Ring;
pub use self::rolled_back::RolledBack;
pub use self::rolling_restart::RollingRestart;
pub use self::slow_link::SlowLink;
pub use self::slow_sync::SlowSync;
pub use self::sync_error::SyncError;
pub use self::syncs_fail_then_power::SyncsFailThenPower;
pub use self::tail_then::{End, TailThen};
pub use self::topic_churn::TopicChurn;
pub use self::torn_tail::TornTail;
pub use self::transfer_leader::TransferLeader;
pub use self::unplug::Unplug;
pub use self::victim::Victim;
pub use self::wipe_disk::WipeDisk;
pub use self::write_error::WriteError;

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
