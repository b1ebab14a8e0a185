//! The messaging service that producers and consumers call.

use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use super::single;
use crate::status::not_implemented;
use crate::{CallContext, MessageReplies, Replies, Reply, v2};

/// A provided body that answers "not implemented" by the RPC's name.
macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident $name:literal $request:ident $response:ident;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::needless_update, reason = "some responses have nothing but a status")]
        fn $method(&self, context: CallContext, request: v2::$request) -> BoxFuture<'_, Reply<v2::$response>> {
            let _ = (context, request);
            let body = v2::$response { status: Some(not_implemented($name)), ..Default::default() };
            Box::pin(std::future::ready(Reply::new(body)))
        }
    )*};
}

/// The calls of `apache.rocketmq.v2.MessagingService`. What an implementation does not provide
/// answers NOT_IMPLEMENTED.
pub trait Messaging: Send + Sync + 'static {
    unary! {
        /// Which queues a topic has and where they are served.
        query_route "QueryRoute" QueryRouteRequest QueryRouteResponse;
        /// Keeps a client registered.
        heartbeat "Heartbeat" HeartbeatRequest HeartbeatResponse;
        /// Stores messages of one topic. The reply's metadata names the place of each
        /// ([`crate::metadata::ACK_PLACE`]).
        send_message "SendMessage" SendMessageRequest SendMessageResponse;
        /// Which queues a push consumer shall receive from.
        query_assignment "QueryAssignment" QueryAssignmentRequest QueryAssignmentResponse;
        /// Ends deliveries.
        ack_message "AckMessage" AckMessageRequest AckMessageResponse;
        /// Gives up on a message.
        forward_message_to_dead_letter_queue "ForwardMessageToDeadLetterQueue"
            ForwardMessageToDeadLetterQueueRequest ForwardMessageToDeadLetterQueueResponse;
        /// Sets a group's committed offset.
        update_offset "UpdateOffset" UpdateOffsetRequest UpdateOffsetResponse;
        /// A group's committed offset.
        get_offset "GetOffset" GetOffsetRequest GetOffsetResponse;
        /// First, last or time-based offset of a queue.
        query_offset "QueryOffset" QueryOffsetRequest QueryOffsetResponse;
        /// Commits or rolls back a half message.
        end_transaction "EndTransaction" EndTransactionRequest EndTransactionResponse;
        /// A client says good-bye.
        notify_client_termination "NotifyClientTermination"
            NotifyClientTerminationRequest NotifyClientTerminationResponse;
        /// Changes how long a received message stays hidden.
        change_invisible_duration "ChangeInvisibleDuration"
            ChangeInvisibleDurationRequest ChangeInvisibleDurationResponse;
        /// Takes back a delayed message.
        recall_message "RecallMessage" RecallMessageRequest RecallMessageResponse;
        /// Changes a client's set of lite topics.
        sync_lite_subscription "SyncLiteSubscription" SyncLiteSubscriptionRequest SyncLiteSubscriptionResponse;
    }

    /// Takes messages for a limited time, waiting for some if there are none. The future may wait
    /// as long as the poll does: response headers leave before it is done, so no transport timer
    /// cuts the end of a poll short. The stream must end before the context's deadline.
    fn receive_message(
        &self,
        context: CallContext,
        request: v2::ReceiveMessageRequest,
    ) -> BoxFuture<'_, MessageReplies<v2::ReceiveMessageResponse>> {
        let _ = (context, request);
        let content = v2::receive_message_response::Content::Status(not_implemented("ReceiveMessage"));
        let response = v2::ReceiveMessageResponse { content: Some(content) };
        Box::pin(std::future::ready(single(response).into()))
    }

    /// Reads a queue from an offset. As [`Messaging::receive_message`] it may wait.
    fn pull_message(
        &self,
        context: CallContext,
        request: v2::PullMessageRequest,
    ) -> BoxFuture<'_, MessageReplies<v2::PullMessageResponse>> {
        let _ = (context, request);
        let content = v2::pull_message_response::Content::Status(not_implemented("PullMessage"));
        let response = v2::PullMessageResponse { content: Some(content) };
        Box::pin(std::future::ready(single(response).into()))
    }

    /// Settings from client to server and back, and the server's commands. Returns at once; response
    /// headers leave then. `commands` ends when the client closed its side or went away; the call
    /// ends when the implementation drops its sender.
    fn telemetry(
        &self,
        context: CallContext,
        commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> Replies<v2::TelemetryCommand> {
        let _ = (context, commands);
        single(v2::TelemetryCommand { status: Some(not_implemented("Telemetry")), command: None })
    }
}
