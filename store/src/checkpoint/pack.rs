//! A part file: the parts of the state that one checkpoint wrote. `docs/formats/part-file.md` draws it.

use std::path::Path;

use bincode::{Decode, Encode};
use bytes::Bytes;
use flotilla_raft_log::{Disk, read_file};

use super::{BODY_BYTES_MAX, PartId, Table};

/// The numbers of the file format.
mod layout {
    pub const MAGIC: [u8; 8] = *b"FLOTPRT1";
    pub const VERSION: u32 = 1;
    pub const VERSION_AT: usize = 8;
    pub const TABLE_BYTES_AT: usize = 12;
    pub const FILE_BYTES_AT: usize = 16;
    pub const INDEX_AT: usize = 24;
    pub const TABLE_CRC_AT: usize = 32;
    pub const HEADER_CRC_AT: usize = 36;
    pub const HEADER_BYTES: usize = 40;
}

const NAME_START: &str = "state-";
const NAME_END: &str = ".part";

/// What a checkpoint says of a part file that it relies on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Encode, Decode)]
pub(crate) struct PartFileId {
    /// Log index of the checkpoint that wrote it.
    pub index: u64,
    /// The file's header checksum, which covers those of all its parts.
    pub header_crc: u32,
    /// Its length.
    pub bytes: u64,
}

impl PartFileId {
    /// The file's name. The checksum is in it, so that a file taken from a peer never takes the place of another one.
    pub fn file_name(&self) -> String {
        format!("{NAME_START}{:020}-{:08x}{NAME_END}", self.index, self.header_crc)
    }
}

/// Whether a file of this name may be a part file.
pub(crate) fn is_part_file_name(name: &str) -> bool {
    parse_part_file_name(name).is_some()
}

/// Index and checksum as a file's name tells them.
pub(crate) fn parse_part_file_name(name: &str) -> Option<(u64, u32)> {
    let (index, crc) = name.strip_prefix(NAME_START)?.strip_suffix(NAME_END)?.split_once('-')?;
    let is_whole = index.len() == 20 && crc.len() == 8;
    is_whole.then_some(())?;
    Some((index.parse().ok()?, u32::from_str_radix(crc, 16).ok()?))
}

#[derive(Encode, Decode)]
struct RowImage {
    table: u8,
    key: (u64, u64),
    /// Nothing is left of the part.
    is_gone: bool,
    bytes: u64,
    crc: u32,
}

/// Collects parts, rising by their ids.
#[derive(Default)]
pub(crate) struct PartFileBuilder {
    rows: Vec<RowImage>,
    content: Vec<u8>,
}

impl PartFileBuilder {
    /// `None`: nothing is left of the part.
    pub fn push(&mut self, id: PartId, content: Option<&[u8]>) {
        let bytes = content.unwrap_or_default();
        self.rows.push(RowImage {
            table: id.table as u8,
            key: id.key,
            is_gone: content.is_none(),
            bytes: bytes.len() as u64,
            crc: crc32c::crc32c(bytes),
        });
        self.content.extend_from_slice(bytes);
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The whole file, of the checkpoint of entry `index`.
    pub fn finish(self, index: u64) -> (PartFileId, Vec<u8>) {
        let table = bincode::encode_to_vec(&self.rows, bincode::config::standard())
            .expect("plain data encodes into memory without an error");
        let file_bytes = (layout::HEADER_BYTES + table.len() + self.content.len()) as u64;
        let mut out = Vec::with_capacity(file_bytes as usize);
        out.extend_from_slice(&layout::MAGIC);
        out.extend_from_slice(&layout::VERSION.to_le_bytes());
        out.extend_from_slice(&(table.len() as u32).to_le_bytes());
        out.extend_from_slice(&file_bytes.to_le_bytes());
        out.extend_from_slice(&index.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&table).to_le_bytes());
        let header_crc = crc32c::crc32c(&out);
        out.extend_from_slice(&header_crc.to_le_bytes());
        out.extend_from_slice(&table);
        out.extend_from_slice(&self.content);
        (PartFileId { index, header_crc, bytes: file_bytes }, out)
    }
}

/// A part file that was read, every byte of it checked.
pub(crate) struct PartFile {
    pub id: PartFileId,
    /// Each part's content; `None` if nothing is left of it.
    pub parts: Vec<(PartId, Option<Bytes>)>,
}

impl PartFile {
    /// Reads the file at `path`, all of it. `Err` tells what is wrong.
    pub fn open(disk: &dyn Disk, path: &Path) -> Result<PartFile, String> {
        PartFile::decode(&read_file(disk, path).map_err(|error| error.to_string())?)
    }

    fn decode(bytes: &Bytes) -> Result<PartFile, String> {
        let Some(header) = bytes.get(..layout::HEADER_BYTES) else {
            return Err(format!("it has {} bytes, its header alone has {}", bytes.len(), layout::HEADER_BYTES));
        };
        let u32_at = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        if header[..8] != layout::MAGIC {
            return Err("it does not begin with its magic".to_owned());
        }
        let header_crc = u32_at(layout::HEADER_CRC_AT);
        if header_crc != crc32c::crc32c(&header[..layout::HEADER_CRC_AT]) {
            return Err("its header does not fit its checksum".to_owned());
        }
        let version = u32_at(layout::VERSION_AT);
        if version != layout::VERSION {
            return Err(format!("its version is {version}, {} is known", layout::VERSION));
        }
        let file_bytes = u64_at(layout::FILE_BYTES_AT);
        if file_bytes != bytes.len() as u64 {
            return Err(format!("it has {} bytes, it says {file_bytes}", bytes.len()));
        }
        let table_end = layout::HEADER_BYTES + u32_at(layout::TABLE_BYTES_AT) as usize;
        let Some(table) = bytes.get(layout::HEADER_BYTES..table_end) else {
            return Err("it ends within its table".to_owned());
        };
        if u32_at(layout::TABLE_CRC_AT) != crc32c::crc32c(table) {
            return Err("its table does not fit its checksum".to_owned());
        }
        let config = bincode::config::standard().with_limit::<BODY_BYTES_MAX>();
        let (rows, used) = bincode::decode_from_slice::<Vec<RowImage>, _>(table, config)
            .map_err(|error| format!("its table: {error}"))?;
        if used != table.len() {
            return Err("bytes are left over behind its table".to_owned());
        }
        let mut parts = Vec::with_capacity(rows.len());
        let mut at = table_end;
        for row in rows {
            let table = Table::from_code(row.table).ok_or_else(|| format!("table {} is unknown", row.table))?;
            let end = usize::try_from(row.bytes).ok().and_then(|bytes| at.checked_add(bytes));
            let Some(end) = end.filter(|end| *end <= bytes.len()) else {
                return Err(format!("it ends within part {:?} of {table:?}", row.key));
            };
            let content = bytes.slice(at..end);
            if row.crc != crc32c::crc32c(&content) {
                return Err(format!("part {:?} of {table:?} at byte {at} does not fit its checksum", row.key));
            }
            at = end;
            parts.push((PartId { table, key: row.key }, (!row.is_gone).then_some(content)));
        }
        if at != bytes.len() {
            return Err(format!("{} bytes are left over behind its parts", bytes.len() - at));
        }
        Ok(PartFile { id: PartFileId { index: u64_at(layout::INDEX_AT), header_crc, bytes: file_bytes }, parts })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example(parts: &[(u64, Option<Vec<u8>>)]) -> (PartFileId, Vec<u8>) {
        let mut builder = PartFileBuilder::default();
        for (number, content) in parts {
            builder.push(PartId { table: Table::Timers, key: (*number, 0) }, content.as_deref());
        }
        builder.finish(77)
    }

    proptest! {
        #[test]
        fn parts_read_back_as_written(parts in prop::collection::vec((any::<u64>(), any::<Option<Vec<u8>>>()), 0..9)) {
            let (id, bytes) = example(&parts);
            let file = PartFile::decode(&bytes.into()).unwrap();
            prop_assert_eq!(file.id, id);
            prop_assert_eq!(parse_part_file_name(&id.file_name()), Some((77, id.header_crc)));
            let read: Vec<_> =
                file.parts.iter().map(|(id, content)| (id.key.0, content.as_ref().map(|bytes| bytes.to_vec()))).collect();
            prop_assert_eq!(read, parts);
        }

        #[test]
        fn damage_is_noticed(place: prop::sample::Index, bit in 0..8_u8, cut: Option<prop::sample::Index>) {
            let (_, mut bytes) = example(&[(1, Some(vec![1; 9])), (2, None), (3, Some(vec![3; 5]))]);
            match cut {
                Some(cut) => bytes.truncate(cut.index(bytes.len())),
                None => {
                    let at = place.index(bytes.len());
                    bytes[at] ^= 1 << bit;
                }
            }
            prop_assert!(PartFile::decode(&bytes.into()).is_err());
        }
    }
}
