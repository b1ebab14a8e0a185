//! `flotilla dev` and the commands one uses with it.

use std::time::Duration;

use crate::support::{Server, free_ports, path_text, run, run_with_input};

/// A dev cluster on ports of its own.
struct Dev {
    server: Server,
    namesrv: String,
}

fn dev(data: &std::path::Path) -> Dev {
    dev_with(data, &[])
}

fn dev_with(data: &std::path::Path, more: &[&str]) -> Dev {
    let first = free_ports(7);
    let (namesrv, port, peer) = (first.to_string(), (first + 1).to_string(), (first + 4).to_string());
    let data = path_text(data);
    let arguments = ["dev", "--data", data, "--namesrv-port", &namesrv, "--port", &port, "--peer-port", &peer];
    let server = Server::start(&[&arguments, more].concat());
    Dev { server, namesrv: format!("127.0.0.1:{first}") }
}

#[test]
fn what_is_sent_to_dev_is_received_and_survives_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");

    // It comes up and says where it is.
    let started = dev(&data);
    let printed = started.server.printed.join("\n");
    assert!(printed.contains(&started.namesrv) && printed.contains(path_text(&data)), "{printed}");
    assert!(started.server.ready_after < Duration::from_secs(15), "{:?}", started.server.ready_after);
    let namesrv = started.namesrv.clone();
    let on = |arguments: &[&str]| run(&[arguments, &["--namesrv", &namesrv]].concat());

    // A topic is created once, and creating it again the same way is fine.
    assert!(on(&["admin", "topic", "create", "orders", "--queues", "2"]).ok().contains("orders is created"));
    assert!(on(&["admin", "topic", "create", "orders", "--queues", "2"]).ok().contains("existed already"));
    on(&["admin", "topic", "create", "orders", "--queues", "3"]).failed(1, &["orders", "2 queues", "3 queues"]);

    // Lines go in and come out.
    let sent = run_with_input(&["send", "--topic", "orders", "--json", "--namesrv", &namesrv], b"a\nb\nc\n");
    let receipts = sent.ok();
    assert_eq!(receipts.lines().count(), 3, "{receipts}");
    let received = on(&["receive", "--topic", "orders", "--group", "billing", "--timeout", "2s"]).ok();
    let mut lines: Vec<&str> = received.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["a", "b", "c"]);

    // What was acknowledged does not come again; another group gets everything, as JSON if asked.
    assert_eq!(on(&["receive", "--topic", "orders", "--group", "billing", "--timeout", "1s"]).ok(), "");
    let one = on(&["receive", "--topic", "orders", "--group", "audit", "--max", "1", "--json"]).ok();
    let message: serde_json::Value = serde_json::from_str(one.trim()).unwrap();
    assert_eq!((message["topic"].as_str(), message["attempt"].as_u64()), (Some("orders"), Some(1)));

    // Tags, keys and properties travel; a filter takes only its own.
    let tagged = ["send", "--topic", "orders", "--tag", "gold", "--key", "k1", "--property", "from=test"];
    run_with_input(&[&tagged[..], &["--namesrv", &namesrv]].concat(), b"d\n").ok();
    let filtered = on(&[
        "receive",
        "--topic",
        "orders",
        "--group",
        "vip",
        "--filter",
        "gold || silver",
        "--json",
        "--timeout",
        "2s",
    ]);
    let message: serde_json::Value = serde_json::from_str(filtered.ok().trim()).unwrap();
    assert_eq!((message["body"].as_str(), message["tag"].as_str()), (Some("d"), Some("gold")));
    assert_eq!(message["properties"]["from"], "test");
    assert_eq!(message["keys"][0], "k1");

    // The operator sees it all.
    let described = on(&["admin", "topic", "describe", "orders", "--json"]).ok();
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["messages"], 4);
    assert!(on(&["admin", "group", "list"]).ok().contains("billing"));
    let status = on(&["admin", "cluster", "status", "--json"]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let leaders = status.as_array().unwrap().iter().filter(|replica| replica["role"] == "leader").count();
    assert_eq!((status.as_array().unwrap().len(), leaders), (3, 1), "{status}");

    // It stops when told to, and begins again where it was, also after a kill.
    assert_eq!(started.server.terminate(), 0);
    let again = dev(&data);
    let namesrv = again.namesrv.clone();
    let received =
        run(&["receive", "--topic", "orders", "--group", "late", "--timeout", "2s", "--namesrv", &namesrv]).ok();
    assert_eq!(received.lines().count(), 4, "{received}");
    again.server.kill();
    let again = dev(&data);
    let topics = run(&["admin", "topic", "list", "--namesrv", &again.namesrv]).ok();
    assert!(topics.contains("orders"), "{topics}");

    // One that nobody made is made by its first message.
    run_with_input(&["send", "--topic", "made-by-use", "--namesrv", &again.namesrv], b"a\n").ok();
    let described = run(&["admin", "topic", "describe", "made-by-use", "--json", "--namesrv", &again.namesrv]).ok();
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!((&described["queues"], &described["messages"]), (&4.into(), &1.into()));

    // A topic that is deleted is gone.
    run(&["admin", "topic", "delete", "orders", "--namesrv", &again.namesrv]).ok();
    run(&["admin", "topic", "describe", "orders", "--namesrv", &again.namesrv])
        .failed(1, &["no topic orders", "topic list"]);
}

#[test]
fn leadership_moves_when_asked_to() {
    let dir = tempfile::tempdir().unwrap();
    let started = dev(&dir.path().join("data"));
    let namesrv = started.namesrv.as_str();
    let status = run(&["admin", "cluster", "status", "--json", "--namesrv", namesrv]).ok();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
    let follower = status.as_array().unwrap().iter().find(|replica| replica["role"] == "follower").unwrap();
    let node = follower["node"].to_string();
    let moved = run(&["admin", "leader", "transfer", "--to", &node, "--namesrv", namesrv]).ok();
    assert!(moved.contains(&format!("replica {node} leads")), "{moved}");
}

#[test]
fn what_a_broker_refuses_is_told_with_the_value_and_what_is_allowed() {
    let dir = tempfile::tempdir().unwrap();
    let started = dev_with(&dir.path().join("data"), &["--no-auto-create"]);
    let namesrv = started.namesrv.as_str();
    let send = |arguments: &[&str], input: &[u8]| {
        run_with_input(&[&["send", "--namesrv", namesrv], arguments].concat(), input)
    };

    send(&["--topic", "nowhere"], b"a\n").failed(1, &["line 1", "not stored", "nowhere", "admin topic create nowhere"]);
    run(&["receive", "--topic", "nowhere", "--group", "g", "--namesrv", namesrv])
        .failed(1, &["nowhere", "admin topic create nowhere"]);
    run(&["admin", "group", "create", "g", "--namesrv", namesrv]).ok();

    run(&["admin", "topic", "create", "t", "--namesrv", namesrv]).ok();
    // An empty line stops the rest, and what was before it is stored.
    send(&["--topic", "t", "--in-flight", "1"], b"a\n\nb\n")
        .failed(1, &["1 lines are stored", "line 2", "at least 1 byte"]);
    let too_long = [vec![b'x'; (4 << 20) + 1], b"\n".to_vec()].concat();
    send(&["--topic", "t"], &too_long).failed(1, &["line 1", "4194304"]);
    let large = format!("k={}", "v".repeat(33 << 10));
    send(&["--topic", "t", "--property", &large], b"a\n").failed(1, &["line 1", "not stored", "32768"]);
    // Only the one good line is there.
    let described = run(&["admin", "topic", "describe", "t", "--json", "--namesrv", namesrv]).ok();
    let described: serde_json::Value = serde_json::from_str(&described).unwrap();
    assert_eq!(described["messages"], 1);

    // The largest body goes through.
    let largest = [vec![b'x'; 4 << 20], b"\n".to_vec()].concat();
    send(&["--topic", "t"], &largest).ok();
}

#[test]
fn a_message_is_shown_and_traced_by_its_id_and_a_receiver_that_has_ended_is_no_member() {
    let dir = tempfile::tempdir().unwrap();
    let started = dev(&dir.path().join("data"));
    let namesrv = started.namesrv.clone();
    let on = |arguments: &[&str]| run(&[arguments, &["--namesrv", &namesrv]].concat());
    let sent =
        run_with_input(&["send", "--topic", "orders", "--key", "k1", "--json", "--namesrv", &namesrv], b"a\nb\n");
    let receipts = sent.ok();
    let receipt: serde_json::Value = serde_json::from_str(receipts.lines().next().unwrap()).unwrap();
    let id = receipt["message_id"].as_str().unwrap();
    let (queue, offset) = (receipt["queue"].to_string(), receipt["offset"].to_string());

    let by_id = on(&["admin", "message", "view", "orders", "--id", id]).ok();
    let by_place = on(&["admin", "message", "view", "orders", "--queue", &queue, "--offset", &offset]).ok();
    assert!(by_id == by_place && by_id.contains(id) && by_id.contains("keys k1"), "{by_id}");
    assert!(on(&["admin", "message", "trace", "orders", "--id", id]).ok().contains("no group has received"));
    on(&["receive", "--topic", "orders", "--group", "g", "--max", "2"]).ok();
    let traced = on(&["admin", "message", "trace", "orders", "--id", id, "--json"]).ok();
    let traced: serde_json::Value = serde_json::from_str(&traced).unwrap();
    assert_eq!((traced[0]["group"].as_str(), traced[0]["state"].as_str()), (Some("g"), Some("consumed")));
    on(&["admin", "message", "view", "orders", "--id", "none"]).failed(1, &["none", "orders"]);
    on(&["admin", "message", "view", "orders"]).failed(2, &["--id"]);
    on(&["admin", "message", "view", "orders", "--id", id, "--queue", "0", "--offset", "0"]).failed(2, &["--id"]);

    let group: serde_json::Value =
        serde_json::from_str(&on(&["admin", "group", "describe", "g", "--json"]).ok()).unwrap();
    assert_eq!(group["members"].as_array().map(Vec::len), Some(0), "{group}");

    on(&["admin", "dlq", "resend", "g", "--offset", "99"]).failed(1, &["resent"]);

    // What can be done is said once, however many lines are refused.
    on(&["admin", "topic", "create", "steps", "--type", "FIFO"]).ok();
    let refused = run_with_input(&["send", "--topic", "steps", "--namesrv", &namesrv], b"a\nb\nc\n");
    assert_eq!(refused.stderr.matches("FIFO topics take messages with --group").count(), 1, "{}", refused.stderr);
    assert_eq!(started.server.terminate(), 0);
}

#[test]
fn every_receiver_that_broadcasts_gets_every_message_and_goes_on_where_its_file_says() {
    let dir = tempfile::tempdir().unwrap();
    let started = dev(&dir.path().join("data"));
    let namesrv = started.namesrv.clone();
    let send = |lines: &[u8]| run_with_input(&["send", "--topic", "news", "--namesrv", &namesrv], lines).ok();
    let here = |name: &str| path_text(&dir.path().join(name)).to_owned();
    let receive = |file: &str, more: &[&str]| {
        let path = here(file);
        let always = ["receive", "--topic", "news", "--group", "caches", "--broadcast", "--positions", &path];
        let ended = run(&[&always, more, &["--namesrv", &namesrv]].concat());
        let mut lines: Vec<String> = ended.ok().lines().map(str::to_owned).collect();
        lines.sort_unstable();
        lines
    };
    send(b"a\nb\nc\n");
    for file in ["one", "two"] {
        assert_eq!(receive(file, &["--start", "first", "--max", "3"]), ["a", "b", "c"], "{file}");
    }
    // Without a word it begins behind the newest.
    assert!(receive("three", &["--timeout", "500ms"]).is_empty());
    send(b"d\ne\n");
    for file in ["one", "two", "three"] {
        let first = receive(file, &["--max", "1"]);
        let second = receive(file, &["--timeout", "1s"]);
        let mut both = [first, second].concat();
        both.sort_unstable();
        assert_eq!(both, ["d", "e"], "{file}: what one left is the next one's, and nothing comes twice");
    }
    let progress = run(&["admin", "group", "progress", "caches", "--json", "--namesrv", &namesrv]).ok();
    assert_eq!(progress.trim(), "[]", "the brokers know its name and no more");
    run(&["receive", "--topic", "t", "--group", "g", "--broadcast", "--no-ack"]).failed(2, &["--no-ack"]);
    run(&["receive", "--topic", "t", "--group", "g", "--positions", "x"]).failed(2, &["--broadcast"]);
    assert_eq!(started.server.terminate(), 0);
}
