//! The operator calls that a broker serves on its client port.

use flotilla_runtime::BoxFuture;

use crate::status::not_implemented;
use crate::{CallContext, admin};

macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident $name:literal $request:ident $reply:ident;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::needless_update, reason = "some responses have nothing but a status")]
        fn $method(&self, context: CallContext, request: admin::$request) -> BoxFuture<'_, admin::$reply> {
            let _ = (context, request);
            let reply = admin::$reply { status: Some(not_implemented($name)), ..Default::default() };
            Box::pin(std::future::ready(reply))
        }
    )*};
}

/// The calls of `flotilla.admin.v1.Admin`. What an implementation does not provide answers
/// NOT_IMPLEMENTED.
pub trait Admin: Send + Sync + 'static {
    unary! {
        /// Makes a topic; the same one again is no error.
        create_topic "CreateTopic" CreateTopicRequest CreateTopicReply;
        /// Removes a topic and its queues.
        delete_topic "DeleteTopic" DeleteTopicRequest DeleteTopicReply;
        /// A topic and the bounds of its queues.
        describe_topic "DescribeTopic" DescribeTopicRequest DescribeTopicReply;
        /// All topics.
        list_topics "ListTopics" ListTopicsRequest ListTopicsReply;
        /// Makes a consumer group; the same one again is no error.
        create_group "CreateGroup" CreateGroupRequest CreateGroupReply;
        /// Removes a consumer group and its progress.
        delete_group "DeleteGroup" DeleteGroupRequest DeleteGroupReply;
        /// A consumer group and its progress.
        describe_group "DescribeGroup" DescribeGroupRequest DescribeGroupReply;
        /// All consumer groups.
        list_groups "ListGroups" ListGroupsRequest ListGroupsReply;
        /// The broker group as the asked replica sees it.
        cluster_status "ClusterStatus" ClusterStatusRequest ClusterStatusReply;
        /// State of the asked replica itself; never forwarded.
        debug "Debug" DebugRequest DebugReply;
        /// Hands leadership to another replica.
        transfer_leader "TransferLeader" TransferLeaderRequest TransferLeaderReply;
        /// Takes one step of a change of the group's members.
        change_replica "ChangeReplica" ChangeReplicaRequest ChangeReplicaReply;
        /// Takes the write permission of the broker group away, or gives it back.
        set_write_permission "SetWritePermission" SetWritePermissionRequest SetWritePermissionReply;
        /// Says which broker groups have which queues of a topic.
        set_topic_shares "SetTopicShares" SetTopicSharesRequest SetTopicSharesReply;
        /// Asks a producer that listens on this replica what became of a transaction of another broker group.
        ask_producer "AskProducer" AskProducerRequest AskProducerReply;
        /// The group's members as the leader sees them.
        list_replicas "ListReplicas" ListReplicasRequest ListReplicasReply;
        /// Has the group go on with the asked replica alone; never forwarded.
        recover_group "RecoverGroup" RecoverGroupRequest RecoverGroupReply;
        /// Copies the asked replica's data, tells of the newest copy, or ends it; never forwarded.
        backup "Backup" BackupRequest BackupReply;
        /// Changes a topic that is in use.
        update_topic "UpdateTopic" UpdateTopicRequest UpdateTopicReply;
        /// Changes a group that is in use.
        update_group "UpdateGroup" UpdateGroupRequest UpdateGroupReply;
        /// Moves a group to another place in a topic.
        reset_group "ResetGroup" ResetGroupRequest ResetGroupReply;
        /// What a group could not consume.
        list_dead_letters "ListDeadLetters" ListDeadLettersRequest ListDeadLettersReply;
        /// Delivers dead letters to their group again.
        resend_dead_letters "ResendDeadLetters" ResendDeadLettersRequest ResendDeadLettersReply;
        /// Half messages whose transaction is open.
        list_transactions "ListTransactions" ListTransactionsRequest ListTransactionsReply;
        /// Ends a transaction in its producer's place.
        resolve_transaction "ResolveTransaction" ResolveTransactionRequest ResolveTransactionReply;
        /// Looks for messages by place, time, key or id.
        find_messages "FindMessages" FindMessagesRequest FindMessagesReply;
        /// What became of a message in each group.
        trace_message "TraceMessage" TraceMessageRequest TraceMessageReply;
    }
}
