//! One server process started by this one: its ready line, its log, its signals, its end.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::signal::{self, Signal};

/// A server tells on stdout that it can be used, with a line that starts with this.
pub const READY_PREFIX: &str = "ready";

/// How much of a dead child's log is shown.
const LOG_LINES_SHOWN: usize = 5;

/// What went wrong with a child.
#[derive(Debug, thiserror::Error)]
pub enum ChildServerError {
    /// The system refused to start it.
    #[error("{name} cannot be started: {source}")]
    Spawn {
        /// Which one.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// It gave up while starting.
    #[error("{name} ended with {status} before it was ready; the end of its log {log}:\n{tail}", log = .log.display())]
    EndedEarly {
        /// Which one.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// It takes too long to start.
    #[error("{name} was not ready within {timeout:?}; the end of its log {log}:\n{tail}", log = .log.display())]
    NotReady {
        /// Which one.
        name: String,
        /// How long was waited.
        timeout: Duration,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// It ended although nobody asked it to.
    #[error("{name} ended by itself with {status}; the end of its log {log}:\n{tail}", log = .log.display())]
    Ended {
        /// Which one.
        name: String,
        /// How it ended.
        status: ExitStatus,
        /// Its log.
        log: PathBuf,
        /// The log's last lines.
        tail: String,
    },
    /// The system does not say what became of it.
    #[error("{name} (pid {pid}) cannot be waited for: {source}")]
    Wait {
        /// Which one.
        name: String,
        /// Its process.
        pid: u32,
        /// The system's answer.
        source: io::Error,
    },
    /// The system refused to signal it.
    #[error("{name} (pid {pid}) cannot be sent {signal:?}: {source}")]
    Signal {
        /// Which one.
        name: String,
        /// Its process.
        pid: u32,
        /// What it should be told.
        signal: Signal,
        /// The system's answer.
        source: io::Error,
    },
}

/// A child process. Dropping it kills it.
///
/// It is the only process of its group: if this process dies while a child is stopped, the kernel wakes and ends the
/// child (SIGHUP to an orphaned group with stopped members).
pub(super) struct ChildServer {
    name: String,
    pid: u32,
    child: Child,
    /// Its other end is the child's stdin, which ends with this process, and the child with it.
    _stdin: Option<ChildStdin>,
    log: PathBuf,
    output: Output,
}

/// What becomes of the child's stdout.
enum Output {
    /// Nobody has seen the ready line yet.
    Starting(Lines<BufReader<ChildStdout>>),
    /// Read and thrown away: a full pipe would block the child, a closed one would fail its prints.
    Drained { _task: Task<()> },
    /// It ended.
    Ended,
}

impl ChildServer {
    /// Starts the program, which appends its stderr to `log`; it is not ready yet.
    pub(super) fn spawn(
        name: &str,
        program: &Path,
        arguments: &[String],
        environment: &[(String, OsString)],
        log: &Path,
    ) -> Result<ChildServer, ChildServerError> {
        let spawn_error = |source| ChildServerError::Spawn { name: name.to_owned(), source };
        let stderr = std::fs::OpenOptions::new().create(true).append(true).open(log).map_err(spawn_error)?;
        let mut child = Command::new(program)
            .args(arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(stderr)
            .kill_on_drop(true)
            // The parent decides when its children stop: Ctrl-C on the terminal goes to the parent only.
            .process_group(0)
            .spawn()
            .map_err(spawn_error)?;
        let pid = child.id().expect("a child that was not waited for has an id");
        let stdin = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().expect("stdout was asked for as a pipe")).lines();
        let output = Output::Starting(lines);
        Ok(ChildServer { name: name.to_owned(), pid, child, _stdin: stdin, log: log.to_owned(), output })
    }

    /// Starts the program and waits for its ready line on stdout.
    pub(super) async fn start(
        name: &str,
        program: &Path,
        arguments: &[String],
        environment: &[(String, OsString)],
        log: &Path,
        timeout: Duration,
        runtime: &Runtime,
    ) -> Result<ChildServer, ChildServerError> {
        let mut child = ChildServer::spawn(name, program, arguments, environment, log)?;
        child.await_ready(timeout, runtime).await?;
        Ok(child)
    }

    async fn await_ready(&mut self, timeout: Duration, runtime: &Runtime) -> Result<(), ChildServerError> {
        let Output::Starting(mut lines) = std::mem::replace(&mut self.output, Output::Ended) else { return Ok(()) };
        match runtime.timeout(timeout, ready_line_comes(&mut lines)).await {
            Ok(true) => {
                let drain = async move { while let Ok(Some(_)) = lines.next_line().await {} };
                self.output = Output::Drained { _task: runtime.spawn("drain-stdout", drain) };
                Ok(())
            }
            Ok(false) => {
                let status = self.child.wait().await.map_err(|source| self.wait_error(source))?;
                let (name, log, tail) = (self.name.clone(), self.log.clone(), tail_of(&self.log));
                Err(ChildServerError::EndedEarly { name, status, log, tail })
            }
            Err(_) => {
                let (name, log, tail) = (self.name.clone(), self.log.clone(), tail_of(&self.log));
                Err(ChildServerError::NotReady { name, timeout, log, tail })
            }
        }
    }

    /// The process.
    pub(super) fn pid(&self) -> u32 {
        self.pid
    }

    /// An error if the child has ended although nobody asked it to.
    pub(super) fn check_alive(&mut self) -> Result<(), ChildServerError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let (name, log, tail) = (self.name.clone(), self.log.clone(), tail_of(&self.log));
                Err(ChildServerError::Ended { name, status, log, tail })
            }
            Err(source) => Err(self.wait_error(source)),
        }
    }

    /// Sends a signal; an error if the child has ended by itself.
    pub(super) fn signal(&mut self, signal: Signal) -> Result<(), ChildServerError> {
        // Also makes sure that the child is not reaped: its pid is its own.
        self.check_alive()?;
        let error = |source| ChildServerError::Signal { name: self.name.clone(), pid: self.pid, signal, source };
        signal::send(self.pid, signal).map_err(error)
    }

    /// SIGKILL; returns when the process is gone and reaped.
    pub(super) async fn kill(mut self) -> Result<(), ChildServerError> {
        self.child.kill().await.map_err(|source| self.wait_error(source))
    }

    /// SIGTERM, and SIGKILL if that does not end it within `timeout`; true if it ended by SIGTERM.
    pub(super) async fn stop(mut self, timeout: Duration, runtime: &Runtime) -> Result<bool, ChildServerError> {
        self.signal(Signal::Terminate)?;
        match runtime.timeout(timeout, self.child.wait()).await {
            Ok(Ok(_)) => Ok(true),
            Ok(Err(source)) => Err(self.wait_error(source)),
            Err(_) => self.kill().await.map(|()| false),
        }
    }

    fn wait_error(&self, source: io::Error) -> ChildServerError {
        ChildServerError::Wait { name: self.name.clone(), pid: self.pid, source }
    }
}

/// True when the ready line came, false when stdout ended without it.
async fn ready_line_comes(lines: &mut Lines<BufReader<ChildStdout>>) -> bool {
    while let Ok(Some(line)) = lines.next_line().await {
        if line.starts_with(READY_PREFIX) {
            return true;
        }
    }
    false
}

fn tail_of(log: &Path) -> String {
    let text = std::fs::read(log).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A shell as a server.
    async fn shell(name: &str, script: &str, dir: &Path) -> Result<ChildServer, ChildServerError> {
        let arguments = ["-c".to_owned(), script.to_owned()];
        let (program, log, timeout) = (Path::new("/bin/sh"), dir.join("log"), Duration::from_secs(10));
        ChildServer::start(name, program, &arguments, &[], &log, timeout, &Runtime::tokio()).await
    }

    /// Says that it is ready, then counts into a file.
    async fn counter(dir: &Path) -> ChildServer {
        let script = format!("echo ready; while :; do echo >> {}/count; sleep 0.01; done", dir.display());
        shell("counter", &script, dir).await.unwrap()
    }

    fn count(dir: &Path) -> u64 {
        std::fs::metadata(dir.join("count")).map_or(0, |metadata| metadata.len())
    }

    async fn counts_on(dir: &Path) -> bool {
        let before = count(dir);
        for _ in 0..200 {
            Runtime::tokio().sleep(Duration::from_millis(10)).await;
            if count(dir) > before {
                return true;
            }
        }
        false
    }

    #[tokio::test]
    async fn a_stopped_child_stands_still_and_goes_on_when_continued() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = counter(dir.path()).await;
        assert!(counts_on(dir.path()).await);
        child.signal(Signal::Stop).unwrap();
        Runtime::tokio().sleep(Duration::from_millis(50)).await;
        let stopped_at = count(dir.path());
        Runtime::tokio().sleep(Duration::from_millis(100)).await;
        assert_eq!(count(dir.path()), stopped_at);
        child.check_alive().unwrap();
        child.signal(Signal::Continue).unwrap();
        assert!(counts_on(dir.path()).await);
        child.kill().await.unwrap();
    }

    #[tokio::test]
    async fn a_stopped_child_can_be_killed_and_a_gone_one_is_not_signalled() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = counter(dir.path()).await;
        child.signal(Signal::Stop).unwrap();
        child.kill().await.unwrap();

        let mut child = counter(dir.path()).await;
        child.child.kill().await.unwrap();
        assert!(matches!(child.signal(Signal::Stop), Err(ChildServerError::Ended { .. })));
    }

    #[tokio::test]
    async fn a_child_that_ends_before_it_is_ready_shows_its_log() {
        let dir = tempfile::tempdir().unwrap();
        let start = shell("broken", "echo no disk >&2; exit 3", dir.path()).await;
        let text = start.err().expect("it ends early").to_string();
        assert!(text.contains("before it was ready") && text.contains("no disk"), "{text}");
    }

    #[tokio::test]
    async fn sigterm_ends_a_willing_child_and_sigkill_an_unwilling_one() {
        let dir = tempfile::tempdir().unwrap();
        let runtime = Runtime::tokio();
        assert!(counter(dir.path()).await.stop(Duration::from_secs(10), &runtime).await.unwrap());
        let deaf = shell("deaf", "trap '' TERM; echo ready; while :; do sleep 0.01; done", dir.path()).await.unwrap();
        assert!(!deaf.stop(Duration::from_millis(100), &runtime).await.unwrap());
    }
}
