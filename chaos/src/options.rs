//! What can be written behind `flotilla-chaos`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use flotilla_chaos::NetworkMode;
use flotilla_chaos::hurt::Blow;
use flotilla_chaos::nemesis::FaultKind;
use flotilla_message::{AckLevel, FlushLevel};

/// Hurt a Flotilla cluster of real processes, heal it, and judge whether it kept its promises.
#[derive(Debug, Parser)]
#[command(
    name = "flotilla-chaos",
    version,
    after_help = "\
Examples:
  flotilla-chaos list
  flotilla-chaos run --seed 7 --faults kill-leader,partition-leader --duration 60s --rate 500
  flotilla-chaos run --faults none --duration 10s          the control: nothing is hurt
  flotilla-chaos run --overlap --duration 10m              everything this machine can do, also at once
  flotilla-chaos scenario list                             field cases
  flotilla-chaos matrix leader-gone                        what is lost when a leader's machine is, at each level
  flotilla-chaos controls                                  prove that the judges see what they should
  flotilla-chaos replay target/chaos/7                     judge the stored history again
  flotilla-chaos export target/chaos/7 --edn               for Jepsen's own checkers
  flotilla-chaos hurt --pids 4711,4712,4713 --faults pause a cluster that somebody else started

Exit codes: 0 every promise was kept, 1 one was not or the run proves nothing, 2 the command line was not understood"
)]
pub struct Options {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a cluster, load it, hurt it by a plan, heal it, judge it
    Run(RunOptions),
    /// Show every fault: what it does and how it heals
    List,
    /// Do what a field case says, and judge it: `scenario list` shows them, `scenario all` does all
    Scenario {
        /// Its name, `list` or `all`
        name: String,
        /// Where the runs' folders go [default: target/chaos]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The flotilla binary [default: beside this program]
        #[arg(long, value_name = "PATH")]
        flotilla: Option<PathBuf>,
        /// Leave the replicas' data where it is, also after a good run
        #[arg(long)]
        keep: bool,
        #[command(flatten)]
        network: OnNetwork,
    },
    /// Show what docs/ha-levels.md claims, cell by cell: what is lost at which level by which cause, and what is not
    Matrix(MatrixOptions),
    /// Hunt planted bugs on processes of a program that has them, and say what caught each
    Bugs {
        /// Only this one, by name; may be given repeatedly
        #[arg(long, value_name = "NAME")]
        bug: Vec<String>,
        /// Where the runs' folders go [default: target/chaos]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// A flotilla binary that has the bugs built in
        #[arg(long, value_name = "PATH")]
        flotilla: PathBuf,
        /// How long each run is under load
        #[arg(long, value_name = "TIME", default_value = "20s", value_parser = duration)]
        duration: Duration,
        /// Give a bug up after so many runs
        #[arg(long, value_name = "COUNT", default_value_t = 2)]
        runs: u64,
        /// Print one JSON object for each
        #[arg(long)]
        json: bool,
    },
    /// Prove the judges on both sides: a run without faults must be good, one with planted losses must be found broken
    Controls {
        /// Where the runs' folders go [default: target/chaos]
        #[arg(long, value_name = "DIR")]
        dir: Option<PathBuf>,
        /// The flotilla binary [default: beside this program]
        #[arg(long, value_name = "PATH")]
        flotilla: Option<PathBuf>,
        #[command(flatten)]
        network: OnNetwork,
    },
    /// Hurt a cluster that runs already: its processes stand still, or die and are started again
    Hurt(HurtOptions),
    /// Write the history of an earlier run in the form that Jepsen reads
    Export {
        /// The run's folder
        dir: PathBuf,
        /// Write EDN; the only form there is
        #[arg(long, required = true)]
        edn: bool,
        /// Where to [default: the run's folder]
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
    /// Judge the history of an earlier run again
    Replay {
        /// The run's folder
        dir: PathBuf,
        /// Print the account as one JSON object instead
        #[arg(long)]
        json: bool,
    },
}

#[derive(Debug, Args)]
pub struct RunOptions {
    /// What the plan is made from; the same seed gives the same plan [default: a random one, which is printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// Which faults the plan may have: names as in `list`, `all` or `none`
    #[arg(long, value_name = "FAULT,FAULT", default_value = "all", value_parser = fault_set)]
    pub faults: FaultSet,
    /// A plan as `plan.json` of an earlier run has it, in place of one made from the seed
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seed", "faults", "duration", "replicas", "overlap"])]
    pub plan: Option<PathBuf>,
    /// Faults may strike while others hold
    #[arg(long)]
    pub overlap: bool,
    /// How long messages are sent
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub duration: Duration,
    /// Messages a second
    #[arg(long, value_name = "PER_SECOND", default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub rate: u64,
    /// Levels that senders ask for by turns: async, majority, sync; the topics give the lowest
    #[arg(long, value_name = "LEVEL,LEVEL", value_delimiter = ',', default_value = "majority")]
    pub ack: Vec<AckLevel>,
    /// Whether copies are on disk when a send is answered: sync, async, or both by turns; the topics give the lowest
    #[arg(long, value_name = "LEVEL,LEVEL", value_delimiter = ',', default_value = "sync")]
    pub flush: Vec<FlushLevel>,
    /// A line of the brokers' settings files, such as 'raft_durability = "os"'; may be given repeatedly
    #[arg(long, value_name = "LINE")]
    pub broker: Vec<String>,
    /// Replicas of the broker group: 1, 2, 3 or 5
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = replicas)]
    pub replicas: u64,
    /// Where plan, history, logs and report go; a run that is there is removed [default: target/chaos/SEED]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The flotilla binary [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub flotilla: Option<PathBuf>,
    /// Add what was done, and what came of it, to this file of sums
    #[arg(long, value_name = "FILE")]
    pub ledger: Option<PathBuf>,
    /// Print the account as one JSON object, the last line on stdout
    #[arg(long)]
    pub json: bool,
    /// Leave the replicas' data where it is, also after a good run
    #[arg(long)]
    pub keep: bool,
    #[command(flatten)]
    pub network: OnNetwork,
}

// A doc comment would replace the commands' own.
#[derive(Debug, Clone, Copy, Args)]
pub struct OnNetwork {
    /// How the replicas reach each other
    #[arg(long = "network", value_name = "MODE", value_enum, default_value_t)]
    pub mode: NetworkMode,
}

#[derive(Debug, Args)]
pub struct MatrixOptions {
    /// Cells by name, or rows: their cells of all sizes
    #[arg(value_name = "CELL", required_unless_present_any = ["all", "list"])]
    pub cells: Vec<String>,
    /// All of them
    #[arg(long, conflicts_with = "cells")]
    pub all: bool,
    /// Only say what they claim
    #[arg(long)]
    pub list: bool,
    /// Where the runs' folders go [default: target/chaos/matrix]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The flotilla binary [default: beside this program]
    #[arg(long, value_name = "PATH")]
    pub flotilla: Option<PathBuf>,
    /// Give a cell up after so many runs in which nothing was lost though something had to be
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=20))]
    pub tries: u64,
    /// Print one JSON object for each
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub network: OnNetwork,
}

#[derive(Debug, Args)]
pub struct HurtOptions {
    /// Processes of this machine
    #[arg(long, value_name = "PID,PID", value_delimiter = ',', required_unless_present = "hosts")]
    pub pids: Vec<u32>,
    /// A file of hosts: how each process is found, and started again
    #[arg(long, value_name = "FILE", conflicts_with = "pids")]
    pub hosts: Option<PathBuf>,
    /// What may be done
    #[arg(long, value_name = "FAULT,FAULT", value_delimiter = ',', default_value = "pause,kill,stop")]
    pub faults: Vec<Blow>,
    /// How many may be hurt at once [default: a minority]
    #[arg(long, value_name = "COUNT")]
    pub at_once: Option<u64>,
    /// What the blows are drawn from [default: a random one, which is printed]
    #[arg(long)]
    pub seed: Option<u64>,
    /// How long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration)]
    pub duration: Duration,
}

/// Faults as named on the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FaultSet(pub Vec<FaultKind>);

/// A value that is not understood.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionError {
    #[error("`{0}` is no fault: see `flotilla-chaos list`")]
    Fault(String),
    #[error("`{0}` is no duration: write for example 90s, 500ms, 5m or 1h")]
    Duration(String),
    #[error("`{0}` replicas are not offered: 1, 2, 3 and 5 are")]
    Replicas(String),
}

fn fault_set(text: &str) -> Result<FaultSet, OptionError> {
    match text {
        "all" => return Ok(FaultSet(FaultKind::all())),
        "none" => return Ok(FaultSet(Vec::new())),
        _ => {}
    }
    let fault = |name: &str| FaultKind::from_str(name.trim(), false).map_err(|_| OptionError::Fault(name.to_owned()));
    let mut faults = text.split(',').map(fault).collect::<Result<Vec<_>, _>>()?;
    faults.sort_unstable();
    faults.dedup();
    Ok(FaultSet(faults))
}

fn duration(text: &str) -> Result<Duration, OptionError> {
    let error = || OptionError::Duration(text.to_owned());
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text[..digits].parse().map_err(|_| error())?;
    let factor_ms = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(error()),
    };
    // A month: longer runs are typing errors.
    let ms = number.checked_mul(factor_ms).filter(|ms| *ms <= 31 * 24 * 3_600_000).ok_or_else(error)?;
    Ok(Duration::from_millis(ms))
}

fn replicas(text: &str) -> Result<u64, OptionError> {
    text.parse().ok().filter(|count| [1, 2, 3, 5].contains(count)).ok_or_else(|| OptionError::Replicas(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_well_formed() {
        Options::command().debug_assert();
    }

    #[test]
    fn faults_are_read_by_name() {
        let set = |text| fault_set(text).map(|set| set.0);
        assert_eq!(set("all").unwrap(), FaultKind::all());
        assert_eq!(set("none").unwrap(), []);
        let two = [FaultKind::KillLeader, FaultKind::PartitionLeader];
        assert_eq!(set("partition-leader,kill-leader,kill-leader").unwrap(), two);
        assert_eq!(set("kill-leader,boil-sea").unwrap_err(), OptionError::Fault("boil-sea".into()));
    }

    #[test]
    fn durations_need_a_unit_and_groups_have_a_size_that_is_offered() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("500ms"), Ok(Duration::from_millis(500)));
        for bad in ["5", "s", "", "5d", "-1s", "999999h"] {
            assert!(duration(bad).is_err(), "{bad}");
        }
        assert_eq!((replicas("5"), replicas("4")), (Ok(5), Err(OptionError::Replicas("4".into()))));
    }
}
