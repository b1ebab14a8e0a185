//! The namesrv's calls: each is checked, done on the table under its lock, and answered with a status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use flotilla_message::TopicName;
use flotilla_metrics::Source;
use flotilla_proto::row_change::whole_of;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::v2::Status;
use flotilla_proto::{CallContext, Namesrv, Replies, namesrv as proto};
use flotilla_runtime::{BoxFuture, Instant, Runtime, Task};
use tokio::sync::mpsc;

use crate::config::NamesrvConfig;
use crate::metrics::{Counters, Event, NamesrvSource};
use crate::routes::{ConnectionId, Registered, Routes, RowRefused};
use crate::wire;

/// Replies to one connection that may wait to be read; a broker that does not read them is not heard further.
const REPLIES_MAX: usize = 16;

/// The route service over the protocol's messages. Cheap to clone; all clones share one table.
///
/// A connection's end leaves its rows: a broker that comes back within the expiry keeps its place.
/// Expiry removes a row and closes the connection it was heard on, unless that still feeds another row.
#[derive(Clone)]
pub struct NamesrvService {
    shared: Arc<Shared>,
}

pub(crate) struct Shared {
    config: NamesrvConfig,
    pub(crate) runtime: Runtime,
    state: Mutex<State>,
    pub(crate) counters: Counters,
}

struct State {
    routes: Routes,
    connections: BTreeMap<ConnectionId, Connection>,
    next_connection: u64,
    is_closed: bool,
}

/// A registration stream. Dropping it cancels its task, which ends the stream.
struct Connection {
    heard: Instant,
    _task: Task<()>,
}

impl NamesrvService {
    /// An empty service. Somebody must run [`NamesrvService::run_scans`] for rows to expire.
    pub fn new(config: NamesrvConfig, runtime: Runtime) -> NamesrvService {
        let state = State {
            routes: Routes::new(config.rows_max),
            connections: BTreeMap::new(),
            next_connection: 1,
            is_closed: false,
        };
        let (state, counters) = (Mutex::new(state), Counters::default());
        NamesrvService { shared: Arc::new(Shared { config, runtime, state, counters }) }
    }

    /// Searches for silent rows and connections, again and again; never ends by itself.
    pub async fn run_scans(&self) {
        loop {
            self.shared.runtime.sleep(Duration::from_millis(self.shared.config.scan_interval_ms)).await;
            self.scan();
        }
    }

    /// Removes what has been silent for the expiry, once.
    pub fn scan(&self) {
        let now = self.shared.runtime.now();
        let expiry = Duration::from_millis(self.shared.config.expiry_ms);
        let mut state = self.shared.state();
        let expired = state.routes.expire(now, expiry);
        let mut closed = Vec::new();
        for row in &expired {
            if !state.routes.has_rows_of(row.connection) {
                closed.extend(state.connections.remove(&row.connection));
            }
        }
        let silent = |connection: &Connection| now.saturating_since(connection.heard) >= expiry;
        closed.extend(state.connections.extract_if(.., |_, connection| silent(connection)).map(|(_, gone)| gone));
        drop(state);
        // Dropped without the lock: a cancelled task may want it.
        drop(closed);
        for row in expired {
            self.shared.counters.note(Event::RowExpired);
            tracing::info!(replica = %row.key, expiry_ms = self.shared.config.expiry_ms, "row expired");
        }
    }

    /// Ends all registration streams and takes no more; queries are still answered.
    pub fn close(&self) {
        let mut state = self.shared.state();
        state.is_closed = true;
        let closed = std::mem::take(&mut state.connections);
        drop(state);
        drop(closed);
    }

    /// What monitoring asks; `address` is where this namesrv listens.
    pub fn metrics(&self, address: String) -> Arc<dyn Source> {
        Arc::new(NamesrvSource { shared: Arc::downgrade(&self.shared), address })
    }

    /// The socket is not served any more.
    pub(crate) fn serving_ended(&self) {
        self.shared.counters.serving_ended();
    }

    /// A copy of the table as it is now.
    pub fn routes(&self) -> Routes {
        self.shared.state().routes.clone()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("route lock is never poisoned: no code panics while holding it")
    }

    /// A copy of the table, and how many connections there are.
    pub(crate) fn measured(&self) -> (Routes, usize) {
        let state = self.state();
        (state.routes.clone(), state.connections.len())
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.state().is_closed
    }

    /// Takes the rows of one connection until it ends or is closed.
    async fn serve(
        self: Arc<Shared>,
        id: ConnectionId,
        mut requests: mpsc::Receiver<proto::Registration>,
        replies: mpsc::Sender<proto::RegistrationReply>,
    ) {
        // The last whole row: the next one may be a difference to it.
        let mut held: Option<proto::Registration> = None;
        while let Some(registration) = requests.recv().await {
            let version = registration.version;
            let taken = match whole_of(held.as_ref(), registration) {
                Ok(whole) => {
                    let taken = self.take(whole.clone(), id);
                    held = Some(whole);
                    taken
                }
                Err(error) => status(Code::PreconditionFailed, error.to_string()),
            };
            let expiry_ms = self.config.expiry_ms;
            let reply = proto::RegistrationReply { status: Some(taken), version, expiry_ms, takes_changes: true };
            if replies.send(reply).await.is_err() {
                break;
            }
        }
        let own = {
            let mut state = self.state();
            state.routes.disconnected(id);
            state.connections.remove(&id)
        };
        drop(own);
    }

    fn take(&self, registration: proto::Registration, connection: ConnectionId) -> Status {
        let row = match wire::row_of(registration, self.config.expiry_ms) {
            Ok(row) => row,
            Err(bad) => {
                tracing::warn!(problem = %bad, "registration refused");
                self.counters.note(Event::RowMalformed);
                return status(Code::BadRequest, bad.to_string());
            }
        };
        let (key, freshness, role) = (row.key.clone(), row.freshness.clone(), row.role);
        let now = self.runtime.now();
        let mut state = self.state();
        if let Some(known) = state.connections.get_mut(&connection) {
            known.heard = now;
        }
        let effect = state.routes.register(row, connection, now);
        drop(state);
        self.counters.note(match &effect {
            Ok(Registered::Added) => Event::RowAdded,
            Ok(Registered::Changed) => Event::RowChanged,
            Ok(Registered::Repeated) => Event::RowRepeated,
            Err(RowRefused::Stale { .. }) => Event::RowStale,
            Err(RowRefused::Full { .. }) => Event::TableFull,
        });
        match effect {
            Ok(Registered::Repeated) => {}
            Ok(Registered::Added) => tracing::info!(replica = %key, %freshness, ?role, "row added"),
            Ok(Registered::Changed) => tracing::debug!(replica = %key, %freshness, ?role, "row changed"),
            Err(refused) => {
                tracing::debug!(problem = %refused, "registration refused");
                return refusal(&refused);
            }
        }
        ok()
    }
}

fn refusal(refused: &RowRefused) -> Status {
    let code = match refused {
        RowRefused::Stale { .. } => Code::PreconditionFailed,
        RowRefused::Full { .. } => Code::TooManyRequests,
    };
    status(code, refused.to_string())
}

fn some_cluster(cluster: &str) -> Option<&str> {
    (!cluster.is_empty()).then_some(cluster)
}

impl Namesrv for NamesrvService {
    fn register(
        &self,
        _context: CallContext,
        rows: mpsc::Receiver<proto::Registration>,
    ) -> Replies<proto::RegistrationReply> {
        let (replies, stream) = mpsc::channel(REPLIES_MAX);
        let limit = self.shared.config.connections_max;
        let mut state = self.shared.state();
        let refused = if state.is_closed {
            Some(status(Code::InternalServerError, "this namesrv is shutting down"))
        } else if state.connections.len() >= limit {
            self.shared.counters.note(Event::ConnectionsFull);
            let text = format!("this would be registration connection {} of at most {limit}", limit + 1);
            Some(status(Code::TooManyRequests, text))
        } else {
            None
        };
        if refused.is_some() {
            let expiry_ms = self.shared.config.expiry_ms;
            // Cannot fail: the channel is new, empty and its reader is here.
            let _ = replies.try_send(proto::RegistrationReply {
                status: refused,
                version: 0,
                expiry_ms,
                takes_changes: true,
            });
            return stream;
        }
        let id = ConnectionId(state.next_connection);
        state.next_connection += 1;
        let body = self.shared.clone().serve(id, rows, replies);
        let task = self.shared.runtime.spawn("namesrv registration", body);
        state.connections.insert(id, Connection { heard: self.shared.runtime.now(), _task: task });
        stream
    }

    fn unregister(
        &self,
        _context: CallContext,
        request: proto::UnregisterRequest,
    ) -> BoxFuture<'_, proto::UnregisterReply> {
        let answer = match wire::goodbye_of(request) {
            Err(bad) => status(Code::BadRequest, bad.to_string()),
            Ok((key, freshness)) => {
                let effect = self.shared.state().routes.unregister(&key, &freshness);
                match effect {
                    Ok(true) => {
                        self.shared.counters.note(Event::RowUnregistered);
                        tracing::info!(replica = %key, "row unregistered");
                        ok()
                    }
                    Ok(false) => status(Code::Ok, format!("there is no row of {key}")),
                    Err(refused) => refusal(&refused),
                }
            }
        };
        Box::pin(std::future::ready(proto::UnregisterReply { status: Some(answer) }))
    }

    fn query_topic_route(
        &self,
        _context: CallContext,
        request: proto::TopicRouteRequest,
    ) -> BoxFuture<'_, proto::TopicRouteReply> {
        let mut groups = Vec::new();
        let answer = match TopicName::try_from(request.topic.as_str()) {
            Err(error) => status(Code::IllegalTopic, error.to_string()),
            Ok(topic) => {
                let routes = self.shared.state().routes.topic_route(some_cluster(&request.cluster), &topic);
                groups.extend(routes.iter().map(wire::group_route_of));
                self.shared.counters.note(if groups.is_empty() { Event::RouteNotFound } else { Event::RouteFound });
                if groups.is_empty() {
                    status(Code::TopicNotFound, format!("no broker serves the topic '{topic}'"))
                } else {
                    ok()
                }
            }
        };
        Box::pin(std::future::ready(proto::TopicRouteReply { status: Some(answer), groups }))
    }

    fn list_brokers(
        &self,
        _context: CallContext,
        request: proto::ListBrokersRequest,
    ) -> BoxFuture<'_, proto::ListBrokersReply> {
        let now = self.shared.runtime.now();
        let state = self.shared.state();
        let rows = state.routes.rows(some_cluster(&request.cluster));
        let brokers = rows.map(|(row, seen)| proto::BrokerRow {
            registration: Some(wire::registration_of(row)),
            age_ms: u64::try_from(now.saturating_since(seen).as_millis()).unwrap_or(u64::MAX),
        });
        let reply = proto::ListBrokersReply { status: Some(ok()), brokers: brokers.collect() };
        drop(state);
        Box::pin(std::future::ready(reply))
    }

    fn list_groups(
        &self,
        _context: CallContext,
        request: proto::ListGroupsRequest,
    ) -> BoxFuture<'_, proto::ListGroupsReply> {
        let groups = self.shared.state().routes.groups(some_cluster(&request.cluster));
        let groups = groups.iter().map(wire::group_row_of).collect();
        Box::pin(std::future::ready(proto::ListGroupsReply { status: Some(ok()), groups }))
    }

    fn list_topics(
        &self,
        _context: CallContext,
        request: proto::ListTopicsRequest,
    ) -> BoxFuture<'_, proto::ListTopicsReply> {
        let topics = self.shared.state().routes.topics(some_cluster(&request.cluster));
        let reply =
            proto::ListTopicsReply { status: Some(ok()), topics: topics.iter().map(wire::group_topic_of).collect() };
        Box::pin(std::future::ready(reply))
    }
}
