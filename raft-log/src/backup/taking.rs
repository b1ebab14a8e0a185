//! A file that nobody changes any more on its way into a copy: linked, or copied where that cannot be, and read in any case.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::plan::Places;
use super::writing::Writing;
use super::{BackupError, BackupFile, io_at};
use crate::Corruption;
use crate::disk::DiskFile;
use crate::segment::{RecordStream, Unsound};

/// Files are read in pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 20;

pub(super) struct Taking {
    /// Within the copy.
    name: String,
    from: PathBuf,
    source: Arc<dyn DiskFile>,
    copy: Option<Writing>,
    at: u64,
    crc: u32,
    records: Option<RecordStream>,
}

/// What is taken.
pub(super) struct Original {
    pub(super) path: PathBuf,
    /// Where its name may go meanwhile.
    pub(super) held: Option<Arc<dyn DiskFile>>,
    /// Of a segment.
    pub(super) records: Option<RecordStream>,
}

impl Taking {
    /// Links it, or makes the file for its copy. `name` is its path within the copy. Blocks.
    pub(super) fn begin(places: &Places, from: Original, name: String) -> Result<Taking, BackupError> {
        let Original { path, held, records } = from;
        let to = places.request.into.join(&name);
        let open = |path: &Path| places.disk.open(path).map_err(io_at(path));
        let is_linked = places.disk.link(&path, &to).is_ok();
        let source = match (held, is_linked) {
            (_, true) => open(&to)?,
            (Some(held), false) => held,
            (None, false) => open(&path)?,
        };
        let copy = match is_linked {
            true => None,
            false => Some(Writing::begin(places, to, source.len())?),
        };
        Ok(Taking { name, from: path, source, copy, at: 0, crc: 0, records })
    }

    /// Reads the next piece, and copies it if it is not linked. How many bytes; 0 when all are done. Blocks.
    pub(super) fn step(&mut self, places: &Places) -> Result<u64, BackupError> {
        let piece = (self.source.len() - self.at).min(PIECE_BYTES);
        if piece == 0 {
            return Ok(0);
        }
        let len = usize::try_from(piece).expect("a piece is at most 1 MiB");
        let bytes = self.source.read_uncached(self.at, len).map_err(io_at(&self.from))?;
        if let Some(records) = &mut self.records {
            let looked = records.push(&bytes);
            looked.map_err(|found| self.damaged(places, found))?;
        }
        self.crc = crc32c::crc32c_append(self.crc, &bytes);
        if let Some(copy) = &mut self.copy {
            copy.push(&bytes)?;
        }
        self.at += piece;
        Ok(piece)
    }

    /// Durable when it returns, but for its name. Blocks.
    pub(super) fn finish(mut self, places: &Places) -> Result<BackupFile, BackupError> {
        if let Some(records) = self.records.take() {
            records.finish().map_err(|found| self.damaged(places, found))?;
        }
        let (bytes, crc32c, is_linked) = match self.copy {
            Some(copy) => {
                let (bytes, crc32c) = copy.finish()?;
                (bytes, crc32c, false)
            }
            None => {
                // Whoever wrote it may not have cared, as for a summary.
                self.source.sync_data().map_err(io_at(&self.from))?;
                (self.source.len(), self.crc, true)
            }
        };
        Ok(BackupFile { name: self.name, bytes, crc32c, is_linked })
    }

    /// The segment's own file is looked at closely then, and mended where another replica has what was lost.
    fn damaged(&self, places: &Places, found: Unsound) -> BackupError {
        let Unsound { offset, what } = found;
        let (sequence, file) = {
            let state = places.view.shared.state();
            let segment = state.segments.iter().find(|segment| *segment.path == *self.from);
            segment.map(|segment| (segment.header.sequence, segment.file.clone())).unzip()
        };
        if let (Some(sequence), Some(file)) = (sequence, file) {
            let what = format!("{what} (found by a backup)");
            let corruption = Corruption { path: self.from.clone(), offset, what };
            places.view.shared.damages.suspect(sequence, &file, &corruption);
        }
        let what = format!("byte {offset}: {what}; ask another replica, or try again once it is mended");
        BackupError::Unsound { path: self.from.clone(), what }
    }
}
