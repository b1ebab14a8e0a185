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
use crate::plan::{Pace, Plan};
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
    /// Whether faults may meet, where they are drawn.
    pub overlaps: bool,
    /// The faults follow each other in their order and over again, so densely; else they are drawn from the seed.
    pub pace: Option<Pace>,
    /// Size of the group.
    pub replicas: u64,
    /// How long it must be under load at least: a replica takes its first checkpoint after 64 MiB or a minute.
    pub seconds_min: u64,
}

/// The run in which the bug may show; an error says why no run would show it.
pub fn lure(bug: Bug) -> Result<Lure, &'static str> {
    use FaultKind::{
        KillAll, KillFollower, KillLeader, LeaderLast, LeaderReturns, OneWay, PartitionLeader, PartitionLeaderSide,
        PauseLeader, PowerLossAll, PowerLossFollower, PowerLossLeader, SyncsFailThenPower, TornTail, TransferLeader,
    };
    let at = |faults: &'static [FaultKind], level| {
        Ok(Lure { faults, level, overlaps: false, pace: None, replicas: 3, seconds_min: 0 })
    };
    let majority = |faults: &'static [FaultKind]| at(faults, AckLevel::Majority);
    let meeting = |faults| majority(faults).map(|lure| Lure { overlaps: true, ..lure });
    let with_checkpoints = |faults| majority(faults).map(|lure| Lure { seconds_min: 120, ..lure });
    // Events that must come close to each other, again and again.
    let in_turn = |faults, hold_ms, gap_ms| {
        majority(faults).map(|lure| Lure { pace: Some(Pace { hold_ms, gap_ms }), seconds_min: 30, ..lure })
    };
    match bug {
        Bug::AckBeforeQuorum => majority(&[PartitionLeader, KillLeader]),
        Bug::AckBeforeSync => majority(&[PowerLossAll, PowerLossLeader]),
        // The group forgets the votes of its newest terms, and gives these again.
        Bug::VoteNotDurable => in_turn(&[TransferLeader, TransferLeader, PowerLossAll, KillAll], 100, 100),
        Bug::LeaderRestored => in_turn(&[LeaderReturns], 500, 300),
        // Whoever came back with entries that others had overridden must have what it confirmed since.
        Bug::SuffixNotTruncated => in_turn(&[PartitionLeader, LeaderLast], 1_500, 200),
        Bug::CacheNotTruncated => at(&[PartitionLeader, OneWay], AckLevel::Async),
        Bug::StaleLeaderObeyed => meeting(&[PartitionLeader, OneWay, PauseLeader]),
        // A follower has what its leader alone gave it, and others agree on something else.
        Bug::ReadsUncommitted => in_turn(&[PartitionLeaderSide], 2_000, 500).map(|lure| Lure { replicas: 5, ..lure }),
        // A leader that nobody follows any more is asked for registers.
        Bug::ReadsWithoutLease => majority(&[PartitionLeader, PauseLeader]),
        Bug::ApplySkipsEntries => majority(&[KillFollower]),
        Bug::ProgressInMemory | Bug::CheckpointLacksEntry | Bug::DuplicatesForgotten => {
            with_checkpoints(&[KillFollower, KillLeader, KillAll])
        }
        Bug::SyncErrorIgnored => in_turn(&[SyncsFailThenPower], 100, 500),
        Bug::TailNotChecked => in_turn(&[TornTail], 100, 100),
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
        let suffix = if is_planted { "" } else { "-without" };
        let dir = self.dir.join(format!("bug-{}{suffix}", bug.name()));
        let own = std::env::current_exe().map_err(|source| HuntError::Io { path: dir.clone(), source })?;
        let mut run = Command::new(&own);
        run.args(["run", "--rate", "300", "--ack", &lure.level.to_string()]);
        match lure.pace {
            Some(pace) => {
                let duration_ms = u64::try_from(duration.as_millis()).expect("the duration was limited when parsed");
                let plan = Plan::in_turn(seed, lure.faults, lure.replicas, duration_ms, pace);
                run.arg("--plan").arg(self.write_plan(bug, &plan)?);
            }
            None => {
                let faults: Vec<String> = lure.faults.iter().map(ToString::to_string).collect();
                run.args(["--seed", &seed.to_string(), "--replicas", &lure.replicas.to_string()])
                    .args(["--faults", &faults.join(","), "--duration", &format!("{}ms", duration.as_millis())])
                    .args(lure.overlaps.then_some("--overlap"));
            }
        }
        run.arg("--flotilla").arg(&self.program).arg("--dir").arg(&dir).stdout(Stdio::null()).stderr(Stdio::null());
        if is_planted {
            run.env(VARIABLE, bug.name());
        }
        let status = run.status().map_err(|source| HuntError::Io { path: own, source })?;
        if status.success() {
            return Ok(None);
        }
        Ok(Some(objection(&dir)?))
    }

    /// Puts a plan beside the runs' folders.
    fn write_plan(&self, bug: Bug, plan: &Plan) -> Result<PathBuf, HuntError> {
        let path = self.dir.join(format!("bug-{}.plan.json", bug.name()));
        let json = serde_json::to_string_pretty(plan).expect("numbers and strings become JSON");
        let written = std::fs::create_dir_all(&self.dir).and_then(|()| std::fs::write(&path, json));
        written.map_err(|source| HuntError::Io { path: path.clone(), source })?;
        Ok(path)
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
    fn a_lure_in_turn_is_a_plan_that_a_run_reads_and_every_fault_of_it_strikes_more_than_once() {
        let dir = tempfile::tempdir().unwrap();
        let hunter = Hunter {
            program: PathBuf::from("/nowhere"),
            dir: dir.path().join("runs"),
            duration: Duration::ZERO,
            runs_max: 1,
        };
        let in_turn = |bug: &Bug| lure(*bug).is_ok_and(|lure| lure.pace.is_some());
        for bug in Bug::every().filter(in_turn) {
            let Lure { faults, replicas, seconds_min, pace, .. } = lure(bug).unwrap();
            let plan = Plan::in_turn(1, faults, replicas, seconds_min * 1_000, pace.unwrap());
            assert_eq!(RunDir::read_plan(&hunter.write_plan(bug, &plan).unwrap()).unwrap(), plan);
            for kind in faults {
                assert!(plan.steps.iter().filter(|step| step.kind == *kind).count() > 1, "{}: {kind}", bug.name());
                assert!(kind.card().replicas_min <= replicas, "{}: {kind}", bug.name());
            }
        }
        assert_eq!(Bug::every().filter(in_turn).count(), 6);
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
