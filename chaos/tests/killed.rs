//! A harness that is killed or interrupted leaves nothing behind: no process, no namespace, no mount, no cable.

#![allow(clippy::disallowed_methods, reason = "what is waited for are other processes' ends")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(60);

/// What a process sees: `net:[4026531840]`.
fn namespace(pid: u32, kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

fn processes() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(1)?.parse().ok()
}

fn children(of: u32) -> Vec<u32> {
    processes().into_iter().filter(|pid| parent(*pid) == Some(of)).collect()
}

fn until(what: &str, mut is_met: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_met() {
        assert!(begun.elapsed() < PATIENCE, "{what} within {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A harness whose brokers are stand-ins: it waits for a leader, which there will never be.
fn harness(dir: &Path) -> Child {
    let stand_in = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/stand-in/ends-with-stdin.sh");
    Command::new(env!("CARGO_BIN_EXE_flotilla-chaos"))
        .args(["run", "--network", "auto", "--seed", "1", "--faults", "partition-leader", "--duration", "10s", "--dir"])
        .arg(dir.join("run"))
        .arg("--flotilla")
        .arg(stand_in)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(name: &str, pid: u32) {
    let status = Command::new("kill").args([format!("-{name}"), pid.to_string()]).status().unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}

#[test]
fn a_killed_harness_leaves_nothing_behind() {
    nothing_is_left_after("KILL");
}

#[test]
fn an_interrupted_harness_leaves_nothing_behind() {
    nothing_is_left_after("INT");
}

fn nothing_is_left_after(end: &str) {
    let dir = tempfile::tempdir().unwrap();
    let mut harness = harness(dir.path());
    let mut told = BufReader::new(harness.stderr.take().unwrap()).lines().map_while(Result::ok);
    let network = told.find(|line| line.starts_with("chaos: network by ")).expect("it says on which network it runs");
    let is_apart = network.starts_with("chaos: network by namespaces");
    if !is_apart {
        eprintln!("without namespaces: {network}");
    }
    // The namesrv and three replicas, as programs of their own: each has its own network by then.
    let pid = harness.id();
    let are_up = || {
        let up = children(pid);
        let names = up.iter().map(|child| std::fs::read_to_string(format!("/proc/{child}/comm")).unwrap_or_default());
        (names.filter(|name| name.trim() == "cat").count() == 4).then_some(up)
    };
    until("four children", || are_up().is_some());
    let servers = are_up().unwrap();
    let networks: BTreeSet<PathBuf> = servers.iter().filter_map(|server| namespace(*server, "net")).collect();
    let own = std::process::id();
    if is_apart {
        assert_eq!(networks.len(), 4, "each has its own");
        let of_harness = namespace(pid, "net").unwrap();
        assert!(!networks.contains(&of_harness) && Some(&of_harness) != namespace(own, "net").as_ref());
    }
    let mut gone = networks;
    gone.extend(["net", "mnt"].iter().filter_map(|kind| namespace(pid, kind)));
    gone.retain(|space| ["net", "mnt"].iter().all(|kind| namespace(own, kind).as_ref() != Some(space)));

    // One that stands still, as a fault has it, cannot end by itself.
    signal("STOP", servers[3]);
    signal(end, pid);
    harness.wait().unwrap();
    until("all servers end", || servers.iter().all(|server| !Path::new(&format!("/proc/{server}")).exists()));
    until("nobody is in its namespaces", || {
        let seen =
            |pid: u32| ["net", "mnt"].iter().any(|kind| namespace(pid, kind).is_some_and(|it| gone.contains(&it)));
        !processes().into_iter().any(seen)
    });
    // What held the namespaces is a file like any other now, and the folder can go.
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.contains(dir.path().to_str().unwrap()), "{mounts}");
    let links = Command::new("ip").args(["-brief", "link"]).output().map(|output| output.stdout).unwrap_or_default();
    assert!(!String::from_utf8_lossy(&links).contains("bridge0"));
    dir.close().unwrap();
}
