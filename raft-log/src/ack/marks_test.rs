//! Watermarks by hand and by chance.

use std::collections::BTreeSet;
use std::time::Duration;

use flotilla_runtime::Instant;
use proptest::prelude::*;

use super::marks::{LagLimits, Marks};
use super::ticket::{AckFailure, AckWhen};
use crate::ids::EntryId;
use crate::{LogIndex, NodeId, Term};

const LIMITS: LagLimits = LagLimits { time: Duration::from_millis(1000), bytes: 10_000 };
const SYNC: AckWhen = AckWhen::InSync { durable: true };

fn marks(size: u64) -> Marks {
    let mut marks = Marks::new(NodeId(1), (1..=size).map(NodeId).collect(), LIMITS);
    marks.enter(Term(2));
    marks
}

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn append(marks: &mut Marks, index: u64, ms: u64) {
    marks.append(EntryId::new(2, index), 100, at(ms));
    marks.sync_self(Some(LogIndex(index)));
}

fn matched(marks: &mut Marks, node: u64, index: u64, ms: u64) -> bool {
    let joined = marks.matched(NodeId(node), Term(2), LogIndex(index), at(ms));
    marks.synced(NodeId(node), Term(2), LogIndex(index));
    joined
}

#[test]
fn level_sync_waits_for_all_that_keep_up_and_for_the_commit() {
    let mut marks = marks(3);
    append(&mut marks, 10, 0);
    assert_eq!(marks.reached(SYNC), None, "nobody has answered in this term");
    assert!(matched(&mut marks, 2, 10, 1) && matched(&mut marks, 3, 10, 1));
    marks.commit(LogIndex(10));
    assert_eq!(marks.reached(SYNC), Some(LogIndex(10)));
    append(&mut marks, 11, 2);
    matched(&mut marks, 2, 11, 3);
    marks.commit(LogIndex(11));
    assert_eq!(marks.reached(SYNC), Some(LogIndex(10)), "replica 3 keeps up and lacks 11");
    assert_eq!(marks.reached(AckWhen::QuorumDurable), Some(LogIndex(11)));
    assert!(marks.leave_behind(at(999)).is_empty());
    assert_eq!(marks.next_deadline(), Some(at(1000)), "entries of one step share its beginning");
    assert_eq!(marks.leave_behind(at(1000)).len(), 1);
    assert_eq!(marks.reached(SYNC), Some(LogIndex(11)), "two of three are a quorum and two");
    assert_eq!(marks.in_sync(), BTreeSet::from([NodeId(1), NodeId(2)]));
}

#[test]
fn a_replica_left_behind_comes_back_once_it_has_caught_up() {
    let mut marks = marks(3);
    append(&mut marks, 10, 0);
    matched(&mut marks, 2, 10, 1);
    matched(&mut marks, 3, 10, 1);
    for index in 11..=200 {
        append(&mut marks, index, index * 10);
        matched(&mut marks, 2, index, index * 10);
        marks.commit(LogIndex(index));
        marks.leave_behind(at(index * 10));
    }
    assert_eq!(marks.in_sync().len(), 2, "too old by now");
    let status = marks.status(at(2000));
    assert_eq!(status.followers[&NodeId(3)].lag_entries, 190);
    assert_eq!(status.followers[&NodeId(3)].lag_bytes, 19_000);
    assert!(!matched(&mut marks, 3, 199, 2001), "one entry is missing");
    assert!(matched(&mut marks, 3, 200, 2002));
    assert_eq!(marks.in_sync().len(), 3);
}

#[test]
fn so_many_bytes_behind_is_too_far_whatever_the_time() {
    let mut marks = marks(3);
    append(&mut marks, 10, 0);
    matched(&mut marks, 2, 10, 0);
    marks.append(EntryId::new(2, 11), 10_001, at(40));
    assert_eq!(marks.leave_behind(at(41)).len(), 1);
}

#[test]
fn too_few_that_keep_up_is_told_of_what_is_committed() {
    let mut marks = marks(2);
    append(&mut marks, 10, 0);
    matched(&mut marks, 2, 10, 0);
    append(&mut marks, 11, 10);
    marks.leave_behind(at(5000));
    assert_eq!(marks.obstacle(SYNC, LogIndex(11), true), None, "not committed: it may come yet");
    marks.commit(LogIndex(11));
    let short = AckFailure::TooFewInSync { in_sync: 1, needed: 2, was_enough: true };
    assert_eq!(marks.obstacle(SYNC, LogIndex(11), true), Some(short));
    assert_eq!(marks.obstacle(AckWhen::Appended, LogIndex(11), true), None);
}

#[test]
fn what_was_said_in_another_term_counts_for_nothing() {
    let mut marks = marks(3);
    append(&mut marks, 10, 0);
    assert!(!marks.matched(NodeId(2), Term(1), LogIndex(10), at(0)));
    assert!(matched(&mut marks, 2, 10, 0));
    assert!(marks.enter(Term(3)) && !marks.enter(Term(3)) && !marks.enter(Term(2)));
    marks.synced(NodeId(2), Term(2), LogIndex(10));
    assert_eq!(marks.reached(AckWhen::QuorumDurable), None);
    assert_eq!(marks.in_sync().len(), 1);
}

#[test]
fn a_truncated_log_is_not_on_disk_any_more() {
    let mut marks = marks(1);
    append(&mut marks, 10, 0);
    marks.truncate(Some(LogIndex(7)));
    assert_eq!(marks.reached(AckWhen::LeaderDurable), Some(LogIndex(7)));
    marks.sync_self(Some(LogIndex(10)));
    assert_eq!(marks.reached(AckWhen::LeaderDurable), Some(LogIndex(7)), "a late word about what is gone");
}

#[derive(Debug, Clone)]
enum Event {
    Append(u64),
    Matched(u64, u64),
    Commit(u64),
    Pass(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (1..4_u64).prop_map(Event::Append),
        (2..6_u64, 0..40_u64).prop_map(|(node, lag)| Event::Matched(node, lag)),
        (0..40_u64).prop_map(Event::Commit),
        (1..400_u64).prop_map(Event::Pass),
    ]
}

proptest! {
    #[test]
    fn nothing_is_called_in_sync_that_a_member_lacks(size in 2..6_u64, events in prop::collection::vec(event(), 1..200)) {
        let mut marks = marks(size);
        let (mut last, mut now, mut committed) = (0, 0, None::<u64>);
        let mut has = std::collections::BTreeMap::new();
        for event in events {
            match event {
                Event::Append(count) => {
                    last += count;
                    append(&mut marks, last, now);
                }
                Event::Matched(node, lag) if node <= size && last > 0 => {
                    let index = last.saturating_sub(lag).max(has.get(&node).copied().unwrap_or(0));
                    has.insert(node, index);
                    matched(&mut marks, node, index, now);
                }
                Event::Commit(lag) => {
                    // As the core would: what a quorum has.
                    let mut all: Vec<u64> = (2..=size).map(|node| has.get(&node).copied().unwrap_or(0)).collect();
                    all.push(last);
                    all.sort_unstable_by(|a, b| b.cmp(a));
                    let index = all[(size / 2) as usize].saturating_sub(lag);
                    if index > 0 {
                        committed = committed.max(Some(index));
                        marks.commit(LogIndex(index));
                    }
                }
                Event::Matched(..) => {}
                Event::Pass(ms) => now += ms,
            }
            marks.leave_behind(at(now));
            let members = marks.in_sync();
            if let Some(LogIndex(reached)) = marks.reached(SYNC) {
                prop_assert!(Some(reached) <= committed);
                prop_assert!(members.len() >= marks.in_sync_min() && members.len() >= 2);
                for NodeId(member) in members {
                    prop_assert!(member == 1 || has[&member] >= reached);
                }
            }
        }
    }
}
