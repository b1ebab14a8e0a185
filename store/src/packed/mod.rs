//! Many small rows in order, packed into chunks of bytes: for what waits by the million.
//!
//! ```text
//!  lower bound ─▶ chunk 7: [row][row − row before][row − row before]…   some hundred rows, a few kilobytes
//!  lower bound ─▶ chunk 9: …
//! ```
//! A row is written as its difference to the one before it, so neighbours cost little. A chunk's bytes are shared with the
//! checkpoints that hold it, and copied when they change while one still does.

mod varint;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

pub(crate) use varint::{Numbers, put, put_step, put_word};

/// Most rows of a chunk: finding one looks at half of them, and a change copies them.
const CHUNK_ROWS_MAX: u32 = 256;
/// A chunk with fewer joins the next one, if there is room.
const CHUNK_ROWS_MIN: u32 = 64;
/// What a chunk's memory grows by, bytes.
const GROWTH_BYTES: usize = 512;

/// A row that can be packed.
///
/// [`PackedRow::read`] must give back what [`PackedRow::write`] wrote behind the same row, and never panic.
pub(crate) trait PackedRow: Copy + fmt::Debug + PartialEq {
    type Key: Ord + Copy + fmt::Debug;

    /// What the first row of a chunk is told against.
    const ORIGIN: Self;

    fn key(&self) -> Self::Key;
    fn write(&self, before: &Self, out: &mut Vec<u8>);
    fn read(before: &Self, numbers: &mut Numbers<'_>) -> Option<Self>;
}

/// The bytes of a chunk, and the number by which checkpoints know it; none once it is gone.
pub(crate) type ChunkContent = (u64, Option<Arc<Vec<u8>>>);

#[derive(Debug)]
struct Chunk<R> {
    /// Never given twice.
    id: u64,
    count: u32,
    bytes: Arc<Vec<u8>>,
    last: R,
}

/// A row found in a chunk, or where it would be.
struct Place<R> {
    at: usize,
    /// [`PackedRow::ORIGIN`] for the first one.
    before: R,
    /// The first row that is not before the key, and where it ends.
    row: Option<(R, usize)>,
}

/// Rows by key, each key once.
#[derive(Debug)]
pub(crate) struct PackedRows<R: PackedRow> {
    /// By a bound that none of its rows is below, nor any row of a later chunk; none is empty.
    chunks: BTreeMap<R::Key, Chunk<R>>,
    len: usize,
    last_id: u64,
    /// Chunks that changed since the last checkpoint, with the bounds they had then.
    changed: BTreeMap<u64, R::Key>,
}

impl<R: PackedRow> Default for PackedRows<R> {
    fn default() -> PackedRows<R> {
        PackedRows { chunks: BTreeMap::new(), len: 0, last_id: 0, changed: BTreeMap::new() }
    }
}

/// The rows of a chunk's bytes.
struct RowsIn<'a, R> {
    numbers: Numbers<'a>,
    end: usize,
    before: R,
}

impl<'a, R: PackedRow> RowsIn<'a, R> {
    fn of(bytes: &'a [u8]) -> RowsIn<'a, R> {
        RowsIn { numbers: Numbers::from(bytes, 0), end: bytes.len(), before: R::ORIGIN }
    }
}

impl<R: PackedRow> Iterator for RowsIn<'_, R> {
    type Item = R;

    fn next(&mut self) -> Option<R> {
        if self.numbers.at() >= self.end {
            return None;
        }
        let row = R::read(&self.before, &mut self.numbers).expect("a chunk holds what was written into it");
        self.before = row;
        Some(row)
    }
}

impl<R: PackedRow> Chunk<R> {
    fn of(id: u64, rows: &[R]) -> Chunk<R> {
        let mut bytes = Vec::new();
        let mut last = R::ORIGIN;
        for row in rows {
            row.write(&last, &mut bytes);
            last = *row;
        }
        bytes.shrink_to_fit();
        Chunk { id, count: rows.len() as u32, bytes: Arc::new(bytes), last }
    }

    fn rows(&self) -> RowsIn<'_, R> {
        RowsIn::of(&self.bytes)
    }

    fn find(&self, key: R::Key) -> Place<R> {
        let mut rows = self.rows();
        loop {
            let (at, before) = (rows.numbers.at(), rows.before);
            match rows.next() {
                Some(row) if row.key() < key => {}
                row => return Place { at, before, row: row.map(|row| (row, rows.numbers.at())) },
            }
        }
    }

    /// The row that begins at `at`, and where it ends.
    fn row_at(&self, at: usize, before: &R) -> Option<(R, usize)> {
        let mut numbers = Numbers::from(&self.bytes, at);
        (at < self.bytes.len()).then(|| {
            let row = R::read(before, &mut numbers).expect("a chunk holds what was written into it");
            (row, numbers.at())
        })
    }

    /// Puts `new` behind `before` instead of the bytes from `at` to `end`; `next` begins there.
    fn splice(&mut self, at: usize, end: usize, before: &R, new: Option<&R>, next: Option<(R, usize)>) {
        let mut part = Vec::with_capacity(128);
        if let Some(new) = new {
            new.write(before, &mut part);
        }
        if let Some((next, _)) = next {
            next.write(new.unwrap_or(before), &mut part);
        }
        let end = next.map_or(end, |(_, end)| end);
        let bytes = Arc::make_mut(&mut self.bytes);
        if bytes.capacity() < bytes.len() + part.len() {
            bytes.reserve_exact(part.len() + GROWTH_BYTES);
        }
        bytes.splice(at..end, part);
        if next.is_none() {
            self.last = new.copied().unwrap_or(*before);
        }
    }
}

impl<R: PackedRow> PackedRows<R> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// All, rising.
    pub fn iter(&self) -> impl Iterator<Item = R> {
        self.chunks.values().flat_map(Chunk::rows)
    }

    pub fn first(&self) -> Option<R> {
        self.chunks.values().next()?.rows().next()
    }

    pub fn get(&self, key: R::Key) -> Option<R> {
        let (_, chunk) = self.chunks.range(..=key).next_back()?;
        if key > chunk.last.key() {
            return None;
        }
        chunk.find(key).row.map(|(row, _)| row).filter(|row| row.key() == key)
    }

    /// Puts a row in, and answers the one that it replaces.
    pub fn insert(&mut self, row: R) -> Option<R> {
        let key = row.key();
        let Some(lower) = self.home_of(key) else {
            self.add_chunk(key, &[row]);
            self.len += 1;
            return None;
        };
        let chunk = self.chunks.get_mut(&lower).expect("the bound was found above");
        if key > chunk.last.key() {
            if chunk.count >= CHUNK_ROWS_MAX {
                if let Some(bytes) = Arc::get_mut(&mut chunk.bytes) {
                    bytes.shrink_to_fit();
                }
                self.add_chunk(key, &[row]);
            } else {
                let (end, before) = (chunk.bytes.len(), chunk.last);
                chunk.splice(end, end, &before, Some(&row), None);
                chunk.count += 1;
                self.changed.insert(chunk.id, lower);
            }
            self.len += 1;
            return None;
        }
        self.changed.insert(chunk.id, lower);
        let Place { at, before, row: found } = chunk.find(key);
        match found {
            Some((old, end)) if old.key() == key => {
                let next = chunk.row_at(end, &old);
                chunk.splice(at, end, &before, Some(&row), next);
                return Some(old);
            }
            next => chunk.splice(at, at, &before, Some(&row), next),
        }
        chunk.count += 1;
        self.len += 1;
        if chunk.count > CHUNK_ROWS_MAX {
            let rows: Vec<R> = chunk.rows().collect();
            let (front, back) = rows.split_at(rows.len() / 2);
            *chunk = Chunk::of(chunk.id, front);
            self.add_chunk(back[0].key(), back);
        }
        None
    }

    /// Takes a row out, if it is there.
    pub fn remove(&mut self, key: R::Key) -> Option<R> {
        let (lower, chunk) = self.chunks.range_mut(..=key).next_back()?;
        let lower = *lower;
        if key > chunk.last.key() {
            return None;
        }
        let Place { at, before, row: found } = chunk.find(key);
        let (row, end) = found.filter(|(row, _)| row.key() == key)?;
        let next = chunk.row_at(end, &row);
        chunk.splice(at, end, &before, None, next);
        chunk.count -= 1;
        self.len -= 1;
        self.changed.insert(chunk.id, lower);
        if chunk.count < CHUNK_ROWS_MIN {
            self.join(lower);
        }
        Some(row)
    }

    /// Drops all rows for which `stays` says no.
    pub fn retain(&mut self, mut stays: impl FnMut(&R) -> bool) {
        let mut empty = Vec::new();
        for (lower, chunk) in &mut self.chunks {
            let kept: Vec<R> = chunk.rows().filter(|row| stays(row)).collect();
            if kept.len() == chunk.count as usize {
                continue;
            }
            self.len -= chunk.count as usize - kept.len();
            self.changed.insert(chunk.id, *lower);
            if kept.is_empty() {
                empty.push(*lower);
            } else {
                *chunk = Chunk::of(chunk.id, &kept);
            }
        }
        empty.iter().for_each(|lower| drop(self.chunks.remove(lower)));
    }

    /// The bound of the chunk that a key belongs to; the first chunk takes what comes before it.
    fn home_of(&mut self, key: R::Key) -> Option<R::Key> {
        if let Some((lower, _)) = self.chunks.range(..=key).next_back() {
            return Some(*lower);
        }
        let (_, chunk) = self.chunks.pop_first()?;
        self.changed.insert(chunk.id, key);
        self.chunks.insert(key, chunk);
        Some(key)
    }

    fn add_chunk(&mut self, lower: R::Key, rows: &[R]) {
        self.last_id += 1;
        self.changed.insert(self.last_id, lower);
        self.chunks.insert(lower, Chunk::of(self.last_id, rows));
    }

    /// Drops a chunk without rows, or lets one with few take in the next one.
    fn join(&mut self, lower: R::Key) {
        let Some(chunk) = self.chunks.get(&lower) else { return };
        if chunk.count == 0 {
            self.chunks.remove(&lower);
            return;
        }
        let mut behind = self.chunks.range(lower..).skip(1);
        let Some((next_lower, next)) = behind.next() else { return };
        if chunk.count + next.count > CHUNK_ROWS_MAX - CHUNK_ROWS_MIN {
            return;
        }
        let (next_lower, rows) = (*next_lower, chunk.rows().chain(next.rows()).collect::<Vec<R>>());
        self.changed.insert(next.id, next_lower);
        let joined = Chunk::of(chunk.id, &rows);
        self.chunks.remove(&next_lower);
        self.chunks.insert(lower, joined);
    }

    /// What a checkpoint needs: the chunks that changed since the last one, or all.
    pub fn changes(&mut self, all: bool) -> Vec<ChunkContent> {
        let changed = std::mem::take(&mut self.changed);
        if all {
            return self.chunks.values().map(|chunk| (chunk.id, Some(chunk.bytes.clone()))).collect();
        }
        let content = |(id, lower): (u64, R::Key)| {
            let chunk = self.chunks.get(&lower).filter(|chunk| chunk.id == id);
            (id, chunk.map(|chunk| chunk.bytes.clone()))
        };
        changed.into_iter().map(content).collect()
    }

    /// Takes in a chunk as a checkpoint has it; `each` sees its rows.
    pub fn restore(
        &mut self,
        id: u64,
        bytes: &[u8],
        mut each: impl FnMut(&R) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut numbers = Numbers::from(bytes, 0);
        let (mut last, mut count, mut lower) = (R::ORIGIN, 0u32, None);
        while numbers.at() < bytes.len() {
            let row = R::read(&last, &mut numbers).ok_or_else(|| format!("row {count} of chunk {id} is cut off"))?;
            if lower.is_some() && row.key() <= last.key() {
                return Err(format!("row {count} of chunk {id} does not follow the one before it"));
            }
            each(&row)?;
            lower = lower.or(Some(row.key()));
            (last, count) = (row, count + 1);
        }
        let lower = lower.ok_or_else(|| format!("chunk {id} has no rows"))?;
        let before = self.chunks.range(..lower).next_back().is_none_or(|(_, before)| before.last.key() < lower);
        let behind = self.chunks.range(lower..).next().is_none_or(|(behind, _)| last.key() < *behind);
        if !before || !behind {
            return Err(format!("rows of chunk {id} are in another one too"));
        }
        self.len += count as usize;
        self.last_id = self.last_id.max(id);
        self.chunks.insert(lower, Chunk { id, count, bytes: Arc::new(bytes.to_vec()), last });
        Ok(())
    }

    /// Memory that the rows take, bytes, but for what the allocator and the map of chunks add to each chunk.
    #[cfg(test)]
    pub fn memory_bytes(&self) -> usize {
        let chunk = size_of::<R::Key>() + size_of::<Chunk<R>>() + size_of::<Vec<u8>>() + 2 * size_of::<usize>();
        self.chunks.values().map(|row| row.bytes.capacity() + chunk).sum()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Row(u64, u64);

    impl PackedRow for Row {
        type Key = u64;
        const ORIGIN: Row = Row(0, 0);

        fn key(&self) -> u64 {
            self.0
        }
        fn write(&self, before: &Row, out: &mut Vec<u8>) {
            put(self.0 - before.0, out);
            put_step(self.1, before.1, out);
        }
        fn read(before: &Row, numbers: &mut Numbers<'_>) -> Option<Row> {
            Some(Row(before.0.checked_add(numbers.take()?)?, numbers.take_step(before.1)?))
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Insert(u64, u64),
        Append(u64),
        Remove(u64),
        RemoveFirst(u16),
        Retain(u64),
        Checkpoint(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            20 => (0u64..3000, any::<u64>()).prop_map(|(key, value)| Step::Insert(key, value)),
            20 => (1u64..9).prop_map(Step::Append),
            10 => (0u64..3000).prop_map(Step::Remove),
            1 => (0u16..400).prop_map(Step::RemoveFirst),
            1 => (2u64..7).prop_map(Step::Retain),
            1 => any::<bool>().prop_map(Step::Checkpoint),
        ];
        proptest::collection::vec(step, 0..3000)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

        #[test]
        fn they_behave_like_a_map_and_checkpoints_hold_all_of_it(steps in steps()) {
            let mut rows = PackedRows::<Row>::default();
            let mut model = BTreeMap::new();
            let mut saved: BTreeMap<u64, Arc<Vec<u8>>> = BTreeMap::new();
            for step in steps {
                match step {
                    Step::Insert(key, value) => {
                        prop_assert_eq!(rows.insert(Row(key, value)).map(|row| row.1), model.insert(key, value));
                    }
                    Step::Append(by) => {
                        let key = model.last_key_value().map_or(0, |(key, _)| key + by);
                        prop_assert_eq!(rows.insert(Row(key, by)), None);
                        model.insert(key, by);
                    }
                    Step::Remove(key) => prop_assert_eq!(rows.remove(key).map(|row| row.1), model.remove(&key)),
                    Step::RemoveFirst(count) => for _ in 0..count {
                        let first = model.pop_first();
                        prop_assert_eq!(rows.first().map(|row| (row.0, row.1)), first);
                        if let Some((key, value)) = first {
                            prop_assert_eq!(rows.remove(key), Some(Row(key, value)));
                        }
                    }
                    Step::Retain(by) => {
                        rows.retain(|row| row.0 % by != 0);
                        model.retain(|key, _| key % by != 0);
                    }
                    Step::Checkpoint(all) => {
                        if all {
                            saved.clear();
                        }
                        for (id, bytes) in rows.changes(all) {
                            match bytes {
                                Some(bytes) => drop(saved.insert(id, bytes)),
                                None => drop(saved.remove(&id)),
                            }
                        }
                        let mut again = PackedRows::<Row>::default();
                        for (id, bytes) in &saved {
                            again.restore(*id, bytes, |_| Ok(())).unwrap();
                        }
                        prop_assert!(again.iter().eq(rows.iter()));
                        if all {
                            rows = again;
                        }
                    }
                }
                prop_assert_eq!(rows.len(), model.len());
            }
            prop_assert!(rows.iter().map(|row| (row.0, row.1)).eq(model.iter().map(|(key, value)| (*key, *value))));
            for key in 0..3000 {
                prop_assert_eq!(rows.get(key).map(|row| row.1), model.get(&key).copied());
            }
        }

        #[test]
        fn no_bytes_make_restoring_panic(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = PackedRows::<Row>::default().restore(1, &bytes, |_| Ok(()));
        }
    }

    #[test]
    fn a_chunk_is_copied_only_while_a_checkpoint_holds_it() {
        let mut rows = PackedRows::<Row>::default();
        for key in 0..u64::from(CHUNK_ROWS_MAX) * 3 {
            rows.insert(Row(key * 2, key));
        }
        let held = rows.changes(false);
        assert_eq!(held.len(), 3);
        rows.insert(Row(1, 1));
        let changed = rows.changes(false);
        assert_eq!(changed.iter().filter(|(_, bytes)| bytes.is_some()).count(), 2, "one was split");
        let first = held[0].1.as_ref().unwrap();
        assert_eq!(RowsIn::<Row>::of(first).count(), CHUNK_ROWS_MAX as usize, "what was held fast stays as it was");
        assert!(rows.changes(false).is_empty());
    }
}
