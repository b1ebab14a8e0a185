//! The table of registered replicas: a pure function of the calls made on it, without clock or sockets.
//!
//! What holds after any sequence of calls:
//! - one row per (cluster, group, replica), the freshest that was accepted since the last removal;
//! - a registration or an unregistration with a lower [`Freshness`] than the row's changes nothing;
//! - expiry and unregister remove the one row they are about, never another replica's;
//! - a group is there as long as any of its rows is, with or without a leader.
//!
//! ```text
//!             register (fresh)          register (as fresh or fresher)
//!   absent ─────────────────────▶ present ◀──────────┐
//!     ▲                            │  │  └───────────┘
//!     └── unregister, expire ──────┘  └─ register / unregister (staler): refused, row untouched
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use flotilla_message::TopicName;
use flotilla_planted_bugs::{Bug, is_planted};
use flotilla_runtime::Instant;

use crate::row::{Freshness, Member, Row, RowKey, RowRole, TopicEntry};

/// Number of a registration connection, unique within one life of the namesrv.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnectionId(pub u64);

/// Rows of all replicas of all clusters.
#[derive(Debug, Clone)]
pub struct Routes {
    rows: BTreeMap<RowKey, Held>,
    rows_max: usize,
}

#[derive(Debug, Clone)]
struct Held {
    row: Row,
    connection: ConnectionId,
    seen: Instant,
}

/// What an accepted registration did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registered {
    /// There was no row of this replica.
    Added,
    /// The row differs from the one before.
    Changed,
    /// The same row again: a heartbeat.
    Repeated,
}

/// Why a registration or an unregistration changed nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RowRefused {
    /// The table knows something newer of this replica.
    #[error("{key} offers {offered}, which is older than the held {held}")]
    Stale { key: RowKey, held: Box<Freshness>, offered: Box<Freshness> },
    /// The table has as many rows as it may.
    #[error("{key} would be row {} of at most {limit}", .limit + 1)]
    Full { key: RowKey, limit: usize },
}

/// A row that went because nothing was heard of its replica.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Expired {
    /// Whose row it was.
    pub key: RowKey,
    /// The connection it was last heard on.
    pub connection: ConnectionId,
}

/// One group as clients need to know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupView {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the group.
    pub group: String,
    /// All members known to the freshest row, ordered by number; registered or not, since a member
    /// that is down now may lead in a moment.
    pub members: Vec<Member>,
    /// The member that leads in the newest term any row speaks of, if it has said so.
    pub leader: Option<u64>,
    /// The newest term any row speaks of.
    pub term: u64,
    /// Incarnation of the group.
    pub incarnation: String,
    /// `host:port` of one name that stands for all members, empty if there is none.
    pub advertise_name: String,
    /// Any member answers pulls, not the leader alone.
    pub read_from_any: bool,
}

/// A topic's part in one group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TopicRoute {
    /// The group.
    pub group: GroupView,
    /// The topic as the group's freshest row has it.
    pub topic: TopicEntry,
}

/// A topic and a group that serves it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupTopic {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the group.
    pub group: String,
    /// The topic as the group's freshest row has it.
    pub topic: TopicEntry,
}

impl Routes {
    /// An empty table that takes at most `rows_max` rows.
    pub fn new(rows_max: usize) -> Routes {
        Routes { rows: BTreeMap::new(), rows_max }
    }

    /// Takes a replica's whole row, heard on `connection` at `now`.
    ///
    /// # Errors
    /// [`RowRefused`]; the table is then as before, and a held row's age too.
    pub fn register(&mut self, row: Row, connection: ConnectionId, now: Instant) -> Result<Registered, RowRefused> {
        if let Some(held) = self.rows.get_mut(&row.key) {
            refuse_stale(held, &row.freshness)?;
            let effect = if held.row == row { Registered::Repeated } else { Registered::Changed };
            *held = Held { row, connection, seen: now };
            return Ok(effect);
        }
        if self.rows.len() >= self.rows_max {
            return Err(RowRefused::Full { key: row.key, limit: self.rows_max });
        }
        self.rows.insert(row.key.clone(), Held { row, connection, seen: now });
        Ok(Registered::Added)
    }

    /// Removes a replica's row at its own wish; `false` when there was none.
    ///
    /// # Errors
    /// [`RowRefused::Stale`] when the row is newer than the one that wishes to go: a late goodbye of
    /// a process does not remove what its successor has registered.
    pub fn unregister(&mut self, key: &RowKey, freshness: &Freshness) -> Result<bool, RowRefused> {
        let Some(held) = self.rows.get(key) else { return Ok(false) };
        refuse_stale(held, freshness)?;
        self.rows.remove(key);
        Ok(true)
    }

    /// A connection has ended. Its rows stay, but who led on it is not named as the leader until it says so again: a replica
    /// that was killed says nothing more, and its group may have nobody left to replace it.
    pub fn disconnected(&mut self, connection: ConnectionId) {
        for held in self.rows.values_mut().filter(|held| held.connection == connection) {
            held.row.role = RowRole::Follower;
        }
    }

    /// Removes every row of which nothing was heard for `expiry` or longer.
    pub fn expire(&mut self, now: Instant, expiry: Duration) -> Vec<Expired> {
        let silent = |held: &Held| now.saturating_since(held.seen) >= expiry;
        let gone = self.rows.extract_if(.., |_, held| silent(held));
        gone.map(|(key, held)| Expired { key, connection: held.connection }).collect()
    }

    /// Whether any row was last heard on `connection`.
    pub fn has_rows_of(&self, connection: ConnectionId) -> bool {
        self.rows.values().any(|held| held.connection == connection)
    }

    /// A replica's row.
    pub fn row(&self, key: &RowKey) -> Option<&Row> {
        self.rows.get(key).map(|held| &held.row)
    }

    /// All rows in the order of their keys, of one cluster if given, with the time each was last heard.
    pub fn rows<'a>(&'a self, cluster: Option<&'a str>) -> impl Iterator<Item = (&'a Row, Instant)> + 'a {
        let wanted = move |held: &&Held| cluster.is_none_or(|name| held.row.key.cluster == name);
        self.rows.values().filter(wanted).map(|held| (&held.row, held.seen))
    }

    /// All groups ordered by cluster and name, of one cluster if given.
    pub fn groups(&self, cluster: Option<&str>) -> Vec<GroupView> {
        self.each_group(cluster).map(|rows| view_of(&rows)).collect()
    }

    /// The groups that serve a topic, ordered by cluster and group; empty when the topic is unknown.
    pub fn topic_route(&self, cluster: Option<&str>, topic: &TopicName) -> Vec<TopicRoute> {
        self.each_group(cluster)
            .filter_map(|rows| {
                let entry = freshest(&rows).topics.iter().find(|entry| entry.name == *topic)?;
                Some(TopicRoute { group: view_of(&rows), topic: entry.clone() })
            })
            .collect()
    }

    /// All topics of all groups, ordered by cluster, group and topic, of one cluster if given.
    pub fn topics(&self, cluster: Option<&str>) -> Vec<GroupTopic> {
        let mut topics = Vec::new();
        for rows in self.each_group(cluster) {
            let row = freshest(&rows);
            topics.extend(row.topics.iter().map(|entry| GroupTopic {
                cluster: row.key.cluster.clone(),
                group: row.key.group.clone(),
                topic: entry.clone(),
            }));
        }
        topics
    }

    /// The rows of each group in turn, only those of the group's newest incarnation; never empty.
    fn each_group<'a>(&'a self, cluster: Option<&'a str>) -> impl Iterator<Item = Vec<&'a Row>> + 'a {
        let mut rows = self.rows(cluster).map(|(row, _)| row).peekable();
        std::iter::from_fn(move || {
            let first = rows.next()?;
            let mut group = vec![first];
            let same = |row: &&Row| row.key.cluster == first.key.cluster && row.key.group == first.key.group;
            while let Some(row) = rows.next_if(|row| same(row)) {
                group.push(row);
            }
            let newest = group.iter().map(|row| row.freshness.incarnation.as_str()).max().unwrap_or_default();
            group.retain(|row| row.freshness.incarnation == newest);
            assert!(!group.is_empty(), "the newest incarnation is one of the rows'");
            Some(group)
        })
    }
}

fn refuse_stale(held: &Held, offered: &Freshness) -> Result<(), RowRefused> {
    if *offered < held.row.freshness && !is_planted(Bug::LowerTermRegistered) {
        return Err(RowRefused::Stale {
            key: held.row.key.clone(),
            held: Box::new(held.row.freshness.clone()),
            offered: Box::new(offered.clone()),
        });
    }
    Ok(())
}

/// The row that knows most of the group: the freshest, and of equally fresh ones the leader's.
fn freshest<'a>(rows: &[&'a Row]) -> &'a Row {
    let knowledge = |row: &&&Row| (row.freshness.clone(), row.role == RowRole::Leader);
    rows.iter().max_by_key(knowledge).expect("a group has at least one row")
}

fn view_of(rows: &[&Row]) -> GroupView {
    let row = freshest(rows);
    let term = rows.iter().map(|row| row.freshness.term).max().expect("a group has at least one row");
    // A leader of an older term has been deposed, whether it knows or not.
    let leader = rows.iter().find(|row| row.role == RowRole::Leader && row.freshness.term == term);
    let mut members = BTreeMap::new();
    for member in &row.members {
        members.insert(member.replica, member.client_address.clone());
    }
    // A replica knows its own address best.
    for row in rows {
        members.insert(row.key.replica, row.client_address.clone());
    }
    GroupView {
        cluster: row.key.cluster.clone(),
        group: row.key.group.clone(),
        members: members.into_iter().map(|(replica, client_address)| Member { replica, client_address }).collect(),
        leader: leader.map(|row| row.key.replica),
        term,
        incarnation: row.freshness.incarnation.clone(),
        advertise_name: row.advertise_name.clone(),
        read_from_any: row.read_from_any,
    }
}
