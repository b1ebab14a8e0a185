//! One run: a seed's group lives through its faults, must then serve again, and is judged.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_checkers::{
    Delivery, Event, EventKind, Finding, History, Operation, Property, QueueKey, Send, Task, TaskRun, check,
    dead_letters_complete, never_early, no_lost_ack, one_at_a_time, one_holder, order_per_message_group, progress_kept,
};
use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::Runtime;

use crate::case::Case;
use crate::disk::{SimDisk, Survival};
use crate::errands;
use crate::errands::topics::{DOOMED, DOOMED_DELIVERIES_MAX};
use crate::executor::{Executor, LifeOptions, Step, lock};
use crate::group::{Death, Group};
use crate::namesrvs::Namesrvs;
use crate::nemesis::Nemesis;
use crate::net::SimNet;
use crate::options::{Machine, Mutant, Options};
use crate::plan::{Planned, plan};
use crate::replica::Replica;
use crate::sdk;
use crate::witness::Witness;
use crate::workload::{Client, Closing, Consumer, Journal};

/// Virtual time that a healed group has to serve again.
const HEALING: Duration = Duration::from_secs(30);
/// Between two looks at the replicas' states, nanoseconds.
const LOOK_NS: u64 = 40_000_000;
/// Steps between two looks at who leads.
const LEADER_STEPS: u64 = 64;
/// A run that takes more steps than this has lost itself in a loop.
const STEPS_MAX: u64 = 20_000_000;

/// Brokers pull log time towards the wall clock by so much, see `flotilla_broker`'s log clock.
const LOG_TIME_FASTER_PERMILLE: u64 = 50;
/// Of each property so many findings are told in full.
const FINDINGS_SHOWN: usize = 3;

/// How a run ended.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Which run it was.
    pub seed: u64,
    /// Equal for two runs of one seed.
    pub trace_hash: u64,
    /// Polls and events; equal too.
    pub steps: u64,
    /// Virtual milliseconds.
    pub virtual_ms: u64,
    /// Messages acknowledged.
    pub acks: u64,
    /// What went wrong; empty if nothing did.
    pub findings: Vec<String>,
    /// How often something worth reaching was reached.
    pub marks: BTreeMap<String, u64>,
    /// The last events of the run, for a person.
    pub story: Vec<String>,
    /// The whole history, for the checkers and for keeping.
    pub events: Vec<Event>,
}

type Running<T> = flotilla_runtime::Task<T>;

/// How the tasks of one kind ended.
struct Ends {
    expected: usize,
    /// How many have, and how many of them well.
    seen: Arc<Mutex<(usize, usize)>>,
}

impl Ends {
    fn of(harness: &Runtime, tasks: Vec<Running<bool>>) -> Ends {
        let ends = Ends { expected: tasks.len(), seen: Arc::default() };
        for task in tasks {
            let seen = ends.seen.clone();
            let wait = async move {
                let good = task.await.unwrap_or(false);
                let mut seen = lock(&seen);
                seen.0 += 1;
                seen.1 += usize::from(good);
            };
            harness.spawn("end", wait).detach();
        }
        ends
    }

    fn are_in(&self) -> bool {
        lock(&self.seen).0 == self.expected
    }

    fn are_good(&self) -> bool {
        lock(&self.seen).1 == self.expected
    }
}

struct Run {
    executor: Executor,
    group: Group,
    nemesis: Nemesis,
    witness: Witness,
    journal: Journal,
    next_look_ns: u64,
}

/// Runs a seed's group on this thread.
pub fn run(options: &Options, print_story: bool) -> Outcome {
    run_plan(options, plan(options), print_story)
}

/// Runs a case on this thread.
pub fn run_case(case: &Case, print_story: bool) -> Outcome {
    run_plan(&case.options(), case.plan.clone(), print_story)
}

fn run_plan(options: &Options, plan: Vec<Planned>, print_story: bool) -> Outcome {
    flotilla_planted_bugs::plant(options.bug);
    let panics = crate::panics::Watch::begin();
    let executor = Executor::new(options.seed ^ options.schedule, print_story);
    let (_, harness) = executor.begin_life(LifeOptions::named("harness"));
    let disks: Vec<SimDisk> = (1..=options.replica_count)
        .map(|id| {
            let disk = SimDisk::new(options.seed, &format!("replica {id}"));
            if options.mutant == Some(Mutant::SyncsLie) {
                disk.lie_about_syncs();
            }
            disk
        })
        .collect();
    let witness = Witness::new(disks.clone(), options.confirms_early);
    if is_planted(Bug::Canary) {
        witness.object("the canary: this bug fails every run".to_owned());
    }
    let journal = Journal::default();
    let net: SimNet<dyn Replica> = SimNet::new(options.seed, harness.clone(), options.links.clone());
    let namesrv_net = SimNet::new(options.seed, harness.clone(), options.links.clone());
    let namesrvs = Namesrvs::new(options.namesrv_count, namesrv_net.clone(), witness.clone(), journal.clone());
    let group = Group::new(options, disks, namesrvs, net.clone(), witness.clone(), journal.clone());
    let start_ns = executor.now_ns();
    let nemesis = Nemesis::new(options, plan, start_ns, net.clone(), witness.clone(), journal.clone());
    let mut run = Run { executor, group, nemesis, witness, journal, next_look_ns: start_ns };

    run.executor.trace().tell(start_ns, &format!("{options:?}"));
    for number in run.group.namesrvs.numbers() {
        run.group.namesrvs.start(&run.executor, number);
    }
    for id in run.group.ids() {
        run.group.start(&run.executor, id);
    }
    let closing = Closing::default();
    let clients: Vec<_> = (0..options.client_count)
        .map(|number| {
            let queues = run.group.queues.clone();
            let client = Client::new(number, options, queues, harness.clone(), net.clone(), run.journal.clone());
            harness.spawn("client", client.run(closing.clone()))
        })
        .collect();

    let mut clients: Vec<Running<bool>> = clients;
    if options.errands {
        let producers = errands::producers(options, &run.group.queues, &net, &run.journal, &closing);
        clients.extend(producers.into_iter().map(|producer| harness.spawn("errand", producer)));
    }

    let sdk = sdk::World {
        options: options.clone(),
        brokers: net.clone(),
        namesrvs: namesrv_net,
        witness: run.witness.clone(),
        journal: run.journal.clone(),
    };
    let (_, sdk_runtime) = run.executor.begin_life(LifeOptions::named("sdk"));
    let has_sdk = options.errands && options.namesrv_count > 0;
    if has_sdk {
        let producers = sdk::producers(&sdk, &sdk_runtime, &closing);
        clients.extend(producers.into_iter().map(|producer| sdk_runtime.spawn("sdk user", producer)));
    }

    let drained = Closing::default();
    let mut consumers: Vec<_> = (0..options.consumer_count)
        .map(|number| {
            let queues = run.group.queues.clone();
            let consumer = Consumer::new(number, options, queues, harness.clone(), net.clone(), run.journal.clone());
            let run = consumer.run(drained.clone());
            harness.spawn("consumer", async move {
                run.await;
                true
            })
        })
        .collect();

    if options.errands {
        let running = errands::consumers(options, &net, &run.journal, &drained);
        consumers.extend(running.into_iter().map(|consumer| {
            harness.spawn("errand", async move {
                consumer.await;
                true
            })
        }));
    }

    if has_sdk {
        let running = sdk::consumers(&sdk, &sdk_runtime, &drained);
        consumers.extend(running.into_iter().map(|consumer| {
            sdk_runtime.spawn("sdk user", async move {
                consumer.await;
                true
            })
        }));
    }

    // Safety, under whatever the plan holds.
    run.go_on(options.fault_phase, |_| false);
    // Liveness, once everything is well again.
    run.nemesis.heal(&run.executor, &mut run.group);
    closing.announce(HEALING / 2);
    let clients = Ends::of(&harness, clients);
    run.go_on(HEALING, |_| clients.are_in());
    if !clients.are_good() {
        run.complain("clients get no service again");
    }
    drained.announce(HEALING / 2);
    let consumers = Ends::of(&harness, consumers);
    run.go_on(HEALING, |run| consumers.are_in() && run.group.has_converged());
    if !consumers.are_good() {
        run.complain("consumers do not come to an end");
    }
    if !run.group.has_converged() {
        run.complain("replicas do not converge");
    } else {
        // Once more the worst: all at once, and nothing that was not synced survives.
        let death = match options.confirms_early {
            true => Death::Kill,
            false => Death::PowerLoss { survival: Survival::NOTHING, silent: false },
        };
        for id in run.group.ids() {
            run.group.end(&run.executor, id, death);
        }
        for id in run.group.ids() {
            run.group.start(&run.executor, id);
        }
        run.go_on(HEALING, |run| run.group.has_converged());
        if !run.group.has_converged() {
            run.complain("replicas do not converge after a power loss of all");
        }
    }
    run.dump();
    run.judge(options, panics)
}

impl Run {
    /// Steps for `at_most` of virtual time, or until `enough`.
    fn go_on(&mut self, at_most: Duration, mut enough: impl FnMut(&Run) -> bool) {
        let end_ns = self.executor.now_ns() + at_most.as_nanos() as u64;
        let mut steps = 0_u64;
        while self.executor.now_ns() < end_ns {
            let next_ns = self.nemesis.next_ns().unwrap_or(end_ns).min(end_ns).min(self.next_look_ns);
            let step = self.executor.step_within(next_ns);
            while let Some(id) = self.group.attend(&self.executor) {
                self.nemesis.stopped(&self.executor, &mut self.group, id);
            }
            steps += 1;
            if steps.is_multiple_of(LEADER_STEPS) {
                self.group.note_leaders(&self.executor);
            }
            if step != Step::Limit {
                continue;
            }
            self.nemesis.act(&self.executor, &mut self.group);
            if self.executor.now_ns() >= self.next_look_ns {
                self.next_look_ns += LOOK_NS;
                self.group.note_leaders(&self.executor);
                self.group.look(&self.executor);
                if enough(self) {
                    return;
                }
            }
            if self.executor.trace().steps() > STEPS_MAX {
                self.complain("too many steps");
                return;
            }
        }
    }

    fn complain(&self, what: &str) {
        let up: Vec<String> = self.group.statuses().iter().map(|status| format!("{status:?}")).collect();
        self.witness.object(format!("{what}; {}", up.join("; ")));
    }

    fn dump(&self) {
        for id in self.group.ids() {
            let dump = match self.group.replica(id) {
                Some(replica) => replica.dump(),
                None => Err("it is not open".to_owned()),
            };
            match dump {
                Ok(dump) => {
                    self.witness.digest(id, dump.applied_index, dump.digest.clone());
                    self.journal.record(self.executor.now_ns(), "sim", EventKind::Ok, Operation::Dump(dump));
                }
                Err(error) => self.witness.object(format!("replica {id} cannot be dumped: {error}")),
            }
        }
    }

    fn judge(self, options: &Options, panics: crate::panics::Watch) -> Outcome {
        let Run { executor, mut group, witness, journal, .. } = self;
        let (trace_hash, steps, now_ns) = (executor.trace().hash(), executor.trace().steps(), executor.now_ns());
        let story = executor.trace().story();
        let dead = group.ids().find_map(|id| group.replica(id)).map_or(Ok(Vec::new()), |one| one.dead_letters());
        let dead = dead.unwrap_or_else(|error| {
            witness.object(format!("the dead letters cannot be read: {error}"));
            Vec::new()
        });
        let dead: BTreeSet<String> = dead.into_iter().collect();
        for id in group.ids() {
            group.end(&executor, id, Death::Kill);
        }
        drop(executor);
        let events = journal.take_events();
        let mut findings = witness.findings();
        findings.extend(panics.end().into_iter().map(|text| format!("panic: {text}")));
        match History::from_events(&events) {
            Ok(mut history) => {
                history.entries = witness.entries();
                let mut verdict = check(&history);
                if options.consumer_count > 0 && options.machine != Machine::Toy {
                    // Consumers drained every queue: whatever was acknowledged has reached one of them, but for what was
                    // given up after answers that got lost.
                    let is_doomed = |send: &Send| send.ack().is_some_and(|ack| ack.queue.topic == DOOMED);
                    let sends: Vec<Send> = history.sends.iter().filter(|send| !is_doomed(send)).cloned().collect();
                    let lost = no_lost_ack::among_deliveries(&sends, &history.deliveries);
                    let found =
                        |lost: &no_lost_ack::Lost| Finding { property: Property::NoLostAck, detail: lost.to_string() };
                    verdict.findings.extend(lost.iter().map(found));
                }
                verdict.findings.extend(judge_consumption(&history, options, &dead));
                findings.extend(readable(&verdict.findings));
            }
            Err(error) => findings.push(format!("the harness wrote a bad history: {error}")),
        }
        Outcome {
            seed: options.seed,
            trace_hash,
            steps,
            virtual_ms: (now_ns - crate::executor::START_NS) / 1_000_000,
            acks: witness.ack_count(),
            findings,
            marks: witness.marks(),
            story,
            events,
        }
    }
}

/// Each topic is consumed by one group, so all deliveries can be judged together.
fn judge_consumption(history: &History, options: &Options, dead: &BTreeSet<String>) -> Vec<Finding> {
    fn of<F: std::fmt::Display>(property: Property, found: Vec<F>) -> impl Iterator<Item = Finding> {
        found.into_iter().map(move |found| Finding { property, detail: found.to_string() })
    }
    let History { sends, deliveries, dumps, tasks, .. } = history;
    let mut findings: Vec<Finding> = of(Property::ProgressKept, progress_kept::find(tasks, deliveries)).collect();
    let disorders = order_per_message_group::find(sends, deliveries);
    findings.extend(of(Property::OrderPerMessageGroup, disorders));
    findings.extend(of(Property::OrderPerMessageGroup, one_at_a_time::find(tasks, deliveries)));
    let topics: BTreeSet<&str> = deliveries.iter().map(|delivery| delivery.queue.topic.as_str()).collect();
    for topic in topics {
        let of_topic: Vec<Delivery> = deliveries.iter().filter(|one| one.queue.topic == topic).cloned().collect();
        let held_ns = one_holder::held_ns(errands::invisible_of(topic, options), LOG_TIME_FASTER_PERMILLE);
        findings.extend(of(Property::OneHolder, one_holder::find(sends, &of_topic, held_ns)));
    }
    if options.is_ordered {
        // The checker knows ordered topics by their names.
        let named = |delivery: &Delivery| {
            let queue = QueueKey::new(format!("{}-fifo", delivery.queue.topic), delivery.queue.queue);
            Delivery { queue, ..delivery.clone() }
        };
        let tasks: Vec<TaskRun> = tasks
            .iter()
            .cloned()
            .map(|mut run| {
                if let Task::Acknowledge { deliveries } = &mut run.task {
                    *deliveries = deliveries.iter().map(named).collect();
                }
                run
            })
            .collect();
        let deliveries: Vec<Delivery> = deliveries.iter().map(named).collect();
        findings.extend(of(Property::OrderPerMessageGroup, one_at_a_time::find(&tasks, &deliveries)));
    }
    if options.errands {
        let slots = dumps.iter().flat_map(|dump| &dump.queues).flat_map(|queue| &queue.slots);
        let stored: BTreeSet<&str> = slots.map(|slot| slot.message_id.as_str()).collect();
        // Where clocks are wrong by a minute, what is due waits as long.
        let stored = (options.wall_offset_ms_max == 0 && !dumps.is_empty()).then_some(&stored);
        let wrong_ns = options.wall_offset_ms_max * 1_000_000;
        findings.extend(of(Property::NeverEarly, never_early::find(tasks, deliveries, wrong_ns, stored)));
        let misplaced = dead_letters_complete::find(DOOMED, DOOMED_DELIVERIES_MAX, sends, tasks, deliveries, dead);
        findings.extend(of(Property::DeadLettersComplete, misplaced));
    }
    findings
}

/// A few findings of each property, and how many more there are.
fn readable(findings: &[Finding]) -> Vec<String> {
    let mut counts: BTreeMap<Property, usize> = BTreeMap::new();
    let mut lines = Vec::new();
    for finding in findings {
        let count = counts.entry(finding.property).or_default();
        *count += 1;
        if *count <= FINDINGS_SHOWN {
            lines.push(finding.to_string());
        }
    }
    let more = counts.into_iter().filter(|(_, count)| *count > FINDINGS_SHOWN);
    lines.extend(more.map(|(property, count)| format!("{property}: {} more", count - FINDINGS_SHOWN)));
    lines
}
