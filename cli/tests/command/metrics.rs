//! What monitoring reads of real processes.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

use flotilla_metrics::Scrape;

use crate::support::{Server, eventually, free_ports, path_text, run, run_with_input};

/// Asks over HTTP: the status code and the body.
fn get(address: &str, path: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a time-out can be set");
    write!(stream, "GET {path} HTTP/1.1\r\nhost: {address}\r\n\r\n").expect("it reads");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("it answers");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    let code = head.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status code");
    (code, body.to_owned())
}

fn scrape(address: &str) -> Scrape {
    let (code, body) = get(address, "/metrics");
    assert_eq!(code, 200, "{body}");
    Scrape::parse(&body).unwrap_or_else(|error| panic!("{error} in:\n{body}"))
}

#[test]
fn dev_tells_where_its_metrics_are_and_they_tell_what_was_sent() {
    let dir = tempfile::tempdir().unwrap();
    let first = free_ports(8);
    let port = |number: u16| (first + number).to_string();
    let dev = Server::start(&[
        "dev",
        "--data",
        path_text(&dir.path().join("data")),
        "--namesrv-port",
        &port(0),
        "--port",
        &port(1),
        "--peer-port",
        &port(4),
        "--metrics-port",
        &port(7),
    ]);
    let metrics = format!("127.0.0.1:{}", first + 7);
    let printed = dev.printed.join("\n");
    assert!(printed.contains(&format!("http://{metrics}/metrics")), "{printed}");
    let (code, body) = get(&metrics, "/ready");
    assert_eq!(code, 200, "{body}");
    let parts: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(parts["parts"].as_array().unwrap().len(), 5, "three replicas, a namesrv and the disks: {body}");
    assert_eq!(get(&metrics, "/live").0, 200);

    let namesrv = format!("127.0.0.1:{first}");
    run(&["admin", "topic", "create", "orders", "--namesrv", &namesrv]).ok();
    run_with_input(&["send", "--topic", "orders", "--namesrv", &namesrv], b"a\nb\nc\n").ok();
    let scrape = scrape(&metrics);
    assert_eq!(scrape.sum("rocketmq_messages_in_total", &[("cluster", "dev"), ("topic", "orders")]), 3.0);
    assert_eq!(scrape.sum("flotilla_raft_can_write", &[]), 1.0);
    assert_eq!(scrape.find("flotilla_raft_term", &[]).count(), 3, "one for each replica");
    assert_eq!(scrape.value("flotilla_namesrv_rows", &[("node_type", "namesrv")]), Some(3.0));
    assert_eq!(scrape.value("flotilla_namesrv_group_has_leader", &[("cluster", "dev")]), Some(1.0));
    assert!(scrape.value("process_open_fds", &[]).is_some_and(|open| open > 10.0));
    assert_eq!(dev.terminate(), 0);
}

#[test]
fn a_replica_alone_of_three_is_alive_but_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let first = free_ports(7);
    let address = |number: u16| format!("127.0.0.1:{}", first + number);
    let replica = |node: u16| format!("{node}={},{}", address(2 * (node - 1)), address(2 * (node - 1) + 1));
    let replicas = [1, 2, 3].map(replica);
    let broker = Server::start(&[
        "broker",
        "--data-dir",
        path_text(&dir.path().join("data")),
        "--client-listen",
        &address(0),
        "--peer-listen",
        &address(1),
        "--segment-bytes",
        "4MiB",
        "--metrics-listen",
        &address(6),
        "--replica",
        &replicas[0],
        "--replica",
        &replicas[1],
        "--replica",
        &replicas[2],
    ]);
    let (code, body) = get(&address(6), "/ready");
    assert_eq!(code, 503);
    assert!(body.contains("no leader is known"), "{body}");
    assert_eq!(get(&address(6), "/live").0, 200);
    assert_eq!(scrape(&address(6)).value("flotilla_raft_can_write", &[]), Some(0.0));
    assert_eq!(broker.terminate(), 0);
}

#[test]
fn a_namesrv_serves_its_own_and_a_taken_port_is_named() {
    let first = free_ports(2);
    let (listen, metrics) = (format!("127.0.0.1:{first}"), format!("127.0.0.1:{}", first + 1));
    let namesrv = Server::start(&["namesrv", "--listen", &listen, "--metrics-listen", &metrics]);
    assert_eq!(get(&metrics, "/ready").0, 200);
    assert_eq!(scrape(&metrics).value("flotilla_namesrv_rows", &[("node_id", &listen)]), Some(0.0));
    assert_eq!(namesrv.terminate(), 0);
    eventually("the port is free", Duration::from_secs(5), || {
        TcpListener::bind((Ipv4Addr::LOCALHOST, first + 1)).is_ok()
    });
    let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first + 1)).unwrap();
    run(&["namesrv", "--listen", &listen, "--metrics-listen", &metrics]).failed(1, &[&metrics, "metrics"]);
}
