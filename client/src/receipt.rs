//! What a send ends with: a receipt, or an error that says whether the message is stored.

use flotilla_message::{MessageId, TopicName};

/// The broker's word that a message is stored as its topic's level promises.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendReceipt {
    /// The message's id: given, or made by the client.
    pub message_id: MessageId,
    /// Its topic.
    pub topic: TopicName,
    /// The broker group that has it.
    pub broker_group: String,
    /// Its queue, when the broker said so.
    pub queue: Option<u32>,
    /// Its offset in the queue.
    pub offset: u64,
    /// The term in which it was acknowledged, when the broker said so.
    pub term: Option<u64>,
    /// The node that led in that term, when the broker said so.
    pub leader: Option<u64>,
    /// The log index of its entry, when the broker said so.
    pub log_index: Option<u64>,
    /// How many attempts it took; 1 when the first went through.
    pub attempts: u32,
    /// Another broker group that was asked before, stopped answering, and may have stored the message as well; see
    /// [`crate::ProducerConfig::repeats_elsewhere`].
    pub maybe_also_in: Option<String>,
}

/// Why there is no [`SendReceipt`]. Each variant says what became of the message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The message is surely not stored; no attempt got far enough.
    #[error("message {message_id} is not stored after {attempts} attempts: {reason}")]
    NotStored {
        /// Its id.
        message_id: MessageId,
        /// Attempts made.
        attempts: u32,
        /// What the last attempt ended with.
        reason: String,
    },
    /// The message may or may not be stored. Sending it again with the same id stores it at most once,
    /// as long as the broker remembers the id.
    #[error("it is unknown whether message {message_id} is stored after {attempts} attempts: {reason}")]
    Unknown {
        /// Its id.
        message_id: MessageId,
        /// Attempts made.
        attempts: u32,
        /// What the last attempt ended with.
        reason: String,
    },
    /// The message is not stored and never will be as it is; no attempt before left that open.
    #[error("message {message_id} is rejected ({}): {message}", crate::failure::code_text(*code))]
    Rejected {
        /// Its id.
        message_id: MessageId,
        /// Code of the RocketMQ protocol, such as 40402.
        code: i32,
        /// The value and what is allowed.
        message: String,
    },
}

impl SendError {
    /// The id of the message.
    pub fn message_id(&self) -> &MessageId {
        match self {
            SendError::NotStored { message_id, .. }
            | SendError::Unknown { message_id, .. }
            | SendError::Rejected { message_id, .. } => message_id,
        }
    }

    /// Whether it is certain that the message is not stored.
    pub fn is_surely_not_stored(&self) -> bool {
        match self {
            SendError::NotStored { .. } | SendError::Rejected { .. } => true,
            SendError::Unknown { .. } => false,
        }
    }
}
