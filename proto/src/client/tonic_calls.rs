//! The message-level traits of a client port or a namesrv over one connection.

use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use super::tonic_link::TonicLink;
use super::{AdminCalls, CallError, CallOptions, MessagingCalls, NamesrvCalls, ReplyStream};
use crate::rpcs::{admin_unary, messaging_unary, namesrv_unary};
use crate::{Reply, admin, namesrv, v2};

type Answer<T> = BoxFuture<'static, Result<T, CallError>>;

macro_rules! messaging_methods {
    ($($method:ident $name:literal $request:ident $response:ident;)*) => {$(
        fn $method(&self, options: CallOptions, request: v2::$request) -> Answer<Reply<v2::$response>> {
            Box::pin(self.unary(concat!("/apache.rocketmq.v2.MessagingService/", $name), options, request))
        }
    )*};
}

impl MessagingCalls for TonicLink {
    messaging_unary!(messaging_methods);

    fn receive_message(
        &self,
        options: CallOptions,
        request: v2::ReceiveMessageRequest,
    ) -> Answer<ReplyStream<v2::ReceiveMessageResponse>> {
        Box::pin(self.server_stream("/apache.rocketmq.v2.MessagingService/ReceiveMessage", options, request))
    }

    fn pull_message(
        &self,
        options: CallOptions,
        request: v2::PullMessageRequest,
    ) -> Answer<ReplyStream<v2::PullMessageResponse>> {
        Box::pin(self.server_stream("/apache.rocketmq.v2.MessagingService/PullMessage", options, request))
    }

    fn telemetry(
        &self,
        options: CallOptions,
        commands: mpsc::Receiver<v2::TelemetryCommand>,
    ) -> Answer<ReplyStream<v2::TelemetryCommand>> {
        Box::pin(self.bidi_stream("/apache.rocketmq.v2.MessagingService/Telemetry", options, commands))
    }
}

macro_rules! admin_methods {
    ($($method:ident $name:literal $request:ident $reply:ident;)*) => {$(
        fn $method(&self, options: CallOptions, request: admin::$request) -> Answer<admin::$reply> {
            let call = self.unary(concat!("/flotilla.admin.v1.Admin/", $name), options, request);
            Box::pin(async move { Ok(call.await?.body) })
        }
    )*};
}

impl AdminCalls for TonicLink {
    admin_unary!(admin_methods);
}

macro_rules! namesrv_methods {
    ($($method:ident $name:literal $request:ident $reply:ident;)*) => {$(
        fn $method(&self, options: CallOptions, request: namesrv::$request) -> Answer<namesrv::$reply> {
            let call = self.unary(concat!("/flotilla.namesrv.v1.Namesrv/", $name), options, request);
            Box::pin(async move { Ok(call.await?.body) })
        }
    )*};
}

impl NamesrvCalls for TonicLink {
    namesrv_unary!(namesrv_methods);

    fn register(
        &self,
        options: CallOptions,
        rows: mpsc::Receiver<namesrv::Registration>,
    ) -> Answer<ReplyStream<namesrv::RegistrationReply>> {
        Box::pin(self.bidi_stream("/flotilla.namesrv.v1.Namesrv/Register", options, rows))
    }
}
