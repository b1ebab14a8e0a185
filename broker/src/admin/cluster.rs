//! The broker group as one replica sees it, its state for checkers, and the handing over of leadership.

use std::sync::Arc;
use std::time::Duration;

use flotilla_message::TopicName;
use flotilla_proto::status::{Code, Coded, ok, status};
use flotilla_proto::{CallContext, admin, v2};
use flotilla_raft_log::{LogIndex, NodeId, Role, TransferError};

use super::levels;
use super::topics::topic_state;
use crate::cluster::view::OtherGroup;
use crate::config::ReadFrom;
use crate::lead::hand_over::hand_over;
use crate::lead::leader_call::{Attempt, LeaderCall, Tried, patience_ends};
use crate::metrics::HandOverCause;
use crate::produce::send::no_topic;
use crate::replica::Replica;

/// How long a hand-over may take when the caller does not say.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(2);

fn role(role: Role) -> admin::Role {
    match role {
        Role::Leader => admin::Role::Leader,
        Role::Follower => admin::Role::Follower,
        Role::Candidate => admin::Role::Candidate,
        Role::Learner => admin::Role::Learner,
    }
}

fn number(index: Option<LogIndex>) -> Option<u64> {
    index.map(|index| index.0)
}

/// This replica's view of the group.
pub fn cluster_status(replica: &Replica) -> admin::ClusterStatusReply {
    let seen = replica.log.status();
    let config = &replica.config;
    let known = replica.log.members();
    let nodes: Vec<NodeId> = match known.members.is_empty() {
        true => config.client_addresses().into_iter().map(|(node, _)| NodeId(node)).collect(),
        false => known.members.keys().copied().collect(),
    };
    let members = nodes.into_iter().map(|node| {
        let contact = replica.peers.contact(node);
        let (client_address, peer_address) = contact.map(|contact| (contact.client, contact.peer)).unwrap_or_default();
        admin::Member { node: node.0, client_address, peer_address, voter: seen.members.contains(&node) }
    });
    let mut reply = admin::ClusterStatusReply {
        status: Some(ok()),
        cluster: config.cluster.clone(),
        group: config.group.clone(),
        node: config.node,
        role: role(seen.role).into(),
        term: seen.term.0,
        leader: seen.leader.map_or(0, |leader| leader.0),
        can_write: seen.can_write,
        last_index: number(seen.last),
        committed_index: number(seen.committed),
        applied_index: number(seen.applied),
        members: members.collect(),
        integrity: Some(integrity(replica)),
        no_member: replica.no_member().unwrap_or_default(),
        incarnation: replica.log.incarnation().to_string(),
        write_wiped: replica.store.is_write_wiped(),
        read_from_any: config.read_from == ReadFrom::Any,
        other_groups: replica.cluster.groups().into_iter().map(other_group).collect(),
        ..Default::default()
    };
    levels::cluster(replica, &mut reply);
    reply
}

fn other_group(group: OtherGroup) -> admin::OtherGroup {
    let member = |(node, client_address)| admin::Member { node, client_address, ..Default::default() };
    admin::OtherGroup { group: group.name, members: group.replicas.into_iter().map(member).collect() }
}

fn integrity(replica: &Replica) -> admin::Integrity {
    let known = replica.log.integrity();
    let unreached = known.unreached.into_iter().map(|(node, reason)| admin::Unreached { node: node.0, reason });
    admin::Integrity {
        damaged_entries: known.damaged_entries,
        damaged_first: number(known.damaged_first),
        damaged_segments: known.damaged_segments,
        damages_found_total: known.damages_found_total,
        damages_mended_total: known.damages_mended_total,
        fit_to_lead: known.is_fit_to_lead,
        clock_off: known.is_clock_off,
        state_alarm: known.state_alarm.unwrap_or_default(),
        scrub_passes_total: known.scrub.passes_total,
        scrub_bytes_total: known.scrub.bytes_total,
        scrub_findings_total: known.scrub.findings_total,
        scrub_ended_ms: known.scrub.last_ended_wall_ms,
        unreached: unreached.collect(),
    }
}

/// This replica's own state; never forwarded.
pub async fn debug(replica: &Arc<Replica>, request: admin::DebugRequest) -> admin::DebugReply {
    let refuse = |status| admin::DebugReply { status: Some(status), state: None };
    let mut topics = Vec::new();
    if !request.without_queues {
        if request.topic.is_empty() {
            topics = replica.store.topics().iter().map(|info| topic_state(replica, &info.name, info)).collect();
        } else {
            let name = match TopicName::try_from(request.topic.as_str()) {
                Ok(name) => name,
                Err(error) => return refuse(error.status()),
            };
            match replica.store.topic(&name) {
                Some(info) => topics.push(topic_state(replica, &name, &info)),
                None => return refuse(no_topic(&name)),
            }
        }
    }
    let seen = replica.log.status();
    // It walks the whole state: not on the threads that serve.
    let store = replica.store.clone();
    let digest = replica.runtime.blocking(move || store.digest()).await;
    let state = admin::ReplicaState {
        node: replica.config.node,
        role: role(seen.role).into(),
        term: seen.term.0,
        leader: seen.leader.map_or(0, |leader| leader.0),
        last_index: number(seen.last),
        committed_index: number(seen.committed),
        applied_index: number(seen.applied),
        digest: digest.digest,
        digest_index: digest.applied,
        topics,
        cluster: replica.config.cluster.clone(),
        group: replica.config.group.clone(),
    };
    admin::DebugReply { status: Some(ok()), state: Some(state) }
}

/// Hands leadership to another replica.
pub struct TransferLeader;

impl LeaderCall for TransferLeader {
    type Request = admin::TransferLeaderRequest;
    type Answer = admin::TransferLeaderReply;
    const METHOD: &'static str = "TransferLeader";

    fn is_idempotent(_: &admin::TransferLeaderRequest) -> bool {
        // Repeated at the new leader it would move the lead once more, to somebody unasked.
        false
    }

    async fn execute(
        replica: &Arc<Replica>,
        context: &CallContext,
        request: &admin::TransferLeaderRequest,
        _attempt: Attempt,
    ) -> Tried<admin::TransferLeaderReply> {
        let answer = |leader: u64, status| admin::TransferLeaderReply { status: Some(status), leader };
        let target = (request.target != 0).then_some(NodeId(request.target));
        if target == Some(replica.node) {
            return Tried::answer(answer(replica.node.0, ok()));
        }
        let now = replica.runtime.now();
        let asked = match request.timeout_ms {
            0 => TRANSFER_TIMEOUT,
            ms => Duration::from_millis(ms),
        };
        let timeout = asked.min(patience_ends(context, now) - now);
        Tried::answer(match hand_over(replica, target, timeout, HandOverCause::Operator).await {
            Ok(leader) => answer(leader.0, ok()),
            Err(TransferError::NotLeader { leader }) => return Tried::NotExecuted { leader },
            Err(error @ TransferError::NoSuchVoter(_)) => answer(0, status(Code::BadRequest, error.to_string())),
            Err(error @ (TransferError::NoneCaughtUp | TransferError::NotFit(_))) => {
                answer(0, status(Code::PreconditionFailed, error.to_string()))
            }
            Err(error @ (TransferError::Timeout | TransferError::TargetGone(_))) => {
                answer(0, status(Code::ProxyTimeout, error.to_string()))
            }
            Err(error @ TransferError::Stopped) => answer(0, status(Code::HaNotAvailable, error.to_string())),
        })
    }

    fn refusal(_: &admin::TransferLeaderRequest, status: v2::Status) -> admin::TransferLeaderReply {
        admin::TransferLeaderReply { status: Some(status), ..Default::default() }
    }
}
