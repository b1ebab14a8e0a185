//! Write permission is taken from a topic and given back: it is state of the group, not of a namesrv or a process.

use std::time::{Duration, Instant};

use crate::group::{Group, lines};
use crate::support::{Server, run_with_input};

const ALL: [u16; 3] = [1, 2, 3];

#[test]
fn write_permission_that_was_taken_away_stays_away_over_restarts_until_it_is_given_back() {
    let group = Group::new();
    let servers = ALL.map(|node| group.start(node, &ALL, &[]));
    group.await_leader(1);
    let endpoint = group.client(1);
    let send =
        |from, to| run_with_input(&["send", "--topic", "orders", "--endpoint", &endpoint], lines(from, to).as_bytes());
    group.admin(1, &["topic", "create", "orders"]).ok();
    send(0, 50).ok();
    group.admin(1, &["topic", "update", "orders", "--permission", "READ"]).ok();
    assert_ne!(send(50, 60).code, 0, "a topic that is read only takes nothing");
    servers.into_iter().for_each(Server::kill);
    let _servers = ALL.map(|node| group.start(node, &ALL, &[]));
    group.await_leader(1);
    assert_ne!(send(50, 60).code, 0, "it is read only after the restart of all");
    let received = group.receive(1, 50, "20s");
    assert_eq!(received.lines().count(), 50, "what is there is read");
    group.admin(1, &["topic", "update", "orders", "--permission", "READ_WRITE"]).ok();
    let began = Instant::now();
    send(50, 100).ok();
    assert!(began.elapsed() < Duration::from_secs(30), "sends come back at once: {:?}", began.elapsed());
}
