//! The history of a run on disk, written as it happens: a harness that dies leaves all that was seen until then.

use std::fs::File;
use std::io::{BufReader, Write};
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use flotilla_checkers::{Event, EventKind, HistoryError, Operation, read_json_lines};
use flotilla_runtime::{Instant, Runtime};
use serde::Serialize;

/// A line: the checkers' event, and the wall time for people who compare it with logs.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    event: &'a Event,
    wall_ms: u64,
}

/// Numbers events, gives them their time, and writes them.
pub struct HistoryFile {
    state: Mutex<State>,
    started: Instant,
    runtime: Runtime,
}

struct State {
    file: File,
    next_index: u64,
    failure: Option<std::io::Error>,
}

impl HistoryFile {
    /// A new file; its clock starts now.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn create(path: &Path, runtime: &Runtime) -> std::io::Result<HistoryFile> {
        let state = Mutex::new(State { file: File::create(path)?, next_index: 0, failure: None });
        Ok(HistoryFile { state, started: runtime.now(), runtime: runtime.clone() })
    }

    /// Nanoseconds on the history's clock.
    pub fn now_ns(&self) -> u64 {
        self.ns_of(self.runtime.now())
    }

    /// The same moment on the history's clock.
    pub fn ns_of(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }

    /// Writes one event with the next index and the present time, which it answers.
    pub fn record(&self, process: &str, kind: EventKind, operation: Operation) -> u64 {
        let mut state = self.lock();
        // Under the lock, so that times are in the order of indexes.
        let time_ns = self.now_ns();
        let event = Event { index: state.next_index, time_ns, process: process.to_owned(), kind, operation };
        state.next_index += 1;
        let mut line = serde_json::to_vec(&Line { event: &event, wall_ms: self.runtime.wall_ms() })
            .expect("numbers and strings become JSON");
        line.push(b'\n');
        if let Err(error) = state.file.write_all(&line) {
            state.failure.get_or_insert(error);
        }
        time_ns
    }

    /// An error if any event could not be written.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn check(&self) -> std::io::Result<()> {
        self.lock().failure.take().map_or(Ok(()), Err)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("the history's lock is never poisoned: no code panics while holding it")
    }
}

/// Reads a history back.
///
/// # Errors
/// If it cannot be read, or a line is no event.
pub fn read(path: &Path) -> Result<Vec<Event>, HistoryError> {
    read_json_lines(BufReader::new(File::open(path)?))
}

#[cfg(test)]
mod tests {
    use flotilla_checkers::{Ack, QueueKey};

    use super::*;

    #[test]
    fn the_checkers_read_what_was_written_and_pass_over_the_wall_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("history.jsonl");
        let history = HistoryFile::create(&path, &Runtime::tokio()).unwrap();
        let send = |ack| Operation::Send { message_id: "m".into(), ack };
        let first = history.record("p", EventKind::Invoke, send(None));
        let ack = Ack { log_index: Some(u64::MAX), ..Ack::at(QueueKey::new("t", 0), u64::MAX) };
        let second = history.record("p", EventKind::Ok, send(Some(ack.clone())));
        history.check().unwrap();
        assert!(first <= second);
        assert!(std::fs::read_to_string(&path).unwrap().contains("\"wall_ms\":"));
        let events = read(&path).unwrap();
        assert_eq!(
            events.iter().map(|event| (event.index, event.time_ns)).collect::<Vec<_>>(),
            [(0, first), (1, second)]
        );
        assert_eq!(events[1].operation, send(Some(ack)));
    }
}
