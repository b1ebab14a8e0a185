//! Counters by name with a bound on the names: monitoring pays for every name that was ever seen.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};

/// One row a key; the rows of keys beyond the bound are one.
#[derive(Debug)]
pub struct LabelTable<K, V> {
    rows: RwLock<BTreeMap<K, Arc<V>>>,
    rows_max: usize,
    other: Arc<V>,
}

impl<K: Ord + Clone, V: Default> LabelTable<K, V> {
    /// An empty table of at most so many rows.
    pub fn new(rows_max: u64) -> LabelTable<K, V> {
        let rows_max = usize::try_from(rows_max).unwrap_or(usize::MAX);
        LabelTable { rows: RwLock::default(), rows_max, other: Arc::default() }
    }

    /// The row of a key, made if there is room for it, else the row of all others. A key keeps the row it got: a counter
    /// must not fall.
    pub fn row(&self, key: &K) -> Arc<V> {
        if let Some(row) = self.rows.read().expect(LOCK).get(key) {
            return row.clone();
        }
        let mut rows = self.rows.write().expect(LOCK);
        if let Some(row) = rows.get(key) {
            return row.clone();
        }
        if rows.len() >= self.rows_max {
            return self.other.clone();
        }
        rows.entry(key.clone()).or_default().clone()
    }

    /// All rows by key, and that of the others.
    pub fn all(&self) -> (Vec<(K, Arc<V>)>, Arc<V>) {
        let rows = self.rows.read().expect(LOCK);
        (rows.iter().map(|(key, row)| (key.clone(), row.clone())).collect(), self.other.clone())
    }

    /// Lets go of the rows whose keys are not kept, so that others can have their places.
    pub fn retain(&self, keep: impl Fn(&K) -> bool) {
        if self.rows.read().expect(LOCK).keys().all(&keep) {
            return;
        }
        self.rows.write().expect(LOCK).retain(|key, _| keep(key));
    }
}

const LOCK: &str = "label lock is never poisoned: no code panics while holding it";

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn names_beyond_the_bound_are_added_up_and_a_freed_place_is_taken() {
        let table: LabelTable<u32, AtomicU64> = LabelTable::new(2);
        for key in [1, 2, 3, 4, 1] {
            table.row(&key).fetch_add(1, Ordering::Relaxed);
        }
        let count = |row: &AtomicU64| row.load(Ordering::Relaxed);
        let (rows, other) = table.all();
        let rows: Vec<_> = rows.iter().map(|(key, row)| (*key, count(row))).collect();
        assert_eq!((rows, count(&other)), (vec![(1, 2), (2, 1)], 2));
        table.retain(|key| *key != 1);
        table.row(&3).fetch_add(1, Ordering::Relaxed);
        let keys: Vec<u32> = table.all().0.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [2, 3]);
    }
}
