//! A client's call that belongs to another broker group: asked of that group's replicas as the client itself would ask.
//!
//! It is passed on once: whoever gets it from another group executes it or says why not. All calls that are passed on may be
//! repeated, so an attempt of unknown outcome is followed by another one at the next replica of the same group.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use flotilla_proto::client::{CallError, CallOptions, MessagingCalls};
use flotilla_proto::status::{Code, status};
use flotilla_proto::{CallContext, Metadata, Reply, metadata, v2};
use flotilla_runtime::BoxFuture;

use crate::consume::ack::{AckMessage, ChangeInvisibleDuration};
use crate::consume::give_up::ForwardToDeadLetters;
use crate::lead::leader_call::{LeaderCall, patience_ends};
use crate::produce::end_transaction::EndTransaction;
use crate::produce::recall::RecallMessage;
use crate::produce::send::SendMessage;
use crate::replica::Replica;

/// An attempt gets this share of what is left, so that a replica that says nothing leaves time for another one.
const SHARE: u32 = 2;
/// An attempt is not begun with less time than this.
const ATTEMPT_MIN: Duration = Duration::from_millis(20);
/// What goes along of what the client says of itself.
const PASSED_ON: [&str; 5] =
    [metadata::CLIENT_ID, metadata::LANGUAGE, metadata::PROTOCOL, metadata::CLIENT_VERSION, metadata::NAMESPACE];

/// A call that another group's replica can be asked for.
pub trait AbroadCall: LeaderCall<Request: Clone> {
    /// Asks it.
    fn ask(
        calls: &dyn MessagingCalls,
        options: CallOptions,
        request: Self::Request,
    ) -> BoxFuture<'static, Result<Reply<Self::Answer>, CallError>>;
}

macro_rules! abroad {
    ($($call:ty, $method:ident;)*) => {$(
        impl AbroadCall for $call {
            fn ask(
                calls: &dyn MessagingCalls,
                options: CallOptions,
                request: Self::Request,
            ) -> BoxFuture<'static, Result<Reply<Self::Answer>, CallError>> {
                calls.$method(options, request)
            }
        }
    )*};
}

abroad! {
    SendMessage, send_message;
    EndTransaction, end_transaction;
    RecallMessage, recall_message;
    AckMessage, ack_message;
    ChangeInvisibleDuration, change_invisible_duration;
    ForwardToDeadLetters, forward_message_to_dead_letter_queue;
}

/// Whether a call came from another group already.
pub fn is_from_abroad(context: &CallContext) -> bool {
    context.metadata.contains_key(metadata::FROM_GROUP)
}

/// The same call, which is not to be passed on.
pub fn meant_for(mut context: CallContext, group: &str) -> CallContext {
    context.metadata.insert(metadata::FROM_GROUP.to_owned(), group.to_owned());
    context
}

/// Has another broker group execute a call.
pub async fn pass_on<C: AbroadCall>(
    replica: &Arc<Replica>,
    group: &str,
    context: &CallContext,
    request: &C::Request,
) -> Reply<C::Answer> {
    let refuse = |code, text: String| Reply::new(C::refusal(request, status(code, text)));
    if is_from_abroad(context) {
        // Two groups that hold each other for the owner: one of them will learn better.
        let text = format!("not executed: it is passed on already, and belongs to broker group {group}");
        return refuse(Code::HaNotAvailable, text);
    }
    let cluster = &replica.cluster;
    let _share = match cluster.under_way.take(0) {
        Ok(share) => share,
        Err(full) => return refuse(Code::HaNotAvailable, format!("not executed: {full}")),
    };
    let metadata = Arc::new(own_words(context, &replica.config.group));
    let ends = patience_ends(context, replica.runtime.now());
    let replicas = cluster.replicas_of(group);
    let mut unknown: Option<String> = None;
    let mut told = format!("no replica of broker group {group} is known");
    for (place, (node, calls)) in replicas.iter().enumerate() {
        let left = ends - replica.runtime.now();
        if left < ATTEMPT_MIN {
            break;
        }
        let timeout = if place + 1 < replicas.len() { (left / SHARE).max(ATTEMPT_MIN) } else { left };
        let options = CallOptions::within(timeout).with_metadata(metadata.clone());
        let asked = C::ask(&**calls, options, request.clone());
        let reason = match replica.runtime.timeout(timeout, asked).await {
            Ok(Ok(reply)) => match (unknown.take(), C::denial(&reply.body)) {
                (Some(before), Some(denial)) => {
                    let text = format!("outcome is unknown: {before}; when it was tried again: {denial}");
                    return refuse(Code::ProxyTimeout, text);
                }
                _ => return reply,
            },
            Ok(Err(CallError::Refused(reason))) => {
                told = format!("replica {node} of broker group {group}: {reason}");
                continue;
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer in {timeout:?}"),
        };
        unknown = Some(format!("replica {node} of broker group {group}: {reason}"));
    }
    match unknown {
        Some(unknown) => refuse(Code::ProxyTimeout, format!("outcome is unknown: {unknown}")),
        None => refuse(Code::HaNotAvailable, format!("not executed: {told}")),
    }
}

fn own_words(context: &CallContext, own_group: &str) -> Metadata {
    let entry = |name: &&'static str| Some((Cow::Borrowed(*name), context.metadata.get(*name)?.clone()));
    let mut words: Metadata = PASSED_ON.iter().filter_map(entry).collect();
    words.push((Cow::Borrowed(metadata::FROM_GROUP), own_group.to_owned()));
    words
}

/// The status of an answer that says that nothing was done, for a reason that another group may not have.
pub fn is_unavailable(status: Option<&v2::Status>) -> bool {
    status.is_some_and(|status| status.code() == Code::HaNotAvailable)
}
