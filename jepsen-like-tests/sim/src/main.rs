//! The command: run one seed, sweep over many, prove that a seed means one run and no other, and that planted bugs are caught.
#![allow(
    clippy::disallowed_methods,
    reason = "the command times its sweeps by the machine's clock and runs seeds in processes"
)]

mod command;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

use crate::command::interrupt::INTERRUPTED;
use crate::command::sweep::{Sweep, Swept};
use crate::command::{Seeds, Setting, bugs, meta, regressions, run_one, seeds, shrink, worker};

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
        #[arg(long, required_unless_present = "case")]
        seed: Option<u64>,
        /// A case as `shrink` writes it, in place of a seed.
        #[arg(long, value_name = "FILE")]
        case: Option<PathBuf>,
        /// Print each event (start, crash, election, fault) as it happens.
        #[arg(long)]
        trace: bool,
        /// Write the history here, one JSON object a line.
        #[arg(long, value_name = "FILE")]
        history: Option<PathBuf>,
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
    /// Run many seeds, each in a process of its own; exit 1 if any failed. Ctrl-C or SIGTERM begins no new seeds, finishes
    /// those under way, prints the sums and adds them to the ledger; exit 130 then, if none failed. A second one ends it at
    /// once, without sums.
    Sweep {
        /// First and last seed.
        #[arg(long, value_name = "FIRST..LAST", value_parser = seeds)]
        seeds: Seeds,
        /// Processes at a time.
        #[arg(long, default_value_t = 1)]
        threads: usize,
        /// Begin no new seeds after so many seconds; while there are fewer than --seeds-min, after five times as many.
        #[arg(long, value_name = "SECONDS")]
        time_limit: Option<u64>,
        /// Fail if fewer seeds were run than this, whatever stopped them.
        #[arg(long, default_value_t = 1)]
        seeds_min: u64,
        /// Go on after this many failing seeds at most.
        #[arg(long, default_value_t = 10)]
        failures_max: u64,
        /// Fail also if something was never reached that a sweep must reach.
        #[arg(long)]
        no_holes: bool,
        /// Add the sums to this file.
        #[arg(long, value_name = "FILE")]
        ledger: Option<PathBuf>,
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
    /// Run with each planted bug until something catches it; exit 1 if one of the first 15, or the canary, was not. Only in
    /// builds that have the bugs.
    Bugs {
        /// Only this one, by name; may be given repeatedly.
        #[arg(long)]
        bug: Vec<String>,
        /// Give a bug up after so many seeds.
        #[arg(long, default_value_t = 2_000)]
        seeds: u64,
        /// Give a bug up after so many seconds.
        #[arg(long, value_name = "SECONDS", default_value_t = 120)]
        time_limit: u64,
        /// Three of them, others for each number: what a build of every commit can afford.
        #[arg(long, value_name = "NUMBER")]
        rotation: Option<u64>,
        /// Print one JSON object for each.
        #[arg(long)]
        json: bool,
    },
    /// Take away from a failing seed's plan what it does not need to fail, and write the rest as a case.
    Shrink {
        /// Which run.
        #[arg(long)]
        seed: u64,
        /// Where the case goes.
        #[arg(long, value_name = "FILE")]
        to: PathBuf,
        /// Runs to try at most.
        #[arg(long, default_value_t = 400)]
        tries: u64,
        #[command(flatten)]
        setting: Setting,
    },
    /// Run every case of a folder, each in several orders of steps; exit 1 if any failed.
    Regressions {
        /// The folder.
        #[arg(long, default_value = "jepsen-like-tests/sim/regressions")]
        dir: PathBuf,
        /// Orders of steps to try for each.
        #[arg(long, default_value_t = 5)]
        schedules: u64,
    },
    /// Run what comes on standard input, one JSON object a line: what sweeps start.
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        setting: Setting,
    },
    /// Print the sums of a ledger, commit by commit.
    Ledger {
        /// The file that `sweep --ledger` adds to.
        #[arg(default_value = "docs/ledger.jsonl")]
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let swept = |is_good: bool| if is_good { Swept::Well } else { Swept::Badly };
    let outcome = match Cli::parse().verb {
        Verb::Run { seed, case, trace, history, log, setting, json } => {
            if let Some(filter) = log {
                flotilla_sim::print_log(&filter);
            }
            run_one::run_one(seed, case.as_deref(), trace, history.as_deref(), setting, json).map(swept)
        }
        Verb::Sweep { seeds, threads, time_limit, seeds_min, failures_max, no_holes, ledger, setting } => {
            let time_limit = time_limit.map(Duration::from_secs);
            Sweep { seeds, threads, time_limit, seeds_min, failures_max, no_holes, ledger, setting }.run()
        }
        Verb::Meta { seeds, setting } => meta::meta(seeds, setting).map(swept),
        Verb::Bugs { bug, seeds, time_limit, rotation, json } => {
            bugs::bugs(&bug, rotation, seeds, Duration::from_secs(time_limit), json).map(swept)
        }
        Verb::Shrink { seed, to, tries, setting } => shrink::shrink(seed, &to, tries, setting).map(swept),
        Verb::Regressions { dir, schedules } => regressions::regressions(&dir, schedules).map(swept),
        Verb::Worker { setting } => worker::serve(setting).map(swept),
        Verb::Ledger { file } => flotilla_checkers::ledger::table(&file).map(|table| {
            print!("{table}");
            Swept::Well
        }),
    };
    match outcome {
        Ok(Swept::Well) => ExitCode::SUCCESS,
        Ok(Swept::Badly) => ExitCode::FAILURE,
        Ok(Swept::Interrupted) => ExitCode::from(INTERRUPTED),
        Err(text) => {
            eprintln!("flotilla-sim: {text}");
            ExitCode::from(2)
        }
    }
}
