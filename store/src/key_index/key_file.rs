//! One file of the key index: entries sorted by hash, and the ranges of queues that they speak of.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use flotilla_raft_log::{Disk, DiskFile, write_file_atomically};

/// The numbers of the file format; `docs/formats/key-index-file.md` draws it.
mod layout {
    pub const MAGIC: [u8; 8] = *b"FLOTKEY1";
    pub const VERSION: u32 = 1;
    pub const HEADER_BYTES: usize = 64;
    pub const HEADER_CRC_AT: usize = 60;
    pub const RANGE_BYTES: usize = 32;
    pub const BLOCK_ROW_BYTES: usize = 16;
    pub const ENTRY_BYTES: usize = 24;
    pub const BLOCK_ENTRIES: usize = 128;
}

/// A stretch of one queue that was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyRange {
    pub topic_uid: u64,
    pub queue: u32,
    pub first_offset: u64,
    pub end_offset: u64,
}

/// A message that may have what is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct KeyEntry {
    pub hash: u64,
    /// Number of its range in the file.
    pub range: u32,
    /// Its offset within the range.
    pub place: u32,
    pub stored_at_ms: u64,
}

/// Why a file is of no use.
#[derive(Debug, thiserror::Error)]
pub(super) enum KeyFileError {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
}

/// A file open for reading; its header and tables were checked, each block is checked whenever it is read.
pub(super) struct KeyFile {
    pub path: PathBuf,
    pub ranges: Vec<KeyRange>,
    file: Arc<dyn DiskFile>,
    entry_count: u64,
    stored_ms: (u64, u64),
    /// First hash and checksum of each block.
    blocks: Vec<(u64, u32)>,
    entries_at: u64,
}

pub(super) fn file_name(number: u64) -> String {
    format!("keys-{number:020}.kix")
}

/// The number in a file's name; `None` if it is none of ours.
pub(super) fn number_of(name: &str) -> Option<u64> {
    name.strip_prefix("keys-")?.strip_suffix(".kix")?.parse().ok()
}

impl KeyFile {
    /// Writes a file such that a crash leaves all of it or nothing, and opens it.
    pub fn write(
        disk: &dyn Disk,
        dir: &Path,
        number: u64,
        ranges: &[KeyRange],
        mut entries: Vec<KeyEntry>,
    ) -> Result<KeyFile, KeyFileError> {
        entries.sort_unstable();
        write_file_atomically(disk, dir, &file_name(number), &encode(ranges, &entries))?;
        KeyFile::open(disk, dir, number)
    }

    /// Opens a file and checks all of it but the entries.
    pub fn open(disk: &dyn Disk, dir: &Path, number: u64) -> Result<KeyFile, KeyFileError> {
        let path = dir.join(file_name(number));
        let file = disk.open(&path)?;
        let damaged = |what| Err(KeyFileError::Damaged(what));
        if file.len() < layout::HEADER_BYTES as u64 {
            return damaged("the header is cut off");
        }
        let header = file.read_at(0, layout::HEADER_BYTES)?;
        if header[..8] != layout::MAGIC {
            return damaged("it does not begin with its magic");
        }
        let header_crc = (&header[layout::HEADER_CRC_AT..]).get_u32_le();
        if header_crc != crc32c::crc32c(&header[..layout::HEADER_CRC_AT]) {
            return damaged("the header does not fit its checksum");
        }
        let mut fields = &header[8..layout::HEADER_CRC_AT];
        if fields.get_u32_le() != layout::VERSION {
            return damaged("its version is unknown");
        }
        let range_count = fields.get_u32_le() as usize;
        let file_bytes = fields.get_u64_le();
        let entry_count = fields.get_u64_le();
        let stored_ms = (fields.get_u64_le(), fields.get_u64_le());
        let block_count = fields.get_u32_le() as usize;
        let tables_crc = fields.get_u32_le();
        let tables_bytes = range_count * layout::RANGE_BYTES + block_count * layout::BLOCK_ROW_BYTES;
        let entries_at = (layout::HEADER_BYTES + tables_bytes) as u64;
        let end = entry_count.checked_mul(layout::ENTRY_BYTES as u64).and_then(|bytes| bytes.checked_add(entries_at));
        if end != Some(file.len())
            || file_bytes != file.len()
            || entry_count.div_ceil(layout::BLOCK_ENTRIES as u64) != block_count as u64
        {
            return damaged("its lengths do not add up");
        }
        let tables = file.read_at(layout::HEADER_BYTES as u64, tables_bytes)?;
        if tables_crc != crc32c::crc32c(&tables) {
            return damaged("the tables do not fit their checksum");
        }
        let (mut rows, mut block_rows) = (&tables[..], &tables[range_count * layout::RANGE_BYTES..]);
        let mut ranges = Vec::with_capacity(range_count);
        for _ in 0..range_count {
            let (topic_uid, queue) = (rows.get_u64_le(), rows.get_u32_le());
            rows.advance(4);
            ranges.push(KeyRange { topic_uid, queue, first_offset: rows.get_u64_le(), end_offset: rows.get_u64_le() });
        }
        let mut blocks = Vec::with_capacity(block_count);
        for _ in 0..block_count {
            blocks.push((block_rows.get_u64_le(), block_rows.get_u32_le()));
            block_rows.advance(4);
        }
        Ok(KeyFile { path, ranges, file, entry_count, stored_ms, blocks, entries_at })
    }

    /// Puts the entries of `hash` stored in `stored_ms` (end excluded) behind `out`, at most `max`; answers whether these
    /// were all.
    pub fn find(
        &self,
        hash: u64,
        stored_ms: &std::ops::Range<u64>,
        max: usize,
        out: &mut Vec<KeyEntry>,
    ) -> Result<bool, KeyFileError> {
        if self.stored_ms.1 < stored_ms.start || self.stored_ms.0 >= stored_ms.end {
            return Ok(true);
        }
        // The last block that begins before the hash may hold the first of its entries.
        let first = self.blocks.partition_point(|(first_hash, _)| *first_hash < hash).saturating_sub(1);
        for number in first..self.blocks.len() {
            if self.blocks[number].0 > hash {
                break;
            }
            for entry in self.block(number)? {
                if entry.hash == hash && stored_ms.contains(&entry.stored_at_ms) {
                    if out.len() >= max {
                        return Ok(false);
                    }
                    out.push(entry);
                }
            }
        }
        Ok(true)
    }

    fn block(&self, number: usize) -> Result<impl Iterator<Item = KeyEntry>, KeyFileError> {
        let first = (number * layout::BLOCK_ENTRIES) as u64;
        let count = (self.entry_count - first).min(layout::BLOCK_ENTRIES as u64) as usize;
        let at = self.entries_at + first * layout::ENTRY_BYTES as u64;
        let mut bytes: Bytes = self.file.read_at(at, count * layout::ENTRY_BYTES)?;
        if crc32c::crc32c(&bytes) != self.blocks[number].1 {
            return Err(KeyFileError::Damaged("a block does not fit its checksum"));
        }
        Ok((0..count).map(move |_| KeyEntry {
            hash: bytes.get_u64_le(),
            range: bytes.get_u32_le(),
            place: bytes.get_u32_le(),
            stored_at_ms: bytes.get_u64_le(),
        }))
    }
}

fn encode(ranges: &[KeyRange], entries: &[KeyEntry]) -> Bytes {
    let mut body = BytesMut::with_capacity(entries.len() * layout::ENTRY_BYTES);
    for entry in entries {
        body.put_u64_le(entry.hash);
        body.put_u32_le(entry.range);
        body.put_u32_le(entry.place);
        body.put_u64_le(entry.stored_at_ms);
    }
    let mut tables = BytesMut::new();
    for range in ranges {
        tables.put_u64_le(range.topic_uid);
        tables.put_u32_le(range.queue);
        tables.put_u32_le(0);
        tables.put_u64_le(range.first_offset);
        tables.put_u64_le(range.end_offset);
    }
    let blocks = body.chunks(layout::BLOCK_ENTRIES * layout::ENTRY_BYTES);
    let block_count = blocks.len() as u32;
    for (block, entries) in blocks.zip(entries.chunks(layout::BLOCK_ENTRIES)) {
        tables.put_u64_le(entries[0].hash);
        tables.put_u32_le(crc32c::crc32c(block));
        tables.put_u32_le(0);
    }
    let stored = || entries.iter().map(|entry| entry.stored_at_ms);
    let mut out = BytesMut::with_capacity(layout::HEADER_BYTES + tables.len() + body.len());
    out.put_slice(&layout::MAGIC);
    out.put_u32_le(layout::VERSION);
    out.put_u32_le(ranges.len() as u32);
    out.put_u64_le((layout::HEADER_BYTES + tables.len() + body.len()) as u64);
    out.put_u64_le(entries.len() as u64);
    out.put_u64_le(stored().min().unwrap_or(0));
    out.put_u64_le(stored().max().unwrap_or(0));
    out.put_u32_le(block_count);
    out.put_u32_le(crc32c::crc32c(&tables));
    out.put_u32_le(0);
    let header_crc = crc32c::crc32c(&out);
    out.put_u32_le(header_crc);
    debug_assert_eq!(out.len(), layout::HEADER_BYTES);
    out.put_slice(&tables);
    out.put_slice(&body);
    out.freeze()
}
