//! Damaged bytes for the decoders of log entries, checkpoints of the state, part files, and index files.

mod support;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flotilla_fuzz::{Target, set_crc};
use flotilla_message::MessageType;
use flotilla_raft_log::{Disk, LogIndex, StateMachine, read_file};
use flotilla_store::{Entry, StartPolicy, offline};
use support::{Node, create_group, create_topic, create_topic_of, deliver, entry, prepare, produce, produce_delayed};

fn corpus(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz-corpus").join(name)
}

/// The entry's length and checksum, and those of each command as far as their lengths make sense, become right.
fn mend_entry(bytes: &mut [u8]) {
    if bytes.len() < 36 {
        return;
    }
    let all = bytes.len() as u32;
    bytes[12..16].copy_from_slice(&all.to_le_bytes());
    set_crc(bytes, 32, 0..32);
    let mut at = 36;
    while at + 16 <= bytes.len() {
        let number = |place: usize| u32::from_le_bytes(bytes[place..place + 4].try_into().unwrap()) as usize;
        let (command, head) = (number(at + 4), number(at + 8));
        if head < 16 || at + head > bytes.len() {
            return;
        }
        let mut covered = bytes[at..at + 12].to_vec();
        covered.extend_from_slice(&bytes[at + 16..at + head]);
        let len = covered.len();
        covered.extend_from_slice(&[0; 4]);
        set_crc(&mut covered, len, 0..len);
        bytes[at + 12..at + 16].copy_from_slice(&covered[len..]);
        if command == 0 {
            return;
        }
        at = at.saturating_add(command);
    }
}

#[test]
fn entries_of_any_bytes_are_answered_and_applied_alike() {
    let all = [
        create_topic("t", 2),
        create_group("g", true, 3, StartPolicy::Last),
        produce("t", 0, &["a", "b"]),
        deliver("g", "t", 0, 0..2, u64::MAX),
    ];
    let examples = vec![("four-commands", entry(5, &all).to_vec()), ("none", entry(5, &[]).to_vec())];
    let corpus = corpus("log-entry");
    Target { name: "log entry", corpus: &corpus, examples, mend: mend_entry }.run(|bytes| {
        let payload = Bytes::copy_from_slice(bytes);
        let parsed = Entry::parse(&payload);
        // Whatever it is, it has an outcome, and two replicas have the same.
        let mut nodes = [Node::new(), Node::new()];
        let outcomes = nodes.each_mut().map(|node| format!("{:?}", node.apply(payload.clone())));
        assert_eq!(outcomes[0], outcomes[1]);
        assert_eq!(nodes[0].reader.digest(), nodes[1].reader.digest());
        parsed.is_ok()
    });
}

fn mend_state(bytes: &mut [u8]) {
    if bytes.len() < 20 {
        return;
    }
    let body = (bytes.len() - 20) as u64;
    bytes[8..16].copy_from_slice(&body.to_le_bytes());
    let mut covered = bytes[..16].to_vec();
    covered.extend_from_slice(&bytes[20..]);
    let len = covered.len();
    covered.extend_from_slice(&[0; 4]);
    set_crc(&mut covered, len, 0..len);
    bytes[16..20].copy_from_slice(&covered[len..]);
}

#[test]
fn checkpoints_of_any_bytes_are_answered() {
    let mut node = Node::new().with_topic("t", 2).with_group("g", false, 3, StartPolicy::First);
    node.send("t", 0, &["a", "b"]);
    node.run(deliver("g", "t", 0, 0..1, u64::MAX));
    let small = node.machine.checkpoint();
    node.send("t", 1, &["c"]);
    let disk = node.disk.clone();
    let empty = Node::on(disk.clone()).machine.checkpoint();
    let examples = vec![("small", small), ("two-files", node.machine.checkpoint()), ("empty", empty)];
    let corpus = corpus("state");
    Target { name: "state", corpus: &corpus, examples, mend: mend_state }.run(|bytes| {
        let summary = offline::summarize(&*disk, Path::new("store"), bytes);
        let mut node = Node::on(disk.clone());
        let before = node.reader.digest();
        if node.machine.restore(bytes, LogIndex(u64::MAX)).is_err() {
            assert_eq!(node.reader.digest(), before, "a refused checkpoint leaves the state as it was");
        }
        summary.is_ok()
    });
}

fn mend_part(bytes: &mut [u8]) {
    if bytes.len() < 40 {
        return;
    }
    let len = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&len.to_le_bytes());
    let table = u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize;
    set_crc(bytes, 32, 40..40_usize.saturating_add(table));
    set_crc(bytes, 36, 0..36);
}

#[test]
fn part_files_of_any_bytes_are_answered() {
    let mut node = Node::new().with_topic("t", 2).with_group("g", false, 3, StartPolicy::First);
    node.run(create_topic_of("d", MessageType::Delay, 1));
    node.run(create_topic_of("x", MessageType::Transaction, 1));
    node.send("t", 0, &["a", "b"]);
    node.run(deliver("g", "t", 0, 0..1, u64::MAX));
    node.run(produce_delayed("d", 0, &[("later", u64::MAX)]));
    node.run(prepare("x", 0, "half", 5));
    let head = node.machine.checkpoint();
    let name = node.disk.part_files()[0].clone();
    let example = read_file(&*node.disk, &Path::new("store").join(&name)).unwrap().to_vec();
    let corpus = corpus("part-file");
    Target { name: "part file", corpus: &corpus, examples: vec![("all-tables", example)], mend: mend_part }.run(
        |bytes| {
            let put = |disk: &support::MemoryDisk, name: &str| {
                let path = Path::new("store").join(name);
                disk.create(&path, bytes.len() as u64).unwrap().write_at(0, bytes).unwrap();
            };
            let disk = Arc::new(support::MemoryDisk::default());
            let crc = bytes.get(36..40).map_or(0, |crc| u32::from_le_bytes(crc.try_into().unwrap()));
            let index = bytes.get(24..32).map_or(0, |index| u64::from_le_bytes(index.try_into().unwrap()));
            put(&disk, &format!("state-{index:020}-{crc:08x}.part"));
            let rows = offline::part_files(&*disk, Path::new("store")).unwrap();
            // Under the name that a checkpoint relies on: what stands in it is looked at too.
            put(&disk, &name);
            let _ = Node::on(disk.clone()).machine.restore(&head, LogIndex(u64::MAX));
            rows.iter().all(|row| row.damage.is_none())
        },
    );
}

fn mend_index(bytes: &mut [u8]) {
    if bytes.len() < 64 {
        return;
    }
    let len = bytes.len() as u64;
    bytes[16..24].copy_from_slice(&len.to_le_bytes());
    let number = |place: usize| u32::from_le_bytes(bytes[place..place + 4].try_into().unwrap()) as usize;
    let tables = number(12).saturating_mul(32).saturating_add(number(48).saturating_mul(4));
    set_crc(bytes, 52, 64..64_usize.saturating_add(tables));
    set_crc(bytes, 60, 0..60);
}

#[test]
fn index_files_of_any_bytes_are_answered() {
    let mut node = Node::new().with_topic("t", 2);
    for number in 0..150 {
        node.send("t", number % 2, &[&format!("m{number}")]);
    }
    node.roll();
    let name = node.disk.index_files()[0].clone();
    let file = node.disk.open(&Path::new("store").join(&name)).unwrap();
    let example = file.read_at(0, file.len() as usize).unwrap().to_vec();
    let corpus = corpus("index-file");
    Target { name: "index file", corpus: &corpus, examples: vec![("two-queues", example)], mend: mend_index }.run(
        |bytes| {
            let disk = Arc::new(support::MemoryDisk::default());
            let crc = bytes.get(60..64).map_or(0, |crc| u32::from_le_bytes(crc.try_into().unwrap()));
            let path = Path::new("store").join(format!("index-{:020}-{crc:08x}.idx", 0));
            disk.create(&path, bytes.len() as u64).unwrap().write_at(0, bytes).unwrap();
            let rows = offline::index_files(&*disk, Path::new("store"), true).unwrap();
            rows.len() == 1 && rows[0].damage.is_none()
        },
    );
}
