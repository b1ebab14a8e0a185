//! The file that says whose directory this is, in which life, and whom it knows; written before anything else in it.

use std::collections::BTreeMap;
use std::path::Path;

use bytes::{BufMut, Bytes};
use flotilla_runtime::Runtime;

use crate::disk::{Disk, read_file, write_file_atomically};
use crate::fields::{FieldError, FieldReader};
use crate::{Corruption, Incarnation, LogConfig, NodeId, OpenError};

pub(crate) const IDENTITY_FILE: &str = "identity";
const MAGIC: [u8; 8] = *b"FLOTIDN\0";
/// Without anything behind the names: what directories had before they had incarnations.
const VERSION_BARE: u32 = 1;
/// Without the epoch that gave it up: what is written until there is one.
const VERSION_MEMBER: u32 = 2;
const VERSION: u32 = 3;

/// What a directory is to its group, apart from what the group's membership says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Made anew; whether it founds the group with the others, or comes to one that is there, is not known yet.
    Undecided = 0,
    /// It was there when the group was founded.
    Founder = 1,
    /// It came to a group that was there: it counts for what the membership says of it, and for nothing before that.
    Newcomer = 2,
}

/// Whose log a directory holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Identity {
    pub(crate) cluster: String,
    pub(crate) group: String,
    pub(crate) node: NodeId,
    /// The life of the directory.
    pub(crate) incarnation: Incarnation,
    pub(crate) origin: Origin,
    /// Whom this replica promised to know in no other incarnation: those who asked before anything was recorded of them.
    pub(crate) promised: BTreeMap<NodeId, Incarnation>,
    /// The group's epoch in which it went on without this directory; 0: it did not.
    pub(crate) given_up: u16,
}

/// A new life.
pub(crate) fn new_incarnation(runtime: &Runtime) -> Incarnation {
    Incarnation(runtime.random_u64().max(1))
}

impl Identity {
    fn of(config: &LogConfig, runtime: &Runtime) -> Identity {
        Identity {
            cluster: config.cluster.clone(),
            group: config.group.clone(),
            node: config.node,
            incarnation: new_incarnation(runtime),
            origin: if config.voters.is_empty() { Origin::Newcomer } else { Origin::Undecided },
            promised: BTreeMap::new(),
            given_up: 0,
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.put_slice(&MAGIC);
        let is_given_up = self.given_up > 0;
        bytes.put_u32_le(if is_given_up { VERSION } else { VERSION_MEMBER });
        let life_bytes = 8 + 1 + 4 + 16 * self.promised.len() + if is_given_up { 2 } else { 0 };
        let body_bytes = 8 + 4 + self.cluster.len() + 4 + self.group.len() + life_bytes;
        bytes.put_u32_le(u32::try_from(body_bytes).expect("names are limited to 255 bytes"));
        bytes.put_u64_le(self.node.0);
        for name in [&self.cluster, &self.group] {
            bytes.put_u32_le(u32::try_from(name.len()).expect("names are limited to 255 bytes"));
            bytes.put_slice(name.as_bytes());
        }
        bytes.put_u64_le(self.incarnation.0);
        bytes.put_u8(self.origin as u8);
        bytes.put_u32_le(u32::try_from(self.promised.len()).expect("a group has a handful of members"));
        for (node, incarnation) in &self.promised {
            bytes.put_u64_le(node.0);
            bytes.put_u64_le(incarnation.0);
        }
        if is_given_up {
            bytes.put_u16_le(self.given_up);
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
        let head = |reader: &mut FieldReader| Ok::<_, FieldError>((reader.take(8)?, reader.u32()?, reader.u32()?));
        let (magic, version, body_bytes) = head(&mut reader).map_err(|error| error.to_string())?;
        if magic[..] != MAGIC {
            return Err("magic of an identity is missing".to_owned());
        }
        if !(VERSION_BARE..=VERSION).contains(&version) {
            return Err(format!("identity has version {version}, this program reads versions 1 to {VERSION}"));
        }
        if body_bytes as usize != reader.left() {
            return Err(format!("length says {body_bytes} bytes, there are {}", reader.left()));
        }
        Identity::decode_body(version, reader)
    }

    fn decode_body(version: u32, mut reader: FieldReader) -> Result<Identity, String> {
        let text = |bytes: Bytes| String::from_utf8(bytes.to_vec()).map_err(|_| "name is not UTF-8".to_owned());
        let mut parse = || {
            let node = NodeId(reader.u64()?);
            let mut name = || {
                let len = reader.u32()? as usize;
                reader.take(len)
            };
            let (cluster, group) = (name()?, name()?);
            if version == VERSION_BARE {
                // It voted and founded before anybody counted lives.
                return Ok((node, cluster, group, 0, Origin::Founder as u8, BTreeMap::new(), 0));
            }
            let (incarnation, origin) = (reader.u64()?, reader.u8()?);
            let mut promised = BTreeMap::new();
            for _ in 0..reader.u32()? {
                promised.insert(NodeId(reader.u64()?), Incarnation(reader.u64()?));
            }
            let given_up = if version == VERSION { reader.u16()? } else { 0 };
            if reader.left() > 0 {
                return Err(FieldError::Trailing(reader.left()));
            }
            Ok::<_, FieldError>((node, cluster, group, incarnation, origin, promised, given_up))
        };
        let (node, cluster, group, incarnation, origin, promised, given_up) =
            parse().map_err(|error| error.to_string())?;
        let known = [Origin::Undecided, Origin::Founder, Origin::Newcomer];
        let origin = known.into_iter().find(|known| *known as u8 == origin).ok_or("its origin is unknown")?;
        let incarnation = Incarnation(incarnation);
        Ok(Identity { cluster: text(cluster)?, group: text(group)?, node, incarnation, origin, promised, given_up })
    }

    /// Replaces the file. Blocks.
    pub(crate) fn write(&self, disk: &dyn Disk, dir: &Path) -> std::io::Result<()> {
        write_file_atomically(disk, dir, IDENTITY_FILE, &self.encode())
    }
}

/// Makes sure that the directory is the one of these settings: marks a fresh one, refuses another's.
pub(crate) fn claim(disk: &dyn Disk, config: &LogConfig, runtime: &Runtime) -> Result<Identity, OpenError> {
    let dir = &config.dir;
    let path = dir.join(IDENTITY_FILE);
    let expected = Identity::of(config, runtime);
    match read_file(disk, &path) {
        Ok(bytes) => {
            let mut found = Identity::decode(bytes)
                .map_err(|what| OpenError::Corrupt(Corruption { path: path.clone(), offset: 0, what }))?;
            compare(dir, &found, &expected)?;
            if !found.incarnation.is_known() {
                found.incarnation = expected.incarnation;
                found.write(disk, dir).map_err(|source| OpenError::Io { path, source })?;
            }
            Ok(found)
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let names = disk.list(dir).map_err(|source| OpenError::Io { path: dir.clone(), source })?;
            if let Some(name) =
                names.iter().find(|name| name.ends_with(".seg") || *name == crate::vote_and_marks::MARKS_FILE)
            {
                let what = format!("file is missing although {name} is there");
                return Err(OpenError::Corrupt(Corruption { path, offset: 0, what }));
            }
            tracing::info!(
                dir = %dir.display(), node = %config.node, incarnation = %expected.incarnation, "new log directory"
            );
            expected.write(disk, dir).map_err(|source| OpenError::Io { path, source })?;
            Ok(expected)
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
        fn an_identity_reads_back_as_written(
            cluster in ".{0,40}", group in ".{0,40}", node: u64, incarnation: u64,
            promised in prop::collection::btree_map(any::<u64>().prop_map(NodeId), any::<u64>().prop_map(Incarnation), 0..5),
            given_up in 0..3_u16,
        ) {
            let incarnation = Incarnation(incarnation);
            let (node, origin) = (NodeId(node), Origin::Newcomer);
            let identity = Identity { cluster, group, node, incarnation, origin, promised, given_up };
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
        let runtime = Runtime::tokio();
        let first = claim(&OsDisk, &config, &runtime).unwrap();
        assert_eq!(claim(&OsDisk, &config, &runtime).unwrap(), first, "its life goes on");
        for (other, what) in [
            (LogConfig { cluster: "d".into(), ..config.clone() }, "cluster c, this is cluster d"),
            (LogConfig { group: "h".into(), ..config.clone() }, "group g, this is group h"),
            (LogConfig { node: NodeId(2), ..config.clone() }, "node 1, this is node 2"),
        ] {
            let text = claim(&OsDisk, &other, &runtime).unwrap_err().to_string();
            assert!(text.contains(what), "{text}");
        }
    }

    #[test]
    fn a_directory_with_a_log_but_no_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        OsDisk.create(&dir.path().join("00000000000000000001-00000000000000000000.seg"), 10).unwrap();
        let config = LogConfig::new(dir.path(), "c", "g", NodeId(1), [NodeId(1)]);
        assert!(matches!(claim(&OsDisk, &config, &Runtime::tokio()), Err(OpenError::Corrupt(_))));
    }

    #[test]
    fn a_directory_of_the_time_before_incarnations_is_a_founders() {
        let (dir, runtime) = (tempfile::tempdir().unwrap(), Runtime::tokio());
        let config = LogConfig::new(dir.path(), "c", "g", NodeId(1), [NodeId(1)]);
        let mut bare = MAGIC.to_vec();
        bare.extend([1, 0, 0, 0, 18, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, b'c', 1, 0, 0, 0, b'g']);
        bare.extend(crc32c::crc32c(&bare).to_le_bytes());
        write_file_atomically(&OsDisk, dir.path(), IDENTITY_FILE, &bare).unwrap();
        let found = claim(&OsDisk, &config, &runtime).unwrap();
        assert!(found.origin == Origin::Founder && found.incarnation.is_known());
        assert_eq!(claim(&OsDisk, &config, &runtime).unwrap(), found);
    }
}
