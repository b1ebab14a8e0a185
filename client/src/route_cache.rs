//! Known routes: asked for once at a time a topic, kept while nobody can be asked, renewed in the background.
//!
//! A namesrv's table is rebuilt from nothing by heartbeats, so what it lacks proves nothing: its word adds broker groups
//! to a known route and renews them, but only a group's own denial removes one. A topic that is not known yet is taken
//! as missing when the brokers say so too, or when nobody speaks for it for a while.

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

use crate::broker_word::{BrokersWord, is_broker_of, own_part};
use crate::client::Shared;
use crate::failure::{Verdict, code_text, judge_status};
use crate::replicas::{BrokerGroupName, Replicas};
use crate::route::{GroupRoute, RouteError, TopicRoute};

/// Shortest time between two background rounds, however many failures ask for one.
const ROUND_PAUSE: Duration = Duration::from_millis(100);
/// Pause before an unknown route is asked for again.
const ASK_AGAIN: Duration = Duration::from_millis(50);
/// How long a topic that neither namesrvs nor brokers know may still be on its way.
const NEW_TOPIC_GRACE: Duration = Duration::from_millis(750);
/// How long a topic that no namesrv knows may still be on its way if not all brokers could be asked.
const YOUNG_NAMESRV_GRACE: Duration = Duration::from_millis(1_500);

type Found = Result<Arc<TopicRoute>, Missing>;
type Flight = futures::future::Shared<BoxFuture<'static, Found>>;

/// Why a route was not found.
#[derive(Debug, Clone)]
struct Missing {
    error: RouteError,
    /// Whether all known brokers said so themselves.
    is_confirmed: bool,
}

impl From<RouteError> for Missing {
    fn from(error: RouteError) -> Missing {
        Missing { error, is_confirmed: false }
    }
}

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

    /// A broker group has said itself that it does not have the topic.
    pub(crate) fn denied(&self, topic: &TopicName, by: &BrokerGroupName) {
        let mut state = self.state();
        match state.routes.get(topic).map(|route| route.without(by)) {
            None => return,
            Some(None) => drop(state.routes.remove(topic)),
            Some(Some(rest)) => drop(state.routes.insert(topic.clone(), Arc::new(rest))),
        }
        drop(state);
        self.want(topic);
    }

    /// All broker groups whose replicas were ever named, of one cluster if given.
    pub(crate) fn known_groups(&self, cluster: Option<&str>) -> BTreeMap<BrokerGroupName, Arc<Replicas>> {
        let state = self.state();
        let wanted = |name: &BrokerGroupName| cluster.is_none_or(|cluster| name.cluster == cluster);
        let groups = state.replicas.iter().filter(|(name, replicas)| wanted(name) && replicas.count() > 0);
        groups.map(|(name, replicas)| (name.clone(), replicas.clone())).collect()
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

impl State {
    /// Makes what was found the known route as far as it may be, and returns what is known then.
    fn take(&mut self, topic: TopicName, found: Result<TopicRoute, Missing>, from_brokers: bool) -> Found {
        let known = self.routes.get(&topic);
        match (found, known) {
            (Ok(route), known) => {
                let route = Arc::new(match known {
                    Some(known) if from_brokers => route.after(known),
                    Some(known) => route.with_missing_of(known),
                    None => route,
                });
                self.routes.insert(topic, route.clone());
                Ok(route)
            }
            (Err(missing), Some(known)) => match missing.error {
                RouteError::TopicNotFound { .. } if !from_brokers => Ok(known.clone()),
                RouteError::TopicNotFound { .. } => {
                    self.routes.remove(&topic);
                    Err(missing)
                }
                // A route that cannot be renewed is better than none.
                RouteError::Unreachable { .. } | RouteError::Rejected { .. } => Err(missing),
            },
            (Err(missing), None) => Err(missing),
        }
    }
}

/// What one address said.
pub(crate) enum Answer<T> {
    Found(T),
    NotFound(String),
    Rejected { code: i32, message: String },
    Failed(String),
}

impl Shared {
    /// The route as it is known, or asked for now.
    pub(crate) async fn route(self: &Arc<Shared>, topic: &TopicName) -> Result<Arc<TopicRoute>, RouteError> {
        self.known_or_asked(topic).await.map_err(|missing| missing.error)
    }

    async fn known_or_asked(self: &Arc<Shared>, topic: &TopicName) -> Found {
        if let Some(route) = self.routes.state().routes.get(topic) {
            return Ok(route.clone());
        }
        self.ask_route(topic).await
    }

    /// The route, asked for until `deadline` while nobody answers, and for a short while if nobody knows it.
    pub(crate) async fn route_until(
        self: &Arc<Shared>,
        topic: &TopicName,
        deadline: Instant,
    ) -> Result<Arc<TopicRoute>, RouteError> {
        let begun = self.runtime.now();
        loop {
            let missing = match self.known_or_asked(topic).await {
                Ok(route) => return Ok(route),
                Err(missing) => missing,
            };
            let give_up_at = match &missing.error {
                RouteError::Rejected { .. } => return Err(missing.error),
                // A broker knows its topics; a namesrv may hear of a new one, or of a broker, a moment later.
                RouteError::TopicNotFound { .. } if self.config.namesrv.is_empty() => return Err(missing.error),
                RouteError::TopicNotFound { .. } if missing.is_confirmed => deadline.min(begun + NEW_TOPIC_GRACE),
                RouteError::TopicNotFound { .. } => deadline.min(begun + YOUNG_NAMESRV_GRACE),
                RouteError::Unreachable { .. } => deadline,
            };
            if self.runtime.now() + ASK_AGAIN >= give_up_at {
                return Err(missing.error);
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
                        state.take(asked, found, shared.config.namesrv.is_empty())
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
                if let Err(Missing { error, .. }) = self.ask_route(&topic).await {
                    tracing::debug!(%topic, %error, "route refresh failed");
                }
            }
            self.runtime.sleep(ROUND_PAUSE).await;
        }
    }

    async fn fetch(&self, topic: &TopicName) -> Result<TopicRoute, Missing> {
        let from_brokers = self.config.namesrv.is_empty();
        let addresses = if from_brokers { &self.config.endpoints } else { &self.config.namesrv };
        let first = self.routes.state().preferred;
        let (mut not_found, mut unaware, mut reasons) = (None, Vec::new(), Vec::new());
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
                    return Ok(route);
                }
                // Another namesrv may have heard of it.
                Answer::NotFound(message) => {
                    not_found = Some(message);
                    unaware.push(address.as_str());
                }
                Answer::Rejected { code, message } => {
                    return Err(RouteError::Rejected { topic: topic.clone(), code, message }.into());
                }
                Answer::Failed(reason) => reasons.push(format!("{address}: {reason}")),
            }
        }
        let topic = topic.clone();
        let Some(message) = not_found else {
            return Err(RouteError::Unreachable { topic, reasons: reasons.join("; ") }.into());
        };
        // What is known stays known, whatever the brokers would say.
        let is_known = self.routes.state().routes.contains_key(&topic);
        if from_brokers || is_known {
            return Err(RouteError::TopicNotFound { topic, message }.into());
        }
        match self.ask_known_groups(&topic, &unaware).await {
            BrokersWord::Served(route) => Ok(route),
            BrokersWord::Denied => {
                Err(Missing { error: RouteError::TopicNotFound { topic, message }, is_confirmed: true })
            }
            BrokersWord::Undecided(why) => {
                Err(RouteError::TopicNotFound { topic, message: format!("{message}; {why}") }.into())
            }
            BrokersWord::Unheard(why) => {
                Err(RouteError::Unreachable { topic, reasons: format!("{message}; {why}") }.into())
            }
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
            replicas.learn_routed_leader(&group.group_incarnation, group.term, group.leader);
            replicas.learn_read_rule(group.read_from_any);
            let queue_count = group.topic.as_ref().map_or(0, |entry| entry.queue_count);
            let permission = group.topic.and_then(|entry| permission_of(entry.permission));
            GroupRoute { replicas, permission: permission.unwrap_or(Permission::ReadWrite), queue_count }
        });
        let groups: Vec<GroupRoute> = groups.filter(|group| group.replicas.count() > 0).collect();
        if groups.is_empty() {
            return Answer::Failed("the route names no broker".to_owned());
        }
        Answer::Found(TopicRoute::new(groups, self.runtime.random_u64()))
    }

    /// The queues of a topic, asked of one broker.
    pub(crate) async fn query_broker(
        &self,
        address: &str,
        topic: &TopicName,
        timeout: Duration,
    ) -> Answer<Vec<v2::MessageQueue>> {
        let request = v2::QueryRouteRequest { topic: Some(crate::wire::resource(topic.as_str())), endpoints: None };
        let call = self.connector.messaging(address).query_route(self.options(timeout), request);
        let reply = match answered(self.runtime.timeout(timeout, call).await, timeout) {
            Ok(reply) => reply.body,
            Err(reason) => return Answer::Failed(reason),
        };
        negative(reply.status.as_ref()).unwrap_or(Answer::Found(reply.message_queues))
    }

    async fn ask_broker(&self, address: &str, topic: &TopicName, timeout: Duration) -> Answer<TopicRoute> {
        let queues = match self.query_broker(address, topic, timeout).await {
            Answer::Found(queues) => queues,
            Answer::NotFound(message) => return Answer::NotFound(message),
            Answer::Rejected { code, message } => return Answer::Rejected { code, message },
            Answer::Failed(reason) => return Answer::Failed(reason),
        };
        // The route's shape depends on what the broker takes us for; its own members are told plainly.
        let own = self.ask_members(address, timeout).await;
        let own_group = own.as_ref().map(|replicas| replicas.name().clone());
        let mut groups = Vec::new();
        if let Some(replicas) = own
            && let Some((permission, queue_count)) = own_part(&queues, &replicas.name().group)
        {
            groups.push(GroupRoute { replicas, permission, queue_count });
        }
        let mut others = BTreeMap::<String, Vec<v2::MessageQueue>>::new();
        for queue in queues {
            let Some(broker) = &queue.broker else { continue };
            if !own_group.as_ref().is_some_and(|own| is_broker_of(&own.group, &broker.name)) {
                others.entry(broker.name.clone()).or_default().push(queue);
            }
        }
        let cluster = own_group.map(|own| own.cluster).unwrap_or_default();
        for (group, queues) in others {
            let endpoints = queues.iter().filter_map(|queue| queue.broker.as_ref()?.endpoints.as_ref());
            let addresses = endpoints.flat_map(|endpoints| &endpoints.addresses);
            let addresses = addresses.map(|address| format!("{}:{}", address.host, address.port)).collect();
            let Some((permission, queue_count)) = own_part(&queues, &group) else { continue };
            let replicas = self.routes.replicas(BrokerGroupName { cluster: cluster.clone(), group }, Vec::new());
            replicas.set_addresses(addresses);
            groups.push(GroupRoute { replicas, permission, queue_count });
        }
        groups.retain(|group| group.replicas.count() > 0);
        if groups.is_empty() {
            return Answer::Failed("the route names no broker".to_owned());
        }
        Answer::Found(TopicRoute::new(groups, self.runtime.random_u64()))
    }

    /// The members of the group that a broker belongs to; `None` if it does not tell.
    pub(crate) async fn ask_members(&self, address: &str, timeout: Duration) -> Option<Arc<Replicas>> {
        self.ask_groups(address, timeout).await.into_iter().next()
    }

    /// The members of the group that a broker belongs to, and of those that it knows besides; none if it does not tell.
    pub(crate) async fn ask_groups(&self, address: &str, timeout: Duration) -> Vec<Arc<Replicas>> {
        let request = admin::ClusterStatusRequest::default();
        let call = self.connector.admin(address).cluster_status(self.options(timeout), request);
        let Ok(reply) = answered(self.runtime.timeout(timeout, call).await, timeout) else { return Vec::new() };
        if judge_status(reply.status.as_ref()) != Verdict::Done(()) || reply.members.is_empty() {
            return Vec::new();
        }
        let members_of = |members: Vec<admin::Member>| {
            members.into_iter().map(|member| (member.node, member.client_address)).collect::<Vec<_>>()
        };
        let name = BrokerGroupName { cluster: reply.cluster.clone(), group: reply.group };
        let own = self.routes.replicas(name, members_of(reply.members));
        own.learn_leader(reply.term, reply.leader);
        own.learn_read_rule(reply.read_from_any);
        let mut groups = vec![own];
        for other in reply.other_groups {
            let name = BrokerGroupName { cluster: reply.cluster.clone(), group: other.group };
            groups.push(self.routes.replicas(name, members_of(other.members)));
        }
        groups
    }
}

pub(crate) fn answered<T>(
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

pub(crate) fn permission_of(code: i32) -> Option<Permission> {
    u8::try_from(code).ok().and_then(Permission::from_code)
}
