//! How far groups are behind, as monitoring is told.

use crate::support::{Node, START_MS, ack, deliver, granted};
use flotilla_store::{Consumption, StartPolicy};

fn rows(node: &Node, ages_max: usize) -> Vec<Consumption> {
    node.reader.consumption(ages_max).unwrap()
}

#[test]
fn lag_is_what_is_ready_and_what_is_in_flight_with_the_age_of_the_oldest() {
    let mut node = Node::new().with_topic("t", 2).with_group("g", false, 16, StartPolicy::First);
    assert!(rows(&node, 10).is_empty(), "group and topic have not met");
    for (second, id) in ["a", "b", "c", "d"].iter().enumerate() {
        node.now_ms = START_MS + 1000 * second as u64;
        node.send("t", second as u32 % 2, &[id]);
    }
    // Queue 0 holds a and c, queue 1 b and d. The first of queue 0 is handed out, queue 1 is only met.
    let first = node.run(deliver("g", "t", 0, [0], u64::MAX));
    node.run(deliver("g", "t", 1, [], u64::MAX));
    let touched = node
        .run(flotilla_store::Command::Touch { group: crate::support::group("g"), topic: crate::support::topic("t") });
    assert!(matches!(touched, flotilla_store::Outcome::Touched { .. }), "{touched:?}");
    let row = rows(&node, 10).remove(0);
    assert_eq!((row.group.as_str(), row.topic.as_str()), ("g", "t"));
    assert_eq!((row.lag, row.inflight, row.ready), (4, 1, 3));
    assert_eq!((row.oldest_lag_ms, row.oldest_ready_ms), (Some(START_MS), Some(START_MS + 1000)));

    // The same from index files, after a segment's end and a restart.
    node.roll();
    let mut node = node.restarted();
    assert_eq!(rows(&node, 10), [row]);

    // Consumed, the age is that of the next.
    node.run(ack("g", "t", 0, &[(0, granted(&first)[0].seq)]));
    let row = rows(&node, 10).remove(0);
    assert_eq!((row.lag, row.inflight, row.ready), (3, 0, 3));
    assert_eq!(row.oldest_lag_ms, Some(START_MS + 1000));
    assert_eq!(rows(&node, 0)[0].oldest_lag_ms, None, "no more ages than asked for");
}
