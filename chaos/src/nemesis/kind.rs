//! The faults by name: what each needs, and how one is drawn from a seed.

use std::fmt;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use super::*;
use crate::network_mode::NetworkMode;
use crate::rng::Rng;

/// The faults by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "`card` says what each does, once")]
pub enum FaultKind {
    KillLeader,
    KillFollower,
    KillMinority,
    KillMajority,
    KillAll,
    PauseLeader,
    PauseFollower,
    PauseMajority,
    HardStop,
    CrashLoop,
    RollingRestart,
    LaggardFirst,
    TransferLeader,
    NamesrvLoss,
    PartitionLeader,
    PartitionFollower,
    PartitionHalves,
    Bridge,
    Ring,
    OneWay,
    Flapping,
    FreezeLink,
    CutClients,
    Unplug,
    SlowLink,
    LossyLink,
    CorruptLink,
    PowerLossLeader,
    PowerLossFollower,
    PowerLossAll,
    DiskFullLeader,
    DiskFullFollower,
    DiskFullAll,
    ReadOnlyDisk,
    DeadDisk,
    HungDisk,
    SyncError,
    WriteError,
    NoSpaceError,
    SlowSync,
    FlipSealed,
    FlipActive,
    TornTail,
    WipeDisk,
    MembershipChurn,
    ClockJump,
    ClockDrift,
    TopicChurn,
    ConsumerChurn,
    LyingDisk,
    Rewind,
    Amnesia,
    TailThenKill,
    TailThenPower,
    TailThenDisk,
    MajorityGone,
    OnlyDiskGone,
    RolledBack,
    FlipCheckpoint,
    LagShown,
    DeadLetters,
    LeaderLast,
    LeaderReturns,
    SyncsFailThenPower,
    PartitionLeaderSide,
}

/// What a fault works on: decides which may be active at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Processes that die or stand still.
    Process,
    /// The network between replicas.
    Network,
    /// A replica's disk, or what is on it. The replica may end by itself, as it should.
    Disk,
    /// A replica's wall clock.
    Clock,
    /// Namesrvs and clients, which hold no messages.
    Edge,
    /// Breaks what the cluster's promises rest on: messages must be lost. Shows that the judges see it.
    Control,
    /// For plans that are written: messages may go by right, an operator has to act, or it needs its time. Not in `all`.
    Drill,
}

impl Class {
    /// Whether no run has it unless it is named.
    pub fn is_by_name_only(self) -> bool {
        matches!(self, Class::Control | Class::Drill)
    }

    /// Whether a replica may lose by it what it has, or its place among those that serve.
    pub fn is_solid(self) -> bool {
        matches!(self, Class::Process | Class::Disk | Class::Control | Class::Drill)
    }
}

/// What is known of a kind of fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Card {
    /// For people.
    pub about: About,
    /// What it works on.
    pub class: Class,
    /// Replicas must reach each other through links.
    pub needs_links: bool,
    /// Each replica must have a file system of its own, which needs root.
    pub needs_volumes: bool,
    /// Replicas must run with the shim.
    pub needs_shim: bool,
    /// Where the replicas' network is namespaces, the kernel must be able to lose packets by chance.
    pub needs_packet_loss: bool,
    /// The only way in which the replicas' network can be made for it, where it is not done in every one.
    pub only_in: Option<NetworkMode>,
    /// The smallest group in which it means something.
    pub replicas_min: u64,
}

const fn card(about: About, class: Class) -> Card {
    let needs_links = matches!(class, Class::Network);
    Card {
        about,
        class,
        needs_links,
        needs_volumes: false,
        needs_shim: false,
        needs_packet_loss: false,
        only_in: None,
        replicas_min: 1,
    }
}

const fn on_network(about: About, mode: NetworkMode) -> Card {
    Card { only_in: Some(mode), ..card(about, Class::Network) }
}

const fn on_volume(about: About) -> Card {
    Card { needs_volumes: true, ..card(about, Class::Disk) }
}

const fn drill(about: About) -> Card {
    Card { needs_links: true, replicas_min: 2, ..card(about, Class::Drill) }
}

const fn by_shim(about: About, class: Class) -> Card {
    Card { needs_shim: true, ..card(about, class) }
}

impl FaultKind {
    /// Every fault there is, controls included.
    pub fn every() -> &'static [FaultKind] {
        FaultKind::value_variants()
    }

    /// Every fault under which the cluster must keep its promises.
    pub fn all() -> Vec<FaultKind> {
        FaultKind::every().iter().copied().filter(|kind| !kind.card().class.is_by_name_only()).collect()
    }

    /// What it is, does and needs.
    pub fn card(self) -> Card {
        match self {
            FaultKind::KillLeader => card(kill::LEADER, Class::Process),
            FaultKind::KillFollower => card(kill::FOLLOWER, Class::Process),
            FaultKind::KillMinority => card(kill::MINORITY, Class::Process),
            FaultKind::KillMajority => card(kill::MAJORITY, Class::Process),
            FaultKind::KillAll => card(kill::ALL, Class::Process),
            FaultKind::PauseLeader => card(pause::LEADER, Class::Process),
            FaultKind::PauseFollower => card(pause::FOLLOWER, Class::Process),
            FaultKind::PauseMajority => card(pause::MAJORITY, Class::Process),
            FaultKind::HardStop => card(hard_stop::ABOUT, Class::Process),
            FaultKind::CrashLoop => card(crash_loop::ABOUT, Class::Process),
            FaultKind::RollingRestart => card(rolling_restart::ABOUT, Class::Process),
            FaultKind::LaggardFirst => card(laggard_first::ABOUT, Class::Process),
            FaultKind::TransferLeader => card(transfer_leader::ABOUT, Class::Process),
            FaultKind::NamesrvLoss => card(namesrv_loss::ABOUT, Class::Edge),
            FaultKind::PartitionLeader => card(partition::LEADER, Class::Network),
            FaultKind::PartitionFollower => card(partition::FOLLOWER, Class::Network),
            FaultKind::PartitionHalves => card(partition::HALVES, Class::Network),
            FaultKind::Bridge => Card { replicas_min: 3, ..card(bridge::ABOUT, Class::Network) },
            FaultKind::Ring => Card { replicas_min: 5, ..card(ring::ABOUT, Class::Network) },
            FaultKind::OneWay => card(one_way::ABOUT, Class::Network),
            FaultKind::Flapping => card(flapping::ABOUT, Class::Network),
            FaultKind::FreezeLink => card(freeze_link::ABOUT, Class::Network),
            FaultKind::CutClients => on_network(cut_clients::ABOUT, NetworkMode::Namespaces),
            FaultKind::Unplug => on_network(unplug::ABOUT, NetworkMode::Namespaces),
            FaultKind::SlowLink => on_network(slow_link::ABOUT, NetworkMode::Proxies),
            FaultKind::LossyLink => Card { needs_packet_loss: true, ..card(lossy_link::ABOUT, Class::Network) },
            FaultKind::CorruptLink => on_network(corrupt_link::ABOUT, NetworkMode::Proxies),
            FaultKind::PowerLossLeader => on_volume(power_loss::LEADER),
            FaultKind::PowerLossFollower => on_volume(power_loss::FOLLOWER),
            FaultKind::PowerLossAll => on_volume(power_loss::ALL),
            FaultKind::DiskFullLeader => on_volume(disk_full::LEADER),
            FaultKind::DiskFullFollower => on_volume(disk_full::FOLLOWER),
            FaultKind::DiskFullAll => on_volume(disk_full::ALL),
            FaultKind::ReadOnlyDisk => on_volume(read_only_disk::ABOUT),
            FaultKind::DeadDisk => on_volume(dead_disk::ABOUT),
            FaultKind::HungDisk => on_volume(hung_disk::ABOUT),
            FaultKind::SyncError => by_shim(sync_error::ABOUT, Class::Disk),
            FaultKind::WriteError => by_shim(write_error::ABOUT, Class::Disk),
            FaultKind::NoSpaceError => by_shim(write_error::NO_SPACE, Class::Disk),
            FaultKind::SlowSync => by_shim(slow_sync::ABOUT, Class::Disk),
            FaultKind::FlipSealed => card(flip_bits::SEALED, Class::Disk),
            FaultKind::FlipActive => card(flip_bits::ACTIVE, Class::Disk),
            FaultKind::TornTail => card(torn_tail::ABOUT, Class::Disk),
            FaultKind::WipeDisk => card(wipe_disk::ABOUT, Class::Disk),
            FaultKind::MembershipChurn => Card { replicas_min: 3, ..card(membership_churn::ABOUT, Class::Process) },
            FaultKind::ClockJump => by_shim(clock_jump::ABOUT, Class::Clock),
            FaultKind::ClockDrift => by_shim(clock_drift::ABOUT, Class::Clock),
            FaultKind::TopicChurn => card(topic_churn::ABOUT, Class::Edge),
            FaultKind::ConsumerChurn => card(consumer_churn::ABOUT, Class::Edge),
            FaultKind::LyingDisk => {
                Card { needs_shim: true, needs_volumes: true, ..card(lying_disk::ABOUT, Class::Control) }
            }
            FaultKind::Rewind => card(rewind::ABOUT, Class::Control),
            FaultKind::Amnesia => Card { replicas_min: 3, ..card(amnesia::ABOUT, Class::Control) },
            FaultKind::TailThenKill => drill(tail_then::KILL),
            FaultKind::TailThenPower => Card { needs_volumes: true, ..drill(tail_then::POWER) },
            FaultKind::TailThenDisk => drill(tail_then::DISK),
            FaultKind::MajorityGone => drill(majority_gone::ABOUT),
            FaultKind::OnlyDiskGone => card(only_disk_gone::ABOUT, Class::Control),
            FaultKind::FlipCheckpoint => card(flip_bits::CHECKPOINT, Class::Drill),
            FaultKind::LagShown => Card { replicas_min: 3, ..card(lag_shown::ABOUT, Class::Drill) },
            FaultKind::DeadLetters => card(dead_letters::ABOUT, Class::Drill),
            FaultKind::RolledBack => Card { replicas_min: 3, ..card(rolled_back::ABOUT, Class::Drill) },
            FaultKind::LeaderLast => Card { replicas_min: 3, ..card(leader_last::ABOUT, Class::Drill) },
            FaultKind::LeaderReturns => {
                Card { needs_shim: true, needs_volumes: true, ..card(leader_returns::ABOUT, Class::Drill) }
            }
            FaultKind::SyncsFailThenPower => {
                Card { needs_shim: true, needs_volumes: true, ..card(syncs_fail_then_power::ABOUT, Class::Drill) }
            }
            FaultKind::PartitionLeaderSide => Card { replicas_min: 5, ..card(partition::LEADER_SIDE, Class::Network) },
        }
    }

    /// Whether this may strike while that one holds: never two on disks or processes at a time, for a majority must
    /// keep what it has, and a replica that ends because of its disk must be known to do so. Nor one that waits until a replica
    /// has caught up with one that keeps replicas apart: work is done one after the other, so the wait would hold the links.
    pub fn may_join(self, other: FaultKind) -> bool {
        let (this, that) = (self.card().class, other.card().class);
        // An operator's calls find the brokers by a namesrv.
        let needs_namesrv = |kind| matches!(kind, FaultKind::MembershipChurn);
        let waits_behind = |waiting: FaultKind, holding: FaultKind| {
            (waiting.waits_for_catching_up() && matches!(holding.card().class, Class::Network))
                || (needs_namesrv(waiting) && holding == FaultKind::NamesrvLoss)
        };
        let is_barred = this == that
            || (this.is_solid() && that.is_solid())
            || [this, that].iter().any(|class| class.is_by_name_only())
            || waits_behind(self, other)
            || waits_behind(other, self);
        !is_barred
    }

    fn waits_for_catching_up(self) -> bool {
        matches!(
            self,
            FaultKind::RollingRestart | FaultKind::TornTail | FaultKind::WipeDisk | FaultKind::MembershipChurn
        )
    }

    /// Decides all that can be decided ahead, for a cluster of replicas 1 to `replicas`.
    pub(crate) fn draw(self, rng: &mut Rng, replicas: u64) -> Fault {
        let follower = |rng: &mut Rng| Victim::Follower { pick: rng.below(replicas) };
        let either = |rng: &mut Rng| if rng.coin() { Victim::Leader } else { follower(rng) };
        match self {
            FaultKind::KillLeader => Fault::Kill(Kill { victim: Victim::Leader }),
            FaultKind::KillFollower => Fault::Kill(Kill { victim: follower(rng) }),
            FaultKind::KillMinority => Fault::Kill(Kill { victim: Victim::these(rng, replicas, (replicas - 1) / 2) }),
            FaultKind::KillMajority => Fault::Kill(Kill { victim: Victim::these(rng, replicas, replicas / 2 + 1) }),
            FaultKind::KillAll => Fault::Kill(Kill { victim: Victim::All }),
            FaultKind::PauseLeader => Fault::Pause(Pause { victim: Victim::Leader }),
            FaultKind::PauseFollower => Fault::Pause(Pause { victim: follower(rng) }),
            FaultKind::PauseMajority => Fault::Pause(Pause { victim: Victim::these(rng, replicas, replicas / 2 + 1) }),
            FaultKind::HardStop => Fault::HardStop(HardStop { victim: either(rng) }),
            FaultKind::CrashLoop => Fault::CrashLoop(CrashLoop::draw(rng, replicas)),
            FaultKind::RollingRestart => {
                Fault::RollingRestart(RollingRestart { first: rng.between(1, replicas), replicas })
            }
            FaultKind::LaggardFirst => Fault::LaggardFirst(LaggardFirst::draw(rng, replicas)),
            FaultKind::TransferLeader => Fault::TransferLeader(TransferLeader { pick: rng.below(replicas) }),
            FaultKind::NamesrvLoss => Fault::NamesrvLoss(NamesrvLoss {}),
            FaultKind::PartitionLeader => Fault::Partition(Partition::around_leader(rng)),
            FaultKind::PartitionFollower => Fault::Partition(Partition::around_follower(rng, replicas)),
            FaultKind::PartitionHalves => Fault::Partition(Partition::halves(rng, replicas)),
            FaultKind::Bridge => Fault::Bridge(Bridge::draw(rng, replicas)),
            FaultKind::Ring => Fault::Ring(Ring::draw(rng, replicas)),
            FaultKind::OneWay => Fault::OneWay(OneWay::draw(rng, replicas)),
            FaultKind::Flapping => Fault::Flapping(Flapping::draw(rng)),
            FaultKind::FreezeLink => Fault::FreezeLink(FreezeLink::draw(rng, replicas)),
            FaultKind::CutClients => Fault::CutClients(CutClients { victim: either(rng), style: Style::draw(rng) }),
            FaultKind::Unplug => Fault::Unplug(Unplug { victim: either(rng) }),
            FaultKind::SlowLink => Fault::SlowLink(SlowLink::draw(rng, replicas)),
            FaultKind::LossyLink => Fault::LossyLink(LossyLink::draw(rng)),
            FaultKind::CorruptLink => Fault::CorruptLink(CorruptLink::draw(rng, replicas)),
            FaultKind::PowerLossLeader => Fault::PowerLoss(PowerLoss::draw(rng, Victim::Leader)),
            FaultKind::PowerLossFollower => {
                let victim = follower(rng);
                Fault::PowerLoss(PowerLoss::draw(rng, victim))
            }
            FaultKind::PowerLossAll => Fault::PowerLoss(PowerLoss::draw(rng, Victim::All)),
            FaultKind::DiskFullLeader => Fault::DiskFull(DiskFull { victim: Victim::Leader }),
            FaultKind::DiskFullFollower => Fault::DiskFull(DiskFull { victim: follower(rng) }),
            FaultKind::DiskFullAll => Fault::DiskFull(DiskFull { victim: Victim::All }),
            FaultKind::ReadOnlyDisk => Fault::ReadOnlyDisk(ReadOnlyDisk { victim: either(rng) }),
            FaultKind::DeadDisk => Fault::DeadDisk(DeadDisk { victim: either(rng) }),
            FaultKind::HungDisk => Fault::HungDisk(HungDisk { victim: either(rng) }),
            FaultKind::SyncError => Fault::SyncError(SyncError { victim: either(rng), pass: rng.magnitude(1, 100) }),
            FaultKind::WriteError => Fault::WriteError(WriteError { victim: either(rng), is_full: false }),
            FaultKind::NoSpaceError => Fault::WriteError(WriteError { victim: either(rng), is_full: true }),
            FaultKind::SlowSync => Fault::SlowSync(SlowSync::draw(rng, replicas)),
            FaultKind::FlipSealed => Fault::FlipBits(FlipBits::draw(rng, replicas, FilePart::Sealed)),
            FaultKind::FlipActive => Fault::FlipBits(FlipBits::draw(rng, replicas, FilePart::Active)),
            FaultKind::TornTail => Fault::TornTail(TornTail::draw(rng, replicas)),
            FaultKind::WipeDisk => Fault::WipeDisk(WipeDisk { victim: follower(rng) }),
            FaultKind::MembershipChurn => Fault::MembershipChurn(MembershipChurn { victim: either(rng) }),
            FaultKind::ClockJump => Fault::ClockJump(ClockJump::draw(rng, replicas)),
            FaultKind::ClockDrift => Fault::ClockDrift(ClockDrift::draw(rng, replicas)),
            FaultKind::TopicChurn => Fault::TopicChurn(TopicChurn {}),
            FaultKind::ConsumerChurn => Fault::ConsumerChurn(ConsumerChurn {}),
            FaultKind::LyingDisk => Fault::LyingDisk(LyingDisk {}),
            FaultKind::Rewind => Fault::Rewind(Rewind {}),
            FaultKind::Amnesia => Fault::Amnesia(Amnesia {}),
            FaultKind::TailThenKill => Fault::TailThen(TailThen { cut_ms: tail_then::CUT_MS, end: End::Kill }),
            FaultKind::TailThenPower => Fault::TailThen(TailThen { cut_ms: tail_then::CUT_MS, end: End::Power }),
            FaultKind::TailThenDisk => Fault::TailThen(TailThen { cut_ms: tail_then::CUT_MS, end: End::Disk }),
            FaultKind::MajorityGone => {
                Fault::MajorityGone(MajorityGone { survivor: Victim::Leader, lacks_ms: 0, come_back_empty: false })
            }
            FaultKind::OnlyDiskGone => Fault::OnlyDiskGone(OnlyDiskGone {}),
            FaultKind::FlipCheckpoint => Fault::FlipBits(FlipBits::draw(rng, replicas, FilePart::Checkpoint)),
            FaultKind::LagShown => Fault::LagShown(LagShown { pick: rng.below(replicas), within_ms: 15_000 }),
            FaultKind::DeadLetters => Fault::DeadLetters(DeadLetters {}),
            FaultKind::LeaderLast => Fault::LeaderLast(LeaderLast::draw(rng, replicas)),
            FaultKind::LeaderReturns => Fault::LeaderReturns(LeaderReturns::usual()),
            FaultKind::SyncsFailThenPower => Fault::SyncsFailThenPower(SyncsFailThenPower::of_all()),
            FaultKind::PartitionLeaderSide => Fault::Partition(Partition::around_leader_side(rng, replicas)),
            FaultKind::RolledBack => {
                Fault::RolledBack(RolledBack { victim: follower(rng), age_ms: rng.magnitude(500, 4_000) })
            }
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let value = self.to_possible_value().expect("no fault is hidden");
        f.pad(value.get_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_has_a_name_that_serde_and_clap_agree_on_and_says_what_it_does() {
        for kind in FaultKind::every() {
            let json = serde_json::to_string(kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
            let About { what, heals } = kind.card().about;
            assert!(!what.is_empty() && !heals.is_empty());
        }
    }

    #[test]
    fn a_drawn_fault_survives_the_way_through_json() {
        let mut rng = Rng::new(3);
        for kind in FaultKind::every() {
            for replicas in [3, 5] {
                let fault = kind.draw(&mut rng, replicas);
                let json = serde_json::to_string(&fault).unwrap();
                assert_eq!(serde_json::from_str::<Fault>(&json).unwrap(), fault, "{json}");
            }
        }
    }

    #[test]
    fn controls_are_not_among_all_and_solid_faults_do_not_meet() {
        assert!(!FaultKind::all().contains(&FaultKind::Rewind) && !FaultKind::all().contains(&FaultKind::MajorityGone));
        assert!(!FaultKind::TailThenKill.may_join(FaultKind::NamesrvLoss));
        assert!(FaultKind::KillLeader.may_join(FaultKind::PartitionLeader));
        assert!(FaultKind::WipeDisk.may_join(FaultKind::NamesrvLoss));
        assert!(!FaultKind::KillLeader.may_join(FaultKind::WipeDisk));
        assert!(!FaultKind::OneWay.may_join(FaultKind::Bridge));
        assert!(!FaultKind::RollingRestart.may_join(FaultKind::Bridge));
        assert!(!FaultKind::SlowLink.may_join(FaultKind::WipeDisk));
        assert!(!FaultKind::MembershipChurn.may_join(FaultKind::PartitionLeader), "taking in waits for a leader");
        assert!(!FaultKind::NamesrvLoss.may_join(FaultKind::MembershipChurn), "taking in asks the namesrv for brokers");
        assert!(!FaultKind::Rewind.may_join(FaultKind::NamesrvLoss));
    }
}
