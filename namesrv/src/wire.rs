//! Between the protocol's messages and the table's rows: what comes in is checked here, once.

use flotilla_message::{MessageType, Permission, TopicName};
use flotilla_proto::namesrv as proto;

use crate::routes::{GroupTopic, GroupView, TopicRoute};
use crate::row::{Freshness, Member, Row, RowKey, RowRole, TopicEntry};

/// Longest cluster or group name, incarnation or address, bytes.
const TEXT_BYTES_MAX: usize = 255;
/// Most members of one group.
const MEMBERS_MAX: usize = 64;
/// Most topics of one row.
const TOPICS_MAX: usize = 100_000;

/// Why a row as it came in cannot be kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BadRow {
    /// A text that must be there is empty.
    #[error("{field} is empty")]
    Empty { field: &'static str },
    /// A text is too long.
    #[error("{field} has {bytes} bytes, at most {TEXT_BYTES_MAX} are allowed")]
    TooLong { field: &'static str, bytes: usize },
    /// Replicas are numbered from 1.
    #[error("replica is 0, replicas are numbered from 1")]
    NoReplica,
    /// Too many members or topics.
    #[error("{field} has {count} elements, at most {limit} are allowed")]
    TooMany { field: &'static str, count: usize, limit: usize },
    /// A topic that cannot be.
    #[error("topic {name:?} is not valid: {problem}")]
    Topic { name: String, problem: String },
    /// The replica would be forgotten between two heartbeats.
    #[error("heartbeat_interval_ms is {interval_ms}, it must be below this namesrv's expiry of {expiry_ms} ms")]
    HeartbeatTooSlow { interval_ms: u64, expiry_ms: u64 },
}

pub(crate) fn row_of(registration: proto::Registration, expiry_ms: u64) -> Result<Row, BadRow> {
    if registration.heartbeat_interval_ms >= expiry_ms {
        return Err(BadRow::HeartbeatTooSlow { interval_ms: registration.heartbeat_interval_ms, expiry_ms });
    }
    let key = key_of(registration.cluster, registration.group, registration.replica)?;
    // A role this version does not know cannot be one that leads.
    let role = match proto::ReplicaRole::try_from(registration.role) {
        Ok(proto::ReplicaRole::Leader) => RowRole::Leader,
        Ok(proto::ReplicaRole::Follower | proto::ReplicaRole::Unspecified) | Err(_) => RowRole::Follower,
    };
    limit("replicas", registration.replicas.len(), MEMBERS_MAX)?;
    limit("topics", registration.topics.len(), TOPICS_MAX)?;
    let mut members = Vec::with_capacity(registration.replicas.len());
    for member in registration.replicas {
        members.push(Member { replica: member.replica, client_address: text("replicas.client", member.client)? });
    }
    members.sort();
    let mut topics = registration.topics.into_iter().map(topic_of).collect::<Result<Vec<_>, _>>()?;
    topics.sort_by(|left, right| left.name.cmp(&right.name));
    topics.dedup_by(|left, right| left.name == right.name);
    Ok(Row {
        key,
        freshness: Freshness {
            incarnation: short("group_incarnation", registration.group_incarnation)?,
            term: registration.term,
            version: registration.version,
        },
        role,
        client_address: text("client_address", registration.client_address)?,
        peer_address: short("peer_address", registration.peer_address)?,
        members,
        advertise_name: short("advertise_name", registration.advertise_name)?,
        read_from_any: registration.read_from_any,
        heartbeat_interval_ms: registration.heartbeat_interval_ms,
        topics,
    })
}

pub(crate) fn goodbye_of(request: proto::UnregisterRequest) -> Result<(RowKey, Freshness), BadRow> {
    let freshness = Freshness {
        incarnation: short("group_incarnation", request.group_incarnation)?,
        term: request.term,
        version: request.version,
    };
    Ok((key_of(request.cluster, request.group, request.replica)?, freshness))
}

fn key_of(cluster: String, group: String, replica: u64) -> Result<RowKey, BadRow> {
    if replica == 0 {
        return Err(BadRow::NoReplica);
    }
    Ok(RowKey { cluster: text("cluster", cluster)?, group: text("group", group)?, replica })
}

fn topic_of(entry: proto::TopicEntry) -> Result<TopicEntry, BadRow> {
    let bad = |problem: String| BadRow::Topic { name: entry.name.clone(), problem };
    let name = TopicName::try_from(entry.name.as_str()).map_err(|error| bad(error.to_string()))?;
    let permission = u8::try_from(entry.permission).ok().and_then(Permission::from_code);
    let message_type = u8::try_from(entry.message_type).ok().and_then(MessageType::from_code);
    Ok(TopicEntry {
        name,
        queue_count: entry.queue_count,
        permission: permission.ok_or_else(|| bad(format!("unknown permission {}", entry.permission)))?,
        message_type: message_type.ok_or_else(|| bad(format!("unknown message type {}", entry.message_type)))?,
    })
}

fn short(field: &'static str, value: String) -> Result<String, BadRow> {
    if value.len() > TEXT_BYTES_MAX {
        return Err(BadRow::TooLong { field, bytes: value.len() });
    }
    Ok(value)
}

fn text(field: &'static str, value: String) -> Result<String, BadRow> {
    if value.is_empty() {
        return Err(BadRow::Empty { field });
    }
    short(field, value)
}

fn limit(field: &'static str, count: usize, limit: usize) -> Result<(), BadRow> {
    if count > limit { Err(BadRow::TooMany { field, count, limit }) } else { Ok(()) }
}

pub(crate) fn registration_of(row: &Row) -> proto::Registration {
    let role = match row.role {
        RowRole::Leader => proto::ReplicaRole::Leader,
        RowRole::Follower => proto::ReplicaRole::Follower,
    };
    proto::Registration {
        cluster: row.key.cluster.clone(),
        group: row.key.group.clone(),
        group_incarnation: row.freshness.incarnation.clone(),
        replica: row.key.replica,
        role: role.into(),
        term: row.freshness.term,
        version: row.freshness.version,
        client_address: row.client_address.clone(),
        peer_address: row.peer_address.clone(),
        replicas: row.members.iter().map(replica_address_of).collect(),
        topics: row.topics.iter().map(topic_entry_of).collect(),
        heartbeat_interval_ms: row.heartbeat_interval_ms,
        advertise_name: row.advertise_name.clone(),
        read_from_any: row.read_from_any,
        ..Default::default()
    }
}

pub(crate) fn group_route_of(route: &TopicRoute) -> proto::GroupRoute {
    proto::GroupRoute {
        cluster: route.group.cluster.clone(),
        group: route.group.group.clone(),
        group_incarnation: route.group.incarnation.clone(),
        leader: route.group.leader.unwrap_or(0),
        term: route.group.term,
        replicas: route.group.members.iter().map(replica_address_of).collect(),
        topic: Some(topic_entry_of(&route.topic)),
        advertise_name: route.group.advertise_name.clone(),
        read_from_any: route.group.read_from_any,
    }
}

pub(crate) fn group_row_of(group: &GroupView) -> proto::GroupRow {
    proto::GroupRow {
        cluster: group.cluster.clone(),
        group: group.group.clone(),
        group_incarnation: group.incarnation.clone(),
        leader: group.leader.unwrap_or(0),
        term: group.term,
        replicas: group.members.iter().map(replica_address_of).collect(),
        advertise_name: group.advertise_name.clone(),
    }
}

pub(crate) fn group_topic_of(topic: &GroupTopic) -> proto::GroupTopic {
    proto::GroupTopic {
        cluster: topic.cluster.clone(),
        group: topic.group.clone(),
        topic: Some(topic_entry_of(&topic.topic)),
    }
}

fn replica_address_of(member: &Member) -> proto::ReplicaAddress {
    proto::ReplicaAddress { replica: member.replica, client: member.client_address.clone() }
}

fn topic_entry_of(entry: &TopicEntry) -> proto::TopicEntry {
    proto::TopicEntry {
        name: entry.name.to_string(),
        queue_count: entry.queue_count,
        permission: i32::from(entry.permission.code()),
        message_type: i32::from(entry.message_type.code()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registration() -> proto::Registration {
        proto::Registration {
            cluster: "c".to_owned(),
            group: "g".to_owned(),
            replica: 1,
            role: proto::ReplicaRole::Leader.into(),
            client_address: "a:1".to_owned(),
            replicas: vec![proto::ReplicaAddress { replica: 1, client: "a:1".to_owned() }],
            topics: vec![proto::TopicEntry { name: "t".to_owned(), queue_count: 4, permission: 4, message_type: 1 }],
            heartbeat_interval_ms: 30_000,
            ..proto::Registration::default()
        }
    }

    #[test]
    fn a_row_comes_out_as_it_went_in() {
        assert_eq!(registration_of(&row_of(registration(), 120_000).unwrap()), registration());
    }

    #[test]
    fn a_bad_row_is_refused_with_the_value_and_what_is_allowed() {
        let refused = |change: fn(&mut proto::Registration)| {
            let mut row = registration();
            change(&mut row);
            row_of(row, 120_000).unwrap_err().to_string()
        };
        assert_eq!(refused(|row| row.cluster.clear()), "cluster is empty");
        assert_eq!(refused(|row| row.replica = 0), "replica is 0, replicas are numbered from 1");
        assert_eq!(
            refused(|row| row.client_address = "x".repeat(256)),
            "client_address has 256 bytes, at most 255 are allowed"
        );
        assert!(refused(|row| row.topics[0].name = "a b".to_owned()).starts_with("topic \"a b\" is not valid"));
        assert!(refused(|row| row.topics[0].permission = 9).contains("unknown permission 9"));
        assert!(refused(|row| row.heartbeat_interval_ms = 120_000).contains("expiry of 120000 ms"));
    }
}
