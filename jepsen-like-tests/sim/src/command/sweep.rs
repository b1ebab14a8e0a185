//! `sweep`: many seeds, what they reached, and what they left out.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use flotilla_checkers::ledger::{self, LedgerRow};
use flotilla_sim::Machine;

use super::interrupt::Interrupt;
use super::worker::Worker;
use super::{Seeds, Setting, Told};

/// What a sweep of many seeds must reach: a mark that it never does is a blind spot.
const MUST_REACH: [&str; 14] = [
    "a checkpoint was restored",
    "a checkpoint was taken",
    "a crash point was reached",
    "a cut",
    "a failed sync stopped a replica",
    "a killed leader was replaced within its lease",
    "a leader lost unsynced pages",
    "a name was lost",
    "a page was lost",
    "a page was torn",
    "a segment was started",
    "a voter was asked whether the leader is gone",
    "an election",
    "leadership was handed over",
];
/// Marks that the broker's own store does not tell.
const NOT_OF_BROKERS: [&str; 3] = ["a checkpoint was restored", "a checkpoint was taken", "a segment was started"];
/// Marks that only brokers with their clients and namesrvs tell.
const ONLY_OF_BROKERS: [&str; 2] = ["a row expired at a namesrv", "the SDK sent while no namesrv was there"];
/// Faults that strike one replica,
const FAULTS_OF_ONE: [&str; 7] = ["Kill", "PowerLoss", "CrashPoints", "Isolate", "OneWay", "Bridge", "SyncErrors"];
/// on each of these,
const ROLES: [&str; 2] = ["a leader", "a follower"];
/// in each of these.
const PHASES: [&str; 3] = ["in peace", "while others are down", "while one catches up"];

/// What a sweep came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Swept {
    Well,
    /// A seed failed, or the sweep as a whole proves too little.
    Badly,
    /// Told to end before its end, and no seed had failed.
    Interrupted,
}

pub(crate) struct Sweep {
    pub(crate) seeds: Seeds,
    pub(crate) threads: usize,
    pub(crate) time_limit: Option<Duration>,
    pub(crate) seeds_min: u64,
    pub(crate) failures_max: u64,
    pub(crate) no_holes: bool,
    pub(crate) ledger: Option<PathBuf>,
    pub(crate) setting: Setting,
}

impl Sweep {
    /// Whether one more seed may be begun: until the limit, and beyond it while there are too few.
    fn has_time(&self, elapsed: Duration, next: &AtomicU64) -> bool {
        let begun = next.load(Ordering::Relaxed) - self.seeds.first;
        let is_enough = begun >= self.seeds_min;
        self.time_limit.is_none_or(|limit| elapsed < limit || (!is_enough && elapsed < limit * FLOOR_PATIENCE))
    }

    pub(crate) fn run(self) -> Result<Swept, String> {
        let Sweep { seeds, setting, .. } = self;
        let begun = Instant::now();
        let next = AtomicU64::new(seeds.first);
        let stop = AtomicBool::new(false);
        let interrupt = Interrupt::listen("interrupted: seeds under way are finished, then come the sums")?;
        let sums = Mutex::new(Sums::default());
        std::thread::scope(|scope| {
            for _ in 0..self.threads.max(1) {
                scope.spawn(|| {
                    let mut worker = Worker::new(setting);
                    let is_over = || stop.load(Ordering::Relaxed) || interrupt.is_asked();
                    while !is_over() && self.has_time(begun.elapsed(), &next) {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed > seeds.last {
                            return;
                        }
                        let told = worker.run_seed(seed);
                        let mut sums = sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                        sums.take(seed, told, setting);
                        sums.progress(begun.elapsed(), seeds);
                        if sums.failed.len() as u64 >= self.failures_max {
                            stop.store(true, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        let sums = sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        end_progress();
        let holes = sums.print(begun.elapsed(), setting);
        if let Some(path) = &self.ledger {
            ledger::add(path, &sums.row(seeds, setting))?;
        }
        if sums.run < self.seeds_min {
            println!("VOID: {} seeds were run, {} are needed", sums.run, self.seeds_min);
        }
        if sums.acks == 0 {
            println!("VOID: nothing was acknowledged");
        }
        let is_void = sums.run < self.seeds_min || sums.acks == 0;
        let is_interrupted = interrupt.is_asked();
        if is_interrupted {
            println!("INTERRUPTED: {} of {} seeds were run", sums.run, seeds.count());
        }
        Ok(if !sums.failed.is_empty() {
            Swept::Badly
        } else if is_interrupted {
            // Too few seeds and holes are no finding then.
            Swept::Interrupted
        } else if is_void || (self.no_holes && !holes.is_empty()) {
            Swept::Badly
        } else {
            Swept::Well
        })
    }
}

/// A slow machine gets so many times the limit for the seeds that there must be.
const FLOOR_PATIENCE: u32 = 5;

/// What is printed next begins a line of its own.
fn end_progress() {
    if std::io::stderr().is_terminal() {
        eprintln!();
    }
}

#[derive(Default)]
struct Sums {
    run: u64,
    acks: u64,
    virtual_ms: u64,
    failed: Vec<u64>,
    /// Seeds that acknowledged nothing or that no fault struck: they prove nothing.
    void: u64,
    marks: BTreeMap<String, (u64, u64)>,
}

impl Sums {
    fn take(&mut self, seed: u64, told: Result<Told, String>, setting: Setting) {
        self.run += 1;
        let findings = match told {
            Ok(told) => {
                self.acks += told.acks;
                self.virtual_ms += told.virtual_ms;
                self.void += u64::from(told.acks == 0 || !told.marks.contains_key("a fault"));
                for (what, times) in told.marks {
                    let sum = self.marks.entry(what).or_default();
                    sum.0 += times;
                    sum.1 += 1;
                }
                told.findings
            }
            Err(text) => vec![text],
        };
        if findings.is_empty() {
            return;
        }
        self.failed.push(seed);
        end_progress();
        println!("seed {seed} FAILED");
        findings.iter().take(5).for_each(|finding| println!("  BROKEN {finding}"));
        println!("  replay: {}", setting.replay(seed));
    }

    fn rate(&self, elapsed: Duration) -> f64 {
        self.run as f64 * 60.0 / elapsed.as_secs_f64().max(0.001)
    }

    fn progress(&self, elapsed: Duration, seeds: Seeds) {
        if !std::io::stderr().is_terminal() {
            return;
        }
        let (total, failed) = (seeds.count(), self.failed.len());
        eprint!("\r{} of {total} seeds, {failed} failed, {:.0} seeds/min ", self.run, self.rate(elapsed));
        // A lost progress line is no loss.
        let _ = std::io::stderr().flush();
    }

    fn print(&self, elapsed: Duration, setting: Setting) -> Vec<String> {
        println!(
            "{} seeds in {:.1} s ({:.0} seeds/min): {} failed, {} void, {} messages acknowledged, {:.1} virtual hours",
            self.run,
            elapsed.as_secs_f64(),
            self.rate(elapsed),
            self.failed.len(),
            self.void,
            self.acks,
            self.virtual_ms as f64 / 3_600_000.0
        );
        println!("reached (times, and in how many seeds):");
        for (what, (times, in_seeds)) in self.marks.iter().filter(|(what, _)| !what.starts_with("fault ")) {
            println!("  {what}: {times} in {in_seeds}");
        }
        self.print_faults();
        let holes = self.holes(setting);
        holes.iter().for_each(|hole| println!("HOLE: never reached: {hole}"));
        self.failed.iter().for_each(|seed| println!("replay: {}", setting.replay(*seed)));
        holes
    }

    fn struck(&self, fault: &str, role: &str, phase: &str) -> u64 {
        self.marks.get(&format!("fault {fault} on {role} {phase}")).map_or(0, |(times, _)| *times)
    }

    /// Fault by fault: how often on whom, in which phase.
    fn print_faults(&self) {
        println!("faults, on a leader / a follower:");
        println!("  {:<14}{:>16}{:>24}{:>24}", "", PHASES[0], PHASES[1], PHASES[2]);
        for fault in FAULTS_OF_ONE {
            let counts = PHASES.map(|phase| {
                let [leader, follower] = ROLES.map(|role| self.struck(fault, role, phase));
                format!("{leader} / {follower}")
            });
            println!("  {fault:<14}{:>16}{:>24}{:>24}", counts[0], counts[1], counts[2]);
        }
    }

    fn holes(&self, setting: Setting) -> Vec<String> {
        let is_broker = setting.machine() == Machine::Broker;
        let told = |mark: &&&str| !is_broker || !NOT_OF_BROKERS.contains(*mark);
        let marks = MUST_REACH.iter().filter(told).chain(ONLY_OF_BROKERS.iter().filter(|_| is_broker));
        let marks = marks.map(|mark| (*mark).to_owned());
        let combinations = FAULTS_OF_ONE.iter().flat_map(|fault| {
            ROLES
                .iter()
                .flat_map(move |role| PHASES.iter().map(move |phase| format!("fault {fault} on {role} {phase}")))
        });
        marks.chain(combinations).filter(|mark| !self.marks.contains_key(mark)).collect()
    }

    fn row(&self, seeds: Seeds, setting: Setting) -> LedgerRow {
        let faults = self.marks.iter().filter_map(|(what, (times, _))| {
            let fault = what.strip_prefix("fault ")?.split(' ').next()?;
            Some((fault.to_owned(), *times))
        });
        let mut sums = BTreeMap::new();
        faults.for_each(|(fault, times)| *sums.entry(fault).or_default() += times);
        LedgerRow {
            commit: ledger::commit(),
            tool: "sim".to_owned(),
            what: format!("{:?}", setting.machine()).to_lowercase(),
            seeds: self.run,
            first_seed: seeds.first,
            failed: self.failed.len() as u64,
            void: self.void,
            acks: self.acks,
            ms: self.virtual_ms,
            faults: sums,
        }
    }
}
