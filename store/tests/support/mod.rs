//! A disk in memory and a machine on it, for the tests of this crate.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flotilla_message::{
    BodyEncoding, GroupName, Message, MessageId, MessageRef, MessageType, Permission, QueueId, QueueOffset,
    StoredFrame, TopicName,
};
use flotilla_raft_log::{DirLock, Disk, DiskFile, LogIndex, StateMachine, Term};
use flotilla_store::{ApplyObserver, Command, EntryBuilder, Outcome, StartPolicy, StoreMachine, StoreReader, open};

/// Files in memory.
#[derive(Default)]
pub struct MemoryDisk {
    files: Mutex<BTreeMap<PathBuf, Arc<MemoryFile>>>,
    is_full: AtomicBool,
    /// So many more steps work; none of those after. `None`: all do.
    steps: Arc<Mutex<Option<u64>>>,
}

pub struct MemoryFile {
    bytes: Mutex<Vec<u8>>,
    /// What a crash leaves.
    synced: Mutex<Vec<u8>>,
    steps: Arc<Mutex<Option<u64>>>,
}

fn step(steps: &Mutex<Option<u64>>) -> io::Result<()> {
    match &mut *steps.lock().unwrap() {
        None => Ok(()),
        Some(0) => Err(io::Error::other("the disk is gone")),
        Some(left) => {
            *left -= 1;
            Ok(())
        }
    }
}

impl MemoryDisk {
    pub fn names(&self) -> Vec<String> {
        let files = self.files.lock().unwrap();
        files.keys().map(|path| path.file_name().unwrap().to_string_lossy().into_owned()).collect()
    }

    /// The names of index files.
    pub fn index_files(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.ends_with(".idx")).collect()
    }

    /// The names of part files.
    pub fn part_files(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| name.ends_with(".part")).collect()
    }

    /// Flips a bit of a file, `from_end` bytes before its end.
    pub fn damage(&self, name: &str, from_end: usize) {
        let files = self.files.lock().unwrap();
        let (_, file) = files.iter().find(|(path, _)| path.ends_with(name)).unwrap();
        let mut bytes = file.bytes.lock().unwrap();
        let at = bytes.len() - from_end;
        bytes[at] ^= 4;
    }

    pub fn len_of(&self, name: &str) -> usize {
        let files = self.files.lock().unwrap();
        let (_, file) = files.iter().find(|(path, _)| path.ends_with(name)).unwrap();
        file.bytes.lock().unwrap().len()
    }

    /// Lets `steps` more changes work, and none after; `None` lets all of them.
    pub fn set_steps(&self, steps: Option<u64>) {
        *self.steps.lock().unwrap() = steps;
    }

    /// Whether a step failed since [`MemoryDisk::set_steps`].
    pub fn is_out_of_steps(&self) -> bool {
        *self.steps.lock().unwrap() == Some(0)
    }

    /// What was written and not synced is lost.
    pub fn crash(&self) {
        for file in self.files.lock().unwrap().values() {
            let synced = file.synced.lock().unwrap().clone();
            *file.bytes.lock().unwrap() = synced;
        }
    }

    /// Makes it full, or not any more: no file can be made.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    pub fn forget(&self, name: &str) {
        self.files.lock().unwrap().retain(|path, _| !path.ends_with(name));
    }
}

impl Disk for MemoryDisk {
    fn create_dir_all(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }
    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        step(&self.steps)?;
        let zeroes = vec![0; len as usize];
        let file = Arc::new(MemoryFile {
            bytes: Mutex::new(zeroes.clone()),
            synced: Mutex::new(zeroes),
            steps: self.steps.clone(),
        });
        self.files.lock().unwrap().insert(path.to_owned(), file.clone());
        Ok(file)
    }
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        match self.files.lock().unwrap().get(path) {
            Some(file) => Ok(file.clone()),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }
    fn list(&self, _dir: &Path) -> io::Result<Vec<String>> {
        Ok(self.names())
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        step(&self.steps)?;
        let mut files = self.files.lock().unwrap();
        let file = files.remove(from).ok_or(io::ErrorKind::NotFound)?;
        files.insert(to.to_owned(), file);
        Ok(())
    }
    fn remove(&self, path: &Path) -> io::Result<()> {
        self.files.lock().unwrap().remove(path);
        Ok(())
    }
    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        step(&self.steps)
    }
    fn lock(&self, _path: &Path) -> io::Result<Box<dyn DirLock>> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        Ok(u64::MAX)
    }
}

impl DiskFile for MemoryFile {
    fn len(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let whole = step(&self.steps);
        let bytes = if whole.is_ok() { bytes } else { &bytes[..bytes.len() / 2] };
        let mut file = self.bytes.lock().unwrap();
        file[offset as usize..offset as usize + bytes.len()].copy_from_slice(bytes);
        whole
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let file = self.bytes.lock().unwrap();
        let part = file.get(offset as usize..offset as usize + len).ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Bytes::copy_from_slice(part))
    }
    fn sync_data(&self) -> io::Result<()> {
        step(&self.steps)?;
        let bytes = self.bytes.lock().unwrap().clone();
        *self.synced.lock().unwrap() = bytes;
        Ok(())
    }
}

/// Writes down what it hears.
#[derive(Default)]
pub struct Listener {
    pub grown: Mutex<BTreeSet<(String, u32)>>,
    pub groups: Mutex<BTreeSet<(String, String)>>,
    pub applied: Mutex<u64>,
    pub catalog_changes: Mutex<u32>,
    pub timer_changes: Mutex<u32>,
    pub failure: Mutex<Option<String>>,
}

impl ApplyObserver for Listener {
    fn queue_grew(&self, topic: &TopicName, queue: QueueId) {
        self.grown.lock().unwrap().insert((topic.to_string(), queue.0));
    }
    fn group_changed(&self, group: &GroupName, topic: &TopicName) {
        self.groups.lock().unwrap().insert((group.to_string(), topic.to_string()));
    }
    fn applied(&self, index: u64) {
        *self.applied.lock().unwrap() = index;
    }
    fn catalog_changed(&self) {
        *self.catalog_changes.lock().unwrap() += 1;
    }
    fn timers_changed(&self) {
        *self.timer_changes.lock().unwrap() += 1;
    }
    fn failed(&self, reason: &str) {
        assert!(self.failure.lock().unwrap().replace(reason.to_owned()).is_none(), "told once");
    }
}

/// A machine with a log of its own: entries get the next index and the present time.
pub struct Node {
    pub disk: Arc<MemoryDisk>,
    pub machine: StoreMachine,
    pub reader: StoreReader,
    pub listener: Arc<Listener>,
    pub index: u64,
    pub now_ms: u64,
}

pub const START_MS: u64 = 1_000_000;

impl Node {
    pub fn new() -> Node {
        Node::on(Arc::new(MemoryDisk::default()))
    }

    pub fn on(disk: Arc<MemoryDisk>) -> Node {
        let listener = Arc::new(Listener::default());
        let (machine, reader) = open(disk.clone(), PathBuf::from("store"), listener.clone()).unwrap();
        Node { disk, machine, reader, listener, index: 0, now_ms: START_MS }
    }

    pub fn apply(&mut self, payload: Bytes) -> Vec<Outcome> {
        self.index += 1;
        self.machine.apply(LogIndex(self.index), Term(1), payload)
    }

    pub fn apply_all(&mut self, commands: &[Command]) -> Vec<Outcome> {
        let payload = entry(self.now_ms, commands);
        self.apply(payload)
    }

    pub fn run(&mut self, command: Command) -> Outcome {
        let mut outcomes = self.apply_all(&[command]);
        assert_eq!(outcomes.len(), 1);
        outcomes.remove(0)
    }

    /// Lets time pass, with an entry now and then.
    pub fn pass(&mut self, ms: u64) {
        let end_ms = self.now_ms + ms;
        while self.now_ms < end_ms {
            self.now_ms = end_ms.min(self.now_ms + flotilla_store::limits::DEDUP_STEP_MS_MAX);
            self.apply_all(&[]);
        }
    }

    /// The next entry will begin a segment.
    pub fn roll(&mut self) {
        self.machine.segment_started(LogIndex(self.index + 1)).unwrap();
    }

    /// The same node after a restart from a checkpoint taken now.
    pub fn restarted(&self) -> Node {
        let mut node = Node::on(self.disk.clone());
        node.machine.restore(&self.machine.checkpoint(), LogIndex(self.index)).unwrap();
        node.index = self.index;
        node.now_ms = self.now_ms;
        node
    }

    /// As an older program would be.
    pub fn with_level_max(self, level_max: u8) -> Node {
        Node { machine: self.machine.with_level_max(level_max), ..self }
    }

    pub fn with_topic(mut self, name: &str, queue_count: u32) -> Node {
        let outcome = self.run(create_topic(name, queue_count));
        assert!(matches!(outcome, Outcome::TopicCreated { .. }), "{outcome:?}");
        self
    }

    pub fn with_group(mut self, name: &str, order: bool, max_deliveries: u32, start: StartPolicy) -> Node {
        let outcome = self.run(create_group(name, order, max_deliveries, start));
        assert!(matches!(outcome, Outcome::GroupCreated { .. }), "{outcome:?}");
        self
    }

    pub fn send(&mut self, topic_name: &str, queue: u32, ids: &[&str]) -> Outcome {
        self.run(produce(topic_name, queue, ids))
    }
}

pub fn topic(name: &str) -> TopicName {
    TopicName::try_from(name).unwrap()
}

pub fn group(name: &str) -> GroupName {
    GroupName::try_from(name).unwrap()
}

pub fn offsets(range: impl IntoIterator<Item = u64>) -> Vec<QueueOffset> {
    range.into_iter().map(QueueOffset).collect()
}

pub fn entry(log_time_ms: u64, commands: &[Command]) -> Bytes {
    let mut builder = EntryBuilder::new(log_time_ms, 1);
    for command in commands {
        let before = builder.byte_len();
        builder.push(command);
        assert_eq!(builder.byte_len() - before, flotilla_store::command_bytes(command));
    }
    builder.finish()
}

pub fn frame(topic_name: &str, id: &str, tag: Option<&str>) -> StoredFrame {
    frame_of(topic_name, id, tag, MessageType::Normal, None)
}

pub fn frame_of(
    topic_name: &str,
    id: &str,
    tag: Option<&str>,
    message_type: MessageType,
    delivery_at_ms: Option<u64>,
) -> StoredFrame {
    let message = Message {
        topic: topic(topic_name),
        message_type,
        id: MessageId::try_from(id).unwrap(),
        tag: tag.map(str::to_owned),
        keys: Vec::new(),
        group: (message_type == MessageType::Fifo).then(|| "customer".to_owned()),
        properties: BTreeMap::new(),
        body: Bytes::from(format!("body of {id}")),
        body_encoding: BodyEncoding::Identity,
        born_at_ms: 1,
        born_host: "host".to_owned(),
        trace_context: None,
        delivery_at_ms,
    };
    message.encode().unwrap()
}

pub fn create_topic(name: &str, queue_count: u32) -> Command {
    Command::CreateTopic {
        name: topic(name),
        message_type: MessageType::Normal,
        queue_count,
        permission: Permission::ReadWrite,
    }
}

pub fn create_topic_of(name: &str, message_type: MessageType, queue_count: u32) -> Command {
    Command::CreateTopic { name: topic(name), message_type, queue_count, permission: Permission::ReadWrite }
}

/// A batch of delayed messages, each with its due time.
pub fn produce_delayed(topic_name: &str, queue: u32, messages: &[(&str, u64)]) -> Command {
    let frames = messages.iter().map(|(id, due_ms)| frame_of(topic_name, id, None, MessageType::Delay, Some(*due_ms)));
    Command::Produce { topic: topic(topic_name), queue: QueueId(queue), frames: frames.collect() }
}

pub fn recall(topic_name: &str, due_ms: u64, index: u64, ordinal: u32) -> Command {
    Command::Recall { topic: topic(topic_name), due_ms, message: MessageRef { index, ordinal } }
}

/// One half message, whose producer is asked after so much time.
pub fn prepare(topic_name: &str, queue: u32, id: &str, check_after_ms: u64) -> Command {
    let frame = frame_of(topic_name, id, None, MessageType::Transaction, None);
    Command::Prepare { topic: topic(topic_name), queue: QueueId(queue), check_after_ms, frames: vec![frame] }
}

pub fn end(topic_name: &str, index: u64, commit: bool) -> Command {
    Command::EndTransaction { topic: topic(topic_name), message: MessageRef { index, ordinal: 0 }, commit }
}

pub fn create_group(name: &str, order: bool, max_deliveries: u32, start: StartPolicy) -> Command {
    Command::CreateGroup { name: group(name), order, max_deliveries, start }
}

pub fn produce(topic_name: &str, queue: u32, ids: &[&str]) -> Command {
    Command::Produce {
        topic: topic(topic_name),
        queue: QueueId(queue),
        frames: ids.iter().map(|id| frame(topic_name, id, None)).collect(),
    }
}

pub fn deliver(
    group_name: &str,
    topic_name: &str,
    queue: u32,
    range: impl IntoIterator<Item = u64>,
    invisible_until_ms: u64,
) -> Command {
    Command::Deliver {
        group: group(group_name),
        topic: topic(topic_name),
        queue: QueueId(queue),
        attempt_id: None,
        invisible_until_ms,
        offsets: offsets(range),
        skip: None,
    }
}

pub fn ack(group_name: &str, topic_name: &str, queue: u32, receipts: &[(u64, u32)]) -> Command {
    Command::Ack {
        group: group(group_name),
        topic: topic(topic_name),
        queue: QueueId(queue),
        receipts: receipts.iter().map(|(offset, seq)| (QueueOffset(*offset), *seq)).collect(),
    }
}

pub fn change(
    group_name: &str,
    topic_name: &str,
    queue: u32,
    offset: u64,
    seq: u32,
    invisible_until_ms: u64,
) -> Command {
    Command::ChangeInvisible {
        group: group(group_name),
        topic: topic(topic_name),
        queue: QueueId(queue),
        offset: QueueOffset(offset),
        seq,
        invisible_until_ms,
    }
}

pub fn granted(outcome: &Outcome) -> &[flotilla_store::Granted] {
    match outcome {
        Outcome::Delivered { granted, .. } => granted,
        other => panic!("not a delivery: {other:?}"),
    }
}

pub fn granted_offsets(outcome: &Outcome) -> Vec<u64> {
    granted(outcome).iter().map(|grant| grant.offset.0).collect()
}
