//! The newest entries in memory: what replication and apply ask for a moment after it was appended.

use std::collections::VecDeque;

use flotilla_planted_bugs::{Bug, is_planted};

use crate::LogIndex;
use crate::segment::Record;

/// Counted for every entry besides its payload.
const ENTRY_BYTES: usize = 64;

/// A dense run of the log's newest entries, bounded by bytes.
#[derive(Debug)]
pub(crate) struct TailCache {
    records: VecDeque<Record>,
    bytes: usize,
    bytes_max: usize,
}

impl TailCache {
    pub(crate) fn new(bytes_max: usize) -> TailCache {
        TailCache { records: VecDeque::new(), bytes: 0, bytes_max }
    }

    /// Takes the entry after the last one; drops the oldest ones to stay within the bound.
    pub(crate) fn push(&mut self, record: Record) {
        if let Some(last) = self.records.back() {
            if is_planted(Bug::CacheNotTruncated) && last.id.index >= record.id.index {
                return;
            }
            assert_eq!(last.id.index.next(), record.id.index, "the cache is dense");
        }
        self.bytes += ENTRY_BYTES + record.payload.len();
        self.records.push_back(record);
        while self.bytes > self.bytes_max {
            self.pop_oldest();
        }
    }

    fn pop_oldest(&mut self) {
        let oldest = self.records.pop_front().expect("bytes are only counted for records that are here");
        self.bytes -= ENTRY_BYTES + oldest.payload.len();
    }

    /// Forgets `end` and everything after it.
    pub(crate) fn truncate(&mut self, end: LogIndex) {
        while let Some(last) = self.records.back()
            && last.id.index >= end
        {
            self.bytes -= ENTRY_BYTES + last.payload.len();
            self.records.pop_back();
        }
    }

    /// Forgets everything before `start`.
    pub(crate) fn purge(&mut self, start: LogIndex) {
        while self.records.front().is_some_and(|first| first.id.index < start) {
            self.pop_oldest();
        }
    }

    /// The entries from `from` on, if that one is here.
    pub(crate) fn from(&self, from: LogIndex) -> Option<impl Iterator<Item = &Record>> {
        let first = self.records.front()?.id.index;
        let skip = usize::try_from(from.0.checked_sub(first.0)?).ok()?;
        (skip < self.records.len()).then(|| self.records.range(skip..))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::ids::EntryId;
    use crate::segment::RecordKind;

    fn record(index: u64) -> Record {
        Record { id: EntryId::new(1, index), kind: RecordKind::Normal, payload: Bytes::from(vec![0; 36]) }
    }

    #[test]
    fn the_cache_keeps_the_newest_and_forgets_at_both_ends() {
        let mut cache = TailCache::new(1000);
        (5..30).for_each(|index| cache.push(record(index)));
        assert!(cache.from(LogIndex(19)).is_none(), "ten records of 100 bytes fit");
        assert_eq!(cache.from(LogIndex(20)).unwrap().count(), 10);
        cache.truncate(LogIndex(25));
        cache.purge(LogIndex(22));
        let kept: Vec<u64> = cache.from(LogIndex(22)).unwrap().map(|record| record.id.index.0).collect();
        assert_eq!(kept, [22, 23, 24]);
        assert!(cache.from(LogIndex(25)).is_none() && cache.from(LogIndex(21)).is_none());
        cache.push(record(25));
        cache.truncate(LogIndex(0));
        assert_eq!(cache.bytes, 0);
    }
}
