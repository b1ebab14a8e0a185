//! What the replicas of one broker group ask of each other.

use bytes::Bytes;
use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use crate::{CallContext, Replies, peer};

/// Who talks to whom on an append stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerLink {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the broker group.
    pub group: String,
    /// Node id of the sender.
    pub from: u64,
    /// Node id that the sender means to reach.
    pub to: u64,
}

/// Why a replica did not answer a peer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    /// The call was not executed: it is meant for another cluster, group or node, or of an unknown kind.
    #[error("{0}")]
    Refused(String),
    /// The call may have been executed in part.
    #[error("{0}")]
    Failed(String),
}

/// The calls of `flotilla.peer.v1.Peer`.
pub trait Peer: Send + Sync + 'static {
    /// Heartbeats, votes and the like. The implementation must check `cluster`, `group` and `to`.
    fn call(&self, call: peer::PeerCall) -> BoxFuture<'_, Result<Bytes, PeerError>>;

    /// The replication stream. Returns at once. `requests` ends when the sender closed it or went
    /// away; dropping the sender of the replies closes the stream.
    ///
    /// # Errors
    /// [`PeerError::Refused`] if `link` names another cluster, group or node.
    fn append(&self, link: PeerLink, requests: mpsc::Receiver<Bytes>) -> Result<Replies<Bytes>, PeerError>;

    /// A client's call, handed on by a replica that does not lead.
    fn forward(&self, context: CallContext, request: peer::ForwardRequest) -> BoxFuture<'_, peer::ForwardResponse>;
}
