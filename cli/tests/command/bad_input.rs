//! Wrong calls and wrong settings: each is told with the value and what is allowed, and nothing is half done.

use std::net::TcpListener;

use crate::support::{Server, free_ports, path_text, run};

#[test]
fn illegal_names_are_refused_before_anything_is_asked() {
    let long = "x".repeat(128);
    run(&["admin", "topic", "create", ""]).failed(2, &["empty", "127"]);
    run(&["admin", "topic", "create", &long]).failed(2, &[&long, "128", "127"]);
    run(&["admin", "topic", "create", "two words"]).failed(2, &["two words", "' '", "letters"]);
    run(&["admin", "topic", "create", "größe"]).failed(2, &["größe", "letters"]);
    run(&["admin", "group", "create", "a.b"]).failed(2, &["a.b", "'.'"]);
    run(&["send", "--topic", "a b"]).failed(2, &["a b"]);
    run(&["receive", "--topic", "t", "--group", "g g"]).failed(2, &["g g"]);
}

#[test]
fn unknown_flags_and_values_out_of_range_are_named() {
    run(&["demo", "--mesages", "5"]).failed(2, &["--mesages"]);
    run(&["demo", "--messages", "0"]).failed(2, &["0", "1..="]);
    run(&["demo", "--size", "5MiB"]).failed(2, &["5242880", "4194304"]);
    run(&["bench", "--local", "2"]).failed(2, &["2", "1 or 3"]);
    run(&["admin", "topic", "create", "t", "--type", "ODD"]).failed(2, &["ODD", "NORMAL"]);
    run(&["admin", "topic", "create", "t", "--type", "LITE"]).failed(2, &["LITE", "NORMAL"]);
    run(&["admin", "topic", "create", "t", "--cleanup-policy", "COMPACTION"]).failed(2, &["--cleanup-policy"]);
    run(&["admin", "topic", "create", "t", "--retention", "90"]).failed(2, &["90", "unit"]);
    run(&["admin", "topic", "create", "t", "--queues", "0"]).failed(2, &["0"]);
    run(&["--log-level", "a=b=c", "namesrv"]).failed(2, &["a=b=c", "info"]);
    run(&["admin", "--namesrv", "nohost", "topic", "list"]).failed(2, &["nohost", "host:port"]);
    run(&["nonsense"]).failed(2, &["nonsense"]);
}

#[test]
fn a_config_is_refused_with_all_its_problems() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path_text(&path).to_owned()
    };
    run(&["broker", "--config", "/nowhere/b.toml"]).failed(2, &["/nowhere/b.toml", "No such file"]);
    let unknown = write("unknown.toml", "segment_size = 5\n");
    run(&["broker", "--config", &unknown]).failed(2, &["unknown.toml", "segment_size", "segment_bytes"]);
    let broken = write("broken.toml", "cluster = \n");
    run(&["broker", "--config", &broken]).failed(2, &["broken.toml", "line 1"]);
    let contradictory = write(
        "contradictory.toml",
        "node = 4\nsegment_bytes = 1\nelection_timeout_ms_min = 500\nelection_timeout_ms_max = 400\n\
         replicas = [{ node = 1, client = \"a:1\", peer = \"a\" }]\n",
    );
    run(&["broker", "--config", &contradictory]).failed(2, &["node 4", "segment", "500", "peer of replica 1"]);
    run(&["broker", "--replica", "1=a:1"]).failed(2, &["1=a:1", "NODE=CLIENT_HOST:PORT,PEER_HOST:PORT"]);
    run(&["namesrv", "--config", &broken]).failed(2, &["broken.toml", "line 1"]);
}

#[test]
fn examples_and_effective_settings_can_be_read_again() {
    let dir = tempfile::tempdir().unwrap();
    for server in ["broker", "namesrv"] {
        let example = run(&[server, "--example-config"]).ok();
        assert!(example.starts_with("# "), "{example}");
        let path = dir.path().join(server);
        std::fs::write(&path, example).unwrap();
        let effective = run(&[server, "--config", path_text(&path), "--print-config"]).ok();
        assert_eq!(effective, run(&[server, "--print-config"]).ok());
    }
    let overridden = run(&["broker", "--print-config", "--node", "3", "--segment-bytes", "2MiB"]).ok();
    assert!(overridden.contains("node = 3") && overridden.contains("segment_bytes = 2097152"), "{overridden}");
    // So can effective settings with replicas in them.
    let replicas = ["--node", "2", "--replica", "1=a:1,a:2", "--replica", "2=b:1,b:2"];
    let effective = run(&[&["broker", "--print-config"], &replicas[..]].concat()).ok();
    let path = dir.path().join("effective.toml");
    std::fs::write(&path, &effective).unwrap();
    assert_eq!(run(&["broker", "--config", path_text(&path), "--print-config"]).ok(), effective);
}

#[test]
fn an_occupied_port_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    run(&["namesrv", "--listen", &address]).failed(1, &[&address, "in use"]);

    let free = free_ports(1);
    let (data, peer) = (dir.path().join("data"), format!("127.0.0.1:{free}"));
    let broker = ["broker", "--data-dir", path_text(&data), "--client-listen", &address, "--peer-listen", &peer];
    run(&broker).failed(1, &[&address, "in use"]);

    let port = taken.local_addr().unwrap().port().to_string();
    let first = free_ports(6);
    let (port_first, peer_first) = (first.to_string(), (first + 3).to_string());
    let dev =
        ["dev", "--data", path_text(&data), "--namesrv-port", &port, "--port", &port_first, "--peer-port", &peer_first];
    run(&dev).failed(1, &[&address, "in use"]);
}

#[test]
fn a_data_folder_of_another_cluster_or_node_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let first = free_ports(2);
    let (client, peer) = (format!("127.0.0.1:{first}"), format!("127.0.0.1:{}", first + 1));
    let listen = ["--data-dir", path_text(dir.path()), "--client-listen", &client, "--peer-listen", &peer];
    let broker = |more: &[&'static str]| [&["broker", "--segment-bytes", "1MiB"], &listen[..], more].concat();

    let server = Server::start(&broker(&["--cluster", "red"]));
    // While it runs nobody else may have its folder.
    let other = free_ports(2);
    let (other_client, other_peer) = (format!("127.0.0.1:{other}"), format!("127.0.0.1:{}", other + 1));
    let second = [
        "broker",
        "--cluster",
        "red",
        "--data-dir",
        path_text(dir.path()),
        "--client-listen",
        &other_client,
        "--peer-listen",
        &other_peer,
    ];
    run(&second).failed(1, &[path_text(dir.path())]);
    assert_eq!(server.terminate(), 0);

    run(&broker(&["--cluster", "blue"])).failed(1, &["red", "blue"]);
    run(&broker(&["--cluster", "red", "--node", "2"])).failed(1, &["1", "2"]);
    // Nothing was changed by those who were refused.
    assert_eq!(Server::start(&broker(&["--cluster", "red"])).terminate(), 0);
}

#[test]
fn where_stderr_cannot_be_written_the_exit_code_still_says_what_happened() {
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_flotilla"));
    // Every event is logged, and none can be written.
    command.args(["admin", "cluster", "status", "--namesrv", "127.0.0.1:1", "--log-level", "trace"]);
    let ended = command.stdout(std::process::Stdio::null()).stderr(full).status().unwrap();
    assert_eq!(ended.code(), Some(1));
}
