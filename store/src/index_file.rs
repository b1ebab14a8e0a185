//! One index file per log segment: the queue slots that the segment's entries made.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};
use flotilla_message::MessageRef;
use flotilla_raft_log::{Disk, DiskFile, write_file_atomically};

use crate::{Slot, StoreError};

/// The numbers of the file format; `docs/formats/index-file.md` draws it.
mod layout {
    pub const MAGIC: [u8; 8] = *b"FLOTIDX2";
    pub const VERSION: u32 = 2;
    pub const VERSION_AT: usize = 8;
    pub const QUEUE_COUNT_AT: usize = 12;
    pub const FILE_BYTES_AT: usize = 16;
    pub const FIRST_INDEX_AT: usize = 24;
    pub const LAST_INDEX_AT: usize = 32;
    pub const SLOT_COUNT_AT: usize = 40;
    pub const BLOCK_COUNT_AT: usize = 48;
    pub const TABLES_CRC_AT: usize = 52;
    pub const HEADER_CRC_AT: usize = 60;
    pub const HEADER_BYTES: usize = 64;

    pub const QUEUE_ROW_BYTES: usize = 32;
    pub const SLOT_BYTES: usize = 32;
    pub const BLOCK_SLOTS: u64 = 128;
    /// In a slot's length: the slot is a reference.
    pub const REFERENCE_BIT: u32 = 1 << 31;
}

/// The slots of one queue in one file: a dense range of offsets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct QueueRow {
    pub topic_uid: u64,
    pub queue: u32,
    pub slot_count: u32,
    pub first_offset: u64,
    /// Place of its first slot among all slots of the file.
    pub first_slot: u64,
}

/// What a checkpoint says of a file it relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, bincode::Encode, bincode::Decode)]
pub(crate) struct IndexFileId {
    pub first_index: u64,
    pub last_index: u64,
    /// The file's header checksum, which covers those of its tables and so of every slot.
    pub header_crc: u32,
}

/// An index file, open for reading; its header and tables were checked, each block of slots is
/// checked whenever it is read.
pub(crate) struct IndexFile {
    path: PathBuf,
    file: Arc<dyn DiskFile>,
    id: IndexFileId,
    slot_count: u64,
    block_crcs: Bytes,
    slots_at: u64,
}

impl std::fmt::Debug for IndexFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "IndexFile({}, {} slots)", self.path.display(), self.slot_count)
    }
}

impl IndexFileId {
    /// The file's name. The checksum is in it, so that a file taken from a peer never takes the place of another one.
    pub fn file_name(&self) -> String {
        format!("{NAME_START}{:020}-{:08x}{NAME_END}", self.first_index, self.header_crc)
    }
}

const NAME_START: &str = "index-";
const NAME_END: &str = ".idx";

/// Whether a file of this name may be an index file.
pub(crate) fn is_index_file_name(name: &str) -> bool {
    name.starts_with(NAME_START) && name.ends_with(NAME_END) && !name.contains(['/', '\\'])
}

/// First index and checksum as a file's name tells them.
pub(crate) fn parse_index_file_name(name: &str) -> Option<(u64, u32)> {
    let (index, crc) = name.strip_prefix(NAME_START)?.strip_suffix(NAME_END)?.split_once('-')?;
    let is_whole = index.len() == 20 && crc.len() == 8;
    is_whole.then_some(())?;
    Some((index.parse().ok()?, u32::from_str_radix(crc, 16).ok()?))
}

/// Collects the slots of a segment, queue by queue, rising by (topic, queue).
#[derive(Debug, Default)]
pub(crate) struct IndexFileBuilder {
    rows: Vec<QueueRow>,
    slots: BytesMut,
    slot_count: u64,
}

impl IndexFileBuilder {
    pub fn push(&mut self, topic_uid: u64, queue: u32, first_offset: u64, slots: &[Slot]) {
        self.rows.push(QueueRow {
            topic_uid,
            queue,
            slot_count: slots.len() as u32,
            first_offset,
            first_slot: self.slot_count,
        });
        self.slot_count += slots.len() as u64;
        self.slots.reserve(slots.len() * layout::SLOT_BYTES);
        for slot in slots {
            self.slots.put_u64_le(slot.message.index);
            self.slots.put_u32_le(slot.message.ordinal);
            self.slots.put_u32_le(slot.position);
            let flag = if slot.is_reference { layout::REFERENCE_BIT } else { 0 };
            self.slots.put_u32_le(slot.length | flag);
            self.slots.put_u32_le(slot.tag_hash);
            self.slots.put_u64_le(slot.stored_at_ms);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Writes the file such that a crash leaves all of it or nothing, and opens it.
    pub fn write(
        self,
        disk: &dyn Disk,
        dir: &Path,
        first_index: u64,
        last_index: u64,
    ) -> Result<(IndexFile, Vec<QueueRow>), StoreError> {
        let bytes = self.encode(first_index, last_index);
        let header_crc = u32_at(&bytes, layout::HEADER_CRC_AT);
        let id = IndexFileId { first_index, last_index, header_crc };
        let name = id.file_name();
        let path = dir.join(&name);
        write_file_atomically(disk, dir, &name, &bytes).map_err(|source| io_error(&path, source))?;
        IndexFile::open(disk, dir, id)
    }

    fn encode(&self, first_index: u64, last_index: u64) -> Bytes {
        let block_bytes = layout::BLOCK_SLOTS as usize * layout::SLOT_BYTES;
        let block_count = self.slots.len().div_ceil(block_bytes);
        let tables_bytes = self.rows.len() * layout::QUEUE_ROW_BYTES + block_count * 4;
        let file_bytes = layout::HEADER_BYTES + tables_bytes + self.slots.len();

        let mut tables = BytesMut::with_capacity(tables_bytes);
        for row in &self.rows {
            tables.put_u64_le(row.topic_uid);
            tables.put_u32_le(row.queue);
            tables.put_u32_le(row.slot_count);
            tables.put_u64_le(row.first_offset);
            tables.put_u64_le(row.first_slot);
        }
        for block in self.slots.chunks(block_bytes) {
            tables.put_u32_le(crc32c::crc32c(block));
        }

        let mut out = BytesMut::with_capacity(file_bytes);
        out.put_slice(&layout::MAGIC);
        out.put_u32_le(layout::VERSION);
        out.put_u32_le(self.rows.len() as u32);
        out.put_u64_le(file_bytes as u64);
        out.put_u64_le(first_index);
        out.put_u64_le(last_index);
        out.put_u64_le(self.slot_count);
        out.put_u32_le(block_count as u32);
        out.put_u32_le(crc32c::crc32c(&tables));
        out.put_u32_le(0);
        let header_crc = crc32c::crc32c(&out);
        out.put_u32_le(header_crc);
        debug_assert_eq!(out.len(), layout::HEADER_BYTES);
        out.put_slice(&tables);
        out.put_slice(&self.slots);
        out.freeze()
    }
}

impl IndexFile {
    /// Opens a file and checks all of it but the slots.
    pub fn open(disk: &dyn Disk, dir: &Path, expected: IndexFileId) -> Result<(IndexFile, Vec<QueueRow>), StoreError> {
        let (file, rows) = IndexFile::open_at(disk, dir.join(expected.file_name()))?;
        if file.id != expected {
            return Err(file.damaged("it is another one than its name says".to_owned()));
        }
        Ok((file, rows))
    }

    /// Opens it whatever its name says.
    pub fn open_at(disk: &dyn Disk, path: PathBuf) -> Result<(IndexFile, Vec<QueueRow>), StoreError> {
        let file = disk.open(&path).map_err(|source| io_error(&path, source))?;
        let damaged = |what: &str| StoreError::DamagedIndex { path: path.clone(), what: what.to_owned() };
        if file.len() < layout::HEADER_BYTES as u64 {
            return Err(damaged("the header is cut off"));
        }
        let header = read(&path, &*file, 0, layout::HEADER_BYTES)?;
        if header[..8] != layout::MAGIC {
            return Err(damaged("it does not begin with its magic"));
        }
        if u32_at(&header, layout::HEADER_CRC_AT) != crc32c::crc32c(&header[..layout::HEADER_CRC_AT]) {
            return Err(damaged("the header does not fit its checksum"));
        }
        if u32_at(&header, layout::VERSION_AT) != layout::VERSION {
            return Err(damaged("its version is unknown"));
        }
        let id = IndexFileId {
            first_index: u64_at(&header, layout::FIRST_INDEX_AT),
            last_index: u64_at(&header, layout::LAST_INDEX_AT),
            header_crc: u32_at(&header, layout::HEADER_CRC_AT),
        };
        let queue_count = u64::from(u32_at(&header, layout::QUEUE_COUNT_AT));
        let block_count = u64::from(u32_at(&header, layout::BLOCK_COUNT_AT));
        let slot_count = u64_at(&header, layout::SLOT_COUNT_AT);
        let rows_bytes = queue_count * layout::QUEUE_ROW_BYTES as u64;
        let tables_bytes = rows_bytes + block_count * 4;
        let slots_at = layout::HEADER_BYTES as u64 + tables_bytes;
        let end = slot_count.checked_mul(layout::SLOT_BYTES as u64).and_then(|bytes| bytes.checked_add(slots_at));
        if end != Some(file.len())
            || u64_at(&header, layout::FILE_BYTES_AT) != file.len()
            || slot_count.div_ceil(layout::BLOCK_SLOTS) != block_count
        {
            return Err(damaged("its lengths do not add up"));
        }
        let tables = read(&path, &*file, layout::HEADER_BYTES as u64, tables_bytes as usize)?;
        if u32_at(&header, layout::TABLES_CRC_AT) != crc32c::crc32c(&tables) {
            return Err(damaged("the tables do not fit their checksum"));
        }
        let rows = read_rows(&tables[..rows_bytes as usize]);
        let mut next_slot = 0;
        for row in &rows {
            if row.first_slot != next_slot || row.slot_count == 0 {
                return Err(damaged("the queue table does not add up"));
            }
            next_slot += u64::from(row.slot_count);
        }
        if next_slot != slot_count {
            return Err(damaged("the queue table does not add up"));
        }
        let index_file = IndexFile {
            // A copy of its own, so that the tables' pages need not stay mapped.
            block_crcs: Bytes::copy_from_slice(&tables[rows_bytes as usize..]),
            path,
            file,
            id,
            slot_count,
            slots_at,
        };
        Ok((index_file, rows))
    }

    pub fn id(&self) -> IndexFileId {
        self.id
    }

    /// Reads `count` slots from place `first` on, and checks every block they touch.
    pub fn read_slots(&self, first: u64, count: u64, out: &mut Vec<Slot>) -> Result<(), StoreError> {
        let end = first.saturating_add(count);
        if end > self.slot_count {
            return Err(self.damaged(format!("slots up to {end} are asked for, it has {}", self.slot_count)));
        }
        let mut at = first;
        while at < end {
            let block = at / layout::BLOCK_SLOTS;
            let block_first = block * layout::BLOCK_SLOTS;
            let block_end = (block_first + layout::BLOCK_SLOTS).min(self.slot_count);
            let bytes = self.read_block(block, block_first, block_end)?;
            let until = block_end.min(end);
            for slot in at..until {
                out.push(read_slot(&bytes[(slot - block_first) as usize * layout::SLOT_BYTES..]));
            }
            at = until;
        }
        Ok(())
    }

    fn read_block(&self, block: u64, first: u64, end: u64) -> Result<Bytes, StoreError> {
        let at = self.slots_at + first * layout::SLOT_BYTES as u64;
        let len = (end - first) as usize * layout::SLOT_BYTES;
        let bytes = read(&self.path, &*self.file, at, len)?;
        if crc32c::crc32c(&bytes) != u32_at(&self.block_crcs, block as usize * 4) {
            return Err(self.damaged(format!("block {block} at byte {at} does not fit its checksum")));
        }
        Ok(bytes)
    }

    /// Reads every slot, to find damage.
    pub fn verify(&self) -> Result<(), StoreError> {
        for block in 0..self.slot_count.div_ceil(layout::BLOCK_SLOTS) {
            let first = block * layout::BLOCK_SLOTS;
            self.read_block(block, first, (first + layout::BLOCK_SLOTS).min(self.slot_count))?;
        }
        Ok(())
    }

    fn damaged(&self, what: String) -> StoreError {
        StoreError::DamagedIndex { path: self.path.clone(), what }
    }
}

fn read(path: &Path, file: &dyn DiskFile, at: u64, len: usize) -> Result<Bytes, StoreError> {
    file.read_at(at, len).map_err(|source| io_error(path, source))
}

fn io_error(path: &Path, source: io::Error) -> StoreError {
    StoreError::Io { path: path.to_owned(), source }
}

fn read_rows(bytes: &[u8]) -> Vec<QueueRow> {
    let rows = bytes.chunks_exact(layout::QUEUE_ROW_BYTES);
    rows.map(|row| QueueRow {
        topic_uid: u64_at(row, 0),
        queue: u32_at(row, 8),
        slot_count: u32_at(row, 12),
        first_offset: u64_at(row, 16),
        first_slot: u64_at(row, 24),
    })
    .collect()
}

fn read_slot(bytes: &[u8]) -> Slot {
    let (index, length) = (u64_at(bytes, 0), u32_at(bytes, 16));
    Slot {
        message: MessageRef { index, ordinal: u32_at(bytes, 8) },
        entry: index,
        position: u32_at(bytes, 12),
        length: length & !layout::REFERENCE_BIT,
        is_reference: length & layout::REFERENCE_BIT != 0,
        tag_hash: u32_at(bytes, 20),
        stored_at_ms: u64_at(bytes, 24),
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | (u64::from(u32_at(bytes, at + 4)) << 32)
}
