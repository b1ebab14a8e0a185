//! The seam to the peers: opaque bodies by call, and a pair of channels per append stream.

use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::BoxFuture;
use tokio::sync::mpsc;

use crate::NodeId;

/// What a unary call between peers asks for. The numbers are on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u32)]
pub enum PeerCallKind {
    /// The leader's sign of life and commit index.
    Heartbeat = 1,
    /// A candidate asks for a vote.
    Vote = 2,
    /// A would-be candidate asks whether it would get a vote.
    PreVote = 3,
    /// The leader asks its successor to campaign at once.
    TransferLeader = 4,
    /// A whole snapshot.
    Snapshot = 5,
    /// A follower asks another voter whether it, too, sees that the leader's process is gone.
    LeaderGone = 6,
    /// A replica whose copy of some committed entries is damaged asks for them.
    Fetch = 7,
    /// A replica asks another one for its health: fitness to lead, wall clock, digests.
    Vitals = 8,
    /// A replica that may have lost what it had confirmed asks whether this one leads, or has lost something too.
    VoteHold = 9,
    /// A replica asks whether, and in which incarnation, this one knows it.
    Acquaintance = 10,
}

impl PeerCallKind {
    /// The number on the wire.
    pub const fn code(self) -> u32 {
        self as u32
    }

    /// `None` for a number this version does not know.
    pub const fn from_code(code: u32) -> Option<PeerCallKind> {
        match code {
            1 => Some(PeerCallKind::Heartbeat),
            2 => Some(PeerCallKind::Vote),
            3 => Some(PeerCallKind::PreVote),
            4 => Some(PeerCallKind::TransferLeader),
            5 => Some(PeerCallKind::Snapshot),
            6 => Some(PeerCallKind::LeaderGone),
            7 => Some(PeerCallKind::Fetch),
            8 => Some(PeerCallKind::Vitals),
            9 => Some(PeerCallKind::VoteHold),
            10 => Some(PeerCallKind::Acquaintance),
            _ => None,
        }
    }
}

/// Carries bodies to the other replicas of one group.
///
/// An implementation must:
/// - deliver the frames of one [`AppendChannel`] in order, each at most once, and end `responses` when it cannot;
/// - call [`crate::ReplicatedLog::serve_call`] and [`crate::ReplicatedLog::serve_append`] of the target with exactly the
///   bytes given here;
/// - answer `Unreachable` only if the target surely did not get the body;
/// - answer [`Probe::Refused`] only on the word of the target's kernel.
pub trait Transport: Send + Sync + 'static {
    /// One question, one answer, on the control connection, so that bulk data never delays a vote.
    fn call(
        &self,
        target: NodeId,
        kind: PeerCallKind,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>>;

    /// Opens an append stream on the data connection.
    fn open_append(&self, target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>>;

    /// Looks, with a connection of its own, whether a process listens where the target serves its peers. Nothing is sent.
    fn probe(&self, target: NodeId, timeout: Duration) -> BoxFuture<'static, Probe>;
}

/// What became of a new connection to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// Accepted by the peer's kernel: a process listens, well or not.
    Listening,
    /// Refused by the peer's kernel: no process listens. Nothing but that counts as a refusal.
    Refused,
    /// Neither in time: a lost packet, a cut link, a machine without power, a name that does not resolve.
    NoAnswer,
}

/// One open append stream. Both channels are bounded; dropping this closes the stream; `responses` ending means that the
/// stream is broken.
#[derive(Debug)]
pub struct AppendChannel {
    /// Frames to the peer.
    pub requests: mpsc::Sender<Bytes>,
    /// The peer's answers, one for each request, in order.
    pub responses: mpsc::Receiver<Bytes>,
}

/// Why a peer gave no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TransportError {
    /// Surely not delivered: no route, connection refused.
    #[error("peer is unreachable: {0}")]
    Unreachable(String),
    /// May or may not have been delivered.
    #[error("connection to peer broke: {0}")]
    Broken(String),
    /// No answer in time; may or may not have been delivered.
    #[error("peer did not answer in time")]
    Timeout,
}
