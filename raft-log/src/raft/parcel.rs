//! A snapshot as it travels: the state and the files it relies on, as one run of bytes that is read in pieces.
//!
//! Drawn in `docs/formats/peer-wire.md`.

use std::io;
use std::sync::Arc;

use bytes::{BufMut, Bytes, BytesMut};

use crate::disk::{Disk, DiskFile};
use crate::fields::{FieldError, FieldReader};
use crate::{SideFile, SideFileCheck};

const MAGIC: [u8; 4] = *b"FLSP";
const VERSION: u32 = 1;
/// Magic, version, length of the header.
const START_BYTES: usize = 4 + 4 + 4;
/// Longest name of a side file, bytes.
const NAME_BYTES_MAX: usize = 255;

/// A snapshot's content: at the sender over the files themselves, at the receiver over the one file that it came in.
#[derive(Clone)]
pub(crate) struct Parcel {
    pub(crate) state: Bytes,
    pub(crate) sides: Vec<Side>,
    /// What is still to be done before it travels.
    departure: Departure,
}

#[derive(Clone)]
enum Departure {
    Ready,
    /// Its files are to be opened and checked.
    Files(Arc<dyn Disk>, Vec<SideFile>, SideFileCheck),
    /// It must not travel, and why.
    Refused(String),
}

/// A side file, or the part of a longer file that is its content.
#[derive(Clone)]
pub(crate) struct Side {
    pub(crate) name: String,
    file: Arc<dyn DiskFile>,
    offset: u64,
    bytes: u64,
}

/// Which parcel a piece is of: the same id is the same content.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ParcelId {
    /// Length of the whole.
    pub(crate) bytes: u64,
    /// CRC-32C of the header and the state. The names of side files tell their content.
    pub(crate) crc: u32,
}

impl Parcel {
    /// A state that relies on nothing else.
    pub(crate) fn of_state(state: Bytes) -> Parcel {
        Parcel { state, sides: Vec::new(), departure: Departure::Ready }
    }

    /// A state that relies on files. They are looked at when it travels: openraft asks for snapshots of which it wants to
    /// know the last entry only.
    pub(crate) fn of_files(disk: Arc<dyn Disk>, state: Bytes, files: Vec<SideFile>, check: SideFileCheck) -> Parcel {
        Parcel { state, sides: Vec::new(), departure: Departure::Files(disk, files, check) }
    }

    /// One that is not to be sent.
    pub(crate) fn refused(state: Bytes, why: String) -> Parcel {
        Parcel { state, sides: Vec::new(), departure: Departure::Refused(why) }
    }

    /// The run of bytes that it travels as. Opens all files, so that they can be read even if they are removed meanwhile, and
    /// sends none that is damaged. Blocks.
    pub(crate) fn into_outgoing(mut self) -> io::Result<Outgoing> {
        match std::mem::replace(&mut self.departure, Departure::Ready) {
            Departure::Ready => {}
            Departure::Files(disk, files, check) => {
                let open = |SideFile { name, path }: SideFile| {
                    let damaged = |what| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {what}"));
                    check(&*disk, &path).map_err(damaged)?;
                    let file = disk.open(&path)?;
                    let bytes = file.len();
                    Ok(Side { name, file, offset: 0, bytes })
                };
                self.sides = files.into_iter().map(open).collect::<io::Result<_>>()?;
            }
            Departure::Refused(why) => return Err(io::Error::new(io::ErrorKind::NotFound, why)),
        }
        let names_bytes: usize = self.sides.iter().map(|side| 2 + side.name.len() + 8).sum();
        let header_bytes = START_BYTES + 8 + 4 + names_bytes;
        let mut header = BytesMut::with_capacity(header_bytes);
        header.put_slice(&MAGIC);
        header.put_u32_le(VERSION);
        header.put_u32_le(u32::try_from(header_bytes).expect("names of some thousand files are bounded below 4 GiB"));
        header.put_u64_le(self.state.len() as u64);
        header.put_u32_le(u32::try_from(self.sides.len()).expect("a node has fewer than 2^32 files"));
        for side in &self.sides {
            header.put_u16_le(u16::try_from(side.name.len()).expect("file names are short"));
            header.put_slice(side.name.as_bytes());
            header.put_u64_le(side.bytes);
        }
        let crc = crc32c::crc32c_append(crc32c::crc32c(&header), &self.state);
        let bytes = (header.len() + self.state.len()) as u64 + self.sides.iter().map(|side| side.bytes).sum::<u64>();
        Ok(Outgoing { id: ParcelId { bytes, crc }, header: header.freeze(), parcel: self })
    }

    /// The parcel in a file that holds all of its bytes. What it says is checked, but for the content of side files: who
    /// uses them knows how. Blocks.
    pub(crate) fn read(id: ParcelId, file: &Arc<dyn DiskFile>) -> Result<Parcel, String> {
        let read = |offset: u64, len: u64| {
            let len = usize::try_from(len).map_err(|_| format!("{len} bytes are too many"))?;
            file.read_at(offset, len).map_err(|error| error.to_string())
        };
        let start = read(0, START_BYTES as u64)?;
        let mut reader = FieldReader::new(start.clone());
        let field = |error: FieldError| error.to_string();
        if reader.take(4).map_err(field)? != MAGIC[..] {
            return Err("magic of a snapshot is missing".to_owned());
        }
        let version = reader.u32().map_err(field)?;
        if version != VERSION {
            return Err(format!("snapshot has version {version}, this program reads version {VERSION}"));
        }
        let header_bytes = u64::from(reader.u32().map_err(field)?);
        let header = read(0, header_bytes.max(START_BYTES as u64))?;
        let mut reader = FieldReader::new(header.slice(START_BYTES..));
        let state_bytes = reader.u64().map_err(field)?;
        let count = reader.u32().map_err(field)?;
        let mut offset = header_bytes.saturating_add(state_bytes);
        let mut sides = Vec::new();
        for _ in 0..count {
            let len = usize::from(reader.u16().map_err(field)?);
            let name = reader.take(len.min(NAME_BYTES_MAX + 1)).map_err(field)?;
            let name = std::str::from_utf8(&name).map_err(|error| error.to_string())?.to_owned();
            if name.is_empty() || name.len() > NAME_BYTES_MAX {
                return Err(format!("name of a side file has {len} bytes, allowed are 1 to {NAME_BYTES_MAX}"));
            }
            let bytes = reader.u64().map_err(field)?;
            sides.push(Side { name, file: file.clone(), offset, bytes });
            offset = offset.saturating_add(bytes);
        }
        reader.finish().map_err(field)?;
        if offset != id.bytes || file.len() != id.bytes {
            return Err(format!("snapshot has {} bytes, its header says {offset}", id.bytes));
        }
        let state = read(header_bytes, state_bytes)?;
        if crc32c::crc32c_append(crc32c::crc32c(&header), &state) != id.crc {
            return Err("snapshot does not match its checksum".to_owned());
        }
        Ok(Parcel { state, sides, departure: Departure::Ready })
    }
}

impl Side {
    /// Writes the content where the machine wants it, unless a sound file of that name is there: the same name is the same
    /// content. Durable but for the name. Blocks.
    fn put(&self, disk: &dyn Disk, path: &std::path::Path, check: SideFileCheck) -> io::Result<()> {
        const PIECE_BYTES: u64 = 1 << 20;
        if disk.open(path).is_ok_and(|there| there.len() == self.bytes) && check(disk, path).is_ok() {
            return Ok(());
        }
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(".tmp");
        let temporary = std::path::PathBuf::from(temporary);
        let file = disk.create(&temporary, self.bytes)?;
        let mut at = 0;
        while at < self.bytes {
            let piece = (self.bytes - at).min(PIECE_BYTES);
            let bytes =
                self.file.read_at(self.offset + at, usize::try_from(piece).expect("a piece is at most 1 MiB"))?;
            file.write_at(at, &bytes)?;
            at += piece;
        }
        file.sync_data()?;
        disk.rename(&temporary, path)?;
        let damaged = |what| io::Error::new(io::ErrorKind::InvalidData, format!("{}: {what}", path.display()));
        check(disk, path).map_err(damaged)
    }
}

/// Puts the side files of a parcel where `machine` wants them, durably. Blocks.
pub(crate) fn put_sides(
    disk: &dyn Disk,
    parcel: &Parcel,
    path_of: impl Fn(&str) -> Option<std::path::PathBuf>,
    check: SideFileCheck,
) -> io::Result<()> {
    let mut dirs = std::collections::BTreeSet::new();
    for side in &parcel.sides {
        let Some(path) = path_of(&side.name) else {
            let what = format!("snapshot brings a file {:?}, which is none of the machine's", side.name);
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        };
        side.put(disk, &path, check)?;
        dirs.extend(path.parent().map(std::path::Path::to_owned));
    }
    dirs.iter().try_for_each(|dir| disk.sync_dir(dir))
}

/// A parcel on its way.
pub(crate) struct Outgoing {
    pub(crate) id: ParcelId,
    header: Bytes,
    parcel: Parcel,
}

impl Outgoing {
    /// At most `len` bytes from `offset` on; fewer where a part ends, none at the end. May block for the disk.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let mut at = offset;
        for part in [&self.header, &self.parcel.state] {
            if at < part.len() as u64 {
                let from = usize::try_from(at).expect("it is less than a length in memory");
                return Ok(part.slice(from..part.len().min(from + len)));
            }
            at -= part.len() as u64;
        }
        for side in &self.parcel.sides {
            if at < side.bytes {
                let len = usize::try_from(side.bytes - at).unwrap_or(usize::MAX).min(len);
                return side.file.read_at(side.offset + at, len);
            }
            at -= side.bytes;
        }
        Ok(Bytes::new())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::OsDisk;

    proptest! {
        #[test]
        fn a_parcel_read_in_pieces_is_the_same_parcel(
            state in prop::collection::vec(any::<u8>(), 0..300),
            sides in prop::collection::vec(prop::collection::vec(any::<u8>(), 1..300), 0..4),
            piece in 1_usize..200,
        ) {
            let dir = tempfile::tempdir().unwrap();
            let mut files = Vec::new();
            for (number, content) in sides.iter().enumerate() {
                let path = dir.path().join(format!("side-{number}"));
                OsDisk.create(&path, content.len() as u64).unwrap().write_at(0, content).unwrap();
                files.push(SideFile { name: format!("side-{number}"), path });
            }
            let outgoing = Parcel::of_files(Arc::new(OsDisk), state.clone().into(), files, |_, _| Ok(()));
            let outgoing = outgoing.into_outgoing().unwrap();
            let arrived = OsDisk.create(&dir.path().join("arrived"), outgoing.id.bytes).unwrap();
            let mut at = 0;
            loop {
                let bytes = outgoing.read(at, piece).unwrap();
                if bytes.is_empty() {
                    break;
                }
                arrived.write_at(at, &bytes).unwrap();
                at += bytes.len() as u64;
            }
            prop_assert_eq!(at, outgoing.id.bytes);
            let parcel = Parcel::read(outgoing.id, &arrived).unwrap();
            prop_assert_eq!(&parcel.state, &Bytes::from(state));
            let put = |name: &str| Some(dir.path().join(format!("put-{name}")));
            put_sides(&OsDisk, &parcel, put, |_, _| Ok(())).unwrap();
            for (number, content) in sides.iter().enumerate() {
                prop_assert_eq!(&std::fs::read(dir.path().join(format!("put-side-{number}"))).unwrap(), content);
            }
            if !parcel.sides.is_empty() {
                prop_assert!(put_sides(&OsDisk, &parcel, |_| None, |_, _| Ok(())).is_err());
                prop_assert!(put_sides(&OsDisk, &parcel, put, |_, _| Err("it rots".to_owned())).is_err());
            }
        }

        #[test]
        fn no_bytes_make_reading_a_parcel_panic(
            mut bytes in prop::collection::vec(any::<u8>(), 0..80), is_started: bool, crc: u32,
        ) {
            if is_started && bytes.len() >= START_BYTES {
                bytes[..4].copy_from_slice(&MAGIC);
                bytes[4..8].copy_from_slice(&VERSION.to_le_bytes());
                bytes[9..12].fill(0);
            }
            let dir = tempfile::tempdir().unwrap();
            let file = OsDisk.create(&dir.path().join("file"), bytes.len() as u64).unwrap();
            file.write_at(0, &bytes).unwrap();
            let id = ParcelId { bytes: bytes.len() as u64, crc };
            prop_assert!(Parcel::read(id, &file).is_err());
        }
    }
}
