//! The service as a broker and a client feel it: in process, and over a real loopback socket.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use flotilla_proto::client::{CallOptions, Connector, TonicConnector};
use flotilla_proto::row_change::change_of;
use flotilla_proto::status::Code;
use flotilla_proto::{CallContext, Namesrv as _, namesrv as proto};
use flotilla_runtime::{BoxFuture, Driver, Instant, Runtime};
use futures::StreamExt;
use tokio::sync::mpsc;

use crate::config::NamesrvConfig;
use crate::namesrv::{Namesrv, StartError};
use crate::service::NamesrvService;

fn row(replica: u64, role: proto::ReplicaRole, term: u64, version: u64) -> proto::Registration {
    let members = (1..=3).map(|n| proto::ReplicaAddress { replica: n, client: format!("127.0.0.1:{n}") });
    proto::Registration {
        cluster: "flotilla".to_owned(),
        group: "group-a".to_owned(),
        group_incarnation: "1".to_owned(),
        replica,
        role: role.into(),
        term,
        version,
        client_address: format!("127.0.0.1:{replica}"),
        peer_address: format!("127.0.0.1:1{replica}"),
        replicas: members.collect(),
        topics: vec![proto::TopicEntry { name: "orders".to_owned(), queue_count: 4, permission: 4, message_type: 1 }],
        heartbeat_interval_ms: 20,
        ..Default::default()
    }
}

fn context(runtime: &Runtime) -> CallContext {
    CallContext::new(runtime.now() + Duration::from_secs(3), String::new(), Default::default())
}

fn route_request(topic: &str) -> proto::TopicRouteRequest {
    proto::TopicRouteRequest { cluster: String::new(), topic: topic.to_owned() }
}

fn code(status: &Option<flotilla_proto::v2::Status>) -> Code {
    Code::try_from(status.as_ref().expect("every reply has a status").code).expect("a known code")
}

fn quick() -> NamesrvConfig {
    NamesrvConfig {
        listen: "127.0.0.1:0".parse().unwrap(),
        heartbeat_interval_ms: 20,
        scan_interval_ms: 10,
        expiry_ms: 600,
        ..NamesrvConfig::default()
    }
}

/// Time that passes only when the test says so, so that a busy machine changes nothing.
struct HandClock {
    now_ms: AtomicU64,
}

impl HandClock {
    fn runtime() -> (Arc<HandClock>, Runtime) {
        let clock = Arc::new(HandClock { now_ms: AtomicU64::new(1_000_000) });
        (clock.clone(), Runtime::from_driver(clock))
    }

    fn pass(&self, ms: u64) {
        self.now_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Driver for HandClock {
    #[allow(clippy::disallowed_methods, reason = "a test's driver is where tasks really start")]
    fn spawn(&self, _name: &'static str, future: BoxFuture<'static, ()>) {
        drop(tokio::spawn(future));
    }

    fn spawn_blocking(&self, work: Box<dyn FnOnce() + Send + 'static>) {
        work();
    }

    fn now(&self) -> Instant {
        Instant::from_nanos(self.now_ms.load(Ordering::SeqCst) * 1_000_000)
    }

    fn wall_ms(&self) -> u64 {
        self.now_ms.load(Ordering::SeqCst)
    }

    fn sleep_until(&self, _deadline: Instant) -> BoxFuture<'static, ()> {
        Box::pin(std::future::pending())
    }

    fn random_u64(&self) -> u64 {
        7
    }
}

#[tokio::test]
async fn a_closed_connection_leaves_its_row_until_the_expiry() {
    let (clock, runtime) = HandClock::runtime();
    let service = NamesrvService::new(quick(), runtime.clone());
    let (rows, receiver) = mpsc::channel(4);
    let mut replies = service.register(context(&runtime), receiver);
    rows.send(row(1, proto::ReplicaRole::Leader, 2, 1)).await.unwrap();
    let reply = replies.recv().await.unwrap();
    assert_eq!((code(&reply.status), reply.version, reply.expiry_ms), (Code::Ok, 1, 600));

    let leader = async || {
        let groups = service.list_groups(context(&runtime), proto::ListGroupsRequest::default()).await.groups;
        assert_eq!((groups.len(), groups[0].group.as_str()), (1, "group-a"));
        groups[0].leader
    };
    assert_eq!(leader().await, 1);

    // The broker's connection breaks: its row stays, so that it can come back; that it leads is nobody's word any more.
    drop((rows, replies));
    while leader().await != 0 {
        tokio::task::yield_now().await;
    }
    clock.pass(599);
    service.scan();
    let found = service.query_topic_route(context(&runtime), route_request("orders")).await;
    assert_eq!((code(&found.status), found.groups[0].leader), (Code::Ok, 0));

    // It does not come back: after the expiry the row goes.
    clock.pass(1);
    service.scan();
    let found = service.query_topic_route(context(&runtime), route_request("orders")).await;
    assert_eq!(code(&found.status), Code::TopicNotFound);
}

#[tokio::test]
async fn a_change_is_as_good_as_the_whole_row_and_refused_without_the_row_that_it_builds_on() {
    let runtime = Runtime::tokio();
    let service = NamesrvService::new(quick(), runtime.clone());
    let (rows, receiver) = mpsc::channel(4);
    let mut replies = service.register(context(&runtime), receiver);
    let first = row(1, proto::ReplicaRole::Leader, 2, 1);
    rows.send(first.clone()).await.unwrap();
    let reply = replies.recv().await.unwrap();
    assert_eq!((code(&reply.status), reply.takes_changes), (Code::Ok, true));
    let mut second = proto::Registration { version: 2, ..first.clone() };
    second.topics.push(proto::TopicEntry { name: "steps".to_owned(), queue_count: 1, permission: 4, message_type: 2 });
    rows.send(change_of(&first, &second)).await.unwrap();
    assert_eq!(code(&replies.recv().await.unwrap().status), Code::Ok);
    for topic in ["orders", "steps"] {
        let found = service.query_topic_route(context(&runtime), route_request(topic)).await;
        assert_eq!((code(&found.status), found.groups.len()), (Code::Ok, 1), "{topic}");
    }

    // Another stream does not know the row before.
    let third = proto::Registration { version: 3, topics: second.topics[1..].to_vec(), ..second.clone() };
    let (others, receiver) = mpsc::channel(4);
    let mut answers = service.register(context(&runtime), receiver);
    others.send(change_of(&second, &third)).await.unwrap();
    assert_eq!(code(&answers.recv().await.unwrap().status), Code::PreconditionFailed);
    let found = service.query_topic_route(context(&runtime), route_request("orders")).await;
    assert_eq!(code(&found.status), Code::Ok, "nothing was changed");
    rows.send(change_of(&second, &third)).await.unwrap();
    assert_eq!(code(&replies.recv().await.unwrap().status), Code::Ok);
    let found = service.query_topic_route(context(&runtime), route_request("orders")).await;
    assert_eq!(code(&found.status), Code::TopicNotFound, "a topic that is gone is gone");
}

#[tokio::test]
async fn expiry_closes_the_silent_connection_and_not_the_one_that_took_over() {
    let (clock, runtime) = HandClock::runtime();
    let service = NamesrvService::new(quick(), runtime.clone());
    let (silent_rows, receiver) = mpsc::channel(4);
    let mut silent = service.register(context(&runtime), receiver);
    for replica in [1, 2] {
        silent_rows.send(row(replica, proto::ReplicaRole::Follower, 2, 1)).await.unwrap();
        assert_eq!(code(&silent.recv().await.unwrap().status), Code::Ok);
    }

    // Replica 1 registers on a new connection while the old one hangs.
    let (rows, receiver) = mpsc::channel(4);
    let mut replies = service.register(context(&runtime), receiver);
    for _ in 0..10 {
        rows.send(row(1, proto::ReplicaRole::Leader, 3, 1)).await.unwrap();
        assert_eq!(code(&replies.recv().await.unwrap().status), Code::Ok);
        clock.pass(100);
        service.scan();
    }
    assert!(silent.recv().await.is_none(), "the silent connection is closed");
    let found = service.query_topic_route(context(&runtime), route_request("orders")).await;
    assert_eq!(found.groups[0].leader, 1, "replica 1 is still there");
    assert_eq!(service.routes().rows(None).count(), 1, "replica 2, heard of on the silent connection only, is gone");
    assert!(!rows.is_closed());
}

#[tokio::test]
async fn the_table_of_metrics_explains_what_a_namesrv_serves_and_nothing_else() {
    let runtime = Runtime::tokio();
    let service = NamesrvService::new(quick(), runtime.clone());
    let (rows, receiver) = mpsc::channel(4);
    let mut replies = service.register(context(&runtime), receiver);
    rows.send(row(1, proto::ReplicaRole::Leader, 2, 1)).await.unwrap();
    assert_eq!(code(&replies.recv().await.unwrap().status), Code::Ok);
    let mut out = flotilla_metrics::Exposition::new();
    service.metrics("127.0.0.1:9876".to_owned()).measure(&mut out);
    let served = flotilla_metrics::Scrape::parse(&out.finish()).expect("of the format").kinds;
    let table = include_str!("../../docs/metrics.md");
    let table = table.split("\n## ").find(|section| section.starts_with("Namesrv")).expect("it has a section");
    let explained: Vec<(&str, &str)> = table
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| (line.split('`').nth(1).expect("a name"), line.split(" | ").nth(1).expect("a kind")))
        .collect();
    for (name, kind) in &served {
        // That one stands in the table of the replica.
        if name == "flotilla_build_info" {
            continue;
        }
        let found = explained.iter().find(|(explained, _)| explained == name);
        let (_, explained_kind) = found.unwrap_or_else(|| panic!("docs/metrics.md does not explain {name}"));
        assert!(explained_kind.starts_with(kind.as_str()), "{name}: {explained_kind}");
    }
    assert_eq!(explained.len() + 1, served.len(), "docs/metrics.md explains what is not served: {explained:?}");
}

#[tokio::test]
async fn a_stale_row_is_answered_with_what_is_held() {
    let runtime = Runtime::tokio();
    let service = NamesrvService::new(quick(), runtime.clone());
    let (rows, receiver) = mpsc::channel(4);
    let mut replies = service.register(context(&runtime), receiver);
    rows.send(row(1, proto::ReplicaRole::Leader, 5, 7)).await.unwrap();
    rows.send(row(1, proto::ReplicaRole::Follower, 4, 9)).await.unwrap();
    assert_eq!(code(&replies.recv().await.unwrap().status), Code::Ok);
    let refused = replies.recv().await.unwrap().status;
    assert_eq!(code(&refused), Code::PreconditionFailed);
    let text = refused.unwrap().message;
    assert!(text.contains("term 4, version 9") && text.contains("term 5, version 7"), "{text}");

    let goodbye = proto::UnregisterRequest {
        cluster: "flotilla".to_owned(),
        group: "group-a".to_owned(),
        group_incarnation: "1".to_owned(),
        replica: 1,
        term: 5,
        version: 6,
    };
    let reply = service.unregister(context(&runtime), goodbye.clone()).await;
    assert_eq!(code(&reply.status), Code::PreconditionFailed);
    let reply = service.unregister(context(&runtime), proto::UnregisterRequest { version: 7, ..goodbye }).await;
    assert_eq!(code(&reply.status), Code::Ok);
    assert_eq!(service.routes().rows(None).count(), 0);
}

#[tokio::test]
async fn bad_questions_are_answered_with_the_value() {
    let runtime = Runtime::tokio();
    let service = NamesrvService::new(quick(), runtime.clone());
    let found = service.query_topic_route(context(&runtime), route_request("no spaces please")).await;
    assert_eq!(code(&found.status), Code::IllegalTopic);
    let found = service.query_topic_route(context(&runtime), route_request("unknown")).await;
    assert_eq!(found.status.unwrap().message, "no broker serves the topic 'unknown'");
}

#[tokio::test]
async fn too_many_connections_are_refused_with_the_limit() {
    let runtime = Runtime::tokio();
    let service = NamesrvService::new(NamesrvConfig { connections_max: 1, ..quick() }, runtime.clone());
    let (_rows, receiver) = mpsc::channel(4);
    let _first = service.register(context(&runtime), receiver);
    let (_rows, receiver) = mpsc::channel(4);
    let mut second = service.register(context(&runtime), receiver);
    let refused = second.recv().await.unwrap().status.unwrap();
    assert_eq!(refused.message, "this would be registration connection 2 of at most 1");
    assert!(second.recv().await.is_none());
}

#[tokio::test]
async fn an_occupied_port_is_named() {
    let first = Namesrv::start(quick(), Runtime::tokio()).await.unwrap();
    let second = Namesrv::start(NamesrvConfig { listen: first.address(), ..quick() }, Runtime::tokio()).await;
    let text = second.err().expect("the port is taken").to_string();
    assert!(text.contains(&format!("port {} is in use", first.address().port())), "{text}");
    let invalid = Namesrv::start(NamesrvConfig { expiry_ms: 1, ..quick() }, Runtime::tokio()).await;
    assert!(matches!(invalid.err(), Some(StartError::Config(errors)) if errors.problems.len() == 2));
    first.shutdown(Duration::from_secs(5)).await;
}

#[tokio::test]
async fn over_a_socket_a_row_is_registered_routed_expired_and_the_stream_closed() {
    let runtime = Runtime::tokio();
    let namesrv = Namesrv::start(quick(), runtime.clone()).await.unwrap();
    let calls = TonicConnector::new(runtime.clone()).namesrv(&namesrv.address().to_string());
    let options = || CallOptions::within(Duration::from_secs(3));

    // Two replicas register over their own streams.
    let (leader_rows, receiver) = mpsc::channel(4);
    let mut leader = calls.register(options(), receiver).await.unwrap();
    leader_rows.send(row(1, proto::ReplicaRole::Leader, 2, 1)).await.unwrap();
    assert_eq!(code(&leader.next().await.unwrap().unwrap().status), Code::Ok);
    let (follower_rows, receiver) = mpsc::channel(4);
    let mut follower = calls.register(options(), receiver).await.unwrap();
    follower_rows.send(row(2, proto::ReplicaRole::Follower, 2, 1)).await.unwrap();
    assert_eq!(code(&follower.next().await.unwrap().unwrap().status), Code::Ok);

    // The row counts at once.
    let found = calls.query_topic_route(options(), route_request("orders")).await.unwrap();
    let group = &found.groups[0];
    assert_eq!((group.leader, group.term, group.replicas.len()), (1, 2, 3));
    assert_eq!(group.topic.as_ref().unwrap().queue_count, 4);
    let topics = calls.list_topics(options(), proto::ListTopicsRequest::default()).await.unwrap().topics;
    assert_eq!(topics.len(), 1, "two replicas of one group serve it once: {topics:?}");
    let brokers = calls.list_brokers(options(), proto::ListBrokersRequest::default()).await.unwrap().brokers;
    assert_eq!(brokers.iter().map(|row| row.registration.as_ref().unwrap().replica).collect::<Vec<_>>(), [1, 2]);

    // The leader falls silent, the follower does not: the leader's row and stream end, the group stays.
    let silent = runtime.now();
    while runtime.now() - silent < Duration::from_millis(900) {
        follower_rows.send(row(2, proto::ReplicaRole::Follower, 2, 1)).await.unwrap();
        assert_eq!(code(&follower.next().await.unwrap().unwrap().status), Code::Ok);
        runtime.sleep(Duration::from_millis(20)).await;
    }
    let end = runtime.timeout(Duration::from_secs(3), leader.next()).await.expect("the stream is closed");
    assert!(end.is_none_or(|last| last.is_err()));
    let found = calls.query_topic_route(options(), route_request("orders")).await.unwrap();
    assert_eq!((found.groups[0].leader, found.groups[0].replicas.len()), (0, 3));

    // Shutdown ends the other stream and the server.
    let stopping = runtime.now();
    namesrv.shutdown(Duration::from_secs(5)).await;
    assert!(runtime.now() - stopping < Duration::from_secs(4), "an open stream does not hold it up");
    let end = runtime.timeout(Duration::from_secs(3), follower.next()).await.expect("the stream is closed");
    assert!(end.is_none_or(|last| last.is_err()));
    let refused = calls.query_topic_route(options(), route_request("orders")).await;
    assert!(refused.is_err());
}
