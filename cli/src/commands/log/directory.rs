//! The folders of one replica: its log, and the index files beside it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use flotilla_raft_log::LogIndex;
use flotilla_raft_log::tools::{CheckpointRow, Damage, Depth, Examination, OfflineDisk, OfflineError, OfflineLog};
use flotilla_store::offline::{self, IndexFileMark, IndexFileRow, PartFileRow, StateSummary};
use serde::Serialize;

use crate::failure::Failure;

/// A replica's folders, held for reading.
pub struct Directory {
    pub log: OfflineLog,
    /// `None` if only the log's folder is there.
    store_dir: Option<PathBuf>,
}

/// Everything found in both.
#[derive(Serialize)]
pub struct Findings {
    #[serde(flatten)]
    pub log: Examination,
    /// What the state in each sound checkpoint holds, oldest first.
    pub states: Vec<StateRow>,
    pub index_files: Vec<IndexFileRow>,
    pub part_files: Vec<PartFileRow>,
    /// Index files that the replica found damaged itself.
    pub set_aside: Vec<String>,
    /// What was looked at.
    pub store_dir: Option<PathBuf>,
}

/// The state in one checkpoint.
#[derive(Serialize)]
pub struct StateRow {
    pub checkpoint: String,
    #[serde(flatten)]
    pub state: Option<StateSummary>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

impl Directory {
    /// Opens `dir` (a data folder, or a log folder).
    pub fn open(dir: &Path, force: bool) -> Result<Directory, Failure> {
        let inner = dir.join("log");
        let log_dir = if inner.is_dir() { inner } else { dir.to_owned() };
        let log = OfflineLog::open(Arc::new(OfflineDisk), &log_dir, force).map_err(|error| match error {
            OfflineError::NotALog { .. } | OfflineError::InUse { .. } => Failure::usage(error),
            OfflineError::Io { ref source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
                Failure::usage(error)
            }
            OfflineError::Io { .. } => Failure::from(error),
        })?;
        let store_dir = log_dir.parent().map(|parent| parent.join("store")).filter(|store| store.is_dir());
        Ok(Directory { log, store_dir })
    }

    /// Looks at everything.
    pub fn examine(&self, depth: Depth) -> Result<Findings, Failure> {
        let mut log = self.log.examine(depth)?;
        let sound: Vec<&CheckpointRow> = log.checkpoints.iter().filter(|row| row.damage.is_none()).collect();
        let states: Vec<StateRow> = sound.into_iter().filter_map(|row| self.state_in(row)).collect();
        for row in &states {
            log.damages.extend(row.damage.as_ref().map(|what| damage(&row.checkpoint, what)));
        }
        let (mut index_files, mut part_files, mut set_aside) = (Vec::new(), Vec::new(), Vec::new());
        if let Some(dir) = &self.store_dir {
            index_files = offline::index_files(&OfflineDisk, dir, depth == Depth::Checksums)?;
            part_files = offline::part_files(&OfflineDisk, dir)?;
            set_aside = offline::set_aside(&OfflineDisk, dir)?;
            let newest_only = states.iter().rev().find(|row| row.state.is_some());
            log.damages.extend(newest_only.into_iter().flat_map(|row| missing_index_files(row, &index_files)));
        }
        for row in &index_files {
            log.damages.extend(row.damage.as_ref().map(|what| damage(&row.file, what)));
        }
        for row in &part_files {
            log.damages.extend(row.damage.as_ref().map(|what| damage(&row.file, what)));
        }
        log.damages.extend(set_aside.iter().map(|name| {
            damage(name, "the replica found it damaged and set it aside; a start makes it again from the log")
        }));
        Ok(Findings { log, states, index_files, part_files, set_aside, store_dir: self.store_dir.clone() })
    }

    /// `None` for a log whose state machine is not the store.
    fn state_in(&self, row: &CheckpointRow) -> Option<StateRow> {
        let dir = self.store_dir.as_ref()?;
        let last = row.last?;
        let summary = self
            .log
            .checkpoint_state(LogIndex(last.index))
            .and_then(|state| offline::summarize(&OfflineDisk, dir, &state));
        let (state, damage) = match summary {
            Ok(state) => (Some(state), None),
            Err(what) => (None, Some(format!("state in it: {what}"))),
        };
        Some(StateRow { checkpoint: row.file.clone(), state, damage })
    }
}

fn damage(file: &str, what: &str) -> Damage {
    Damage { file: file.to_owned(), offset: 0, what: what.to_owned() }
}

/// The index files that a checkpoint names must be there.
fn missing_index_files(row: &StateRow, found: &[IndexFileRow]) -> Vec<Damage> {
    let named: &[IndexFileMark] = row.state.as_ref().map_or(&[], |state| &state.index_files);
    let missing = named.iter().filter_map(|mark| {
        let file = found.iter().find(|file| file.file == mark.file_name());
        match file {
            None => Some(format!("index file of entries {} to {} is missing", mark.first_index, mark.last_index)),
            // Damaged ones are told as such.
            Some(file) if file.mark.is_some_and(|found| found != *mark) => {
                Some(format!("index file {} is another one than it relies on", file.file))
            }
            Some(_) => None,
        }
    });
    missing.map(|what| damage(&row.checkpoint, &what)).collect()
}
