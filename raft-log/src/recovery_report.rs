//! What a start found on disk and what it took, phase by phase: logged as it happens and kept to be asked for.

use std::path::PathBuf;
use std::time::Duration;

use flotilla_runtime::{Instant, Runtime};

use crate::LogIndex;

/// What opening a log found and took.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// The phases in their order.
    pub phases: Vec<RecoveryPhase>,
    /// Set if the last segment did not end cleanly: a write that was under way when the last process died.
    pub torn_tail: Option<TornTail>,
    /// The commit mark that was saved, if the log no longer reaches it: the log's end counts instead.
    pub commit_mark_beyond_end: Option<LogIndex>,
    /// The last entry of the checkpoint that the state was restored from; `None`: everything is applied again.
    pub checkpoint: Option<LogIndex>,
    /// Checkpoints that are newer and could not be used, newest first.
    pub skipped_checkpoints: Vec<SkippedCheckpoint>,
    /// Slots of the vote file that were damaged and were written again from their twins.
    pub healed_slots: u32,
    /// Files in the directory that are none of the log's; they are left alone.
    pub foreign_files: Vec<String>,
}

/// One phase of a start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecoveryPhase {
    /// `directory`, `marks`, `segments`, `tail`, `checkpoint` or `reapply`.
    pub name: &'static str,
    /// How long it took.
    pub took: Duration,
    /// Files that it looked at.
    pub files: u64,
    /// Bytes that it accounts for (with a summary a sealed segment is not read).
    pub bytes: u64,
    /// Entries that it found or applied.
    pub entries: u64,
}

/// Where the last segment ended in the middle of something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TornTail {
    /// The segment file.
    pub file: PathBuf,
    /// What is behind this position was cut off, bytes.
    pub position: u64,
    /// What stood there.
    pub what: String,
    /// How much was set to zero, bytes (in whole pieces of 1 MiB).
    pub zeroed_bytes: u64,
}

/// A checkpoint that was passed over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SkippedCheckpoint {
    /// Its last entry, by its name.
    pub last: LogIndex,
    /// Why it cannot be used.
    pub why: String,
}

/// What a phase looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Seen {
    pub(crate) files: u64,
    pub(crate) bytes: u64,
    pub(crate) entries: u64,
}

/// Times phases and tells each when it is over.
pub(crate) struct PhaseWatch {
    runtime: Runtime,
    since: Instant,
}

impl PhaseWatch {
    pub(crate) fn start(runtime: &Runtime) -> PhaseWatch {
        PhaseWatch { runtime: runtime.clone(), since: runtime.now() }
    }

    /// The phase that has been under way is over, the next one begins.
    pub(crate) fn over(&mut self, name: &'static str, seen: Seen, report: &mut RecoveryReport) {
        let now = self.runtime.now();
        let took = now - self.since;
        self.since = now;
        let Seen { files, bytes, entries } = seen;
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        tracing::info!(phase = name, took_ms, files, bytes, entries, "recovery phase over");
        report.phases.push(RecoveryPhase { name, took, files, bytes, entries });
    }
}
