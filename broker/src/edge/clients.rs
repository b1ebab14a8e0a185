//! The clients that this replica knows: who beats here, what they said of themselves, and the streams they listen on.
//!
//! Nothing depends on a client being known: after a failover a replica knows none of those that come to it, and some
//! tell it about themselves minutes later. The registry serves commands to clients and the operator's view.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;
use std::time::Duration;

use flotilla_proto::v2;
use flotilla_runtime::{Instant, Task};
use tokio::sync::mpsc;

use crate::consume::renewal::holder_of;

/// The registry; soft state, bounded.
#[derive(Debug)]
pub struct Clients {
    table: Mutex<Table>,
    clients_max: usize,
    expiry: Duration,
}

#[derive(Debug, Default)]
struct Table {
    clients: BTreeMap<String, Client>,
    /// Their names in the log.
    holders: BTreeMap<u64, String>,
    streams: BTreeMap<u64, Stream>,
    next_stream: u64,
}

/// What is known of one client.
#[derive(Debug, Clone)]
pub struct Client {
    /// Language as its calls say.
    pub language: String,
    /// Producer, consumer.
    pub client_type: v2::ClientType,
    /// Its consumer group, empty if it has none.
    pub group: String,
    /// The topics it produces to, if it said so.
    pub topics: Vec<String>,
    /// When it was last heard of.
    pub seen_at: Instant,
}

struct Stream {
    client_id: String,
    commands: mpsc::Sender<v2::TelemetryCommand>,
    /// Serves the stream; dropped with it.
    _task: Task<()>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("client_id", &self.client_id).finish_non_exhaustive()
    }
}

/// Names one open stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamId(u64);

impl Clients {
    /// Knows nobody.
    pub fn new(clients_max: u64, expiry: Duration) -> Clients {
        let clients_max = usize::try_from(clients_max).unwrap_or(usize::MAX);
        Clients { table: Mutex::default(), clients_max, expiry }
    }

    /// Notes a sign of life; what the new note does not know stays as it was.
    pub fn heard(&self, client_id: &str, client: Client) {
        let mut table = self.table.lock().expect(LOCK);
        if let Some(known) = table.clients.get_mut(client_id) {
            let topics = if client.topics.is_empty() { std::mem::take(&mut known.topics) } else { client.topics };
            let group = if client.group.is_empty() { std::mem::take(&mut known.group) } else { client.group };
            *known = Client { topics, group, ..client };
        } else if table.clients.len() < self.clients_max {
            table.clients.insert(client_id.to_owned(), client);
            table.holders.insert(holder_of(client_id), client_id.to_owned());
        }
    }

    /// The client says good-bye: it is forgotten and its streams are closed.
    pub fn gone(&self, client_id: &str) {
        let closed = {
            let mut table = self.table.lock().expect(LOCK);
            table.clients.remove(client_id);
            table.holders.remove(&holder_of(client_id));
            let ids: Vec<u64> =
                table.streams.iter().filter(|(_, stream)| stream.client_id == client_id).map(|(id, _)| *id).collect();
            ids.into_iter().filter_map(|id| table.streams.remove(&id)).collect::<Vec<_>>()
        };
        // Outside the lock: a task's end takes it.
        drop(closed);
    }

    /// Which of these were heard of within `silence_max`, by the names that the log has for them.
    pub fn alive(&self, holders: &BTreeSet<u64>, now: Instant, silence_max: Duration) -> BTreeSet<u64> {
        let table = self.table.lock().expect(LOCK);
        let heard =
            |client_id: &String| table.clients.get(client_id).is_some_and(|client| now - client.seen_at <= silence_max);
        let ids = holders.iter().filter_map(|holder| Some((*holder, table.holders.get(holder)?)));
        ids.filter(|(_, client_id)| heard(client_id)).map(|(holder, _)| holder).collect()
    }

    /// Forgets those who have been silent for too long. An open stream alone is no sign of life, and its end is none of
    /// death: one client opens streams and drops them at once while it lives on.
    pub fn expire(&self, now: Instant) -> usize {
        let mut table = self.table.lock().expect(LOCK);
        let before = table.clients.len();
        let Table { clients, holders, .. } = &mut *table;
        clients.retain(|_, client| now - client.seen_at <= self.expiry);
        holders.retain(|_, client_id| clients.contains_key(client_id));
        before - table.clients.len()
    }

    /// Keeps a stream with the task that `serve` starts for it.
    pub fn open_stream(
        &self,
        client_id: String,
        commands: mpsc::Sender<v2::TelemetryCommand>,
        serve: impl FnOnce(StreamId) -> Task<()>,
    ) -> StreamId {
        let mut table = self.table.lock().expect(LOCK);
        let id = table.next_stream;
        table.next_stream += 1;
        // Under the lock, so that a task that ends at once finds its stream to close.
        let task = serve(StreamId(id));
        table.streams.insert(id, Stream { client_id, commands, _task: task });
        StreamId(id)
    }

    /// Drops a stream that has ended.
    pub fn close_stream(&self, id: StreamId) {
        let closed = self.table.lock().expect(LOCK).streams.remove(&id.0);
        drop(closed);
    }

    /// Drops all streams: the replica stops.
    pub fn close_all(&self) {
        let streams = std::mem::take(&mut self.table.lock().expect(LOCK).streams);
        drop(streams);
    }

    /// Open command channels to the clients that produce to `topic`, for commands that any one of them can take.
    pub fn producers_of(&self, topic: &str) -> Vec<mpsc::Sender<v2::TelemetryCommand>> {
        let table = self.table.lock().expect(LOCK);
        let produces = |id: &str| {
            table.clients.get(id).is_some_and(|client| client.topics.iter().any(|produced| produced == topic))
        };
        table
            .streams
            .values()
            .filter(|stream| produces(&stream.client_id))
            .map(|stream| stream.commands.clone())
            .collect()
    }

    /// How many clients there are of each type, group and language.
    pub fn by_kind(&self) -> Vec<((v2::ClientType, String, String), u64)> {
        let table = self.table.lock().expect(LOCK);
        let mut counts: BTreeMap<(i32, &str, &str), u64> = BTreeMap::new();
        for client in table.clients.values() {
            *counts.entry((client.client_type.into(), &client.group, &client.language)).or_default() += 1;
        }
        let named = counts.into_iter().map(|((kind, group, language), count)| {
            let kind = v2::ClientType::try_from(kind).unwrap_or(v2::ClientType::Unspecified);
            ((kind, group.to_owned(), language.to_owned()), count)
        });
        named.collect()
    }

    /// Known clients and open streams.
    pub fn counts(&self) -> (usize, usize) {
        let table = self.table.lock().expect(LOCK);
        (table.clients.len(), table.streams.len())
    }
}

const LOCK: &str = "client lock is never poisoned: no code panics while holding it";

#[cfg(test)]
mod tests {
    use flotilla_runtime::Runtime;

    use super::*;

    fn client(seconds: u64, topics: &[&str]) -> Client {
        Client {
            language: "PYTHON".to_owned(),
            client_type: v2::ClientType::Producer,
            group: String::new(),
            topics: topics.iter().map(|topic| (*topic).to_owned()).collect(),
            seen_at: Instant::from_nanos(seconds * 1_000_000_000),
        }
    }

    #[test]
    fn silence_and_nothing_else_makes_a_client_expire() {
        let clients = Clients::new(10, Duration::from_secs(60));
        clients.heard("a", client(0, &["t"]));
        clients.heard("b", client(30, &[]));
        assert_eq!(clients.expire(Instant::from_nanos(60_000_000_000)), 0);
        assert_eq!(clients.expire(Instant::from_nanos(61_000_000_000)), 1);
        clients.gone("b");
        assert_eq!(clients.counts(), (0, 0));
    }

    #[test]
    fn who_lives_is_told_by_the_name_that_the_log_has_for_it() {
        let clients = Clients::new(10, Duration::from_secs(60));
        clients.heard("a", client(0, &[]));
        clients.heard("b", client(30, &[]));
        let asked = ["a", "b", "c"].map(holder_of).into();
        let alive =
            |second: u64| clients.alive(&asked, Instant::from_nanos(second * 1_000_000_000), Duration::from_secs(35));
        assert_eq!(alive(35).len(), 2);
        assert_eq!(alive(36), BTreeSet::from([holder_of("b")]));
        clients.gone("b");
        assert!(alive(36).is_empty());
    }

    #[test]
    fn no_more_clients_than_allowed_are_remembered() {
        let clients = Clients::new(2, Duration::from_secs(60));
        for id in ["a", "b", "c", "a"] {
            clients.heard(id, client(0, &[]));
        }
        assert_eq!(clients.counts().0, 2);
    }

    #[tokio::test]
    async fn a_producer_is_found_by_its_topic_while_its_stream_is_open() {
        let (runtime, clients) = (Runtime::tokio(), Clients::new(10, Duration::from_secs(60)));
        let (sender, _commands) = mpsc::channel(1);
        clients.heard("a", client(0, &["t"]));
        clients.heard("a", client(1, &[]));
        let id = clients.open_stream("a".to_owned(), sender, |_| runtime.spawn("stream", std::future::pending()));
        assert_eq!(clients.producers_of("t").len(), 1, "a heartbeat does not make its topics forgotten");
        assert_eq!(clients.producers_of("u").len(), 0);
        clients.close_stream(id);
        assert_eq!(clients.counts(), (1, 0));
    }
}
