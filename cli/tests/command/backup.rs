//! A backup that is made while the group serves, and the group founded anew from it on empty machines.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::Value;

use crate::group::{Group, lines};
use crate::support::{Server, path_text, run, run_with_input};

/// The numbers of lines that were received, in order.
fn numbers(received: &str) -> Vec<u32> {
    let number = |line: &str| line.rsplit(' ').next()?.trim_end_matches('"').parse().ok();
    received.lines().filter_map(number).collect()
}

fn distinct(numbers: &[u32]) -> BTreeSet<u32> {
    let set: BTreeSet<u32> = numbers.iter().copied().collect();
    assert_eq!(set.len(), numbers.len(), "something came twice: {numbers:?}");
    set
}

fn send(endpoint: &str, from: u32, to: u32) {
    run_with_input(&["send", "--topic", "orders", "--endpoint", endpoint], lines(from, to).as_bytes()).ok();
}

fn verified(dir: &Path) -> Value {
    serde_json::from_str(&run(&["backup", "verify", path_text(dir), "--json"]).ok()).unwrap()
}

#[test]
fn a_group_is_backed_up_under_load_lost_and_founded_anew_with_all_that_was_acknowledged_and_where_consumers_were() {
    let (group, outside) = (Group::new(), tempfile::tempdir().unwrap());
    let backups = outside.path().join("backups");
    let all = [1, 2, 3];
    let servers = all.map(|node| group.start(node, &all, &["--backup-dir", path_text(&backups)]));
    group.await_leader(1);
    let endpoint = group.client(1);
    group.admin(1, &["topic", "create", "orders"]).ok();
    send(&endpoint, 0, 200);
    let before = distinct(&numbers(&group.receive(1, 80, "10s")));
    assert_eq!(before.len(), 80);
    group.admin(1, &["topic", "create", "later", "--type", "DELAY"]).ok();
    let delayed = ["send", "--topic", "later", "--delay", "20s", "--endpoint", &endpoint];
    run_with_input(&delayed, lines(0, 10).as_bytes()).ok();

    let loaded = endpoint.clone();
    let load = std::thread::spawn(move || send(&loaded, 200, 600));
    let said = group.admin(1, &["backup", "create", "daily-1", "--replica", &group.client(2)]).ok();
    assert!(said.contains("Backup daily-1") && said.contains("replica 2"), "{said}");
    load.join().unwrap();
    for (name, why) in [("daily-1", "there already"), ("../x", "letters, digits")] {
        group.admin(1, &["backup", "create", name, "--replica", &group.client(2)]).failed(1, &[why]);
    }
    let listed: Value = serde_json::from_str(&group.admin(1, &["backup", "list", "--json"]).ok()).unwrap();
    let states: Vec<_> = listed.as_array().unwrap().iter().map(|row| row["state"].as_str().unwrap()).collect();
    assert_eq!(states.iter().filter(|state| **state == "done").count(), 1, "{listed}");
    // One that no replica is named for is made as well.
    group.admin(1, &["backup", "create", "daily-2"]).ok();
    let copy = backups.join("daily-1");
    let verdict = verified(&copy);
    assert_eq!((&verdict["is_clean"], &verdict["node"]), (&true.into(), &2.into()), "{verdict}");

    servers.into_iter().for_each(Server::kill);
    for node in all {
        std::fs::remove_dir_all(group.data(node)).unwrap();
    }
    assert_eq!(verified(&copy), verdict, "it needs nothing of what is gone");
    let new = group.data(1);
    std::fs::create_dir_all(new.join("something")).unwrap();
    let restore = ["backup", "restore", path_text(&copy), "--data-dir", path_text(&new), "--node", "1"];
    run(&restore).failed(2, &["not empty"]);
    std::fs::remove_dir(new.join("something")).unwrap();
    let said = run(&restore).ok();
    assert!(said.contains("replica 1 of group") && said.contains("in epoch 1"), "{said}");
    run(&restore).failed(2, &["not empty"]);

    let first = group.start(1, &[1], &[]);
    group.await_leader(1);
    let mut others = Vec::new();
    for node in [2, 3] {
        others.push(group.start(node, &[1, node], &["--join"]));
        group.admin(1, &["replica", "add", &node.to_string(), "--address", &group.peer(node)]).ok();
    }
    // Those that the group had received before the backup do not come again, and all others that were acknowledged do.
    let after = distinct(&numbers(&group.receive(1, 1000, "5s")));
    assert!(before.is_disjoint(&after), "{:?} came twice", before.intersection(&after).collect::<Vec<_>>());
    let known: BTreeSet<u32> = before.union(&after).copied().collect();
    let missing: Vec<u32> = (0..200).filter(|number| !known.contains(number)).collect();
    assert!(missing.is_empty(), "acknowledged before the backup, and not there: {missing:?}");
    assert!(known.iter().all(|number| *number < 600));
    let endpoint = group.client(1);
    let later =
        ["receive", "--topic", "later", "--group", "g", "--max", "10", "--timeout", "40s", "--endpoint", &endpoint];
    assert_eq!(
        distinct(&numbers(&run(&later).ok())),
        (0..10).collect(),
        "they are held in the backup until they are due"
    );
    // It goes on, and does without the one that was restored.
    first.kill();
    group.await_leader(2);
    send(&group.client(2), 600, 650);
    assert_eq!(distinct(&numbers(&group.receive(2, 50, "10s"))), (600..650).collect());

    // Damage is told, and nothing is made of it.
    let identity = copy.join("log/identity");
    let mut bytes = std::fs::read(&identity).unwrap();
    bytes.push(0);
    std::fs::write(&identity, bytes).unwrap();
    run(&["backup", "verify", path_text(&copy)]).failed(1, &["damage(s) found"]);
    let other = outside.path().join("other");
    run(&["backup", "restore", path_text(&copy), "--data-dir", path_text(&other)])
        .failed(1, &["log/identity", "bytes"]);
    assert!(!other.exists());
    run(&["backup", "verify", path_text(&backups)]).failed(2, &["no finished backup"]);
}

#[test]
fn a_replica_without_a_folder_for_backups_makes_none() {
    let group = Group::new();
    let _one = group.start(1, &[1], &[]);
    group.await_leader(1);
    group.admin(1, &["backup", "create", "daily"]).failed(1, &["set backup_dir"]);
}
