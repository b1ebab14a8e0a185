//! How long a topic keeps messages, as operators set and see it.

use std::sync::Arc;

use flotilla_message::TopicName;
use flotilla_proto::status::{Code, status};
use flotilla_proto::{admin, v2};
use flotilla_raft_log::Term;
use flotilla_store::{Command, Outcome, TopicInfo};

use crate::lead::proposer::SubmitError;
use crate::replica::Replica;

/// Shortest time that a topic may keep messages, ms: the duty that lets them go looks once a second.
const RETENTION_MS_MIN: u64 = 1_000;

/// A time that was asked for; 0: as long as the log does. A log is one for all its topics: what goes from it goes for all
/// of them, so none can be kept longer.
pub fn checked(replica: &Replica, asked_ms: u64) -> Result<u64, v2::Status> {
    let log_ms = replica.config.retention_ms;
    if asked_ms == 0 || (RETENTION_MS_MIN..=log_ms).contains(&asked_ms) {
        return Ok(asked_ms);
    }
    let text = if asked_ms < RETENTION_MS_MIN {
        format!("a topic cannot keep messages for {asked_ms} ms; at least {RETENTION_MS_MIN} ms are needed")
    } else {
        format!(
            "a topic cannot keep messages for {asked_ms} ms: the log, which is one for all topics, keeps them for {log_ms} \
             ms (retention_ms of the brokers); raise that first"
        )
    };
    Err(status(Code::BadRequest, text))
}

/// Gives a topic that is there the time that was asked for.
pub async fn set(
    replica: &Arc<Replica>,
    term: Term,
    name: &TopicName,
    asked_ms: u64,
) -> Result<Result<(), Outcome>, SubmitError> {
    let retention_ms = Some(asked_ms).filter(|ms| *ms > 0);
    if replica.store.topic(name).is_some_and(|info| info.retention_ms == retention_ms) {
        return Ok(Ok(()));
    }
    let settled = replica.settle(term, Command::SetTopicRetention { name: name.clone(), retention_ms }).await?;
    Ok(match settled.outcome {
        Outcome::TopicRetentionSet => Ok(()),
        other => Err(other),
    })
}

/// The time in force, as `describe` shows it: the log's if that was made shorter since.
pub fn describe(replica: &Replica, info: &TopicInfo, reply: &mut admin::DescribeTopicReply) {
    let log_ms = replica.config.retention_ms;
    reply.retention_ms = info.retention_ms.unwrap_or(log_ms).min(log_ms);
    reply.retention_is_own = info.retention_ms.is_some();
}
