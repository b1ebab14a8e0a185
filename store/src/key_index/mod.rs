//! Which messages have a key or an id: files of hints beside the log, made in the background, never trusted alone.
//!
//! Whoever fills it goes through the queues ([`KeyIndex::gap`]) and tells what it saw ([`KeyIndex::add`]); whoever looks takes
//! a [`KeyView`], reads the candidates and compares, and reads what is not covered itself. So a file may be missing, late or
//! removed without changing what is found.

mod coverage;
mod key_file;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use flotilla_message::Hash128;
use flotilla_raft_log::Disk;

use self::coverage::Coverage;
use self::key_file::{KeyEntry, KeyFile, KeyFileError, KeyRange, number_of};
use crate::StoreError;

/// Messages, and entries, that are kept in memory before a file is written.
const STEP_MESSAGES: u64 = 131_072;
const STEP_ENTRIES: usize = 2 * STEP_MESSAGES as usize;
/// While files cannot be written, so many entries are the most in memory.
const OPEN_ENTRIES_MAX: usize = 2 * STEP_ENTRIES;
/// A key that more messages have is not worth an index: these are as quickly read one after the other.
const CANDIDATES_MAX: usize = 100_000;

/// What a lookup is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyText<'a> {
    /// One of a message's keys.
    Key(&'a str),
    /// The message id.
    Id(&'a str),
}

impl KeyText<'_> {
    /// What entries are sorted by.
    pub fn hash(self, topic_uid: u64) -> u64 {
        let (kind, text) = match self {
            KeyText::Key(text) => (0, text),
            KeyText::Id(text) => (1, text),
        };
        let mut hash = Hash128::new();
        hash.write_u64(topic_uid);
        hash.write_u64(kind);
        hash.write_bytes(text.as_bytes());
        hash.finish() as u64
    }
}

/// One message as the index takes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyedMessage {
    /// Log time of its slot, milliseconds since the Unix epoch.
    pub stored_at_ms: u64,
    /// [`KeyText::hash`] of each of its keys and of its id.
    pub hashes: Vec<u64>,
}

/// What the index knew of one text in one topic at one moment, by queue.
#[derive(Debug, Default)]
pub struct KeyView {
    candidates: BTreeMap<u32, Vec<u64>>,
    covered: BTreeMap<u32, Vec<Range<u64>>>,
}

impl KeyView {
    /// The first offset at or behind `at` whose message must be read: it may have the text, or nobody has looked at it.
    pub fn next(&self, queue: u32, at: u64) -> u64 {
        let stretches = self.covered.get(&queue).map(Vec::as_slice).unwrap_or_default();
        let stretch = stretches.partition_point(|stretch| stretch.end <= at);
        let Some(end) = stretches.get(stretch).filter(|stretch| stretch.contains(&at)).map(|stretch| stretch.end)
        else {
            return at;
        };
        let candidates = self.candidates.get(&queue).map(Vec::as_slice).unwrap_or_default();
        let next = candidates.get(candidates.partition_point(|candidate| *candidate < at));
        next.map_or(end, |candidate| end.min(*candidate))
    }
}

/// The index of one replica. One task fills it; anybody may look.
pub struct KeyIndex {
    disk: Arc<dyn Disk>,
    dir: PathBuf,
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    files: Vec<Arc<KeyFile>>,
    next_number: u64,
    coverage: Coverage,
    open: Open,
}

/// What is not in a file yet.
#[derive(Default, Clone)]
struct Open {
    ranges: Vec<KeyRange>,
    /// The last range of each (topic number, queue).
    last: BTreeMap<(u64, u32), usize>,
    entries: Vec<KeyEntry>,
    message_count: u64,
}

impl Open {
    fn is_full(&self) -> bool {
        self.message_count >= STEP_MESSAGES || self.entries.len() >= STEP_ENTRIES
    }
}

impl KeyIndex {
    /// Opens the index in `dir`, which is made if it is not there. Damaged files are removed.
    ///
    /// # Errors
    /// If the directory or a file in it cannot be read.
    pub fn open(disk: Arc<dyn Disk>, dir: PathBuf) -> Result<KeyIndex, StoreError> {
        let failed = |source| StoreError::Io { path: dir.clone(), source };
        disk.create_dir_all(&dir).map_err(failed)?;
        let mut inner = Inner::default();
        for number in disk.list(&dir).map_err(failed)?.iter().filter_map(|name| number_of(name)) {
            inner.next_number = inner.next_number.max(number + 1);
            match KeyFile::open(&*disk, &dir, number) {
                Ok(file) => inner.files.push(Arc::new(file)),
                Err(KeyFileError::Io(source)) => return Err(failed(source)),
                Err(KeyFileError::Damaged(what)) => {
                    let path = dir.join(key_file::file_name(number));
                    tracing::warn!(file = %path.display(), what, "key index file is made again");
                    disk.remove(&path).map_err(failed)?;
                }
            }
        }
        inner.cover();
        Ok(KeyIndex { disk, dir, inner: Mutex::new(inner) })
    }

    // A panic while it is held leaves hints whole or missing: poison says nothing here.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first stretch within `bounds` of a queue that is not indexed. `None` as well while the index takes no more, as its
    /// files cannot be written.
    pub fn gap(&self, topic_uid: u64, queue: u32, bounds: Range<u64>) -> Option<Range<u64>> {
        let inner = self.lock();
        if inner.open.entries.len() >= OPEN_ENTRIES_MAX {
            return None;
        }
        inner.coverage.gap((topic_uid, queue), bounds)
    }

    /// Takes neighbouring messages of a queue, from `first_offset` on.
    pub fn add(&self, topic_uid: u64, queue: u32, first_offset: u64, messages: &[KeyedMessage]) {
        if messages.is_empty() {
            return;
        }
        let mut guard = self.lock();
        let inner = &mut *guard;
        let end_offset = first_offset + messages.len() as u64;
        inner.coverage.add((topic_uid, queue), first_offset..end_offset);
        let open = &mut inner.open;
        open.message_count += messages.len() as u64;
        // A stretch that goes on where the last one of its queue ended is one with it.
        let goes_on = |range: &usize| {
            let range = &open.ranges[*range];
            range.end_offset == first_offset && end_offset - range.first_offset <= u64::from(u32::MAX)
        };
        let range = match open.last.get(&(topic_uid, queue)).copied().filter(goes_on) {
            Some(range) => range,
            None => {
                open.ranges.push(KeyRange { topic_uid, queue, first_offset, end_offset });
                open.last.insert((topic_uid, queue), open.ranges.len() - 1);
                open.ranges.len() - 1
            }
        };
        open.ranges[range].end_offset = end_offset;
        let base = first_offset - open.ranges[range].first_offset;
        for (at, message) in (base..).zip(messages) {
            let stored_at_ms = message.stored_at_ms;
            let entry = |hash| KeyEntry { hash, range: range as u32, place: at as u32, stored_at_ms };
            open.entries.extend(message.hashes.iter().copied().map(entry));
        }
    }

    /// Whether it takes no more, as its files cannot be written.
    pub fn is_stuck(&self) -> bool {
        self.lock().open.entries.len() >= OPEN_ENTRIES_MAX
    }

    /// Whether enough is in memory for a file.
    pub fn is_full(&self) -> bool {
        self.lock().open.is_full()
    }

    /// Writes what is in memory into a file if it is enough for one; only the task that adds may call this.
    ///
    /// # Errors
    /// If the file cannot be written; it stays in memory, and may be tried again.
    pub fn spill(&self) -> Result<(), StoreError> {
        let (open, number) = {
            let mut inner = self.lock();
            if !inner.open.is_full() {
                return Ok(());
            }
            let number = inner.next_number;
            inner.next_number += 1;
            (inner.open.clone(), number)
        };
        // Outside of the lock: nobody adds meanwhile, and who looks sees it in memory.
        let path = self.dir.join(key_file::file_name(number));
        let file = KeyFile::write(&*self.disk, &self.dir, number, &open.ranges, open.entries).map_err(|error| {
            let source = match error {
                KeyFileError::Io(source) => source,
                KeyFileError::Damaged(what) => std::io::Error::other(what),
            };
            StoreError::Io { path, source }
        })?;
        let mut inner = self.lock();
        inner.files.push(Arc::new(file));
        inner.open = Open::default();
        Ok(())
    }

    /// Where messages of a topic with this text, stored in `stored_ms` (end excluded), may be. `None` if there are so many
    /// that reading all is as good.
    pub fn view(&self, topic_uid: u64, text: KeyText<'_>, stored_ms: &Range<u64>) -> Option<KeyView> {
        let hash = text.hash(topic_uid);
        let mut guard = self.lock();
        let inner = &mut *guard;
        let mut found: Vec<(u32, u64)> = Vec::new();
        let mut damaged = Vec::new();
        for (at, file) in inner.files.iter().enumerate() {
            let mut entries = Vec::new();
            match file.find(hash, stored_ms, CANDIDATES_MAX - found.len(), &mut entries) {
                Ok(true) => found.extend(places(&entries, &file.ranges, topic_uid)),
                Ok(false) => return None,
                Err(error) => {
                    tracing::warn!(file = %file.path.display(), %error, "key index file is made again");
                    damaged.push(at);
                }
            }
        }
        for at in damaged.iter().rev() {
            let file = inner.files.remove(*at);
            if let Err(error) = self.disk.remove(&file.path) {
                tracing::warn!(file = %file.path.display(), %error, "damaged key index file is still there");
            }
        }
        if !damaged.is_empty() {
            inner.cover();
        }
        let wanted = |entry: &&KeyEntry| entry.hash == hash && stored_ms.contains(&entry.stored_at_ms);
        let open: Vec<KeyEntry> = inner.open.entries.iter().filter(wanted).copied().collect();
        found.extend(places(&open, &inner.open.ranges, topic_uid));
        if found.len() > CANDIDATES_MAX {
            return None;
        }
        found.sort_unstable();
        found.dedup();
        let mut candidates: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
        for (queue, offset) in found {
            candidates.entry(queue).or_default().push(offset);
        }
        Some(KeyView { candidates, covered: inner.coverage.of_topic(topic_uid) })
    }

    /// Removes files that speak of nothing that is still there: `first_of` tells the first offset of a queue, `None` if it is
    /// gone. Answers how many went.
    pub fn sweep(&self, first_of: impl Fn(u64, u32) -> Option<u64>) -> usize {
        let mut guard = self.lock();
        let inner = &mut *guard;
        let before = inner.files.len();
        inner.files.retain(|file| {
            let is_there =
                |range: &KeyRange| first_of(range.topic_uid, range.queue).is_some_and(|first| range.end_offset > first);
            if file.ranges.iter().any(is_there) {
                return true;
            }
            match self.disk.remove(&file.path) {
                Ok(()) => false,
                Err(error) => {
                    tracing::warn!(file = %file.path.display(), %error, "key index file cannot be removed yet");
                    true
                }
            }
        });
        let gone = before - inner.files.len();
        if gone > 0 {
            inner.cover();
        }
        gone
    }

    /// How many files there are.
    pub fn file_count(&self) -> usize {
        self.lock().files.len()
    }
}

impl Inner {
    /// Finds out anew what is covered.
    fn cover(&mut self) {
        let mut coverage = Coverage::default();
        let in_files = self.files.iter().flat_map(|file| &file.ranges);
        for range in in_files.chain(&self.open.ranges) {
            coverage.add((range.topic_uid, range.queue), range.first_offset..range.end_offset);
        }
        self.coverage = coverage;
    }
}

/// Queue and offset of entries, of those of this topic.
fn places<'a>(
    entries: &'a [KeyEntry],
    ranges: &'a [KeyRange],
    topic_uid: u64,
) -> impl Iterator<Item = (u32, u64)> + 'a {
    entries.iter().filter_map(move |entry| {
        let range = ranges.get(entry.range as usize).filter(|range| range.topic_uid == topic_uid)?;
        Some((range.queue, range.first_offset + u64::from(entry.place)))
    })
}
