//! NotifyClientTermination: who says good-bye is forgotten here at once, and by the leader as a member of its group.
//!
//! Other members may want other messages from then on. A leader that does not hear of it forgets the member when it has
//! been silent for a while.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use flotilla_message::GroupName;
use flotilla_proto::status::{Code, ok, status};
use flotilla_proto::{CallContext, metadata, peer, v2};

use crate::edge::names;
use crate::lead::leadership::Place;
use crate::replica::Replica;

/// The name of the call by which the leader is told.
pub const METHOD: &str = "ClientGone";
/// Its metadata: the consumer group.
const GROUP: &str = "x-flotilla-consumer-group";
/// How long the leader may take to hear of it.
const TELL_TIMEOUT: Duration = Duration::from_millis(500);

/// Takes leave of a client.
pub async fn say(replica: Arc<Replica>, context: CallContext, request: v2::NotifyClientTerminationRequest) {
    let Some(client_id) = &context.client_id else { return };
    replica.clients.gone(client_id);
    // Producers name none.
    let Ok(group) = names::group(&context, request.group.as_ref()) else { return };
    replica.lanes.gone(client_id, &group);
    let Place::Remote(leader) = replica.leadership.seen().place else { return };
    let Some(peer) = replica.forwarder.peer(leader) else { return };
    let request = peer::ForwardRequest {
        method: METHOD.to_owned(),
        metadata: BTreeMap::from([
            (metadata::CLIENT_ID.to_owned(), client_id.clone()),
            (GROUP.to_owned(), group.to_string()),
        ]),
        timeout_ms: u64::try_from(TELL_TIMEOUT.as_millis()).unwrap_or(u64::MAX),
        ..Default::default()
    };
    if let Err(error) = peer.forward(request, TELL_TIMEOUT).await {
        tracing::debug!(client_id, %group, %error, "leader was not told of a client's good-bye");
    }
}

/// Takes in what another replica heard.
pub fn take_in(replica: &Replica, request: &peer::ForwardRequest) -> peer::ForwardResponse {
    let named = |key: &str| request.metadata.get(key);
    let group = named(GROUP).and_then(|group| GroupName::try_from(group.as_str()).ok());
    let answer = match (named(metadata::CLIENT_ID), group) {
        (Some(client_id), Some(group)) => {
            replica.lanes.gone(client_id, &group);
            ok()
        }
        _ => status(Code::BadRequest, format!("{METHOD} names no client or no group")),
    };
    peer::ForwardResponse { status: Some(answer), ..Default::default() }
}
