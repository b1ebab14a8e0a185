//! Topics and groups of the errands.

use flotilla_checkers::QueueKey;
use flotilla_proto::v2::MessageType;

/// Half messages, of which most are committed.
pub(crate) const ACCOUNTS: &str = "accounts";
/// Delayed messages.
pub(crate) const ALARMS: &str = "alarms";
/// Messages that are seldom acknowledged, by a group that gives up soon.
pub(crate) const DOOMED: &str = "doomed";
/// Ordered messages.
pub(crate) const STEPS: &str = "steps-fifo";
/// Where the doomed ones end.
pub(crate) const DEAD_LETTERS: &str = "%DLQ%doomed";
/// So often a doomed message is delivered.
pub(crate) const DOOMED_DELIVERIES_MAX: u32 = 2;

/// A group that consumes nothing.
pub(crate) const BOOKMARKS: &str = "bookmarks";

/// Messages sent by the SDK.
pub(crate) const PARCELS: &str = "parcels";
/// Ordered ones.
pub(crate) const LETTERS: &str = "letters-fifo";
pub(crate) const READERS_OF_PARCELS: &str = "carriers";
pub(crate) const READERS_OF_LETTERS: &str = "readers";

/// Name, type, queues.
pub(crate) const ERRAND_TOPICS: [(&str, MessageType, u32); 6] = [
    (ACCOUNTS, MessageType::Transaction, 2),
    (ALARMS, MessageType::Delay, 2),
    (DOOMED, MessageType::Normal, 1),
    (STEPS, MessageType::Fifo, 2),
    (PARCELS, MessageType::Normal, 2),
    (LETTERS, MessageType::Fifo, 2),
];

/// Name, whether it is ordered, deliveries. Each reads one topic at most.
pub(crate) const ERRAND_GROUPS: [(&str, bool, u32); 7] = [
    ("tellers", false, 1000),
    ("sleepers", false, 1000),
    (DOOMED, false, DOOMED_DELIVERIES_MAX),
    ("steppers", true, 1000),
    (READERS_OF_PARCELS, false, 1000),
    (READERS_OF_LETTERS, true, 1000),
    (BOOKMARKS, false, 1000),
];

/// All their queues.
pub(crate) fn errand_queues() -> impl Iterator<Item = QueueKey> {
    ERRAND_TOPICS.iter().flat_map(|(topic, _, count)| (0..*count).map(|queue| QueueKey::new(*topic, queue)))
}
