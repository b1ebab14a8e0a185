//! The key index: what it says is all there is, over restarts, damage, removal and retention.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use flotilla_raft_log::OsDisk;
use flotilla_store::key_index::{KeyIndex, KeyText, KeyedMessage};

const ALL: Range<u64> = 0..u64::MAX;
const TOPIC: u64 = 7;

fn open(dir: &Path) -> KeyIndex {
    KeyIndex::open(Arc::new(OsDisk::new()), dir.to_owned()).unwrap()
}

/// Message `number` of a queue has the keys `k-<number / 10>` and `all`, and is stored at its number.
fn message(number: u64) -> KeyedMessage {
    let hashes =
        vec![KeyText::Key(&format!("k-{}", number / 10)).hash(TOPIC), KeyText::Id(&format!("id-{number}")).hash(TOPIC)];
    KeyedMessage { stored_at_ms: number, hashes }
}

/// Fills queue 0 in chunks from where it is not indexed.
fn fill(index: &KeyIndex, count: u64) -> u64 {
    let mut looked_at = 0;
    while let Some(gap) = index.gap(TOPIC, 0, 0..count) {
        let end = gap.end.min(gap.start + 1_000);
        let messages: Vec<_> = (gap.start..end).map(message).collect();
        index.add(TOPIC, 0, gap.start, &messages);
        index.spill().unwrap();
        looked_at += end - gap.start;
    }
    looked_at
}

/// The offsets that a lookup would read, and whether that is a certain few.
fn read_for(index: &KeyIndex, text: KeyText<'_>, stored_ms: Range<u64>, count: u64) -> Vec<u64> {
    let view = index.view(TOPIC, text, &stored_ms).expect("few enough");
    let (mut at, mut offsets) = (0, Vec::new());
    loop {
        at = view.next(0, at);
        if at >= count {
            return offsets;
        }
        offsets.push(at);
        at += 1;
    }
}

fn files(dir: &Path) -> Vec<std::path::PathBuf> {
    let mut files: Vec<_> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

const COUNT: u64 = 300_000;

#[test]
fn a_key_costs_the_reading_of_its_own_messages() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    assert_eq!(fill(&index, COUNT), COUNT);
    assert_eq!(index.file_count(), 2, "the rest is in memory");
    for number in [0, 1_234, 13_107, 13_108, 29_999] {
        let expected: Vec<u64> = (number * 10..number * 10 + 10).collect();
        assert_eq!(read_for(&index, KeyText::Key(&format!("k-{number}")), ALL, COUNT), expected);
        let within = number * 10 + 3..number * 10 + 5;
        assert_eq!(
            read_for(&index, KeyText::Key(&format!("k-{number}")), within.clone(), COUNT),
            within.collect::<Vec<_>>()
        );
    }
    assert_eq!(read_for(&index, KeyText::Id("id-123456"), ALL, COUNT), [123_456]);
    assert!(read_for(&index, KeyText::Key("id-123456"), ALL, COUNT).is_empty(), "an id is no key");
    assert!(read_for(&index, KeyText::Key("k-30000"), ALL, COUNT).is_empty());
    // What is not indexed has to be read.
    assert_eq!(read_for(&index, KeyText::Key("k-5"), ALL, COUNT + 3)[10..], [COUNT, COUNT + 1, COUNT + 2]);
}

#[test]
fn a_restart_reads_only_what_was_in_memory_again() {
    let dir = tempfile::tempdir().unwrap();
    fill(&open(dir.path()), COUNT);
    let index = open(dir.path());
    let again = fill(&index, COUNT);
    assert!(again < 132_000, "{again}");
    assert_eq!(read_for(&index, KeyText::Id("id-7"), ALL, COUNT), [7]);
    assert_eq!(read_for(&index, KeyText::Id("id-299999"), ALL, COUNT), [299_999]);
}

#[test]
fn a_missing_file_is_made_again_and_nothing_is_missed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    fill(&open(dir.path()), COUNT);
    std::fs::remove_file(&files(dir.path())[0]).unwrap();
    let index = open(dir.path());
    let meanwhile = read_for(&index, KeyText::Id("id-7"), ALL, COUNT);
    assert!(meanwhile.contains(&7));
    fill(&index, COUNT);
    assert_eq!(read_for(&index, KeyText::Id("id-7"), ALL, COUNT), [7]);
}

#[test]
fn damage_anywhere_is_noticed_and_hides_no_message() {
    let dir = tempfile::tempdir().unwrap();
    fill(&open(dir.path()), COUNT);
    let path = files(dir.path())[0].clone();
    let whole = std::fs::read(&path).unwrap();
    let places = [0, 9, 20, 30, 50, 61, 70, 100, 5_000, whole.len() / 2, whole.len() - 1];
    let wanted: BTreeSet<u64> = (0..10).map(|number| number * 13_007).collect();
    for place in places {
        let mut bytes = whole.clone();
        bytes[place] ^= 0x40;
        std::fs::write(&path, &bytes).unwrap();
        let index = open(dir.path());
        for number in &wanted {
            let id = format!("id-{number}");
            assert!(read_for(&index, KeyText::Id(&id), ALL, COUNT).contains(number), "byte {place}");
        }
    }
    for cut in [0, 63, 64, whole.len() - 1] {
        std::fs::write(&path, &whole[..cut]).unwrap();
        let index = open(dir.path());
        assert!(read_for(&index, KeyText::Id("id-7"), ALL, COUNT).contains(&7), "cut at {cut}");
        assert!(!path.exists(), "it is removed, to be made again");
    }
}

#[test]
fn files_go_with_what_they_speak_of() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    fill(&index, COUNT);
    let first_of = |first: u64| move |topic, queue| (topic == TOPIC && queue == 0).then_some(first);
    assert_eq!(index.sweep(first_of(0)), 0);
    assert_eq!(index.sweep(first_of(140_000)), 1);
    assert_eq!(read_for(&index, KeyText::Id("id-200000"), 140_000..COUNT, COUNT).last(), Some(&200_000));
    assert_eq!(index.sweep(|_, _| None), 1, "the topic is gone");
    assert!(files(dir.path()).is_empty());
}

#[test]
fn a_text_that_nearly_all_have_is_not_looked_up() {
    let dir = tempfile::tempdir().unwrap();
    let index = open(dir.path());
    let hash = KeyText::Key("all").hash(TOPIC);
    let messages: Vec<_> = (0..150_000).map(|at| KeyedMessage { stored_at_ms: at, hashes: vec![hash] }).collect();
    index.add(TOPIC, 0, 0, &messages);
    index.spill().unwrap();
    assert!(index.view(TOPIC, KeyText::Key("all"), &ALL).is_none());
    assert!(index.view(TOPIC, KeyText::Key("all"), &(0..50_000)).is_some());
}
