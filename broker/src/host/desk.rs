//! The one peer port of a process: hands each call to the replica of the group that it names.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

use bytes::Bytes;
use flotilla_proto::{CallContext, Peer, PeerError, PeerLink, Replies, metadata, peer};
use flotilla_runtime::{BoxFuture, Either, Runtime, select};
use tokio::sync::mpsc;

use crate::failure::Failure;

/// Frames of an append stream between the connection and a replica.
const FRAMES_MAX: usize = 16;

/// Cluster and group.
type Name = (String, String);

/// Which replicas are served.
pub struct PeerDesk {
    runtime: Runtime,
    groups: RwLock<BTreeMap<Name, Seat>>,
}

#[derive(Clone)]
struct Seat {
    peer: Arc<dyn Peer>,
    /// Told when the replica goes, and its streams end with it: the connection stays, for the others.
    gone: Arc<Failure>,
}

/// A replica's place; dropping it ends all that peers have open with that replica.
pub struct Placed {
    desk: Arc<PeerDesk>,
    name: Name,
    gone: Arc<Failure>,
}

impl Drop for Placed {
    fn drop(&mut self) {
        self.desk.groups.write().expect(LOCK).remove(&self.name);
        self.gone.set("the replica stopped".to_owned());
    }
}

impl PeerDesk {
    /// Serves nobody yet.
    pub fn new(runtime: Runtime) -> PeerDesk {
        PeerDesk { runtime, groups: RwLock::default() }
    }

    /// Serves the replica of a group from now on, until what is returned is dropped.
    pub fn place(self: &Arc<Self>, cluster: &str, group: &str, peer: Arc<dyn Peer>) -> Placed {
        let name = (cluster.to_owned(), group.to_owned());
        let gone = Arc::new(Failure::default());
        self.groups.write().expect(LOCK).insert(name.clone(), Seat { peer, gone: gone.clone() });
        Placed { desk: self.clone(), name, gone }
    }

    fn seat(&self, cluster: &str, group: &str) -> Result<Seat, PeerError> {
        let groups = self.groups.read().expect(LOCK);
        let seat = groups.get(&(cluster.to_owned(), group.to_owned())).cloned();
        seat.ok_or_else(|| {
            PeerError::Refused(format!(
                "call is meant for group {group} of cluster {cluster}, which is not served here now"
            ))
        })
    }
}

const LOCK: &str = "desk lock is never poisoned: no code panics while holding it";

impl Peer for PeerDesk {
    fn call(&self, call: peer::PeerCall) -> BoxFuture<'_, Result<Bytes, PeerError>> {
        Box::pin(async move {
            let seat = self.seat(&call.cluster, &call.group)?;
            // Whoever is gone answers nothing, whatever it still does.
            match select(seat.peer.call(call), seat.gone.wait()).await {
                Either::Left(answer) => answer,
                Either::Right(reason) => Err(PeerError::Failed(reason)),
            }
        })
    }

    fn append(&self, link: PeerLink, mut requests: mpsc::Receiver<Bytes>) -> Result<Replies<Bytes>, PeerError> {
        let Seat { peer, gone } = self.seat(&link.cluster, &link.group)?;
        let (frames, inner) = mpsc::channel(FRAMES_MAX);
        let replies = peer.append(link, inner)?;
        let carried = async move {
            loop {
                let next = match select(requests.recv(), gone.wait()).await {
                    Either::Left(Some(frame)) => frame,
                    // Dropping `frames` ends the stream as its sender's end would.
                    Either::Left(None) | Either::Right(_) => return,
                };
                match select(frames.send(next), gone.wait()).await {
                    Either::Left(Ok(())) => {}
                    Either::Left(Err(_)) | Either::Right(_) => return,
                }
            }
        };
        self.runtime.spawn("append-desk", carried).detach();
        Ok(replies)
    }

    fn forward(&self, context: CallContext, request: peer::ForwardRequest) -> BoxFuture<'_, peer::ForwardResponse> {
        Box::pin(async move {
            let named = |key: &str| request.metadata.get(key).map_or("", String::as_str);
            let Ok(seat) = self.seat(named(metadata::LINK_CLUSTER), named(metadata::LINK_GROUP)) else {
                // Surely not executed.
                return peer::ForwardResponse { not_leader: true, ..Default::default() };
            };
            match select(seat.peer.forward(context, request), seat.gone.wait()).await {
                Either::Left(answer) => answer,
                // What it has done is not known: the connection would have broken.
                Either::Right(reason) => crate::lead::forwarder::unknown(reason),
            }
        })
    }
}
