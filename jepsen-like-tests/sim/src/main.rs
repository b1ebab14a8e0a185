//! The command: run one seed, sweep over many, or prove that a seed means one run and no other.
#![allow(
    clippy::disallowed_methods,
    reason = "the command times its sweeps by the machine's clock and runs seeds in processes"
)]

use std::io::Write;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use flotilla_sim::{Machine, Mutant, Options, Outcome, run};
use serde::{Deserialize, Serialize};

/// A whole broker group in one thread: virtual network, virtual disks, virtual time, faults.
///
/// Every seed is another run: how many clients, how slow the disks, which faults and when. The
/// same seed is the same run, step by step, on every machine. A run has a phase of faults, in
/// which nothing acknowledged may get lost; a phase of healing, after which the group must serve
/// again; and a power loss of all machines at the end. Then the checkers judge its history.
#[derive(Parser)]
#[command(name = "flotilla-sim", version)]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run one seed and say how it went; exit 1 if a promise was broken.
    Run {
        /// Which run.
        #[arg(long)]
        seed: u64,
        /// Print each event (start, crash, election, fault) as it happens.
        #[arg(long)]
        trace: bool,
        /// Write the history here, one JSON object a line.
        #[arg(long, value_name = "FILE")]
        history: Option<std::path::PathBuf>,
        /// Print the log of the code under test with virtual times; a level, or a filter such as
        /// `openraft=debug`.
        #[arg(long, value_name = "FILTER")]
        log: Option<String>,
        #[command(flatten)]
        setting: Setting,
        /// Print the outcome as one JSON object and nothing else.
        #[arg(long)]
        json: bool,
    },
    /// Run many seeds, each in a process of its own; exit 1 if any failed.
    Sweep {
        /// First and last seed.
        #[arg(long, value_name = "FIRST..LAST", value_parser = seeds)]
        seeds: Seeds,
        /// Processes at a time.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Stop starting new seeds after so many seconds.
        #[arg(long, value_name = "SECONDS")]
        time_limit: Option<u64>,
        /// Go on after this many failing seeds at most.
        #[arg(long, default_value_t = 10)]
        failures_max: u64,
        #[command(flatten)]
        setting: Setting,
    },
    /// Run each seed twice, in two processes, and compare: same seed, same trace; other seed, other trace.
    Meta {
        /// How many seeds, from 1.
        #[arg(long, default_value_t = 20)]
        seeds: u64,
        #[command(flatten)]
        setting: Setting,
    },
}

#[derive(clap::Args, Clone, Copy)]
struct Setting {
    /// What the log's entries mean: the real store, or a toy for looking at the log alone.
    #[arg(long, value_enum, default_value_t = MachineName::Store)]
    machine: MachineName,
    /// Plant this bug, to see it caught.
    #[arg(long, value_enum)]
    mutant: Option<MutantName>,
}

#[derive(Clone, Copy, ValueEnum)]
enum MachineName {
    Store,
    Toy,
}

#[derive(Clone, Copy, ValueEnum)]
enum MutantName {
    /// Disks say that they synced, and did not.
    SyncsLie,
    /// One replica leaves out one entry in forty.
    SkipsEntries,
    /// Links that were cut stay cut.
    NeverHeals,
}

impl Setting {
    fn options(self, seed: u64) -> Options {
        let machine = match self.machine {
            MachineName::Store => Machine::Store,
            MachineName::Toy => Machine::Toy,
        };
        let mut options = Options::of(seed, machine);
        options.mutant = self.mutant.map(|mutant| match mutant {
            MutantName::SyncsLie => Mutant::SyncsLie,
            MutantName::SkipsEntries => Mutant::SkipsEntries,
            MutantName::NeverHeals => Mutant::NeverHeals,
        });
        options
    }

    /// The flags that give this setting again.
    fn arguments(self) -> Vec<String> {
        let name = |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
        let machine = name(self.machine.to_possible_value()).map(|name| ["--machine".to_owned(), name]);
        let mutant = self.mutant.and_then(|mutant| name(mutant.to_possible_value()));
        let mutant = mutant.map(|name| ["--mutant".to_owned(), name]);
        machine.into_iter().chain(mutant).flatten().collect()
    }
}

#[derive(Clone, Copy)]
struct Seeds {
    first: u64,
    last: u64,
}

fn seeds(text: &str) -> Result<Seeds, String> {
    let explain = || format!("\"{text}\" is not a range of seeds; write for example 1..200 (both ends are run)");
    let (first, last) = text.split_once("..").ok_or_else(explain)?;
    let number = |part: &str| part.trim_start_matches('=').parse::<u64>().map_err(|_| explain());
    let range = Seeds { first: number(first)?, last: number(last)? };
    if range.first > range.last {
        return Err(format!("the range {text} is empty: {} is above {}", range.first, range.last));
    }
    Ok(range)
}

/// What a process tells of its seed.
#[derive(Serialize, Deserialize)]
struct Told {
    seed: u64,
    trace_hash: String,
    steps: u64,
    virtual_ms: u64,
    acks: u64,
    findings: Vec<String>,
    marks: std::collections::BTreeMap<String, u64>,
}

impl Told {
    fn of(outcome: &Outcome) -> Told {
        Told {
            seed: outcome.seed,
            trace_hash: format!("{:016x}", outcome.trace_hash),
            steps: outcome.steps,
            virtual_ms: outcome.virtual_ms,
            acks: outcome.acks,
            findings: outcome.findings.clone(),
            marks: outcome.marks.iter().map(|(what, count)| ((*what).to_owned(), *count)).collect(),
        }
    }
}

fn main() -> ExitCode {
    let verb = Cli::parse().verb;
    let outcome = match verb {
        Verb::Run { seed, trace, history, log, setting, json } => {
            if let Some(filter) = log {
                flotilla_sim::print_log(&filter);
            }
            run_one(seed, trace, history.as_deref(), setting, json)
        }
        Verb::Sweep { seeds, threads, time_limit, failures_max, setting } => {
            sweep(seeds, threads, time_limit.map(Duration::from_secs), failures_max, setting)
        }
        Verb::Meta { seeds, setting } => meta(seeds, setting),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("flotilla-sim: {text}");
            ExitCode::from(2)
        }
    }
}

fn replay(seed: u64, setting: Setting) -> String {
    format!("cargo run --profile ci -p flotilla-sim -- run --seed {seed} {} --trace", setting.arguments().join(" "))
}

fn run_one(
    seed: u64,
    trace: bool,
    history: Option<&std::path::Path>,
    setting: Setting,
    json: bool,
) -> Result<bool, String> {
    let outcome = run(&setting.options(seed), trace && !json);
    if let Some(path) = history {
        let file = std::fs::File::create(path).map_err(|error| format!("{}: {error}", path.display()))?;
        flotilla_checkers::write_json_lines(&outcome.events, std::io::BufWriter::new(file))
            .map_err(|error| format!("{}: {error}", path.display()))?;
    }
    if json {
        println!("{}", serde_json::to_string(&Told::of(&outcome)).map_err(|error| error.to_string())?);
        return Ok(outcome.findings.is_empty());
    }
    if !outcome.findings.is_empty() && !trace {
        println!("the last events:");
        outcome.story.iter().rev().take(60).rev().for_each(|line| println!("{line}"));
    }
    println!(
        "seed {seed}: {} steps, {} virtual ms, {} messages acknowledged, trace {:016x}",
        outcome.steps, outcome.virtual_ms, outcome.acks, outcome.trace_hash
    );
    for (what, count) in &outcome.marks {
        println!("  {what}: {count}");
    }
    for finding in &outcome.findings {
        println!("BROKEN {finding}");
    }
    if !outcome.findings.is_empty() {
        println!("replay: {}", replay(seed, setting));
    }
    Ok(outcome.findings.is_empty())
}

/// Runs a seed in a process of its own.
fn run_apart(seed: u64, setting: Setting) -> Result<Told, String> {
    let program = std::env::current_exe().map_err(|error| format!("this program's own file: {error}"))?;
    let output = Command::new(program)
        .args(["run", "--json", "--seed", &seed.to_string()])
        .args(setting.arguments())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("seed {seed} did not start: {error}"))?;
    let line = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(line.trim()).map_err(|_| {
        let complaint = String::from_utf8_lossy(&output.stderr);
        format!("seed {seed} ended without an outcome ({}): {}", output.status, complaint.trim())
    })
}

fn sweep(
    seeds: Seeds,
    threads: usize,
    time_limit: Option<Duration>,
    failures_max: u64,
    setting: Setting,
) -> Result<bool, String> {
    let begun = Instant::now();
    let next = AtomicU64::new(seeds.first);
    let stop = AtomicBool::new(false);
    let sums = Mutex::new(Sums::default());
    std::thread::scope(|scope| {
        for _ in 0..threads.max(1) {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) && time_limit.is_none_or(|limit| begun.elapsed() < limit) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed > seeds.last {
                        return;
                    }
                    let told = run_apart(seed, setting);
                    let mut sums = sums.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                    sums.take(seed, told, setting);
                    sums.progress(begun.elapsed(), seeds);
                    if sums.failed.len() as u64 >= failures_max {
                        stop.store(true, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let sums = sums.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    eprintln!();
    println!(
        "{} seeds in {:.1} s ({:.0} seeds/min): {} failed, {} messages acknowledged, {:.1} virtual hours",
        sums.run,
        begun.elapsed().as_secs_f64(),
        sums.rate(begun.elapsed()),
        sums.failed.len(),
        sums.acks,
        sums.virtual_ms as f64 / 3_600_000.0
    );
    println!("reached (times, and in how many seeds):");
    for (what, (times, in_seeds)) in &sums.marks {
        println!("  {what}: {times} in {in_seeds}");
    }
    for seed in &sums.failed {
        println!("replay: {}", replay(*seed, setting));
    }
    Ok(sums.failed.is_empty() && sums.run > 0)
}

#[derive(Default)]
struct Sums {
    run: u64,
    acks: u64,
    virtual_ms: u64,
    failed: Vec<u64>,
    marks: std::collections::BTreeMap<String, (u64, u64)>,
}

impl Sums {
    fn take(&mut self, seed: u64, told: Result<Told, String>, setting: Setting) {
        self.run += 1;
        let findings = match told {
            Ok(told) => {
                self.acks += told.acks;
                self.virtual_ms += told.virtual_ms;
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
        eprintln!();
        println!("seed {seed} FAILED");
        findings.iter().take(5).for_each(|finding| println!("  BROKEN {finding}"));
        println!("  replay: {}", replay(seed, setting));
    }

    fn rate(&self, elapsed: Duration) -> f64 {
        self.run as f64 * 60.0 / elapsed.as_secs_f64().max(0.001)
    }

    fn progress(&self, elapsed: Duration, seeds: Seeds) {
        let total = seeds.last - seeds.first + 1;
        eprint!("\r{} of {total} seeds, {} failed, {:.0} seeds/min ", self.run, self.failed.len(), self.rate(elapsed));
        // A lost progress line is no loss.
        let _ = std::io::stderr().flush();
    }
}

fn meta(seeds: u64, setting: Setting) -> Result<bool, String> {
    let mut hashes = std::collections::BTreeMap::new();
    let mut good = true;
    for seed in 1..=seeds {
        let (first, second) = (run_apart(seed, setting)?, run_apart(seed, setting)?);
        if first.trace_hash != second.trace_hash || first.steps != second.steps {
            good = false;
            println!(
                "seed {seed} is two runs: trace {} after {} steps, and {} after {}",
                first.trace_hash, first.steps, second.trace_hash, second.steps
            );
        }
        if let Some(other) = hashes.insert(first.trace_hash, seed) {
            good = false;
            println!("seeds {other} and {seed} are one run");
        }
    }
    if good {
        println!("{seeds} of {seeds} seeds: each gave the same trace twice, and no two the same");
    }
    Ok(good)
}
