//! What one replica's queues hold at one applied index.

use serde::{Deserialize, Serialize};

use crate::QueueKey;

/// One replica's whole replicated state, as far as checkers care.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Dump {
    /// Whose state.
    pub replica: u64,
    /// The last log index applied to this state.
    pub applied_index: u64,
    /// The state machine's own digest at `applied_index`; equal strings mean equal states.
    pub digest: String,
    /// May be empty where only digests are compared.
    pub queues: Vec<QueueDump>,
}

/// One queue of a [`Dump`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueDump {
    /// Its name.
    pub queue: QueueKey,
    /// The first offset that is still kept.
    pub offset_min: u64,
    /// From `offset_min` on, as read.
    pub slots: Vec<SlotDump>,
}

/// One message's place in a queue.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct SlotDump {
    /// Where in the queue.
    pub offset: u64,
    /// What stands there.
    pub message_id: String,
    /// The log entry that holds the message, and its place in that entry.
    pub log_index: u64,
    /// Its place in that entry, from 0.
    pub ordinal: u32,
}
