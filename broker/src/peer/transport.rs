//! Carries the log's bodies to the other replicas over their peer ports.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_proto::client::{AppendLink, CallError, PeerCalls, Presence};
use flotilla_proto::{PeerLink, peer};
use flotilla_raft_log::{AppendChannel, NodeId, PeerCallKind, Probe, Transport, TransportError};
use flotilla_runtime::BoxFuture;

use crate::config::BrokerConfig;
use crate::peer::book::PeerBook;

/// How long opening an append stream may take.
const OPEN_TIMEOUT: Duration = Duration::from_secs(1);

/// The log's transport over the connections of a replica's address book.
pub struct PeerTransport {
    cluster: String,
    group: String,
    node: NodeId,
    peers: Arc<PeerBook>,
}

impl PeerTransport {
    /// A transport to the replicas of the book. Nothing is connected yet.
    pub fn new(config: &BrokerConfig, peers: Arc<PeerBook>) -> PeerTransport {
        PeerTransport { cluster: config.cluster.clone(), group: config.group.clone(), node: NodeId(config.node), peers }
    }

    fn peer(&self, target: NodeId) -> Result<Arc<dyn PeerCalls>, TransportError> {
        self.peers
            .peer(target)
            .ok_or_else(|| TransportError::Unreachable(format!("node {target} is not among the replicas")))
    }
}

impl Transport for PeerTransport {
    fn call(
        &self,
        target: NodeId,
        kind: PeerCallKind,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let call = peer::PeerCall {
            cluster: self.cluster.clone(),
            group: self.group.clone(),
            from: self.node.0,
            to: target.0,
            kind: kind.code(),
            body,
        };
        let peer = self.peer(target);
        Box::pin(async move { peer?.call(call, timeout).await.map_err(transport_error) })
    }

    fn open_append(&self, target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        let link =
            PeerLink { cluster: self.cluster.clone(), group: self.group.clone(), from: self.node.0, to: target.0 };
        let peer = self.peer(target);
        Box::pin(async move {
            let AppendLink { requests, responses } =
                peer?.open_append(link, OPEN_TIMEOUT).await.map_err(transport_error)?;
            Ok(AppendChannel { requests, responses })
        })
    }

    fn probe(&self, target: NodeId, timeout: Duration) -> BoxFuture<'static, Probe> {
        let peer = self.peer(target);
        Box::pin(async move {
            let Ok(peer) = peer else { return Probe::NoAnswer };
            match peer.probe(timeout).await {
                Presence::Listening => Probe::Listening,
                Presence::Refused => Probe::Refused,
                Presence::NoAnswer => Probe::NoAnswer,
            }
        })
    }
}

fn transport_error(error: CallError) -> TransportError {
    match error {
        CallError::Refused(reason) => TransportError::Unreachable(reason),
        CallError::Broken(reason) => TransportError::Broken(reason),
        CallError::Timeout(_) => TransportError::Timeout,
        // The peer refused: another cluster, group or node sits at that address, or it is stopping.
        CallError::Status { .. } => TransportError::Broken(error.to_string()),
    }
}
