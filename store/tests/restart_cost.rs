//! What a start costs after a kill -9: a process of its own writes to many queues and is killed, and its directory is opened
//! again.
//!
//! The usual size is small. For another one:
//!
//! ```text
//! FLOTILLA_RESTART_BYTES=20000000000 FLOTILLA_RESTART_QUEUES=20000 FLOTILLA_RESTART_SEGMENT_BYTES=1073741824 \
//! FLOTILLA_RESTART_DIR=/some/empty/folder FLOTILLA_RESTART_COLD=1 \
//!     cargo test --profile ci -p flotilla-store --test restart_cost -- --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_message::{
    BodyEncoding, GroupName, Message, MessageId, MessageType, Permission, QueueId, StoredFrame, TopicName,
};
use flotilla_raft_log::{
    AppendChannel, LogConfig, NodeId, OsDisk, PeerCallKind, Probe, ReplicatedLog, Transport, TransportError,
};
use flotilla_runtime::{BoxFuture, Runtime};
use flotilla_store::{Command, EntryBuilder, NoObserver, Outcome, StartPolicy, StoreReader};
use futures::future::join_all;

/// The design's limit for 20 GB.
const LIMIT: Duration = Duration::from_secs(60);
const QUEUES_PER_TOPIC: u32 = 8;
const BODY_BYTES: usize = 1024;
const MESSAGES_PER_ENTRY: u64 = 256;
const ENTRIES_AT_ONCE: u64 = 8;
const GROUP: &str = "readers";

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

fn log_bytes() -> u64 {
    number("FLOTILLA_RESTART_BYTES", 96 << 20)
}

fn topic_count() -> u32 {
    number("FLOTILLA_RESTART_QUEUES", 2000) as u32 / QUEUES_PER_TOPIC
}

struct Nobody;

impl Transport for Nobody {
    fn call(
        &self,
        _target: NodeId,
        _kind: PeerCallKind,
        _body: Bytes,
        _timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        Box::pin(async { Err(TransportError::Unreachable("there is nobody".to_owned())) })
    }

    fn open_append(&self, _target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        Box::pin(async { Err(TransportError::Unreachable("there is nobody".to_owned())) })
    }

    fn probe(&self, _target: NodeId, _timeout: Duration) -> BoxFuture<'static, Probe> {
        Box::pin(async { Probe::Refused })
    }
}

type Log = ReplicatedLog<Vec<Outcome>>;

/// A group of one, ready to write.
async fn open(dir: &Path) -> (Log, StoreReader) {
    let mut config = LogConfig::new(dir.join("log"), "cluster", "group", NodeId(1), [NodeId(1)]);
    config.segment_bytes = number("FLOTILLA_RESTART_SEGMENT_BYTES", 16 << 20);
    let disk = Arc::new(OsDisk);
    let (machine, reader) =
        flotilla_store::open(disk.clone(), dir.join("store"), Arc::new(NoObserver)).expect("a store");
    let log = Log::open(config, Runtime::tokio(), disk, Arc::new(Nobody), machine).await.expect("the log opens");
    loop {
        let status = log.status();
        if status.can_write {
            return (log, reader);
        }
        log.status_changed(&status).await;
    }
}

fn topic(number: u32) -> TopicName {
    TopicName::try_from(format!("topic-{number:05}")).expect("a name")
}

fn frame(topic: &TopicName, number: u64, body: &Bytes) -> StoredFrame {
    let message = Message {
        topic: topic.clone(),
        message_type: MessageType::Normal,
        id: MessageId::try_from(format!("{number:032X}")).expect("an id"),
        tag: Some("tag".to_owned()),
        keys: Vec::new(),
        group: None,
        properties: BTreeMap::new(),
        body: body.clone(),
        body_encoding: BodyEncoding::Identity,
        born_at_ms: 1,
        born_host: "host".to_owned(),
        trace_context: None,
        delivery_at_ms: None,
    };
    message.encode().expect("a message within its limits")
}

async fn propose(log: &Log, commands: &[Command]) -> Vec<Outcome> {
    let mut builder = EntryBuilder::new(Runtime::tokio().wall_ms(), 1);
    commands.iter().for_each(|command| builder.push(command));
    let outcomes = log.propose(builder.finish(), None).await.expect("it is stored").output;
    let refused = outcomes.iter().find(|outcome| matches!(outcome, Outcome::Rejected(_)));
    assert!(refused.is_none(), "{refused:?}");
    outcomes
}

/// Makes the topics, and a group that has met each of their queues.
async fn found(log: &Log) {
    let name = GroupName::try_from(GROUP).expect("a name");
    let group =
        Command::CreateGroup { name: name.clone(), order: false, max_deliveries: 16, start: StartPolicy::First };
    propose(log, &[group]).await;
    for first in (0..topic_count()).step_by(100) {
        let topics = (first..topic_count().min(first + 100)).map(topic);
        let commands: Vec<Command> = topics
            .flat_map(|topic| {
                let made = Command::CreateTopic {
                    name: topic.clone(),
                    message_type: MessageType::Normal,
                    queue_count: QUEUES_PER_TOPIC,
                    permission: Permission::ReadWrite,
                };
                [made, Command::Touch { group: name.clone(), topic }]
            })
            .collect();
        propose(log, &commands).await;
    }
}

/// Writes until it is killed; tells in a file once the log is as long as it should be.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "it is run, and killed, by the other test"]
async fn victim() {
    let dir = PathBuf::from(std::env::var_os("FLOTILLA_RESTART_VICTIM").expect("where to write"));
    let (log, _) = open(&dir).await;
    found(&log).await;
    let body = Bytes::from(vec![7_u8; BODY_BYTES]);
    let queues = u64::from(topic_count() * QUEUES_PER_TOPIC);
    let (mut sent, mut payload_bytes, mut has_told) = (0_u64, 0_u64, false);
    let runtime = Runtime::tokio();
    let began = runtime.now();
    loop {
        let entries = (0..ENTRIES_AT_ONCE).map(|entry| {
            let first = sent + entry * MESSAGES_PER_ENTRY;
            let commands: Vec<Command> = (first..first + MESSAGES_PER_ENTRY)
                .map(|number| {
                    let queue = (number % queues) as u32;
                    let topic = topic(queue / QUEUES_PER_TOPIC);
                    let frames = vec![frame(&topic, number, &body)];
                    Command::Produce { topic, queue: QueueId(queue % QUEUES_PER_TOPIC), frames }
                })
                .collect();
            let bytes: usize = commands.iter().map(flotilla_store::command_bytes).sum();
            payload_bytes += bytes as u64;
            commands
        });
        let entries: Vec<Vec<Command>> = entries.collect();
        join_all(entries.iter().map(|commands| propose(&log, commands))).await;
        sent += ENTRIES_AT_ONCE * MESSAGES_PER_ENTRY;
        if payload_bytes >= log_bytes() && !has_told {
            has_told = true;
            let text = format!(
                "{sent} {} {}",
                runtime.now().saturating_since(began).as_millis(),
                log.checkpoint_pause_max().as_micros()
            );
            std::fs::write(dir.join("acked.tmp"), text).expect("a small file");
            std::fs::rename(dir.join("acked.tmp"), dir.join("acked")).expect("another name for it");
        }
    }
}

/// Takes the directory's files out of the page cache.
fn evict(dir: &Path) {
    for entry in std::fs::read_dir(dir).expect("the directory can be listed") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            evict(&path);
        } else {
            let of = format!("of={}", path.display());
            let args = [of.as_str(), "oflag=nocache", "conv=notrunc,fdatasync", "count=0", "if=/dev/null"];
            Process::new("dd").args(args).stderr(Stdio::null()).status().expect("dd runs");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_replica_with_many_queues_is_back_within_its_limit() {
    let runtime = Runtime::tokio();
    let temporary = tempfile::tempdir().expect("a folder");
    let dir = std::env::var_os("FLOTILLA_RESTART_DIR").map_or(temporary.path().to_owned(), PathBuf::from);
    let mut child = Process::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "victim", "--ignored", "--nocapture"])
        .env("FLOTILLA_RESTART_VICTIM", &dir)
        .stdout(Stdio::null())
        .spawn()
        .expect("the victim starts");
    let acked = loop {
        if let Ok(text) = std::fs::read_to_string(dir.join("acked")) {
            break text;
        }
        assert!(child.try_wait().expect("a child").is_none(), "the victim ended by itself");
        runtime.sleep(Duration::from_millis(20)).await;
    };
    // Somewhere in the middle of what it does next.
    runtime.sleep(Duration::from_millis(300)).await;
    child.kill().expect("it is killed");
    child.wait().expect("it is gone");
    let numbers: Vec<u64> = acked.split(' ').map(|text| text.parse().expect("a number")).collect();
    let [sent, fill_ms, pause_us] = numbers[..] else { panic!("{acked}") };
    if std::env::var_os("FLOTILLA_RESTART_COLD").is_some() {
        evict(&dir);
    }

    let began = runtime.now();
    let (log, reader) = open(&dir).await;
    let took = runtime.now().saturating_since(began);
    let extent = log.extent();
    let file_bytes: u64 = extent.segments.iter().map(|segment| segment.bytes).sum();
    println!(
        "{sent} messages in {} queues, {} segments, {file_bytes} bytes of log",
        topic_count() * QUEUES_PER_TOPIC,
        extent.segments.len()
    );
    println!("written in {fill_ms} ms; apply stood still for {pause_us} us at most for a checkpoint");
    for phase in log.recovery().phases {
        println!(
            "  {:<10} {:>8} ms {:>6} files {:>12} bytes {:>9} entries",
            phase.name,
            phase.took.as_millis(),
            phase.files,
            phase.bytes,
            phase.entries
        );
    }
    println!("ready to write after {} ms", took.as_millis());
    let mut found = 0;
    for topic in (0..topic_count()).map(topic) {
        for queue in 0..QUEUES_PER_TOPIC {
            let (min, max) = reader.queue_bounds(&topic, QueueId(queue)).expect("the queue is there");
            assert_eq!(min.0, 0);
            found += max.0;
        }
    }
    assert!(found >= sent, "{found} messages are there, {sent} were acknowledged");
    assert!(log.recovery().checkpoint.is_some(), "a checkpoint counts");
    assert!(took < LIMIT, "{took:?}");
    log.shutdown(Duration::from_secs(10)).await;
}
