//! The state machine of the log: applies entries, spills slots, makes and takes checkpoints.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flotilla_raft_log::{
    CheckpointBytes, Disk, LaterCheckpoint, LogIndex, RestoreError, SideFile, SideFileCheck, StateMachine, Term,
};

use crate::checkpoint::{self, FrozenState, PartFile, PartFiles, is_part_file_name};
use crate::entry_levels::messages_answered_early;
use crate::entry_view::{CommandView, EntryView};
use crate::index_file::{IndexFile, IndexFileBuilder, IndexFileId, is_index_file_name};
use crate::observer::ApplyObserver;
use crate::producing::Batch;
use crate::queue::{Queue, Run};
use crate::shared::Shared;
use crate::state::{Changes, Refusal, State};
use crate::{Command, Outcome, Rejection, StoreError, StoreReader};

/// Counts up when [`StoreReader::digest`] of the same state becomes another one: replicas of two releases must not take one
/// another for wrong.
const DIGEST_VERSION: u32 = 3;
/// The feature level that this program supports. What [`StoreMachine`] makes of an entry depends on the level that the log has
/// come to ([`Command::RaiseLevel`]), never on the program: so replicas of two releases agree.
///
/// | level | what it means |
/// |---|---|
/// | 0 | as before there were levels |
/// | 1 | the level itself is part of the state: of its digest and of checkpoints |
pub const FEATURE_LEVEL: u8 = 1;

/// Added to the name of an index file that was found damaged.
pub(crate) const DAMAGED_ENDING: &str = ".damaged";

/// Opens a store on `dir`, which is made if it is not there. Nothing is read yet: the log restores
/// the last checkpoint, if there is one, and applies the entries after it.
///
/// # Errors
/// If the directory cannot be made.
pub fn open(
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    observer: Arc<dyn ApplyObserver>,
) -> Result<(StoreMachine, StoreReader), StoreError> {
    disk.create_dir_all(&dir).map_err(|source| StoreError::Io { path: dir.clone(), source })?;
    let names = disk.list(&dir).map_err(|source| StoreError::Io { path: dir.clone(), source })?;
    for name in names.iter().filter(|name| name.strip_suffix(".tmp").is_some_and(is_file_name)) {
        // A crash in the middle of writing one. Harmless, so failing to remove it is too.
        if let Err(error) = disk.remove(&dir.join(name)) {
            tracing::warn!(name, %error, "leftover could not be removed");
        }
    }
    let shared = Arc::new(Shared::new());
    let machine = StoreMachine {
        shared: shared.clone(),
        part_files: PartFiles::new(disk.clone(), dir.clone()),
        disk,
        dir,
        observer,
        open_index: 0,
        index_files: BTreeMap::new(),
        retired: Vec::new(),
        level_max: FEATURE_LEVEL,
        failure: None,
    };
    Ok((machine, StoreReader::new(shared)))
}

/// Whether a file of this name may be one of this crate's that checkpoints rely on.
fn is_file_name(name: &str) -> bool {
    is_index_file_name(name) || is_part_file_name(name)
}

/// Applies the log; there is one, and it is the only one that changes the state.
///
/// A node whose index files turn out damaged or unreadable *fails*: it tells its observer, answers
/// every entry by [`Rejection::StoreFailed`] from then on without applying it, and makes
/// checkpoints that nobody can restore.
pub struct StoreMachine {
    shared: Arc<Shared>,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    observer: Arc<dyn ApplyObserver>,
    part_files: PartFiles,
    /// First log index whose slots are in memory.
    open_index: u64,
    /// By first index.
    index_files: BTreeMap<u64, IndexFileId>,
    /// Files that the state does not rely on any more, each with the log index from which on: older checkpoints may.
    retired: Vec<(u64, String)>,
    /// The feature level that it goes along with.
    level_max: u8,
    failure: Option<String>,
}

impl StoreMachine {
    /// Goes along with no higher feature level than this, as an older program would; for tests of mixed versions.
    pub fn with_level_max(mut self, level_max: u8) -> StoreMachine {
        self.level_max = level_max.min(FEATURE_LEVEL);
        self
    }

    fn apply_entry(&mut self, index: u64, term: u64, payload: &Bytes) -> Vec<Outcome> {
        let entry = match EntryView::parse(payload) {
            Ok(entry) => entry,
            Err(error) => {
                tracing::error!(index, %error, "log entry is malformed");
                self.shared.write().applied = index;
                self.observer.applied(index);
                return vec![Outcome::Rejected(Rejection::Malformed { reason: error.to_string() })];
            }
        };
        let mut changes = Changes::default();
        let mut outcomes = Vec::with_capacity(entry.commands.len());
        {
            let mut state = self.shared.write();
            let step_ms = entry.log_time_ms.saturating_sub(state.log_time_ms);
            state.dedup.pass(step_ms);
            state.log_time_ms += step_ms;
            for command in &entry.commands {
                let applied = match (command.is_duty() && entry.term != term, command) {
                    (true, _) => Err(Rejection::TermPassed { proposed: entry.term, term }.into()),
                    (false, CommandView::Rare(Command::RaiseLevel { level })) => {
                        state.raise_level(*level, self.level_max, index)
                    }
                    (false, command) => apply_command(&mut state, index, payload, command, &mut changes),
                };
                match applied {
                    Ok(outcome) => outcomes.push(outcome),
                    Err(Refusal::Rejected(rejection)) => outcomes.push(Outcome::Rejected(rejection)),
                    Err(Refusal::Failed(error)) => {
                        drop(state);
                        return self.fail(&error);
                    }
                }
            }
            state.applied = index;
        }
        if changes.trimmed {
            self.retire_files(index);
        }
        self.observer.stamped(entry.log_time_ms);
        self.tell(index, changes);
        outcomes
    }

    /// Sorts out the index files that hold no slot of any queue any more.
    fn retire_files(&mut self, index: u64) {
        let used: BTreeSet<u64> = {
            let state = self.shared.read();
            let queues = state.topics.values().flat_map(|topic| &topic.queues);
            queues.flat_map(Queue::files).map(|file| file.id().first_index).collect()
        };
        let unused = self.index_files.extract_if(.., |first_index, _| !used.contains(first_index));
        self.retired.extend(unused.map(|(_, id)| (index, id.file_name())));
    }

    fn tell(&self, index: u64, changes: Changes) {
        for (topic, queue) in &changes.queues_grown {
            self.observer.queue_grew(topic, *queue);
        }
        for (group, topic) in &changes.groups_changed {
            self.observer.group_changed(group, topic);
        }
        if changes.catalog {
            self.observer.catalog_changed();
        }
        if changes.timers {
            self.observer.timers_changed();
        }
        if changes.trimmed {
            self.observer.trimmed(self.shared.read().trimmed_below);
        }
        self.observer.applied(index);
    }

    fn fail(&mut self, error: &StoreError) -> Vec<Outcome> {
        let reason = error.to_string();
        tracing::error!(%error, "store failed, the node must stop");
        if let StoreError::DamagedIndex { path, .. } = error {
            self.set_aside(path);
        }
        self.shared.set_failure(reason.clone());
        self.observer.failed(&reason);
        self.failure = Some(reason.clone());
        vec![Outcome::Rejected(Rejection::StoreFailed { reason })]
    }

    /// Takes a damaged index file's name away, so that the next start refuses the checkpoints that rely on it and makes it
    /// again from the log: header and tables may be sound, and only they are looked at then.
    fn set_aside(&self, path: &Path) {
        let mut aside = path.as_os_str().to_owned();
        aside.push(DAMAGED_ENDING);
        let renamed = self.disk.rename(path, Path::new(&aside)).and_then(|()| self.disk.sync_dir(&self.dir));
        match renamed {
            Ok(()) => {
                tracing::warn!(file = %path.display(), "damaged index file is set aside, a restart makes it again")
            }
            Err(error) => tracing::warn!(file = %path.display(), %error, "damaged index file could not be set aside"),
        }
    }

    /// Writes the slots in memory to the index file of the segment that ends before `end_index`.
    fn spill(&mut self, end_index: u64) -> Result<(), StoreError> {
        let mut builder = IndexFileBuilder::default();
        let mut keys = Vec::new();
        {
            let state = self.shared.read();
            let mut queues: Vec<_> = state
                .topics
                .iter()
                .flat_map(|(name, topic)| {
                    topic.queues.iter().enumerate().map(move |(id, queue)| (topic.uid, id, name, queue))
                })
                .filter(|(_, _, _, queue)| !queue.open().is_empty())
                .collect();
            queues.sort_unstable_by_key(|(uid, id, _, _)| (*uid, *id));
            for (uid, id, name, queue) in queues {
                builder.push(uid, id as u32, queue.open_first(), queue.open());
                keys.push((name.clone(), id));
            }
        }
        if !builder.is_empty() {
            let last_index = end_index.saturating_sub(1);
            let (file, rows) = builder.write(&*self.disk, &self.dir, self.open_index, last_index)?;
            let file = Arc::new(file);
            self.index_files.insert(self.open_index, file.id());
            let name = file.id().file_name();
            self.retired.retain(|(_, retired)| *retired != name);
            let mut state = self.shared.write();
            for ((name, id), row) in keys.iter().zip(&rows) {
                let queue = state.topics.get_mut(name).and_then(|topic| topic.queues.get_mut(*id));
                if let Some(queue) = queue {
                    queue.seal(Run::of(&file, row));
                }
            }
        }
        self.open_index = end_index;
        Ok(())
    }

    fn restore_state(&mut self, checkpoint: &[u8], applied: u64) -> Result<State, String> {
        let checkpoint::Restored { head, mut state } = checkpoint::load(&*self.disk, &self.dir, checkpoint)?;
        if state.applied > applied {
            return Err(format!("it is of entry {}, not of {applied}", state.applied));
        }
        let (level, level_max) = (state.feature_level, self.level_max);
        if level > level_max {
            return Err(format!("it is of feature level {level}, this program supports {level_max} at most"));
        }
        let mut queues: BTreeMap<(u64, u32), &mut crate::queue::Queue> = BTreeMap::new();
        for topic in state.topics.values_mut_untracked() {
            for (id, queue) in topic.queues.iter_mut().enumerate() {
                queues.insert((topic.uid, id as u32), queue);
            }
        }
        let mut index_files = BTreeMap::new();
        for expected in head.index_files.iter().copied() {
            let opened = IndexFile::open(&*self.disk, &self.dir, expected);
            let (file, rows) = opened.map_err(|error| format!("it relies on an index file: {error}"))?;
            let file = Arc::new(file);
            for row in &rows {
                // Rows of topics that were dropped since have no queue any more.
                if let Some(queue) = queues.get_mut(&(row.topic_uid, row.queue)) {
                    queue.push_run(Run::of(&file, row))?;
                }
            }
            index_files.insert(expected.first_index, expected);
        }
        if let Some(((uid, id), _)) = queues.iter().find(|(_, queue)| !queue.is_covered()) {
            return Err(format!("queue {id} of topic number {uid} has slots in no index file"));
        }
        // Whatever else lies there may be what an older checkpoint relies on.
        let names = self.disk.list(&self.dir).map_err(|error| format!("directory {}: {error}", self.dir.display()))?;
        let named: BTreeSet<String> = index_files.values().map(IndexFileId::file_name).collect();
        let others = names.into_iter().filter(|name| is_index_file_name(name) && !named.contains(name));
        self.retired = others.map(|name| (state.applied, name)).collect();
        self.part_files.restored(&head).map_err(|error| format!("directory {}: {error}", self.dir.display()))?;
        self.open_index = head.open_index;
        self.index_files = index_files;
        Ok(state)
    }
}

impl StateMachine for StoreMachine {
    type Output = Vec<Outcome>;

    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> Vec<Outcome> {
        if let Some(reason) = &self.failure {
            return vec![Outcome::Rejected(Rejection::StoreFailed { reason: reason.clone() })];
        }
        self.apply_entry(index.0, term.0, &payload)
    }

    fn acknowledged_early(payload: &[u8]) -> u64 {
        messages_answered_early(payload)
    }

    fn segment_started(&mut self, first: LogIndex) -> io::Result<()> {
        if let Some(reason) = &self.failure {
            return Err(io::Error::other(reason.clone()));
        }
        match self.spill(first.0) {
            Err(error @ StoreError::Io { .. }) => {
                // A full disk, most likely. Index files are derived: the slots stay in memory, and the next one takes them along.
                tracing::warn!(%error, "index file could not be written");
                Ok(())
            }
            spilled => spilled.map_err(io::Error::other),
        }
    }

    fn checkpoint(&self) -> Vec<u8> {
        match self.checkpoint_later()() {
            Ok(bytes) => bytes.state.to_vec(),
            Err(error) => checkpoint::encode_failed(&error.to_string()),
        }
    }

    fn checkpoint_later(&self) -> LaterCheckpoint {
        if let Some(reason) = &self.failure {
            let state = Bytes::from(checkpoint::encode_failed(reason));
            return Box::new(move || Ok(CheckpointBytes { state: state.clone(), beside_bytes: 0 }));
        }
        let basis = self.part_files.next();
        let index_files = self.index_files.values().copied().collect();
        let (is_whole, number) = (basis.is_empty(), basis.number);
        let frozen = FrozenState::of(&mut self.shared.write(), is_whole, number, self.open_index, index_files);
        let files = self.part_files.clone();
        Box::new(move || files.write(&frozen, &basis))
    }

    fn side_files(&self, checkpoint: &[u8]) -> Result<Vec<SideFile>, RestoreError> {
        let (head, _) = checkpoint::decode_head(checkpoint).map_err(RestoreError)?;
        let index_files = head.index_files.iter().map(|id| (id.file_name(), self.dir.join(id.file_name())));
        let part_files = head.part_files.iter().map(|id| (id.file_name(), self.part_files.path(id)));
        Ok(index_files.chain(part_files).map(|(name, path)| SideFile { name, path }).collect())
    }

    fn side_file_check(&self) -> SideFileCheck {
        |disk, path| {
            let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            if is_part_file_name(&name) {
                let file = PartFile::open(disk, path)?;
                return match file.id.file_name() == name {
                    true => Ok(()),
                    false => Err("it is another one than its name says".to_owned()),
                };
            }
            let (file, _) = IndexFile::open_at(disk, path.to_owned()).map_err(|error| error.to_string())?;
            if path.file_name() != Some(file.id().file_name().as_ref()) {
                return Err("it is another one than its name says".to_owned());
            }
            file.verify().map_err(|error| error.to_string())
        }
    }

    fn side_file_path(&self, name: &str) -> Option<PathBuf> {
        is_file_name(name).then(|| self.dir.join(name))
    }

    fn checkpoints_kept(&mut self, kept: &[LogIndex]) {
        self.part_files.kept(kept);
        let Some(oldest) = kept.first() else { return };
        let gone = self.retired.extract_if(.., |(retired_at, _)| *retired_at <= oldest.0);
        for (_, name) in gone {
            // It is tried again after the next start.
            if let Err(error) = self.disk.remove(&self.dir.join(&name)) {
                tracing::warn!(name, %error, "index file could not be removed");
            }
        }
    }

    fn digest(&self) -> Option<(u32, u128)> {
        self.failure.is_none().then(|| (DIGEST_VERSION, self.shared.read().digest()))
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        let state = self.restore_state(checkpoint, applied.0).map_err(RestoreError)?;
        let (index, below) = (state.applied, state.trimmed_below);
        *self.shared.write() = state;
        self.observer.replaced();
        self.observer.catalog_changed();
        self.observer.timers_changed();
        self.observer.trimmed(below);
        self.observer.applied(index);
        Ok(())
    }
}

fn apply_command(
    state: &mut State,
    index: u64,
    payload: &[u8],
    command: &CommandView<'_>,
    changes: &mut Changes,
) -> Result<Outcome, Refusal> {
    match command {
        CommandView::CreateTopic { name, message_type, queue_count, permission } => {
            Ok(state.create_topic(name, *message_type, *queue_count, *permission, changes)?)
        }
        CommandView::DeleteTopic { name } => state.delete_topic(name, changes),
        CommandView::CreateGroup { name, order, max_deliveries, start } => {
            Ok(state.create_group(name, *order, *max_deliveries, *start, changes)?)
        }
        CommandView::DeleteGroup { name } => Ok(state.delete_group(name, changes)?),
        CommandView::Produce { topic, queue, frames } => {
            let batch = Batch { index, payload, topic, queue: *queue, frames, check_after_ms: None };
            state.produce(&batch, changes)
        }
        CommandView::Prepare { topic, queue, check_after_ms, frames } => {
            let batch = Batch { index, payload, topic, queue: *queue, frames, check_after_ms: Some(*check_after_ms) };
            state.produce(&batch, changes)
        }
        CommandView::Touch { group, topic } => state.touch(group, topic),
        CommandView::Deliver(deliver) => state.deliver(deliver, changes),
        CommandView::Ack { group, topic, queue, receipts } => state.ack(group, topic, *queue, receipts, changes),
        CommandView::ChangeInvisible { group, topic, queue, offset, seq, invisible_until_ms } => {
            state.change_invisible((group, topic), *queue, *offset, *seq, *invisible_until_ms, changes)
        }
        CommandView::SetTopicLevel { name, level } => Ok(state.set_topic_level(name, *level, changes)?),
        CommandView::AnsweredEarly { .. } => Ok(Outcome::Noted),
        CommandView::DeliverDue { until_ms, count } => Ok(state.deliver_due(*until_ms, *count, changes)),
        CommandView::Recall { topic, due_ms, message } => Ok(state.recall(topic, *due_ms, *message)?),
        CommandView::EndTransaction { topic, message, commit } => {
            Ok(state.end_transaction(topic, *message, *commit, changes)?)
        }
        CommandView::CheckTransactions { count, next_after_ms, checks_max } => {
            Ok(state.check_transactions(*count, *next_after_ms, *checks_max))
        }
        CommandView::Trim { below, before_ms } => state.trim(index, *below, *before_ms, changes),
        CommandView::Carry { messages, frames } => Ok(state.carry(index, messages, frames)),
        CommandView::Rare(command) => apply_rare(state, command, changes),
    }
}

/// Those that change positions and settings.
fn apply_rare(state: &mut State, command: &Command, changes: &mut Changes) -> Result<Outcome, Refusal> {
    match command {
        Command::SetOffset { group, topic, queue, to } => {
            state.set_offset((group.as_str(), topic.as_str(), *queue), *to, changes)
        }
        Command::UpdateGroup { name, change } => Ok(state.update_group(name.as_str(), change, changes)?),
        Command::UpdateTopic { name, queue_count, permission } => {
            state.update_topic(name, *queue_count, *permission, changes)
        }
        Command::Redeliver { group, topic, queue, offset, message } => {
            state.redeliver((group.as_str(), topic.as_str(), *queue), *offset, *message, changes)
        }
        Command::Renew { group, topic, queue, deliveries, holder, invisible_until_ms } => {
            let place = (group.as_str(), topic.as_str(), *queue);
            Ok(state.renew(place, deliveries, *holder, *invisible_until_ms)?)
        }
        Command::DropDrained { name, uid } => state.drop_drained(name, *uid, changes),
        Command::SetDedupWindow { entries_max } => Ok(state.set_dedup_window(*entries_max)?),
        Command::SetTopicRetention { name, retention_ms } => {
            Ok(state.set_topic_retention(name.as_str(), *retention_ms, changes)?)
        }
        Command::SetWritePermission { is_writable } => Ok(state.set_write_permission(*is_writable, changes)),
        Command::SetTopicShares { name, shares } => Ok(state.set_topic_shares(name, shares, changes)?),
        Command::TrimTopic { name, uid, before_ms } => state.trim_topic(name, *uid, *before_ms, changes),
        Command::DropTopic { name, uid } => state.drop_topic(name.as_str(), *uid, changes),
        Command::DeadLetter { group, topic, queue, offset, seq } => {
            Ok(state.give_up((group.as_str(), topic.as_str(), *queue), *offset, *seq, changes)?)
        }
        other => unreachable!("{other:?} is read in place"),
    }
}
