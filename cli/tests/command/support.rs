//! Running the binary: to its end, or as a server beside a test.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_flotilla");
/// Generous: the machine may be busy with other tests.
const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// How a command ended.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    /// Checks the exit code and that each part stands in stderr.
    pub fn failed(&self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, code, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        for part in parts {
            assert!(self.stderr.contains(part), "{part:?} is missing in: {}", self.stderr);
        }
    }

    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "stdout: {}\nstderr: {}", self.stdout, self.stderr);
        self.stdout
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(BINARY);
    command.args(arguments);
    for name in ["LOG", "NAMESRV", "TLS_CA", "TLS_CERT", "TLS_KEY"] {
        command.env_remove(format!("FLOTILLA_{name}"));
    }
    command
}

/// Runs a command to its end.
pub fn run(arguments: &[&str]) -> Ended {
    run_with_input(arguments, b"")
}

/// Runs a command to its end with this on its stdin.
pub fn run_with_input(arguments: &[&str], input: &[u8]) -> Ended {
    let mut child = command(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that refuses its arguments does not read.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("the binary ends");
    writer.join().expect("writing does not panic");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ended { code: output.status.code().unwrap_or(-1), stdout: text(&output.stdout), stderr: text(&output.stderr) }
}

/// A process that stays up; killed when dropped.
pub struct Server {
    child: Child,
    /// What it printed up to and with its ready line.
    pub printed: Vec<String>,
    pub ready_after: Duration,
}

impl Server {
    /// Starts it and waits for its ready line.
    pub fn start(arguments: &[&str]) -> Server {
        let started = Instant::now();
        let mut child = command(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary starts");
        let stdout = BufReader::new(child.stdout.take().expect("stdout is a pipe"));
        let (send, lines) = mpsc::channel();
        // Reads until the process ends, so that it never meets a closed pipe.
        std::thread::spawn(move || stdout.lines().map_while(Result::ok).for_each(|line| drop(send.send(line))));
        let mut server = Server { child, printed: Vec::new(), ready_after: Duration::ZERO };
        loop {
            let left = READY_TIMEOUT.saturating_sub(started.elapsed());
            let line = lines.recv_timeout(left).unwrap_or_else(|_| panic!("{arguments:?} did not become ready"));
            let ready = line.starts_with("ready");
            server.printed.push(line);
            if ready {
                server.ready_after = started.elapsed();
                return server;
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// SIGTERM; returns the exit code.
    pub fn terminate(mut self) -> i32 {
        signal(self.child.id(), "TERM");
        self.child.wait().expect("the process can be waited for").code().unwrap_or(-1)
    }

    /// Waits until it ends by itself; returns the exit code.
    pub fn wait(mut self) -> i32 {
        self.child.wait().expect("the process can be waited for").code().unwrap_or(-1)
    }

    /// SIGKILL.
    pub fn kill(mut self) {
        self.child.kill().expect("the process can be killed");
        self.child.wait().expect("the process can be waited for");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Both fail for a process that was waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn signal(pid: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
    assert!(status.expect("kill exists").success(), "kill -{name} {pid}");
    let stopped_by = Instant::now() + Duration::from_secs(10);
    // A thread that runs at that moment may still answer somebody.
    while name == "STOP" && !is_stopped(pid) {
        assert!(Instant::now() < stopped_by, "{pid} goes on");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether no thread of the process runs.
fn is_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).expect("it is there").flatten();
    threads.map(|thread| std::fs::read_to_string(thread.path().join("stat"))).all(|stat| {
        // Behind the name, which stands in parentheses. A thread that has ended does not run either.
        stat.map_or(true, |stat| stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T')))
    })
}

/// Neighbouring loopback ports that are free now, below the ports the system gives to outgoing connections.
pub fn free_ports(count: u16) -> u16 {
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).expect("it is after 1970").subsec_nanos();
    for attempt in 0..1_000_u32 {
        let first = 12_000 + ((seed / 1_000).wrapping_add(attempt.wrapping_mul(7_919)) % 18_000) as u16;
        let bind = |port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok();
        if (first..first + count).map(bind).collect::<Option<Vec<_>>>().is_some() {
            return first;
        }
    }
    panic!("no {count} neighbouring ports are free");
}

/// Whether a process has this text in its command line.
pub fn any_process_with(text: &str) -> bool {
    let processes = std::fs::read_dir("/proc").expect("/proc exists").filter_map(Result::ok);
    processes
        .filter(|entry| entry.file_name().to_string_lossy().parse::<u32>().is_ok())
        .filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok())
        .any(|line| String::from_utf8_lossy(&line).contains(text))
}

/// Waits for something to become true.
pub fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < within, "{what} did not become true within {within:?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn path_text(path: &Path) -> &str {
    path.to_str().expect("temporary paths are UTF-8")
}
