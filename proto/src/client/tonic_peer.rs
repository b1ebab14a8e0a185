//! A replica's peer port over three connections, so that neither bulk data nor waiting polls delay a heartbeat.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{BoxFuture, Either, select};
use futures::StreamExt;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::tonic_link::{Inbound, TonicLink};
use super::{AppendLink, CallError, CallOptions, PeerCalls, Presence};
use crate::seal::Sealed;
use crate::{PeerLink, STREAM_DEPTH, metadata, peer};

type Answer<T> = BoxFuture<'static, Result<T, CallError>>;

/// The connections to one peer.
#[derive(Debug)]
pub(super) struct TonicPeer {
    pub(super) address: String,
    pub(super) control: TonicLink,
    pub(super) data: TonicLink,
    pub(super) polls: TonicLink,
}

impl PeerCalls for TonicPeer {
    fn call(&self, call: peer::PeerCall, timeout: Duration) -> Answer<Bytes> {
        let answer = self.control.unary("/flotilla.peer.v1.Peer/Call", CallOptions::within(timeout), call);
        Box::pin(async move {
            let reply: peer::PeerReply = answer.await?.body;
            Ok(reply.body)
        })
    }

    fn open_append(&self, link: PeerLink, timeout: Duration) -> Answer<AppendLink> {
        let data = self.data.clone();
        Box::pin(async move {
            let metadata = vec![
                (Cow::Borrowed(metadata::LINK_CLUSTER), link.cluster),
                (Cow::Borrowed(metadata::LINK_GROUP), link.group),
                (Cow::Borrowed(metadata::LINK_FROM), link.from.to_string()),
                (Cow::Borrowed(metadata::LINK_TO), link.to.to_string()),
            ];
            let options = CallOptions::within(timeout).with_metadata(Arc::new(metadata));
            let (requests, outbound) = mpsc::channel(STREAM_DEPTH);
            let frames = ReceiverStream::new(outbound).map(|body| peer::PeerFrame { body });
            let inbound = data.open("/flotilla.peer.v1.Peer/Append", &options, None, frames).await?;
            let (sender, responses) = mpsc::channel(STREAM_DEPTH);
            // It ends by itself: with the stream, or when nobody reads the responses any more.
            data.runtime().spawn("append responses", pump(inbound, sender)).detach();
            Ok(AppendLink { requests, responses })
        })
    }

    fn forward(&self, request: peer::ForwardRequest, timeout: Duration) -> Answer<peer::ForwardResponse> {
        let (path, options) = ("/flotilla.peer.v1.Peer/Forward", CallOptions::within(timeout));
        let answer = self.control.unary(path, options, request.sealed());
        Box::pin(async move { whole(answer.await?.body) })
    }

    fn forward_poll(&self, request: peer::ForwardRequest, timeout: Duration) -> Answer<peer::ForwardResponse> {
        let (path, options) = ("/flotilla.peer.v1.Peer/Forward", CallOptions::within(timeout));
        let answer = self.polls.unary(path, options, request.sealed());
        Box::pin(async move { whole(answer.await?.body) })
    }

    fn probe(&self, timeout: Duration) -> BoxFuture<'static, Presence> {
        let (runtime, address) = (self.control.runtime().clone(), self.address.clone());
        Box::pin(async move { runtime.timeout(timeout, probe(&address)).await.unwrap_or(Presence::NoAnswer) })
    }
}

/// Nobody knows what a damaged answer said.
fn whole(mut answer: peer::ForwardResponse) -> Result<peer::ForwardResponse, CallError> {
    if answer.is_whole() { Ok(answer) } else { Err(CallError::Broken("the answer was damaged on its way".to_owned())) }
}

/// Connects and closes.
async fn probe(address: &str) -> Presence {
    let Ok(resolved) = tokio::net::lookup_host(address).await else { return Presence::NoAnswer };
    let mut presence = Presence::NoAnswer;
    for address in resolved {
        match tokio::net::TcpStream::connect(address).await {
            Ok(_) => return Presence::Listening,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => presence = Presence::Refused,
            Err(_) => return Presence::NoAnswer,
        }
    }
    presence
}

/// Hands on what the peer sends. Ending drops the inbound half, which ends the other one.
async fn pump(mut inbound: Inbound<peer::PeerFrame>, sender: mpsc::Sender<Bytes>) {
    loop {
        let next = match select(sender.closed(), inbound.next()).await {
            Either::Left(()) => return,
            Either::Right(next) => next,
        };
        match next {
            Ok(Some(frame)) => {
                if sender.send(frame.body).await.is_err() {
                    return;
                }
            }
            Ok(None) => return,
            Err(status) => {
                tracing::debug!(%status, "append stream broke");
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use flotilla_runtime::Runtime;

    use super::*;
    use crate::client::{Connector, TonicConnector};

    #[tokio::test]
    async fn a_probe_tells_a_closed_port_from_an_open_one() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peer = TonicConnector::new(Runtime::tokio()).peer(&address);
        assert_eq!(peer.probe(Duration::from_secs(5)).await, Presence::Listening, "nobody needs to accept it");
        drop(listener);
        assert_eq!(peer.probe(Duration::from_secs(5)).await, Presence::Refused);
        let nowhere = TonicConnector::new(Runtime::tokio()).peer("no-such-host.invalid:1");
        assert_eq!(nowhere.probe(Duration::from_secs(5)).await, Presence::NoAnswer);
    }
}
