//! One replica's registration as the table keeps it: who it is, how fresh it is, and what it serves.

use flotilla_message::{MessageType, Permission, TopicName};

/// Which replica a row is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RowKey {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the broker group within the cluster.
    pub group: String,
    /// Number of the replica within the group.
    pub replica: u64,
}

impl std::fmt::Display for RowKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "replica {} of group {} in cluster {}", self.replica, self.group, self.cluster)
    }
}

/// How new a replica's knowledge is: compared field by field in this order.
///
/// The incarnation names one life of the group (from its bootstrap to its deletion) and is compared as
/// text, so a group that is made anew must take a greater one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Freshness {
    /// Incarnation of the group.
    pub incarnation: String,
    /// The replica's Raft term.
    pub term: u64,
    /// Version of the row's content; grows with every change within one term.
    pub version: u64,
}

impl std::fmt::Display for Freshness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "incarnation {:?}, term {}, version {}", self.incarnation, self.term, self.version)
    }
}

/// What a replica says of its part in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RowRole {
    /// It leads in its term.
    Leader,
    /// It does not lead: follower, candidate or learner.
    Follower,
}

/// A topic that a group serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicEntry {
    /// The topic's name.
    pub name: TopicName,
    /// How many queues of it the group holds, numbered from 0.
    pub queue_count: u32,
    /// What clients may do with it.
    pub permission: Permission,
    /// The kind of message it takes.
    pub message_type: MessageType,
}

/// One member of a group as another member knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Member {
    /// Number of the replica.
    pub replica: u64,
    /// Its `host:port` for clients.
    pub client_address: String,
}

/// A whole row: the newest registration of one replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Which replica.
    pub key: RowKey,
    /// How new it is.
    pub freshness: Freshness,
    /// Whether it leads.
    pub role: RowRole,
    /// Its own `host:port` for clients.
    pub client_address: String,
    /// Its own `host:port` for peers.
    pub peer_address: String,
    /// All members of the group, itself among them.
    pub members: Vec<Member>,
    /// `host:port` of one name that stands for all members, empty if there is none.
    pub advertise_name: String,
    /// Any member answers pulls, not the leader alone.
    pub read_from_any: bool,
    /// How often the replica means to repeat the row, milliseconds; 0 if it does not say.
    pub heartbeat_interval_ms: u64,
    /// The topics it serves, ordered by name.
    pub topics: Vec<TopicEntry>,
}
