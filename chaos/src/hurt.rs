//! Hurts a cluster that somebody else started: processes by their number, or hosts by a file of commands.
//!
//! Only what can be undone without knowing the cluster: standing still, and dying where a command is known that starts it
//! again. Whatever happens, also on Ctrl-C, everything goes on and lives at the end.

use std::path::{Path, PathBuf};
use std::time::Duration;

use flotilla_runtime::Runtime;
use serde::{Deserialize, Serialize};
use tokio::process::Command;

use crate::rng::Rng;

/// How long a fault lasts, and the pause between two.
const HOLD_MS_MIN: u64 = 100;
const HOLD_MS_MAX: u64 = 10_000;
const GAP_MS_MIN: u64 = 1_000;
const GAP_MS_MAX: u64 = 8_000;

/// What can be done to strangers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Blow {
    /// SIGSTOP, and SIGCONT after the hold.
    Pause,
    /// SIGKILL, and the replica's own `start` command after the hold.
    Kill,
    /// SIGTERM, and the replica's own `start` command after the hold.
    Stop,
}

/// One process of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// How it is called in what is told.
    pub name: String,
    /// The process now; or else `pid_file`.
    pub pid: Option<u32>,
    /// Where the number of the process stands, on its host.
    pub pid_file: Option<PathBuf>,
    /// Starts it again; without it only `pause` can be done.
    pub start: Option<String>,
    /// Goes before every command, such as `ssh broker-1`.
    pub via: Option<String>,
}

/// The hosts file: `[[host]]` tables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hosts {
    /// All processes that may be hurt.
    pub host: Vec<Host>,
}

/// Why strangers cannot be hurt.
#[derive(Debug, thiserror::Error)]
pub enum HurtError {
    /// The file cannot be read.
    #[error("{path}: {source}", path = .path.display())]
    Io {
        /// Which one.
        path: PathBuf,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The file is not understood.
    #[error("{path}: {source}", path = .path.display())]
    Malformed {
        /// Which one.
        path: PathBuf,
        /// What is wrong.
        source: Box<toml::de::Error>,
    },
    /// There is nobody.
    #[error("no process is named: give --pids or --hosts")]
    Nobody,
    /// A host without a process.
    #[error("host {0} names neither pid nor pid_file")]
    NoProcess(String),
    /// No blow can be struck at anybody.
    #[error("none of the faults can be done: kill and stop need a `start` command in a hosts file")]
    Nothing,
    /// A process is not there.
    #[error("process {0} is not there")]
    Gone(u32),
}

/// One blow, for the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BlowRecord {
    /// Counted from 1.
    pub number: u64,
    /// What.
    pub blow: Blow,
    /// To whom.
    pub hosts: Vec<String>,
    /// When it struck, by the wall clock.
    pub struck_wall_ms: u64,
    /// When it was undone.
    pub healed_wall_ms: u64,
    /// What failed, if anything.
    pub problems: Vec<String>,
}

impl Hosts {
    /// Processes of this machine, by their numbers.
    pub fn of_pids(pids: &[u32]) -> Hosts {
        let host =
            |pid: &u32| Host { name: format!("pid {pid}"), pid: Some(*pid), pid_file: None, start: None, via: None };
        Hosts { host: pids.iter().map(host).collect() }
    }

    /// What a hosts file says.
    ///
    /// # Errors
    /// [`HurtError`] if it cannot be read or understood.
    pub fn read(path: &Path) -> Result<Hosts, HurtError> {
        let text = std::fs::read_to_string(path).map_err(|source| HurtError::Io { path: path.to_owned(), source })?;
        toml::from_str(&text).map_err(|source| HurtError::Malformed { path: path.to_owned(), source: Box::new(source) })
    }

    /// # Errors
    /// If nobody is named, or somebody without a process.
    pub fn validate(&self) -> Result<(), HurtError> {
        if self.host.is_empty() {
            return Err(HurtError::Nobody);
        }
        for host in &self.host {
            match (host.pid, &host.pid_file) {
                (None, None) => return Err(HurtError::NoProcess(host.name.clone())),
                (Some(pid), _) if host.via.is_none() && birth_of(pid).is_none() => return Err(HurtError::Gone(pid)),
                _ => {}
            }
        }
        Ok(())
    }
}

impl Host {
    fn can(&self, blow: Blow) -> bool {
        blow == Blow::Pause || self.start.is_some()
    }

    fn pid_text(&self) -> String {
        match (&self.pid_file, self.pid) {
            // After a start the file tells the new process.
            (Some(file), _) => format!("$(cat {})", file.display()),
            (None, Some(pid)) => pid.to_string(),
            (None, None) => String::new(),
        }
    }

    async fn call(&self, command: &str) -> Result<(), String> {
        let command = match &self.via {
            Some(via) => format!("{via} '{command}'"),
            None => command.to_owned(),
        };
        let output = Command::new("sh").args(["-c", &command]).output().await.map_err(|error| error.to_string())?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Err(format!("{}: `{command}`: {}; {said}", self.name, output.status))
    }
}

/// When a process began, in the kernel's own count: a number that was given to another process has another one.
fn birth_of(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Blows under way against strangers.
pub struct Hurting {
    hosts: Vec<Host>,
    /// Of the local processes named by number, when each began.
    births: Vec<Option<u64>>,
    /// What must be undone: who, and by which blow.
    open: Vec<(usize, Blow)>,
    rng: Rng,
    runtime: Runtime,
    blows: Vec<Blow>,
}

impl Hurting {
    /// Prepares; strikes nobody.
    ///
    /// # Errors
    /// [`HurtError`] if nothing could be done to anybody.
    pub fn new(hosts: Hosts, blows: &[Blow], seed: u64, runtime: Runtime) -> Result<Hurting, HurtError> {
        hosts.validate()?;
        let blows: Vec<Blow> =
            blows.iter().copied().filter(|blow| hosts.host.iter().any(|host| host.can(*blow))).collect();
        if blows.is_empty() {
            return Err(HurtError::Nothing);
        }
        let local = |host: &Host| host.pid.filter(|_| host.via.is_none() && host.pid_file.is_none());
        let births = hosts.host.iter().map(|host| local(host).and_then(birth_of)).collect();
        Ok(Hurting { hosts: hosts.host, births, open: Vec::new(), rng: Rng::new(seed), runtime, blows })
    }

    /// Strikes one blow at up to `count_max` of those it can be struck at, holds it, and undoes it.
    pub async fn strike(&mut self, number: u64, count_max: u64) -> BlowRecord {
        let blow = self.blows[self.rng.below(self.blows.len() as u64) as usize];
        let able: Vec<usize> = (0..self.hosts.len()).filter(|at| self.hosts[*at].can(blow)).collect();
        let mut chosen = self.rng.shuffled(&able);
        chosen.truncate(self.rng.between(1, count_max.max(1)) as usize);
        let hold = Duration::from_millis(self.rng.magnitude(HOLD_MS_MIN, HOLD_MS_MAX));
        let mut problems = Vec::new();
        let struck_wall_ms = self.runtime.wall_ms();
        for at in &chosen {
            self.open.push((*at, blow));
            if let Err(problem) = self.deal(*at, blow).await {
                problems.push(problem);
            }
        }
        self.runtime.sleep(hold).await;
        problems.append(&mut self.heal().await);
        let healed_wall_ms = self.runtime.wall_ms();
        let hosts = chosen.iter().map(|at| self.hosts[*at].name.clone()).collect();
        BlowRecord { number, blow, hosts, struck_wall_ms, healed_wall_ms, problems }
    }

    /// The time until the next blow.
    pub fn gap(&mut self) -> Duration {
        Duration::from_millis(self.rng.magnitude(GAP_MS_MIN, GAP_MS_MAX))
    }

    /// Undoes whatever stands; answers what could not be undone.
    pub async fn heal(&mut self) -> Vec<String> {
        let mut problems = Vec::new();
        for (at, blow) in std::mem::take(&mut self.open) {
            let host = &self.hosts[at];
            let undone = match (blow, &host.start) {
                (Blow::Pause, _) => self.signal(at, "CONT").await,
                (Blow::Kill | Blow::Stop, Some(start)) => host.call(start).await,
                (Blow::Kill | Blow::Stop, None) => Ok(()),
            };
            problems.extend(undone.err());
        }
        problems
    }

    async fn deal(&self, at: usize, blow: Blow) -> Result<(), String> {
        let signal = match blow {
            Blow::Pause => "STOP",
            Blow::Kill => "KILL",
            Blow::Stop => "TERM",
        };
        self.signal(at, signal).await
    }

    async fn signal(&self, at: usize, signal: &str) -> Result<(), String> {
        let host = &self.hosts[at];
        if let (Some(pid), Some(birth)) = (host.pid, self.births[at])
            && birth_of(pid) != Some(birth)
        {
            return Err(format!("{} has ended: its number may be another process's", host.name));
        }
        host.call(&format!("kill -{signal} {}", host.pid_text())).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that counts into a file.
    fn counter(dir: &Path) -> std::process::Child {
        let script = format!("while :; do echo >> {}/count; sleep 0.01; done", dir.display());
        std::process::Command::new("sh").args(["-c", &script]).spawn().unwrap()
    }

    fn state_of(pid: u32) -> char {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
        stat.rsplit_once(')').unwrap().1.trim().chars().next().unwrap()
    }

    #[tokio::test]
    async fn a_stranger_stands_still_and_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut child = counter(dir.path());
        let hosts = Hosts::of_pids(&[child.id()]);
        let mut hurting = Hurting::new(hosts, &[Blow::Pause, Blow::Kill], 1, Runtime::tokio()).unwrap();
        hurting.open.push((0, Blow::Pause));
        hurting.deal(0, Blow::Pause).await.unwrap();
        Runtime::tokio().sleep(Duration::from_millis(50)).await;
        assert_eq!(state_of(child.id()), 'T');
        assert_eq!(hurting.heal().await, [""; 0]);
        assert_ne!(state_of(child.id()), 'T');
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(hurting.deal(0, Blow::Pause).await.unwrap_err().contains("has ended"));
    }

    #[tokio::test]
    async fn one_that_can_be_started_is_killed_and_lives_again() {
        let dir = tempfile::tempdir().unwrap();
        let pid_file = dir.path().join("pid");
        let mut child = counter(dir.path());
        std::fs::write(&pid_file, child.id().to_string()).unwrap();
        let text = format!(
            "[[host]]\nname = \"one\"\npid_file = \"{}\"\nstart = \"echo again > {}\"\n",
            pid_file.display(),
            dir.path().join("started").display()
        );
        std::fs::write(dir.path().join("hosts.toml"), text).unwrap();
        let hosts = Hosts::read(&dir.path().join("hosts.toml")).unwrap();
        let mut hurting = Hurting::new(hosts, &[Blow::Kill], 1, Runtime::tokio()).unwrap();
        let record = hurting.strike(1, 1).await;
        assert_eq!((record.hosts, record.problems), (vec!["one".to_owned()], Vec::new()));
        assert!(!child.wait().unwrap().success());
        assert!(dir.path().join("started").is_file());
    }

    #[test]
    fn what_cannot_be_done_is_told() {
        let refused =
            |hosts| Hurting::new(hosts, &[Blow::Kill], 1, Runtime::tokio()).err().map(|error| error.to_string());
        assert!(refused(Hosts { host: Vec::new() }).unwrap().contains("--pids"));
        assert!(refused(Hosts::of_pids(&[u32::MAX])).unwrap().contains("not there"));
        assert!(refused(Hosts::of_pids(&[std::process::id()])).unwrap().contains("start"));
    }
}
