//! Positions that an instance keeps itself, in a file of its own: how far it has read each queue.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use flotilla_message::{GroupName, TopicName};

use crate::pull_consumer::PullQueue;

const FIRST_LINE: &str = "flotilla positions 1";
/// Far more than any topic has queues; what is longer is no such file.
const FILE_BYTES_MAX: u64 = 16 << 20;

/// Why an instance's positions could not be read or kept.
#[derive(Debug, thiserror::Error)]
pub enum PositionFileError {
    /// The system refuses.
    #[error("positions in {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another instance uses it: two would overwrite each other's positions.
    #[error("positions in {} are in use by another instance", path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// It is damaged, or no such file. Remove it to begin as an instance without positions.
    #[error("positions in {} cannot be used: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

/// The file, which no other instance uses while this lives. `docs/formats/position-file.md` draws it.
#[derive(Debug)]
pub struct PositionFile {
    path: PathBuf,
    /// Of whom the positions are, as the file says it.
    owner: String,
    /// Its lock is what keeps others out.
    _lock: File,
    /// One at a time replaces it.
    saving: Mutex<()>,
}

impl PositionFile {
    /// Opens the file at `path` for a group and a topic, with what it holds; nothing if there is none yet. Directories are
    /// made.
    ///
    /// # Errors
    /// [`PositionFileError`]; one of another group or topic counts as damaged.
    pub fn open(
        path: &Path,
        group: &GroupName,
        topic: &TopicName,
    ) -> Result<(PositionFile, BTreeMap<PullQueue, u64>), PositionFileError> {
        let failed = |source| PositionFileError::Io { path: path.to_owned(), source };
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::create_dir_all(dir).map_err(failed)?;
        }
        let lock = File::create(with_ending(path, "lock")).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Err(PositionFileError::InUse { path: path.to_owned() }),
            Err(fs::TryLockError::Error(source)) => return Err(failed(source)),
        }
        let owner = format!("group {group}\ntopic {topic}\n");
        let file = PositionFile { path: path.to_owned(), owner, _lock: lock, saving: Mutex::new(()) };
        let positions = match fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(failed(error)),
            Ok(metadata) if metadata.len() > FILE_BYTES_MAX => return Err(file.damaged("it is too long")),
            Ok(_) => file.parse(&fs::read(path).map_err(failed)?)?,
        };
        Ok((file, positions))
    }

    /// Replaces what the file holds, such that a crash leaves the old positions or the new ones. `positions` is asked when
    /// nobody else saves any more, so that of two the later one stays.
    ///
    /// # Errors
    /// [`PositionFileError::Io`]; the old ones stand then.
    pub fn save(&self, positions: impl FnOnce() -> BTreeMap<PullQueue, u64>) -> Result<(), PositionFileError> {
        let _turn = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = format!("{FIRST_LINE}\n{}", self.owner);
        for (PullQueue { broker_group, queue }, offset) in positions() {
            writeln!(text, "{broker_group} {queue} {offset}").expect("a string grows");
        }
        let sum = crc32c::crc32c(text.as_bytes());
        writeln!(text, "crc32c {sum:08x}").expect("a string grows");
        let write = || -> io::Result<()> {
            let fresh = with_ending(&self.path, "tmp");
            let mut file = File::create(&fresh)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&fresh, &self.path)?;
            match self.path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
                Some(dir) => File::open(dir)?.sync_all(),
                None => Ok(()),
            }
        };
        write().map_err(|source| PositionFileError::Io { path: self.path.clone(), source })
    }

    fn damaged(&self, what: &str) -> PositionFileError {
        PositionFileError::Damaged { path: self.path.clone(), what: what.to_owned() }
    }

    fn parse(&self, bytes: &[u8]) -> Result<BTreeMap<PullQueue, u64>, PositionFileError> {
        let text = std::str::from_utf8(bytes).map_err(|_| self.damaged("it is not text"))?;
        let (told, sum) = text
            .strip_suffix('\n')
            .and_then(|text| text.rsplit_once("\ncrc32c "))
            .ok_or_else(|| self.damaged("it does not end with its checksum"))?;
        let covered = &text[..told.len() + 1];
        if u32::from_str_radix(sum, 16).ok() != Some(crc32c::crc32c(covered.as_bytes())) {
            return Err(self.damaged("it does not fit its checksum"));
        }
        let rest = covered
            .strip_prefix(FIRST_LINE)
            .and_then(|rest| rest.strip_prefix('\n'))
            .ok_or_else(|| self.damaged("its first line is not that of version 1"))?;
        let rows = rest
            .strip_prefix(&self.owner)
            .ok_or_else(|| self.damaged(&format!("it is not of {}", self.owner.trim_end().replace('\n', ", "))))?;
        let mut positions = BTreeMap::new();
        for row in rows.lines() {
            let mut words = row.split(' ');
            let parsed = match (words.next(), words.next(), words.next(), words.next()) {
                (Some(group), Some(queue), Some(offset), None) => queue
                    .parse()
                    .ok()
                    .zip(offset.parse().ok())
                    .map(|(queue, offset)| (PullQueue { broker_group: group.to_owned(), queue }, offset)),
                _ => None,
            };
            let (queue, offset) = parsed.ok_or_else(|| self.damaged(&format!("{row:?} is no position")))?;
            positions.insert(queue, offset);
        }
        Ok(positions)
    }
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(ending);
    PathBuf::from(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &Path, group: &str) -> Result<(PositionFile, BTreeMap<PullQueue, u64>), PositionFileError> {
        PositionFile::open(path, &group.try_into().unwrap(), &"orders".try_into().unwrap())
    }

    fn positions() -> BTreeMap<PullQueue, u64> {
        let queue = |queue| PullQueue { broker_group: "group-a".to_owned(), queue };
        BTreeMap::from([(queue(0), 7), (queue(11), u64::MAX)])
    }

    #[test]
    fn what_is_saved_is_there_when_the_instance_starts_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("of/instance-1");
        let (file, none) = open(&path, "g").unwrap();
        assert!(none.is_empty());
        file.save(BTreeMap::new).unwrap();
        file.save(positions).unwrap();
        drop(file);
        assert_eq!(open(&path, "g").unwrap().1, positions());
    }

    #[test]
    fn who_saves_at_the_same_time_waits_and_the_last_positions_stay() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let (file, _) = open(&path, "g").unwrap();
        let queue = || PullQueue { broker_group: "group-a".to_owned(), queue: 0 };
        let consumed = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|threads| {
            for _ in 0..4 {
                threads.spawn(|| {
                    for _ in 0..25 {
                        consumed.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                        let now = || BTreeMap::from([(queue(), consumed.load(std::sync::atomic::Ordering::SeqCst))]);
                        file.save(now).unwrap();
                    }
                });
            }
        });
        drop(file);
        assert_eq!(open(&path, "g").unwrap().1, BTreeMap::from([(queue(), 100)]));
    }

    #[test]
    fn a_file_in_use_or_of_another_group_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        let (file, _) = open(&path, "g").unwrap();
        file.save(positions).unwrap();
        assert!(matches!(open(&path, "g"), Err(PositionFileError::InUse { .. })));
        drop(file);
        let error = open(&path, "other").unwrap_err();
        assert!(error.to_string().contains("it is not of group other, topic orders"), "{error}");
    }

    #[test]
    fn any_byte_that_changed_and_any_cut_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("positions");
        open(&path, "g").unwrap().0.save(positions).unwrap();
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(matches!(open(&path, "g"), Err(PositionFileError::Damaged { .. })), "byte {at}");
            fs::write(&path, &whole[..at]).unwrap();
            assert!(matches!(open(&path, "g"), Err(PositionFileError::Damaged { .. })), "cut at {at}");
        }
    }
}
