//! A machine that remembers everything it applied, for tests to look at.

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use bytes::{BufMut, Bytes};

use crate::fields::FieldReader;
use crate::{
    Disk, LogIndex, RestoreError, SideFile, SideFileCheck, StateMachine, Term, read_file, write_file_atomically,
};

/// A payload that ends so is taken for one that was acknowledged before its commit.
pub(crate) const ACKNOWLEDGED: u8 = 0xEE;

/// The machine; clones look at the same state.
#[derive(Clone, Default)]
pub(crate) struct Ledger {
    state: Arc<Mutex<State>>,
    /// Where what was applied before the last boundary is put, instead of into checkpoints.
    sides: Option<(Arc<dyn Disk>, PathBuf)>,
}

#[derive(Default)]
struct State {
    applied: Vec<(LogIndex, Bytes)>,
    segments: Vec<LogIndex>,
    restored: Option<LogIndex>,
    /// The side file, and how many of `applied` are in it.
    side: Option<(String, usize)>,
    retired: Vec<(LogIndex, String)>,
}

fn put_entries(bytes: &mut Vec<u8>, entries: &[(LogIndex, Bytes)]) {
    for (index, payload) in entries {
        bytes.put_u64_le(index.0);
        bytes.put_u32_le(payload.len() as u32);
        bytes.put_slice(payload);
    }
}

fn get_entries(bytes: Bytes, applied: LogIndex, out: &mut Vec<(LogIndex, Bytes)>) {
    let mut reader = FieldReader::new(bytes);
    while reader.left() > 0 {
        let index = LogIndex(reader.u64().unwrap());
        let len = reader.u32().unwrap() as usize;
        assert!(index <= applied, "a checkpoint holds nothing behind its own mark");
        out.push((index, reader.take(len).unwrap()));
    }
}

fn side_name(checkpoint: &[u8]) -> String {
    String::from_utf8(checkpoint[1..1 + usize::from(checkpoint[0])].to_vec()).unwrap()
}

impl Ledger {
    /// One whose checkpoints rely on files in `dir`.
    pub(crate) fn with_sides(disk: Arc<dyn Disk>, dir: PathBuf) -> Ledger {
        disk.create_dir_all(&dir).unwrap();
        Ledger { sides: Some((disk, dir)), ..Ledger::default() }
    }

    /// Every proposal applied, in order.
    pub(crate) fn applied(&self) -> Vec<(LogIndex, Bytes)> {
        self.state.lock().unwrap().applied.clone()
    }

    /// The boundaries told since the machine was made.
    pub(crate) fn segments(&self) -> Vec<LogIndex> {
        self.state.lock().unwrap().segments.clone()
    }

    /// What the state was last restored to.
    pub(crate) fn restored(&self) -> Option<LogIndex> {
        self.state.lock().unwrap().restored
    }
}

impl StateMachine for Ledger {
    /// How many proposals were applied, with this one.
    type Output = usize;

    fn apply(&mut self, index: LogIndex, _term: Term, payload: Bytes) -> usize {
        let mut state = self.state.lock().unwrap();
        if let Some((last, _)) = state.applied.last() {
            assert!(*last < index, "entry {index} is applied after {last}");
        }
        state.applied.push((index, payload));
        state.applied.len()
    }

    fn acknowledged_early(payload: &[u8]) -> u64 {
        u64::from(payload.last() == Some(&ACKNOWLEDGED))
    }

    fn segment_started(&mut self, first: LogIndex) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        assert!(
            state.applied.last().is_none_or(|(last, _)| *last < first),
            "all before {first} is applied, {first} is not"
        );
        state.segments.push(first);
        if let Some((disk, dir)) = &self.sides {
            let mut bytes = Vec::new();
            put_entries(&mut bytes, &state.applied);
            let name = format!("side-{:08x}-{}", crc32c::crc32c(&bytes), bytes.len());
            write_file_atomically(&**disk, dir, &name, &bytes)?;
            let count = state.applied.len();
            state.retired.retain(|(_, retired)| *retired != name);
            let old = state.side.replace((name.clone(), count)).map(|(old, _)| old);
            state.retired.extend(old.filter(|old| *old != name).map(|old| (first, old)));
        }
        Ok(())
    }

    fn checkpoint(&self) -> Vec<u8> {
        let state = self.state.lock().unwrap();
        let (name, count) = state.side.clone().unwrap_or_default();
        let mut bytes = vec![name.len() as u8];
        bytes.put_slice(name.as_bytes());
        put_entries(&mut bytes, &state.applied[count..]);
        bytes
    }

    fn side_files(&self, checkpoint: &[u8]) -> Result<Vec<SideFile>, RestoreError> {
        let name = side_name(checkpoint);
        Ok(self.side_file_path(&name).map(|path| SideFile { name, path }).into_iter().collect())
    }

    fn side_file_path(&self, name: &str) -> Option<PathBuf> {
        let (_, dir) = self.sides.as_ref()?;
        name.starts_with("side-").then(|| dir.join(name))
    }

    fn side_file_check(&self) -> SideFileCheck {
        |disk, path| {
            let bytes = read_file(disk, path).map_err(|error| error.to_string())?;
            let name = format!("side-{:08x}-{}", crc32c::crc32c(&bytes), bytes.len());
            if path.ends_with(&name) { Ok(()) } else { Err("it is damaged".to_owned()) }
        }
    }

    fn checkpoints_kept(&mut self, kept: &[LogIndex]) {
        let (Some((disk, dir)), Some(oldest)) = (&self.sides, kept.first()) else { return };
        let gone = |(retired, _): &mut (LogIndex, String)| *retired <= *oldest;
        for (_, name) in self.state.lock().unwrap().retired.extract_if(.., gone) {
            disk.remove(&dir.join(name)).unwrap();
        }
    }

    fn restore(&mut self, checkpoint: &[u8], applied: LogIndex) -> Result<(), RestoreError> {
        let name = side_name(checkpoint);
        let mut entries = Vec::new();
        let mut side = None;
        if let (false, Some((disk, dir))) = (name.is_empty(), &self.sides) {
            let bytes =
                read_file(&**disk, &dir.join(&name)).map_err(|error| RestoreError(format!("{name}: {error}")))?;
            if name != format!("side-{:08x}-{}", crc32c::crc32c(&bytes), bytes.len()) {
                return Err(RestoreError(format!("{name} is damaged")));
            }
            get_entries(bytes, applied, &mut entries);
            side = Some((name.clone(), entries.len()));
        }
        get_entries(Bytes::copy_from_slice(&checkpoint[1 + name.len()..]), applied, &mut entries);
        let mut retired = Vec::new();
        if let Some((disk, dir)) = &self.sides {
            // Older checkpoints may rely on the others.
            let names = disk.list(dir).map_err(|error| RestoreError(error.to_string()))?;
            let others = names.into_iter().filter(|other| other.starts_with("side-") && *other != name);
            retired.extend(others.map(|other| (applied, other)));
        }
        let mut state = self.state.lock().unwrap();
        (state.applied, state.side, state.retired) = (entries, side, retired);
        state.restored = Some(applied);
        Ok(())
    }
}
