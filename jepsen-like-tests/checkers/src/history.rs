//! What was seen in one run, as plain data: sends and their outcomes, deliveries, dumps, leaders.

use serde::{Deserialize, Serialize};

use crate::{Dump, Event, EventKind, HistoryError, Operation, TaskOutcome, TaskRun};

/// A queue's name: topic and number.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct QueueKey {
    /// Topic.
    pub topic: String,
    /// Number in the topic, from 0.
    pub queue: u32,
}

impl QueueKey {
    /// The queue of that name.
    pub fn new(topic: impl Into<String>, queue: u32) -> QueueKey {
        QueueKey { topic: topic.into(), queue }
    }
}

impl std::fmt::Display for QueueKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.topic, self.queue)
    }
}

/// The first offset that a queue has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueBegin {
    /// Queue.
    pub queue: QueueKey,
    /// Everything before it was let go.
    pub offset: u64,
}

/// Where an acknowledgement said the message went. Term, leader and log index only if the server
/// told them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Queue.
    pub queue: QueueKey,
    /// Offset in the queue.
    pub offset: u64,
    /// Term of the entry.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub term: Option<u64>,
    /// Who acknowledged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leader: Option<u64>,
    /// The entry that holds the message.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_index: Option<u64>,
    /// Given before the entry was committed: the message may be gone with its leader, see [`early_ack`](crate::early_ack).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub early: bool,
}

impl Ack {
    /// An acknowledgement that names the place and nothing else.
    pub fn at(queue: QueueKey, offset: u64) -> Ack {
        Ack { queue, offset, term: None, leader: None, log_index: None, early: false }
    }
}

/// How a send ended. When in doubt it is `Unknown`: a wrong `Refused` shows up as a phantom.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SendOutcome {
    /// Acknowledged: it must never be lost.
    Acked(Ack),
    /// Surely not stored, now or later.
    Refused,
    /// Timed out, broken off, or never answered: it may or may not be stored.
    Unknown,
}

/// One message handed to a producer, over all its attempts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Send {
    /// Unique in the run.
    pub message_id: String,
    /// Who sent it. Sends of one process never overlap in time.
    pub process: String,
    /// Nanoseconds on the harness's own monotonic clock; 0 if not known.
    pub invoked_ns: u64,
    /// When the outcome was known; `u64::MAX` if it never was.
    pub completed_ns: u64,
    /// How it ended.
    pub outcome: SendOutcome,
}

impl Send {
    /// A send of which only the outcome is known. [`real_time_order`](crate::real_time_order)
    /// passes over it.
    pub fn new(message_id: impl Into<String>, outcome: SendOutcome) -> Send {
        Send { message_id: message_id.into(), process: String::new(), invoked_ns: 0, completed_ns: u64::MAX, outcome }
    }

    /// The same send with its times on the harness's clock.
    pub fn timed(mut self, invoked_ns: u64, completed_ns: u64) -> Send {
        self.invoked_ns = invoked_ns;
        self.completed_ns = completed_ns;
        self
    }

    /// The acknowledgement, if there was one.
    pub fn ack(&self) -> Option<&Ack> {
        match &self.outcome {
            SendOutcome::Acked(ack) => Some(ack),
            SendOutcome::Refused | SendOutcome::Unknown => None,
        }
    }
}

/// One sighting of a message at a place in a queue, by a consumer or by a reader of a replica.
/// The order in a slice is the order in which its consumer saw them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivery {
    /// Who saw it; order is judged for each consumer by itself.
    pub consumer: String,
    /// Queue.
    pub queue: QueueKey,
    /// Offset in the queue.
    pub offset: u64,
    /// Which message.
    pub message_id: String,
    /// 1 for a first delivery; above that the server repeats itself, which at-least-once allows, and
    /// order is not judged.
    #[serde(default = "first_attempt")]
    pub attempt: u32,
    /// When it was asked for, as far as the history tells: at an invocation of the same process. Else 0.
    #[serde(skip)]
    pub asked_ns: u64,
    /// When it was first asked for: the first invocation of the same process since its last one that was answered. Else 0.
    #[serde(skip)]
    pub begun_ns: u64,
    /// When it came. Not written: the event has it.
    #[serde(skip)]
    pub received_ns: u64,
}

fn first_attempt() -> u32 {
    1
}

impl Delivery {
    /// A first delivery.
    pub fn new(consumer: impl Into<String>, queue: QueueKey, offset: u64, message_id: impl Into<String>) -> Delivery {
        Delivery {
            consumer: consumer.into(),
            queue,
            offset,
            message_id: message_id.into(),
            attempt: first_attempt(),
            asked_ns: 0,
            begun_ns: 0,
            received_ns: 0,
        }
    }

    /// The same sighting with its times on the harness's clock.
    pub fn received(mut self, asked_ns: u64, received_ns: u64) -> Delivery {
        self.asked_ns = asked_ns;
        self.received_ns = received_ns;
        self
    }

    /// The same sighting as the server's `attempt`-th delivery of the message.
    pub fn on_attempt(mut self, attempt: u32) -> Delivery {
        self.attempt = attempt;
        self
    }
}

/// Somebody's sight of a leader.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Leadership {
    /// The term.
    pub term: u64,
    /// Who led.
    pub leader: u64,
}

/// A log entry as one replica applied it: which payload stood at (index, term).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct EntrySeen {
    /// Who applied it.
    pub replica: u64,
    /// At which place of the log.
    pub index: u64,
    /// The term.
    pub term: u64,
    /// Any hash of the payload, the same function for all replicas.
    pub payload_hash: u64,
}

/// Everything one run has to show to the properties. Parts that a harness cannot see stay empty;
/// the properties over them then hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct History {
    /// Everything that was sent.
    pub sends: Vec<Send>,
    /// What consumers got, in each consumer's own order.
    pub deliveries: Vec<Delivery>,
    /// What readers saw in passing on a replica (order means nothing, but nothing may be taken back).
    pub sightings: Vec<Delivery>,
    /// Where queues begin at the end, if anything was let go on purpose.
    pub begins: Vec<QueueBegin>,
    /// Each replica's queues at the end, after all faults are healed.
    pub dumps: Vec<Dump>,
    /// Every leader that anybody saw.
    pub leaders: Vec<Leadership>,
    /// Every entry that a replica was seen to apply.
    pub entries: Vec<EntrySeen>,
    /// What else was done with messages.
    pub tasks: Vec<TaskRun>,
}

impl History {
    /// Pairs invocations with completions. A send that was never completed is unknown.
    ///
    /// # Errors
    /// If a process completes what it did not begin, or begins a second send before the end of its
    /// first.
    pub fn from_events(events: &[Event]) -> Result<History, HistoryError> {
        let mut history = History::default();
        let mut open: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        let mut asked: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        let mut begun: std::collections::BTreeMap<&str, u64> = std::collections::BTreeMap::new();
        let mut tasks: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        for event in events {
            match (&event.operation, event.kind) {
                (Operation::Receive { .. }, EventKind::Invoke) => {
                    asked.insert(event.process.as_str(), event.time_ns);
                    begun.entry(event.process.as_str()).or_insert(event.time_ns);
                }
                (Operation::Task(task), EventKind::Invoke) => {
                    tasks.insert(event.process.as_str(), history.tasks.len());
                    history.tasks.push(TaskRun {
                        task: task.clone(),
                        invoked_ns: event.time_ns,
                        completed_ns: u64::MAX,
                        outcome: TaskOutcome::Unknown,
                    });
                }
                (Operation::Task(task), kind) => {
                    let unpaired = || HistoryError::NotInvoked { index: event.index, process: event.process.clone() };
                    let at = tasks.remove(event.process.as_str()).ok_or_else(unpaired)?;
                    let run = &mut history.tasks[at];
                    run.task = task.clone();
                    run.completed_ns = event.time_ns;
                    run.outcome = match kind {
                        EventKind::Ok => TaskOutcome::Done,
                        EventKind::Fail => TaskOutcome::Refused,
                        EventKind::Unknown | EventKind::Invoke => TaskOutcome::Unknown,
                    };
                }
                (Operation::Send { message_id, .. }, EventKind::Invoke) => {
                    let at = history.sends.len();
                    if open.insert(event.process.as_str(), at).is_some() {
                        return Err(HistoryError::Overlapping { index: event.index, process: event.process.clone() });
                    }
                    let mut send = Send::new(message_id.clone(), SendOutcome::Unknown);
                    send.process.clone_from(&event.process);
                    history.sends.push(send.timed(event.time_ns, u64::MAX));
                }
                (Operation::Send { message_id, ack }, kind) => {
                    let unpaired = || HistoryError::NotInvoked { index: event.index, process: event.process.clone() };
                    let at = open.remove(event.process.as_str()).ok_or_else(unpaired)?;
                    let send = &mut history.sends[at];
                    if send.message_id != *message_id {
                        return Err(unpaired());
                    }
                    send.outcome = match (kind, ack) {
                        (EventKind::Ok, Some(ack)) => SendOutcome::Acked(ack.clone()),
                        (EventKind::Ok, None) => return Err(HistoryError::AckWithoutPlace { index: event.index }),
                        (EventKind::Fail, _) => SendOutcome::Refused,
                        (EventKind::Unknown | EventKind::Invoke, _) => SendOutcome::Unknown,
                    };
                    send.completed_ns = event.time_ns;
                }
                (Operation::Receive { deliveries }, EventKind::Ok) => {
                    let asked_ns = asked.get(event.process.as_str()).copied().unwrap_or(0);
                    let begun_ns = begun.remove(event.process.as_str()).unwrap_or(0);
                    let timed = deliveries
                        .iter()
                        .map(|seen| Delivery { begun_ns, ..seen.clone().received(asked_ns, event.time_ns) });
                    history.deliveries.extend(timed);
                }
                (Operation::Look { sightings }, EventKind::Ok) => history.sightings.extend(sightings.iter().cloned()),
                (Operation::Begins { queues }, EventKind::Ok) => history.begins.extend(queues.iter().cloned()),
                (Operation::Leader(leadership), EventKind::Ok) => history.leaders.push(leadership.clone()),
                (Operation::Dump(dump), EventKind::Ok) => history.dumps.push(dump.clone()),
                (
                    Operation::Receive { .. }
                    | Operation::Look { .. }
                    | Operation::Begins { .. }
                    | Operation::Leader(_)
                    | Operation::Dump(_)
                    | Operation::Fault { .. },
                    _,
                ) => {}
            }
        }
        Ok(history)
    }
}
