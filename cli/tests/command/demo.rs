//! `flotilla demo` and `flotilla bench`, small.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::support::{any_process_with, eventually, run, signal};

#[test]
fn a_small_demo_loses_nothing_and_cleans_up() {
    let ended = run(&["demo", "--messages", "2000", "--kills", "1", "--transfers", "1", "--stops", "1", "--json"]);
    let folder = folder_in(&ended.stderr);
    let stdout = ended.ok();
    let last = stdout.lines().last().expect("a report was printed");
    let report: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!(report["lost"], 0, "{report}");
    assert_eq!(report["duplicates"], 0, "{report}");
    assert_eq!(report["wrong_order"], 0, "{report}");
    assert_eq!(report["kills"], 1, "{report}");
    assert_eq!(report["digests_equal"], true, "{report}");
    assert_eq!(report["sent"], 2000, "{report}");
    assert!(report["elections"].as_u64() >= Some(3), "{report}");
    assert_eq!(report["longest_gap_ms"].as_array().map(Vec::len), Some(3), "{report}");
    let gaps = report["gaps"].as_array().expect("a distribution for each kind");
    let kinds: Vec<_> =
        gaps.iter().map(|gap| (gap["kind"].as_str().unwrap(), gap["faults"].as_u64().unwrap())).collect();
    assert_eq!(kinds, [("kill", 1), ("transfer", 1), ("stop", 1)], "{report}");
    assert!(!std::path::Path::new(&folder).exists(), "{folder} is still there");
    assert!(!any_process_with(&folder), "a server of the demo still runs");
}

#[test]
fn servers_of_a_demo_end_with_it_even_when_it_is_killed() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_flotilla"))
        .args(["demo", "--messages", "1000000", "--rate", "100", "--kills", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(demo.stderr.take().unwrap()).lines().map_while(Result::ok);
    let folder = folder_in(&stderr.next().unwrap());
    let sending = stderr.find(|line| line.contains("sending"));
    assert!(sending.is_some() && any_process_with(&folder), "the demo got to its sends");

    signal(demo.id(), "KILL");
    demo.wait().unwrap();
    eventually("all servers have ended", Duration::from_secs(15), || !any_process_with(&folder));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_demo_that_is_interrupted_stops_its_servers_and_removes_its_folder() {
    let mut demo = Command::new(env!("CARGO_BIN_EXE_flotilla"))
        .args(["demo", "--messages", "1000000", "--rate", "100", "--kills", "0"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(demo.stderr.take().unwrap()).lines().map_while(Result::ok);
    let folder = folder_in(&stderr.next().unwrap());
    assert!(stderr.any(|line| line.contains("sending")));
    signal(demo.id(), "INT");
    assert_eq!(demo.wait().unwrap().code(), Some(1));
    assert!(!any_process_with(&folder) && !std::path::Path::new(&folder).exists());
}

#[test]
fn a_short_bench_has_its_figures() {
    let stdout =
        run(&["bench", "--local", "1", "--duration", "500ms", "--warmup", "100ms", "--in-flight", "4", "--json"]).ok();
    let report: serde_json::Value = serde_json::from_str(stdout.trim()).unwrap();
    for figure in ["messages_per_second", "p50_us", "p99_us", "max_us"] {
        assert!(report[figure].as_u64() > Some(0), "{figure} is missing in {report}");
    }
    assert_eq!(report["errors"], 0, "{report}");
}

/// From `demo: starting a namesrv and 3 brokers in FOLDER`.
fn folder_in(stderr: &str) -> String {
    let line = stderr.lines().next().expect("the demo says where it works");
    line.rsplit_once(" in ").expect("the folder is named at the end").1.trim().to_owned()
}
