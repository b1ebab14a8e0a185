//! Peers in one process: calls and streams go straight to the other replica's face, unless the link is cut.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flotilla_runtime::{BoxFuture, Runtime, Task};
use tokio::sync::mpsc;

use crate::{AppendChannel, NodeId, PeerCallKind, Probe, ReplicatedLog, Transport, TransportError};

type Log = ReplicatedLog<usize>;

/// The net; clones are the same one.
#[derive(Clone, Default)]
pub(crate) struct MemoryNet {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    logs: BTreeMap<NodeId, Log>,
    cut: BTreeSet<(NodeId, NodeId)>,
    streams: Vec<(NodeId, NodeId, Task<()>)>,
    /// Pieces of snapshots that were sent, and before which of them the link breaks for a moment.
    snapshot_pieces: u64,
    breaks: BTreeSet<u64>,
}

struct Link {
    net: MemoryNet,
    from: NodeId,
}

impl MemoryNet {
    /// The way out of that replica.
    pub(crate) fn transport(&self, from: NodeId) -> Arc<dyn Transport> {
        Arc::new(Link { net: self.clone(), from })
    }

    pub(crate) fn join(&self, node: NodeId, log: Log) {
        self.inner.lock().unwrap().logs.insert(node, log);
    }

    /// Takes a replica off the net; its streams break.
    pub(crate) fn leave(&self, node: NodeId) -> Option<Log> {
        let mut inner = self.inner.lock().unwrap();
        inner.streams.retain(|(from, to, _)| *from != node && *to != node);
        inner.logs.remove(&node)
    }

    /// Cuts (or heals) all links of a replica, both ways.
    pub(crate) fn isolate(&self, node: NodeId, is_cut: bool) {
        let mut inner = self.inner.lock().unwrap();
        if is_cut {
            let others: Vec<NodeId> = inner.logs.keys().copied().filter(|other| *other != node).collect();
            inner.cut.extend(others.into_iter().flat_map(|other| [(node, other), (other, node)]));
            inner.streams.retain(|(from, to, _)| *from != node && *to != node);
        } else {
            // Also those to replicas that have left meanwhile.
            inner.cut.retain(|(from, to)| *from != node && *to != node);
        }
    }

    /// The link breaks in front of each of these pieces of snapshots, counted from now on.
    pub(crate) fn break_snapshots_at(&self, pieces: impl IntoIterator<Item = u64>) {
        let mut inner = self.inner.lock().unwrap();
        (inner.snapshot_pieces, inner.breaks) = (0, pieces.into_iter().collect());
    }

    /// Pieces of snapshots sent since, and breaks that did not happen yet.
    pub(crate) fn snapshot_pieces(&self) -> (u64, usize) {
        let inner = self.inner.lock().unwrap();
        (inner.snapshot_pieces, inner.breaks.len())
    }

    fn send_piece(&self, from: NodeId, to: NodeId) -> Result<(), TransportError> {
        let mut inner = self.inner.lock().unwrap();
        inner.snapshot_pieces += 1;
        let piece = inner.snapshot_pieces;
        if !inner.breaks.remove(&piece) {
            return Ok(());
        }
        inner.streams.retain(|(source, target, _)| (*source, *target) != (from, to));
        Err(TransportError::Broken("link broke".to_owned()))
    }

    fn reach(&self, from: NodeId, to: NodeId) -> Result<Log, TransportError> {
        let inner = self.inner.lock().unwrap();
        if inner.cut.contains(&(from, to)) {
            return Err(TransportError::Unreachable("link is cut".to_owned()));
        }
        inner.logs.get(&to).cloned().ok_or_else(|| TransportError::Unreachable("nobody listens".to_owned()))
    }
}

impl Transport for Link {
    fn call(
        &self,
        target: NodeId,
        kind: PeerCallKind,
        body: Bytes,
        _timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, TransportError>> {
        let reached = self.net.reach(self.from, target);
        let (net, from) = (self.net.clone(), self.from);
        Box::pin(async move {
            if kind == PeerCallKind::Snapshot {
                net.send_piece(from, target)?;
            }
            let answer =
                reached?.serve_call(kind, body).await.map_err(|error| TransportError::Broken(error.to_string()))?;
            // The answer needs the way back, though not that the asker serves already: it may still be opening.
            if net.inner.lock().unwrap().cut.contains(&(target, from)) {
                return Err(TransportError::Broken("link is cut".to_owned()));
            }
            Ok(answer)
        })
    }

    fn open_append(&self, target: NodeId) -> BoxFuture<'static, Result<AppendChannel, TransportError>> {
        let reached = self.net.reach(self.from, target);
        let (net, from) = (self.net.clone(), self.from);
        Box::pin(async move {
            let log = reached?;
            let (requests, mut sent) = mpsc::channel(16);
            let (arriving, requests_in) = mpsc::channel(1);
            let (responses_out, responses) = mpsc::channel(16);
            let serving = log.serve_append(requests_in, responses_out);
            let cables = net.clone();
            // A stream ends some time after its link was cut; what was sent after the cut does not arrive.
            let relaying = Runtime::tokio().spawn("relay", async move {
                while let Some(frame) = sent.recv().await {
                    if cables.reach(from, target).is_err() || arriving.send(frame).await.is_err() {
                        return;
                    }
                }
            });
            let mut inner = net.inner.lock().unwrap();
            inner.streams.extend([(from, target, serving), (from, target, relaying)]);
            drop(inner);
            Ok(AppendChannel { requests, responses })
        })
    }

    fn probe(&self, target: NodeId, _timeout: Duration) -> BoxFuture<'static, Probe> {
        let inner = self.net.inner.lock().unwrap();
        let probe = if inner.cut.contains(&(self.from, target)) {
            Probe::NoAnswer
        } else if inner.logs.contains_key(&target) {
            Probe::Listening
        } else {
            Probe::Refused
        };
        Box::pin(std::future::ready(probe))
    }
}
