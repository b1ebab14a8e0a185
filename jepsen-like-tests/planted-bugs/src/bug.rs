//! The bugs, one switch each: what goes wrong, and where the switch is.

/// A bug that can be planted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Bug {
    /// See [`Bug::what`], as for all others.
    AckBeforeQuorum,
    AckBeforeSync,
    VoteNotDurable,
    LeaderRestored,
    SuffixNotTruncated,
    CacheNotTruncated,
    ApplySkipsEntries,
    StaleLeaderObeyed,
    ReadsUncommitted,
    ReadsWithoutLease,
    ProgressInMemory,
    HalfVisible,
    TransactionEndsTwice,
    DelayTooShort,
    DeadLetterDropped,
    OrderNotFenced,
    SyncErrorIgnored,
    TailNotChecked,
    CheckpointAheadOfLog,
    CheckpointLacksEntry,
    LearnerCounted,
    LowerTermRegistered,
    DuplicatesForgotten,
    VotesBeforeRecovery,
    Canary,
}

/// (bug, number, name, what, where)
type Row = (Bug, u32, &'static str, &'static str, &'static str);

const ROWS: [Row; 25] = [
    (
        Bug::AckBeforeQuorum,
        1,
        "ack-before-quorum",
        "the leader takes a request that it has sent for one that was answered",
        "raft-log: append stream",
    ),
    (Bug::AckBeforeSync, 2, "ack-before-sync", "an append counts before it is synced", "raft-log: flusher"),
    (Bug::VoteNotDurable, 3, "vote-not-durable", "a vote is given before it is synced", "raft-log: vote and marks"),
    (
        Bug::LeaderRestored,
        4,
        "leader-restored",
        "a leader that starts again goes on in its old term",
        "raft-log: core config",
    ),
    (
        Bug::SuffixNotTruncated,
        5,
        "suffix-not-truncated",
        "entries that another leader overrides stay on the disk",
        "raft-log: log files",
    ),
    (
        Bug::CacheNotTruncated,
        6,
        "cache-not-truncated",
        "what is derived from overridden entries (the tail's cache) is not rolled back",
        "raft-log: log state",
    ),
    (
        Bug::ApplySkipsEntries,
        7,
        "apply-skips-entries",
        "a follower does not apply one entry in a hundred",
        "raft-log: state machine",
    ),
    (
        Bug::StaleLeaderObeyed,
        8,
        "stale-leader-obeyed",
        "terms are not compared: a deposed leader is still obeyed, and goes on acknowledging",
        "raft-log: append stream",
    ),
    (
        Bug::ReadsUncommitted,
        9,
        "reads-uncommitted",
        "a follower shows what it has appended, committed or not",
        "raft-log: append stream",
    ),
    (
        Bug::ReadsWithoutLease,
        10,
        "reads-without-lease",
        "a leader answers reads, and takes writes, without a lease, and asks no quorum either",
        "raft-log: status, proposing",
    ),
    (
        Bug::ProgressInMemory,
        11,
        "progress-in-memory",
        "how far consumer groups are is not in checkpoints",
        "store: image",
    ),
    (Bug::HalfVisible, 12, "half-visible", "a half message stands in its queue before its commit", "store: producing"),
    (
        Bug::TransactionEndsTwice,
        13,
        "transaction-ends-twice",
        "a producer's answer to a check and its own commit both count",
        "store: holding",
    ),
    (
        Bug::DelayTooShort,
        14,
        "delay-too-short",
        "the time of a delayed message is rounded up to a whole second of the wall clock",
        "store: holding",
    ),
    (
        Bug::DeadLetterDropped,
        15,
        "dead-letter-dropped",
        "a message that was delivered too often ends before it stands among the dead letters",
        "store: deliveries",
    ),
    (
        Bug::OrderNotFenced,
        16,
        "order-not-fenced",
        "an ordered group is handed new messages while earlier ones are in flight",
        "store: deliveries",
    ),
    (Bug::SyncErrorIgnored, 17, "sync-error-ignored", "a failed sync counts as done", "raft-log: flusher"),
    (
        Bug::TailNotChecked,
        18,
        "tail-not-checked",
        "a start does not compare the tail with its checksums",
        "raft-log: segment scan",
    ),
    (
        Bug::CheckpointAheadOfLog,
        19,
        "checkpoint-ahead-of-log",
        "a checkpoint is written before the entries it stands for are durable",
        "raft-log: checkpoint store",
    ),
    (
        Bug::CheckpointLacksEntry,
        20,
        "checkpoint-lacks-entry",
        "a checkpoint says that it holds one entry more than it does",
        "raft-log: state machine",
    ),
    (
        Bug::LearnerCounted,
        21,
        "learner-counted",
        "a replica that holds no vote counts for the level `sync`",
        "raft-log: ack tracker",
    ),
    (
        Bug::LowerTermRegistered,
        22,
        "lower-term-registered",
        "a namesrv takes a row of a lower term",
        "namesrv: route table",
    ),
    (
        Bug::DuplicatesForgotten,
        23,
        "duplicates-forgotten",
        "the window of message ids is not in checkpoints",
        "store: image",
    ),
    (
        Bug::VotesBeforeRecovery,
        24,
        "votes-before-recovery",
        "a replica that may lack what it confirmed votes at once",
        "raft-log: boot mark",
    ),
    (Bug::Canary, 25, "canary", "fails always: the alarm itself is tried", "simulation: run"),
];

impl Bug {
    /// All, by number.
    pub fn every() -> impl Iterator<Item = Bug> {
        ROWS.iter().map(|row| row.0)
    }

    fn row(self) -> &'static Row {
        &ROWS[self as usize]
    }

    /// Its place in the list, from 1.
    #[must_use]
    pub fn number(self) -> u32 {
        self.row().1
    }

    /// What it is called in commands.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.row().2
    }

    /// What goes wrong, in a sentence.
    #[must_use]
    pub fn what(self) -> &'static str {
        self.row().3
    }

    /// Where the switch is.
    #[must_use]
    pub fn planted_in(self) -> &'static str {
        self.row().4
    }

    /// The bug of that name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Bug> {
        Bug::every().find(|bug| bug.name() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_stand_in_the_order_of_bugs_and_numbers_and_names_are_unique() {
        for (at, bug) in Bug::every().enumerate() {
            assert_eq!(bug as usize, at);
            assert_eq!(bug.number() as usize, at + 1);
            assert_eq!(Bug::of_name(bug.name()), Some(bug));
        }
        assert_eq!(Bug::of_name("none"), None);
    }
}
