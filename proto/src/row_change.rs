//! A row at a namesrv as the difference to the one before it on the same stream: what a change costs grows with the change.

use std::collections::BTreeMap;

use crate::namesrv::{Registration, TopicEntry};

/// Why a difference is no row.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("row builds on version {base}, this stream's last one is {held:?}: send it whole")]
pub struct NoBase {
    base: u64,
    held: Option<u64>,
}

/// `next` for whoever holds `sent`, the row before it on the same stream.
pub fn change_of(sent: &Registration, next: &Registration) -> Registration {
    let known: BTreeMap<&str, &TopicEntry> = sent.topics.iter().map(|topic| (topic.name.as_str(), topic)).collect();
    let topics = next.topics.iter().filter(|topic| known.get(topic.name.as_str()) != Some(topic)).cloned().collect();
    let named: BTreeMap<&str, ()> = next.topics.iter().map(|topic| (topic.name.as_str(), ())).collect();
    let gone = sent.topics.iter().filter(|topic| !named.contains_key(topic.name.as_str()));
    Registration {
        cluster: next.cluster.clone(),
        group: next.group.clone(),
        group_incarnation: next.group_incarnation.clone(),
        replica: next.replica,
        role: next.role,
        term: next.term,
        version: next.version,
        client_address: next.client_address.clone(),
        peer_address: next.peer_address.clone(),
        replicas: next.replicas.clone(),
        topics,
        heartbeat_interval_ms: next.heartbeat_interval_ms,
        advertise_name: next.advertise_name.clone(),
        read_from_any: next.read_from_any,
        is_change: true,
        base_version: sent.version,
        topics_gone: gone.map(|topic| topic.name.clone()).collect(),
    }
}

/// The whole row that a stream's next one stands for; `held` is the one before it. Its topics are in the order of their names.
///
/// # Errors
/// If it builds on another one.
pub fn whole_of(held: Option<&Registration>, next: Registration) -> Result<Registration, NoBase> {
    if !next.is_change {
        return Ok(next);
    }
    let base = next.base_version;
    let Some(held) = held.filter(|held| held.version == base && held.replica == next.replica) else {
        return Err(NoBase { base, held: held.map(|held| held.version) });
    };
    let mut topics: BTreeMap<&str, &TopicEntry> =
        held.topics.iter().map(|topic| (topic.name.as_str(), topic)).collect();
    for name in &next.topics_gone {
        topics.remove(name.as_str());
    }
    topics.extend(next.topics.iter().map(|topic| (topic.name.as_str(), topic)));
    let topics = topics.into_values().cloned().collect();
    Ok(Registration { topics, is_change: false, base_version: 0, topics_gone: Vec::new(), ..next })
}

#[cfg(test)]
mod tests {
    use prost::Message as _;

    use super::*;

    fn row(version: u64, topics: impl IntoIterator<Item = (u32, u32)>) -> Registration {
        let topic = |(number, queue_count)| TopicEntry {
            name: format!("topic-{number:05}"),
            queue_count,
            permission: 4,
            message_type: 1,
        };
        Registration {
            cluster: "c".to_owned(),
            group: "g".to_owned(),
            replica: 1,
            term: version,
            version,
            topics: topics.into_iter().map(topic).collect(),
            ..Default::default()
        }
    }

    #[test]
    fn a_change_stands_for_the_whole_row() {
        let rows = [
            row(1, []),
            row(2, [(1, 4), (2, 4), (3, 4)]),
            row(3, [(1, 4), (2, 8), (4, 4)]),
            row(3, [(1, 4), (2, 8), (4, 4)]),
            row(5, [(4, 4)]),
        ];
        for pair in rows.windows(2) {
            let change = change_of(&pair[0], &pair[1]);
            assert_eq!(whole_of(Some(&pair[0]), change), Ok(pair[1].clone()));
        }
        assert_eq!(whole_of(None, rows[1].clone()), Ok(rows[1].clone()));
    }

    #[test]
    fn a_change_of_another_row_is_refused() {
        let (first, second, third) = (row(1, [(1, 4)]), row(2, [(2, 4)]), row(3, [(3, 4)]));
        let change = change_of(&second, &third);
        let refused = whole_of(Some(&first), change.clone()).unwrap_err().to_string();
        assert!(refused.contains("builds on version 2") && refused.contains("Some(1)"), "{refused}");
        assert!(whole_of(None, change).is_err());
        let other = Registration { replica: 2, ..second.clone() };
        assert!(whole_of(Some(&other), change_of(&second, &third)).is_err());
    }

    #[test]
    fn one_topic_among_fifty_thousand_costs_as_much_as_one() {
        let before = row(1, (0..50_000).map(|number| (number, 4)));
        let after = row(2, (0..50_001).map(|number| (number, 4)));
        let (whole, change) = (after.encoded_len(), change_of(&before, &after).encoded_len());
        assert!(whole > 900_000 && change < 100, "whole {whole}, change {change} bytes");
    }
}
