//! What the verbs share: the setting of a run, and runs in processes of their own.

pub(crate) mod bugs;
pub(crate) mod interrupt;
pub(crate) mod meta;
pub(crate) mod regressions;
pub(crate) mod run_one;
pub(crate) mod shrink;
pub(crate) mod sweep;
pub(crate) mod worker;

use std::collections::BTreeMap;

use clap::{Args, ValueEnum};
use flotilla_planted_bugs::{ARE_BUILT_IN, Bug};
use flotilla_sim::{Case, Machine, Mutant, Options, Outcome, Size};
use serde::{Deserialize, Serialize};

/// What is run beside the seed.
#[derive(Args, Clone, Copy)]
pub(crate) struct Setting {
    /// What the log's entries mean: the real store, whole brokers around it, or a toy for looking at the log alone.
    #[arg(long, value_enum, default_value_t = MachineName::Store)]
    machine: MachineName,
    /// Seconds of faults and hundreds of messages, or less of both and many more runs in the same time.
    #[arg(long, value_enum, default_value_t = SizeName::Standard)]
    size: SizeName,
    /// Make the simulated world itself wrong, to see it noticed.
    #[arg(long, value_enum)]
    mutant: Option<MutantName>,
    /// Switch a planted bug on, by name; only in builds that have them.
    #[arg(long, value_parser = planted)]
    bug: Option<Bug>,
}

#[derive(Clone, Copy, ValueEnum)]
enum MachineName {
    Store,
    Broker,
    Toy,
}

#[derive(Clone, Copy, ValueEnum)]
enum SizeName {
    Standard,
    Short,
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

/// A planted bug's name.
pub(crate) fn planted(name: &str) -> Result<Bug, String> {
    let bug = Bug::of_name(name).ok_or_else(|| {
        let names: Vec<&str> = Bug::every().map(Bug::name).collect();
        format!("no bug is called \"{name}\"; there are {}", names.join(", "))
    })?;
    if ARE_BUILT_IN { Ok(bug) } else { Err(no_bugs()) }
}

pub(crate) fn no_bugs() -> String {
    "this build has no planted bugs; build it with `--features flotilla-sim/planted-bugs`".to_owned()
}

impl Setting {
    pub(crate) fn of(machine: Machine, size: Size, bug: Option<Bug>) -> Setting {
        let machine = match machine {
            Machine::Store => MachineName::Store,
            Machine::Broker => MachineName::Broker,
            Machine::Toy => MachineName::Toy,
        };
        let size = match size {
            Size::Standard => SizeName::Standard,
            Size::Short => SizeName::Short,
        };
        Setting { machine, size, mutant: None, bug }
    }

    pub(crate) fn machine(self) -> Machine {
        match self.machine {
            MachineName::Store => Machine::Store,
            MachineName::Broker => Machine::Broker,
            MachineName::Toy => Machine::Toy,
        }
    }

    pub(crate) fn size(self) -> Size {
        match self.size {
            SizeName::Standard => Size::Standard,
            SizeName::Short => Size::Short,
        }
    }

    pub(crate) fn case(self, seed: u64) -> Case {
        Case::of_seed(seed, self.machine(), self.size(), self.bug)
    }

    fn options(self, seed: u64) -> Options {
        let mut options = self.case(seed).options();
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
        let size = name(self.size.to_possible_value()).map(|name| ["--size".to_owned(), name]);
        let mutant = self.mutant.and_then(|mutant| name(mutant.to_possible_value()));
        let mutant = mutant.map(|name| ["--mutant".to_owned(), name]);
        let bug = self.bug.map(|bug| ["--bug".to_owned(), bug.name().to_owned()]);
        machine.into_iter().chain(size).chain(mutant).chain(bug).flatten().collect()
    }

    pub(crate) fn replay(self, seed: u64) -> String {
        let features = if self.bug.is_some() { " --features planted-bugs" } else { "" };
        let arguments = self.arguments().join(" ");
        format!("cargo run --profile ci -p flotilla-sim{features} -- run --seed {seed} {arguments} --trace")
    }
}

/// First and last seed of a sweep.
#[derive(Clone, Copy)]
pub(crate) struct Seeds {
    pub(crate) first: u64,
    pub(crate) last: u64,
}

impl Seeds {
    /// How many they are, at most as many as can be counted.
    fn count(self) -> u64 {
        (self.last - self.first).saturating_add(1)
    }
}

/// Reads a range of seeds.
pub(crate) fn seeds(text: &str) -> Result<Seeds, String> {
    let explain = || format!("\"{text}\" is not a range of seeds; write for example 1..200 (both ends are run)");
    let (first, last) = text.split_once("..").ok_or_else(explain)?;
    let number = |part: &str| part.trim_start_matches('=').parse::<u64>().map_err(|_| explain());
    let range = Seeds { first: number(first)?, last: number(last)? };
    if range.first > range.last {
        return Err(format!("the range {text} is empty: {} is above {}", range.first, range.last));
    }
    Ok(range)
}

/// What a process tells of its run.
#[derive(Serialize, Deserialize)]
pub(crate) struct Told {
    pub(crate) seed: u64,
    pub(crate) trace_hash: String,
    pub(crate) steps: u64,
    pub(crate) virtual_ms: u64,
    pub(crate) acks: u64,
    pub(crate) findings: Vec<String>,
    pub(crate) marks: BTreeMap<String, u64>,
}

impl Told {
    pub(crate) fn of(outcome: &Outcome) -> Told {
        Told {
            seed: outcome.seed,
            trace_hash: format!("{:016x}", outcome.trace_hash),
            steps: outcome.steps,
            virtual_ms: outcome.virtual_ms,
            acks: outcome.acks,
            findings: outcome.findings.clone(),
            marks: outcome.marks.clone(),
        }
    }
}
