//! What a replica counts while it works: an addition where something happens, nothing else.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_message::{GroupName, MessageType, TopicName};
use flotilla_metrics::Histogram;
use flotilla_runtime::Instant;
use flotilla_store::{Granted, Holding, ProducedSlot};

use super::label_table::LabelTable;

/// Upper bounds of message sizes, bytes.
const SIZE_BOUNDS: &[u64] =
    &[256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
/// Upper bounds of call times, microseconds.
const TIME_BOUNDS_US: &[u64] = &[
    500, 1_000, 3_000, 5_000, 7_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 2_000_000, 3_000_000, 10_000_000,
    30_000_000,
];
/// Calls with a histogram of their own, by their names between replicas; the others share one.
const TIMED_CALLS: [&str; 12] = [
    "SendMessage",
    "ReceiveMessage",
    "PullMessage",
    "UpdateOffset",
    "GetOffset",
    "ForwardMessageToDeadLetterQueue",
    "AckMessage",
    "ChangeInvisibleDuration",
    "EndTransaction",
    "RecallMessage",
    "QueryRoute",
    "QueryAssignment",
];
/// The name of the rest.
const OTHER_CALLS: &str = "other";

/// All that a replica counts.
#[derive(Debug)]
pub struct Counters {
    /// By topic.
    pub topics: LabelTable<TopicName, TopicCounters>,
    /// By group and topic.
    pub subscriptions: LabelTable<(GroupName, TopicName), SubscriptionCounters>,
    /// Sizes of stored messages as they are kept, bytes.
    pub message_bytes: Histogram,
    calls: Vec<(&'static str, Histogram)>,
    refused: [AtomicU64; Refused::ALL.len()],
    unknown_outcomes: AtomicU64,
    made: [AtomicU64; Made::ALL.len()],
    replica_reads: [AtomicU64; ReplicaRead::ALL.len()],
    /// Delayed messages stored, and delivered because their time had come.
    timers: [AtomicU64; 2],
    /// How late the oldest message of each round of deliveries was, microseconds.
    pub timer_lateness: Histogram,
    /// From half message to commit, microseconds.
    pub transaction_times: Histogram,
    /// Making a topic, making a group, microseconds.
    making: [Histogram; 2],
    /// Questions put to producers.
    checks: AtomicU64,
    elections_won: AtomicU64,
    leader_changes: AtomicU64,
    hand_overs: [[AtomicU64; 2]; HandOverCause::ALL.len()],
    /// When each namesrv took this replica's row for the last time.
    registered: Mutex<BTreeMap<String, Instant>>,
}

/// What happened to a topic.
#[derive(Debug, Default)]
pub struct TopicCounters {
    /// Messages stored, by type.
    pub messages_in: [AtomicU64; TYPES.len()],
    /// Their bytes.
    pub bytes_in: AtomicU64,
    /// Messages that were stored before and not stored again.
    pub duplicates: AtomicU64,
    /// Half messages committed.
    pub committed: AtomicU64,
    /// Half messages rolled back.
    pub rolled_back: AtomicU64,
}

/// The message types, in the order of [`TopicCounters::messages_in`].
pub const TYPES: [MessageType; 4] =
    [MessageType::Normal, MessageType::Fifo, MessageType::Delay, MessageType::Transaction];

/// What happened between a group and a topic.
#[derive(Debug, Default)]
pub struct SubscriptionCounters {
    /// Messages delivered for the first time.
    pub first_out: AtomicU64,
    /// Messages delivered again.
    pub retries_out: AtomicU64,
    /// Bytes of both.
    pub bytes_out: AtomicU64,
    /// Messages that became dead letters.
    pub dead_letters: AtomicU64,
}

/// Why a call was refused, surely without effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Nobody led while its caller had patience.
    NoLeader,
    /// Too many calls wait for a leader already.
    ParkingFull,
    /// Too many calls are passed on to the leader already.
    ForwardingFull,
    /// The log has no room: quota, or the disk.
    LogFull,
    /// Too many commands wait for a place in the log already.
    QueueFull,
    /// It passes the limit of an entry.
    TooLarge,
    /// Too many delayed or half messages wait already.
    HeldFull,
    /// A client has not read too many bytes of answers.
    UnreadClientFull,
    /// All clients together have not.
    UnreadFull,
}

impl Refused {
    /// All causes, in the order of their numbers.
    pub const ALL: [Refused; 9] = [
        Refused::NoLeader,
        Refused::ParkingFull,
        Refused::ForwardingFull,
        Refused::LogFull,
        Refused::QueueFull,
        Refused::TooLarge,
        Refused::HeldFull,
        Refused::UnreadClientFull,
        Refused::UnreadFull,
    ];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            Refused::NoLeader => "no_leader",
            Refused::ParkingFull => "parking_full",
            Refused::ForwardingFull => "forwarding_full",
            Refused::LogFull => "log_full",
            Refused::QueueFull => "queue_full",
            Refused::TooLarge => "too_large",
            Refused::HeldFull => "held_full",
            Refused::UnreadClientFull => "unread_client_full",
            Refused::UnreadFull => "unread_full",
        }
    }
}

/// What the first use of a name came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// A topic was made.
    Topic,
    /// None was made: there are too many.
    TopicRefused,
    /// A consumer group was made.
    Group,
    /// None was made: there are too many.
    GroupRefused,
}

impl Made {
    /// All of them, in the order of their numbers.
    pub const ALL: [Made; 4] = [Made::Topic, Made::TopicRefused, Made::Group, Made::GroupRefused];

    /// What and how, as monitoring names it.
    pub fn labels(self) -> [(&'static str, &'static str); 2] {
        let (kind, result) = match self {
            Made::Topic => ("topic", "made"),
            Made::TopicRefused => ("topic", "refused"),
            Made::Group => ("consumer_group", "made"),
            Made::GroupRefused => ("consumer_group", "refused"),
        };
        [("kind", kind), ("result", result)]
    }
}

/// What became of a pull at a follower, where any replica answers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReplicaRead {
    /// It was answered from this replica's log.
    Served,
    /// It was passed on to the leader, or elsewhere.
    PassedOn,
}

impl ReplicaRead {
    /// Both, in the order of their numbers.
    pub const ALL: [ReplicaRead; 2] = [ReplicaRead::Served, ReplicaRead::PassedOn];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            ReplicaRead::Served => "served",
            ReplicaRead::PassedOn => "passed_on",
        }
    }
}

/// Why leadership was handed over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HandOverCause {
    /// An operator asked for it.
    Operator,
    /// The replica stops.
    Stop,
    /// The replica finds itself unfit to lead.
    Unfit,
}

impl HandOverCause {
    /// All causes, in the order of their numbers.
    pub const ALL: [HandOverCause; 3] = [HandOverCause::Operator, HandOverCause::Stop, HandOverCause::Unfit];

    /// As monitoring names it.
    pub fn text(self) -> &'static str {
        match self {
            HandOverCause::Operator => "operator",
            HandOverCause::Stop => "stop",
            HandOverCause::Unfit => "unfit",
        }
    }
}

fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

fn micros(took: Duration) -> u64 {
    u64::try_from(took.as_micros()).unwrap_or(u64::MAX)
}

/// What a counter says now.
pub fn read(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

impl Counters {
    /// Nothing has happened. Topics, and pairs of group and topic, have rows of their own up to `labels_max` of each.
    pub fn new(labels_max: u64) -> Counters {
        let timed = TIMED_CALLS.into_iter().chain([OTHER_CALLS]);
        Counters {
            topics: LabelTable::new(labels_max),
            subscriptions: LabelTable::new(labels_max),
            message_bytes: Histogram::new(SIZE_BOUNDS),
            calls: timed.map(|name| (name, Histogram::new(TIME_BOUNDS_US))).collect(),
            refused: Default::default(),
            unknown_outcomes: AtomicU64::new(0),
            made: Default::default(),
            replica_reads: Default::default(),
            timers: Default::default(),
            timer_lateness: Histogram::new(TIME_BOUNDS_US),
            transaction_times: Histogram::new(TIME_BOUNDS_US),
            making: [Histogram::new(TIME_BOUNDS_US), Histogram::new(TIME_BOUNDS_US)],
            checks: AtomicU64::new(0),
            elections_won: AtomicU64::new(0),
            leader_changes: AtomicU64::new(0),
            hand_overs: Default::default(),
            registered: Mutex::default(),
        }
    }

    /// Messages were stored; `sizes` are those of their frames, in order.
    pub fn stored(&self, topic: &TopicName, message_type: MessageType, slots: &[ProducedSlot], sizes: &[usize]) {
        let row = self.topics.row(topic);
        let (mut count, mut bytes) = (0, 0);
        for (_, size) in slots.iter().zip(sizes).filter(|(slot, _)| !slot.duplicate) {
            count += 1;
            bytes += *size as u64;
            self.message_bytes.note(*size as u64);
        }
        let at = TYPES.iter().position(|known| *known == message_type).expect("all types are listed");
        add(&row.messages_in[at], count);
        add(&row.bytes_in, bytes);
        add(&row.duplicates, slots.len() as u64 - count);
        let is_delayed = |slot: &&ProducedSlot| !slot.duplicate && matches!(slot.held, Some(Holding::Until(_)));
        add(&self.timers[0], slots.iter().filter(is_delayed).count() as u64);
    }

    /// Messages were handed out, or became dead letters.
    pub fn delivered(&self, group: &GroupName, topic: &TopicName, granted: &[Granted]) {
        if granted.is_empty() {
            return;
        }
        let row = self.subscriptions.row(&(group.clone(), topic.clone()));
        for grant in granted {
            if grant.dead_lettered {
                add(&row.dead_letters, 1);
            } else {
                add(if grant.attempt > 1 { &row.retries_out } else { &row.first_out }, 1);
                add(&row.bytes_out, u64::from(grant.slot.length));
            }
        }
    }

    /// Messages were read by a pull.
    pub fn pulled(&self, group: &GroupName, topic: &TopicName, messages: u64, bytes: u64) {
        let row = self.subscriptions.row(&(group.clone(), topic.clone()));
        add(&row.first_out, messages);
        add(&row.bytes_out, bytes);
    }

    /// A consumer gave up on a message.
    pub fn given_up(&self, group: &GroupName, topic: &TopicName) {
        add(&self.subscriptions.row(&(group.clone(), topic.clone())).dead_letters, 1);
    }

    /// Delayed messages were delivered because their time had come; so late the oldest of them.
    pub fn due_delivered(&self, count: u64, oldest_late_ms: u64) {
        add(&self.timers[1], count);
        if count > 0 {
            self.timer_lateness.note(oldest_late_ms.saturating_mul(1_000));
        }
    }

    /// Delayed messages stored, and delivered because their time had come.
    pub fn timers(&self) -> (u64, u64) {
        (read(&self.timers[0]), read(&self.timers[1]))
    }

    /// Producers of so many half messages were to be asked what became of their transactions.
    pub fn checked(&self, count: u64) {
        add(&self.checks, count);
    }

    /// How often that happened.
    pub fn checks(&self) -> u64 {
        read(&self.checks)
    }

    /// A transaction ended; so long it was open, if that is known.
    pub fn transaction_ended(&self, topic: &TopicName, is_committed: bool, open_ms: Option<u64>) {
        let row = self.topics.row(topic);
        if let Some(open_ms) = open_ms.filter(|_| is_committed) {
            self.transaction_times.note(open_ms.saturating_mul(1_000));
        }
        add(if is_committed { &row.committed } else { &row.rolled_back }, 1);
    }

    /// A call was answered, whatever the answer.
    pub fn call_took(&self, method: &str, took: Duration) {
        let last = self.calls.len() - 1;
        let at = self.calls[..last].iter().position(|(name, _)| *name == method).unwrap_or(last);
        self.calls[at].1.note(micros(took));
    }

    /// A topic was made, or a group, by an operator or by its first use.
    pub fn making_took(&self, is_topic: bool, took: Duration) {
        self.making[usize::from(!is_topic)].note(micros(took));
    }

    /// Times of making topics, and of making groups.
    pub fn making(&self) -> &[Histogram; 2] {
        &self.making
    }

    /// Times of calls by their names.
    pub fn calls(&self) -> impl Iterator<Item = (&'static str, &Histogram)> {
        self.calls.iter().map(|(name, times)| (*name, times))
    }

    /// A follower was asked to answer a pull.
    pub fn replica_read(&self, what: ReplicaRead) {
        add(&self.replica_reads[what as usize], 1);
    }

    /// How many of them.
    pub fn replica_reads(&self, what: ReplicaRead) -> u64 {
        read(&self.replica_reads[what as usize])
    }

    /// A call, or so many commands, were refused.
    pub fn refused(&self, cause: Refused, count: u64) {
        add(&self.refused[cause as usize], count);
    }

    /// How often calls were refused for this cause.
    pub fn refusals(&self, cause: Refused) -> u64 {
        read(&self.refused[cause as usize])
    }

    /// A topic or group was made by its first use, or was not because there are too many.
    pub fn made(&self, what: Made) {
        add(&self.made[what as usize], 1);
    }

    /// How often that happened.
    pub fn made_count(&self, what: Made) -> u64 {
        read(&self.made[what as usize])
    }

    /// A caller was told that nobody knows whether its call was executed.
    pub fn outcome_unknown(&self) {
        add(&self.unknown_outcomes, 1);
    }

    /// How often that happened.
    pub fn unknown_outcomes(&self) -> u64 {
        read(&self.unknown_outcomes)
    }

    /// Another leader, or none, is known than before; perhaps it is this replica.
    pub fn leader_changed(&self, is_own: bool) {
        add(&self.leader_changes, 1);
        add(&self.elections_won, u64::from(is_own));
    }

    /// How often the leader changed, and how often it was this replica that came to lead.
    pub fn leader_changes(&self) -> (u64, u64) {
        (read(&self.leader_changes), read(&self.elections_won))
    }

    /// This replica handed its leadership over, or failed to.
    pub fn handed_over(&self, cause: HandOverCause, is_done: bool) {
        add(&self.hand_overs[cause as usize][usize::from(is_done)], 1);
    }

    /// A namesrv has taken this replica's row.
    pub fn registered_at(&self, namesrv: &str, now: Instant) {
        let mut registered = self.registered.lock().expect(LOCK);
        match registered.get_mut(namesrv) {
            Some(at) => *at = now,
            None => drop(registered.insert(namesrv.to_owned(), now)),
        }
    }

    /// How long ago a namesrv took this replica's row; `None` if it never did.
    pub fn unregistered_for(&self, namesrv: &str, now: Instant) -> Option<Duration> {
        self.registered.lock().expect(LOCK).get(namesrv).map(|at| now.saturating_since(*at))
    }

    /// How often leadership was handed over for this cause, and how often that failed.
    pub fn hand_overs(&self, cause: HandOverCause) -> (u64, u64) {
        let [failed, done] = &self.hand_overs[cause as usize];
        (read(done), read(failed))
    }
}

const LOCK: &str = "registration lock is never poisoned: no code panics while holding it";

#[cfg(test)]
mod tests {
    use flotilla_message::{MessageRef, QueueId, QueueOffset};
    use flotilla_store::Slot;

    use super::*;

    fn slot(duplicate: bool) -> ProducedSlot {
        let message = MessageRef { index: 1, ordinal: 0 };
        ProducedSlot { queue: QueueId(0), offset: QueueOffset(0), message, duplicate, held: None }
    }

    #[test]
    fn a_duplicate_is_counted_apart_and_costs_no_bytes() {
        let (counters, topic) = (Counters::new(10), TopicName::try_from("orders").expect("a name"));
        counters.stored(&topic, MessageType::Fifo, &[slot(false), slot(true), slot(false)], &[100, 1000, 50]);
        let row = counters.topics.row(&topic);
        assert_eq!(row.messages_in.each_ref().map(read), [0, 2, 0, 0]);
        assert_eq!((read(&row.bytes_in), read(&row.duplicates)), (150, 1));
    }

    #[test]
    fn first_deliveries_retries_and_dead_letters_are_told_apart() {
        let counters = Counters::new(10);
        let (group, topic) = (GroupName::try_from("g").expect("a name"), TopicName::try_from("t").expect("a name"));
        let message = MessageRef { index: 1, ordinal: 0 };
        let slot =
            Slot { message, entry: 1, position: 0, length: 7, tag_hash: 0, stored_at_ms: 1, is_reference: false };
        let grant = |attempt, dead_lettered| Granted { offset: QueueOffset(0), slot, attempt, seq: 1, dead_lettered };
        counters.delivered(&group, &topic, &[grant(1, false), grant(2, false), grant(3, false), grant(3, true)]);
        let row = counters.subscriptions.row(&(group, topic));
        let all = [&row.first_out, &row.retries_out, &row.dead_letters, &row.bytes_out].map(read);
        assert_eq!(all, [1, 2, 1, 21]);
    }

    #[test]
    fn every_cause_has_its_own_place() {
        let counters = Counters::new(1);
        for (at, cause) in (1..).zip(Refused::ALL) {
            counters.refused(cause, at);
        }
        for (at, cause) in (1..).zip(Refused::ALL) {
            assert_eq!(counters.refusals(cause), at, "{}", cause.text());
        }
        for cause in HandOverCause::ALL {
            counters.handed_over(cause, true);
            assert_eq!(counters.hand_overs(cause), (1, 0), "{}", cause.text());
        }
        counters.call_took("DescribeTopic", Duration::from_millis(1));
        let counted: Vec<_> = counters.calls().filter(|(_, times)| times.buckets(1.0).sum > Some(0.0)).collect();
        assert_eq!(counted.len(), 1);
        assert_eq!(counted[0].0, OTHER_CALLS);
    }
}
