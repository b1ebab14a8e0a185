//! Checkpoints write what changed, in files that they share, and whatever fails between costs no more than one of them.

#![allow(clippy::disallowed_methods, reason = "a test of costs needs a real clock")]

use std::path::Path;
use std::time::Instant;

use crate::support::{
    MemoryDisk, Node, ack, create_group, create_topic, create_topic_of, deliver, produce, produce_delayed,
};
use flotilla_message::MessageType;
use flotilla_raft_log::{LogIndex, StateMachine};
use flotilla_store::{Command, StartPolicy, offline};

/// A state in which every table has rows.
fn filled() -> Node {
    let mut node = Node::new().with_topic("t", 4).with_group("g", false, 3, StartPolicy::First);
    node.run(create_topic_of("d", MessageType::Delay, 1));
    node.run(create_topic_of("x", MessageType::Transaction, 1));
    for number in 0..40 {
        change(&mut node, number);
    }
    node
}

fn change(node: &mut Node, number: u32) {
    node.now_ms += 100;
    node.send("t", number % 4, &[&format!("m{number}")]);
    node.run(deliver("g", "t", number % 4, [u64::from(number / 4)], node.now_ms + 1000));
    node.run(produce_delayed("d", 0, &[(&format!("d{number}"), u64::from(number * 7919 % 1000))]));
    node.run(crate::support::prepare("x", 0, &format!("x{number}"), 500));
    if number.is_multiple_of(3) {
        node.run(Command::DeliverDue { until_ms: u64::from(number), count: 2 });
        node.run(crate::support::end("x", node.index - 1, true));
    }
}

fn restored(disk: &std::sync::Arc<MemoryDisk>, checkpoint: &[u8], index: u64) -> Result<Node, String> {
    let mut node = Node::on(disk.clone());
    node.machine.restore(checkpoint, LogIndex(index)).map_err(|error| error.to_string())?;
    (node.index, node.now_ms) = (index, crate::support::START_MS + 1_000_000);
    Ok(node)
}

fn bytes_of(node: &Node) -> usize {
    node.disk.part_files().iter().map(|name| node.disk.len_of(name)).sum()
}

#[test]
fn the_disk_may_go_at_any_step_of_a_checkpoint() {
    // First one that holds everything, then one of what changed.
    for before in 0..2 {
        for steps in 0.. {
            let mut node = filled();
            let mut good = None;
            for number in 0..before {
                change(&mut node, 100 + number);
                good = Some((node.machine.checkpoint(), node.index, node.reader.digest()));
            }
            change(&mut node, 200);
            node.disk.set_steps(Some(steps));
            let refused = node.machine.checkpoint_later()().is_err();
            node.disk.set_steps(None);
            if !refused {
                assert!(steps >= 5, "a file is made, written, synced and named, and the name made durable");
                break;
            }
            // The process lives on, and the next checkpoint lacks nothing.
            change(&mut node, 201);
            let next = (node.machine.checkpoint(), node.index, node.reader.digest());
            for (checkpoint, index, digest) in good.iter().chain([&next]) {
                let again = restored(&node.disk, checkpoint, *index).unwrap();
                assert_eq!(again.reader.digest(), *digest, "step {steps}");
            }
            // Or it dies, and its next life knows the last good one.
            let mut node = filled();
            let Some((checkpoint, index, _)) = good else { continue };
            change(&mut node, 100);
            assert_eq!(node.machine.checkpoint(), checkpoint, "the same state, the same bytes");
            change(&mut node, 200);
            node.disk.set_steps(Some(steps));
            assert!(node.machine.checkpoint_later()().is_err());
            node.disk.set_steps(None);
            node.disk.crash();
            let mut again = restored(&node.disk, &checkpoint, index).unwrap();
            assert!(node.disk.names().iter().all(|name| !name.ends_with(".tmp")), "nothing is left over");
            change(&mut again, 200);
            let next = (again.machine.checkpoint(), again.index, again.reader.digest());
            again.machine.checkpoints_kept(&[LogIndex(index), LogIndex(again.index)]);
            let (checkpoint_next, index_next, digest) = &next;
            assert_eq!(restored(&node.disk, checkpoint_next, *index_next).unwrap().reader.digest(), *digest);
            assert!(restored(&node.disk, &checkpoint, index).is_ok());
        }
    }
}

#[test]
fn every_damaged_byte_of_a_part_file_is_found_and_other_checkpoints_restore() {
    let mut node = filled();
    let old = (node.machine.checkpoint(), node.index);
    change(&mut node, 300);
    let new = (node.machine.checkpoint(), node.index);
    let dir = Path::new("store");
    let summary = offline::summarize(&*node.disk, dir, &new.0).unwrap();
    assert_eq!(summary.part_files, node.disk.part_files(), "both are needed");
    let name = summary.part_files[1].clone();
    for from_end in 1..=node.disk.len_of(&name) {
        node.disk.damage(&name, from_end);
        let rows = offline::part_files(&*node.disk, dir).unwrap();
        let damaged: Vec<_> = rows.iter().filter(|row| row.damage.is_some()).map(|row| &row.file).collect();
        assert_eq!(damaged, [&name], "byte {from_end} from the end");
        assert!((node.machine.side_file_check())(&*node.disk, &dir.join(&name)).is_err());
        let refused = restored(&node.disk, &new.0, new.1).map(|_| ()).unwrap_err();
        assert!(refused.contains(&name), "{refused}");
        assert!(offline::summarize(&*node.disk, dir, &new.0).is_err());
        node.disk.damage(&name, from_end);
    }
    node.disk.forget(&name);
    assert!(restored(&node.disk, &new.0, new.1).is_err());
    assert!(restored(&node.disk, &old.0, old.1).is_ok(), "an older one does not need it");
}

#[test]
fn a_chain_is_bounded_in_length_and_in_bytes() {
    let mut node = filled();
    let chain = |node: &Node| node.machine.side_files(&node.machine.checkpoint()).unwrap().len();
    let mut longest = 0;
    for number in 0..100 {
        change(&mut node, 1000 + number);
        longest = longest.max(chain(&node));
        node.machine.checkpoints_kept(&[LogIndex(node.index)]);
    }
    assert!((3..=32).contains(&longest), "{longest}");
    assert!(node.disk.part_files().len() <= 32);
    assert_eq!(chain(&node), chain(&node), "nothing changed, nothing is written");

    // What is larger than the whole makes the next one whole.
    let first = node.disk.part_files().len();
    let ids: Vec<String> = (0..3000).map(|number| format!("many-{number}")).collect();
    node.run(produce("t", 0, &ids.iter().map(String::as_str).collect::<Vec<_>>()));
    assert!(chain(&node) > 1 || first == 32);
    change(&mut node, 2000);
    let state = restored(&node.disk, &node.machine.checkpoint(), node.index).unwrap();
    assert_eq!(state.reader.digest(), node.reader.digest());
    node.machine.checkpoints_kept(&[LogIndex(node.index)]);
    assert!(bytes_of(&node) < 2 * 3000 * 100, "{}", bytes_of(&node));
}

fn number(name: &str, usual: u64) -> u64 {
    std::env::var(name).map_or(usual, |text| text.parse().expect("a number"))
}

/// `FLOTILLA_PENDING=1000000` for the size of the design.
#[test]
fn few_changes_to_a_large_state_cost_a_tenth_of_it_at_most() {
    let (topics, pending) = (number("FLOTILLA_QUEUES", 8000) / 4, number("FLOTILLA_PENDING", 50_000));
    let mut node = Node::new();
    node.run(create_group("g", false, 3, StartPolicy::First));
    for topic in 0..topics {
        let name = format!("t{topic}");
        let touch = Command::Touch { group: crate::support::group("g"), topic: crate::support::topic(&name) };
        node.apply_all(&[create_topic(&name, 4), touch, produce(&name, 0, &[&name])]);
    }
    node.run(create_topic_of("d", MessageType::Delay, 4));
    for first in (0..pending).step_by(100) {
        let due = |number: u64| 1_900_000_000_000 + number * 7919 % 86_400_000;
        let messages: Vec<_> = (first..first + 100).map(|number| (format!("d{number}"), due(number))).collect();
        node.run(produce_delayed("d", 0, &messages.iter().map(|(id, due)| (id.as_str(), *due)).collect::<Vec<_>>()));
    }
    let (mut written, mut held_us, mut took_us) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..64u32 {
        for step in 0..16 {
            node.now_ms += 10;
            let name = format!("t{}", (round * 131 + step % 4 * 977) % topics as u32);
            node.send(&name, 0, &[&format!("m{round}-{step}")]);
            node.run(deliver("g", &name, 0, [0], node.now_ms + 60_000));
            node.run(ack("g", &name, 0, &[(0, 1)]));
            node.run(produce_delayed("d", 1, &[(&format!("e{round}-{step}"), 1_900_000_000_000)]));
        }
        let before = bytes_of(&node);
        let began = Instant::now();
        let later = node.machine.checkpoint_later();
        held_us.push(began.elapsed().as_micros());
        let head = later().unwrap();
        took_us.push(began.elapsed().as_micros().max(1));
        written.push(bytes_of(&node) - before + head.state.len());
        node.machine.checkpoints_kept(&[LogIndex(node.index)]);
        assert!(bytes_of(&node) >= *written.iter().max().unwrap() / 2);
    }
    let whole: Vec<usize> = (0..64).filter(|round| written[*round] * 2 > written[0]).collect();
    let whole_us = whole.iter().map(|round| took_us[*round]).min().unwrap();
    let whole_held_us = whole.iter().map(|round| held_us[*round]).max().unwrap();
    let mean = written.iter().sum::<usize>() / written.len();
    let (mut sorted, mut held) = (took_us.clone(), held_us.clone());
    sorted.sort_unstable();
    held.sort_unstable();
    println!(
        "{} queues, {pending} pending: whole {} bytes in {whole_us} us ({whole_held_us} us at most held fast); of 64, \
         whole {whole:?}: mean {mean} bytes, median {} us ({} us held fast)",
        topics * 4,
        written[0],
        sorted[32],
        held[32],
    );
    assert_eq!(whole.len(), 2, "{written:?}");
    assert!(mean * 10 <= written[0], "{mean} of {}", written[0]);
    assert!(sorted[32] * 10 <= whole_us, "{} of {whole_us} us", sorted[32]);
    let again = restored(&node.disk, &node.machine.checkpoint(), node.index).unwrap();
    assert_eq!(again.reader.digest(), node.reader.digest());
}
