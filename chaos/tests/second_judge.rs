//! The second judge, in another language, comes to the same conclusion as the first on good, broken and void runs.

use std::path::Path;
use std::process::Command;

use flotilla_chaos::nemesis::FaultKind;
use flotilla_chaos::scenario::Limits;
use flotilla_chaos::{CallCounts, Conclusion, FaultRecord, Levels, NetworkMode, RunDir, RunRecord, Settings, rejudge};
use flotilla_checkers::{
    Ack, Delivery, Dump, EventKind, Leadership, Operation, QueueKey, Recorder, Task, write_json_lines,
};

/// A history that can be spoilt.
struct Story {
    recorder: Recorder,
    now_ns: u64,
    record: RunRecord,
}

fn queue() -> QueueKey {
    QueueKey::new("chaos", 0)
}

impl Story {
    /// Two messages acknowledged, received and found at the end, and a fault between.
    fn good() -> Story {
        let fault = FaultRecord {
            number: 1,
            kind: FaultKind::KillLeader,
            targets: vec![1],
            started_ns: 25,
            struck_ns: 26,
            healed_ns: 28,
            disturbed: None,
            problem: None,
            notes: Vec::new(),
            kept_up_to: None,
        };
        let settings = Settings {
            seed: 1,
            faults: vec![FaultKind::KillLeader],
            duration_ms: 1_000,
            rate: 2,
            replicas: 3,
            overlaps: false,
            plan_file: None,
            scenario: None,
            levels: Levels::default(),
            limits: Limits::default(),
            broker: Vec::new(),
            network: NetworkMode::Proxies,
        };
        let record = RunRecord {
            settings,
            faults: vec![fault],
            skipped: Vec::new(),
            incidents: Vec::new(),
            calls: CallCounts::default(),
            kept_aside: None,
            data_bytes: 0,
            load_started_ns: 0,
            load_ended_ns: 100,
            total_ms: 1,
        };
        let mut story = Story { recorder: Recorder::default(), now_ns: 0, record };
        story.event("observer", EventKind::Ok, Operation::Leader(Leadership { term: 1, leader: 1 }));
        story.acked("1-0", 0);
        story.acked("1-1", 1);
        story.received("consumer-1", &[(0, "1-0"), (1, "1-1")]);
        story.received("drain-1", &[(0, "1-0"), (1, "1-1")]);
        (1..=3).for_each(|replica| story.state(replica, "d", 9));
        story
    }

    fn event(&mut self, process: &str, kind: EventKind, operation: Operation) {
        self.now_ns += 10;
        self.recorder.record(self.now_ns, process, kind, operation);
    }

    fn send(&mut self, id: &str, kind: EventKind, ack: Option<Ack>) {
        let operation = |ack| Operation::Send { message_id: id.into(), ack };
        self.event("producer-1", EventKind::Invoke, operation(None));
        self.event("producer-1", kind, operation(ack));
    }

    fn acked(&mut self, id: &str, offset: u64) {
        let ack = Ack { term: Some(1), leader: Some(1), ..Ack::at(queue(), offset) };
        self.send(id, EventKind::Ok, Some(ack));
    }

    fn received(&mut self, who: &str, places: &[(u64, &str)]) {
        let deliveries = places.iter().map(|(offset, id)| Delivery::new(who, queue(), *offset, *id)).collect();
        self.event(who, EventKind::Ok, Operation::Receive { deliveries });
    }

    /// The first message comes again at once; a message is acknowledged before in term 1, and one afterwards in that term.
    fn redelivered_in(&mut self, term: u64) {
        self.event("consumer-2", EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
        self.acked("1-2", 2);
        for attempt in [1, 2] {
            self.event("consumer-2", EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
            let delivery = Delivery::new("consumer-2", queue(), 2, "1-2").on_attempt(attempt);
            self.event("consumer-2", EventKind::Ok, Operation::Receive { deliveries: vec![delivery] });
        }
        let ack = Ack { term: Some(term), leader: Some(term), ..Ack::at(queue(), 3) };
        self.send("1-3", EventKind::Ok, Some(ack));
        self.received("consumer-2", &[(3, "1-3")]);
        self.received("drain-2", &[(2, "1-2"), (3, "1-3")]);
    }

    /// A task of one process, and how it ended.
    fn task(&mut self, kind: EventKind, task: Task) {
        self.event("clerk-1", EventKind::Invoke, Operation::Task(task.clone()));
        self.event("clerk-1", kind, Operation::Task(task));
    }

    /// A message whose place its sender is not told, seen there by those.
    fn placed_later(&mut self, topic: &str, id: &str, seen_by: &[&str]) {
        for who in seen_by {
            let deliveries = vec![Delivery::new(*who, QueueKey::new(topic, 0), 0, id)];
            self.event(who, EventKind::Ok, Operation::Receive { deliveries });
        }
    }

    fn half(&mut self) {
        self.send("1-9", EventKind::Unknown, None);
        self.task(EventKind::Ok, Task::Prepare { message_id: "1-9".into() });
    }

    fn ended(&mut self, commit: bool, kind: EventKind) {
        self.task(kind, Task::EndTransaction { message_id: "1-9".into(), commit });
    }

    fn delayed(&mut self, due_ms: u64) {
        self.send("1-9", EventKind::Unknown, None);
        self.task(EventKind::Ok, Task::Delay { message_id: "1-9".into(), due_ns: due_ms * 1_000_000 });
    }

    fn doomed(&mut self, attempt: u32, letter: bool) {
        let queue = QueueKey::new("chaos-doomed", 0);
        self.send("1-9", EventKind::Ok, Some(Ack::at(queue.clone(), 0)));
        let deliveries = vec![Delivery::new("doomed", queue, 0, "1-9").on_attempt(attempt)];
        self.event("doomed", EventKind::Ok, Operation::Receive { deliveries });
        self.placed_later("chaos-doomed", "1-9", &["drain-9"]);
        if letter {
            self.placed_later("%DLQ%chaos-doomed", "1-9", &["drain-dead-letters"]);
        }
    }

    fn wrote(&mut self, kind: EventKind, value: u64) {
        self.task(kind, Task::SetRegister { register: "r".into(), value });
    }

    fn read(&mut self, value: Option<u64>) {
        self.task(EventKind::Ok, Task::ReadRegister { register: "r".into(), value });
    }

    fn state(&mut self, replica: u64, digest: &str, applied_index: u64) {
        let dump = Dump { replica, applied_index, digest: digest.into(), queues: Vec::new() };
        self.event("harness", EventKind::Ok, Operation::Dump(dump));
    }

    /// What the first judge says; the second must say the same.
    fn judged(&self, dir: &Path) -> Conclusion {
        let file = std::fs::File::create(dir.join("history.jsonl")).unwrap();
        write_json_lines(self.recorder.events(), file).unwrap();
        std::fs::write(dir.join("run.json"), serde_json::to_vec(&self.record).unwrap()).unwrap();
        let first = rejudge(&RunDir::open(dir).unwrap()).unwrap();
        assert!(std::fs::read_to_string(dir.join("report.html")).unwrap().contains("<svg"));
        let check = Path::new(env!("CARGO_MANIFEST_DIR")).join("../jepsen-like-tests/second-checker/check.py");
        let second = Command::new("python3").arg(check).arg(dir).output().unwrap();
        let code = match first.conclusion {
            Conclusion::Good => 0,
            Conclusion::Broken => 1,
            Conclusion::Void => 3,
        };
        let said = String::from_utf8_lossy(&second.stdout).into_owned() + &String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(code), "{said}\nthe first judge:\n{first}");
        first.conclusion
    }
}

/// What is planted in a good run.
type Plant = fn(&mut Story);

/// Both judges come to that conclusion about each story.
fn judge_all<const COUNT: usize>(stories: [(Conclusion, Plant); COUNT]) {
    for (number, (conclusion, plant)) in stories.into_iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let mut story = Story::good();
        plant(&mut story);
        assert_eq!(story.judged(dir.path()), conclusion, "story {number}");
    }
}

#[test]
fn two_judges_agree_on_planted_histories() {
    let stories: [(Conclusion, Plant); 24] = [
        (Conclusion::Good, |_| {}),
        (Conclusion::Good, |s| {
            s.send("1-2", EventKind::Unknown, None);
            s.received("drain-2", &[(2, "1-2")]);
        }),
        (Conclusion::Good, |s| s.send("1-2", EventKind::Fail, None)),
        (Conclusion::Broken, |s| s.acked("1-2", 2)),
        (Conclusion::Broken, |s| {
            s.acked("1-2", 2);
            s.received("drain-2", &[(2, "1-2")]);
        }),
        (Conclusion::Broken, |s| {
            s.acked("1-2", 2);
            s.received("consumer-1", &[(2, "1-2")]);
        }),
        (Conclusion::Broken, |s| s.received("drain-2", &[(2, "nobody's")])),
        (Conclusion::Broken, |s| {
            s.send("1-2", EventKind::Fail, None);
            s.received("drain-2", &[(2, "1-2")]);
        }),
        (Conclusion::Broken, |s| s.received("drain-2", &[(2, "1-0")])),
        (Conclusion::Broken, |s| {
            s.send("1-2", EventKind::Unknown, None);
            s.received("drain-2", &[(3, "1-2")]);
        }),
        (Conclusion::Broken, |s| s.received("consumer-2", &[(1, "1-1"), (0, "1-0")])),
        (Conclusion::Broken, |s| {
            s.send("1-2", EventKind::Unknown, None);
            s.received("consumer-2", &[(1, "1-2")]);
        }),
        (Conclusion::Broken, |s| s.event("o", EventKind::Ok, Operation::Leader(Leadership { term: 1, leader: 2 }))),
        (Conclusion::Broken, |s| s.state(4, "other", 9)),
        (Conclusion::Broken, |s| s.record.incidents.push("broker 2 ended by itself".into())),
        (Conclusion::Broken, |s| {
            s.record.settings.limits.elections_max = Some(0);
            s.event("o", EventKind::Ok, Operation::Leader(Leadership { term: 2, leader: 2 }));
            s.record.load_ended_ns = s.now_ns;
        }),
        (Conclusion::Good, |s| {
            s.record.settings.limits.elections_max = Some(0);
            s.event("o", EventKind::Ok, Operation::Leader(Leadership { term: 2, leader: 2 }));
        }),
        // Two hold one delivery; a second delivery comes too soon while one leader counts, and while two do.
        (Conclusion::Broken, |s| s.received("consumer-2", &[(0, "1-0")])),
        (Conclusion::Broken, |s| s.redelivered_in(1)),
        (Conclusion::Good, |s| s.redelivered_in(2)),
        // What was answered early may be gone, as far as the replicas know of it.
        (Conclusion::Good, |s| {
            s.send("1-2", EventKind::Ok, Some(Ack { early: true, ..Ack::at(queue(), 2) }));
            s.record.kept_aside = Some(1);
        }),
        (Conclusion::Broken, |s| {
            s.send("1-2", EventKind::Ok, Some(Ack { early: true, ..Ack::at(queue(), 2) }));
            s.record.kept_aside = Some(0);
        }),
        (Conclusion::Void, |s| s.record.faults[0].problem = Some("refused".into())),
        (Conclusion::Void, |s| s.record.settings.rate = 1_000),
    ];
    judge_all(stories);
}

#[test]
fn they_agree_on_message_groups() {
    let place = |offset| Some(Ack::at(QueueKey::new("chaos-fifo", 0), offset));
    for (comes, conclusion) in [([0, 1], Conclusion::Good), ([1, 0], Conclusion::Broken)] {
        let dir = tempfile::tempdir().unwrap();
        let mut story = Story::good();
        story.send("1-5", EventKind::Ok, place(0));
        story.send("1-6", EventKind::Ok, place(1));
        for who in ["consumer-1", "consumer-2", "drain-1"] {
            let at = usize::from(who == "consumer-2");
            let seen = if who == "drain-1" { vec![0, 1] } else { vec![comes[at]] };
            let delivery =
                |offset: u64| Delivery::new(who, QueueKey::new("chaos-fifo", 0), offset, format!("1-{}", offset + 5));
            let deliveries = seen.into_iter().map(delivery).collect();
            story.event(who, EventKind::Ok, Operation::Receive { deliveries });
        }
        assert_eq!(story.judged(dir.path()), conclusion, "{comes:?}");
    }
}

#[test]
fn they_agree_on_a_reversed_queue() {
    let dir = tempfile::tempdir().unwrap();
    let mut story = Story::good();
    story.acked("1-3", 3);
    story.acked("1-2", 2);
    story.received("consumer-1", &[(2, "1-2"), (3, "1-3")]);
    story.received("drain-1", &[(2, "1-2"), (3, "1-3")]);
    assert_eq!(story.judged(dir.path()), Conclusion::Broken);
}

#[test]
fn they_agree_on_transactions_delays_and_dead_letters() {
    use Conclusion::{Broken, Good, Void};
    use EventKind::{Fail, Ok as Done, Unknown};
    const BOTH: [&str; 2] = ["consumer-9", "drain-9"];
    let stories: [(Conclusion, Plant); 16] = [
        (Good, |s| {
            s.half();
            s.ended(true, Done);
            s.placed_later("chaos-transactions", "1-9", &BOTH);
        }),
        (Good, |s| {
            s.half();
            s.ended(false, Done);
            s.ended(true, Unknown);
        }),
        // Seen half, seen too soon, seen after its rollback, missing, both.
        (Broken, |s| {
            s.half();
            s.placed_later("chaos-transactions", "1-9", &BOTH);
        }),
        (Broken, |s| {
            s.half();
            s.placed_later("chaos-transactions", "1-9", &BOTH);
            s.ended(true, Done);
        }),
        (Broken, |s| {
            s.half();
            s.ended(true, Unknown);
            s.ended(false, Done);
            s.placed_later("chaos-transactions", "1-9", &BOTH);
        }),
        (Broken, |s| {
            s.half();
            s.ended(true, Done);
        }),
        (Broken, |s| {
            s.half();
            s.ended(true, Done);
            s.ended(false, Done);
            s.placed_later("chaos-transactions", "1-9", &BOTH);
        }),
        (Good, |s| {
            s.delayed(0);
            s.placed_later("chaos-delays", "1-9", &BOTH);
        }),
        (Broken, |s| {
            s.delayed(100);
            s.placed_later("chaos-delays", "1-9", &BOTH);
        }),
        (Good, |s| {
            s.record.faults[0].kind = FaultKind::ClockJump;
            s.delayed(100);
            s.placed_later("chaos-delays", "1-9", &BOTH);
        }),
        (Broken, |s| s.delayed(0)),
        (Good, |s| s.doomed(2, true)),
        (Broken, |s| s.doomed(2, false)),
        (Broken, |s| s.doomed(3, true)),
        (Void, |s| {
            for _ in 0..10 {
                s.half();
                s.ended(true, Fail);
            }
            s.acked("1-2", 2);
            s.received("consumer-1", &[(2, "1-2")]);
            s.received("drain-1", &[(2, "1-2")]);
        }),
        // What is sent to the doomed is no proof that the load went on.
        (Void, |s| {
            s.record.faults[0].healed_ns = s.now_ns;
            s.doomed(1, true);
        }),
    ];
    judge_all(stories);
}

#[test]
fn they_agree_on_registers() {
    use Conclusion::{Broken, Good};
    use EventKind::{Fail, Ok as Done, Unknown};
    let stories: [(Conclusion, Plant); 9] = [
        (Good, |s| {
            s.read(None);
            s.wrote(Done, 1);
            s.read(Some(1));
            s.wrote(Fail, 2);
            s.read(Some(1));
        }),
        // Of unknown outcome: late, or never, but once.
        (Good, |s| {
            s.wrote(Unknown, 2);
            s.wrote(Done, 1);
            s.read(Some(1));
            s.read(Some(2));
        }),
        (Good, |s| {
            s.wrote(Unknown, 2);
            s.read(None);
        }),
        (Broken, |s| {
            s.wrote(Unknown, 2);
            s.read(Some(2));
            s.wrote(Done, 1);
            s.read(Some(2));
        }),
        (Broken, |s| s.read(Some(7))),
        (Broken, |s| {
            s.wrote(Fail, 7);
            s.read(Some(7));
        }),
        (Broken, |s| {
            s.wrote(Done, 1);
            s.read(None);
        }),
        (Broken, |s| {
            s.wrote(Done, 1);
            s.wrote(Done, 2);
            s.read(Some(1));
        }),
        (Broken, |s| {
            s.wrote(Done, 1);
            s.wrote(Done, 1);
        }),
    ];
    judge_all(stories);
}
