//! What a front tells its caller when the answer of the leader got lost on the way: a group in memory, whose forwarded
//! calls break where the test says.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{id_of, message, resource, system_of};
use bytes::Bytes;
use flotilla_broker::{BrokerConfig, Node, ReplicaConfig};
use flotilla_proto::client::{
    AdminCalls, AppendLink, CallError, Connector, MessagingCalls, NamesrvCalls, PeerCalls, Presence,
};
use flotilla_proto::status::{Code, status};
use flotilla_proto::v2::receive_message_response::Content;
use flotilla_proto::{CallContext, Peer, PeerLink, admin, peer, v2};
use flotilla_raft_log::OsDisk;
use flotilla_runtime::{BoxFuture, Runtime};
use tempfile::TempDir;
use tokio::sync::mpsc;

/// What happens to the next forwarded calls of a method.
#[derive(Clone)]
enum Trouble {
    /// Executed, and the answer is lost with the leader's process.
    LeaderDies,
    /// Executed, and the answer is lost.
    AnswerLost,
    /// Refused by the leader.
    Refused(Code),
}

/// Who is there, and what goes wrong.
#[derive(Clone, Default)]
struct Net {
    peers: Arc<Mutex<BTreeMap<String, Arc<dyn Peer>>>>,
    nodes: Arc<Mutex<BTreeMap<String, Node>>>,
    troubles: Arc<Mutex<VecDeque<(&'static str, Trouble)>>>,
}

struct MemoryPeer {
    net: Net,
    address: String,
}

impl Net {
    fn find(&self, address: &str) -> Result<Arc<dyn Peer>, CallError> {
        let peers = self.peers.lock().expect("not poisoned");
        peers.get(address).cloned().ok_or_else(|| CallError::Refused("nobody listens".to_owned()))
    }

    fn kill(&self, address: &str) {
        self.peers.lock().expect("not poisoned").remove(address);
        drop(self.nodes.lock().expect("not poisoned").remove(address));
    }

    fn trouble(&self, method: &str) -> Option<Trouble> {
        let mut troubles = self.troubles.lock().expect("not poisoned");
        let is_next = troubles.front().is_some_and(|(next, _)| *next == method);
        if is_next { troubles.pop_front().map(|(_, trouble)| trouble) } else { None }
    }

    fn plan(&self, method: &'static str, troubles: impl IntoIterator<Item = Trouble>) {
        self.troubles.lock().expect("not poisoned").extend(troubles.into_iter().map(|trouble| (method, trouble)));
    }
}

impl Connector for Net {
    fn messaging(&self, _: &str) -> Arc<dyn MessagingCalls> {
        unreachable!("replicas do not call each other as clients")
    }

    fn admin(&self, _: &str) -> Arc<dyn AdminCalls> {
        unreachable!("replicas do not call each other as operators")
    }

    fn namesrv(&self, _: &str) -> Arc<dyn NamesrvCalls> {
        unreachable!("there is no namesrv")
    }

    fn peer(&self, address: &str) -> Arc<dyn PeerCalls> {
        Arc::new(MemoryPeer { net: self.clone(), address: address.to_owned() })
    }
}

impl PeerCalls for MemoryPeer {
    fn call(&self, call: peer::PeerCall, _: Duration) -> BoxFuture<'static, Result<Bytes, CallError>> {
        let peer = self.net.find(&self.address);
        Box::pin(async move { peer?.call(call).await.map_err(|error| CallError::Broken(error.to_string())) })
    }

    fn open_append(&self, link: PeerLink, _: Duration) -> BoxFuture<'static, Result<AppendLink, CallError>> {
        let peer = self.net.find(&self.address);
        Box::pin(async move {
            let (requests, taken) = mpsc::channel(16);
            let responses = peer?.append(link, taken).map_err(|error| CallError::Broken(error.to_string()))?;
            Ok(AppendLink { requests, responses })
        })
    }

    fn forward(
        &self,
        request: peer::ForwardRequest,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<peer::ForwardResponse, CallError>> {
        let (net, address) = (self.net.clone(), self.address.clone());
        Box::pin(async move {
            let peer = net.find(&address)?;
            let trouble = net.trouble(&request.method);
            if let Some(Trouble::Refused(code)) = trouble {
                let status = Some(status(code, "refused by the test"));
                return Ok(peer::ForwardResponse { status, ..Default::default() });
            }
            let deadline = Runtime::tokio().now() + timeout;
            let context = CallContext::new(deadline, String::new(), BTreeMap::new());
            let response = peer.forward(context, request).await;
            match trouble {
                None | Some(Trouble::Refused(_)) => Ok(response),
                Some(trouble) => {
                    drop(peer);
                    if matches!(trouble, Trouble::LeaderDies) {
                        net.kill(&address);
                    }
                    Err(CallError::Broken("connection reset by the test".to_owned()))
                }
            }
        })
    }

    fn probe(&self, _: Duration) -> BoxFuture<'static, Presence> {
        let presence = if self.net.find(&self.address).is_ok() { Presence::Listening } else { Presence::Refused };
        Box::pin(std::future::ready(presence))
    }
}

/// Three replicas; calls go to one that does not lead.
struct Group {
    runtime: Runtime,
    net: Net,
    front: Arc<dyn flotilla_proto::Messaging>,
    _dir: TempDir,
}

impl Group {
    /// With the topic `orders` of one queue.
    async fn start() -> Group {
        let (runtime, net) = (Runtime::tokio(), Net::default());
        let dir = tempfile::tempdir().expect("a temporary directory");
        let replica = |node: u64| ReplicaConfig {
            node,
            client: format!("client-{node}.test:1"),
            peer: format!("peer-{node}.test:1"),
        };
        let replicas: Vec<ReplicaConfig> = (1..=3).map(replica).collect();
        for own in &replicas {
            let config = BrokerConfig {
                node: own.node,
                data_dir: dir.path().join(own.node.to_string()),
                replicas: replicas.clone(),
                segment_bytes: 8 << 20,
                disk_free_bytes_min: 0,
                disk_refuse_free_bytes: 0,
                ..BrokerConfig::default()
            };
            let connector = Arc::new(net.clone());
            let node = Node::start(config, runtime.clone(), Arc::new(OsDisk), connector).await;
            let node = node.expect("it starts");
            net.peers.lock().expect("not poisoned").insert(own.peer.clone(), node.peer());
            net.nodes.lock().expect("not poisoned").insert(own.peer.clone(), node);
        }
        let (admin, front) = loop {
            let found = {
                let nodes = net.nodes.lock().expect("not poisoned");
                let leader = nodes.values().find(|node| node.log().status().can_write);
                let leader = leader.map(|node| node.log().status().node);
                let follows = |node: &&Node| leader.is_some() && node.log().status().leader == leader;
                nodes
                    .values()
                    .filter(follows)
                    .find(|node| Some(node.log().status().node) != leader)
                    .map(|node| (node.admin(), node.messaging()))
            };
            match found {
                Some(found) => break found,
                None => runtime.sleep(Duration::from_millis(20)).await,
            }
        };
        let group = Group { runtime, net, front, _dir: dir };
        let name = "orders".to_owned();
        let topic = admin::Topic {
            name,
            message_type: v2::MessageType::Normal.into(),
            queue_count: 1,
            permission: 4,
            ..Default::default()
        };
        let request = admin::CreateTopicRequest { topic: Some(topic), ..Default::default() };
        let reply = admin.create_topic(group.context(Duration::from_secs(10)), request).await;
        assert_eq!(reply.status.expect("a status").code, 20000);
        group
    }

    fn context(&self, timeout: Duration) -> CallContext {
        CallContext::new(self.runtime.now() + timeout, String::new(), BTreeMap::new())
    }

    async fn send(&self, id: &str) -> v2::Status {
        let request = v2::SendMessageRequest { messages: vec![message("orders", id, |_| ())] };
        let reply = self.front.send_message(self.context(Duration::from_secs(5)), request).await;
        reply.body.status.expect("a status")
    }

    /// One poll without an attempt id: the status and the messages.
    async fn receive(&self, wait: Duration) -> (i32, Vec<v2::Message>) {
        let duration = |duration: Duration| prost_types::Duration {
            seconds: i64::try_from(duration.as_secs()).expect("short"),
            nanos: i32::try_from(duration.subsec_nanos()).expect("below a billion"),
        };
        let request = v2::ReceiveMessageRequest {
            group: Some(resource("g")),
            message_queue: Some(v2::MessageQueue { topic: Some(resource("orders")), ..Default::default() }),
            batch_size: 32,
            invisible_duration: Some(duration(Duration::from_secs(60))),
            long_polling_timeout: Some(duration(wait)),
            ..Default::default()
        };
        let mut replies = self.front.receive_message(self.context(Duration::from_secs(15)), request).await;
        let (mut code, mut messages) = (0, Vec::new());
        while let Some(reply) = replies.recv().await {
            match reply.content {
                Some(Content::Status(status)) => code = status.code,
                Some(Content::Message(message)) => messages.push(message),
                Some(Content::DeliveryTimestamp(_)) | None => {}
            }
        }
        (code, messages)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_poll_gets_from_the_next_leader_what_the_dead_one_had_given_it() {
    let group = Group::start().await;
    for number in 0..5 {
        assert_eq!(group.send(&format!("m-{number}")).await.code, 20000);
    }
    group.net.plan("ReceiveMessage", [Trouble::LeaderDies]);
    // Its own time is over before there is a leader again.
    let (code, messages) = group.receive(Duration::from_millis(1)).await;
    assert_eq!(code, 20000);
    assert_eq!(messages.iter().map(id_of).collect::<Vec<_>>(), ["m-0", "m-1", "m-2", "m-3", "m-4"]);
    for message in &messages {
        assert_eq!(system_of(message).delivery_attempt, Some(1), "the same delivery, not another one");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_send_that_may_be_stored_is_never_called_not_stored() {
    let group = Group::start().await;
    for (number, code) in [(0, Code::HaNotAvailable), (1, Code::TopicNotFound)] {
        group.net.plan("SendMessage", [Trouble::AnswerLost, Trouble::Refused(code)]);
        let status = group.send(&format!("m-{number}")).await;
        assert_eq!(status.code, i32::from(Code::ProxyTimeout), "{}", status.message);
        group.net.plan("SendMessage", [Trouble::Refused(code)]);
        let status = group.send("refused").await;
        assert_eq!(status.code, i32::from(code), "a refusal alone is passed on");
    }
    // Both were stored, the refused one was not.
    let (_, messages) = group.receive(Duration::from_secs(5)).await;
    assert_eq!(messages.iter().map(id_of).collect::<Vec<_>>(), ["m-0", "m-1"]);
}
