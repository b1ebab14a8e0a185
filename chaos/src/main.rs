//! `flotilla-chaos`: runs, lists and replays; the work is the library's.

mod matrix_command;
mod options;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use flotilla_chaos::hurt::{Hosts, HurtError, Hurting};
use flotilla_chaos::nemesis::FaultKind;
use flotilla_chaos::plan::Plan;
use flotilla_chaos::planted::{HuntError, Hunter};
use flotilla_chaos::scenario::{Limits, Scenario};
use flotilla_chaos::{
    Abilities, Conclusion, Levels, NetworkMode, Report, RunDir, RunDirError, RunError, Settings, Skipped, default_dir,
    own_namespace, rejudge,
};
use flotilla_checkers::ledger::{self, LedgerRow};
use flotilla_checkers::{HistoryError, Property};
use flotilla_message::AckLevel;
use flotilla_planted_bugs::Bug;
use flotilla_runtime::{Either, Runtime, select};

use crate::options::{Command, HurtOptions, Options, RunOptions};

/// Why there is no verdict.
#[derive(Debug, thiserror::Error)]
enum ChaosError {
    #[error(
        "{} is not there: build it with `cargo build --release -p flotilla`, or name it with --flotilla PATH",
        .0.display()
    )]
    NoFlotilla(PathBuf),
    #[error("no threads for the harness: {0}")]
    Threads(#[source] std::io::Error),
    #[error(transparent)]
    Dir(#[from] RunDirError),
    #[error(transparent)]
    Run(#[from] RunError),
    #[error("`{0}` is no scenario: see `flotilla-chaos scenario list`")]
    NoScenario(String),
    #[error("`{0}` is no cell: see `flotilla-chaos matrix --list`")]
    NoCell(String),
    #[error(transparent)]
    Hurt(#[from] HurtError),
    #[error(transparent)]
    Hunt(#[from] HuntError),
    #[error("`{0}` is no planted bug: `flotilla-sim bugs --bug x` names them")]
    NoBug(String),
    #[error("{0}")]
    Network(String),
    #[error("the history contradicts itself: {0}")]
    History(#[source] HistoryError),
    #[error("{path}: {source}", path = .path.display())]
    Write { path: PathBuf, source: std::io::Error },
    #[error("the ledger: {0}")]
    Ledger(String),
    #[error("stopped by Ctrl-C; what was seen until then is in {}", .0.display())]
    Interrupted(PathBuf),
}

/// Where several runs go, with what, on which network.
struct Ground {
    dir: Option<PathBuf>,
    flotilla: Option<PathBuf>,
    network: NetworkMode,
}

fn main() -> ExitCode {
    let filter = std::env::var("FLOTILLA_LOG").unwrap_or_else(|_| "warn".to_owned());
    let filter = tracing_subscriber::EnvFilter::new(filter);
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match dispatch(Options::parse().command) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// True when all is well.
fn dispatch(command: Command) -> Result<bool, ChaosError> {
    match command {
        Command::List => {
            list();
            Ok(true)
        }
        Command::Replay { dir, json } => {
            let report = rejudge(&RunDir::open(&dir)?)?;
            print(&report, json);
            Ok(report.conclusion == Conclusion::Good)
        }
        Command::Scenario { name, .. } if name == "list" => {
            for Scenario { name, case, must, .. } in Scenario::all() {
                line(&format!("{name:<32}{case:<18}{must}"));
            }
            Ok(true)
        }
        Command::Export { dir, to, edn: _ } => {
            let run = RunDir::open(&dir)?;
            let events = run.read_history()?;
            let edn = flotilla_chaos::export::edn(&events).map_err(ChaosError::History)?;
            let to = to.unwrap_or(dir);
            edn.write(&to).map_err(|source| ChaosError::Write { path: to.clone(), source })?;
            line(&format!("{} and queue.edn, registers.edn, keys.edn beside it", to.join("history.edn").display()));
            Ok(true)
        }
        Command::Run(options) => {
            own_namespace::enter(options.network.mode);
            threads()?.block_on(run(options, Runtime::tokio()))
        }
        Command::Scenario { name, dir, flotilla, keep, network } => {
            own_namespace::enter(network.mode);
            let ground = Ground { dir, flotilla, network: network.mode };
            threads()?.block_on(scenarios(&name, ground, keep, Runtime::tokio()))
        }
        Command::Matrix(options) => {
            if !options.list {
                own_namespace::enter(options.network.mode);
            }
            threads()?.block_on(matrix_command::run(options, Runtime::tokio()))
        }
        Command::Controls { dir, flotilla, network } => {
            own_namespace::enter(network.mode);
            let ground = Ground { dir, flotilla, network: network.mode };
            threads()?.block_on(controls(ground, Runtime::tokio()))
        }
        Command::Bugs { bug, dir, flotilla, duration, runs, json } => {
            let dir = dir.unwrap_or_else(|| PathBuf::from("target/chaos"));
            bugs(&bug, &Hunter { program: flotilla, dir, duration, runs_max: runs.max(1) }, json)
        }
        Command::Hurt(options) => threads()?.block_on(hurt(options, Runtime::tokio())),
    }
}

/// True if every bug that was tried was caught, and by nothing that is there without it.
fn bugs(names: &[String], hunter: &Hunter, json: bool) -> Result<bool, ChaosError> {
    hunter.check()?;
    let named = |name: &String| Bug::of_name(name).ok_or_else(|| ChaosError::NoBug(name.clone()));
    let mut chosen = names.iter().map(named).collect::<Result<Vec<Bug>, ChaosError>>()?;
    if chosen.is_empty() {
        chosen = Bug::every().collect();
    }
    let mut is_right = true;
    for bug in chosen {
        let hunt = hunter.hunt(bug, &Runtime::tokio())?;
        is_right &= hunt.why_not.is_some() || (hunt.caught_by.is_some() && hunt.is_good_without != Some(false));
        if json {
            line(&serde_json::to_string(&hunt).expect("strings and numbers become JSON"));
        } else {
            line(&hunt.to_string());
        }
    }
    Ok(is_right)
}

fn list() {
    for kind in FaultKind::every() {
        let card = kind.card();
        let needs = if card.needs_volumes { " (needs root)" } else { "" };
        line(&format!("{kind:<24}{}{needs}\n{:<24}heals: {}", card.about.what, "", card.about.heals));
    }
}

fn threads() -> Result<tokio::runtime::Runtime, ChaosError> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ChaosError::Threads)
}

async fn run(options: RunOptions, runtime: Runtime) -> Result<bool, ChaosError> {
    let program = program(options.flotilla)?;
    let mut settings = Settings {
        seed: options.seed.unwrap_or_else(|| runtime.random_below(1 << 32)),
        faults: options.faults.0,
        duration_ms: u64::try_from(options.duration.as_millis()).expect("the duration was limited when parsed"),
        rate: options.rate,
        replicas: options.replicas,
        overlaps: options.overlap,
        plan_file: None,
        scenario: None,
        levels: Levels::by_turns(options.ack, options.flush),
        limits: Limits::default(),
        broker: options.broker,
        network: options.network.mode,
    };
    let mut plan = None;
    if let Some(path) = &options.plan {
        let given = RunDir::read_plan(path)?;
        settings.plan_file = Some(path.display().to_string());
        settings.follow(&given);
        plan = Some(given);
    }
    let dir = options.dir.unwrap_or_else(|| default_dir(settings.seed));
    let report = carry_out(settings, plan, program, &dir, options.keep, &runtime).await?;
    if let Some(path) = &options.ledger {
        ledger::add(path, &ledger_row(&report)).map_err(ChaosError::Ledger)?;
    }
    if options.json {
        eprint!("{report}");
    }
    print(&report, options.json);
    Ok(report.conclusion == Conclusion::Good)
}

/// What a run adds to the ledger.
fn ledger_row(report: &Report) -> LedgerRow {
    let mut faults = std::collections::BTreeMap::new();
    for fault in report.faults.iter().filter(|fault| fault.problem.is_none()) {
        *faults.entry(fault.kind.to_string()).or_default() += 1;
    }
    LedgerRow {
        commit: ledger::commit(),
        tool: "chaos".to_owned(),
        what: format!("{} replicas", report.settings.replicas),
        seeds: 1,
        first_seed: report.settings.seed,
        failed: u64::from(report.conclusion == Conclusion::Broken),
        void: u64::from(report.conclusion == Conclusion::Void),
        acks: report.acked,
        ms: report.load_ms,
        faults,
    }
}

/// Carries out a plan, or one made from the seed, as far as this machine lets it.
async fn carry_out(
    mut settings: Settings,
    plan: Option<Plan>,
    program: PathBuf,
    dir: &Path,
    keeps: bool,
    runtime: &Runtime,
) -> Result<Report, ChaosError> {
    let abilities = Abilities::probe().await;
    let asked = match (settings.network, plan.as_ref().and_then(|plan| plan.network)) {
        // A plan that was made for proxies has what these do; one for namespaces may be carried out without.
        (NetworkMode::Auto, Some(NetworkMode::Proxies)) => NetworkMode::Proxies,
        (asked, _) => asked,
    };
    let (network, why_not) = asked.decide(&settings.faults, &abilities.namespaces).map_err(ChaosError::Network)?;
    settings.network = network;
    let why_not = why_not.map(|why| format!(", not namespaces: {why}")).unwrap_or_default();
    eprintln!("chaos: network by {network}{why_not}");
    let (able, skipped) = abilities.sift(&settings.faults, settings.replicas, network);
    for Skipped { kind, why } in &skipped {
        eprintln!("chaos: SKIPPED: {kind}: {why}");
    }
    settings.faults = able;
    let mut plan = match plan {
        Some(mut plan) => {
            plan.steps.retain(|step| settings.faults.contains(&step.kind));
            plan
        }
        None => {
            let Settings { seed, faults, replicas, duration_ms, overlaps, .. } = &settings;
            Plan::of_seed(*seed, faults, *replicas, *duration_ms, *overlaps)
        }
    };
    plan.network = Some(network);
    let dir = RunDir::create(dir)?;
    eprintln!("chaos: seed {}, in {}\nagain: {}", settings.seed, dir.path().display(), settings.command());
    eprint!("{plan}");
    let work = flotilla_chaos::run(&settings, &plan, &skipped, &abilities, program, &dir, runtime);
    let report = match select(work, tokio::signal::ctrl_c()).await {
        Either::Left(report) => report?,
        Either::Right(_) => return Err(ChaosError::Interrupted(dir.path().to_owned())),
    };
    if report.conclusion == Conclusion::Good && !keeps {
        dir.remove_data()?;
    }
    eprintln!("chaos: plan, history, logs, report.txt and report.html are in {}", dir.path().display());
    Ok(report)
}

async fn scenarios(name: &str, ground: Ground, keeps: bool, runtime: Runtime) -> Result<bool, ChaosError> {
    let Ground { dir, flotilla, network } = ground;
    let program = program(flotilla)?;
    let dir = dir.unwrap_or_else(|| PathBuf::from("target/chaos"));
    let chosen = match name {
        "all" => Scenario::all(),
        name => vec![Scenario::named(name).ok_or_else(|| ChaosError::NoScenario(name.to_owned()))?],
    };
    let mut account = Vec::new();
    for Scenario { name, case, must, rate, levels, limits, broker, plan } in chosen {
        eprintln!("chaos: {name} ({case}): {must}");
        let mut settings = Settings {
            seed: plan.seed,
            faults: Vec::new(),
            duration_ms: 0,
            rate,
            replicas: 0,
            overlaps: false,
            plan_file: None,
            scenario: Some(name.clone()),
            levels,
            limits,
            broker,
            network,
        };
        settings.follow(&plan);
        let report = carry_out(settings, Some(plan), program.clone(), &dir.join(&name), keeps, &runtime).await?;
        print(&report, false);
        account.push((name, report.conclusion));
    }
    if account.len() > 1 {
        account.iter().for_each(|(name, conclusion)| line(&format!("{name:<32}{conclusion:?}")));
    }
    Ok(account.iter().all(|(_, conclusion)| *conclusion == Conclusion::Good))
}

/// Good must be found good, and lost must be found lost.
async fn controls(ground: Ground, runtime: Runtime) -> Result<bool, ChaosError> {
    let Ground { dir, flotilla, network } = ground;
    let program = program(flotilla)?;
    let dir = dir.unwrap_or_else(|| PathBuf::from("target/chaos"));
    let mut is_proved = true;
    let levels = |ack| Levels { acks: vec![ack], ..Levels::default() };
    for (name, fault, levels) in [
        ("no-fault", None, Levels::default()),
        ("rewind", Some(FaultKind::Rewind), Levels::default()),
        ("lying-disk", Some(FaultKind::LyingDisk), Levels::default()),
        // What a leader answers early while nobody hears it must be lost, counted, and no broken promise.
        ("async-tail", Some(FaultKind::PartitionLeader), levels(AckLevel::Async)),
    ] {
        let is_early = levels.lowest() == AckLevel::Async;
        let settings = Settings {
            seed: 1,
            faults: fault.into_iter().collect(),
            duration_ms: if fault.is_some() { 16_000 } else { 8_000 },
            rate: 300,
            replicas: 3,
            overlaps: false,
            plan_file: None,
            scenario: None,
            levels,
            limits: Limits::default(),
            broker: Vec::new(),
            network,
        };
        let report =
            carry_out(settings, None, program.clone(), &dir.join(format!("control-{name}")), false, &runtime).await?;
        let lost = report.findings.iter().filter(|finding| finding.property == Property::NoLostAck).count();
        let (is_right, text) = match fault {
            _ if !report.skipped.is_empty() => (true, "skipped".to_owned()),
            None => (report.conclusion == Conclusion::Good, format!("{:?}", report.conclusion)),
            Some(_) if is_early => {
                let is_right = report.conclusion == Conclusion::Good && report.early_lost > 0;
                (is_right, format!("{:?}, {} messages answered early found lost", report.conclusion, report.early_lost))
            }
            Some(_) => (lost > 0, format!("{:?}, {lost} acknowledged messages found lost", report.conclusion)),
        };
        line(&format!("control {name:<12}{:<8}{text}", if is_right { "right" } else { "WRONG" }));
        is_proved &= is_right;
    }
    Ok(is_proved)
}

/// Strikes strangers until the time is over; everything is healed then, and on Ctrl-C.
async fn hurt(options: HurtOptions, runtime: Runtime) -> Result<bool, ChaosError> {
    let hosts = match &options.hosts {
        Some(path) => Hosts::read(path)?,
        None => Hosts::of_pids(&options.pids),
    };
    let seed = options.seed.unwrap_or_else(|| runtime.random_below(1 << 32));
    let at_once = options.at_once.unwrap_or((hosts.host.len() as u64).saturating_sub(1) / 2).max(1);
    let mut hurting = Hurting::new(hosts, &options.faults, seed, runtime.clone())?;
    eprintln!("chaos: seed {seed}, at most {at_once} at once; Ctrl-C heals and ends");
    let end = runtime.now() + options.duration;
    let (mut number, mut is_clean) = (0, true);
    loop {
        number += 1;
        let blow = async {
            let record = hurting.strike(number, at_once).await;
            let gap = hurting.gap();
            (record, gap)
        };
        let (record, gap) = match select(blow, tokio::signal::ctrl_c()).await {
            Either::Left(done) => done,
            Either::Right(_) => break,
        };
        is_clean &= record.problems.is_empty();
        line(&serde_json::to_string(&record).expect("numbers and strings become JSON"));
        if runtime.now() + gap >= end {
            break;
        }
        if let Either::Right(_) = select(runtime.sleep(gap), tokio::signal::ctrl_c()).await {
            break;
        }
    }
    let problems = hurting.heal().await;
    problems.iter().for_each(|problem| eprintln!("chaos: not healed: {problem}"));
    Ok(is_clean && problems.is_empty())
}

/// The binary to start: named, or beside this program.
fn program(named: Option<PathBuf>) -> Result<PathBuf, ChaosError> {
    let path = named.unwrap_or_else(|| {
        let own = std::env::current_exe().unwrap_or_default();
        own.parent().unwrap_or(Path::new(".")).join("flotilla")
    });
    if path.is_file() { Ok(path) } else { Err(ChaosError::NoFlotilla(path)) }
}

fn print(report: &Report, json: bool) {
    let text = if json {
        serde_json::to_string(report).expect("numbers and strings become JSON")
    } else {
        report.to_string().trim_end().to_owned()
    };
    line(&text);
}

/// Whether anybody reads is the reader's affair.
fn line(text: &str) {
    let mut stdout = std::io::stdout().lock();
    let _ = writeln!(stdout, "{text}").and_then(|()| stdout.flush());
}
