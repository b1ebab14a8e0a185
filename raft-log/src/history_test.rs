//! Histories of a log beside a simple model: short ones with a power failure at every single durable step, and thousands of
//! random ones.
//!
//! `FLOTILLA_HISTORIES=200000 cargo test -p flotilla-raft-log --profile ci histories` runs longer;
//! `FLOTILLA_HISTORY_SEED=17` runs only that one.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::testing::{CrashDisk, Loss, Model, Step, StepRuntime, open_all};

/// Random histories in CI.
const HISTORIES: u64 = 3000;

/// Runs `script` from an empty disk; power fails at durable operation `crash_at` (never, if `None`), then what is recovered is
/// checked, and lives on a little. Returns the number of durable operations.
fn live(script: &[Step], crash_at: Option<(u64, Loss)>) -> Result<u64, String> {
    let disk = CrashDisk::new(1);
    let mut model = Model::default();
    if let Some((operation, _)) = crash_at {
        disk.crash_at(operation);
    }
    let mut runtime = StepRuntime::default();
    if let Ok(mut opened) = open_all(&disk, &runtime) {
        for step in script {
            if *step == Step::Kill {
                drop(opened);
                disk.kill_process();
                runtime = StepRuntime::default();
                match open_all(&disk, &runtime) {
                    Ok(next) => opened = next,
                    Err(error) if disk.has_crashed() => {
                        return recover(&disk, &mut model, crash_at).map_err(|what| format!("{what} (start: {error})"));
                    }
                    Err(error) => return Err(format!("restart: {error}")),
                }
                if !disk.has_crashed() {
                    model.check(&opened, false).map_err(|what| format!("after a kill: {what}"))?;
                }
            } else {
                model.step(*step, &mut opened, &runtime);
            }
            if disk.has_crashed() {
                break;
            }
        }
        runtime.run();
    }
    let operations = disk.operations();
    recover(&disk, &mut model, crash_at)?;
    Ok(operations)
}

/// Power comes back: checks what is found, twice, with some life in between.
fn recover(disk: &CrashDisk, model: &mut Model, crash_at: Option<(u64, Loss)>) -> Result<u64, String> {
    let loss = crash_at.map_or(Loss::All, |(_, loss)| loss);
    disk.power_cycle_with(loss);
    let runtime = StepRuntime::default();
    let mut opened = open_all(disk, &runtime).map_err(|error| format!("does not open: {error}"))?;
    model.check(&opened, true)?;
    for step in [Step::Vote, Step::Append { count: 2, payload_bytes: 300 }, Step::Settle, Step::Commit] {
        model.step(step, &mut opened, &runtime);
    }
    drop(opened);
    disk.power_cycle_with(loss);
    let opened = open_all(disk, &StepRuntime::default()).map_err(|error| format!("does not open again: {error}"))?;
    model.check(&opened, true).map_err(|what| format!("after another life: {what}"))?;
    Ok(0)
}

fn append(count: u64, payload_bytes: usize) -> Step {
    Step::Append { count, payload_bytes }
}

/// Everything that a log does durably, each at least once, in orders that matter.
fn scripts() -> Vec<Vec<Step>> {
    use Step::{Checkpoint, Commit, Kill, Settle, Vote};
    let truncate = |permille| Step::Truncate { permille };
    let purge = |permille| Step::Purge { permille };
    vec![
        vec![Vote, append(3, 100), Settle, append(2, 100), Vote, append(1, 10), Settle, Commit, append(1, 10)],
        // Three segments, their files made ahead, a checkpoint, a purge of the first.
        vec![
            Vote,
            append(2, 25_000),
            Settle,
            append(2, 25_000),
            Settle,
            Commit,
            Checkpoint,
            append(2, 25_000),
            Settle,
            purge(1000),
            Settle,
            append(1, 100),
            Commit,
            Vote,
        ],
        // A tail that was written and not synced is truncated, and grows again.
        vec![
            Vote,
            append(4, 200),
            Settle,
            Commit,
            append(5, 300),
            truncate(500),
            append(2, 300),
            Settle,
            Vote,
            truncate(0),
            append(1, 300),
            Settle,
            Commit,
            Checkpoint,
        ],
        // Purged to the end, then on; two checkpoints.
        vec![
            Vote,
            append(5, 100),
            Settle,
            Checkpoint,
            purge(1000),
            Settle,
            append(3, 100),
            Settle,
            Checkpoint,
            purge(500),
            append(2, 40_000),
            Settle,
            Commit,
        ],
        // Killed with unsynced entries, restarted, killed again.
        vec![
            Vote,
            append(3, 500),
            Kill,
            append(2, 500),
            Kill,
            Vote,
            append(1, 500),
            Settle,
            Commit,
            Kill,
            append(1, 9),
        ],
    ]
}

#[test]
fn a_power_failure_at_any_single_step_costs_nothing_that_was_promised() {
    let mut points = 0;
    for (number, script) in scripts().iter().enumerate() {
        let operations = live(script, None).unwrap_or_else(|what| panic!("script {number} without a failure: {what}"));
        for operation in 1..=operations {
            for loss in Loss::EACH {
                points += 1;
                live(script, Some((operation, loss))).unwrap_or_else(|what| {
                    panic!("script {number}, power fails at step {operation}, lost {loss:?}: {what}")
                });
            }
        }
    }
    assert!(points > 1000, "{points} crash points");
}

fn random_step(rng: &mut StdRng) -> Step {
    match rng.random_range(0..40) {
        0 | 1 => Step::Vote,
        2 | 3 => Step::Commit,
        4 => Step::Truncate { permille: rng.random_range(0..=1000) },
        5 => Step::Purge { permille: rng.random_range(0..=1000) },
        6 | 7 => Step::Checkpoint,
        8 => Step::Kill,
        9..22 => Step::Settle,
        22 => append(1, rng.random_range(0..50_000)),
        _ => append(rng.random_range(1..8), rng.random_range(0..700)),
    }
}

/// One history: some lives of the log, each ended by a power failure at a random durable step.
fn live_through(seed: u64) -> Result<(), String> {
    let mut rng = StdRng::seed_from_u64(seed);
    let disk = CrashDisk::new(seed);
    let mut model = Model::default();
    for life in 0..4 {
        let mut runtime = StepRuntime::default();
        let crash_at = rng.random_range(1..90);
        disk.crash_at(crash_at);
        let told = |what: String| format!("life {life}, crash at {crash_at}: {what}");
        let mut opened = match open_all(&disk, &runtime) {
            Ok(opened) => Some(opened),
            Err(_) if disk.has_crashed() => None,
            Err(error) => return Err(told(error.to_string())),
        };
        if let Some(opened) = &opened
            && !disk.has_crashed()
        {
            model.check(opened, true).map_err(told)?;
        }
        while let Some(log) = &mut opened {
            match random_step(&mut rng) {
                Step::Kill => {
                    drop(opened.take());
                    disk.kill_process();
                    runtime = StepRuntime::default();
                    match open_all(&disk, &runtime) {
                        Ok(_) if disk.has_crashed() => {}
                        Ok(next) => {
                            model.check(&next, false).map_err(|what| told(format!("after a kill: {what}")))?;
                            opened = Some(next);
                        }
                        Err(_) if disk.has_crashed() => {}
                        Err(error) => return Err(told(error.to_string())),
                    }
                }
                step => model.step(step, log, &runtime),
            }
            if disk.has_crashed() {
                opened = None;
            }
        }
        let losses = Loss::EACH;
        disk.power_cycle_with(losses[rng.random_range(0..losses.len())]);
    }
    let opened = open_all(&disk, &StepRuntime::default()).map_err(|error| error.to_string())?;
    model.check(&opened, true)
}

fn number_of(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn random_histories_keep_what_was_promised() {
    let seeds = match number_of("FLOTILLA_HISTORY_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number_of("FLOTILLA_HISTORIES").unwrap_or(HISTORIES),
    };
    for seed in seeds {
        live_through(seed).unwrap_or_else(|what| panic!("FLOTILLA_HISTORY_SEED={seed}: {what}"));
    }
}
