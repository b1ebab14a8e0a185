//! A group of one from a copy.

use std::io;
use std::path::{Path, PathBuf};

use flotilla_runtime::Runtime;

use crate::disk::{Disk, read_file};
use crate::identity::{IDENTITY_FILE, Identity, Origin, new_incarnation};
use crate::ids::EntryId;
use crate::recovery_order::RecoveryOrder;
use crate::{Incarnation, LogIndex, NodeId, Term};

/// What a copy was made into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Founded {
    /// The replica that goes on.
    pub node: NodeId,
    /// The life of its directory.
    pub incarnation: Incarnation,
    /// The epoch in which the group goes on.
    pub epoch: u16,
}

/// Why it was not.
#[derive(Debug, thiserror::Error)]
pub enum FoundError {
    /// It is the directory of a replica.
    #[error("{} is no copy: its identity is a replica's own, which may have voted", dir.display())]
    NoCopy {
        /// The directory.
        dir: PathBuf,
    },
    /// It cannot be read or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Makes the log in `dir`, a copy that ends with `last`, that of replica `node`, in a life of its own; its first start founds a group of
/// this replica alone, in `epoch`. Durable when it returns. Blocks.
///
/// # Errors
/// [`FoundError`].
pub fn found_from_backup(
    disk: &dyn Disk,
    dir: &Path,
    node: NodeId,
    epoch: u16,
    last: (Term, LogIndex),
    runtime: &Runtime,
) -> Result<Founded, FoundError> {
    let path = dir.join(IDENTITY_FILE);
    let io = |source| FoundError::Io { path: path.clone(), source };
    let bytes = read_file(disk, &path).map_err(io)?;
    let copied = Identity::decode(bytes).map_err(|what| io(io::Error::new(io::ErrorKind::InvalidData, what)))?;
    if copied.given_up != u16::MAX {
        return Err(FoundError::NoCopy { dir: dir.to_owned() });
    }
    let incarnation = new_incarnation(runtime);
    let order = RecoveryOrder {
        node,
        incarnation,
        epoch,
        last: EntryId { term: last.0, index: last.1 },
        // Its settings say it at the first start.
        contact: String::new(),
    };
    // Before the identity: without the order it is still a copy.
    order.write(disk, dir).map_err(io)?;
    let identity = Identity {
        node,
        incarnation,
        origin: Origin::Founder,
        promised: std::collections::BTreeMap::new(),
        given_up: 0,
        ..copied
    };
    identity.write(disk, dir).map_err(io)?;
    Ok(Founded { node, incarnation, epoch })
}
