//! The power goes: what was not synced is gone, but for pages that the kernel happened to write just before.

use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{About, Field, FieldError, Nemesis, Victim};
use crate::cluster::power;
use crate::rng::Rng;

pub(super) const LEADER: About = About {
    what: "power loss of the leader's machine: its file system stops at one instant, chosen unsynced pages survive",
    heals: "its file system is checked and mounted, and it is started",
};
pub(super) const FOLLOWER: About = About {
    what: "power loss of a follower's machine: its file system stops at one instant, chosen unsynced pages survive",
    heals: "its file system is checked and mounted, and it is started",
};
pub(super) const ALL: About = About {
    what: "power loss of the whole site: all file systems stop, then all processes die, chosen unsynced pages survive",
    heals: "all file systems are checked and mounted, and all are started at once",
};

const PAGE_BYTES: u64 = 4_096;
/// Pages around the end of the log that may survive or not.
const PAGES_AROUND_TAIL: u64 = 16;

/// No power.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerLoss {
    /// Whose machines.
    #[serde(flatten)]
    pub victim: Victim,
    /// One bit for each page around the end of the log: those set are written out just before.
    pub survivors: u16,
}

impl PowerLoss {
    pub(super) fn draw(rng: &mut Rng, victim: Victim) -> PowerLoss {
        // Half of the times the plain case: nothing that was not synced survives.
        let survivors = rng.next_u64() as u16;
        PowerLoss { victim, survivors: if rng.coin() { survivors } else { 0 } }
    }

    /// Writes the chosen pages of a replica's newest log file, and no others.
    fn keep_pages(&self, field: &Field, node: u64) -> Result<(), FieldError> {
        let Some(path) = log_files(field, node)?.pop() else { return Ok(()) };
        let error = |source| FieldError::Io { path: path.clone(), source };
        let file = std::fs::File::open(&path).map_err(error)?;
        let tail = tail_of(&file).map_err(error)? / PAGE_BYTES;
        let first = (tail + 2).saturating_sub(PAGES_AROUND_TAIL);
        for bit in (0..PAGES_AROUND_TAIL).filter(|bit| self.survivors >> bit & 1 == 1) {
            let at = (first + bit) * PAGE_BYTES;
            power::write_out(&file, at..at + PAGE_BYTES).map_err(error)?;
        }
        Ok(())
    }
}

/// A replica's log files in their order, the one that is written to last.
pub(super) fn log_files(field: &Field, node: u64) -> Result<Vec<PathBuf>, FieldError> {
    files_of(field, node, "seg")
}

/// The files of a replica's log folder whose names end so, in their order.
pub(super) fn files_of(field: &Field, node: u64, ending: &str) -> Result<Vec<PathBuf>, FieldError> {
    let dir = field.cluster.data(node).join("log");
    let error = |source| FieldError::Io { path: dir.clone(), source };
    let mut files = Vec::new();
    for entry in std::fs::read_dir(&dir).map_err(error)? {
        let path = entry.map_err(error)?.path();
        if path.extension().is_some_and(|extension| extension == ending) {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// Where the bytes of a file that was made of zeroes end.
pub(super) fn tail_of(file: &std::fs::File) -> std::io::Result<u64> {
    let mut end = file.metadata()?.len();
    let mut page = vec![0; PAGE_BYTES as usize];
    while end > 0 {
        let start = (end - 1) / PAGE_BYTES * PAGE_BYTES;
        let piece = &mut page[..(end - start) as usize];
        file.read_exact_at(piece, start)?;
        if let Some(last) = piece.iter().rposition(|byte| *byte != 0) {
            return Ok(start + last as u64 + 1);
        }
        end = start;
    }
    Ok(0)
}

impl Nemesis for PowerLoss {
    async fn hurt(&self, field: &mut Field) -> Result<Vec<u64>, FieldError> {
        let nodes = self.victim.nodes(field).await?;
        if self.survivors != 0 {
            for node in &nodes {
                self.keep_pages(field, *node)?;
            }
        }
        // The file system first: it stops at one instant, whatever the process does until it is gone.
        field.cut_power(&nodes)?;
        field.cluster.kill_all(&nodes).await?;
        Ok(nodes)
    }

    async fn heal(&self, field: &mut Field, targets: &[u64]) -> Result<(), FieldError> {
        field.mend(targets).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_behind_the_last_byte_that_is_not_zero() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        let file = std::fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(20_000).unwrap();
        assert_eq!(tail_of(&file).unwrap(), 0);
        file.write_all_at(b"xyz", 8_190).unwrap();
        assert_eq!(tail_of(&file).unwrap(), 8_193);
        file.write_all_at(b"z", 19_999).unwrap();
        assert_eq!(tail_of(&file).unwrap(), 20_000);
    }
}
