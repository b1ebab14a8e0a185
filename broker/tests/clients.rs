//! What clients and namesrvs hear from a replica: settings, routes, rows.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{Cluster, resource};
use flotilla_broker::{Broker, BrokerConfig};
use flotilla_proto::client::{Connector, TonicConnector};
use flotilla_proto::server::{Services, serve};
use flotilla_proto::status::ok;
use flotilla_proto::v2::telemetry_command::Command;
use flotilla_proto::v2::{self, MessageType};
use flotilla_proto::{CallContext, Namesrv, Replies, namesrv};
use flotilla_runtime::{BoxFuture, Runtime};
use futures::StreamExt as _;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

const LONG: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_consumer_s_settings_are_answered_with_the_group_s_way_of_consuming() {
    let cluster = Cluster::start(1).await;
    let client = cluster.client(1);
    client.create_group("g", true, 7).await;
    let (commands, outgoing) = mpsc::channel(4);
    let mut answers = client.messaging.telemetry(client.options(LONG), outgoing).await.expect("a stream");
    let subscription = v2::Subscription { group: Some(resource("g")), ..Default::default() };
    let settings = v2::Settings {
        client_type: Some(v2::ClientType::PushConsumer.into()),
        pub_sub: Some(v2::settings::PubSub::Subscription(subscription)),
        ..Default::default()
    };
    let command = v2::TelemetryCommand { status: None, command: Some(Command::Settings(settings)) };
    commands.send(command).await.expect("the stream is open");
    let answer = answers.next().await.expect("an answer").expect("no error");
    assert_eq!(answer.status.map(|status| status.code), Some(20000));
    let Some(Command::Settings(settings)) = answer.command else { panic!("no settings") };
    assert_eq!(settings.backoff_policy.map(|policy| policy.max_attempts), Some(7));
    let Some(v2::settings::PubSub::Subscription(subscription)) = settings.pub_sub else { panic!("no subscription") };
    assert_eq!((subscription.fifo, subscription.receive_batch_size), (Some(true), Some(32)));
    let node = cluster.brokers[0].as_ref().expect("it runs").node();
    assert_eq!(node.clients().counts(), (1, 1));

    // The end of the stream is not the end of the client; its word is.
    drop((commands, answers));
    for _ in 0..100 {
        if node.clients().counts().1 == 0 {
            break;
        }
        cluster.runtime.sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(node.clients().counts(), (1, 0));
    let request = v2::NotifyClientTerminationRequest::default();
    client.messaging.notify_client_termination(client.options(LONG), request).await.expect("an answer");
    assert_eq!(node.clients().counts(), (0, 0));
    cluster.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_replica_gives_the_same_route_dead_members_included() {
    let mut cluster = Cluster::start(3).await;
    cluster.client(1).create_topic("orders", MessageType::Normal, 2).await;
    let leader = cluster.leader().await;
    let mut routes = Vec::new();
    for killed in [false, true] {
        if killed {
            cluster.kill(leader);
        }
        for node in (1..=3).filter(|node| !killed || *node != leader) {
            let client = cluster.client(node).in_language("JAVA");
            let request = v2::QueryRouteRequest { topic: Some(resource("orders")), endpoints: None };
            let reply = client.messaging.query_route(client.options(LONG), request).await.expect("an answer").body;
            assert_eq!(reply.status.as_ref().map(|status| status.code), Some(20000));
            routes.push(reply.message_queues);
        }
    }
    assert_eq!(routes.len(), 5);
    assert!(routes.iter().all(|route| *route == routes[0]));
    cluster.shutdown().await;
}

/// A namesrv that remembers what it is told.
#[derive(Default)]
struct Recorder {
    runtime: Option<Runtime>,
    rows: Arc<Mutex<Vec<namesrv::Registration>>>,
    gone: Arc<Mutex<Vec<u64>>>,
}

impl Namesrv for Recorder {
    fn register(
        &self,
        _context: CallContext,
        mut rows: mpsc::Receiver<namesrv::Registration>,
    ) -> Replies<namesrv::RegistrationReply> {
        let (sender, replies) = mpsc::channel(8);
        let known = self.rows.clone();
        let serve = async move {
            while let Some(row) = rows.recv().await {
                let reply = namesrv::RegistrationReply {
                    status: Some(ok()),
                    version: row.version,
                    expiry_ms: 120_000,
                    ..Default::default()
                };
                known.lock().expect("not poisoned").push(row);
                if sender.send(reply).await.is_err() {
                    return;
                }
            }
        };
        self.runtime.as_ref().expect("a runtime").spawn("register", serve).detach();
        replies
    }

    fn unregister(
        &self,
        _context: CallContext,
        request: namesrv::UnregisterRequest,
    ) -> BoxFuture<'_, namesrv::UnregisterReply> {
        self.gone.lock().expect("not poisoned").push(request.replica);
        Box::pin(std::future::ready(namesrv::UnregisterReply { status: Some(ok()) }))
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namesrv_hears_of_every_change_at_once_and_of_the_end() {
    let runtime = Runtime::tokio();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a loopback port");
    let address = listener.local_addr().expect("bound").to_string();
    let recorder = Recorder { runtime: Some(runtime.clone()), ..Recorder::default() };
    let (rows, gone) = (recorder.rows.clone(), recorder.gone.clone());
    let services = Services::new(runtime.clone()).with_namesrv(Arc::new(recorder));
    let serving = runtime.spawn("namesrv", async move {
        serve(listener, services, std::future::pending()).await.expect("it serves");
    });
    let dir = tempfile::tempdir().expect("a temporary directory");
    let config = BrokerConfig {
        data_dir: dir.path().join("data"),
        client_listen: "127.0.0.1:0".parse().expect("an address"),
        peer_listen: "127.0.0.1:0".parse().expect("an address"),
        segment_bytes: 8 << 20,
        namesrv: vec![address],
        ..BrokerConfig::default()
    };
    let broker = Broker::start(config, runtime.clone()).await.expect("it starts");
    let found = |what: &'static str, wanted: fn(&namesrv::Registration) -> bool| {
        let (rows, runtime) = (rows.clone(), runtime.clone());
        async move {
            for _ in 0..250 {
                if rows.lock().expect("not poisoned").iter().any(wanted) {
                    return;
                }
                runtime.sleep(Duration::from_millis(20)).await;
            }
            panic!("no row {what}: {:?}", rows.lock().expect("not poisoned"));
        }
    };
    found("of a leader", |row| row.role == namesrv::ReplicaRole::Leader as i32 && row.term > 0).await;
    let client_address = broker.client_address().to_string();
    let admin = TonicConnector::new(runtime.clone()).admin(&client_address);
    let topic = flotilla_proto::admin::Topic { name: "orders".to_owned(), queue_count: 3, ..Default::default() };
    let request = flotilla_proto::admin::CreateTopicRequest { topic: Some(topic), ..Default::default() };
    admin.create_topic(flotilla_proto::client::CallOptions::within(LONG), request).await.expect("an answer");
    found("with the topic", |row| row.topics.iter().any(|topic| topic.name == "orders" && topic.queue_count == 3))
        .await;
    let last = rows.lock().expect("not poisoned").last().cloned().expect("a row");
    assert_eq!((last.client_address.as_str(), last.replicas.len(), last.replica), (client_address.as_str(), 1, 1));
    broker.shutdown(Duration::from_secs(2)).await;
    assert_eq!(*gone.lock().expect("not poisoned"), [1]);
    drop(serving);
}
