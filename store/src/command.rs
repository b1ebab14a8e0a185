//! What can be asked of the state machine.

use crate::{TopicLevel, TopicShares};
use flotilla_message::{GroupName, MessageRef, MessageType, Permission, QueueId, QueueOffset, StoredFrame, TopicName};

/// Where a group begins in a queue it meets for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StartPolicy {
    /// At the oldest message.
    First,
    /// After the newest message at the moment of meeting; see [`Command::Touch`].
    Last,
    /// At the first message stored at or after this log time, milliseconds since the Unix epoch.
    TimestampMs(u64),
}

/// Where the position of a group in a queue is moved to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OffsetTarget {
    /// To the oldest message.
    First,
    /// Behind the newest message at this place of the log.
    Last,
    /// To the first message stored at or after this log time, milliseconds since the Unix epoch; behind
    /// the newest if there is none.
    TimestampMs(u64),
    /// To this offset. One before the oldest message means that; one behind the end is refused.
    Offset(QueueOffset),
}

/// What of a group is to be changed; `None` stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupChange {
    /// Whether it consumes each queue in order.
    pub order: Option<bool>,
    /// After so many deliveries without an ack a message becomes a dead letter.
    pub max_deliveries: Option<u32>,
    /// Whether nothing is delivered to it.
    pub is_paused: Option<bool>,
    /// Pauses before a failed message is delivered again, ms, at most
    /// [`crate::limits::RETRY_PAUSES_MAX`]; empty: the broker's own.
    pub retry_pauses_ms: Option<Vec<u32>>,
}

/// A range of a queue that the leader looked through for a filtered delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SkipRange {
    /// The first offset looked at: the group's next offset as the leader knew it.
    pub from: QueueOffset,
    /// The first offset not looked at.
    pub to: QueueOffset,
}

/// One command of a log entry. Each gets its own [`crate::Outcome`], in order.
///
/// An entry also carries the term of its proposer. It may differ from the entry's own term when a
/// leader was replaced in between. Commands of clients are applied all the same; those of leader
/// duties ([`Command::DeliverDue`], [`Command::CheckTransactions`], [`Command::Trim`],
/// [`Command::TrimTopic`], [`Command::Carry`]) lapse with their term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Makes a topic. An existing one is answered by `TopicExists`.
    CreateTopic {
        /// Its name.
        name: TopicName,
        /// What its messages are.
        message_type: MessageType,
        /// How many queues it has, 1 ..= [`flotilla_message::limits::QUEUES_PER_TOPIC_MAX`].
        queue_count: u32,
        /// What may be done with it.
        permission: Permission,
    },
    /// Drops a topic, its queues, and every group's progress in it. A later topic of the same
    /// name is another topic.
    DeleteTopic {
        /// Its name.
        name: TopicName,
    },
    /// Makes a consumer group. An existing one is answered by `GroupExists`.
    CreateGroup {
        /// Its name.
        name: GroupName,
        /// Whether it consumes each queue in order: nothing new from a queue while something of
        /// it is in flight, and redelivery in order.
        order: bool,
        /// After so many deliveries without an ack a message becomes a dead letter, 1 ..=
        /// [`flotilla_message::limits::MAX_DELIVERIES_MAX`].
        max_deliveries: u32,
        /// Where it begins in a queue.
        start: StartPolicy,
    },
    /// Drops a group and its progress. Its dead-letter topic stays.
    DeleteGroup {
        /// Its name.
        name: GroupName,
    },
    /// Appends a batch to a queue, all or nothing. A frame whose (topic, message id) is in the
    /// dedup window is not stored again: its first slot is answered, in whatever queue it is.
    Produce {
        /// The topic. The frames' own topic is the producer's and not looked at.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// The messages, in order. Their type must be the topic's. Delayed ones do not stand in
        /// the queue yet: see [`Command::DeliverDue`].
        frames: Vec<StoredFrame>,
    },
    /// Makes slots of the delayed messages that are due, the first ones first; they refer to the
    /// messages as they were sent. A leader's duty: of another term than the entry's own it does
    /// nothing.
    DeliverDue {
        /// The leader's wall clock, milliseconds since the Unix epoch: what is due then.
        until_ms: u64,
        /// How many at most.
        count: u32,
    },
    /// Takes back a delayed message: it will never be delivered. Once it stands in its queue it
    /// is too late.
    Recall {
        /// Its topic.
        topic: TopicName,
        /// When it is due, milliseconds since the Unix epoch.
        due_ms: u64,
        /// Its identity.
        message: MessageRef,
    },
    /// Stores messages of transactions, all or nothing, as [`Command::Produce`] does. They are half:
    /// in nobody's sight until [`Command::EndTransaction`].
    Prepare {
        /// The topic, of type TRANSACTION.
        topic: TopicName,
        /// The queue in which they will stand.
        queue: QueueId,
        /// Log time after which their producer is asked for the first time, milliseconds.
        check_after_ms: u64,
        /// The messages.
        frames: Vec<StoredFrame>,
    },
    /// Commits a half message, which makes its slot (it refers to the message as it was sent), or
    /// drops it. Ended so before, and not too long ago, it is answered again.
    EndTransaction {
        /// Its topic.
        topic: TopicName,
        /// Its identity.
        message: MessageRef,
        /// Committed, or rolled back.
        commit: bool,
    },
    /// Notes that the producers of half messages are asked whose time has come, and answers which
    /// these are. One that was asked for as often as allowed is parked instead: nobody is asked any
    /// more, and it waits for a [`Command::EndTransaction`]. A leader's duty.
    CheckTransactions {
        /// How many at most.
        count: u32,
        /// Log time until the next check of each, milliseconds.
        next_after_ms: u64,
        /// After so many checks a half message is parked.
        checks_max: u32,
    },
    /// Sets the level at which sends to a topic are answered.
    SetTopicLevel {
        /// Its name.
        name: TopicName,
        /// The level; what is `None` is as the group of brokers has it.
        level: TopicLevel,
    },
    /// Sets how long a topic keeps messages, where that is shorter than the log keeps them.
    SetTopicRetention {
        /// Its name.
        name: TopicName,
        /// Milliseconds of log time; `None` or 0: as long as the log does.
        retention_ms: Option<u64>,
    },
    /// Lets go of the slots of one topic that were made before a time: each of its queues' oldest offset moves up to the
    /// first one that stays, and so does what a group had not consumed. The bytes stay until the log lets go of their
    /// entries ([`Command::Trim`]). A leader's duty; repeated, it does nothing.
    TrimTopic {
        /// The topic's name.
        name: TopicName,
        /// Only in this life of it.
        uid: u64,
        /// Log time, milliseconds since the Unix epoch.
        before_ms: u64,
    },
    /// Notes which commands of this entry, by number, were answered before the entry was committed: if another leader
    /// overrides it, what they stored is lost although its senders were told otherwise. Changes nothing.
    AnsweredEarly {
        /// The numbers, from 0.
        commands: Vec<u32>,
    },
    /// Lets go of all entries before `below`: every slot made before `before_ms` of log time vanishes,
    /// each queue's oldest offset moves up to the first one that stays, and so does what a group had
    /// not consumed. Refused as long as something that stays refers to a message in those entries:
    /// [`Command::Carry`] those first. A leader's duty; repeated, or below an earlier one, it does
    /// nothing.
    Trim {
        /// The first log index that is kept.
        below: u64,
        /// More than the log time of every entry before `below`, milliseconds since the Unix epoch.
        before_ms: u64,
    },
    /// Writes messages again that something still refers to, so that their entries may go. They keep
    /// their identities; their slots are read from here from now on. What nothing refers to any more
    /// is left out. A leader's duty.
    Carry {
        /// The messages.
        messages: Vec<MessageRef>,
        /// Their frames, one for each, as they were.
        frames: Vec<StoredFrame>,
    },
    /// Fixes where a group stands in every queue of a topic that it has not met yet, by its
    /// [`StartPolicy`] and the queue bounds at this very place of the log. Queues it has met are
    /// left as they are, so repeating it is harmless.
    ///
    /// A broker **must** propose this when a group first polls a topic, before it answers the
    /// poll (`StoreReader::progress` says `is_pinned: false` for some queue), even when there is
    /// nothing to deliver: a consumer with `StartPolicy::Last` that polled once, before the
    /// messages were sent, must get those messages. [`Command::Deliver`] pins its one queue too.
    Touch {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
    },
    /// Hands messages of one queue to a consumer of the group. The leader chooses, the log
    /// decides: an offset is granted only if at the entry's log time it is
    /// - in flight and its invisible time has passed (a redelivery; in an ordered group also every
    ///   lower offset in flight is granted by this very command), or
    /// - next in line: the group's next offset, or a later one such that all between were looked
    ///   through (`skip`); never above the queue's end, never over
    ///   [`crate::limits::IN_FLIGHT_PER_QUEUE_MAX`], and in an ordered group only while
    ///   nothing is in flight.
    ///
    /// Anything else is left out of `granted`. A redelivery over the group's `max_deliveries`
    /// makes a slot in the group's dead-letter topic instead, and says so in its grant.
    Deliver {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// The client's id of this try: the same id again, while its messages are still
        /// invisible and not acknowledged, gets the same grants, and nothing else happens.
        attempt_id: Option<String>,
        /// Until when nobody else gets them, log time, milliseconds since the Unix epoch.
        invisible_until_ms: u64,
        /// Which, rising strictly: due ones and new ones.
        offsets: Vec<QueueOffset>,
        /// New ones in this range that are not among `offsets` did not pass the filter and count
        /// as consumed. Holds only if `from` is not above the group's next offset when the
        /// command is applied, so no message is passed over that nobody looked at. May stand
        /// alone, with no `offsets`.
        skip: Option<SkipRange>,
    },
    /// Acknowledges deliveries, each by its offset and sequence number.
    Ack {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// Offset and `seq` of each grant.
        receipts: Vec<(QueueOffset, u32)>,
    },
    /// Moves the end of a delivery's invisible time, and gives it a new sequence number. The same
    /// command again, while that was the delivery's last change, answers the same new number.
    ChangeInvisible {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// The message's offset.
        offset: QueueOffset,
        /// `seq` of its grant.
        seq: u32,
        /// The new end, log time, milliseconds since the Unix epoch. One that has passed makes
        /// the message due at once.
        invisible_until_ms: u64,
    },
    /// Sets where a group stands in a queue: everything below counts as consumed, everything from there
    /// on will be delivered, for the first time again. What was in flight in the queue is so no more,
    /// and its receipts are void. A group that has not met the queue has met it now.
    SetOffset {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// Where to.
        to: OffsetTarget,
    },
    /// Changes the settings of a group; what is in flight stays so.
    UpdateGroup {
        /// Its name.
        name: GroupName,
        /// What is changed.
        change: GroupChange,
    },
    /// Changes the settings of a topic. More queues are there at once, and groups that have met the topic
    /// begin at their first message. Fewer take no messages from now on, and go, the last one first, when
    /// every group that has met the topic has consumed them: repeat the command until they are gone.
    UpdateTopic {
        /// Its name.
        name: TopicName,
        /// How many queues it shall have.
        queue_count: Option<u32>,
        /// What may be done with it.
        permission: Option<Permission>,
    },
    /// Makes a message that counts as consumed by a group due again for it, as if never delivered before.
    Redeliver {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// The message's offset.
        offset: QueueOffset,
        /// The message that stands there.
        message: MessageRef,
    },
    /// Moves the end of the invisible time of deliveries without giving them new numbers: their receipts
    /// stay good. Those of other numbers are left alone. A leader's duty.
    Renew {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// Offset and `seq` of each delivery.
        deliveries: Vec<(QueueOffset, u32)>,
        /// Who holds them, as the leader knows its clients; kept with each, for the leader to come. Not 0.
        holder: u64,
        /// The new end, log time, milliseconds since the Unix epoch; an earlier one than before does nothing.
        invisible_until_ms: u64,
    },
    /// As [`Command::DeleteTopic`], if this very life of the topic is there.
    DropTopic {
        /// Its name.
        name: TopicName,
        /// Its number.
        uid: u64,
    },
    /// Drops the queues behind the writable ones that are drained, if this very life of the topic is there. A leader's duty:
    /// whoever asked for fewer queues need not ask again.
    DropDrained {
        /// The topic.
        name: TopicName,
        /// Its number.
        uid: u64,
    },
    /// How many message ids are kept to find repeated sends. A leader's duty, by its settings.
    SetDedupWindow {
        /// See [`crate::limits::DEDUP_ENTRIES_RANGE`].
        entries_max: u32,
    },
    /// Whether this broker group takes messages, in whatever topic. Without it everything else goes on: what is stored is
    /// delivered, delayed messages come due, transactions end.
    SetWritePermission {
        /// It does.
        is_writable: bool,
    },
    /// Sets which broker groups have which queues of a topic, if it is a newer word than the one that is known. In a topic with
    /// order it takes two steps; see [`TopicShares::is_moving`].
    SetTopicShares {
        /// The topic's name.
        name: TopicName,
        /// Its groups.
        shares: TopicShares,
    },
    /// Makes a dead letter of a delivered message at once, whatever its deliveries so far.
    DeadLetter {
        /// The group.
        group: GroupName,
        /// The topic.
        topic: TopicName,
        /// The queue.
        queue: QueueId,
        /// The message's offset.
        offset: QueueOffset,
        /// `seq` of its grant.
        seq: u32,
    },
    /// From here on entries mean what programs of this feature level make of them. A leader's duty, once every member of the group
    /// runs a program that supports it. One that does not stops here; a lower level than there is changes nothing.
    RaiseLevel {
        /// See [`crate::FEATURE_LEVEL`].
        level: u8,
    },
}
