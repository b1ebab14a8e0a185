//! A disk in memory that fails at a chosen durable operation and comes back with what a real one might have kept.
//!
//! After a crash each file holds its synced bytes and any subset of the sectors written since; names hold any prefix of
//! the name changes since the last directory sync.

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
    lying_sync: bool,
    boot: u64,
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
    /// Counts a durable operation; `Err` if this is the one that fails, or one after it.
    fn operation(&mut self) -> io::Result<()> {
        if self.crashed {
            return Err(crashed());
        }
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
            lying_sync: false,
            boot: 1,
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

    /// The next file sync fails as Linux fails one: what was dirty is marked clean, and is not on the disk.
    pub(crate) fn fail_next_sync(&self) {
        self.world().lying_sync = true;
    }

    /// Power fails and only what was synced comes back.
    pub(crate) fn power_cycle_losing_all_unsynced(&self) {
        for inode in self.world().names.values() {
            inode.lock().unwrap().dirty.clear();
        }
        self.power_cycle();
    }

    pub(crate) fn has_crashed(&self) -> bool {
        self.world().crashed
    }

    /// The same disk after the power came back.
    pub(crate) fn power_cycle(&self) {
        let mut world = self.world();
        world.boot += 1;
        let World { durable_names, name_changes, rng, .. } = &mut *world;
        let kept = rng.random_range(0..=name_changes.len());
        let mut names = durable_names.clone();
        name_changes[..kept].iter().for_each(|change| apply(&mut names, change));
        name_changes.clear();
        let mut revived = BTreeMap::new();
        for (path, inode) in names {
            let inode = inode.lock().unwrap();
            let mut bytes = inode.durable.clone();
            for sector in &inode.dirty {
                if rng.random_bool(0.5) {
                    let start = sector * SECTOR_BYTES;
                    let end = (start + SECTOR_BYTES).min(bytes.len());
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
        let operation = world.operation();
        // A crash in the middle may leave a shorter file.
        let len = if operation.is_ok() { len as usize } else { world.rng.random_range(0..=len as usize) };
        let inode = Inode { durable: vec![0; len], current: vec![0; len], dirty: BTreeSet::new() };
        let inode = Arc::new(Mutex::new(inode));
        world.change_name(NameChange::Set(path.to_owned(), inode.clone()));
        operation?;
        Ok(Arc::new(CrashFile { world: self.world.clone(), inode }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.world().names.get(path).cloned().ok_or(io::ErrorKind::NotFound)?;
        Ok(Arc::new(CrashFile { world: self.world.clone(), inode }))
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let world = self.world();
        let names = world.names.keys().filter(|path| path.parent() == Some(dir));
        Ok(names.filter_map(|path| path.file_name()?.to_str().map(str::to_owned)).collect())
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
        world.change_name(NameChange::Rename(from.to_owned(), to.to_owned()));
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
        world.change_name(NameChange::Remove(path.to_owned()));
        Ok(())
    }

    fn sync_dir(&self, _dir: &Path) -> io::Result<()> {
        let mut world = self.world();
        world.operation()?;
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
        Ok(1 << 40)
    }
}

impl DiskFile for CrashFile {
    fn len(&self) -> u64 {
        self.inode.lock().unwrap().current.len() as u64
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let operation = self.world.lock().unwrap().operation();
        let mut inode = self.inode.lock().unwrap();
        let (start, end) = (offset as usize, offset as usize + bytes.len());
        assert!(end <= inode.current.len(), "write passes the end of the file");
        inode.current[start..end].copy_from_slice(bytes);
        inode.dirty.extend(start / SECTOR_BYTES..end.div_ceil(SECTOR_BYTES));
        operation
    }

    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        let inode = self.inode.lock().unwrap();
        let range = offset as usize..offset as usize + len;
        inode.current.get(range).map(Bytes::copy_from_slice).ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
    }

    fn sync_data(&self) -> io::Result<()> {
        let mut world = self.world.lock().unwrap();
        world.operation()?;
        let mut inode = self.inode.lock().unwrap();
        if std::mem::take(&mut world.lying_sync) {
            inode.dirty.clear();
            return Err(io::Error::from_raw_os_error(libc::EIO));
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
