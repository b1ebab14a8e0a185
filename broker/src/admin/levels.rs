//! The level of a topic's sends, as operators set and see it.

use std::sync::Arc;

use flotilla_message::TopicName;
use flotilla_proto::status::{Code, Coded, status};
use flotilla_proto::{admin, v2};
use flotilla_raft_log::Term;
use flotilla_store::{Command, Outcome, TopicInfo, TopicLevel};

use crate::lead::proposer::SubmitError;
use crate::produce::level::{impossible, level_of};
use crate::replica::Replica;

/// What a request says of the level; `None` if it says nothing.
pub fn asked(replica: &Replica, request: &admin::CreateTopicRequest) -> Result<Option<TopicLevel>, v2::Status> {
    fn read<T: std::str::FromStr<Err: Coded>>(text: &str) -> Result<Option<T>, v2::Status> {
        match text {
            "" => Ok(None),
            text => text.parse().map(Some).map_err(|error: T::Err| error.status()),
        }
    }
    let level = TopicLevel { ack: read(&request.ack)?, flush: read(&request.flush)? };
    if let Some(text) = impossible(&replica.config.group, replica.voter_count(), level.ack) {
        return Err(status(Code::BadRequest, text));
    }
    Ok(Some(level).filter(|level| *level != TopicLevel::default()))
}

/// Gives a topic that is there the level that was asked for. What was not named stays as it is.
pub async fn set(
    replica: &Arc<Replica>,
    term: Term,
    name: &TopicName,
    asked: TopicLevel,
) -> Result<Result<(), Outcome>, SubmitError> {
    let now = replica.store.topic(name).map(|info| info.level).unwrap_or_default();
    let level = TopicLevel { ack: asked.ack.or(now.ack), flush: asked.flush.or(now.flush) };
    if level == now {
        return Ok(Ok(()));
    }
    let settled = replica.settle(term, Command::SetTopicLevel { name: name.clone(), level }).await?;
    Ok(match settled.outcome {
        Outcome::TopicLevelSet => Ok(()),
        other => Err(other),
    })
}

/// The level in force, as `describe` shows it.
pub fn describe(replica: &Replica, info: &TopicInfo, reply: &mut admin::DescribeTopicReply) {
    let level = level_of(&replica.config, info.level);
    (reply.ack, reply.flush) = (level.ack.to_string(), level.flush.to_string());
    reply.level_is_own = info.level != TopicLevel::default();
}

/// What `cluster status` says of acknowledgements.
pub fn cluster(replica: &Replica, reply: &mut admin::ClusterStatusReply) {
    let config = &replica.config;
    reply.ack = config.ack_level.to_string();
    reply.flush = config.flush_level.to_string();
    reply.raft_durability = config.raft_durability.to_string();
    reply.lost_messages = replica.log.lost_tail().messages;
    reply.feature_level = replica.store.feature_level().into();
    reply.feature_level_max = replica.config.feature_level_max.into();
    if replica.leadership.local_term().is_none() {
        return;
    }
    let seen = replica.log.replication();
    reply.in_sync = seen.in_sync.iter().map(|node| node.0).collect();
    reply.followers = seen
        .followers
        .iter()
        .map(|(node, marks)| admin::FollowerMarks {
            node: node.0,
            matched_index: marks.matched.map(|index| index.0),
            durable_index: marks.durable.map(|index| index.0),
            in_sync: marks.is_in_sync,
            lag_entries: marks.lag_entries,
            lag_bytes: marks.lag_bytes,
            lag_ms: marks.lag_ms,
        })
        .collect();
}
