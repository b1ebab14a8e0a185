//! One fault with all that was decided when the plan was made: data, and what is done by it.

use serde::{Deserialize, Serialize};

use super::*;

/// One fault. Who leads is only known when it strikes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "nemesis", rename_all = "kebab-case")]
#[allow(missing_docs, reason = "each variant is documented at its own type")]
pub enum Fault {
    Kill(Kill),
    Pause(Pause),
    HardStop(HardStop),
    CrashLoop(CrashLoop),
    RollingRestart(RollingRestart),
    LaggardFirst(LaggardFirst),
    TransferLeader(TransferLeader),
    NamesrvLoss(NamesrvLoss),
    Partition(Partition),
    Bridge(Bridge),
    Ring(Ring),
    OneWay(OneWay),
    Flapping(Flapping),
    FreezeLink(FreezeLink),
    CutClients(CutClients),
    Unplug(Unplug),
    SlowLink(SlowLink),
    LossyLink(LossyLink),
    CorruptLink(CorruptLink),
    PowerLoss(PowerLoss),
    DiskFull(DiskFull),
    ReadOnlyDisk(ReadOnlyDisk),
    DeadDisk(DeadDisk),
    HungDisk(HungDisk),
    SyncError(SyncError),
    WriteError(WriteError),
    SlowSync(SlowSync),
    FlipBits(FlipBits),
    TornTail(TornTail),
    WipeDisk(WipeDisk),
    MembershipChurn(MembershipChurn),
    ClockJump(ClockJump),
    ClockDrift(ClockDrift),
    TopicChurn(TopicChurn),
    ConsumerChurn(ConsumerChurn),
    LyingDisk(LyingDisk),
    Rewind(Rewind),
    Amnesia(Amnesia),
    TailThen(TailThen),
    MajorityGone(MajorityGone),
    OnlyDiskGone(OnlyDiskGone),
    RolledBack(RolledBack),
    LagShown(LagShown),
    DeadLetters(DeadLetters),
    LeaderLast(LeaderLast),
    LeaderReturns(LeaderReturns),
    SyncsFailThenPower(SyncsFailThenPower),
}

/// The same for whichever it is.
macro_rules! with_each {
    ($fault:expr, $nemesis:ident => $work:expr) => {
        match $fault {
            Fault::Kill($nemesis) => $work,
            Fault::Pause($nemesis) => $work,
            Fault::HardStop($nemesis) => $work,
            Fault::CrashLoop($nemesis) => $work,
            Fault::RollingRestart($nemesis) => $work,
            Fault::LaggardFirst($nemesis) => $work,
            Fault::TransferLeader($nemesis) => $work,
            Fault::NamesrvLoss($nemesis) => $work,
            Fault::Partition($nemesis) => $work,
            Fault::Bridge($nemesis) => $work,
            Fault::Ring($nemesis) => $work,
            Fault::OneWay($nemesis) => $work,
            Fault::Flapping($nemesis) => $work,
            Fault::FreezeLink($nemesis) => $work,
            Fault::CutClients($nemesis) => $work,
            Fault::Unplug($nemesis) => $work,
            Fault::SlowLink($nemesis) => $work,
            Fault::LossyLink($nemesis) => $work,
            Fault::CorruptLink($nemesis) => $work,
            Fault::PowerLoss($nemesis) => $work,
            Fault::DiskFull($nemesis) => $work,
            Fault::ReadOnlyDisk($nemesis) => $work,
            Fault::DeadDisk($nemesis) => $work,
            Fault::HungDisk($nemesis) => $work,
            Fault::SyncError($nemesis) => $work,
            Fault::WriteError($nemesis) => $work,
            Fault::SlowSync($nemesis) => $work,
            Fault::FlipBits($nemesis) => $work,
            Fault::TornTail($nemesis) => $work,
            Fault::WipeDisk($nemesis) => $work,
            Fault::MembershipChurn($nemesis) => $work,
            Fault::ClockJump($nemesis) => $work,
            Fault::ClockDrift($nemesis) => $work,
            Fault::TopicChurn($nemesis) => $work,
            Fault::ConsumerChurn($nemesis) => $work,
            Fault::LyingDisk($nemesis) => $work,
            Fault::Rewind($nemesis) => $work,
            Fault::Amnesia($nemesis) => $work,
            Fault::TailThen($nemesis) => $work,
            Fault::MajorityGone($nemesis) => $work,
            Fault::OnlyDiskGone($nemesis) => $work,
            Fault::RolledBack($nemesis) => $work,
            Fault::LagShown($nemesis) => $work,
            Fault::DeadLetters($nemesis) => $work,
            Fault::LeaderLast($nemesis) => $work,
            Fault::LeaderReturns($nemesis) => $work,
            Fault::SyncsFailThenPower($nemesis) => $work,
        }
    };
}

impl Fault {
    /// Does the damage; answers to which replicas.
    ///
    /// # Errors
    /// [`FieldError`] if it could not be done; it may be done in part, so it must be healed all the same.
    pub async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let struck = with_each!(self, nemesis => nemesis.hurt(field).await);
        let settled = if self.is_on_network() { field.settle().await } else { Ok(()) };
        struck.and_then(|targets| settled.map(|()| targets))
    }

    /// Undoes the damage.
    ///
    /// # Errors
    /// [`FieldError`] if it cannot be undone.
    pub async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        let healed = with_each!(self, nemesis => nemesis.heal(field, targets).await);
        let settled = if self.is_on_network() { field.settle().await } else { Ok(()) };
        healed.and(settled)
    }

    /// Whether it changes the network between the processes, which must then be made to work so.
    fn is_on_network(&self) -> bool {
        matches!(
            self,
            Fault::Partition(_)
                | Fault::Bridge(_)
                | Fault::Ring(_)
                | Fault::OneWay(_)
                | Fault::Flapping(_)
                | Fault::FreezeLink(_)
                | Fault::SlowLink(_)
                | Fault::LossyLink(_)
                | Fault::CorruptLink(_)
                | Fault::CutClients(_)
                | Fault::Unplug(_)
        )
    }

    /// How long the fault takes by itself, beside its hold: a guess, to leave it the room in a plan.
    pub(crate) fn busy_ms(&self) -> u64 {
        match self {
            Fault::CrashLoop(nemesis) => nemesis.lives_ms.iter().sum::<u64>() + 500,
            Fault::RollingRestart(nemesis) => 1_000 * nemesis.replicas,
            Fault::MembershipChurn(_) => 4_000,
            Fault::Amnesia(_) | Fault::MajorityGone(_) => 14_000,
            Fault::RolledBack(nemesis) => nemesis.age_ms + 2_000,
            Fault::LagShown(nemesis) => 2 * nemesis.within_ms,
            Fault::DeadLetters(_) => 20_000,
            Fault::TailThen(_) | Fault::OnlyDiskGone(_) => 1_500,
            Fault::LaggardFirst(nemesis) => nemesis.lag_ms + nemesis.alone_ms + 1_000,
            Fault::LeaderLast(nemesis) => nemesis.lag_ms + nemesis.without_ms + 500,
            Fault::LeaderReturns(nemesis) => nemesis.goes_on_ms + nemesis.alone_ms + 1_000,
            Fault::SyncsFailThenPower(nemesis) => nemesis.works_ms + 1_500,
            Fault::HardStop(_) | Fault::PowerLoss(_) | Fault::LyingDisk(_) | Fault::Rewind(_) => 1_500,
            Fault::ReadOnlyDisk(_) | Fault::DeadDisk(_) | Fault::FlipBits(_) | Fault::TornTail(_) => 1_000,
            Fault::WipeDisk(_) | Fault::DiskFull(_) => 1_000,
            Fault::Kill(_) | Fault::TransferLeader(_) | Fault::NamesrvLoss(_) => 500,
            Fault::SyncError(_) | Fault::WriteError(_) => 500,
            _ => 100,
        }
    }

    /// Whether there is anything to hold: a rolling restart or a transfer is over when it is done.
    pub(crate) fn is_held(&self) -> bool {
        !matches!(
            self,
            Fault::RollingRestart(_) | Fault::TransferLeader(_) | Fault::LaggardFirst(_) | Fault::LeaderLast(_)
        )
    }
}
