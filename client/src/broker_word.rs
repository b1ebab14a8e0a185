//! Asks the brokers themselves about a topic that no namesrv knows: a namesrv's table may be young or partial.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flotilla_message::{Permission, TopicName};
use flotilla_proto::{namesrv, v2};
use futures::future::join_all;

use crate::client::Shared;
use crate::failure::{Verdict, judge_status};
use crate::replicas::{BrokerGroupName, Replicas};
use crate::route::{GroupRoute, TopicRoute};
use crate::route_cache::{Answer, answered, permission_of};

/// Longest wait for a namesrv's table. Short: who mistyped a topic waits for it.
const TABLE_WITHIN: Duration = Duration::from_millis(300);
/// Longest wait for one replica, which may have to ask its leader.
const REPLICA_WITHIN: Duration = Duration::from_millis(250);
/// Longest wait for all replicas of a group together.
const GROUP_WITHIN: Duration = Duration::from_millis(600);

/// What all broker groups that are known make of a topic.
pub(crate) enum BrokersWord {
    /// At least one has it; these are those that do.
    Served(TopicRoute),
    /// Each of them says that it does not have it.
    Denied,
    /// None has it; some do not answer, but as they registered with a namesrv they did not have it. Or none is known.
    Undecided(String),
    /// None has it; some do not answer and are in no namesrv's table, so that nobody speaks for them.
    Unheard(String),
}

/// What of a route is the asked group's own: a route names all groups of the cluster that have the topic. Each queue counts
/// once, however many brokers it is shown at.
pub(crate) fn own_part(queues: &[v2::MessageQueue], group: &str) -> Option<(Permission, u32)> {
    let is_own =
        |queue: &&v2::MessageQueue| queue.broker.as_ref().is_some_and(|broker| is_broker_of(group, &broker.name));
    let own: Vec<&v2::MessageQueue> = queues.iter().filter(is_own).collect();
    let permission = permission_of(own.first()?.permission).unwrap_or(Permission::ReadWrite);
    let ids: BTreeSet<i32> = own.iter().map(|queue| queue.id).collect();
    Some((permission, u32::try_from(ids.len()).unwrap_or(u32::MAX)))
}

/// Whether a broker of a route stands for the group, or for one replica of it (`group-1`).
pub(crate) fn is_broker_of(group: &str, broker: &str) -> bool {
    let node = broker.strip_prefix(group).map(|rest| rest.strip_prefix('-').unwrap_or(rest));
    node.is_some_and(|node| node.is_empty() || node.bytes().all(|byte| byte.is_ascii_digit()))
}

impl Shared {
    /// Asks all groups at once that this client has met or that these namesrvs have rows of; takes less than a second.
    pub(crate) async fn ask_known_groups(&self, topic: &TopicName, namesrvs: &[&str]) -> BrokersWord {
        let tables: Vec<_> = namesrvs.iter().map(|address| self.table_of(address)).collect();
        let rows = join_all(tables).await.into_iter().flatten().collect();
        let mut groups = self.routes.known_groups(self.config.cluster.as_deref());
        let mut registered = BTreeSet::new();
        for replicas in self.registered_groups(rows) {
            registered.insert(replicas.name().clone());
            groups.insert(replicas.name().clone(), replicas);
        }
        if groups.is_empty() {
            return BrokersWord::Undecided("no broker is registered".to_owned());
        }
        let questions: Vec<_> = groups.values().map(|replicas| self.ask_group(replicas, topic)).collect();
        let (mut serving, mut silent, mut unheard) = (Vec::new(), Vec::new(), Vec::new());
        for (replicas, word) in groups.values().zip(join_all(questions).await) {
            match word {
                Some(Some((permission, queue_count))) => {
                    serving.push(GroupRoute { replicas: replicas.clone(), permission, queue_count });
                }
                Some(None) => {}
                None if registered.contains(replicas.name()) => silent.push(replicas.name().group.as_str()),
                None => unheard.push(replicas.name().group.as_str()),
            }
        }
        if !serving.is_empty() {
            return BrokersWord::Served(TopicRoute::new(serving, self.runtime.random_u64()));
        }
        if !unheard.is_empty() {
            return BrokersWord::Unheard(format!("broker group {} does not answer", unheard.join(", ")));
        }
        if !silent.is_empty() {
            return BrokersWord::Undecided(format!("broker group {} does not answer", silent.join(", ")));
        }
        BrokersWord::Denied
    }

    /// A group's own word: the topic's permission and queues, `Some(None)` if it has no such topic, `None` if it does not tell.
    async fn ask_group(&self, replicas: &Replicas, topic: &TopicName) -> Option<Option<(Permission, u32)>> {
        let asking = async {
            let mut tried = Vec::new();
            while let Some(address) = replicas.next(&tried, self.runtime.now()) {
                match self.query_broker(&address, topic, REPLICA_WITHIN).await {
                    Answer::Found(queues) => {
                        // The call that wants the route goes there, past those that did not answer.
                        replicas.answered(&address);
                        return Some(own_part(&queues, &replicas.name().group));
                    }
                    // It has asked its leader.
                    Answer::NotFound(_) => return Some(None),
                    Answer::Rejected { .. } | Answer::Failed(_) => {
                        replicas.failed(&address);
                        tried.push(address);
                    }
                }
            }
            None
        };
        self.runtime.timeout(GROUP_WITHIN, asking).await.unwrap_or(None)
    }

    /// The rows of one namesrv; none if it does not tell.
    async fn table_of(&self, address: &str) -> Vec<namesrv::BrokerRow> {
        let cluster = self.config.cluster.clone().unwrap_or_default();
        let calls = self.connector.namesrv(address);
        let call = calls.list_brokers(self.options(TABLE_WITHIN), namesrv::ListBrokersRequest { cluster });
        match answered(self.runtime.timeout(TABLE_WITHIN, call).await, TABLE_WITHIN) {
            Ok(reply) if judge_status(reply.status.as_ref()) == Verdict::Done(()) => reply.brokers,
            Ok(_) | Err(_) => Vec::new(),
        }
    }

    /// The broker groups in a namesrv's rows, ordered by name.
    pub(crate) fn registered_groups(&self, rows: Vec<namesrv::BrokerRow>) -> Vec<Arc<Replicas>> {
        let mut groups = BTreeMap::<BrokerGroupName, Vec<(u64, String)>>::new();
        for row in rows.into_iter().filter_map(|row| row.registration) {
            let members = groups.entry(BrokerGroupName { cluster: row.cluster, group: row.group }).or_default();
            members.extend(row.replicas.into_iter().map(|replica| (replica.replica, replica.client)));
            members.push((row.replica, row.client_address));
        }
        groups.into_iter().map(|(name, members)| self.routes.replicas(name, members)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_s_own_part_of_a_route_is_told_from_the_others() {
        for (group, broker, is_own) in [
            ("group-a", "group-a", true),
            ("group-a", "group-a-2", true),
            ("group-a", "group-ab", false),
            ("group", "group-a", false),
            ("group-a", "group-b", false),
        ] {
            assert_eq!(is_broker_of(group, broker), is_own, "{group} {broker}");
        }
        let queue = |broker: &str, id: i32, permission: i32| v2::MessageQueue {
            id,
            permission,
            broker: Some(v2::Broker { name: broker.to_owned(), ..v2::Broker::default() }),
            ..v2::MessageQueue::default()
        };
        let route = [queue("a-1", 0, 4), queue("a-2", 0, 4), queue("b", 0, 2), queue("a-1", 1, 4), queue("b", 1, 2)];
        assert_eq!(own_part(&route, "a"), Some((Permission::ReadWrite, 2)));
        assert_eq!(own_part(&route, "b"), Some((Permission::Read, 2)));
        assert_eq!(own_part(&route, "c"), None);
    }
}
