//! Replicas of one group in this process, with real sockets on loopback ports, and a client to call them.
#![allow(dead_code, reason = "each test uses its part")]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_broker::{Broker, BrokerConfig, ReplicaConfig};
use flotilla_proto::client::{AdminCalls, CallOptions, Connector, MessagingCalls, TonicConnector};
use flotilla_proto::v2::receive_message_response::Content;
use flotilla_proto::{Reply, admin, metadata, v2};
use flotilla_raft_log::{Disk, OsDisk};
use flotilla_runtime::Runtime;
use futures::StreamExt as _;
use tempfile::TempDir;
use tokio::net::TcpListener;

/// A group whose replicas can be killed and started again.
pub struct Cluster {
    pub runtime: Runtime,
    pub connector: Arc<TonicConnector>,
    pub configs: Vec<BrokerConfig>,
    pub brokers: Vec<Option<Broker>>,
    dir: TempDir,
}

impl Cluster {
    /// Starts so many replicas of a new group.
    pub async fn start(replica_count: u64) -> Cluster {
        Cluster::start_with(replica_count, |_| ()).await
    }

    /// As [`Cluster::start`], with changed settings.
    pub async fn start_with(replica_count: u64, change: impl Fn(&mut BrokerConfig)) -> Cluster {
        Cluster::start_over(replica_count, change, |_| Arc::new(OsDisk)).await
    }

    /// As [`Cluster::start_with`], each replica over a disk of its own.
    pub async fn start_over(
        replica_count: u64,
        change: impl Fn(&mut BrokerConfig),
        disk_of: impl Fn(u64) -> Arc<dyn Disk>,
    ) -> Cluster {
        Cluster::start_in(Runtime::tokio(), replica_count, change, disk_of).await
    }

    /// As [`Cluster::start_over`], in a runtime of one's own.
    pub async fn start_in(
        runtime: Runtime,
        replica_count: u64,
        change: impl Fn(&mut BrokerConfig),
        disk_of: impl Fn(u64) -> Arc<dyn Disk>,
    ) -> Cluster {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let mut listeners = Vec::new();
        let mut replicas = Vec::new();
        for node in 1..=replica_count {
            let client = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
            let peer = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
            let address = |listener: &TcpListener| listener.local_addr().expect("a bound address").to_string();
            replicas.push(ReplicaConfig { node, client: address(&client), peer: address(&peer) });
            listeners.push((client, peer));
        }
        let mut configs = Vec::new();
        let mut brokers = Vec::new();
        for (node, (client, peer)) in (1..).zip(listeners) {
            let mut config = config_of(node, &replicas, dir.path());
            change(&mut config);
            let broker = Broker::start_over(config.clone(), runtime.clone(), disk_of(node), client, peer).await;
            let broker = broker.expect("it starts");
            configs.push(config);
            brokers.push(Some(broker));
        }
        let connector = Arc::new(TonicConnector::new(runtime.clone()));
        Cluster { runtime, connector, configs, brokers, dir }
    }

    /// Starts a further replica, with the next number and an empty directory, that waits to be taken in.
    pub async fn start_joiner(&mut self, node: u64) {
        let client = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let peer = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
        let address = |listener: &TcpListener| listener.local_addr().expect("a bound address").to_string();
        let own = ReplicaConfig { node, client: address(&client), peer: address(&peer) };
        let first = &self.configs[0];
        let config = BrokerConfig {
            node,
            join: true,
            data_dir: self.dir.path().join(format!("replica-{node}")),
            client_listen: own.client.parse().expect("an address"),
            peer_listen: own.peer.parse().expect("an address"),
            replicas: vec![own],
            ..first.clone()
        };
        let broker = Broker::start_on(config.clone(), self.runtime.clone(), client, peer).await.expect("it starts");
        self.configs.push(config);
        self.brokers.push(Some(broker));
    }

    /// The client address of a replica (numbers from 1).
    pub fn address(&self, node: u64) -> &str {
        &self.configs[usize::try_from(node).expect("small") - 1].own_replica().expect("it is listed").client
    }

    pub fn client(&self, node: u64) -> Client {
        Client {
            messaging: self.connector.messaging(self.address(node)),
            admin: self.connector.admin(self.address(node)),
            metadata: Arc::new(metadata::of_client("test@1", "0")),
        }
    }

    /// The replica that leads and may write, as soon as there is one.
    pub async fn leader(&self) -> u64 {
        for _ in 0..500 {
            for broker in self.brokers.iter().flatten() {
                let status = broker.node().log().status();
                if status.can_write {
                    return status.node.0;
                }
            }
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
        panic!("no leader within 10 s");
    }

    /// Waits until the lives of all members are recorded, the last step of a founding. Behind such an entry the leader answers
    /// nothing early until one of its own is committed.
    pub async fn founded(&self) {
        for _ in 0..500 {
            let is_settled = self.brokers.iter().flatten().all(|broker| {
                let members = broker.node().log().members();
                members.is_committed
                    && !members.is_joint
                    && !members.members.is_empty()
                    && members.members.values().all(|member| member.incarnation.is_known())
            });
            if is_settled {
                return;
            }
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
        panic!("the members' lives are not recorded within 10 s");
    }

    /// Some replica that does not lead.
    pub async fn follower(&self) -> u64 {
        let leader = self.leader().await;
        (1..).find(|node| *node != leader).expect("there is another number")
    }

    /// Kills a replica: its sockets close, nothing is said.
    pub fn kill(&mut self, node: u64) {
        drop(self.brokers[usize::try_from(node).expect("small") - 1].take().expect("it runs"));
    }

    /// Kills a replica and empties its data directory, once it has let go of it.
    pub async fn kill_and_empty(&mut self, node: u64) {
        self.kill(node);
        let dir = self.configs[usize::try_from(node).expect("small") - 1].data_dir.clone();
        let lock = dir.join("log/lock");
        assert!(lock.exists(), "what is waited for is the log's own lock");
        let released = async {
            while OsDisk.lock(&lock).is_err() {
                self.runtime.sleep(Duration::from_millis(20)).await;
            }
        };
        self.runtime.timeout(Duration::from_secs(10), released).await.expect("its directory is let go");
        if let Err(error) = std::fs::remove_dir_all(&dir) {
            panic!("something is written to it still: {error}, {:?}", files_below(&dir));
        }
    }

    /// Stops a replica as SIGTERM does.
    pub async fn stop(&mut self, node: u64) {
        let broker = self.brokers[usize::try_from(node).expect("small") - 1].take().expect("it runs");
        broker.shutdown(Duration::from_secs(5)).await;
    }

    /// Starts a killed replica again on its old data.
    pub async fn restart(&mut self, node: u64) {
        let at = usize::try_from(node).expect("small") - 1;
        let config = self.configs[at].clone();
        for _ in 0..100 {
            match Broker::start(config.clone(), self.runtime.clone()).await {
                Ok(broker) => {
                    self.brokers[at] = Some(broker);
                    return;
                }
                // Ports and the directory's lock are free a moment after the kill.
                Err(_) => self.runtime.sleep(Duration::from_millis(50)).await,
            }
        }
        panic!("replica {node} does not start again");
    }

    /// Waits until all running replicas have applied the same and returns their digests.
    pub async fn digests(&self) -> Vec<String> {
        for _ in 0..250 {
            let digests: Vec<_> = self.brokers.iter().flatten().map(|broker| broker.node().store().digest()).collect();
            if digests.iter().all(|digest| digest.applied == digests[0].applied) {
                return digests.into_iter().map(|digest| digest.digest).collect();
            }
            self.runtime.sleep(Duration::from_millis(20)).await;
        }
        panic!("replicas did not come to the same index within 5 s");
    }

    pub async fn shutdown(self) {
        for broker in self.brokers.into_iter().flatten() {
            broker.shutdown(Duration::from_secs(2)).await;
        }
    }
}

fn config_of(node: u64, replicas: &[ReplicaConfig], dir: &Path) -> BrokerConfig {
    let own = &replicas[usize::try_from(node).expect("small") - 1];
    BrokerConfig {
        node,
        data_dir: dir.join(format!("replica-{node}")),
        replicas: replicas.to_vec(),
        client_listen: own.client.parse().expect("an address"),
        peer_listen: own.peer.parse().expect("an address"),
        segment_bytes: 8 << 20,
        disk_free_bytes_min: 0,
        disk_refuse_free_bytes: 0,
        ..BrokerConfig::default()
    }
}

/// Calls one replica as a client would.
#[derive(Clone)]
pub struct Client {
    pub messaging: Arc<dyn MessagingCalls>,
    pub admin: Arc<dyn AdminCalls>,
    pub metadata: Arc<metadata::Metadata>,
}

pub fn resource(name: &str) -> v2::Resource {
    v2::Resource { name: name.to_owned(), resource_namespace: String::new() }
}

pub fn message(topic: &str, id: &str, change: impl FnOnce(&mut v2::SystemProperties)) -> v2::Message {
    let mut system = v2::SystemProperties { message_id: id.to_owned(), ..Default::default() };
    change(&mut system);
    v2::Message {
        topic: Some(resource(topic)),
        system_properties: Some(system),
        body: Bytes::from(format!("body of {id}")),
        ..Default::default()
    }
}

impl Client {
    pub fn options(&self, timeout: Duration) -> CallOptions {
        CallOptions::within(timeout).with_metadata(self.metadata.clone())
    }

    pub fn in_language(mut self, language: &str) -> Client {
        let mut metadata = (*self.metadata).clone();
        metadata.retain(|(name, _)| name != metadata::LANGUAGE);
        metadata.push((metadata::LANGUAGE.into(), language.to_owned()));
        self.metadata = Arc::new(metadata);
        self
    }

    pub async fn create_topic(&self, name: &str, message_type: v2::MessageType, queue_count: u32) {
        let topic = admin::Topic {
            name: name.to_owned(),
            message_type: message_type.into(),
            queue_count,
            permission: 4,
            ..Default::default()
        };
        let request = admin::CreateTopicRequest { topic: Some(topic), ..Default::default() };
        let reply = self.admin.create_topic(self.options(Duration::from_secs(10)), request).await.expect("an answer");
        assert_eq!(reply.status.expect("a status").code, 20000);
    }

    pub async fn create_group(&self, name: &str, order: bool, max_deliveries: u32) {
        let group = admin::Group { name: name.to_owned(), order, max_deliveries, ..Default::default() };
        let request = admin::CreateGroupRequest { group: Some(group) };
        let reply = self.admin.create_group(self.options(Duration::from_secs(10)), request).await.expect("an answer");
        assert_eq!(reply.status.expect("a status").code, 20000);
    }

    pub async fn send_all(&self, messages: Vec<v2::Message>) -> Reply<v2::SendMessageResponse> {
        let options = self.options(Duration::from_secs(5));
        self.messaging.send_message(options, v2::SendMessageRequest { messages }).await.expect("an answer")
    }

    /// Sends one message and returns the status.
    pub async fn send(&self, message: v2::Message) -> v2::Status {
        self.send_all(vec![message]).await.body.status.expect("a status")
    }

    /// Receives from `topic`; the status and the messages.
    pub async fn receive(&self, group: &str, topic: &str, wait: Duration, invisible: Duration) -> Received {
        self.receive_with(group, topic, wait, invisible, |_| ()).await
    }

    pub async fn receive_with(
        &self,
        group: &str,
        topic: &str,
        wait: Duration,
        invisible: Duration,
        change: impl FnOnce(&mut v2::ReceiveMessageRequest),
    ) -> Received {
        let duration = |duration: Duration| prost_types::Duration {
            seconds: i64::try_from(duration.as_secs()).expect("short"),
            nanos: i32::try_from(duration.subsec_nanos()).expect("below a billion"),
        };
        let mut request = v2::ReceiveMessageRequest {
            group: Some(resource(group)),
            message_queue: Some(v2::MessageQueue { topic: Some(resource(topic)), ..Default::default() }),
            batch_size: 32,
            invisible_duration: Some(duration(invisible)),
            long_polling_timeout: Some(duration(wait)),
            ..Default::default()
        };
        change(&mut request);
        let options = self.options(wait + Duration::from_secs(3));
        let mut stream = self.messaging.receive_message(options, request).await.expect("a stream");
        let mut received = Received::default();
        while let Some(response) = stream.next().await {
            match response.expect("no error").content {
                Some(Content::Status(status)) => received.code = status.code,
                Some(Content::Message(message)) => received.messages.push(message),
                Some(Content::DeliveryTimestamp(_)) | None => {}
            }
        }
        received
    }

    /// Acknowledges messages and returns the overall code.
    pub async fn ack(&self, group: &str, topic: &str, messages: &[v2::Message]) -> i32 {
        let entries = messages.iter().map(|message| v2::AckMessageEntry {
            message_id: id_of(message).to_owned(),
            receipt_handle: handle_of(message).to_owned(),
            ..Default::default()
        });
        let request = v2::AckMessageRequest {
            group: Some(resource(group)),
            topic: Some(resource(topic)),
            entries: entries.collect(),
        };
        let options = self.options(Duration::from_secs(5));
        let reply = self.messaging.ack_message(options, request).await.expect("an answer");
        reply.body.status.expect("a status").code
    }

    /// Sends one message and returns its entry in the answer.
    pub async fn send_for_entry(&self, message: v2::Message) -> v2::SendResultEntry {
        let answer = self.send_all(vec![message]).await.body;
        let status = answer.status.expect("a status");
        assert_eq!(status.code, 20000, "{}", status.message);
        answer.entries[0].clone()
    }

    /// Recalls a delayed message; the code and the id that it had.
    pub async fn recall(&self, topic: &str, handle: &str) -> (i32, String) {
        let request = v2::RecallMessageRequest { topic: Some(resource(topic)), recall_handle: handle.to_owned() };
        let options = self.options(Duration::from_secs(5));
        let reply = self.messaging.recall_message(options, request).await.expect("an answer").body;
        (reply.status.expect("a status").code, reply.message_id)
    }

    pub async fn change_invisible(&self, group: &str, topic: &str, handle: &str, ms: u64) -> (i32, String) {
        let invisible_duration = prost_types::Duration {
            seconds: i64::try_from(ms / 1000).expect("short"),
            nanos: i32::try_from(ms % 1000).expect("short") * 1_000_000,
        };
        let request = v2::ChangeInvisibleDurationRequest {
            group: Some(resource(group)),
            topic: Some(resource(topic)),
            receipt_handle: handle.to_owned(),
            invisible_duration: Some(invisible_duration),
            ..Default::default()
        };
        let options = self.options(Duration::from_secs(5));
        let reply = self.messaging.change_invisible_duration(options, request).await.expect("an answer").body;
        (reply.status.expect("a status").code, reply.receipt_handle)
    }
}

pub fn queue(topic: &str, id: i32) -> v2::MessageQueue {
    v2::MessageQueue { topic: Some(resource(topic)), id, ..Default::default() }
}

impl Client {
    /// Reads queue 0 of a topic; code, messages, and where to go on.
    pub async fn pull(&self, group: &str, topic: &str, offset: i64, wait: Duration) -> Pulled {
        self.pull_with(group, topic, offset, wait, |_| ()).await
    }

    pub async fn pull_with(
        &self,
        group: &str,
        topic: &str,
        offset: i64,
        wait: Duration,
        change: impl FnOnce(&mut v2::PullMessageRequest),
    ) -> Pulled {
        let mut request = v2::PullMessageRequest {
            group: Some(resource(group)),
            message_queue: Some(queue(topic, 0)),
            offset,
            batch_size: 32,
            filter_expression: None,
            long_polling_timeout: Some(prost_types::Duration {
                seconds: i64::try_from(wait.as_secs()).expect("short"),
                nanos: i32::try_from(wait.subsec_nanos()).expect("below a billion"),
            }),
        };
        change(&mut request);
        let options = self.options(wait + Duration::from_secs(3));
        let mut stream = self.messaging.pull_message(options, request).await.expect("a stream");
        let mut pulled = Pulled::default();
        while let Some(response) = stream.next().await {
            match response.expect("no error").content {
                Some(v2::pull_message_response::Content::Status(status)) => pulled.code = status.code,
                Some(v2::pull_message_response::Content::Message(message)) => pulled.messages.push(message),
                Some(v2::pull_message_response::Content::NextOffset(next)) => pulled.next = Some(next),
                None => {}
            }
        }
        pulled
    }

    pub async fn update_offset(&self, group: &str, topic: &str, offset: i64) -> i32 {
        let request =
            v2::UpdateOffsetRequest { group: Some(resource(group)), message_queue: Some(queue(topic, 0)), offset };
        let reply = self.messaging.update_offset(self.options(Duration::from_secs(5)), request).await;
        reply.expect("an answer").body.status.expect("a status").code
    }

    /// Code and offset.
    pub async fn get_offset(&self, group: &str, topic: &str) -> (i32, i64) {
        let request = v2::GetOffsetRequest { group: Some(resource(group)), message_queue: Some(queue(topic, 0)) };
        let reply = self.messaging.get_offset(self.options(Duration::from_secs(5)), request).await;
        let body = reply.expect("an answer").body;
        (body.status.expect("a status").code, body.offset)
    }

    /// The offset at a time in ms, or without one the end.
    pub async fn query_offset(&self, topic: &str, policy: v2::QueryOffsetPolicy, at_ms: Option<u64>) -> (i32, i64) {
        let timestamp = at_ms.map(|ms| prost_types::Timestamp {
            seconds: i64::try_from(ms / 1000).expect("a time"),
            nanos: i32::try_from(ms % 1000).expect("below a thousand") * 1_000_000,
        });
        let request = v2::QueryOffsetRequest {
            message_queue: Some(queue(topic, 0)),
            query_offset_policy: policy.into(),
            timestamp,
        };
        let reply = self.messaging.query_offset(self.options(Duration::from_secs(5)), request).await;
        let body = reply.expect("an answer").body;
        (body.status.expect("a status").code, body.offset)
    }

    /// Makes a group as described.
    pub async fn create_group_of(&self, group: admin::Group) {
        let request = admin::CreateGroupRequest { group: Some(group) };
        let reply = self.admin.create_group(self.options(Duration::from_secs(10)), request).await.expect("an answer");
        assert_eq!(reply.status.expect("a status").code, 20000);
    }
}

/// What a pull brought.
#[derive(Debug, Default)]
pub struct Pulled {
    pub code: i32,
    pub messages: Vec<v2::Message>,
    pub next: Option<i64>,
}

impl Pulled {
    pub fn ids(&self) -> Vec<String> {
        self.messages.iter().map(|message| id_of(message).to_owned()).collect()
    }
}

/// What a poll brought.
#[derive(Debug, Default)]
pub struct Received {
    pub code: i32,
    pub messages: Vec<v2::Message>,
}

impl Received {
    pub fn ids(&self) -> Vec<String> {
        self.messages.iter().map(|message| id_of(message).to_owned()).collect()
    }
}

pub fn system_of(message: &v2::Message) -> &v2::SystemProperties {
    message.system_properties.as_ref().expect("system properties")
}

pub fn id_of(message: &v2::Message) -> &str {
    &system_of(message).message_id
}

pub fn handle_of(message: &v2::Message) -> &str {
    system_of(message).receipt_handle.as_deref().expect("a receipt handle")
}

fn files_below(dir: &Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| if entry.path().is_dir() { files_below(&entry.path()) } else { vec![entry.path()] })
        .collect()
}
