//! Known routes: asked for once at a time a topic, kept while nobody can be asked, renewed in the background.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_message::{Permission, TopicName};
use flotilla_proto::client::CallError;
use flotilla_proto::status::Code;
use flotilla_proto::{admin, namesrv, v2};
use flotilla_runtime::{BoxFuture, Either, Instant, select};
use futures::FutureExt;
use tokio::sync::Notify;

use crate::client::Shared;
use crate::failure::{Verdict, code_text, judge_status};
use crate::replicas::{BrokerGroupName, Replicas};
use crate::route::{GroupRoute, RouteError, TopicRoute};

/// Shortest time between two background rounds, however many failures ask for one.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Pause before an unknown route is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long a topic that no namesrv knows may still be on its way from the brokers.
const NEW_TOPIC_GRACE: Duration = Duration::from_millis(750);

type Found = Result<Arc<TopicRoute>, RouteError>;
type Flight = futures::future::Shared<BoxFuture<'static, Found>>;

/// The routes of one client.
pub(crate) struct RouteCache {
    state: Mutex<State>,
    wanted: Notify,
}

#[derive(Default)]
struct State {
    routes: BTreeMap<TopicName, Arc<TopicRoute>>,
    flights: BTreeMap<TopicName, Flight>,
    /// Shared by all topics of a group, so that what one call learns all others know.
    replicas: BTreeMap<BrokerGroupName, Arc<Replicas>>,
    wanted: BTreeSet<TopicName>,
    /// Place of the address that answered last.
    preferred: usize,
}

impl RouteCache {
    pub(crate) fn new() -> RouteCache {
        RouteCache { state: Mutex::new(State::default()), wanted: Notify::new() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("route lock is never poisoned: no code panics while holding it")
    }

    /// Marks a known route for the next background round.
    pub(crate) fn want(&self, topic: &TopicName) {
        let mut state = self.state();
        if state.routes.contains_key(topic) && state.wanted.insert(topic.clone()) {
            drop(state);
            self.wanted.notify_one();
        }
    }

    /// The group's replicas, made if they are new; `members` teach their ids and addresses.
    pub(crate) fn replicas(&self, name: BrokerGroupName, members: Vec<(u64, String)>) -> Arc<Replicas> {
        let mut state = self.state();
        let entry = state.replicas.entry(name.clone());
        let replicas = entry.or_insert_with(|| Arc::new(Replicas::new(name, Vec::new()))).clone();
        drop(state);
        replicas.set_members(members);
        replicas
    }
}

/// What one address said.
enum Answer<T> {
    Found(T),
    NotFound(String),
    Rejected { code: i32, message: String },
    Failed(String),
}

impl Shared {
    /// The route as it is known, or asked for now.
    pub(crate) async fn route(self: &Arc<Shared>, topic: &TopicName) -> Found {
        if let Some(route) = self.routes.state().routes.get(topic) {
            return Ok(route.clone());
        }
        self.ask_route(topic).await
    }

    /// The route, asked for until `deadline` while nobody answers, and for a short while if nobody knows it.
    pub(crate) async fn route_until(self: &Arc<Shared>, topic: &TopicName, deadline: Instant) -> Found {
        let begun = self.runtime.now();
        loop {
            let found = self.route(topic).await;
            let give_up_at = match &found {
                Ok(_) | Err(RouteError::Rejected { .. }) => return found,
                // A broker knows its topics; a namesrv may hear of a new one a moment later.
                Err(RouteError::TopicNotFound { .. }) if self.config.namesrv.is_empty() => return found,
                Err(RouteError::TopicNotFound { .. }) => deadline.min(begun + NEW_TOPIC_GRACE),
                Err(RouteError::Unreachable { .. }) => deadline,
            };
            if self.runtime.now() + ASK_AGAIN >= give_up_at {
                return found;
            }
            self.runtime.sleep(ASK_AGAIN).await;
        }
    }

    /// Asks now; callers that ask for the same topic meanwhile share the answer.
    async fn ask_route(self: &Arc<Shared>, topic: &TopicName) -> Found {
        let flight = {
            let mut state = self.routes.state();
            match state.flights.get(topic) {
                Some(flight) => flight.clone(),
                None => {
                    let (shared, asked) = (self.clone(), topic.clone());
                    let fetch: BoxFuture<'static, Found> = Box::pin(async move {
                        let found = shared.fetch(&asked).await;
                        let mut state = shared.routes.state();
                        state.flights.remove(&asked);
                        match &found {
                            Ok(route) => drop(state.routes.insert(asked, route.clone())),
                            Err(RouteError::TopicNotFound { .. }) => drop(state.routes.remove(&asked)),
                            // A route that cannot be renewed is better than none.
                            Err(RouteError::Unreachable { .. } | RouteError::Rejected { .. }) => {}
                        }
                        drop(state);
                        found
                    });
                    let flight = fetch.shared();
                    state.flights.insert(topic.clone(), flight.clone());
                    flight
                }
            }
        };
        flight.await
    }

    /// Renews routes: the wanted ones soon, all of them at the configured interval. Never ends by itself.
    pub(crate) async fn keep_routes_fresh(self: Arc<Shared>) {
        let mut all_at = self.runtime.now() + self.config.route_refresh;
        loop {
            let due = matches!(
                select(self.routes.wanted.notified(), self.runtime.sleep_until(all_at)).await,
                Either::Right(())
            );
            let mut topics: Vec<TopicName> = std::mem::take(&mut self.routes.state().wanted).into_iter().collect();
            if due {
                topics = self.routes.state().routes.keys().cloned().collect();
                all_at = self.runtime.now() + self.config.route_refresh;
            }
            for topic in topics {
                if let Err(error) = self.ask_route(&topic).await {
                    tracing::debug!(%topic, %error, "route refresh failed");
                }
            }
            self.runtime.sleep(ROUND_PAUSE).await;
        }
    }

    async fn fetch(&self, topic: &TopicName) -> Found {
        let from_brokers = self.config.namesrv.is_empty();
        let addresses = if from_brokers { &self.config.endpoints } else { &self.config.namesrv };
        let first = self.routes.state().preferred;
        let (mut not_found, mut reasons) = (None, Vec::new());
        for step in 0..addresses.len() {
            let place = (first + step) % addresses.len();
            let address = &addresses[place];
            let timeout = if addresses.len() > 1 { self.config.attempt_timeout } else { self.config.request_timeout };
            let answer = if from_brokers {
                self.ask_broker(address, topic, timeout).await
            } else {
                self.ask_namesrv(address, topic, timeout).await
            };
            match answer {
                Answer::Found(route) => {
                    self.routes.state().preferred = place;
                    return Ok(Arc::new(route));
                }
                // Another namesrv may have heard of it.
                Answer::NotFound(message) => not_found = Some(message),
                Answer::Rejected { code, message } => {
                    return Err(RouteError::Rejected { topic: topic.clone(), code, message });
                }
                Answer::Failed(reason) => reasons.push(format!("{address}: {reason}")),
            }
        }
        match not_found {
            Some(message) => Err(RouteError::TopicNotFound { topic: topic.clone(), message }),
            None => Err(RouteError::Unreachable { topic: topic.clone(), reasons: reasons.join("; ") }),
        }
    }

    async fn ask_namesrv(&self, address: &str, topic: &TopicName, timeout: Duration) -> Answer<TopicRoute> {
        let request = namesrv::TopicRouteRequest {
            cluster: self.config.cluster.clone().unwrap_or_default(),
            topic: topic.to_string(),
        };
        let call = self.connector.namesrv(address).query_topic_route(self.options(timeout), request);
        let reply = match answered(self.runtime.timeout(timeout, call).await, timeout) {
            Ok(reply) => reply,
            Err(reason) => return Answer::Failed(reason),
        };
        if let Some(negative) = negative(reply.status.as_ref()) {
            return negative;
        }
        let groups = reply.groups.into_iter().map(|group| {
            let name = BrokerGroupName { cluster: group.cluster, group: group.group };
            let members = group.replicas.into_iter().map(|replica| (replica.replica, replica.client)).collect();
            let replicas = self.routes.replicas(name, members);
            replicas.learn_leader(group.term, group.leader);
            let permission = group.topic.and_then(|entry| permission_of(entry.permission));
            GroupRoute { replicas, permission: permission.unwrap_or(Permission::ReadWrite) }
        });
        let groups: Vec<GroupRoute> = groups.filter(|group| group.replicas.count() > 0).collect();
        if groups.is_empty() {
            return Answer::Failed("the route names no broker".to_owned());
        }
        Answer::Found(TopicRoute { groups })
    }

    async fn ask_broker(&self, address: &str, topic: &TopicName, timeout: Duration) -> Answer<TopicRoute> {
        let request = v2::QueryRouteRequest { topic: Some(crate::wire::resource(topic.as_str())), endpoints: None };
        let call = self.connector.messaging(address).query_route(self.options(timeout), request);
        let reply = match answered(self.runtime.timeout(timeout, call).await, timeout) {
            Ok(reply) => reply.body,
            Err(reason) => return Answer::Failed(reason),
        };
        if let Some(negative) = negative(reply.status.as_ref()) {
            return negative;
        }
        let permission = reply.message_queues.first().and_then(|queue| permission_of(queue.permission));
        let permission = permission.unwrap_or(Permission::ReadWrite);
        // The route's shape depends on what the broker takes us for; its members are told plainly.
        if let Some(replicas) = self.ask_members(address, timeout).await {
            return Answer::Found(TopicRoute { groups: vec![GroupRoute { replicas, permission }] });
        }
        let mut brokers = BTreeMap::<String, Vec<String>>::new();
        for broker in reply.message_queues.into_iter().filter_map(|queue| queue.broker) {
            let addresses = broker.endpoints.into_iter().flat_map(|endpoints| endpoints.addresses);
            let texts = addresses.map(|address| format!("{}:{}", address.host, address.port));
            brokers.entry(broker.name).or_default().extend(texts);
        }
        let groups = brokers.into_iter().map(|(group, addresses)| {
            let replicas = self.routes.replicas(BrokerGroupName { cluster: String::new(), group }, Vec::new());
            replicas.set_addresses(addresses);
            GroupRoute { replicas, permission }
        });
        let groups: Vec<GroupRoute> = groups.filter(|group| group.replicas.count() > 0).collect();
        if groups.is_empty() {
            return Answer::Failed("the route names no broker".to_owned());
        }
        Answer::Found(TopicRoute { groups })
    }

    /// The members of the group that a broker belongs to; `None` if it does not tell.
    pub(crate) async fn ask_members(&self, address: &str, timeout: Duration) -> Option<Arc<Replicas>> {
        let request = admin::ClusterStatusRequest::default();
        let call = self.connector.admin(address).cluster_status(self.options(timeout), request);
        let reply = answered(self.runtime.timeout(timeout, call).await, timeout).ok()?;
        if judge_status(reply.status.as_ref()) != Verdict::Done(()) || reply.members.is_empty() {
            return None;
        }
        let name = BrokerGroupName { cluster: reply.cluster, group: reply.group };
        let members = reply.members.into_iter().map(|member| (member.node, member.client_address)).collect();
        let replicas = self.routes.replicas(name, members);
        replicas.learn_leader(reply.term, reply.leader);
        Some(replicas)
    }
}

fn answered<T>(
    answer: Result<Result<T, CallError>, flotilla_runtime::Elapsed>,
    timeout: Duration,
) -> Result<T, String> {
    answer.unwrap_or(Err(CallError::Timeout(timeout))).map_err(|error| error.to_string())
}

fn negative<T>(status: Option<&v2::Status>) -> Option<Answer<T>> {
    match judge_status(status) {
        Verdict::Done(()) => None,
        Verdict::Rejected(rejection) if rejection.is(Code::TopicNotFound) => Some(Answer::NotFound(rejection.message)),
        Verdict::Rejected(rejection) if rejection.is(Code::NotImplemented) => {
            Some(Answer::Failed(format!("{}: {}", code_text(rejection.code), rejection.message)))
        }
        Verdict::Rejected(rejection) => Some(Answer::Rejected { code: rejection.code, message: rejection.message }),
        Verdict::Retry(setback) => Some(Answer::Failed(setback.reason)),
    }
}

fn permission_of(code: i32) -> Option<Permission> {
    u8::try_from(code).ok().and_then(Permission::from_code)
}
