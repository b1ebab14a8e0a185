//! Numbers of one replica's log for whoever watches it; looked up when asked for, never kept along.

use std::time::Duration;

use crate::log_view::LogView;
use crate::status_watch::StatusWatch;
use crate::{Disk, LogIndex, NodeId};

/// Numbers of one replica's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogStats {
    /// Segments that hold entries, the tail included.
    pub segments: u64,
    /// Bytes of all segment files, the prepared one included.
    pub files_bytes: u64,
    /// Bytes that may still be written to the file system; `None` if that is not known.
    pub disk_free_bytes: Option<u64>,
    /// Size of the file system; `None` if that is not known.
    pub disk_total_bytes: Option<u64>,
    /// Free bytes below which new data is refused.
    pub disk_free_bytes_min: u64,
    /// The oldest entry that can be read; `None` if there is none.
    pub first: Option<LogIndex>,
    /// The last entry that was purged.
    pub purged: Option<LogIndex>,
    /// The last entry that the newest snapshot covers.
    pub snapshot: Option<LogIndex>,
    /// The last entry that the leader said to be committed; this replica may not have it yet.
    pub cluster_committed: Option<LogIndex>,
    /// Bytes of the records that are in the log and not durable, about.
    pub undurable_bytes: u64,
    /// Bytes of the records that are in the log and not applied, about.
    pub unapplied_bytes: u64,
    /// On a leader: how long ago a quorum was heard, as of the newest word. `None` on others, and before the first word.
    pub quorum_silent_for: Option<Duration>,
    /// On a leader, what it knows of the others; empty on others.
    pub peers: Vec<PeerStats>,
}

/// What a leader knows of another replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeerStats {
    /// The replica.
    pub node: NodeId,
    /// The last entry that it surely has.
    pub matched: Option<LogIndex>,
    /// Bytes of the entries after that, about: up to a few hundred entries too many.
    pub lag_bytes: u64,
    /// How long ago it was heard; `None` if not in this term.
    pub silent_for: Option<Duration>,
}

pub(crate) fn stats(view: &LogView, status: &StatusWatch, disk: &dyn Disk, dir: &std::path::Path) -> LogStats {
    let contacts = status.contacts();
    let space = disk.total_bytes(dir).ok().filter(|total| *total > 0);
    let state = view.shared.state();
    let last = state.last.map(|last| last.index);
    // Nothing at all has no age: an empty log is no lag.
    let behind = |index: Option<LogIndex>| if index == last { 0 } else { state.bytes_behind(index) };
    let peers = contacts.peers.into_iter().map(|peer| PeerStats {
        node: peer.node,
        matched: peer.matched,
        lag_bytes: behind(peer.matched),
        silent_for: peer.silent_for,
    });
    LogStats {
        segments: state.segments.len() as u64,
        files_bytes: view.shared.room.files_bytes(),
        disk_free_bytes: disk.free_bytes(dir).ok(),
        disk_total_bytes: space,
        disk_free_bytes_min: view.shared.room.reserve(space.unwrap_or(0)),
        first: (state.start() < state.end()).then(|| state.start()),
        purged: state.purged.map(|purged| purged.index),
        snapshot: contacts.snapshot,
        cluster_committed: contacts.cluster_committed,
        undurable_bytes: behind(view.durable_index()),
        unapplied_bytes: behind(contacts.applied),
        quorum_silent_for: contacts.quorum_silent_for,
        peers: peers.collect(),
    }
}
