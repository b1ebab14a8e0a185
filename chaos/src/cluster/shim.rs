//! Orders to the shim in a server process: failing and slow writes and syncs, a full disk, a wrong clock.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

#[allow(dead_code, reason = "the shim's side uses the rest")]
#[path = "../../io-shim/src/orders.rs"]
mod orders;

pub use orders::Place;
use orders::{BOOT_VARIABLE, DATA_VARIABLE, MAGIC, PAGE_BYTES, PAGE_VARIABLE};

/// One process's page of orders. It outlives the process: the next one on the same data obeys it too.
#[derive(Debug)]
pub struct Shim {
    library: PathBuf,
    path: PathBuf,
    /// What the process takes for the id of its machine's boot.
    boot: PathBuf,
    data: PathBuf,
    page: File,
}

impl Shim {
    /// A page without orders at `path`, for a process that keeps its data below `data`.
    pub(super) fn create(library: &Path, path: &Path, data: &Path) -> io::Result<Shim> {
        let page = File::options().read(true).write(true).create(true).truncate(true).open(path)?;
        page.set_len(PAGE_BYTES as u64)?;
        page.write_all_at(&MAGIC.to_le_bytes(), Place::Magic as u64)?;
        let boot = path.with_extension("boot");
        std::fs::write(&boot, "boot-1\n")?;
        Ok(Shim { library: library.to_owned(), path: path.to_owned(), boot, data: data.to_owned(), page })
    }

    /// The machine has booted: the next process finds another id.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn boot(&self) -> io::Result<()> {
        let before = std::fs::read_to_string(&self.boot)?;
        let count = before.trim().rsplit_once('-').and_then(|(_, count)| count.parse().ok()).unwrap_or(0_u64);
        std::fs::write(&self.boot, format!("boot-{}\n", count + 1))
    }

    /// What the process must find in its environment.
    pub(super) fn environment(&self) -> Vec<(String, OsString)> {
        vec![
            ("LD_PRELOAD".to_owned(), self.library.clone().into()),
            (PAGE_VARIABLE.to_owned(), self.path.clone().into()),
            (DATA_VARIABLE.to_owned(), self.data.clone().into()),
            (BOOT_VARIABLE.to_owned(), self.boot.clone().into()),
        ]
    }

    /// Gives an order; it holds from the process's next call on.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn set(&self, place: Place, value: u64) -> io::Result<()> {
        self.page.write_all_at(&value.to_le_bytes(), place as u64)
    }

    /// Gives an order that may be below zero.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn set_signed(&self, place: Place, value: i64) -> io::Result<()> {
        self.set(place, value.cast_unsigned())
    }

    /// Takes every order back; the counts stay.
    ///
    /// # Errors
    /// What the file system answers.
    pub fn clear(&self) -> io::Result<()> {
        let orders = Place::WriteErrno as usize..Place::WritesHurt as usize;
        self.page.write_all_at(&vec![0; orders.len()], orders.start as u64)
    }

    /// How often an order was obeyed until now, over all kinds.
    pub fn obeyed(&self) -> u64 {
        [Place::WritesHurt, Place::SyncsHurt, Place::ClockLooks].into_iter().map(|place| self.get(place)).sum()
    }

    /// An order's value now; 0 once it is obeyed to the end.
    pub fn get(&self, place: Place) -> u64 {
        let mut bytes = [0; 8];
        self.page.read_exact_at(&mut bytes, place as u64).map_or(0, |()| u64::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_stand_on_the_page_until_they_are_taken_back() {
        let dir = tempfile::tempdir().unwrap();
        let shim = Shim::create(Path::new("lib.so"), &dir.path().join("page"), Path::new("/data")).unwrap();
        shim.set(Place::SyncErrno, 5).unwrap();
        shim.set_signed(Place::ClockOffsetNs, -7).unwrap();
        assert_eq!((shim.get(Place::SyncErrno), shim.get(Place::ClockOffsetNs)), (5, (-7_i64).cast_unsigned()));
        shim.set(Place::SyncsHurt, 3).unwrap();
        shim.clear().unwrap();
        assert_eq!((shim.get(Place::SyncErrno), shim.get(Place::ClockOffsetNs)), (0, 0));
        assert_eq!((shim.get(Place::Magic), shim.obeyed()), (MAGIC, 3));
        assert_eq!(shim.environment().len(), 4);
        shim.boot().unwrap();
        assert_eq!(std::fs::read_to_string(dir.path().join("page.boot")).unwrap(), "boot-2\n");
    }
}
