//! A sweep that is told to end tells what it saw until then; told twice, it ends at once. Neither leaves a process behind.

#![allow(clippy::disallowed_methods, reason = "what is waited for are other processes' ends")]

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);
const THREADS: usize = 2;

fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < PATIENCE, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A sweep that would go on for days, in a process group of its own.
struct Sweep {
    process: Child,
    ledger: PathBuf,
}

impl Sweep {
    fn start(name: &str, more: &[&str]) -> Sweep {
        let ledger = std::env::temp_dir().join(format!("flotilla-{name}-{}.jsonl", std::process::id()));
        let process = Command::new(env!("CARGO_BIN_EXE_flotilla-sim"))
            .args(["sweep", "--seeds", "1..100000000", "--machine", "toy", "--size", "short"])
            .args(["--seeds-min", "1000000", "--no-holes", "--threads", &THREADS.to_string(), "--ledger"])
            .arg(&ledger)
            .args(more)
            .process_group(0)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        Sweep { process, ledger }
    }

    /// The processes that run its seeds.
    fn workers(&self) -> Vec<u32> {
        let parent = |pid: &u32| -> Option<u32> {
            let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
        };
        let entries = std::fs::read_dir("/proc").unwrap();
        let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        pids.filter(|pid| parent(pid) == Some(self.process.id())).collect()
    }

    fn await_workers(&self) -> Vec<u32> {
        until("its workers", || self.workers().len() == THREADS);
        self.workers()
    }

    /// To all of its group, as a terminal sends Ctrl-C.
    fn signal(&self, name: &str) {
        signal(name, &format!("-{}", self.process.id()));
    }

    fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        until("the sweep ends", || {
            status = self.process.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    fn output(&mut self) -> Vec<String> {
        let lines = BufReader::new(self.process.stdout.take().unwrap()).lines();
        lines.map(Result::unwrap).collect()
    }

    fn row(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(&self.ledger).unwrap();
        assert_eq!(text.lines().count(), 1, "{text}");
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Sweep {
    fn drop(&mut self) {
        // After a failed assertion only; each may be gone.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = std::fs::remove_file(&self.ledger);
    }
}

fn signal(name: &str, whom: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), "--", whom]).status().unwrap();
    assert!(status.success(), "kill -{name} {whom}");
}

fn is_there(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

#[test]
fn an_interrupted_sweep_prints_its_sums_and_adds_them_to_the_ledger() {
    let mut sweep = Sweep::start("interrupted", &[]);
    let workers = sweep.await_workers();
    sweep.signal("INT");
    assert_eq!(sweep.ended().code(), Some(130));
    let (output, row) = (sweep.output(), sweep.row());
    let seeds = row["seeds"].as_u64().unwrap();
    assert!(seeds >= THREADS as u64, "those under way are finished: {row}");
    assert_eq!((row["failed"].as_u64(), row["first_seed"].as_u64()), (Some(0), Some(1)), "{row}");
    assert!(row["acks"].as_u64() > Some(0), "{row}");
    let has = |start: &str| output.iter().any(|line| line.starts_with(start));
    assert!(has(&format!("{seeds} seeds in ")) && has("HOLE: never reached: "), "{output:?}");
    assert!(has(&format!("INTERRUPTED: {seeds} of 100000000 seeds were run")), "{output:?}");
    until("its workers end", || !workers.iter().any(|worker| is_there(*worker)));
}

#[test]
fn a_sweep_that_found_something_says_so_when_it_is_told_to_end() {
    let mut sweep = Sweep::start("found", &["--mutant", "skips-entries", "--failures-max", "1000000"]);
    let mut lines = BufReader::new(sweep.process.stdout.take().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.ends_with("FAILED")).expect("a replica that skips entries is found");
    sweep.signal("TERM");
    let rest: Vec<String> = lines.collect();
    assert_eq!(sweep.ended().code(), Some(1), "{rest:?}");
    assert!(sweep.row()["failed"].as_u64() >= Some(1), "{rest:?}");
}

#[test]
fn the_second_signal_ends_a_sweep_at_once() {
    let mut sweep = Sweep::start("twice", &[]);
    let workers = sweep.await_workers();
    // Seeds that do not come to an end.
    workers.iter().for_each(|worker| signal("STOP", &worker.to_string()));
    sweep.signal("INT");
    let mut told = BufReader::new(sweep.process.stderr.take().unwrap()).lines().map(Result::unwrap);
    told.find(|line| line.ends_with("once more ends it at once")).expect("it says how it ends");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sweep.process.try_wait().unwrap(), None, "it waits for the seeds under way");
    sweep.signal("INT");
    assert_eq!(sweep.ended().code(), Some(130));
    assert!(!sweep.ledger.exists(), "nothing was summed up");
    workers.iter().for_each(|worker| signal("CONT", &worker.to_string()));
    until("its workers end", || !workers.iter().any(|worker| is_there(*worker)));
}
