//! The history on disk: one JSON object a line, an operation's invocation and its outcome each one event.
//!
//! Written as it happens, so that a harness that dies still leaves a history. Field names follow
//! the habit of Jepsen's histories (`index`, `time`, `process`, `type`, `f`).

use std::io::{BufRead, Write};

use serde::{Deserialize, Serialize};

use crate::{Ack, Delivery, Dump, Leadership, QueueBegin, Task};

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// Dense from 0.
    pub index: u64,
    /// Nanoseconds on the harness's own monotonic clock.
    #[serde(rename = "time")]
    pub time_ns: u64,
    /// Who did it: a client, a consumer, or the harness itself.
    pub process: String,
    /// Where the operation stands.
    #[serde(rename = "type")]
    pub kind: EventKind,
    /// What was done.
    #[serde(flatten)]
    pub operation: Operation,
}

/// Where an operation stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EventKind {
    /// It begins.
    Invoke,
    /// It surely happened.
    Ok,
    /// It surely did not happen.
    Fail,
    /// It may have happened, or may still happen.
    #[serde(rename = "info")]
    Unknown,
}

/// What was done. The same variant stands in an invocation and in its outcome.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "f", content = "value", rename_all = "kebab-case")]
pub enum Operation {
    /// A message is given to a producer.
    Send {
        /// Its id, unique in the run.
        message_id: String,
        /// Only in an `ok`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ack: Option<Ack>,
    },
    /// A consumer got these, in this order.
    Receive {
        /// In the order of their coming.
        deliveries: Vec<Delivery>,
    },
    /// A reader saw these on some replica, in passing.
    Look {
        /// In no order.
        sightings: Vec<Delivery>,
    },
    /// Where queues begin at the end. What stood before was let go, as the settings say.
    Begins {
        /// Each at most once.
        queues: Vec<QueueBegin>,
    },
    /// A replica was seen to lead.
    Leader(Leadership),
    /// A replica's state at the end.
    Dump(Dump),
    /// Something else was done with messages. One process has at most one at a time.
    Task(Task),
    /// The nemesis did something.
    Fault {
        /// What.
        name: String,
        /// To which replicas.
        targets: Vec<u64>,
    },
}

/// Why a history cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HistoryError {
    /// A line that is no event.
    #[error("line {line} of the history is not an event: {source}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// A completion without an invocation.
    #[error("event {index}: process {process} completes a send that it did not invoke")]
    NotInvoked {
        /// Which event.
        index: u64,
        /// Whose.
        process: String,
    },
    /// Two sends of one process at a time.
    #[error("event {index}: process {process} invokes a send while another of its sends is open")]
    Overlapping {
        /// Which event.
        index: u64,
        /// Whose.
        process: String,
    },
    /// An acknowledgement that does not say where.
    #[error("event {index}: an acknowledged send names no queue and offset")]
    AckWithoutPlace {
        /// Which event.
        index: u64,
    },
    /// Reading or writing failed.
    #[error("the history cannot be read or written: {0}")]
    Io(#[from] std::io::Error),
}

/// Collects events and numbers them.
#[derive(Debug, Default)]
pub struct Recorder {
    events: Vec<Event>,
}

impl Recorder {
    /// Adds one event with the next index.
    pub fn record(&mut self, time_ns: u64, process: impl Into<String>, kind: EventKind, operation: Operation) {
        let index = self.events.len() as u64;
        self.events.push(Event { index, time_ns, process: process.into(), kind, operation });
    }

    /// What was recorded so far.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// What was recorded.
    pub fn into_events(self) -> Vec<Event> {
        self.events
    }
}

/// Writes one line per event.
///
/// # Errors
/// What `target` answers.
pub fn write_json_lines(events: &[Event], mut target: impl Write) -> Result<(), HistoryError> {
    for event in events {
        serde_json::to_writer(&mut target, event).map_err(std::io::Error::from)?;
        target.write_all(b"\n")?;
    }
    Ok(())
}

/// Reads what [`write_json_lines`] wrote; empty lines are passed over.
///
/// # Errors
/// [`HistoryError::Malformed`] names the first bad line, counted from 1.
pub fn read_json_lines(source: impl BufRead) -> Result<Vec<Event>, HistoryError> {
    let mut events = Vec::new();
    for (at, line) in source.lines().enumerate() {
        let line = line?;
        if line.trim().is_empty() {
            continue;
        }
        let event = serde_json::from_str(&line).map_err(|source| HistoryError::Malformed { line: at + 1, source })?;
        events.push(event);
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{History, QueueBegin, QueueDump, QueueKey, SendOutcome, SlotDump};

    fn send(id: &str, ack: Option<Ack>) -> Operation {
        Operation::Send { message_id: id.into(), ack }
    }

    fn sample() -> Vec<Event> {
        let queue = QueueKey::new("t", 1);
        let mut recorder = Recorder::default();
        recorder.record(1, "p-1", EventKind::Invoke, send("a", None));
        recorder.record(2, "p-2", EventKind::Invoke, send("b", None));
        recorder.record(
            3,
            "nemesis",
            EventKind::Unknown,
            Operation::Fault { name: "power-loss".into(), targets: vec![2] },
        );
        recorder.record(4, "p-1", EventKind::Ok, send("a", Some(Ack::at(queue.clone(), u64::MAX))));
        recorder.record(5, "p-2", EventKind::Fail, send("b", None));
        recorder.record(6, "p-2", EventKind::Invoke, send("c", None));
        let delivery = Delivery::new("c-1", queue.clone(), 0, "a");
        recorder.record(7, "c-1", EventKind::Ok, Operation::Receive { deliveries: vec![delivery.clone()] });
        recorder.record(8, "c-2", EventKind::Ok, Operation::Look { sightings: vec![delivery] });
        let begins = vec![QueueBegin { queue: queue.clone(), offset: 7 }];
        recorder.record(9, "drain", EventKind::Ok, Operation::Begins { queues: begins });
        recorder.record(9, "sim", EventKind::Ok, Operation::Leader(Leadership { term: 3, leader: 1 }));
        let slots = vec![SlotDump { offset: 0, message_id: "a".into(), log_index: 4, ordinal: 0 }];
        let queues = vec![QueueDump { queue, offset_min: 0, slots }];
        recorder.record(
            10,
            "sim",
            EventKind::Ok,
            Operation::Dump(Dump { replica: 1, applied_index: 9, digest: "ff".into(), queues }),
        );
        recorder.into_events()
    }

    #[test]
    fn events_survive_the_way_through_json_lines() {
        let events = sample();
        let mut text = Vec::new();
        write_json_lines(&events, &mut text).unwrap();
        assert!(text.starts_with(br#"{"index":0,"time":1,"process":"p-1","type":"invoke","f":"send","#));
        assert_eq!(read_json_lines(text.as_slice()).unwrap(), events);
    }

    #[test]
    fn a_malformed_line_is_named() {
        let error = read_json_lines("\n{\"index\":0}\n".as_bytes()).unwrap_err();
        assert!(error.to_string().starts_with("line 2 of the history"), "{error}");
    }

    #[test]
    fn invocations_are_paired_and_an_open_send_is_unknown() {
        let history = History::from_events(&sample()).unwrap();
        let outcomes: Vec<_> =
            history.sends.iter().map(|s| (s.message_id.as_str(), &s.outcome, s.completed_ns)).collect();
        let acked = SendOutcome::Acked(Ack::at(QueueKey::new("t", 1), u64::MAX));
        assert_eq!(
            outcomes,
            [("a", &acked, 4), ("b", &SendOutcome::Refused, 5), ("c", &SendOutcome::Unknown, u64::MAX)]
        );
        assert_eq!(
            (history.deliveries.len(), history.sightings.len(), history.dumps.len(), history.leaders.len()),
            (1, 1, 1, 1)
        );
    }

    #[test]
    fn events_that_cannot_be_paired_are_refused() {
        let mut recorder = Recorder::default();
        recorder.record(1, "p", EventKind::Ok, send("a", None));
        assert!(matches!(History::from_events(recorder.events()), Err(HistoryError::NotInvoked { index: 0, .. })));
        let mut recorder = Recorder::default();
        recorder.record(1, "p", EventKind::Invoke, send("a", None));
        recorder.record(2, "p", EventKind::Invoke, send("b", None));
        assert!(matches!(History::from_events(recorder.events()), Err(HistoryError::Overlapping { index: 1, .. })));
        let mut recorder = Recorder::default();
        recorder.record(1, "p", EventKind::Invoke, send("a", None));
        recorder.record(2, "p", EventKind::Ok, send("a", None));
        assert!(matches!(History::from_events(recorder.events()), Err(HistoryError::AckWithoutPlace { index: 1 })));
    }
}
