//! The program from the outside, as far as it needs no cluster: `.ci/run` runs it against real processes.

use std::path::Path;
use std::process::{Command, Output};

use flotilla_chaos::nemesis::FaultKind;
use flotilla_chaos::scenario::Limits;
use flotilla_chaos::{CallCounts, Levels, NetworkMode, RunRecord, Settings};
use flotilla_checkers::{Ack, Delivery, Dump, EventKind, Operation, QueueKey, Recorder, write_json_lines};

fn chaos(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_flotilla-chaos")).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// Stores a run of one message that was acknowledged, received and found at the end; or, with `is_lost`, not found.
fn store_run(dir: &Path, is_lost: bool) {
    let queue = QueueKey::new("chaos", 0);
    let mut recorder = Recorder::default();
    for (number, offset) in [("1-0", 0), ("1-1", 1)] {
        let send = |ack| Operation::Send { message_id: number.into(), ack };
        recorder.record(offset * 10 + 1, "producer-1", EventKind::Invoke, send(None));
        recorder.record(offset * 10 + 2, "producer-1", EventKind::Ok, send(Some(Ack::at(queue.clone(), offset))));
    }
    for process in ["consumer-1", "drain-1"] {
        let found = if is_lost && process == "drain-1" { 1 } else { 2 };
        let deliveries = (0..found).map(|at| Delivery::new(process, queue.clone(), at, format!("1-{at}"))).collect();
        recorder.record(30, process, EventKind::Ok, Operation::Receive { deliveries });
    }
    for replica in 1..=3 {
        let dump = Dump { replica, applied_index: 5, digest: "d".into(), queues: Vec::new() };
        recorder.record(40, "harness", EventKind::Ok, Operation::Dump(dump));
    }
    let history = std::fs::File::create(dir.join("history.jsonl")).unwrap();
    write_json_lines(recorder.events(), history).unwrap();
    let record = RunRecord {
        settings: Settings {
            seed: 1,
            faults: Vec::new(),
            duration_ms: 1_000,
            rate: 1,
            replicas: 3,
            overlaps: false,
            plan_file: None,
            scenario: None,
            levels: Levels::default(),
            limits: Limits::default(),
            broker: Vec::new(),
            network: NetworkMode::Proxies,
        },
        faults: Vec::new(),
        skipped: Vec::new(),
        incidents: Vec::new(),
        calls: CallCounts::default(),
        kept_aside: None,
        data_bytes: 0,
        load_started_ns: 0,
        load_ended_ns: 20,
        total_ms: 1,
    };
    std::fs::write(dir.join("run.json"), serde_json::to_vec(&record).unwrap()).unwrap();
}

#[test]
fn every_fault_is_listed_with_how_it_heals() {
    let output = chaos(&["list"]);
    assert!(output.status.success());
    let listed = text(&output.stdout);
    for kind in FaultKind::every() {
        assert!(listed.lines().any(|line| line.starts_with(&format!("{kind} "))), "{kind} is missing in\n{listed}");
    }
    assert_eq!(listed.matches("heals: ").count(), FaultKind::every().len());
}

#[test]
fn a_stored_run_is_judged_again_and_the_exit_code_says_how() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_str().unwrap();
    store_run(dir.path(), false);
    let output = chaos(&["replay", path]);
    assert!(output.status.success(), "{}", text(&output.stdout));
    assert!(text(&output.stdout).contains("GOOD: every promise was kept"));

    store_run(dir.path(), true);
    let output = chaos(&["replay", path, "--json"]);
    assert_eq!(output.status.code(), Some(1));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["conclusion"], "broken");
    assert_eq!(report["findings"][0]["property"], "no-lost-ack");
    assert!(dir.path().join("report.json").is_file() && dir.path().join("report.txt").is_file());
}

#[test]
fn what_is_not_there_is_named() {
    let output = chaos(&["replay", "/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("/nowhere/history.jsonl"), "{}", text(&output.stderr));

    let output = chaos(&["run", "--flotilla", "/nowhere/flotilla"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("cargo build --release -p flotilla"), "{}", text(&output.stderr));

    let output = chaos(&["run", "--faults", "boil-sea"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("boil-sea"), "{}", text(&output.stderr));
}
