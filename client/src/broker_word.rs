//! Asks the brokers themselves about a topic that no namesrv knows: a namesrv's table may be young or partial.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use flotilla_message::{Permission, TopicName};
use flotilla_proto::namesrv;
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
                Some(Some(permission)) => serving.push(GroupRoute { replicas: replicas.clone(), permission }),
                Some(None) => {}
                None if registered.contains(replicas.name()) => silent.push(replicas.name().group.as_str()),
                None => unheard.push(replicas.name().group.as_str()),
            }
        }
        if !serving.is_empty() {
            return BrokersWord::Served(TopicRoute::new(serving));
        }
        if !unheard.is_empty() {
            return BrokersWord::Unheard(format!("broker group {} does not answer", unheard.join(", ")));
        }
        if !silent.is_empty() {
            return BrokersWord::Undecided(format!("broker group {} does not answer", silent.join(", ")));
        }
        BrokersWord::Denied
    }

    /// A group's own word: the topic's permission, `Some(None)` if it has no such topic, `None` if it does not tell.
    async fn ask_group(&self, replicas: &Replicas, topic: &TopicName) -> Option<Option<Permission>> {
        let asking = async {
            let mut tried = Vec::new();
            while let Some(address) = replicas.next(&tried, self.runtime.now()) {
                match self.query_broker(&address, topic, REPLICA_WITHIN).await {
                    Answer::Found(queues) => {
                        // The call that wants the route goes there, past those that did not answer.
                        replicas.answered(&address);
                        let permission = queues.first().and_then(|queue| permission_of(queue.permission));
                        return Some(Some(permission.unwrap_or(Permission::ReadWrite)));
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
