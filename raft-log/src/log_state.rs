//! What is known in memory about the log: segments, terms, ends, newest entries. One lock, never held during a read.

use std::ops::Range;

use flotilla_planted_bugs::{Bug, is_planted};

use crate::LogIndex;
use crate::ids::{EntryId, next_index};
use crate::segment::{Record, Segment, SegmentPart, Summary};
use crate::tail_cache::TailCache;
use crate::term_runs::TermRuns;

/// Entries with more than this behind them, bytes, are cold: whoever reads them leaves nothing in the page cache for long.
const COLD_BEHIND_BYTES: u64 = 256 << 20;

/// The log as of now. Segments are in the order of their first index and without gaps: each ends where the next begins.
pub(crate) struct LogState {
    pub(crate) segments: Vec<Segment>,
    pub(crate) terms: TermRuns,
    /// Last entry that was purged; it and everything before it is gone for readers.
    pub(crate) purged: Option<EntryId>,
    /// Last entry; the purge mark when there is none behind it.
    pub(crate) last: Option<EntryId>,
    pub(crate) cache: TailCache,
}

/// Where the entries of a range are to be had.
pub(crate) enum Found {
    /// In memory.
    Cached(Vec<Record>),
    /// On disk; readable without the lock.
    Parts(Vec<SegmentPart>),
}

impl LogState {
    /// The first index that can be read.
    pub(crate) fn start(&self) -> LogIndex {
        let kept = self.segments.first().map_or(LogIndex(0), |segment| segment.header.first);
        kept.max(next_index(self.purged))
    }

    /// The index after the last one.
    pub(crate) fn end(&self) -> LogIndex {
        match self.last {
            Some(last) => last.index.next(),
            None => self.segments.last().map_or(LogIndex(0), |segment| segment.end),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.last == self.purged
    }

    /// The identity of the entry at `index`, the purge mark included.
    pub(crate) fn id_at(&self, index: LogIndex) -> Option<EntryId> {
        if let Some(purged) = self.purged
            && purged.index == index
        {
            return Some(purged);
        }
        if index < self.start() || index >= self.end() {
            return None;
        }
        self.terms.at(index).map(|term| EntryId { term, index })
    }

    /// Whether `index` opens a segment other than the log's first.
    pub(crate) fn opens_segment(&self, index: LogIndex) -> bool {
        let found = self.segments.binary_search_by_key(&index, |segment| segment.header.first);
        found.is_ok_and(|number| number > 0 || self.purged.is_some())
    }

    /// Where to read `range` from, cut to what is there. A cached answer stops after `bytes_max`, with one entry at least.
    pub(crate) fn find(&self, range: Range<LogIndex>, bytes_max: usize) -> Found {
        let from = range.start.max(self.start());
        let end = range.end.min(self.end());
        if from >= end {
            return Found::Cached(Vec::new());
        }
        if let Some(cached) = self.cache.from(from) {
            let wanted = usize::try_from(end.0 - from.0).unwrap_or(usize::MAX);
            return Found::Cached(take_bytes(cached.take(wanted).cloned(), bytes_max));
        }
        let first = self.segments.partition_point(|segment| segment.end <= from);
        let warm = self.warm_from();
        let parts = self.segments[first..]
            .iter()
            .enumerate()
            .take_while(|(_, segment)| segment.header.first < end)
            .filter(|(_, segment)| segment.header.first < segment.end)
            .map(|(number, segment)| {
                segment.part(from.max(segment.header.first), end.min(segment.end), first + number < warm)
            })
            .collect();
        Found::Parts(parts)
    }

    /// Number of the first segment that is not cold.
    fn warm_from(&self) -> usize {
        let mut bytes = 0;
        let behind = self.segments.iter().rposition(|segment| {
            let is_cold = bytes > COLD_BEHIND_BYTES;
            bytes += segment.position;
            is_cold
        });
        behind.map_or(0, |number| number + 1)
    }

    /// Bytes of the records after `index` (all, if it is `None`), about: the first one is found by the nearest mark.
    pub(crate) fn bytes_behind(&self, index: Option<LogIndex>) -> u64 {
        let from = index.map_or(LogIndex(0), LogIndex::next);
        let behind = self.segments.iter().filter(|segment| segment.end > from);
        behind.map(|segment| segment.bytes_from(from.max(segment.header.first))).sum()
    }

    /// Notes an entry that was written to the last segment.
    pub(crate) fn push(&mut self, record: Record) {
        let segment = self.segments.last_mut().expect("a log has a tail segment");
        segment.push(record.id.index, record.payload.len());
        self.terms.push(record.id);
        self.last = Some(record.id);
        self.cache.push(record);
    }

    /// Makes `segment` the tail. What it overrides is forgotten; returns the segments that hold nothing any more.
    pub(crate) fn start_segment(&mut self, segment: Segment) -> Vec<Segment> {
        let first = segment.header.first;
        let keep = self.segments.partition_point(|kept| kept.header.first < first);
        let mut gone = self.segments.split_off(keep);
        if let Some(tail) = self.segments.last_mut()
            && tail.end > first
        {
            tail.truncate(first);
        }
        // A segment without entries in front of a later one stands for nothing.
        while self.segments.last().is_some_and(|tail| tail.header.first == tail.end) {
            gone.extend(self.segments.pop());
        }
        self.terms.truncate(first);
        if !is_planted(Bug::CacheNotTruncated) {
            self.cache.truncate(first);
        }
        self.last = segment.header.previous;
        self.segments.push(segment);
        gone
    }

    /// The summary of the segment before the tail, if there is one and it is all in the log.
    pub(crate) fn seal_before_tail(&mut self) -> Option<Summary> {
        let number = self.segments.len().checked_sub(2)?;
        let start = self.start();
        let sealed = &mut self.segments[number];
        if sealed.header.first < start {
            // The terms of its purged entries are forgotten.
            return None;
        }
        let runs = self.terms.runs_of(sealed.header.first, sealed.end);
        sealed.seal(runs)
    }

    /// Forgets `purged` and everything before it; returns the segments that hold nothing any more.
    pub(crate) fn purge(&mut self, purged: EntryId) -> Vec<Segment> {
        let start = purged.index.next();
        self.purged = Some(purged);
        if self.last.is_none_or(|last| last.index <= purged.index) {
            self.last = Some(purged);
        }
        let tail = self.segments.len().saturating_sub(1);
        let gone = self.segments[..tail].partition_point(|segment| segment.end <= start);
        let gone = self.segments.drain(..gone).collect();
        if start < self.end() {
            self.terms.purge(start);
        } else {
            self.terms = TermRuns::default();
        }
        self.cache.purge(start);
        gone
    }
}

/// Takes records until `bytes_max` is reached, but never stops before the first one.
pub(crate) fn take_bytes(records: impl Iterator<Item = Record>, bytes_max: usize) -> Vec<Record> {
    let mut bytes = 0_usize;
    let mut taken = Vec::new();
    for record in records {
        bytes = bytes.saturating_add(record.payload.len());
        if bytes > bytes_max && !taken.is_empty() {
            break;
        }
        taken.push(record);
    }
    taken
}
