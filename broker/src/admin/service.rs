//! The admin service of a replica.

use std::sync::Arc;

use flotilla_proto::{Admin, CallContext, admin};
use flotilla_runtime::BoxFuture;

use super::{
    backup, cluster, dead_letters, groups, messages, placement, positions, recovery, replicas, topics, transactions,
};
use crate::duty::check;
use crate::lead::leader_call::{LeaderCall, lead};
use crate::replica::Replica;

/// The admin service of a replica.
pub struct AdminService {
    replica: Arc<Replica>,
}

impl AdminService {
    /// Serves the replica's operators.
    pub fn new(replica: Arc<Replica>) -> AdminService {
        AdminService { replica }
    }

    fn lead<C: LeaderCall>(&self, context: CallContext, request: C::Request) -> BoxFuture<'_, C::Answer> {
        Box::pin(async move { lead::<C>(&self.replica, context, request).await.body })
    }
}

/// Calls that the leader executes, reads of the catalog included: who has just made a topic finds it on any replica.
macro_rules! led {
    ($($method:ident $call:ty, $request:ident $reply:ident;)*) => {$(
        fn $method(&self, context: CallContext, request: admin::$request) -> BoxFuture<'_, admin::$reply> {
            self.lead::<$call>(context, request)
        }
    )*};
}

impl Admin for AdminService {
    led! {
        create_topic topics::CreateTopic, CreateTopicRequest CreateTopicReply;
        delete_topic topics::DeleteTopic, DeleteTopicRequest DeleteTopicReply;
        describe_topic topics::DescribeTopic, DescribeTopicRequest DescribeTopicReply;
        list_topics topics::ListTopics, ListTopicsRequest ListTopicsReply;
        create_group groups::CreateGroup, CreateGroupRequest CreateGroupReply;
        delete_group groups::DeleteGroup, DeleteGroupRequest DeleteGroupReply;
        describe_group groups::DescribeGroup, DescribeGroupRequest DescribeGroupReply;
        list_groups groups::ListGroups, ListGroupsRequest ListGroupsReply;
        transfer_leader cluster::TransferLeader, TransferLeaderRequest TransferLeaderReply;
        change_replica replicas::ChangeReplica, ChangeReplicaRequest ChangeReplicaReply;
        set_write_permission placement::SetWritePermission, SetWritePermissionRequest SetWritePermissionReply;
        set_topic_shares placement::SetTopicShares, SetTopicSharesRequest SetTopicSharesReply;
        list_replicas replicas::ListReplicas, ListReplicasRequest ListReplicasReply;
        update_topic topics::UpdateTopic, UpdateTopicRequest UpdateTopicReply;
        update_group groups::UpdateGroup, UpdateGroupRequest UpdateGroupReply;
        reset_group positions::ResetGroup, ResetGroupRequest ResetGroupReply;
        list_dead_letters dead_letters::ListDeadLetters, ListDeadLettersRequest ListDeadLettersReply;
        resend_dead_letters dead_letters::ResendDeadLetters, ResendDeadLettersRequest ResendDeadLettersReply;
        list_transactions transactions::ListTransactions, ListTransactionsRequest ListTransactionsReply;
        resolve_transaction transactions::ResolveTransaction, ResolveTransactionRequest ResolveTransactionReply;
        find_messages messages::FindMessages, FindMessagesRequest FindMessagesReply;
        trace_message messages::TraceMessage, TraceMessageRequest TraceMessageReply;
    }

    fn cluster_status(
        &self,
        _context: CallContext,
        _request: admin::ClusterStatusRequest,
    ) -> BoxFuture<'_, admin::ClusterStatusReply> {
        Box::pin(std::future::ready(cluster::cluster_status(&self.replica)))
    }

    fn recover_group(
        &self,
        _context: CallContext,
        request: admin::RecoverGroupRequest,
    ) -> BoxFuture<'_, admin::RecoverGroupReply> {
        Box::pin(recovery::recover_group(&self.replica, request))
    }

    fn backup(&self, context: CallContext, request: admin::BackupRequest) -> BoxFuture<'_, admin::BackupReply> {
        Box::pin(backup::backup(&self.replica, context, request))
    }

    fn ask_producer(
        &self,
        _context: CallContext,
        request: admin::AskProducerRequest,
    ) -> BoxFuture<'_, admin::AskProducerReply> {
        Box::pin(async move {
            let status = check::hear(&self.replica, request.turn, request.question).await;
            admin::AskProducerReply { status: Some(status) }
        })
    }

    fn debug(&self, _context: CallContext, request: admin::DebugRequest) -> BoxFuture<'_, admin::DebugReply> {
        Box::pin(cluster::debug(&self.replica, request))
    }
}
