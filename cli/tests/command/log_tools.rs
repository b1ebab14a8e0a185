//! `flotilla log` on the folder of a real broker: running, stopped, damaged, mended by a restart.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::support::{Ended, Server, eventually, free_ports, path_text, run, run_with_input};

/// A broker on `dir` with some messages in several segments; the folder it keeps is `dir`.
fn start(dir: &Path) -> (Server, String) {
    let first = free_ports(2);
    let (client, peer) = (format!("127.0.0.1:{first}"), format!("127.0.0.1:{}", first + 1));
    let arguments = [
        "broker",
        "--data-dir",
        path_text(dir),
        "--client-listen",
        &client,
        "--peer-listen",
        &peer,
        "--segment-bytes",
        "1MiB",
    ];
    (Server::start(&arguments), client)
}

fn fill(dir: &Path) {
    let (server, client) = start(dir);
    let created = || run(&["admin", "--endpoint", &client, "topic", "create", "orders", "--queues", "2"]).code == 0;
    eventually("the topic", Duration::from_secs(30), created);
    let lines = format!("{}\n", "x".repeat(2000)).repeat(1500);
    run_with_input(&["send", "--endpoint", &client, "--topic", "orders"], lines.as_bytes()).ok();
    let in_use = run(&["log", "verify", path_text(dir)]);
    in_use.failed(2, &["in use by a replica"]);
    run(&["log", "stat", path_text(dir), "--force-read"]).ok();
    assert_eq!(server.terminate(), 0);
}

fn files(dir: &Path, ending: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut found: Vec<PathBuf> = entries.filter(|path| path.to_str().unwrap().ends_with(ending)).collect();
    found.sort();
    found
}

fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

fn verify(dir: &Path) -> Ended {
    run(&["log", "verify", path_text(dir)])
}

#[test]
fn damage_is_found_in_each_kind_of_file_and_a_restart_mends_what_is_derived() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fill(dir);
    let clean = verify(dir).ok();
    assert!(clean.starts_with("clean: ") && clean.contains("part file(s)"), "{clean}");
    let stat = run(&["log", "stat", path_text(dir)]).ok();
    for part in ["group", "node 1", "SEGMENT", "sealed", "tail", "CHECKPOINT", "INDEX FILE", "PART FILE", "vote term"] {
        assert!(stat.contains(part), "{part} in: {stat}");
    }
    let json = run(&["log", "stat", path_text(dir), "--json"]).ok();
    assert!(json.contains("\"index_files\"") && json.contains("\"segments\""), "{json}");
    let dump = run(&["log", "dump", path_text(dir), "--commands", "--limit", "30"]).ok();
    for part in ["membership", "voters [[1]]", "create topic orders", "produce to orders/", "message(s)"] {
        assert!(dump.contains(part), "{part} in: {dump}");
    }
    let dumped = run(&["log", "dump", path_text(dir), "--from", "5", "--to", "6", "--json"]).ok();
    assert!(dumped.lines().count() == 2 && dumped.contains("\"index\":5"), "{dumped}");

    let (log, store) = (dir.join("log"), dir.join("store"));
    let segment = files(&log, ".seg")[0].clone();
    let index = files(&store, ".idx")[0].clone();
    let places = [
        (segment.clone(), 4096 + 40),
        (segment, 20),
        (files(&log, ".ckp").pop().unwrap(), 100),
        (log.join("vote-and-marks"), 40),
        (log.join("identity"), 20),
        (files(&store, ".part").pop().unwrap(), 60),
        (index.clone(), 70),
        (index.clone(), std::fs::metadata(&index).unwrap().len() as usize - 5),
    ];
    for (path, at) in places {
        flip(&path, at);
        let damaged = verify(dir);
        damaged.failed(1, &["damage(s) found"]);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(damaged.stdout.contains(name), "{name} in: {}", damaged.stdout);
        flip(&path, at);
    }
    verify(dir).ok();

    // An index file is derived: its loss costs only time at the next start.
    let slots = run(&["log", "stat", path_text(dir)]).ok();
    std::fs::remove_file(&index).unwrap();
    verify(dir).failed(1, &["damage(s) found"]);
    let (server, client) = start(dir);
    let listed = || run(&["admin", "--endpoint", &client, "topic", "list"]).stdout.contains("orders");
    eventually("the topic", Duration::from_secs(30), listed);
    eventually("the index file", Duration::from_secs(30), || index.exists());
    assert_eq!(server.terminate(), 0);
    let mended = verify(dir).ok();
    assert!(mended.starts_with("clean: "), "{mended}\n{slots}");
}

#[test]
fn wrong_places_are_told_apart_from_damage() {
    let dir = tempfile::tempdir().unwrap();
    run(&["log", "verify", path_text(dir.path())]).failed(2, &["holds no log"]);
    run(&["log", "stat", "/nowhere/at/all"]).failed(2, &["/nowhere/at/all"]);
    run(&["log", "dump"]).failed(2, &["DIR"]);
    run(&["admin", "lost-tail", path_text(dir.path())]).failed(2, &["holds no log"]);
    run(&["admin", "lost-tail", "/nowhere/at/all"]).failed(2, &["/nowhere/at/all"]);
}
