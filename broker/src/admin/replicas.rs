//! The members of the broker group: taken in, given a vote, taken out, and how far each is.

use std::sync::Arc;
use std::time::Duration;

use flotilla_message::AckLevel;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_raft_log::{MemberError, NodeId};

use crate::config::{REPLICAS_MAX, split_host_port};
use crate::lead::leader_call::{Attempt, LeaderCall, Tried, patience_ends};
use crate::replica::Replica;

/// One step of a change may take so long.
const STEP_TIMEOUT: Duration = Duration::from_secs(5);

/// Takes one step of a change of members.
pub struct ChangeReplica;

impl LeaderCall for ChangeReplica {
    type Request = admin::ChangeReplicaRequest;
    type Answer = admin::ChangeReplicaReply;
    const METHOD: &'static str = "ChangeReplica";

    fn is_idempotent(_: &admin::ChangeReplicaRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &admin::ChangeReplicaRequest,
        _attempt: Attempt,
    ) -> Tried<admin::ChangeReplicaReply> {
        if let Some(refused) = refusal_of(replica, request) {
            return Tried::answer(admin::ChangeReplicaReply { status: Some(refused), ..Default::default() });
        }
        let (node, now) = (NodeId(request.node), replica.runtime.now());
        let is_member = replica.log.members().members.contains_key(&node);
        let timeout = STEP_TIMEOUT.min(patience_ends(context, now) - now);
        let log = &replica.log;
        let result = match request.change() {
            admin::ReplicaChange::Add => {
                if !request.peer_address.is_empty() {
                    replica.peers.introduce(node, &request.peer_address);
                }
                log.add_learner(node, timeout).await.map(|()| true)
            }
            admin::ReplicaChange::Promote => log.promote(node, timeout).await.map(|()| true),
            admin::ReplicaChange::Remove => log.remove_member(node, timeout).await,
            admin::ReplicaChange::Unspecified => unreachable!("refused above"),
        };
        let answer =
            |status, done, note: String| Tried::answer(admin::ChangeReplicaReply { status: Some(status), done, note });
        match result {
            Ok(done) if !is_member && request.change() == admin::ReplicaChange::Remove => {
                answer(ok(), done, format!("replica {node} is no member of the group"))
            }
            Ok(done) => answer(ok(), done, String::new()),
            Err(MemberError::NotLeader { leader }) => Tried::NotExecuted { leader },
            // To be gone on with.
            Err(error @ (MemberError::Busy | MemberError::HandedOver | MemberError::NotMade(_))) => {
                answer(ok(), false, error.to_string())
            }
            Err(error @ MemberError::Silent(_)) => {
                answer(status(Code::PreconditionFailed, error.to_string()), false, String::new())
            }
            Err(
                error @ (MemberError::NotNew(_)
                | MemberError::Unknown(..)
                | MemberError::NoMajority { .. }
                | MemberError::LastVoter(_)),
            ) => answer(status(Code::PreconditionFailed, error.to_string()), false, String::new()),
        }
    }

    fn refusal(_: &admin::ChangeReplicaRequest, status: v2::Status) -> admin::ChangeReplicaReply {
        admin::ChangeReplicaReply { status: Some(status), ..Default::default() }
    }
}

fn refusal_of(replica: &Replica, request: &admin::ChangeReplicaRequest) -> Option<v2::Status> {
    let bad = |text: String| Some(status(Code::BadRequest, text));
    if request.node == 0 {
        return bad("replica number is 0, at least 1 is needed".to_owned());
    }
    let members = replica.log.members();
    let is_member = members.members.contains_key(&NodeId(request.node));
    match request.change() {
        admin::ReplicaChange::Unspecified => bad("the change is none that this replica knows".to_owned()),
        admin::ReplicaChange::Add if is_member => None,
        admin::ReplicaChange::Add if members.members.len() >= REPLICAS_MAX => {
            bad(format!("the group has {} replicas, at most {REPLICAS_MAX} are allowed", members.members.len()))
        }
        admin::ReplicaChange::Add if split_host_port(&request.peer_address).is_none() => {
            bad(format!("peer address of replica {} is {:?}, host:port is needed", request.node, request.peer_address))
        }
        admin::ReplicaChange::Remove
            if replica.config.ack_level == AckLevel::Sync
                && members.voters.contains(&NodeId(request.node))
                && members.voters.len() <= 2 =>
        {
            Some(status(
                Code::PreconditionFailed,
                "the group answers at level sync, which needs at least two voters".to_owned(),
            ))
        }
        _ => None,
    }
}

/// The members as the leader sees them.
pub struct ListReplicas;

impl LeaderCall for ListReplicas {
    type Request = admin::ListReplicasRequest;
    type Answer = admin::ListReplicasReply;
    const METHOD: &'static str = "ListReplicas";

    fn is_idempotent(_: &admin::ListReplicasRequest) -> bool {
        true
    }

    async fn execute(
        replica: &Arc<Replica>,
        _context: &CallContext,
        _request: &admin::ListReplicasRequest,
        _attempt: Attempt,
    ) -> Tried<admin::ListReplicasReply> {
        let (members, stats, seen) = (replica.log.members(), replica.log.stats(), replica.log.status());
        let last = seen.last.map_or(0, |last| last.0);
        // Of a change that was committed a moment ago it may not have heard yet.
        replica.peers.update(&members);
        let row = |(node, member): (&NodeId, &flotilla_raft_log::Member)| {
            let contact = replica.peers.contact(*node);
            let (client, peer) = contact.map(|contact| (contact.client, contact.peer)).unwrap_or_default();
            let is_self = *node == replica.node;
            let known = stats.peers.iter().find(|peer| peer.node == *node);
            let matched = if is_self { seen.last } else { known.and_then(|peer| peer.matched) };
            let silent = known.and_then(|peer| peer.silent_for);
            admin::ReplicaRow {
                node: node.0,
                incarnation: if member.incarnation.is_known() { member.incarnation.to_string() } else { String::new() },
                client_address: client,
                peer_address: peer,
                voter: members.voters.contains(node),
                voter_wanted: member.is_voter_wanted,
                leader: is_self,
                matched_index: matched.map(|matched| matched.0),
                lag_entries: last.saturating_sub(matched.map_or(0, |matched| matched.0)),
                lag_bytes: if is_self { 0 } else { known.map_or(0, |peer| peer.lag_bytes) },
                silent_ms: silent.map(|silent| u64::try_from(silent.as_millis()).unwrap_or(u64::MAX)),
            }
        };
        Tried::answer(admin::ListReplicasReply {
            status: Some(ok()),
            group: replica.config.group.clone(),
            leader: replica.node.0,
            last_index: last,
            changing: members.is_joint || !members.is_committed,
            replicas: members.members.iter().map(row).collect(),
        })
    }

    fn refusal(_: &admin::ListReplicasRequest, status: v2::Status) -> admin::ListReplicasReply {
        admin::ListReplicasReply { status: Some(status), ..Default::default() }
    }
}
