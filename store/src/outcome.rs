//! What a command answers to its proposer.

use flotilla_message::{MessageRef, MessageType, QueueId, QueueOffset, TopicName, limits};

use crate::Slot;
use crate::limits::{
    DEDUP_ENTRIES_RANGE, DELAYED_MAX, GROUPS_MAX, HALVES_MAX, RETRY_PAUSE_MS_MAX, RETRY_PAUSES_MAX, TOPICS_MAX,
};
use crate::placement::SHARES_MAX;

/// The answer to one [`crate::Command`]; the same on every replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The topic was made.
    TopicCreated {
        /// Its number; never used again.
        uid: u64,
    },
    /// The topic is gone.
    TopicDeleted,
    /// The group was made.
    GroupCreated {
        /// Its number; never used again.
        uid: u64,
    },
    /// The group is gone.
    GroupDeleted,
    /// The batch is stored (or was before).
    Produced {
        /// The queue that was asked for.
        queue: QueueId,
        /// One for each frame, in order.
        offsets: Vec<ProducedSlot>,
    },
    /// Every queue of the topic has a position now.
    Touched {
        /// The group's next offset in each queue, by queue.
        next_offsets: Vec<QueueOffset>,
    },
    /// What was granted, rising by offset; the rest was left out.
    Delivered {
        /// The grants.
        granted: Vec<Granted>,
        /// The group's next offset in the queue after this command.
        next_offset: QueueOffset,
        /// True if the grants are those of an earlier command with the same attempt id.
        repeated: bool,
    },
    /// One result for each receipt, in order.
    Acked {
        /// The results.
        results: Vec<AckResult>,
    },
    /// The invisible time was changed (now, or by this very command before).
    InvisibleChanged {
        /// The delivery's new sequence number.
        seq: u32,
        /// The message.
        slot: Slot,
        /// When it becomes due, log time, milliseconds since the Unix epoch.
        invisible_until_ms: u64,
    },
    /// Delayed messages stand in their queues now.
    DueDelivered {
        /// How many; as many as were allowed if more may be due.
        delivered: u32,
    },
    /// The delayed message will never be delivered.
    Recalled {
        /// True if it was recalled before.
        repeated: bool,
    },
    /// The transaction is committed, or rolled back, as it was asked for.
    TransactionEnded {
        /// Where the message stands now; `None` if it was rolled back, or `repeated`.
        offset: Option<QueueOffset>,
        /// True if it ended so before.
        repeated: bool,
    },
    /// Half messages whose producers are to be asked now, or were asked as often as allowed.
    TransactionsChecked {
        /// They; as many as were allowed if there may be more.
        halves: Vec<HalfMessage>,
    },
    /// Entries were let go of.
    Trimmed {
        /// The first log index that is kept.
        below: u64,
        /// Slots that vanished; 0 if that was so before.
        slots: u64,
    },
    /// Messages were written again.
    Carried {
        /// How many are read from here now; the rest was not referred to any more.
        count: u32,
    },
    /// The group stands there now.
    OffsetSet {
        /// Its next offset in the queue.
        next_offset: QueueOffset,
    },
    /// The group's settings are as asked for.
    GroupUpdated,
    /// The topic's settings are as asked for, as far as they can be by now.
    TopicUpdated {
        /// Its queues, those that are to go included.
        queue_count: u32,
        /// Those that take messages.
        writable_queues: u32,
    },
    /// The message is due again.
    Redelivered,
    /// So many deliveries were prolonged.
    Renewed {
        /// The others ended before, or lasted longer anyway.
        renewed: u32,
    },
    /// The message is a dead letter now.
    DeadLettered,
    /// The topic's sends are answered at the level asked for, from now on.
    TopicLevelSet,
    /// The topic keeps messages as long as asked for, from now on.
    TopicRetentionSet,
    /// The group takes messages, or not, from now on.
    WritePermissionSet {
        /// Topics that this is about.
        topics: u64,
    },
    /// The topic's groups are known, from now on.
    TopicSharesSet {
        /// Which word on them holds.
        version: u64,
    },
    /// Messages of one topic were let go of.
    TopicTrimmed {
        /// Slots that vanished.
        slots: u64,
    },
    /// Nothing was to be done.
    Noted,
    /// Nothing was done.
    Rejected(Rejection),
}

/// Where a frame of a batch stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducedSlot {
    /// Its queue; that of the first send if it is a duplicate.
    pub queue: QueueId,
    /// Its offset there; 0 while it is `held`.
    pub offset: QueueOffset,
    /// Its identity.
    pub message: MessageRef,
    /// True if it was stored before and not stored again.
    pub duplicate: bool,
    /// Set if it was stored outside of the queue, and why. Of a duplicate: why it was then; it may
    /// stand in the queue by now.
    pub held: Option<Holding>,
}

/// Why a stored message does not stand in its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holding {
    /// It is delayed until this wall time, milliseconds since the Unix epoch.
    Until(u64),
    /// It is half: its producer has not committed it.
    Half,
}

/// A half message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HalfMessage {
    /// Its topic.
    pub topic: TopicName,
    /// The queue it will stand in.
    pub queue: QueueId,
    /// Where to read it; stored when it was sent.
    pub slot: Slot,
    /// How often its producer was to be asked, now included.
    pub checks: u32,
    /// Nobody is asked any more: it waits for somebody to end it.
    pub is_parked: bool,
}

/// How a message ended that stood outside of its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It was delayed, and recalled in time.
    Recalled,
    /// Its transaction was committed.
    Committed,
    /// Its transaction was rolled back.
    RolledBack,
}

impl Ending {
    pub(crate) fn code(self) -> u8 {
        match self {
            Ending::Recalled => 1,
            Ending::Committed => 2,
            Ending::RolledBack => 3,
        }
    }

    pub(crate) fn from_code(code: u8) -> Option<Ending> {
        match code {
            1 => Some(Ending::Recalled),
            2 => Some(Ending::Committed),
            3 => Some(Ending::RolledBack),
            _ => None,
        }
    }
}

/// A message handed to a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Granted {
    /// Its offset.
    pub offset: QueueOffset,
    /// Where to read it.
    pub slot: Slot,
    /// The how-manieth delivery this is, from 1.
    pub attempt: u32,
    /// The number that acks and changes of this delivery must name. No other delivery, before or
    /// after, in this or a re-created topic, has the same (until the 32 bits wrap).
    pub seq: u32,
    /// True if it was not delivered but became a dead letter: do not give it to the consumer.
    pub dead_lettered: bool,
}

/// What came of one receipt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckResult {
    /// It is consumed now.
    Acked,
    /// It was consumed before (acknowledged, filtered out, or made a dead letter).
    AlreadyAcked,
    /// It was delivered again, or its invisible time changed: another number holds.
    Stale,
    /// It was never delivered to this group.
    NotFound,
}

/// Why a command did nothing. The same on every replica.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// No topic of that name.
    #[error("topic does not exist")]
    TopicNotFound,
    /// A topic of that name is there.
    #[error("topic exists already{}", if *same { " with the same settings" } else { " with other settings" })]
    TopicExists {
        /// Whether type, queues and permission are those asked for.
        same: bool,
    },
    /// No group of that name.
    #[error("group does not exist")]
    GroupNotFound,
    /// A group of that name is there.
    #[error("group exists already{}", if *same { " with the same settings" } else { " with other settings" })]
    GroupExists {
        /// Whether order, deliveries and start are those asked for.
        same: bool,
    },
    /// The topic has no such queue.
    #[error("queue {queue} does not exist: the topic has {queue_count} queues, counted from 0")]
    QueueNotFound {
        /// The queue asked for.
        queue: QueueId,
        /// How many there are.
        queue_count: u32,
    },
    /// The topic takes no messages.
    #[error("topic is not writable")]
    TopicNotWritable,
    /// The topic gives no messages.
    #[error("topic is not readable")]
    TopicNotReadable,
    /// A queue count out of range.
    #[error("queue count {queue_count} is out of range; 1 to {} are allowed", limits::QUEUES_PER_TOPIC_MAX)]
    QueueCountOutOfRange {
        /// The count asked for.
        queue_count: u32,
    },
    /// A number of deliveries out of range.
    #[error("maximum of {max_deliveries} deliveries is out of range; 1 to {} are allowed", limits::MAX_DELIVERIES_MAX)]
    MaxDeliveriesOutOfRange {
        /// The number asked for.
        max_deliveries: u32,
    },
    /// No room for another topic.
    #[error("the broker group has {TOPICS_MAX} topics, more are not allowed")]
    TooManyTopics,
    /// No room for another group.
    #[error("the broker group has {GROUPS_MAX} consumer groups, more are not allowed")]
    TooManyGroups,
    /// A message of another type than its topic's.
    #[error("message type {message_type} does not fit topic {topic}, which takes {topic_type}")]
    MessageTypeConflict {
        /// The topic.
        topic: TopicName,
        /// What it takes.
        topic_type: MessageType,
        /// What was sent.
        message_type: MessageType,
    },
    /// The delivery was superseded by a later one.
    #[error("the receipt is stale: the message was delivered or changed again since")]
    ReceiptStale,
    /// The message is not in flight: it is consumed, or was never delivered.
    #[error("the receipt names no delivery in flight")]
    DeliveryNotFound,
    /// No room for another delayed message.
    #[error("{DELAYED_MAX} delayed messages wait for their time, more are not allowed")]
    TooManyDelayed,
    /// The message does not wait for its time.
    #[error("the message does not wait: it was delivered already, or its topic was deleted")]
    NotWaiting,
    /// No room for another half message.
    #[error("{HALVES_MAX} half messages wait for the end of their transactions, more are not allowed")]
    TooManyHalves,
    /// A message of a transaction that was to stand in its queue at once.
    #[error("a message of a transaction must be prepared, it does not go to its queue at once")]
    NotPrepared,
    /// A message was prepared for a topic that has no transactions.
    #[error("the topic takes messages of type {topic_type}, which have no transactions")]
    NoTransactions {
        /// What it takes.
        topic_type: MessageType,
    },
    /// The transaction is not open.
    #[error("the transaction is not open: it ended before, or its topic was deleted")]
    TransactionNotFound,
    /// The transaction ended the other way.
    #[error("the transaction was {} before", if *committed { "committed" } else { "rolled back" })]
    TransactionEndedOtherwise {
        /// How it ended.
        committed: bool,
    },
    /// Something that stays refers to a message that would go.
    #[error("message {message} is still referred to, entries before {below} cannot go")]
    TrimPassesReference {
        /// The message.
        message: MessageRef,
        /// What was to be the first log index that is kept.
        below: u64,
    },
    /// Entries were to go that are not there yet.
    #[error("entries before {below} cannot go at entry {index}")]
    TrimAhead {
        /// What was to be the first log index that is kept.
        below: u64,
        /// The trim's own index.
        index: u64,
    },
    /// The group is paused.
    #[error("the consumer group is paused")]
    GroupPaused,
    /// An offset behind the end of its queue.
    #[error("offset {offset} is behind the end of the queue, which has offsets {min} to {max}")]
    OffsetOutOfRange {
        /// The offset asked for.
        offset: QueueOffset,
        /// The oldest one.
        min: QueueOffset,
        /// The end: what the next message will get.
        max: QueueOffset,
    },
    /// A retry table that is too long, or has a pause that is.
    #[error(
        "{count} retry pauses of at most {longest_ms} ms are out of range; {RETRY_PAUSES_MAX} of {RETRY_PAUSE_MS_MAX} ms are allowed"
    )]
    RetryPausesOutOfRange {
        /// How many.
        count: usize,
        /// The longest one.
        longest_ms: u32,
    },
    /// Ordered messages wait in queues whose number is to change.
    #[error(
        "queue {queue} has messages that group {group} has not consumed: with another number of queues they would lose their order; pause the producers until all is consumed"
    )]
    TopicNotDrained {
        /// A queue that has some.
        queue: QueueId,
        /// Who has not consumed them.
        group: String,
    },
    /// The window of repeated sends cannot be so large or small.
    #[error(
        "the window of repeated sends cannot keep {entries_max} ids, {} to {} are allowed",
        DEDUP_ENTRIES_RANGE.start(), DEDUP_ENTRIES_RANGE.end()
    )]
    DedupWindowOutOfRange {
        /// What was asked for.
        entries_max: u32,
    },
    /// The topic is another one by now, of the same name.
    #[error("topic number {uid} is gone; the topic of that name was made later")]
    TopicReplaced {
        /// The number asked for.
        uid: u64,
    },
    /// The broker group takes no messages.
    #[error("the write permission of the broker group is wiped")]
    WriteWiped,
    /// The topic moves between broker groups.
    #[error("the topic moves to other broker groups (version {version}) and takes messages again when all is consumed")]
    TopicMoving {
        /// Which word on its groups it waits for.
        version: u64,
    },
    /// There is a newer word on a topic's groups.
    #[error("version {version} of the topic's broker groups is known, an older one is not taken")]
    SharesOutdated {
        /// The version that is known.
        version: u64,
    },
    /// A topic with order that would move although messages may still be on their way to the old place.
    #[error("an ordered topic moves to other broker groups in two steps, the first of which has not been taken")]
    SharesNotMoving,
    /// Groups of a topic that cannot be.
    #[error(
        "{count} broker groups with their queues are not a topic's: 1 to {SHARES_MAX} are allowed, each once, with 1 to {} queues",
        limits::QUEUES_PER_TOPIC_MAX
    )]
    SharesOutOfRange {
        /// How many groups there were to be.
        count: usize,
    },
    /// The message does not stand there, or the group has not consumed it.
    #[error("no consumed message to be delivered again is at offset {offset}")]
    NotConsumed {
        /// The offset.
        offset: QueueOffset,
    },
    /// A duty of a leader whose term is over.
    #[error("the duty is of term {proposed}, the log is in term {term}")]
    TermPassed {
        /// The proposer's term.
        proposed: u64,
        /// The entry's own.
        term: u64,
    },
    /// The entry is not one that an [`crate::EntryBuilder`] made. Nothing of it was applied; this
    /// is the entry's only outcome.
    #[error("log entry is malformed: {reason}")]
    Malformed {
        /// What is wrong with it.
        reason: String,
    },
    /// This node could not read its own files and must stop; other replicas are not concerned.
    /// The one rejection that is local: it is never followed by another outcome of this node.
    #[error("store of this node failed: {reason}")]
    StoreFailed {
        /// What failed.
        reason: String,
    },
}
