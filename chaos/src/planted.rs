//! Planted bugs on real processes: with which faults each should show, and one run with it after another until it does.
//!
//! The program must be one that has the bugs built in. It is told which one by a variable, which a run of its own in a child
//! process passes on, so that this process stays as it is.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use flotilla_message::AckLevel;
use flotilla_planted_bugs::{Bug, VARIABLE};
use flotilla_runtime::Runtime;
use serde::Serialize;

use crate::nemesis::FaultKind;
use crate::run_dir::{RunDir, RunDirError};

/// Stands in every program that has bugs built in.
const MARK: &[u8] = b"flotilla: planted bugs are built in.";

/// Why a bug was not hunted.
#[derive(Debug, thiserror::Error)]
pub enum HuntError {
    /// The program cannot be read, or a run not be started.
    #[error("{path}: {source}", path = .path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// It is an ordinary program.
    #[error("{} has no planted bugs: build it with `--features flotilla/planted-bugs`", .0.display())]
    NoBugs(PathBuf),
    /// A run left no account.
    #[error(transparent)]
    Dir(#[from] RunDirError),
}

/// A run in which a bug may show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lure {
    /// Its faults.
    pub faults: &'static [FaultKind],
    /// The level at which sends are answered.
    pub level: AckLevel,
    /// Whether faults may meet.
    pub overlaps: bool,
    /// How long it must be under load at least: a replica takes its first checkpoint after 64 MiB or a minute.
    pub seconds_min: u64,
}

/// The run in which the bug may show; an error says why no run would show it.
pub fn lure(bug: Bug) -> Result<Lure, &'static str> {
    use FaultKind::{
        FlipActive, KillAll, KillFollower, KillLeader, OneWay, PartitionLeader, PauseLeader, PowerLossAll,
        PowerLossFollower, PowerLossLeader, SyncError, TornTail,
    };
    let at = |faults: &'static [FaultKind], level| Ok(Lure { faults, level, overlaps: false, seconds_min: 0 });
    let majority = |faults: &'static [FaultKind]| at(faults, AckLevel::Majority);
    let meeting = |faults| majority(faults).map(|lure| Lure { overlaps: true, ..lure });
    let with_checkpoints = |faults| majority(faults).map(|lure| Lure { seconds_min: 120, ..lure });
    match bug {
        Bug::AckBeforeQuorum => majority(&[PartitionLeader, KillLeader]),
        Bug::AckBeforeSync => majority(&[PowerLossAll, PowerLossLeader]),
        Bug::VoteNotDurable | Bug::LeaderRestored => majority(&[PowerLossLeader, PowerLossFollower, KillLeader]),
        Bug::SuffixNotTruncated | Bug::CacheNotTruncated => at(&[PartitionLeader, OneWay], AckLevel::Async),
        Bug::StaleLeaderObeyed | Bug::ReadsUncommitted => meeting(&[PartitionLeader, OneWay, PauseLeader]),
        // A leader that nobody follows any more is asked for registers.
        Bug::ReadsWithoutLease => majority(&[PartitionLeader, PauseLeader]),
        Bug::ApplySkipsEntries => majority(&[KillFollower]),
        Bug::ProgressInMemory | Bug::CheckpointLacksEntry | Bug::DuplicatesForgotten => {
            with_checkpoints(&[KillFollower, KillLeader, KillAll])
        }
        Bug::SyncErrorIgnored => meeting(&[SyncError, PowerLossAll, PowerLossFollower]),
        Bug::TailNotChecked => majority(&[TornTail, FlipActive]),
        Bug::CheckpointAheadOfLog => majority(&[PowerLossFollower, PowerLossLeader]),
        Bug::HalfVisible | Bug::TransactionEndsTwice | Bug::DelayTooShort | Bug::DeadLetterDropped => {
            majority(&[KillFollower, KillLeader])
        }
        Bug::OrderNotFenced => Err("brokers do not ask for what this fence keeps back"),
        Bug::LearnerCounted => Err("the group has no member without a vote, and counting one loses nothing"),
        Bug::LowerTermRegistered => Err("the SDK knows the newer leader by its brokers' word, whatever a namesrv says"),
        Bug::VotesBeforeRecovery => Err("groups of durability `os` are not started here"),
        Bug::Canary => Err("it is the simulation's; here `controls` tries the alarm"),
    }
}

/// What became of one bug.
#[derive(Debug, Serialize)]
pub struct Hunt {
    /// Its number.
    pub number: u32,
    /// Its name.
    pub bug: &'static str,
    /// The check that saw it first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caught_by: Option<String>,
    /// Its words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finding: Option<String>,
    /// Runs until then, or all that were made.
    pub runs: u64,
    /// What they took.
    pub seconds: f64,
    /// Whether the same run without it is good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_good_without: Option<bool>,
    /// Why no run was made.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not: Option<&'static str>,
}

impl std::fmt::Display for Hunt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Hunt { number, bug, runs, seconds, .. } = self;
        write!(f, "{number:>2} {bug:<24}{runs:>3} runs {seconds:>6.0} s  ")?;
        match (&self.caught_by, self.why_not, self.is_good_without) {
            (Some(check), _, Some(false)) => write!(f, "{check}, BUT THE SAME RUN IS NOT GOOD WITHOUT IT"),
            (Some(check), _, _) => write!(f, "caught by {check}"),
            (None, Some(why), _) => write!(f, "not tried: {why}"),
            (None, None, _) => f.write_str("NOT CAUGHT"),
        }
    }
}

/// How bugs are hunted.
#[derive(Debug, Clone)]
pub struct Hunter {
    /// Has the bugs built in.
    pub program: PathBuf,
    /// Runs' folders go below.
    pub dir: PathBuf,
    /// How long each run is under load, where its bug does not need longer.
    pub duration: Duration,
    /// A bug is given up after so many runs.
    pub runs_max: u64,
}

impl Hunter {
    /// Whether the program has bugs at all.
    ///
    /// # Errors
    /// [`HuntError`] if not, or if it cannot be read.
    pub fn check(&self) -> Result<(), HuntError> {
        let path = self.program.clone();
        let bytes = std::fs::read(&path).map_err(|source| HuntError::Io { path: path.clone(), source })?;
        let has_mark = bytes.windows(MARK.len()).any(|window| window == MARK);
        if has_mark { Ok(()) } else { Err(HuntError::NoBugs(path)) }
    }

    /// Runs with the bug until a judge objects, and then the same without it.
    ///
    /// # Errors
    /// [`HuntError`] if a run cannot be made.
    pub fn hunt(&self, bug: Bug, runtime: &Runtime) -> Result<Hunt, HuntError> {
        let mut hunt = Hunt {
            number: bug.number(),
            bug: bug.name(),
            caught_by: None,
            finding: None,
            runs: 0,
            seconds: 0.0,
            is_good_without: None,
            why_not: None,
        };
        if let Err(why) = lure(bug) {
            hunt.why_not = Some(why);
            return Ok(hunt);
        }
        let begun = runtime.now();
        while hunt.caught_by.is_none() && hunt.runs < self.runs_max {
            hunt.runs += 1;
            let objection = self.run(bug, hunt.runs, true)?;
            hunt.seconds = (runtime.now() - begun).as_secs_f64();
            if let Some((check, words)) = objection {
                (hunt.caught_by, hunt.finding) = (Some(check), Some(words));
                hunt.is_good_without = Some(self.run(bug, hunt.runs, false)?.is_none());
            }
        }
        Ok(hunt)
    }

    /// One run; what a judge has to object, if anything.
    fn run(&self, bug: Bug, seed: u64, is_planted: bool) -> Result<Option<(String, String)>, HuntError> {
        let Ok(lure) = lure(bug) else { return Ok(None) };
        let duration = self.duration.max(Duration::from_secs(lure.seconds_min));
        let faults: Vec<String> = lure.faults.iter().map(ToString::to_string).collect();
        let suffix = if is_planted { "" } else { "-without" };
        let dir = self.dir.join(format!("bug-{}{suffix}", bug.name()));
        let own = std::env::current_exe().map_err(|source| HuntError::Io { path: dir.clone(), source })?;
        let mut run = Command::new(&own);
        run.args(["run", "--rate", "300", "--seed", &seed.to_string(), "--faults", &faults.join(",")])
            .args(["--duration", &format!("{}ms", duration.as_millis()), "--ack", &lure.level.to_string()])
            .args(lure.overlaps.then_some("--overlap"))
            .arg("--flotilla")
            .arg(&self.program)
            .arg("--dir")
            .arg(&dir)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        if is_planted {
            run.env(VARIABLE, bug.name());
        }
        let status = run.status().map_err(|source| HuntError::Io { path: own, source })?;
        if status.success() {
            return Ok(None);
        }
        Ok(Some(objection(&dir)?))
    }
}

/// What a run that is not good ended with: the check, and its words.
fn objection(dir: &Path) -> Result<(String, String), RunDirError> {
    let run = RunDir::open(dir)?;
    // A group that never had a leader, or a harness that gave up, leaves no record.
    let Ok(report) = crate::run::rejudge(&run) else {
        return Ok(("the run itself: it had no end".to_owned(), String::new()));
    };
    if let Some(finding) = report.findings.first() {
        return Ok((finding.property.to_string(), finding.detail.clone()));
    }
    let incident = report.incidents.first().cloned();
    Ok(match incident {
        Some(incident) => ("an incident".to_owned(), incident),
        None => ("a void run".to_owned(), report.void.join("; ")),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ordinary_program_has_no_bugs_to_hunt() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        std::fs::write(&program, [b"some code ", MARK, b" more"].concat()).unwrap();
        let hunter = Hunter { program: program.clone(), dir: dir.path().into(), duration: Duration::ZERO, runs_max: 1 };
        hunter.check().unwrap();
        std::fs::write(&program, b"some code").unwrap();
        assert!(matches!(hunter.check(), Err(HuntError::NoBugs(_))));
    }

    #[test]
    fn a_bug_that_no_run_would_show_is_not_run() {
        let hunter = Hunter {
            program: PathBuf::from("/nowhere"),
            dir: PathBuf::from("/nowhere"),
            duration: Duration::ZERO,
            runs_max: 9,
        };
        let hunt = hunter.hunt(Bug::OrderNotFenced, &Runtime::tokio()).unwrap();
        assert_eq!((hunt.runs, hunt.caught_by.as_deref()), (0, None));
        assert!(hunt.to_string().ends_with("not tried: brokers do not ask for what this fence keeps back"), "{hunt}");
        assert!(Bug::every().filter(|bug| lure(*bug).is_ok()).count() >= 20);
    }
}
