//! A simple model of what a log owes its owner, and steps that drive a log and the model together.

use std::io;
use std::sync::{Arc, Mutex};

use bytes::Bytes;

use super::{CrashDisk, StepRuntime};
use crate::checkpoint_file::{Checkpoint, Origin};
use crate::checkpoint_store::CheckpointStore;
use crate::failure::Failure;
use crate::ids::EntryId;
use crate::log_files::LogFiles;
use crate::raft::{Members, encode_membership};
use crate::recovery::open_log;
use crate::restore::restore_newest;
use crate::segment::{Record, RecordKind};
use crate::vote_and_marks::SavedVote;
use crate::{LogConfig, LogIndex, NodeId, OpenError, RecoveryReport, RestoreError, StateMachine, Term};

/// One thing done to a log. Places are given in thousandths of what is allowed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Append {
        count: u64,
        payload_bytes: usize,
    },
    /// Lets background work run: syncs, removals, files made ahead.
    Settle,
    Vote,
    /// Saves a commit mark at the acknowledged end.
    Commit,
    Truncate {
        permille: u64,
    },
    /// Only up to a checkpoint.
    Purge {
        permille: u64,
    },
    /// Of what is acknowledged.
    Checkpoint,
    /// The process dies and starts again; the machine lives on.
    Kill,
}

/// A log in the hands of one process.
pub(crate) struct Opened {
    pub(crate) files: LogFiles,
    pub(crate) checkpoints: CheckpointStore,
    /// What the machine was restored to.
    pub(crate) restored: Option<(LogIndex, Bytes)>,
}

impl Opened {
    pub(crate) fn report(&self) -> RecoveryReport {
        self.files.view().recovery()
    }
}

/// An on-demand checkpoint of `last` with such a state.
pub(crate) fn checkpoint_of(last: EntryId, state: Bytes) -> Checkpoint {
    let members = encode_membership(&Members::default());
    Checkpoint { last, origin: Origin::OnDemand, members_at: None, members, state }
}

/// A machine that only remembers what it was restored to.
#[derive(Default)]
struct Remembers(Option<(LogIndex, Bytes)>);

impl StateMachine for Remembers {
    type Output = ();
    fn apply(&mut self, _index: LogIndex, _term: Term, _payload: Bytes) {}
    fn segment_started(&mut self, _first: LogIndex) -> io::Result<()> {
        Ok(())
    }
    fn checkpoint(&self) -> Vec<u8> {
        Vec::new()
    }
    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        self.0 = Some((applied, Bytes::copy_from_slice(checkpoint)));
        Ok(())
    }
}

/// Settings with segments of 64 KiB and a cache so small that most reads go to the files.
pub(crate) fn small_config() -> LogConfig {
    let mut config = LogConfig::new("/log", "cluster", "group", NodeId(1), [NodeId(1)]);
    config.segment_bytes = 64 * 1024;
    config.tail_cache_bytes = 2000;
    config
}

/// Opens log, checkpoints and machine as a replica does, short of openraft.
pub(crate) fn open_all(disk: &CrashDisk, runtime: &StepRuntime) -> Result<Opened, OpenError> {
    let mut machine = Remembers::default();
    let (files, checkpoints) = open_with(disk, runtime, &mut machine)?;
    Ok(Opened { files, checkpoints, restored: machine.0 })
}

/// Opens log and checkpoints and restores `machine`.
pub(crate) fn open_with(
    disk: &CrashDisk,
    runtime: &StepRuntime,
    machine: &mut impl StateMachine,
) -> Result<(LogFiles, CheckpointStore), OpenError> {
    let (config, disk, runtime) = (small_config(), Arc::new(disk.clone()), runtime.handle());
    let files = open_log(&config, disk.clone(), &runtime, Failure::default())?;
    let (checkpoints, newest) = CheckpointStore::open(disk, config.dir, runtime, files.view())?;
    let mut restore = |state: &[u8], applied: LogIndex| machine.restore(state, applied);
    restore_newest(&mut restore, &files.view(), &checkpoints, newest, |_| Ok(()))?;
    Ok((files, checkpoints))
}

/// The state after applying a prefix of the log: a sum that depends on every byte of it.
fn state_of(prefix: &[Record]) -> Bytes {
    let crc = prefix.iter().fold(0, |crc, record| {
        let crc = crc32c::crc32c_append(crc, &record.id.index.0.to_le_bytes());
        crc32c::crc32c_append(crc, &record.payload)
    });
    Bytes::from(format!("{} entries, {crc:08x}", prefix.len()))
}

/// What is known about a history while it happens.
#[derive(Default)]
pub(crate) struct Model {
    /// The log as last written from index 0 on (purged entries stay here), and as before the step in progress.
    written: Vec<Record>,
    before: Vec<Record>,
    /// Entries below this index are acknowledged; shared with the callbacks. A truncation lowers it.
    acked: Arc<Mutex<u64>>,
    /// Nothing below this index is ever truncated.
    committed: u64,
    purged: Option<EntryId>,
    purging: Option<EntryId>,
    vote: Option<SavedVote>,
    voting: Option<SavedVote>,
    /// Entries that checkpoints hold; the last one that is surely there.
    checkpoint: Option<u64>,
    checkpointing: Option<u64>,
    term: u64,
    payloads: u64,
}

impl Model {
    fn end(&self) -> u64 {
        self.written.len() as u64
    }

    fn acked(&self) -> u64 {
        *self.acked.lock().unwrap()
    }

    fn record(&mut self, index: u64, payload_bytes: usize) -> Record {
        self.payloads += 1;
        let mut payload = format!("payload {} of entry {index} ", self.payloads).into_bytes();
        payload.resize(payload_bytes.max(payload.len()), (self.payloads % 251) as u8);
        Record { id: EntryId::new(self.term, index), kind: RecordKind::Normal, payload: Bytes::from(payload) }
    }

    /// Does one step on the log and here. A disk that fails leaves it in progress.
    pub(crate) fn step(&mut self, step: Step, opened: &mut Opened, runtime: &StepRuntime) {
        self.before = self.written.clone();
        let files = &mut opened.files;
        match step {
            Step::Settle => runtime.run(),
            Step::Kill => unreachable!("the driver starts another process"),
            Step::Append { count, payload_bytes } => {
                let first = self.end();
                let records: Vec<Record> =
                    (first..first + count).map(|index| self.record(index, payload_bytes)).collect();
                self.written.extend(records.clone());
                let (acked, end) = (self.acked.clone(), first + count);
                let done = Box::new(move |flushed: io::Result<()>| {
                    if flushed.is_ok() {
                        let mut acked = acked.lock().unwrap();
                        *acked = (*acked).max(end);
                    }
                });
                let _ = runtime.block_on(files.append(records, done));
            }
            Step::Vote => {
                self.term += 1;
                let vote = SavedVote { term: Term(self.term), node: NodeId(self.term % 3), committed: false };
                self.voting = Some(vote);
                if runtime.block_on(files.save_vote(vote)).is_ok() {
                    self.vote = Some(vote);
                    // A vote that is saved stands for every append before it.
                    *self.acked.lock().unwrap() = self.end();
                }
            }
            Step::Commit => {
                self.committed = self.committed.max(self.acked());
                if let Some(last) = self.committed.checked_sub(1) {
                    let _ = files.view().save_committed(Some(self.written[last as usize].id));
                }
            }
            Step::Truncate { permille } => {
                self.term += 1;
                let end = self.committed + (self.end() - self.committed) * permille / 1000;
                self.written.truncate(end as usize);
                // The callbacks of what was cut must not count for what comes in its place.
                self.acked = Arc::new(Mutex::new(end.min(self.acked())));
                let _ = runtime.block_on(files.truncate_after(end.checked_sub(1).map(LogIndex)));
            }
            Step::Purge { permille } => {
                let from = self.purged.map_or(0, |purged| purged.index.0 + 1);
                let until = self.checkpoint.unwrap_or(0);
                if from < until {
                    let index = from + (until - 1 - from) * permille / 1000;
                    let purging = self.written[index as usize].id;
                    self.purging = Some(purging);
                    if runtime.block_on(files.purge(purging)).is_ok() {
                        self.purged = Some(purging);
                    }
                }
            }
            Step::Checkpoint => {
                let count = self.acked();
                let Some(last) = count.checked_sub(1).filter(|_| Some(count) > self.checkpoint) else { return };
                self.committed = self.committed.max(count);
                self.checkpointing = Some(count);
                let state = state_of(&self.written[..count as usize]);
                let checkpoint = checkpoint_of(self.written[last as usize].id, state);
                if runtime.block_on(opened.checkpoints.write_now(checkpoint)).is_ok() {
                    self.checkpoint = Some(count);
                }
            }
        }
    }

    /// Compares what was recovered with what is owed, and takes it over. `Err` tells what is wrong.
    pub(crate) fn check(&mut self, opened: &Opened, lost_unsynced: bool) -> Result<(), String> {
        let owed = |holds: bool, what: String| if holds { Ok(()) } else { Err(what) };
        let view = opened.files.view();
        let (purged, last) = view.ends();
        owed([self.purged, self.purging].contains(&purged), format!("purge mark is {purged:?}"))?;
        owed([self.vote, self.voting].contains(&view.vote()), format!("vote is {:?}", view.vote()))?;
        let start = purged.map_or(0, |purged| purged.index.0 + 1);
        let end = last.map_or(0, |last| last.index.0 + 1);
        let floor =
            if lost_unsynced { self.acked() } else { self.acked().max(self.end().min(self.before.len() as u64)) };
        owed(end >= floor, format!("log ends at {end}, entries below {floor} were acknowledged"))?;
        let found = view.read_all(LogIndex(0)..LogIndex(u64::MAX)).map_err(|error| error.to_string())?;
        owed(found.len() as u64 == end - start, format!("{} entries are found in {start}..{end}", found.len()))?;
        let is_of =
            |history: &[Record]| found.iter().all(|record| history.get(record.id.index.0 as usize) == Some(record));
        let history =
            [&self.written, &self.before].into_iter().find(|history| is_of(history) && history.len() as u64 >= end);
        let Some(history) = history else {
            return Err("an entry is not one that was written there".to_owned());
        };
        let mut history = history.clone();
        history.truncate(end as usize);
        if let Some(committed) = view.committed() {
            let held = history.get(committed.index.0 as usize).map(|record| record.id);
            owed(held == Some(committed), format!("commit mark is {committed}, log holds {held:?} there"))?;
        }
        let counts = opened.restored.as_ref().map(|(last, _)| last.0 + 1);
        let owed_counts = [self.checkpoint, self.checkpointing];
        owed(owed_counts.contains(&counts), format!("restored {counts:?} entries instead of {owed_counts:?}"))?;
        owed(counts.unwrap_or(0) >= start, format!("state of {counts:?} entries, log from {start}"))?;
        if let Some((_, state)) = &opened.restored {
            let whole = state_of(&history[..counts.unwrap_or(0) as usize]);
            owed(*state == whole, format!("state is {state:?}, the log makes {whole:?}"))?;
        }
        self.before = history.clone();
        self.written = history;
        (self.purged, self.purging) = (purged, purged);
        (self.vote, self.voting) = (view.vote(), view.vote());
        (self.checkpoint, self.checkpointing) = (counts, counts);
        // What was recovered counts as durable from now on.
        self.acked = Arc::new(Mutex::new(end));
        Ok(())
    }
}
