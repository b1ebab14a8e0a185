//! The nemesis: carries out the plan, brings back what it broke, and heals everything in the end.

use std::collections::{BTreeMap, BTreeSet};

use flotilla_checkers::{EventKind, Operation};

use crate::disk::{DiskFaults, Survival};
use crate::executor::Executor;
use crate::group::{Death, Group};
use crate::namesrvs::NAMESRV_ADDRESS_MIN;
use crate::net::{Address, LinkOptions, SimNet};
use crate::options::{Mutant, Options};
use crate::plan::{CutFrom, Fault, Planned, Victim};
use crate::replica::Replica;
use crate::rng::Rng;
use crate::sdk::{SDK_ADDRESS_MIN, SDK_USERS};
use crate::witness::Witness;
use crate::workload::{CLIENT_ADDRESS_MIN, Journal};

/// One thing to do at one time.
enum Act {
    Strike(Fault),
    Start(u64),
    Heal(BTreeSet<(Address, Address)>),
    StopCrashPoints(u64),
    StartNamesrv(u64),
    HealNamesrvs(BTreeSet<(Address, Address)>),
}

/// Of a thousand pages that did not survive whole so many are torn.
const TORN_PERMILLE: u64 = 300;

pub(crate) struct Nemesis {
    options: Options,
    acts: BTreeMap<(u64, u64), Act>,
    act_count: u64,
    rng: Rng,
    net: SimNet<dyn Replica>,
    witness: Witness,
    journal: Journal,
    /// Power losses at crash points bring the machine back after so long, milliseconds.
    healing: bool,
}

impl Nemesis {
    pub(crate) fn new(
        options: &Options,
        plan: Vec<Planned>,
        start_ns: u64,
        net: SimNet<dyn Replica>,
        witness: Witness,
        journal: Journal,
    ) -> Nemesis {
        let mut nemesis = Nemesis {
            options: options.clone(),
            acts: BTreeMap::new(),
            act_count: 0,
            rng: Rng::stream(options.seed, "nemesis"),
            net,
            witness,
            journal,
            healing: false,
        };
        for planned in plan {
            nemesis.schedule(start_ns + planned.at_ms * 1_000_000, Act::Strike(planned.fault));
        }
        nemesis
    }

    fn schedule(&mut self, at_ns: u64, act: Act) {
        self.act_count += 1;
        self.acts.insert((at_ns, self.act_count), act);
    }

    fn schedule_in(&mut self, executor: &Executor, in_ms: u64, act: Act) {
        self.schedule(executor.now_ns() + in_ms * 1_000_000, act);
    }

    /// When it has to do something next.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.acts.keys().next().map(|(at_ns, _)| *at_ns)
    }

    /// Does everything that is due.
    pub(crate) fn act(&mut self, executor: &Executor, group: &mut Group) {
        while self.next_ns().is_some_and(|at_ns| at_ns <= executor.now_ns()) {
            let Some((_, act)) = self.acts.pop_first() else { return };
            match act {
                Act::Strike(fault) => self.strike(executor, group, fault),
                Act::Start(id) => group.start(executor, id),
                Act::Heal(_) if self.options.mutant == Some(Mutant::NeverHeals) => {}
                Act::Heal(links) => {
                    executor.trace().tell(executor.now_ns(), &format!("links heal: {links:?}"));
                    self.net.heal(links);
                }
                Act::StartNamesrv(number) => group.namesrvs.start(executor, number),
                Act::HealNamesrvs(links) => group.namesrvs.net().heal(links),
                Act::StopCrashPoints(id) => group.disk(id).set_faults(DiskFaults::default()),
            }
        }
    }

    fn strike(&mut self, executor: &Executor, group: &mut Group, fault: Fault) {
        executor.trace().tell(executor.now_ns(), &format!("fault: {fault:?}"));
        let all: Vec<u64> = group.ids().collect();
        let (leader, phase) = (group.leader(), group.phase());
        let targets = match &fault {
            Fault::Kill { victim, down_ms } => {
                let id = self.find(group, *victim);
                group.end(executor, id, Death::Kill);
                self.schedule_in(executor, *down_ms, Act::Start(id));
                vec![id]
            }
            Fault::KillAll { down_ms } => {
                for id in &all {
                    group.end(executor, *id, Death::Kill);
                    self.come_back(executor, *id, *down_ms);
                }
                all
            }
            Fault::PowerLoss { victim, down_ms } => {
                let id = self.find(group, *victim);
                let death = match self.options.confirms_early && !group.has_every_vote() {
                    // What a second one holds may be all that is left.
                    true => Death::Kill,
                    false => self.power_loss(),
                };
                group.end(executor, id, death);
                self.schedule_in(executor, *down_ms, Act::Start(id));
                vec![id]
            }
            Fault::PowerLossAll { down_ms } => {
                for id in &all {
                    let death = if self.options.confirms_early { Death::Kill } else { self.power_loss() };
                    group.end(executor, *id, death);
                    self.come_back(executor, *id, *down_ms);
                }
                all
            }
            Fault::CrashPoints { victim, permille, for_ms } => {
                let id = self.find(group, *victim);
                group.disk(id).set_faults(DiskFaults { crash_permille: *permille, ..DiskFaults::default() });
                self.schedule_in(executor, *for_ms, Act::StopCrashPoints(id));
                vec![id]
            }
            Fault::Wipe { victim, down_ms } => {
                let id = self.find(group, *victim);
                // A majority that has lost its disks waits for ever, as it should.
                if group.is_whole() {
                    group.end(executor, id, Death::Kill);
                    group.disk(id).replace();
                    self.witness.lost_disk(id);
                    self.witness.mark("a disk was lost");
                    self.schedule_in(executor, *down_ms, Act::Start(id));
                }
                vec![id]
            }
            Fault::Isolate { victim, clients_too, for_ms } => {
                let id = self.find(group, *victim);
                let clients = (0..self.options.client_count).map(|client| CLIENT_ADDRESS_MIN + client);
                let clients = clients.chain(SDK_ADDRESS_MIN..SDK_ADDRESS_MIN + SDK_USERS);
                let mut others: Vec<Address> = all.into_iter().filter(|other| *other != id).collect();
                others.extend(clients.filter(|_| *clients_too));
                self.cut(executor, others.iter().flat_map(|other| [(id, *other), (*other, id)]).collect(), *for_ms);
                vec![id]
            }
            Fault::OneWay { victim, deaf, for_ms } => {
                let id = self.find(group, *victim);
                let others = all.into_iter().filter(|other| *other != id);
                let links = others.map(|other| if *deaf { (other, id) } else { (id, other) });
                self.cut(executor, links.collect(), *for_ms);
                vec![id]
            }
            Fault::Bridge { victim, for_ms } => {
                let id = self.find(group, *victim);
                let others: Vec<u64> = all.into_iter().filter(|other| *other != id).collect();
                let pairs = others.iter().flat_map(|a| others.iter().map(move |b| (*a, *b)));
                self.cut(executor, pairs.filter(|(a, b)| a != b).collect(), *for_ms);
                vec![id]
            }
            Fault::SyncErrors { victim, count } => {
                let id = self.find(group, *victim);
                group.disk(id).set_faults(DiskFaults { syncs_to_fail: *count, ..DiskFaults::default() });
                vec![id]
            }
            Fault::NamesrvLoss { which, down_ms } => {
                for number in which {
                    group.namesrvs.end(executor, *number);
                    self.schedule_in(executor, *down_ms, Act::StartNamesrv(*number));
                }
                Vec::new()
            }
            Fault::NamesrvCut { which, from, for_ms } => {
                let clients = SDK_ADDRESS_MIN..SDK_ADDRESS_MIN + SDK_USERS;
                let others: Vec<Address> = match from {
                    CutFrom::Brokers => all,
                    CutFrom::Clients => clients.collect(),
                    CutFrom::All => all.into_iter().chain(clients).collect(),
                };
                let pairs = which.iter().map(|number| NAMESRV_ADDRESS_MIN + number);
                let pairs = pairs.flat_map(|namesrv| others.iter().map(move |other| (namesrv, *other)));
                let links: BTreeSet<(Address, Address)> =
                    pairs.flat_map(|(namesrv, other)| [(namesrv, other), (other, namesrv)]).collect();
                group.namesrvs.net().cut(links.iter().copied());
                self.schedule_in(executor, *for_ms, Act::HealNamesrvs(links));
                Vec::new()
            }
            Fault::Transfer => {
                let leader = group.leader();
                if let Some(replica) = leader.and_then(|id| group.replica(id)) {
                    let id = leader.unwrap_or_default();
                    let (witness, net) = (self.witness.clone(), self.net.clone());
                    let asked = net.exchange(CLIENT_ADDRESS_MIN, id, move |_| replica.transfer());
                    let task = async move {
                        if let Ok(Ok(())) = asked.await {
                            witness.mark("leadership was handed over");
                        }
                    };
                    self.net.runtime().spawn("transfer", task).detach();
                }
                leader.into_iter().collect()
            }
        };
        let name = format!("{fault:?}").split([' ', '{']).next().unwrap_or_default().to_owned();
        self.witness.mark("a fault");
        let role = match (&targets[..], leader) {
            ([], _) => "namesrvs",
            ([one], Some(leader)) if *one == leader => "a leader",
            ([_], Some(_)) => "a follower",
            ([_], None) => "a replica",
            _ => "all",
        };
        self.witness.mark(&format!("fault {name} on {role} {phase}"));
        self.journal.record(executor.now_ns(), "nemesis", EventKind::Unknown, Operation::Fault { name, targets });
    }

    fn find(&mut self, group: &Group, victim: Victim) -> u64 {
        let leader = group.leader().unwrap_or(1);
        match victim {
            Victim::Leader => leader,
            Victim::Node(id) => id,
            Victim::Follower(number) => {
                let followers: Vec<u64> = group.ids().filter(|id| *id != leader).collect();
                followers[(number % followers.len() as u64) as usize]
            }
        }
    }

    fn cut(&mut self, executor: &Executor, links: BTreeSet<(Address, Address)>, for_ms: u64) {
        self.witness.mark("a cut");
        self.net.cut(links.iter().copied());
        self.schedule_in(executor, for_ms, Act::Heal(links));
    }

    fn come_back(&mut self, executor: &Executor, id: u64, down_ms: u64) {
        let later_ms = self.rng.below(500);
        self.schedule_in(executor, down_ms + later_ms, Act::Start(id));
    }

    fn power_loss(&mut self) -> Death {
        let survival = Survival { kept_permille: self.options.kept_permille, torn_permille: TORN_PERMILLE };
        Death::PowerLoss { survival, silent: self.rng.chance(500) }
    }

    /// A replica has stopped by itself, or stands at a crash point: its machine loses power now.
    pub(crate) fn stopped(&mut self, executor: &Executor, group: &mut Group, id: u64) {
        group.disk(id).set_faults(DiskFaults::default());
        let death = self.power_loss();
        group.end(executor, id, death);
        let down_ms = if self.healing { 100 } else { *self.rng.pick(&[1, 50, 1_000]) };
        self.schedule_in(executor, down_ms, Act::Start(id));
    }

    /// The end of all faults: every link, disk and machine is well again.
    pub(crate) fn heal(&mut self, executor: &Executor, group: &mut Group) {
        executor.trace().tell(executor.now_ns(), "everything heals");
        self.acts.clear();
        self.healing = true;
        if self.options.mutant != Some(Mutant::NeverHeals) {
            self.net.set_cuts(BTreeSet::new());
        }
        let calm = LinkOptions { latency_us: (50, 500), ..LinkOptions::default() };
        self.net.set_options(calm.clone());
        group.namesrvs.net().set_options(calm);
        group.namesrvs.net().set_cuts(BTreeSet::new());
        for number in group.namesrvs.numbers() {
            group.namesrvs.start(executor, number);
        }
        for id in group.ids() {
            group.disk(id).set_faults(DiskFaults::default());
            group.start(executor, id);
        }
    }
}
