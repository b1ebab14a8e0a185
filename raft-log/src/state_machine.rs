//! What a log's owner must provide: a deterministic machine that consumes committed entries.

use std::io;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::{Disk, LogIndex, Term};

/// Looks at all of a file and tells what is wrong with it. Blocks.
pub type SideFileCheck = fn(&dyn Disk, &Path) -> Result<(), String>;

/// Makes bytes of a state that is held fast. Blocks. An error costs the checkpoint, nothing else; after a full disk it may be
/// called again.
pub type LaterCheckpoint = Box<dyn Fn() -> io::Result<CheckpointBytes> + Send + Sync>;

/// A checkpoint as the log keeps it.
#[derive(Debug, Clone)]
pub struct CheckpointBytes {
    /// The state, but for what is in side files.
    pub state: Bytes,
    /// How much was written to side files for it, bytes.
    pub beside_bytes: u64,
}

/// The meaning of the log.
///
/// ```text
/// restore? ─▶ apply(i) ─▶ apply(i+1) ─▶ … ─▶ segment_started(first) ─▶ checkpoint() ─▶ apply(first) ─▶ …
/// ```
///
/// A machine must:
/// - be deterministic: the same payloads in the same order give the same state and outputs on every replica;
/// - not assume that `apply` sees dense indexes: entries of the log's own (blank, membership) are left out;
/// - accept that after a restart entries since the last checkpoint are applied again, starting from [`StateMachine::restore`]
///   of that checkpoint (or from the empty state, if there is none).
pub trait StateMachine: Send + 'static {
    /// What one entry's application answers to its proposer.
    type Output: Send + 'static;

    /// Applies one committed proposal. Called in log order, each index once in one life.
    fn apply(&mut self, index: LogIndex, term: Term, payload: Bytes) -> Self::Output;

    /// The entry `first` opens a new segment and everything before it is applied: the moment to write derived files.
    /// An error stops the node.
    ///
    /// Called again with the same `first` after a restart if the crash came before that boundary's checkpoint was durable.
    fn segment_started(&mut self, first: LogIndex) -> io::Result<()>;

    /// The state as of the last applied entry.
    fn checkpoint(&self) -> Vec<u8>;

    /// How many of the messages in a proposal were acknowledged to their senders before it was committed. If another leader
    /// overrides it, the log keeps it aside instead of dropping it.
    fn acknowledged_early(_payload: &[u8]) -> u64
    where
        Self: Sized,
    {
        0
    }

    /// The same as [`StateMachine::checkpoint`] in two steps: the state is held fast now, while entries wait, and made into
    /// bytes by what is returned, elsewhere and later, or never. Side files that it writes are durable when it returns.
    fn checkpoint_later(&self) -> LaterCheckpoint {
        let state = Bytes::from(self.checkpoint());
        Box::new(move || Ok(CheckpointBytes { state: state.clone(), beside_bytes: 0 }))
    }

    /// The files besides the state itself that `checkpoint`, one of this machine's own, relies on: another node needs
    /// them to restore it. They stay as they are for as long as the checkpoint is kept.
    fn side_files(&self, checkpoint: &[u8]) -> Result<Vec<SideFile>, RestoreError> {
        let _ = checkpoint;
        Ok(Vec::new())
    }

    /// Where a side file of this name, taken from a peer, is to be put before its checkpoint is restored; `None` if this
    /// machine has no such files. The name of another content is another one, so nothing of value is ever replaced.
    fn side_file_path(&self, name: &str) -> Option<PathBuf> {
        let _ = name;
        None
    }

    /// How the content of a side file is checked, before it is sent and where it arrived: what is wrong with it.
    fn side_file_check(&self) -> SideFileCheck {
        |_, _| Ok(())
    }

    /// Only the checkpoints of these entries, rising, are kept, and those that are still being made: side files that only
    /// others relied on may go.
    fn checkpoints_kept(&mut self, kept: &[LogIndex]) {
        let _ = kept;
    }

    /// A hash over all that must be equal on every replica that has applied the same entries, and the version of the way
    /// it is made: only digests of one version are compared, so a new release that hashes otherwise counts up. `None`: this
    /// machine does not compare. It is asked behind every few thousandth entry, while entries wait, so it must be cheap.
    fn digest(&self) -> Option<(u32, u128)> {
        None
    }

    /// Replaces the whole state by that of a checkpoint whose last applied entry is `applied`. Before the first `apply`
    /// if a checkpoint exists, and whenever a snapshot is installed. After an error the state must be what it was: at a start
    /// an older checkpoint is tried next, and without any the log is applied from its first entry on.
    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError>;
}

/// A file that a checkpoint relies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SideFile {
    /// Its name, which tells its content: the same name is the same content on every node.
    pub name: String,
    /// Where it is.
    pub path: PathBuf,
}

/// A checkpoint that the machine could not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("checkpoint cannot be restored: {0}")]
pub struct RestoreError(pub String);
