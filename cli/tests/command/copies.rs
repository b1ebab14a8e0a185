//! Copies of data directories, taken one replica after the other, bring a group back on other machines.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::support::{Server, eventually, free_ports, path_text, run, run_with_input};

/// Three replicas, their addresses, and the namesrv they know.
struct Group {
    first: u16,
}

impl Group {
    fn namesrv(&self) -> String {
        format!("127.0.0.1:{}", self.first)
    }

    fn start(&self, node: u16, data: &Path) -> Server {
        let address = |at: u16| format!("127.0.0.1:{}", self.first + at);
        let members: Vec<String> =
            (1..=3).map(|node| format!("{node}={},{}", address(node), address(node + 3))).collect();
        let (number, namesrv, client, peer) = (node.to_string(), self.namesrv(), address(node), address(node + 3));
        let mut arguments = vec!["broker", "--node", &number, "--data-dir", path_text(data), "--namesrv", &namesrv];
        arguments.extend(["--client-listen", &client, "--peer-listen", &peer, "--segment-bytes", "1MiB"]);
        for member in &members {
            arguments.extend(["--replica", member]);
        }
        Server::start(&arguments)
    }

    fn has_replicas(&self, count: usize) -> bool {
        let status = run(&["admin", "cluster", "status", "--json", "--namesrv", &self.namesrv()]);
        let rows: serde_json::Value = serde_json::from_str(&status.stdout).unwrap_or_default();
        let known = rows.as_array().map(Vec::as_slice).unwrap_or_default();
        let applied: Vec<_> = known.iter().filter_map(|row| row["applied_index"].as_u64()).collect();
        known.iter().any(|row| row["can_write"] == true)
            && applied.len() == count
            && applied.iter().all(|index| *index == applied[0])
    }

    fn wait_for(&self, count: usize) {
        eventually("replicas are up and agree", Duration::from_secs(30), || self.has_replicas(count));
    }
}

#[test]
fn copies_of_two_stopped_replicas_bring_messages_and_positions_back_at_other_addresses() {
    let dir = tempfile::tempdir().unwrap();
    let data = |name: &str, node: u16| dir.path().join(format!("{name}-{node}"));
    let copy = |from: &Path, to: &Path| {
        assert!(Command::new("cp").arg("-a").arg(from).arg(to).status().expect("cp exists").success());
    };
    let group = Group { first: free_ports(7) };
    let namesrv = group.namesrv();
    let namesrv_process = Server::start(&["namesrv", "--listen", &namesrv]);
    let mut brokers: Vec<Option<Server>> = (1..=3).map(|node| Some(group.start(node, &data("old", node)))).collect();
    group.wait_for(3);
    run(&["admin", "topic", "create", "orders", "--namesrv", &namesrv]).ok();
    let lines: String = (0..100).map(|number| format!("line {number}\n")).collect();
    run_with_input(&["send", "--topic", "orders", "--namesrv", &namesrv], lines.as_bytes()).ok();
    let receive = |namesrv: &str, count: &str| {
        run(&["receive", "--topic", "orders", "--group", "g", "--max", count, "--namesrv", namesrv]).ok()
    };
    let mut got: Vec<String> = receive(&namesrv, "40").lines().map(str::to_owned).collect();
    assert_eq!(got.len(), 40);

    // One after the other is stopped, copied and started; the group goes on.
    for node in [1, 2] {
        let at = usize::from(node) - 1;
        assert_eq!(brokers[at].take().expect("it runs").terminate(), 0);
        copy(&data("old", node), &data("copy", node));
        run_with_input(&["send", "--topic", "orders", "--namesrv", &namesrv], format!("during {node}\n").as_bytes())
            .ok();
        brokers[at] = Some(group.start(node, &data("old", node)));
        group.wait_for(3);
        run(&["log", "verify", path_text(&data("copy", node))]).ok();
    }
    run_with_input(&["send", "--topic", "orders", "--namesrv", &namesrv], b"after the copies\n").ok();
    brokers.into_iter().flatten().for_each(Server::kill);
    namesrv_process.kill();

    // All machines are gone. Two come back elsewhere, from the copies.
    let restored = Group { first: free_ports(7) };
    let namesrv = restored.namesrv();
    let _namesrv = Server::start(&["namesrv", "--listen", &namesrv]);
    let back: Vec<Server> = [1, 2].map(|node| restored.start(node, &data("copy", node))).into();
    restored.wait_for(2);
    let progress = run(&["admin", "group", "progress", "g", "--json", "--namesrv", &namesrv]).ok();
    assert!(progress.contains("orders"), "positions are there: {progress}");
    got.extend(receive(&namesrv, "61").lines().map(str::to_owned));
    got.sort();
    let mut expected: Vec<String> = lines.lines().map(str::to_owned).chain(["during 1".to_owned()]).collect();
    expected.sort();
    // The newer of the two copies has what was sent before it was taken; nothing comes twice.
    assert_eq!(got, expected);
    for broker in back {
        assert_eq!(broker.terminate(), 0);
    }
}
