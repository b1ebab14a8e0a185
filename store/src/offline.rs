//! What tools want to know of a store that is not open: what a checkpoint holds, and whether index files are sound.

use std::io;
use std::path::Path;

use flotilla_raft_log::Disk;
use serde::Serialize;

use crate::StoreError;
use crate::checkpoint::{self, PartFile, PartFileId, parse_part_file_name};
use crate::index_file::{IndexFile, IndexFileId, parse_index_file_name};
use crate::machine::DAMAGED_ENDING;

/// What a checkpoint's state holds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StateSummary {
    /// Log index of the last entry applied.
    pub applied: u64,
    /// Log time, milliseconds since the Unix epoch.
    pub log_time_ms: u64,
    /// Topics.
    pub topics: u64,
    /// Queues of all topics.
    pub queues: u64,
    /// Slots of all queues, those in index files included.
    pub slots: u64,
    /// Consumer groups.
    pub groups: u64,
    /// Log index where the slots begin that are in the checkpoint itself.
    pub open_index: u64,
    /// The index files that it relies on.
    pub index_files: Vec<IndexFileMark>,
    /// The part files that it is made of, oldest first.
    pub part_files: Vec<String>,
}

/// A part file that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PartFileRow {
    /// Its name.
    pub file: String,
    /// Log index of the checkpoint that wrote it.
    pub index: u64,
    /// Its length.
    pub bytes: u64,
    /// Parts of the state in it, those that say that nothing is left included.
    pub parts: u64,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// An index file as a checkpoint names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct IndexFileMark {
    /// Log index of the first entry that it covers, also in its name.
    pub first_index: u64,
    /// Log index of the last one.
    pub last_index: u64,
    /// The checksum of its header, which covers all of it; also in its name.
    pub header_crc: u32,
}

impl IndexFileMark {
    /// The file's name.
    pub fn file_name(&self) -> String {
        let IndexFileMark { first_index, last_index, header_crc } = *self;
        IndexFileId { first_index, last_index, header_crc }.file_name()
    }
}

/// An index file that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct IndexFileRow {
    /// Its name.
    pub file: String,
    /// Its first and last entry and checksum; `None` if header or tables are damaged.
    pub mark: Option<IndexFileMark>,
    /// Queues that it has slots of.
    pub queues: u64,
    /// Slots.
    pub slots: u64,
    /// What is wrong with it.
    pub damage: Option<String>,
}

/// Reads the state in a checkpoint of the log, with the part files in `dir` that it is made of.
///
/// # Errors
/// What is wrong with it.
pub fn summarize(disk: &dyn Disk, dir: &Path, checkpoint: &[u8]) -> Result<StateSummary, String> {
    let checkpoint::Restored { head, state } = checkpoint::load(disk, dir, checkpoint)?;
    let queues = || state.topics.values().flat_map(|topic| &topic.queues);
    let marks = head.index_files.iter().map(|id| IndexFileMark {
        first_index: id.first_index,
        last_index: id.last_index,
        header_crc: id.header_crc,
    });
    Ok(StateSummary {
        applied: state.applied,
        log_time_ms: state.log_time_ms,
        topics: state.topics.len() as u64,
        queues: queues().count() as u64,
        slots: queues().map(|queue| queue.max() - queue.min()).sum(),
        groups: state.groups.len() as u64,
        open_index: head.open_index,
        index_files: marks.collect(),
        part_files: head.part_files.iter().map(PartFileId::file_name).collect(),
    })
}

/// The names of the files in the store's folder that a checkpoint's state relies on.
///
/// # Errors
/// What is wrong with the state.
pub fn side_file_names(checkpoint: &[u8]) -> Result<Vec<String>, String> {
    let (head, _) = checkpoint::decode_head(checkpoint)?;
    let index_files = head.index_files.iter().map(IndexFileId::file_name);
    Ok(index_files.chain(head.part_files.iter().map(PartFileId::file_name)).collect())
}

/// Looks at every part file in `dir`, at all of each.
///
/// # Errors
/// If the directory cannot be listed. Damage is in the rows.
pub fn part_files(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<PartFileRow>> {
    let names = disk.list(dir)?;
    let marked = names.iter().filter_map(|name| Some((name, parse_part_file_name(name)?)));
    let look_at = |(name, (index, crc)): (&String, (u64, u32))| {
        let mut row = PartFileRow { file: name.clone(), index, bytes: 0, parts: 0, damage: None };
        match PartFile::open(disk, &dir.join(name)) {
            Ok(file) => {
                (row.bytes, row.parts) = (file.id.bytes, file.parts.len() as u64);
                if (file.id.index, file.id.header_crc) != (index, crc) {
                    row.damage = Some("it is another one than its name says".to_owned());
                }
            }
            Err(what) => row.damage = Some(what),
        }
        row
    };
    Ok(marked.map(look_at).collect())
}

/// Looks at every index file in `dir`, at all of each with `all_blocks`, else at header and tables.
///
/// # Errors
/// If the directory cannot be listed. Damage is in the rows.
pub fn index_files(disk: &dyn Disk, dir: &Path, all_blocks: bool) -> io::Result<Vec<IndexFileRow>> {
    let names = disk.list(dir)?;
    let marked = names.iter().filter_map(|name| Some((name, parse_index_file_name(name)?)));
    Ok(marked.map(|(name, said)| look_at(disk, dir, name, said, all_blocks)).collect())
}

/// The names of index files that a replica found damaged and set aside.
///
/// # Errors
/// If the directory cannot be listed.
pub fn set_aside(disk: &dyn Disk, dir: &Path) -> io::Result<Vec<String>> {
    Ok(disk.list(dir)?.into_iter().filter(|name| name.ends_with(DAMAGED_ENDING)).collect())
}

/// `said` is what its name says: first index and checksum.
fn look_at(disk: &dyn Disk, dir: &Path, name: &str, said: (u64, u32), all_blocks: bool) -> IndexFileRow {
    let mut row = IndexFileRow { file: name.to_owned(), mark: None, queues: 0, slots: 0, damage: None };
    let (file, rows) = match IndexFile::open_at(disk, dir.join(name)) {
        Ok(opened) => opened,
        Err(error) => {
            row.damage = Some(what(error));
            return row;
        }
    };
    let id = file.id();
    row.mark =
        Some(IndexFileMark { first_index: id.first_index, last_index: id.last_index, header_crc: id.header_crc });
    row.queues = rows.len() as u64;
    row.slots = rows.iter().map(|row| u64::from(row.slot_count)).sum();
    if (id.first_index, id.header_crc) != said {
        row.damage = Some("it is another one than its name says".to_owned());
    } else if all_blocks && let Err(error) = file.verify() {
        row.damage = Some(what(error));
    }
    row
}

/// Without the path, which the row tells.
fn what(error: StoreError) -> String {
    match error {
        StoreError::Io { source, .. } => source.to_string(),
        StoreError::DamagedIndex { what, .. } => what,
        error @ StoreError::LevelTooHigh { .. } => error.to_string(),
    }
}
