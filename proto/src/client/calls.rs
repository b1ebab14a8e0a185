//! The services as a caller sees them; the simulation hands in its own implementations.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::BoxFuture;
use futures::stream::{BoxStream, StreamExt};
use tokio::sync::mpsc;

use super::CallError;
use crate::{Metadata, PeerLink, Replies, Reply, UNARY_TIMEOUT, admin, namesrv, peer, v2};

/// How long a call may take and what metadata it carries.
#[derive(Debug, Clone)]
pub struct CallOptions {
    /// From the call to its answer; for streamed answers to their last element. Streams that stay
    /// open (telemetry, registration) get it for their beginning only.
    pub timeout: Duration,
    /// Shared by all calls of a client.
    pub metadata: Arc<Metadata>,
}

impl CallOptions {
    /// No metadata, this long.
    pub fn within(timeout: Duration) -> CallOptions {
        CallOptions { timeout, metadata: Arc::default() }
    }

    /// The same time with other metadata.
    #[must_use]
    pub fn with_metadata(mut self, metadata: Arc<Metadata>) -> CallOptions {
        self.metadata = metadata;
        self
    }

    /// The same metadata with another time.
    #[must_use]
    pub fn with_timeout(mut self, timeout: Duration) -> CallOptions {
        self.timeout = timeout;
        self
    }
}

impl Default for CallOptions {
    fn default() -> CallOptions {
        CallOptions::within(UNARY_TIMEOUT)
    }
}

/// The elements of a streamed answer; an error is the last one. Dropping it cancels the call.
pub type ReplyStream<T> = BoxStream<'static, Result<T, CallError>>;

/// A service's own stream as a caller sees it: for callers in the same process.
pub fn reply_stream<T: Send + 'static>(replies: Replies<T>) -> ReplyStream<T> {
    tokio_stream::wrappers::ReceiverStream::new(replies).map(Ok).boxed()
}

/// What a unary call comes to.
type Answer<T> = BoxFuture<'static, Result<T, CallError>>;

macro_rules! unary {
    ($module:ident, $answer:ident; $($method:ident $request:ident $response:ident;)*) => {$(
        #[doc = concat!("See the service's `", stringify!($method), "`.")]
        fn $method(&self, options: CallOptions, request: $module::$request) -> $answer<$module::$response>;
    )*};
}

type Replied<T> = Answer<Reply<T>>;

/// [`crate::Messaging`] from the other side.
pub trait MessagingCalls: Send + Sync + 'static {
    unary! { v2, Replied;
        query_route QueryRouteRequest QueryRouteResponse;
        heartbeat HeartbeatRequest HeartbeatResponse;
        send_message SendMessageRequest SendMessageResponse;
        query_assignment QueryAssignmentRequest QueryAssignmentResponse;
        ack_message AckMessageRequest AckMessageResponse;
        forward_message_to_dead_letter_queue ForwardMessageToDeadLetterQueueRequest ForwardMessageToDeadLetterQueueResponse;
        update_offset UpdateOffsetRequest UpdateOffsetResponse;
        get_offset GetOffsetRequest GetOffsetResponse;
        query_offset QueryOffsetRequest QueryOffsetResponse;
        end_transaction EndTransactionRequest EndTransactionResponse;
        notify_client_termination NotifyClientTerminationRequest NotifyClientTerminationResponse;
        change_invisible_duration ChangeInvisibleDurationRequest ChangeInvisibleDurationResponse;
        recall_message RecallMessageRequest RecallMessageResponse;
        sync_lite_subscription SyncLiteSubscriptionRequest SyncLiteSubscriptionResponse;
    }

    /// See [`crate::Messaging::receive_message`]. The options' time must exceed the long-polling time.
    fn receive_message(
        &self,
        options: CallOptions,
        request: v2::ReceiveMessageRequest,
    ) -> Answer<ReplyStream<v2::ReceiveMessageResponse>>;

    /// See [`crate::Messaging::pull_message`].
    fn pull_message(
        &self,
        options: CallOptions,
        request: v2::PullMessageRequest,
    ) -> Answer<ReplyStream<v2::PullMessageResponse>>;

    /// Opens the telemetry stream; it stays open until `commands` ends or the answers are dropped.
    fn telemetry(
        &self,
        options: CallOptions,
        commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> Answer<ReplyStream<v2::TelemetryCommand>>;
}

/// [`crate::Admin`] from the other side.
pub trait AdminCalls: Send + Sync + 'static {
    unary! { admin, Answer;
        create_topic CreateTopicRequest CreateTopicReply;
        delete_topic DeleteTopicRequest DeleteTopicReply;
        describe_topic DescribeTopicRequest DescribeTopicReply;
        list_topics ListTopicsRequest ListTopicsReply;
        create_group CreateGroupRequest CreateGroupReply;
        delete_group DeleteGroupRequest DeleteGroupReply;
        describe_group DescribeGroupRequest DescribeGroupReply;
        list_groups ListGroupsRequest ListGroupsReply;
        cluster_status ClusterStatusRequest ClusterStatusReply;
        debug DebugRequest DebugReply;
        transfer_leader TransferLeaderRequest TransferLeaderReply;
        change_replica ChangeReplicaRequest ChangeReplicaReply;
        set_write_permission SetWritePermissionRequest SetWritePermissionReply;
        set_topic_shares SetTopicSharesRequest SetTopicSharesReply;
        ask_producer AskProducerRequest AskProducerReply;
        list_replicas ListReplicasRequest ListReplicasReply;
        recover_group RecoverGroupRequest RecoverGroupReply;
        backup BackupRequest BackupReply;
        update_topic UpdateTopicRequest UpdateTopicReply;
        update_group UpdateGroupRequest UpdateGroupReply;
        reset_group ResetGroupRequest ResetGroupReply;
        list_dead_letters ListDeadLettersRequest ListDeadLettersReply;
        resend_dead_letters ResendDeadLettersRequest ResendDeadLettersReply;
        list_transactions ListTransactionsRequest ListTransactionsReply;
        resolve_transaction ResolveTransactionRequest ResolveTransactionReply;
        find_messages FindMessagesRequest FindMessagesReply;
        trace_message TraceMessageRequest TraceMessageReply;
    }
}

/// [`crate::Namesrv`] from the other side.
pub trait NamesrvCalls: Send + Sync + 'static {
    /// Opens the registration stream; it stays open until `rows` ends, the answers are dropped, or
    /// the namesrv ends it.
    fn register(
        &self,
        options: CallOptions,
        rows: mpsc::Receiver<namesrv::Registration>,
    ) -> Answer<ReplyStream<namesrv::RegistrationReply>>;

    unary! { namesrv, Answer;
        unregister UnregisterRequest UnregisterReply;
        query_topic_route TopicRouteRequest TopicRouteReply;
        list_brokers ListBrokersRequest ListBrokersReply;
        list_groups ListGroupsRequest ListGroupsReply;
        list_topics ListTopicsRequest ListTopicsReply;
    }
}

/// One open append stream. Dropping either half closes it; the end of `responses` means it broke.
#[derive(Debug)]
pub struct AppendLink {
    /// To the peer.
    pub requests: mpsc::Sender<Bytes>,
    /// From the peer.
    pub responses: mpsc::Receiver<Bytes>,
}

/// What became of a new connection to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence {
    /// Accepted: a process listens, well or not.
    Listening,
    /// Refused by the kernel of the peer's machine, at every address that its name stands for: no process listens.
    Refused,
    /// Neither in time, or another error.
    NoAnswer,
}

/// [`crate::Peer`] from the other side.
pub trait PeerCalls: Send + Sync + 'static {
    /// One question to the peer, on the control connection. A refusal by the peer is a
    /// [`CallError::Status`].
    fn call(&self, call: peer::PeerCall, timeout: Duration) -> Answer<Bytes>;

    /// Opens a replication stream on the data connection; done once the peer accepted it.
    fn open_append(&self, link: PeerLink, timeout: Duration) -> Answer<AppendLink>;

    /// Hands a client's call on, on the control connection.
    fn forward(&self, request: peer::ForwardRequest, timeout: Duration) -> Answer<peer::ForwardResponse>;

    /// Hands on a call that waits on purpose; on a connection of its own where there are several, so that however many wait
    /// they take no place of [`PeerCalls::forward`].
    fn forward_poll(&self, request: peer::ForwardRequest, timeout: Duration) -> Answer<peer::ForwardResponse> {
        self.forward(request, timeout)
    }

    /// Looks, with a connection of its own, whether a process listens at the peer's address. Nothing is sent.
    fn probe(&self, timeout: Duration) -> BoxFuture<'static, Presence> {
        // Knowing nothing is always true.
        let _ = timeout;
        Box::pin(std::future::ready(Presence::NoAnswer))
    }
}

/// Gives the means to call a `host:port`. Nothing is connected before the first call.
pub trait Connector: Send + Sync + 'static {
    /// The messaging service of a broker's client port.
    fn messaging(&self, address: &str) -> Arc<dyn MessagingCalls>;
    /// The operator calls of a broker's client port.
    fn admin(&self, address: &str) -> Arc<dyn AdminCalls>;
    /// A namesrv.
    fn namesrv(&self, address: &str) -> Arc<dyn NamesrvCalls>;
    /// A replica's peer port.
    fn peer(&self, address: &str) -> Arc<dyn PeerCalls>;

    /// Why others would refuse connections of this process and to it, as far as it can tell: its certificate has expired.
    fn own_problem(&self) -> Option<String> {
        None
    }
}
