//! Applications over the real SDK: it finds brokers by namesrvs, repeats, turns to others, and says what became of a send.

use std::sync::Arc;
use std::time::Duration;

use flotilla_checkers::{Ack, Delivery, EventKind, Operation, QueueKey, Task};
use flotilla_client::{
    Client, ClientConfig, DeliveryError, OutgoingMessage, Producer, ProducerConfig, ReceivedMessage, SendError,
    SimpleConsumer, SimpleConsumerConfig,
};
use flotilla_message::{GroupName, MessageId, TopicName};
use flotilla_namesrv::NamesrvService;
use flotilla_runtime::{BoxFuture, Either, Runtime, select};
use futures::future::join_all;

use crate::connector::SimConnector;
use crate::errands::topics::{LETTERS, PARCELS, READERS_OF_LETTERS, READERS_OF_PARCELS};
use crate::executor::ms;
use crate::namesrvs::namesrv_address;
use crate::net::{Address, SimNet};
use crate::options::Options;
use crate::replica::Replica;
use crate::rng::Rng;
use crate::witness::Witness;
use crate::workload::{Closing, Journal, Patience};

/// Addresses of those who use the SDK begin here.
pub(crate) const SDK_ADDRESS_MIN: Address = 370;
/// How many there are.
pub(crate) const SDK_USERS: u64 = 5;
/// Of a thousand rounds so many are the last of a process; a new one follows, which knows nothing.
const RESTART_PERMILLE: u64 = 30;
/// Messages that one receive takes at most.
const RECEIVE_MAX: usize = 16;

/// What the users share.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) options: Options,
    pub(crate) brokers: SimNet<dyn Replica>,
    pub(crate) namesrvs: SimNet<NamesrvService>,
    pub(crate) witness: Witness,
    pub(crate) journal: Journal,
}

/// Producers, until sending closes; true if the last send of each got through.
pub(crate) fn producers(world: &World, runtime: &Runtime, closing: &Closing) -> Vec<BoxFuture<'static, bool>> {
    let user = |number, name: &str| User::new(world, runtime, number, name);
    vec![
        Box::pin(produce(user(0, "packer"), PARCELS, closing.clone())),
        Box::pin(produce(user(1, "writer"), LETTERS, closing.clone())),
    ]
}

/// Consumers, until nothing comes any more.
pub(crate) fn consumers(world: &World, runtime: &Runtime, drained: &Closing) -> Vec<BoxFuture<'static, ()>> {
    let user = |number, name: &str| User::new(world, runtime, number, name);
    vec![
        Box::pin(consume(user(2, "carrier"), PARCELS, READERS_OF_PARCELS, drained.clone())),
        Box::pin(consume(user(3, "reader a"), LETTERS, READERS_OF_LETTERS, drained.clone())),
        Box::pin(consume(user(4, "reader b"), LETTERS, READERS_OF_LETTERS, drained.clone())),
    ]
}

/// One process that uses the SDK.
struct User {
    world: World,
    process: String,
    address: Address,
    runtime: Runtime,
    rng: Rng,
    sent: u64,
}

impl User {
    fn new(world: &World, runtime: &Runtime, number: u64, name: &str) -> User {
        let rng = Rng::stream(world.options.seed, &format!("workload of {name} over the SDK"));
        let (world, process, address) = (world.clone(), name.to_owned(), SDK_ADDRESS_MIN + number);
        User { world, process, address, runtime: runtime.clone(), rng, sent: 0 }
    }

    fn connect(&self) -> Client {
        let World { options, brokers, namesrvs, witness, .. } = &self.world;
        let connector = SimConnector {
            from: self.address,
            brokers: brokers.clone(),
            namesrvs: namesrvs.clone(),
            witness: witness.clone(),
        };
        let config = ClientConfig {
            request_timeout: ms(1_000),
            attempt_timeout: ms(500),
            send_deadline: ms(6_000),
            route_refresh: ms(1_000),
            ..ClientConfig::of_namesrv((1..=options.namesrv_count).map(namesrv_address))
        };
        Client::connect(config, self.runtime.clone(), Arc::new(connector)).expect("the settings are constant and good")
    }

    fn producer(&self) -> Producer {
        self.connect().producer(ProducerConfig::default()).expect("defaults are good")
    }

    fn consumer(&self, topic: &'static str, group: &'static str) -> SimpleConsumer {
        let (topic, group) = (topic_name(topic), GroupName::try_from(group).expect("the name is constant and legal"));
        let config = SimpleConsumerConfig { await_duration: ms(200), ..SimpleConsumerConfig::new(group, topic) };
        self.connect().simple_consumer(config).expect("the settings are constant and good")
    }

    fn next_id(&mut self) -> String {
        self.sent += 1;
        let id = format!("MSG-{:02}-{:06}-{:08x}", self.address % 100, self.sent, self.rng.next_u64() as u32);
        debug_assert_eq!(id.len(), crate::disk::MARK_BYTES, "the disks look for such marks");
        id
    }

    fn record(&self, kind: EventKind, operation: Operation) {
        self.world.journal.record(self.runtime.now().as_nanos(), self.process.clone(), kind, operation);
    }

    async fn pause(&mut self, low_ms: u64, high_ms: u64) {
        let pause_ms = self.rng.between(low_ms, high_ms);
        self.runtime.sleep(ms(pause_ms)).await;
    }
}

fn topic_name(topic: &str) -> TopicName {
    TopicName::try_from(topic).expect("the name is constant and legal")
}

async fn produce(mut user: User, topic: &'static str, closing: Closing) -> bool {
    let mut producer = user.producer();
    loop {
        let pause_ms = user.rng.between(20, 150);
        let closed = select(closing.announced(), user.runtime.sleep(ms(pause_ms))).await;
        let is_last = matches!(closed, Either::Left(()));
        if user.rng.chance(RESTART_PERMILLE) {
            producer = user.producer();
        }
        if !is_last {
            send(&mut user, &producer, topic).await;
            continue;
        }
        // All is well again: within its time somebody gets through, however often the SDK gives up.
        let until = user.runtime.now() + closing.deadline().unwrap_or(Duration::ZERO);
        while !send(&mut user, &producer, topic).await {
            if user.runtime.now() >= until {
                return false;
            }
            user.pause(50, 200).await;
        }
        return true;
    }
}

/// One message; true if it is stored.
async fn send(user: &mut User, producer: &Producer, topic: &'static str) -> bool {
    let message_id = user.next_id();
    let id = MessageId::try_from(message_id.as_str()).expect("the simulation's ids are visible ASCII");
    let mut message = OutgoingMessage::new(topic_name(topic), vec![b'x'; 20]).with_id(id);
    if topic == LETTERS {
        message = message.with_message_group(user.process.clone());
    }
    let told = |ack| Operation::Send { message_id: message_id.clone(), ack };
    user.record(EventKind::Invoke, told(None));
    match producer.send(message).await {
        Ok(receipt) => {
            let ack = receipt.queue.map(|queue| Ack {
                term: receipt.term,
                leader: receipt.leader,
                ..Ack::at(QueueKey::new(topic, queue), receipt.offset)
            });
            if user.world.namesrvs_are_gone() {
                user.world.witness.mark("the SDK sent while no namesrv was there");
            }
            let kind = if ack.is_some() { EventKind::Ok } else { EventKind::Unknown };
            user.record(kind, told(ack));
            true
        }
        Err(SendError::NotStored { .. } | SendError::Rejected { .. }) => {
            user.record(EventKind::Fail, told(None));
            false
        }
        Err(SendError::Unknown { .. }) => {
            user.record(EventKind::Unknown, told(None));
            false
        }
    }
}

async fn consume(mut user: User, topic: &'static str, group: &'static str, drained: Closing) {
    let mut patience = Patience::new(user.world.options.drained_after);
    let mut consumer = user.consumer(topic, group);
    while patience.lasts(&drained, user.runtime.now()) {
        if user.rng.chance(RESTART_PERMILLE) {
            consumer = user.consumer(topic, group);
        }
        user.record(EventKind::Invoke, Operation::Receive { deliveries: Vec::new() });
        let invisible = user.world.options.invisible;
        match consumer.receive(RECEIVE_MAX, invisible).await {
            Ok(batch) if batch.is_empty() => {
                user.record(EventKind::Ok, Operation::Receive { deliveries: Vec::new() });
            }
            Ok(batch) => {
                patience.seen(user.runtime.now());
                settle(&mut user, &consumer, batch).await;
            }
            Err(_) => patience.seen(user.runtime.now()),
        }
        user.pause(5, 60).await;
    }
}

async fn settle(user: &mut User, consumer: &SimpleConsumer, batch: Vec<ReceivedMessage>) {
    let of = |message: &ReceivedMessage| {
        let queue = QueueKey::new(message.topic.as_str(), message.queue);
        Delivery::new(&*user.process, queue, message.offset, message.id.as_str()).on_attempt(message.attempt)
    };
    let deliveries: Vec<Delivery> = batch.iter().map(of).collect();
    user.record(EventKind::Ok, Operation::Receive { deliveries: deliveries.clone() });
    // Now and then it dies over its work.
    if !user.rng.chance(900) {
        return;
    }
    let task = Task::Acknowledge { deliveries };
    user.record(EventKind::Invoke, Operation::Task(task.clone()));
    let acks: Vec<Result<(), DeliveryError>> = join_all(batch.iter().map(|message| consumer.ack(message))).await;
    let kind = if acks.iter().all(Result::is_ok) { EventKind::Ok } else { EventKind::Unknown };
    user.record(kind, Operation::Task(task));
}

impl World {
    /// Whether no namesrv listens.
    fn namesrvs_are_gone(&self) -> bool {
        self.options.namesrv_count > 0 && self.namesrvs.is_empty()
    }
}
