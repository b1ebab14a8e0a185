//! Reads a stretch of a file in pieces, so that a walk over many records costs few calls.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use crate::DiskFile;

/// The first piece, bytes: what a single entry needs at most, mostly.
const FIRST_BYTES: u64 = 64 << 10;
/// Each piece is twice the one before, up to this.
const PIECE_BYTES_MAX: u64 = 1 << 20;
/// Cached pages stay for so long behind a reader of old entries: others may follow at its heels.
const COLD_LAG_BYTES: u64 = 8 << 20;
/// They are dropped in steps of this many bytes.
const COLD_STEP_BYTES: u64 = 64 << 10;

/// A reader of `..end` of a file, forwards.
pub(super) struct ReadAhead {
    file: Arc<dyn DiskFile>,
    end: u64,
    piece: Bytes,
    piece_at: u64,
    next_bytes: u64,
    is_cold: bool,
}

impl ReadAhead {
    /// Nothing behind `end` is read unless it is asked for. A cold reader leaves nothing in the page cache for long: what it
    /// reads must not push out what is read at the tail.
    pub(super) fn new(file: Arc<dyn DiskFile>, end: u64, is_cold: bool) -> ReadAhead {
        ReadAhead { file, end, piece: Bytes::new(), piece_at: 0, next_bytes: FIRST_BYTES, is_cold }
    }

    /// Exactly `len` bytes at `position`.
    pub(super) fn get(&mut self, position: u64, len: usize) -> io::Result<Bytes> {
        if let Some(from) = position.checked_sub(self.piece_at).and_then(|from| usize::try_from(from).ok())
            && from.checked_add(len).is_some_and(|end| end <= self.piece.len())
        {
            return Ok(self.piece.slice(from..from + len));
        }
        let ahead = self.next_bytes.min(self.end.saturating_sub(position));
        let piece_bytes = usize::try_from(ahead).unwrap_or(len).max(len);
        self.piece = self.file.read_at(position, piece_bytes)?;
        self.piece_at = position;
        self.next_bytes = (self.next_bytes * 2).min(PIECE_BYTES_MAX);
        if self.is_cold {
            self.forget_behind(position + piece_bytes as u64);
        }
        Ok(self.piece.slice(..len))
    }

    /// Drops what lies far enough behind, in steps that depend on the place only: readers of single entries do it too.
    fn forget_behind(&self, read_to: u64) {
        let lag = COLD_LAG_BYTES.min(self.file.len() / 16);
        let step = |at: u64| at.saturating_sub(lag) / COLD_STEP_BYTES * COLD_STEP_BYTES;
        let (from, to) = (step(self.piece_at), step(read_to));
        if from < to {
            self.file.forget_cached(from, to - from);
        }
    }
}
