//! Slots leave memory for index files, are read back equal, and damage is found.

use std::path::PathBuf;
use std::sync::Arc;

use crate::support::{Node, START_MS, deliver, entry, frame, granted_offsets, group, produce, topic};
use flotilla_message::{QueueId, QueueOffset};
use flotilla_raft_log::{Disk, LogIndex, StateMachine, read_file};
use flotilla_store::{Command, Outcome, Rejection, StartPolicy, StoreError, frame_in, offline};

/// Three segments: 300 messages in queue 0 of `a` in each, some in others.
fn filled() -> Node {
    filled_on(Node::new())
}

fn filled_on(node: Node) -> Node {
    let mut node = node.with_topic("a", 2).with_topic("b", 1);
    for segment in 0..3 {
        for i in 0..300 {
            node.now_ms += 10;
            node.send("a", 0, &[&format!("a{segment}-{i}")]);
            if i % 100 == 0 && segment != 1 {
                node.send("a", 1, &[&format!("x{segment}-{i}")]);
                node.send("b", 0, &[&format!("b{segment}-{i}"), &format!("c{segment}-{i}")]);
            }
        }
        if segment < 2 {
            node.roll();
        }
    }
    node
}

#[test]
fn spilled_slots_read_back_as_they_were() {
    let node = filled();
    let mut unspilled = Node::new().with_topic("a", 2).with_topic("b", 1);
    for segment in 0..3 {
        for i in 0..300 {
            unspilled.now_ms += 10;
            unspilled.send("a", 0, &[&format!("a{segment}-{i}")]);
            if i % 100 == 0 && segment != 1 {
                unspilled.send("a", 1, &[&format!("x{segment}-{i}")]);
                unspilled.send("b", 0, &[&format!("b{segment}-{i}"), &format!("c{segment}-{i}")]);
            }
        }
    }
    assert_eq!(node.disk.index_files().len(), 2, "{:?}", node.disk.index_files());
    assert_eq!(node.reader.verify_index_files().unwrap(), 2);
    assert_eq!(node.reader.digest(), unspilled.reader.digest());
    for (name, queue) in [("a", 0), ("a", 1), ("b", 0)] {
        let read = |node: &Node, from: u64, count| {
            node.reader.slots(&topic(name), QueueId(queue), QueueOffset(from), count).unwrap()
        };
        let all = read(&unspilled, 0, usize::MAX);
        assert_eq!(read(&node, 0, usize::MAX), all);
        for from in [0, 1, 127, 128, 299, 300, 301, 555, 600, 899, 900, 901, u64::MAX] {
            for count in [0, 1, 2, 129, 400] {
                assert_eq!(read(&node, from, count), read(&unspilled, from, count), "{name} {queue} {from} {count}");
            }
        }
        for at_ms in (START_MS..START_MS + 9200).step_by(333) {
            let found = node.reader.offset_at(&topic(name), QueueId(queue), at_ms).unwrap().unwrap();
            let expected = all.iter().find(|(_, slot)| slot.stored_at_ms >= at_ms);
            assert_eq!(found.0, expected.map_or(all.len() as u64, |(offset, _)| offset.0));
        }
    }
}

#[test]
fn a_frame_is_found_by_its_slot() {
    let mut node = Node::new().with_topic("t", 1);
    let payload = entry(5, &[produce("t", 0, &["a", "b"]), produce("t", 0, &["c"])]);
    node.apply(payload.clone());
    let slots = node.reader.slots(&topic("t"), QueueId(0), QueueOffset(0), 9).unwrap();
    let ids: Vec<_> = slots.iter().map(|(_, slot)| frame_in(&payload, slot).unwrap().id().to_owned()).collect();
    assert_eq!(ids, ["a", "b", "c"]);
    let ordinals: Vec<_> = slots.iter().map(|(_, slot)| (slot.message.index, slot.message.ordinal)).collect();
    assert_eq!(ordinals, [(2, 0), (2, 1), (2, 2)]);
    assert_eq!(frame_in(&payload, &slots[1].1).unwrap().into_frame(), frame("t", "b", None));
    assert!(frame_in(&payload.slice(..60), &slots[2].1).is_err());
    let mut wrong = slots[1].1;
    wrong.position += 1;
    assert!(frame_in(&payload, &wrong).is_err());
}

#[test]
fn a_restart_finds_the_files_again_and_writes_them_again() {
    let mut node = filled();
    let before = node.machine.checkpoint();
    let before_index = node.index;
    let mut restarted = node.restarted();
    assert_eq!(restarted.reader.digest(), node.reader.digest());
    let all = |node: &Node| node.reader.slots(&topic("a"), QueueId(0), QueueOffset(0), usize::MAX).unwrap();
    assert_eq!(all(&restarted), all(&node));

    // Both go on, spill, and agree; then the older checkpoint is restored over the newer file.
    for one in [&mut node, &mut restarted] {
        one.send("a", 0, &["later"]);
        one.roll();
        one.send("b", 0, &["latest"]);
    }
    assert_eq!(all(&restarted), all(&node));
    assert_eq!(restarted.reader.digest(), node.reader.digest());
    let mut older = Node::on(node.disk.clone());
    older.machine.restore(&before, LogIndex(before_index)).unwrap();
    (older.index, older.now_ms) = (before_index, node.now_ms);
    older.send("a", 0, &["later"]);
    older.roll();
    older.send("b", 0, &["latest"]);
    assert_eq!(all(&older), all(&node));
    assert_eq!(older.reader.digest(), node.reader.digest());
}

#[test]
fn a_dropped_topic_leaves_no_slots_behind() {
    let mut node = filled();
    node.run(flotilla_store::Command::DeleteTopic { name: topic("a") });
    node.roll();
    let node = node.with_topic("a", 2);
    assert!(node.reader.slots(&topic("a"), QueueId(0), QueueOffset(0), 10).unwrap().is_empty());
    assert_eq!(node.reader.queue_bounds(&topic("a"), QueueId(0)), Some((QueueOffset(0), QueueOffset(0))));
    let restarted = node.restarted();
    assert_eq!(restarted.reader.digest(), node.reader.digest());
    assert_eq!(restarted.reader.slots(&topic("b"), QueueId(0), QueueOffset(0), 100).unwrap().len(), 12);
}

#[test]
fn damage_is_reported_and_never_served() {
    let node = filled();
    let first = node.disk.index_files()[0].clone();
    node.disk.damage(&first, 1);
    let read = |from, count| node.reader.slots(&topic("b"), QueueId(0), QueueOffset(from), count);
    let error = read(0, 1).unwrap_err();
    assert!(matches!(error, StoreError::DamagedIndex { .. }), "{error}");
    assert!(error.to_string().contains(&first) && error.to_string().contains("block 2"), "{error}");
    assert!(node.reader.verify_index_files().is_err());
    assert_eq!(read(6, 6).unwrap().len(), 6, "other segments are still served");
    assert!(node.reader.slots(&topic("a"), QueueId(0), QueueOffset(0), 128).is_ok(), "other blocks too");
}

#[test]
fn a_node_that_meets_damage_while_applying_stops_and_its_checkpoint_is_refused() {
    let mut node = filled().with_group("g", false, 3, StartPolicy::First);
    node.disk.damage(&node.disk.index_files()[0].clone(), 1);
    let healthy = node.reader.digest();
    let outcome = node.run(deliver("g", "b", 0, 0..2, u64::MAX));
    assert!(matches!(outcome, Outcome::Rejected(Rejection::StoreFailed { .. })), "{outcome:?}");
    assert!(node.listener.failure.lock().unwrap().as_ref().unwrap().contains("index-"));
    assert!(node.reader.failure().is_some());
    let outcome = node.send("a", 0, &["after"]);
    assert!(matches!(outcome, Outcome::Rejected(Rejection::StoreFailed { .. })));
    assert_eq!(node.reader.applied(), healthy.applied);
    assert!(node.machine.segment_started(LogIndex(node.index + 1)).is_err());

    let checkpoint = node.machine.checkpoint();
    let mut other = Node::on(node.disk.clone());
    let error = other.machine.restore(&checkpoint, LogIndex(node.index)).unwrap_err();
    assert!(error.to_string().contains("after the store had failed"), "{error}");
}

#[test]
fn a_missing_or_foreign_or_cut_index_file_is_refused_at_restore() {
    let node = filled();
    let checkpoint = node.machine.checkpoint();
    let restore = |disk: Arc<crate::support::MemoryDisk>, bytes: &[u8], applied| {
        Node::on(disk).machine.restore(bytes, LogIndex(applied)).map_err(|error| error.to_string())
    };
    assert_eq!(restore(node.disk.clone(), &checkpoint, node.index), Ok(()));
    assert!(restore(node.disk.clone(), &checkpoint, node.index - 1).unwrap_err().contains("not of"));
    assert!(restore(Arc::default(), &checkpoint, node.index).unwrap_err().contains("relies on part file"));

    let mut other = Node::new().with_topic("a", 2).with_topic("b", 1);
    other.send("a", 0, &["other"]);
    other.roll();
    for file in node.machine.side_files(&checkpoint).unwrap().iter().filter(|file| file.name.ends_with(".part")) {
        let bytes = read_file(&*node.disk, &file.path).unwrap();
        other.disk.create(&file.path, bytes.len() as u64).unwrap().write_at(0, &bytes).unwrap();
    }
    assert!(restore(other.disk.clone(), &checkpoint, node.index).unwrap_err().contains("relies on an index file"));
    // Even under the right name.
    let (right, wrong) = (node.disk.index_files()[0].clone(), other.disk.index_files()[0].clone());
    other.disk.rename(&PathBuf::from("store").join(wrong), &PathBuf::from("store").join(right)).unwrap();
    assert!(restore(other.disk, &checkpoint, node.index).unwrap_err().contains("is another one"));

    for at in (0..checkpoint.len()).step_by(97) {
        let mut damaged = checkpoint.clone();
        damaged[at] ^= 1;
        assert!(restore(node.disk.clone(), &damaged, node.index).is_err(), "byte {at}");
        assert!(restore(node.disk.clone(), &checkpoint[..at], node.index).is_err(), "cut at {at}");
    }

    // Header and tables are checked at once; the slots, block by block, when they are read.
    let name = node.disk.index_files()[1].clone();
    for at in 0..64 + 32 + 3 * 4 {
        let from_end = node.disk.len_of(&name) - at;
        node.disk.damage(&name, from_end);
        let error = restore(node.disk.clone(), &checkpoint, node.index).unwrap_err();
        assert!(error.contains(&name), "byte {at}: {error}");
        node.disk.damage(&name, from_end);
    }
    node.disk.forget(&name);
    assert!(restore(node.disk.clone(), &checkpoint, node.index).unwrap_err().contains(&name));
}

#[test]
fn backlog_is_delivered_from_index_files() {
    let mut node = filled().with_group("g", false, 3, StartPolicy::TimestampMs(START_MS + 2_000));
    let first = node.reader.progress(&group("g"), &topic("a"), QueueId(0)).unwrap().unwrap();
    assert!(!first.is_pinned && first.next_offset.0 == 199, "{first:?}");
    let outcome = node.run(deliver("g", "a", 0, 199..320, u64::MAX));
    assert_eq!(granted_offsets(&outcome), (199..320).collect::<Vec<_>>());
}

/// Damage in a block is not seen when a checkpoint is restored, only when the block is read. So the node that meets it takes
/// the file away: its next life cannot restore what relies on it, applies the log again, and has the file again.
#[test]
fn a_damaged_index_file_is_made_again_from_the_log() {
    let mut node = filled().with_group("g", false, 3, StartPolicy::First);
    let checkpoint = node.machine.checkpoint();
    let index = node.index;
    let all = |node: &Node| node.reader.slots(&topic("b"), QueueId(0), QueueOffset(0), usize::MAX).unwrap();
    let slots = all(&node);
    let (name, before) = (node.disk.index_files()[0].clone(), node.disk.len_of(&node.disk.index_files()[0]));
    node.disk.damage(&name, 1);
    assert_eq!(Node::on(node.disk.clone()).machine.restore(&checkpoint, LogIndex(index)), Ok(()), "not seen yet");
    let outcome = node.run(deliver("g", "b", 0, 0..2, u64::MAX));
    assert!(matches!(outcome, Outcome::Rejected(Rejection::StoreFailed { .. })), "{outcome:?}");
    let error = Node::on(node.disk.clone()).machine.restore(&checkpoint, LogIndex(index)).unwrap_err();
    assert!(error.to_string().contains(&name), "{error}");
    let rows = offline::index_files(&*node.disk, std::path::Path::new("store"), true).unwrap();
    assert!(rows.iter().all(|row| row.damage.is_none()), "{rows:?}");
    assert_eq!(offline::set_aside(&*node.disk, std::path::Path::new("store")).unwrap(), [format!("{name}.damaged")]);

    // What the log does then: everything again, into the same directory.
    let again = filled_on(Node::on(node.disk.clone()));
    assert_eq!(all(&again), slots);
    assert_eq!(again.disk.len_of(&name), before);
    assert_eq!(again.reader.verify_index_files().unwrap(), 2);
}

#[test]
fn tools_see_what_a_checkpoint_holds_and_every_damaged_byte_of_an_index_file() {
    let node = filled();
    let dir = std::path::Path::new("store");
    let summary = offline::summarize(&*node.disk, dir, &node.machine.checkpoint()).unwrap();
    assert_eq!((summary.topics, summary.queues, summary.groups), (2, 3, 0));
    assert_eq!((summary.applied, summary.slots, summary.index_files.len()), (node.index, 900 + 6 + 12, 2));
    assert!(offline::summarize(&*node.disk, dir, b"nonsense").is_err());
    let look = || offline::index_files(&*node.disk, dir, true).unwrap();
    let sound = look();
    let marks: Vec<_> = sound.iter().filter_map(|row| row.mark).collect();
    assert_eq!(marks, summary.index_files);
    assert!(sound.iter().all(|row| row.damage.is_none() && row.slots >= 300 && row.queues > 0), "{sound:?}");
    for name in node.disk.index_files() {
        for from_end in 1..=node.disk.len_of(&name) {
            node.disk.damage(&name, from_end);
            let damaged: Vec<_> = look().into_iter().filter(|row| row.damage.is_some()).map(|row| row.file).collect();
            assert_eq!(damaged, std::slice::from_ref(&name), "{from_end} bytes before the end");
            node.disk.damage(&name, from_end);
        }
    }
}

#[test]
fn an_index_file_that_meets_a_full_disk_is_written_with_the_next_one() {
    let mut node = Node::new().with_topic("a", 1);
    node.send("a", 0, &["first"]);
    node.disk.set_full(true);
    node.roll();
    node.send("a", 0, &["second"]);
    let all = |node: &Node| node.reader.slots(&topic("a"), QueueId(0), QueueOffset(0), usize::MAX).unwrap();
    let slots = all(&node);
    assert_eq!(
        (slots.len(), node.disk.index_files().len(), node.reader.failure()),
        (2, 0, None),
        "it goes on from memory"
    );
    node.disk.set_full(false);
    assert_eq!(all(&node.restarted()), slots, "a checkpoint holds what no file does");
    node.roll();
    node.send("a", 0, &["third"]);
    assert_eq!(node.disk.index_files().len(), 1);
    assert_eq!(all(&node)[..2], slots[..]);
    assert_eq!(all(&node.restarted())[..2], slots[..]);
}

/// A time is found the same whether its slots are in files, in memory or trimmed away, and is where a search one by one has it.
#[test]
fn a_time_is_found_across_index_files_and_memory() {
    let mut node = Node::new().with_topic("t", 1);
    let mut stamps = Vec::new();
    for id in 0..700_u64 {
        // Now and then several of one millisecond, and a file that has few.
        node.now_ms += id % 3;
        node.send("t", 0, &[&format!("m-{id}")]);
        stamps.push(node.now_ms);
        if [3, 4, 200, 350, 600].contains(&id) {
            node.roll();
        }
    }
    let by_hand = |from: usize, at_ms: u64| {
        let found = stamps[from..].iter().position(|stamp| *stamp >= at_ms);
        found.map_or(stamps.len(), |place| from + place) as u64
    };
    let check = |node: &Node, from: usize| {
        for at_ms in [0, u64::MAX].into_iter().chain(stamps[0] - 1..=stamps[699] + 2) {
            let found = node.reader.offset_at(&topic("t"), QueueId(0), at_ms).unwrap().unwrap();
            assert_eq!(found.0, by_hand(from, at_ms), "{at_ms} with {from} gone");
        }
    };
    check(&node, 0);
    check(&node.restarted(), 0);
    let uid = node.reader.topic(&topic("t")).unwrap().uid;
    node.run(Command::TrimTopic { name: topic("t"), uid, before_ms: stamps[260] });
    check(&node, by_hand(0, stamps[260]) as usize);
    node.roll();
    check(&node, by_hand(0, stamps[260]) as usize);
}
