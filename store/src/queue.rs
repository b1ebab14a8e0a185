//! One queue: its bounds, its running hash, and where its slots are found.

use std::sync::Arc;

use flotilla_message::{Hash128, MessageRef};

use crate::index_file::{IndexFile, QueueRow};
use crate::{Slot, StoreError};

/// A dense range of the queue's slots in an index file.
#[derive(Debug, Clone)]
pub(crate) struct Run {
    pub file: Arc<IndexFile>,
    pub first_offset: u64,
    pub slot_count: u32,
    pub first_slot: u64,
}

impl Run {
    pub fn of(file: &Arc<IndexFile>, row: &QueueRow) -> Run {
        Run {
            file: file.clone(),
            first_offset: row.first_offset,
            slot_count: row.slot_count,
            first_slot: row.first_slot,
        }
    }

    fn end(&self) -> u64 {
        self.first_offset + u64::from(self.slot_count)
    }

    fn read(&self, from: u64, count: u64, out: &mut Vec<Slot>) -> Result<(), StoreError> {
        let first = self.first_slot + (from - self.first_offset);
        self.file.read_slots(first, count, out)
    }
}

/// A queue's slots: sealed ones in the index files of their segments, those of the open segment
/// in memory.
#[derive(Debug, Clone)]
pub(crate) struct Queue {
    min: u64,
    max: u64,
    /// Over (offset, message, checksum) of every slot ever made.
    hash: u128,
    runs: Vec<Run>,
    open: Vec<Slot>,
    /// How many of its slots are references.
    references: u64,
    /// The last checkpoint holds the slots in memory before this offset.
    saved_to: u64,
}

/// A part of a queue that can be read without the store's lock.
#[derive(Debug)]
pub(crate) struct QueuePart {
    runs: Vec<(Run, u64, u64)>,
    open: Vec<Slot>,
}

impl QueuePart {
    pub fn read(self) -> Result<Vec<Slot>, StoreError> {
        let mut slots = Vec::new();
        for (run, from, count) in &self.runs {
            run.read(*from, *count, &mut slots)?;
        }
        slots.extend_from_slice(&self.open);
        Ok(slots)
    }
}

/// The search for a time in the slots of index files.
#[derive(Debug)]
pub(crate) struct TimeSearch {
    at_ms: u64,
    min: u64,
    /// The first offset that is in no file: stored at that time or later, or not there yet.
    end: u64,
    runs: Vec<Run>,
}

impl TimeSearch {
    /// The first offset stored at the time or later.
    pub fn run(&self) -> Result<u64, StoreError> {
        let mut slots = Vec::with_capacity(1);
        let mut is_before = |run: &Run, offset: u64| -> Result<bool, StoreError> {
            slots.clear();
            run.read(offset, 1, &mut slots)?;
            Ok(slots.first().is_some_and(|slot| slot.stored_at_ms < self.at_ms))
        };
        let (mut first, mut last) = (0, self.runs.len());
        while first < last {
            let middle = first + (last - first) / 2;
            let run = &self.runs[middle];
            if is_before(run, run.end() - 1)? {
                first = middle + 1;
            } else {
                last = middle;
            }
        }
        let Some(run) = self.runs.get(first) else { return Ok(self.end) };
        let (mut low, mut high) = (run.first_offset.max(self.min), run.end() - 1);
        while low < high {
            let middle = low + (high - low) / 2;
            if is_before(run, middle)? {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        Ok(low)
    }
}

impl Queue {
    pub fn new() -> Queue {
        Queue {
            min: 0,
            max: 0,
            hash: Hash128::new().finish(),
            runs: Vec::new(),
            open: Vec::new(),
            references: 0,
            saved_to: 0,
        }
    }

    /// A queue without messages whose first one will have this offset.
    pub fn beginning_at(offset: u64) -> Queue {
        Queue { min: offset, max: offset, ..Queue::new() }
    }

    /// A queue as a checkpoint has it; its slots are added by [`Queue::set_open`] and [`Queue::push_run`].
    pub fn restored(min: u64, max: u64, hash: u128, references: u64) -> Queue {
        Queue { min, max, hash, runs: Vec::new(), open: Vec::new(), references, saved_to: max }
    }

    /// Puts the slots in memory that a checkpoint has, the first one at `first_offset`.
    pub fn set_open(&mut self, first_offset: u64, mut slots: Vec<Slot>) -> Result<(), String> {
        let end = first_offset.saturating_add(slots.len() as u64);
        if end <= self.min {
            // Trimmed since, or of an earlier queue of this number, which is gone.
            return Ok(());
        }
        if end != self.max {
            return Err(format!("slots {first_offset}..{end} are in memory of a queue that ends at {}", self.max));
        }
        slots.drain(..self.min.saturating_sub(first_offset) as usize);
        self.open = slots;
        Ok(())
    }

    /// The slots in memory from `from` on that the last checkpoint does not hold, or all of them; it will.
    pub fn unsaved(&mut self, all: bool) -> (u64, &[Slot]) {
        let first = self.open_first();
        let from = if all { first } else { self.saved_to.max(first) };
        self.saved_to = self.max;
        (from, &self.open[(from - first) as usize..])
    }

    /// The queue as it is with nothing but its oldest slot: cheap to hold while files are read.
    pub fn oldest_alone(&self) -> Queue {
        let runs = self.runs.first().cloned().into_iter().collect::<Vec<_>>();
        let open = if runs.is_empty() { self.open.first().copied().into_iter().collect() } else { Vec::new() };
        Queue { min: self.min, max: self.min + 1, hash: self.hash, runs, open, references: 0, saved_to: 0 }
    }

    /// How many of its slots are references.
    pub fn references(&self) -> u64 {
        self.references
    }

    /// The oldest offset.
    pub fn min(&self) -> u64 {
        self.min
    }

    /// The offset that the next message gets.
    pub fn max(&self) -> u64 {
        self.max
    }

    pub fn hash(&self) -> u128 {
        self.hash
    }

    /// The slots of the open segment.
    pub fn open(&self) -> &[Slot] {
        &self.open
    }

    /// The first offset that is not in an index file.
    pub fn open_first(&self) -> u64 {
        self.max - self.open.len() as u64
    }

    /// Appends a slot. `checksum` stands for the message in the running hash.
    pub fn append(&mut self, slot: Slot, checksum: u32) -> u64 {
        let offset = self.max;
        let mut hash = Hash128::from_u128(self.hash);
        hash.write_u64(offset);
        hash.write_u64(slot.message.index);
        hash.write_u64(u64::from(slot.message.ordinal) << 32 | u64::from(checksum));
        self.hash = hash.finish();
        self.references += u64::from(slot.is_reference);
        self.open.push(slot);
        self.max += 1;
        offset
    }

    /// The index files that hold slots of the queue, oldest first.
    pub fn files(&self) -> impl Iterator<Item = &Arc<IndexFile>> {
        self.runs.iter().map(|run| &run.file)
    }

    /// Adds a range that an index file holds. Ranges come in order and leave no gap.
    pub fn push_run(&mut self, run: Run) -> Result<(), String> {
        if run.end() <= self.min {
            // Trimmed since, or of an earlier queue of this number, which is gone.
            return Ok(());
        }
        let expected = self.runs.last().map_or(self.min, Run::end);
        // The oldest file may begin with slots that are trimmed.
        let follows = run.first_offset == expected || (self.runs.is_empty() && run.first_offset < expected);
        if !follows || run.end() > self.open_first() {
            return Err(format!(
                "offsets {}..{} of {:?} do not follow {expected} below {}",
                run.first_offset,
                run.end(),
                run.file,
                self.open_first()
            ));
        }
        self.runs.push(run);
        Ok(())
    }

    /// Whether every offset is in a run or in memory.
    pub fn is_covered(&self) -> bool {
        self.runs.last().map_or(self.min, Run::end) == self.open_first()
    }

    /// The open segment's slots are in `run` now.
    pub fn seal(&mut self, run: Run) {
        debug_assert_eq!(run.first_offset, self.open_first());
        debug_assert_eq!(run.slot_count as usize, self.open.len());
        self.runs.push(run);
        self.open = Vec::new();
    }

    /// Drops the slots before `min`, `references` of which are references.
    pub fn trim_to(&mut self, min: u64, references: u64) {
        debug_assert!(min >= self.min && min <= self.max && references <= self.references);
        let open_gone = min.saturating_sub(self.open_first());
        self.open.drain(..open_gone as usize);
        self.runs.retain(|run| run.end() > min);
        self.min = min;
        self.references -= references;
    }

    /// One slot; `None` outside the bounds.
    pub fn slot(&self, offset: u64) -> Result<Option<Slot>, StoreError> {
        if offset < self.min || offset >= self.max {
            return Ok(None);
        }
        if let Some(at) = offset.checked_sub(self.open_first()) {
            return Ok(self.open.get(at as usize).copied());
        }
        Ok(self.part(offset, 1).read()?.pop())
    }

    /// The messages that its references refer to, one for each.
    pub fn referred_to(&self) -> Result<Vec<MessageRef>, StoreError> {
        self.referred_to_before(self.max)
    }

    /// Those of the slots before `end`.
    pub fn referred_to_before(&self, end: u64) -> Result<Vec<MessageRef>, StoreError> {
        if self.references == 0 || end <= self.min {
            return Ok(Vec::new());
        }
        let slots = self.part(self.min, end - self.min).read()?;
        Ok(slots.iter().filter(|slot| slot.is_reference).map(|slot| slot.message).collect())
    }

    /// What holds the slots from `from` on, at most `count`; clipped to the bounds.
    pub fn part(&self, from: u64, count: u64) -> QueuePart {
        let from = from.max(self.min);
        let end = from.saturating_add(count).min(self.max);
        let mut runs = Vec::new();
        let mut at = from;
        let first_run = self.runs.partition_point(|run| run.end() <= from);
        for run in &self.runs[first_run..] {
            if at >= end {
                break;
            }
            let until = run.end().min(end);
            runs.push((run.clone(), at, until - at));
            at = until;
        }
        let open_first = self.open_first();
        let open = if at < end {
            self.open[(at - open_first) as usize..(end - open_first) as usize].to_vec()
        } else {
            Vec::new()
        };
        QueuePart { runs, open }
    }

    /// The first offset stored at or after `at_ms` of log time; the end of the queue if none is.
    pub fn offset_at(&self, at_ms: u64) -> Result<u64, StoreError> {
        self.search_time(at_ms).or_else(|search| search.run())
    }

    /// As [`Queue::offset_at`] where the slots in memory say it; else the search through index files, which needs no lock.
    pub fn search_time(&self, at_ms: u64) -> Result<u64, TimeSearch> {
        let open_first = self.open_first();
        // Log time never falls along a queue.
        if self.runs.is_empty() || self.open.first().is_some_and(|slot| slot.stored_at_ms < at_ms) {
            return Ok(open_first + self.open.partition_point(|slot| slot.stored_at_ms < at_ms) as u64);
        }
        Err(TimeSearch { at_ms, min: self.min, end: open_first, runs: self.runs.clone() })
    }

    /// The same as [`Queue::offset_at`] for a time near the queue's beginning, with fewer reads; and the slot there.
    pub fn first_from(&self, at_ms: u64) -> Result<(u64, Option<Slot>), StoreError> {
        for run in &self.runs {
            let last = run.end() - 1;
            if self.slot(last)?.is_some_and(|slot| slot.stored_at_ms < at_ms) {
                continue;
            }
            let (mut low, mut high) = (run.first_offset.max(self.min), last);
            while low < high {
                let middle = low + (high - low) / 2;
                match self.slot(middle)? {
                    Some(slot) if slot.stored_at_ms < at_ms => low = middle + 1,
                    _ => high = middle,
                }
            }
            return Ok((low, self.slot(low)?));
        }
        let place = self.open.partition_point(|slot| slot.stored_at_ms < at_ms);
        Ok((self.open_first() + place as u64, self.open.get(place).copied()))
    }
}
