//! One file's bytes: what a reader sees now, and what would be left of it after a power loss.

use std::collections::BTreeMap;

use crate::rng::Rng;

/// The unit in which a kernel writes back.
pub(crate) const PAGE_BYTES: usize = 4096;
/// The unit that a disk writes whole or not at all.
const SECTOR_BYTES: usize = 512;

/// What a power loss leaves of a page that was written and not synced.
#[derive(Debug, Clone, Copy)]
pub struct Survival {
    /// So many of a thousand dirty pages reached the disk.
    pub kept_permille: u64,
    /// So many of a thousand of the others are torn: some sectors new, some old.
    pub torn_permille: u64,
}

impl Survival {
    /// Nothing that was not synced survives.
    pub const NOTHING: Survival = Survival { kept_permille: 0, torn_permille: 0 };
}

/// What became of the dirty pages at a power loss.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Losses {
    /// Pages that reached the disk in time.
    pub kept: u64,
    /// Pages that went back to what the disk held.
    pub reverted: u64,
    /// Pages that are now a mixture of both.
    pub torn: u64,
    /// Creations, renames and removals that never happened.
    pub names: u64,
}

impl Losses {
    pub(crate) fn add(&mut self, other: Losses) {
        self.kept += other.kept;
        self.reverted += other.reverted;
        self.torn += other.torn;
        self.names += other.names;
    }
}

/// A file without its name.
#[derive(Debug)]
pub(crate) struct Inode {
    content: Vec<u8>,
    /// For each dirty page what the disk still holds of it.
    before: BTreeMap<usize, Vec<u8>>,
    /// Pages whose sync failed: clean for the kernel, so no later sync writes them, and yet not on disk.
    abandoned: BTreeMap<usize, Vec<u8>>,
}

impl Inode {
    pub(crate) fn zeroed(len: usize) -> Inode {
        Inode { content: vec![0; len], before: BTreeMap::new(), abandoned: BTreeMap::new() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.content.len() as u64
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Option<&[u8]> {
        let start = usize::try_from(offset).ok()?;
        self.content.get(start..start.checked_add(len)?)
    }

    /// False if the bytes pass the end. `written_back` says whether the kernel happened to write a
    /// page that was already dirty back to disk just before.
    pub(crate) fn write(&mut self, offset: u64, bytes: &[u8], mut written_back: impl FnMut() -> bool) -> bool {
        let Ok(start) = usize::try_from(offset) else { return false };
        let Some(end) = start.checked_add(bytes.len()).filter(|end| *end <= self.content.len()) else { return false };
        if bytes.is_empty() {
            return true;
        }
        for page in start / PAGE_BYTES..=(end - 1) / PAGE_BYTES {
            if let Some(on_disk) = self.abandoned.remove(&page) {
                self.before.insert(page, on_disk);
            }
            let clean = !self.before.contains_key(&page);
            if clean || written_back() {
                let range = self.page_range(page);
                self.before.insert(page, self.content[range].to_vec());
            }
        }
        self.content[start..end].copy_from_slice(bytes);
        true
    }

    fn page_range(&self, page: usize) -> std::ops::Range<usize> {
        let start = page * PAGE_BYTES;
        start..(start + PAGE_BYTES).min(self.content.len())
    }

    pub(crate) fn sync(&mut self) {
        self.before.clear();
    }

    /// A sync that failed: the kernel marks the pages clean all the same.
    pub(crate) fn fail_sync(&mut self) {
        self.abandoned.append(&mut self.before);
    }

    pub(crate) fn lose_power(&mut self, survival: Survival, rng: &mut Rng) -> Losses {
        let mut losses = Losses::default();
        for (page, on_disk) in std::mem::take(&mut self.abandoned) {
            let range = self.page_range(page);
            self.content[range].copy_from_slice(&on_disk);
            losses.reverted += 1;
        }
        for (page, on_disk) in std::mem::take(&mut self.before) {
            let range = self.page_range(page);
            let now = &mut self.content[range];
            if rng.chance(survival.kept_permille) {
                losses.kept += 1;
            } else if rng.chance(survival.torn_permille) {
                losses.torn += 1;
                for (new, old) in now.chunks_mut(SECTOR_BYTES).zip(on_disk.chunks(SECTOR_BYTES)) {
                    if rng.chance(500) {
                        new.copy_from_slice(old);
                    }
                }
            } else {
                losses.reverted += 1;
                now.copy_from_slice(&on_disk);
            }
        }
        losses
    }

    /// Whether `expected` would stand at `offset` if the power went now and nothing unsynced survived.
    pub(crate) fn holds_durably(&self, offset: usize, expected: &[u8]) -> bool {
        let end = offset + expected.len();
        if end > self.content.len() {
            return false;
        }
        (offset..end).zip(expected).all(|(at, byte)| {
            let page = at / PAGE_BYTES;
            match self.before.get(&page).or_else(|| self.abandoned.get(&page)) {
                Some(on_disk) => on_disk[at % PAGE_BYTES] == *byte,
                None => self.content[at] == *byte,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL_TORN: Survival = Survival { kept_permille: 0, torn_permille: 1000 };

    fn rng() -> Rng {
        Rng::stream(1, "inode")
    }

    fn bytes(inode: &Inode) -> &[u8] {
        inode.read(0, inode.content.len()).unwrap()
    }

    #[test]
    fn unsynced_bytes_go_back_to_what_was_synced() {
        let mut inode = Inode::zeroed(3 * PAGE_BYTES);
        assert!(inode.write(0, b"synced", || false));
        inode.sync();
        assert!(inode.write(2, b"UNSYNCED", || false));
        assert!(inode.write(PAGE_BYTES as u64, b"gone", || false));
        assert!(inode.holds_durably(0, b"synced") && !inode.holds_durably(PAGE_BYTES, b"gone"));
        let losses = inode.lose_power(Survival::NOTHING, &mut rng());
        assert_eq!(losses, Losses { reverted: 2, ..Losses::default() });
        assert_eq!(&bytes(&inode)[..10], b"synced\0\0\0\0");
        assert_eq!(&bytes(&inode)[PAGE_BYTES..PAGE_BYTES + 4], [0; 4]);
    }

    #[test]
    fn a_torn_page_is_a_mixture_of_sectors() {
        let mut inode = Inode::zeroed(PAGE_BYTES);
        assert!(inode.write(0, &[7; PAGE_BYTES], || false));
        assert_eq!(inode.lose_power(ALL_TORN, &mut rng()).torn, 1);
        let sectors: Vec<&[u8]> = bytes(&inode).chunks(SECTOR_BYTES).collect();
        assert!(sectors.iter().all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        assert!(sectors.iter().any(|sector| sector[0] == 7) && sectors.iter().any(|sector| sector[0] == 0));
    }

    #[test]
    fn a_page_written_back_between_two_writes_keeps_the_first() {
        let mut inode = Inode::zeroed(PAGE_BYTES);
        assert!(inode.write(0, b"first", || true));
        assert!(inode.write(0, b"other", || true));
        inode.lose_power(Survival::NOTHING, &mut rng());
        assert_eq!(&bytes(&inode)[..5], b"first");
    }

    #[test]
    fn a_failed_sync_loses_its_pages_even_if_the_next_sync_succeeds() {
        let mut inode = Inode::zeroed(2 * PAGE_BYTES);
        assert!(inode.write(0, b"lost", || false));
        inode.fail_sync();
        assert!(inode.write(PAGE_BYTES as u64, b"kept", || false));
        inode.sync();
        assert_eq!(&bytes(&inode)[..4], b"lost", "the page cache still shows it");
        inode.lose_power(Survival::NOTHING, &mut rng());
        assert!(!inode.holds_durably(0, b"lost") && inode.holds_durably(PAGE_BYTES, b"kept"));
    }

    #[test]
    fn a_write_past_the_end_is_refused() {
        let mut inode = Inode::zeroed(10);
        assert!(!inode.write(5, b"123456", || false));
        assert!(inode.write(5, b"12345", || false));
        assert_eq!(inode.read(5, 6), None);
    }
}
