//! A history in the form of Jepsen's own: EDN, one operation a line, as its checkers of queues and logs read it.
//!
//! Views of the same run: `history.edn` as `jepsen.tests.kafka` has it (`:send` and `:poll` with keys, offsets and
//! values), `queue.edn` as `total-queue` has it (`:enqueue` and `:dequeue`), `registers.edn` as `jepsen.independent` has
//! many registers (`:read` and `:write` of `[register value]`). Queues become whole numbers (`keys.edn`), so do
//! messages: their number in the run, or one below zero for what nobody sent.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use flotilla_checkers::{Event, EventKind, History, HistoryError, Operation, QueueKey, SendOutcome, Task};

/// The files' texts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Edn {
    /// `history.edn`.
    pub history: String,
    /// `queue.edn`.
    pub queue: String,
    /// `keys.edn`.
    pub keys: String,
    /// `registers.edn`.
    pub registers: String,
}

/// Numbers for names, in the order of their first use.
#[derive(Default)]
struct Numbers {
    queues: BTreeMap<QueueKey, u64>,
    processes: BTreeMap<String, u64>,
    strangers: BTreeMap<String, i64>,
    /// Which queue a message went to, where anybody knows.
    places: BTreeMap<String, QueueKey>,
}

impl Numbers {
    fn queue(&mut self, queue: &QueueKey) -> u64 {
        let next = self.queues.len() as u64;
        *self.queues.entry(queue.clone()).or_insert(next)
    }

    fn process(&mut self, name: &str) -> u64 {
        let next = self.processes.len() as u64;
        *self.processes.entry(name.to_owned()).or_insert(next)
    }

    fn message(&mut self, id: &str) -> i64 {
        let own = id.split_once('-').filter(|(seed, _)| u64::from_str_radix(seed, 16).is_ok());
        if let Some(number) = own.and_then(|(_, number)| number.parse::<i64>().ok()) {
            return number;
        }
        let next = -1 - self.strangers.len() as i64;
        *self.strangers.entry(id.to_owned()).or_insert(next)
    }

    /// A send of unknown outcome that nobody saw has no queue: Jepsen's checkers take any key for it.
    fn key_of(&mut self, id: &str) -> u64 {
        let queue = self.places.get(id).cloned().unwrap_or_else(|| QueueKey::new("unknown", 0));
        self.queue(&queue)
    }
}

/// Both views of a history.
///
/// # Errors
/// [`HistoryError`] if the history contradicts itself.
pub fn edn(events: &[Event]) -> Result<Edn, HistoryError> {
    let paired = History::from_events(events)?;
    let mut numbers = Numbers::default();
    for delivery in &paired.deliveries {
        numbers.places.entry(delivery.message_id.clone()).or_insert_with(|| delivery.queue.clone());
    }
    for send in &paired.sends {
        if let SendOutcome::Acked(ack) = &send.outcome {
            numbers.places.insert(send.message_id.clone(), ack.queue.clone());
        }
    }
    let mut edn = Edn { registers: registers(events), ..Edn::default() };
    let (mut history_index, mut queue_index) = (0_u64, 0_u64);
    for event in events {
        let time = event.time_ns;
        let kind = match event.kind {
            EventKind::Invoke => "invoke",
            EventKind::Ok => "ok",
            EventKind::Fail => "fail",
            EventKind::Unknown => "info",
        };
        let mut history = |process: &str, kind: &str, f: &str, value: &str, more: &str| {
            let _ = writeln!(
                edn.history,
                "{{:index {history_index}, :time {time}, :process {process}, :type :{kind}, :f :{f}, :value {value}{more}}}"
            );
            history_index += 1;
        };
        let mut queue = |process: &str, kind: &str, f: &str, value: &str| {
            let _ = writeln!(
                edn.queue,
                "{{:index {queue_index}, :time {time}, :process {process}, :type :{kind}, :f :{f}, :value {value}}}"
            );
            queue_index += 1;
        };
        match &event.operation {
            Operation::Send { message_id, ack } => {
                let (process, value) = (numbers.process(&event.process).to_string(), numbers.message(message_id));
                let key = numbers.key_of(message_id);
                let (sent, more) = match ack {
                    Some(ack) => {
                        let mut more = String::new();
                        for (name, number) in [("term", ack.term), ("leader", ack.leader), ("log-index", ack.log_index)]
                        {
                            if let Some(number) = number {
                                let _ = write!(more, ", :{name} {number}");
                            }
                        }
                        (format!("[[:send {key} [{} {value}]]]", ack.offset), more)
                    }
                    None => (format!("[[:send {key} {value}]]"), String::new()),
                };
                history(&process, kind, "send", &sent, &more);
                queue(&process, kind, "enqueue", &value.to_string());
            }
            Operation::Receive { deliveries } if event.kind == EventKind::Ok => {
                let process = numbers.process(&event.process).to_string();
                let mut polled: BTreeMap<u64, Vec<(u64, i64)>> = BTreeMap::new();
                for delivery in deliveries {
                    let value = numbers.message(&delivery.message_id);
                    polled.entry(numbers.queue(&delivery.queue)).or_default().push((delivery.offset, value));
                    queue(&process, "invoke", "dequeue", "nil");
                    queue(&process, "ok", "dequeue", &value.to_string());
                }
                let polled: Vec<String> = polled
                    .into_iter()
                    .map(|(key, pairs)| {
                        let pairs: Vec<String> =
                            pairs.into_iter().map(|(offset, value)| format!("[{offset} {value}]")).collect();
                        format!("{key} [{}]", pairs.join(" "))
                    })
                    .collect();
                // The history has what a poll brought; that it began is said here, at the same time.
                history(&process, "invoke", "poll", "[[:poll]]", "");
                history(&process, "ok", "poll", &format!("[[:poll {{{}}}]]", polled.join(", ")), "");
            }
            Operation::Fault { name, targets } => {
                let nodes: Vec<String> = targets.iter().map(|node| format!("\"b{node}\"")).collect();
                let (f, value) = (name.replace(' ', "-"), format!("[{}]", nodes.join(" ")));
                // Jepsen's nemesis begins and ends with `info`.
                history(":nemesis", "info", &f, &value, "");
                queue(":nemesis", "info", &f, &value);
            }
            Operation::Receive { .. }
            | Operation::Look { .. }
            | Operation::Begins { .. }
            | Operation::Leader(_)
            | Operation::Dump(_)
            | Operation::Task(_) => {}
        }
    }
    let keys: Vec<String> = numbers.queues.iter().map(|(queue, number)| format!("{number} \"{queue}\"")).collect();
    edn.keys = format!("{{{}}}\n", keys.join(", "));
    Ok(edn)
}

/// The calls to registers. Jepsen's processes do nothing more after an operation of unknown outcome: who goes on here is
/// another one there.
fn registers(events: &[Event]) -> String {
    let mut numbers = Numbers::default();
    let mut crashes: BTreeMap<&str, u64> = BTreeMap::new();
    let (mut text, mut index) = (String::new(), 0);
    for event in events {
        let (f, register, value) = match &event.operation {
            Operation::Task(Task::SetRegister { register, value }) => ("write", register, Some(*value)),
            Operation::Task(Task::ReadRegister { register, value }) => ("read", register, *value),
            _ => continue,
        };
        let crashed = crashes.entry(&event.process).or_default();
        let process = numbers.process(&format!("{} {crashed}", event.process));
        let kind = match event.kind {
            EventKind::Invoke => "invoke",
            EventKind::Ok => "ok",
            EventKind::Fail => "fail",
            EventKind::Unknown => {
                *crashed += 1;
                "info"
            }
        };
        let value = value.map_or("nil".to_owned(), |value| value.to_string());
        let time = event.time_ns;
        let _ = writeln!(
            text,
            "{{:index {index}, :time {time}, :process {process}, :type :{kind}, :f :{f}, :value [\"{register}\" {value}]}}"
        );
        index += 1;
    }
    text
}

impl Edn {
    /// Writes the files into a folder.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        std::fs::write(dir.join("history.edn"), &self.history)?;
        std::fs::write(dir.join("queue.edn"), &self.queue)?;
        std::fs::write(dir.join("registers.edn"), &self.registers)?;
        std::fs::write(dir.join("keys.edn"), &self.keys)
    }
}

#[cfg(test)]
mod tests {
    use flotilla_checkers::{Ack, Delivery, Recorder};

    use super::*;

    #[test]
    fn operations_become_the_lines_that_jepsen_reads() {
        let queue = QueueKey::new("chaos", 3);
        let mut recorder = Recorder::default();
        let send = |id: &str, ack| Operation::Send { message_id: id.into(), ack };
        recorder.record(5, "producer-1", EventKind::Invoke, send("1f-7", None));
        let ack = Ack { term: Some(2), leader: Some(1), log_index: Some(40), ..Ack::at(queue.clone(), 12) };
        recorder.record(9, "producer-1", EventKind::Ok, send("1f-7", Some(ack)));
        let fault = Operation::Fault { name: "heal kill-leader".into(), targets: vec![1, 2] };
        recorder.record(10, "nemesis", EventKind::Ok, fault);
        let deliveries =
            vec![Delivery::new("c", queue.clone(), 12, "1f-7"), Delivery::new("c", queue, 13, "a stranger")];
        recorder.record(11, "consumer-1", EventKind::Ok, Operation::Receive { deliveries });
        let edn = edn(recorder.events()).unwrap();
        let lines: Vec<&str> = edn.history.lines().collect();
        assert_eq!(
            lines,
            [
                "{:index 0, :time 5, :process 0, :type :invoke, :f :send, :value [[:send 0 7]]}",
                "{:index 1, :time 9, :process 0, :type :ok, :f :send, :value [[:send 0 [12 7]]], :term 2, :leader 1, :log-index 40}",
                "{:index 2, :time 10, :process :nemesis, :type :info, :f :heal-kill-leader, :value [\"b1\" \"b2\"]}",
                "{:index 3, :time 11, :process 1, :type :invoke, :f :poll, :value [[:poll]]}",
                "{:index 4, :time 11, :process 1, :type :ok, :f :poll, :value [[:poll {0 [[12 7] [13 -1]]}]]}",
            ]
        );
        assert_eq!(edn.queue.lines().count(), 7);
        assert!(edn.queue.contains(":type :ok, :f :dequeue, :value -1}"), "{}", edn.queue);
        assert_eq!(edn.keys, "{0 \"chaos/3\"}\n");
    }

    #[test]
    fn calls_to_registers_become_lines_and_a_crashed_process_another_one() {
        let mut recorder = Recorder::default();
        let mut record = |at, kind, task| recorder.record(at, "clerk-1", kind, Operation::Task(task));
        let write = Task::SetRegister { register: "r".into(), value: 7 };
        let read = |value| Task::ReadRegister { register: "r".into(), value };
        record(1, EventKind::Invoke, write.clone());
        record(2, EventKind::Unknown, write);
        record(3, EventKind::Invoke, read(None));
        record(4, EventKind::Ok, read(Some(7)));
        let edn = edn(recorder.events()).unwrap();
        let lines: Vec<&str> = edn.registers.lines().collect();
        assert_eq!(
            lines,
            [
                "{:index 0, :time 1, :process 0, :type :invoke, :f :write, :value [\"r\" 7]}",
                "{:index 1, :time 2, :process 0, :type :info, :f :write, :value [\"r\" 7]}",
                "{:index 2, :time 3, :process 1, :type :invoke, :f :read, :value [\"r\" nil]}",
                "{:index 3, :time 4, :process 1, :type :ok, :f :read, :value [\"r\" 7]}",
            ]
        );
    }
}
