//! A disk whose syncs take longer, or do not come back, when told so, over the machine's own.
#![allow(clippy::disallowed_methods, reason = "a slow disk keeps its thread waiting, as a real one does")]

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;

use crate::disk::{Disk as _, DiskFile, OsDisk, WrapDisk, WrappingDisk};

/// The disk; clones are the same one.
pub(crate) type SlowDisk = WrappingDisk<SlowSyncs>;

/// How much longer syncs take.
#[derive(Clone, Default)]
pub(crate) struct SlowSyncs {
    extra_ms: Arc<AtomicU64>,
    hang: Arc<(Mutex<bool>, Condvar)>,
    links_nothing: Arc<AtomicBool>,
    /// `None`: what the machine says.
    free_bytes: Arc<Mutex<Option<u64>>>,
}

/// No sync hangs for longer: a test that fails meanwhile has to end.
const HANG_MAX: Duration = Duration::from_secs(60);

struct SlowFile {
    file: Arc<dyn DiskFile>,
    syncs: SlowSyncs,
}

impl SlowDisk {
    /// Each sync of a file takes so much longer from now on.
    pub(crate) fn take_longer(&self, extra: Duration) {
        self.0.extra_ms.store(u64::try_from(extra.as_millis()).unwrap(), Ordering::Relaxed);
    }

    /// Syncs do not come back while this is so.
    pub(crate) fn hang(&self, hangs: bool) {
        let (told, changed) = &*self.0.hang;
        *told.lock().unwrap() = hangs;
        changed.notify_all();
    }

    /// What is free, whatever is written from now on.
    pub(crate) fn state_free(&self, bytes: Option<u64>) {
        *self.0.free_bytes.lock().unwrap() = bytes;
    }

    /// From now on no file can have a second name, as between two mounts.
    pub(crate) fn link_nothing(&self) {
        self.0.links_nothing.store(true, Ordering::Relaxed);
    }
}

impl WrapDisk for SlowSyncs {
    fn free_bytes(&self, dir: &Path) -> io::Result<u64> {
        let stated = *self.free_bytes.lock().unwrap();
        stated.map_or_else(|| OsDisk.free_bytes(dir), Ok)
    }
    fn may_link(&self) -> bool {
        !self.links_nothing.load(Ordering::Relaxed)
    }
    fn wrap(&self, file: Arc<dyn DiskFile>, _: &Path) -> Arc<dyn DiskFile> {
        Arc::new(SlowFile { file, syncs: self.clone() })
    }
}

impl DiskFile for SlowFile {
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_at(offset, bytes)
    }
    fn write_lazily(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_lazily(offset, bytes)
    }
    fn copies_lazily(&self) -> bool {
        self.file.copies_lazily()
    }
    fn zero_ahead(&self, offset: u64, len: u64) -> io::Result<()> {
        self.file.zero_ahead(offset, len)
    }
    fn data_from(&self, offset: u64) -> u64 {
        self.file.data_from(offset)
    }
    fn forget_cached(&self, offset: u64, len: u64) {
        self.file.forget_cached(offset, len);
    }
    fn read_at(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.file.read_at(offset, len)
    }
    fn read_uncached(&self, offset: u64, len: usize) -> io::Result<Bytes> {
        self.file.read_uncached(offset, len)
    }
    fn sync_data(&self) -> io::Result<()> {
        std::thread::sleep(Duration::from_millis(self.syncs.extra_ms.load(Ordering::Relaxed)));
        let (hangs, changed) = &*self.syncs.hang;
        drop(changed.wait_timeout_while(hangs.lock().unwrap(), HANG_MAX, |hangs| *hangs).unwrap());
        self.file.sync_data()
    }
}
