//! What a backup says of itself: one readable file beside the copied ones, written last.

use std::io;
use std::path::{Path, PathBuf};

use flotilla_raft_log::{BackupFile, Disk, read_file, write_file_atomically};
use serde::{Deserialize, Serialize};

/// The file's name.
pub const MANIFEST_FILE: &str = "backup.toml";
/// The format that this program writes and reads.
pub const FORMAT: u32 = 1;
const FIRST_LINE: &str = "# flotilla backup, crc32c of what follows: ";
/// Files are checked in pieces of this many bytes.
const PIECE_BYTES: u64 = 1 << 20;

/// A backup of one broker group, as of one entry.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupManifest {
    /// [`FORMAT`].
    pub format: u32,
    /// The cluster.
    pub cluster: String,
    /// The broker group.
    pub group: String,
    /// The replica that was copied.
    pub node: u64,
    /// When the copy was finished, ms since the Unix epoch, by that machine's clock.
    pub made_at_ms: u64,
    /// The version of the program that made it.
    pub version: String,
    /// The first entry in it.
    pub first_index: u64,
    /// The last one: everything that a majority had when the backup was asked for is in it.
    pub last_index: u64,
    /// Its term.
    pub last_term: u64,
    /// How often the group had gone on without its majority.
    pub epoch: u16,
    /// Its files.
    pub files: Vec<BackupFile>,
}

/// Why a backup is not usable.
#[derive(Debug, thiserror::Error)]
pub enum ManifestError {
    /// None is there: it is no backup, or one that was not finished.
    #[error("{} holds no finished backup: {MANIFEST_FILE} is not there", dir.display())]
    NoBackup {
        /// The directory.
        dir: PathBuf,
    },
    /// A file is not what it was.
    #[error("{}: {what}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// The disk failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The disk's answer.
        source: io::Error,
    },
}

impl BackupManifest {
    /// Bytes of all its files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Writes it into the backup's directory; durable when it returns.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> io::Result<()> {
        let body = toml::to_string(self).map_err(|error| io::Error::other(error.to_string()))?;
        let text = format!("{FIRST_LINE}{:08x}\n{body}", crc32c::crc32c(body.as_bytes()));
        write_file_atomically(disk, dir, MANIFEST_FILE, text.as_bytes())
    }

    /// Reads it. The files that it names are not looked at.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read(disk: &dyn Disk, dir: &Path) -> Result<BackupManifest, ManifestError> {
        let path = dir.join(MANIFEST_FILE);
        let bytes = read_file(disk, &path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => ManifestError::NoBackup { dir: dir.to_owned() },
            _ => ManifestError::Io { path: path.clone(), source },
        })?;
        parse(&bytes).map_err(|what| ManifestError::Damaged { path, what })
    }

    /// Reads every byte of a file against its checksum, and hands it on.
    ///
    /// # Errors
    /// [`ManifestError`].
    pub fn read_through(
        disk: &dyn Disk,
        dir: &Path,
        file: &BackupFile,
        mut take: impl FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> Result<(), ManifestError> {
        let path = dir.join(&file.name);
        let damaged = |what| ManifestError::Damaged { path: path.clone(), what };
        let failed = |source| ManifestError::Io { path: path.clone(), source };
        let source = disk.open(&path).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => damaged("it is missing".to_owned()),
            _ => failed(source),
        })?;
        if source.len() != file.bytes {
            return Err(damaged(format!("it has {} bytes, it had {}", source.len(), file.bytes)));
        }
        let (mut at, mut crc) = (0, 0);
        while at < file.bytes {
            let piece = (file.bytes - at).min(PIECE_BYTES);
            let len = usize::try_from(piece).expect("a piece is at most 1 MiB");
            let bytes = source.read_uncached(at, len).map_err(failed)?;
            crc = crc32c::crc32c_append(crc, &bytes);
            take(at, &bytes).map_err(failed)?;
            at += piece;
        }
        if crc == file.crc32c { Ok(()) } else { Err(damaged("it does not match its checksum".to_owned())) }
    }
}

fn parse(bytes: &[u8]) -> Result<BackupManifest, String> {
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    let (first, body) = text.split_once('\n').ok_or("it has no second line")?;
    let said = first.strip_prefix(FIRST_LINE).and_then(|crc| u32::from_str_radix(crc, 16).ok());
    if said.ok_or("its first line is none of a backup")? != crc32c::crc32c(body.as_bytes()) {
        return Err("it does not match its checksum".to_owned());
    }
    let manifest: BackupManifest = toml::from_str(body).map_err(|error| error.to_string())?;
    if manifest.format != FORMAT {
        return Err(format!("format is {}, this program reads {FORMAT}", manifest.format));
    }
    let is_plain = |name: &str| {
        let (part, name) = name.split_once('/').unwrap_or_default();
        ["log", "store"].contains(&part) && !name.is_empty() && !name.contains('/') && !name.starts_with('.')
    };
    match manifest.files.iter().find(|file| !is_plain(&file.name)) {
        Some(file) => Err(format!("{:?} is no name of a backup's file", file.name)),
        None => Ok(manifest),
    }
}

#[cfg(test)]
mod tests {
    use flotilla_raft_log::OsDisk;

    use super::*;

    fn example() -> BackupManifest {
        let file = |name: &str| BackupFile {
            name: name.to_owned(),
            bytes: 3,
            crc32c: crc32c::crc32c(b"abc"),
            is_linked: true,
        };
        BackupManifest {
            format: FORMAT,
            cluster: "c".to_owned(),
            group: "g".to_owned(),
            node: 2,
            made_at_ms: 1,
            version: "0".to_owned(),
            first_index: 0,
            last_index: 9,
            last_term: 3,
            epoch: 0,
            files: vec![file("log/a"), file("store/b")],
        }
    }

    #[test]
    fn it_reads_back_as_written_and_damage_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let none = BackupManifest::read(&OsDisk, dir.path()).unwrap_err();
        assert!(matches!(none, ManifestError::NoBackup { .. }), "{none}");
        example().write(&OsDisk, dir.path()).unwrap();
        assert_eq!(BackupManifest::read(&OsDisk, dir.path()).unwrap(), example());
        let path = dir.path().join(MANIFEST_FILE);
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, text.replace("last_index = 9", "last_index = 8")).unwrap();
        assert!(BackupManifest::read(&OsDisk, dir.path()).unwrap_err().to_string().contains("checksum"));
        for name in ["../x", "log/../../x", "x", "log/", "log/.."] {
            let mut bad = example();
            bad.files[0].name = name.to_owned();
            bad.write(&OsDisk, dir.path()).unwrap();
            assert!(BackupManifest::read(&OsDisk, dir.path()).unwrap_err().to_string().contains("no name"), "{name}");
        }
    }

    #[test]
    fn a_file_that_changed_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("log")).unwrap();
        let (file, path) = (&example().files[0], dir.path().join("log/a"));
        let check = || BackupManifest::read_through(&OsDisk, dir.path(), file, |_, _| Ok(()));
        assert!(check().unwrap_err().to_string().contains("missing"));
        for (content, said) in [("abcd", "it has 4 bytes"), ("abd", "checksum")] {
            std::fs::write(&path, content).unwrap();
            assert!(check().unwrap_err().to_string().contains(said));
        }
        std::fs::write(&path, "abc").unwrap();
        check().unwrap();
    }
}
