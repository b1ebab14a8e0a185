//! Runs in processes of their own: a worker is told what to run, line by line, and runs each in a fresh thread.
//!
//! A process for each run would build openraft's tables of its statistics anew, which takes longer than a short run. What a
//! run leaves behind in its process must not show in the next one: `meta` compares workers that had other runs before.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use flotilla_sim::{Case, run, run_case};
use serde::{Deserialize, Serialize};

use super::{Setting, Told};

/// Of what a worker says before it dies so much is kept, bytes.
const LAST_WORDS_MAX: usize = 16 << 10;
/// Deep futures are dropped in one call chain.
const STACK_BYTES: usize = 16 << 20;

/// One thing to run.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Job {
    Seed(u64),
    Case(Box<Case>),
}

/// The worker's side: runs what comes on standard input until it ends; what is under way then is dropped.
pub(crate) fn serve(setting: Setting) -> Result<bool, String> {
    let mut output = std::io::stdout().lock();
    let (hand_over, lines) = mpsc::channel();
    let is_busy = Arc::new(AtomicBool::new(false));
    let busy = is_busy.clone();
    let listen = move || {
        for line in std::io::stdin().lock().lines() {
            // If nobody takes it any more, the process ends by an error.
            let _ = hand_over.send(line);
        }
        // Whoever asked is gone, and with it the reason for what is being run.
        if busy.load(Ordering::SeqCst) {
            std::process::exit(1);
        }
    };
    std::thread::Builder::new().spawn(listen).map_err(|error| format!("no thread: {error}"))?;
    for line in lines {
        let line = line.map_err(|error| format!("standard input: {error}"))?;
        let job: Job = serde_json::from_str(&line).map_err(|error| format!("a job cannot be read: {error}"))?;
        is_busy.store(true, Ordering::SeqCst);
        let thread = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || match job {
            Job::Seed(seed) => Told::of(&run(&setting.options(seed), false)),
            Job::Case(case) => Told::of(&run_case(&case, false)),
        });
        let thread = thread.map_err(|error| format!("no thread: {error}"))?;
        // Panics of what is simulated are findings; this is one of the simulation itself.
        let told = thread.join().map_err(|_| "the simulation itself panicked".to_owned())?;
        let mut answer = serde_json::to_string(&told).map_err(|error| error.to_string())?;
        answer.push('\n');
        is_busy.store(false, Ordering::SeqCst);
        output.write_all(answer.as_bytes()).and_then(|()| output.flush()).map_err(|error| error.to_string())?;
    }
    Ok(true)
}

/// The other side: one process at a time, and another one after it has died.
pub(crate) struct Worker {
    setting: Setting,
    process: Option<Process>,
}

struct Process {
    child: Child,
    jobs: ChildStdin,
    answers: BufReader<ChildStdout>,
    last_words: JoinHandle<String>,
}

impl Worker {
    pub(crate) fn new(setting: Setting) -> Worker {
        Worker { setting, process: None }
    }

    /// Runs a seed; an error if the process dies of it.
    pub(crate) fn run_seed(&mut self, seed: u64) -> Result<Told, String> {
        self.run(&format!("seed {seed}"), &Job::Seed(seed))
    }

    /// Runs a case; an error if the process dies of it.
    pub(crate) fn run_case(&mut self, case: &Case) -> Result<Told, String> {
        self.run("case", &Job::Case(Box::new(case.clone())))
    }

    fn run(&mut self, what: &str, job: &Job) -> Result<Told, String> {
        let mut process = match self.process.take() {
            Some(process) => process,
            None => Process::start(self.setting).map_err(|error| format!("{what} did not start: {error}"))?,
        };
        let mut line = serde_json::to_string(job).map_err(|error| error.to_string())?;
        line.push('\n');
        // If it does not read, its end says why.
        let _ = process.jobs.write_all(line.as_bytes());
        let mut answer = String::new();
        let read = process.answers.read_line(&mut answer);
        match (read, serde_json::from_str(answer.trim())) {
            (Ok(_), Ok(told)) => {
                self.process = Some(process);
                Ok(told)
            }
            _ => Err(format!("{what} ended without an outcome ({})", process.end())),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(process) = self.process.take() {
            process.end();
        }
    }
}

impl Process {
    fn start(setting: Setting) -> std::io::Result<Process> {
        let mut child = Command::new(std::env::current_exe()?)
            .arg("worker")
            .args(setting.arguments())
            // Ctrl-C is for who started it.
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let (Some(jobs), Some(answers), Some(mut errors)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(std::io::Error::other("a pipe is missing"));
        };
        let last_words = std::thread::spawn(move || {
            let (mut kept, mut piece) = (Vec::new(), [0; 4096]);
            while let Ok(count @ 1..) = errors.read(&mut piece) {
                kept.extend_from_slice(&piece[..count]);
                let surplus = kept.len().saturating_sub(LAST_WORDS_MAX);
                kept.drain(..surplus);
            }
            String::from_utf8_lossy(&kept).trim().to_owned()
        });
        Ok(Process { child, jobs, answers: BufReader::new(answers), last_words })
    }

    /// Lets it end, and tells how it did.
    fn end(self) -> String {
        let Process { mut child, jobs, answers, last_words } = self;
        drop((jobs, answers));
        let status = child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        let last_words = last_words.join().unwrap_or_default();
        if last_words.is_empty() { status } else { format!("{status}: {last_words}") }
    }
}
