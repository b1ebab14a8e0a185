//! Compiled filters by their text, so that polls that come again do not compile again.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use super::error::SqlError;
use super::sql_filter::SqlFilter;

/// Filters kept; the one not used for longest goes first.
const FILTERS_MAX: usize = 128;

/// The filters compiled last.
#[derive(Debug, Default)]
pub struct SqlCache {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    by_text: BTreeMap<Arc<str>, Used>,
    use_count: u64,
}

#[derive(Debug)]
struct Used {
    filter: Arc<SqlFilter>,
    /// Number of its last use.
    last: u64,
}

const LOCK: &str = "filter cache lock is never poisoned: no code panics while holding it";

impl SqlCache {
    /// The filter of this text, compiled if it is not here. Errors are not kept: they are quick to find again.
    ///
    /// # Errors
    /// See [`SqlFilter::compile`].
    pub fn filter(&self, text: &str) -> Result<Arc<SqlFilter>, SqlError> {
        if let Some(filter) = self.table.lock().expect(LOCK).used(text) {
            return Ok(filter);
        }
        let filter = Arc::new(SqlFilter::compile(text)?);
        self.table.lock().expect(LOCK).keep(filter.clone());
        Ok(filter)
    }
}

impl Table {
    fn used(&mut self, text: &str) -> Option<Arc<SqlFilter>> {
        let used = self.by_text.get_mut(text)?;
        self.use_count += 1;
        used.last = self.use_count;
        Some(used.filter.clone())
    }

    fn keep(&mut self, filter: Arc<SqlFilter>) {
        if self.by_text.len() >= FILTERS_MAX {
            let oldest = self.by_text.iter().min_by_key(|(_, used)| used.last).map(|(text, _)| text.clone());
            if let Some(oldest) = oldest {
                self.by_text.remove(&oldest);
            }
        }
        self.use_count += 1;
        self.by_text.insert(filter.text().clone(), Used { filter, last: self.use_count });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_compiled_once_while_it_is_used() {
        let cache = SqlCache::default();
        let first = cache.filter("a = 0").expect("an expression");
        for number in 1..2 * FILTERS_MAX {
            cache.filter(&format!("a = {number}")).expect("an expression");
            assert!(Arc::ptr_eq(&first, &cache.filter("a = 0").expect("an expression")));
        }
        let table = cache.table.lock().expect(LOCK);
        assert_eq!(table.by_text.len(), FILTERS_MAX);
        assert!(!table.by_text.contains_key("a = 1"), "not used for longest");
    }

    #[test]
    fn what_is_no_expression_is_not_kept() {
        let cache = SqlCache::default();
        assert!(cache.filter("a =").is_err());
        assert!(cache.table.lock().expect(LOCK).by_text.is_empty());
    }
}
