//! Has the group go on with this replica alone, once its majority is gone for good: what that costs, and the order.

use flotilla_proto::admin;
use flotilla_proto::status::{Code, ok, status};
use flotilla_raft_log::{NodeId, RecoveryError, RecoveryPlan};

use crate::replica::Replica;

/// Answers for this replica; never forwarded.
pub async fn recover_group(replica: &Replica, request: admin::RecoverGroupRequest) -> admin::RecoverGroupReply {
    if !request.confirmed {
        return reply_of(replica, &replica.log.plan_recovery().await);
    }
    let refuse =
        |code, text: String| admin::RecoverGroupReply { status: Some(status(code, text)), ..Default::default() };
    let config = &replica.config;
    if (request.group.as_str(), request.node) != (config.group.as_str(), config.node) {
        return refuse(
            Code::BadRequest,
            format!(
                "confirmed is {}/{}, this is replica {}/{}",
                request.group, request.node, config.group, config.node
            ),
        );
    }
    match replica.log.order_recovery().await {
        Ok(plan) => {
            tracing::warn!(epoch = plan.epoch, "an operator has the group go on with this replica alone");
            admin::RecoverGroupReply { ordered: true, ..reply_of(replica, &plan) }
        }
        Err(RecoveryError::Refused(refusal)) => refuse(Code::PreconditionFailed, refusal.to_string()),
        Err(error @ RecoveryError::Io(_)) => refuse(Code::InternalError, error.to_string()),
    }
}

fn reply_of(replica: &Replica, plan: &RecoveryPlan) -> admin::RecoverGroupReply {
    let given_up = plan.given_up.iter().map(|(node, member)| {
        let contact = replica.peers.contact(NodeId(node.0));
        let (client_address, peer_address) = contact.map(|contact| (contact.client, contact.peer)).unwrap_or_default();
        admin::GivenUpReplica {
            node: node.0,
            incarnation: member.incarnation.to_string(),
            voter: member.is_voter,
            client_address,
            peer_address,
            answers: member.answered.is_some(),
            durable_index: member.answered.flatten().map(|(_, index)| index.0),
        }
    });
    admin::RecoverGroupReply {
        status: Some(ok()),
        group: replica.config.group.clone(),
        node: plan.node.0,
        incarnation: plan.incarnation.to_string(),
        epoch: plan.epoch.into(),
        last_term: plan.last.map_or(0, |(term, _)| term.0),
        last_index: plan.last.map(|(_, index)| index.0),
        durable_index: plan.durable.map(|index| index.0),
        committed_index: plan.committed.map(|index| index.0),
        given_up: given_up.collect(),
        refusal: plan.refusal.as_ref().map(ToString::to_string).unwrap_or_default(),
        ordered: false,
    }
}
