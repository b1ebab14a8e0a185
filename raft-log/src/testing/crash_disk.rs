//! A disk in memory that fails as asked, and comes back from a power failure with what a real one might have kept.
//!
//! After a power failure each file holds its synced bytes and any subset of the sectors written since; names hold any prefix
//! of the name changes since the last directory sync. Single operations can fail by kind and number, the disk can be full.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::disk::{DirLock, Disk, DiskFile};

/// Finer than any real disk, so that even a slot of the vote file can be torn.
const SECTOR_BYTES: usize = 64;
/// The unit in which a kernel writes back.
const PAGE_BYTES: usize = 4096;
const DISK_BYTES: u64 = 1 << 40;

/// What a power failure leaves of what was not synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Nothing: neither bytes nor names.
    All,
    /// Everything, as after a kill of the process.
    Nothing,
    /// The first half of the dirty sectors of each file, and of the name changes, is left.
    SecondHalf,
    /// Of the dirty pages those with an odd number are left.
    EvenPages,
    /// The first half of the dirty bytes of each file is left, to the byte: the middle sector is torn.
    TornMid,
    /// Any subset of the sectors, any prefix of the names.
    Random,
}

impl Loss {
    pub(crate) const EACH: [Loss; 6] =
        [Loss::All, Loss::Nothing, Loss::SecondHalf, Loss::EvenPages, Loss::TornMid, Loss::Random];
}

/// Operations that can be made to fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Op {
    Create,
    Open,
    Read,
    Write,
    /// A failed sync marks the pages clean that it did not write, as Linux does.
    SyncFile,
    SyncDir,
    Rename,
    Remove,
    List,
}

/// One failure to come.
#[derive(Debug, Clone, Copy)]
struct Fault {
    op: Op,
    /// How many of the kind go well before.
    before: u64,
    errno: i32,
}

/// A disk; clones are the same one.
#[derive(Clone)]
pub(crate) struct CrashDisk {
    world: Arc<Mutex<World>>,
}

struct World {
    names: BTreeMap<PathBuf, Arc<Mutex<Inode>>>,
    durable_names: BTreeMap<PathBuf, Arc<Mutex<Inode>>>,
    name_changes: Vec<NameChange>,
    operations: u64,
    crash_at: Option<u64>,
    crashed: bool,
    boot: u64,
    faults: Vec<Fault>,
    bytes_max: u64,
    locked: BTreeSet<PathBuf>,
    rng: StdRng,
}

#[derive(Clone)]
enum NameChange {
    Set(PathBuf, Arc<Mutex<Inode>>),
    Rename(PathBuf, PathBuf),
    Remove(PathBuf),
}

struct Inode {
    durable: Vec<u8>,
    current: Vec<u8>,
    dirty: BTreeSet<usize>,
}

struct CrashFile {
    world: Arc<Mutex<World>>,
    inode: Arc<Mutex<Inode>>,
}

struct Locked {
    world: Arc<Mutex<World>>,
    path: PathBuf,
}

impl DirLock for Locked {}

impl Drop for Locked {
    fn drop(&mut self) {
        self.world.lock().unwrap().locked.remove(&self.path);
    }
}

fn crashed() -> io::Error {
    io::Error::other("disk has crashed")
}

fn apply(names: &mut BTreeMap<PathBuf, Arc<Mutex<Inode>>>, change: &NameChange) {
    match change {
        NameChange::Set(path, inode) => drop(names.insert(path.clone(), inode.clone())),
        NameChange::Rename(from, to) => {
            if let Some(inode) = names.remove(from) {
                names.insert(to.clone(), inode);
            }
        }
        NameChange::Remove(path) => drop(names.remove(path)),
    }
}

impl World {
    /// Fails if such an operation is to fail now.
    fn check_faults(&mut self, op: Op) -> io::Result<()> {
        let Some(at) = self.faults.iter().position(|fault| fault.op == op) else { return Ok(()) };
        if self.faults[at].before > 0 {
            self.faults[at].before -= 1;
            return Ok(());
        }
        Err(io::Error::from_raw_os_error(self.faults.remove(at).errno))
    }

    /// Counts a durable operation; `Err` if this is the one that fails, or one after it.
    fn operation(&mut self, op: Op) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
        self.check_faults(op)?;
        self.operations += 1;
        if self.crash_at == Some(self.operations) {
            self.crashed = true;
            return Err(crashed());
        }
        Ok(())
    }

    fn change_name(&mut self, change: NameChange) {
        apply(&mut self.names, &change);
        self.name_changes.push(change);
    }
}

impl CrashDisk {
    pub(crate) fn new(seed: u64) -> CrashDisk {
        let world = World {
            names: BTreeMap::new(),
            durable_names: BTreeMap::new(),
            name_changes: Vec::new(),
            operations: 0,
            crash_at: None,
            crashed: false,
            boot: 1,
            faults: Vec::new(),
            bytes_max: DISK_BYTES,
            locked: BTreeSet::new(),
            rng: StdRng::seed_from_u64(seed),
        };
        CrashDisk { world: Arc::new(Mutex::new(world)) }
    }

    /// The machine comes up again, with all that was written.
    pub(crate) fn boot_again(&self) {
        self.world.lock().unwrap().boot += 1;
    }

    fn world(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap()
    }

    /// Durable operations so far.
    pub(crate) fn operations(&self) -> u64 {
        self.world().operations
    }

    /// The operation with that number fails, and everything after it.
    pub(crate) fn crash_at(&self, operation: u64) {
        self.world().crash_at = Some(operation);
    }

    /// The operation of that kind that comes after `before` others of it fails once with that error.
    pub(crate) fn fail(&self, op: Op, before: u64, errno: i32) {
        self.world().faults.push(Fault { op, before, errno });
    }

    /// The next file sync fails as Linux fails one: what was dirty is marked clean, and is not on the disk.
    pub(crate) fn fail_next_sync(&self) {
        self.fail(Op::SyncFile, 0, libc::EIO);
    }

    /// Failures that have not come yet.
    pub(crate) fn faults_left(&self) -> usize {
        self.world().faults.len()
    }

    /// Files together may take no more than that.
    pub(crate) fn set_bytes_max(&self, bytes_max: u64) {
        self.world().bytes_max = bytes_max;
    }

    /// The process dies, and the machine lives on.
    pub(crate) fn kill_process(&self) {
        self.world().locked.clear();
    }

    /// Power fails and only what was synced comes back.
    pub(crate) fn power_cycle_losing_all_unsynced(&self) {
        self.power_cycle_with(Loss::All);
    }

    /// Cuts a file behind the back of everybody, durably.
    pub(crate) fn cut(&self, path: &Path, len: u64) {
        let inode = self.world().names[path].clone();
        let mut inode = inode.lock().unwrap();
        inode.current.truncate(len as usize);
        inode.durable.truncate(len as usize);
        inode.dirty.retain(|sector| sector * SECTOR_BYTES < len as usize);
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// Whether some replica has a directory on it open.
    pub(crate) fn is_locked(&self) -> bool {
        !self.world().locked.is_empty()
    }

    /// The same disk after the power came back, with a random part of what was not synced.
    pub(crate) fn power_cycle(&self) {
        self.power_cycle_with(Loss::Random);
    }

    /// The same disk after the power came back.
    pub(crate) fn power_cycle_with(&self, loss: Loss) {
        let mut world = self.world();
        world.boot += 1;
        let World { durable_names, name_changes, rng, .. } = &mut *world;
        let kept = match loss {
            Loss::All => 0,
            Loss::Nothing | Loss::EvenPages | Loss::TornMid => name_changes.len(),
            Loss::SecondHalf => name_changes.len() / 2,
            Loss::Random => rng.random_range(0..=name_changes.len()),
        };
        let mut names = durable_names.clone();
        name_changes[..kept].iter().for_each(|change| apply(&mut names, change));
        name_changes.clear();
        let mut revived = BTreeMap::new();
        for (path, inode) in names {
            let inode = inode.lock().unwrap();
            let mut bytes = inode.durable.clone();
            let half = inode.dirty.len() / 2;
            for (number, sector) in inode.dirty.iter().enumerate() {
                let start = sector * SECTOR_BYTES;
                let mut end = (start + SECTOR_BYTES).min(bytes.len());
                let is_kept = match loss {
                    Loss::All => false,
                    Loss::Nothing => true,
                    Loss::SecondHalf => number < half,
                    Loss::EvenPages => start / PAGE_BYTES % 2 == 1,
                    Loss::TornMid => {
                        end = if number == half { start + 7.min(end - start) } else { end };
                        number <= half
                    }
                    Loss::Random => rng.random_bool(0.5),
                };
                if is_kept {
                    bytes[start..end].copy_from_slice(&inode.current[start..end]);
                }
            }
            let inode = Inode { durable: bytes.clone(), current: bytes, dirty: BTreeSet::new() };
            revived.insert(path, Arc::new(Mutex::new(inode)));
        }
        world.names = revived.clone();
        world.durable_names = revived;
        world.crashed = false;
        world.crash_at = None;
        world.faults.clear();
        world.operations = 0;
        world.locked.clear();
    }

    /// Changes bytes behind the back of everybody, durably.
    pub(crate) fn damage(&self, path: &Path, offset: u64, bytes: &[u8]) {
        let inode = self.world().names[path].clone();
        let mut inode = inode.lock().unwrap();
        let range = offset as usize..offset as usize + bytes.len();
        inode.current[range.clone()].copy_from_slice(bytes);
        inode.durable[range].copy_from_slice(bytes);
    }
}

impl Disk for CrashDisk {
    fn create_dir_all(&self, _path: &Path) -> io::Result<()> {
        Ok(())
    }

    fn create(&self, path: &Path, len: u64) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world();
        let used: u64 = world.names.values().map(|inode| inode.lock().unwrap().current.len() as u64).sum();
        if used.saturating_add(len) > world.bytes_max {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let operation = world.operation(Op::Create);
        // A crash in the middle may leave a shorter file.
        let len = if operation.is_ok() { len as usize } else { world.rng.random_range(0..=len as usize) };
        let inode = Inode { durable: vec![0; len], current: vec![0; len], dirty: BTreeSet::new() };
        let inode = Arc::new(Mutex::new(inode));
        world.change_name(NameChange::Set(path.to_owned(), inode.clone()));
        operation?;
        Ok(Arc::new(CrashFile { world: self.world.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let mut world = self.world();
        let inode = world.names.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
        world.check_faults(Op::Open)?;
        Ok(Arc::new(CrashFile { world: self.world.clone(), inode }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut world = self.world();
        world.check_faults(Op::List)?;
        let names = world.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(names.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operation(Op::Rename)?;
        world.change_name(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operation(Op::Remove)?;
        world.change_name(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operation(Op::SyncDir)?;
        world.durable_names = world.names.clone();
        world.name_changes.clear();
        Ok(())
    }

    fn lock(&self, path: &Path) -> io::Result<Box<dyn DirLock>> {
        if !self.world().locked.insert(path.to_owned()) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(Box::new(Locked { world: self.world.clone(), path: path.to_owned() }))
    }

    fn boot_id(&self) -> io::Result<Option<String>> {
        Ok(Some(self.world.lock().unwrap().boot.to_string()))
    }
    fn free_bytes(&self, _dir: &Path) -> io::Result<u64> {
        let world = self.world();
        let used: u64 = world.names.values().map(|inode| inode.lock().unwrap().current.len() as u64).sum();
        Ok(world.bytes_max.saturating_sub(used))
    }
}

impl DiskFile for CrashFile {
    fn len(&self) -> u64 {
        self.inode.lock().unwrap().current.len() as u64
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut world = self.world.lock().unwrap();
        let had_crashed = world.crashed;
        let operation = world.operation(Op::Write);
        if operation.is_err() && (had_crashed || !world.crashed) {
            // Refused as a whole; only the write at which the power fails may reach the disk in part.
            return operation;
        }
        drop(world);
        let mut inode = self.inode.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        assert!(end <= inode.current.len(), "write passes the end of the file");
        inode.current[start..end].copy_from_slice(bytes);
        inode.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
        operation
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.world.lock().unwrap().check_faults(Op::Read)?;
        let inode = self.inode.lock().unwrap();
        let range = offset as usize..offset as usize + len;
        inode.current.get(range).map(Bytes::copy_from_slice).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.world.lock().unwrap();
        let had_crashed = world.crashed;
        let operation = world.operation(Op::SyncFile);
        let mut inode = self.inode.lock().unwrap();
        if operation.is_err() {
            if !had_crashed && !world.crashed {
                inode.dirty.clear();
            }
            return operation;
        }
        // Only what is dirty is written: that is how a failed sync can hurt a later one.
        let Inode { durable, current, dirty } = &mut *inode;
        for sector in std::mem::take(dirty) {
            let start = sector * SECTOR_BYTES;
            let end = (start + SECTOR_BYTES).min(current.len());
            durable[start..end].copy_from_slice(&current[start..end]);
        }
        Ok(())
    }
}
