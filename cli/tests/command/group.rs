//! A broker group of three processes without a namesrv.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::support::{Ended, Server, eventually, free_ports, path_text, run};

pub const PATIENCE: Duration = Duration::from_secs(40);

/// Where the processes of a group are.
pub struct Group {
    dir: tempfile::TempDir,
    first: u16,
}

impl Group {
    pub fn new() -> Group {
        Group { dir: tempfile::tempdir().unwrap(), first: free_ports(6) }
    }

    pub fn client(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.first + node - 1)
    }

    pub fn peer(&self, node: u16) -> String {
        format!("127.0.0.1:{}", self.first + 2 + node)
    }

    pub fn data(&self, node: u16) -> PathBuf {
        self.dir.path().join(format!("broker-{node}"))
    }

    fn arguments(&self, node: u16, members: &[u16], more: &[&str]) -> Vec<String> {
        let (data, client, peer) = (self.data(node), self.client(node), self.peer(node));
        let number = node.to_string();
        let mut arguments = vec!["broker", "--node", &number, "--data-dir", path_text(&data)];
        arguments.extend(["--client-listen", &client, "--peer-listen", &peer, "--segment-bytes", "1MiB"]);
        let named = |node: &u16| format!("{node}={},{}", self.client(*node), self.peer(*node));
        let named: Vec<String> = members.iter().map(named).collect();
        for member in &named {
            arguments.extend(["--replica", member]);
        }
        arguments.extend(more);
        arguments.into_iter().map(str::to_owned).collect()
    }

    pub fn start(&self, node: u16, members: &[u16], more: &[&str]) -> Server {
        let arguments = self.arguments(node, members, more);
        Server::start(&arguments.iter().map(String::as_str).collect::<Vec<_>>())
    }

    /// As [`Group::start`], for one that ends by itself: its exit code, and what it wrote.
    pub fn run_to_its_end(&self, node: u16, members: &[u16], more: &[&str]) -> (i32, String) {
        let arguments = self.arguments(node, members, more);
        let ended = run(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
        (ended.code, format!("{}{}", ended.stdout, ended.stderr))
    }

    /// `flotilla admin` at that replica.
    pub fn admin(&self, node: u16, arguments: &[&str]) -> Ended {
        let endpoint = self.client(node);
        run(&[&["admin"], arguments, &["--endpoint", &endpoint]].concat())
    }

    /// `flotilla receive` at that replica, of topic `orders`: so many messages, as lines.
    pub fn receive(&self, node: u16, max: u32, timeout: &str) -> String {
        let (endpoint, max) = (self.client(node), max.to_string());
        let what = ["receive", "--topic", "orders", "--group", "g"];
        run(&[&what[..], &["--max", &max, "--timeout", timeout, "--endpoint", &endpoint]].concat()).ok()
    }

    /// A replica as it sees itself.
    pub fn status(&self, node: u16) -> Option<Value> {
        let ended = self.admin(node, &["cluster", "status", "--json"]);
        let replicas: Value = serde_json::from_str(&ended.stdout).ok()?;
        let own = self.client(node);
        replicas.as_array()?.iter().find(|replica| replica["address"] == *own && replica["node"] == node).cloned()
    }

    pub fn await_leader(&self, node: u16) {
        eventually("a leader takes writes", PATIENCE, || {
            self.status(node).is_some_and(|status| status["leader"].as_u64() > Some(0))
                && self.admin(node, &["topic", "list"]).code == 0
        });
    }
}

/// Lines to send.
pub fn lines(from: u32, to: u32) -> String {
    (from..to).map(|number| format!("line {number}\n")).collect()
}
