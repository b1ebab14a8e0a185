//! What the parts of one replica share: settings, log, store, and the state around them.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use flotilla_message::{GroupName, MessageType, Permission, TopicName};
use flotilla_raft_log::{GroupMembers, LogIndex, NodeId, Standing, Term};
use flotilla_runtime::Runtime;
use flotilla_store::key_index::KeyIndex;
use flotilla_store::{Command, StoreReader, TopicInfo, TopicLevel};

use crate::admin::backup::Backups;
use crate::admin::key_indexer::GrownQueues;
use crate::cluster::view::ClusterView;
use crate::config::BrokerConfig;
use crate::consume::lanes::Lanes;
use crate::consume::renewal::Renewals;
use crate::duty::alarms::Alarms;
use crate::edge::clients::Clients;
use crate::edge::quotas::Quotas;
use crate::edge::route::RoutePlan;
use crate::edge::unread::UnreadAnswers;
use crate::failure::Failure;
use crate::lead::budget::Budget;
use crate::lead::fitness::Fitness;
use crate::lead::forwarder::Forwarder;
use crate::lead::leadership::Leadership;
use crate::lead::proposer::{Log, Proposer, Settled, SubmitError, TermClock};
use crate::lead::read_mark::ReadMarks;
use crate::metrics::{Counters, LagTrack};
use crate::peer::book::PeerBook;
use crate::produce::level::{answer_when, committed_level, level_of};
use crate::produce::queue_moves::QueueMoves;
use crate::produce::send::QueuePicker;

/// The shared parts of one replica.
pub struct Replica {
    /// The settings.
    pub config: BrokerConfig,
    /// This replica.
    pub node: NodeId,
    /// Where the others are.
    pub peers: Arc<PeerBook>,
    /// Time, tasks, randomness.
    pub runtime: Runtime,
    /// The replicated log.
    pub log: Log,
    /// What is applied.
    pub store: StoreReader,
    /// Log time.
    pub clock: Arc<TermClock>,
    /// Who leads.
    pub leadership: Arc<Leadership>,
    /// Which messages have which keys.
    pub keys: Arc<KeyIndex>,
    /// Which queues grew since they were put into that.
    pub grown_queues: Arc<GrownQueues>,
    /// The way into the log.
    pub proposer: Proposer,
    /// Calls that wait for a leader.
    pub parking: Arc<Budget>,
    /// Polls that wait for a leader.
    pub poll_parking: Arc<Budget>,
    /// The way to the leader.
    pub forwarder: Forwarder,
    /// Whether it keeps up with the leader.
    pub read_marks: ReadMarks,
    /// How much of this replica one client, topic or group may take.
    pub quotas: Quotas,
    /// Answers that clients have not read yet.
    pub unread: Arc<UnreadAnswers>,
    /// Which queue a message goes to.
    pub queue_picker: QueuePicker,
    /// The other broker groups.
    pub cluster: ClusterView,
    /// The replica that leads, as far as this one knows, does not answer it.
    pub is_leader_silent: AtomicBool,
    /// Topics whose number of queues changes at the moment.
    pub queue_moves: Arc<QueueMoves>,
    /// What routes look like.
    pub routes: RwLock<Arc<RoutePlan>>,
    /// Who is known here.
    pub clients: Clients,
    /// Polls at work and waiting.
    pub lanes: Arc<Lanes>,
    /// What monitoring is told of its work.
    pub counters: Arc<Counters>,
    /// What an operator has to know.
    pub alarms: Alarms,
    /// Whether it is fit to lead.
    pub fitness: Fitness,
    /// Where the log ended at which time.
    pub lag: Mutex<LagTrack>,
    /// Deliveries that are prolonged while their consumers live.
    pub renewals: Renewals,
    /// The newest backup.
    pub backups: Backups,
    /// Why the process must exit, once it must.
    pub failure: Arc<Failure>,
    /// `host:port` that clients are told for this replica.
    pub client_address: String,
}

impl Replica {
    /// For how long this replica's log has held more than `index`, as far as it was looked at.
    pub fn seconds_behind(&self, index: Option<LogIndex>) -> Duration {
        let lag = self.lag.lock().expect("lag lock is never poisoned: no code panics while holding it");
        lag.behind(index, self.runtime.now())
    }

    /// What routes look like now.
    pub fn routes(&self) -> Arc<RoutePlan> {
        self.routes.read().expect("route lock is never poisoned: no code panics while holding it").clone()
    }

    /// Routes look like that from now on.
    pub fn set_routes(&self, plan: RoutePlan) {
        *self.routes.write().expect("route lock is never poisoned: no code panics while holding it") = Arc::new(plan);
    }

    /// Client addresses of all voters in the order of their numbers: what routes name. Before the group is known, those of
    /// the settings.
    pub fn client_addresses(&self, members: &GroupMembers) -> Vec<(u64, String)> {
        let known = members.voters.iter().filter_map(|node| Some((node.0, self.peers.contact(*node)?.client)));
        let known: Vec<(u64, String)> = known.collect();
        if known.is_empty() { self.config.client_addresses() } else { known }
    }

    /// Voters of the group, one at least.
    pub fn voter_count(&self) -> usize {
        match self.log.status().members.len() {
            0 => self.config.voters().len().max(1),
            voters => voters,
        }
    }

    /// Why it is no member of its group as it is, and so neither votes nor counts; `None` if it is one.
    pub fn no_member(&self) -> Option<String> {
        match self.log.standing() {
            Standing::Member => None,
            Standing::Founding => Some("waits for the other replicas, to found the group with them".to_owned()),
            Standing::Newcomer => Some("is new here and waits until the group takes it in".to_owned()),
            Standing::LostDisk { known } => Some(format!(
                "has lost its disk: the group knows it as {known}, this directory is {}; it does not vote until a \
                 leader has taken it in again",
                self.log.incarnation()
            )),
            Standing::GivenUp { epoch } => Some(format!(
                "was given up: the group went on without it by an operator's order (epoch {epoch}); keep its directory for \
                 what may be only there, and add it again with an empty one"
            )),
        }
    }

    /// Proposes an operator's change, and waits until it is as safe as the group's level says, never less than committed.
    ///
    /// # Errors
    /// As [`Proposer::submit`]; that it is committed, and not known to be as safe, counts as unknown: it may be repeated.
    pub async fn settle(&self, term: Term, command: Command) -> Result<Settled, SubmitError> {
        let level = committed_level(level_of(&self.config, TopicLevel::default()));
        let when = answer_when(self.config.raft_durability, level);
        let settled = self.proposer.submit_at(term, command, when).await?;
        match &settled.shortfall {
            None => Ok(settled),
            Some(failure) => Err(SubmitError::Unknown(format!(
                "committed, and not known to be as safe as level {} with {} flush asks for: {failure}",
                level.ack, level.flush
            ))),
        }
    }

    /// What may be done with a topic of that permission in this group now.
    pub fn permission_in_force(&self, permission: Permission) -> Permission {
        match permission {
            Permission::ReadWrite if self.store.is_write_wiped() => Permission::Read,
            Permission::Write if self.store.is_write_wiped() => Permission::None,
            other => other,
        }
    }

    /// Names that monitoring is told of one by one.
    pub fn labels_max(&self) -> usize {
        usize::try_from(self.config.metrics_labels_max).unwrap_or(usize::MAX)
    }

    /// A topic that clients may ask for: one that exists, or the dead letters of a group that exists, which are made
    /// with the first of them.
    pub fn readable_topic(&self, name: &TopicName) -> Option<TopicInfo> {
        if let Some(info) = self.store.topic(name) {
            return Some(info);
        }
        let group = GroupName::try_from(name.as_str().strip_prefix("%DLQ%")?).ok()?;
        self.store.group(&group)?;
        Some(TopicInfo {
            name: name.clone(),
            uid: 0,
            message_type: MessageType::Normal,
            queue_count: 1,
            writable_queues: 1,
            permission: Permission::ReadWrite,
            level: TopicLevel::default(),
            retention_ms: None,
        })
    }

    /// Makes the dead letters of a group if that is what the name means and they are not there yet: who reads them
    /// before the first one came stands before it, not behind.
    pub async fn dead_letters_or_made(&self, name: &TopicName, term: Term) -> Result<(), SubmitError> {
        if !name.is_dead_letter() || self.store.topic(name).is_some() || self.readable_topic(name).is_none() {
            return Ok(());
        }
        let command = Command::CreateTopic {
            name: name.clone(),
            message_type: MessageType::Normal,
            queue_count: 1,
            permission: Permission::ReadWrite,
        };
        self.proposer.submit(term, command).await.map(|_| ())
    }
}
