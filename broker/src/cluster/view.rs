//! What the namesrvs say of the other broker groups of this cluster.
//!
//! The groups are asked for every second, which costs little; what they have of a topic only when a client asks for it, and
//! only if there are others. A group that stands alone asks for nothing more and answers from what it knows itself.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, RwLock};
use std::time::Duration;

use flotilla_message::{MessageType, Permission, TopicName};
use flotilla_proto::client::{AdminCalls, CallOptions, Connector, MessagingCalls, NamesrvCalls};
use flotilla_proto::namesrv;
use flotilla_proto::status::{Code, is_ok};
use flotilla_runtime::{Instant, Runtime};
use futures::future::join_all;

use crate::config::BrokerConfig;
use crate::lead::budget::Budget;
use crate::replica::Replica;

/// How often the namesrvs are asked for the groups.
const LOOK: Duration = Duration::from_secs(1);
/// How long a namesrv may take to answer.
const LOOK_TIMEOUT: Duration = Duration::from_millis(500);
/// A group that no namesrv names any more is forgotten after so long: one that started a moment ago knows nothing yet.
const FORGET_AFTER: Duration = Duration::from_secs(120);
/// A group without a leader for so long is one that producers should avoid; an election is over sooner.
pub const LEADERLESS_AFTER: Duration = Duration::from_secs(3);
/// What is known of a topic is asked for again after so long.
const TOPIC_FRESH: Duration = Duration::from_secs(1);
/// How long a client's question for a topic may wait for the namesrvs.
const TOPIC_TIMEOUT: Duration = Duration::from_millis(300);
/// Topics that are remembered.
const TOPICS_MAX: usize = 20_000;

/// Another broker group.
#[derive(Debug, Clone)]
pub struct OtherGroup {
    /// Its name.
    pub name: String,
    /// Number and `host:port` for clients of its replicas, by number; dead ones too.
    pub replicas: Vec<(u64, String)>,
    /// One name for all of them, if it has one.
    pub advertise_name: Option<String>,
    /// Who leads it, if somebody says so.
    pub leader: Option<u64>,
    incarnation: String,
    term: u64,
    /// The last time that a namesrv named it.
    named_at: Instant,
    leaderless_since: Option<Instant>,
}

/// What another broker group has of a topic.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicThere {
    /// The group's name.
    pub group: String,
    /// Queues of it there.
    pub queue_count: u32,
    /// What may be done with them.
    pub permission: Permission,
    /// What its messages are.
    pub message_type: MessageType,
}

struct KnownTopic {
    asked_at: Instant,
    there: Vec<TopicThere>,
}

/// The view of one replica.
pub struct ClusterView {
    runtime: Runtime,
    cluster: String,
    own: String,
    namesrvs: Vec<Arc<dyn NamesrvCalls>>,
    connector: Arc<dyn Connector>,
    groups: RwLock<BTreeMap<String, OtherGroup>>,
    topics: Mutex<BTreeMap<TopicName, KnownTopic>>,
    /// Calls that are with other groups.
    pub under_way: Arc<Budget>,
}

const LOCK: &str = "cluster lock is never poisoned: no code panics while holding it";

impl ClusterView {
    /// Nobody else is known yet.
    pub fn new(config: &BrokerConfig, runtime: Runtime, connector: Arc<dyn Connector>) -> ClusterView {
        ClusterView {
            runtime,
            cluster: config.cluster.clone(),
            own: config.group.clone(),
            namesrvs: config.namesrv.iter().map(|address| connector.namesrv(address)).collect(),
            connector,
            groups: RwLock::default(),
            topics: Mutex::default(),
            under_way: Budget::new(config.forwarded_calls_max, u64::MAX),
        }
    }

    /// Whether there are other broker groups.
    pub fn has_others(&self) -> bool {
        !self.groups.read().expect(LOCK).is_empty()
    }

    /// All other broker groups, by name.
    pub fn groups(&self) -> Vec<OtherGroup> {
        self.groups.read().expect(LOCK).values().cloned().collect()
    }

    /// Another broker group by its name.
    pub fn group(&self, name: &str) -> Option<OtherGroup> {
        self.groups.read().expect(LOCK).get(name).cloned()
    }

    /// Whether nobody has led a group for so long that producers should avoid it.
    pub fn is_leaderless(&self, group: &OtherGroup) -> bool {
        group.leaderless_since.is_some_and(|since| self.runtime.now() - since >= LEADERLESS_AFTER)
    }

    /// The calling sides of a group's replicas, its leader first.
    pub fn replicas_of(&self, name: &str) -> Vec<(u64, Arc<dyn MessagingCalls>)> {
        let Some(group) = self.group(name) else { return Vec::new() };
        let mut replicas = group.replicas;
        replicas.sort_by_key(|(node, _)| (Some(*node) != group.leader, *node));
        replicas.into_iter().map(|(node, address)| (node, self.connector.messaging(&address))).collect()
    }

    /// The operators' side of a group's replicas.
    pub fn admins_of(&self, name: &str) -> Vec<Arc<dyn AdminCalls>> {
        let replicas = self.group(name).map(|group| group.replicas).unwrap_or_default();
        replicas.into_iter().map(|(_, address)| self.connector.admin(&address)).collect()
    }

    /// Asks all namesrvs once. None is believed to know everything, nor to have heard the latest.
    async fn look(&self) {
        let request = namesrv::ListGroupsRequest { cluster: self.cluster.clone() };
        let asked = self.namesrvs.iter().map(|namesrv| {
            let call = namesrv.list_groups(CallOptions::within(LOOK_TIMEOUT), request.clone());
            self.runtime.timeout(LOOK_TIMEOUT, call)
        });
        let answers = join_all(asked).await;
        let rows = answers.into_iter().filter_map(|answer| answer.ok()?.ok());
        let rows = rows.filter(|reply| is_ok(reply.status.as_ref())).flat_map(|reply| reply.groups);
        self.take(rows.collect());
    }

    /// Takes over what the namesrvs named.
    fn take(&self, rows: Vec<namesrv::GroupRow>) {
        let now = self.runtime.now();
        let mut groups = self.groups.write().expect(LOCK);
        let mut named = BTreeMap::<String, namesrv::GroupRow>::new();
        for row in rows.into_iter().filter(|row| row.group != self.own && !row.replicas.is_empty()) {
            // Of several words the newest; of equally new ones one that names a leader.
            let newness = |row: &namesrv::GroupRow| (row.group_incarnation.clone(), row.term, row.leader != 0);
            if named.get(&row.group).is_none_or(|known| newness(known) < newness(&row)) {
                named.insert(row.group.clone(), row);
            }
        }
        for (name, row) in named {
            let known = groups.get(&name);
            if known.is_some_and(|known| {
                (known.incarnation.as_str(), known.term) > (row.group_incarnation.as_str(), row.term)
            }) {
                continue;
            }
            let leader = (row.leader != 0).then_some(row.leader);
            let leaderless_since = match leader {
                Some(_) => None,
                None => Some(known.and_then(|known| known.leaderless_since).unwrap_or(now)),
            };
            let mut replicas: Vec<_> = row.replicas.into_iter().map(|at| (at.replica, at.client)).collect();
            replicas.sort();
            if known.is_none() {
                tracing::info!(group = name, replicas = replicas.len(), "another broker group of the cluster");
            }
            let group = OtherGroup {
                name: name.clone(),
                replicas,
                advertise_name: Some(row.advertise_name).filter(|name| !name.is_empty()),
                leader,
                incarnation: row.group_incarnation,
                term: row.term,
                named_at: now,
                leaderless_since,
            };
            groups.insert(name, group);
        }
        groups.retain(|name, group| {
            let stays = now - group.named_at < FORGET_AFTER;
            if !stays {
                tracing::info!(group = name, "no namesrv names this broker group any more");
            }
            stays
        });
    }

    /// What the other groups have of a topic, by their names. Waits a little if that was not asked for lately.
    pub async fn topic(&self, topic: &TopicName) -> Vec<TopicThere> {
        if !self.has_others() {
            return Vec::new();
        }
        let now = self.runtime.now();
        if let Some(known) = self.topics().get(topic)
            && now - known.asked_at < TOPIC_FRESH
        {
            return known.there.clone();
        }
        let request = namesrv::TopicRouteRequest { cluster: self.cluster.clone(), topic: topic.to_string() };
        let asked = self.namesrvs.iter().map(|namesrv| {
            let call = namesrv.query_topic_route(CallOptions::within(TOPIC_TIMEOUT), request.clone());
            self.runtime.timeout(TOPIC_TIMEOUT, call)
        });
        let mut is_answered = false;
        let mut newest = BTreeMap::<String, (String, u64, TopicThere)>::new();
        for reply in join_all(asked).await.into_iter().filter_map(|answer| answer.ok()?.ok()) {
            let code = reply.status.as_ref().map(|status| status.code);
            is_answered |= is_ok(reply.status.as_ref()) || code == Some(Code::TopicNotFound as i32);
            for group in reply.groups {
                let Some(there) = there_of(&group).filter(|there| there.group != self.own) else { continue };
                let (incarnation, term) = (group.group_incarnation, group.term);
                let is_newer =
                    newest.get(&there.group).is_none_or(|(life, then, _)| (life, then) < (&incarnation, &term));
                if is_newer {
                    newest.insert(there.group.clone(), (incarnation, term, there));
                }
            }
        }
        let mut there: BTreeMap<String, TopicThere> =
            newest.into_iter().map(|(group, (_, _, there))| (group, there)).collect();
        let mut topics = self.topics();
        if let Some(known) = topics.get(topic) {
            for before in &known.there {
                // Who does not name the group at all does not know whether it still has the topic.
                if !is_answered || !self.is_named_lately(&before.group, now) {
                    there.entry(before.group.clone()).or_insert_with(|| before.clone());
                }
            }
        }
        there.retain(|group, _| self.group(group).is_some());
        let there: Vec<TopicThere> = there.into_values().collect();
        if topics.len() >= TOPICS_MAX && !topics.contains_key(topic) {
            topics.clear();
        }
        topics.insert(topic.clone(), KnownTopic { asked_at: now, there: there.clone() });
        there
    }

    fn topics(&self) -> MutexGuard<'_, BTreeMap<TopicName, KnownTopic>> {
        self.topics.lock().expect(LOCK)
    }

    fn is_named_lately(&self, group: &str, now: Instant) -> bool {
        self.groups.read().expect(LOCK).get(group).is_some_and(|known| now - known.named_at <= 2 * LOOK + LOOK_TIMEOUT)
    }
}

/// Looks after the other groups, and after this one's leader, as long as the replica runs.
pub async fn watch(replica: Arc<Replica>) {
    loop {
        replica.cluster.look().await;
        let leader = replica.leadership.seen().place.other_leader();
        // A follower of a leader whose process is gone calls it the leader until there is another one, which there may never be.
        let is_silent = leader.is_some_and(|leader| {
            let unreached = replica.log.integrity().unreached;
            unreached.iter().any(|(node, _)| *node == leader)
        });
        replica.is_leader_silent.store(is_silent, Ordering::Relaxed);
        replica.runtime.sleep(LOOK).await;
    }
}

fn there_of(group: &namesrv::GroupRoute) -> Option<TopicThere> {
    let entry = group.topic.as_ref()?;
    Some(TopicThere {
        group: group.group.clone(),
        queue_count: entry.queue_count,
        permission: Permission::from_code(u8::try_from(entry.permission).ok()?)?,
        message_type: MessageType::from_code(u8::try_from(entry.message_type).ok()?)?,
    })
}

#[cfg(test)]
mod tests {
    use flotilla_proto::client::TonicConnector;

    use super::*;

    fn view() -> ClusterView {
        let runtime = Runtime::tokio();
        ClusterView::new(&BrokerConfig::default(), runtime.clone(), Arc::new(TonicConnector::new(runtime)))
    }

    fn row(group: &str, term: u64, leader: u64) -> namesrv::GroupRow {
        let replica = |replica: u64| namesrv::ReplicaAddress { replica, client: format!("10.0.0.{replica}:8081") };
        namesrv::GroupRow {
            group: group.to_owned(),
            group_incarnation: "1".to_owned(),
            term,
            leader,
            replicas: vec![replica(2), replica(1)],
            ..Default::default()
        }
    }

    #[tokio::test]
    async fn the_newest_word_on_another_group_counts_and_its_own_group_is_none() {
        let view = view();
        assert!(!view.has_others());
        view.take(vec![row("group-a", 3, 1)]);
        assert!(!view.has_others(), "that is this one");
        view.take(vec![row("group-b", 4, 0), row("group-b", 5, 2), row("group-b", 3, 1)]);
        let known = view.group("group-b").expect("known");
        assert_eq!((known.leader, known.term), (Some(2), 5));
        assert_eq!(known.replicas, [(1, "10.0.0.1:8081".to_owned()), (2, "10.0.0.2:8081".to_owned())]);
        let nodes: Vec<u64> = view.replicas_of("group-b").iter().map(|(node, _)| *node).collect();
        assert_eq!(nodes, [2, 1], "the leader is asked first");
        // A namesrv that is behind, or knows nothing, takes nothing away.
        view.take(vec![row("group-b", 4, 1)]);
        view.take(Vec::new());
        assert_eq!(view.group("group-b").expect("known").leader, Some(2));
        // Two namesrvs, one of which has lost the leader's connection.
        view.take(vec![row("group-b", 5, 0), row("group-b", 5, 2)]);
        assert_eq!(view.group("group-b").expect("known").leaderless_since, None);
        view.take(vec![row("group-b", 5, 0)]);
        let since = view.group("group-b").expect("known").leaderless_since.expect("from now on");
        view.take(vec![row("group-b", 5, 0)]);
        let known = view.group("group-b").expect("known");
        assert_eq!(known.leaderless_since, Some(since), "it goes on");
        assert!(!view.is_leaderless(&known), "an election is over sooner");
        let long_ago = OtherGroup { leaderless_since: Some(Instant::from_nanos(0)), ..known };
        view.runtime.sleep(Duration::from_millis(1)).await;
        assert_eq!(view.is_leaderless(&long_ago), view.runtime.now() - Instant::from_nanos(0) >= LEADERLESS_AFTER);
        view.take(vec![row("group-b", 6, 1)]);
        assert_eq!(view.group("group-b").expect("known").leaderless_since, None);
    }
}
