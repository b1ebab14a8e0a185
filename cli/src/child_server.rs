//! One server process started by this one: its ready line, its log, its end.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use flotilla_runtime::{Runtime, Task};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::ready_line::READY_PREFIX;

/// How much of a dead child's log is shown.
const LOG_LINES_SHOWN: usize = 5;

/// What went wrong with a child.
#[derive(Debug, thiserror::Error)]
pub enum ChildServerError {
    #[error("{name} cannot be started: {source}")]
    Spawn { name: String, source: io::Error },
    #[error("{name} ended with {status} before it was ready; the end of its log {log}:\n{tail}", log = .log.display())]
    EndedEarly { name: String, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{name} was not ready within {timeout:?}; the end of its log {log}:\n{tail}", log = .log.display())]
    NotReady { name: String, timeout: Duration, log: PathBuf, tail: String },
    #[error("{name} ended by itself with {status}; the end of its log {log}:\n{tail}", log = .log.display())]
    Ended { name: String, status: ExitStatus, log: PathBuf, tail: String },
    #[error("{name} (pid {pid}) cannot be waited for: {source}")]
    Wait { name: String, pid: u32, source: io::Error },
}

/// A child that has said that it is ready. Dropping it kills it.
pub struct ChildServer {
    name: String,
    pid: u32,
    child: Child,
    /// Its other end is the child's stdin, which ends with this process, and the child with it.
    _stdin: Option<ChildStdin>,
    log: PathBuf,
    _stdout: Task<()>,
}

impl ChildServer {
    /// Starts the program, appends its stderr to `log`, and waits for its ready line on stdout.
    pub async fn start(
        name: &str,
        program: &Path,
        arguments: &[String],
        log: &Path,
        timeout: Duration,
        runtime: &Runtime,
    ) -> Result<ChildServer, ChildServerError> {
        let spawn_error = |source| ChildServerError::Spawn { name: name.to_owned(), source };
        let stderr = std::fs::OpenOptions::new().create(true).append(true).open(log).map_err(spawn_error)?;
        let mut child = Command::new(program)
            .args(arguments)
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
        let mut lines = BufReader::new(child.stdout.take().expect("stdout was asked for as a pipe")).lines();
        let log = log.to_owned();
        match runtime.timeout(timeout, await_ready(&mut lines)).await {
            Ok(true) => {
                // A full pipe would block the child, a closed one would fail its prints.
                let drain = async move { while let Ok(Some(_)) = lines.next_line().await {} };
                let stdout = runtime.spawn("drain-stdout", drain);
                Ok(ChildServer { name: name.to_owned(), pid, child, _stdin: stdin, log, _stdout: stdout })
            }
            Ok(false) => {
                let wait = child.wait().await;
                let status = wait.map_err(|source| ChildServerError::Wait { name: name.to_owned(), pid, source })?;
                let tail = tail_of(&log);
                Err(ChildServerError::EndedEarly { name: name.to_owned(), status, log, tail })
            }
            Err(_) => {
                let tail = tail_of(&log);
                Err(ChildServerError::NotReady { name: name.to_owned(), timeout, log, tail })
            }
        }
    }

    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// An error if the child has ended although nobody asked it to.
    pub fn check_alive(&mut self) -> Result<(), ChildServerError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(ChildServerError::Ended {
                name: self.name.clone(),
                status,
                log: self.log.clone(),
                tail: tail_of(&self.log),
            }),
            Err(source) => Err(self.wait_error(source)),
        }
    }

    /// SIGKILL; returns when the process is gone and reaped.
    pub async fn kill(mut self) -> Result<(), ChildServerError> {
        self.child.kill().await.map_err(|source| self.wait_error(source))
    }

    fn wait_error(&self, source: io::Error) -> ChildServerError {
        ChildServerError::Wait { name: self.name.clone(), pid: self.pid, source }
    }
}

/// True when the ready line came, false when stdout ended without it.
async fn await_ready(lines: &mut Lines<BufReader<ChildStdout>>) -> bool {
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
