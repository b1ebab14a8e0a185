//! The duty that prolongs the invisible time of deliveries whose consumer wants that (`auto_renew`), as long as it lives.
//!
//! Push consumers of official clients name no invisible time: a listener may take as long as it needs, and the message comes
//! again soon after its consumer died. The leader prolongs what is about to end; a receipt stays good throughout. Who holds
//! a delivery is noted in the log within a second, so the next leader goes on. A consumer lives while it sends heartbeats to
//! any replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_message::{GroupName, Hash128, QueueId, QueueOffset, TopicName};
use flotilla_proto::client::PeerCalls;
use flotilla_proto::status::{Code, status};
use flotilla_proto::{peer, v2};
use flotilla_raft_log::Term;
use flotilla_runtime::Instant;
use flotilla_store::{Command, Granted};
use futures::future::join_all;
use prost::Message as _;
use tokio::sync::Notify;

use crate::lead::leadership::Place;
use crate::replica::Replica;

/// Deliveries that are prolonged at the same time; further ones end with their time.
const RENEWALS_MAX: usize = 100_000;
/// A delivery is prolonged for so long after its first prolongation, as RocketMQ's proxy does.
const RENEWED_FOR_MAX: Duration = Duration::from_secs(3 * 3600);
/// A consumer that was silent for so long is gone: three heartbeats of official push consumers, and a little.
const SILENCE_MAX: Duration = Duration::from_secs(35);
/// Longest pause between two looks.
const LOOK_PAUSE_MAX: Duration = Duration::from_secs(1);
/// How long another replica may take to say who lives.
const ASK_TIMEOUT: Duration = Duration::from_millis(500);
/// Deliveries of one command.
const COMMAND_DELIVERIES_MAX: usize = 4096;
/// A wait that only news ends.
const LONG: Duration = Duration::from_secs(3600);
/// The name of the call by which replicas ask each other which clients live.
pub const METHOD: &str = "AliveClients";

/// How the log names a client: never 0.
pub fn holder_of(client_id: &str) -> u64 {
    (Hash128::of(client_id.as_bytes()) as u64).max(1)
}

type Key = (GroupName, TopicName, QueueId, QueueOffset);

/// What is to be prolonged; a cache of what the log knows, and of what it will within a second.
#[derive(Debug, Default)]
pub struct Renewals {
    table: Mutex<Table>,
    news: Notify,
}

#[derive(Debug, Default)]
struct Table {
    term: Option<Term>,
    /// The first look of the term is over: what could be prolonged is.
    has_looked: bool,
    deliveries: BTreeMap<Key, Renewal>,
}

#[derive(Debug, Clone, Copy)]
struct Renewal {
    seq: u32,
    holder: u64,
    since: Instant,
    /// The log knows who holds it.
    is_noted: bool,
}

impl Renewals {
    /// Notes what a consumer was given.
    pub fn granted(
        &self,
        place: (&GroupName, &TopicName, QueueId),
        granted: &[Granted],
        holder: u64,
        term: Term,
        now: Instant,
    ) {
        let mut table = self.table.lock().expect(LOCK);
        if table.term.is_some_and(|known| known != term) {
            return;
        }
        for grant in granted.iter().filter(|grant| !grant.dead_lettered) {
            if table.deliveries.len() < RENEWALS_MAX {
                let key = (place.0.clone(), place.1.clone(), place.2, grant.offset);
                let renewal = Renewal { seq: grant.seq, holder, since: now, is_noted: false };
                table.deliveries.insert(key, renewal);
            }
        }
        drop(table);
        self.news.notify_one();
    }

    /// Whether what somebody holds must not be delivered to others yet, though its time is over: the leader before may
    /// have died while it would have prolonged it, and this one has not looked yet who lives.
    pub fn is_undecided(&self, term: Term) -> bool {
        let table = self.table.lock().expect(LOCK);
        table.term != Some(term) || !table.has_looked
    }

    fn looked(&self, term: Term) {
        let mut table = self.table.lock().expect(LOCK);
        table.has_looked |= table.term == Some(term);
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.table.lock().expect(LOCK).deliveries.len()
    }

    fn begin(&self, replica: &Replica, term: Term) {
        let mut table = self.table.lock().expect(LOCK);
        if table.term == Some(term) {
            return;
        }
        let now = replica.runtime.now();
        let held = replica.store.held_deliveries().into_iter().map(|held| {
            let renewal = Renewal { seq: held.seq, holder: held.holder, since: now, is_noted: true };
            ((held.group, held.topic, held.queue, held.offset), renewal)
        });
        *table = Table { term: Some(term), has_looked: false, deliveries: held.take(RENEWALS_MAX).collect() };
    }

    fn end(&self) {
        *self.table.lock().expect(LOCK) = Table::default();
    }

    fn all(&self) -> Vec<(Key, Renewal)> {
        let table = self.table.lock().expect(LOCK);
        table.deliveries.iter().map(|(key, renewal)| (key.clone(), *renewal)).collect()
    }

    /// Forgets those that are over, marks those that the log knows now.
    fn settle(&self, over: &[(Key, u32)], noted: &[(Key, u32)]) {
        let mut table = self.table.lock().expect(LOCK);
        for (key, seq) in over {
            if table.deliveries.get(key).is_some_and(|known| known.seq == *seq) {
                table.deliveries.remove(key);
            }
        }
        for (key, seq) in noted {
            if let Some(known) = table.deliveries.get_mut(key).filter(|known| known.seq == *seq) {
                known.is_noted = true;
            }
        }
    }
}

const LOCK: &str = "renewal lock is never poisoned: no code panics while holding it";

/// Runs as long as the replica.
pub async fn renew_deliveries(replica: Arc<Replica>) {
    let invisible = Duration::from_millis(replica.config.invisible_default_ms);
    let pause = (invisible / 12).min(LOOK_PAUSE_MAX);
    loop {
        let seen = replica.leadership.seen();
        let now = replica.runtime.now();
        let Place::Local(term) = seen.place else {
            replica.renewals.end();
            replica.leadership.changed_from(seen.generation, now + LONG).await;
            continue;
        };
        replica.renewals.begin(&replica, term);
        if replica.renewals.is_undecided(term) {
            look(&replica, term, invisible).await;
            replica.renewals.looked(term);
        }
        if replica.renewals.count() == 0 {
            let changed = replica.leadership.changed_from(seen.generation, now + LONG);
            flotilla_runtime::select(changed, replica.renewals.news.notified()).await;
            continue;
        }
        replica.runtime.sleep(pause).await;
        look(&replica, term, invisible).await;
    }
}

/// What one look found of one queue, for one holder.
#[derive(Default)]
struct Work {
    note: Vec<(Key, u32)>,
    prolong: Vec<(Key, u32)>,
}

/// Looks once through all of them.
async fn look(replica: &Arc<Replica>, term: Term, invisible: Duration) {
    let now = replica.runtime.now();
    let log_now_ms = replica.clock.now_ms(term, &replica.store);
    let margin_ms = u64::try_from((invisible / 3).as_millis()).unwrap_or(u64::MAX);
    let mut over = Vec::new();
    let mut work: BTreeMap<(GroupName, TopicName, QueueId, u64), Work> = BTreeMap::new();
    for (key, renewal) in replica.renewals.all() {
        let delivery = replica.store.delivery(&key.0, &key.1, key.2, key.3);
        let Some(delivery) = delivery.filter(|delivery| delivery.seq == renewal.seq) else {
            over.push((key, renewal.seq));
            continue;
        };
        let is_ending = delivery.invisible_until_ms.saturating_sub(log_now_ms) < margin_ms;
        let part = || (key.0.clone(), key.1.clone(), key.2, renewal.holder);
        if is_ending && now - renewal.since < RENEWED_FOR_MAX {
            work.entry(part()).or_default().prolong.push((key.clone(), renewal.seq));
        } else if !renewal.is_noted {
            work.entry(part()).or_default().note.push((key.clone(), renewal.seq));
        }
    }
    replica.renewals.settle(&over, &[]);
    let wanted: BTreeSet<u64> =
        work.iter().filter(|(_, work)| !work.prolong.is_empty()).map(|((.., holder), _)| *holder).collect();
    let alive = if wanted.is_empty() { BTreeSet::new() } else { alive_anywhere(replica, wanted).await };
    let until_ms = log_now_ms.saturating_add(replica.config.invisible_default_ms);
    let submitted = work.into_iter().flat_map(|((group, topic, queue, holder), work)| {
        let prolong = if alive.contains(&holder) { work.prolong } else { Vec::new() };
        let parts = [(work.note, 0), (prolong, until_ms)];
        parts.into_iter().filter(|(keys, _)| !keys.is_empty()).map(move |(keys, invisible_until_ms)| {
            let keys: Vec<_> = keys.into_iter().take(COMMAND_DELIVERIES_MAX).collect();
            let deliveries = keys.iter().map(|(key, seq)| (key.3, *seq)).collect();
            let (group, topic) = (group.clone(), topic.clone());
            (keys, Command::Renew { group, topic, queue, deliveries, holder, invisible_until_ms })
        })
    });
    let submitted: Vec<_> = submitted
        .map(|(keys, command)| {
            let settled = replica.proposer.submit(term, command);
            async move { (keys, settled.await) }
        })
        .collect();
    for (keys, settled) in join_all(submitted).await {
        match settled {
            Ok(_) => replica.renewals.settle(&[], &keys),
            Err(error) => tracing::debug!(%error, "deliveries not prolonged"),
        }
    }
}

/// Which of these clients any replica has heard of lately.
async fn alive_anywhere(replica: &Arc<Replica>, holders: BTreeSet<u64>) -> BTreeSet<u64> {
    let mut alive = replica.clients.alive(&holders, replica.runtime.now(), SILENCE_MAX);
    let missing: Vec<u64> = holders.difference(&alive).copied().collect();
    if missing.is_empty() {
        return alive;
    }
    let peers = replica.forwarder.peers();
    let asked = peers.iter().map(|peer| ask(peer, &missing));
    for told in join_all(asked.collect::<Vec<_>>()).await {
        alive.extend(told);
    }
    alive
}

async fn ask(peer: &Arc<dyn PeerCalls>, holders: &[u64]) -> Vec<u64> {
    let request = peer::ForwardRequest {
        method: METHOD.to_owned(),
        timeout_ms: u64::try_from(ASK_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        body: Bytes::from(peer::AliveClients { holders: holders.to_vec() }.encode_to_vec()),
        ..Default::default()
    };
    match peer.forward(request, ASK_TIMEOUT).await {
        Ok(response) => peer::AliveClients::decode(response.body).map(|alive| alive.holders).unwrap_or_default(),
        // It will be asked again; who is heard of by nobody else has some time left.
        Err(_) => Vec::new(),
    }
}

/// Answers which of the clients asked for this replica has heard of lately.
pub fn take_in(replica: &Replica, request: peer::ForwardRequest) -> peer::ForwardResponse {
    let refused = |status: v2::Status| peer::ForwardResponse { status: Some(status), ..Default::default() };
    let asked = match peer::AliveClients::decode(request.body) {
        Ok(asked) => asked.holders.into_iter().collect(),
        Err(error) => return refused(status(Code::BadRequest, format!("{METHOD} is not understood: {error}"))),
    };
    let alive = replica.clients.alive(&asked, replica.runtime.now(), SILENCE_MAX);
    let body = peer::AliveClients { holders: alive.into_iter().collect() };
    peer::ForwardResponse { body: Bytes::from(body.encode_to_vec()), ..Default::default() }
}
