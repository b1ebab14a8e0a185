//! The list of unary calls that clients and servers build their adapters from.
//!
//! Each macro hands `method "Name" Request Response;` rows to the macro it is given. Those of the admin and namesrv services are for
//! adapters elsewhere, too.

/// Unary calls of `apache.rocketmq.v2.MessagingService`.
macro_rules! messaging_unary {
    ($with:ident) => {
        $with! {
            query_route "QueryRoute" QueryRouteRequest QueryRouteResponse;
            heartbeat "Heartbeat" HeartbeatRequest HeartbeatResponse;
            send_message "SendMessage" SendMessageRequest SendMessageResponse;
            query_assignment "QueryAssignment" QueryAssignmentRequest QueryAssignmentResponse;
            ack_message "AckMessage" AckMessageRequest AckMessageResponse;
            forward_message_to_dead_letter_queue "ForwardMessageToDeadLetterQueue"
                ForwardMessageToDeadLetterQueueRequest ForwardMessageToDeadLetterQueueResponse;
            update_offset "UpdateOffset" UpdateOffsetRequest UpdateOffsetResponse;
            get_offset "GetOffset" GetOffsetRequest GetOffsetResponse;
            query_offset "QueryOffset" QueryOffsetRequest QueryOffsetResponse;
            end_transaction "EndTransaction" EndTransactionRequest EndTransactionResponse;
            notify_client_termination "NotifyClientTermination"
                NotifyClientTerminationRequest NotifyClientTerminationResponse;
            change_invisible_duration "ChangeInvisibleDuration"
                ChangeInvisibleDurationRequest ChangeInvisibleDurationResponse;
            recall_message "RecallMessage" RecallMessageRequest RecallMessageResponse;
            sync_lite_subscription "SyncLiteSubscription" SyncLiteSubscriptionRequest SyncLiteSubscriptionResponse;
        }
    };
}

/// Calls of `flotilla.admin.v1.Admin`, all unary.
#[doc(hidden)]
#[macro_export]
macro_rules! admin_unary {
    ($with:ident) => {
        $with! {
            create_topic "CreateTopic" CreateTopicRequest CreateTopicReply;
            delete_topic "DeleteTopic" DeleteTopicRequest DeleteTopicReply;
            describe_topic "DescribeTopic" DescribeTopicRequest DescribeTopicReply;
            list_topics "ListTopics" ListTopicsRequest ListTopicsReply;
            create_group "CreateGroup" CreateGroupRequest CreateGroupReply;
            delete_group "DeleteGroup" DeleteGroupRequest DeleteGroupReply;
            describe_group "DescribeGroup" DescribeGroupRequest DescribeGroupReply;
            list_groups "ListGroups" ListGroupsRequest ListGroupsReply;
            cluster_status "ClusterStatus" ClusterStatusRequest ClusterStatusReply;
            debug "Debug" DebugRequest DebugReply;
            transfer_leader "TransferLeader" TransferLeaderRequest TransferLeaderReply;
            change_replica "ChangeReplica" ChangeReplicaRequest ChangeReplicaReply;
            set_write_permission "SetWritePermission" SetWritePermissionRequest SetWritePermissionReply;
            set_topic_shares "SetTopicShares" SetTopicSharesRequest SetTopicSharesReply;
            ask_producer "AskProducer" AskProducerRequest AskProducerReply;
            list_replicas "ListReplicas" ListReplicasRequest ListReplicasReply;
            recover_group "RecoverGroup" RecoverGroupRequest RecoverGroupReply;
            backup "Backup" BackupRequest BackupReply;
            update_topic "UpdateTopic" UpdateTopicRequest UpdateTopicReply;
            update_group "UpdateGroup" UpdateGroupRequest UpdateGroupReply;
            reset_group "ResetGroup" ResetGroupRequest ResetGroupReply;
            list_dead_letters "ListDeadLetters" ListDeadLettersRequest ListDeadLettersReply;
            resend_dead_letters "ResendDeadLetters" ResendDeadLettersRequest ResendDeadLettersReply;
            list_transactions "ListTransactions" ListTransactionsRequest ListTransactionsReply;
            resolve_transaction "ResolveTransaction" ResolveTransactionRequest ResolveTransactionReply;
            find_messages "FindMessages" FindMessagesRequest FindMessagesReply;
            trace_message "TraceMessage" TraceMessageRequest TraceMessageReply;
        }
    };
}

/// Unary calls of `flotilla.namesrv.v1.Namesrv`.
#[doc(hidden)]
#[macro_export]
macro_rules! namesrv_unary {
    ($with:ident) => {
        $with! {
            unregister "Unregister" UnregisterRequest UnregisterReply;
            query_topic_route "QueryTopicRoute" TopicRouteRequest TopicRouteReply;
            list_brokers "ListBrokers" ListBrokersRequest ListBrokersReply;
            list_groups "ListGroups" ListGroupsRequest ListGroupsReply;
            list_topics "ListTopics" ListTopicsRequest ListTopicsReply;
        }
    };
}

pub(crate) use {admin_unary, messaging_unary, namesrv_unary};

/// Full names of the services; a call's path is `/SERVICE/METHOD`.
pub(crate) const MESSAGING: &str = "apache.rocketmq.v2.MessagingService";
pub(crate) const ADMIN: &str = "flotilla.admin.v1.Admin";
pub(crate) const NAMESRV: &str = "flotilla.namesrv.v1.Namesrv";
pub(crate) const PEER: &str = "flotilla.peer.v1.Peer";
