//! The simulated disk: a page cache over a durable image, and what a crash makes of the two.

#[cfg(test)]
mod disk_test;
mod inode;
mod names;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use flotilla_raft_log::{DirLock, Disk, DiskFile};

use self::inode::Inode;
pub use self::inode::{Losses, Survival};
use self::names::{File, Names};
use crate::executor::lock;
use crate::rng::Rng;

/// Of a thousand writes to a dirty page so many find that the kernel has just written it back.
const WRITTEN_BACK_PERMILLE: u64 = 100;
/// Room on a new disk.
const DISK_BYTES: u64 = 1 << 40;

/// What begins like this is remembered where it is written, so that a test can ask at any moment
/// whether it is durable: the simulation's message ids do.
pub const MARK_PREFIX: &[u8] = b"MSG-";
/// Length of a mark, prefix included.
pub const MARK_BYTES: usize = 22;

fn marks_in(bytes: &[u8]) -> impl Iterator<Item = usize> {
    let last = bytes.len().saturating_sub(MARK_BYTES - 1);
    (0..last).filter(|at| bytes[*at] == MARK_PREFIX[0] && bytes[*at..].starts_with(MARK_PREFIX))
}

/// Injected failures; all off at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct DiskFaults {
    /// Every write answers EIO.
    pub writes_fail: bool,
    /// So many of the next syncs answer EIO, and lose the pages they were asked to write.
    pub syncs_to_fail: u32,
    /// Of a thousand durable steps (a sync of a file or directory) so many are the last thing the
    /// process does.
    pub crash_permille: u64,
}

/// One machine's disk. It outlives the processes that use it.
#[derive(Clone)]
pub struct SimDisk {
    machine: Arc<Machine>,
}

struct Machine {
    state: Mutex<State>,
    crash_due: AtomicBool,
}

struct State {
    names: Names,
    rng: Rng,
    faults: DiskFaults,
    /// Syncs answer "done" and do nothing.
    syncs_lie: bool,
    /// Which process may use the disk; handles of earlier ones are refused.
    process: u64,
    /// The process has reached its crash point: nothing it does counts any more.
    frozen: bool,
    /// An injected failure has met the process.
    failed: bool,
    locks: std::collections::BTreeSet<PathBuf>,
    bytes_max: u64,
    /// How often the machine has lost power.
    boots: u64,
    /// Where each mark was written.
    marks: BTreeMap<Vec<u8>, Vec<(File, usize)>>,
    /// Marks that were durable on a disk that was here before.
    marks_before: std::collections::BTreeSet<Vec<u8>>,
}

impl SimDisk {
    /// An empty disk with its own random stream.
    pub fn new(seed: u64, name: &str) -> SimDisk {
        let state = State {
            names: Names::default(),
            rng: Rng::stream(seed, &format!("disk of {name}")),
            faults: DiskFaults::default(),
            syncs_lie: false,
            process: 0,
            frozen: false,
            failed: false,
            locks: std::collections::BTreeSet::new(),
            bytes_max: DISK_BYTES,
            boots: 0,
            marks: BTreeMap::new(),
            marks_before: std::collections::BTreeSet::new(),
        };
        SimDisk { machine: Arc::new(Machine { state: Mutex::new(state), crash_due: AtomicBool::new(false) }) }
    }

    /// The disk as a newly started process sees it. Handles of earlier processes answer EIO from now on.
    pub fn attach(&self) -> Arc<dyn Disk> {
        let mut state = lock(&self.machine.state);
        state.process += 1;
        state.frozen = false;
        state.failed = false;
        state.locks.clear();
        Arc::new(Attached { machine: self.machine.clone(), process: state.process })
    }

    /// The process dies and the machine lives on: what was written stays, synced or not.
    pub fn kill(&self) {
        let mut state = lock(&self.machine.state);
        state.process += 1;
        state.locks.clear();
        self.machine.crash_due.store(false, Ordering::Relaxed);
    }

    /// The machine loses power: of what was not synced only `survival` is left.
    pub fn lose_power(&self, survival: Survival) -> Losses {
        self.kill();
        let mut state = lock(&self.machine.state);
        let state = &mut *state;
        state.boots += 1;
        let mut losses = Losses::default();
        for file in state.names.files() {
            losses.add(lock(&file).lose_power(survival, &mut state.rng));
        }
        losses.names = state.names.lose_power(&mut state.rng);
        losses
    }

    /// An empty disk takes its place. Whoever waits to be told of what the one before held durably is still told so.
    pub fn replace(&self) {
        self.kill();
        let known: Vec<Vec<u8>> = lock(&self.machine.state).marks.keys().cloned().collect();
        let durable: Vec<Vec<u8>> = known.into_iter().filter(|mark| self.holds_durably(mark)).collect();
        let mut state = lock(&self.machine.state);
        state.marks_before.extend(durable);
        state.marks.clear();
        state.names = Names::default();
    }

    /// Sets the failures from now on.
    pub fn set_faults(&self, faults: DiskFaults) {
        lock(&self.machine.state).faults = faults;
    }

    /// Makes every sync a lie: to see that the simulation notices.
    pub fn lie_about_syncs(&self) {
        lock(&self.machine.state).syncs_lie = true;
    }

    /// Limits the room; files cannot be created beyond it.
    pub fn set_bytes_max(&self, bytes_max: u64) {
        lock(&self.machine.state).bytes_max = bytes_max;
    }

    /// True once after the process has reached an injected crash point: its life must be ended now.
    pub fn take_crash_due(&self) -> bool {
        self.machine.crash_due.swap(false, Ordering::Relaxed)
    }

    /// Whether the process is at its crash point and its answers no longer count.
    pub fn is_frozen(&self) -> bool {
        lock(&self.machine.state).frozen
    }

    /// Whether an injected failure has met the process: then it must stop.
    pub fn has_failed(&self) -> bool {
        lock(&self.machine.state).failed
    }

    /// Whether a mark (bytes that begin with the mark prefix) that was written would survive a power loss now that
    /// spares nothing unsynced.
    pub fn holds_durably(&self, mark: &[u8]) -> bool {
        let state = lock(&self.machine.state);
        let places = state.marks.get(mark).map_or(&[][..], Vec::as_slice);
        state.marks_before.contains(mark)
            || places
                .iter()
                .rev()
                .any(|(file, offset)| state.names.is_durable(file) && lock(file).holds_durably(*offset, mark))
    }
}

impl SimDisk {
    /// Whether a reader would find a mark that was written.
    pub fn holds(&self, mark: &[u8]) -> bool {
        let state = lock(&self.machine.state);
        let places = state.marks.get(mark).map_or(&[][..], Vec::as_slice);
        places.iter().rev().any(|(file, offset)| {
            state.names.is_there(file) && lock(file).read(*offset as u64, mark.len()) == Some(mark)
        })
    }
}

/// A disk in the hands of one process.
struct Attached {
    machine: Arc<Machine>,
    process: u64,
}

fn io_error(text: String) -> io::Error {
    io::Error::other(text)
}

fn not_found(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{} does not exist", path.display()))
}

impl Machine {
    /// Runs `work` for a process that still may.
    fn with<T>(&self, process: u64, work: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = lock(&self.state);
        if state.process != process || state.frozen {
            return Err(io_error("the simulated process is dead".to_owned()));
        }
        work(&mut state)
    }

    /// A durable step has just succeeded: perhaps it was the last.
    fn after_durable_step(&self, state: &mut State) {
        let permille = state.faults.crash_permille;
        if permille > 0 && state.rng.chance(permille) {
            state.frozen = true;
            self.crash_due.store(true, Ordering::Relaxed);
        }
    }
}

impl State {
    fn refuse_sync(&mut self) -> bool {
        let fails = self.faults.syncs_to_fail > 0;
        self.failed |= fails;
        self.faults.syncs_to_fail = self.faults.syncs_to_fail.saturating_sub(1);
        fails
    }

    fn parent_exists(&self, path: &Path) -> io::Result<()> {
        match path.parent() {
            Some(parent) if !self.names.is_directory(parent) => Err(not_found(parent)),
            _ => Ok(()),
        }
    }
}

impl Attached {
    fn handle(&self, file: File) -> Arc<dyn DiskFile> {
        let len = lock(&file).len();
        Arc::new(Handle { machine: self.machine.clone(), process: self.process, file, len })
    }
}

impl Disk for Attached {
    fn create_dir_all(&self, path: &Path) -> io::Result<()> {
        self.machine.with(self.process, |state| {
            state.names.make_directories(path);
            self.machine.after_durable_step(state);
            Ok(())
        })
    }

    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        self.machine.with(self.process, |state| {
            state.parent_exists(path)?;
            if state.faults.writes_fail {
                return Err(io_error("injected: write failed".to_owned()));
            }
            let replaced_bytes = state.names.file(path).map_or(0, |replaced| lock(&replaced).len());
            if (state.names.bytes() - replaced_bytes).saturating_add(len) > state.bytes_max {
                return Err(io::ErrorKind::StorageFull.into());
            }
            let bytes = usize::try_from(len).map_err(|_| io::Error::from(io::ErrorKind::FileTooLarge))?;
            let file = Arc::new(Mutex::new(Inode::zeroed(bytes)));
            state.names.put(path, file.clone());
            Ok(self.handle(file))
        })
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        self.machine.with(self.process, |state| {
            let file = state.names.file(path).ok_or_else(|| not_found(path))?;
            Ok(self.handle(file))
        })
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.machine.with(self.process, |state| {
            if !state.names.is_directory(dir) {
                return Err(not_found(dir));
            }
            Ok(state.names.list(dir))
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.machine.with(self.process, |state| {
            state.names.file(from).ok_or_else(|| not_found(from))?;
            state.names.rename(from, to);
            Ok(())
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.machine.with(self.process, |state| {
            state.names.file(path).ok_or_else(|| not_found(path))?;
            state.names.take(path);
            Ok(())
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.machine.with(self.process, |state| {
            if !state.names.is_directory(dir) {
                return Err(not_found(dir));
            }
            if state.refuse_sync() {
                return Err(io_error("injected: sync failed".to_owned()));
            }
            if !state.syncs_lie {
                state.names.sync(dir);
            }
            self.machine.after_durable_step(state);
            Ok(())
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        self.machine.with(self.process, |state| {
            state.parent_exists(path)?;
            if state.names.file(path).is_none() {
                state.names.put(path, Arc::new(Mutex::new(Inode::zeroed(0))));
            }
            if !state.locks.insert(path.to_owned()) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        })?;
        Ok(Box::new(Lock { machine: self.machine.clone(), process: self.process, path: path.to_owned() }))
    }

    fn boot_id(&self) -> io::Result<Option<String>> {
        self.machine.with(self.process, |state| Ok(Some(format!("boot {}", state.boots))))
    }

    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        self.machine.with(self.process, |state| Ok(state.bytes_max.saturating_sub(state.names.bytes())))
    }
}

struct Lock {
    machine: Arc<Machine>,
    process: u64,
    path: PathBuf,
}

impl DirLock for Lock {}

impl Drop for Lock {
    fn drop(&mut self) {
        let mut state = lock(&self.machine.state);
        // The lock of a dead process is long gone, and may be another's by now.
        if state.process == self.process {
            state.locks.remove(&self.path);
        }
    }
}

struct Handle {
    machine: Arc<Machine>,
    process: u64,
    file: File,
    len: u64,
}

impl Handle {
    fn past_the_end(&self, offset: u64, len: usize, kind: io::ErrorKind) -> io::Error {
        io::Error::new(kind, format!("{len} bytes at {offset} pass the end of a file of {} bytes", self.len))
    }
}

impl DiskFile for Handle {
    fn len(&self) -> u64 {
        self.len
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.machine.with(self.process, |state| {
            if state.faults.writes_fail {
                return Err(io_error("injected: write failed".to_owned()));
            }
            for at in marks_in(bytes) {
                let place = (self.file.clone(), offset as usize + at);
                state.marks.entry(bytes[at..at + MARK_BYTES].to_vec()).or_default().push(place);
            }
            let mut file = lock(&self.file);
            if file.write(offset, bytes, || state.rng.chance(WRITTEN_BACK_PERMILLE)) {
                Ok(())
            } else {
                Err(self.past_the_end(offset, bytes.len(), io::ErrorKind::InvalidInput))
            }
        })
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.machine.with(self.process, |_| {
            let file = lock(&self.file);
            let bytes = file.read(offset, len).map(Bytes::copy_from_slice);
            bytes.ok_or_else(|| self.past_the_end(offset, len, io::ErrorKind::UnexpectedEof))
        })
    }

    fn sync_data(&self) -> io::Result<()> {
        self.machine.with(self.process, |state| {
            if state.refuse_sync() {
                lock(&self.file).fail_sync();
                return Err(io_error("injected: sync failed".to_owned()));
            }
            if !state.syncs_lie {
                lock(&self.file).sync();
            }
            self.machine.after_durable_step(state);
            Ok(())
        })
    }
}
