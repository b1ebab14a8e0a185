//! What a deposed leader had acknowledged before it was committed and another leader overrode: kept aside, never silently
//! gone. `docs/formats/lost-tail.md` draws the file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::{BufMut, Bytes};

use crate::disk::{Disk, read_file, write_file_atomically};
use crate::fields::FieldReader;
use crate::log_view::Shared;
use crate::room_wait::when_there_is_room;
use crate::segment::{Record, RecordKind};
use crate::{LogIndex, NodeId, Term};

const MAGIC: [u8; 4] = *b"FLLT";
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 52;
const CRC_AT: usize = 48;
/// Folder in the log's directory, made with the first file.
pub(crate) const LOST_TAIL_DIR: &str = "lost-tail";
const SUFFIX: &str = ".tail";
/// Of a file that cannot be read and whose name was needed.
const DAMAGED_EXTENSION: &str = "damaged";

/// How many messages of a payload were acknowledged before they were committed.
pub(crate) type AcknowledgedEarly = fn(&[u8]) -> u64;

/// One entry that another leader overrode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostEntry {
    /// Where it stood.
    pub index: LogIndex,
    /// The term it was proposed in.
    pub term: Term,
    /// How many of its messages had been acknowledged.
    pub messages: u64,
    /// The proposal's bytes.
    pub payload: Bytes,
}

/// A file of overridden entries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LostTail {
    /// The replica that had led.
    pub node: NodeId,
    /// Messages in it that had been acknowledged.
    pub messages: u64,
    /// The entries that hold such messages, in order.
    pub entries: Vec<LostEntry>,
}

/// What was lost since the log was founded, as far as its files are still there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LostTailStatus {
    /// Files in the folder.
    pub files: u64,
    /// Acknowledged messages in them.
    pub messages: u64,
}

/// Why a file is no lost tail.
#[derive(Debug, thiserror::Error)]
pub enum LostTailError {
    /// The disk failed.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The disk's answer.
        source: io::Error,
    },
    /// It is not one, or damaged.
    #[error("{} is no lost tail: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

impl LostTail {
    /// Reads the file at `path`.
    ///
    /// # Errors
    /// If it cannot be read, or is no lost tail.
    pub fn read(disk: &dyn Disk, path: &Path) -> Result<LostTail, LostTailError> {
        let bytes = read_file(disk, path).map_err(|source| LostTailError::Io { path: path.to_owned(), source })?;
        LostTail::decode(bytes).map_err(|what| LostTailError::Malformed { path: path.to_owned(), what })
    }

    /// The files in the log directory `dir`, the oldest first.
    ///
    /// # Errors
    /// If the folder is there and cannot be read.
    pub fn files(disk: &dyn Disk, dir: &Path) -> Result<Vec<PathBuf>, LostTailError> {
        let folder = dir.join(LOST_TAIL_DIR);
        match disk.list(&folder) {
            Ok(names) => Ok(names.iter().filter(|name| name.ends_with(SUFFIX)).map(|name| folder.join(name)).collect()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(source) => Err(LostTailError::Io { path: folder, source }),
        }
    }

    /// Adds the entries of `known` that are not here.
    fn take_in(&mut self, known: &LostTail) {
        for entry in &known.entries {
            let place = (entry.index, entry.term);
            if let Err(place) = self.entries.binary_search_by_key(&place, |own| (own.index, own.term)) {
                self.entries.insert(place, entry.clone());
            }
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let (first, last) = (self.entries.first(), self.entries.last());
        let index = |entry: Option<&LostEntry>| entry.map_or(0, |entry| entry.index.0);
        let mut out = Vec::new();
        out.put_slice(&MAGIC);
        out.put_u16_le(VERSION);
        out.put_u16_le(0);
        out.put_u64_le(self.node.0);
        out.put_u64_le(self.messages);
        out.put_u64_le(index(first));
        out.put_u64_le(index(last));
        out.put_u32_le(u32::try_from(self.entries.len()).expect("a tail that is not committed is bounded far below"));
        out.put_u32_le(0);
        out.put_u32_le(0);
        debug_assert_eq!(out.len(), HEADER_BYTES);
        let crc = crc32c::crc32c(&out[..CRC_AT]);
        out[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        for entry in &self.entries {
            let start = out.len();
            out.put_u64_le(entry.index.0);
            out.put_u64_le(entry.term.0);
            out.put_u64_le(entry.messages);
            out.put_u32_le(u32::try_from(entry.payload.len()).expect("payloads are bounded far below 4 GiB"));
            out.put_slice(&entry.payload);
            let crc = crc32c::crc32c(&out[start..]);
            out.put_u32_le(crc);
        }
        out
    }

    pub(crate) fn decode(bytes: Bytes) -> Result<LostTail, String> {
        let Some((header, _)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
            return Err(format!("it has {} bytes, its header alone has {HEADER_BYTES}", bytes.len()));
        };
        if header[..4] != MAGIC {
            return Err("it does not begin with its magic".to_owned());
        }
        let said = u32::from_le_bytes([header[48], header[49], header[50], header[51]]);
        if crc32c::crc32c(&header[..CRC_AT]) != said {
            return Err("its header does not fit its checksum".to_owned());
        }
        let mut fields = FieldReader::new(bytes.slice(4..));
        let mut parse = || {
            let version = fields.u16()?;
            fields.u16()?;
            let (node, messages) = (fields.u64()?, fields.u64()?);
            let (_first, _last) = (fields.u64()?, fields.u64()?);
            let count = fields.u32()?;
            fields.u32()?;
            fields.u32()?;
            let mut entries = Vec::new();
            let mut sound = true;
            for _ in 0..count {
                let start = bytes.len() - fields.left();
                let (index, term, messages) = (fields.u64()?, fields.u64()?, fields.u64()?);
                let len = fields.u32()? as usize;
                let payload = fields.take(len)?;
                let end = bytes.len() - fields.left();
                sound &= fields.u32()? == crc32c::crc32c(&bytes[start..end]);
                entries.push(LostEntry { index: LogIndex(index), term: Term(term), messages, payload });
            }
            Ok::<_, crate::fields::FieldError>((version, LostTail { node: NodeId(node), messages, entries }, sound))
        };
        let (version, tail, sound) = parse().map_err(|error| error.to_string())?;
        if version != VERSION {
            return Err(format!("its version is {version}, {VERSION} is known"));
        }
        if !sound {
            return Err("an entry does not fit its checksum".to_owned());
        }
        if fields.left() > 0 {
            return Err(format!("{} bytes follow its last entry", fields.left()));
        }
        Ok(tail)
    }
}

/// Keeps aside what was acknowledged and is about to be overridden.
#[derive(Clone)]
pub(crate) struct TailKeeper {
    node: NodeId,
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    acknowledged_early: AcknowledgedEarly,
    status: Arc<Mutex<LostTailStatus>>,
}

impl TailKeeper {
    /// Counts what is there. Blocks.
    pub(crate) fn open(
        node: NodeId,
        disk: Arc<dyn Disk>,
        dir: PathBuf,
        acknowledged_early: AcknowledgedEarly,
    ) -> TailKeeper {
        let mut status = LostTailStatus::default();
        match LostTail::files(&*disk, &dir) {
            Ok(files) => {
                for path in files {
                    status.files += 1;
                    match LostTail::read(&*disk, &path) {
                        Ok(tail) => status.messages += tail.messages,
                        Err(error) => tracing::error!(%error, "a file of lost messages cannot be read"),
                    }
                }
            }
            Err(error) => tracing::error!(%error, "lost messages cannot be counted"),
        }
        TailKeeper { node, disk, dir, acknowledged_early, status: Arc::new(Mutex::new(status)) }
    }

    fn locked(&self) -> MutexGuard<'_, LostTailStatus> {
        self.status.lock().expect("lost tail lock is never poisoned: no code panics while holding it")
    }

    pub(crate) fn status(&self) -> LostTailStatus {
        *self.locked()
    }

    /// Runs `keeping` until there is room for what it keeps.
    pub(crate) async fn when_there_is_room(
        &self,
        shared: &Shared,
        keeping: impl Fn() -> io::Result<()> + Clone + Send + 'static,
    ) -> io::Result<()> {
        when_there_is_room(shared, &*self.disk, &self.dir, "lost tail", keeping).await
    }

    /// What the file of that name holds already. One that is no lost tail is set aside, so that nothing of it is written over.
    fn known(&self, path: &Path) -> io::Result<Option<LostTail>> {
        match LostTail::read(&*self.disk, path) {
            Ok(tail) => Ok(Some(tail)),
            Err(LostTailError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(LostTailError::Io { source, .. }) => Err(source),
            Err(error @ LostTailError::Malformed { .. }) => {
                tracing::error!(%error, "a file of lost messages cannot be read, and is set aside");
                self.disk.rename(path, &path.with_extension(DAMAGED_EXTENSION))?;
                Ok(None)
            }
        }
    }

    /// Writes the entries among `records` that hold acknowledged messages to a file of their own, durably. Blocks.
    pub(crate) fn keep(&self, records: Vec<Record>) -> io::Result<()> {
        let proposals = records.into_iter().filter(|record| record.kind == RecordKind::Normal);
        let entries: Vec<LostEntry> = proposals
            .filter_map(|record| {
                let messages = (self.acknowledged_early)(&record.payload);
                let (index, term) = (record.id.index, record.id.term);
                (messages > 0).then_some(LostEntry { index, term, messages, payload: record.payload })
            })
            .collect();
        let Some(first) = entries.first().cloned() else { return Ok(()) };
        let folder = self.dir.join(LOST_TAIL_DIR);
        self.disk.create_dir_all(&folder)?;
        let name = format!("{:020}-{:020}{SUFFIX}", first.term.0, first.index.0);
        let known = self.known(&folder.join(&name))?;
        let mut tail = LostTail { node: self.node, messages: 0, entries };
        if let Some(known) = &known {
            // A crash before the truncation was durable. It may have cost the end of the tail, which is in the file alone then.
            tail.take_in(known);
        }
        tail.messages = tail.entries.iter().map(|entry| entry.messages).sum();
        let (messages, last) = (tail.messages, tail.entries.last().map_or(first.index, |last| last.index));
        write_file_atomically(&*self.disk, &folder, &name, &tail.encode())?;
        {
            let mut status = self.locked();
            status.files += u64::from(known.is_none());
            status.messages += messages - known.map_or(0, |known| known.messages);
        }
        tracing::error!(
            messages, first = %first.index, %last, term = first.term.0, file = %folder.join(&name).display(),
            "acknowledged messages that were not committed are lost to another leader; kept aside"
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::OsDisk;
    use crate::ids::EntryId;

    fn record(index: u64, kind: RecordKind, payload: &'static [u8]) -> Record {
        Record { id: EntryId::new(3, index), kind, payload: Bytes::from_static(payload) }
    }

    fn first_byte(payload: &[u8]) -> u64 {
        payload.first().map_or(0, |byte| u64::from(*byte))
    }

    #[test]
    fn what_was_acknowledged_is_kept_and_counted_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk);
        let keeper = TailKeeper::open(NodeId(2), disk.clone(), dir.path().to_owned(), first_byte);
        keeper.keep(vec![record(4, RecordKind::Blank, b""), record(5, RecordKind::Normal, b"\0x")]).unwrap();
        assert_eq!(keeper.status(), LostTailStatus::default());
        assert!(!dir.path().join(LOST_TAIL_DIR).exists(), "no file, no folder");

        let lost = || {
            vec![
                record(6, RecordKind::Normal, b"\x02ab"),
                record(7, RecordKind::Normal, b"\0c"),
                record(8, RecordKind::Normal, b"\x01"),
            ]
        };
        keeper.keep(lost()).unwrap();
        keeper.keep(lost()).unwrap();
        assert_eq!(keeper.status(), LostTailStatus { files: 1, messages: 3 }, "once, however often it is tried");

        let files = LostTail::files(&*disk, dir.path()).unwrap();
        let tail = LostTail::read(&*disk, &files[0]).unwrap();
        assert_eq!((files.len(), tail.node, tail.messages, tail.entries.len()), (1, NodeId(2), 3, 2));
        assert_eq!((tail.entries[1].index, tail.entries[1].term), (LogIndex(8), Term(3)));
        assert_eq!(tail.entries[0].payload, &b"\x02ab"[..]);
        let again = TailKeeper::open(NodeId(2), disk, dir.path().to_owned(), first_byte);
        assert_eq!(again.status(), keeper.status(), "after a restart");
    }

    #[test]
    fn what_a_crash_cost_between_keeping_and_truncating_stays_in_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(OsDisk);
        let open = || TailKeeper::open(NodeId(2), disk.clone(), dir.path().to_owned(), first_byte);
        let lost = [
            record(6, RecordKind::Normal, b"\x02ab"),
            record(7, RecordKind::Normal, b"\x01c"),
            record(8, RecordKind::Normal, b"\x04d"),
        ];
        open().keep(lost.to_vec()).unwrap();
        // Power failed before the truncation was durable, and took the end of the tail, which was not synced.
        let keeper = open();
        keeper.keep(lost[..1].to_vec()).unwrap();
        assert_eq!(keeper.status(), LostTailStatus { files: 1, messages: 7 });
        let files = LostTail::files(&*disk, dir.path()).unwrap();
        let tail = LostTail::read(&*disk, &files[0]).unwrap();
        assert_eq!((tail.messages, tail.entries.len()), (7, 3), "nothing of what was kept is written over");
        assert_eq!(open().status(), keeper.status());

        // A file that cannot be read is no reason to lose what comes, nor to lose it.
        std::fs::write(&files[0], b"nonsense").unwrap();
        let keeper = open();
        keeper.keep(lost[1..].to_vec()).unwrap();
        keeper.keep(lost.to_vec()).unwrap();
        assert_eq!(std::fs::read(files[0].with_extension(DAMAGED_EXTENSION)).unwrap(), b"nonsense");
        assert_eq!(LostTail::read(&*disk, &files[0]).unwrap().messages, 7);
    }

    #[test]
    fn a_damaged_file_is_told_from_a_sound_one() {
        let entry = LostEntry { index: LogIndex(1), term: Term(1), messages: 1, payload: Bytes::from_static(b"abc") };
        let sound = LostTail { node: NodeId(1), messages: 1, entries: vec![entry] }.encode();
        assert!(LostTail::decode(sound.clone().into()).is_ok());
        for at in 0..sound.len() {
            let mut damaged = sound.clone();
            damaged[at] ^= 0x10;
            assert!(LostTail::decode(damaged.into()).is_err(), "byte {at}");
            assert!(LostTail::decode(sound[..at].to_vec().into()).is_err(), "cut at {at}");
        }
    }
}
