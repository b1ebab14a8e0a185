//! Stamps what goes out to the peers, and lets the answers count only of those lives that the group knows.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::BoxFuture;

use super::stamp::Stamp;
use crate::standing::Standings;
use crate::transport::AppendChannel;
use crate::{NodeId, PeerCallKind, Probe, Transport, TransportError};

/// A [`Transport`] behind a fence. Frames of append streams are stamped where they are made.
pub(crate) struct Fence {
    transport: Arc<dyn Transport>,
    standings: Standings,
}

impl Fence {
    pub(crate) fn new(transport: Arc<dyn Transport>, standings: Standings) -> Fence {
        Fence { transport, standings }
    }
}

/// What it says in the log of whoever asked.
pub(super) const NOT_KNOWN: &str = "peer's directory is not the one the group knows: its answer does not count";

/// Calls whose answers make elections and commits.
pub(crate) const fn counts(kind: PeerCallKind) -> bool {
    match kind {
        PeerCallKind::Heartbeat
        | PeerCallKind::Vote
        | PeerCallKind::PreVote
        | PeerCallKind::TransferLeader
        | PeerCallKind::Snapshot => true,
        PeerCallKind::LeaderGone
        | PeerCallKind::Fetch
        | PeerCallKind::Vitals
        | PeerCallKind::VoteHold
        | PeerCallKind::Acquaintance => false,
    }
}

impl Transport for Fence {
    fn call(
        &self,
        target: NodeId,
        kind: PeerCallKind,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let standings = self.standings.clone();
        let call = self.transport.call(target, kind, standings.stamp().put_on(body), timeout);
        Box::pin(async move {
            let answer = call.await?;
            if counts(kind) {
                let sender = Stamp::of(&answer).map_err(|error| TransportError::Broken(error.to_string()))?;
                if !standings.admits_answer(target, &sender) {
                    return Err(TransportError::Unreachable(NOT_KNOWN.to_owned()));
                }
            }
            Ok(answer)
        })
    }

    fn open_append(&self, target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        self.transport.open_append(target)
    }

    fn probe(&self, target: NodeId, timeout: Duration) -> BoxFuture<'static, Probe> {
        self.transport.probe(target, timeout)
    }
}
