//! Whom the machine tells what changed, so that nobody has to poll.

use flotilla_message::{GroupName, QueueId, TopicName};

/// Hears of changes after each entry was applied, outside any lock of the store, on the thread
/// that applies.
///
/// An observer must:
/// - return at once (wake someone, note something): applying waits for it;
/// - not call back into the machine; a [`crate::StoreReader`] may be used.
pub trait ApplyObserver: Send + Sync + 'static {
    /// New slots stand at the end of a queue.
    fn queue_grew(&self, topic: &TopicName, queue: QueueId);

    /// Something of the group's progress in the topic changed that may make a message deliverable
    /// (an ack, a changed invisible time, a dead letter), or its next due time.
    fn group_changed(&self, group: &GroupName, topic: &TopicName);

    /// The entry at this log index is applied, and everything it changed was told.
    fn applied(&self, index: u64);

    /// The entry that was applied just now carries this log time, ms. Told before [`ApplyObserver::applied`].
    fn stamped(&self, log_time_ms: u64) {
        let _ = log_time_ms;
    }

    /// A topic or a group was made or dropped, or the whole state was replaced by a checkpoint.
    fn catalog_changed(&self) {}

    /// The whole state was replaced by a checkpoint: anything may be another than before.
    fn replaced(&self) {}

    /// A message waits for a time that comes before that of all others, or the whole state was
    /// replaced by a checkpoint.
    fn timers_changed(&self) {}

    /// The log is trimmed: entries before `below` are not needed any more.
    fn trimmed(&self, below: u64) {
        let _ = below;
    }

    /// The store cannot go on: the node must stop, and says why. Told once.
    fn failed(&self, reason: &str) {
        let _ = reason;
    }
}

/// Listens to nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl ApplyObserver for NoObserver {
    fn queue_grew(&self, _topic: &TopicName, _queue: QueueId) {}
    fn group_changed(&self, _group: &GroupName, _topic: &TopicName) {}
    fn applied(&self, _index: u64) {}
}
