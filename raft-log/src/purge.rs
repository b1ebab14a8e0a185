//! Letting go of old entries: what may go, what holds it back, and the steps that openraft asks for.

use std::collections::BTreeSet;
use std::time::Duration;

use flotilla_runtime::BoxFuture;
use openraft_rt::watch::WatchReceiver;

use crate::replica::Replica;
use crate::{LogIndex, NodeId, PurgeError, ReplicatedLog};

/// Whether a purge is done is looked at this often.
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// One file of the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentExtent {
    /// Its first entry.
    pub first: LogIndex,
    /// The index after its last one.
    pub end: LogIndex,
    /// Length of the file.
    pub bytes: u64,
}

/// How far a replica's log reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogExtent {
    /// The first entry that can be read; the end if there is none.
    pub first: LogIndex,
    /// Its files, oldest first.
    pub segments: Vec<SegmentExtent>,
    /// The last entry of each checkpoint that is kept, rising: the log can be purged to each.
    pub checkpoints: Vec<LogIndex>,
}

/// What a purge would do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purgeable {
    /// The last entry that would go.
    pub to: LogIndex,
    /// Replicas that this leader knows not to have it yet: they would get a snapshot.
    pub held_by: BTreeSet<NodeId>,
}

/// The file system that holds the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskUse {
    /// Bytes that may still be written.
    pub free_bytes: u64,
    /// Bytes of the whole.
    pub total_bytes: u64,
}

impl<O: Send + 'static> ReplicatedLog<O> {
    /// How full the file system is.
    pub fn disk_use(&self) -> std::io::Result<DiskUse> {
        let (disk, dir) = (&self.inner.disk, &self.inner.dir);
        Ok(DiskUse { free_bytes: disk.free_bytes(dir)?, total_bytes: disk.total_bytes(dir)? })
    }

    /// How long entries waited for a checkpoint, at most, since the start.
    pub fn checkpoint_pause_max(&self) -> Duration {
        self.inner.checkpoints.pause_max()
    }

    /// How far the log reaches on this replica.
    pub fn extent(&self) -> LogExtent {
        let state = self.inner.view.shared.state();
        let segments = state.segments.iter();
        LogExtent {
            first: state.start(),
            segments: segments
                .map(|segment| SegmentExtent {
                    first: segment.header.first,
                    end: segment.end,
                    bytes: segment.file.len(),
                })
                .collect(),
            checkpoints: self.inner.checkpoints.kept(),
        }
    }

    /// How much of the entries before `below` could go now; `None` if nothing.
    pub fn purgeable(&self, below: LogIndex) -> Option<Purgeable> {
        self.inner.purgeable(below)
    }

    /// Lets go of all entries up to `to`, the last one of a checkpoint that is kept, on this replica. From then on a
    /// replica that lacks some of them gets that checkpoint and every entry after it. If this replica leads, streams that
    /// still need such entries are broken.
    ///
    /// Only what the state machine does not refer to any more may go: it is not asked.
    ///
    /// ```text
    /// serve that checkpoint ─▶ openraft takes it for its snapshot ─▶ purge mark, durable ─▶ files go
    /// ```
    pub async fn purge(&self, to: LogIndex, timeout: Duration) -> Result<(), PurgeError> {
        self.inner.purge(to, timeout).await
    }
}

impl Replica {
    fn purgeable(&self, below: LogIndex) -> Option<Purgeable> {
        let purged = self.view.ends().0.map(|purged| purged.index);
        let to = self.checkpoints.kept().into_iter().rev().find(|index| *index < below)?;
        if Some(to) <= purged {
            return None;
        }
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let replication = metrics.replication.iter().flatten();
        let behind = replication.filter(|(node, matched)| {
            NodeId(**node) != self.node && matched.is_none_or(|matched| matched.index() < to.0)
        });
        Some(Purgeable { to, held_by: behind.map(|(node, _)| NodeId(*node)).collect() })
    }

    fn purge(&self, to: LogIndex, timeout: Duration) -> BoxFuture<'_, Result<(), PurgeError>> {
        Box::pin(async move {
            if !self.checkpoints.choose(to) {
                return Err(PurgeError::NoCheckpoint(to));
            }
            let held_by = self.purgeable(to.next()).map(|purgeable| purgeable.held_by).unwrap_or_default();
            let stopped = |_| PurgeError::Stopped;
            let steps = async {
                let mut snapshots = self.raft.watch_snapshot_progress();
                if snapshots.get().is_none_or(|id| id.index() < to.0) {
                    self.raft.trigger().snapshot().await.map_err(stopped)?;
                }
                while snapshots.get().is_none_or(|id| id.index() < to.0) {
                    snapshots.changed().await.map_err(|_| PurgeError::Stopped)?;
                }
                self.raft.trigger().purge_log(to.0).await.map_err(stopped)?;
                for node in held_by {
                    tracing::warn!(%node, %to, "replica is too far behind: it gets a snapshot");
                    self.resets.reset(node);
                }
                while self.view.ends().0.is_none_or(|purged| purged.index < to) {
                    self.runtime.sleep(LOOK_PAUSE).await;
                }
                self.checkpoints.drop_old().await;
                tracing::info!(%to, "entries purged");
                Ok(())
            };
            self.runtime.timeout(timeout, steps).await.unwrap_or(Err(PurgeError::Timeout(to)))
        })
    }
}
