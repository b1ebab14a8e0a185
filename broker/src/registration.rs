//! Keeps this replica's row at every namesrv: at once when it changes, again at each heartbeat, gone at shutdown.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use flotilla_proto::client::{CallOptions, Connector, NamesrvCalls};
use flotilla_proto::row_change::change_of;
use flotilla_proto::{namesrv, status};
use flotilla_raft_log::Standing;
use flotilla_runtime::{Either, select};
use futures::StreamExt as _;
use futures::future::join_all;
use tokio::sync::{Notify, mpsc};

use crate::config::ReadFrom;
use crate::consume::delivery::message_type;
use crate::edge::query::permission;
use crate::lead::leadership::Place;
use crate::replica::Replica;

/// Pause before a namesrv that could not be reached is tried again, and before a refused row is offered again.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// How often a replica that is no member yet looks whether it is one.
const STANDING_LOOK: Duration = Duration::from_millis(50);
/// How long opening the stream, or an unregistration, may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(3);
/// Topics made in quick succession go into one row.
const CATALOG_PAUSE: Duration = Duration::from_millis(10);
/// Rows that may wait on one stream.
const ROWS_MAX: usize = 4;

/// The row, and who waits for another one.
#[derive(Debug)]
pub struct OwnRow {
    row: Mutex<Versioned>,
    changed: Notify,
}

/// The row and how many times it has changed.
#[derive(Debug)]
struct Versioned {
    row: namesrv::Registration,
    changes: u64,
}

impl OwnRow {
    /// The row as it is now.
    pub fn new(replica: &Replica) -> OwnRow {
        OwnRow { row: Mutex::new(Versioned { row: row_of(replica), changes: 0 }), changed: Notify::new() }
    }

    /// The row, and the number of its changes so far.
    fn get(&self) -> (namesrv::Registration, u64) {
        let known = self.row.lock().expect(LOCK);
        (known.row.clone(), known.changes)
    }

    /// Waits until there are more changes than `seen`.
    async fn changed_from(&self, seen: u64) {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            // Looked at after the wait is armed: a change in between is not missed.
            if self.row.lock().expect(LOCK).changes > seen {
                return;
            }
            changed.await;
        }
    }

    fn refresh(&self, replica: &Replica) {
        let row = row_of(replica);
        {
            let mut known = self.row.lock().expect(LOCK);
            let is_same = namesrv::Registration { version: known.row.version, ..row.clone() } == known.row;
            // The version alone is no news; a later heartbeat takes it along.
            known.row = row;
            if is_same {
                return;
            }
            known.changes += 1;
        }
        self.changed.notify_waiters();
    }
}

const LOCK: &str = "row lock is never poisoned: no code panics while holding it";

fn row_of(replica: &Replica) -> namesrv::Registration {
    let config = &replica.config;
    let seen = replica.log.status();
    let role = match Place::of(&seen) {
        Place::Local(_) => namesrv::ReplicaRole::Leader,
        Place::Remote(_) | Place::Nobody => namesrv::ReplicaRole::Follower,
    };
    // Read before the topics: the row is never older than it says.
    let version = replica.store.applied();
    let topics = replica.store.topics().into_iter().map(|info| namesrv::TopicEntry {
        name: info.name.to_string(),
        queue_count: info.queue_count,
        permission: permission(replica.permission_in_force(info.permission)).into(),
        message_type: message_type(info.message_type).into(),
    });
    let addresses = replica.client_addresses(&replica.log.members()).into_iter();
    namesrv::Registration {
        cluster: config.cluster.clone(),
        group: config.group.clone(),
        group_incarnation: config.group_incarnation.clone(),
        replica: config.node,
        role: role.into(),
        term: seen.term.0,
        version,
        client_address: replica.client_address.clone(),
        peer_address: config.peer_address(),
        replicas: addresses.map(|(replica, client)| namesrv::ReplicaAddress { replica, client }).collect(),
        topics: topics.collect(),
        heartbeat_interval_ms: config.namesrv_heartbeat_ms,
        advertise_name: config.advertise_name.clone().unwrap_or_default(),
        read_from_any: config.read_from == ReadFrom::Any,
        ..Default::default()
    }
}

/// Renews the row whenever leadership or the catalog changes; `catalog` keeps one notice for later.
pub async fn keep_row(replica: Arc<Replica>, row: Arc<OwnRow>, catalog: Arc<Notify>) {
    loop {
        let generation = replica.leadership.seen().generation;
        row.refresh(&replica);
        let far = replica.runtime.now() + Duration::from_millis(replica.config.namesrv_heartbeat_ms);
        let led = replica.leadership.changed_from(generation, far);
        if let Either::Right(()) = select(led, catalog.notified()).await {
            replica.runtime.sleep(CATALOG_PAUSE).await;
        }
    }
}

/// Keeps one stream open to one namesrv, for ever.
pub async fn register(replica: Arc<Replica>, row: Arc<OwnRow>, address: String, namesrv: Arc<dyn NamesrvCalls>) {
    let mut was_reachable = true;
    loop {
        // Clients have nothing to look for at one that the group does not know.
        while replica.log.standing() != Standing::Member {
            replica.runtime.sleep(STANDING_LOOK).await;
        }
        match one_stream(&replica, &row, &address, &*namesrv).await {
            Ok(()) => was_reachable = true,
            Err(reason) => {
                if was_reachable {
                    tracing::warn!(namesrv = address, reason, "namesrv not reachable, trying on");
                }
                was_reachable = false;
            }
        }
        replica.runtime.sleep(RETRY_PAUSE).await;
    }
}

/// One stream from its opening to its end; an error if it never answered.
async fn one_stream(replica: &Replica, row: &OwnRow, address: &str, namesrv: &dyn NamesrvCalls) -> Result<(), String> {
    let (rows, outgoing) = mpsc::channel(ROWS_MAX);
    // The first row waits in the channel before the stream is opened: some servers answer nothing before it.
    let (first, mut told) = row.get();
    let _ = rows.try_send(first.clone());
    // What the namesrv has of this stream: what follows may be said as a difference to it.
    let (mut sent, mut takes_changes) = (Some(first), false);
    let options = CallOptions::within(CALL_TIMEOUT);
    let mut replies = namesrv.register(options, outgoing).await.map_err(|error| error.to_string())?;
    let mut is_registered = false;
    let mut next_beat = Duration::from_millis(replica.config.namesrv_heartbeat_ms);
    loop {
        let changed = std::pin::pin!(row.changed_from(told));
        let wake = select(changed, replica.runtime.sleep(next_beat));
        match select(replies.next(), wake).await {
            Either::Left(Some(Ok(reply))) if status::is_ok(reply.status.as_ref()) => {
                if !is_registered {
                    tracing::info!(group = replica.config.group, node = replica.config.node, "registered at namesrv");
                }
                is_registered = true;
                takes_changes = reply.takes_changes;
                replica.counters.registered_at(address, replica.runtime.now());
                next_beat = Duration::from_millis(replica.config.namesrv_heartbeat_ms);
                continue;
            }
            Either::Left(Some(Ok(reply))) => {
                let text = reply.status.map(|status| status.message).unwrap_or_default();
                tracing::debug!(text, "namesrv refused the row");
                sent = None;
                // Usually of an earlier life of this replica that had applied more: soon it is not older any more.
                next_beat = RETRY_PAUSE;
                continue;
            }
            Either::Left(Some(Err(error))) => {
                return if is_registered { Ok(()) } else { Err(error.to_string()) };
            }
            Either::Left(None) => {
                return if is_registered { Ok(()) } else { Err("stream was closed without an answer".to_owned()) };
            }
            Either::Right(_) => {
                let (mut next, changes) = row.get();
                told = changes;
                next.version = next.version.max(replica.store.applied());
                let outgoing = match &sent {
                    Some(sent) if takes_changes => change_of(sent, &next),
                    _ => next.clone(),
                };
                sent = Some(next);
                if rows.try_send(outgoing).is_err() {
                    // Full: the namesrv does not read; closed: the stream is gone.
                    return if is_registered { Ok(()) } else { Err("namesrv does not read rows".to_owned()) };
                }
                next_beat = Duration::from_millis(replica.config.namesrv_heartbeat_ms);
            }
        }
    }
}

/// Takes the row away from all namesrvs that can be reached in time.
pub async fn unregister(replica: &Replica, connector: &dyn Connector, timeout: Duration) {
    let row = row_of(replica);
    let request = namesrv::UnregisterRequest {
        cluster: row.cluster,
        group: row.group,
        group_incarnation: row.group_incarnation,
        replica: row.replica,
        term: row.term,
        version: row.version,
    };
    let options = CallOptions::within(timeout.min(CALL_TIMEOUT));
    let calls = replica.config.namesrv.iter().map(|address| {
        let call = connector.namesrv(address).unregister(options.clone(), request.clone());
        async move { (address, call.await) }
    });
    for (address, result) in join_all(calls).await {
        if let Err(error) = result {
            tracing::debug!(namesrv = address, %error, "row not taken away, it will expire");
        }
    }
}
