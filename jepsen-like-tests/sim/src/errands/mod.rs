//! Errands: what brokers do besides storing and handing out, over their clients' own calls. Transactions, delays, retries
//! until the dead letters, ordered groups, and reads of a queue's end.

mod caller;
mod consumers;
mod producers;
mod registers;
pub(crate) mod topics;

use std::time::Duration;

use flotilla_checkers::QueueKey;
use flotilla_runtime::{BoxFuture, Runtime};

use self::caller::Caller;
use self::consumers::{Habit, consume};
use self::topics::{ACCOUNTS, ALARMS, DOOMED, STEPS};
use crate::executor::ms;
use crate::net::SimNet;
use crate::options::Options;
use crate::replica::Replica;
use crate::workload::{Closing, Journal};

/// Addresses of those who run errands begin here.
const ERRAND_ADDRESS_MIN: u64 = 300;

/// Who runs errands until sending closes; true if its last one got through.
pub(crate) fn producers(
    options: &Options,
    queues: &[QueueKey],
    net: &SimNet<dyn Replica>,
    journal: &Journal,
    closing: &Closing,
) -> Vec<BoxFuture<'static, bool>> {
    let caller = |number: u64, name: &str| {
        Caller::new(name.to_owned(), ERRAND_ADDRESS_MIN + number, options, net.clone(), journal.clone())
    };
    let mut running: Vec<BoxFuture<'static, bool>> = vec![
        Box::pin(producers::tell(caller(0, "teller"), closing.clone())),
        Box::pin(producers::delay(caller(1, "alarm setter"), closing.clone())),
        Box::pin(producers::store(caller(2, "doomer"), DOOMED, closing.clone())),
        Box::pin(producers::store(caller(3, "stepper a"), STEPS, closing.clone())),
        Box::pin(producers::store(caller(4, "stepper b"), STEPS, closing.clone())),
        Box::pin(producers::ask_ends(caller(5, "reader"), queues.to_vec(), closing.clone())),
    ];
    for number in 0..registers::CLERKS {
        let clerk = caller(6 + number, &format!("clerk {number}"));
        running.push(Box::pin(registers::keep(clerk, number, closing.clone())));
    }
    running
}

/// Who takes what the errands stored, until nothing comes any more.
pub(crate) fn consumers(
    options: &Options,
    net: &SimNet<dyn Replica>,
    journal: &Journal,
    drained: &Closing,
) -> Vec<BoxFuture<'static, ()>> {
    let habit = |group, topic, acked_permille| {
        let invisible = invisible_of(topic, options);
        Habit { group, topic, invisible, acked_permille }
    };
    let habits = [
        habit("tellers", ACCOUNTS, 900),
        habit("sleepers", ALARMS, 900),
        habit(DOOMED, DOOMED, 300),
        habit("steppers", STEPS, 900),
        habit("steppers", STEPS, 900),
    ];
    let mut running: Vec<BoxFuture<'static, ()>> = Vec::new();
    for (number, habit) in (0..).zip(habits) {
        let name = format!("{} {number}", habit.group);
        let caller = Caller::new(name, ERRAND_ADDRESS_MIN + 50 + number, options, net.clone(), journal.clone());
        running.push(Box::pin(consume(caller, habit, drained.clone())));
    }
    running
}

/// How long what a topic's consumers take is their own.
pub(crate) fn invisible_of(topic: &str, options: &Options) -> Duration {
    match topic {
        DOOMED => ms(300),
        STEPS => options.invisible.min(ms(700)),
        _ => options.invisible,
    }
}

/// Waits a drawn while.
async fn pause(runtime: &Runtime, low_ms: u64, high_ms: u64, caller: &mut Caller) {
    let pause_ms = caller.rng.between(low_ms, high_ms);
    runtime.sleep(ms(pause_ms)).await;
}
