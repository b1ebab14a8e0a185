//! Real server processes as an operator starts them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::support::{Server, eventually, free_ports, path_text, run, run_with_input};

const LINES: usize = 500;

#[test]
fn every_acknowledged_line_survives_the_kill_of_all_processes() {
    let dir = tempfile::tempdir().unwrap();
    let first = free_ports(7);
    let namesrv = format!("127.0.0.1:{first}");
    let members: Vec<String> =
        (1..=3).map(|node| format!("{node}=127.0.0.1:{},127.0.0.1:{}", first + node, first + 3 + node)).collect();
    let start_broker = |node: u16| {
        let data = dir.path().join(format!("broker-{node}"));
        let (client, peer) = (format!("127.0.0.1:{}", first + node), format!("127.0.0.1:{}", first + 3 + node));
        let node = node.to_string();
        let mut arguments = vec![
            "broker",
            "--node",
            &node,
            "--data-dir",
            path_text(&data),
            "--client-listen",
            &client,
            "--peer-listen",
            &peer,
            "--namesrv",
            &namesrv,
            "--segment-bytes",
            "1MiB",
        ];
        for member in &members {
            arguments.extend(["--replica", member]);
        }
        Server::start(&arguments)
    };
    let start_all = || -> Vec<Server> {
        let server = Server::start(&["namesrv", "--listen", &namesrv]);
        [server].into_iter().chain((1..=3).map(start_broker)).collect()
    };
    let leader_leads = || {
        eventually("a leader takes writes", Duration::from_secs(20), || {
            run(&["admin", "cluster", "status", "--namesrv", &namesrv]).code == 0
        });
    };

    // Three processes take lines.
    let servers = start_all();
    leader_leads();
    run(&["admin", "topic", "create", "orders", "--namesrv", &namesrv]).ok();
    let lines: String = (0..LINES).map(|number| format!("line {number}\n")).collect();
    run_with_input(&["send", "--topic", "orders", "--namesrv", &namesrv], lines.as_bytes()).ok();
    // Some are consumed before everything dies.
    let before = run(&["receive", "--topic", "orders", "--group", "g", "--max", "100", "--namesrv", &namesrv]).ok();
    assert_eq!(before.lines().count(), 100);

    // All die at once and come back.
    servers.into_iter().for_each(Server::kill);
    let servers = start_all();
    leader_leads();
    let described = run(&["admin", "topic", "describe", "orders", "--json", "--namesrv", &namesrv]).ok();
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["messages"], LINES, "{described}");
    let rest = run(&["receive", "--topic", "orders", "--group", "g", "--timeout", "3s", "--namesrv", &namesrv]).ok();
    let all: BTreeSet<&str> = before.lines().chain(rest.lines()).collect();
    assert_eq!((rest.lines().count(), all.len()), (LINES - 100, LINES));

    // Each stops gracefully.
    for server in servers {
        assert!(server.pid() > 0);
        assert_eq!(server.terminate(), 0);
    }
}
