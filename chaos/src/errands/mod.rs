//! The load beside the senders: transactions, delayed messages, messages that end among the dead letters, and registers.
//! Each part has topics of its own and a tenth of the load's rate; what it does stands in the history as tasks.

mod delays;
mod doomed;
mod pace;
mod receiving;
mod registers;
mod transactions;
mod ways;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_checkers::{EventKind, Operation, Task as Deed};
use flotilla_client::{AdminClient, AdminError, Client, ConfigErrors, GroupSpec, ProducerConfig, TopicSpec};
use flotilla_message::{AckLevel, GroupName, MessageId, MessageType, TopicName};
use flotilla_proto::client::Connector;
use flotilla_runtime::{Instant, Runtime, Task};

use self::pace::Pace;
use self::ways::Ways;
use crate::history_file::HistoryFile;
use crate::incidents::Incidents;
use crate::levels::Levels;
use crate::rng::Rng;

/// Half messages, of which most are committed.
const TRANSACTIONS: &str = "chaos-transactions";
/// Messages that come later.
const DELAYS: &str = "chaos-delays";
/// Messages that are seldom acknowledged, and their group, which gives up soon.
pub(crate) const DOOMED: &str = "chaos-doomed";
/// So often a doomed message is delivered.
pub(crate) const DOOMED_DELIVERIES_MAX: u32 = 2;
/// Topics of dead letters begin like this.
pub(crate) const DEAD_LETTERS: &str = "%DLQ%";
/// Topics whose settings are registers.
const SETTINGS: [&str; 2] = ["chaos-settings-1", "chaos-settings-2"];
/// A group that consumes nothing: where it stands in queues is a register each.
const BOOKMARKS: &str = "chaos-bookmarks";

const QUEUES: u32 = 2;
/// Of the load's rate each part has one in so many.
const SHARE: u64 = 10;
/// How long one send, or one end of a transaction, is tried.
const PATIENCE: Duration = Duration::from_secs(6);
const RETRY_PAUSE: Duration = Duration::from_millis(50);
const LOOK_AGAIN: Duration = Duration::from_millis(100);

/// What the parts need to know.
pub(crate) struct ErrandsConfig {
    /// The load's, messages a second.
    pub(crate) rate: u64,
    pub(crate) seed: u64,
    /// The load's topic: its queues are long enough to have registers in them.
    pub(crate) topic: TopicName,
}

/// The parts under way. Dropping it ends them.
pub(crate) struct Errands {
    shared: Arc<Shared>,
    doing: Vec<Task<()>>,
    receiving: Vec<Task<()>>,
}

struct Shared {
    config: ErrandsConfig,
    ways: Ways,
    history: Arc<HistoryFile>,
    runtime: Runtime,
    ends_at: Mutex<Option<Instant>>,
    is_given_up: AtomicBool,
    tally: Mutex<Tally>,
}

#[derive(Default)]
struct Tally {
    /// Committed or due, and not yet received.
    outstanding: BTreeSet<u64>,
    received: BTreeSet<u64>,
    last_received_at: Option<Instant>,
}

fn topic(name: &str) -> TopicName {
    TopicName::try_from(name).expect("the name is a constant and legal")
}

fn group(name: &str) -> GroupName {
    GroupName::try_from(name).expect("the name is a constant and legal")
}

/// Topics whose content is to be read at the end.
pub(crate) fn topics() -> [TopicName; 3] {
    [TRANSACTIONS, DELAYS, DOOMED].map(topic)
}

/// Makes the topics and groups. None of their answers comes before the commit: what is promised of them is not what level
/// `async` gives.
///
/// # Errors
/// [`AdminError`].
pub(crate) async fn prepare(admin: &AdminClient, levels: &Levels) -> Result<(), AdminError> {
    let ack = Some(levels.lowest().max(AckLevel::Majority));
    let kinds = [
        (TRANSACTIONS, MessageType::Transaction),
        (DELAYS, MessageType::Delay),
        (DOOMED, MessageType::Normal),
        (SETTINGS[0], MessageType::Normal),
        (SETTINGS[1], MessageType::Normal),
    ];
    for (name, message_type) in kinds {
        let spec = TopicSpec { message_type, ack, flush: Some(levels.flush), ..TopicSpec::new(topic(name), QUEUES) };
        admin.create_topic(&spec).await?;
    }
    for name in [TRANSACTIONS, DELAYS, BOOKMARKS] {
        admin.create_group(&GroupSpec::new(group(name))).await?;
    }
    let spec = GroupSpec { max_deliveries: DOOMED_DELIVERIES_MAX, ..GroupSpec::new(group(DOOMED)) };
    admin.create_group(&spec).await.map(drop)
}

impl Errands {
    /// Starts all parts, until the time that [`Errands::stop`] says.
    pub(crate) fn start(
        config: ErrandsConfig,
        addresses: &[String],
        connector: &dyn Connector,
        client: &Client,
        history: Arc<HistoryFile>,
        runtime: &Runtime,
    ) -> Result<Errands, ConfigErrors> {
        let interval = Duration::from_secs(1) / u32::try_from((config.rate / SHARE).max(1)).unwrap_or(u32::MAX);
        let pace = |part| Arc::new(Pace::new(part, interval, runtime));
        let shared = Arc::new(Shared {
            ways: Ways::new(addresses, connector, "flotilla@chaos-errands", runtime),
            config,
            history,
            runtime: runtime.clone(),
            ends_at: Mutex::new(None),
            is_given_up: AtomicBool::new(false),
            tally: Mutex::default(),
        });
        let producer = Arc::new(client.producer(ProducerConfig::default())?);
        let mut doing = Vec::new();
        let (half, late, doomed, written) = (pace(1), pace(2), pace(3), pace(4));
        let registers = Arc::new(registers::Registers::new(&shared.config.topic));
        for number in 1..=4 {
            doing.push(runtime.spawn("teller", transactions::tell(shared.clone(), half.clone(), number)));
            let delaying = delays::delay(shared.clone(), late.clone(), producer.clone(), number);
            doing.push(runtime.spawn("alarm setter", delaying));
            let sending = doomed::send(shared.clone(), doomed.clone(), producer.clone(), number);
            doing.push(runtime.spawn("doomer", sending));
        }
        for number in 1..=registers::CLERKS {
            let clerk = registers::keep(shared.clone(), written.clone(), registers.clone(), number);
            doing.push(runtime.spawn("clerk", clerk));
        }
        let mut receiving = Vec::new();
        for name in [TRANSACTIONS, DELAYS] {
            receiving.push(runtime.spawn("consumer", receiving::receive(shared.clone(), name, client)?));
        }
        for number in 1..=2 {
            receiving.push(runtime.spawn("doomed consumer", doomed::receive(shared.clone(), number, client)?));
        }
        Ok(Errands { shared, doing, receiving })
    }

    /// Goes on until that time, and waits until nothing is under way any more.
    pub(crate) async fn stop(&mut self, ends_at: Instant) {
        *self.shared.ends_at.lock().expect("no code panics while holding it") = Some(ends_at);
        for doing in self.doing.drain(..) {
            doing.await.expect("an errand neither panics nor is cancelled");
        }
    }

    /// Waits until all is received that was committed or is due, and no doomed message is on its way any more, or until
    /// nothing new came for `patience`; then ends the consumers and reads the dead letters.
    pub(crate) async fn end(self, patience: Duration, admin: &AdminClient, incidents: &Incidents) {
        let runtime = self.shared.runtime.clone();
        let begun = runtime.now();
        loop {
            let (missing, last) = {
                let tally = self.shared.tally();
                (tally.outstanding.len(), tally.last_received_at.unwrap_or(begun).max(begun))
            };
            let has_doomed = doomed::are_under_way(admin).await;
            if missing == 0 && !has_doomed {
                break;
            }
            if runtime.now() - last > patience {
                incidents.add(format!(
                    "{missing} committed or delayed messages have not come to the consumers {patience:?} after the last that came{}",
                    if has_doomed { ", and doomed ones are still under way" } else { "" }
                ));
                break;
            }
            runtime.sleep(LOOK_AGAIN).await;
        }
        self.shared.is_given_up.store(true, Ordering::SeqCst);
        for consumer in self.receiving {
            consumer.await.expect("a consumer neither panics nor is cancelled");
        }
        doomed::read_dead_letters(admin, &self.shared.history, incidents).await;
    }
}

impl Shared {
    fn record(&self, process: &str, kind: EventKind, operation: Operation) {
        self.history.record(process, kind, operation);
    }

    fn deed(&self, process: &str, kind: EventKind, deed: Deed) {
        self.record(process, kind, Operation::Task(deed));
    }

    /// A send whose place nobody is told.
    fn sent(&self, process: &str, kind: EventKind, id: &MessageId) {
        self.record(process, kind, Operation::Send { message_id: id.to_string(), ack: None });
    }

    fn is_over(&self, at: Instant) -> bool {
        self.ends_at.lock().expect("no code panics while holding it").is_some_and(|ends_at| at >= ends_at)
    }

    fn is_given_up(&self) -> bool {
        self.is_given_up.load(Ordering::SeqCst)
    }

    fn id_of(&self, number: u64) -> MessageId {
        let id = format!("{:x}-{number}", self.config.seed);
        MessageId::try_from(id).expect("hex digits and a number are an id")
    }

    fn rng(&self, part: u64, number: u64) -> Rng {
        Rng::new(self.config.seed ^ (part << 56) ^ (number << 48))
    }

    /// That message must come to a consumer, unless it did already.
    fn expect(&self, number: u64) {
        let mut tally = self.tally();
        if !tally.received.contains(&number) {
            tally.outstanding.insert(number);
        }
    }

    fn tally(&self) -> MutexGuard<'_, Tally> {
        self.tally.lock().expect("the tally's lock is never poisoned: no code panics while holding it")
    }
}
