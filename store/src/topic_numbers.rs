//! How many messages each topic has, for monitoring: one look over the topics, no message is touched.

use flotilla_message::{MessageType, TopicName};

use crate::StoreReader;

/// The messages of one topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicNumbers {
    /// The topic.
    pub topic: TopicName,
    /// What its messages are.
    pub message_type: MessageType,
    /// Messages that stand in its queues, consumed or not.
    pub stored: u64,
    /// Delayed messages that wait for their time.
    pub delayed: u64,
    /// Half messages whose transactions are open, the parked ones among them.
    pub halves: u64,
    /// Half messages whose producers are not asked any more.
    pub parked: u64,
}

impl StoreReader {
    /// All topics, by name.
    pub fn topic_numbers(&self) -> Vec<TopicNumbers> {
        let state = self.shared.read();
        let level = |(name, topic): (&TopicName, &crate::state::Topic)| {
            let (halves, parked) = state.halves.by_topic().get(&topic.uid).copied().unwrap_or_default();
            TopicNumbers {
                topic: name.clone(),
                message_type: topic.message_type,
                stored: topic.queues.iter().map(|queue| queue.max().saturating_sub(queue.min())).sum(),
                delayed: state.timers.by_topic().get(&topic.uid).copied().unwrap_or_default(),
                halves,
                parked,
            }
        };
        state.topics.iter().map(level).collect()
    }
}
