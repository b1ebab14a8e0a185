//! The file that says whose directory this is, written before anything else in it.

use std::path::Path;

use bytes::{BufMut, Bytes};

use crate::disk::{Disk, read_file, write_file_atomically};
use crate::fields::FieldReader;
use crate::{Corruption, LogConfig, NodeId, OpenError};

pub(crate) const IDENTITY_FILE: &str = "identity";
const MAGIC: [u8; 8] = *b"FLOTIDN\0";
const VERSION: u32 = 1;

/// Whose log a directory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster: String,
    pub(crate) group: String,
    pub(crate) node: NodeId,
}

impl Identity {
    fn of(config: &LogConfig) -> Identity {
        Identity { cluster: config.cluster.clone(), group: config.group.clone(), node: config.node }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_slice(&MAGIC);
        bytes.put_u32_le(VERSION);
        let body_bytes = 8 + 4 + self.cluster.len() + 4 + self.group.len();
        bytes.put_u32_le(u32::try_from(body_bytes).expect("names are limited to 255 bytes"));
        bytes.put_u64_le(self.node.0);
        for name in [&self.cluster, &self.group] {
            bytes.put_u32_le(u32::try_from(name.len()).expect("names are limited to 255 bytes"));
            bytes.put_slice(name.as_bytes());
        }
        let crc = crc32c::crc32c(&bytes);
        bytes.put_u32_le(crc);
        bytes
    }

    /// `Err` tells what is wrong.
    pub(crate) fn decode(bytes: Bytes) -> Result<Identity, String> {
        let Some(covered) = bytes.len().checked_sub(4) else {
            return Err("file is too short".to_owned());
        };
        if bytes[covered..] != crc32c::crc32c(&bytes[..covered]).to_le_bytes() {
            return Err("file does not match its checksum".to_owned());
        }
        let mut reader = FieldReader::new(bytes.slice(..covered));
        let mut parse = || {
            let magic = reader.take(8)?;
            let (version, body_bytes) = (reader.u32()?, reader.u32()?);
            let left = reader.left();
            let node = NodeId(reader.u64()?);
            let mut name = || {
                let len = reader.u32()? as usize;
                reader.take(len)
            };
            Ok::<_, crate::fields::FieldError>((magic, version, body_bytes, left, node, name()?, name()?))
        };
        let (magic, version, body_bytes, left, node, cluster, group) = parse().map_err(|error| error.to_string())?;
        if magic[..] != MAGIC {
            return Err("magic of an identity is missing".to_owned());
        }
        if version != VERSION {
            return Err(format!("identity has version {version}, this program reads version {VERSION}"));
        }
        if body_bytes as usize != left {
            return Err(format!("length says {body_bytes} bytes, there are {left}"));
        }
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).map_err(|_| "name is not UTF-8".to_owned());
        Ok(Identity { cluster: text(cluster)?, group: text(group)?, node })
    }
}

/// Makes sure that the directory is the one of these settings: marks a fresh one, refuses another's.
pub(crate) fn claim(disk: &dyn Disk, config: &LogConfig) -> Result<(), OpenError> {
    let dir = &config.dir;
    let path = dir.join(IDENTITY_FILE);
    let expected = Identity::of(config);
    match read_file(disk, &path) {
        Ok(bytes) => {
            let found = Identity::decode(bytes)
                .map_err(|what| OpenError::Corrupt(Corruption { path: path.clone(), offset: 0, what }))?;
            compare(dir, &found, &expected)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let names = disk.list(dir).map_err(|source| OpenError::Io { path: dir.clone(), source })?;
            if let Some(name) =
                names.iter().find(|name| name.ends_with(".seg") || *name == crate::vote_and_marks::MARKS_FILE)
            {
                let what = format!("file is missing although {name} is there");
                return Err(OpenError::Corrupt(Corruption { path, offset: 0, what }));
            }
            tracing::info!(dir = %dir.display(), node = %config.node, "new log directory");
            write_file_atomically(disk, dir, IDENTITY_FILE, &expected.encode())
                .map_err(|source| OpenError::Io { path, source })
        }
        Err(source) => Err(OpenError::Io { path, source }),
    }
}

fn compare(dir: &Path, found: &Identity, expected: &Identity) -> Result<(), OpenError> {
    let wrong = |what, found: String, expected: String| {
        Err(OpenError::WrongIdentity { dir: dir.to_owned(), what, found, expected })
    };
    if found.cluster != expected.cluster {
        return wrong("cluster", found.cluster.clone(), expected.cluster.clone());
    }
    if found.group != expected.group {
        return wrong("group", found.group.clone(), expected.group.clone());
    }
    if found.node != expected.node {
        return wrong("node", found.node.to_string(), expected.node.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::OsDisk;

    proptest! {
        #[test]
        fn an_identity_reads_back_as_written(cluster in ".{0,40}", group in ".{0,40}", node: u64) {
            let identity = Identity { cluster, group, node: NodeId(node) };
            prop_assert_eq!(Identity::decode(identity.encode().into()), Ok(identity));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert!(Identity::decode(bytes.into()).is_err());
        }
    }

    #[test]
    fn a_directory_belongs_to_one_replica_only() {
        let dir = tempfile::tempdir().unwrap();
        let config = LogConfig::new(dir.path(), "c", "g", NodeId(1), [NodeId(1)]);
        claim(&OsDisk, &config).unwrap();
        claim(&OsDisk, &config).unwrap();
        for (other, what) in [
            (LogConfig { cluster: "d".into(), ..config.clone() }, "cluster c, this is cluster d"),
            (LogConfig { group: "h".into(), ..config.clone() }, "group g, this is group h"),
            (LogConfig { node: NodeId(2), ..config.clone() }, "node 1, this is node 2"),
        ] {
            let text = claim(&OsDisk, &other).unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        }
    }

    #[test]
    fn a_directory_with_a_log_but_no_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        OsDisk.create(&dir.path().join("00000000000000000001-00000000000000000000.seg"), 10).unwrap();
        let config = LogConfig::new(dir.path(), "c", "g", NodeId(1), [NodeId(1)]);
        assert!(matches!(claim(&OsDisk, &config), Err(OpenError::Corrupt(_))));
    }
}
