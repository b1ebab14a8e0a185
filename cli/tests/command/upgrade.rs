//! A group is upgraded one replica after the other, under load: what entries mean changes only once all know it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use serde_json::Value;

use crate::group::{Group, PATIENCE, lines};
use crate::support::{Server, eventually, run_with_input};

const ALL: [u16; 3] = [1, 2, 3];
const AS_AN_OLDER_PROGRAM: [&str; 2] = ["--feature-level-max", "0"];

fn levels(group: &Group) -> Vec<u64> {
    let level = |node| group.status(node).and_then(|status| status["feature_level"].as_u64());
    ALL.into_iter().filter_map(level).collect()
}

/// Sends lines to all replicas, one command after the other, until it is told to stop; how many were acknowledged.
fn load(group: &Arc<Group>, stop: &Arc<AtomicBool>, sent: &Arc<AtomicU32>) -> std::thread::JoinHandle<()> {
    let (group, stop, sent) = (group.clone(), stop.clone(), sent.clone());
    std::thread::spawn(move || {
        let endpoints = ALL.map(|node| group.client(node)).join(",");
        while !stop.load(Ordering::Relaxed) {
            let from = sent.load(Ordering::Relaxed);
            let lines = lines(from, from + 20);
            run_with_input(&["send", "--topic", "orders", "--endpoint", &endpoints], lines.as_bytes()).ok();
            sent.store(from + 20, Ordering::Relaxed);
        }
    })
}

#[test]
fn the_level_rises_only_after_the_last_replica_was_upgraded_and_nothing_is_lost() {
    let group = Arc::new(Group::new());
    let mut servers: Vec<Option<Server>> =
        ALL.into_iter().map(|node| Some(group.start(node, &ALL, &AS_AN_OLDER_PROGRAM))).collect();
    group.await_leader(1);
    group.admin(1, &["topic", "create", "orders"]).ok();
    let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
    let loading = load(&group, &stop, &sent);
    for (place, node) in ALL.into_iter().enumerate() {
        assert_eq!(levels(&group), [0, 0, 0], "before replica {node} is upgraded");
        assert_eq!(servers[place].take().unwrap().terminate(), 0);
        servers[place] = Some(group.start(node, &ALL, &[]));
        eventually("it follows again", PATIENCE, || {
            group.status(node).is_some_and(|status| status["leader"].as_u64() > Some(0))
        });
        let before = sent.load(Ordering::Relaxed);
        eventually("some more is sent", PATIENCE, || sent.load(Ordering::Relaxed) > before);
    }
    eventually("the level rises", PATIENCE, || levels(&group) == [1, 1, 1]);
    let before = sent.load(Ordering::Relaxed);
    eventually("some more is sent at the new level", PATIENCE, || sent.load(Ordering::Relaxed) > before);
    stop.store(true, Ordering::Relaxed);
    loading.join().expect("every send is acknowledged");

    let count = sent.load(Ordering::Relaxed);
    let received = group.receive(1, count, "20s");
    let mut seen: Vec<u32> = received.lines().filter_map(|line| line.rsplit(' ').next()?.parse().ok()).collect();
    seen.sort_unstable();
    seen.dedup();
    assert_eq!(seen, (0..count).collect::<Vec<_>>());

    // An older program does not go along, and says so.
    let third = servers[2].take().unwrap();
    assert_eq!(third.terminate(), 0);
    let (code, text) = group.run_to_its_end(3, &ALL, &AS_AN_OLDER_PROGRAM);
    assert_eq!(code, 70, "{text}");
    assert!(text.contains("supports 0 at most: start this replica with the program that the others run"), "{text}");
    servers[2] = Some(group.start(3, &ALL, &[]));
    eventually("equal digests", PATIENCE, || {
        let states: Vec<Value> = ALL.into_iter().filter_map(|node| group.status(node)).collect();
        states.len() == 3 && states.iter().all(|state| state["applied_index"] == states[0]["applied_index"])
    });
    // That the third was away is told until it is reached again.
    eventually("nobody tells of trouble", PATIENCE, || {
        let is_well = |status: Value| status["trouble"] == Value::Array(Vec::new());
        ALL.into_iter().all(|node| group.status(node).is_some_and(is_well))
    });
}
