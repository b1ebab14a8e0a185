//! What monitoring is told of a namesrv: how many rows, how old, and what calls came to.

use std::sync::Weak;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flotilla_metrics::{Exposition, Health, Source};

use crate::row::RowRole;
use crate::service::Shared;

/// Broker groups, and rows, that are told one by one; further ones only count in the totals.
const ROWS_TOLD_MAX: usize = 1_000;

/// What a namesrv counts while it works.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    events: [AtomicU64; Event::ALL.len()],
    /// Its socket is not served any more.
    has_ended: AtomicBool,
}

/// Something that happens in a namesrv.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    RowAdded,
    RowChanged,
    RowRepeated,
    RowStale,
    TableFull,
    RowMalformed,
    RowExpired,
    RowUnregistered,
    ConnectionsFull,
    RouteFound,
    RouteNotFound,
}

impl Event {
    const ALL: [Event; 11] = [
        Event::RowAdded,
        Event::RowChanged,
        Event::RowRepeated,
        Event::RowStale,
        Event::TableFull,
        Event::RowMalformed,
        Event::RowExpired,
        Event::RowUnregistered,
        Event::ConnectionsFull,
        Event::RouteFound,
        Event::RouteNotFound,
    ];

    /// The metric that counts it, what that is, and this event's label.
    fn series(self) -> (&'static str, &'static str, (&'static str, &'static str)) {
        let registered = ("flotilla_namesrv_registrations_total", "Rows that replicas sent, by what became of them.");
        let gone = ("flotilla_namesrv_rows_gone_total", "Rows that went, by reason.");
        let routes = ("flotilla_namesrv_route_queries_total", "Questions for a topic's route, by result.");
        let ((name, help), label) = match self {
            Event::RowAdded => (registered, ("result", "added")),
            Event::RowChanged => (registered, ("result", "changed")),
            Event::RowRepeated => (registered, ("result", "repeated")),
            Event::RowStale => (registered, ("result", "stale")),
            Event::TableFull => (registered, ("result", "table_full")),
            Event::RowMalformed => (registered, ("result", "malformed")),
            Event::ConnectionsFull => (registered, ("result", "connections_full")),
            Event::RowExpired => (gone, ("reason", "expired")),
            Event::RowUnregistered => (gone, ("reason", "unregistered")),
            Event::RouteFound => (routes, ("result", "found")),
            Event::RouteNotFound => (routes, ("result", "not_found")),
        };
        (name, help, label)
    }
}

impl Counters {
    pub(crate) fn note(&self, event: Event) {
        self.events[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The socket is not served any more.
    pub(crate) fn serving_ended(&self) {
        self.has_ended.store(true, Ordering::Relaxed);
    }
}

/// A namesrv as monitoring asks it; does not keep it alive.
pub(crate) struct NamesrvSource {
    pub(crate) shared: Weak<Shared>,
    /// Where it listens.
    pub(crate) address: String,
}

impl Source for NamesrvSource {
    fn measure(&self, into: &mut Exposition) {
        let Some(shared) = self.shared.upgrade() else { return };
        into.set_base(&[("node_type", "namesrv"), ("node_id", &self.address)]);
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        into.gauge_whole("flotilla_build_info", "1; the version that runs.", &version, 1);
        for event in Event::ALL {
            let (name, help, label) = event.series();
            into.counter(name, help, &[label], shared.counters.events[event as usize].load(Ordering::Relaxed));
        }
        let (routes, connections) = shared.measured();
        let help = "Registration connections that are open.";
        into.gauge_whole("flotilla_namesrv_connections", help, &[], connections as u64);
        let topics: std::collections::BTreeSet<_> =
            routes.topics(None).into_iter().map(|topic| (topic.cluster, topic.topic.name)).collect();
        into.gauge_whole("flotilla_namesrv_topics", "Topics that are routed.", &[], topics.len() as u64);
        let help = "Rows of replicas in the table.";
        into.gauge_whole("flotilla_namesrv_rows", help, &[], routes.rows(None).count() as u64);
        let now = shared.runtime.now();
        for (row, seen) in routes.rows(None).take(ROWS_TOLD_MAX) {
            let replica = row.key.replica.to_string();
            let labels =
                [("cluster", row.key.cluster.as_str()), ("broker", row.key.group.as_str()), ("replica", &replica)];
            let age = now.saturating_since(seen).as_secs_f64();
            into.gauge("flotilla_namesrv_row_age_seconds", "How long ago a replica was heard.", &labels, age);
            let help = "1 if a replica says that it leads.";
            let leads = u64::from(row.role == RowRole::Leader);
            into.gauge_whole("flotilla_namesrv_row_leads", help, &labels, leads);
        }
        for group in routes.groups(None).into_iter().take(ROWS_TOLD_MAX) {
            let labels = [("cluster", group.cluster.as_str()), ("broker", group.group.as_str())];
            let help = "1 if a broker group has a leader in the newest term heard of.";
            into.gauge_whole("flotilla_namesrv_group_has_leader", help, &labels, u64::from(group.leader.is_some()));
        }
    }

    fn live(&self) -> Health {
        let ended = self.shared.upgrade().is_none_or(|shared| shared.counters.has_ended.load(Ordering::Relaxed));
        Health::of(format!("namesrv {}", self.address)).unless(!ended, || "socket is not served any more".to_owned())
    }

    fn ready(&self) -> Health {
        let is_closed = self.shared.upgrade().is_none_or(|shared| shared.is_closed());
        self.live().unless(!is_closed, || "namesrv is shutting down".to_owned())
    }
}
