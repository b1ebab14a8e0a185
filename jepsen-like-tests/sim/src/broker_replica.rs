//! A whole broker replica under simulation: everything but its sockets, with the real services, proposer and duties.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_broker::{BrokerConfig, Node, ReplicaConfig};
use flotilla_checkers::{Delivery, Dump, QueueKey};
use flotilla_namesrv::NamesrvService;
use flotilla_proto::metadata::{ACK_PLACE, CLIENT_ID};
use flotilla_proto::status::{Consequence, consequence, is_ok};
use flotilla_proto::v2::receive_message_response::Content;
use flotilla_proto::{AckPlace, Admin, CallContext, Messaging, Peer, Reply, admin, peer, v2};
use flotilla_raft_log::{Disk, GroupMembers, Incarnation, LogIndex, LogStatus, PeerCallKind, Transport};
use flotilla_runtime::{BoxFuture, Runtime};
use tokio::sync::mpsc;

use crate::connector::SimConnector;
use crate::errands::topics::{DEAD_LETTERS, ERRAND_GROUPS, ERRAND_TOPICS};
use crate::executor::{lock, ms};
use crate::namesrvs::{NAMESRV_HEARTBEAT_MS, namesrv_address};
use crate::net::{PeerService, SimNet};
use crate::options::Options;
use crate::replica::{Acknowledged, Batch, Model, Placed, Received, Replica, SendError, dump, has_vote, look};
use crate::store::Store;
use crate::witness::Witness;

/// How long a client waits; a service answers a little earlier.
const CALL_TIMEOUT: Duration = ms(900);
/// How long a receive waits for a message.
const POLL_TIME: Duration = ms(200);
/// Messages that one receive takes at most.
const RECEIVE_MAX: i32 = 16;
/// The group of the plain consumers.
const WORKERS: &str = "workers";
const CLUSTER: &str = "sim";
const GROUP: &str = "group-a";

/// A running broker replica.
pub struct BrokerReplica {
    id: u64,
    node: Arc<Node>,
    runtime: Runtime,
    messaging: Arc<dyn Messaging>,
    admin: Arc<dyn Admin>,
    peer: Arc<dyn Peer>,
    store: Store,
    witness: Witness,
    /// How long what plain consumers take is their own.
    invisible: Duration,
    /// The highest entry that the witness was shown.
    shown: Mutex<u64>,
}

/// The peer address of a replica.
fn peer_address(id: u64) -> String {
    format!("replica-{id}:10912")
}

/// Where on the network the process of an address is: `replica-N:PORT`, `namesrv-N:PORT`.
pub(crate) fn id_of(address: &str) -> u64 {
    let name = address.split(':').next().and_then(|host| host.split_once('-'));
    let id = name.and_then(|(_, number)| number.parse().ok());
    id.expect("processes call the addresses of their settings, and what these tell")
}

fn config_of(id: u64, options: &Options) -> BrokerConfig {
    let replica = |node| ReplicaConfig { node, client: format!("replica-{node}:8081"), peer: peer_address(node) };
    let listen = |port| SocketAddr::from(([127, 0, 0, 1], port));
    BrokerConfig {
        cluster: CLUSTER.to_owned(),
        group: GROUP.to_owned(),
        node: id,
        data_dir: PathBuf::from(format!("/replica-{id}")),
        replicas: (1..=options.replica_count).map(replica).collect(),
        client_listen: listen(8081),
        peer_listen: listen(10912),
        segment_bytes: options.segment_bytes,
        tail_cache_bytes: 1 << 20,
        disk_free_bytes_min: 0,
        disk_refuse_free_bytes: 0,
        elect_on_peer_gone: options.elect_on_peer_gone,
        // Made by hand, with settings of their own.
        auto_create_topics: false,
        auto_create_groups: false,
        namesrv: (1..=options.namesrv_count).map(namesrv_address).collect(),
        namesrv_heartbeat_ms: NAMESRV_HEARTBEAT_MS,
        // A transaction is asked for within a run.
        transaction_check_after_ms: 500,
        transaction_check_interval_ms: 500,
        ..BrokerConfig::default()
    }
}

impl BrokerReplica {
    /// Opens the replica. Must run inside the replica's life.
    pub(crate) async fn open(
        id: u64,
        options: &Options,
        queues: Vec<QueueKey>,
        runtime: Runtime,
        disk: Arc<dyn Disk>,
        (net, namesrvs): (SimNet<dyn Replica>, SimNet<NamesrvService>),
        witness: Witness,
    ) -> Result<Arc<dyn Replica>, String> {
        let transport: Arc<dyn Transport> = net.transport_of(id);
        let connector = SimConnector { from: id, brokers: net, namesrvs, witness: witness.clone() };
        let config = config_of(id, options);
        let node = Node::start_over(config, runtime.clone(), disk, transport, Arc::new(connector)).await;
        let node = node.map_err(|error| error.to_string())?;
        let store = Store::over(node.store().clone(), queues.clone());
        let (messaging, admin, peer) = (node.messaging(), node.admin(), node.peer());
        let founder = found(runtime.clone(), admin.clone(), options.queue_count, options.errands);
        runtime.spawn("founder", founder).detach();
        let (invisible, shown) = (options.invisible, Mutex::new(node.store().applied()));
        let node = Arc::new(node);
        Ok(Arc::new(BrokerReplica { id, node, runtime, messaging, admin, peer, store, witness, invisible, shown }))
    }

    fn context(&self, client: &str) -> CallContext {
        let metadata = BTreeMap::from([(CLIENT_ID.to_owned(), client.to_owned())]);
        CallContext::new(self.runtime.now() + CALL_TIMEOUT, String::new(), metadata)
    }

    /// Shows the witness which entries were applied since the last time.
    fn show(&self) {
        let log = self.node.log();
        let applied = self.node.store().applied();
        let mut shown = lock(&self.shown);
        for index in *shown + 1..=applied {
            // Trimmed ones, and those of a snapshot, are not there.
            if let Ok(Some(entry)) = log.read(LogIndex(index)) {
                self.witness.applied(self.id, entry.index.0, entry.term.0, &entry.payload);
            }
        }
        *shown = applied;
    }
}

fn context_of(runtime: &Runtime, client: &str) -> CallContext {
    let metadata = BTreeMap::from([(CLIENT_ID.to_owned(), client.to_owned())]);
    CallContext::new(runtime.now() + CALL_TIMEOUT, String::new(), metadata)
}

/// Makes topics and groups, over whichever replica leads; the same again does no harm.
async fn found(runtime: Runtime, admin: Arc<dyn Admin>, queue_count: u32, errands: bool) {
    let mut topics = vec![("orders", v2::MessageType::Normal, queue_count)];
    let mut groups = vec![(WORKERS, false, 1000)];
    if errands {
        topics.extend(ERRAND_TOPICS);
        groups.extend(ERRAND_GROUPS);
    }
    for (name, message_type, queue_count) in topics {
        let topic = admin::Topic {
            name: name.to_owned(),
            message_type: message_type.into(),
            queue_count,
            permission: v2::Permission::ReadWrite.into(),
            ..Default::default()
        };
        loop {
            let request = admin::CreateTopicRequest { topic: Some(topic.clone()), ..Default::default() };
            if is_ok(admin.create_topic(context_of(&runtime, "founder"), request).await.status.as_ref()) {
                break;
            }
            runtime.sleep(ms(20)).await;
        }
    }
    for (name, order, max_deliveries) in groups {
        let group = admin::Group { name: name.to_owned(), order, max_deliveries, ..Default::default() };
        loop {
            let request = admin::CreateGroupRequest { group: Some(group.clone()) };
            if is_ok(admin.create_group(context_of(&runtime, "founder"), request).await.status.as_ref()) {
                break;
            }
            runtime.sleep(ms(20)).await;
        }
    }
}

/// A name as the protocol has it.
pub(crate) fn resource(name: &str) -> v2::Resource {
    v2::Resource { name: name.to_owned(), ..Default::default() }
}

/// A message as a client sends it.
pub(crate) fn message(topic: &str, message_id: &str, message_type: v2::MessageType, body_bytes: usize) -> v2::Message {
    let system = v2::SystemProperties {
        message_id: message_id.to_owned(),
        message_type: message_type.into(),
        ..Default::default()
    };
    v2::Message {
        topic: Some(resource(topic)),
        system_properties: Some(system),
        body: Bytes::from(vec![b'x'; body_bytes]),
        ..Default::default()
    }
}

/// A time as the protocol has it.
pub(crate) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

/// What an answer without success means.
pub(crate) fn failure(status: Option<&v2::Status>) -> SendError {
    match status.map(|status| consequence(status.code)) {
        Some(Consequence::NotDone | Consequence::Rejected) => SendError::Refused { leader: None },
        _ => SendError::Unknown,
    }
}

/// Where a send went.
pub(crate) fn places_of(topic: &str, reply: &Reply<v2::SendMessageResponse>) -> Vec<Placed> {
    let told = reply.metadata.iter().filter(|(name, _)| name == ACK_PLACE);
    let places = told.filter_map(|(_, text)| text.parse::<AckPlace>().ok());
    places
        .map(|place| Placed {
            queue: QueueKey::new(topic, place.queue),
            offset: place.offset,
            term: place.term,
            leader: place.leader,
        })
        .collect()
}

/// Takes messages for a group.
pub(crate) async fn receive(
    messaging: Arc<dyn Messaging>,
    context: CallContext,
    group: &str,
    topic: &str,
    invisible: Duration,
    attempt_id: String,
) -> Result<Vec<Received>, SendError> {
    let request = v2::ReceiveMessageRequest {
        group: Some(resource(group)),
        message_queue: Some(v2::MessageQueue { topic: Some(resource(topic)), ..Default::default() }),
        batch_size: RECEIVE_MAX,
        invisible_duration: Some(duration(invisible)),
        long_polling_timeout: Some(duration(POLL_TIME)),
        attempt_id: Some(attempt_id),
        ..Default::default()
    };
    let mut replies = messaging.receive_message(context, request).await;
    let (mut received, mut ended) = (Vec::new(), None);
    while let Some(response) = replies.recv().await {
        match response.content {
            Some(Content::Status(status)) => ended = Some(status),
            Some(Content::Message(message)) => received.extend(received_of(topic, message)),
            Some(Content::DeliveryTimestamp(_)) | None => {}
        }
    }
    match ended {
        _ if !received.is_empty() => Ok(received),
        Some(status) if status.code == i32::from(v2::Code::MessageNotFound) => Ok(received),
        other => Err(failure(other.as_ref())),
    }
}

fn received_of(topic: &str, message: v2::Message) -> Option<Received> {
    let system = message.system_properties?;
    Some(Received {
        queue: QueueKey::new(topic, u32::try_from(system.queue_id).ok()?),
        offset: u64::try_from(system.queue_offset?).ok()?,
        message_id: system.message_id,
        attempt: u32::try_from(system.delivery_attempt.unwrap_or(1)).ok()?,
        seq: 0,
        handle: system.receipt_handle.unwrap_or_default(),
    })
}

/// Acknowledges what a group got.
pub(crate) async fn acknowledge(
    messaging: Arc<dyn Messaging>,
    context: CallContext,
    group: &str,
    topic: &str,
    received: Vec<Received>,
) -> Result<Acknowledged, SendError> {
    let entries = received.into_iter().map(|received| v2::AckMessageEntry {
        message_id: received.message_id,
        receipt_handle: received.handle,
        ..Default::default()
    });
    let request = v2::AckMessageRequest {
        group: Some(resource(group)),
        topic: Some(resource(topic)),
        entries: entries.collect(),
    };
    let answer = messaging.ack_message(context, request).await.body;
    match answer.status.as_ref().map(|status| consequence(status.code)) {
        Some(Consequence::Done) => Ok(Acknowledged::All),
        Some(Consequence::SeeEntries | Consequence::Rejected) => Ok(Acknowledged::NotAll),
        _ => Err(failure(answer.status.as_ref())),
    }
}

impl PeerService for BrokerReplica {
    fn call(&self, kind: PeerCallKind, body: Bytes) -> BoxFuture<'static, Result<Bytes, String>> {
        if kind == PeerCallKind::LeaderGone {
            self.witness.mark("a voter was asked whether the leader is gone");
        }
        let (log, witness, id) = (self.node.log().clone(), self.witness.clone(), self.id);
        Box::pin(async move {
            let answer = log.serve_call(kind, body).await.map_err(|error| error.to_string());
            // An error promises nothing: the vote may be what could not be kept.
            if answer.is_ok() {
                witness.promised_term(id, log.status().term.0);
            }
            answer
        })
    }

    fn append(&self, requests: mpsc::Receiver<Bytes>, responses: mpsc::Sender<Bytes>) -> BoxFuture<'static, ()> {
        let task = self.node.log().serve_append(requests, responses);
        Box::pin(async move {
            // However it ended, the stream is over.
            let _ = task.join().await;
        })
    }
}

impl Replica for BrokerReplica {
    fn send(&self, batch: Batch) -> BoxFuture<'static, Result<Vec<Placed>, SendError>> {
        let (messaging, context, witness) = (self.messaging.clone(), self.context("client"), self.witness.clone());
        let asked = witness.asked();
        Box::pin(async move {
            let topic = batch.queue.topic.as_str();
            let messages = batch.message_ids.iter();
            let messages = messages.map(|id| message(topic, id, v2::MessageType::Normal, batch.body_bytes)).collect();
            let reply = messaging.send_message(context, v2::SendMessageRequest { messages }).await;
            if !is_ok(reply.body.status.as_ref()) {
                return Err(failure(reply.body.status.as_ref()));
            }
            let places = places_of(topic, &reply);
            if places.len() != batch.message_ids.len() {
                witness.object(format!("{:?} were stored at {} places", batch.message_ids, places.len()));
            }
            witness.acknowledged(asked, &batch.message_ids);
            Ok(places)
        })
    }

    fn receive(&self, queue: QueueKey, attempt_id: String) -> BoxFuture<'static, Result<Vec<Received>, SendError>> {
        let (messaging, context, invisible) = (self.messaging.clone(), self.context("consumer"), self.invisible);
        Box::pin(async move { receive(messaging, context, WORKERS, &queue.topic, invisible, attempt_id).await })
    }

    fn acknowledge(&self, received: Vec<Received>) -> BoxFuture<'static, Result<Acknowledged, SendError>> {
        let (messaging, context) = (self.messaging.clone(), self.context("consumer"));
        Box::pin(async move { acknowledge(messaging, context, WORKERS, "orders", received).await })
    }

    fn members(&self) -> GroupMembers {
        self.node.log().members()
    }

    fn life(&self) -> Incarnation {
        self.node.log().incarnation()
    }

    fn status(&self) -> LogStatus {
        self.node.log().status()
    }

    fn has_vote(&self) -> bool {
        has_vote(self.node.log())
    }

    fn look(&self, queue: &QueueKey, count: u64) -> Result<Vec<Delivery>, String> {
        self.show();
        look(&self.store, self.node.log(), self.id, queue, count)
    }

    fn dump(&self) -> Result<Dump, String> {
        self.show();
        dump(&self.store, self.node.log(), self.id)
    }

    fn digest(&self) -> (u64, String) {
        let digest = self.node.store().digest();
        (digest.applied, digest.digest)
    }

    fn failed(&self) -> BoxFuture<'static, String> {
        let node = self.node.clone();
        Box::pin(async move { node.failed().await })
    }

    fn transfer(&self) -> BoxFuture<'static, Result<(), String>> {
        let log = self.node.log().clone();
        Box::pin(async move {
            let moved = log.transfer_leader(None, Duration::from_secs(1)).await;
            moved.map(|_| ()).map_err(|error| error.to_string())
        })
    }

    fn messaging(&self) -> Option<Arc<dyn Messaging>> {
        Some(self.messaging.clone())
    }

    fn admin(&self) -> Option<Arc<dyn Admin>> {
        Some(self.admin.clone())
    }

    fn forward(&self, request: peer::ForwardRequest) -> BoxFuture<'static, peer::ForwardResponse> {
        let (peer, runtime) = (self.peer.clone(), self.runtime.clone());
        Box::pin(async move { peer.forward(context_of(&runtime, "peer"), request).await })
    }

    fn dead_letters(&self) -> Result<Vec<String>, String> {
        let queue = QueueKey::new(DEAD_LETTERS, 0);
        let dump = self.store.read(self.node.log(), &queue, None)?;
        Ok(dump.slots.into_iter().map(|slot| slot.message_id).collect())
    }
}
