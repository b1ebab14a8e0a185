//! Judging costs no more than sorting: a long run's history must not take longer to judge than to make.

use std::time::Duration;

use flotilla_checkers::{
    Ack, Delivery, Dump, History, QueueDump, QueueKey, Send, SendOutcome, SlotDump, Task, TaskOutcome, TaskRun, check,
    linearizable_registers, one_holder, order_per_message_group, progress_kept,
};

const MESSAGES: u64 = 500_000;
const QUEUES: u64 = 8;

/// Half a million sends and as many deliveries, each message in its turn; the replicas hold all of it.
fn history() -> History {
    let queue = |number: u64| QueueKey::new("orders", (number % QUEUES) as u32);
    let id = |number: u64| format!("run-{number}");
    let mut history = History::default();
    for number in 0..MESSAGES {
        let (queue, offset, at_ns) = (queue(number), number / QUEUES, number * 1_000);
        let ack = Ack { term: Some(1 + number / 1_000), leader: Some(1), ..Ack::at(queue.clone(), offset) };
        let mut send = Send::new(id(number), SendOutcome::Acked(ack)).timed(at_ns, at_ns + 900);
        send.process = format!("producer-{}", number % 16);
        history.sends.push(send);
        let delivery = Delivery::new(format!("consumer-{}", number % 3), queue, offset, id(number));
        history.deliveries.push(delivery.received(at_ns + 1_000, at_ns + 2_000));
    }
    let slots = |which: u64| {
        let offsets = (which..MESSAGES).step_by(QUEUES as usize);
        let slot = |number| SlotDump { offset: number / QUEUES, message_id: id(number), log_index: number, ordinal: 0 };
        offsets.map(slot).collect()
    };
    let queues: Vec<QueueDump> =
        (0..QUEUES).map(|which| QueueDump { queue: queue(which), offset_min: 0, slots: slots(which) }).collect();
    let dump = |replica| Dump { replica, applied_index: MESSAGES, digest: "d".to_owned(), queues: queues.clone() };
    history.dumps = (1..=3).map(dump).collect();
    history
}

/// What this thread has worked until now: others on the machine do not count.
fn worked() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux counts it");
    Duration::from_nanos(text.split(' ').next().and_then(|ns| ns.parse().ok()).expect("it begins with nanoseconds"))
}

#[test]
fn a_million_operations_are_judged_within_a_minute() {
    let history = history();
    let begun = worked();
    assert_eq!(check(&history).findings, []);
    let History { sends, deliveries, tasks, .. } = &history;
    assert_eq!(one_holder::find(sends, deliveries, 1_000_000), []);
    assert_eq!(order_per_message_group::find(sends, deliveries), []);
    assert_eq!(progress_kept::find(tasks, deliveries), []);
    let took = worked() - begun;
    println!("{} operations were judged in {took:?}", 2 * MESSAGES);
    assert!(took < Duration::from_secs(60), "{took:?}");
}

/// Half a million writes and as many reads of `registers` registers: four at a time, one write in a hundred of unknown outcome.
fn calls(registers: u64) -> Vec<TaskRun> {
    let mut calls = Vec::new();
    for number in 0..MESSAGES {
        let (register, at_ns) = (format!("register-{}", number % registers), number / registers * 1_000);
        let write = Task::SetRegister { register: register.clone(), value: number };
        let outcome = if number % 100 == 7 { TaskOutcome::Unknown } else { TaskOutcome::Done };
        let took_ns = 900 + number * 7_919 % 3_000;
        calls.push(TaskRun { outcome, ..TaskRun::done(write, at_ns, at_ns + took_ns) });
        let read = Task::ReadRegister { register, value: Some(number) };
        calls.push(TaskRun::done(read, at_ns + 10, at_ns + 950));
    }
    calls
}

#[test]
fn a_million_calls_to_registers_are_judged_within_a_minute() {
    for registers in [1, 1_000] {
        let mut calls = calls(registers);
        let begun = worked();
        assert_eq!(linearizable_registers::find(&calls), []);
        // What was long overwritten comes back.
        let last = calls.last().map_or(0, |run| run.completed_ns);
        let task = Task::ReadRegister { register: "register-0".to_owned(), value: Some(registers) };
        calls.push(TaskRun::done(task, last + 10_000, last + 10_001));
        assert!(!linearizable_registers::find(&calls).is_empty());
        let took = worked() - begun;
        println!("{} calls to {registers} registers were judged twice in {took:?}", calls.len());
        assert!(took < Duration::from_secs(60), "{took:?}");
    }
}
