//! `flotilla-chaos`: runs, lists and replays; the work is the library's.

mod options;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;
use flotilla_chaos::nemesis::FaultKind;
use flotilla_chaos::plan::Plan;
use flotilla_chaos::{Conclusion, Report, RunDir, RunDirError, RunError, Settings, default_dir, rejudge};
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
            let threads =
                tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(ChaosError::Threads)?;
            threads.block_on(run(options, Runtime::tokio()))
        }
    }
}

fn list() {
    for kind in FaultKind::all() {
        let about = kind.about();
        line(&format!("{kind:<18}{}\n{:<18}heals: {}", about.what, "", about.heals));
    }
}

async fn run(options: RunOptions, runtime: Runtime) -> Result<bool, ChaosError> {
    let program = program(options.flotilla)?;
    let settings = Settings {
        seed: options.seed.unwrap_or_else(|| runtime.random_below(1 << 32)),
        faults: options.faults.0,
        duration_ms: u64::try_from(options.duration.as_millis()).expect("the duration was limited when parsed"),
        rate: options.rate,
        replicas: options.replicas,
    };
    let plan = Plan::of_seed(settings.seed, &settings.faults, settings.replicas, settings.duration_ms);
    let dir = RunDir::create(&options.dir.unwrap_or_else(|| default_dir(settings.seed)))?;
    eprintln!("chaos: seed {}, in {}\nagain: {}", settings.seed, dir.path().display(), settings.command());
    eprint!("{plan}");
    let work = flotilla_chaos::run(&settings, &plan, program, &dir, &runtime);
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
