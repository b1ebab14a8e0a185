//! The part files of one store: which make the next checkpoint's chain, and which are of no use any more.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use flotilla_raft_log::{CheckpointBytes, Disk, LogIndex, write_file_atomically};

use super::FrozenState;
use super::head::{self, Head};
use super::pack::{PartFileId, parse_part_file_name};

/// Most part files of a checkpoint. The next one holds all of the state again.
const CHAIN_MAX: usize = 32;

/// Part files, oldest first. Whoever holds one of these keeps them on the disk.
type Chain = Vec<Arc<PartFileId>>;

/// Cheap handle to the part files in a directory.
#[derive(Clone)]
pub(crate) struct PartFiles {
    inner: Arc<Inner>,
}

struct Inner {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    files: Mutex<Files>,
}

#[derive(Default)]
struct Files {
    /// Checkpoints that were held fast so far, those of earlier lives included.
    frozen: u64,
    /// The last one of them whose part file is durable.
    written: u64,
    /// What that one relies on.
    chain: Chain,
    /// All that are there and known.
    known: Vec<Known>,
}

/// A part file on disk.
struct Known {
    name: String,
    index: u64,
    id: Option<Arc<PartFileId>>,
    /// The last checkpoint that relies on it; those before, from its own on, do too.
    last_named: u64,
}

/// What the next checkpoint builds on.
pub(crate) struct Basis {
    /// Counts checkpoints.
    pub number: u64,
    /// Empty: the checkpoint is to hold all of the state.
    chain: Chain,
}

impl Basis {
    /// Whether the checkpoint is to hold all of the state.
    pub fn is_empty(&self) -> bool {
        self.chain.is_empty()
    }
}

/// A checkpoint's bytes; the files that it relies on stay for as long as it is kept.
struct Holding {
    bytes: Vec<u8>,
    _chain: Chain,
}

impl AsRef<[u8]> for Holding {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl PartFiles {
    pub fn new(disk: Arc<dyn Disk>, dir: PathBuf) -> PartFiles {
        PartFiles { inner: Arc::new(Inner { disk, dir, files: Mutex::default() }) }
    }

    fn files(&self) -> MutexGuard<'_, Files> {
        self.inner.files.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a checkpoint that is held fast now builds on. If the one before is not written yet, or failed, that is nothing:
    /// what changed before it was held fast is noted nowhere else.
    pub fn next(&self) -> Basis {
        let mut files = self.files();
        let is_whole = files.written == files.frozen;
        files.frozen += 1;
        let (first, later) = files
            .chain
            .split_first()
            .map_or((0, 0), |(first, later)| (first.bytes, later.iter().map(|file| file.bytes).sum()));
        let goes_on = is_whole && files.chain.len() < CHAIN_MAX && later <= first;
        Basis { number: files.frozen, chain: if goes_on { files.chain.clone() } else { Vec::new() } }
    }

    /// Writes the parts and answers the checkpoint that names them. Durable when this returns. Blocks.
    pub fn write(&self, frozen: &FrozenState, basis: &Basis) -> io::Result<CheckpointBytes> {
        let (number, mut chain) = (basis.number, basis.chain.clone());
        let parts = frozen.encode();
        let index = frozen.head.applied;
        let mut beside_bytes = 0;
        if !parts.is_empty() || chain.is_empty() {
            let (id, bytes) = parts.finish(index);
            write_file_atomically(&*self.inner.disk, &self.inner.dir, &id.file_name(), &bytes)?;
            beside_bytes = id.bytes;
            chain.push(Arc::new(id));
        }
        let part_files = chain.iter().map(|file| **file).collect();
        let bytes = head::encode(&Head { part_files, ..frozen.head.clone() }, frozen.feature_level);
        let mut files = self.files();
        files.name(&chain, index);
        if number > files.written {
            (files.written, files.chain) = (number, chain.clone());
        }
        Ok(CheckpointBytes { state: Bytes::from_owner(Holding { bytes, _chain: chain }), beside_bytes })
    }

    /// The state was restored from a checkpoint with that head: the next one builds on it.
    pub fn restored(&self, head: &Head) -> io::Result<()> {
        let chain: Chain = head.part_files.iter().map(|id| Arc::new(*id)).collect();
        let names = self.inner.disk.list(&self.inner.dir)?;
        let mut files = self.files();
        files.frozen = files.frozen.max(head.number) + 1;
        files.written = files.frozen;
        files.name(&chain, head.applied);
        files.chain = chain;
        for name in names {
            let Some((index, _)) = parse_part_file_name(&name) else { continue };
            if !files.known.iter().any(|known| known.name == name) {
                // Any older checkpoint may rely on it; a later one is not restored from, so none is kept.
                files.known.push(Known { name, index, id: None, last_named: head.applied });
            }
        }
        Ok(())
    }

    /// Removes those that none of the kept checkpoints relies on, nor one that is being written.
    pub fn kept(&self, checkpoints: &[LogIndex]) {
        let gone: Vec<Known> = {
            let mut files = self.files();
            let is_of_use = |known: &Known| {
                let is_held = known.id.as_ref().is_some_and(|id| Arc::strong_count(id) > 1);
                is_held || checkpoints.iter().any(|kept| (known.index..=known.last_named).contains(&kept.0))
            };
            files.known.extract_if(.., |known| !is_of_use(known)).collect()
        };
        for known in gone {
            // It is tried again after the next start.
            if let Err(error) = self.inner.disk.remove(&self.inner.dir.join(&known.name)) {
                tracing::warn!(name = known.name, %error, "part file could not be removed");
            }
        }
    }

    /// Where a file that a checkpoint names is.
    pub fn path(&self, id: &PartFileId) -> PathBuf {
        self.inner.dir.join(id.file_name())
    }
}

impl Files {
    /// The checkpoint of entry `index` relies on these.
    fn name(&mut self, chain: &Chain, index: u64) {
        for id in chain {
            let name = id.file_name();
            match self.known.iter_mut().find(|known| known.name == name) {
                Some(known) => {
                    known.last_named = known.last_named.max(index);
                    known.id = Some(id.clone());
                }
                None => self.known.push(Known { name, index: id.index, id: Some(id.clone()), last_named: index }),
            }
        }
    }
}
