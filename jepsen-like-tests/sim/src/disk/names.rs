//! Names of files: what the kernel shows, and what a power loss leaves, which is some prefix of each directory's changes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::inode::Inode;
use crate::executor::lock;
use crate::rng::Rng;

pub(crate) type File = Arc<Mutex<Inode>>;

#[derive(Clone)]
enum Entry {
    File(File),
    Directory,
}

enum Change {
    Put(PathBuf, Entry),
    Take(PathBuf),
    Rename { from: PathBuf, to: PathBuf },
}

impl Change {
    fn apply(&self, names: &mut BTreeMap<PathBuf, Entry>) {
        match self {
            Change::Put(path, entry) => {
                names.insert(path.clone(), entry.clone());
            }
            Change::Take(path) => {
                names.remove(path);
            }
            Change::Rename { from, to } => {
                if let Some(entry) = names.remove(from) {
                    names.insert(to.clone(), entry);
                }
            }
        }
    }
}

/// The names of one disk.
#[derive(Default)]
pub(crate) struct Names {
    now: BTreeMap<PathBuf, Entry>,
    durable: BTreeMap<PathBuf, Entry>,
    /// Per directory, oldest first.
    pending: BTreeMap<PathBuf, Vec<Change>>,
}

impl Names {
    pub(crate) fn file(&self, path: &Path) -> Option<File> {
        match self.now.get(path) {
            Some(Entry::File(file)) => Some(file.clone()),
            Some(Entry::Directory) | None => None,
        }
    }

    /// The root is always there.
    pub(crate) fn is_directory(&self, path: &Path) -> bool {
        path.parent().is_none() || matches!(self.now.get(path), Some(Entry::Directory))
    }

    /// The directory and its missing parents, durable at once.
    pub(crate) fn make_directories(&mut self, path: &Path) {
        for directory in path.ancestors().filter(|directory| directory.parent().is_some()) {
            self.now.entry(directory.to_owned()).or_insert(Entry::Directory);
            self.durable.entry(directory.to_owned()).or_insert(Entry::Directory);
        }
    }

    pub(crate) fn put(&mut self, path: &Path, file: File) {
        self.change(path, Change::Put(path.to_owned(), Entry::File(file)));
    }

    pub(crate) fn take(&mut self, path: &Path) {
        self.change(path, Change::Take(path.to_owned()));
    }

    /// Both names must be in one directory.
    pub(crate) fn rename(&mut self, from: &Path, to: &Path) {
        assert_eq!(from.parent(), to.parent(), "a simulated rename stays in its directory");
        self.change(from, Change::Rename { from: from.to_owned(), to: to.to_owned() });
    }

    fn change(&mut self, path: &Path, change: Change) {
        change.apply(&mut self.now);
        let directory = path.parent().unwrap_or(path).to_owned();
        self.pending.entry(directory).or_default().push(change);
    }

    pub(crate) fn sync(&mut self, directory: &Path) {
        for change in self.pending.remove(directory).unwrap_or_default() {
            change.apply(&mut self.durable);
        }
    }

    pub(crate) fn list(&self, directory: &Path) -> Vec<String> {
        let files =
            self.now.iter().filter(|(path, entry)| path.parent() == Some(directory) && matches!(entry, Entry::File(_)));
        files.filter_map(|(path, _)| path.file_name()?.to_str().map(str::to_owned)).collect()
    }

    /// What all files with a name take.
    pub(crate) fn bytes(&self) -> u64 {
        let bytes = self.now.values().map(|entry| match entry {
            Entry::File(file) => lock(file).len(),
            Entry::Directory => 0,
        });
        bytes.sum()
    }

    /// Of each directory's unsynced changes a random prefix happened. Answers how many did not.
    pub(crate) fn lose_power(&mut self, rng: &mut Rng) -> u64 {
        let mut undone = 0;
        for changes in std::mem::take(&mut self.pending).into_values() {
            let happened = rng.between(0, changes.len() as u64) as usize;
            changes[..happened].iter().for_each(|change| change.apply(&mut self.durable));
            undone += (changes.len() - happened) as u64;
        }
        self.now = self.durable.clone();
        undone
    }

    /// Every file that has a name now or on disk, each once.
    pub(crate) fn files(&self) -> Vec<File> {
        let mut files: Vec<File> = Vec::new();
        for entry in self.now.values().chain(self.durable.values()) {
            if let Entry::File(file) = entry
                && !files.iter().any(|known| Arc::ptr_eq(known, file))
            {
                files.push(file.clone());
            }
        }
        files
    }

    /// Whether a file has a name.
    pub(crate) fn is_there(&self, file: &File) -> bool {
        self.now.values().any(|entry| matches!(entry, Entry::File(named) if Arc::ptr_eq(named, file)))
    }

    /// Whether a file would have a name after a power loss.
    pub(crate) fn is_durable(&self, file: &File) -> bool {
        self.durable.values().any(|entry| matches!(entry, Entry::File(named) if Arc::ptr_eq(named, file)))
    }
}
