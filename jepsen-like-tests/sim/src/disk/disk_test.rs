//! What the simulated disk promises: what a kill keeps, what a power loss takes, and what fails on demand.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use flotilla_raft_log::Disk;

use super::{DiskFaults, SimDisk, Survival};

fn path(name: &str) -> PathBuf {
    Path::new("/data").join(name)
}

fn disk() -> (SimDisk, Arc<dyn Disk>) {
    let disk = SimDisk::new(1, "test");
    let attached = disk.attach();
    attached.create_dir_all(Path::new("/data")).unwrap();
    (disk, attached)
}

fn content(disk: &SimDisk, name: &str) -> Option<Bytes> {
    let file = disk.attach().open(&path(name)).ok()?;
    file.read_at(0, file.len() as usize).ok()
}

#[test]
fn a_power_loss_takes_unsynced_bytes_and_a_kill_does_not() {
    let (disk, attached) = disk();
    let file = attached.create(&path("a"), 8).unwrap();
    attached.sync_dir(Path::new("/data")).unwrap();
    file.write_at(0, b"synced").unwrap();
    file.sync_data().unwrap();
    file.write_at(0, b"DIRTY!").unwrap();
    disk.kill();
    assert_eq!(content(&disk, "a").unwrap(), b"DIRTY!\0\0"[..]);
    assert_eq!(disk.lose_power(Survival::NOTHING).reverted, 1);
    assert_eq!(content(&disk, "a").unwrap(), b"synced\0\0"[..]);
}

#[test]
fn a_name_is_durable_only_after_its_directory_was_synced() {
    let mut vanished = 0;
    for seed in 0..20 {
        let disk = SimDisk::new(seed, "names");
        let attached = disk.attach();
        attached.create_dir_all(Path::new("/data")).unwrap();
        attached.create(&path("kept"), 1).unwrap();
        attached.sync_dir(Path::new("/data")).unwrap();
        attached.create(&path("perhaps"), 1).unwrap().sync_data().unwrap();
        disk.lose_power(Survival::NOTHING);
        assert!(content(&disk, "kept").is_some());
        vanished += u64::from(content(&disk, "perhaps").is_none());
    }
    assert!(vanished > 0 && vanished < 20, "{vanished} of 20");
}

#[test]
fn a_rename_is_the_old_file_or_the_new_one_and_a_removal_may_come_back() {
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..40 {
        let disk = SimDisk::new(seed, "rename");
        let attached = disk.attach();
        attached.create_dir_all(Path::new("/data")).unwrap();
        flotilla_raft_log::write_file_atomically(&*attached, Path::new("/data"), "f", b"old").unwrap();
        attached.create(&path("gone"), 1).unwrap();
        attached.sync_dir(Path::new("/data")).unwrap();
        let next = attached.create(&path("f.tmp"), 3).unwrap();
        next.write_at(0, b"new").unwrap();
        next.sync_data().unwrap();
        attached.rename(&path("f.tmp"), &path("f")).unwrap();
        attached.remove(&path("gone")).unwrap();
        disk.lose_power(Survival::NOTHING);
        let text = content(&disk, "f").expect("a replaced file never vanishes");
        seen.insert((text, content(&disk, "gone").is_some()));
    }
    let (old, new) = (Bytes::from_static(b"old"), Bytes::from_static(b"new"));
    assert_eq!(seen, [(old, true), (new.clone(), true), (new, false)].into());
}

#[test]
fn a_directory_is_durable_at_once() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed, "dirs");
        let attached = disk.attach();
        attached.create_dir_all(Path::new("/data/deep")).unwrap();
        flotilla_raft_log::write_file_atomically(&*attached, Path::new("/data/deep"), "f", b"x").unwrap();
        disk.lose_power(Survival::NOTHING);
        assert_eq!(content(&disk, "deep/f").unwrap(), b"x"[..]);
    }
}

#[test]
fn a_lock_is_exclusive_and_dies_with_its_process() {
    let (disk, attached) = disk();
    let held = attached.lock(&path("LOCK")).unwrap();
    assert_eq!(attached.lock(&path("LOCK")).err().unwrap().kind(), io::ErrorKind::WouldBlock);
    disk.kill();
    let next = disk.attach();
    let _held = next.lock(&path("LOCK")).unwrap();
    drop(held);
    assert!(next.lock(&path("LOCK")).is_err(), "the dead process's guard must not free the new lock");
}

#[test]
fn a_dead_process_can_do_nothing() {
    let (disk, attached) = disk();
    let file = attached.create(&path("a"), 8).unwrap();
    disk.kill();
    assert!(file.write_at(0, b"x").is_err() && file.sync_data().is_err() && attached.list(Path::new("/data")).is_err());
}

#[test]
fn injected_failures_fail_and_a_full_disk_is_full() {
    let (disk, attached) = disk();
    let file = attached.create(&path("a"), 8).unwrap();
    attached.sync_dir(Path::new("/data")).unwrap();
    file.write_at(0, b"x").unwrap();
    disk.set_faults(DiskFaults { syncs_to_fail: 1, ..DiskFaults::default() });
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_ok(), "the next sync says all is well");
    disk.set_faults(DiskFaults { writes_fail: true, ..DiskFaults::default() });
    assert!(file.write_at(0, b"y").is_err());
    disk.set_faults(DiskFaults::default());
    disk.set_bytes_max(10);
    assert_eq!(attached.create(&path("b"), 8).err().unwrap().kind(), io::ErrorKind::StorageFull);
    assert_eq!(attached.free_bytes(Path::new("/data")).unwrap(), 2);
    disk.lose_power(Survival::NOTHING);
    assert_eq!(content(&disk, "a").unwrap(), [0; 8][..], "the failed sync has lost its page for good");
}

#[test]
fn a_crash_point_lets_the_step_happen_and_nothing_after_it() {
    let (disk, attached) = disk();
    let file = attached.create(&path("a"), 1).unwrap();
    attached.sync_dir(Path::new("/data")).unwrap();
    disk.set_faults(DiskFaults { crash_permille: 1000, ..DiskFaults::default() });
    file.write_at(0, b"x").unwrap();
    file.sync_data().unwrap();
    assert!(file.write_at(0, b"y").is_err() && disk.take_crash_due() && !disk.take_crash_due());
    disk.lose_power(Survival::NOTHING);
    assert_eq!(content(&disk, "a").unwrap(), b"x"[..]);
}
