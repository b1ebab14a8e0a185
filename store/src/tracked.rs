//! A map that remembers which of its parts changed since the last checkpoint.

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Bound, Deref};

/// Which part of a table a row is in. Checkpoints hold parts, and only those that changed since the one before.
pub(crate) type PartKey = (u64, u64);

/// Read as the map that it is; whatever hands out a row to change notes its part.
#[derive(Debug)]
pub(crate) struct Tracked<K, V> {
    rows: BTreeMap<K, V>,
    part_of: fn(&K, &V) -> PartKey,
    changed: BTreeSet<PartKey>,
}

impl<K, V> Deref for Tracked<K, V> {
    type Target = BTreeMap<K, V>;

    fn deref(&self) -> &BTreeMap<K, V> {
        &self.rows
    }
}

impl<K: Ord, V> Tracked<K, V> {
    /// An empty one. A row must stay in its part whatever of it changes.
    pub fn new(part_of: fn(&K, &V) -> PartKey) -> Tracked<K, V> {
        Tracked { rows: BTreeMap::new(), part_of, changed: BTreeSet::new() }
    }

    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        let only = (Bound::Included(key), Bound::Included(key));
        let (key, value) = self.rows.range_mut::<Q, _>(only).next()?;
        self.changed.insert((self.part_of)(key, value));
        Some(value)
    }

    /// The row of that key, made if it is not there.
    pub fn get_or_insert<E>(&mut self, key: K, make: impl FnOnce() -> Result<V, E>) -> Result<&mut V, E>
    where
        K: Copy,
    {
        use std::collections::btree_map::Entry;
        let row = match self.rows.entry(key) {
            Entry::Occupied(row) => row.into_mut(),
            Entry::Vacant(place) => place.insert(make()?),
        };
        self.changed.insert((self.part_of)(&key, row));
        Ok(row)
    }

    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        self.changed.insert((self.part_of)(&key, &value));
        self.rows.insert(key, value)
    }

    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        self.remove_entry(key).map(|(_, value)| value)
    }

    pub fn remove_entry<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<(K, V)>
    where
        K: Borrow<Q>,
    {
        let (key, value) = self.rows.remove_entry(key)?;
        self.changed.insert((self.part_of)(&key, &value));
        Some((key, value))
    }

    /// For changes to what no checkpoint holds.
    pub fn get_mut_untracked<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        self.rows.get_mut(key)
    }

    /// All, for the same.
    pub fn values_mut_untracked(&mut self) -> impl Iterator<Item = &mut V> {
        self.rows.values_mut()
    }

    /// The parts that changed since the last call.
    pub fn changes(&mut self) -> BTreeSet<PartKey> {
        std::mem::take(&mut self.changed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whatever_changes_a_row_notes_its_part() {
        let mut rows: Tracked<u64, &str> = Tracked::new(|key, _| (key / 10, 0));
        let mut changed = |change: &mut dyn FnMut(&mut Tracked<u64, &str>)| {
            change(&mut rows);
            rows.changes().into_iter().map(|(part, _)| part).collect::<Vec<_>>()
        };
        assert_eq!(changed(&mut |rows| assert_eq!(rows.insert(7, "a"), None)), [0]);
        assert_eq!(changed(&mut |rows| assert!(rows.get_mut(&8).is_none())), []);
        assert_eq!(changed(&mut |rows| *rows.get_mut(&7).unwrap() = "b"), [0]);
        assert_eq!(changed(&mut |rows| drop(rows.get_or_insert(25, || Ok::<_, ()>("c")))), [2]);
        assert_eq!(changed(&mut |rows| drop(rows.get_or_insert(25, || Err("never made")))), [2]);
        assert_eq!(changed(&mut |rows| assert_eq!(rows.get(&25), Some(&"c"))), []);
        assert_eq!(changed(&mut |rows| assert_eq!(rows.get_or_insert(31, || Err("no")), Err("no"))), []);
        assert_eq!(changed(&mut |rows| assert_eq!(rows.remove(&25), Some("c"))), [2]);
        assert_eq!(changed(&mut |rows| assert_eq!(rows.remove(&25), None)), []);
    }
}
