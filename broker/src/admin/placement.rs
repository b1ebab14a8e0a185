//! The broker group among others: its write permission, and topics that are spread over several groups.

use std::sync::Arc;
use std::time::Duration;

use flotilla_message::TopicName;
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_store::{Command, Outcome, TopicShare, TopicShares};

use super::topics::rejected;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried};
use crate::replica::Replica;

/// From this feature level on all replicas know these commands: they are older than the level is.
const LEVEL: u8 = 1;
/// A new group comes to its level within two looks of its leader.
const LEVEL_WAIT: Duration = Duration::from_secs(4);
/// From one look for it to the next.
const LEVEL_LOOK: Duration = Duration::from_millis(50);

/// Waits until entries of this kind mean the same to all replicas; else says why they may not.
async fn level_reached(replica: &Replica) -> Result<(), v2::Status> {
    let until = replica.runtime.now() + LEVEL_WAIT;
    while replica.store.feature_level() < LEVEL {
        if replica.runtime.now() >= until {
            let text = format!(
                "not done: the group's feature level is {}, this needs {LEVEL}; a replica is away, or runs an older program",
                replica.store.feature_level()
            );
            return Err(status(Code::HaNotAvailable, text));
        }
        replica.runtime.sleep(LEVEL_LOOK).await;
    }
    Ok(())
}

/// Takes the write permission of this broker group away, or gives it back.
pub struct SetWritePermission;

impl LeaderCall for SetWritePermission {
    type Request = admin::SetWritePermissionRequest;
    type Answer = admin::SetWritePermissionReply;
    const METHOD: &'static str = "SetWritePermission";

    fn is_idempotent(_: &admin::SetWritePermissionRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::SetWritePermissionRequest,
        attempt: Attempt,
    ) -> Tried<admin::SetWritePermissionReply> {
        let answer = |status, topics| admin::SetWritePermissionReply { status: Some(status), topics };
        if let Err(refusal) = level_reached(replica).await {
            return Tried::answer(answer(refusal, 0));
        }
        let command = Command::SetWritePermission { is_writable: request.writable };
        match replica.proposer.submit(attempt.term, command).await {
            Ok(settled) => Tried::answer(match settled.outcome {
                Outcome::WritePermissionSet { topics } => {
                    tracing::info!(writable = request.writable, topics, "write permission of the broker group");
                    answer(ok(), topics)
                }
                Outcome::Rejected(rejection) => answer(rejected(&rejection), 0),
                other => unreachable!("setting the write permission is not answered by {other:?}"),
            }),
            Err(error) => Tried::from_submit(error, |status| answer(status, 0)),
        }
    }

    fn refusal(_: &admin::SetWritePermissionRequest, status: v2::Status) -> admin::SetWritePermissionReply {
        admin::SetWritePermissionReply { status: Some(status), topics: 0 }
    }
}

/// Says which broker groups have which queues of a topic.
pub struct SetTopicShares;

impl LeaderCall for SetTopicShares {
    type Request = admin::SetTopicSharesRequest;
    type Answer = admin::SetTopicSharesReply;
    const METHOD: &'static str = "SetTopicShares";

    fn is_idempotent(_: &admin::SetTopicSharesRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        request: &admin::SetTopicSharesRequest,
        attempt: Attempt,
    ) -> Tried<admin::SetTopicSharesReply> {
        let refuse = |status| admin::SetTopicSharesReply { status: Some(status), shares: None };
        let name = match TopicName::try_from(request.name.as_str()) {
            Ok(name) => name,
            Err(error) => return Tried::answer(refuse(error.status())),
        };
        let shares = shares_of(&request.shares.clone().unwrap_or_default());
        if let Err(refusal) = level_reached(replica).await {
            return Tried::answer(refuse(refusal));
        }
        let command = Command::SetTopicShares { name: name.clone(), shares };
        match replica.proposer.submit(attempt.term, command).await {
            Ok(settled) => {
                let status = match settled.outcome {
                    Outcome::TopicSharesSet { .. } => ok(),
                    Outcome::Rejected(rejection) => rejected(&rejection),
                    other => unreachable!("setting shares is not answered by {other:?}"),
                };
                let shares = replica.store.topic_shares(&name).as_ref().map(told);
                Tried::answer(admin::SetTopicSharesReply { status: Some(status), shares })
            }
            Err(error) => Tried::from_submit(error, refuse),
        }
    }

    fn refusal(_: &admin::SetTopicSharesRequest, status: v2::Status) -> admin::SetTopicSharesReply {
        admin::SetTopicSharesReply { status: Some(status), shares: None }
    }
}

/// As the store has them. What they may be is its affair.
pub fn shares_of(shares: &admin::TopicShares) -> TopicShares {
    let share = |share: &admin::TopicShare| TopicShare {
        broker_group: share.broker_group.clone(),
        queue_count: share.queue_count,
    };
    TopicShares { version: shares.version, is_moving: shares.moving, shares: shares.shares.iter().map(share).collect() }
}

/// As operators are told.
pub fn told(shares: &TopicShares) -> admin::TopicShares {
    let share = |share: &TopicShare| admin::TopicShare {
        broker_group: share.broker_group.clone(),
        queue_count: share.queue_count,
    };
    admin::TopicShares {
        version: shares.version,
        moving: shares.is_moving,
        shares: shares.shares.iter().map(share).collect(),
    }
}
