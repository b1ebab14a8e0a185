//! `flotilla-chaos`: runs, lists and replays; the work is the library's.

mod options;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use flotilla_chaos::abilities::is_root;
use flotilla_chaos::nemesis::FaultKind;
use flotilla_chaos::plan::Plan;
use flotilla_chaos::{
    Abilities, Conclusion, Report, RunDir, RunDirError, RunError, Settings, Skipped, default_dir, rejudge,
};
use flotilla_runtime::{Either, Runtime, select};

use crate::options::{Command, Options, RunOptions};

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
    #[error("stopped by Ctrl-C; what was seen until then is in {}", .0.display())]
    Interrupted(PathBuf),
}

/// Set in the process that has mounts of its own.
const NAMESPACE_VARIABLE: &str = "FLOTILLA_CHAOS_NAMESPACE";

/// Root's mounts are made where nobody else sees them: the kernel takes them away when the last process in there ends,
/// however it ends. Answers only if that is not possible, or has been done.
fn enter_own_namespace() {
    if !is_root() || std::env::var_os(NAMESPACE_VARIABLE).is_some() {
        return;
    }
    let Ok(own) = std::env::current_exe() else { return };
    let mut again = std::process::Command::new("unshare");
    again.args(["--mount", "--propagation", "private", "--"]).arg(own).args(std::env::args_os().skip(1));
    let error = again.env(NAMESPACE_VARIABLE, "1").exec();
    eprintln!("chaos: no mounts of its own: {error}");
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
        Command::Run(options) => {
            enter_own_namespace();
            let threads =
                tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ChaosError::Threads)?;
            threads.block_on(run(options, Runtime::tokio()))
        }
    }
}

fn list() {
    for kind in FaultKind::every() {
        let card = kind.card();
        let needs = if card.needs_volumes { " (needs root)" } else { "" };
        line(&format!("{kind:<20}{}{needs}\n{:<20}heals: {}", card.about.what, "", card.about.heals));
    }
}

async fn run(options: RunOptions, runtime: Runtime) -> Result<bool, ChaosError> {
    let program = program(options.flotilla)?;
    let abilities = Abilities::probe().await;
    let mut settings = Settings {
        seed: options.seed.unwrap_or_else(|| runtime.random_below(1 << 32)),
        faults: options.faults.0,
        duration_ms: u64::try_from(options.duration.as_millis()).expect("the duration was limited when parsed"),
        rate: options.rate,
        replicas: options.replicas,
        overlaps: options.overlap,
        plan_file: None,
        scenario: None,
    };
    let mut given = None;
    if let Some(path) = &options.plan {
        let plan = RunDir::read_plan(path)?;
        settings.plan_file = Some(path.display().to_string());
        (settings.seed, settings.replicas, settings.overlaps) = (plan.seed, plan.replicas, plan.overlaps);
        (settings.duration_ms, settings.faults) = (plan.duration_ms, plan.kinds());
        given = Some(plan);
    }
    let (able, skipped) = abilities.sift(&settings.faults, settings.replicas);
    for Skipped { kind, why } in &skipped {
        eprintln!("chaos: SKIPPED: {kind}: {why}");
    }
    settings.faults = able;
    let plan = match given {
        Some(mut plan) => {
            plan.steps.retain(|step| settings.faults.contains(&step.kind));
            plan
        }
        None => {
            let Settings { seed, faults, replicas, duration_ms, overlaps, .. } = &settings;
            Plan::of_seed(*seed, faults, *replicas, *duration_ms, *overlaps)
        }
    };
    let dir = RunDir::create(&options.dir.unwrap_or_else(|| default_dir(settings.seed)))?;
    eprintln!("chaos: seed {}, in {}\nagain: {}", settings.seed, dir.path().display(), settings.command());
    eprint!("{plan}");
    let work = flotilla_chaos::run(&settings, &plan, &skipped, &abilities, program, &dir, &runtime);
    let report = match select(work, tokio::signal::ctrl_c()).await {
        Either::Left(report) => report?,
        Either::Right(_) => return Err(ChaosError::Interrupted(dir.path().to_owned())),
    };
    if options.json {
        eprint!("{report}");
    }
    print(&report, options.json);
    let is_good = report.conclusion == Conclusion::Good;
    if is_good && !options.keep {
        dir.remove_data()?;
    }
    eprintln!("chaos: plan, history, logs and report are in {}", dir.path().display());
    Ok(is_good)
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
