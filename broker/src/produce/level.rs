//! At which level a send is answered: what its topic gives, what it asks for, and which watermark that means.

use flotilla_message::{ACK_PROPERTY, AckLevel, FLUSH_PROPERTY, FlushLevel, SendLevel};
use flotilla_proto::status::{Code, status};
use flotilla_proto::v2;
use flotilla_raft_log::{AckFailure, AckWhen};
use flotilla_store::TopicLevel;

use crate::config::{BrokerConfig, RaftDurability};
use crate::lead::pending_entry::AnswerWhen;
use crate::replica::Replica;

/// What the messages of a send ask for: the strongest of each dimension.
///
/// # Errors
/// A property that names no level.
pub fn asked_level(messages: &[v2::Message]) -> Result<(Option<AckLevel>, Option<FlushLevel>), String> {
    let (mut ack, mut flush) = (None, None);
    for message in messages {
        if let Some(text) = message.user_properties.get(ACK_PROPERTY) {
            let level: AckLevel = text.parse().map_err(|error| format!("property {ACK_PROPERTY}: {error}"))?;
            ack = ack.max(Some(level));
        }
        if let Some(text) = message.user_properties.get(FLUSH_PROPERTY) {
            let level: FlushLevel = text.parse().map_err(|error| format!("property {FLUSH_PROPERTY}: {error}"))?;
            flush = flush.max(Some(level));
        }
    }
    Ok((ack, flush))
}

/// The level that a topic gives: its own, else the group's.
pub fn level_of(config: &BrokerConfig, topic: TopicLevel) -> SendLevel {
    SendLevel { ack: topic.ack.unwrap_or(config.ack_level), flush: topic.flush.unwrap_or(config.flush_level) }
}

/// The level of what a send only completes or prepares, and of an operator's changes: as a send's, but never answered before it is
/// committed, because only then it is decided.
pub fn committed_level(level: SendLevel) -> SendLevel {
    SendLevel { ack: level.ack.max(AckLevel::Majority), ..level }
}

/// Refuses a level that cannot be given, or not now, before anything is stored.
///
/// # Errors
/// Why not.
pub fn check_level(replica: &Replica, level: SendLevel) -> Result<(), v2::Status> {
    if level.ack != AckLevel::Sync {
        return Ok(());
    }
    if let Some(text) = impossible(&replica.config.group, replica.voter_count(), Some(level.ack)) {
        return Err(status(Code::BadRequest, text));
    }
    let seen = replica.log.replication();
    if seen.in_sync.len() < seen.in_sync_min {
        let (count, needed) = (seen.in_sync.len(), seen.in_sync_min);
        let text = format!("not stored: {count} replicas keep up, ack level sync needs {needed}");
        return Err(status(Code::HaNotAvailable, text));
    }
    Ok(())
}

/// Why this group of brokers can never give a level, if so.
pub fn impossible(group: &str, replicas: usize, ack: Option<AckLevel>) -> Option<String> {
    (ack == Some(AckLevel::Sync) && replicas < 2)
        .then(|| format!("ack level sync needs at least two replicas, group '{group}' has {replicas}"))
}

/// When a send of that level is answered.
pub fn answer_when(durability: RaftDurability, level: SendLevel) -> AnswerWhen {
    // Where a replica confirms only what it has on disk, a commit is as good as any of the weaker promises.
    let is_synced = durability == RaftDurability::Fsync;
    match (level.ack, level.flush) {
        (AckLevel::Async, FlushLevel::Async) => AnswerWhen::Early { when: AckWhen::Appended, applied_suffices: true },
        (AckLevel::Async, FlushLevel::Sync) => {
            AnswerWhen::Early { when: AckWhen::LeaderDurable, applied_suffices: is_synced }
        }
        (AckLevel::Majority, FlushLevel::Sync) if !is_synced => AnswerWhen::Late(AckWhen::QuorumDurable),
        (AckLevel::Majority, _) => AnswerWhen::Applied,
        (AckLevel::Sync, flush) => AnswerWhen::Late(AckWhen::InSync { durable: flush == FlushLevel::Sync }),
    }
}

/// What is told of a message that is stored, but not as widely as was asked for.
pub fn shortfall_status(level: SendLevel, failure: &AckFailure) -> v2::Status {
    let (code, what) = match level.ack {
        AckLevel::Sync => (Code::SlavePersistenceTimeout, "every replica that was to have it"),
        AckLevel::Majority => (Code::MasterPersistenceTimeout, "the disks of a quorum"),
        AckLevel::Async => (Code::MasterPersistenceTimeout, "the leader's disk"),
    };
    status(code, format!("stored by a majority of the replicas, not known to be on {what}: {failure}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(properties: &[(&str, &str)]) -> v2::Message {
        let properties = properties.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        v2::Message { user_properties: properties.collect(), ..Default::default() }
    }

    #[test]
    fn a_batch_asks_for_the_strongest_that_one_of_its_messages_asks_for() {
        let batch = [
            message(&[]),
            message(&[("FLOTILLA_ACK", "async"), ("FLOTILLA_FLUSH", "SYNC")]),
            message(&[("FLOTILLA_ACK", "sync")]),
        ];
        assert_eq!(asked_level(&batch), Ok((Some(AckLevel::Sync), Some(FlushLevel::Sync))));
        assert_eq!(asked_level(&batch[..1]), Ok((None, None)));
        let error = asked_level(&[message(&[("FLOTILLA_ACK", "all")])]).expect_err("no level");
        assert_eq!(error, "property FLOTILLA_ACK: unknown ack level 'all'; async, majority, sync are allowed");
    }

    #[test]
    fn each_level_waits_for_its_watermark() {
        let at = |durability, ack, flush| answer_when(durability, SendLevel { ack, flush });
        let (fsync, os) = (RaftDurability::Fsync, RaftDurability::Os);
        let early = |when, applied_suffices| AnswerWhen::Early { when, applied_suffices };
        assert_eq!(at(fsync, AckLevel::Async, FlushLevel::Async), early(AckWhen::Appended, true));
        assert_eq!(at(fsync, AckLevel::Async, FlushLevel::Sync), early(AckWhen::LeaderDurable, true));
        assert_eq!(at(os, AckLevel::Async, FlushLevel::Sync), early(AckWhen::LeaderDurable, false));
        assert_eq!(at(fsync, AckLevel::Majority, FlushLevel::Sync), AnswerWhen::Applied);
        assert_eq!(at(os, AckLevel::Majority, FlushLevel::Async), AnswerWhen::Applied);
        assert_eq!(at(os, AckLevel::Majority, FlushLevel::Sync), AnswerWhen::Late(AckWhen::QuorumDurable));
        for durability in [fsync, os] {
            for (flush, durable) in [(FlushLevel::Async, false), (FlushLevel::Sync, true)] {
                let when = AnswerWhen::Late(AckWhen::InSync { durable });
                assert_eq!(at(durability, AckLevel::Sync, flush), when);
            }
        }
    }

    #[test]
    fn one_replica_cannot_promise_two_copies() {
        let config = BrokerConfig::default();
        assert!(impossible(&config.group, 1, Some(AckLevel::Sync)).is_some_and(|text| text.contains("has 1")));
        assert_eq!(impossible(&config.group, 1, Some(AckLevel::Majority)), None);
    }
}
