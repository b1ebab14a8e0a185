//! Namesrvs that die and come back empty, with brokers that beat every 30 seconds as by default.

use std::time::{Duration, Instant};

use crate::support::{Server, eventually, free_ports, path_text, run, run_with_input, signal};

/// Far below the heartbeat, far above what a busy machine takes.
const SOON: Duration = Duration::from_secs(10);

#[test]
fn brokers_register_at_once_with_a_namesrv_that_was_killed_and_with_one_that_froze_and_was_killed() {
    let dir = tempfile::tempdir().unwrap();
    let first = free_ports(4);
    let address = |at: u16| format!("127.0.0.1:{}", first + at);
    let (one, two) = (address(0), address(1));
    let start_namesrv = |listen: &str| Server::start(&["namesrv", "--listen", listen]);
    let (first_one, first_two) = (start_namesrv(&one), start_namesrv(&two));
    let data = dir.path().join("data");
    let (client, peer) = (address(2), address(3));
    let mut arguments = vec!["broker", "--data-dir", path_text(&data), "--namesrv", &one, "--namesrv", &two];
    arguments.extend(["--client-listen", &client, "--peer-listen", &peer, "--segment-bytes", "1MiB"]);
    let broker = Server::start(&arguments);
    let knows = |namesrv: &str| run(&["admin", "topic", "describe", "orders", "--namesrv", namesrv]).code == 0;
    eventually("a leader takes writes", Duration::from_secs(20), || {
        run(&["admin", "topic", "create", "orders", "--namesrv", &one]).code == 0
    });
    eventually("both know the topic", SOON, || knows(&one) && knows(&two));

    // Killed, and started with an empty table. The other one goes on answering.
    first_one.kill();
    run_with_input(&["send", "--topic", "orders", "--namesrv", &format!("{one},{two}")], b"a\n").ok();
    let second_one = start_namesrv(&one);
    let began = Instant::now();
    eventually("the restarted one knows the topic", SOON, || knows(&one));
    println!("known {:?} after the restart", began.elapsed());

    // Stopped dead for a while, as a machine that hangs, then killed and started.
    signal(first_two.pid(), "STOP");
    std::thread::sleep(Duration::from_secs(2));
    run_with_input(&["send", "--topic", "orders", "--namesrv", &format!("{two},{one}")], b"b\n").ok();
    first_two.kill();
    let second_two = start_namesrv(&two);
    let began = Instant::now();
    eventually("the one that hung knows the topic", SOON, || knows(&two));
    println!("known {:?} after the restart", began.elapsed());

    assert_eq!(broker.terminate(), 0);
    assert_eq!((second_one.terminate(), second_two.terminate()), (0, 0));
}
