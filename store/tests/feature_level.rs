//! What entries mean depends on the level that the log has come to, and a program that does not know it applies nothing.

use flotilla_raft_log::{LogIndex, StateMachine};
use flotilla_store::{Command, FEATURE_LEVEL, Outcome, Rejection};

use crate::support::Node;

fn raise(level: u8) -> Command {
    Command::RaiseLevel { level }
}

#[test]
fn the_level_rises_with_the_log_and_every_life_knows_it() {
    let mut node = Node::new().with_topic("t", 1);
    assert_eq!(node.reader.feature_level(), 0);
    let before = node.reader.digest();
    assert_eq!(node.run(raise(FEATURE_LEVEL)), Outcome::Noted);
    assert_eq!(node.reader.feature_level(), FEATURE_LEVEL);
    assert_ne!(node.reader.digest().digest, before.digest);
    assert_eq!(node.run(raise(0)), Outcome::Noted, "a lower one changes nothing");
    node.send("t", 0, &["a"]);
    let restarted = node.restarted();
    assert_eq!(restarted.reader.feature_level(), FEATURE_LEVEL);
    assert_eq!(restarted.reader.digest(), node.reader.digest());
}

#[test]
fn two_programs_agree_as_long_as_the_level_is_one_that_both_know() {
    let (mut new, mut old) = (Node::new(), Node::new().with_level_max(0));
    for node in [&mut new, &mut old] {
        *node = std::mem::replace(node, Node::new()).with_topic("t", 2);
        node.send("t", 0, &["a", "b"]);
        node.send("t", 1, &["c"]);
    }
    assert_eq!(new.reader.digest(), old.reader.digest());
    assert_eq!(new.machine.checkpoint(), old.machine.checkpoint(), "to the byte");
}

#[test]
fn an_older_program_stops_where_the_level_passes_its_own_and_applies_nothing_behind() {
    let mut old = Node::new().with_level_max(0).with_topic("t", 1);
    old.send("t", 0, &["a"]);
    let before = old.reader.digest();
    let refused = old.run(raise(1));
    let Outcome::Rejected(Rejection::StoreFailed { reason }) = refused else { panic!("{refused:?}") };
    let expected = "feature level 1 from entry 3 on, this program supports 0 at most";
    assert!(reason.contains(expected), "{reason}");
    assert!(matches!(old.send("t", 0, &["b"]), Outcome::Rejected(Rejection::StoreFailed { .. })));
    assert_eq!(old.reader.digest().digest, before.digest, "nothing was applied");
}

#[test]
fn an_older_program_does_not_take_a_checkpoint_of_a_higher_level() {
    let mut new = Node::new().with_topic("t", 1);
    new.run(raise(1));
    let checkpoint = new.machine.checkpoint();
    let mut old = Node::on(new.disk.clone()).with_level_max(0);
    let error = old.machine.restore(&checkpoint, LogIndex(2)).unwrap_err().to_string();
    assert!(error.contains("it is of feature level 1, this program supports 0 at most"), "{error}");
}
