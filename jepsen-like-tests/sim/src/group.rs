//! The group under test: its machines with their disks, and the lives of the replicas on them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use flotilla_checkers::{EventKind, Leadership, Operation, QueueKey};
use flotilla_raft_log::{FlushMode, LogConfig, LogStatus, NodeId, RaftTiming, Role};
use flotilla_runtime::Runtime;

use crate::broker_replica::BrokerReplica;
use crate::disk::{Losses, SimDisk, Survival};
use crate::errands::topics::errand_queues;
use crate::executor::{Executor, Life, LifeOptions, lock};
use crate::namesrvs::Namesrvs;
use crate::net::SimNet;
use crate::options::{Machine, Options};
use crate::replica::{LogReplica, Replica};
use crate::rng::Rng;
use crate::store::Store;
use crate::toy::Toy;
use crate::witness::{POWER_LOSS, Witness};
use crate::workload::Journal;

/// How a replica's life is ended.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Death {
    /// The process dies, the machine lives on.
    Kill,
    /// The machine loses power. With `silent` peers are not told by a reset.
    PowerLoss { survival: Survival, silent: bool },
}

/// What a replica's main task has to say.
enum News {
    Opened(Arc<dyn Replica>),
    /// It did not open, or must stop.
    Failed(String),
}

struct Node {
    id: u64,
    disk: SimDisk,
    running: Option<Running>,
    /// How often it was started.
    starts: u64,
    leads: bool,
}

struct Running {
    life: Life,
    runtime: Runtime,
    news: Arc<Mutex<Vec<News>>>,
    replica: Option<Arc<dyn Replica>>,
}

pub(crate) struct Group {
    options: Options,
    /// Of the plain topic.
    pub(crate) queues: Vec<QueueKey>,
    /// All.
    looked: Vec<QueueKey>,
    nodes: Vec<Node>,
    pub(crate) namesrvs: Namesrvs,
    net: SimNet<dyn Replica>,
    witness: Witness,
    journal: Journal,
    rng: Rng,
    leaders: BTreeSet<Leadership>,
    /// The leader that was killed last, and when; none once it is back, or another leads.
    leader_killed: Option<(u64, u64)>,
}

impl Group {
    pub(crate) fn new(
        options: &Options,
        disks: Vec<SimDisk>,
        namesrvs: Namesrvs,
        net: SimNet<dyn Replica>,
        witness: Witness,
        journal: Journal,
    ) -> Group {
        let nodes =
            disks.into_iter().zip(1..).map(|(disk, id)| Node { id, disk, running: None, starts: 0, leads: false });
        let queues: Vec<QueueKey> = (0..options.queue_count).map(|queue| QueueKey::new("orders", queue)).collect();
        let mut looked = queues.clone();
        if options.errands {
            looked.extend(errand_queues());
        }
        Group {
            options: options.clone(),
            queues,
            looked,
            nodes: nodes.collect(),
            namesrvs,
            net,
            witness,
            journal,
            rng: Rng::stream(options.seed, "lives"),
            leaders: BTreeSet::new(),
            leader_killed: None,
        }
    }

    fn node(&mut self, id: u64) -> &mut Node {
        &mut self.nodes[id as usize - 1]
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.options.replica_count
    }

    pub(crate) fn disk(&self, id: u64) -> &SimDisk {
        &self.nodes[id as usize - 1].disk
    }

    pub(crate) fn is_up(&self, id: u64) -> bool {
        self.nodes[id as usize - 1].running.is_some()
    }

    /// The replica, if it is up and open.
    pub(crate) fn replica(&self, id: u64) -> Option<Arc<dyn Replica>> {
        self.nodes[id as usize - 1].running.as_ref()?.replica.clone()
    }

    pub(crate) fn statuses(&self) -> Vec<LogStatus> {
        self.ids().filter_map(|id| Some(self.replica(id)?.status())).collect()
    }

    /// Who leads in the highest term, as far as the leaders themselves know.
    pub(crate) fn leader(&self) -> Option<u64> {
        let leaders = self.statuses().into_iter().filter(|status| status.role == Role::Leader);
        leaders.max_by_key(|status| status.term).map(|status| status.node.0)
    }

    /// What the group is going through.
    pub(crate) fn phase(&self) -> &'static str {
        let statuses = self.statuses();
        if !statuses.iter().any(|status| status.can_write) {
            "without a leader"
        } else if (statuses.len() as u64) < self.options.replica_count {
            "while others are down"
        } else if statuses.iter().any(|status| status.applied.is_none() || status.applied < status.committed) {
            "while one catches up"
        } else {
            "in peace"
        }
    }

    /// Starts a replica that is down.
    pub(crate) fn start(&mut self, executor: &Executor, id: u64) {
        if self.is_up(id) {
            return;
        }
        if self.leader_killed.is_some_and(|(killed, _)| killed == id) {
            self.leader_killed = None;
        }
        let mut life_options = LifeOptions::named(format!("replica {id}"));
        let wall_max = self.options.wall_offset_ms_max;
        life_options.wall_offset_ms = self.rng.between(0, 2 * wall_max) as i64 - wall_max as i64;
        life_options.blocking_us = self.options.sync_us;
        life_options.stall_permille = self.options.stall_permille;
        life_options.stall_us = self.options.stall_us;
        let (life, runtime) = executor.begin_life(life_options);
        let voters = self.ids().map(NodeId);
        let mut config =
            LogConfig::new(PathBuf::from(format!("/replica-{id}/log")), "sim", "group-a", NodeId(id), voters);
        config.segment_bytes = self.options.segment_bytes;
        config.tail_cache_bytes = 64 * 1024;
        config.elect_on_peer_gone = self.options.elect_on_peer_gone;
        if self.options.confirms_early {
            config.flush = FlushMode::Async { interval_ms: 100, bytes: 64 << 10 };
        }

        self.net.power_on(id);
        let (witness, net) = (self.witness.clone(), self.net.clone());
        let namesrvs = self.namesrvs.net().clone();
        let machine = self.options.machine;
        let node = self.node(id);
        node.starts += 1;
        let disk = node.disk.attach();
        let news = Arc::new(Mutex::new(Vec::new()));
        node.running = Some(Running { life, runtime: runtime.clone(), news: news.clone(), replica: None });
        executor.trace().tell(executor.now_ns(), &format!("replica {id} starts"));

        let (queues, options) = (self.looked.clone(), self.options.clone());
        let inner = runtime.clone();
        let main = async move {
            let transport = net.transport_of(id);
            let opened = match machine {
                Machine::Store => {
                    LogReplica::<Store>::open(config, queues, inner.clone(), disk, transport, witness, &options).await
                }
                Machine::Broker => {
                    let (runtime, nets) = (inner.clone(), (net.clone(), namesrvs));
                    BrokerReplica::open(id, &options, queues, runtime, disk, nets, witness).await
                }
                Machine::Toy => {
                    LogReplica::<Toy>::open(config, queues, inner.clone(), disk, transport, witness, &options).await
                }
            };
            let failed = match opened {
                Ok(replica) => {
                    net.listen(id, inner, replica.clone());
                    lock(&news).push(News::Opened(replica.clone()));
                    let failed = replica.failed();
                    drop(replica);
                    failed.await
                }
                Err(error) => format!("does not open: {error}"),
            };
            lock(&news).push(News::Failed(failed));
        };
        runtime.spawn("main", main).detach();
    }

    /// Ends a replica's life, if it has one.
    pub(crate) fn end(&mut self, executor: &Executor, id: u64, death: Death) {
        let net = self.net.clone();
        let node = self.node(id);
        let led = std::mem::take(&mut node.leads);
        let Some(running) = node.running.take() else {
            if let Death::PowerLoss { survival, .. } = death {
                node.disk.lose_power(survival);
            }
            return;
        };
        if led && !matches!(death, Death::PowerLoss { silent: true, .. }) {
            self.leader_killed = Some((id, executor.now_ns()));
        }
        let node = self.node(id);
        // The disk first: a dying process writes nothing more, whatever its destructors try.
        node.disk.kill();
        let silent = matches!(death, Death::PowerLoss { silent: true, .. });
        executor.end_life(running.life);
        let runtime = running.runtime.clone();
        runtime.enter(|| {
            net.vanish(id, silent);
            drop(running);
        });
        let text = match death {
            Death::Kill => format!("replica {id} is killed"),
            Death::PowerLoss { survival, .. } => {
                let Losses { kept, reverted, torn, names } = node.disk.lose_power(survival);
                self.witness.mark(POWER_LOSS);
                if led && reverted + torn > 0 {
                    self.witness.mark("a leader lost unsynced pages");
                }
                for (count, what) in
                    [(reverted, "a page was lost"), (torn, "a page was torn"), (names, "a name was lost")]
                {
                    if count > 0 {
                        self.witness.mark(what);
                    }
                }
                format!(
                    "replica {id} loses power: unsynced pages kept {kept}, lost {reverted}, torn {torn}; names lost {names}"
                )
            }
        };
        executor.trace().tell(executor.now_ns(), &text);
    }

    /// To be called after every step: takes note of what replicas say of themselves. Answers who
    /// has reached a crash point or has stopped.
    pub(crate) fn attend(&mut self, executor: &Executor) -> Option<u64> {
        let mut stopped = None;
        for node in &mut self.nodes {
            let Some(running) = &mut node.running else { continue };
            if node.disk.take_crash_due() {
                self.witness.mark("a crash point was reached");
                stopped = Some(node.id);
            }
            for news in std::mem::take(&mut *lock(&running.news)) {
                match news {
                    News::Opened(replica) => {
                        let status = replica.status();
                        self.witness.came_back(node.id, status.term.0);
                        self.witness.opened(node.id, &replica);
                        let applied = status.applied;
                        executor
                            .trace()
                            .tell(executor.now_ns(), &format!("replica {} is open, applied {applied:?}", node.id));
                        running.replica = Some(replica);
                    }
                    // At its crash point the disk answers nothing but errors: no wonder.
                    News::Failed(_) if node.disk.is_frozen() => stopped = Some(node.id),
                    News::Failed(_) if node.disk.has_failed() => {
                        self.witness.mark("a failed sync stopped a replica");
                        stopped = Some(node.id);
                    }
                    News::Failed(text) => {
                        executor.trace().tell(executor.now_ns(), &format!("replica {} stops: {text}", node.id));
                        self.witness.object(format!("replica {} stopped without an injected cause: {text}", node.id));
                        stopped = Some(node.id);
                    }
                }
            }
        }
        stopped
    }

    /// Writes down who leads, and who votes.
    pub(crate) fn note_leaders(&mut self, executor: &Executor) {
        self.witness.look_at_memberships();
        for id in self.ids() {
            let Some(status) = self.replica(id).map(|replica| replica.status()) else { continue };
            let leads = status.role == Role::Leader;
            if leads != std::mem::replace(&mut self.node(id).leads, leads) {
                let what = if leads { "leads" } else { "no longer leads" };
                executor.trace().tell(executor.now_ns(), &format!("replica {id} {what} in term {}", status.term));
            }
            if !leads {
                continue;
            }
            self.witness.promised_term(id, status.term.0);
            let leadership = Leadership { term: status.term.0, leader: id };
            if self.leaders.insert(leadership.clone()) {
                self.witness.mark("an election");
                let lease_ns = RaftTiming::default().election_timeout_ms_max * 1_000_000;
                let killed = self.leader_killed.take();
                if killed.is_some_and(|(_, killed_ns)| executor.now_ns() < killed_ns + lease_ns) {
                    self.witness.mark("a killed leader was replaced within its lease");
                }
                self.journal.record(executor.now_ns(), "sim", EventKind::Ok, Operation::Leader(leadership));
            }
        }
    }

    /// Reads the end of some queue on some replica, as a consumer would.
    pub(crate) fn look(&mut self, executor: &Executor) {
        self.namesrvs.look(executor);
        let id = self.rng.between(1, self.options.replica_count);
        let queue = self.rng.pick(&self.looked).clone();
        let Some(replica) = self.replica(id) else { return };
        if self.disk(id).is_frozen() {
            return;
        }
        let (applied, digest) = replica.digest();
        self.witness.digest(id, applied, digest);
        match replica.look(&queue, 20) {
            Ok(sightings) => {
                self.journal.record(executor.now_ns(), "sim", EventKind::Ok, Operation::Look { sightings });
            }
            Err(error) => self.witness.object(format!("replica {id} cannot read {queue}: {error}")),
        }
    }

    /// Whether everybody is up and votes in the life that the leader has recorded: no disk is lost that was not made up for.
    pub(crate) fn is_whole(&self) -> bool {
        let Some(leader) = self.leader().and_then(|id| self.replica(id)) else { return false };
        let recorded = leader.voters_recorded();
        let is_here = |id: u64| self.replica(id).is_some_and(|replica| recorded.get(&id) == Some(&replica.life()));
        leader.status().can_write && self.ids().all(is_here)
    }

    /// Whether everybody is up and votes. A group that is founded without some, which it takes in later, has fewer to spare.
    pub(crate) fn has_every_vote(&self) -> bool {
        self.ids().all(|id| self.replica(id).is_some_and(|replica| replica.has_vote()))
    }

    /// Whether everybody is up, follows one leader that takes writes, and has applied the same.
    pub(crate) fn has_converged(&self) -> bool {
        let statuses = self.statuses();
        statuses.len() as u64 == self.options.replica_count
            && statuses.iter().any(|status| status.can_write)
            && statuses.windows(2).all(|pair| {
                pair[0].applied == pair[1].applied && pair[0].term == pair[1].term && pair[0].last == pair[1].last
            })
            && statuses.iter().all(|status| status.applied == status.last)
    }
}
