//! The messaging service of a replica: what is answered here, and what only the leader can do.

use std::sync::Arc;

use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, MessageReplies, Messaging, Replies, Reply, v2};
use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use super::answer_room::AnswerRoom;
use super::clients::Client;
use super::names;
use super::query::{QueryAssignment, QueryRoute};
use super::telemetry;
use super::unread::UnreadAnswer;
use crate::cluster::pass_on::{AbroadCall, is_unavailable, meant_for, pass_on};
use crate::consume::ack::{AckMessage, ChangeInvisibleDuration};
use crate::consume::farewell;
use crate::consume::give_up::ForwardToDeadLetters;
use crate::consume::offsets::{GetOffset, QueryOffset, UpdateOffset};
use crate::consume::pull::{self, PullMessage};
use crate::consume::receipt_handle::ReceiptHandle;
use crate::consume::receive::{self, ReceiveMessage};
use crate::consume::replica_read;
use crate::lead::leader_call::{LeaderCall, lead};
use crate::produce::end_transaction::EndTransaction;
use crate::produce::held_handle::HeldHandle;
use crate::produce::recall::RecallMessage;
use crate::produce::send::{SendMessage, owner_elsewhere, send_elsewhere};
use crate::replica::Replica;

/// The messaging service of a replica.
pub struct Front {
    replica: Arc<Replica>,
}

impl Front {
    /// Serves the replica's clients.
    pub fn new(replica: Arc<Replica>) -> Front {
        Front { replica }
    }
}

impl Front {
    /// Stores messages by this group, or by another one while this one has no leader.
    async fn send(&self, context: CallContext, request: v2::SendMessageRequest) -> Reply<v2::SendMessageResponse> {
        let replica = &self.replica;
        if !SendMessage::gives_way(replica, &context, &request) {
            // Whether this group has a leader is of no concern to a message that belongs to another one.
            return match owner_elsewhere(replica, &context, &request) {
                Some(owner) => pass_on::<SendMessage>(replica, &owner, &context, &request).await,
                None => lead::<SendMessage>(replica, context, request).await,
            };
        }
        if replica.is_leaderless()
            && let Some(reply) = send_elsewhere(replica, &context, &request).await
        {
            return reply;
        }
        let reply = lead::<SendMessage>(replica, context.clone(), request.clone()).await;
        // Surely not stored.
        if !is_unavailable(reply.body.status.as_ref()) {
            return reply;
        }
        match send_elsewhere(replica, &context, &request).await {
            Some(reply) => reply,
            // There is no other place for it: it waits here for the rest of its time.
            None => lead::<SendMessage>(replica, meant_for(context, &replica.config.group), request).await,
        }
    }

    /// Has the broker group execute a call to which its handle belongs, wherever that is.
    async fn by_handle<C: AbroadCall>(
        &self,
        group: Option<String>,
        context: CallContext,
        request: C::Request,
    ) -> Reply<C::Answer> {
        let replica = &self.replica;
        match group.filter(|group| *group != replica.config.group && replica.cluster.group(group).is_some()) {
            Some(group) => pass_on::<C>(replica, &group, &context, &request).await,
            None => lead::<C>(replica, context, request).await,
        }
    }
}

/// A stream of what is all there already.
fn replies<T>(responses: Vec<T>) -> MessageReplies<T> {
    let (sender, replies) = mpsc::channel(responses.len().max(1));
    for response in responses {
        // Cannot fail: there is room for all, and the receiver is right here.
        let _ = sender.try_send(response);
    }
    replies.into()
}

/// The same, of which the messages count as unread until all is taken.
fn unread_replies<T: prost::Message>(
    responses: Vec<T>,
    is_message: impl Fn(&T) -> bool,
    answer: Arc<UnreadAnswer>,
) -> MessageReplies<T> {
    let messages = responses.iter().filter(|response| is_message(response));
    let bytes: usize = messages.map(|message| size_of::<T>() + message.encoded_len()).sum();
    answer.settle(bytes as u64);
    replies(responses).keeping(answer)
}

/// The broker group that a receipt names, if it is one and names any.
fn receipt_group(handle: &str) -> Option<String> {
    ReceiptHandle::from_text(handle).ok()?.broker_group
}

/// The broker group that a transaction id or a recall handle names, if it is one.
fn held_group(handle: &str) -> Option<String> {
    Some(HeldHandle::from_text(handle).ok()?.broker_group)
}

impl Messaging for Front {
    fn query_route(
        &self,
        context: CallContext,
        request: v2::QueryRouteRequest,
    ) -> BoxFuture<'_, Reply<v2::QueryRouteResponse>> {
        Box::pin(async move {
            match QueryRoute::answer_here(&self.replica, &context, &request).await {
                Some(answer) => answer.into(),
                // It may have been made a moment ago: the leader knows.
                None => lead::<QueryRoute>(&self.replica, context, request).await,
            }
        })
    }

    fn heartbeat(
        &self,
        context: CallContext,
        request: v2::HeartbeatRequest,
    ) -> BoxFuture<'_, Reply<v2::HeartbeatResponse>> {
        let status = match &context.client_id {
            None => status(Code::ClientIdRequired, "metadata x-mq-client-id is missing"),
            Some(client_id) => {
                let group = names::group(&context, request.group.as_ref()).ok();
                let client = Client {
                    language: context.language.clone(),
                    client_type: request.client_type(),
                    group: group.map(|group| group.to_string()).unwrap_or_default(),
                    topics: Vec::new(),
                    seen_at: self.replica.runtime.now(),
                };
                self.replica.clients.heard(client_id, client);
                ok()
            }
        };
        Box::pin(std::future::ready(v2::HeartbeatResponse { status: Some(status) }.into()))
    }

    fn send_message(
        &self,
        context: CallContext,
        request: v2::SendMessageRequest,
    ) -> BoxFuture<'_, Reply<v2::SendMessageResponse>> {
        Box::pin(async move {
            match self.replica.quotas.send(&context, &request) {
                Ok(_shares) => self.send(context, request).await,
                Err(status) => SendMessage::refusal(&request, status).into(),
            }
        })
    }

    fn query_assignment(
        &self,
        context: CallContext,
        request: v2::QueryAssignmentRequest,
    ) -> BoxFuture<'_, Reply<v2::QueryAssignmentResponse>> {
        Box::pin(async move {
            match QueryAssignment::answer_here(&self.replica, &context, &request).await {
                Some(answer) => answer.into(),
                None => lead::<QueryAssignment>(&self.replica, context, request).await,
            }
        })
    }

    fn receive_message(
        &self,
        context: CallContext,
        mut request: v2::ReceiveMessageRequest,
    ) -> BoxFuture<'_, MessageReplies<v2::ReceiveMessageResponse>> {
        Box::pin(async move {
            let _shares = match self.replica.quotas.poll(&context, request.group.as_ref()) {
                Ok(shares) => shares,
                Err(status) => return replies(ReceiveMessage::refusal(&request, status).responses),
            };
            let answer = match self.replica.unread.open(&context) {
                Ok(answer) => answer,
                Err(status) => return replies(ReceiveMessage::refusal(&request, status).responses),
            };
            receive::name_attempt(&mut request, &self.replica.runtime);
            let room = AnswerRoom::Here(answer.clone());
            let reply = room.of(lead::<ReceiveMessage>(&self.replica, context, request)).await;
            unread_replies(reply.body.responses, receive::is_message, answer)
        })
    }

    fn pull_message(
        &self,
        context: CallContext,
        request: v2::PullMessageRequest,
    ) -> BoxFuture<'_, MessageReplies<v2::PullMessageResponse>> {
        Box::pin(async move {
            let _shares = match self.replica.quotas.poll(&context, request.group.as_ref()) {
                Ok(shares) => shares,
                Err(status) => return replies(PullMessage::refusal(&request, status).responses),
            };
            let answer = match self.replica.unread.open(&context) {
                Ok(answer) => answer,
                Err(status) => return replies(PullMessage::refusal(&request, status).responses),
            };
            let pulled = AnswerRoom::Here(answer.clone()).of(replica_read::pull(&self.replica, context, request)).await;
            unread_replies(pulled.responses, pull::is_message, answer)
        })
    }

    fn update_offset(
        &self,
        context: CallContext,
        request: v2::UpdateOffsetRequest,
    ) -> BoxFuture<'_, Reply<v2::UpdateOffsetResponse>> {
        Box::pin(lead::<UpdateOffset>(&self.replica, context, request))
    }

    fn get_offset(
        &self,
        context: CallContext,
        request: v2::GetOffsetRequest,
    ) -> BoxFuture<'_, Reply<v2::GetOffsetResponse>> {
        Box::pin(lead::<GetOffset>(&self.replica, context, request))
    }

    fn query_offset(
        &self,
        context: CallContext,
        request: v2::QueryOffsetRequest,
    ) -> BoxFuture<'_, Reply<v2::QueryOffsetResponse>> {
        Box::pin(lead::<QueryOffset>(&self.replica, context, request))
    }

    fn ack_message(
        &self,
        context: CallContext,
        request: v2::AckMessageRequest,
    ) -> BoxFuture<'_, Reply<v2::AckMessageResponse>> {
        let group = request.entries.first().and_then(|entry| receipt_group(&entry.receipt_handle));
        Box::pin(self.by_handle::<AckMessage>(group, context, request))
    }

    fn forward_message_to_dead_letter_queue(
        &self,
        context: CallContext,
        request: v2::ForwardMessageToDeadLetterQueueRequest,
    ) -> BoxFuture<'_, Reply<v2::ForwardMessageToDeadLetterQueueResponse>> {
        let group = receipt_group(&request.receipt_handle);
        Box::pin(self.by_handle::<ForwardToDeadLetters>(group, context, request))
    }

    fn change_invisible_duration(
        &self,
        context: CallContext,
        request: v2::ChangeInvisibleDurationRequest,
    ) -> BoxFuture<'_, Reply<v2::ChangeInvisibleDurationResponse>> {
        let group = receipt_group(&request.receipt_handle);
        Box::pin(self.by_handle::<ChangeInvisibleDuration>(group, context, request))
    }

    fn recall_message(
        &self,
        context: CallContext,
        request: v2::RecallMessageRequest,
    ) -> BoxFuture<'_, Reply<v2::RecallMessageResponse>> {
        let group = held_group(&request.recall_handle);
        Box::pin(self.by_handle::<RecallMessage>(group, context, request))
    }

    fn end_transaction(
        &self,
        context: CallContext,
        request: v2::EndTransactionRequest,
    ) -> BoxFuture<'_, Reply<v2::EndTransactionResponse>> {
        let group = held_group(&request.transaction_id);
        Box::pin(self.by_handle::<EndTransaction>(group, context, request))
    }

    fn notify_client_termination(
        &self,
        context: CallContext,
        request: v2::NotifyClientTerminationRequest,
    ) -> BoxFuture<'_, Reply<v2::NotifyClientTerminationResponse>> {
        let said = farewell::say(self.replica.clone(), context, request);
        Box::pin(async move {
            said.await;
            v2::NotifyClientTerminationResponse { status: Some(ok()) }.into()
        })
    }

    fn telemetry(
        &self,
        context: CallContext,
        commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> Replies<v2::TelemetryCommand> {
        telemetry::open(&self.replica, context, commands)
    }
}
