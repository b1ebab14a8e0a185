//! The fault plan: what will be done to the group and when, drawn from the seed before anything runs.

use serde::{Deserialize, Serialize};

use crate::options::{Options, Size};
use crate::rng::Rng;

/// Whom a fault hits, decided when it strikes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Victim {
    /// Whoever leads; the first replica if nobody does.
    Leader,
    /// Some replica that does not lead; the number chooses.
    Follower(u64),
    /// This replica.
    Node(u64),
}

/// One fault. Times in milliseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Fault {
    /// The process dies; what it wrote stays.
    Kill {
        /// Whom.
        victim: Victim,
        /// How long it stays down.
        down_ms: u64,
    },
    /// All processes die at once.
    KillAll {
        /// How long it stays down.
        down_ms: u64,
    },
    /// The machine loses power: unsynced writes are at chance's mercy.
    PowerLoss {
        /// Whom.
        victim: Victim,
        /// How long it stays down.
        down_ms: u64,
    },
    /// All machines lose power at once, and come back one by one.
    PowerLossAll {
        /// How long it stays down.
        down_ms: u64,
    },
    /// The machine gets an empty disk, unless the group is short of somebody already.
    Wipe {
        /// Whom.
        victim: Victim,
        /// How long it stays down.
        down_ms: u64,
    },
    /// For a while each sync may be the machine's last act before its power goes.
    CrashPoints {
        /// Whom.
        victim: Victim,
        /// Of a thousand syncs so many are the last.
        permille: u64,
        /// How long.
        for_ms: u64,
    },
    /// Cut off from the other replicas, perhaps from clients too, in both directions.
    Isolate {
        /// Whom.
        victim: Victim,
        /// Whether clients cannot reach it either.
        clients_too: bool,
        /// How long.
        for_ms: u64,
    },
    /// The victim hears nobody, or nobody hears it.
    OneWay {
        /// Whom.
        victim: Victim,
        /// True: it hears nobody. False: nobody hears it.
        deaf: bool,
        /// How long.
        for_ms: u64,
    },
    /// The victim still reaches one of the others, and the two others do not reach one another.
    Bridge {
        /// Whom.
        victim: Victim,
        /// How long.
        for_ms: u64,
    },
    /// The leader is asked to hand over.
    Transfer,
    /// Namesrvs die, and come back empty.
    NamesrvLoss {
        /// Numbers from 1.
        which: Vec<u64>,
        /// How long they stay down.
        down_ms: u64,
    },
    /// Namesrvs are cut off.
    NamesrvCut {
        /// Numbers from 1.
        which: Vec<u64>,
        /// From whom.
        from: CutFrom,
        /// How long.
        for_ms: u64,
    },
    /// Syncs answer EIO, and what they were to write is gone even if the next one passes.
    SyncErrors {
        /// Whom.
        victim: Victim,
        /// So many.
        count: u32,
    },
}

/// Who does not reach a namesrv.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CutFrom {
    /// It hears of nothing new, and tells clients what was.
    Brokers,
    /// They live on what they know.
    Clients,
    /// Both.
    All,
}

/// A fault and its time, counted from the beginning of the fault phase.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Planned {
    /// When, milliseconds.
    pub at_ms: u64,
    /// What.
    pub fault: Fault,
}

/// The plan of a run.
pub fn plan(options: &Options) -> Vec<Planned> {
    let mut rng = Rng::stream(options.seed, "faults");
    let mut planned = Vec::new();
    let mut at_ms = match options.size {
        Size::Standard => rng.between(300, 1_500),
        Size::Short => rng.between(100, 500),
    };
    while u128::from(at_ms) < options.fault_phase.as_millis() {
        if let Some(fault) = draw(&mut rng, options) {
            planned.push(Planned { at_ms, fault });
        }
        at_ms += rng.between(options.fault_interval_ms.0, options.fault_interval_ms.1);
    }
    if options.classes.namesrvs {
        planned.extend(namesrv_faults(options));
        planned.sort_by_key(|planned| planned.at_ms);
    }
    planned
}

/// Beside those of replicas, so that both meet.
fn namesrv_faults(options: &Options) -> Vec<Planned> {
    let mut rng = Rng::stream(options.seed, "faults of namesrvs");
    let mut planned = Vec::new();
    // Some strike before the first broker has registered.
    let mut at_ms = rng.between(0, 600);
    while u128::from(at_ms) < options.fault_phase.as_millis() {
        let which = match rng.below(options.namesrv_count + 1) {
            0 => (1..=options.namesrv_count).collect(),
            number => vec![number],
        };
        let fault = match rng.below(5) {
            0 | 1 => Fault::NamesrvLoss { which, down_ms: *rng.pick(&options.down_ms) },
            2 => Fault::NamesrvCut { which, from: CutFrom::Brokers, for_ms: *rng.pick(&options.cut_ms) },
            3 => Fault::NamesrvCut { which, from: CutFrom::Clients, for_ms: *rng.pick(&options.cut_ms) },
            _ => Fault::NamesrvCut { which, from: CutFrom::All, for_ms: *rng.pick(&options.cut_ms) },
        };
        planned.push(Planned { at_ms, fault });
        at_ms += rng.between(options.fault_interval_ms.0, options.fault_interval_ms.1) * 2;
    }
    planned
}

fn draw(rng: &mut Rng, options: &Options) -> Option<Fault> {
    let victim = match rng.below(10) {
        0..=4 => Victim::Leader,
        5..=7 => Victim::Follower(rng.next_u64()),
        _ => Victim::Node(rng.between(1, options.replica_count)),
    };
    let down_ms = *rng.pick(&options.down_ms);
    let for_ms = *rng.pick(&options.cut_ms);
    let classes = &options.classes;
    let mut choices = Vec::new();
    if classes.kills {
        choices.push(Fault::Kill { victim, down_ms });
        if rng.chance(300) {
            choices.push(Fault::KillAll { down_ms });
        }
    }
    if classes.power_losses {
        choices.push(Fault::PowerLoss { victim, down_ms });
        choices.push(Fault::PowerLoss { victim, down_ms });
        if rng.chance(500) {
            choices.push(Fault::PowerLossAll { down_ms });
        }
    }
    if classes.crash_points {
        let permille = *rng.pick(&[20, 100, 500]);
        choices.push(Fault::CrashPoints { victim, permille, for_ms });
        choices.push(Fault::CrashPoints { victim, permille, for_ms });
    }
    if classes.partitions {
        choices.push(Fault::Isolate { victim, clients_too: rng.chance(500), for_ms });
        choices.push(Fault::Bridge { victim, for_ms });
    }
    if classes.one_way {
        choices.push(Fault::OneWay { victim, deaf: rng.chance(500), for_ms });
    }
    if classes.wipes {
        choices.push(Fault::Wipe { victim, down_ms });
    }
    if classes.transfers {
        choices.push(Fault::Transfer);
    }
    if classes.sync_errors {
        choices.push(Fault::SyncErrors { victim, count: rng.between(1, 2) as u32 });
    }
    if choices.is_empty() { None } else { Some(rng.pick(&choices).clone()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Machine;

    #[test]
    fn a_plan_follows_from_its_seed_and_keeps_to_its_classes() {
        let mut faults = 0;
        for seed in 0..200 {
            let options = Options::of(seed, Machine::Store);
            let planned = plan(&options);
            assert_eq!(planned, plan(&options));
            faults += planned.len();
            if !options.classes.power_losses && !options.classes.crash_points {
                let powerless = planned
                    .iter()
                    .filter(|planned| matches!(planned.fault, Fault::PowerLoss { .. } | Fault::PowerLossAll { .. }));
                assert_eq!(powerless.count(), 0);
            }
        }
        assert!(faults > 400, "{faults}");
    }
}
