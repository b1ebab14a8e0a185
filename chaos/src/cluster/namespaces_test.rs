//! Real packets between real namespaces. Needs root and the tools; says so where these are not there.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use flotilla_runtime::Runtime;

use super::*;
use crate::cluster::packet_rules::{CLIENT_PORT, PEER_PORT};
use crate::own_namespace;

/// Longer than packets take on a busy machine that drops none.
const LATE: Duration = Duration::from_secs(30);
/// What is dropped is not there after this, and what is sent again by itself comes later than this.
const HUSH: Duration = Duration::from_millis(300);

/// Work on a thread that has entered a replica's namespace: what it opens there stays there.
#[allow(clippy::disallowed_methods, reason = "a thread that enters a namespace must end with that")]
fn inside<T: Send + 'static>(dir: &Path, node: u64, work: impl FnOnce() -> T + Send + 'static) -> T {
    let file = std::fs::File::open(dir.join(format!("replica-{node}"))).unwrap();
    let thread = std::thread::spawn(move || {
        // SAFETY: the call takes two numbers and moves only this thread, which ends with the work; the file is open.
        #[allow(unsafe_code, reason = "std has no setns")]
        let answer = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(answer, 0, "{}", std::io::Error::last_os_error());
        work()
    });
    thread.join().unwrap()
}

/// Answers each byte with the next one, on both ports of a replica, until the test ends.
#[allow(clippy::disallowed_methods, reason = "these threads stand for another machine's processes, and block")]
fn serve(dir: &Path, node: u64) {
    for port in [PEER_PORT, CLIENT_PORT] {
        let listener = inside(dir, node, move || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).unwrap());
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                std::thread::spawn(move || {
                    let mut byte = [0];
                    while let Ok(1) = stream.read(&mut byte) {
                        if stream.write_all(&[byte[0] + 1]).is_err() {
                            return;
                        }
                    }
                });
            }
        });
    }
}

struct Net {
    dir: tempfile::TempDir,
    namespaces: Namespaces,
}

impl Net {
    async fn of_three() -> Net {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("net");
        let namespaces = Namespaces::open(&path, &[1, 2, 3], &Runtime::tokio()).await.unwrap();
        for node in 1..=3 {
            serve(&path, node);
        }
        Net { dir, namespaces }
    }

    fn path(&self) -> std::path::PathBuf {
        self.dir.path().join("net")
    }

    /// A connection from a replica (0: from where clients are) to another's port.
    fn try_connect(&self, from: u64, to: u64, port: u16, patience: Duration) -> std::io::Result<TcpStream> {
        let target = SocketAddr::from((self.namespaces.address(to), port));
        let connect = move || TcpStream::connect_timeout(&target, patience);
        if from == 0 { connect() } else { inside(&self.path(), from, connect) }
    }

    fn connect(&self, from: u64, to: u64) -> TcpStream {
        let port = if from == 0 { CLIENT_PORT } else { PEER_PORT };
        self.try_connect(from, to, port, LATE).unwrap()
    }

    async fn heal(&self) {
        self.namespaces.make_whole();
        self.namespaces.settle().await.unwrap();
    }
}

/// A byte there and the next one back.
fn echo(stream: &mut TcpStream, patience: Duration) -> std::io::Result<u8> {
    stream.write_all(&[7])?;
    answer(stream, patience)
}

fn answer(stream: &mut TcpStream, patience: Duration) -> std::io::Result<u8> {
    stream.set_read_timeout(Some(patience)).unwrap();
    let mut byte = [0];
    stream.read_exact(&mut byte).map(|()| byte[0])
}

fn is_silent(result: &std::io::Result<u8>) -> bool {
    matches!(result, Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

fn is_started_apart(name: &str) -> bool {
    own_namespace::is_started_apart(&format!("cluster::namespaces::namespaces_test::{name}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_get_lost_one_way_and_come_again_when_healed() {
    if is_started_apart("packets_get_lost_one_way_and_come_again_when_healed") {
        return;
    }
    let net = Net::of_three().await;
    let mut there = net.connect(1, 2);
    let mut client = net.connect(0, 2);
    assert_eq!(echo(&mut there, LATE).unwrap(), 8);
    assert_eq!(net.namespaces.disturbed().await.unwrap(), 0, "nothing is wrong, so nothing meets it");
    for (from, to) in [(1, 2), (2, 1)] {
        net.namespaces.set_traffic(from, to, Traffic::Held);
        assert!(!net.namespaces.is_whole());
        net.namespaces.settle().await.unwrap();
        let before = net.namespaces.disturbed().await.unwrap();
        assert!(is_silent(&echo(&mut there, HUSH)), "{from} to {to}");
        assert_eq!(echo(&mut client, LATE).unwrap(), 8, "clients do not notice");
        assert_eq!(echo(&mut net.connect(1, 3), LATE).unwrap(), 8, "others do not notice");
        assert!(net.namespaces.disturbed().await.unwrap() > before, "{from} to {to}");
        // Twice is as good as once.
        net.heal().await;
        net.heal().await;
        assert!(net.namespaces.is_whole());
        assert_eq!(answer(&mut there, LATE).unwrap(), 8, "what was lost is sent again");
    }
    net.namespaces.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_doors_cut_what_is_connected_and_refuse_what_comes() {
    if is_started_apart("closed_doors_cut_what_is_connected_and_refuse_what_comes") {
        return;
    }
    let net = Net::of_three().await;
    let (mut there, mut other_way) = (net.connect(1, 2), net.connect(2, 1));
    assert_eq!(echo(&mut there, LATE).unwrap(), 8);
    net.namespaces.set_door(1, 2, Door::Closed);
    net.namespaces.set_door(2, 1, Door::Closed);
    net.namespaces.settle().await.unwrap();
    for stream in [&mut there, &mut other_way] {
        // Idle until now, and cut all the same.
        let end = answer(stream, LATE);
        assert!(!is_silent(&end) && end.is_err(), "{end:?}");
    }
    let refused = net.try_connect(1, 2, PEER_PORT, LATE).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NetworkUnreachable);
    assert_eq!(echo(&mut net.connect(3, 2), LATE).unwrap(), 8);
    assert!(net.namespaces.disturbed().await.unwrap() > 0);
    net.heal().await;
    assert_eq!(echo(&mut net.connect(1, 2), LATE).unwrap(), 8);

    // A frozen door stops the connections of one opener only, and says nothing.
    let (mut there, mut other_way) = (net.connect(1, 2), net.connect(2, 1));
    net.namespaces.set_door(1, 2, Door::Frozen);
    net.namespaces.settle().await.unwrap();
    assert!(is_silent(&echo(&mut there, HUSH)));
    assert_eq!(echo(&mut other_way, LATE).unwrap(), 8);
    net.heal().await;
    assert_eq!(answer(&mut there, LATE).unwrap(), 8);
    net.namespaces.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_are_cut_off_alone_and_a_pulled_cable_cuts_everybody_off() {
    if is_started_apart("clients_are_cut_off_alone_and_a_pulled_cable_cuts_everybody_off") {
        return;
    }
    let net = Net::of_three().await;
    let (mut client, mut peer) = (net.connect(0, 1), net.connect(2, 1));
    net.namespaces.set_clients(1, Door::Frozen);
    net.namespaces.settle().await.unwrap();
    assert!(is_silent(&echo(&mut client, HUSH)));
    assert_eq!(echo(&mut peer, LATE).unwrap(), 8, "replicas do not notice");
    assert_eq!(echo(&mut net.connect(0, 2), LATE).unwrap(), 8, "another replica is reached");
    net.heal().await;
    assert_eq!(answer(&mut client, LATE).unwrap(), 8);
    net.namespaces.set_clients(1, Door::Closed);
    net.namespaces.settle().await.unwrap();
    assert!(!is_silent(&answer(&mut client, LATE)));
    assert_eq!(net.try_connect(0, 1, CLIENT_PORT, LATE).unwrap_err().kind(), ErrorKind::NetworkUnreachable);
    net.heal().await;

    let (mut client, mut own) = (net.connect(0, 1), net.connect(1, 3));
    let before = net.namespaces.disturbed().await.unwrap();
    net.namespaces.set_unplugged(1, true);
    net.namespaces.settle().await.unwrap();
    for stream in [&mut client, &mut peer, &mut own] {
        assert!(is_silent(&echo(stream, HUSH)));
    }
    assert_eq!(echo(&mut net.connect(2, 3), LATE).unwrap(), 8, "the others hear each other");
    assert!(net.namespaces.disturbed().await.unwrap() > before);
    net.heal().await;
    for stream in [&mut client, &mut peer, &mut own] {
        assert_eq!(answer(stream, LATE).unwrap(), 8);
    }
    net.namespaces.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn packets_get_lost_by_chance_on_one_way_and_the_kernel_sends_them_again() {
    if is_started_apart("packets_get_lost_by_chance_on_one_way_and_the_kernel_sends_them_again") {
        return;
    }
    if let Err(why) = own_namespace::probe_loss() {
        eprintln!("not run: {why}");
        return;
    }
    let net = Net::of_three().await;
    let mut there = net.connect(1, 2);
    net.namespaces.set_traffic(1, 2, Traffic::Lossy(100));
    net.namespaces.settle().await.unwrap();
    assert!(is_silent(&echo(&mut there, HUSH)), "all of it is lost");
    assert_eq!(echo(&mut net.connect(0, 2), LATE).unwrap(), 8, "clients do not notice");
    assert_eq!(echo(&mut net.connect(3, 2), LATE).unwrap(), 8, "others do not notice");
    assert!(net.namespaces.disturbed().await.unwrap() > 0);
    net.namespaces.set_traffic(1, 2, Traffic::Lossy(30));
    net.namespaces.settle().await.unwrap();
    let before = net.namespaces.disturbed().await.unwrap();
    assert_eq!(answer(&mut there, LATE).unwrap(), 8, "what was lost is sent again");
    for _ in 0..40 {
        assert_eq!(echo(&mut there, LATE).unwrap(), 8);
    }
    // None of 40 would be lost in 1 of 1.5 million tests.
    let lost = net.namespaces.disturbed().await.unwrap() - before;
    assert!((1..100).contains(&lost), "{lost} of about 80");
    net.heal().await;
    let before = net.namespaces.disturbed().await.unwrap();
    for _ in 0..40 {
        assert_eq!(echo(&mut there, LATE).unwrap(), 8);
    }
    assert_eq!(
        net.namespaces.disturbed().await.unwrap(),
        before,
        "nothing is lost any more, and what was is still known"
    );
    net.namespaces.close().await;
}

#[tokio::test]
async fn the_machines_own_network_is_never_touched() {
    if own_namespace::has_network().is_ok() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let refused = Namespaces::open(&dir.path().join("net"), &[1], &Runtime::tokio()).await;
    assert!(matches!(refused.err(), Some(NetworkError::NotApart)));
}

/// One cluster after the other in one process, as a list of scenarios has it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_network_leaves_room_for_the_next() {
    if is_started_apart("a_closed_network_leaves_room_for_the_next") {
        return;
    }
    for _ in 0..3 {
        let net = Net::of_three().await;
        assert_eq!(echo(&mut net.connect(1, 2), LATE).unwrap(), 8);
        net.namespaces.close().await;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        assert!(!mounts.contains(net.path().to_str().unwrap()), "{mounts}");
    }
    let links = super::call("ip", &["-brief", "link"], "", &Runtime::tokio()).await.unwrap();
    assert!(!links.contains("bridge") && !links.contains("c0-"), "{links}");
}
