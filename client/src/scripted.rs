//! For tests: a cluster in memory whose replicas do what a script says, and remember who asked for what.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{
    AdminCalls, AppendLink, CallError, CallOptions, Connector, MessagingCalls, NamesrvCalls, PeerCalls, ReplyStream,
};
use flotilla_proto::metadata::ACK_PLACE;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::v2::receive_message_response::Content;
use flotilla_proto::{AckPlace, PeerLink, Reply, admin, namesrv, peer, v2};
use flotilla_runtime::{BoxFuture, Instant, Runtime};
use futures::StreamExt;
use tokio::sync::mpsc;

/// What a replica does with a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Act {
    /// Executes and answers.
    Serve,
    /// Refuses the connection.
    Refuse,
    /// Never answers and does not execute.
    Freeze,
    /// Executes, and answers a second later.
    AnswerLate,
    /// Executes, and then the connection breaks.
    BreakAfter,
    /// The connection breaks before it executes.
    BreakBefore,
    /// Answers with a code instead of executing.
    Answer(Code),
}

/// One call as it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Heard {
    pub(crate) at: Instant,
    pub(crate) address: String,
    pub(crate) call: &'static str,
    /// Message id, attempt id, receipt handle or topic: what identifies the call.
    pub(crate) key: String,
    pub(crate) timeout: Duration,
}

/// The cluster: group `g` with replicas 1, 2, 3 at `a:1`, `b:1`, `c:1`, or more, a namesrv at every other address.
#[derive(Clone)]
pub(crate) struct Scripted {
    runtime: Runtime,
    state: Arc<Mutex<State>>,
}

pub(crate) struct State {
    /// What each address does next; then what it does for ever (`Serve` unless set).
    pub(crate) next: BTreeMap<String, VecDeque<Act>>,
    pub(crate) always: BTreeMap<String, Act>,
    pub(crate) heard: Vec<Heard>,
    /// Message ids in the order they were stored: a repeated one is stored once.
    pub(crate) stored: Vec<String>,
    pub(crate) members: Vec<(u64, String)>,
    pub(crate) leader: u64,
    /// The term that acknowledgements name.
    pub(crate) term: u64,
    /// Term and leader that a namesrv tells, where it does not tell 3 and the leader above.
    pub(crate) told: BTreeMap<String, (u64, u64)>,
    pub(crate) topics: Vec<String>,
    /// Another broker group and the address of its only replica, number 1; it has the same topics.
    pub(crate) second_group: Option<(String, String)>,
    /// Groups of which no namesrv has a row.
    pub(crate) unregistered: BTreeSet<String>,
    /// Topics that are in no row yet.
    pub(crate) unlisted: BTreeSet<String>,
    /// Messages to be delivered, and what each receive attempt was given.
    pub(crate) waiting: VecDeque<v2::Message>,
    pub(crate) granted: BTreeMap<String, Vec<v2::Message>>,
    pub(crate) acked: Vec<String>,
    /// What the next acknowledgements of a receipt handle are answered, in calls that are served.
    pub(crate) ack_answers: BTreeMap<String, VecDeque<Code>>,
    /// Receipt handle and new invisible time, milliseconds.
    pub(crate) hidden: Vec<(String, u64)>,
}

const LATENCY: Duration = Duration::from_millis(1);

impl State {
    /// The groups that namesrvs have rows of, with replica numbers and addresses.
    fn registered(&self) -> Vec<(String, Vec<(u64, String)>)> {
        let second = self.second_group.iter().map(|(name, address)| (name.clone(), vec![(1, address.clone())]));
        let groups = std::iter::once(("g".to_owned(), self.members.clone())).chain(second);
        groups.filter(|(name, _)| !self.unregistered.contains(name)).collect()
    }

    fn group_of(&self, address: &str) -> String {
        let second = self.second_group.iter().find(|(_, only)| only == address);
        second.map_or_else(|| "g".to_owned(), |(name, _)| name.clone())
    }
}

impl Scripted {
    pub(crate) fn new(runtime: &Runtime) -> Scripted {
        let state = State {
            next: BTreeMap::new(),
            always: BTreeMap::new(),
            heard: Vec::new(),
            stored: Vec::new(),
            members: vec![(1, "a:1".to_owned()), (2, "b:1".to_owned()), (3, "c:1".to_owned())],
            leader: 0,
            term: 4,
            told: BTreeMap::new(),
            topics: vec!["t".to_owned()],
            second_group: None,
            unregistered: BTreeSet::new(),
            unlisted: BTreeSet::new(),
            waiting: VecDeque::new(),
            granted: BTreeMap::new(),
            acked: Vec::new(),
            ack_answers: BTreeMap::new(),
            hidden: Vec::new(),
        };
        Scripted { runtime: runtime.clone(), state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no other thread")
    }

    /// The next calls to `address` go like this.
    pub(crate) fn next(&self, address: &str, acts: &[Act]) {
        self.state().next.entry(address.to_owned()).or_default().extend(acts);
    }

    /// All further calls to `address` go like this.
    pub(crate) fn always(&self, address: &str, act: Act) {
        self.state().always.insert(address.to_owned(), act);
    }

    /// The calls of one kind so far.
    pub(crate) fn heard(&self, call: &str) -> Vec<Heard> {
        self.state().heard.iter().filter(|heard| heard.call == call).cloned().collect()
    }

    /// The addresses that were called with one kind of call, in order.
    pub(crate) fn asked(&self, call: &str) -> Vec<String> {
        self.heard(call).into_iter().map(|heard| heard.address).collect()
    }

    /// A message waits to be delivered.
    pub(crate) fn put(&self, id: &str, message_group: Option<&str>) {
        let system_properties = v2::SystemProperties {
            message_id: id.to_owned(),
            receipt_handle: Some(format!("{id}/0")),
            message_group: message_group.map(str::to_owned),
            delivery_attempt: Some(1),
            ..v2::SystemProperties::default()
        };
        self.state().waiting.push_back(v2::Message {
            topic: Some(crate::wire::resource("t")),
            user_properties: Default::default(),
            system_properties: Some(system_properties),
            body: Bytes::from_static(b"body"),
        });
    }

    fn note(&self, address: &str, call: &'static str, key: String, timeout: Duration) -> Act {
        let at = self.runtime.now();
        let mut state = self.state();
        state.heard.push(Heard { at, address: address.to_owned(), call, key, timeout });
        let next = state.next.get_mut(address).and_then(VecDeque::pop_front);
        next.or(state.always.get(address).copied()).unwrap_or(Act::Serve)
    }

    /// Plays one act around `execute`.
    fn play<T: Send + 'static>(
        &self,
        act: Act,
        execute: impl FnOnce(&mut State) -> T + Send + 'static,
        answer: impl FnOnce(v2::Status) -> T + Send + 'static,
    ) -> BoxFuture<'static, Result<T, CallError>> {
        let this = self.clone();
        Box::pin(async move {
            match act {
                Act::Refuse => return Err(CallError::Refused("connection refused".to_owned())),
                Act::Freeze => std::future::pending().await,
                Act::Serve | Act::AnswerLate | Act::BreakAfter | Act::BreakBefore | Act::Answer(_) => {
                    this.runtime.sleep(LATENCY).await;
                }
            }
            match act {
                Act::BreakBefore => Err(CallError::Broken("reset".to_owned())),
                Act::Answer(code) => Ok(answer(status(code, "as scripted"))),
                Act::BreakAfter => {
                    execute(&mut this.state());
                    Err(CallError::Broken("reset".to_owned()))
                }
                Act::AnswerLate => {
                    let executed = execute(&mut this.state());
                    this.runtime.sleep(Duration::from_secs(1)).await;
                    Ok(executed)
                }
                Act::Serve | Act::Refuse | Act::Freeze => Ok(execute(&mut this.state())),
            }
        })
    }
}

struct Replica {
    cluster: Scripted,
    address: String,
}

impl Connector for Scripted {
    fn messaging(&self, address: &str) -> Arc<dyn MessagingCalls> {
        Arc::new(Replica { cluster: self.clone(), address: address.to_owned() })
    }

    fn admin(&self, address: &str) -> Arc<dyn AdminCalls> {
        Arc::new(Replica { cluster: self.clone(), address: address.to_owned() })
    }

    fn namesrv(&self, address: &str) -> Arc<dyn NamesrvCalls> {
        Arc::new(Replica { cluster: self.clone(), address: address.to_owned() })
    }

    fn peer(&self, address: &str) -> Arc<dyn PeerCalls> {
        Arc::new(Replica { cluster: self.clone(), address: address.to_owned() })
    }
}

fn unscripted<T: Send + 'static>() -> BoxFuture<'static, Result<T, CallError>> {
    Box::pin(std::future::ready(Err(CallError::Status { code: 12, message: "not part of the script".to_owned() })))
}

macro_rules! unscripted_calls {
    ($module:ident; $($method:ident $request:ident $response:ident;)*) => {$(
        fn $method(
            &self,
            _options: CallOptions,
            _request: $module::$request,
        ) -> BoxFuture<'static, Result<Reply<$module::$response>, CallError>> {
            unscripted()
        }
    )*};
    ($module:ident, plain; $($method:ident $request:ident $response:ident;)*) => {$(
        fn $method(
            &self,
            _options: CallOptions,
            _request: $module::$request,
        ) -> BoxFuture<'static, Result<$module::$response, CallError>> {
            unscripted()
        }
    )*};
}

type Replied<T> = BoxFuture<'static, Result<Reply<T>, CallError>>;

impl MessagingCalls for Replica {
    fn send_message(&self, options: CallOptions, request: v2::SendMessageRequest) -> Replied<v2::SendMessageResponse> {
        let id = request.messages[0].system_properties.as_ref().expect("always sent").message_id.clone();
        let act = self.cluster.note(&self.address, "send", id.clone(), options.timeout);
        let address = self.address.clone();
        let execute = move |state: &mut State| {
            let offset = state.stored.iter().position(|stored| *stored == id).unwrap_or(state.stored.len());
            if offset == state.stored.len() {
                state.stored.push(id.clone());
            }
            let entry = v2::SendResultEntry {
                status: Some(ok()),
                message_id: id,
                offset: i64::try_from(offset).expect("few"),
                ..v2::SendResultEntry::default()
            };
            let body = v2::SendMessageResponse { status: Some(ok()), entries: vec![entry] };
            let place = AckPlace {
                group: state.group_of(&address),
                term: state.term,
                leader: state.leader,
                log_index: offset as u64 + 100,
                queue: 0,
                offset: offset as u64,
            };
            Reply::new(body).with(ACK_PLACE, place)
        };
        let answer = |status| Reply::new(v2::SendMessageResponse { status: Some(status), entries: Vec::new() });
        self.cluster.play(act, execute, answer)
    }

    fn receive_message(
        &self,
        options: CallOptions,
        request: v2::ReceiveMessageRequest,
    ) -> BoxFuture<'static, Result<ReplyStream<v2::ReceiveMessageResponse>, CallError>> {
        let attempt = request.attempt_id.clone().expect("always sent");
        let act = self.cluster.note(&self.address, "receive", attempt.clone(), options.timeout);
        let cluster = self.cluster.clone();
        let wait = request.long_polling_timeout.expect("always sent");
        let wait = Duration::from_secs(wait.seconds as u64) + Duration::from_nanos(wait.nanos as u64);
        let batch = usize::try_from(request.batch_size).expect("positive");
        Box::pin(async move {
            let until = cluster.runtime.now() + wait;
            while act != Act::Refuse && cluster.state().waiting.is_empty() && cluster.runtime.now() < until {
                cluster.runtime.sleep(LATENCY).await;
            }
            let execute = move |state: &mut State| {
                if let Some(again) = state.granted.get(&attempt) {
                    return again.clone();
                }
                let count = batch.min(state.waiting.len());
                let messages: Vec<v2::Message> = state.waiting.drain(..count).collect();
                if !messages.is_empty() {
                    state.granted.insert(attempt, messages.clone());
                }
                messages
            };
            let executed = move |messages: Vec<v2::Message>| {
                let code = if messages.is_empty() { Code::MessageNotFound } else { Code::Ok };
                let mut contents = vec![Content::Status(status(code, ""))];
                contents.extend(messages.into_iter().map(Content::Message));
                contents
            };
            let answer = |status| vec![Content::Status(status)];
            let contents = cluster.play(act, move |state| executed(execute(state)), answer).await?;
            let elements =
                contents.into_iter().map(|content| Ok(v2::ReceiveMessageResponse { content: Some(content) }));
            Ok(futures::stream::iter(elements).boxed())
        })
    }

    fn ack_message(&self, options: CallOptions, request: v2::AckMessageRequest) -> Replied<v2::AckMessageResponse> {
        let handles: Vec<String> = request.entries.into_iter().map(|entry| entry.receipt_handle).collect();
        let act = self.cluster.note(&self.address, "ack", handles.join(" "), options.timeout);
        let execute = move |state: &mut State| {
            let mut entries = Vec::new();
            for handle in handles {
                let scripted = state.ack_answers.get_mut(&handle).and_then(VecDeque::pop_front);
                if scripted.is_none() && !state.acked.contains(&handle) {
                    state.acked.push(handle.clone());
                }
                let status = Some(scripted.map_or_else(ok, |code| status(code, "as scripted")));
                entries.push(v2::AckMessageResultEntry { message_id: String::new(), receipt_handle: handle, status });
            }
            let is_ok = entries.iter().all(|entry| entry.status == Some(ok()));
            let sum = if is_ok { ok() } else { status(Code::MultipleResults, "see the entries") };
            Reply::new(v2::AckMessageResponse { status: Some(sum), entries })
        };
        let answer = |status| Reply::new(v2::AckMessageResponse { status: Some(status), entries: Vec::new() });
        self.cluster.play(act, execute, answer)
    }

    fn change_invisible_duration(
        &self,
        options: CallOptions,
        request: v2::ChangeInvisibleDurationRequest,
    ) -> Replied<v2::ChangeInvisibleDurationResponse> {
        let handle = request.receipt_handle.clone();
        let act = self.cluster.note(&self.address, "hide", handle.clone(), options.timeout);
        let time = request.invisible_duration.expect("always sent");
        let millis = time.seconds as u64 * 1_000 + time.nanos as u64 / 1_000_000;
        let execute = move |state: &mut State| {
            state.hidden.push((handle.clone(), millis));
            let (id, number) = handle.rsplit_once('/').expect("our own handle");
            let receipt_handle = format!("{id}/{}", number.parse::<u32>().expect("our own handle") + 1);
            Reply::new(v2::ChangeInvisibleDurationResponse { status: Some(ok()), receipt_handle })
        };
        let answer = |status| {
            Reply::new(v2::ChangeInvisibleDurationResponse { status: Some(status), receipt_handle: String::new() })
        };
        self.cluster.play(act, execute, answer)
    }

    fn query_route(&self, options: CallOptions, request: v2::QueryRouteRequest) -> Replied<v2::QueryRouteResponse> {
        let topic = request.topic.expect("always sent").name;
        let act = self.cluster.note(&self.address, "route", topic.clone(), options.timeout);
        let execute = move |state: &mut State| {
            if !state.topics.contains(&topic) {
                let status = Some(status(Code::TopicNotFound, "no such topic"));
                return Reply::new(v2::QueryRouteResponse { status, message_queues: Vec::new() });
            }
            let address = |(_, text): &(u64, String)| {
                let (host, port) = text.split_once(':').expect("host:port");
                v2::Address { host: host.to_owned(), port: port.parse().expect("a port") }
            };
            let endpoints = v2::Endpoints { scheme: 3, addresses: state.members.iter().map(address).collect() };
            let broker = v2::Broker { name: "g".to_owned(), id: 0, endpoints: Some(endpoints) };
            let queue = v2::MessageQueue { permission: 4, broker: Some(broker), ..v2::MessageQueue::default() };
            Reply::new(v2::QueryRouteResponse { status: Some(ok()), message_queues: vec![queue] })
        };
        let answer = |status| Reply::new(v2::QueryRouteResponse { status: Some(status), message_queues: Vec::new() });
        self.cluster.play(act, execute, answer)
    }

    unscripted_calls! { v2;
        heartbeat HeartbeatRequest HeartbeatResponse;
        query_assignment QueryAssignmentRequest QueryAssignmentResponse;
        forward_message_to_dead_letter_queue ForwardMessageToDeadLetterQueueRequest ForwardMessageToDeadLetterQueueResponse;
        update_offset UpdateOffsetRequest UpdateOffsetResponse;
        get_offset GetOffsetRequest GetOffsetResponse;
        query_offset QueryOffsetRequest QueryOffsetResponse;
        end_transaction EndTransactionRequest EndTransactionResponse;
        recall_message RecallMessageRequest RecallMessageResponse;
        sync_lite_subscription SyncLiteSubscriptionRequest SyncLiteSubscriptionResponse;
    }

    fn notify_client_termination(
        &self,
        options: CallOptions,
        request: v2::NotifyClientTerminationRequest,
    ) -> Replied<v2::NotifyClientTerminationResponse> {
        let group = request.group.expect("always sent").name;
        let act = self.cluster.note(&self.address, "good-bye", group, options.timeout);
        let execute = |_: &mut State| Reply::new(v2::NotifyClientTerminationResponse { status: Some(ok()) });
        let answer = |status| Reply::new(v2::NotifyClientTerminationResponse { status: Some(status) });
        self.cluster.play(act, execute, answer)
    }

    fn pull_message(
        &self,
        _options: CallOptions,
        _request: v2::PullMessageRequest,
    ) -> BoxFuture<'static, Result<ReplyStream<v2::PullMessageResponse>, CallError>> {
        unscripted()
    }

    fn telemetry(
        &self,
        _options: CallOptions,
        _commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> BoxFuture<'static, Result<ReplyStream<v2::TelemetryCommand>, CallError>> {
        unscripted()
    }
}

impl AdminCalls for Replica {
    fn create_topic(
        &self,
        options: CallOptions,
        request: admin::CreateTopicRequest,
    ) -> BoxFuture<'static, Result<admin::CreateTopicReply, CallError>> {
        let name = request.topic.expect("always sent").name;
        let act = self.cluster.note(&self.address, "create topic", name.clone(), options.timeout);
        let execute = move |state: &mut State| {
            let existed = state.topics.contains(&name);
            state.topics.push(name);
            admin::CreateTopicReply { status: Some(ok()), topic: None, existed }
        };
        let answer = |status| admin::CreateTopicReply { status: Some(status), ..admin::CreateTopicReply::default() };
        self.cluster.play(act, execute, answer)
    }

    fn describe_topic(
        &self,
        options: CallOptions,
        request: admin::DescribeTopicRequest,
    ) -> BoxFuture<'static, Result<admin::DescribeTopicReply, CallError>> {
        let name = request.name;
        let act = self.cluster.note(&self.address, "describe topic", name.clone(), options.timeout);
        let execute = move |state: &mut State| {
            let is_there = state.topics.contains(&name);
            let status = if is_there { ok() } else { status(Code::TopicNotFound, "no such topic") };
            let topic = is_there.then(|| admin::Topic { name, incarnation: 1, ..admin::Topic::default() });
            admin::DescribeTopicReply { status: Some(status), topic, ..admin::DescribeTopicReply::default() }
        };
        let answer =
            |status| admin::DescribeTopicReply { status: Some(status), ..admin::DescribeTopicReply::default() };
        self.cluster.play(act, execute, answer)
    }

    fn delete_topic(
        &self,
        options: CallOptions,
        request: admin::DeleteTopicRequest,
    ) -> BoxFuture<'static, Result<admin::DeleteTopicReply, CallError>> {
        let name = request.name;
        let act = self.cluster.note(&self.address, "delete topic", name.clone(), options.timeout);
        let execute = move |state: &mut State| {
            let before = state.topics.len();
            state.topics.retain(|topic| *topic != name);
            let is_gone = state.topics.len() < before;
            let status = if is_gone { ok() } else { status(Code::TopicNotFound, "no such topic") };
            admin::DeleteTopicReply { status: Some(status) }
        };
        self.cluster.play(act, execute, |status| admin::DeleteTopicReply { status: Some(status) })
    }

    fn list_groups(
        &self,
        options: CallOptions,
        _request: admin::ListGroupsRequest,
    ) -> BoxFuture<'static, Result<admin::ListGroupsReply, CallError>> {
        let act = self.cluster.note(&self.address, "list groups", String::new(), options.timeout);
        let execute = |_: &mut State| admin::ListGroupsReply { status: Some(ok()), ..Default::default() };
        let answer = |status| admin::ListGroupsReply { status: Some(status), ..Default::default() };
        self.cluster.play(act, execute, answer)
    }

    fn cluster_status(
        &self,
        options: CallOptions,
        _request: admin::ClusterStatusRequest,
    ) -> BoxFuture<'static, Result<admin::ClusterStatusReply, CallError>> {
        let act = self.cluster.note(&self.address, "cluster status", String::new(), options.timeout);
        let execute = |state: &mut State| {
            let member = |(node, address): &(u64, String)| admin::Member {
                node: *node,
                client_address: address.clone(),
                peer_address: String::new(),
                voter: true,
            };
            admin::ClusterStatusReply {
                status: Some(ok()),
                cluster: "c".to_owned(),
                group: "g".to_owned(),
                leader: state.leader,
                members: state.members.iter().map(member).collect(),
                ..admin::ClusterStatusReply::default()
            }
        };
        let answer =
            |status| admin::ClusterStatusReply { status: Some(status), ..admin::ClusterStatusReply::default() };
        self.cluster.play(act, execute, answer)
    }

    unscripted_calls! { admin, plain;
        list_topics ListTopicsRequest ListTopicsReply;
        create_group CreateGroupRequest CreateGroupReply;
        delete_group DeleteGroupRequest DeleteGroupReply;
        describe_group DescribeGroupRequest DescribeGroupReply;
        debug DebugRequest DebugReply;
        transfer_leader TransferLeaderRequest TransferLeaderReply;
        change_replica ChangeReplicaRequest ChangeReplicaReply;
        set_write_permission SetWritePermissionRequest SetWritePermissionReply;
        set_topic_shares SetTopicSharesRequest SetTopicSharesReply;
        ask_producer AskProducerRequest AskProducerReply;
        list_replicas ListReplicasRequest ListReplicasReply;
        recover_group RecoverGroupRequest RecoverGroupReply;
        backup BackupRequest BackupReply;
        update_topic UpdateTopicRequest UpdateTopicReply;
        update_group UpdateGroupRequest UpdateGroupReply;
        reset_group ResetGroupRequest ResetGroupReply;
        list_dead_letters ListDeadLettersRequest ListDeadLettersReply;
        resend_dead_letters ResendDeadLettersRequest ResendDeadLettersReply;
        list_transactions ListTransactionsRequest ListTransactionsReply;
        resolve_transaction ResolveTransactionRequest ResolveTransactionReply;
        find_messages FindMessagesRequest FindMessagesReply;
        trace_message TraceMessageRequest TraceMessageReply;
    }
}

fn replica_addresses(members: &[(u64, String)]) -> Vec<namesrv::ReplicaAddress> {
    let address =
        |(replica, client): &(u64, String)| namesrv::ReplicaAddress { replica: *replica, client: client.clone() };
    members.iter().map(address).collect()
}

impl NamesrvCalls for Replica {
    fn register(
        &self,
        _options: CallOptions,
        _rows: mpsc::Receiver<namesrv::Registration>,
    ) -> BoxFuture<'static, Result<ReplyStream<namesrv::RegistrationReply>, CallError>> {
        unscripted()
    }

    fn query_topic_route(
        &self,
        options: CallOptions,
        request: namesrv::TopicRouteRequest,
    ) -> BoxFuture<'static, Result<namesrv::TopicRouteReply, CallError>> {
        let topic = request.topic;
        let act = self.cluster.note(&self.address, "route", topic.clone(), options.timeout);
        let address = self.address.clone();
        let execute = move |state: &mut State| {
            let (term, leader) = state.told.get(&address).copied().unwrap_or((3, state.leader));
            let registered = state.registered();
            if registered.is_empty() || !state.topics.contains(&topic) || state.unlisted.contains(&topic) {
                let status = Some(status(Code::TopicNotFound, "no such topic"));
                return namesrv::TopicRouteReply { status, groups: Vec::new() };
            }
            let group = |(group, members): (String, Vec<(u64, String)>)| namesrv::GroupRoute {
                cluster: "c".to_owned(),
                group,
                leader,
                term,
                replicas: replica_addresses(&members),
                topic: Some(namesrv::TopicEntry {
                    name: topic.clone(),
                    queue_count: 1,
                    permission: 4,
                    message_type: 1,
                }),
                ..namesrv::GroupRoute::default()
            };
            let groups = registered.into_iter().map(group).collect();
            namesrv::TopicRouteReply { status: Some(ok()), groups }
        };
        let answer = |status| namesrv::TopicRouteReply { status: Some(status), groups: Vec::new() };
        self.cluster.play(act, execute, answer)
    }

    fn list_brokers(
        &self,
        options: CallOptions,
        _request: namesrv::ListBrokersRequest,
    ) -> BoxFuture<'static, Result<namesrv::ListBrokersReply, CallError>> {
        let act = self.cluster.note(&self.address, "list brokers", String::new(), options.timeout);
        let execute = |state: &mut State| {
            let mut brokers = Vec::new();
            for (group, members) in state.registered() {
                brokers.extend(members.iter().map(|(replica, client)| namesrv::BrokerRow {
                    registration: Some(namesrv::Registration {
                        cluster: "c".to_owned(),
                        group: group.clone(),
                        replica: *replica,
                        client_address: client.clone(),
                        replicas: replica_addresses(&members),
                        ..namesrv::Registration::default()
                    }),
                    age_ms: 0,
                }));
            }
            namesrv::ListBrokersReply { status: Some(ok()), brokers }
        };
        let answer = |status| namesrv::ListBrokersReply { status: Some(status), brokers: Vec::new() };
        self.cluster.play(act, execute, answer)
    }

    unscripted_calls! { namesrv, plain;
        unregister UnregisterRequest UnregisterReply;
        list_groups ListGroupsRequest ListGroupsReply;
        list_topics ListTopicsRequest ListTopicsReply;
    }
}

impl PeerCalls for Replica {
    fn call(&self, _call: peer::PeerCall, _timeout: Duration) -> BoxFuture<'static, Result<Bytes, CallError>> {
        unscripted()
    }

    fn open_append(&self, _link: PeerLink, _timeout: Duration) -> BoxFuture<'static, Result<AppendLink, CallError>> {
        unscripted()
    }

    fn forward(
        &self,
        _request: peer::ForwardRequest,
        _timeout: Duration,
    ) -> BoxFuture<'static, Result<peer::ForwardResponse, CallError>> {
        unscripted()
    }
}
