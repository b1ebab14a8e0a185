//! Registration of replicas and the routes made from it.

use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use super::single;
use crate::status::not_implemented;
use crate::{CallContext, Replies, namesrv};

macro_rules! unary {
    ($($(#[$doc:meta])* $method:ident $name:literal $request:ident $reply:ident;)*) => {$(
        $(#[$doc])*
        #[allow(clippy::needless_update, reason = "some responses have nothing but a status")]
        fn $method(&self, context: CallContext, request: namesrv::$request) -> BoxFuture<'_, namesrv::$reply> {
            let _ = (context, request);
            let reply = namesrv::$reply { status: Some(not_implemented($name)), ..Default::default() };
            Box::pin(std::future::ready(reply))
        }
    )*};
}

/// The calls of `flotilla.namesrv.v1.Namesrv`. What an implementation does not provide answers
/// NOT_IMPLEMENTED.
pub trait Namesrv: Send + Sync + 'static {
    /// The long-lived stream of one replica's rows. Returns at once. `rows` ends when the replica
    /// went away; dropping the sender of the replies closes the stream.
    fn register(
        &self,
        context: CallContext,
        rows: mpsc::Receiver<namesrv::Registration>,
    ) -> Replies<namesrv::RegistrationReply> {
        let _ = (context, rows);
        single(namesrv::RegistrationReply { status: Some(not_implemented("Register")), ..Default::default() })
    }

    unary! {
        /// Removes the row of one replica.
        unregister "Unregister" UnregisterRequest UnregisterReply;
        /// The groups that serve a topic.
        query_topic_route "QueryTopicRoute" TopicRouteRequest TopicRouteReply;
        /// All rows.
        list_brokers "ListBrokers" ListBrokersRequest ListBrokersReply;
        /// All broker groups, without their topics.
        list_groups "ListGroups" ListGroupsRequest ListGroupsReply;
        /// All topics.
        list_topics "ListTopics" ListTopicsRequest ListTopicsReply;
    }
}
